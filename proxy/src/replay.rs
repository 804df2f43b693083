//! An access log through the quotas of a configuration: who would have been refused, by which limit, since when.
//!
//! Accounts begin empty at the first line. A call takes from them when it arrived, what the log says that it asked for,
//! and gives back when it ended. One that the log shows refused and these quotas admit is charged all that it asked for:
//! nobody knows what it would have used. A call that would have waited counts as refused.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use wire::access::{Entry, Outcome as Ended, Who};
use wire::{Metered, Usage};

use crate::Config;
use crate::quota::trial::{Call, Trial, Verdict};
use crate::quota::{Demand, Level, Outcome, Price, Rule, Subject, Tier};

#[cfg(test)]
mod tests;

/// A log as it is read, reduced to what quotas look at.
pub struct Replay {
    rules: Vec<Rule>,
    tiers: Vec<Arc<Tier>>,
    /// By each name that a client may ask for: the model's own name, and its price.
    models: HashMap<String, (String, Price)>,
    subjects: HashMap<Subject, usize>,
    /// (subject, name asked for), each once.
    callers: Vec<(Subject, String)>,
    known: HashMap<(usize, String), usize>,
    calls: Vec<Logged>,
    skipped: u64,
    unknown_models: BTreeMap<String, u64>,
}

struct Logged {
    caller: usize,
    call: Call,
    was_refused: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    pub calls: u64,
    pub admitted: u64,
    pub refused: u64,
    /// Refused now, and not in the log.
    pub newly_refused: u64,
    /// Admitted now, and refused in the log.
    pub newly_admitted: u64,
    /// Lines of calls that no quota was asked about: invalid, of a model that the configuration lacks, or turned away
    /// for want of a store or of room.
    pub skipped: u64,
    /// Of the skipped: calls of models that the configuration lacks, by the name asked for.
    pub unknown_models: BTreeMap<String, u64>,
    /// Arrival of the first and the last call, milliseconds since the Unix epoch.
    pub first_ms: Option<u64>,
    pub last_ms: Option<u64>,
    /// Most calls first.
    pub refusals: Vec<Refusals>,
    /// What rules in shadow would have refused of the admitted calls.
    pub shadow_refusals: Vec<Refusals>,
}

/// What one limit of one subject refused.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Refusals {
    pub level: &'static str,
    pub limit: String,
    /// The subject's path.
    pub subject: String,
    pub calls: u64,
    /// What these calls would have held.
    pub tokens: u64,
    pub first_ms: u64,
    pub last_ms: u64,
}

type Tally = BTreeMap<(Level, String, String), Refusals>;

impl Replay {
    pub fn new(config: &Config) -> Self {
        let names = |model: &crate::config::Model| {
            let named = (model.name.clone(), model.price);
            let all = std::iter::once(&model.name).chain(&model.aliases).cloned().collect::<Vec<_>>();
            all.into_iter().map(move |name| (name, named.clone()))
        };
        Self {
            rules: config.quotas.clone(),
            tiers: config.tiers.clone(),
            models: config.models.iter().flat_map(names).collect(),
            subjects: HashMap::new(),
            callers: Vec::new(),
            known: HashMap::new(),
            calls: Vec::new(),
            skipped: 0,
            unknown_models: BTreeMap::new(),
        }
    }

    /// One line of the log, in any order.
    pub fn read(&mut self, entry: &Entry) {
        match self.logged(entry) {
            Some(logged) => self.calls.push(logged),
            None => self.skipped += 1,
        }
    }

    fn logged(&mut self, entry: &Entry) -> Option<Logged> {
        let demand = entry.demand?;
        let Some((_, price)) = self.models.get(&entry.model) else {
            *self.unknown_models.entry(entry.model.clone()).or_default() += 1;
            return None;
        };
        let held_output = demand.held_output;
        let demand = Demand::new(demand.prompt, demand.max_output, *price);
        let was_refused = entry.decision.outcome == Ended::Refused;
        let outcome = outcome(entry, &demand)?;
        let lasts = Duration::try_from_secs_f64(entry.timing.e2e_ms / 1000.0).unwrap_or_default();
        let call = Call { at_us: entry.ts_ms.saturating_mul(1000), demand, held_output, lasts, outcome };
        Some(Logged { caller: self.caller(&entry.who, &entry.model), call, was_refused })
    }

