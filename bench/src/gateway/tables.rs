//! From the numbers of the repetitions to the report: medians with their range, and what each target adds to direct.

use std::time::Duration;

use super::{
    ADDED_P50_MS, CPU_SECONDS_PER_THOUSAND, DIRECT, MOCK_THREADS, NAMES, Options, PENSTOCK, RAW_THREADS, Store,
    phases::{Paced, Repetition, Saturated},
};
use crate::{
    load::{Series, Totals},
    proc::Cost,
    report::{Figure, Machine, Report, Section, TargetMet},
};

pub fn report(
    options: &Options,
    machine: Machine,
    repetitions: &[Repetition],
    memory: [[Cost; 3]; 2],
    start_time: Duration,
) -> Report {
    let store = match options.store {
        Store::Memory => "memory",
        Store::Redis => "Redis",
    };
    let quotas = if options.quotas { "tokens, requests and concurrency limits at four levels" } else { "no limits" };
    Report {
        title: format!("penstock bench gateway: {quotas}, store {store}"),
        machine,
        sections: vec![requests(options, repetitions), streams(options, repetitions), footprint(memory, start_time)],
        notes: notes(repetitions),
        targets: if options.quotas && options.judge { targets(repetitions) } else { Vec::new() },
    }
}

/// A figure per repetition, for one target.
fn over(repetitions: &[Repetition], value: impl Fn(&Repetition) -> Option<f64>) -> Option<Figure> {
    Figure::of(repetitions.iter().filter_map(value))
}

/// What `index` adds to direct in the same phase of the same repetition.
fn added(paced: &Paced, index: usize, series: impl Fn(&Totals) -> &Series, quantile: f64) -> Option<f64> {
    let of = |index: usize| series(&paced.totals[index]).quantile_ms(quantile);
    Some(of(index)? - of(DIRECT)?)
}

fn requests(options: &Options, repetitions: &[Repetition]) -> Section {
    let at = format!("at {}/s", options.rate);
    let mut section = Section::new(
        "requests",
        &[
            "per s, saturated",
            "of direct",
            "CPU s/1k, saturated",
            &format!("CPU s/1k at {}/s", options.steady_rate),
            &format!("p50 ms {at}"),
            &format!("added p50 ms {at}"),
            &format!("added p99 ms {at}"),
            "Redis us/request, saturated",
            "errors",
        ],
    );
    for (index, name) in NAMES.iter().enumerate() {
        let added = |quantile| over(repetitions, |r| added(&r.latency, index, |t| &t.e2e, quantile));
        section.row(
            name,
            vec![
                over(repetitions, |r| Some(r.saturated[index].per_second)),
                over(repetitions, |r| Some(r.saturated[index].per_second / r.saturated[DIRECT].per_second)),
                over(repetitions, |r| r.saturated[index].cpu_per_thousand),
                over(repetitions, |r| r.steady.cpu_per_thousand[index]),
                over(repetitions, |r| r.latency.totals[index].e2e.quantile_ms(0.5)),
                added(0.5).filter(|_| index != DIRECT),
                added(0.99).filter(|_| index != DIRECT),
                over(repetitions, |r| r.saturated[index].redis_us_per_request),
                over(repetitions, |r| Some(r.errors(index) as f64)),
            ],
        );
    }
    section
}

fn streams(options: &Options, repetitions: &[Repetition]) -> Section {
    let mut section = Section::new(
        "streams of 32 chunks",
        &[
            &format!("TTFT p50 ms at {}/s", options.stream_rate),
            "added p50",
            "added p99",
            "chunk transit p50 ms",
            "p99",
            "CPU s/1k, paced",
            "per s, undelayed",
            "CPU s/1k, undelayed",
        ],
    );
    for (index, name) in NAMES.iter().enumerate() {
        let added = |quantile| over(repetitions, |r| added(&r.streams, index, |t| &t.ttft, quantile));
        let transit = |quantile| over(repetitions, |r| r.streams.totals[index].transit.quantile_ms(quantile));
        let saturated =
            |value: fn(&Saturated) -> Option<f64>| over(repetitions, |r| value(&r.streams_saturated[index]));
        section.row(
            name,
            vec![
                over(repetitions, |r| r.streams.totals[index].ttft.quantile_ms(0.5)),
                added(0.5).filter(|_| index != DIRECT),
                added(0.99).filter(|_| index != DIRECT),
                transit(0.5),
                transit(0.99),
                over(repetitions, |r| r.streams.cpu_per_thousand[index]),
                saturated(|s| Some(s.per_second)),
                saturated(|s| s.cpu_per_thousand),
            ],
        );
    }
    section
}

fn footprint([idle, after]: [[Cost; 3]; 2], start_time: Duration) -> Section {
    const MIB: f64 = 1024.0 * 1024.0;
    let mut section = Section::new("memory", &["MiB idle", "MiB after load", "MiB at most", "start ms"]);
    for (index, name) in NAMES.iter().enumerate() {
        let name = if index == DIRECT { "mock upstream" } else { name };
        let mib = |bytes: u64| Figure::of([bytes as f64 / MIB]);
        let start = (index == PENSTOCK).then_some(start_time.as_secs_f64() * 1e3);
        section.row(
            name,
            vec![
                mib(idle[index].rss_bytes),
                mib(after[index].rss_bytes),
                mib(after[index].peak_rss_bytes),
                Figure::of(start),
            ],
        );
    }
    section
}

/// A gateway that fails calls has no figures to be proud of: then nothing counts as measured.
fn targets(repetitions: &[Repetition]) -> Vec<TargetMet> {
    let sound = repetitions.iter().all(|r| r.errors(PENSTOCK) == 0);
    let met = |name, at_most, figure: Option<Figure>| {
        TargetMet::at_most(name, at_most, figure.filter(|_| sound).map(|figure| figure.median))
    };
    let cpu = over(repetitions, |r| r.saturated[PENSTOCK].cpu_per_thousand);
    let p50 = over(repetitions, |r| added(&r.latency, PENSTOCK, |t| &t.e2e, 0.5));
    vec![
        met("CPU s per 1,000 requests, saturated", CPU_SECONDS_PER_THOUSAND, cpu),
        met("added p50 ms", ADDED_P50_MS, p50),
    ]
}

fn notes(repetitions: &[Repetition]) -> Vec<String> {
    let mut notes = vec![
        format!(
            "median [min .. max] over {} repetitions; generator (1 thread), mock ({MOCK_THREADS}), raw proxy \
             ({RAW_THREADS}), Redis and gateway share the machine",
            repetitions.len()
        ),
        "the CPU of the direct row is the mock's own, per request it served".to_owned(),
        "latency counts from the scheduled start; added is against direct in the same phase, targets taking turns"
            .to_owned(),
    ];
    let slip = over(repetitions, |r| r.latency.totals[PENSTOCK].slip.quantile_ms(0.5));
    if let Some(slip) = slip {
        notes
            .push(format!("the generator sent {:.3} ms after schedule at p50, which is in every latency", slip.median));
    }
    for (index, name) in NAMES.iter().enumerate() {
        for (number, repetition) in repetitions.iter().enumerate() {
            for (why, count) in repetition.failures(index) {
                notes.push(format!("{name}, repetition {}: {count} x {why}", number + 1));
            }
        }
    }
    notes
}
