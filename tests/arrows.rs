//! Which crate may see which, and which folder may do what: the arrows of docs/ARCHITECTURE.md, read from
//! `cargo metadata` and from the sources. A new edge fails here until the page and this table both allow it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A crate and the workspace crates it may depend on, for its tests too.
const ARROWS: &[(&str, &[&str])] = &[
    ("wire", &[]),
    ("gguf", &["wire"]),
    ("tokenizer", &["wire", "gguf"]),
    ("engine", &["wire", "gguf", "tokenizer"]),
    ("proxy", &["wire", "tokenizer"]),
    ("bench", &["wire", "tokenizer"]),
    ("cli", &["wire", "gguf", "tokenizer", "engine", "proxy", "bench"]),
    ("tests", &["wire", "tokenizer", "bench"]),
];

/// Text that may stand only in these folders or files (the code before a file's `#[cfg(test)]` counts).
const ONLY_IN: &[(&str, &[&str], &str)] = &[
    // `cli/src/quota.rs` names the module `quota::redis`; its crate does not depend on the crate `redis`.
    ("redis::", &["proxy/src/quota", "proxy/src/quota.rs", "cli/src/quota.rs"], "only proxy/quota speaks to Redis"),
    ("env::var", &["cli/src", "tests/src"], "only cli reads the environment"),
    ("env::args", &["cli/src"], "only cli reads flags"),
    ("set_global_default", &["cli/src"], "only cli installs what is process-global"),
];

/// The engine below its HTTP surface is synchronous.
const NEVER_IN_ENGINE_CORE: &[&str] = &[".await", "async fn", "async move"];

#[test]
fn no_crate_sees_another_that_the_arrows_do_not_allow() {
    let allowed: BTreeMap<&str, &[&str]> = ARROWS.iter().copied().collect();
    let mut wrong = Vec::new();
    for (package, seen) in workspace_edges() {
        match allowed.get(package.as_str()) {
            None => wrong.push(format!("crate `{package}` is not in the table")),
            Some(allowed) => wrong.extend(
                seen.iter()
                    .filter(|other| !allowed.contains(&other.as_str()))
                    .map(|other| format!("{package} -> {other} is not an arrow")),
            ),
        }
    }
    assert!(wrong.is_empty(), "{}\nsee docs/ARCHITECTURE.md, \"Arrows\"", wrong.join("\n"));
}

#[test]
fn the_table_has_no_crate_that_does_not_exist() {
    let edges = workspace_edges();
    for (package, _) in ARROWS {
        assert!(edges.contains_key(*package), "`{package}` is in the table but not in the workspace");
    }
}

#[test]
fn what_only_one_place_may_do_is_done_there_only() {
    let mut wrong = Vec::new();
    for source in sources() {
        for (text, homes, rule) in ONLY_IN {
            if !homes.iter().any(|home| source.path.starts_with(home)) && source.code.contains(text) {
                wrong.push(format!("{}: `{text}` ({rule}: {})", source.path.display(), homes.join(", ")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_engine_core_never_awaits() {
    let mut wrong = Vec::new();
    for source in sources() {
        let in_core = source.path.starts_with("engine/src") && !source.path.starts_with("engine/src/http");
        // `starts_with` compares whole path components, so `http.rs` is named too.
        if !in_core || source.path == Path::new("engine/src/http.rs") {
            continue;
        }
        for text in NEVER_IN_ENGINE_CORE {
            if source.code.contains(text) {
                wrong.push(format!("{}: `{text}`", source.path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}\nonly engine/src/http.rs and engine/src/http/ are async", wrong.join("\n"));
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the workspace").to_owned()
}

/// Each workspace crate and the workspace crates it depends on, in any kind of dependency.
fn workspace_edges() -> BTreeMap<String, BTreeSet<String>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(root())
        .output()
        .expect("cargo metadata runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON");
    let text = |value: &serde_json::Value| value.as_str().expect("a string").to_owned();
    let list = |value: &serde_json::Value| value.as_array().expect("a list").clone();
    list(&metadata["packages"])
        .iter()
        .map(|package| {
            let seen = list(&package["dependencies"])
                .iter()
                .filter(|dependency| dependency["path"].is_string())
                .map(|dependency| text(&dependency["name"]))
                .collect();
            (text(&package["name"]), seen)
        })
        .collect()
}

struct Source {
    /// Relative to the workspace.
    path: PathBuf,
    /// Without comments, and without what follows `#[cfg(test)]`.
    code: String,
}

fn sources() -> Vec<Source> {
    let root = root();
    let mut found = Vec::new();
    for (package, _) in ARROWS {
        collect(&root.join(package).join("src"), &root, &mut found);
    }
    assert!(found.len() >= ARROWS.len(), "no sources under {}", root.display());
    found
}

fn collect(folder: &Path, root: &Path, found: &mut Vec<Source>) {
    for entry in fs::read_dir(folder).expect("a readable folder") {
        let path = entry.expect("a readable entry").path();
        if path.is_dir() {
            collect(&path, root, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("a source file is UTF-8");
            let tested = text.find("#[cfg(test)]").unwrap_or(text.len());
            let code = text[..tested]
                .lines()
                .filter(|line| !line.trim_start().starts_with("//"))
                .collect::<Vec<_>>()
                .join("\n");
            let path = path.strip_prefix(root).expect("under the root").to_owned();
            found.push(Source { path, code });
        }
    }
}
