//! `penstock config` and what `serve` says about a file or a port that it cannot use.

use std::net::TcpListener;

use serde_json::Value;

use crate::penstock::Penstock;

const GOOD: &str = "\
listen: 127.0.0.1:0
admin: 127.0.0.1:0
store: memory
models:
  - name: mock
    tokenizer: o200k_base
    upstreams: [ { name: only, url: \"http://127.0.0.1:9/v1\" } ]
keys:
  - { secret: \"${KEY_OF_ANA}\", user: ana, app: web, org: acme }
";

fn with(from: &str, to: &str) -> String {
    assert!(GOOD.contains(from));
    GOOD.replace(from, to)
}

#[test]
fn a_good_file_passes_with_its_environment() {
    let penstock = Penstock::new();
    let file = penstock.file("good.yaml", GOOD.as_bytes());
    let mut command = penstock.command();
    let output = command.env("KEY_OF_ANA", "sk-1").args(["config", "check"]).arg(&file).output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    penstock.run(["config", "check", file.to_str().unwrap()]).failed(1, &["good.yaml:9:", "KEY_OF_ANA"]);
}

#[test]
fn each_problem_is_told_with_its_place() {
    let penstock = Penstock::new();
    let text = with("store: memory", "stor: memory").replace("${KEY_OF_ANA}", "sk-1");
    let file = penstock.file("bad.yaml", text.as_bytes());
    let path = file.to_str().unwrap();
    penstock.run(["config", "check", path]).failed(1, &["bad.yaml:3:1: stor: unknown key", "`store`"]);
    penstock.run(["serve", "--config", path]).failed(1, &["bad.yaml:3:1"]);

    let checked = penstock.run(["config", "check", path, "--json"]);
    let json: Value = serde_json::from_str(&checked.stdout).expect("JSON");
    assert_eq!((checked.code, &json["ok"]), (Some(1), &Value::Bool(false)));
    assert_eq!((&json["problems"][0]["line"], &json["problems"][0]["field"]), (&3.into(), &"stor".into()));
}

#[test]
fn a_file_that_is_not_there_is_named() {
    Penstock::new().run(["config", "check", "/nowhere/x.yaml"]).failed(1, &["/nowhere/x.yaml"]);
}

#[test]
fn the_schema_is_json_and_knows_the_fields() {
    let schema = Penstock::new().run(["config", "schema"]).ok().stdout;
    let schema: Value = serde_json::from_str(&schema).expect("JSON");
    assert!(schema["properties"]["quotas"].is_object(), "{schema}");
}

#[test]
fn a_taken_port_names_the_field() {
    let penstock = Penstock::new();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let text = with("listen: 127.0.0.1:0", &format!("listen: {address}")).replace("${KEY_OF_ANA}", "sk-1");
    let file = penstock.file("taken.yaml", text.as_bytes());
    penstock
        .run(["serve", "--config", file.to_str().unwrap()])
        .failed(1, &[&address, "in use", "`listen`", "taken.yaml"]);
}

#[test]
fn a_store_that_refuses_is_told_at_start() {
    let penstock = Penstock::new();
    // Nobody listens on it any more.
    let closed = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("an address");
    let text = with("store: memory", &format!("store: redis://{closed}/0")).replace("${KEY_OF_ANA}", "sk-1");
    let file = penstock.file("closed.yaml", text.as_bytes());
    penstock.run(["serve", "--config", file.to_str().unwrap()]).failed(1, &["store", "refused"]);
}
