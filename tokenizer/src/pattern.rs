//! Cuts text into the pieces within which tokens are merged: the patterns of the common families, by hand. A pattern
//! matcher costs more than everything else about a count. What the pieces become is `bpe`'s part.

mod cl100k;
mod gpt2;
mod o200k;

use crate::characters::{Characters, Kinds, NOTHING, SPACE};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pattern {
    O200k {
        /// Digits that go together.
        digits: u8,
        /// English contractions belong to the word before them.
        contractions: bool,
    },
    Cl100k {
        digits: u8,
        /// White space at the end of the text is one piece, whatever lines it has.
        tail: bool,
    },
    Gpt2 {
        /// Every digit is a piece, cut out before all else.
        digits_apart: bool,
    },
}

impl Pattern {
    /// All pieces in order; together they are the text.
    pub(crate) fn pieces<'t>(self, text: &'t str, piece: impl FnMut(&'t str)) {
        let table = Characters::table();
        match self {
            Self::O200k { digits, contractions } => {
                cut(text, piece, |at| o200k::end(table, text, at, digits, contractions));
            }
            Self::Cl100k { digits, tail } => cut(text, piece, |at| cl100k::end(table, text, at, digits, tail)),
            Self::Gpt2 { digits_apart } => cut(text, piece, |at| gpt2::end(table, text, at, digits_apart)),
        }
    }
}

fn cut<'t>(text: &'t str, mut piece: impl FnMut(&'t str), end: impl Fn(usize) -> usize) {
    let mut at = 0;
    while at < text.len() {
        let end = plain_word(text, at).unwrap_or_else(|| end(at));
        debug_assert!(end > at, "a piece holds at least one character");
        piece(&text[at..end]);
        at = end;
    }
}

/// Where most pieces of most texts end, by any pattern: a space or none, a letter, small letters, and after them nothing
/// that any pattern would add. Saves the closer look.
#[inline]
fn plain_word(text: &str, at: usize) -> Option<usize> {
    let bytes = text.as_bytes();
    let first = at + usize::from(bytes[at] == b' ');
    bytes.get(first).filter(|byte| byte.is_ascii_alphabetic())?;
    let small = bytes[first + 1..].iter().take_while(|byte| byte.is_ascii_lowercase()).count();
    let end = first + 1 + small;
    match bytes.get(end) {
        Some(next) if !next.is_ascii() || next.is_ascii_alphabetic() || *next == b'\'' => None,
        _ => Some(end),
    }
}

/// `\s+(?!\S)|\s+` at white space: the last of it goes with what follows, if there is more. What has a kind of
/// `ends` ends the text as far as the pattern sees.
fn white_space(table: &Characters, text: &str, at: usize, ends: Kinds) -> usize {
    let end = table.run(text, at, SPACE);
    let (next, _) = table.at(text, end);
    if next == NOTHING || next & ends != 0 {
        return end;
    }
    let last = text[at..end].chars().next_back().map_or(0, char::len_utf8);
    if end - last > at { end - last } else { end }
}

/// `\s*[\r\n]+` at white space: the end of its last line, if it has lines.
fn last_line(text: &str, at: usize, end: usize) -> Option<usize> {
    text.as_bytes()[at..end].iter().rposition(|byte| matches!(byte, b'\r' | b'\n')).map(|last| at + last + 1)
}

