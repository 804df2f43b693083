//! A subject and a model, resolved once: every account and limit that a call must pass, in the order user, app, org,
//! global. What accounts and limits are called is `quota/identity.rs`.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::account::{Kind, LimitId, Terms};
use super::codec;
use super::holding::{Bind, Holding, Overrun};
use super::identity::{account_key, beside, hash_tag, limit_id};
use super::rate::RateHeaders;
use super::rule::{Ceilings, Level, Limit, MAX_AMOUNT, OnStoreFailure, Rule, Subject, Wait, Window};
use super::tier::Share;

mod calendars;
mod queues;
#[cfg(test)]
mod tests;

pub use calendars::Calendars;
pub use queues::Queue;

/// Time an account outlives its last use: longer than a lease plus the hour in which a late settle may correct it.
pub(super) const GRACE_US: f64 = 2.0 * 3600e6;

/// All limits of one subject at one level.
#[derive(Clone, Debug)]
pub struct ChainAccount {
    pub level: Level,
    pub path: String,
    pub key: String,
    /// Microseconds after which an idle account equals a fresh one; 0 keeps it for ever.
    pub keep_us: f64,
}

#[derive(Clone, Debug)]
pub struct ChainLimit {
    /// Index into [`Chain::accounts`].
    pub account: usize,
    pub terms: Terms,
    pub limit: Limit,
    pub label: String,
    pub model_bound: bool,
    pub on_failure: OnStoreFailure,
    pub holding: Holding,
    /// How calls wait for it; they are refused otherwise.
    pub wait: Option<Wait>,
}

impl ChainLimit {
    /// Two limits that count the same thing share one state. Both hold: the smaller burst, refilled at the lower rate.
    fn tighten(&mut self, other: &Self) {
        self.limit.amount = self.limit.amount.min(other.limit.amount);
        if let (Window::Bucket { burst, .. }, Window::Bucket { burst: theirs, .. }) =
            (&mut self.limit.window, &other.limit.window)
        {
            *burst = (*burst).min(*theirs);
        }
        self.terms.cap = self.terms.cap.min(other.terms.cap);
        self.terms.kept = self.terms.kept.min(other.terms.kept);
        self.terms.rate = self.terms.rate.min(other.terms.rate);
        self.model_bound &= other.model_bound;
        self.on_failure = self.on_failure.stricter(other.on_failure);
        self.holding = self.holding.stricter(other.holding);
        self.wait = self.wait.zip(other.wait).map(|(ours, theirs)| ours.stricter(theirs));
    }

    /// Whether it may refuse an extension. A shadow limit is in the store's eyes without end.
    pub(super) fn binds(&self, bind: Bind) -> bool {
        bind == Bind::All || self.holding.overrun == Overrun::Stop
    }
}

#[derive(Clone, Debug)]
pub struct ChainCeiling {
    pub level: Level,
    pub path: String,
    pub ceilings: Ceilings,
    pub model_bound: bool,
    pub shadow: bool,
}

/// Where the memory store keeps this chain, so that a call needs no hashing.
#[derive(Clone, Debug)]
pub struct Places {
    pub accounts: Vec<usize>,
    /// Per limit: index into the slots of its account.
    pub slots: Vec<usize>,
    /// Per account: those of `slots` that are its own.
    pub own: Vec<Vec<usize>>,
}

#[derive(Debug)]
pub struct Chain {
    /// The hash tag of the org: all its keys share one slot.
    pub(super) tag: String,
    pub(super) accounts: Vec<ChainAccount>,
    pub(super) limits: Vec<ChainLimit>,
    pub(super) ceilings: Vec<ChainCeiling>,
    /// Those of its accounts that have a queue, innermost first.
    pub(super) queues: Vec<Queue>,
    /// Name and place of the caller's tier, 0 the highest, and the shares of all tiers.
    pub(super) tier: String,
    pub(super) rank: u8,
    pub(super) shares: Arc<[Share]>,
    /// The chain as the scripts read it, and as a lease keeps it.
    pub(super) packed: Vec<u8>,
    pub(super) places: OnceLock<Places>,
    /// Per limit: where `outage` keeps its slice, if it has one.
    pub(super) slices: OnceLock<Arc<[Option<usize>]>>,
    /// The store has been told of the org.
    pub(super) introduced: AtomicBool,
    calendars: Mutex<Option<Arc<Calendars>>>,
    rate: Mutex<RateHeaders>,
}

