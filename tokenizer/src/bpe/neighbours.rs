//! Which two tokens are the encoding of their text together. Most pairs are decided by what little of their insides
//! meets at the border (`borders`); the others by undoing, one by one, the merges that made them.

use super::borders::Borders;
use super::joins::Joins;
use super::{SYMBOL, Token};

#[derive(Debug)]
pub(super) struct Neighbours {
    tokens: Vec<Token>,
    joins: Joins,
    borders: Borders,
    bytes: Bytes,
}

/// What two single bytes merge into.
#[derive(Debug)]
pub(super) struct Bytes(Vec<u32>);

/// The last byte before a border and the first two after it.
#[derive(Clone, Copy)]
pub(super) struct AtBorder {
    pub(super) before: u8,
    pub(super) after: u8,
    /// 0 at the end of the text.
    pub(super) second: u8,
}

impl AtBorder {
    /// Two texts that meet; neither is empty.
    pub(super) fn of(left: &[u8], right: &[u8]) -> Self {
        let byte = |byte: Option<&u8>| byte.copied().unwrap_or_default();
        Self { before: byte(left.last()), after: byte(right.first()), second: byte(right.get(1)) }
    }
}

impl Neighbours {
    /// Of tokens that are all learned; shorter ones come first.
    pub(super) fn new(tokens: Vec<Token>, bytes: Bytes, texts: &[&[u8]]) -> Self {
        let mut merged: Vec<Token> = tokens.iter().filter(|token| token.is_merged()).copied().collect();
        merged.sort_unstable_by_key(|token| token.rank);
        let joins = Joins::new(tokens.len(), &merged);
        let borders = Borders::new(texts, &tokens, &merged);
        Self { tokens, joins, borders, bytes }
    }

    #[inline]
    pub(super) fn token(&self, token: u32) -> &Token {
        &self.tokens[token as usize]
    }

    /// Whether the encoding of both texts together is these two tokens.
    #[inline]
    pub(super) fn are(&self, left: u32, right: u32, at: AtBorder) -> bool {
        match self.borders.first_to_cross(left, right, at) {
            Some(limit) => self.bytes.rank(at) >= limit,
            None => {
                let rank = |left, right| self.joins.rank(left, right);
                are_neighbours(&self.tokens, left, right, self.bytes.rank(at), rank)
            }
        }
    }
}

/// Whether no merge across the border of two tokens would have come before the merges that made them. Those are undone,
/// the latest first. `rank` is that of the merge of two tokens, `rank_of_bytes` that of the bytes at the border.
#[inline]
pub(super) fn are_neighbours(
    tokens: &[Token],
    mut left: u32,
    mut right: u32,
    rank_of_bytes: u32,
    rank: impl Fn(u32, u32) -> u32,
) -> bool {
    // Only a merge of lower rank than this would have been in time.
    let mut limit = u32::MAX;
    loop {
        let (l, r) = (&tokens[left as usize], &tokens[right as usize]);
        if l.length == 1 && r.length == 1 {
            return rank_of_bytes >= limit;
        }
        if rank(left, right) < limit {
            return false;
        }
        // Of equal times the left one is earlier, as the leftmost merge of a rank comes first.
        if l.time > r.time {
            limit = left_limit(tokens, l);
            left = l.right;
        } else if r.rank != SYMBOL {
            limit = right_limit(tokens, r);
            right = r.left;
        } else {
            return true;
        }
    }
}

/// What a merge of this token's right part with the token after it must be lower than to come before the merge that
/// made this one. That waited for its turn, or for its left part; else both have waited for the right part, and the
/// lower rank is first.
#[inline]
fn left_limit(tokens: &[Token], token: &Token) -> u32 {
    let left_was_last = || tokens[token.left as usize].time > tokens[token.right as usize].time;
    if token.time != token.rank && left_was_last() { token.time } else { token.rank }
}

/// The same for its left part and the token before. A merge across the border is left of this one, and comes first at
/// an equal rank.
#[inline]
fn right_limit(tokens: &[Token], token: &Token) -> u32 {
    let right_was_last = || tokens[token.right as usize].time >= tokens[token.left as usize].time;
    1 + if token.time != token.rank && right_was_last() { token.time } else { token.rank }
}

impl Bytes {
    /// Above all others if the two at the border do not merge.
    #[inline]
    pub(super) fn rank(&self, AtBorder { before, after, .. }: AtBorder) -> u32 {
        self.0[usize::from(before) << 8 | usize::from(after)]
    }

    pub(super) fn learn(&mut self, AtBorder { before, after, .. }: AtBorder, rank: u32) {
        self.0[usize::from(before) << 8 | usize::from(after)] = rank;
    }
}

impl Default for Bytes {
    fn default() -> Self {
        Self(vec![u32::MAX; 1 << 16])
    }
}
