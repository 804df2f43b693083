//! The scripts and how a call of one is put together.

use std::sync::LazyLock;

use redis::{Cmd, Script};

use crate::quota::chain::Chain;
use crate::quota::lease::LeaseId;

pub struct Scripts {
    pub reserve: Source,
    pub amend: Source,
    pub extend: Source,
    pub renew: Source,
    pub settle: Source,
    pub batch: Source,
    pub cancel: Source,
    pub expire: Source,
    pub turn: Source,
    pub leave: Source,
    pub correct: Source,
    pub due: Source,
    pub beat: Source,
    pub exchange: Source,
}

/// A script's text and the digest by which the server knows it.
pub struct Source {
    pub text: &'static str,
    pub digest: String,
}

/// A script with the parts it needs in front; each part costs time at every call.
macro_rules! script {
    ($($file:literal),+) => {
        Source::new(concat!(include_str!("../lua/common.lua"), $(include_str!(concat!("../lua/", $file))),+))
    };
}

pub static SCRIPTS: LazyLock<Scripts> = LazyLock::new(|| Scripts {
    reserve: script!("hold.lua", "write_hold.lua", "reserve.lua"),
    amend: script!("hold.lua", "write_hold.lua", "resolve.lua", "amend.lua"),
    extend: script!("hold.lua", "write_hold.lua", "extend.lua"),
    renew: script!("hold.lua", "write_hold.lua", "renew.lua"),
    batch: script!("hold.lua", "resolve.lua", "batch.lua"),
    settle: script!("resolve.lua", "settle.lua"),
    cancel: script!("resolve.lua", "cancel.lua"),
    expire: script!("resolve.lua", "expire.lua"),
    turn: script!("hold.lua", "write_hold.lua", "line.lua", "turn.lua"),
    leave: script!("line.lua", "leave.lua"),
    correct: script!("line.lua", "correct.lua"),
    due: Source::new(include_str!("../lua/due.lua")),
    beat: Source::new(include_str!("../lua/beat.lua")),
    exchange: Source::new(include_str!("../lua/exchange.lua")),
});

impl Source {
    fn new(text: &'static str) -> Self {
        Self { text, digest: Script::new(text).get_hash().to_owned() }
    }
}

/// One call: keys are the lease, the org's deadlines, and the accounts; the first argument is the lease id.
#[derive(Clone)]
pub struct Call {
    source: &'static Source,
    keys: Vec<String>,
    args: Vec<Vec<u8>>,
}

impl Call {
    pub fn new(source: &'static Source, chain: &Chain, id: LeaseId) -> Self {
        Self::on_keys(source, &chain.tag, id, chain.accounts.iter().map(|account| account.key.as_str()))
    }

    pub fn on_keys<'k>(
        source: &'static Source,
        tag: &str,
        id: LeaseId,
        accounts: impl Iterator<Item = &'k str>,
    ) -> Self {
        let mut keys = vec![lease_key(tag, id), deadlines_key(tag)];
        keys.extend(accounts.map(str::to_owned));
        Self { source, keys, args: vec![id.to_string().into_bytes()] }
    }

    /// A call on plain keys, without a lease.
    pub fn plain(source: &'static Source, keys: Vec<String>) -> Self {
        Self { source, keys, args: Vec::new() }
    }

    pub fn arg(mut self, arg: impl AsRef<[u8]>) -> Self {
        self.args.push(arg.as_ref().to_vec());
        self
    }

    /// One of its keys, all of which are in one slot of a Cluster.
    pub fn key(&self) -> &str {
        self.keys.first().map_or("", String::as_str)
    }

    /// By digest: the usual form.
    pub fn by_digest(&self) -> Cmd {
        self.command("EVALSHA", &self.source.digest)
    }

    /// With its text, which also loads it: after a restart, a failover or SCRIPT FLUSH.
    pub fn with_text(&self) -> Cmd {
        self.command("EVAL", self.source.text)
    }

    fn command(&self, name: &str, script: &str) -> Cmd {
        let mut command = redis::cmd(name);
        command.arg(script).arg(self.keys.len());
        for key in &self.keys {
            command.arg(key);
        }
        for arg in &self.args {
            command.arg(arg.as_slice());
        }
        command
    }
}

pub fn lease_key(tag: &str, id: LeaseId) -> String {
    format!("ps1:{{{tag}}}:L:{id}")
}

pub fn deadlines_key(tag: &str) -> String {
    format!("ps1:{{{tag}}}:dl")
}

/// Gateways by the time of their last beat.
pub fn gateways_key(tag: &str) -> String {
    format!("ps1:{{{tag}}}:gw")
}
