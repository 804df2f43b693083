//! What is allowed and will hardly do what its author hopes: warnings that need several sections side by side.

use super::{
    Key, Model,
    read::At,
    rules::{Placed, is_glob},
};
use crate::quota::{Level, Price, Subject, Unit, Window};

pub(super) fn cross_check(at: At<'_>, rules: &[Placed], models: &[Model], keys: &[Key]) {
    let nobody = |what: &str, cure: &str| at.report.warning(at.node.place, what, "the list is empty", cure);
    if models.is_empty() {
        nobody("models", "name a model, unless `up` adds its own: every call would be answered 404");
    }
    if keys.is_empty() {
        nobody("keys", "give somebody a key, unless `up` makes one: every call would be answered 401");
    }
    let subjects: Vec<Subject> = keys.iter().map(Key::subject).collect();
    for placed in rules {
        matches_nobody(at, placed, &subjects);
        limits_nothing(at, placed);
        leaves_nothing(at, placed, keys);
        for (index, model) in models.iter().enumerate().filter(|(_, model)| placed.covers(model)) {
            costs_nothing(at, placed, index, model);
        }
    }
}

/// Not a mistake: a key may be withdrawn before its rule is, or come after it.
fn matches_nobody(at: At<'_>, placed: &Placed, subjects: &[Subject]) {
    let named = placed.rule.level != Level::Global && !is_glob(placed.rule.matcher.as_str());
    if named && !subjects.iter().any(|subject| placed.matches(subject)) {
        let level = placed.rule.level.as_str();
        at.report.warning(
            placed.place,
            &format!("{}.match", placed.path),
            format!("no key has the {level} {}, so the rule limits nobody", placed.matcher),
            format!("write the {level} of a key, or a glob, or remove the rule"),
        );
    }
}

fn limits_nothing(at: At<'_>, placed: &Placed) {
    let rule = &placed.rule;
    if rule.limits.is_empty() && rule.ceilings.tokens.is_none() && rule.ceilings.nano_usd.is_none() {
        at.report.warning(
            placed.place,
            &format!("{}.limits", placed.path),
            "the list is empty, so the rule limits nothing",
            "add a limit such as { tokens: 100000, per: minute }, or remove the rule",
        );
    }
}

/// Of a small limit the reserves of higher tiers may be all.
fn leaves_nothing(at: At<'_>, placed: &Placed, keys: &[Key]) {
    let callers = keys.iter().filter(|key| placed.matches(&key.subject()));
    let Some(tier) = callers.filter_map(|key| key.tier.as_ref()).max_by_key(|tier| tier.kept) else { return };
    for limit in &placed.rule.limits {
        let most = match limit.window {
            Window::Bucket { burst, .. } => burst,
            _ => limit.amount,
        } as f64;
        if most >= 1.0 && most - tier.kept.of(most) < 1.0 {
            at.report.warning(
                placed.place,
                &format!("{}.limits", placed.path),
                format!("of {} {} the tiers above {} keep all but a fraction", limit.amount, limit.label(), tier.name),
                "raise the limit, or lower their reserve",
            );
        }
    }
}

/// Money of a model without a price never runs out.
fn costs_nothing(at: At<'_>, placed: &Placed, index: usize, model: &Model) {
    let money = placed.rule.limits.iter().find(|limit| limit.unit == Unit::NanoUsd);
    let ceiling = placed.rule.ceilings.nano_usd.map(|_| "max_request/usd".to_owned());
    if model.price == Price::default()
        && let Some(label) = money.map(|limit| limit.label()).or(ceiling)
    {
        at.report.warning(
            placed.place,
            &format!("{}.limits", placed.path),
            format!("{label} counts nothing of models[{index}], which has no price"),
            "give the model a price: { input: 0.15, output: 0.60 }, or name the priced models in the rule",
        );
    }
}
