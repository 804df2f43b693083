//! From a vocabulary and the order of its merges to tables for encoding in one pass. Tokens are learned in the order in
//! which merging makes them, so that what is known so far tells whether two tokens stay apart until then.

use super::neighbours::{AtBorder, Bytes, Neighbours, are_neighbours};
use super::pairs::Pairs;
use super::{Bpe, SYMBOL, Token, UNREACHABLE};
use crate::bits::Bits;
use crate::trie::{NONE, Trie};
use crate::vocab::{Kind, Vocab};

/// One merge of a list: two tokens, and what they become.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Merge {
    pub(crate) left: u32,
    pub(crate) right: u32,
    pub(crate) merged: u32,
}

/// Tokens that come before what they are made of: a few at most in a vocabulary that was trained. Of one with more
/// nothing is learned, so that a hostile file cannot cost much.
const MOST_WAITING: usize = 1000;

impl Bpe {
    /// Merges in the order of their list. `whole`: a piece that is a token becomes it without merging. `None`: the
    /// list is such that only merging in order does it justice.
    pub(crate) fn of_merges(vocab: &Vocab, merges: impl Iterator<Item = Merge>, whole: bool) -> Option<Self> {
        let mut learning = Learning::new(vocab, |text| text.len() == 1)?;
        let mut early = Vec::new();
        for (merge, rank) in merges.zip(1..) {
            // Other kinds than normal are fixed strings: text becomes them elsewhere, and merges of them are not what
            // they seem.
            let [left, right, merged] = [merge.left, merge.right, merge.merged].map(|id| learning.number(id));
            let merge = Merge { left: left?, right: right?, merged: merged? };
            match learning.token(merge.merged).rank {
                UNREACHABLE if learning.is_possible(merge) => learning.learn(merge, rank),
                UNREACHABLE => early.push(merge),
                // Made by an earlier merge; its text never comes apart like this again.
                _ => {}
            }
        }
        // Here a list differs from an order: which of several merges makes a token is part of it.
        let is_late = early.into_iter().any(|merge| learning.is_possible(merge));
        (!is_late).then(|| learning.finish(whole))
    }

    /// Any two neighbours that are a token together merge, the first in `order` first. Symbols, which are there
    /// without merging, need no place in it.
    pub(crate) fn of_order(
        vocab: &Vocab,
        order: impl Iterator<Item = u32>,
        is_symbol: impl Fn(&[u8]) -> bool,
        whole: bool,
    ) -> Option<Self> {
        let mut learning = Learning::new(vocab, is_symbol)?;
        // Shorter ones first.
        let mut waiting: Vec<Waiting> = Vec::new();
        for (id, rank) in order.zip(1..) {
            let Some(token) = learning.number(id) else { continue };
            if learning.token(token).rank != UNREACHABLE {
                continue;
            }
            match learning.parts(token) {
                Some(merge) => {
                    learning.learn(merge, rank);
                    learning.learn_waiting(token, &mut waiting);
                }
                None => {
                    let at = waiting.partition_point(|other| other.token <= token);
                    waiting.insert(at, Waiting { token, rank });
                }
            }
            if waiting.len() > MOST_WAITING {
                return None;
            }
        }
        Some(learning.finish(whole))
    }
}

/// A token that had no parts yet when its turn came.
struct Waiting {
    token: u32,
    rank: u32,
}

/// Tables while they grow. Tokens are numbered by length.
struct Learning<'v> {
    trie: Trie,
    tokens: Vec<Token>,
    pairs: Pairs,
    bytes: Bytes,
    texts: Vec<&'v [u8]>,
    ids: Vec<u32>,
    /// By id.
    numbers: Vec<u32>,
}

