//! An access log against itself: what was held for each prompt beside the usage that its upstream reported. Calls whose
//! usage the gateway counted itself say nothing and are left out.

use std::{
    collections::BTreeMap,
    fmt,
    fs::File,
    io::{BufRead, BufReader, stdin},
    path::Path,
};

use anyhow::Context;
use serde::Serialize;
use wire::access::Entry;

/// Beyond a hundredfold, how far off a count was does not matter.
const MOST_PERMILLE: i64 = 100_000;

#[derive(Serialize)]
pub struct Report {
    rows: Vec<Row>,
    /// Lines without both a count and a reported usage: refusals, failures, usage counted by the gateway.
    left_out: u64,
    unreadable_lines: u64,
}

/// All calls of one model to one endpoint.
#[derive(Serialize)]
struct Row {
    model: String,
    endpoint: String,
    calls: u64,
    exact: u64,
    /// Where less was held than was used.
    too_low: u64,
    reported_tokens: u64,
    counted_tokens: u64,
    /// Of each call's count to its usage: half of the calls are at most this far off, and so on.
    error_ratio_p50: f64,
    error_ratio_p95: f64,
    error_ratio_p99: f64,
    /// The furthest off, with its sign: negative where too little was counted.
    worst_error_ratio: f64,
}

#[derive(Default)]
struct Errors {
    calls: u64,
    exact: u64,
    too_low: u64,
    reported: u64,
    counted: u64,
    /// How many calls were how far off, in thousandths of their usage.
    by_size: BTreeMap<u64, u64>,
    worst: i64,
}

pub fn read(file: &Path) -> anyhow::Result<Report> {
    if file == Path::new("-") {
        return summed(stdin().lock());
    }
    let open = File::open(file).with_context(|| format!("cannot read {}", file.display()))?;
    summed(BufReader::new(open)).with_context(|| format!("cannot read {}", file.display()))
}

fn summed(lines: impl BufRead) -> anyhow::Result<Report> {
    let mut models: BTreeMap<(String, String), Errors> = BTreeMap::new();
    let (mut left_out, mut unreadable_lines) = (0, 0);
    for line in lines.split(b'\n') {
        let line = line?;
        if line.trim_ascii().is_empty() {
            continue;
        }
        let Ok(entry) = serde_json::from_slice::<Entry>(&line) else {
            unreadable_lines += 1;
            continue;
        };
        match (entry.demand, entry.usage) {
            (Some(demand), Some(usage)) if !entry.estimated && usage.prompt > 0 => {
                let model = entry.served_model.unwrap_or(entry.model);
                models.entry((model, entry.endpoint)).or_default().add(demand.prompt, usage.prompt);
            }
            _ => left_out += 1,
        }
    }
    let rows = models.into_iter().map(|((model, endpoint), errors)| errors.row(model, endpoint)).collect();
    Ok(Report { rows, left_out, unreadable_lines })
}

impl Errors {
    fn add(&mut self, counted: u64, reported: u64) {
        self.calls += 1;
        self.exact += u64::from(counted == reported);
        self.too_low += u64::from(counted < reported);
        self.reported = self.reported.saturating_add(reported);
        self.counted = self.counted.saturating_add(counted);
        let ratio = (counted as f64 - reported as f64) / reported as f64;
        let permille = ((ratio * 1000.0).round() as i64).clamp(-MOST_PERMILLE, MOST_PERMILLE);
        *self.by_size.entry(permille.unsigned_abs()).or_default() += 1;
        if permille.unsigned_abs() > self.worst.unsigned_abs() {
            self.worst = permille;
        }
    }

    /// The error that this part of all calls does not pass.
    fn quantile(&self, part: f64) -> f64 {
        let wanted = (self.calls as f64 * part).ceil() as u64;
        let mut seen = 0;
        for (permille, calls) in &self.by_size {
            seen += calls;
            if seen >= wanted {
                return *permille as f64 / 1000.0;
            }
        }
        0.0
    }

