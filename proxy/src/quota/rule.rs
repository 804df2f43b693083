//! The nouns of a quota: who (`Subject`), what is limited (`Limit`), and which rule says so (`Rule`).
//! Parsing YAML into these is the job of `config`; arithmetic on them lives in `ledger`.

use std::sync::Arc;
use std::time::Duration;

use globset::{GlobBuilder, GlobMatcher};

use super::calendar::CalendarPeriod;
use super::holding::Holding;
use super::tier::Tier;

/// Largest integer that both a Lua number and an `f64` hold exactly; limits above it are config errors.
pub const MAX_AMOUNT: u64 = 1 << 53;

/// Who pays: the path org/app/user of a key. Missing parts are written `-` in the path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Subject {
    pub org: Option<String>,
    pub app: Option<String>,
    pub user: Option<String>,
    /// Where its calls stand against others; no part of any path. `None` where there is one tier.
    pub tier: Option<Arc<Tier>>,
}

impl Subject {
    /// The nested path that owns an account at `level`, or `None` when the key has no such part.
    /// A user is org/app/user: the same user name under two orgs is two subjects.
    pub fn path(&self, level: Level) -> Option<String> {
        let part = |name: &Option<String>| name.clone().unwrap_or_else(|| "-".to_owned());
        match level {
            Level::User => {
                let user = self.user.as_ref()?;
                Some(format!("{}/{}/{user}", part(&self.org), part(&self.app)))
            }
            Level::App => Some(format!("{}/{}", part(&self.org), self.app.as_ref()?)),
            Level::Org => self.org.clone(),
            Level::Global => Some("global".to_owned()),
        }
    }

    fn last_name(&self, level: Level) -> Option<&str> {
        match level {
            Level::User => self.user.as_deref(),
            Level::App => self.app.as_deref(),
            Level::Org => self.org.as_deref(),
            Level::Global => Some("global"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Level {
    User,
    App,
    Org,
    Global,
}

impl Level {
    /// The order in which a reservation climbs.
    pub const ALL: [Self; 4] = [Self::User, Self::App, Self::Org, Self::Global];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::App => "app",
            Self::Org => "org",
            Self::Global => "global",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// Client calls, once per lease, whatever the number of attempts.
    Requests,
    /// Prompt plus output.
    Tokens,
    InputTokens,
    OutputTokens,
    /// Money in 1e-9 USD.
    NanoUsd,
    /// Calls in flight.
    Concurrency,
}

impl Unit {
    /// A longer answer takes more of it.
    pub fn counts_output(self) -> bool {
        matches!(self, Self::Tokens | Self::OutputTokens | Self::NanoUsd)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Tokens => "tokens",
            Self::InputTokens => "input_tokens",
            Self::OutputTokens => "output_tokens",
            Self::NanoUsd => "usd",
            Self::Concurrency => "concurrency",
        }
    }
}

/// How use comes back.
#[derive(Clone, Debug, PartialEq)]
pub enum Window {
    /// Refills continuously at `amount / period`; never more than `burst` at once.
    Bucket { period: Duration, burst: u64 },
    /// Starts at zero at each boundary of the calendar in `zone`; debt carries over.
    Calendar { period: CalendarPeriod, zone: jiff::tz::TimeZone },
    /// Never comes back.
    Lifetime,
    /// Comes back when the call ends: the window of [`Unit::Concurrency`].
    Held,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Limit {
    pub unit: Unit,
    /// In units of `unit` (money in nano-USD); at most [`MAX_AMOUNT`].
    pub amount: u64,
    pub window: Window,
}

impl Window {
    /// Long enough that a restart of the gateway must not give its use back.
    pub fn is_long(&self) -> bool {
        match self {
            Self::Bucket { period, .. } => period.as_secs() >= 3600,
            Self::Calendar { period, .. } => period.nominal_us() >= 3600e6,
            Self::Lifetime => true,
            Self::Held => false,
        }
    }
}

impl Limit {
    pub fn per(unit: Unit, amount: u64, period: Duration) -> Self {
        Self { unit, amount, window: Window::Bucket { period, burst: amount } }
    }

    pub fn lifetime(unit: Unit, amount: u64) -> Self {
        Self { unit, amount, window: Window::Lifetime }
    }

    pub fn concurrency(amount: u64) -> Self {
        Self { unit: Unit::Concurrency, amount, window: Window::Held }
    }

    /// `tokens/minute`, `usd/month`, `tokens/lifetime`, `concurrency`: a bounded set, used in refusals and metric labels.
    pub fn label(&self) -> String {
        let per = match &self.window {
            Window::Bucket { period, .. } => match period.as_secs_f64() {
                1.0 => "second".to_owned(),
                60.0 => "minute".to_owned(),
                3600.0 => "hour".to_owned(),
                86400.0 => "day".to_owned(),
                other => format!("{other}s"),
            },
            Window::Calendar { period, .. } => period.as_str().to_owned(),
            Window::Lifetime => "lifetime".to_owned(),
            Window::Held => return self.unit.as_str().to_owned(),
        };
        format!("{}/{per}", self.unit.as_str())
    }
}

/// What one request may ask for at most, whatever the balance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ceilings {
    pub tokens: Option<u64>,
    pub nano_usd: Option<u64>,
}

/// What the limits of a rule mean while the store does not answer. The strictest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub enum OnStoreFailure {
    /// Nothing is admitted.
    #[default]
    Closed,
    /// All gateways together admit at most this share of each limit, in one outage.
    Slice(f64),
    /// Everything is admitted.
    Open,
}

impl OnStoreFailure {
    pub(super) fn share(self) -> Option<f64> {
        match self {
            Self::Slice(share) => Some(share),
            Self::Closed | Self::Open => None,
        }
    }

    pub(super) fn stricter(self, other: Self) -> Self {
        if other < self { other } else { self }
    }
}

/// What a call does that does not fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnLimit {
    /// It is refused.
    #[default]
    Reject,
    /// It waits until it fits.
    Queue(Wait),
}

/// How calls may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    pub most: Duration,
    /// Calls of one tier that may wait at once.
    pub depth: usize,
}

