//! The `quotas` section: rules and their limits, and the checks that need models and keys beside them.

use std::{collections::HashSet, time::Duration};

use super::{
    Key, Model, failure, holding, on_limit,
    problem::Place,
    read::{At, Fields},
};
use crate::quota::{
    Ceilings, Level, Limit, MAX_AMOUNT, OnStoreFailure, Pattern, Price, Rule, Share, Subject, Unit, Window,
    account::LimitId, calendar::CalendarPeriod, chain, identity,
};

/// A rule and where it stands, for the checks that follow.
pub(super) struct Placed {
    pub rule: Rule,
    pub(super) place: Place,
    pub(super) path: String,
    /// What `match` and `models` say, as messages show it.
    pub(super) matcher: String,
    models: Vec<String>,
}

const LEVELS: [(&str, Level); 4] =
    [("user", Level::User), ("app", Level::App), ("org", Level::Org), ("global", Level::Global)];

pub(super) fn rule(at: At<'_>) -> Option<Placed> {
    let mut fields = at.fields()?;
    let level = fields.required("level", "org", |at| at.choice(&LEVELS));
    let matcher = matcher(&mut fields, level);
    let models = fields.optional("models", |at| at.list(pattern)).unwrap_or_default();
    let name = fields.optional("name", |at| at.text());
    let mut ceilings = Ceilings::default();
    let limits = fields.required("limits", "[{ tokens: 100000, per: minute }]", |at| at.list(limit));
    let on_store_failure = fields.or("on_store_failure", failure::policy, OnStoreFailure::Closed);
    let on_limit = on_limit::on_limit(&mut fields);
    let holding = holding::holding(&mut fields);
    let shadow = fields.or("shadow", |at| at.boolean(), false);
    fields.finish();
    let mut kept = Vec::new();
    for parsed in limits? {
        match parsed {
            Parsed::Limit(limit) => kept.push(limit),
            Parsed::Ceilings(found) => {
                ceilings.tokens = found.tokens.or(ceilings.tokens);
                ceilings.nano_usd = found.nano_usd.or(ceilings.nano_usd);
            }
        }
    }
    let (matcher, matcher_shown) = matcher?;
    let (models, models_shown) = models.into_iter().unzip();
    holding::check(at, holding, &kept);
    let (level, limits) = (level?, kept);
    let rule = Rule { level, matcher, models, name, limits, ceilings, on_limit, on_store_failure, holding, shadow };
    Some(Placed { rule, place: at.node.place, path: at.path.to_owned(), matcher: matcher_shown, models: models_shown })
}

/// `level: global` has one subject, so it takes no `match`; every other level needs one.
fn matcher(fields: &mut Fields<'_>, level: Option<Level>) -> Option<(Pattern, String)> {
    if level == Some(Level::Global) {
        if let Some(entry) = fields.entry("match") {
            let path = format!("{}.match", fields.at().path);
            fields.at().report.problem(entry.place, &path, "level: global takes no match", "remove the field");
        }
        return Some((Pattern::any(), String::new()));
    }
    fields.required("match", "\"*\"", pattern)
}

/// The pattern, and how messages show it.
fn pattern(at: At<'_>) -> Option<(Pattern, String)> {
    let text = at.text()?;
    match Pattern::new(&text) {
        Ok(pattern) => Some((pattern, at.shown())),
        Err(error) => at.problem(format!("not a name or a glob: {}", error.kind()), "write a name, a glob, or \"*\""),
    }
}

enum Parsed {
    Limit(Limit),
    Ceilings(Ceilings),
}

const UNITS: [(&str, Unit); 6] = [
    ("tokens", Unit::Tokens),
    ("input_tokens", Unit::InputTokens),
    ("output_tokens", Unit::OutputTokens),
    ("requests", Unit::Requests),
    ("usd", Unit::NanoUsd),
    ("concurrency", Unit::Concurrency),
];

