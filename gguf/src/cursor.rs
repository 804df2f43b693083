//! Bounds-checked little-endian reading from a byte slice. Every length is checked before it is used.

use crate::Error;

/// A position in the file, and what is being read there (for errors).
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at }
    }

    pub(crate) fn at(&self) -> usize {
        self.at
    }

    pub(crate) fn remaining(&self) -> u64 {
        self.bytes.len().saturating_sub(self.at) as u64
    }

    pub(crate) fn take(&mut self, len: u64, place: &str) -> Result<&'a [u8], Error> {
        if len > self.remaining() {
            let (offset, have) = (self.at as u64, self.bytes.len() as u64);
            return Err(Error::Truncated { place: place.to_owned(), offset, needed: len, len: have });
        }
        let end = self.at + len as usize;
        let bytes = &self.bytes[self.at..end];
        self.at = end;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self, place: &str) -> Result<[u8; N], Error> {
        let bytes = self.take(N as u64, place)?;
        Ok(bytes.try_into().expect("invariant: take returns the length asked for"))
    }

    pub(crate) fn u8(&mut self, place: &str) -> Result<u8, Error> {
        Ok(self.array::<1>(place)?[0])
    }

    pub(crate) fn u16(&mut self, place: &str) -> Result<u16, Error> {
        self.array(place).map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self, place: &str) -> Result<u32, Error> {
        self.array(place).map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self, place: &str) -> Result<u64, Error> {
        self.array(place).map(u64::from_le_bytes)
    }

    /// A GGUF string: a 64-bit length and that many bytes.
    pub(crate) fn string(&mut self, place: &str) -> Result<&'a [u8], Error> {
        let len = self.u64(place)?;
        self.take(len, place)
    }
}
