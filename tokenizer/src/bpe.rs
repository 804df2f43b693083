//! Byte-pair encoding of one piece in one pass, however long the piece is. What makes that possible: a sequence of
//! tokens is the encoding of its text exactly if every two neighbours are the encoding of theirs, and every beginning
//! of a text has one encoding. So the longest token is tried at each place, kept if it can stand after the one before,
//! else the next shorter one, and when none can, the one before gives way. A place that led nowhere is never tried
//! again. Who can stand beside whom is `neighbours`' part, and where the merges come from `build`'s.

mod borders;
mod build;
mod joins;
mod neighbours;
mod pairs;

pub(crate) use build::Merge;
use neighbours::{AtBorder, Neighbours};

use crate::bits::Bits;
use crate::trie::{NONE, Trie};

/// The rank of what is not made by merging.
const SYMBOL: u32 = 0;
/// The rank of a token that no text becomes by merging.
const UNREACHABLE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Token {
    /// Of all merges that a text allows the lowest comes first; no two merged tokens have the same.
    rank: u32,
    /// The highest rank among the merges that make it. A token of higher rank than its parts comes when its own turn
    /// does; one of lower rank comes at once when its last part is there.
    time: u32,
    /// The two tokens it is merged from, `NONE` of a symbol.
    left: u32,
    right: u32,
    /// The longest other token that it begins with and that text becomes, or `NONE`.
    shorter: u32,
    length: u32,
}

impl Token {
    fn is_merged(&self) -> bool {
        !matches!(self.rank, SYMBOL | UNREACHABLE)
    }
}

/// Tokens have numbers of their own here, shorter ones first: what common text needs lies close together.
#[derive(Debug)]
pub(crate) struct Bpe {
    trie: Trie,
    neighbours: Neighbours,
    unreachable: Bits,
    /// The ids that the vocabulary gives them.
    ids: Vec<u32>,
    /// A piece that is a token as a whole becomes it, even one that merging would not make.
    whole: bool,
}

/// Places in a piece where no encoding goes on; used again for every piece.
#[derive(Debug, Default)]
pub(crate) struct DeadEnds {
    places: Bits,
    /// Most pieces have none, and then the set is not even cleared.
    any: bool,
}

impl Bpe {
    /// Appends the tokens of a piece. What no token begins with ends it early: the result is how far it came.
    #[inline]
    pub(crate) fn encode(&self, piece: &[u8], dead: &mut DeadEnds, ids: &mut Vec<u32>) -> usize {
        let Some((token, length)) = self.trie.longest(piece) else { return 0 };
        if length == piece.len() && (self.whole || !self.unreachable.holds(token as usize)) {
            ids.push(self.ids[token as usize]);
            return length;
        }
        let first = ids.len();
        let done = self.merge(piece, dead, first, ids);
        for id in &mut ids[first..] {
            *id = self.ids[*id as usize];
        }
        done
    }

    /// The same from `first` on, in our own numbers.
    fn merge(&self, piece: &[u8], dead: &mut DeadEnds, first: usize, tokens: &mut Vec<u32>) -> usize {
        dead.any = false;
        let mut at = 0;
        let mut next = self.longest(piece);
        while let Some((token, length)) = next {
            let end = at + length;
            if !dead.hold(end) && self.stands(&tokens[first..], token, piece, at) {
                tokens.push(token);
                at = end;
                next = self.longest(&piece[at..]);
                continue;
            }
            next = self.shorter(token);
            if next.is_none()
                && tokens.len() > first
                && let Some(last) = tokens.pop()
            {
                // Nothing can stand here, so the token before has to give way.
                dead.add(at, piece.len());
                let length = self.neighbours.token(last).length as usize;
                at -= length;
                next = Some((last, length));
            }
        }
        at
    }

    #[inline]
    fn stands(&self, before: &[u32], token: u32, piece: &[u8], at: usize) -> bool {
        before.last().is_none_or(|last| self.neighbours.are(*last, token, AtBorder::of(&piece[..at], &piece[at..])))
    }

    /// The longest token that text becomes at the beginning of this one, and its length.
    #[inline]
    fn longest(&self, text: &[u8]) -> Option<(u32, usize)> {
        let (token, length) = self.trie.longest(text)?;
        if self.unreachable.holds(token as usize) { self.shorter(token) } else { Some((token, length)) }
    }

    fn shorter(&self, token: u32) -> Option<(u32, usize)> {
        match self.neighbours.token(token).shorter {
            NONE => None,
            shorter => Some((shorter, self.neighbours.token(shorter).length as usize)),
        }
    }
}

impl DeadEnds {
    #[inline]
    fn hold(&self, at: usize) -> bool {
        self.any && self.places.holds(at)
    }

    fn add(&mut self, at: usize, most: usize) {
        if !self.any {
            self.any = true;
            self.places.clear(most);
        }
        self.places.add(at);
    }
}
