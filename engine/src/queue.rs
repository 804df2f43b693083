//! The bound on waiting requests. A slot is held from submission until the sequence first runs or is dropped, so
//! the bound holds whatever way a request takes out of the queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

#[derive(Debug)]
pub(crate) struct Queue {
    limit: u32,
    waiting: AtomicU32,
    tokens: AtomicU64,
}

#[derive(Debug)]
pub(crate) struct Slot {
    queue: Arc<Queue>,
    tokens: u64,
}

impl Queue {
    pub(crate) fn new(limit: u32) -> Arc<Self> {
        Arc::new(Self { limit, waiting: AtomicU32::new(0), tokens: AtomicU64::new(0) })
    }

    /// Slots for `count` sequences that share one prompt of `tokens`: all or none.
    pub(crate) fn enter(self: &Arc<Self>, count: u32, tokens: u64) -> Result<Vec<Slot>, u32> {
        let room = |waiting: u32| waiting.checked_add(count).filter(|after| *after <= self.limit);
        self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room)?;
        self.tokens.fetch_add(tokens, Ordering::Relaxed);
        let slot = |index| Slot { queue: Arc::clone(self), tokens: if index == 0 { tokens } else { 0 } };
        Ok((0..count).map(slot).collect())
    }

    pub(crate) fn limit(&self) -> u32 {
        self.limit
    }

    pub(crate) fn waiting(&self) -> u32 {
        self.waiting.load(Ordering::Relaxed)
    }

    pub(crate) fn tokens(&self) -> u64 {
        self.tokens.load(Ordering::Relaxed)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.queue.waiting.fetch_sub(1, Ordering::Relaxed);
        self.queue.tokens.fetch_sub(self.tokens, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_refuses_and_a_left_slot_makes_room() {
        let queue = Queue::new(3);
        let two = queue.enter(2, 10).expect("room for two");
        assert_eq!(queue.enter(2, 1).err(), Some(2));
        assert_eq!((queue.waiting(), queue.tokens()), (2, 10));
        drop(two);
        assert_eq!((queue.waiting(), queue.tokens()), (0, 0));
        assert!(queue.enter(3, 1).is_ok());
        assert!(queue.enter(u32::MAX, 1).is_err());
    }
}
