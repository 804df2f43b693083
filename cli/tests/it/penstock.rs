//! Runs the binary, with a cache folder of its own per test.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    process::{Child, Command, Output},
    thread,
    time::{Duration, Instant},
};

pub const BINARY: &str = env!("CARGO_BIN_EXE_penstock");

pub struct Penstock {
    pub home: tempfile::TempDir,
}

pub struct Ran {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Penstock {
    pub fn new() -> Self {
        Self { home: tempfile::tempdir().expect("a temporary folder") }
    }

    pub fn models(&self) -> PathBuf {
        self.home.path().join("models")
    }

    pub fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.home.path().join(name);
        std::fs::write(&path, bytes).expect("written");
        path
    }

    pub fn command(&self) -> Command {
        command(BINARY.as_ref(), self.home.path())
    }

    pub fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Ran {
        ran(self.command().args(args))
    }

    /// Runs a shell line in which `penstock` stands for the binary.
    pub fn shell(&self, line: &str) -> Ran {
        let line = format!("penstock() {{ '{BINARY}' \"$@\"; }}; {line}");
        ran(command("sh".as_ref(), self.home.path()).args(["-c", &line]))
    }

    /// Names in the cache folder that do not start with a dot.
    pub fn visible(&self) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.models()) else { return Vec::new() };
        let mut names: Vec<String> =
            entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
        names.retain(|name| !name.starts_with('.'));
        names.sort();
        names
    }
}

fn command(program: &OsStr, home: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("PENSTOCK_CACHE", home).env("HOME", home).env("NO_PROXY", "*");
    for name in ["RUST_LOG", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR"] {
        command.env_remove(name);
    }
    command
}

pub fn ran(command: &mut Command) -> Ran {
    let Output { status, stdout, stderr } = command.output().expect("it starts");
    Ran {
        code: status.code(),
        stdout: String::from_utf8(stdout).expect("UTF-8"),
        stderr: String::from_utf8(stderr).expect("UTF-8"),
    }
}

impl Ran {
    #[track_caller]
    pub fn ok(self) -> Self {
        assert_eq!(self.code, Some(0), "stderr: {}", self.stderr);
        self
    }

    /// Failed with `code`, saying each of `words`.
    #[track_caller]
    pub fn failed(self, code: i32, words: &[&str]) -> Self {
        assert_eq!(self.code, Some(code), "stdout: {} stderr: {}", self.stdout, self.stderr);
        for word in words {
            assert!(self.stderr.contains(word), "no `{word}` in: {}", self.stderr);
        }
        self
    }
}

/// A process that is killed at the end.
pub struct Running(pub Child);

impl Running {
    pub fn signal(&self, name: &str) {
        signal(name, self.0.id());
    }

    /// Its exit code, within `limit`.
    pub fn end(&mut self, limit: Duration) -> Option<i32> {
        let deadline = Instant::now() + limit;
        while Instant::now() < deadline {
            if let Some(status) = self.0.try_wait().expect("it can be watched") {
                return status.code();
            }
            thread::sleep(Duration::from_millis(20));
        }
        panic!("still running after {limit:?}");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

pub fn signal(name: &str, process: u32) {
    let status = Command::new("kill").args([name, &process.to_string()]).status().expect("`kill` runs");
    assert!(status.success());
}
