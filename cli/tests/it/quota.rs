//! `penstock quota`: which store is meant, and what cannot be looked into. Audits of real books are made by the
//! end-to-end tests.

use crate::penstock::Penstock;

#[test]
fn the_embedded_store_points_to_the_metrics() {
    let penstock = Penstock::new();
    let yaml = "models: [ { name: m, upstreams: [ { name: a, url: \"http://127.0.0.1:9/v1\" } ] } ]\n\
                keys: [ { secret: sk-1, org: acme } ]\nstore: memory\n";
    let file = penstock.file("p.yaml", yaml.as_bytes());
    penstock.run(["quota", "show", "--config", file.to_str().unwrap()]).failed(1, &["store: memory", "/metrics"]);
}

#[test]
fn a_store_that_is_not_there_is_told() {
    penstock_without_redis("show");
    penstock_without_redis("check");
}

fn penstock_without_redis(command: &str) {
    Penstock::new().run(["quota", command, "--store", "redis://127.0.0.1:1/0"]).failed(1, &["store"]);
}

/// A folder with one golden file of a built-in encoding.
fn golden(penstock: &Penstock, tokens: u64) -> String {
    let folder = penstock.home.path().join("golden");
    std::fs::create_dir_all(&folder).expect("a folder");
    let items = format!(
        "{{\"encoding\":\"cl100k_base\",\"items\":[{{\"id\":\"c7\",\"prompt_tokens\":{tokens},\
         \"messages\":[{{\"role\":\"user\",\"content\":\"hello\"}}]}}]}}"
    );
    std::fs::write(folder.join("openai_chat_counts.json"), items).expect("written");
    folder.to_str().expect("UTF-8").to_owned()
}

#[test]
fn parity_with_golden_counts_is_shown_and_a_miss_is_a_failure() {
    let penstock = Penstock::new();
    let shown = penstock.run(["quota", "parity", "--golden", &golden(&penstock, 8)]).ok().stdout;
    assert!(shown.contains("cl100k_base    chat") && shown.contains("counted to the token"), "{shown}");
    let folder = golden(&penstock, 9);
    penstock
        .run(["quota", "parity", "--golden", &folder])
        .failed(1, &["cl100k_base chat c7: 8 tokens counted, 9 are right"]);
    let json = penstock.run(["quota", "parity", "--golden", &folder, "--json"]);
    let report: serde_json::Value = serde_json::from_str(&json.stdout).expect("JSON");
    assert_eq!((json.code, &report["exact"]), (Some(1), &false.into()));
    assert_eq!(report["rows"][0]["worst_error_tokens"], -1);
}

#[test]
fn parity_needs_golden_counts_and_says_which() {
    let penstock = Penstock::new();
    let folder = penstock.home.path().to_str().expect("UTF-8").to_owned();
    penstock.run(["quota", "parity", "--golden", &folder]).failed(1, &["holds no golden counts", "_tokenize.json"]);
    penstock.run(["quota", "parity", "--log", "/nowhere.jsonl"]).failed(1, &["cannot read /nowhere.jsonl"]);
}

#[test]
fn both_bundled_models_and_both_encodings_meet_the_built_in_golden_counts() {
    let penstock = Penstock::new();
    for file in ["smollm2-135m-instruct-q4_1.gguf", "gemma-3-270m-q4_k_m.gguf"] {
        penstock.run(["model", "pull", test_models().join(file).to_str().expect("UTF-8")]).ok();
    }
    let shown = penstock.run(["quota", "parity", "--json"]).ok().stdout;
    let report: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
    let rows: Vec<(&str, &str)> = report["rows"]
        .as_array()
        .expect("rows")
        .iter()
        .map(|row| (row["model"].as_str().expect("a name"), row["prompts"].as_str().expect("a kind")))
        .collect();
    let expect = [
        ("cl100k_base", "chat"),
        ("cl100k_base", "text"),
        ("gemma3", "text"),
        ("o200k_base", "text"),
        ("smollm2", "chat"),
        ("smollm2", "text"),
    ];
    assert_eq!((rows.as_slice(), &report["exact"]), (&expect[..], &true.into()));
}

#[expect(clippy::disallowed_methods, reason = "where the model files are is told by the environment")]
fn test_models() -> std::path::PathBuf {
    let dir = std::env::var_os("PENSTOCK_TEST_MODELS");
    dir.expect("PENSTOCK_TEST_MODELS must name the folder of model files; `tests/run` sets it").into()
}
