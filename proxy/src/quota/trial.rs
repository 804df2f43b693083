//! Rules over calls whose times and ends are known: what the gateway would have answered. The same chains, the same
//! ledger and the same refusals as behind the gateway, without a store, a clock or anything to wait for.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::account::Amounts;
use super::chain::Chain;
use super::lease::LeaseId;
use super::ledger::Ledger;
use super::rate::RateHeaders;
use super::refusal::{self, Refusal};
use super::reservation::Outcome;
use super::rule::{Demand, Rule, Subject};
use super::shadow::{self, Shadowed};
use super::store::{Ask, Status};

pub mod hold;

/// One call. It is asked for at `at_us` and, if it is admitted, ends `lasts` later as `outcome` says.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Microseconds since the Unix epoch.
    pub at_us: u64,
    pub demand: Demand,
    /// Of its output, what a calibrated rule held; the worst case where nobody knows.
    pub held_output: Option<u64>,
    pub lasts: Duration,
    pub outcome: Outcome,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    Admitted { shadowed: Vec<Shadowed> },
    Refused(Box<Refusal>),
}

/// Accounts begin empty.
pub struct Trial {
    rules: Vec<Rule>,
    ledger: Ledger,
    chains: HashMap<(Subject, Vec<String>), Arc<Chain>>,
    /// Admitted calls by their ends.
    running: BinaryHeap<Reverse<(u64, LeaseId)>>,
    actual: HashMap<LeaseId, Amounts>,
    calls: u128,
}

impl Trial {
    pub fn new(rules: Vec<Rule>) -> Self {
        Self {
            rules,
            ledger: Ledger::default(),
            chains: HashMap::new(),
            running: BinaryHeap::new(),
            actual: HashMap::new(),
            calls: 0,
        }
    }

    /// Calls come in the order of their times.
    pub fn call(&mut self, subject: &Subject, models: &[&str], call: &Call) -> Verdict {
        self.settle_until(call.at_us);
        let chain = self.chain(subject, models);
        let held = call.held_output.filter(|_| chain.holding().calibrated.is_some());
        let demand = Demand { output: held.unwrap_or(call.demand.output), ..call.demand };
        let refusal = refusal::over_ceiling(&chain, &call.demand);
        if let Some(refusal) = refusal.or_else(|| refusal::before_store(&chain, &demand)) {
            return Verdict::Refused(Box::new(refusal));
        }
        if chain.is_free() {
            return Verdict::Admitted { shadowed: shadow::of(&chain, &call.demand, &[]) };
        }
        self.calls += 1;
        let (id, need, now) = (LeaseId(self.calls), Amounts::of_demand(&demand), call.at_us as f64);
        let answer = self.ledger.reserve(&chain, &Ask { id, need, hold: Duration::MAX }, now);
        if answer.status == Status::Full
            && let Some(refusal) = refusal::judge(&chain, &need, &answer.levels, now, RateHeaders::default())
        {
            return Verdict::Refused(Box::new(refusal));
        }
        let lasts = u64::try_from(call.lasts.as_micros()).unwrap_or(u64::MAX);
        self.running.push(Reverse((call.at_us.saturating_add(lasts), id)));
        self.actual.insert(id, call.outcome.amounts());
        Verdict::Admitted { shadowed: shadow::of(&chain, &call.demand, &answer.levels) }
    }

    fn settle_until(&mut self, now_us: u64) {
        while let Some(Reverse((end, id))) = self.running.peek().copied().filter(|Reverse((end, _))| *end <= now_us) {
            self.running.pop();
            if let Some(actual) = self.actual.remove(&id) {
                self.ledger.settle(id, &actual, end as f64);
            }
        }
    }

    fn chain(&mut self, subject: &Subject, models: &[&str]) -> Arc<Chain> {
        let name = (subject.clone(), models.iter().map(|&model| model.to_owned()).collect());
        let chain = self.chains.entry(name).or_insert_with(|| Arc::new(Chain::resolve(&self.rules, subject, models)));
        chain.clone()
    }
}
