//! A view of an array inside the mapped file: elements are decoded as they are iterated, strings are borrowed.

use crate::cursor::Cursor;
use crate::value::{ArrayAt, ValueType};
use crate::{Error, parse};

/// An array of one metadata key (or an inner array of it). Every element lies inside the file.
#[derive(Clone, Copy)]
pub struct Array<'a> {
    pub(crate) key: &'a str,
    pub(crate) file: &'a [u8],
    pub(crate) at: ArrayAt,
}

impl<'a> Array<'a> {
    pub fn len(&self) -> usize {
        self.at.count as usize
    }

    pub fn is_empty(&self) -> bool {
        self.at.count == 0
    }

    pub fn kind(&self) -> ValueType {
        self.at.kind
    }

    /// The strings as raw bytes: vocabularies may hold pieces that are not UTF-8.
    pub fn strings(self) -> Result<impl Iterator<Item = &'a [u8]>, Error> {
        let mut cursor = Cursor::new(self.file, self.expect(ValueType::String, "an array of strings")?.start);
        Ok((0..self.at.count).map(move |_| cursor.string("").expect("invariant: strings were walked when opened")))
    }

    pub fn f32s(self) -> Result<impl Iterator<Item = f32>, Error> {
        self.expect(ValueType::F32, "an array of f32")?;
        Ok(self.chunks::<4>().map(f32::from_le_bytes))
    }

    /// Integers of either 32-bit type; token types are written as i32 by some converters and u32 by others.
    pub fn i32s(self) -> Result<impl Iterator<Item = i32>, Error> {
        if self.at.kind != ValueType::U32 {
            self.expect(ValueType::I32, "an array of i32")?;
        }
        Ok(self.chunks::<4>().map(i32::from_le_bytes))
    }

    pub fn bools(self) -> Result<impl Iterator<Item = bool>, Error> {
        self.expect(ValueType::Bool, "an array of bool")?;
        Ok(self.chunks::<1>().map(|[byte]| byte != 0))
    }

    /// The inner arrays of an array of arrays.
    pub fn arrays(self) -> Result<impl Iterator<Item = Array<'a>>, Error> {
        let mut cursor = Cursor::new(self.file, self.expect(ValueType::Array, "an array of arrays")?.start);
        Ok((0..self.at.count).map(move |_| {
            let at = parse::array(&mut cursor, self.key, 0).expect("invariant: inner arrays were walked when opened");
            Array { at, ..self }
        }))
    }

    fn expect(&self, kind: ValueType, expected: &'static str) -> Result<ArrayAt, Error> {
        if self.at.kind == kind {
            return Ok(self.at);
        }
        let found = format!("an array of {} {:?}", self.at.count, self.at.kind);
        Err(Error::KeyType { key: self.key.to_owned(), found, expected })
    }

    fn chunks<const N: usize>(self) -> impl Iterator<Item = [u8; N]> {
        self.file[self.at.start..self.at.end].as_chunks::<N>().0.iter().copied()
    }
}
