//! Large memory: anonymous mappings on huge pages, zero until touched; and slices that several threads write at
//! disjoint places. What is stored is not known here.
#![expect(unsafe_code, reason = "typed views of a byte mapping, and writes by several threads at once")]

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};
use std::{io, slice};

use memmap2::{Advice, MmapMut, MmapOptions};

/// Types for which any bytes are a value.
///
/// # Safety
/// Every bit pattern is valid, and the alignment divides that of a page.
pub unsafe trait Plain: Copy + Send + Sync {}

// SAFETY: plain numbers.
unsafe impl Plain for u8 {}
// SAFETY: plain numbers.
unsafe impl Plain for u16 {}
// SAFETY: plain numbers.
unsafe impl Plain for u64 {}
// SAFETY: plain numbers.
unsafe impl Plain for f32 {}
// SAFETY: an array has the layout of its elements.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

/// A slice in its own mapping.
pub struct Buffer<T> {
    map: Option<MmapMut>,
    len: usize,
    kind: PhantomData<T>,
}

impl<T: Plain> Buffer<T> {
    pub fn zeroed(len: usize) -> io::Result<Self> {
        let bytes = len.checked_mul(size_of::<T>()).ok_or(io::ErrorKind::OutOfMemory)?;
        if bytes == 0 {
            return Ok(Self { map: None, len: 0, kind: PhantomData });
        }
        // Not counted against swap before it is touched: a KV pool is reserved whole and used as sequences come.
        let map = MmapOptions::new().len(bytes).no_reserve_swap().map_anon()?;
        // Advice only: a kernel without huge pages runs the same, slower.
        #[cfg(target_os = "linux")]
        if bytes >= 4 << 20 && map.advise(Advice::HugePage).is_err() {
            tracing::debug!("no huge pages for {bytes} bytes");
        }
        Ok(Self { map: Some(map), len, kind: PhantomData })
    }
}

impl<T: Plain> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        let Some(map) = &self.map else { return &[] };
        // SAFETY: the mapping has len * size_of::<T>() bytes, starts on a page, and any bytes are a `T`.
        unsafe { slice::from_raw_parts(map.as_ptr().cast(), self.len) }
    }
}

impl<T: Plain> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        let Some(map) = &mut self.map else { return &mut [] };
        // SAFETY: as in `deref`; `&mut self` makes the view unique.
        unsafe { slice::from_raw_parts_mut(map.as_mut_ptr().cast(), self.len) }
    }
}

/// A slice that the tasks of one job write together, each at its own places.
pub struct Disjoint<'a, T> {
    start: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: access goes through `slice`, whose contract forbids overlap.
unsafe impl<T: Send> Send for Disjoint<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    pub fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), borrow: PhantomData }
    }

    /// # Safety
    /// No two slices that are alive at the same time overlap.
    #[expect(clippy::mut_from_ref, reason = "that is the purpose; the contract excludes aliasing")]
    pub unsafe fn slice(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "invariant: tasks stay inside the buffer");
        // SAFETY: inside the borrowed slice by the assertion, unique by this function's contract.
        unsafe { slice::from_raw_parts_mut(self.start.add(range.start), range.end - range.start) }
    }
}
