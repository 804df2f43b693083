//! Shadow rules: counted like all others, they refuse nothing. What they would have refused is found here, in the levels
//! that the store answers an admission with.

use super::account::Amounts;
use super::chain::Chain;
use super::rule::{Demand, Level, Unit};

/// A limit that would have refused an admitted call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shadowed {
    pub level: Level,
    /// The subject's path at that level.
    pub subject: String,
    /// As a refusal names it, e.g. `tokens/minute`.
    pub limit: String,
}

/// `levels` of all limits of the chain, with the hold of the call. Calls that a shadow limit would have refused did run
/// and are in its level, so while too much is asked for it tells of more refusals than there would have been.
pub(super) fn of(chain: &Chain, demand: &Demand, levels: &[f64]) -> Vec<Shadowed> {
    let need = Amounts::of_demand(demand);
    let mut found = Vec::new();
    for ceiling in chain.ceilings.iter().filter(|ceiling| ceiling.shadow) {
        let over = |limit: Option<u64>, asked: u64| limit.is_some_and(|limit| asked > limit);
        let units = [
            (Unit::Tokens, over(ceiling.ceilings.tokens, demand.tokens())),
            (Unit::NanoUsd, over(ceiling.ceilings.nano_usd, demand.nano_usd())),
        ];
        if let Some((unit, _)) = units.into_iter().find(|(_, over)| *over) {
            let limit = format!("max_request/{}", unit.as_str());
            found.push(Shadowed { level: ceiling.level, subject: ceiling.path.clone(), limit });
        }
    }
    for (entry, level) in chain.limits.iter().zip(levels).filter(|(entry, _)| entry.terms.shadow) {
        if need.of(entry.terms.unit) != 0.0 && *level > entry.terms.written() {
            let account = &chain.accounts[entry.account];
            let (subject, limit) = (account.path.clone(), entry.label.clone());
            found.push(Shadowed { level: account.level, subject, limit });
        }
    }
    found
}
