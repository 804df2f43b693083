//! A gateway process (`penstock serve`) and the configuration it is started with. Tests write the parts they are about
//! as YAML, as a user would; addresses and the temporary folder are filled in here.

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::wait::free_address;
use crate::{Client, Process, environment, until};

/// How long a gateway may take to be ready on a busy machine.
const START: Duration = Duration::from_secs(20);

#[derive(Clone, Debug)]
pub struct Config {
    store: String,
    models: String,
    keys: String,
    quotas: String,
    rest: String,
    environment: Vec<(String, String)>,
}

#[derive(Debug)]
pub struct Gateway {
    pub process: Process,
    environment: Vec<(String, String)>,
    listen: SocketAddr,
    admin: SocketAddr,
    folder: tempfile::TempDir,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            store: "memory".into(),
            models: String::new(),
            keys: String::new(),
            quotas: String::new(),
            rest: String::new(),
            environment: Vec::new(),
        }
    }
}

impl Config {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn store(mut self, url: &str) -> Self {
        self.store = url.to_owned();
        self
    }

    /// A model with one upstream (its base URL with `/v1`) and the o200k tokenizer.
    pub fn model(self, name: &str, upstream: &str) -> Self {
        self.model_with(name, upstream, "tokenizer: o200k_base")
    }

    /// `more`: other fields of the model, one YAML line each.
    pub fn model_with(mut self, name: &str, upstream: &str, more: &str) -> Self {
        writeln!(self.models, "  - name: {name}").expect("a string grows");
        for line in more.lines() {
            writeln!(self.models, "    {line}").expect("a string grows");
        }
        writeln!(self.models, "    upstreams:\n      - {{ name: only, url: \"{upstream}\" }}").expect("a string grows");
        self
    }

    /// A key of `org/app/user`.
    pub fn key(mut self, secret: &str, path: &str) -> Self {
        let mut parts = path.split('/');
        let mut part = || parts.next().expect("a key's path is org/app/user");
        let (org, app, user) = (part(), part(), part());
        writeln!(self.keys, "  - {{ secret: \"{secret}\", org: {org}, app: {app}, user: {user} }}")
            .expect("a string grows");
        self
    }

    /// One rule, as it stands under `quotas:` after the dash, e.g. `{ level: org, match: acme, limits: [..] }`.
    pub fn quota(mut self, rule: &str) -> Self {
        writeln!(self.quotas, "  - {rule}").expect("a string grows");
        self
    }

    /// Top-level lines that have no method here, e.g. `lease: { ttl: 3s }`.
    pub fn line(mut self, yaml: &str) -> Self {
        writeln!(self.rest, "{yaml}").expect("a string grows");
        self
    }

    /// For the process itself.
    pub fn environment(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts a gateway with it and waits until it is ready. One `Config` may start several.
    pub async fn start(&self) -> Gateway {
        let mut gateway = self.launch();
        gateway.ready().await;
        gateway
    }

    /// Starts a gateway and does not wait: for those which are meant to fail.
    pub fn launch(&self) -> Gateway {
        self.launch_on(free_address())
    }

    pub fn launch_on(&self, listen: SocketAddr) -> Gateway {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let admin = free_address();
        let path: PathBuf = folder.path().join("penstock.yaml");
        fs::write(&path, self.yaml(listen, admin, folder.path())).expect("the config can be written");
        let environment = self.environment.clone();
        Gateway { process: serve(&path, &environment), environment, listen, admin, folder }
    }

    fn yaml(&self, listen: SocketAddr, admin: SocketAddr, folder: &std::path::Path) -> String {
        let mut yaml = format!("listen: {listen}\nadmin: {admin}\nstore: \"{}\"\n", self.store);
        writeln!(yaml, "data_dir: {}", folder.join("data").display()).expect("a string grows");
        writeln!(yaml, "access_log: {}", folder.join("access.jsonl").display()).expect("a string grows");
        yaml.push_str(&self.rest);
        for (name, entries) in [("models", &self.models), ("keys", &self.keys), ("quotas", &self.quotas)] {
            if !entries.is_empty() {
                write!(yaml, "{name}:\n{entries}").expect("a string grows");
            }
        }
        yaml
    }
}

impl Gateway {
    pub fn address(&self) -> SocketAddr {
        self.listen
    }

    /// Base URL without `/v1`.
    pub fn url(&self) -> String {
        format!("http://{}", self.listen)
    }

    pub fn client(&self, key: &str) -> Client {
        Client::new(self.url(), Some(key))
    }

    pub fn admin(&self) -> Client {
        Client::new(format!("http://{}", self.admin), None)
    }

    /// The sum of a metric's series on `/metrics`, over all labels that contain `labels`.
    pub async fn metric(&self, name: &str, labels: &str) -> f64 {
        metric(&self.admin().get("/metrics").await.text(), name, labels)
    }

    async fn ready(&mut self) {
        let (admin, process) = (self.admin(), &mut self.process);
        until(START, "the gateway to be ready", async || {
            process.assert_alive();
            (admin.try_get("/readyz").await? == 200).then_some(())
        })
        .await;
    }

    /// Starts it again on the same addresses, after a kill.
    pub async fn restart(&mut self) {
        self.process = serve(&self.config_file(), &self.environment);
        self.ready().await;
    }

    pub fn config_file(&self) -> PathBuf {
        self.folder.path().join("penstock.yaml")
    }
}

fn serve(config: &std::path::Path, environment: &[(String, String)]) -> Process {
    let mut command = Command::new(environment::penstock());
    command.args(["serve".as_ref(), "--config".as_ref(), config.as_os_str()]);
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    Process::start_with("gateway", &mut command)
}

/// Prometheus text: `name{labels} value` lines.
pub fn metric(text: &str, name: &str, labels: &str) -> f64 {
    text.lines()
        .filter_map(|line| line.strip_prefix(name))
        .filter(|rest| rest.starts_with(['{', ' ']) && rest.contains(labels))
        .filter_map(|rest| rest.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}
