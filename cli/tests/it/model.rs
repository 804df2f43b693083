//! `penstock model`: what arrives complete and right is used, anything else never is.

use std::process::Command;

use sha2::{Digest, Sha256};

use crate::{
    http_server::{HttpServer, Served},
    penstock::Penstock,
};

/// The smallest file the reader accepts: version 3, no tensors, no metadata; then bytes it does not look at.
pub fn gguf(padding: usize) -> Vec<u8> {
    let mut file = b"GGUF".to_vec();
    file.extend_from_slice(&3u32.to_le_bytes());
    file.extend_from_slice(&[0; 16]);
    file.extend((0..padding).map(|i| (i * 31 % 251) as u8));
    file
}

fn sum(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn pulled(penstock: &Penstock) -> Vec<u8> {
    std::fs::read(penstock.models().join("tiny.gguf")).expect("the pulled file")
}

#[test]
fn a_local_file_is_taken_and_listed() {
    let penstock = Penstock::new();
    let path = penstock.file("tiny.gguf", &gguf(100));
    penstock.run(["model", "pull", path.to_str().unwrap()]).ok();

    let list = penstock.run(["model", "list", "--json"]).ok().stdout;
    let list: serde_json::Value = serde_json::from_str(&list).expect("JSON");
    assert_eq!(list["models"][0]["name"], "tiny");
    assert_eq!(list["models"][0]["sha256"], sum(&gguf(100)));
    assert_eq!(list["available"][0]["name"], "smollm2");
}

#[test]
fn what_is_no_gguf_is_refused() {
    let penstock = Penstock::new();
    let path = penstock.file("tiny.gguf", b"<html>not found</html>");
    penstock.run(["model", "pull", path.to_str().unwrap()]).failed(1, &["not a GGUF"]);
    let server = HttpServer::start(Served::new(b"<html>log in first</html>"));
    penstock.run(["model", "pull", &server.url]).failed(1, &["not a GGUF"]);
    assert_eq!(penstock.visible(), [""; 0]);
}

#[test]
fn a_missing_file_names_the_choices() {
    Penstock::new().run(["model", "pull", "./absent.gguf"]).failed(1, &["absent.gguf", "smollm2, gemma3"]);
}

#[test]
fn a_url_is_fetched_and_checked() {
    let penstock = Penstock::new();
    let file = gguf(3_000_000);
    let server = HttpServer::start(Served::new(&file));
    penstock.run(["model", "pull", &server.url, "--sha256", &sum(&file)]).ok();
    assert_eq!(pulled(&penstock), file);
    assert_eq!(penstock.visible(), ["tiny.gguf"]);
}

#[test]
fn a_present_file_is_not_fetched_again() {
    let penstock = Penstock::new();
    let server = HttpServer::start(Served::new(&gguf(10)));
    penstock.run(["model", "pull", &server.url]).ok();
    penstock.run(["model", "pull", &server.url]).ok();
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn a_taken_name_is_not_overwritten() {
    let penstock = Penstock::new();
    let server = HttpServer::start(Served::new(&gguf(10)));
    penstock.run(["model", "pull", &server.url]).ok();
    let other = penstock.file("tiny.gguf", &gguf(11));
    penstock.run(["model", "pull", other.to_str().unwrap()]).failed(1, &["taken", "--name"]);
    penstock.run(["model", "pull", other.to_str().unwrap(), "--name", "other"]).ok();
    assert_eq!(penstock.visible(), ["other.gguf", "tiny.gguf"]);
    assert_eq!(pulled(&penstock), gguf(10));
}

#[test]
fn a_wrong_sum_is_refused_and_nothing_is_left() {
    let penstock = Penstock::new();
    let server = HttpServer::start(Served::new(&gguf(1000)));
    penstock.run(["model", "pull", &server.url, "--sha256", &sum(b"other")]).failed(1, &["SHA-256", "removed"]);
    assert_eq!(penstock.visible(), [""; 0]);
}

#[test]
fn a_broken_connection_goes_on_where_it_stopped() {
    let penstock = Penstock::new();
    let file = gguf(500_000);
    let server = HttpServer::start(Served { cuts: vec![100_000, 200_000], ..Served::new(&file) });
    penstock.run(["model", "pull", &server.url, "--sha256", &sum(&file)]).ok();

    assert_eq!(pulled(&penstock), file);
    let ranges: Vec<_> = server.requests().into_iter().map(|request| request.range).collect();
    assert_eq!(ranges, [None, Some("bytes=100000-".into()), Some("bytes=300000-".into())]);
}

#[test]
fn a_later_run_resumes_and_a_truncated_file_is_never_used() {
    let penstock = Penstock::new();
    let file = gguf(500_000);
    // The first try brings a part, all others nothing.
    let cuts = std::iter::once(100_000).chain([0; 20]).collect();
    let server = HttpServer::start(Served { cuts, ..Served::new(&file) });
    penstock.run(["model", "pull", &server.url]).failed(1, &["goes on from here"]);
    assert_eq!(penstock.visible(), ["tiny.gguf.partial", "tiny.gguf.partial.json"]);
    let list = penstock.run(["model", "list"]).ok().stdout;
    assert!(!list.contains("tiny"), "a partial file was listed: {list}");

    server.serve(Served::new(&file));
    penstock.run(["model", "pull", &server.url]).ok();
    assert_eq!(pulled(&penstock), file);
    assert_eq!(penstock.visible(), ["tiny.gguf"]);
    let last = server.requests().pop().expect("a request");
    assert_eq!((last.range.as_deref(), last.if_range.as_deref()), (Some("bytes=100000-"), Some("\"one\"")));
}

#[test]
fn a_file_that_changed_meanwhile_is_fetched_anew() {
    let penstock = Penstock::new();
    let cuts = std::iter::once(100_000).chain([0; 20]).collect();
    let server = HttpServer::start(Served { cuts, ..Served::new(&gguf(500_000)) });
    penstock.run(["model", "pull", &server.url]).failed(1, &[]);
    let changed: Vec<u8> = gguf(400_000).into_iter().rev().chain(gguf(0)).rev().collect();
    let changed = [gguf(7), changed].concat();
    server.serve(Served { etag: Some("\"two\""), ..Served::new(&changed) });
    penstock.run(["model", "pull", &server.url]).ok();
    assert_eq!(pulled(&penstock), changed);
}

#[test]
fn a_server_without_validator_is_never_resumed() {
    let penstock = Penstock::new();
    let file = gguf(500_000);
    let server = HttpServer::start(Served { cuts: vec![100_000], etag: None, ..Served::new(&file) });
    penstock.run(["model", "pull", &server.url]).ok();
    assert_eq!(pulled(&penstock), file);
    assert!(server.requests().iter().all(|request| request.range.is_none()));
}

#[test]
fn an_http_error_is_told_at_once() {
    let server = HttpServer::start(Served { status: "404 Not Found", ..Served::new(b"gone") });
    Penstock::new().run(["model", "pull", &server.url]).failed(1, &["404"]);
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn credentials_in_a_url_are_neither_shown_nor_kept() {
    let penstock = Penstock::new();
    let server = HttpServer::start(Served::new(&gguf(10)));
    let url = format!("{}?token=hunter2", server.url.replace("http://", "http://ana:hunter2@"));
    let ran = penstock.run(["model", "pull", &url, "--json"]).ok();
    let record = std::fs::read_to_string(penstock.models().join(".tiny.gguf.json")).expect("the record");
    for text in [ran.stdout, ran.stderr, record] {
        assert!(!text.contains("hunter2"), "{text}");
    }
}

/// A real full disk where the test may mount one, else the same through the file size limit.
#[test]
fn a_full_disk_is_told_and_nothing_partial_is_used() {
    let penstock = Penstock::new();
    let server = HttpServer::start(Served::new(&gguf(3_000_000)));
    let url = &server.url;
    std::fs::create_dir(penstock.models()).expect("made");
    let small = small_disk(&penstock);
    let limit = if small { "" } else { "trap '' XFSZ; ulimit -f 2000;" };
    let pull = penstock.shell(&format!("{limit} penstock model pull '{url}'"));
    let (visible, list) = (penstock.visible(), penstock.run(["model", "list"]));
    if small {
        let status = Command::new("umount").arg(penstock.models()).status().expect("umount starts");
        assert!(status.success());
    }
    pull.failed(1, &["disk full", "PENSTOCK_CACHE"]);
    assert!(!visible.contains(&"tiny.gguf".to_owned()));
    assert!(!list.ok().stdout.contains("tiny"));
}

fn small_disk(penstock: &Penstock) -> bool {
    let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "none"]).arg(penstock.models()).output();
    mount.is_ok_and(|output| output.status.success())
}

#[test]
fn two_pulls_at_once_fetch_once() {
    let penstock = Penstock::new();
    let server = HttpServer::start(Served::new(&gguf(2_000_000)));
    let mut first = penstock.command().args(["model", "pull", &server.url]).spawn().expect("starts");
    penstock.run(["model", "pull", &server.url]).ok();
    assert!(first.wait().expect("ends").success());
    assert_eq!(server.requests().len(), 1);
}