    fn caller(&mut self, who: &Who, model: &str) -> usize {
        // Of a tier that is no more: the lowest, as a key that names none.
        let tier = self.tiers.iter().find(|tier| Some(&tier.name) == who.tier.as_ref()).or(self.tiers.last()).cloned();
        let subject = Subject { org: who.org.clone(), app: who.app.clone(), user: who.user.clone(), tier };
        let count = self.subjects.len();
        let at = *self.subjects.entry(subject.clone()).or_insert(count);
        *self.known.entry((at, model.to_owned())).or_insert_with(|| {
            self.callers.push((subject, model.to_owned()));
            self.callers.len() - 1
        })
    }

    pub fn run(mut self) -> Report {
        self.calls.sort_by_key(|logged| logged.call.at_us);
        let ms = |logged: Option<&Logged>| logged.map(|logged| logged.call.at_us / 1000);
        let mut report = Report {
            calls: self.calls.len() as u64,
            skipped: self.skipped,
            unknown_models: self.unknown_models,
            first_ms: ms(self.calls.first()),
            last_ms: ms(self.calls.last()),
            ..Report::default()
        };
        let (mut refusals, mut shadow) = (Tally::new(), Tally::new());
        let mut trial = Trial::new(self.rules);
        for Logged { caller, call, was_refused } in &self.calls {
            let (subject, asked) = &self.callers[*caller];
            let (model, _) = &self.models[asked];
            match trial.call(subject, &[model, asked], call) {
                Verdict::Admitted { shadowed } => {
                    report.admitted += 1;
                    report.newly_admitted += u64::from(*was_refused);
                    for by in shadowed {
                        count(&mut shadow, by.level, by.limit, by.subject, call);
                    }
                }
                Verdict::Refused(by) => {
                    report.refused += 1;
                    report.newly_refused += u64::from(!was_refused);
                    count(&mut refusals, by.level, by.limit, by.subject, call);
                }
            }
        }
        (report.refusals, report.shadow_refusals) = (sorted(refusals), sorted(shadow));
        report
    }
}

/// How the call's hold ended or would have. `None`: no quota was asked, or its answer never came.
fn outcome(entry: &Entry, demand: &Demand) -> Option<Outcome> {
    let used = |usage: Usage| {
        let nano_usd = demand.price.cost(usage.prompt, usage.completion);
        Outcome::Used { metered: Metered::Estimated(usage), nano_usd }
    };
    match (entry.decision.outcome, entry.usage) {
        (Ended::StoreUnavailable | Ended::Overloaded, _) => None,
        (_, Some(usage)) => Some(used(usage)),
        (Ended::Refused, None) => Some(used(Usage { prompt: demand.input, completion: demand.output, cached: 0 })),
        // The upstream's 4xx: its call counts.
        (Ended::Invalid, None) => entry.upstream.is_some().then_some(Outcome::Rejected),
        (_, None) => Some(Outcome::Refund),
    }
}

fn count(tally: &mut Tally, level: Level, limit: String, subject: String, call: &Call) {
    let ms = call.at_us / 1000;
    let row = tally.entry((level, limit.clone(), subject.clone())).or_insert_with(|| Refusals {
        level: level.as_str(),
        limit,
        subject,
        calls: 0,
        tokens: 0,
        first_ms: ms,
        last_ms: ms,
    });
    row.calls += 1;
    row.tokens = row.tokens.saturating_add(call.demand.tokens());
    row.last_ms = ms;
}

fn sorted(tally: Tally) -> Vec<Refusals> {
    let mut rows: Vec<Refusals> = tally.into_values().collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.calls));
    rows
}
