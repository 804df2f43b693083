//! The ledger's own counters in the text format of Prometheus: they live in `quota` and are read at each scrape.

use std::io::Write;

use crate::quota::{
    Figures, Snapshot,
    stats::{LATENCY_BOUNDS, WAIT_BOUNDS},
};

pub(super) fn render(quota: &Snapshot, out: &mut Vec<u8>) {
    // Writing to memory cannot fail.
    write(quota, out).expect("invariant: a Vec takes all bytes");
}

fn write(quota: &Snapshot, out: &mut Vec<u8>) -> std::io::Result<()> {
    for (name, help, value) in [
        ("reserved_tokens_total", "Tokens held for calls.", quota.reserved),
        ("settled_tokens_total", "Tokens charged.", quota.settled),
        ("refunded_tokens_total", "Held tokens given back.", quota.refunded),
        ("expired_tokens_total", "Tokens charged for leases of gateways that died.", quota.expired),
        ("late_settles_total", "Leases that had expired before they were settled.", quota.late_settles),
    ] {
        family(out, &format!("quota_{name}"), "counter", help)?;
        writeln!(out, "penstock_quota_{name} {value}")?;
    }
    family(out, "quota_held_tokens", "gauge", "Tokens held now.")?;
    writeln!(out, "penstock_quota_held_tokens {}", quota.held)?;
    family(out, "quota_leaked_tokens", "gauge", "Reserved, and neither settled, refunded nor held. Must be 0.")?;
    writeln!(out, "penstock_quota_leaked_tokens {}", quota.leaked())?;
    for (name, help, refusals) in [
        ("quota_refusals_total", "Calls refused, by the limit that bound.", &quota.refusals),
        (
            "quota_shadow_refusals_total",
            "Calls admitted that a shadow limit would have refused, by limit.",
            &quota.shadow_refusals,
        ),
        (
            "quota_extension_refusals_total",
            "Requests for more output of a running call that a limit refused, by limit.",
            &quota.extension_refusals,
        ),
    ] {
        family(out, name, "counter", help)?;
        for ((level, limit), count) in refusals {
            writeln!(out, "penstock_{name}{{level=\"{}\",limit=\"{limit}\"}} {count}", level.as_str())?;
        }
    }
    queue(quota, out)?;
    outage(&quota.outage, out)?;
    store(quota, out)
}

fn queue(quota: &Snapshot, out: &mut Vec<u8>) -> std::io::Result<()> {
    family(out, "queue_depth", "gauge", "Calls of this gateway that wait for their turn.")?;
    for (tier, calls) in &quota.queue_depth {
        writeln!(out, "penstock_queue_depth{{tier=\"{tier}\"}} {calls}")?;
    }
    family(out, "queue_wait_seconds", "histogram", "Time that calls waited for their turn, whatever came of it.")?;
    let mut sum = 0;
    for (count, bound) in quota.queue_wait.buckets.iter().zip(WAIT_BOUNDS) {
        sum += count;
        writeln!(out, "penstock_queue_wait_seconds_bucket{{le=\"{bound}\"}} {sum}")?;
    }
    let all: u64 = quota.queue_wait.buckets.iter().sum();
    writeln!(out, "penstock_queue_wait_seconds_bucket{{le=\"+Inf\"}} {all}")?;
    writeln!(out, "penstock_queue_wait_seconds_sum {}", quota.queue_wait.sum.as_secs_f64())?;
    writeln!(out, "penstock_queue_wait_seconds_count {all}")
}

fn outage(figures: &Figures, out: &mut Vec<u8>) -> std::io::Result<()> {
    let Figures { down, admitted, exhausted, spent, owed, charged } = figures;
    for (name, kind, help, value) in [
        ("store_up", "gauge", "1 while the quota store answers.", u64::from(!down)),
        ("quota_unstored_calls_total", "counter", "Calls admitted while the store was down.", *admitted),
        ("quota_slice_exhausted_total", "counter", "Calls refused because a slice was spent.", *exhausted),
        ("quota_owed_tokens", "gauge", "Tokens used without the store and not yet in the accounts.", *owed),
        ("quota_debt_tokens_total", "counter", "Tokens used without the store and charged after it.", *charged),
    ] {
        family(out, name, kind, help)?;
        writeln!(out, "penstock_{name} {value}")?;
    }
    family(out, "quota_slice_spent_tokens", "gauge", "Tokens of slices spent and not yet in the accounts.")?;
    for (level, tokens) in spent {
        writeln!(out, "penstock_quota_slice_spent_tokens{{level=\"{}\"}} {tokens}", level.as_str())?;
    }
    Ok(())
}

fn store(quota: &Snapshot, out: &mut Vec<u8>) -> std::io::Result<()> {
    family(out, "store_seconds", "histogram", "Time of each operation of the quota store.")?;
    for latency in &quota.store {
        let op = latency.operation.as_str();
        let mut sum = 0;
        for (count, bound) in latency.buckets.iter().zip(LATENCY_BOUNDS) {
            sum += count;
            writeln!(out, "penstock_store_seconds_bucket{{op=\"{op}\",le=\"{bound}\"}} {sum}")?;
        }
        let all: u64 = latency.buckets.iter().sum();
        writeln!(out, "penstock_store_seconds_bucket{{op=\"{op}\",le=\"+Inf\"}} {all}")?;
        writeln!(out, "penstock_store_seconds_sum{{op=\"{op}\"}} {}", latency.sum.as_secs_f64())?;
        writeln!(out, "penstock_store_seconds_count{{op=\"{op}\"}} {all}")?;
    }
    let errors: u64 = quota.store.iter().map(|latency| latency.errors).sum();
    family(out, "store_errors_total", "counter", "Operations that the quota store did not answer.")?;
    writeln!(out, "penstock_store_errors_total {errors}")
}

fn family(out: &mut Vec<u8>, name: &str, kind: &str, help: &str) -> std::io::Result<()> {
    writeln!(out, "# HELP penstock_{name} {help}\n# TYPE penstock_{name} {kind}")
}
