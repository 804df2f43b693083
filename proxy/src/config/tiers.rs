//! The `tiers` section, and the tier of a key.

use std::sync::Arc;

use super::{read::At, sections};
use crate::quota::{Share, Tier};

const MOST: usize = 16;
/// 5 %.
const MIN_SHARE: f64 = 0.05;

/// As one entry says, before its place in the list is known.
struct Given {
    name: String,
    reserve: Share,
    min_share: Option<Share>,
}

/// The highest first. What each keeps for itself, all below it must leave.
pub(super) fn tiers(at: At<'_>) -> Option<Vec<Arc<Tier>>> {
    let given = at.list(tier)?;
    let distinct = |(index, tier): (usize, &Given)| given[..index].iter().all(|other| other.name != tier.name);
    if !given.iter().enumerate().all(distinct) {
        return at.problem("two tiers have the same name", "give each tier a name of its own");
    }
    if given.len() > MOST {
        return at.problem(format!("more than {MOST} tiers"), "join some of them");
    }
    if given.last().is_some_and(|last| last.reserve > Share::NONE) {
        return at
            .problem("the last tier has a reserve, and nobody is below it", "remove the reserve of the last tier");
    }
    let shares = shares(at, &given)?;
    let (mut tiers, mut kept) = (Vec::new(), Share::NONE);
    for (rank, Given { name, reserve, .. }) in given.into_iter().enumerate() {
        if kept >= Share::WHOLE {
            return at.problem(format!("the reserves of higher tiers leave nothing to {name}"), "lower a reserve");
        }
        tiers.push(Arc::new(Tier { name, rank: rank as u8, kept, shares: shares.clone() }));
        kept = kept.plus(reserve);
    }
    Some(tiers)
}

fn tier(at: At<'_>) -> Option<Given> {
    let mut fields = at.fields()?;
    let name = fields.required("name", "standard", sections::subject);
    fields.optional("weight", weight);
    let reserve = fields.or("reserve", reserve, Share::NONE);
    let min_share = fields.optional("min_share", min_share);
    fields.finish();
    Some(Given { name: name?, reserve, min_share })
}

/// Together they leave something to the highest tier.
fn shares(at: At<'_>, given: &[Given]) -> Option<Arc<[Share]>> {
    if given.first().is_some_and(|first| first.min_share.is_some()) {
        return at.problem("the first tier waits for nobody", "remove its min_share");
    }
    let lower = given.iter().skip(1).map(|tier| tier.min_share.unwrap_or(Share::new(MIN_SHARE)));
    let shares: Vec<Share> = std::iter::once(Share::NONE).chain(lower).collect();
    if shares.iter().fold(Share::NONE, |sum, share| sum.plus(*share)) >= Share::WHOLE {
        return at.problem("the shares of lower tiers leave nothing to the first", "lower a min_share");
    }
    Some(shares.into())
}

fn min_share(at: At<'_>) -> Option<Share> {
    match at.number(1.0)? {
        0.0 => at.problem("without a share a tier could wait for ever", "write a share such as 0.05"),
        share => Some(Share::new(share)),
    }
}

/// Tiers are strict, and the tenants of one queue and tier are all of that tier: nothing is left to weigh.
fn weight(at: At<'_>) -> Option<()> {
    match at.number(f64::MAX)? {
        1.0 => Some(()),
        _ => at.problem("not built yet", "write 1, or remove it: the order between tiers is strict"),
    }
}

fn reserve(at: At<'_>) -> Option<Share> {
    match at.number(1.0)? {
        1.0 => at.problem("a reserve of everything leaves nothing to lower tiers", "write a share such as 0.2"),
        share => Some(Share::new(share)),
    }
}

pub(super) fn named(at: At<'_>, tiers: &[Arc<Tier>]) -> Option<Arc<Tier>> {
    let name = at.text()?;
    if let Some(tier) = tiers.iter().find(|tier| tier.name == name) {
        return Some(tier.clone());
    }
    let names: Vec<&str> = tiers.iter().map(|tier| tier.name.as_str()).collect();
    let cure = match names[..] {
        [] => "declare it under `tiers`, or remove the field".to_owned(),
        _ => format!("write one of {}", names.join(", ")),
    };
    at.problem(format!("no tier is named {}", at.shown()), cure)
}
