//! A subject and a model, resolved once: every account and limit that a call must pass, in the order user, app, org,
//! global. Identity never depends on a list index or on a limit's value, so editing a quota keeps its use.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use sha2::{Digest, Sha256};

use super::account::{Kind, LimitId, Terms};
use super::calendar::Windows;
use super::codec;
use super::rate::RateHeaders;
use super::rule::{Ceilings, Level, Limit, MAX_AMOUNT, OnStoreFailure, Rule, Subject, Window};

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
        self.terms.rate = self.terms.rate.min(other.terms.rate);
        self.model_bound &= other.model_bound;
        self.on_failure = self.on_failure.stricter(other.on_failure);
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
    /// The chain as the scripts read it, and as a lease keeps it.
    pub(super) packed: Vec<u8>,
    pub(super) places: OnceLock<Places>,
    /// Per limit: where `outage` keeps its slice, if it has one.
    pub(super) slices: OnceLock<Arc<[Option<usize>]>>,
    calendars: Mutex<Option<Arc<Calendars>>>,
    rate: Mutex<RateHeaders>,
}

/// The windows of the chain's calendar limits, in chain order, valid while every current window lasts.
#[derive(Debug)]
pub struct Calendars {
    pub windows: Vec<Windows>,
    pub packed: Vec<u8>,
    from: f64,
    until: f64,
}

