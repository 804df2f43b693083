//! The mapping of the file into memory: the only unsafe code of this crate. Nothing here knows the format.

use std::fs;
use std::io;
use std::ops::Range;
use std::path::Path;

use memmap2::{Mmap, UncheckedAdvice};

/// A whole file, mapped read-only. Pages are read when first touched, so mapping a large file costs nothing.
pub(crate) struct Map(Mmap);

impl Map {
    #[expect(unsafe_code, reason = "mapping a file is unsafe by nature")]
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = fs::File::open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        // SAFETY: the mapping is private and read-only. The one hazard left is that somebody else truncates or
        // rewrites the file in place while it is mapped; model files are complete before they get their name (the
        // downloader renames) and are replaced by rename, which leaves an existing mapping intact.
        let map = unsafe { Mmap::map(&file)? };
        Ok(Self(map))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Lets the kernel drop the resident pages of a range; reading it again faults them back in from the file.
    #[expect(unsafe_code, reason = "madvise(DONTNEED) is unsafe for writable or anonymous memory")]
    pub(crate) fn release(&self, range: Range<usize>) -> io::Result<()> {
        // The kernel rounds the length up to whole pages: shrink the range to pages that lie wholly inside, so that
        // a neighbour's pages stay resident.
        const PAGE: usize = 4096;
        let start = range.start.next_multiple_of(PAGE);
        let end = range.end.min(self.0.len()) / PAGE * PAGE;
        if start >= end {
            return Ok(());
        }
        // SAFETY: this map is file-backed and never written, so a dropped page has the same content when it returns.
        unsafe { self.0.unchecked_advise_range(UncheckedAdvice::DontNeed, start, end - start) }
    }
}
