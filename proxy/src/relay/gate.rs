//! Keeps a stream within what is held for it. One that goes on beyond asks for more; the bytes wait only for an answer
//! that is not there when the hold is used up, and the stream is ended when a budget has nothing left.

use std::{
    cmp::Ordering,
    task::{Context, Poll},
};

use futures_util::{FutureExt, future::BoxFuture};
use tokenizer::Tokenizer;

use super::meter::Meter;
use crate::{
    charge::Charge,
    quota::{Bind, Refused},
};

/// Of the first hold: what is asked for at a time.
const PART: u64 = 4;
/// Fewer tokens are not worth a round trip.
const LEAST: u64 = 16;
/// What is refused is asked for again in this part of it, down to what has been used already.
const SHRINK: u64 = 4;

pub(super) struct Gate {
    held: u64,
    /// Asked for at a time. It only shrinks: near the end of a budget large parts are refused.
    step: u64,
    /// Output tokens at the last count, and what was written by then.
    used: u64,
    counted_at: u64,
    finished: bool,
    asking: Option<Asking>,
}

struct Asking {
    more: u64,
    answer: BoxFuture<'static, Result<(), Refused>>,
}

impl Gate {
    /// `None`: nothing can end this stream.
    pub fn of(charge: &Charge) -> Option<Self> {
        charge.stops().then(|| {
            let held = charge.held();
            let step = (held / PART).max(LEAST);
            Self { held, step, used: 0, counted_at: 0, finished: false, asking: None }
        })
    }

    /// More was used than is held, and the answer is not at its end.
    pub fn is_over(&self) -> bool {
        self.used > self.held && !self.finished
    }

    /// After each event. Counting costs time, so it is done when what was written since may have used up the hold: that
    /// happens a few times per step.
    pub fn look(&mut self, meter: &mut Meter, tokenizer: &Tokenizer) {
        let written = meter.written(tokenizer);
        let most = self.used + (written - self.counted_at);
        if most.max(meter.reported()) > self.held {
            (self.used, self.counted_at) = (meter.counted(tokenizer), written);
            self.finished = meter.is_finished();
        }
    }

    /// Ready when bytes may pass, with an error when none may any more.
    pub fn poll(&mut self, cx: &mut Context<'_>, charge: &mut Charge) -> Poll<Result<(), Refused>> {
        while self.is_over() {
            let Some(asking) = self.asking.as_mut() else {
                // Without a call there is nothing to keep.
                self.finished = !self.ask(self.step, charge);
                continue;
            };
            let Poll::Ready(answer) = asking.answer.poll_unpin(cx) else { return Poll::Pending };
            let more = asking.more;
            self.asking = None;
            let Err(refused) = answer else {
                self.held += more;
                continue;
            };
            // Everything that is left may be less than a step.
            let least = self.used - self.held;
            match (&refused, more.cmp(&least)) {
                (Refused::Limit(_), Ordering::Greater) => self.step = (more / SHRINK).max(1),
                _ => return Poll::Ready(Err(refused)),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// At least what has been used already. False if the call has ended.
    fn ask(&mut self, more: u64, charge: &mut Charge) -> bool {
        let more = more.max(self.used.saturating_sub(self.held));
        self.asking = charge.extend(more, Bind::Stops).map(|answer| Asking { more, answer });
        self.asking.is_some()
    }
}