impl Chain {
    pub fn resolve(rules: &[Rule], subject: &Subject, models: &[&str]) -> Self {
        let mut chain = Self::empty(hash_tag(subject.org.as_deref()));
        for level in Level::ALL {
            let Some(path) = subject.path(level) else { continue };
            let matching = || rules.iter().filter(|rule| rule.level == level && rule.applies(subject, models));
            let named = |shadow| matching().any(|rule| !rule.is_default() && rule.shadow == shadow);
            // A shadow rule takes no other out of force. Those go first: a shadow limit that counts the same as one of
            // them gets a count of its own.
            let replaced = |rule: &Rule| rule.is_default() && (named(false) || (rule.shadow && named(true)));
            for shadow in [false, true] {
                for rule in matching().filter(|rule| rule.shadow == shadow && !replaced(rule)) {
                    chain.add(rule, level, &path);
                }
            }
        }
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
            ChainLimit { account, terms, limit, label, model_bound: false, on_failure: OnStoreFailure::default() }
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
            packed: Vec::new(),
            places: OnceLock::new(),
            slices: OnceLock::new(),
            calendars: Mutex::new(None),
            rate: Mutex::new(RateHeaders::default()),
        }
    }

    fn add(&mut self, rule: &Rule, level: Level, path: &str) {
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
            let account = self.account(level, path, &terms);
            let same = |known: &ChainLimit, id| known.account == account && known.terms.id == id;
            if terms.shadow && self.limits.iter().any(|known| same(known, terms.id) && !known.terms.shadow) {
                terms.id = beside(terms.id);
            }
            let twin = self.limits.iter_mut().find(|known| same(known, terms.id));
            let label = limit.label();
            let (model_bound, on_failure) = (rule.is_model_bound(), rule.without_store());
            let entry = ChainLimit { account, terms, limit: limit.clone(), label, model_bound, on_failure };
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

impl Calendars {
    fn around(chain: &Chain, now_us: f64) -> Self {
        let windows: Vec<Windows> = chain
            .limits
            .iter()
            .filter_map(|entry| match &entry.limit.window {
                Window::Calendar { period, zone } => Some(Windows::around(*period, zone, now_us)),
                _ => None,
            })
            .collect();
        let from = windows.iter().map(|w| w.0[1]).fold(f64::NEG_INFINITY, f64::max);
        let until = windows.iter().map(|w| w.0[2]).fold(f64::INFINITY, f64::min);
        Self { packed: codec::pack_windows(&windows), windows, from, until }
    }

    /// Start of the window that holds `now_us` for each limit of the chain (0 where it has none), or `None` if one
    /// of them does not cover it.
    pub fn starts(&self, chain: &Chain, now_us: f64) -> Option<Vec<f64>> {
        let mut windows = self.windows.iter();
        let start = |entry: &ChainLimit| match entry.terms.kind {
            Kind::Calendar => windows.next()?.start(now_us),
            _ => Some(0.0),
        };
        chain.limits.iter().map(start).collect()
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
    Terms { id, kind, unit: limit.unit, cap, rate, shadow }
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

/// The slots that a rule takes in the accounts it matches.
pub(crate) fn slots(rule: &Rule) -> impl Iterator<Item = LimitId> {
    rule.limits.iter().map(|limit| if rule.shadow { beside(limit_id(rule, limit)) } else { limit_id(rule, limit) })
}

/// The identity of a shadow limit beside a limit in force that counts the same: a bucket's level depends on its rate.
fn beside(id: LimitId) -> LimitId {
    first_eight(&Sha256::new().chain_update("shadow\0").chain_update(id).finalize())
}

fn first_eight(digest: &[u8]) -> LimitId {
    let mut id = LimitId::default();
    id.copy_from_slice(&digest[..8]);
    id
}

/// sha256 of (name or sorted models, unit, window, period, zone): never an index, never the limit's value.
fn limit_id(rule: &Rule, limit: &Limit) -> LimitId {
    let scope = match &rule.name {
        Some(name) => format!("name\0{name}"),
        None => {
            let mut models: Vec<&str> = rule.models.iter().map(|model| model.as_str()).collect();
            models.sort_unstable();
            models.dedup();
            if models.is_empty() { "models\0*".to_owned() } else { format!("models\0{}", models.join("\0")) }
        }
    };
    let window = match &limit.window {
        Window::Bucket { period, .. } => format!("bucket\0{}", period.as_micros()),
        Window::Calendar { period, zone } => {
            format!("calendar\0{}\0{}", period.as_str(), zone.iana_name().unwrap_or("UTC"))
        }
        Window::Lifetime => "lifetime".to_owned(),
        Window::Held => "held".to_owned(),
    };
    first_eight(&Sha256::digest(format!("{scope}\0\0{}\0{window}", limit.unit.as_str())))
}

/// `ps1:` is the version of the whole key layout. The subject is hashed: bounded length, no character can break a tag.
fn account_key(tag: &str, level: Level, path: &str) -> String {
    let digest = Sha256::digest(format!("{}\0{path}", level.as_str()));
    let hex: String = digest[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    let tag = if level == Level::Global { GLOBAL_TAG } else { tag };
    format!("ps1:{{{tag}}}:a:{}{hex}", &level.as_str()[..1])
}

pub(super) const GLOBAL_TAG: &str = "g";

/// An org as it stands between the braces of a key: everything that is not plain is percent-encoded, and `-` is the
/// tag of keys without an org.
pub(super) fn hash_tag(org: Option<&str>) -> String {
    let Some(org) = org else { return "-".to_owned() };
    if org == "-" || org.is_empty() {
        return format!("%{}", if org.is_empty() { "" } else { "2D" });
    }
    let encode = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' | b'-' | b'@' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    org.bytes().map(encode).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::quota::rule::{Pattern, Unit};

    fn rule(level: Level, matcher: &str, models: &[&str], limits: Vec<Limit>) -> Rule {
        let pattern = |text: &&str| Pattern::new(text).unwrap();
        let models = models.iter().map(pattern).collect();
        let (matcher, ceilings, on_store_failure) = (pattern(&matcher), Ceilings::default(), OnStoreFailure::Closed);
        Rule { level, matcher, models, name: None, limits, ceilings, on_store_failure, shadow: false }
    }

    fn subject() -> Subject {
        Subject { org: Some("acme".into()), app: Some("web".into()), user: Some("ana".into()) }
    }

    fn minute(amount: u64) -> Vec<Limit> {
        vec![Limit::per(Unit::Tokens, amount, Duration::from_secs(60))]
    }

    #[test]
    fn a_named_rule_replaces_the_default_of_its_level_and_all_others_add_up() {
        let rules = [
            rule(Level::Org, "*", &[], minute(1)),
            rule(Level::Org, "acme", &[], minute(2)),
            rule(Level::Org, "a*", &["big"], minute(3)),
            rule(Level::User, "*", &[], minute(4)),
        ];
        let amounts = |models: &[&str]| -> Vec<u64> {
            Chain::resolve(&rules, &subject(), models).limits.iter().map(|l| l.limit.amount).collect()
        };
        assert_eq!(amounts(&["small"]), [4, 2]);
        assert_eq!(amounts(&["big"]), [4, 2, 3]);
    }

    #[test]
    fn identity_ignores_the_value_and_the_order_of_models() {
        let id = |rule: Rule| Chain::resolve(&[rule], &subject(), &["a"]).limits[0].terms.id;
        let base = id(rule(Level::Org, "*", &["a", "b"], minute(5)));
        assert_eq!(base, id(rule(Level::Org, "acme", &["b", "a"], minute(9))));
        assert_ne!(base, id(rule(Level::Org, "*", &["a"], minute(5))));
        let named = |models: &[&str]| Rule { name: Some("n".into()), ..rule(Level::Org, "*", models, minute(5)) };
        assert_eq!(id(named(&["a"])), id(named(&["a", "c"])));
    }

    #[test]
    fn the_same_count_twice_is_one_account_with_the_stricter_limit() {
        let rules = [rule(Level::Org, "acme", &[], minute(9)), rule(Level::Org, "a*", &[], minute(3))];
        let chain = Chain::resolve(&rules, &subject(), &["m"]);
        assert_eq!(chain.limits.iter().map(|l| l.limit.amount).collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn a_shadow_rule_replaces_nothing_and_keeps_its_count_when_it_comes_into_force() {
        let shadow = |rule| Rule { shadow: true, ..rule };
        let count = |rules: &[Rule]| -> Vec<(u64, bool, LimitId)> {
            let chain = Chain::resolve(rules, &subject(), &["m"]);
            chain.limits.iter().map(|l| (l.limit.amount, l.terms.shadow, l.terms.id)).collect()
        };
        let (default, named) = (rule(Level::Org, "*", &[], minute(9)), rule(Level::Org, "acme", &[], minute(3)));
        let id = count(std::slice::from_ref(&named))[0].2;
        let beside = count(&[shadow(named.clone()), default.clone()]);
        assert_eq!(beside.iter().map(|l| (l.0, l.1)).collect::<Vec<_>>(), [(9, false), (3, true)]);
        assert_ne!(beside[0].2, beside[1].2, "each drains at its own rate");
        assert_eq!(count(&[shadow(named.clone())]), [(3, true, id)], "alone it counts where it will be in force");
        assert_eq!(count(&[shadow(default.clone()), named.clone()]), [(3, false, id)]);
        assert_eq!(count(&[shadow(default), shadow(named)]), [(3, true, id)]);
    }

    #[test]
    fn of_two_limits_that_differ_in_burst_both_apply_in_any_order() {
        let bucket = |amount, burst| Limit {
            unit: Unit::Tokens,
            amount,
            window: Window::Bucket { period: Duration::from_secs(60), burst },
        };
        for (a, b) in [((60_000, 60_000), (60_000, 1000)), ((60_000, 1000), (50_000, 50_000))] {
            for (a, b) in [(a, b), (b, a)] {
                let rules = [
                    rule(Level::Org, "acme", &[], vec![bucket(a.0, a.1)]),
                    rule(Level::Org, "a*", &[], vec![bucket(b.0, b.1)]),
                ];
                let chain = Chain::resolve(&rules, &subject(), &["m"]);
                let [limit] = &chain.limits[..] else { panic!("{:?}", chain.limits) };
                assert_eq!((limit.terms.cap, limit.limit.amount), (1000.0, a.0.min(b.0)));
                assert_eq!(limit.terms.rate, a.0.min(b.0) as f64 / 60e6);
            }
        }
    }

    #[test]
    fn of_two_limits_that_share_a_count_the_stricter_policy_holds() {
        use OnStoreFailure::{Closed, Open, Slice};
        let with = |matcher, on_store_failure| Rule { on_store_failure, ..rule(Level::Org, matcher, &[], minute(5)) };
        for (a, b, expect) in
            [(Open, Closed, Closed), (Slice(0.1), Open, Slice(0.1)), (Slice(0.2), Slice(0.1), Slice(0.1))]
        {
            for rules in [[with("acme", a), with("a*", b)], [with("acme", b), with("a*", a)]] {
                assert_eq!(Chain::resolve(&rules, &subject(), &["m"]).limits[0].on_failure, expect);
            }
        }
    }

    #[test]
    fn hash_tags_never_collide_or_break() {
        let tags = [None, Some("-"), Some(""), Some("a}b"), Some("a%7Db"), Some("a b"), Some("g")].map(hash_tag);
        let distinct: std::collections::HashSet<_> = tags.iter().collect();
        assert_eq!(distinct.len(), tags.len(), "{tags:?}");
        assert!(tags.iter().all(|tag| !tag.is_empty() && !tag.contains(['{', '}'])));
    }

    #[test]
    fn a_user_across_orgs_is_two_accounts() {
        let rules = [rule(Level::User, "ana", &[], minute(5))];
        let key = |org: &str| {
            let subject = Subject { org: Some(org.into()), ..subject() };
            Chain::resolve(&rules, &subject, &["m"]).accounts[0].key.clone()
        };
        assert_ne!(key("acme"), key("other"));
    }
}