impl Chain {
    pub fn resolve(rules: &[Rule], subject: &Subject, models: &[&str]) -> Self {
        let mut chain = Self::empty(hash_tag(subject.org.as_deref()));
        let kept = subject.tier.as_ref().map_or(Share::NONE, |tier| tier.kept);
        for level in Level::ALL {
            let Some(path) = subject.path(level) else { continue };
            let matching = || rules.iter().filter(|rule| rule.level == level && rule.applies(subject, models));
            let named = |shadow| matching().any(|rule| !rule.is_default() && rule.shadow == shadow);
            // A shadow rule takes no other out of force. Those go first: a shadow limit that counts the same as one of
            // them gets a count of its own.
            let replaced = |rule: &Rule| rule.is_default() && (named(false) || (rule.shadow && named(true)));
            for shadow in [false, true] {
                for rule in matching().filter(|rule| rule.shadow == shadow && !replaced(rule)) {
                    chain.add(rule, level, &path, kept);
                }
            }
        }
        if let Some(tier) = &subject.tier {
            (chain.tier, chain.rank, chain.shares) = (tier.name.clone(), tier.rank, tier.shares.clone());
        }
        chain.queues = queues::of(&chain, subject);
        chain.packed = codec::pack_terms(&chain);
        chain
    }

    /// A chain as a lease of a former process had it: enough to end that lease, and none of today's rules.
    pub(super) fn restored(accounts: Vec<(Level, String)>, limits: Vec<(usize, LimitId, Limit)>) -> Self {
        let mut chain = Self::empty(String::new());
        let account = |(level, key)| ChainAccount { level, path: String::new(), key, keep_us: 0.0 };
        chain.accounts = accounts.into_iter().map(account).collect();
        let entry = |(account, id, limit): (usize, LimitId, Limit)| {
            let (terms, label) = (terms(id, &limit, false), limit.label());
            let (on_failure, holding) = (OnStoreFailure::default(), Holding::default());
            ChainLimit { account, terms, limit, label, model_bound: false, on_failure, holding, wait: None }
        };
        chain.limits = limits.into_iter().map(entry).collect();
        chain
    }

    fn empty(tag: String) -> Self {
        Self {
            tag,
            accounts: Vec::new(),
            limits: Vec::new(),
            ceilings: Vec::new(),
            queues: Vec::new(),
            tier: String::new(),
            rank: 0,
            shares: Arc::default(),
            packed: Vec::new(),
            places: OnceLock::new(),
            slices: OnceLock::new(),
            introduced: AtomicBool::new(false),
            calendars: Mutex::new(None),
            rate: Mutex::new(RateHeaders::default()),
        }
    }

    fn add(&mut self, rule: &Rule, level: Level, path: &str, kept: Share) {
        if rule.ceilings != Ceilings::default() {
            let ceilings = rule.ceilings;
            self.ceilings.push(ChainCeiling {
                level,
                path: path.to_owned(),
                ceilings,
                model_bound: rule.is_model_bound(),
                shadow: rule.shadow,
            });
        }
        for limit in &rule.limits {
            let mut terms = terms(limit_id(rule, limit), limit, rule.shadow);
            terms.kept = kept.of(terms.cap);
            let account = self.account(level, path, &terms);
            let same = |known: &ChainLimit, id| known.account == account && known.terms.id == id;
            if terms.shadow && self.limits.iter().any(|known| same(known, terms.id) && !known.terms.shadow) {
                terms.id = beside(terms.id);
            }
            let twin = self.limits.iter_mut().find(|known| same(known, terms.id));
            let label = limit.label();
            let (model_bound, on_failure) = (rule.is_model_bound(), rule.without_store());
            let (limit, holding) = (limit.clone(), rule.holding);
            let wait = if rule.shadow { None } else { rule.on_limit.wait() };
            let entry = ChainLimit { account, terms, limit, label, model_bound, on_failure, holding, wait };
            match twin {
                Some(known) => known.tighten(&entry),
                None => self.limits.push(entry),
            }
        }
    }

