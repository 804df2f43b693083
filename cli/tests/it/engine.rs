//! `penstock engine`: what it says about devices and files before it serves anything.

use crate::penstock::Penstock;

#[test]
fn the_probe_names_the_device_and_why() {
    let probe = Penstock::new().run(["engine", "--probe", "--json", "--threads", "3"]).ok().stdout;
    let probe: serde_json::Value = serde_json::from_str(&probe).expect("JSON");
    assert_eq!((&probe["device"], &probe["threads"]), (&"cpu".into(), &3.into()));
    assert!(probe["why"].as_str().is_some_and(|why| why.contains("CUDA")), "{probe}");
}

#[test]
fn a_device_this_build_lacks_is_refused() {
    let args = ["engine", "--probe", "--device", "cuda"];
    Penstock::new().run(args).failed(1, &["--device cuda", "no CUDA backend", "cpu"]);
}

#[test]
fn a_file_that_is_no_model_is_refused_by_name() {
    let penstock = Penstock::new();
    let file = penstock.file("x.gguf", b"GGUF\x03\0\0\0");
    let args = ["engine", "--listen", "127.0.0.1:0", "--model", file.to_str().unwrap()];
    penstock.run(args).failed(1, &["cannot load", "x.gguf", "truncated"]);
    let args = ["engine", "--listen", "127.0.0.1:0", "--model", "/nowhere/y.gguf"];
    penstock.run(args).failed(1, &["cannot load", "/nowhere/y.gguf"]);
}
