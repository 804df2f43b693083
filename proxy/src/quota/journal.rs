//! What the embedded store keeps on disk: accounts with a long window and the leases that hold them, appended and synced
//! by a task of its own, so that a crash loses at most a second. The bytes are in `record`.
//!
//! The folder holds `lock`, owned by one living process, and `journal`, which is only ever appended to or replaced as a
//! whole. A copy of what is on disk stays in memory, so that replacing it asks nothing of the ledger.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

use super::Shared;
use super::changes::Changes;
use super::ledger::Ledger;
use super::store::Store;

mod record;

use record::{Fault, State};

/// Half the promised second, so that a slow write still ends within it.
const EVERY: Duration = Duration::from_millis(500);
/// Below this size a journal is not worth replacing.
const SMALL: u64 = 1 << 20;
/// How many times its compact size a journal may reach.
const SLACK: u64 = 4;

/// Why a journal cannot be used. Each needs a human: going on would give use back.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error("{}: another process keeps its quotas there; stop it, or give this one a `data_dir` of its own", .0.display())]
    Held(PathBuf),
    #[error(
        "{}: not a quota journal of this version (it starts with {found:?}); run the version that wrote it, or move \
         the file away, which forgets all use",
        path.display()
    )]
    Foreign { path: PathBuf, found: String },
    #[error(
        "{}: damaged at byte {at} ({what}); restore the file from a backup, or move it away, which forgets all use",
        path.display()
    )]
    Damaged { path: PathBuf, at: usize, what: String },
    #[error("{}: {source}; `data_dir` must be a folder that this process can write", path.display())]
    Io { path: PathBuf, source: io::Error },
}

#[derive(Debug)]
pub(super) struct Journal {
    writer: Mutex<Writer>,
    /// Held until this is dropped; the system gives it back when the process dies.
    _lock: File,
}

#[derive(Debug)]
struct Writer {
    path: PathBuf,
    file: File,
    size: u64,
    compact_size: u64,
    state: State,
    /// The file lacks some of `state`, so it must be replaced.
    behind: bool,
}

/// A change for better or worse, worth one line in the log.
#[derive(Debug)]
enum Turn {
    Failed(io::Error),
    Recovered,
}

impl Journal {
    /// Takes the folder for this process, reads what a former one left and writes it anew: that removes a torn tail
    /// and shows that the disk can be written.
    pub fn open(folder: &Path) -> Result<(Self, Ledger), JournalError> {
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| JournalError::Io { path, source }
        };
        std::fs::create_dir_all(folder).map_err(io(folder))?;
        let lock = lock(folder)?;
        let path = folder.join("journal");
        let state = read(&path)?;
        let (file, size) = replace(&path, &state).map_err(io(&path))?;
        let ledger = Ledger::restored(state.accounts(), state.leases());
        let writer = Writer { path, file, size, compact_size: size, state, behind: false };
        Ok((Self { writer: Mutex::new(writer), _lock: lock }, ledger))
    }

    /// `take` is called under this journal's own mutex, so that changes are written in the order they were taken.
    pub fn flush(&self, take: impl FnOnce() -> Changes) {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let path = writer.path.display().to_string();
        match writer.write(take()) {
            None => {}
            Some(Turn::Recovered) => tracing::info!(path, "the quota journal is written again, nothing is missing"),
            Some(Turn::Failed(error)) => tracing::error!(
                path,
                %error,
                "the quota journal cannot be written: calls go on, but a restart would forget their use from now on"
            ),
        }
    }
}

impl Writer {
    fn write(&mut self, changes: Changes) -> Option<Turn> {
        if changes.is_empty() && !self.behind {
            return None;
        }
        let payload = self.state.apply(changes);
        let result = if self.behind || self.size > SMALL.max(SLACK * self.compact_size) {
            self.replace()
        } else {
            self.append(&payload)
        };
        match (result, self.behind) {
            (Ok(()), false) => None,
            (Ok(()), true) => {
                self.behind = false;
                Some(Turn::Recovered)
            }
            (Err(_), true) => None,
            (Err(error), false) => {
                self.behind = true;
                Some(Turn::Failed(error))
            }
        }
    }

