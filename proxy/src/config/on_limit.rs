//! `on_limit` of a rule: what a call does that does not fit.

use std::time::Duration;

use super::{
    read::{At, Fields},
    rules::Placed,
    tree::Value,
    units::duration,
};
use crate::quota::{OnLimit, Rule, Wait, Window};

/// Clients and proxies give up before that.
const LONGEST: Duration = Duration::from_secs(3600);
const DEFAULT: Wait = Wait { most: Duration::from_secs(20), depth: 1000 };

pub(super) fn on_limit(fields: &mut Fields<'_>) -> OnLimit {
    fields.or("on_limit", read, OnLimit::Reject)
}

fn read(at: At<'_>) -> Option<OnLimit> {
    match &at.node.value {
        Value::Text { text, .. } if text == "reject" => Some(OnLimit::Reject),
        Value::Map(_) => {
            let mut fields = at.fields()?;
            let wait = fields.required("queue", "{ max_wait: 20s, depth: 1000 }", queue);
            fields.finish();
            wait.map(OnLimit::Queue)
        }
        other => at.problem(
            format!("expected what to do, found {}", other.describe()),
            "write reject, or { queue: { max_wait: 20s, depth: 1000 } }",
        ),
    }
}

fn queue(at: At<'_>) -> Option<Wait> {
    let mut fields = at.fields()?;
    let most = fields.or("max_wait", max_wait, DEFAULT.most);
    let depth = fields.or("depth", |at| at.whole(1, 100_000), DEFAULT.depth as u64) as usize;
    fields.finish();
    Some(Wait { most, depth })
}

fn max_wait(at: At<'_>) -> Option<Duration> {
    match duration(at)? {
        wait if wait > LONGEST => at.problem("no client waits for more than an hour", "write max_wait: 20s"),
        wait => Some(wait),
    }
}

/// What has nothing to wait for cannot queue.
pub(super) fn cross_check(at: At<'_>, rules: &[Placed]) {
    for placed in rules {
        if let Some((message, cure)) = contradiction(&placed.rule) {
            at.report.problem(placed.place, &format!("{}.on_limit", placed.path), message, cure);
        }
    }
}

fn contradiction(rule: &Rule) -> Option<(&'static str, &'static str)> {
    if rule.on_limit == OnLimit::Reject {
        return None;
    }
    if rule.shadow {
        return Some(("a rule in shadow refuses nothing, so nothing waits for it", "remove shadow, or write reject"));
    }
    if rule.limits.is_empty() {
        return Some(("there is no limit to wait for", "add one, or write reject"));
    }
    let lifetime = rule.limits.iter().any(|limit| limit.window == Window::Lifetime);
    lifetime.then_some(("no wait brings a lifetime limit back", "give that limit a rule of its own that rejects"))
}
