//! What kind of character a character is, as the patterns of tokenizers see it. The tables are those of the pattern
//! matcher that other tokenizers use, so that both know the same Unicode.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::LazyLock;

use regex_syntax::hir::{Class, HirKind};

/// One bit per kind: a class of a pattern is a mask.
pub(crate) type Kinds = u8;

/// Past the end of a text.
pub(crate) const NOTHING: Kinds = 0;
/// Upper and title case.
pub(crate) const UPPER: Kinds = 1;
pub(crate) const LOWER: Kinds = 1 << 1;
/// Letters of scripts without case, and modifiers.
pub(crate) const UNCASED: Kinds = 1 << 2;
pub(crate) const LETTER: Kinds = UPPER | LOWER | UNCASED;
pub(crate) const MARK: Kinds = 1 << 3;
pub(crate) const NUMBER: Kinds = 1 << 4;
/// White space, line ends among it.
pub(crate) const SPACE: Kinds = 1 << 5;
pub(crate) const LINE_END: Kinds = 1 << 6;
/// Everything else.
pub(crate) const SIGN: Kinds = 1 << 7;

const CLASSES: [(&str, Kinds); 6] = [
    (r"[\p{Lu}\p{Lt}]", UPPER),
    (r"\p{Ll}", LOWER),
    (r"[\p{Lm}\p{Lo}]", UNCASED),
    (r"\p{M}", MARK),
    (r"\p{N}", NUMBER),
    (r"\s", SPACE),
];

const BLOCK: usize = 256;

/// Code points in two steps: most blocks of 256 are like many others.
pub(crate) struct Characters {
    ascii: [Kinds; 128],
    blocks: Vec<[Kinds; BLOCK]>,
    /// By code point / 256.
    block_of: Vec<u16>,
}

static TABLE: LazyLock<Characters> = LazyLock::new(Characters::new);

impl Characters {
    pub(crate) fn table() -> &'static Self {
        &TABLE
    }

    fn new() -> Self {
        let mut kinds = vec![SIGN; char::MAX as usize + 1];
        for (pattern, kind) in CLASSES {
            for range in ranges(pattern) {
                kinds[range].fill(kind);
            }
        }
        for line_end in ['\r', '\n'] {
            kinds[line_end as usize] |= LINE_END;
        }
        let (blocks, _) = kinds.as_chunks::<BLOCK>();
        let ascii = std::array::from_fn(|code| kinds[code]);
        let mut table = Self { ascii, blocks: Vec::new(), block_of: Vec::with_capacity(blocks.len()) };
        let mut known = HashMap::new();
        for block in blocks {
            let place = *known.entry(block).or_insert_with(|| {
                table.blocks.push(*block);
                table.blocks.len() as u16 - 1
            });
            table.block_of.push(place);
        }
        table
    }

    /// The character at a byte offset and its length; nothing at the end.
    #[inline]
    pub(crate) fn at(&self, text: &str, at: usize) -> (Kinds, usize) {
        match text.as_bytes().get(at) {
            None => (NOTHING, 0),
            // The mask says to the compiler what is known already.
            Some(&byte) if byte.is_ascii() => (self.ascii[usize::from(byte & 0x7F)], 1),
            Some(_) => text[at..].chars().next().map_or((NOTHING, 0), |char| (self.of(char), char.len_utf8())),
        }
    }

    fn of(&self, char: char) -> Kinds {
        let code = char as usize;
        self.blocks[self.block_of[code / BLOCK] as usize][code % BLOCK]
    }

    /// Where the run of such characters that begins at `at` ends.
    #[inline]
    pub(crate) fn run(&self, text: &str, mut at: usize, mask: Kinds) -> usize {
        loop {
            let (kind, len) = self.at(text, at);
            if kind & mask == 0 {
                return at;
            }
            at += len;
        }
    }
}

fn ranges(pattern: &str) -> Vec<RangeInclusive<usize>> {
    let class = regex_syntax::parse(pattern).expect("invariant: the classes are written here");
    match class.kind() {
        HirKind::Class(Class::Unicode(class)) => {
            class.iter().map(|range| range.start() as usize..=range.end() as usize).collect()
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_have_their_kinds() {
        for (char, kind) in [
            ('A', UPPER),
            ('ǅ', UPPER),
            ('é', LOWER),
            ('漢', UNCASED),
            ('ʰ', UNCASED),
            ('\u{301}', MARK),
            ('7', NUMBER),
            ('½', NUMBER),
            ('\u{b}', SPACE),
            ('\u{a0}', SPACE),
            ('\u{3000}', SPACE),
            ('\n', SPACE | LINE_END),
            ('\u{2028}', SPACE),
            ('😀', SIGN),
            ('\0', SIGN),
            (char::MAX, SIGN),
        ] {
            assert_eq!(Characters::table().of(char), kind, "{char:?}");
        }
    }

    #[test]
    fn runs_end_where_the_kind_does() {
        let table = Characters::table();
        assert_eq!(table.run("añb1", 0, LETTER), 4);
        assert_eq!(table.run("añb", 0, LETTER), 4);
        assert_eq!(table.run("1", 0, LETTER), 0);
        assert_eq!(table.at("a", 1), (NOTHING, 0));
    }
}
