//! A wall clock that is wrong for one process only: a small library that the dynamic linker puts before the C library.

use std::path::PathBuf;
use std::process::Command;

use crate::Config;

/// Compiled once per test; lives as long as the processes that use it.
#[derive(Debug)]
pub struct WrongClock {
    folder: tempfile::TempDir,
}

impl WrongClock {
    pub fn build() -> Self {
        let clock = Self { folder: tempfile::tempdir().expect("a temporary folder") };
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src/skew.c");
        let compile =
            Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(clock.library()).arg(source).status();
        assert!(compile.expect("a C compiler named `cc`").success(), "{source} does not compile");
        clock
    }

    /// Gateways of this configuration are so many seconds ahead.
    pub fn ahead(&self, config: &Config, seconds: i64) -> Config {
        let preload = self.library().to_string_lossy().into_owned();
        config.clone().environment("LD_PRELOAD", &preload).environment("SKEW_SECONDS", &seconds.to_string())
    }

    fn library(&self) -> PathBuf {
        self.folder.path().join("skew.so")
    }
}