impl OnLimit {
    pub(super) fn wait(self) -> Option<Wait> {
        match self {
            Self::Reject => None,
            Self::Queue(wait) => Some(wait),
        }
    }
}

impl Wait {
    pub(super) fn stricter(self, other: Self) -> Self {
        Self { most: self.most.min(other.most), depth: self.depth.min(other.depth) }
    }
}

#[derive(Clone, Debug)]
pub struct Rule {
    pub level: Level,
    /// Tested on the last name of the subject, or on its path when the pattern holds a `/`. Ignored for [`Level::Global`].
    pub matcher: Pattern,
    /// Empty means every model. The whole list shares one account.
    pub models: Vec<Pattern>,
    /// Keeps the use of an account when the rule's models or matcher change.
    pub name: Option<String>,
    pub limits: Vec<Limit>,
    pub ceilings: Ceilings,
    pub on_limit: OnLimit,
    pub on_store_failure: OnStoreFailure,
    pub holding: Holding,
    /// Counted, and never refuses: what it would have refused is told.
    pub shadow: bool,
}

impl Rule {
    /// The default of its level, which any other matching rule replaces.
    pub(super) fn is_default(&self) -> bool {
        self.level != Level::Global && self.matcher.text == "*"
    }

    /// What it says of a call while the store is down. A shadow rule refuses nothing, then as ever.
    pub(crate) fn without_store(&self) -> OnStoreFailure {
        if self.shadow { OnStoreFailure::Open } else { self.on_store_failure }
    }

    /// Bound to some models only, so that another model may still fit when this rule refuses.
    pub(super) fn is_model_bound(&self) -> bool {
        !self.models.is_empty() && self.models.iter().all(|model| model.text != "*")
    }

    pub(super) fn applies(&self, subject: &Subject, models: &[&str]) -> bool {
        let Some(path) = subject.path(self.level) else { return false };
        let who = match self.level {
            Level::Global => true,
            level if self.matcher.text.contains('/') => self.matcher.matches(&path) && level != Level::Global,
            level => subject.last_name(level).is_some_and(|name| self.matcher.matches(name)),
        };
        let what =
            self.models.is_empty() || self.models.iter().any(|pattern| models.iter().any(|m| pattern.matches(m)));
        who && what
    }
}

/// A name or a glob; `*` does not cross a `/`.
#[derive(Clone, Debug)]
pub struct Pattern {
    text: String,
    glob: GlobMatcher,
}