    fn append(&mut self, payload: &[u8]) -> io::Result<()> {
        if payload.is_empty() {
            return Ok(());
        }
        let frame = record::frame(payload);
        self.file.write_all(&frame)?;
        self.file.sync_data()?;
        self.size += frame.len() as u64;
        Ok(())
    }

    fn replace(&mut self) -> io::Result<()> {
        (self.file, self.size) = replace(&self.path, &self.state)?;
        self.compact_size = self.size;
        Ok(())
    }
}

fn lock(folder: &Path) -> Result<File, JournalError> {
    let path = folder.join("lock");
    let open = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
    let file = match open {
        Ok(file) => file,
        Err(source) => return Err(JournalError::Io { path, source }),
    };
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(JournalError::Held(folder.to_owned())),
        Err(TryLockError::Error(source)) => Err(JournalError::Io { path, source }),
    }
}

fn read(path: &Path) -> Result<State, JournalError> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(State::default()),
        Err(source) => return Err(JournalError::Io { path: path.to_owned(), source }),
    };
    let path = path.to_owned();
    match State::read(&bytes) {
        Ok((state, 0)) => Ok(state),
        Ok((state, torn)) => {
            tracing::warn!(path = %path.display(), bytes = torn, "the last write of the quota journal was cut short");
            Ok(state)
        }
        Err(Fault::Foreign(found)) => Err(JournalError::Foreign { path, found }),
        Err(Fault::Damaged { at, what }) => Err(JournalError::Damaged { path, at, what }),
    }
}

/// All or nothing: a new file, synced, takes the place of the old one.
fn replace(path: &Path, state: &State) -> io::Result<(File, u64)> {
    let new = path.with_extension("new");
    let bytes = state.whole();
    let mut file = File::create(&new)?;
    file.write_all(&bytes)?;
    file.sync_all()?;
    std::fs::rename(&new, path)?;
    if let Some(folder) = path.parent() {
        File::open(folder)?.sync_all()?;
    }
    Ok((file, bytes.len() as u64))
}

/// The task that writes; none without a journal.
pub(super) fn start(shared: &Arc<Shared>) -> Option<JoinHandle<()>> {
    if !matches!(&shared.store, Store::Memory(store) if store.is_journalled()) {
        return None;
    }
    let shared = shared.clone();
    Some(tokio::spawn(async move {
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            flush(&shared).await;
        }
    }))
}

pub(super) async fn flush(shared: &Arc<Shared>) {
    let shared = shared.clone();
    let write = move || {
        if let Store::Memory(store) = &shared.store {
            store.flush();
        }
    };
    if let Err(error) = tokio::task::spawn_blocking(write).await {
        tracing::error!(%error, "the quota journal's writer ended early");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quota::slots::Account;

    fn used(tokens: f64) -> Changes {
        let mut account = Account::default();
        account.totals.settled = tokens;
        Changes { accounts: vec![("a".into(), account)], leases: Vec::new() }
    }

    fn kept(folder: &Path) -> Vec<f64> {
        let state = read(&folder.join("journal")).unwrap();
        state.accounts().map(|(_, account)| account.totals.settled).collect()
    }

    /// The device answers every write with "no space left".
    #[test]
    fn a_full_disk_is_said_once_and_made_good_when_there_is_space() {
        let folder = tempfile::tempdir().unwrap();
        let (journal, _) = Journal::open(folder.path()).unwrap();
        let mut writer = journal.writer.lock().unwrap();
        assert!(writer.write(used(1.0)).is_none());
        writer.file = OpenOptions::new().write(true).open("/dev/full").unwrap();
        std::os::unix::fs::symlink("/dev/full", folder.path().join("journal.new")).unwrap();
        let full = writer.write(used(2.0));
        assert!(matches!(&full, Some(Turn::Failed(error)) if error.kind() == io::ErrorKind::StorageFull), "{full:?}");
        assert!(writer.write(used(3.0)).is_none() && writer.write(Changes::default()).is_none());
        assert_eq!(kept(folder.path()), [1.0]);
        std::fs::remove_file(folder.path().join("journal.new")).unwrap();
        assert!(matches!(writer.write(Changes::default()), Some(Turn::Recovered)));
        assert_eq!(kept(folder.path()), [3.0]);
        assert!(writer.write(used(4.0)).is_none());
        assert_eq!(kept(folder.path()), [4.0]);
    }
}