    fn row(self, model: String, endpoint: String) -> Row {
        let [error_ratio_p50, error_ratio_p95, error_ratio_p99] = [0.5, 0.95, 0.99].map(|part| self.quantile(part));
        Row {
            model,
            endpoint,
            calls: self.calls,
            exact: self.exact,
            too_low: self.too_low,
            reported_tokens: self.reported,
            counted_tokens: self.counted,
            error_ratio_p50,
            error_ratio_p95,
            error_ratio_p99,
            worst_error_ratio: self.worst as f64 / 1000.0,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = ["calls", "exact", "too low", "p50", "p95", "p99", "worst"].map(|name| format!("{name:>9}"));
        writeln!(f, "{:<24} {:<20} {}", "model", "endpoint", columns.join(" "))?;
        for row in &self.rows {
            let Row { model, endpoint, calls, exact, too_low, .. } = row;
            let errors = [row.error_ratio_p50, row.error_ratio_p95, row.error_ratio_p99, row.worst_error_ratio];
            let errors = errors.map(|ratio| format!("{:>8.1}%", ratio * 100.0)).join(" ");
            writeln!(f, "{model:<24} {endpoint:<20} {calls:>9} {exact:>9} {too_low:>9} {errors}")?;
        }
        write!(f, "{} calls without a reported usage left out", self.left_out)?;
        match self.unreadable_lines {
            0 => Ok(()),
            lines => write!(f, ", {lines} lines that are no entry of an access log"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(model: &str, counted: u64, reported: u64, estimated: bool) -> String {
        format!(
            "{{\"v\":1,\"ts_ms\":0,\"request_id\":\"r\",\"who\":{{\"org\":null,\"app\":null,\"user\":null,\"tier\":null}},\
             \"model\":\"alias\",\"served_model\":\"{model}\",\"upstream\":null,\"endpoint\":\"/chat/completions\",\
             \"stream\":false,\"status\":200,\"decision\":{{\"outcome\":\"finished\"}},\
             \"demand\":{{\"prompt\":{counted},\"max_output\":9,\"nano_usd\":0}},\
             \"usage\":{{\"prompt\":{reported},\"completion\":1}},\"estimated\":{estimated},\"timing\":{{\"ttft_ms\":null,\
             \"tpot_ms\":null,\"e2e_ms\":1.0,\"overhead_ms\":0.1}}}}\n"
        )
    }

    #[test]
    fn errors_are_told_by_model_and_size() {
        let mut log: String = (0..95).map(|_| line("m", 100, 100, false)).collect();
        log += &line("m", 90, 100, false).repeat(4);
        log += &line("m", 150, 100, false);
        log += &line("other", 1, 100, true);
        log += "{\"v\":1}\nnot json\n\n";
        let report = summed(log.as_bytes()).unwrap();
        let row = &report.rows[0];
        assert_eq!((row.model.as_str(), row.calls, row.exact, row.too_low), ("m", 100, 95, 4));
        assert_eq!([row.error_ratio_p50, row.error_ratio_p95, row.error_ratio_p99], [0.0, 0.0, 0.1]);
        assert_eq!((row.worst_error_ratio, row.counted_tokens, row.reported_tokens), (0.5, 10_010, 10_000));
        assert_eq!((report.rows.len(), report.left_out, report.unreadable_lines), (1, 1, 2));
        assert!(report.to_string().contains("2 lines that are no entry"));
    }

    #[test]
    fn a_count_that_is_far_too_low_keeps_its_sign() {
        let report = summed(line("m", 0, 1_000_000, false).as_bytes()).unwrap();
        assert_eq!(report.rows[0].worst_error_ratio, -1.0);
        let report = summed(line("m", u64::MAX, 1, false).as_bytes()).unwrap();
        assert_eq!(report.rows[0].worst_error_ratio, 100.0);
    }
}
