//! Load time and encode speed in CPU time, printed on request:
//! `cargo test -p tokenizer --test it -- --ignored --nocapture`.

use tokenizer::{Special, Tokenizer};

use crate::fixture::{GEMMA3, SMOLLM2, cpu_seconds, golden_text, load};

fn resident_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() / 1024.0
}

#[expect(clippy::print_stdout, reason = "the figures are what this is for")]
fn measure(name: &str, load: impl FnOnce() -> Tokenizer) {
    let (before, start) = (resident_mib(), cpu_seconds());
    let tokenizer = load();
    let loaded = (cpu_seconds() - start) * 1e3;
    let memory = resident_mib() - before;
    let text = golden_text().repeat(100);
    let mut speeds: Vec<f64> = (0..5)
        .map(|_| {
            let start = cpu_seconds();
            assert!(!tokenizer.encode(&text, Special::Plain).is_empty());
            text.len() as f64 / (cpu_seconds() - start) / 1e6
        })
        .collect();
    speeds.sort_by(f64::total_cmp);
    let short = "What is the capital of France?";
    let start = cpu_seconds();
    (0..50_000).for_each(|_| assert!(tokenizer.count(short) > 0));
    let micros = (cpu_seconds() - start) * 20.0;
    println!("{name}: load {loaded:.0} ms, {memory:.1} MiB, encode {:.1} MB/s, short prompt {micros:.1} us", speeds[2]);
}

#[test]
#[ignore = "prints figures, asserts nothing"]
fn figures() {
    measure("smollm2 (byte-level, 49,152)", || load(SMOLLM2));
    measure("gemma3 (sentencepiece, 262,144)", || load(GEMMA3));
    measure("cl100k_base", || Tokenizer::builtin("cl100k_base").unwrap());
    measure("o200k_base", || Tokenizer::builtin("o200k_base").unwrap());
}
