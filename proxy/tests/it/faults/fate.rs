//! The settlement truth table as a function: from what an upstream did and what its client saw to what the call may cost.
//! It knows nothing of the gateway, so that a charge can be wrong. The end-to-end tests include this file as well.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

/// Tokens of an answer whose usage is an explicit zero.
pub const ZERO_SAYS: u64 = 2;

/// What an upstream does with a call. Tokens of output are one per event.
#[derive(Clone, Debug, PartialEq)]
pub enum Script {
    /// Usage as reported: less than was held, exactly that, or more.
    Finishes {
        prompt: u64,
        completion: u64,
    },
    /// Usage as reported, explicitly nothing.
    Zero,
    NoUsage {
        completion: u64,
    },
    Fails(Failure),
    /// Another 4xx: the call itself is refused.
    Rejects(u16),
    /// In the middle of its answer.
    Dies {
        after: u64,
    },
    /// Says no more, and keeps the connection.
    Hangs {
        after: u64,
    },
    /// One upstream fails, the next one finishes.
    FallsBack {
        failure: Failure,
        prompt: u64,
        completion: u64,
    },
}

/// Before the first byte of an answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Failure {
    Status(u16),
    Reset,
    CutHead,
    EmptyStream,
}

#[derive(Clone, Debug, PartialEq)]
pub enum End {
    /// Refused by the gateway itself, for a limit or for its store.
    Refused,
    /// The client has read an answer to its end, be it an error.
    Answered,
    /// The gateway ended the stream, for want of budget.
    Stopped,
    /// The gateway gave its upstream up, and had waited as long as it says.
    TimedOut,
    /// The client left after so many events.
    Left { events: u64 },
    /// The gateway was killed, and nobody can say that the call had settled.
    Killed,
}

/// All that is known about a call from outside.
#[derive(Clone, Debug)]
pub struct Known {
    pub script: Script,
    pub stream: bool,
    /// As it must be counted.
    pub prompt: u64,
    pub cap: u64,
    /// Requests that reached an upstream.
    pub asked: usize,
    pub end: End,
    /// The store has lost acknowledged writes since the call began.
    pub store_lost: bool,
}

/// Requests, input tokens, and a range of output tokens.
pub type Cost = (u64, u64, RangeInclusive<u64>);

/// Each cost that the truth table allows.
pub fn fate(call: &Known) -> Vec<Cost> {
    let nothing = (0, 0, 0..=0);
    let mut costs = match &call.end {
        End::Refused => vec![nothing.clone()],
        End::Answered => vec![call.by_script()],
        End::Stopped => vec![(1, call.prompt, call.cap..=call.most_seen())],
        End::TimedOut => vec![call.by_script(), call.unseen()],
        End::Left { events: 0 } => vec![call.by_script(), call.unseen()],
        End::Left { events } => vec![call.by_script(), (1, call.prompt, *events..=call.most_seen())],
        End::Killed => vec![nothing.clone(), call.by_script(), call.unseen()],
    };
    if matches!(call.end, End::Left { .. }) && call.may_have_cost_nothing() {
        costs.push(nothing.clone());
    }
    if call.store_lost {
        // The hold, its checkpoint, or the charge: whatever was lost, nothing else takes its place.
        costs.extend([nothing, call.unseen()]);
    }
    costs
}

impl Known {
    /// With a client that stays.
    fn by_script(&self) -> Cost {
        let counted = |completion: u64| (1, self.prompt, completion..=completion);
        match self.script {
            Script::Finishes { prompt, completion } | Script::FallsBack { prompt, completion, .. } => {
                (1, prompt, completion..=completion)
            }
            Script::Zero => (1, 0, 0..=0),
            Script::NoUsage { completion } => counted(completion),
            Script::Fails(_) => (0, 0, 0..=0),
            Script::Rejects(_) => (1, 0, 0..=0),
            Script::Dies { after: 1.. } | Script::Hangs { after: 1.. } if self.stream => counted(self.most_seen()),
            // A whole answer is delivered whole or not at all.
            Script::Dies { .. } => (0, 0, 0..=0),
            Script::Hangs { .. } => (1, self.prompt, 0..=self.cap),
        }
    }

    /// Whatever was written unseen, or seen in part. It never exceeds what was held, unless the upstream exceeded it.
    fn unseen(&self) -> Cost {
        (1, self.prompt, 0..=self.cap.max(self.most_seen()))
    }

    /// Tokens that the upstream sends, one by one.
    fn most_seen(&self) -> u64 {
        match self.script {
            Script::Finishes { completion, .. }
            | Script::NoUsage { completion }
            | Script::FallsBack { completion, .. } => completion,
            Script::Zero => ZERO_SAYS,
            Script::Dies { after } | Script::Hangs { after } => after,
            Script::Fails(_) | Script::Rejects(_) => 0,
        }
    }

    /// The client left while no attempt had been written, which is so before the first and between two.
    fn may_have_cost_nothing(&self) -> bool {
        self.asked == 0 || (self.asked == 1 && matches!(self.script, Script::FallsBack { .. }))
    }
}

/// Every sum of one cost of each call.
pub fn sums(fates: &[Vec<Cost>]) -> BTreeSet<(u64, u64, u64, u64)> {
    let mut sums = BTreeSet::from([(0, 0, 0, 0)]);
    for fate in fates {
        let add = |(requests, input, low, high): &(u64, u64, u64, u64), cost: &Cost| {
            (requests + cost.0, input + cost.1, low + cost.2.start(), high + cost.2.end())
        };
        sums = sums.iter().flat_map(|sum| fate.iter().map(move |cost| add(sum, cost))).collect();
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(script: Script, end: End) -> Known {
        Known { script, stream: true, prompt: 9, cap: 20, asked: 1, end, store_lost: false }
    }

    #[test]
    fn a_client_that_stays_has_one_fate() {
        for (script, cost) in [
            (Script::Finishes { prompt: 3, completion: 40 }, (1, 3, 40..=40)),
            (Script::Zero, (1, 0, 0..=0)),
            (Script::NoUsage { completion: 4 }, (1, 9, 4..=4)),
            (Script::Fails(Failure::Reset), (0, 0, 0..=0)),
            (Script::Rejects(400), (1, 0, 0..=0)),
            (Script::Dies { after: 2 }, (1, 9, 2..=2)),
        ] {
            assert_eq!(fate(&known(script, End::Answered)), [cost]);
        }
    }

    #[test]
    fn sums_are_those_of_every_combination() {
        let two = vec![vec![(1, 9, 0..=5), (0, 0, 0..=0)], vec![(1, 3, 2..=2)]];
        assert_eq!(sums(&two), BTreeSet::from([(2, 12, 2, 7), (1, 3, 2, 2)]));
    }
}
