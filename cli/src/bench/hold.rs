//! `penstock bench hold`: a trace of calls through one limit, by each way of holding.

use std::{fs, path::PathBuf, time::Duration};

use ::bench::{
    Report,
    report::{Figure, Machine, Section},
};
use anyhow::{Context, bail, ensure};
use clap::{Args as ClapArgs, ValueEnum};
use proxy::quota::{
    Holding, Overrun, Unit,
    trial::hold::{Conditions, Outcome, Policy, Stream, play},
};

use crate::output;

#[derive(Debug, ClapArgs)]
pub struct Hold {
    /// A CSV file with the columns t_ms,input_tokens,output_tokens, in the order of time
    #[arg(long, value_name = "FILE")]
    trace: PathBuf,
    /// What the limit counts
    #[arg(long, value_enum, default_value_t = Counts::OutputTokens)]
    unit: Counts,
    /// The limit [default: what the trace uses in a minute on average, and half as much again]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u64).range(1..1 << 52))]
    per_minute: Option<u64>,
    /// The most at once, percent of the limit
    #[arg(long, value_name = "PERCENT", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=100))]
    burst: u64,
    /// What every call names as its cap
    #[arg(long, value_name = "TOKENS", default_value_t = 4096, value_parser = clap::value_parser!(u64).range(1..10_000_000))]
    max_tokens: u64,
    /// With `hold: calibrated`
    #[arg(long, value_name = "TIMES", default_value_t = 2.0, value_parser = cap)]
    hold_cap: f64,
    /// Milliseconds to the first token
    #[arg(long, value_name = "MS", default_value_t = 400, value_parser = clap::value_parser!(u64).range(0..3_600_000))]
    ttft: u64,
    /// Milliseconds per token after it
    #[arg(long, value_name = "MS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(0..60_000))]
    tpot: u64,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Counts {
    Tokens,
    OutputTokens,
}

impl Counts {
    fn unit(self) -> Unit {
        match self {
            Self::Tokens => Unit::Tokens,
            Self::OutputTokens => Unit::OutputTokens,
        }
    }
}

fn cap(text: &str) -> Result<f64, String> {
    let cap: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (1.0..=1000.0).contains(&cap) { Ok(cap) } else { Err("write a number from 1 to 1000".to_owned()) }
}

impl Hold {
    pub fn run(self) -> anyhow::Result<()> {
        let name = self.trace.file_name().unwrap_or(self.trace.as_os_str()).to_string_lossy().into_owned();
        let text = fs::read_to_string(&self.trace).with_context(|| format!("cannot read {}", self.trace.display()))?;
        let streams = parse(&text).with_context(|| format!("{name} is no trace"))?;
        let report = self.report(&name, &streams);
        output::line(&if self.json { report.to_json() } else { report.render() })?;
        Ok(())
    }

    /// A limit that is no obstacle to what the trace uses, but for its peaks: what refuses then is what is held.
    fn generous(&self, streams: &[Stream]) -> u64 {
        let input = |stream: &Stream| if self.unit == Counts::Tokens { stream.input } else { 0 };
        let tokens: u64 = streams.iter().map(|stream| input(stream) + stream.output.min(self.max_tokens)).sum();
        let minutes = streams.last().map_or(0, |last| last.at_us).max(1) as f64 / 60e6;
        ((tokens as f64 / minutes * 1.5) as u64).clamp(1, 1 << 52)
    }

    fn conditions(&self, streams: &[Stream]) -> Conditions {
        let per_minute = self.per_minute.unwrap_or_else(|| self.generous(streams));
        Conditions {
            unit: self.unit.unit(),
            per_minute,
            burst: (per_minute * self.burst / 100).max(1),
            max_tokens: self.max_tokens,
            ttft: Duration::from_millis(self.ttft),
            tpot: Duration::from_millis(self.tpot),
        }
    }

    fn report(&self, name: &str, streams: &[Stream]) -> Report {
        let conditions = self.conditions(streams);
        let Conditions { unit, per_minute, burst, max_tokens, .. } = conditions;
        let (unit, calls) = (unit.as_str(), streams.len());
        let mut section = Section::new(
            &format!("{name}, {calls} calls, max_tokens {max_tokens}, {per_minute} {unit}/minute, burst {burst}"),
            &["admitted %", "mean running", "overshoot", "overshoot %", "cut %", "top-ups"],
        );
        for (row, outcome) in self.outcomes(streams, conditions) {
            section.row(&row, cells(&outcome, burst));
        }
        let notes = [
            "every call streams and names max_tokens; the ledger, the top-ups and the learned lengths are the gateway's, and time \
             is the trace's: a run is the same on any machine",
            "overshoot: the most by which holds and use were above the burst, once; the second row is allowed that of the third",
            "cut: of the admitted, ended before their time with finish_reason length",
        ];
        Report {
            title: "penstock bench hold".into(),
            machine: Machine::here(),
            sections: vec![section],
            notes: notes.map(str::to_owned).into(),
            targets: Vec::new(),
        }
    }

