//! An open model file: metadata by key, tensors by name, and the bytes of each tensor in the mapping.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::array::Array;
use crate::cursor::Cursor;
use crate::map::Map;
use crate::tensor::TensorInfo;
use crate::value::Value;
use crate::{Error, parse};

/// Opening checks everything that has a length, an offset or a count; later accesses cannot leave the file.
pub struct File {
    path: PathBuf,
    map: Map,
    version: u32,
    metadata: HashMap<String, Value>,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
}

impl File {
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::load(path.as_ref(), true)
    }

    /// Reads header and metadata only: [`tensors`](Self::tensors) is empty, a tensor type that the engine lacks does
    /// not matter, and only the first pages of the file are touched. For those who want the vocabulary.
    pub fn open_metadata(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::load(path.as_ref(), false)
    }

    fn load(path: &Path, with_tensors: bool) -> Result<Self, Error> {
        let map = Map::open(path).map_err(|source| Error::Open { path: path.to_owned(), source })?;
        let mut cursor = Cursor::new(map.bytes(), 0);
        let header = parse::header(&mut cursor)?;
        let metadata = parse::metadata(&mut cursor, &header)?;
        let tensors = match with_tensors {
            true => parse::tensors(&mut cursor, &header, &metadata, map.bytes().len() as u64)?,
            false => Vec::new(),
        };
        let by_name = tensors.iter().enumerate().map(|(index, tensor)| (tensor.name.clone(), index)).collect();
        Ok(Self { path: path.to_owned(), version: header.version, map, metadata, tensors, by_name })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn version(&self) -> u32 {
        self.version
    }

    /// Length of the whole file in bytes.
    pub fn len(&self) -> u64 {
        self.map.bytes().len() as u64
    }

    pub fn is_empty(&self) -> bool {
        self.map.bytes().is_empty()
    }

    pub fn metadata(&self, key: &str) -> Option<&Value> {
        self.metadata.get(key)
    }

    pub fn keys(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.metadata.iter().map(|(key, value)| (key.as_str(), value))
    }

    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).map(|&index| &self.tensors[index])
    }

    /// The tensor's data as it lies in the file; `tensor` must come from this file.
    pub fn bytes(&self, tensor: &TensorInfo) -> &[u8] {
        &self.map.bytes()[tensor.offset as usize..(tensor.offset + tensor.len) as usize]
    }

    /// Gives the tensor's resident pages back to the system once its data was copied elsewhere (repacked weights);
    /// reading it again works and reads the file again.
    pub fn release(&self, tensor: &TensorInfo) -> std::io::Result<()> {
        self.map.release(tensor.offset as usize..(tensor.offset + tensor.len) as usize)
    }

    pub fn u64(&self, key: &str) -> Result<u64, Error> {
        required(key, self.opt_u64(key)?)
    }

    pub fn opt_u64(&self, key: &str) -> Result<Option<u64>, Error> {
        self.typed(key, "a non-negative integer", Value::as_u64)
    }

    pub fn u32(&self, key: &str) -> Result<u32, Error> {
        required(key, self.opt_u32(key)?)
    }

    pub fn opt_u32(&self, key: &str) -> Result<Option<u32>, Error> {
        self.typed(key, "an integer from 0 to 2^32 - 1", |value| value.as_u64()?.try_into().ok())
    }

    pub fn f32(&self, key: &str) -> Result<f32, Error> {
        required(key, self.opt_f32(key)?)
    }

    pub fn opt_f32(&self, key: &str) -> Result<Option<f32>, Error> {
        self.typed(key, "a floating-point number", Value::as_f32)
    }

    pub fn bool(&self, key: &str) -> Result<bool, Error> {
        required(key, self.opt_bool(key)?)
    }

    pub fn opt_bool(&self, key: &str) -> Result<Option<bool>, Error> {
        self.typed(key, "a bool", Value::as_bool)
    }

    pub fn str(&self, key: &str) -> Result<&str, Error> {
        required(key, self.opt_str(key)?)
    }

    pub fn opt_str(&self, key: &str) -> Result<Option<&str>, Error> {
        self.typed(key, "a string", Value::as_str)
    }

    pub fn array(&self, key: &str) -> Result<Array<'_>, Error> {
        required(key, self.opt_array(key)?)
    }

    pub fn opt_array(&self, key: &str) -> Result<Option<Array<'_>>, Error> {
        let Some((key, value)) = self.metadata.get_key_value(key) else { return Ok(None) };
        match value {
            Value::Array(at) => Ok(Some(Array { key, file: self.map.bytes(), at: *at })),
            other => Err(Error::KeyType { key: key.clone(), found: other.to_string(), expected: "an array" }),
        }
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let Some(value) = self.metadata.get(key) else { return Ok(None) };
        match read(value) {
            Some(typed) => Ok(Some(typed)),
            None => Err(Error::KeyType { key: key.to_owned(), found: value.to_string(), expected }),
        }
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File").field("path", &self.path).field("tensors", &self.tensors.len()).finish_non_exhaustive()
    }
}

fn required<T>(key: &str, value: Option<T>) -> Result<T, Error> {
    value.ok_or_else(|| Error::MissingKey { key: key.to_owned() })
}
