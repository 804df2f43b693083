//! The rules that histories run under, and the audit after them: what the accounts say against what the driver knows.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use proxy::config;
use proxy::quota::account::Totals;
use proxy::quota::audit::{Audit, audit};
use proxy::quota::{Chain, Rule, Store, Unit, Window};

use super::fate::{Cost, Known, fate, sums};
use super::plan::Plan;
use crate::quota::rig::ana;

/// Nano-USD of a token of input and of output.
const PRICE: (f64, f64) = (1000.0, 4000.0);

/// Four levels, each with every kind of limit. Those without a window say at the end what all calls together cost.
pub fn config(plan: &Plan, key: &str, upstream: &str) -> proxy::Config {
    let rule = |level: &str, tokens: u64| {
        format!(
            "  - {{ {level}, on_store_failure: {}, overrun: {}, limits: [\
             {{ tokens: {tokens}, per: lifetime }}, {{ requests: 100000, per: lifetime }}, {{ input_tokens: 100000, per: lifetime }}, \
             {{ output_tokens: 100000, per: lifetime }}, {{ usd: 100, per: lifetime }}, {{ concurrency: 100 }}, \
             {{ tokens: 100000, per: minute }}, {{ requests: 10000, per: second, window: calendar }}] }}\n",
            plan.policy, plan.overrun
        )
    };
    let levels = [
        rule("level: user, match: ana", 100_000),
        rule("level: app, match: web", 100_000),
        rule("level: org, match: acme", plan.budget.unwrap_or(100_000)),
        rule("level: global", 100_000),
    ];
    let timeout = format!("{}s", super::client::UPSTREAM_TIMEOUT.as_secs());
    let text = format!(
        "access_log: off\nlimits: {{ response_timeout: {timeout}, idle_stream_timeout: {timeout} }}\nmodels:\n  - {{ name: m, \
         price: {{ input: 1, output: 4 }}, upstreams: [{{ name: a, url: \"{upstream}\" }}, {{ name: b, url: \"{upstream}\" }}] }}\n\
         keys: [{{ secret: {key}, user: ana, app: web, org: acme }}]\nquotas:\n{}",
        levels.concat()
    );
    config::check(&text, "faults.yaml", &HashMap::new()).unwrap_or_else(|problems| panic!("{text}\n{problems:#?}"))
}

/// Waits until what dead gateways held has been reclaimed, and holds the accounts against the calls.
///
/// With a `budget` no more was used than that and what upstreams produced beyond what was held.
pub async fn balance(rules: &[Rule], store: &Store, budget: Option<u64>, calls: &[Known]) -> Result<(), String> {
    // As if resolved by somebody else: a gateway reclaims the orgs that it has resolved a chain for.
    let chain = Chain::resolve(rules, &ana(), &["m"]);
    let audit = quiet(store, &chain).await?;
    let mut found = Vec::new();
    for (at, account) in chain.accounts().iter().enumerate() {
        let audited = audit.accounts.get(&account.key).cloned().unwrap_or_default();
        let level = |unit: Unit| {
            let mut limits = chain.limits().iter().filter(|entry| entry.account == at && entry.terms.unit == unit);
            let entry =
                limits.find(|entry| matches!(entry.limit.window, Window::Lifetime) || unit == Unit::Concurrency);
            audited.slots.get(&entry.unwrap().terms.id).map_or(0.0, |(slot, _)| slot.level)
        };
        let levels = [Unit::Requests, Unit::InputTokens, Unit::OutputTokens].map(level);
        let [_, input, output] = levels;
        let derived = [level(Unit::Tokens), level(Unit::NanoUsd), level(Unit::Concurrency)];
        let expect = [input + output, input * PRICE.0 + output * PRICE.1, 0.0];
        // Totals only grow: what a late settle gives back stays booked as expired, and as refunded.
        let Totals { settled, expired, .. } = audited.totals;
        if derived != expect || !(settled..=settled + expired).contains(&derived[0]) {
            let (level, totals) = (account.level, audited.totals);
            return Err(format!("{level:?}: tokens, money and slots are {derived:?}, not {expect:?}, by {totals:?}"));
        }
        found.push(levels);
    }
    if found.iter().any(|levels| *levels != found[0]) {
        return Err(format!("levels differ by account: {found:?}"));
    }
    let fates: Vec<_> = calls.iter().map(fate).collect();
    let [requests, input, output] = found[0].map(|level| level as u64);
    let over = |call: &Known, costs: &Vec<Cost>| {
        let most = costs.iter().map(|(_, input, output)| input + output.end()).max().unwrap_or(0);
        most.saturating_sub(call.prompt + call.cap)
    };
    let overrun: u64 = calls.iter().zip(&fates).map(|(call, costs)| over(call, costs)).sum();
    if budget.is_some_and(|budget| input + output > budget + overrun) {
        return Err(format!("{} tokens used of a budget of {budget:?}, and {overrun} over it", input + output));
    }
    let sums = sums(&fates);
    let explained =
        |sum: &&(u64, u64, u64, u64)| sum.0 == requests && sum.1 == input && (sum.2..=sum.3).contains(&output);
    if sums.iter().find(explained).is_none() {
        let calls: Vec<String> =
            calls.iter().zip(&fates).map(|(call, fate)| format!("{call:?}\n    may cost {fate:?}")).collect();
        return Err(format!(
            "{requests} requests, {input} tokens of input and {output} of output are no sum of what the calls may cost:\n{}",
            calls.join("\n")
        ));
    }
    Ok(())
}

/// With nothing held any more: a living gateway sees to it. What ends between two reads of one audit looks like a fault.
async fn quiet(store: &Store, chain: &Chain) -> Result<Audit, String> {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let mut found = audit(store).await.map_err(|error| format!("audit: {error}"))?;
        found.know([chain]);
        if found.is_balanced() && found.live_leases == 0 {
            return Ok(found);
        }
        if Instant::now() > end {
            let oldest = found.accounts.values().find_map(|account| account.oldest.clone());
            return Err(format!("{} leases never end, such as {oldest:?}; {:#?}", found.live_leases, found.faults()));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
