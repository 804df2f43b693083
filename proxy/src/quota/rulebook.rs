//! The rules in force, the chains that have been resolved from them, and what a set of rules asks of its store. What one
//! rule says is `quota/rule.rs`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::chain::Chain;
use super::rule::{Limit, OnStoreFailure, Rule, Subject};
use super::stats::Refusals;
use super::store::Store;

/// More chains than any set of configured keys and models needs; above it the cache starts anew.
const MAX_CHAINS: usize = 100_000;

#[derive(Debug)]
pub(super) struct Rulebook(Mutex<InForce>);

#[derive(Debug)]
struct InForce {
    rules: Vec<Rule>,
    resolved: HashMap<ChainName, Arc<Chain>>,
}

type ChainName = (Subject, Vec<String>);

impl Rulebook {
    pub fn new(rules: Vec<Rule>) -> Self {
        Self(Mutex::new(InForce { rules, resolved: HashMap::new() }))
    }

    fn in_force(&self) -> MutexGuard<'_, InForce> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Chains that callers keep are theirs to ask for again.
    pub fn adopt(&self, rules: Vec<Rule>) {
        *self.in_force() = InForce { rules, resolved: HashMap::new() };
    }

    /// `new` is told of a chain before anybody gets it.
    pub fn chain(&self, subject: &Subject, models: &[&str], new: impl FnOnce(&Chain)) -> Arc<Chain> {
        let name = (subject.clone(), models.iter().map(|&model| model.to_owned()).collect());
        let InForce { rules, resolved } = &mut *self.in_force();
        if let Some(chain) = resolved.get(&name) {
            return chain.clone();
        }
        if resolved.len() >= MAX_CHAINS {
            resolved.clear();
        }
        let chain = Arc::new(Chain::resolve(rules, subject, models));
        new(&chain);
        resolved.insert(name, chain.clone());
        chain
    }

    /// Every limit that may refuse, or would if it were not in shadow, counts from zero: of a series that begins at its first
    /// refusal no rate can be taken.
    pub fn begin_at_zero(&self, refusals: &mut Refusals, shadow: &mut Refusals) {
        for rule in &self.in_force().rules {
            let counts = if rule.shadow { &mut *shadow } else { &mut *refusals };
            for limit in &rule.limits {
                counts.entry((rule.level, limit.label())).or_default();
            }
        }
    }

    pub fn go_on_without_store(&self) -> bool {
        goes_on_without_store(&self.in_force().rules)
    }
}

/// Whether calls are admitted while the store is down, whoever makes them: every rule says so, and there is one.
pub fn goes_on_without_store(rules: &[Rule]) -> bool {
    let mut policies = rules.iter().filter(|rule| !rule.limits.is_empty()).map(Rule::without_store).peekable();
    policies.peek().is_some() && policies.all(|policy| policy != OnStoreFailure::Closed)
}

/// Whether these rules count anything that a restart of the gateway must not give back.
pub fn needs_journal(rules: &[Rule]) -> bool {
    long_limit(rules).is_some()
}

fn long_limit(rules: &[Rule]) -> Option<&Limit> {
    rules.iter().flat_map(|rule| &rule.limits).find(|limit| limit.window.is_long())
}

/// What an operator should know about these rules on this store.
pub fn warnings(rules: &[Rule], store: &Store) -> Vec<String> {
    let long = long_limit(rules);
    let mut warnings = Vec::new();
    match (long, store) {
        (Some(limit), Store::Memory(store)) if !store.is_journalled() => {
            let label = limit.label();
            warnings.push(format!("without a journal a restart gives {label} back in full: use one, or redis"));
        }
        (Some(limit), Store::Redis(store)) if store.durability().is_some_and(|server| !server.append_only) => {
            let label = limit.label();
            warnings.push(format!(
                "the redis server keeps no append-only file, so its restart can give {label} back: set appendonly yes"
            ));
        }
        _ => {}
    }
    if let Store::Redis(store) = store
        && store.durability().is_some_and(|server| !server.noeviction)
    {
        warnings.push(
            "the redis server may evict accounts, which is free quota: set maxmemory-policy noeviction".to_owned(),
        );
    }
    warnings
}