    fn account(&mut self, level: Level, path: &str, terms: &Terms) -> usize {
        let keep_us = keep_us(terms);
        if let Some(at) = self.accounts.iter().position(|account| account.level == level) {
            let known = &mut self.accounts[at].keep_us;
            *known = if *known == 0.0 || keep_us == 0.0 { 0.0 } else { known.max(keep_us) };
            return at;
        }
        let key = account_key(&self.tag, level, path);
        self.accounts.push(ChainAccount { level, path: path.to_owned(), key, keep_us });
        self.accounts.len() - 1
    }

    /// No limit applies: the call is admitted and counted without asking the store.
    pub fn is_free(&self) -> bool {
        self.limits.is_empty()
    }

    pub fn limits(&self) -> &[ChainLimit] {
        &self.limits
    }

    /// What its rules say together about a call that runs: those whose limits count its output.
    pub fn holding(&self) -> Holding {
        let counting = self.limits.iter().filter(|entry| !entry.terms.shadow && entry.terms.unit.counts_output());
        counting.map(|entry| entry.holding).reduce(Holding::stricter).unwrap_or_default()
    }

    /// Per limit 1 if it may refuse an extension, as the script reads it.
    pub(super) fn binding(&self, bind: Bind) -> Vec<u8> {
        self.limits.iter().map(|entry| u8::from(entry.binds(bind))).collect()
    }

    pub fn accounts(&self) -> &[ChainAccount] {
        &self.accounts
    }

    /// The windows around `now_us` (the store's clock), computed once per window.
    pub(super) fn calendars(&self, now_us: f64) -> Arc<Calendars> {
        let mut cached = self.calendars.lock().unwrap_or_else(PoisonError::into_inner);
        match &*cached {
            Some(calendars) if now_us >= calendars.from && now_us < calendars.until => calendars.clone(),
            _ => {
                let fresh = Arc::new(Calendars::around(self, now_us));
                *cached = Some(fresh.clone());
                fresh
            }
        }
    }

    /// Rate headers as of the last answer of the store: for answers that never reach it.
    pub fn rate(&self) -> RateHeaders {
        *self.rate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn remember_rate(&self, rate: RateHeaders) {
        *self.rate.lock().unwrap_or_else(PoisonError::into_inner) = rate;
    }
}

fn terms(id: LimitId, limit: &Limit, shadow: bool) -> Terms {
    // Above 2^53 a double counts in steps of two; config refuses such limits, and this keeps a bypass harmless.
    let exact = |amount: u64| amount.min(MAX_AMOUNT) as f64;
    let (kind, cap, rate) = match &limit.window {
        Window::Bucket { period, burst } => {
            let period_us = (period.as_secs_f64() * 1e6).max(1.0);
            (Kind::Bucket, exact(*burst), exact(limit.amount) / period_us)
        }
        Window::Calendar { period, .. } => (Kind::Calendar, exact(limit.amount), period.nominal_us()),
        Window::Lifetime => (Kind::Lifetime, exact(limit.amount), 0.0),
        Window::Held => (Kind::Held, exact(limit.amount), 0.0),
    };
    Terms { id, kind, unit: limit.unit, cap, kept: 0.0, rate, shadow }
}

fn keep_us(terms: &Terms) -> f64 {
    match terms.kind {
        Kind::Bucket if terms.rate > 0.0 => terms.cap / terms.rate + GRACE_US,
        Kind::Calendar => 2.0 * terms.rate + GRACE_US,
        Kind::Held => GRACE_US,
        Kind::Bucket | Kind::Lifetime => 0.0,
    }
}

/// Most limits that the rules may give one account: its record counts them in a byte, and those of former rules stay for
/// a while.
pub(crate) const MOST_LIMITS: usize = 200;
