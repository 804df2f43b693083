//! A model file on its way into the cache: bytes are written and summed in one pass, and the file is handed over
//! only when sum and format are right.

use std::{
    fs::{self, File},
    io::{self, ErrorKind, Read, Write},
    path::{Path, PathBuf},
};

use anyhow::Context;
use sha2::{Digest, Sha256};

use super::digest;
use crate::output;

pub struct Incoming {
    path: PathBuf,
    file: File,
    hasher: Sha256,
    written: u64,
}

/// A complete file whose sum and format were checked; it still has its temporary name.
pub struct Checked {
    pub path: PathBuf,
    pub sha256: String,
}

impl Incoming {
    pub fn create(path: PathBuf) -> anyhow::Result<Self> {
        let file = File::create(&path).map_err(|error| explain(error, &path))?;
        Ok(Self { path, file, hasher: Sha256::new(), written: 0 })
    }

    /// Goes on where an earlier pull stopped; what is there is summed again.
    pub fn resume(path: PathBuf) -> anyhow::Result<Self> {
        let mut file = File::options().read(true).append(true).open(&path).map_err(|error| explain(error, &path))?;
        let mut hasher = Sha256::new();
        let mut written = 0;
        let mut buffer = vec![0; 1 << 20];
        loop {
            match file.read(&mut buffer).with_context(|| format!("cannot read {}", path.display()))? {
                0 => return Ok(Self { path, file, hasher, written }),
                count => {
                    hasher.update(&buffer[..count]);
                    written += count as u64;
                }
            }
        }
    }

    pub fn written(&self) -> u64 {
        self.written
    }

    pub fn write(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        self.file.write_all(bytes).map_err(|error| explain(error, &self.path))?;
        self.hasher.update(bytes);
        self.written += bytes.len() as u64;
        Ok(())
    }

    /// Checks the whole. A file with a wrong sum is removed: resuming it could never make it right.
    pub fn finish(self, expected: Option<&str>) -> anyhow::Result<Checked> {
        self.file.sync_all().map_err(|error| explain(error, &self.path))?;
        let sha256 = digest::finish(self.hasher);
        let checked = check_sum(&sha256, expected).and_then(|()| check_format(&self.path));
        if let Err(error) = checked {
            remove(&self.path);
            return Err(error);
        }
        Ok(Checked { path: self.path, sha256 })
    }
}

fn check_sum(sha256: &str, expected: Option<&str>) -> anyhow::Result<()> {
    match expected {
        Some(expected) if expected != sha256 => anyhow::bail!(
            "the file has the SHA-256 sum {sha256}, not {expected}: it is damaged or is another file; it was removed"
        ),
        _ => Ok(()),
    }
}

/// Refuses what the engine could not read, while the person who fetched it is still there.
pub fn check_format(path: &Path) -> anyhow::Result<()> {
    gguf::File::open(path).map(drop).with_context(|| format!("{}", path.display()))
}

/// Best effort: what stays behind is a `.partial`, which nothing reads and the next pull overwrites.
pub fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path)
        && error.kind() != ErrorKind::NotFound
    {
        output::note(&format!("cannot remove {}: {error}", path.display()));
    }
}

/// Names the cure where there is one.
pub fn explain(error: io::Error, path: &Path) -> anyhow::Error {
    let place = path.display();
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => anyhow::anyhow!(
            "disk full while writing {place}: free some space, or set PENSTOCK_CACHE to a folder on another disk"
        ),
        _ => anyhow::Error::new(error).context(format!("cannot write {place}")),
    }
}
