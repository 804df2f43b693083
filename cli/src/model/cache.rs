//! The folder of model files: names, locks, and the record kept beside each file. Knows nothing of where files
//! come from.

use std::{
    fmt,
    fs::{self, File, TryLockError},
    io::ErrorKind,
    path::{Path, PathBuf},
};

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::{catalog, incoming::Incoming};
use crate::{environment, output};

pub struct Cache {
    dir: PathBuf,
}

/// A complete, checked model file.
#[derive(Debug, Serialize)]
pub struct Cached {
    pub name: String,
    pub path: PathBuf,
    pub bytes: u64,
    pub sha256: Option<String>,
    pub source: Option<String>,
}

/// What is kept beside a file about how it came.
#[derive(Debug, Serialize, Deserialize)]
pub struct Record {
    pub source: String,
    pub sha256: String,
}

/// Held while a file is fetched: a second pull of the same file waits. Ends with the process, however it ends.
pub struct Lock {
    _file: File,
}

impl Cache {
    pub fn open() -> anyhow::Result<Self> {
        let dir = environment::cache_dir()?.join("models");
        fs::create_dir_all(&dir)
            .with_context(|| format!("cannot make the cache folder {}: set PENSTOCK_CACHE", dir.display()))?;
        Ok(Self { dir })
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn path(&self, file: &str) -> PathBuf {
        self.dir.join(file)
    }

    /// Waits until no other process fetches `file`.
    pub fn lock(&self, file: &str) -> anyhow::Result<Lock> {
        let path = self.path(&format!(".{file}.lock"));
        let context = || format!("cannot lock {}", path.display());
        let lock = File::options().create(true).truncate(false).write(true).open(&path).with_context(context)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                output::note(&format!("waiting: another process is fetching {file}"));
                lock.lock().with_context(context)?;
            }
            Err(TryLockError::Error(error)) => return Err(error).with_context(context),
        }
        Ok(Lock { _file: lock })
    }

    /// The model called `name`, if its file is complete.
    pub fn find(&self, name: &str) -> anyhow::Result<Option<Cached>> {
        match catalog::find(name) {
            Some(bundled) => self.cached(bundled.file),
            None if parse_name(name).is_ok() => self.cached(&file_of(name)),
            None => Ok(None),
        }
    }

    pub fn list(&self) -> anyhow::Result<Vec<Cached>> {
        let context = || format!("cannot read the cache folder {}", self.dir.display());
        let mut models = Vec::new();
        for entry in fs::read_dir(&self.dir).with_context(context)? {
            let name = entry.with_context(context)?.file_name();
            let Some(file) = name.to_str().filter(|file| file.ends_with(".gguf") && !file.starts_with('.')) else {
                continue;
            };
            models.extend(self.cached(file)?);
        }
        models.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(models)
    }

    /// The model in `file`, if it is complete.
    pub fn cached(&self, file: &str) -> anyhow::Result<Option<Cached>> {
        let path = self.path(file);
        let bytes = match fs::metadata(&path) {
            Ok(metadata) if metadata.is_file() => metadata.len(),
            Ok(_) => return Ok(None),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        let record = self.record(file);
        let (sha256, source) = record.map(|record| (record.sha256, record.source)).unzip();
        Ok(Some(Cached { name: name_of(file), path, bytes, sha256, source }))
    }

    /// Absent or unreadable records cost only what they tell: the file itself was checked before it got its name.
    fn record(&self, file: &str) -> Option<Record> {
        let text = fs::read(self.record_path(file)).ok()?;
        serde_json::from_slice(&text).ok()
    }

    fn record_path(&self, file: &str) -> PathBuf {
        self.path(&format!(".{file}.json"))
    }

    /// Starts a new `.partial` for `file`, dropping what an earlier pull left.
    pub fn incoming(&self, file: &str) -> anyhow::Result<Incoming> {
        Incoming::create(self.partial(file))
    }

    pub fn partial(&self, file: &str) -> PathBuf {
        self.path(&format!("{file}.partial"))
    }

    /// Gives a checked file its name: from here on it is used.
    pub fn publish(&self, checked: &Path, file: &str, record: &Record) -> anyhow::Result<Cached> {
        let path = self.path(file);
        fs::write(self.record_path(file), serde_json::to_vec(record)?)
            .with_context(|| format!("cannot write {}", self.record_path(file).display()))?;
        fs::rename(checked, &path).with_context(|| format!("cannot rename {}", checked.display()))?;
        // The rename itself must survive a power cut; a folder that cannot be synced is no reason to fail.
        drop(File::open(&self.dir).and_then(|dir| dir.sync_all()));
        self.cached(file)?.with_context(|| format!("{} vanished after it was written", path.display()))
    }
}

pub fn file_of(name: &str) -> String {
    format!("{name}.gguf")
}

fn name_of(file: &str) -> String {
    match catalog::ALL.iter().find(|bundled| bundled.file == file) {
        Some(bundled) => bundled.name.to_owned(),
        None => file.strip_suffix(".gguf").unwrap_or(file).to_owned(),
    }
}

/// A name becomes a file name, so it must be a plain one.
pub fn parse_name(text: &str) -> Result<String, String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    if text.is_empty() || text.len() > 200 || text.starts_with('.') || !text.bytes().all(plain) {
        return Err("a model name has letters, digits, `.`, `-` and `_`, and does not start with a dot".to_owned());
    }
    if catalog::ALL.iter().any(|bundled| bundled.name == text || bundled.file == file_of(text)) {
        return Err(format!("`{text}` is the name of a bundled model"));
    }
    Ok(text.to_owned())
}

impl Cached {
    /// What a pull does about a file that is there already.
    pub fn reuse(self, same: bool) -> anyhow::Result<Self> {
        if same {
            output::note(&format!("{} is in the cache already", self.name));
            return Ok(self);
        }
        let source = self.source.as_deref().unwrap_or("elsewhere");
        anyhow::bail!(
            "the name `{}` is taken by a file from {source}: choose another with --name, or remove {}",
            self.name,
            self.path.display()
        )
    }
}

impl fmt::Display for Cached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<12} {:>10}   {}", self.name, output::bytes(self.bytes), self.path.display())
    }
}
