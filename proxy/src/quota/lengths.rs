//! How long the answers of each caller are with each model: what `hold: calibrated` holds. Learned from calls that
//! ended, in memory only: after a restart holds are worst case again until enough has been seen.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::chain::Chain;
use super::rule::{Demand, Subject};

pub mod sketch;

use sketch::Sketch;

/// Answers after which a caller's length is known well enough: with fewer the largest of them is no better guess.
pub const ENOUGH: u64 = 200;
/// A call holds what so many of its like do not exceed.
pub const SHARE: f64 = 0.99;
/// Pairs of caller and model; below ten megabytes.
const MOST_PAIRS: usize = 10_000;
/// Pairs that were not used between two sweeps give way to others. A sweep costs time, so they are apart.
const SWEEP_EVERY: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub struct Lengths(Mutex<Pairs>);

#[derive(Debug, Default)]
struct Pairs {
    known: HashMap<(Subject, String), Pair>,
    sweeps: u64,
    swept: Option<Instant>,
}

#[derive(Debug)]
struct Pair {
    length: Length,
    /// The sweep before which it was last used.
    used: u64,
}

/// The lengths of one caller's answers by one model; per choice, since a call says how many it wants.
#[derive(Clone, Debug, Default)]
pub struct Length(Arc<Mutex<Sketch>>);

/// What a call holds, and where its end is learned from.
#[derive(Debug)]
pub struct Calibrated {
    pub demand: Demand,
    pub length: Option<Length>,
}

impl Lengths {
    /// What a call holds that may use `worst` in so many choices.
    pub fn hold(&self, chain: &Chain, subject: &Subject, model: &str, worst: Demand, choices: u64) -> Calibrated {
        if worst.output == 0 || chain.holding().calibrated.is_none() {
            return Calibrated { demand: worst, length: None };
        }
        let length = self.length(subject, model, Instant::now());
        let known = length.as_ref().and_then(Length::known);
        let output = known.map_or(worst.output, |known| known.saturating_mul(choices).min(worst.output));
        Calibrated { demand: Demand { output, ..worst }, length }
    }

    /// `None`: there are too many, and all of them are in use.
    fn length(&self, subject: &Subject, model: &str, now: Instant) -> Option<Length> {
        let mut pairs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let name = (Subject { tier: None, ..subject.clone() }, model.to_owned());
        let sweeps = pairs.sweeps;
        if let Some(pair) = pairs.known.get_mut(&name) {
            pair.used = sweeps;
            return Some(pair.length.clone());
        }
        if pairs.known.len() >= MOST_PAIRS && !pairs.sweep(now) {
            return None;
        }
        let pair = Pair { length: Length::default(), used: pairs.sweeps };
        Some(pairs.known.entry(name).or_insert(pair).length.clone())
    }
}

impl Pairs {
    /// Makes room; false if there is none.
    fn sweep(&mut self, now: Instant) -> bool {
        if self.swept.is_some_and(|swept| now < swept + SWEEP_EVERY) {
            return false;
        }
        let unused_since = self.sweeps;
        self.swept = Some(now);
        self.sweeps += 1;
        // The first sweep knows only that all were used at some time before it.
        self.known.retain(|_, pair| pair.used >= unused_since);
        if self.known.len() >= MOST_PAIRS {
            return false;
        }
        true
    }
}

impl Length {
    fn sketch(&self) -> MutexGuard<'_, Sketch> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call ended after this many tokens in all.
    pub fn learn(&self, tokens: u64, choices: u64) {
        self.sketch().add(tokens.div_ceil(choices.max(1)));
    }

    /// What a choice holds, once enough is known.
    pub fn known(&self) -> Option<u64> {
        let sketch = self.sketch();
        (sketch.counts() >= ENOUGH).then(|| sketch.quantile(SHARE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quota::{Ceilings, Holding, Level, Limit, OnLimit, OnStoreFailure, Overrun, Pattern, Price, Rule, Unit};

    fn chain(rules: &[(Holding, Unit)]) -> Chain {
        let rule = |&(holding, unit): &(Holding, Unit)| Rule {
            level: Level::Global,
            matcher: Pattern::any(),
            models: vec![],
            name: Some(format!("{holding:?}")),
            limits: vec![Limit::lifetime(unit, 1000)],
            ceilings: Ceilings::default(),
            on_store_failure: OnStoreFailure::Closed,
            holding,
            on_limit: OnLimit::Reject,
            shadow: false,
        };
        Chain::resolve(&rules.iter().map(rule).collect::<Vec<_>>(), &Subject::default(), &["m"])
    }

    const CALIBRATED: Holding = Holding { calibrated: Some(2.0), overrun: Overrun::Charge };
    const WORST: Holding = Holding { calibrated: None, overrun: Overrun::Charge };

    fn demand(output: u64) -> Demand {
        Demand::new(7, output, Price::default())
    }

    #[test]
    fn the_worst_case_is_held_until_enough_is_known_and_never_exceeded() {
        let (lengths, chain) = (Lengths::default(), chain(&[(CALIBRATED, Unit::Tokens)]));
        let hold = |worst, choices| lengths.hold(&chain, &Subject::default(), "m", demand(worst), choices);
        for _ in 1..ENOUGH {
            hold(4000, 1).length.expect("calibrated").learn(100, 1);
        }
        assert_eq!(hold(4000, 1).demand, demand(4000));
        hold(4000, 2).length.expect("calibrated").learn(200, 2);
        let learned = hold(4000, 1).demand.output;
        assert!((100..=110).contains(&learned), "{learned}");
        assert_eq!((hold(4000, 3).demand.output, hold(50, 1).demand.output), (3 * learned, 50));
        assert_eq!(lengths.hold(&chain, &Subject::default(), "other", demand(9), 1).demand, demand(9));
    }

    #[test]
    fn every_rule_that_counts_output_must_say_so() {
        let lengths = Lengths::default();
        let learns = |rules: &[(Holding, Unit)]| {
            lengths.hold(&chain(rules), &Subject::default(), "m", demand(9), 1).length.is_some()
        };
        assert!(learns(&[(CALIBRATED, Unit::Tokens), (WORST, Unit::Requests)]));
        assert!(!learns(&[(CALIBRATED, Unit::Tokens), (WORST, Unit::NanoUsd)]));
        assert!(!learns(&[(WORST, Unit::Tokens)]) && !learns(&[]));
    }

    #[test]
    fn pairs_are_bounded_and_those_in_use_stay() {
        let (lengths, start) = (Lengths::default(), Instant::now());
        let at = |model: usize, sweeps: u32| {
            let now = start + SWEEP_EVERY * sweeps;
            lengths.length(&Subject::default(), &model.to_string(), now).is_some()
        };
        assert!((0..MOST_PAIRS).all(|model| at(model, 0)));
        assert!(!at(MOST_PAIRS, 0), "all were used just now");
        assert!((0..10).all(|model| at(model, 1)) && at(MOST_PAIRS, 1), "those not used since give way");
        let known = &lengths.0.lock().unwrap().known;
        assert_eq!(known.len(), 11);
    }
}
