//! A writer for small GGUF files: test models and fixtures, built in memory. Converting and quantising real models
//! is the business of other tools.

use crate::TensorType;
use crate::value::ValueType;

/// A metadata value to write. Integers and floats are 32 bits wide, which is what converters use.
#[derive(Clone, Debug)]
pub enum Entry {
    U32(u32),
    F32(f32),
    Bool(bool),
    String(String),
    Strings(Vec<Vec<u8>>),
    F32s(Vec<f32>),
    I32s(Vec<i32>),
    Arrays(Vec<Entry>),
}

impl Entry {
    pub fn strings<S: AsRef<[u8]>>(strings: impl IntoIterator<Item = S>) -> Self {
        Self::Strings(strings.into_iter().map(|string| string.as_ref().to_vec()).collect())
    }

    fn kind(&self) -> ValueType {
        match self {
            Self::U32(_) => ValueType::U32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::Strings(_) | Self::F32s(_) | Self::I32s(_) | Self::Arrays(_) => ValueType::Array,
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::U32(v) => out.extend(v.to_le_bytes()),
            Self::F32(v) => out.extend(v.to_le_bytes()),
            Self::Bool(v) => out.push(u8::from(*v)),
            Self::String(v) => string(out, v.as_bytes()),
            Self::Strings(vs) => {
                array(out, ValueType::String, vs.len());
                vs.iter().for_each(|v| string(out, v));
            }
            Self::F32s(vs) => {
                array(out, ValueType::F32, vs.len());
                out.extend(vs.iter().flat_map(|v| v.to_le_bytes()));
            }
            Self::I32s(vs) => {
                array(out, ValueType::I32, vs.len());
                out.extend(vs.iter().flat_map(|v| v.to_le_bytes()));
            }
            Self::Arrays(vs) => {
                array(out, ValueType::Array, vs.len());
                vs.iter().for_each(|v| v.write(out));
            }
        }
    }
}

/// Collects keys and tensors in order; [`finish`](Self::finish) lays them out as a version 3 file.
#[derive(Clone, Debug, Default)]
pub struct Writer {
    metadata: Vec<(String, Entry)>,
    tensors: Vec<(String, Vec<u64>, TensorType, Vec<u8>)>,
}

impl Writer {
    const ALIGNMENT: usize = 32;

    pub fn new() -> Self {
        Self::default()
    }

    #[must_use]
    pub fn key(mut self, key: &str, value: Entry) -> Self {
        self.metadata.push((key.to_owned(), value));
        self
    }

    /// `dims` in `ne` order, `data` as it shall lie in the file (already quantised).
    #[must_use]
    pub fn tensor(mut self, name: &str, dims: &[u64], kind: TensorType, data: Vec<u8>) -> Self {
        self.tensors.push((name.to_owned(), dims.to_vec(), kind, data));
        self
    }

    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            string(&mut out, key.as_bytes());
            out.extend(value.kind().id().to_le_bytes());
            value.write(&mut out);
        }
        let mut offset = 0;
        for (name, dims, kind, data) in &self.tensors {
            string(&mut out, name.as_bytes());
            out.extend((dims.len() as u32).to_le_bytes());
            out.extend(dims.iter().flat_map(|dim| dim.to_le_bytes()));
            out.extend(kind.id().to_le_bytes());
            out.extend((offset as u64).to_le_bytes());
            offset = (offset + data.len()).next_multiple_of(Self::ALIGNMENT);
        }
        for (.., data) in &self.tensors {
            out.resize(out.len().next_multiple_of(Self::ALIGNMENT), 0);
            out.extend(data);
        }
        out
    }
}

fn string(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u64).to_le_bytes());
    out.extend(bytes);
}

fn array(out: &mut Vec<u8>, kind: ValueType, count: usize) {
    out.extend(kind.id().to_le_bytes());
    out.extend((count as u64).to_le_bytes());
}
