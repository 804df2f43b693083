//! Ctrl-C, SIGTERM and SIGHUP: the first asks for an orderly end, a second Ctrl-C or SIGTERM ends at once. Where a
//! configuration is watched, SIGHUP is `reload`'s.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// What a shell reports for a program ended by Ctrl-C.
const INTERRUPTED: i32 = 130;

/// What SIGHUP means, which a terminal sends when it closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hangup {
    Ends,
    /// A wish to read the configuration again: see `reload`.
    Rereads,
}

pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// Held in any case: without it SIGHUP would kill the process before the watch of its configuration begins.
    hangup: Signal,
    hangup_ends: bool,
}

impl Signals {
    pub fn install(hangup: Hangup) -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
            hangup_ends: hangup == Hangup::Ends,
        })
    }

    /// Waits for the next that asks for the end. Cancel-safe.
    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hangup.recv(), if self.hangup_ends => {}
        }
    }

    /// Waits for the wish to end; from then on a second one is obeyed at once, whatever still runs. A closing terminal
    /// may send SIGHUP twice, which is still one wish.
    pub async fn shutdown(mut self) {
        self.next().await;
        self.hangup_ends = false;
        tracing::info!("finishing what runs; a second signal ends at once");
        tokio::spawn(async move {
            self.next().await;
            std::process::exit(INTERRUPTED);
        });
    }
}
