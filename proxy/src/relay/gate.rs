//! Keeps a stream within what is held for it. One that goes on beyond asks for more (`quota/topup.rs` says when); the
//! bytes wait only for an answer that is not there when the hold is used up, and the stream is ended when nothing is left.

use std::task::{Context, Poll};

use futures_util::{FutureExt, future::BoxFuture};
use tokenizer::Tokenizer;

use super::meter::Meter;
use crate::{
    charge::Charge,
    quota::{
        Refused,
        topup::{More, TopUp},
    },
};

pub(super) struct Gate {
    top: TopUp,
    /// Output tokens at the last count, and what was written by then.
    used: u64,
    counted_at: u64,
    finished: bool,
    asking: Option<Asking>,
}

struct Asking {
    more: More,
    answer: BoxFuture<'static, Result<(), Refused>>,
}

impl Gate {
    /// `None`: nothing can end this stream.
    pub fn of(charge: &Charge) -> Option<Self> {
        let top = charge.top_up()?;
        Some(Self { top, used: 0, counted_at: 0, finished: false, asking: None })
    }

    /// More was used than is held, and the answer is not at its end.
    pub fn is_over(&self) -> bool {
        self.top.is_over(self.used) && !self.finished
    }

    /// After each event. Counting costs time, so it is done when what was written since may have used up the hold: that
    /// happens a few times per step.
    pub fn look(&mut self, meter: &mut Meter, tokenizer: &Tokenizer) {
        let written = meter.written(tokenizer);
        let most = self.used + (written - self.counted_at);
        if most.max(meter.reported()) > self.top.line() {
            (self.used, self.counted_at) = (meter.counted(tokenizer), written);
            self.finished = meter.is_finished();
        }
    }

    /// Ready when bytes may pass, with an error when none may any more.
    pub fn poll(&mut self, cx: &mut Context<'_>, charge: &mut Charge) -> Poll<Result<(), Refused>> {
        while !self.finished {
            let Some(asking) = &mut self.asking else {
                if self.ask(charge) {
                    continue;
                }
                break;
            };
            let Poll::Ready(answer) = asking.answer.poll_unpin(cx) else {
                return if self.is_over() { Poll::Pending } else { Poll::Ready(Ok(())) };
            };
            let more = asking.more;
            self.asking = None;
            match answer {
                Ok(()) => self.top.granted(more),
                Err(refused) => {
                    let for_good = !matches!(refused, Refused::Limit(_));
                    if !self.top.refused(more, self.used, for_good) {
                        return Poll::Ready(Err(refused));
                    }
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    /// False if there is nothing to ask for.
    fn ask(&mut self, charge: &mut Charge) -> bool {
        let Some(more) = self.top.wants(self.used) else { return false };
        match charge.extend(more.output, more.bind) {
            Some(answer) => self.asking = Some(Asking { more, answer }),
            // Without a call there is nothing to keep.
            None => self.finished = true,
        }
        true
    }
}