fn limit(at: At<'_>) -> Option<Parsed> {
    let mut fields = at.fields()?;
    fields.not_built("enqueued_tokens", "remove it: batches come later");
    if let Some(ceilings) = fields.optional("max_request", ceilings) {
        fields.finish();
        return Some(Parsed::Ceilings(ceilings));
    }
    let given: Vec<Unit> =
        UNITS.iter().filter(|(name, _)| fields.entry(name).is_some()).map(|(_, unit)| *unit).collect();
    let [unit] = given[..] else {
        fields.finish();
        return at.problem(
            "a limit needs exactly one unit",
            "write one of tokens, input_tokens, output_tokens, requests, usd, concurrency or max_request",
        );
    };
    let (name, _) = UNITS.into_iter().find(|(_, known)| *known == unit)?;
    let amount = fields.optional(name, |at| amount(at, unit));
    let window = window(&mut fields, unit, amount.unwrap_or_default());
    fields.finish();
    Some(Parsed::Limit(Limit { unit, amount: amount?, window: window? }))
}

/// Money is kept in nano-USD.
fn amount(at: At<'_>, unit: Unit) -> Option<u64> {
    match unit {
        Unit::NanoUsd => at.number(MAX_AMOUNT as f64 / 1e9).map(nano_usd),
        _ => at.whole(0, MAX_AMOUNT),
    }
}

fn nano_usd(usd: f64) -> u64 {
    // A price of so much per million tokens, for a million of them.
    Price::per_million_usd(usd, 0.0).cost(1_000_000, 0)
}

fn ceilings(at: At<'_>) -> Option<Ceilings> {
    let mut fields = at.fields()?;
    let tokens = fields.optional("tokens", |at| at.whole(1, MAX_AMOUNT));
    let nano_usd = fields.optional("usd", |at| amount(at, Unit::NanoUsd));
    fields.finish();
    Some(Ceilings { tokens, nano_usd })
}

#[derive(Clone, Copy, PartialEq)]
enum Per {
    Period(CalendarPeriod, u64),
    Lifetime,
}

const PERIODS: [(&str, Per); 6] = [
    ("second", Per::Period(CalendarPeriod::Second, 1)),
    ("minute", Per::Period(CalendarPeriod::Minute, 60)),
    ("hour", Per::Period(CalendarPeriod::Hour, 3600)),
    ("day", Per::Period(CalendarPeriod::Day, 86_400)),
    ("month", Per::Period(CalendarPeriod::Month, 0)),
    ("lifetime", Per::Lifetime),
];

fn window(fields: &mut Fields<'_>, unit: Unit, amount: u64) -> Option<Window> {
    if unit == Unit::Concurrency {
        return Some(Window::Held);
    }
    let per = fields.required("per", "minute", |at| at.choice(&PERIODS));
    let calendar = fields.or("window", |at| at.choice(&[("bucket", false), ("calendar", true)]), false);
    let burst = fields.optional("burst", |at| self::amount(at, unit));
    let zone = fields.optional("timezone", zone);
    let at = fields.at();
    match per? {
        Per::Lifetime => {
            unused(at, "burst", burst.is_some());
            unused(at, "timezone", zone.is_some());
            Some(Window::Lifetime)
        }
        Per::Period(period, _) if calendar => {
            unused(at, "burst", burst.is_some());
            Some(Window::Calendar { period, zone: zone.unwrap_or(jiff::tz::TimeZone::UTC) })
        }
        Per::Period(CalendarPeriod::Month, _) => {
            at.problem("a month has no fixed length to refill over", "add `window: calendar`, or write `per: day`")
        }
        Per::Period(_, seconds) => {
            unused(at, "timezone", zone.is_some());
            if burst == Some(0) && amount > 0 {
                return at.problem("a burst of 0 admits nothing", "write a burst of at least one request");
            }
            Some(Window::Bucket { period: Duration::from_secs(seconds), burst: burst.unwrap_or(amount) })
        }
    }
}

/// A field that this window has no use for is a mistake, not a detail.
fn unused(at: At<'_>, name: &str, given: bool) {
    if given {
        at.problem::<()>(format!("{name} has no meaning in this window"), format!("remove {name}"));
    }
}

fn zone(at: At<'_>) -> Option<jiff::tz::TimeZone> {
    let name = at.text()?;
    match jiff::tz::TimeZone::get(&name) {
        Ok(zone) => Some(zone),
        Err(_) => at.problem(format!("unknown time zone {}", at.shown()), "write an IANA name such as Europe/Lisbon"),
    }
}

