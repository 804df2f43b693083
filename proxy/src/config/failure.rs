//! What the file says about a store that does not answer: `store_timeout`, and `on_store_failure` of each rule.

use std::time::Duration;

use super::{read::At, rules::Placed, tree::Value, units::duration};
use crate::quota::OnStoreFailure;

pub(super) const STORE_TIMEOUT: Duration = Duration::from_millis(50);

/// Below 5 ms a healthy server on a busy machine would count as down; beyond 10 s clients have left.
pub(super) fn store_timeout(at: At<'_>) -> Option<Duration> {
    let timeout = duration(at)?;
    if timeout < Duration::from_millis(5) || timeout > Duration::from_secs(10) {
        return at.problem("a call waits from 5ms to 10s for the store", "write store_timeout: 50ms");
    }
    Some(timeout)
}

pub(super) fn policy(at: At<'_>) -> Option<OnStoreFailure> {
    match &at.node.value {
        Value::Text { text, .. } if text == "closed" => Some(OnStoreFailure::Closed),
        Value::Text { text, .. } if text == "open" => Some(OnStoreFailure::Open),
        Value::Map(_) => {
            let mut fields = at.fields()?;
            let share = fields.required("slice", "0.05", share);
            fields.finish();
            share.map(OnStoreFailure::Slice)
        }
        other => at
            .problem(format!("expected a policy, found {}", other.describe()), "write closed, open or { slice: 0.05 }"),
    }
}

fn share(at: At<'_>) -> Option<f64> {
    match at.number(1.0)? {
        0.0 => {
            at.problem("a slice of nothing admits nothing", "write a share such as 0.05, or on_store_failure: closed")
        }
        share => Some(share),
    }
}

/// A slice below one unit admits nothing, which its author may not expect.
pub(super) fn cross_check(at: At<'_>, rules: &[Placed], replicas: usize) {
    for placed in rules {
        let OnStoreFailure::Slice(share) = placed.rule.without_store() else { continue };
        for limit in &placed.rule.limits {
            if share * limit.amount as f64 / replicas as f64 >= 1.0 {
                continue;
            }
            at.report.warning(
                placed.place,
                &format!("{}.on_store_failure", placed.path),
                format!(
                    "a slice of {share} of {} {} over {replicas} gateways admits nothing",
                    limit.amount,
                    limit.label()
                ),
                "raise the share, or give this limit a rule that is open or closed",
            );
        }
    }
}
