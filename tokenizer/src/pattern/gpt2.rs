//! `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`, on the text between digits where
//! digits are cut out first.

use super::{contraction, white_space};
use crate::characters::{Characters, LETTER, MARK, NOTHING, NUMBER, SIGN};

pub(super) fn end(table: &Characters, text: &str, at: usize, digits_apart: bool) -> usize {
    let (first, len) = table.at(text, at);
    if digits_apart && first & NUMBER != 0 {
        return at + len;
    }
    if let Some(end) = contraction(text, at, false) {
        return end;
    }
    // One space goes with the word after it.
    let spaced = text.as_bytes()[at] == b' ';
    let start = at + usize::from(spaced);
    let (kind, _) = if spaced { table.at(text, start) } else { (first, len) };
    match kind {
        kind if kind & LETTER != 0 => table.run(text, start, LETTER),
        kind if kind & (SIGN | MARK) != 0 => table.run(text, start, SIGN | MARK),
        kind if kind & NUMBER != 0 && !digits_apart => table.run(text, start, NUMBER),
        _ => white_space(table, text, at, if digits_apart { NUMBER } else { NOTHING }),
    }
}
