//! From tokens to the text a client sees: characters that span tokens, and stop strings that span anything.
//! What is held back is either sent later, once, or is (part of) the stop string and never sent.

/// Bytes of tokens, joined into whole characters. A character that is broken off at the end is no text.
pub trait TokenText: Send {
    /// The text that is certain once `token` is known; what may still be half a character stays inside.
    fn push(&mut self, token: u32) -> &str;
}

/// Token text cut at the first stop string.
pub struct Assembler {
    tokens: Box<dyn TokenText>,
    stops: StopMatcher,
}

/// What one token added to the visible text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Added {
    pub text: String,
    /// A stop string was completed: the visible text ends here.
    pub stopped: bool,
}

impl Assembler {
    pub fn new(tokens: Box<dyn TokenText>, stops: Vec<String>) -> Self {
        Self { tokens, stops: StopMatcher::new(stops) }
    }

    pub fn push(&mut self, token: u32) -> Added {
        self.stops.push(self.tokens.push(token))
    }

    /// What was held back and did not become a stop string.
    pub fn finish(&mut self) -> String {
        self.stops.take_held()
    }
}

/// Finds stop strings as if text came one character at a time: the one that is complete first wins, of those the
/// one that began first. Hence the cut never depends on where tokens end.
#[derive(Debug)]
struct StopMatcher {
    stops: Vec<String>,
    /// The longest end of the text so far that may still grow into a stop string.
    held: String,
}

impl StopMatcher {
    fn new(stops: Vec<String>) -> Self {
        Self { stops: stops.into_iter().filter(|stop| !stop.is_empty()).collect(), held: String::new() }
    }

    fn push(&mut self, text: &str) -> Added {
        self.held.push_str(text);
        if let Some(start) = self.first_match() {
            self.held.truncate(start);
            return Added { text: self.take_held(), stopped: true };
        }
        let keep = self.partial_match();
        let held = self.held.split_off(self.held.len() - keep);
        Added { text: std::mem::replace(&mut self.held, held), stopped: false }
    }

    fn take_held(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    fn first_match(&self) -> Option<usize> {
        let found = self.stops.iter().filter_map(|stop| self.held.find(stop.as_str()).map(|at| (at + stop.len(), at)));
        found.min().map(|(_, start)| start)
    }

    /// Length in bytes of the longest end of `held` that is a beginning of a stop string.
    fn partial_match(&self) -> usize {
        let partial = |stop: &String| {
            let ends = stop.char_indices().map(|(at, _)| at).rev();
            ends.into_iter().find(|len| self.held.as_bytes().ends_with(&stop.as_bytes()[..*len])).unwrap_or(0)
        };
        self.stops.iter().map(partial).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (Vec<String>, bool) {
        let mut matcher = StopMatcher::new(stops.iter().map(|stop| (*stop).to_owned()).collect());
        let mut sent = Vec::new();
        for piece in pieces {
            let added = matcher.push(piece);
            sent.push(added.text);
            if added.stopped {
                return (sent, true);
            }
        }
        sent.push(matcher.take_held());
        (sent, false)
    }

    fn check(stops: &[&str], pieces: &[&str], text: &str, stopped: bool) {
        let (sent, hit) = run(stops, pieces);
        assert_eq!((sent.concat().as_str(), hit), (text, stopped), "{stops:?} in {pieces:?}");
    }

    #[test]
    fn a_stop_string_over_several_tokens_fires() {
        check(&["O P Q"], &["L M N", " O", " P", " Q", " R"], "L M N ", true);
    }

    #[test]
    fn text_before_the_stop_in_the_same_token_is_kept() {
        check(&["\n\n"], &["How are you", "?\n\nFine"], "How are you?", true);
    }

    #[test]
    fn a_partial_match_that_fails_is_sent_once() {
        check(&["Alice:"], &["Hi", " Alice", "!"], "Hi Alice!", false);
        assert_eq!(run(&["Alice:"], &["Hi Alice", "!"]).0, ["Hi ", "Alice!", ""]);
    }

    #[test]
    fn a_partial_match_at_the_end_is_not_lost() {
        check(&["STOP"], &["go ", "ST"], "go ST", false);
    }

    #[test]
    fn a_failed_beginning_may_hide_a_second_one() {
        check(&["aab"], &["a", "a", "a", "b", "x"], "a", true);
        check(&["abcd", "bx"], &["abc", "bx"], "abc", true);
    }

    #[test]
    fn the_stop_that_is_complete_first_wins() {
        check(&["xabc", "ab"], &["1xabc"], "1x", true);
        check(&["ab", "xab"], &["1xab"], "1", true);
    }

    #[test]
    fn characters_of_several_bytes_are_never_cut() {
        check(&["字x"], &["漢", "字", "字x"], "漢字", true);
        check(&["é"], &["d", "é", "j"], "d", true);
    }

    #[test]
    fn an_empty_stop_string_is_ignored() {
        check(&[""], &["a", "b"], "ab", false);
    }

    proptest! {
        #[test]
        fn the_cut_does_not_depend_on_token_borders(
            text in "[abé]{0,24}",
            stops in prop::collection::vec("[abé]{1,4}", 0..3),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        ) {
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let chars: Vec<String> = text.chars().map(String::from).collect();
            let one_by_one: Vec<&str> = chars.iter().map(String::as_str).collect();
            let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(chars.len() + 1)).collect();
            places.extend([0, chars.len()]);
            places.sort_unstable();
            let pieces: Vec<String> = places.windows(2).map(|pair| chars[pair[0]..pair[1]].concat()).collect();
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let (slow, fast) = (run(&stops, &one_by_one), run(&stops, &pieces));
            prop_assert_eq!(slow.0.concat(), fast.0.concat());
            prop_assert_eq!(slow.1, fast.1);
            prop_assert!(stops.iter().all(|stop| !fast.0.concat().contains(stop)));
        }
    }
}
