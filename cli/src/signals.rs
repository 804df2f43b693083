//! Ctrl-C and SIGTERM: the first asks for an orderly end, the second ends at once.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// What a shell reports for a program ended by Ctrl-C.
const INTERRUPTED: i32 = 130;

pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    pub fn install() -> io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Waits for the next of the two. Cancel-safe.
    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    /// Waits for the wish to end; from then on a second one is obeyed at once, whatever still runs.
    pub async fn shutdown(mut self) {
        self.next().await;
        tracing::info!("finishing what runs; a second signal ends at once");
        tokio::spawn(async move {
            self.next().await;
            std::process::exit(INTERRUPTED);
        });
    }
}
