//! The processes of a run: started in a scratch folder with their output in files, asked until they answer, killed
//! when dropped. Ports are picked here, since not every program can be told to pick its own and say which.

use std::{
    fs::{self, File},
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("redis-server is not on PATH; install it: apt-get install -y redis-server")]
    RedisMissing,
    #[error("{name} did not start: {cause}")]
    Start { name: String, cause: io::Error },
    #[error("{name} ended before it answered; its last words:\n{log}")]
    Ended { name: String, log: String },
    #[error("{name} did not answer within {} s: {why}; its last words:\n{log}", .within.as_secs())]
    Silent { name: String, within: Duration, why: String, log: String },
    #[error("{what}: {cause}")]
    Io { what: &'static str, cause: io::Error },
    #[error("{who} does not answer as it should: {why}")]
    Wrong { who: String, why: String },
}

impl Error {
    pub(crate) fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |cause| Self::Io { what, cause }
    }

    pub(crate) fn wrong(who: &str, why: impl Into<String>) -> Self {
        Self::Wrong { who: who.to_owned(), why: why.into() }
    }
}

pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
    started: Instant,
}

impl Process {
    /// Output goes to `folder/name.log`.
    pub fn start(name: &str, program: &Path, args: &[String], folder: &Path) -> Result<Self, Error> {
        let log = folder.join(format!("{name}.log"));
        let failed = |cause| Error::Start { name: name.to_owned(), cause };
        let output = File::create(&log).map_err(failed)?;
        let errors = output.try_clone().map_err(failed)?;
        let child = Command::new(program)
            .args(args)
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .spawn()
            .map_err(failed)?;
        Ok(Self { name: name.to_owned(), child, log, started: Instant::now() })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Asks until `probe` has no complaint; the time since the start.
    pub fn wait(&mut self, within: Duration, probe: impl Fn() -> Result<(), String>) -> Result<Duration, Error> {
        loop {
            let complaint = match probe() {
                Ok(()) => return Ok(self.started.elapsed()),
                Err(complaint) => complaint,
            };
            if self.child.try_wait().map_err(Error::io("waiting for a process"))?.is_some() {
                return Err(Error::Ended { name: self.name.clone(), log: self.last_words() });
            }
            if self.started.elapsed() > within {
                let (name, log) = (self.name.clone(), self.last_words());
                return Err(Error::Silent { name, within, why: complaint, log });
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until `address` takes connections.
    pub fn wait_listening(&mut self, address: SocketAddr) -> Result<Duration, Error> {
        self.wait(Duration::from_secs(10), || TcpStream::connect(address).map(drop).map_err(|error| error.to_string()))
    }

    fn last_words(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(10)..].join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Either may fail only because it has ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A port that nobody listens on now.
pub fn free_address() -> Result<SocketAddr, Error> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(Error::io("looking for a free port"))?;
    listener.local_addr().map_err(Error::io("looking for a free port"))
}

/// A Redis of our own without persistence; `redis-server` must be on PATH.
pub fn redis(folder: &Path) -> Result<(Process, SocketAddr), Error> {
    let address = free_address()?;
    let port = address.port().to_string();
    let dir = folder.to_string_lossy().into_owned();
    let args = ["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", &dir];
    let args = args.map(str::to_owned);
    let mut process = match Process::start("redis-server", Path::new("redis-server"), &args, folder) {
        Err(Error::Start { cause, .. }) if cause.kind() == io::ErrorKind::NotFound => return Err(Error::RedisMissing),
        started => started?,
    };
    process.wait_listening(address)?;
    Ok((process, address))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, folder: &Path) -> Process {
        Process::start("sh", Path::new("/bin/sh"), &["-c".into(), script.into()], folder).unwrap()
    }

    #[test]
    fn a_process_that_ends_early_is_quoted() {
        let folder = tempfile::tempdir().unwrap();
        let mut process = shell("echo no luck >&2", folder.path());
        let error = process.wait(Duration::from_secs(5), || Err("closed".into())).unwrap_err();
        assert!(matches!(&error, Error::Ended { log, .. } if log == "no luck"), "{error}");
    }

    #[test]
    fn a_silent_process_says_why_and_is_killed() {
        let folder = tempfile::tempdir().unwrap();
        let mut process = shell("exec sleep 60", folder.path());
        let pid = process.pid();
        let error = process.wait(Duration::from_millis(30), || Err("closed".into())).unwrap_err();
        assert!(matches!(&error, Error::Silent { why, .. } if why == "closed"), "{error}");
        drop(process);
        assert!(crate::proc::read(pid).is_err(), "killed and waited for");
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let error = Process::start("x", Path::new("/no/such/program"), &[], folder.path()).err().unwrap();
        assert!(error.to_string().starts_with("x did not start"), "{error}");
    }
}
