//! What a rule says about a call that runs: `overrun`.

use super::read::{At, Fields};
use crate::quota::{Holding, Limit, Overrun, Unit};

const OVERRUNS: [(&str, Overrun); 2] = [("charge", Overrun::Charge), ("stop", Overrun::Stop)];

pub(super) fn holding(fields: &mut Fields<'_>) -> Holding {
    Holding { overrun: fields.or("overrun", |at| at.choice(&OVERRUNS), Overrun::Charge) }
}

/// What would be without effect is a mistake.
pub(super) fn check(at: At<'_>, holding: Holding, limits: &[Limit]) {
    let counts_output = |limit: &Limit| matches!(limit.unit, Unit::Tokens | Unit::OutputTokens | Unit::NanoUsd);
    if holding.overrun == Overrun::Stop && !limits.iter().any(counts_output) {
        at.report.problem(
            at.node.place,
            &format!("{}.overrun", at.path),
            "no limit of this rule counts output, so nothing can stop a stream",
            "add a limit of tokens, output_tokens or usd, or remove overrun",
        );
    }
}
