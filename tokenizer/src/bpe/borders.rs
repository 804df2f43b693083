//! What is known beforehand of how tokens meet: enough to say of most pairs, at a glance, whether they stay apart.

use super::Token;
use super::neighbours::AtBorder;

#[derive(Debug)]
pub(super) struct Borders(Vec<Border>);

/// How a token meets others.
#[derive(Clone, Copy, Debug)]
struct Border {
    /// The [`mark`]s that something begins with which would merge with this token, or with a part at its end before
    /// that is used. A part of one byte is not among them.
    meets_right: u32,
    /// The same for what ends with a byte, by its last five bits.
    meets_left: u32,
    /// A merge of its last byte alone with what follows must have a lower rank to come before that byte is used.
    last_byte: u32,
    first_byte: u32,
}

const ALL: u32 = u32::MAX;
const NOTHING: Border = Border { meets_right: 0, meets_left: 0, last_byte: u32::MAX, first_byte: u32::MAX };

/// Of a token, which others it merges with: the bits that they set and the rank, in order of the rank.
struct Partners {
    /// Where each token's begin, and the end.
    starts: Vec<u32>,
    all: Vec<(u32, u32)>,
}

/// Tells beginnings of texts apart: a bit for the first byte, or for the second where the first says little of the
/// character.
#[inline]
pub(super) fn mark(first: u8, second: u8) -> u32 {
    1 << (if first.is_ascii() { first } else { second } & 31)
}

impl Borders {
    /// What the rank of the two bytes at the border must be lower than for the tokens to be no neighbours, unless it
    /// takes a closer look to tell.
    #[inline]
    pub(super) fn first_to_cross(&self, left: u32, right: u32, at: AtBorder) -> Option<u32> {
        let (l, r) = (&self.0[left as usize], &self.0[right as usize]);
        let may_meet = l.meets_right & mark(at.after, at.second) != 0 || r.meets_left >> (at.before & 31) & 1 == 1;
        (!may_meet).then(|| l.last_byte.min(r.first_byte))
    }

    /// Of all tokens, shorter ones first, and the merged ones by rank.
    pub(super) fn new(texts: &[&[u8]], tokens: &[Token], merged: &[Token]) -> Self {
        let is_byte = |token: u32| texts[token as usize].len() == 1;
        let ends = |token: u32| texts[token as usize].last().map_or(0, |byte| 1 << (byte & 31));
        let begins = |token: u32| match texts[token as usize] {
            [first, second, ..] => mark(*first, *second),
            [first] if first.is_ascii() => mark(*first, 0),
            // The beginning of many characters.
            _ => ALL,
        };
        let after =
            Partners::new(texts.len(), merged.iter().map(|token| (token.left, begins(token.right), token.rank)));
        let before = Partners::new(texts.len(), merged.iter().map(|token| (token.right, ends(token.left), token.rank)));

        // Without the token's own merges: what its parts meet before they are used.
        let mut inside = vec![NOTHING; texts.len()];
        for (token, merged) in tokens.iter().enumerate().filter(|(_, token)| token.is_merged()) {
            let Token { left, right, time, rank, .. } = *merged;
            if time != rank {
                inside[token] = Border { meets_right: ALL, meets_left: ALL, ..NOTHING };
                continue;
            }
            let (left_limit, right_limit) = (rank, rank + 1);
            let mut border = Border { last_byte: left_limit, first_byte: right_limit, ..NOTHING };
            if !is_byte(right) {
                let Border { meets_right, last_byte, .. } = inside[right as usize];
                border = Border { meets_right: meets_right | after.below(right, left_limit), last_byte, ..border };
            }
            if !is_byte(left) {
                let Border { meets_left, first_byte, .. } = inside[left as usize];
                border = Border { meets_left: meets_left | before.below(left, right_limit), first_byte, ..border };
            }
            inside[token] = border;
        }
        let own = |(token, border): (u32, Border)| match texts[token as usize] {
            // The text after it is no part of it, and might be taken for its mark.
            [byte] if !byte.is_ascii() => Border { meets_left: ALL, ..border },
            [_] => border,
            _ => Border {
                meets_right: border.meets_right | after.below(token, u32::MAX),
                meets_left: border.meets_left | before.below(token, u32::MAX),
                ..border
            },
        };
        Self((0..).zip(inside).map(own).collect())
    }
}

impl Partners {
    /// Of (token, bits, rank) in order of the rank.
    fn new(tokens: usize, merges: impl Iterator<Item = (u32, u32, u32)> + Clone) -> Self {
        let mut starts = vec![0; tokens + 1];
        merges.clone().for_each(|(token, ..)| starts[token as usize + 1] += 1);
        for token in 0..tokens {
            starts[token + 1] += starts[token];
        }
        let mut ends = starts.clone();
        let mut all = vec![(0, 0); starts[tokens] as usize];
        for (token, bits, rank) in merges {
            let end = &mut ends[token as usize];
            all[*end as usize] = (bits, rank);
            *end += 1;
        }
        Self { starts, all }
    }

    /// The bits of those with a lower rank.
    fn below(&self, token: u32, limit: u32) -> u32 {
        let token = token as usize;
        let of_token = &self.all[self.starts[token] as usize..self.starts[token + 1] as usize];
        of_token.iter().take_while(|(_, rank)| *rank < limit).fold(0, |bits, (more, _)| bits | more)
    }
}
