//! When a stream asks for more than it holds, for how much, and when it has to end: pure, so that traces can be played
//! through it. The asking is `relay/gate.rs`.

use super::holding::{Bind, Holding};

/// Of the first hold: what is asked for at a time.
const PART: u64 = 4;
/// Fewer tokens are not worth a round trip.
const LEAST: u64 = 16;
/// What is refused is asked for again in this part of it, down to what has been used already.
const SHRINK: u64 = 4;

#[derive(Clone, Debug)]
pub struct TopUp {
    held: u64,
    /// What the call may use by its own cap; an upstream that keeps to it never goes beyond.
    worst: u64,
    calibrated: Option<f64>,
    part: u64,
    /// Asked for at a time; near the end of a budget large parts are refused.
    step: u64,
    /// More is asked for before it is needed, so that nothing has to wait.
    ahead: bool,
    /// Every limit may refuse, and did: what comes now is debt, up to here.
    debt: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct More {
    pub output: u64,
    pub bind: Bind,
}

impl TopUp {
    /// `held` of `worst` output tokens.
    pub fn new(held: u64, worst: u64, holding: Holding) -> Self {
        let part = (held / PART).max(LEAST);
        let calibrated = holding.calibrated;
        Self { held, worst, calibrated, part, step: part, ahead: calibrated.is_some(), debt: None }
    }

    /// Nothing has to be done while no more than this is used.
    pub fn line(&self) -> u64 {
        let ahead = self.ahead && self.held < self.worst;
        if ahead { self.held.saturating_sub(self.step / 2) } else { self.held }
    }

    pub fn is_over(&self, used: u64) -> bool {
        used > self.held
    }

    /// What to ask for now, if anything. Over the hold it is at least what has been used.
    pub fn wants(&self, used: u64) -> Option<More> {
        let least = used.saturating_sub(self.held);
        if used <= self.line() {
            return None;
        }
        // At its end a budget may have room again.
        if let Some(end) = self.debt.filter(|end| used <= *end) {
            return Some(More { output: self.part.min(end.saturating_sub(self.held)).max(least), bind: Bind::Stops });
        }
        let rest = self.worst.saturating_sub(self.held);
        let step = if rest > 0 { self.step.min(rest) } else { self.step };
        let bind = if self.calibrated.is_some() { Bind::All } else { Bind::Stops };
        Some(More { output: step.max(least), bind })
    }

    pub fn granted(&mut self, more: More) {
        self.held += more.output;
        if more.bind == Bind::All {
            self.debt = None;
        }
    }

    /// Whether the stream may go on. `for_good`: less would be refused as well.
    pub fn refused(&mut self, more: More, used: u64, for_good: bool) -> bool {
        let least = used.saturating_sub(self.held);
        if least == 0 {
            self.ahead = false;
            return true;
        }
        if more.output > least && !for_good {
            let smaller = (more.output / SHRINK).max(1);
            let debt = self.debt.is_some() && more.bind == Bind::Stops;
            *(if debt { &mut self.part } else { &mut self.step }) = smaller;
            return true;
        }
        let first = more.bind == Bind::All && self.debt.is_none();
        let Some(cap) = self.calibrated.filter(|_| first) else { return false };
        let end = (self.held as f64 * cap) as u64;
        self.debt = Some(end);
        used <= end
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quota::holding::Overrun;

    const CALIBRATED: Holding = Holding { calibrated: Some(2.0), overrun: Overrun::Charge };
    const STOP: Holding = Holding { calibrated: None, overrun: Overrun::Stop };

    /// Streams token by token until it must end; `limits` are (what all limits admit, what those that stop admit).
    fn run(mut top: TopUp, limits: (u64, u64), tokens: u64) -> (u64, usize) {
        let (mut used, mut asked) = (0, 0);
        while used < tokens {
            used += 1;
            while let Some(more) = top.wants(used) {
                asked += 1;
                let room = if more.bind == Bind::All { limits.0 } else { limits.1 };
                if top.held + more.output <= room {
                    top.granted(more);
                } else if !top.refused(more, used, false) {
                    return (used, asked);
                } else if !top.is_over(used) {
                    break;
                }
            }
        }
        (used, asked)
    }

    #[test]
    fn a_stream_that_may_be_stopped_uses_its_budget_up_and_one_token_more() {
        for budget in [100, 101, 110, 125, 126, 400, 1000] {
            let (used, asked) = run(TopUp::new(100, 100, STOP), (0, budget), 10_000);
            assert_eq!(used, budget + 1);
            assert!(asked <= 50, "{asked} round trips for {budget}");
        }
    }

    #[test]
    fn a_call_within_its_hold_asks_for_nothing() {
        assert_eq!(run(TopUp::new(100, 100, STOP), (0, 0), 100), (100, 0));
        assert_eq!(run(TopUp::new(100, 100, CALIBRATED), (0, 0), 100), (100, 0), "its own cap is its end");
        assert_eq!(run(TopUp::new(100, 900, CALIBRATED), (0, 0), 80), (80, 0));
    }

    #[test]
    fn a_calibrated_stream_grows_while_there_is_room_and_then_goes_on_as_debt_up_to_its_cap() {
        assert_eq!(run(TopUp::new(100, 900, CALIBRATED), (900, 900), 900).0, 900);
        for (room, end) in [(100, 200), (150, 300), (175, 350)] {
            assert_eq!(run(TopUp::new(100, 900, CALIBRATED), (room, u64::MAX), 900).0, end + 1, "room for {room}");
        }
        let (used, asked) = run(TopUp::new(100, 900, CALIBRATED), (900, 900), 900);
        assert!(used == 900 && asked <= 33, "{asked} round trips");
    }

    #[test]
    fn a_calibrated_stream_is_stopped_at_once_where_a_rule_stops() {
        let both = Holding { overrun: Overrun::Stop, ..CALIBRATED };
        assert_eq!(run(TopUp::new(100, 900, both), (130, 130), 900).0, 131);
    }

    #[test]
    fn more_is_asked_for_before_it_is_needed_and_never_beyond_the_calls_own_cap() {
        let top = TopUp::new(100, 110, CALIBRATED);
        assert_eq!((top.wants(88), top.wants(89)), (None, Some(More { output: 10, bind: Bind::All })));
        let worst = TopUp::new(100, 100, CALIBRATED);
        assert_eq!((worst.wants(100), worst.wants(101)), (None, Some(More { output: 25, bind: Bind::All })));
    }
}
