//! The engine's metric families, under vLLM's names so that existing dashboards work. One method per happening.
//! Gauges are set when they are read: the step loop posts occupancy anyway.

use prometheus::{
    Encoder, Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, Opts, Registry, TextEncoder, core::Collector,
};

use crate::handle::Load;
use crate::happening::{Finished, Happening};
use crate::request::FinishReason;

const FIRST_TOKEN: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0,
];
const BETWEEN_TOKENS: &[f64] =
    &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 20.0];
const REQUEST: &[f64] =
    &[0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0];
const TOKENS: &[f64] =
    &[1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0, 20_000.0, 50_000.0];

pub struct Metrics {
    registry: Registry,
    running: Gauge,
    waiting: Gauge,
    kv_usage: Gauge,
    preemptions: IntCounter,
    prompt_tokens: IntCounter,
    generation_tokens: IntCounter,
    prefix_queries: IntCounter,
    prefix_hits: IntCounter,
    success: IntCounterVec,
    first_token: Histogram,
    between_tokens: Histogram,
    per_output_token: Histogram,
    e2e: Histogram,
    queued: Histogram,
    prefill: Histogram,
    decode: Histogram,
    iteration_tokens: Histogram,
    request_prompt_tokens: Histogram,
    request_generation_tokens: Histogram,
}

impl Metrics {
    /// Fails only if `model_name` or a name below is not fit for Prometheus.
    pub fn new(model_name: &str) -> Result<Self, prometheus::Error> {
        let family = Families { registry: Registry::new(), model_name };
        Ok(Self {
            running: family.gauge("num_requests_running", "Requests in the batch.")?,
            waiting: family.gauge("num_requests_waiting", "Requests that wait for the batch.")?,
            kv_usage: family.gauge("kv_cache_usage_perc", "KV blocks held by live sequences, 1 = all.")?,
            preemptions: family.counter("num_preemptions_total", "Sequences put back for want of KV blocks.")?,
            prompt_tokens: family.counter("prompt_tokens_total", "Prompt tokens of finished requests.")?,
            generation_tokens: family.counter("generation_tokens_total", "Generated tokens.")?,
            prefix_queries: family.counter("prefix_cache_queries_total", "Prompt tokens looked up.")?,
            prefix_hits: family.counter("prefix_cache_hits_total", "Prompt tokens found in the prefix cache.")?,
            success: family.success()?,
            first_token: family.histogram("time_to_first_token_seconds", FIRST_TOKEN)?,
            between_tokens: family.histogram("inter_token_latency_seconds", BETWEEN_TOKENS)?,
            per_output_token: family.histogram("request_time_per_output_token_seconds", BETWEEN_TOKENS)?,
            e2e: family.histogram("e2e_request_latency_seconds", REQUEST)?,
            queued: family.histogram("request_queue_time_seconds", REQUEST)?,
            prefill: family.histogram("request_prefill_time_seconds", REQUEST)?,
            decode: family.histogram("request_decode_time_seconds", REQUEST)?,
            iteration_tokens: family.histogram("iteration_tokens_total", TOKENS)?,
            request_prompt_tokens: family.histogram("request_prompt_tokens", TOKENS)?,
            request_generation_tokens: family.histogram("request_generation_tokens", TOKENS)?,
            registry: family.registry,
        })
    }

    pub(crate) fn stepped(&self, rows: usize) {
        self.iteration_tokens.observe(rows as f64);
    }

    pub(crate) fn happened(&self, happening: &Happening) {
        match happening {
            Happening::Started { queued, prompt, hit } => {
                queued.iter().for_each(|queued| self.queued.observe(queued.as_secs_f64()));
                self.prefix_queries.inc_by(u64::from(*prompt));
                self.prefix_hits.inc_by(u64::from(*hit));
            }
            Happening::Preempted => self.preemptions.inc(),
            Happening::FirstToken { after } => {
                self.generation_tokens.inc();
                self.first_token.observe(after.as_secs_f64());
            }
            Happening::NextToken { gap } => {
                self.generation_tokens.inc();
                self.between_tokens.observe(gap.as_secs_f64());
            }
            Happening::Finished(finished) => self.finished(finished),
        }
    }

    fn finished(&self, finished: &Finished) {
        let reason = match finished.reason {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Failed(_) => "error",
        };
        self.success.with_label_values(&[reason]).inc();
        self.prompt_tokens.inc_by(u64::from(finished.prompt));
        self.request_prompt_tokens.observe(f64::from(finished.prompt));
        self.request_generation_tokens.observe(f64::from(finished.completion));
        self.e2e.observe(finished.e2e.as_secs_f64());
        self.prefill.observe(finished.prefill.as_secs_f64());
        self.decode.observe(finished.decode.as_secs_f64());
        if finished.completion > 1 {
            self.per_output_token.observe(finished.decode.as_secs_f64() / f64::from(finished.completion - 1));
        }
    }

    /// The Prometheus text format.
    pub fn render(&self, load: &Load) -> Vec<u8> {
        self.running.set(f64::from(load.running));
        self.waiting.set(f64::from(load.waiting));
        self.kv_usage.set(f64::from(load.kv.used) / f64::from(load.kv.total.max(1)));
        let mut text = Vec::new();
        if let Err(error) = TextEncoder::new().encode(&self.registry.gather(), &mut text) {
            tracing::error!(%error, "metrics could not be written");
        }
        text
    }
}

/// Makes families and registers them: each carries the prefix and the model's name.
struct Families<'a> {
    registry: Registry,
    model_name: &'a str,
}

impl Families<'_> {
    fn opts(&self, name: &str, help: &str) -> Opts {
        Opts::new(format!("vllm:{name}"), help).const_label("model_name", self.model_name)
    }

    fn keep<C: Collector + Clone + 'static>(&self, collector: C) -> Result<C, prometheus::Error> {
        self.registry.register(Box::new(collector.clone()))?;
        Ok(collector)
    }

    fn gauge(&self, name: &str, help: &str) -> Result<Gauge, prometheus::Error> {
        self.keep(Gauge::with_opts(self.opts(name, help))?)
    }

    fn counter(&self, name: &str, help: &str) -> Result<IntCounter, prometheus::Error> {
        self.keep(IntCounter::with_opts(self.opts(name, help))?)
    }

    fn histogram(&self, name: &str, buckets: &[f64]) -> Result<Histogram, prometheus::Error> {
        let opts: HistogramOpts = self.opts(name, &name.replace('_', " ")).into();
        self.keep(Histogram::with_opts(opts.buckets(buckets.to_vec()))?)
    }

    fn success(&self) -> Result<IntCounterVec, prometheus::Error> {
        let opts = self.opts("request_success_total", "Finished requests, by why they ended.");
        self.keep(IntCounterVec::new(opts, &["finished_reason"])?)
    }
}
