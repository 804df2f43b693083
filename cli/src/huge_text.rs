//! Puts the program's own code on huge pages. A call that comes after a pause runs a few hundred functions once each:
//! most of its time goes into finding their pages, not into running them. See docs/decisions/0008.

use crate::environment;

/// What came of it, for the log.
#[derive(Debug, PartialEq, Eq)]
pub enum HugeText {
    /// Bytes of code that now lie on huge pages.
    Moved(usize),
    Left(&'static str),
}

/// Moves the code to huge pages where the kernel has them. Nothing depends on it: what cannot be done is left.
pub fn adopt() {
    let outcome = if environment::may_move_code() { imp::adopt() } else { HugeText::Left("switched off") };
    tracing::debug!(?outcome, "code on huge pages");
}

#[cfg(target_os = "linux")]
mod imp {
    use std::{io, ops::Range, ptr};

    use super::HugeText;

    /// The size that x86-64 and most aarch64 kernels map transparently.
    const HUGE: usize = 2 << 20;

    pub fn adopt() -> HugeText {
        let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
        if setting.is_empty() || setting.contains("[never]") {
            return HugeText::Left("the kernel has no transparent huge pages");
        }
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let here = adopt as fn() -> HugeText as usize;
        let Some(text) = text_around(&maps, here).and_then(whole_pages) else {
            return HugeText::Left("there is less code than one huge page");
        };
        match move_to_huge_pages(&text) {
            Ok(()) => HugeText::Moved(text.len()),
            Err(_refused) => HugeText::Left("the kernel refused memory for code"),
        }
    }

    /// The executable mapping that holds `address`, from the text of `/proc/self/maps`.
    pub(super) fn text_around(maps: &str, address: usize) -> Option<Range<usize>> {
        maps.lines().find_map(|line| {
            let (bounds, rest) = line.split_once(' ')?;
            let (start, end) = bounds.split_once('-')?;
            let range = usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?;
            (rest.starts_with("r-xp") && range.contains(&address)).then_some(range)
        })
    }

    /// The huge pages that lie wholly inside.
    pub(super) fn whole_pages(text: Range<usize>) -> Option<Range<usize>> {
        let inner = text.start.next_multiple_of(HUGE)..text.end / HUGE * HUGE;
        (inner.start < inner.end).then_some(inner)
    }

    /// Copies `text` and puts the copy in its place: the same bytes at the same addresses, on other pages.
    #[expect(unsafe_code, reason = "memory maps have no safe wrapper in std")]
    fn move_to_huge_pages(text: &Range<usize>) -> io::Result<()> {
        let copy = Mapping::aligned(text.len())?;
        let place = ptr::with_exposed_provenance_mut::<libc::c_void>(text.start);
        // SAFETY: `text` is mapped readable for the life of the process; the copy is as long, writable and ours alone.
        // The last call replaces the mapping of `text` in one step, also for threads that run in it, by one that holds
        // the same bytes; where it fails, the old one is still there.
        unsafe {
            check(libc::madvise(copy.start, copy.len, libc::MADV_HUGEPAGE))?;
            ptr::copy_nonoverlapping(place.cast_const().cast::<u8>(), copy.start.cast(), copy.len);
            check(libc::mprotect(copy.start, copy.len, libc::PROT_READ | libc::PROT_EXEC))?;
            let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            if libc::mremap(copy.start, copy.len, copy.len, flags, place) == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
        }
        // It lies at `place` now, for good.
        std::mem::forget(copy);
        Ok(())
    }

    /// Private memory without a file, on a boundary of huge pages; given back when dropped.
    struct Mapping {
        start: *mut libc::c_void,
        len: usize,
    }

    impl Mapping {
        #[expect(unsafe_code, reason = "memory maps have no safe wrapper in std")]
        fn aligned(len: usize) -> io::Result<Self> {
            let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            // SAFETY: asks for new memory at an address of the kernel's choice.
            let all = unsafe { libc::mmap(ptr::null_mut(), len + HUGE, access, flags, -1, 0) };
            if all == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            let before = all.addr().next_multiple_of(HUGE) - all.addr();
            // SAFETY: `before` is less than `HUGE`, so all three parts lie in the new memory, which nobody else knows.
            let start = unsafe {
                let start = all.byte_add(before);
                if before > 0 {
                    libc::munmap(all, before);
                }
                libc::munmap(start.byte_add(len), HUGE - before);
                start
            };
            Ok(Self { start, len })
        }
    }

    impl Drop for Mapping {
        #[expect(unsafe_code, reason = "memory maps have no safe wrapper in std")]
        fn drop(&mut self) {
            // SAFETY: the memory is this value's own and was never handed out.
            unsafe { libc::munmap(self.start, self.len) };
        }
    }

    fn check(result: libc::c_int) -> io::Result<()> {
        if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

#[cfg(not(target_os = "linux"))]
mod imp {
    pub fn adopt() -> super::HugeText {
        super::HugeText::Left("only Linux lets a program move its code")
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::imp::{text_around, whole_pages};

    const MAPS: &str = "\
55edb075b000-55edb1085000 r--p 00000000 fe:00 53 /bin/penstock
55edb1085000-55edb1cce000 r-xp 00929000 fe:00 53 /bin/penstock
55edb1cce000-55edb1d70000 r--p 01571000 fe:00 53 /bin/penstock
7f44b434d000-7f44b4351000 r--p 00000000 00:00 0 [vvar]
not a line of maps";

    #[test]
    fn only_code_is_found_by_an_address_in_it() {
        assert_eq!(text_around(MAPS, 0x55ed_b108_5000), Some(0x55ed_b108_5000..0x55ed_b1cc_e000));
        assert_eq!(text_around(MAPS, 0x55ed_b1cc_dfff), Some(0x55ed_b108_5000..0x55ed_b1cc_e000));
        for elsewhere in [0, 0x55ed_b075_b000, 0x55ed_b1cc_e000, 0x7f44_b434_d000] {
            assert_eq!(text_around(MAPS, elsewhere), None, "{elsewhere:x}");
        }
    }

    #[test]
    fn what_does_not_fill_a_huge_page_stays() {
        let huge = 2 << 20;
        assert_eq!(whole_pages(huge..3 * huge), Some(huge..3 * huge));
        assert_eq!(whole_pages(huge + 1..3 * huge + 1), Some(2 * huge..3 * huge));
        assert_eq!(whole_pages(huge + 1..3 * huge - 1), None);
        assert_eq!(whole_pages(1..huge - 1), None);
    }
}
