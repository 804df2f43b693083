//! `penstock bench engine`: how fast a running engine produces tokens, over HTTP: so many streams at once, each begun
//! together, their prompts all different.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use bytes::Bytes;

use crate::{
    load::{self, Outcome, Target},
    processes::Error,
    report::{Figure, Machine, Report, Section},
};

#[derive(Clone, Debug)]
pub struct Options {
    pub address: SocketAddr,
    /// The name the engine serves it under.
    pub model: String,
    /// Streams at once, one row each.
    pub streams: Vec<usize>,
    pub repetitions: usize,
    pub max_tokens: u64,
    pub timeout: Duration,
    /// For a model that is still being loaded.
    pub ready_within: Duration,
}

impl Options {
    pub fn new(address: SocketAddr, model: &str) -> Self {
        Self {
            address,
            model: model.to_owned(),
            streams: vec![1, 4, 16],
            repetitions: 3,
            max_tokens: 128,
            timeout: Duration::from_secs(300),
            ready_within: Duration::from_secs(120),
        }
    }
}

/// Completions rather than chat: a base model has no chat template.
fn request(options: &Options, number: usize) -> Bytes {
    // The number comes first, so that no two prompts share a prefix that could be cached.
    let prompt = format!("{number}. Once upon a time there was a lock keeper who counted the boats that passed. He");
    let body = serde_json::json!({
        "model": options.model,
        "prompt": prompt,
        "max_tokens": options.max_tokens,
        "temperature": 1.0,
        "seed": number,
        "stream": true,
        "stream_options": {"include_usage": true},
    });
    let target = Target::post(options.address, "/v1/completions", &[], &body.to_string(), true);
    target.requests.into_iter().next().unwrap_or_default()
}

/// Until the engine no longer says that it is loading, or is not there yet.
fn wait(options: &Options) -> Result<(), Error> {
    let deadline = Instant::now() + options.ready_within;
    loop {
        let why = match load::get(options.address, "/health") {
            Ok(answer) if answer.status != 503 => return Ok(()),
            Ok(answer) => format!("status {}: {}", answer.status, answer.body),
            Err(error) => error,
        };
        if Instant::now() >= deadline {
            return Err(Error::wrong("the engine", format!("not ready, {why}")));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Blocks until every round has been answered.
pub fn run(options: &Options, progress: &mut dyn FnMut(&str)) -> Result<Report, Error> {
    let machine = Machine::here();
    let mut section = Section::new(
        &format!("{}, {} tokens each", options.model, options.max_tokens),
        &["tok/s, all streams", "tok/s, decode only", "TTFT p50 ms", "ITL p50 ms", "ITL p99 ms"],
    );
    let mut number = 0;
    let mut round = |streams: usize| -> Result<Outcome, Error> {
        let requests: Vec<Bytes> = (number..number + streams).map(|n| request(options, n)).collect();
        number += streams;
        let target = Target { address: options.address, requests, stream: true };
        let outcome = load::burst(&target, options.timeout).map_err(Error::io("burst"))?;
        match outcome.totals[0].failures.keys().next() {
            Some(why) => Err(Error::wrong("the engine", why.as_str())),
            None => Ok(outcome),
        }
    };
    progress("waiting for the engine, then warming up");
    wait(options)?;
    round(1)?;
    for streams in &options.streams {
        let mut outcomes = Vec::new();
        for repetition in 0..options.repetitions.max(1) {
            progress(&format!("{streams} streams, round {}/{}", repetition + 1, options.repetitions.max(1)));
            outcomes.push(round((*streams).max(1))?);
        }
        section.row(&format!("{streams} streams"), cells(&outcomes));
    }
    Ok(Report {
        title: format!("penstock bench engine: {}", options.address),
        machine,
        sections: vec![section],
        notes: vec![format!(
            "median [min .. max] over {} rounds; tokens as the engine reports them; decode only: from the last first \
             token of a round to its end; streams that stop early make a round slower than it could be",
            options.repetitions.max(1)
        )],
        targets: Vec::new(),
    })
}

fn cells(outcomes: &[Outcome]) -> Vec<Option<Figure>> {
    let over = |value: &dyn Fn(&Outcome) -> Option<f64>| Figure::of(outcomes.iter().filter_map(value));
    vec![
        over(&|o| Some(o.totals[0].tokens as f64 / o.measured.as_secs_f64())),
        over(&|o| {
            let prefill = o.totals[0].ttft.max_ms()? / 1e3;
            let left = o.totals[0].tokens.saturating_sub(o.totals[0].ok) as f64;
            Some(left / (o.measured.as_secs_f64() - prefill))
        }),
        over(&|o| o.totals[0].ttft.quantile_ms(0.5)),
        over(&|o| o.totals[0].itl.quantile_ms(0.5)),
        over(&|o| o.totals[0].itl.quantile_ms(0.99)),
    ]
}
