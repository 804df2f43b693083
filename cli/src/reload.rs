//! Watches a configuration file and puts its changes in force while calls run.
//!
//! The content is compared, not the file: an editor saves by rename, a ConfigMap swaps a folder behind a symlink, and a
//! file that is being written is half there. SIGHUP asks to read it at once, changed or not.

use std::{fs, io, path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context;
use proxy::{
    Config, Proxy,
    config::{self as file_format, Problem},
};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    task::JoinHandle,
    time::{MissedTickBehavior, interval},
};

use crate::config;

/// Between two looks. A change is taken once two looks in a row saw the same, so it is in force in about twice that.
const LOOK: Duration = Duration::from_millis(500);

/// What a look saw: a digest of the content, or why there is none.
type Seen = Result<[u8; 32], io::ErrorKind>;

/// What the command makes of a file: `serve` takes it as it is, `up` adds its own to it.
type Complete = Box<dyn Fn(Config) -> anyhow::Result<Config> + Send>;

pub struct Watch {
    proxy: Arc<Proxy>,
    file: PathBuf,
    started: Config,
    complete: Complete,
    settled: Settled,
    hangup: Signal,
}

/// A watch that runs.
pub struct Watching(JoinHandle<()>);

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Tells a changed file from one that still changes.
struct Settled {
    /// What was last put in force, or tried.
    tried: Seen,
    last: Seen,
}

impl Settled {
    /// True once for each content that was seen twice in a row.
    fn changed(&mut self, seen: Seen) -> bool {
        let still = std::mem::replace(&mut self.last, seen) == seen;
        still && seen != self.tried
    }
}

impl Watch {
    /// `started`: what `complete` made of `file` when the gateway started.
    pub fn new(proxy: Arc<Proxy>, file: PathBuf, started: Config, complete: Complete) -> io::Result<Self> {
        let settled = Settled { tried: Ok(started.digest), last: Ok(started.digest) };
        Ok(Self { proxy, file, started, complete, settled, hangup: signal(SignalKind::hangup())? })
    }

    /// On the runtime, until what it returns is dropped.
    pub fn start(self) -> Watching {
        Watching(tokio::spawn(async {
            if let Err(error) = self.run().await {
                tracing::error!("the configuration is no longer watched: {error:#}");
            }
        }))
    }

    async fn run(mut self) -> anyhow::Result<()> {
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let asked = tokio::select! {
                _ = looks.tick() => false,
                _ = self.hangup.recv() => true,
            };
            // Files and tokenizers block.
            let looked = tokio::task::spawn_blocking(move || {
                self.look(asked);
                self
            });
            self = looked.await.context("the watch of the configuration panicked")?;
        }
    }

    fn look(&mut self, asked: bool) {
        let content = fs::read(&self.file);
        let seen = content.as_ref().map(|text| file_format::digest(text)).map_err(io::Error::kind);
        if self.settled.changed(seen) || asked {
            (self.settled.tried, self.settled.last) = (seen, seen);
            self.apply(content);
        }
    }

    fn apply(&self, content: io::Result<Vec<u8>>) {
        let text =
            content.and_then(|bytes| String::from_utf8(bytes).map_err(|error| io::Error::other(error.utf8_error())));
        let text = match text {
            Ok(text) => text,
            Err(error) => return self.refused(&[format!("cannot read {}: {error}", self.file.display())]),
        };
        let config = match config::check_text(&text, &self.file) {
            Ok(config) => config,
            Err(problems) => return self.refused(&problems.iter().map(Problem::to_string).collect::<Vec<_>>()),
        };
        let config = match (self.complete)(config) {
            Ok(config) => config,
            Err(error) => return self.refused(&[format!("{}: {error:#}", self.file.display())]),
        };
        if let Err(error) = self.proxy.reload(&config) {
            return self.told(&[format!("{}: {error}", self.file.display())]);
        }
        config.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
        let fixed = config.needs_restart(&self.started);
        if !fixed.is_empty() {
            tracing::warn!("{} changed, which takes a restart of the gateway; the rest is in force", fixed.join(", "));
        }
        tracing::info!(file = %self.file.display(), "the configuration was read again and is in force");
    }

    fn refused(&self, problems: &[String]) {
        self.proxy.config_refused();
        self.told(problems);
    }

    fn told(&self, problems: &[String]) {
        problems.iter().for_each(|problem| tracing::error!("{problem}"));
        tracing::error!("the configuration stays as it was");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_counts_once_and_only_when_it_has_settled() {
        let (old, half, new, gone) = (Ok([0; 32]), Ok([1; 32]), Ok([2; 32]), Err(io::ErrorKind::NotFound));
        let mut settled = Settled { tried: old, last: old };
        let mut look = |seen| {
            let changed = settled.changed(seen);
            if changed {
                settled.tried = seen;
            }
            changed
        };
        assert_eq!(
            [old, half, new, new, new, gone, new, gone, gone, gone].map(&mut look),
            [false, false, false, true, false, false, false, false, true, false]
        );
    }
}