impl Pattern {
    pub fn new(text: &str) -> Result<Self, globset::Error> {
        let literal_separator = text != "*";
        let glob = GlobBuilder::new(text).literal_separator(literal_separator).build()?.compile_matcher();
        Ok(Self { text: text.to_owned(), glob })
    }

    pub fn any() -> Self {
        Self::new("*").expect("invariant: `*` is a valid glob")
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    pub fn matches(&self, name: &str) -> bool {
        self.text == name || self.glob.is_match(name)
    }
}

/// What one call may use at most; one request is implied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    pub input: u64,
    pub output: u64,
    pub price: Price,
}

impl Demand {
    pub fn new(input: u64, output: u64, price: Price) -> Self {
        Self { input, output, price }
    }

    pub fn tokens(&self) -> u64 {
        self.input.saturating_add(self.output)
    }

    pub fn nano_usd(&self) -> u64 {
        self.price.cost(self.input, self.output)
    }

    pub fn of(&self, unit: Unit) -> u64 {
        match unit {
            Unit::Requests | Unit::Concurrency => 1,
            Unit::Tokens => self.tokens(),
            Unit::InputTokens => self.input,
            Unit::OutputTokens => self.output,
            Unit::NanoUsd => self.nano_usd(),
        }
    }
}

/// Nano-USD per million tokens. Kept with the demand, so that a checkpoint or a dropped call can be priced without its caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Price {
    pub input: u64,
    pub output: u64,
}

impl Price {
    /// From USD per million tokens, as the config writes it.
    pub fn per_million_usd(input: f64, output: f64) -> Self {
        // `as` saturates and maps NaN to 0, which is what an absurd price should become.
        Self { input: (input * 1e9).round() as u64, output: (output * 1e9).round() as u64 }
    }

    /// Nano-USD, rounded up and saturating: a hold never rounds in the caller's favour.
    pub fn cost(self, input: u64, output: u64) -> u64 {
        let part = |tokens: u64, price: u64| u128::from(tokens) * u128::from(price);
        let exact = part(input, self.input).saturating_add(part(output, self.output));
        u64::try_from(exact.div_ceil(1_000_000)).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject() -> Subject {
        Subject { org: Some("acme".into()), app: Some("web".into()), user: Some("ana".into()), tier: None }
    }

    fn rule(level: Level, matcher: &str, models: &[&str]) -> Rule {
        Rule {
            level,
            matcher: Pattern::new(matcher).unwrap(),
            models: models.iter().map(|m| Pattern::new(m).unwrap()).collect(),
            name: None,
            limits: vec![],
            ceilings: Ceilings::default(),
            on_limit: OnLimit::Reject,
            on_store_failure: OnStoreFailure::default(),
            holding: Holding::default(),
            shadow: false,
        }
    }

    #[test]
    fn a_pattern_is_tested_on_the_last_name_or_on_the_path_when_it_holds_a_slash() {
        for (level, matcher, expect) in [
            (Level::User, "ana", true),
            (Level::User, "an*", true),
            (Level::User, "acme/web/ana", true),
            (Level::User, "acme/*/ana", true),
            (Level::User, "acme/*", false),
            (Level::User, "web", false),
            (Level::App, "acme/web", true),
            (Level::Org, "acme", true),
            (Level::Org, "*", true),
            (Level::Org, "other", false),
        ] {
            assert_eq!(rule(level, matcher, &[]).applies(&subject(), &["m"]), expect, "{level:?} {matcher}");
        }
    }

    #[test]
    fn models_match_the_resolved_name_or_the_alias() {
        assert!(rule(Level::Org, "*", &["gpt-*"]).applies(&subject(), &["mini", "gpt-4"]));
        assert!(!rule(Level::Org, "*", &["gpt-*"]).applies(&subject(), &["mini"]));
    }

    #[test]
    fn prices_round_up_and_saturate() {
        let price = Price::per_million_usd(0.15, 0.60);
        assert_eq!(price.cost(2000, 1000), 900_000);
        assert_eq!(Price { input: 1, output: 0 }.cost(1, 0), 1);
        assert_eq!(price.cost(u64::MAX, u64::MAX), u64::MAX);
        assert_eq!(Price { input: u64::MAX, output: u64::MAX }.cost(u64::MAX, u64::MAX), u64::MAX);
    }
}
