//! Every metric family of the gateway, declared once, and one method per happening. No label string stands anywhere
//! else; labels are bounded: configured names, levels, status codes.

mod quota_text;

use std::time::Duration;

use prometheus::{
    Encoder, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, Opts, Registry, TextEncoder,
    core::Collector,
};
use wire::{Metered, slo};

use crate::quota::{Demand, Snapshot};

const SECONDS: &[f64] =
    &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0];
const TOKEN_SECONDS: &[f64] = &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5];
const OVERHEAD_SECONDS: &[f64] = &[0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0];
const RATIOS: &[f64] = &[0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0];

pub struct Events {
    registry: Registry,
    requests: IntCounterVec,
    ttft: HistogramVec,
    tpot: HistogramVec,
    e2e: HistogramVec,
    overhead: HistogramVec,
    goodput: IntCounterVec,
    tokens: IntCounterVec,
    estimate_error: HistogramVec,
    upstream_requests: IntCounterVec,
    upstream_bytes: IntCounterVec,
    access_log_lost: IntCounter,
    in_flight: IntGauge,
    reloads: IntCounter,
    reload_failures: IntCounter,
    last_reload_successful: IntGauge,
    config_hash: IntGauge,
}

/// The families of one model, resolved once.
pub struct ModelEvents {
    ttft: Histogram,
    tpot: Histogram,
    e2e: Histogram,
    overhead: Histogram,
    met: IntCounter,
    missed: IntCounter,
    prompt: IntCounter,
    completion: IntCounter,
    cached: IntCounter,
    estimate_error: Histogram,
}

/// How one attempt at an upstream went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptOutcome {
    Answered,
    Rejected,
    Failed,
    Unreachable,
    Reset,
    TimedOut,
}

impl AttemptOutcome {
    fn as_str(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Rejected => "rejected",
            Self::Failed => "failed",
            Self::Unreachable => "unreachable",
            Self::Reset => "reset",
            Self::TimedOut => "timed_out",
        }
    }
}

impl Default for Events {
    fn default() -> Self {
        let registry = Registry::new();
        let families = Families(&registry);
        Self {
            requests: families.counters("requests_total", "Answers, by status code.", &["model", "code"]),
            ttft: families.histograms("ttft_seconds", "Arrival to the first upstream byte.", SECONDS),
            tpot: families.histograms("tpot_seconds", "Mean time per output token after the first.", TOKEN_SECONDS),
            e2e: families.histograms("e2e_seconds", "Arrival to the last byte.", SECONDS),
            overhead: families.histograms("overhead_seconds", "Arrival to dispatch.", OVERHEAD_SECONDS),
            goodput: families.counters("goodput_total", "Calls that met or missed their SLO.", &["model", "slo"]),
            tokens: families.counters("tokens_total", "Tokens charged, by kind.", &["model", "kind"]),
            estimate_error: families.histograms(
                "quota_estimate_error_ratio",
                "Prompt tokens counted before the call against those reported, relative.",
                RATIOS,
            ),
            upstream_requests: families.counters(
                "upstream_requests_total",
                "Attempts at upstreams.",
                &["model", "upstream", "outcome"],
            ),
            upstream_bytes: families.counters(
                "upstream_received_bytes_total",
                "Body bytes read from upstreams.",
                &["model", "upstream"],
            ),
            access_log_lost: families.register(IntCounter::new(
                "penstock_access_log_lost_total",
                "Lines that did not fit the queue of the access log.",
            )),
            reloads: families.register(IntCounter::new(
                "penstock_config_reloads_total",
                "Configuration files that were put in force, the one at the start included.",
            )),
            reload_failures: families.register(IntCounter::new(
                "penstock_config_reload_failures_total",
                "Changed configuration files that were refused: the former one stayed in force.",
            )),
            last_reload_successful: families.register(IntGauge::new(
                "penstock_config_last_reload_successful",
                "1 if the configuration file as it is now is in force.",
            )),
            config_hash: families.register(IntGauge::new(
                "penstock_config_hash",
                "First 48 bits of the SHA-256 of the configuration file in force.",
            )),
            in_flight: families.register(IntGauge::new("penstock_in_flight", "Calls between arrival and last byte.")),
            registry,
        }
    }
}

struct Families<'r>(&'r Registry);

impl Families<'_> {
    fn counters(&self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        self.register(IntCounterVec::new(Opts::new(format!("penstock_{name}"), help), labels))
    }

    fn histograms(&self, name: &str, help: &str, buckets: &[f64]) -> HistogramVec {
        let opts = HistogramOpts::new(format!("penstock_{name}"), help).buckets(buckets.to_vec());
        self.register(HistogramVec::new(opts, &["model"]))
    }

    fn register<C: Collector + Clone + 'static>(&self, family: prometheus::Result<C>) -> C {
        let family = family.expect("invariant: the names and labels of families are valid");
        self.0.register(Box::new(family.clone())).expect("invariant: each family is declared once");
        family
    }
}

