//! What a rule says about how much a call holds, and what becomes of one that uses more: `hold`, `hold_cap`, `overrun`.

use super::{
    Key, Model,
    read::{At, Fields},
    rules::Placed,
};
use crate::quota::{Chain, Holding, Limit, Overrun, Rule};

const HOLDS: [(&str, bool); 2] = [("worst_case", false), ("calibrated", true)];
const HOLD_CAP: f64 = 2.0;
/// More is no cap.
const MOST_CAP: f64 = 1000.0;

const OVERRUNS: [(&str, Overrun); 2] = [("charge", Overrun::Charge), ("stop", Overrun::Stop)];

pub(super) fn holding(fields: &mut Fields<'_>) -> Holding {
    let overrun = fields.or("overrun", |at| at.choice(&OVERRUNS), Overrun::Charge);
    let calibrated = fields.or("hold", |at| at.choice(&HOLDS), false);
    let cap = fields.optional("hold_cap", cap);
    let at = fields.at();
    let useless = match (cap, calibrated, overrun) {
        (Some(_), false, _) => {
            Some(("only a calibrated hold has a hold_cap", "write hold: calibrated, or remove hold_cap"))
        }
        (Some(_), true, Overrun::Stop) => Some((
            "with overrun: stop a stream ends when it is refused more, so hold_cap has no meaning",
            "remove hold_cap",
        )),
        _ => None,
    };
    if let Some((message, cure)) = useless {
        at.report.problem(at.node.place, &format!("{}.hold_cap", at.path), message, cure);
    }
    Holding { calibrated: calibrated.then(|| cap.unwrap_or(HOLD_CAP)), overrun }
}

fn cap(at: At<'_>) -> Option<f64> {
    match at.number(MOST_CAP)? {
        cap if cap < 1.0 => at.problem("a call may use at least what it holds", "write a number from 1, such as 2.0"),
        cap => Some(cap),
    }
}

/// What would be without effect is a mistake.
pub(super) fn check(at: At<'_>, holding: Holding, limits: &[Limit]) {
    if limits.iter().any(|limit| limit.unit.counts_output()) {
        return;
    }
    if holding.overrun == Overrun::Stop {
        at.report.problem(
            at.node.place,
            &format!("{}.overrun", at.path),
            "no limit of this rule counts output, so nothing can stop a stream",
            "add a limit of tokens, output_tokens or usd, or remove overrun",
        );
    }
    if holding.calibrated.is_some() {
        at.report.problem(
            at.node.place,
            &format!("{}.hold", at.path),
            "no limit of this rule counts output, so it has no say in what a call holds",
            "add a limit of tokens, output_tokens or usd, or remove hold",
        );
    }
}

/// Every rule that a call must pass has to be calibrated for it to hold less: one that is not takes the others' effect away.
pub(super) fn cross_check(at: At<'_>, rules: &[Placed], models: &[Model], keys: &[Key]) {
    let calibrated = |placed: &&Placed| placed.rule.holding.calibrated.is_some() && !placed.rule.shadow;
    if rules.iter().filter(calibrated).count() == 0 {
        return;
    }
    let all: Vec<Rule> = rules.iter().map(|placed| placed.rule.clone()).collect();
    let pairs = keys.iter().flat_map(|key| models.iter().enumerate().map(move |(index, model)| (key, index, model)));
    for (key, index, model) in pairs {
        let chain = Chain::resolve(&all, &key.subject(), &[&model.name]);
        let counting = || chain.limits().iter().filter(|entry| !entry.terms.shadow && entry.limit.unit.counts_output());
        let (mut some, mut others) = (counting(), counting().filter(|entry| entry.holding.calibrated.is_none()));
        let (true, Some(other)) = (some.any(|entry| entry.holding.calibrated.is_some()), others.next()) else {
            continue;
        };
        let Some(placed) = rules.iter().find(calibrated) else { return };
        let (level, label) = (chain.accounts()[other.account].level.as_str(), &other.label);
        at.report.warning(
            placed.place,
            &format!("{}.hold", placed.path),
            format!(
                "some calls of models[{index}] hold the worst case: so says the rule of their {level} with {label}"
            ),
            "write hold: calibrated in every rule that counts output and meets these calls",
        );
        return;
    }
}
