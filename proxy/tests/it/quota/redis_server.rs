//! A real redis-server of our own, on a Unix socket in a temporary folder; killed when dropped.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub struct RedisServer {
    dir: tempfile::TempDir,
    extra: Vec<String>,
    child: Child,
}

impl RedisServer {
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// With further `--option value` arguments.
    pub fn with(extra: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let extra: Vec<String> = extra.iter().map(|&arg| arg.to_owned()).collect();
        let child = spawn(&dir.path().join("redis.sock"), &extra);
        let mut server = Self { dir, extra, child };
        server.wait();
        server
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("redis.sock")
    }

    pub fn url(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    pub fn connection(&self) -> redis::Connection {
        redis::Client::open(self.url()).unwrap().get_connection().unwrap()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// SIGSTOP: it accepts connections and never answers.
    pub fn freeze(&self) {
        self.signal(libc::SIGSTOP);
    }

    pub fn thaw(&self) {
        self.signal(libc::SIGCONT);
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        // A killed server leaves its socket behind.
        fs::remove_file(self.socket()).unwrap();
    }

    /// Again, and empty: nothing was written to disk.
    pub fn restart(&mut self) {
        self.child = spawn(&self.socket(), &self.extra);
        self.wait();
    }

    /// CPU time of the server so far.
    pub fn cpu(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap();
        let after_name = stat.rsplit(')').next().unwrap();
        let fields: Vec<&str> = after_name.split_whitespace().collect();
        let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        // USER_HZ is 100 on every Linux we run on.
        Duration::from_millis(ticks * 10)
    }

    fn signal(&self, signal: i32) {
        let status = Command::new("kill").arg(format!("-{signal}")).arg(self.pid().to_string()).status().unwrap();
        assert!(status.success());
    }

    fn wait(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while std::os::unix::net::UnixStream::connect(self.socket()).is_err() {
            assert!(self.child.try_wait().unwrap().is_none(), "redis-server ended at start");
            assert!(Instant::now() < deadline, "redis-server did not start within 10 s");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        // It may have been killed by the test already.
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}

fn spawn(socket: &std::path::Path, extra: &[String]) -> Child {
    // What it persists goes beside its socket, never into the folder of the tests.
    let folder = socket.parent().expect("invariant: the socket lies in our folder");
    Command::new("redis-server")
        .current_dir(folder)
        .args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"])
        .arg(socket)
        .args(extra)
        .stdout(Stdio::null())
        .spawn()
        .expect("redis-server must be installed: apt-get install -y redis-server")
}
