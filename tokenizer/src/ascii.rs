//! `o200k_base` for ASCII text, without a pattern matcher: the matcher is a fifth of what a gateway spends on a call.
//! Same tokens as the general encoder, which takes everything else and is what this is tested against.

use crate::pieces::Pieces;
use crate::vocab::Vocab;

/// A longer piece (that is not a token itself) is left to the general encoder, whose merge does not grow with the
/// square of the length.
pub(crate) const LONGEST: usize = 64;

#[derive(Debug)]
pub(crate) struct Ascii {
    vocab: Vocab,
    pieces: Pieces,
}

impl Ascii {
    pub(crate) fn new(vocab: Vocab) -> Self {
        let pieces = Pieces::of(&vocab);
        Self { vocab, pieces }
    }

    /// Appends the tokens of `text`, which must be ASCII. `long` encodes the pieces that are too long for us.
    pub(crate) fn encode(&self, text: &str, ids: &mut Vec<u32>, mut long: impl FnMut(&str, &mut Vec<u32>)) {
        let mut at = 0;
        while at < text.len() {
            let end = piece_end(text.as_bytes(), at);
            let piece = &text[at..end];
            match self.id(piece.as_bytes()) {
                Some(id) => ids.push(id),
                None if piece.len() > LONGEST => long(piece, ids),
                None => self.merge(piece.as_bytes(), ids),
            }
            at = end;
        }
    }

    fn id(&self, text: &[u8]) -> Option<u32> {
        self.pieces.find(&self.vocab, text)
    }

    /// Byte-pair merges, the lowest rank first, the leftmost of equals; the ids of this encoding are its ranks.
    fn merge(&self, piece: &[u8], ids: &mut Vec<u32>) {
        /// No merge: above every id.
        const NONE: u32 = u32::MAX;
        // Part n is piece[starts[n]..starts[n + 1]]; pair n joins it with part n + 1.
        let mut starts = [0; LONGEST + 1];
        let mut pairs = [NONE; LONGEST];
        let mut parts = piece.len();
        for (at, start) in starts.iter_mut().enumerate().take(parts + 1) {
            *start = at;
        }
        let rank = |starts: &[usize], part: usize, parts: usize| match part + 2 <= parts {
            true => self.id(&piece[starts[part]..starts[part + 2]]).unwrap_or(NONE),
            false => NONE,
        };
        for (part, pair) in pairs.iter_mut().enumerate().take(parts) {
            *pair = rank(&starts, part, parts);
        }
        while let Some((part, lowest)) = pairs[..parts].iter().copied().enumerate().min_by_key(|&(_, rank)| rank) {
            if lowest == NONE {
                break;
            }
            starts.copy_within(part + 2..=parts, part + 1);
            pairs.copy_within(part + 1..parts, part);
            parts -= 1;
            pairs[part] = rank(&starts, part, parts);
            if part > 0 {
                pairs[part - 1] = rank(&starts, part - 1, parts);
            }
        }
        // Every single byte is a token of this encoding.
        ids.extend((0..parts).filter_map(|part| self.id(&piece[starts[part]..starts[part + 1]])));
    }
}

/// Where the piece that starts at `at` ends: the alternatives of the encoding's pattern, in its order.
fn piece_end(text: &[u8], at: usize) -> usize {
    let first = text[at];
    if first.is_ascii_alphabetic() {
        return word_end(text, at);
    }
    if first.is_ascii_digit() {
        return run_end(&text[..text.len().min(at + 3)], at, u8::is_ascii_digit);
    }
    // One character before a word belongs to it, unless it ends a line.
    if !is_line_end(&first) && text.get(at + 1).is_some_and(u8::is_ascii_alphabetic) {
        return word_end(text, at + 1);
    }
    let signs = at + usize::from(first == b' ');
    let end = run_end(text, signs, is_sign);
    if end > signs {
        return run_end(text, end, |byte| is_line_end(byte) || *byte == b'/');
    }
    let end = run_end(text, at, is_space);
    match text[at..end].iter().rposition(is_line_end) {
        Some(last) => at + last + 1,
        // The last space before something goes with it.
        None if end < text.len() && end - at > 1 => end - 1,
        None => end,
    }
}

/// Capitals, then small letters, then an English contraction. `at` is a letter.
fn word_end(text: &[u8], at: usize) -> usize {
    let end = run_end(text, run_end(text, at, u8::is_ascii_uppercase), u8::is_ascii_lowercase);
    let lower = |offset: usize| text.get(end + offset).map(u8::to_ascii_lowercase);
    match (text.get(end), lower(1), lower(2)) {
        (Some(b'\''), Some(b's' | b't' | b'm' | b'd'), _) => end + 2,
        (Some(b'\''), Some(b'r' | b'v'), Some(b'e')) | (Some(b'\''), Some(b'l'), Some(b'l')) => end + 3,
        _ => end,
    }
}

fn run_end(text: &[u8], at: usize, belongs: impl Fn(&u8) -> bool) -> usize {
    text[at..].iter().position(|byte| !belongs(byte)).map_or(text.len(), |length| at + length)
}

fn is_line_end(byte: &u8) -> bool {
    matches!(byte, b'\r' | b'\n')
}

/// Unicode's white space: the vertical tab too, unlike `u8::is_ascii_whitespace`.
fn is_space(byte: &u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

fn is_sign(byte: &u8) -> bool {
    !is_space(byte) && !byte.is_ascii_alphanumeric()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::{Special, Tokenizer};

    fn check(text: &str) {
        let tokenizer = Tokenizer::builtin("o200k_base").expect("it is compiled in");
        let general = tiktoken_rs::o200k_base_singleton().encode_ordinary(text);
        assert_eq!(tokenizer.encode(text, Special::Plain), general, "{text:?}");
    }

    #[test]
    fn each_alternative_of_the_pattern() {
        for text in [
            "HELLOworld HelloWorld iPhone's I'LL we'Re '",
            "it's-they're (word) ((word \tword \nword",
            "1234567 3.14 a1b22",
            "a  b   c\t\td \n\n  e\r\n\r\nf  ",
            "!!! ?!\n\n/ // http://x/y ...\r\n/\n",
            " \u{b} \u{c}x\u{1c}y\u{7f}\0",
            "",
            "    ",
            "\n",
        ] {
            check(text);
        }
    }

    #[test]
    fn long_pieces_of_every_kind() {
        for piece in ["a", "Ab", "xq", " ", "=", "\n", "/", "z'"] {
            for length in [31, 32, 33, 63, 64, 65, 66, 200, 1000] {
                check(&piece.repeat(length));
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn any_ascii_text_has_the_tokens_of_the_general_encoder(text in "[ -~\t\n\r\u{0}\u{b}\u{c}\u{1f}\u{7f}]{0,80}") {
            check(&text);
        }

        #[test]
        fn text_of_words_signs_and_spaces_too(
            parts in prop::collection::vec(
                prop::sample::select(vec![
                    "the", "The", "THE", "qzx", "Xy", "'s", "'LL", "'re", "'", " ", "  ", "\n", "\r\n", "\t", "1", "12",
                    "1234", "/", "//", ".", "!?", "(", "internationalization", "0x", "_",
                ]),
                0..30,
            )
        ) {
            check(&parts.concat());
        }
    }
}