/// Names that nothing else in the file has, and caps that can never fit.
pub(super) fn cross_check(at: At<'_>, rules: &[Placed], models: &[Model], keys: &[Key]) {
    let subjects: Vec<Subject> = keys.iter().map(Key::subject).collect();
    too_many(at, rules, &subjects);
    for placed in rules {
        dangling_models(at, placed, models);
        for (index, model) in models.iter().enumerate().filter(|(_, model)| placed.covers(model)) {
            let of_tiers = subjects.iter().filter(|subject| placed.matches(subject)).filter_map(|s| s.tier.as_ref());
            let kept = of_tiers.map(|tier| tier.kept).max().unwrap_or_default();
            never_fits(at, placed, index, model, kept);
        }
    }
}

/// Rules per model add up in the account of a subject, which has room for so many.
fn too_many(at: At<'_>, rules: &[Placed], subjects: &[Subject]) {
    let slots: Vec<Vec<_>> = rules.iter().map(|placed| identity::slots(&placed.rule).collect()).collect();
    if slots.iter().map(Vec::len).sum::<usize>() <= chain::MOST_LIMITS {
        return;
    }
    let mut told = HashSet::new();
    for (subject, level) in subjects.iter().flat_map(|subject| Level::ALL.map(|level| (subject, level))) {
        let mut account: HashSet<LimitId> = HashSet::new();
        for (placed, slots) in rules.iter().zip(&slots).filter(|(placed, _)| placed.rule.level == level) {
            if !placed.matches(subject) {
                continue;
            }
            account.extend(slots);
            if account.len() <= chain::MOST_LIMITS {
                continue;
            }
            if told.insert(&placed.path) {
                at.report.problem(
                    placed.place,
                    &format!("{}.limits", placed.path),
                    format!("more than {} limits meet in one account", chain::MOST_LIMITS),
                    "let models share a rule: list them, or use a glob",
                );
            }
            break;
        }
    }
}

pub(super) fn is_glob(text: &str) -> bool {
    text.contains(['*', '?', '[', '{'])
}

fn dangling_models(at: At<'_>, placed: &Placed, models: &[Model]) {
    let known = |name: &str| models.iter().any(|model| model.name == name || model.aliases.iter().any(|a| a == name));
    let unknown = |pattern: &Pattern| !is_glob(pattern.as_str()) && !known(pattern.as_str());
    for (_, shown) in placed.rule.models.iter().zip(&placed.models).filter(|(pattern, _)| unknown(pattern)) {
        at.report.problem(
            placed.place,
            &format!("{}.models", placed.path),
            format!("no model or alias is named {shown}"),
            "write the name of a model, an alias, or a glob",
        );
    }
}

/// A request without a cap would be refused for ever, of the lowest tier at least.
fn never_fits(at: At<'_>, placed: &Placed, index: usize, model: &Model, kept: Share) {
    for limit in &placed.rule.limits {
        let most = match limit.window {
            Window::Bucket { burst, .. } => burst,
            _ => limit.amount,
        };
        let most = most - kept.of(most as f64) as u64;
        let counts_output = matches!(limit.unit, Unit::Tokens | Unit::OutputTokens);
        if counts_output && model.default_max_tokens >= most {
            at.report.warning(
                placed.place,
                &format!("{}.limits", placed.path),
                format!(
                    "default_max_tokens {} of models[{index}] never fits {} of {most}",
                    model.default_max_tokens,
                    limit.label()
                ),
                "raise the limit or its burst, or lower default_max_tokens",
            );
        }
    }
}

impl Placed {
    pub(super) fn matches(&self, subject: &Subject) -> bool {
        let rule = &self.rule;
        let last = match rule.level {
            Level::User => subject.user.as_deref(),
            Level::App => subject.app.as_deref(),
            Level::Org => subject.org.as_deref(),
            Level::Global => return true,
        };
        match subject.path(rule.level) {
            Some(path) if rule.matcher.as_str().contains('/') => rule.matcher.matches(&path),
            Some(_) => last.is_some_and(|name| rule.matcher.matches(name)),
            None => false,
        }
    }

    pub(super) fn covers(&self, model: &Model) -> bool {
        let mut names = std::iter::once(&model.name).chain(&model.aliases);
        self.rule.models.is_empty() || names.any(|name| self.rule.models.iter().any(|pattern| pattern.matches(name)))
    }
}
