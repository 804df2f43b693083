//! The YAML file of the gateway, checked and turned into values that the rest of the crate uses as they are.
//! Reading the file, the environment and the command line is the caller's part.

mod doubts;
mod failure;
mod holding;
mod on_limit;
mod problem;
mod read;
mod rules;
mod schema;
mod sections;
#[cfg(test)]
mod tests;
mod tiers;
mod tree;
mod units;
mod upstream_url;

use std::{collections::HashMap, fmt, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

pub use problem::{Place, Problem};
pub use schema::schema;
use sha2::{Digest, Sha256};
pub(crate) use upstream_url::socket_path;
pub use upstream_url::{Transport, UpstreamUrl};
use wire::slo::Slo;

use crate::quota;

/// A valid configuration. Made by [`check`] only.
#[derive(Clone, Debug)]
pub struct Config {
    pub listen: SocketAddr,
    pub admin: SocketAddr,
    pub store: StoreUrl,
    /// The longest that a call waits for a store that says nothing.
    pub store_timeout: Duration,
    /// The most gateways that share the store at a time.
    pub replicas: usize,
    pub data_dir: PathBuf,
    pub lease: Lease,
    pub limits: Limits,
    pub access_log: AccessLog,
    pub models: Vec<Model>,
    pub keys: Vec<Key>,
    /// The highest first.
    pub tiers: Vec<Arc<quota::Tier>>,
    pub quotas: Vec<quota::Rule>,
    /// SHA-256 of the file.
    pub digest: [u8; 32],
    /// What is allowed but will not do what its author hopes.
    pub warnings: Vec<Problem>,
}

#[derive(Clone, PartialEq, Eq)]
pub enum StoreUrl {
    Memory,
    Redis(String),
}

/// For messages: without user and password.
impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Redis(url) = self else { return f.write_str("memory") };
        let (scheme, rest) = url.split_once("://").unwrap_or(("redis", url));
        let (rest, _logins) = rest.split_once('?').unwrap_or((rest, ""));
        let host = rest.rsplit_once('@').map_or(rest, |(_login, host)| host);
        write!(f, "{scheme}://{host}")
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    pub ttl: Duration,
    pub on_expiry: OnExpiry,
}

/// What the reclaim of an expired lease charges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnExpiry {
    Charge,
    Refund,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest request body.
    pub body: usize,
    /// For all of a request body to arrive.
    pub body_timeout: Duration,
    /// Bytes of all request bodies that are held at the same time.
    pub body_budget: usize,
    pub in_flight: usize,
    /// For the head of a client's request.
    pub header_timeout: Duration,
    /// For a connection to an upstream.
    pub connect_timeout: Duration,
    /// For the head of an upstream's answer: a whole generation, when the call does not stream.
    pub response_timeout: Duration,
    /// Between two pieces of a body, from a client or from an upstream.
    pub idle_stream_timeout: Duration,
    pub keepalive_interval: Duration,
    /// For running answers to end, once the process is asked to.
    pub drain: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessLog {
    Off,
    Stdout,
    File(PathBuf),
}

#[derive(Clone, Debug)]
pub struct Model {
    pub name: String,
    pub aliases: Vec<String>,
    pub tokenizer: TokenizerSource,
    pub default_max_tokens: u64,
    pub price: quota::Price,
    pub slo: Option<Slo>,
    pub upstreams: Vec<Upstream>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenizerSource {
    /// `o200k_base` or `cl100k_base`.
    Builtin(String),
    Gguf(PathBuf),
    File(PathBuf),
}

#[derive(Clone)]
pub struct Upstream {
    pub name: String,
    pub url: UpstreamUrl,
    pub api_key: Option<String>,
    pub weight: u32,
    /// What this upstream calls the model, if not by our name.
    pub model: Option<String>,
}

/// Without the key.
impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstream").field("name", &self.name).field("url", &self.url).finish_non_exhaustive()
    }
}

#[derive(Clone)]
pub struct Key {
    pub sha256: [u8; 32],
    pub org: Option<String>,
    pub app: Option<String>,
    pub user: Option<String>,
    /// `None` where there are no tiers.
    pub tier: Option<Arc<quota::Tier>>,
}

impl Key {
    /// Who pays for its calls.
    pub fn subject(&self) -> quota::Subject {
        let (org, app, user) = (self.org.clone(), self.app.clone(), self.user.clone());
        quota::Subject { org, app, user, tier: self.tier.clone() }
    }
}

/// The digest stays out of logs: it would confirm a guessed key.
impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Key").field("org", &self.org).field("app", &self.app).field("user", &self.user).finish()
    }
}

impl Config {
    /// Fields of the file that differ from those a gateway was started with and that it cannot change while it runs.
    pub fn needs_restart(&self, started: &Self) -> Vec<&'static str> {
        [
            ("listen", self.listen != started.listen),
            ("admin", self.admin != started.admin),
            ("store", self.store != started.store),
            ("store_timeout", self.store_timeout != started.store_timeout),
            ("replicas", self.replicas != started.replicas),
            ("data_dir", self.data_dir != started.data_dir),
            ("lease", self.lease != started.lease),
            ("limits", self.limits != started.limits),
            ("access_log", self.access_log != started.access_log),
        ]
        .into_iter()
        .filter_map(|(field, differs)| differs.then_some(field))
        .collect()
    }
}

/// The digest by which [`check`] knows a file.
pub fn digest(text: &[u8]) -> [u8; 32] {
    Sha256::digest(text).into()
}

/// Checks the text of a configuration file. `filename` is only for messages; `env` is what `${NAME}` may name.
pub fn check(text: &str, filename: &str, env: &HashMap<String, String>) -> Result<Config, Vec<Problem>> {
    let name_file = |mut problems: Vec<Problem>| {
        problems.iter_mut().for_each(|problem| problem.file = filename.to_owned());
        problems
    };
    let root = tree::parse(text, env).map_err(name_file)?;
    let report = read::Report::default();
    let config = sections::file(read::At { node: &root, path: "", report: &report });
    let (problems, warnings) = report.finish();
    match config {
        Some(config) if problems.is_empty() => {
            Ok(Config { digest: digest(text.as_bytes()), warnings: name_file(warnings), ..config })
        }
        _ => Err(name_file(problems)),
    }
}
