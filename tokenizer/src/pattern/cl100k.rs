//! `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
//! and its relatives: other lengths of numbers, and OpenAI's own, which has `\s++$` before the lines.

use super::{contraction, last_line, white_space};
use crate::characters::{Characters, LETTER, LINE_END, MARK, NOTHING, NUMBER, SIGN, SPACE};

pub(super) fn end(table: &Characters, text: &str, at: usize, digits: u8, tail: bool) -> usize {
    if let Some(end) = contraction(text, at, true) {
        return end;
    }
    let (first, len) = table.at(text, at);
    if first & LETTER != 0 {
        return table.run(text, at, LETTER);
    }
    if first & NUMBER != 0 {
        return number(table, text, at, digits);
    }
    // One character before a word belongs to it, unless it ends a line.
    if first & LINE_END == 0 && table.at(text, at + len).0 & LETTER != 0 {
        return table.run(text, at + len, LETTER);
    }
    let signs = at + usize::from(text.as_bytes()[at] == b' ');
    let end = table.run(text, signs, SIGN | MARK);
    if end > signs {
        return table.run(text, end, LINE_END);
    }
    let end = table.run(text, at, SPACE);
    if tail && end == text.len() {
        return end;
    }
    last_line(text, at, end).unwrap_or_else(|| white_space(table, text, at, NOTHING))
}

/// At most `digits` of a number.
pub(super) fn number(table: &Characters, text: &str, at: usize, digits: u8) -> usize {
    let mut end = at;
    for _ in 0..digits {
        match table.at(text, end) {
            (kind, len) if kind & NUMBER != 0 => end += len,
            _ => break,
        }
    }
    end
}
