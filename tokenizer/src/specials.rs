//! Finds the fixed strings of a vocabulary (control and user-defined tokens) in text. What lies between them is
//! text for the model.

use aho_corasick::{AhoCorasick, AhoCorasickKind, Input, MatchKind};

use crate::error::LoadError;
use crate::vocab::{Kind, Vocab};

/// Whether the text of control tokens becomes those tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// Text stays text, whatever it spells. For anything a user wrote.
    Plain,
    /// `<|im_end|>` and the like become control tokens. For text the operator wrote, such as a template.
    Parse,
}

/// One stretch of the input.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Part<'t> {
    Token(u32),
    /// Never empty.
    Text(&'t str),
}

/// Two automata, since user text must not meet the control tokens at all.
#[derive(Debug)]
pub(crate) struct Specials {
    control: Strings,
    user_defined: Strings,
}

impl Specials {
    pub(crate) fn of(vocab: &Vocab) -> Result<Self, LoadError> {
        let of_kind = |wanted: fn(Kind) -> bool| {
            Strings::new(vocab.iter().filter(|&(_, text, kind)| wanted(kind) && !text.is_empty()))
        };
        Ok(Self {
            control: of_kind(|kind| matches!(kind, Kind::Control | Kind::Unknown))?,
            user_defined: of_kind(|kind| kind == Kind::UserDefined)?,
        })
    }

    /// The parts of `text` in order.
    pub(crate) fn split<'t>(&self, text: &'t str, special: Special, part: &mut impl FnMut(Part<'t>)) {
        match special {
            Special::Plain => self.user_defined.split(text, part),
            Special::Parse => self.control.split(text, &mut |outer| match outer {
                Part::Text(text) => self.user_defined.split(text, part),
                token => part(token),
            }),
        }
    }

    /// `text` split at control tokens only.
    pub(crate) fn split_control<'t>(&self, text: &'t str, part: &mut impl FnMut(Part<'t>)) {
        self.control.split(text, part);
    }

    /// Whether a fixed string that is found in any text holds a space after something else.
    pub(crate) fn may_join_words(&self) -> bool {
        self.user_defined.joins_words
    }

    pub(crate) fn control(&self) -> &Strings {
        &self.control
    }
}

/// The fixed strings of one kind, prepared for search.
#[derive(Debug)]
pub(crate) struct Strings {
    automaton: Option<AhoCorasick>,
    ids: Vec<u32>,
    /// Sorted, so that all strings with a common beginning are neighbours.
    sorted: Vec<Box<str>>,
    first_chars: Vec<char>,
    longest: usize,
    joins_words: bool,
}

impl Strings {
    fn new<'v>(tokens: impl Iterator<Item = (u32, &'v [u8], Kind)>) -> Result<Self, LoadError> {
        let mut ids = Vec::new();
        let mut texts: Vec<Box<str>> = Vec::new();
        for (id, bytes, _) in tokens {
            // A token that is not text can never be found in text.
            let Ok(text) = std::str::from_utf8(bytes) else { continue };
            ids.push(id);
            texts.push(Box::from(text));
        }
        let automaton = match texts.is_empty() {
            true => None,
            false => Some(
                AhoCorasick::builder()
                    .match_kind(MatchKind::LeftmostLongest)
                    .kind(kind(&texts))
                    .build(texts.iter().map(|text| text.as_bytes()))
                    .map_err(|error| LoadError::Vocabulary { reason: format!("special tokens: {error}") })?,
            ),
        };
        texts.sort_unstable();
        let mut first_chars: Vec<char> = texts.iter().filter_map(|text| text.chars().next()).collect();
        first_chars.dedup();
        let longest = texts.iter().map(|text| text.len()).max().unwrap_or(0);
        let joins = |text: &str| text.as_bytes().windows(2).any(|pair| pair[0] != b' ' && pair[1] == b' ');
        let joins_words = texts.iter().any(|text| joins(text));
        Ok(Self { automaton, ids, sorted: texts, first_chars, longest, joins_words })
    }

    /// Every character that one of the strings begins with, once.
    pub(crate) fn first_chars(&self) -> &[char] {
        &self.first_chars
    }

    /// Where `text` spells one of the strings (overlapping ones too), and where it begins to spell one when it ends,
    /// white space at the end aside: what follows may complete it. Ascending.
    pub(crate) fn spelled(&self, text: &str) -> Vec<usize> {
        let Some(automaton) = &self.automaton else { return Vec::new() };
        let mut spelled = Vec::new();
        let mut from = 0;
        while let Some(found) = automaton.find(Input::new(text).range(from..)) {
            spelled.push(found.start());
            from = found.start() + 1;
        }
        let end = text.trim_end();
        let tail = end.ceil_char_boundary(end.len().saturating_sub(self.longest));
        for (at, _) in end[tail..].char_indices().filter(|(_, char)| self.first_chars.contains(char)) {
            if self.begins_with(&end[tail + at..]) {
                spelled.push(tail + at);
            }
        }
        spelled.sort_unstable();
        spelled.dedup();
        spelled
    }

    /// Whether one of the strings begins with `beginning`.
    fn begins_with(&self, beginning: &str) -> bool {
        let at = self.sorted.partition_point(|text| **text < *beginning);
        self.sorted.get(at).is_some_and(|text| text.starts_with(beginning))
    }

    fn split<'t>(&self, text: &'t str, part: &mut impl FnMut(Part<'t>)) {
        let mut done = 0;
        if let Some(automaton) = &self.automaton {
            for found in automaton.find_iter(text) {
                if done < found.start() {
                    part(Part::Text(&text[done..found.start()]));
                }
                part(Part::Token(self.ids[found.pattern().as_usize()]));
                done = found.end();
            }
        }
        if done < text.len() {
            part(Part::Text(&text[done..]));
        }
    }
}

/// The fastest automaton for few strings; for thousands it would take megabytes.
fn kind(texts: &[Box<str>]) -> Option<AhoCorasickKind> {
    const SMALL: usize = 8 << 10;
    let bytes: usize = texts.iter().map(|text| text.len()).sum();
    (bytes <= SMALL).then_some(AhoCorasickKind::DFA)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts<'t>(text: &'t str, special: Special) -> Vec<Part<'t>> {
        let mut vocab = Vocab::default();
        for (text, kind) in [
            ("<s>", Kind::Control),
            ("<s><s>", Kind::Control),
            ("\n", Kind::UserDefined),
            ("\n\n", Kind::UserDefined),
            ("s", Kind::Normal),
        ] {
            vocab.push(text.bytes(), kind);
        }
        let mut parts = Vec::new();
        Specials::of(&vocab).unwrap().split(text, special, &mut |part| parts.push(part));
        parts
    }

    #[test]
    fn control_tokens_are_found_only_when_asked_for() {
        let text = "a<s>\n\n\nb";
        let plain = [Part::Text("a<s>"), Part::Token(3), Part::Token(2), Part::Text("b")];
        assert_eq!(parts(text, Special::Plain), plain);
        let parsed = [Part::Text("a"), Part::Token(0), Part::Token(3), Part::Token(2), Part::Text("b")];
        assert_eq!(parts(text, Special::Parse), parsed);
    }

    #[test]
    fn the_longest_string_wins_and_nothing_is_lost() {
        assert_eq!(parts("<s><s><s", Special::Parse), [Part::Token(1), Part::Text("<s")]);
        assert_eq!(parts("", Special::Parse), []);
    }
}