impl<'v> Learning<'v> {
    /// Knows the symbols and no merges.
    fn new(vocab: &'v Vocab, is_symbol: impl Fn(&[u8]) -> bool) -> Option<Self> {
        let normal = vocab.iter().filter(|&(_, text, kind)| kind == Kind::Normal && !text.is_empty());
        let mut by_length: Vec<(usize, u32)> = normal.map(|(id, text, _)| (text.len(), id)).collect();
        by_length.sort_unstable();
        let ids: Vec<u32> = by_length.into_iter().map(|(_, id)| id).collect();
        let texts: Vec<&[u8]> = ids.iter().map(|id| vocab.bytes(*id).unwrap_or_default()).collect();
        let mut numbers = vec![NONE; vocab.len()];
        (0..).zip(&ids).for_each(|(number, id)| numbers[*id as usize] = number);
        let (trie, shorter) = Trie::new(&texts)?;
        let token = |(text, shorter): (&&[u8], u32)| {
            let rank = if is_symbol(text) { SYMBOL } else { UNREACHABLE };
            Token { rank, time: SYMBOL, left: NONE, right: NONE, shorter, length: text.len() as u32 }
        };
        let tokens: Vec<Token> = texts.iter().zip(shorter).map(token).collect();
        let pairs = Pairs::with_capacity(texts.len());
        Some(Self { trie, tokens, pairs, bytes: Bytes::default(), texts, ids, numbers })
    }

    fn number(&self, id: u32) -> Option<u32> {
        self.numbers.get(id as usize).copied().filter(|number| *number != NONE)
    }

    fn token(&self, token: u32) -> &Token {
        &self.tokens[token as usize]
    }

    /// The two tokens that a token's text becomes by the merges learned so far, if it becomes two.
    fn parts(&self, merged: u32) -> Option<Merge> {
        let text = self.texts[merged as usize];
        let mut left = self.token(merged).shorter;
        while left != NONE {
            let rest = &text[self.token(left).length as usize..];
            let merge = self.trie.find(rest).map(|right| Merge { left, right, merged });
            if let Some(merge) = merge.filter(|merge| self.is_possible(*merge)) {
                return Some(merge);
            }
            left = self.token(left).shorter;
        }
        None
    }

    /// Whether text can come to lie as the two tokens, side by side.
    fn is_possible(&self, Merge { left, right, .. }: Merge) -> bool {
        let is_reachable = |part| self.token(part).rank != UNREACHABLE;
        let rank = |left, right| self.pairs.rank(left, right);
        let rank_of_bytes = self.bytes.rank(self.border(left, right));
        is_reachable(left) && is_reachable(right) && are_neighbours(&self.tokens, left, right, rank_of_bytes, rank)
    }

    fn learn(&mut self, Merge { left, right, merged }: Merge, rank: u32) {
        let time = rank.max(self.token(left).time).max(self.token(right).time);
        if self.token(merged).length == 2 {
            self.bytes.learn(self.border(left, right), rank);
        }
        let token = &mut self.tokens[merged as usize];
        *token = Token { rank, time, left, right, ..*token };
        self.pairs.insert(left, right, rank);
    }

    fn border(&self, left: u32, right: u32) -> AtBorder {
        AtBorder::of(self.texts[left as usize], self.texts[right as usize])
    }

    /// The tokens that have waited for this one, or for each other: they are made as soon as their parts are there.
    /// Shorter ones are learned first, for a longer one may come apart into them.
    fn learn_waiting(&mut self, learned: u32, waiting: &mut Vec<Waiting>) {
        let mut new = vec![learned];
        loop {
            let text = |token: u32| self.texts[token as usize];
            let is_made_of =
                |token: u32, part: u32| text(token).starts_with(text(part)) || text(token).ends_with(text(part));
            let parts = |token: u32| {
                let may_be_made = new.iter().any(|part| is_made_of(token, *part));
                Some(token).filter(|_| may_be_made).and_then(|token| self.parts(token))
            };
            let ready = waiting.iter().enumerate().find_map(|(at, waiting)| Some((at, parts(waiting.token)?)));
            let Some((at, merge)) = ready else { return };
            let Waiting { token, rank } = waiting.remove(at);
            self.learn(merge, rank);
            new.push(token);
        }
    }

    /// Leaves tokens that no text becomes out of the chains of shorter ones, and sums up how tokens meet.
    fn finish(mut self, whole: bool) -> Bpe {
        let mut unreachable = Bits::up_to(self.texts.len());
        let tokens = &mut self.tokens;
        for at in 0..tokens.len() {
            let Token { rank, shorter, .. } = tokens[at];
            if rank == UNREACHABLE {
                unreachable.add(at);
            }
            if shorter != NONE && tokens[shorter as usize].rank == UNREACHABLE {
                tokens[at].shorter = tokens[shorter as usize].shorter;
            }
        }
        let neighbours = Neighbours::new(self.tokens, self.bytes, &self.texts);
        Bpe { trie: self.trie, neighbours, unreachable, ids: self.ids, whole }
    }
}

#[cfg(test)]
mod tests;
