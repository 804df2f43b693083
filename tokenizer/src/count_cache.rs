//! Remembers how many tokens texts have, so that a conversation sent again with one more message costs the new message
//! alone. Bounded; holds no text, only keyed hashes, and each tenant's apart: how long a count takes tells nobody what
//! another has sent.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Mutex, PoisonError};

use crate::Tokenizer;

/// Counted and remembered as one.
const BLOCK: usize = 2 << 10;
/// Below this, counting costs no more than looking.
const LEAST: usize = 256;
const SHARDS: usize = 16;
/// Places that a block may be remembered in.
const WAYS: usize = 4;
/// Of one shard; in all 32,768 blocks or 64 MiB of text in 512 KiB.
const SETS: usize = 512;

/// One per tokenizer.
pub(crate) struct CountCache {
    key: RandomState,
    shards: [Mutex<Shard>; SHARDS],
}

struct Shard {
    entries: Vec<[Entry; WAYS]>,
    /// Counts the looks, to tell which entry was used last.
    now: u32,
}

/// A hash of 0 is a free place.
#[derive(Clone, Copy, Default)]
struct Entry {
    hash: u64,
    tokens: u32,
    used: u32,
}

impl Default for CountCache {
    fn default() -> Self {
        let shard = || Mutex::new(Shard { entries: Vec::new(), now: 0 });
        Self { key: RandomState::new(), shards: std::array::from_fn(|_| shard()) }
    }
}

impl CountCache {
    /// The tokens of a text, as far as they are wanted. `scope` names whose text it is.
    pub(crate) fn count(&self, tokenizer: &Tokenizer, scope: &[u8], text: &str, is_wanted: impl Fn() -> bool) -> u64 {
        if text.len() < LEAST {
            return if is_wanted() { tokenizer.count(text) as u64 } else { 0 };
        }
        let blocks = tokenizer.blocks(text, BLOCK).take_while(|_| is_wanted());
        blocks.map(|block| self.block(tokenizer, scope, block)).sum()
    }

    fn block(&self, tokenizer: &Tokenizer, scope: &[u8], text: &str) -> u64 {
        let hash = self.hash(scope, text);
        let shard = &self.shards[hash as usize % SHARDS];
        if let Some(tokens) = shard.lock().unwrap_or_else(PoisonError::into_inner).find(hash) {
            return u64::from(tokens);
        }
        let tokens = tokenizer.count(text);
        if let Ok(tokens) = u32::try_from(tokens) {
            shard.lock().unwrap_or_else(PoisonError::into_inner).remember(hash, tokens);
        }
        tokens as u64
    }

    fn hash(&self, scope: &[u8], text: &str) -> u64 {
        let mut hasher = self.key.build_hasher();
        hasher.write_usize(scope.len());
        hasher.write(scope);
        hasher.write(text.as_bytes());
        hasher.finish().max(1)
    }
}

impl Shard {
    fn find(&mut self, hash: u64) -> Option<u32> {
        self.now = self.now.wrapping_add(1);
        let now = self.now;
        let entry = self.entries.get_mut(set(hash))?.iter_mut().find(|entry| entry.hash == hash)?;
        entry.used = now;
        Some(entry.tokens)
    }

    /// In the place of what was not used for the longest time.
    fn remember(&mut self, hash: u64, tokens: u32) {
        // Memory only where something is remembered: most tokenizers never see a long text.
        if self.entries.is_empty() {
            self.entries = vec![[Entry::default(); WAYS]; SETS];
        }
        let now = self.now;
        let age = |entry: &&mut Entry| if entry.hash == 0 { u32::MAX } else { now.wrapping_sub(entry.used) };
        if let Some(oldest) = self.entries[set(hash)].iter_mut().max_by_key(age) {
            *oldest = Entry { hash, tokens, used: now };
        }
    }
}

fn set(hash: u64) -> usize {
    (hash >> 32) as usize % SETS
}

impl std::fmt::Debug for CountCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CountCache")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_last_stays() {
        let mut shard = Shard { entries: Vec::new(), now: 0 };
        // All of one set.
        let hash = |n: u64| n + 1;
        for n in 0..WAYS as u64 {
            assert_eq!(shard.find(hash(n)), None);
            shard.remember(hash(n), n as u32);
        }
        assert_eq!(shard.find(hash(0)), Some(0));
        assert_eq!(shard.find(hash(9)), None);
        shard.remember(hash(9), 9);
        assert_eq!([0, 1, 2, 3, 9].map(|n| shard.find(hash(n))), [Some(0), None, Some(2), Some(3), Some(9)]);
    }

    #[test]
    fn counts_are_the_same_before_and_after() {
        let tokenizer = Tokenizer::builtin("o200k_base").unwrap();
        let cache = CountCache::default();
        let text: String = (0..500).map(|n| format!("It's {n} o'clock: the counting of words goes on. ")).collect();
        for end in [200, 5_000, 20_000, text.len(), 20_000] {
            for scope in [&b"a"[..], b"b"] {
                let counted = cache.count(&tokenizer, scope, &text[..end], || true);
                assert_eq!(counted, tokenizer.count(&text[..end]) as u64);
            }
        }
        let remembered: usize = cache.shards.iter().map(|shard| shard.lock().unwrap().held()).sum();
        let blocks = tokenizer.blocks(&text, BLOCK).count();
        assert!((2 * blocks..=2 * (blocks + 3)).contains(&remembered), "{remembered} of {blocks} a tenant");
    }

    #[test]
    fn what_is_not_wanted_any_more_is_not_counted() {
        let tokenizer = Tokenizer::builtin("o200k_base").unwrap();
        let text = "the counting of words goes on ".repeat(1_000);
        let left = std::cell::Cell::new(3);
        let counted = CountCache::default().count(&tokenizer, b"", &text, || left.replace(left.get() - 1) > 0);
        let three: usize = tokenizer.blocks(&text, BLOCK).take(3).map(|block| tokenizer.count(block)).sum();
        assert_eq!(counted, three as u64);
    }

    impl Shard {
        fn held(&self) -> usize {
            self.entries.iter().flatten().filter(|entry| entry.hash != 0).count()
        }
    }
}