    fn outcomes(&self, streams: &[Stream], conditions: Conditions) -> [(String, Outcome); 5] {
        let run = |policy| play(streams, conditions, policy);
        let calibrated = |overrun| run(Policy::Calibrated(Holding { calibrated: Some(self.hold_cap), overrun }));
        let charge = calibrated(Overrun::Charge);
        let raised = Conditions { burst: conditions.burst + charge.overshoot, ..conditions };
        [
            ("worst_case".to_owned(), run(Policy::WorstCase)),
            (format!("worst_case, burst + {}", charge.overshoot), play(streams, raised, Policy::WorstCase)),
            (format!("calibrated, hold_cap {}", self.hold_cap), charge),
            ("calibrated, overrun: stop".to_owned(), calibrated(Overrun::Stop)),
            ("lengths known beforehand".to_owned(), run(Policy::Foreseen)),
        ]
    }
}

fn cells(outcome: &Outcome, burst: u64) -> Vec<Option<Figure>> {
    let calls = (outcome.admitted + outcome.refused).max(1) as f64;
    [
        100.0 * outcome.admitted as f64 / calls,
        outcome.mean_running,
        outcome.overshoot as f64,
        100.0 * outcome.overshoot as f64 / burst as f64,
        100.0 * outcome.cut as f64 / outcome.admitted.max(1) as f64,
        outcome.topped_up as f64,
    ]
    .map(|value| Figure::of([value]))
    .into()
}

fn parse(text: &str) -> anyhow::Result<Vec<Stream>> {
    let mut lines = text.lines().enumerate();
    let head = lines.next().map(|(_, head)| head.trim());
    ensure!(head == Some("t_ms,input_tokens,output_tokens"), "its first line must be t_ms,input_tokens,output_tokens");
    let mut streams: Vec<Stream> = Vec::new();
    for (at, line) in lines.filter(|(_, line)| !line.trim().is_empty()) {
        let numbers: Vec<f64> = line.split(',').filter_map(|cell| cell.trim().parse().ok()).collect();
        let [t_ms, input, output] = numbers[..] else { bail!("line {}: three numbers are needed", at + 1) };
        ensure!((0.0..1e12).contains(&t_ms), "line {}: the time is out of range", at + 1);
        ensure!(
            [input, output].iter().all(|tokens| (0.0..1e9).contains(tokens)),
            "line {}: tokens are out of range",
            at + 1
        );
        let stream = Stream { at_us: (t_ms * 1000.0) as u64, input: input as u64, output: output as u64 };
        ensure!(
            streams.last().is_none_or(|last| last.at_us <= stream.at_us),
            "line {}: earlier than the one before",
            at + 1
        );
        streams.push(stream);
    }
    ensure!(!streams.is_empty(), "it has no calls");
    Ok(streams)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "t_ms,input_tokens,output_tokens\n";

    #[test]
    fn a_trace_is_read_and_each_mistake_names_its_line() {
        let streams = parse(&format!("{HEAD}0,10,20\n1.5,0,7\n\n")).expect("a trace");
        let read: Vec<_> = streams.iter().map(|stream| (stream.at_us, stream.input, stream.output)).collect();
        assert_eq!(read, [(0, 10, 20), (1500, 0, 7)]);
        for (text, expect) in [
            (String::new(), "its first line must be"),
            ("a,b\n".to_owned(), "its first line must be"),
            (HEAD.to_owned(), "it has no calls"),
            (format!("{HEAD}0,10\n"), "line 2: three numbers"),
            (format!("{HEAD}0,10,x\n"), "line 2: three numbers"),
            (format!("{HEAD}0,1,1\n0,-1,5\n"), "line 3: tokens"),
            (format!("{HEAD}0,1,NaN\n"), "line 2: tokens"),
            (format!("{HEAD}inf,1,1\n"), "line 2: the time"),
            (format!("{HEAD}9,1,1\n8,1,1\n"), "line 3: earlier"),
        ] {
            let error = parse(&text).expect_err(&text).to_string();
            assert!(error.starts_with(expect), "{text}: {error}");
        }
    }
}