/// Where an English contraction ends (`'s`, `'re`), if one begins at `at`. When case does not matter, the long s of
/// old prints is an s.
fn contraction(text: &str, at: usize, any_case: bool) -> Option<usize> {
    let bytes = text.as_bytes();
    if bytes.get(at) != Some(&b'\'') {
        return None;
    }
    let letter = |offset: usize| {
        let byte = bytes.get(at + offset).copied().unwrap_or(0);
        if any_case { byte.to_ascii_lowercase() } else { byte }
    };
    match (letter(1), letter(2)) {
        (b's' | b't' | b'm' | b'd', _) => Some(at + 2),
        (b'r' | b'v', b'e') | (b'l', b'l') => Some(at + 3),
        _ if any_case && text[at + 1..].starts_with('ſ') => Some(at + 1 + 'ſ'.len_utf8()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use fancy_regex::Regex;
    use proptest::prelude::*;

    use super::*;
    use crate::pre_tokenizer::Scheme;

    fn pieces(pattern: Pattern, text: &str) -> Vec<&str> {
        let mut pieces = Vec::new();
        pattern.pieces(text, |piece| pieces.push(piece));
        pieces
    }

    /// What a pattern matcher makes of the text: each pattern cuts the pieces of the one before.
    fn matched<'t>(patterns: &[Regex], text: &'t str) -> Vec<&'t str> {
        let mut pieces = vec![text];
        for pattern in patterns {
            pieces = pieces.into_iter().flat_map(|piece| isolated(pattern, piece)).collect();
        }
        pieces.retain(|piece| !piece.is_empty());
        pieces
    }

    /// The matches, and what lies between them.
    fn isolated<'t>(pattern: &Regex, text: &'t str) -> Vec<&'t str> {
        let mut pieces = Vec::new();
        let mut done = 0;
        for found in pattern.find_iter(text) {
            let found = found.unwrap();
            pieces.extend([&text[done..found.start()], found.as_str()]);
            done = found.end();
        }
        pieces.push(&text[done..]);
        pieces
    }

    /// Every pattern that is written by hand, with the one it stands for.
    static ALL: LazyLock<Vec<(Pattern, Vec<Regex>)>> = LazyLock::new(|| {
        let compiled = |sources: &[&str]| sources.iter().map(|source| Regex::new(source).unwrap()).collect();
        let mut all: Vec<(Pattern, Vec<Regex>)> = Scheme::all()
            .filter_map(|scheme| scheme.pattern.map(|pattern| (pattern, compiled(scheme.patterns))))
            .collect();
        const CL100K: &str = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s";
        all.push((Pattern::Cl100k { digits: 3, tail: true }, compiled(&[CL100K])));
        all
    });

    #[test]
    fn each_alternative_cuts_as_the_pattern_does() {
        for (pattern, patterns) in &*ALL {
            for text in [
                "HELLOworld HelloWorld iPhone's I'LL we'Re ' 's'S x'ſy",
                "it's-they're (word) ((word \tword \nword",
                "1234567 3.14 a1b22  7 ½",
                "a  b   c\t\td \n\n  e\r\n\r\nf  ",
                "!!! ?!\n\n/ // http://x/y ...\r\n/\n",
                " \u{b} \u{c}x\u{1c}y\u{7f}\0",
                "漢字ABC漢 ひらa\u{301}b\u{301}A\u{301} \u{301}AB \u{301}\u{301}",
                "\u{3000}\u{3000}x\u{a0}\u{a0}1\u{2028}\n\u{3000}",
                "ǅǅabc ʰABCʰ ʰ",
                "  \n  ",
                "x \n  ",
                "",
            ] {
                assert_eq!(pieces(*pattern, text), matched(patterns, text), "{pattern:?} {text:?}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1500))]

        #[test]
        fn any_text_is_cut_as_the_pattern_cuts_it(
            parts in prop::collection::vec(
                prop_oneof![
                    prop::sample::select(vec![
                        "the", "The", "THE", "q", "Xy", "'s", "'LL", "'re", "'", "'ſ", " ", "  ", "\n", "\r\n", "\t",
                        "1", "12", "1234", "½", "/", ".", "!?", "(", "é", "É", "漢字", "ǅ", "ʰ", "\u{301}", "\u{a0}",
                        "\u{3000}", "\u{2028}", "😀", "\u{85}", "\0",
                    ]).prop_map(str::to_owned),
                    "\\PC{0,4}",
                ],
                0..24,
            )
        ) {
            let text = parts.concat();
            for (pattern, patterns) in &*ALL {
                prop_assert_eq!(pieces(*pattern, &text), matched(patterns, &text), "{:?}", pattern);
            }
        }
    }
}
