//! The conformance suite that others run against their gateways (`conformance/`), against ours on both stores: nothing
//! may fail, and nothing may be skipped but what we do not have. The suite itself is tried on gateways that are wrong.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tests::{Process, environment};

/// A run takes 20 s, most of it waiting; the bad gateways keep the suite waiting longer.
const LIMIT: Duration = Duration::from_secs(300);

/// Runs one of the suite's scripts to its end; what it printed.
async fn run(script: &str, args: &[&str]) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance").join(script);
    let mut command = Command::new(environment::python());
    command.args(["-u", "-B"]).arg(path).args(args);
    let mut process = Process::start_with(script, &mut command);
    let status = process.wait(LIMIT).await;
    assert!(status.success(), "{status}\n{}", process.log());
    process.log()
}

/// All scenarios pass but those in `skipped`, which cannot be judged.
async fn passes(store: &str, skipped: &[&str]) {
    let binary = environment::penstock();
    let log = run("penstock.py", &["--binary", &binary.to_string_lossy(), "--store", store]).await;
    let ids = |verdict: &str| -> BTreeSet<String> {
        let lines = log.lines().filter(|line| line.starts_with(verdict));
        lines.filter_map(|line| line.split_whitespace().nth(1)).map(str::to_owned).collect()
    };
    assert_eq!(ids("SKIP"), skipped.iter().map(|id| (*id).to_owned()).collect(), "{log}");
    assert!(ids("PASS").len() > 90, "the suite has shrunk:\n{log}");
    assert!(log.contains("score: 100.0 %"), "{log}");
}

/// Browsers are not served yet (HC-01).
#[tokio::test]
async fn all_scenarios_pass_on_redis() {
    passes("redis", &["HC-01"]).await;
}

/// The embedded store is of one process, and cannot go away.
#[tokio::test]
async fn all_scenarios_pass_in_memory() {
    passes("memory", &["HC-01", "CC-02", "CC-03", "RD-01", "RD-03", "RD-04"]).await;
}

#[tokio::test]
async fn every_scenario_fails_for_a_bad_gateway() {
    run("selftest.py", &[]).await;
}
