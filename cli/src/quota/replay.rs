//! `penstock quota replay`: access logs through the quotas of a configuration file. Reads files and prints; the replay
//! itself is the gateway's own.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args as ClapArgs;
use proxy::replay::{Refusals, Replay, Report};
use serde_json::json;
use wire::access::{self, Entry};

use crate::{config, output};

pub const EXAMPLES: &str = "\
Examples:
  penstock quota replay --log access.jsonl --config new.yaml
  penstock quota replay --log a.jsonl --log b.jsonl --config new.yaml --json

Accounts begin empty at the first call. A call that the log shows refused and the new quotas admit is charged all that
it asked for. One that would have waited for its turn (on_limit: queue) counts as refused. Under hold: calibrated a call
holds what the log says that it held, the worst case where it says nothing. Keys are not looked at: whoever is in the
log may call.";

#[derive(Debug, ClapArgs)]
pub struct Args {
    /// An access log; several are merged by time
    #[arg(long, value_name = "FILE", required = true)]
    log: Vec<PathBuf>,
    /// The configuration whose quotas to try
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut replay = Replay::new(&config::load(&args.config)?);
    let mut unreadable = 0;
    for log in &args.log {
        unreadable += read(log, &mut replay).with_context(|| format!("cannot read {}", log.display()))?;
    }
    let report = replay.run();
    anyhow::ensure!(report.calls + report.skipped > 0 || unreadable == 0, "no line is one of an access log");
    if args.json {
        let mut value = json!(report);
        value["unreadable_lines"] = unreadable.into();
        return output::json(&value);
    }
    if unreadable > 0 {
        output::note(&format!("{unreadable} lines are not of an access log and were left out"));
    }
    output::line(&summary(&report))?;
    for (model, calls) in &report.unknown_models {
        output::note(&format!("{calls} calls of {model:?} were left out: the configuration has no model of that name"));
    }
    table("refused", &report.refusals)?;
    table("would be refused, were it not in shadow", &report.shadow_refusals)
}

/// How many lines could not be read: the last one of a file in use may be half written.
fn read(log: &Path, replay: &mut Replay) -> anyhow::Result<u64> {
    let mut unreadable = 0;
    let mut file = BufReader::new(File::open(log)?);
    let mut line = Vec::new();
    while file.read_until(b'\n', &mut line)? > 0 {
        match serde_json::from_slice::<Entry>(&line) {
            Ok(entry) if entry.v == access::VERSION => replay.read(&entry),
            _ if line.trim_ascii().is_empty() => {}
            _ => unreadable += 1,
        }
        line.clear();
    }
    Ok(unreadable)
}

fn summary(report: &Report) -> String {
    let Report { calls, admitted, refused, newly_refused, newly_admitted, skipped, first_ms, last_ms, .. } = report;
    let span = match first_ms.zip(*last_ms) {
        Some((first, last)) => format!(" from {} to {}", time(first), time(last)),
        None => String::new(),
    };
    format!(
        "{calls} calls{span}: {admitted} admitted ({newly_admitted} of them refused in the log), \
         {refused} refused ({newly_refused} of them not in the log); {skipped} lines without a quota's say"
    )
}

fn table(title: &str, rows: &[Refusals]) -> anyhow::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let line = |cells: [&str; 7]| {
        let [level, limit, subject, calls, tokens, first, last] = cells;
        output::line(&format!("{level:<7}{limit:<24}{subject:<32}{calls:>9}{tokens:>14}  {first:<21}{last}"))
    };
    output::line(&format!("\n{title}"))?;
    line(["level", "limit", "subject", "calls", "tokens", "first", "last"])?;
    for row in rows {
        let (calls, tokens) = (row.calls.to_string(), row.tokens.to_string());
        let (first, last) = (time(row.first_ms), time(row.last_ms));
        line([row.level, &row.limit, &row.subject, &calls, &tokens, &first, &last])?;
    }
    Ok(())
}

/// In UTC, to the second.
fn time(ms: u64) -> String {
    let time = i64::try_from(ms / 1000).ok().and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
    time.map_or_else(|| ms.to_string(), |time| time.to_string())
}