impl Events {
    pub fn model(&self, name: &str) -> ModelEvents {
        let tokens = |kind| self.tokens.with_label_values(&[name, kind]);
        let goodput = |slo| self.goodput.with_label_values(&[name, slo]);
        ModelEvents {
            ttft: self.ttft.with_label_values(&[name]),
            tpot: self.tpot.with_label_values(&[name]),
            e2e: self.e2e.with_label_values(&[name]),
            overhead: self.overhead.with_label_values(&[name]),
            met: goodput("met"),
            missed: goodput("missed"),
            prompt: tokens("prompt"),
            completion: tokens("completion"),
            cached: tokens("cached"),
            estimate_error: self.estimate_error.with_label_values(&[name]),
        }
    }

    pub fn in_flight(&self) -> IntGauge {
        self.in_flight.clone()
    }

    /// `model`: a configured name, or none if the call named no model that exists.
    pub fn answered(&self, model: Option<&str>, status: u16) {
        let code = http::StatusCode::from_u16(status).unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
        self.requests.with_label_values(&[model.unwrap_or("none"), code.as_str()]).inc();
    }

    pub fn attempted(&self, model: &str, upstream: &str, outcome: AttemptOutcome) {
        self.upstream_requests.with_label_values(&[model, upstream, outcome.as_str()]).inc();
    }

    pub fn received_bytes(&self, model: &str, upstream: &str) -> IntCounter {
        self.upstream_bytes.with_label_values(&[model, upstream])
    }

    pub fn config_in_force(&self, digest: &[u8; 32]) {
        let hash = digest[..6].iter().fold(0, |hash, &byte| hash << 8 | i64::from(byte));
        self.config_hash.set(hash);
        self.reloads.inc();
        self.last_reload_successful.set(1);
    }

    pub fn config_refused(&self) {
        self.reload_failures.inc();
        self.last_reload_successful.set(0);
    }

    pub fn access_line_lost(&self) {
        self.access_log_lost.inc();
    }

    /// All families in the text format of Prometheus.
    pub fn render(&self, quota: &Snapshot) -> Vec<u8> {
        let mut out = Vec::with_capacity(16 << 10);
        TextEncoder::new()
            .encode(&self.registry.gather(), &mut out)
            .expect("invariant: gathered families encode into memory");
        quota_text::render(quota, &mut out);
        out
    }
}

impl ModelEvents {
    pub fn dispatched(&self, overhead: Duration) {
        self.overhead.observe(overhead.as_secs_f64());
    }

    pub fn finished(&self, timing: &slo::Timing) {
        if let Some(ttft) = timing.ttft {
            self.ttft.observe(ttft.as_secs_f64());
        }
        if let Some(tpot) = timing.tpot {
            self.tpot.observe(tpot.as_secs_f64());
        }
        self.e2e.observe(timing.e2e.as_secs_f64());
    }

    pub fn judged(&self, met: bool) {
        if met { self.met.inc() } else { self.missed.inc() }
    }

    pub fn charged(&self, demand: &Demand, metered: &Metered) {
        let usage = metered.usage();
        self.prompt.inc_by(usage.prompt);
        self.completion.inc_by(usage.completion);
        self.cached.inc_by(usage.cached);
        if !metered.is_estimated() && usage.prompt > 0 {
            self.estimate_error.observe(demand.input.abs_diff(usage.prompt) as f64 / usage.prompt as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_have_the_names_of_the_contract() {
        let events = Events::default();
        let model = events.model("m");
        model.finished(&slo::Timing { ttft: Some(Duration::from_millis(3)), ..slo::Timing::default() });
        events.answered(Some("m"), 200);
        let text = String::from_utf8(events.render(&Snapshot::default())).expect("UTF-8");
        for line in [
            "penstock_requests_total{code=\"200\",model=\"m\"} 1",
            "penstock_ttft_seconds_count{model=\"m\"} 1",
            "penstock_goodput_total{model=\"m\",slo=\"met\"} 0",
            "penstock_tokens_total{kind=\"prompt\",model=\"m\"} 0",
            "penstock_in_flight 0",
            "penstock_quota_reserved_tokens_total 0",
            "penstock_quota_leaked_tokens 0",
            "penstock_store_up 1",
            "penstock_quota_debt_tokens_total 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }
}
