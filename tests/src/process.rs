//! One child process: its log on disk, its memory, its end. It is killed when dropped, and when the test fails the
//! end of its log is printed.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::{environment, until};

/// Lines of a log that a failing test prints.
const TAIL: usize = 40;

#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `program` with both outputs going to a fresh log file.
    pub fn start<A: AsRef<OsStr>>(name: &str, program: &Path, args: impl IntoIterator<Item = A>) -> Self {
        Self::start_with(name, Command::new(program).args(args))
    }

    pub fn start_with(name: &str, command: &mut Command) -> Self {
        let log = fresh_log(name);
        let out = File::create(&log).expect("a log file can be made");
        let err = out.try_clone().expect("a log file can be shared");
        let child = command
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .spawn()
            .unwrap_or_else(|error| panic!("{name}: cannot start {:?}: {error}", command.get_program()));
        Self { name: name.to_owned(), child, log }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn log(&self) -> String {
        fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// SIGKILL: the process gets no chance to clean up.
    pub fn kill(&mut self) {
        self.child.kill().expect("a child can be killed");
        self.child.wait().expect("a killed child can be waited for");
    }

    /// SIGINT to it alone.
    pub fn interrupt(&self) {
        self.signal("-INT");
    }

    /// SIGHUP: a wish to read its configuration again.
    pub fn hang_up(&self) {
        self.signal("-HUP");
    }

    /// What a Ctrl-C in a terminal sends: to it and to all that it started, if it leads a process group.
    pub fn interrupt_group(&self) {
        self.shell_kill("-INT", &format!("-{}", self.id()));
    }

    /// Stops it from running, without ending it: to its peers it hangs.
    pub fn freeze(&self) {
        self.signal("-STOP");
    }

    pub fn thaw(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        self.shell_kill(signal, &self.id().to_string());
    }

    /// The shell's own `kill`: the program of that name is not on every machine.
    fn shell_kill(&self, signal: &str, target: &str) {
        let line = format!("kill {signal} {target}");
        let status = Command::new("sh").args(["-c", &line]).status().expect("`sh` runs");
        assert!(status.success(), "{}: {line} failed", self.name);
    }

    pub fn exited(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child's state can be read")
    }

    /// Its exit status, which must come within `limit`.
    pub async fn wait(&mut self, limit: Duration) -> ExitStatus {
        let name = self.name.clone();
        until(limit, &format!("{name} to exit"), async || self.exited()).await
    }

    /// The processes that it has started and that still run.
    pub fn children(&self) -> Vec<u32> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.id())).expect("a living process");
        tasks
            .map(|task| task.expect("a readable entry").path().join("children"))
            .flat_map(|path| {
                // A thread may end while its file is read.
                let list = fs::read_to_string(path).unwrap_or_default();
                list.split_whitespace().map(|id| id.parse().expect("a process id")).collect::<Vec<_>>()
            })
            .collect()
    }

    /// Resident memory in bytes.
    pub fn rss(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.id())).expect("a living process");
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("VmRSS in /proc/PID/status");
        let kib: u64 = line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("VmRSS is a number of kB");
        kib * 1024
    }

    /// Fails with the log when the process ended: waiting for its port would hide why.
    pub fn assert_alive(&mut self) {
        if let Some(status) = self.exited() {
            panic!("{} ended at once: {status}\n{}", self.name, self.tail());
        }
    }

    fn tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(TAIL)..].join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            // It may end by itself in this moment; either way it is gone afterwards.
            self.child.kill().ok();
            self.child.wait().ok();
        }
        if std::thread::panicking() {
            eprintln!("---- {} ({})\n{}", self.name, self.log.display(), self.tail());
        }
    }
}

/// `target/test-logs/TEST/NN-NAME.log`. The runner names a test's thread after the test.
fn fresh_log(name: &str) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let thread = std::thread::current();
    let test = match thread.name() {
        Some(test) if test != "main" => test.replace("::", "."),
        _ => format!("process-{}", std::process::id()),
    };
    let folder = environment::log_root().join(test);
    fs::create_dir_all(&folder).expect("the log folder can be made");
    folder.join(format!("{:02}-{name}.log", NEXT.fetch_add(1, Ordering::Relaxed)))
}
