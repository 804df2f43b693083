//! Words of capitals and then small letters, with one character before them and a contraction after:
//! `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?`, the same
//! with `+` and `*` changed over, `\p{N}{1,3}`, ` ?[^\s\p{L}\p{N}]+[\r\n/]*`, `\s*[\r\n]+`, `\s+(?!\S)`, `\s+`.

use super::{cl100k::number, contraction, last_line, white_space};
use crate::characters::{Characters, LETTER, LINE_END, LOWER, MARK, NOTHING, NUMBER, SIGN, SPACE, UNCASED, UPPER};

/// What the first half of a word may hold.
const CAPITALS: u8 = UPPER | UNCASED | MARK;
/// What the second half may hold.
const SMALL: u8 = LOWER | UNCASED | MARK;

pub(super) fn end(table: &Characters, text: &str, at: usize, digits: u8, contractions: bool) -> usize {
    let (first, len) = table.at(text, at);
    if first & NUMBER != 0 {
        return number(table, text, at, digits);
    }
    if let Some(end) = word(table, text, at, first, len) {
        let contracted = if contractions { contraction(text, end, true) } else { None };
        return contracted.unwrap_or(end);
    }
    let signs = at + usize::from(text.as_bytes()[at] == b' ');
    let end = table.run(text, signs, SIGN | MARK);
    if end > signs {
        return lines_and_slashes(text, end);
    }
    let end = table.run(text, at, SPACE);
    last_line(text, at, end).unwrap_or_else(|| white_space(table, text, at, NOTHING))
}

/// The two alternatives for words, each with a character before the word first, then without.
fn word(table: &Characters, text: &str, at: usize, first: u8, len: usize) -> Option<usize> {
    let before = first & (LETTER | LINE_END) == 0;
    let begins = first & (LETTER | MARK) != 0;
    let (next, _) = if before { table.at(text, at + len) } else { (NOTHING, 0) };
    let after = (next & (LETTER | MARK) != 0).then_some(at + len);
    let ends_small = |start| small_end(table, text, start);
    let ends_capital = |start| table.run(text, start, CAPITALS);
    after
        .and_then(ends_small)
        .or_else(|| begins.then_some(at).and_then(ends_small))
        // No small letter anywhere: capitals alone.
        .or_else(|| after.map(ends_capital))
        .or_else(|| begins.then(|| ends_capital(at)))
}

/// `[capitals]*[small]+`: as many capitals as possible, but the last must leave something for the second half.
fn small_end(table: &Characters, text: &str, start: usize) -> Option<usize> {
    let mut at = start;
    let mut both = None;
    loop {
        let (kind, len) = table.at(text, at);
        if kind & CAPITALS == 0 {
            return if kind & LOWER != 0 { Some(table.run(text, at, SMALL)) } else { both };
        }
        at += len;
        if kind & SMALL != 0 {
            both = Some(at);
        }
    }
}

fn lines_and_slashes(text: &str, at: usize) -> usize {
    let belongs = |byte: &u8| matches!(byte, b'\r' | b'\n' | b'/');
    at + text.as_bytes()[at..].iter().take_while(|byte| belongs(byte)).count()
}
