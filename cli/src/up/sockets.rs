//! The folder of the engines' sockets. It is locked as long as it is in use, which tells it from one that a killed
//! `penstock up` left behind: the next start removes those.

use std::{
    fs::{self, File},
    io::{self, ErrorKind},
    os::unix::fs::FileTypeExt,
    path::Path,
};

use tempfile::TempDir;

const PREFIX: &str = "penstock-up-";

/// Removed when dropped.
pub struct Sockets {
    folder: TempDir,
    /// Released after the folder is gone.
    _lock: File,
}

impl Sockets {
    pub fn make(parent: &Path) -> io::Result<Self> {
        remove_leftovers(parent)?;
        loop {
            let folder = tempfile::Builder::new().prefix(PREFIX).tempdir_in(parent)?;
            match File::open(folder.path()) {
                Ok(lock) => {
                    lock.lock()?;
                    if folder.path().exists() {
                        return Ok(Self { folder, _lock: lock });
                    }
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            // Another start took the folder for a leftover before it was locked.
        }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

fn remove_leftovers(parent: &Path) -> io::Result<()> {
    for entry in fs::read_dir(parent)? {
        let entry = entry?;
        let named_so = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        if named_so && let Err(error) = remove_leftover(&entry.path()) {
            // That of another user, or one with something else in it.
            tracing::debug!(%error, folder = %entry.path().display(), "not removed");
        }
    }
    Ok(())
}

/// Removes sockets and the then empty folder, nothing else.
fn remove_leftover(folder: &Path) -> io::Result<()> {
    if !folder.symlink_metadata()?.is_dir() {
        return Err(ErrorKind::NotADirectory.into());
    }
    let lock = File::open(folder)?;
    lock.try_lock()?;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_socket() {
            fs::remove_file(entry.path())?;
        }
    }
    fs::remove_dir(folder)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn what_a_killed_start_left_is_removed_and_nothing_else() {
        let parent = tempfile::tempdir().unwrap();
        let folder = |name: &str| {
            let path = parent.path().join(name);
            fs::create_dir(&path).unwrap();
            path
        };
        let (left, empty) = (folder("penstock-up-killed"), folder("penstock-up-empty"));
        drop(UnixListener::bind(left.join("0.sock")).unwrap());
        let (full, other) = (folder("penstock-up-full"), folder("penstock-other"));
        fs::write(full.join("note"), "mine").unwrap();
        let running = Sockets::make(parent.path()).unwrap();
        assert!(!left.exists() && !empty.exists(), "leftovers stayed");
        let second = Sockets::make(parent.path()).unwrap();
        assert!(full.join("note").exists() && other.exists() && running.path().exists());
        let path = second.path().to_owned();
        drop(second);
        assert!(!path.exists());
    }
}
