//! Where the machine's things are: the built binary, model files, servers, interpreters. `tests/run` sets the variables;
//! what is missing is a failure that names the cure, never a skipped test.

use std::path::{Path, PathBuf};

/// The `penstock` built beside this test. Tests start it, so it must be built first.
pub fn penstock() -> PathBuf {
    let path = profile_dir().join("penstock");
    assert!(path.exists(), "{} is not built: `cargo build --profile ci -p cli`, or use tests/run", path.display());
    path
}

/// Where logs of child processes are kept.
pub fn log_root() -> PathBuf {
    profile_dir().parent().expect("a profile folder lies in the target folder").join("test-logs")
}

pub fn smollm2() -> PathBuf {
    model("smollm2-135m-instruct-q4_1.gguf")
}

pub fn gemma3() -> PathBuf {
    model("gemma-3-270m-q4_k_m.gguf")
}

pub fn python() -> PathBuf {
    required("PENSTOCK_TEST_PYTHON")
}

pub fn node() -> PathBuf {
    required("PENSTOCK_TEST_NODE")
}

pub fn node_modules() -> PathBuf {
    required("PENSTOCK_TEST_NODE_MODULES")
}

fn model(file: &str) -> PathBuf {
    let path = required("PENSTOCK_TEST_MODELS").join(file);
    assert!(path.exists(), "{} is missing: tests/run fetches it", path.display());
    path
}

fn required(name: &str) -> PathBuf {
    variable(name).unwrap_or_else(|| panic!("{name} is not set: run the tests through tests/run"))
}

#[expect(clippy::disallowed_methods, reason = "tests are told by tests/run where servers and models are")]
fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).map(PathBuf::from)
}

/// `target/ci`, from `target/ci/deps/e2e-1234`.
fn profile_dir() -> PathBuf {
    let test = std::env::current_exe().expect("the path of the running test");
    test.ancestors().nth(2).map(Path::to_owned).expect("a test binary lies in target/PROFILE/deps")
}
