//! Header, metadata and tensor table: bytes to checked values. No allocation is larger than the bytes behind it,
//! counts are bounded before they are believed, and nothing here panics on any input.

use std::collections::{HashMap, HashSet};

use crate::Error;
use crate::cursor::Cursor;
use crate::tensor::{TensorInfo, TensorType, foreign_name};
use crate::value::{ArrayAt, Value, ValueType};

const MAX_KEYS: u64 = 1 << 16;
const MAX_TENSORS: u64 = 1 << 17;
/// The specification's bound for keys; names of tensors are shorter still.
const MAX_NAME: u64 = (1 << 16) - 1;
const MAX_DIMS: u32 = 4;
const MAX_NESTING: u32 = 4;
const DEFAULT_ALIGNMENT: u64 = 32;

pub(crate) struct Header {
    pub(crate) version: u32,
    tensors: u64,
    keys: u64,
}

pub(crate) fn header(cursor: &mut Cursor<'_>) -> Result<Header, Error> {
    let magic = cursor.take(cursor.remaining().min(4), "magic")?;
    if magic != b"GGUF" {
        return Err(Error::NotGguf { found: magic.to_vec() });
    }
    let version = cursor.u32("version")?;
    match version {
        2 | 3 => {}
        // A version that is small only when its bytes are swapped.
        _ if version & 0xFFFF == 0 && version != 0 => return Err(Error::BigEndian),
        _ => return Err(Error::Version { found: version }),
    }
    let tensors = limit("tensor count", cursor.u64("tensor count")?, MAX_TENSORS)?;
    let keys = limit("metadata count", cursor.u64("metadata count")?, MAX_KEYS)?;
    Ok(Header { version, tensors, keys })
}

pub(crate) fn metadata(cursor: &mut Cursor<'_>, header: &Header) -> Result<HashMap<String, Value>, Error> {
    let mut metadata = HashMap::new();
    for index in 0..header.keys {
        let key = name(cursor, &format!("metadata key {index} of {}", header.keys))?;
        let kind = value_type(cursor, &key)?;
        let value = value(cursor, kind, &key)?;
        if metadata.insert(key.clone(), value).is_some() {
            return Err(Error::DuplicateKey { key });
        }
    }
    Ok(metadata)
}

/// The tensor table, with absolute offsets that are aligned, inside the file and free of overlaps.
pub(crate) fn tensors(
    cursor: &mut Cursor<'_>,
    header: &Header,
    metadata: &HashMap<String, Value>,
    file_len: u64,
) -> Result<Vec<TensorInfo>, Error> {
    let alignment = alignment(metadata)?;
    let mut seen = HashSet::new();
    let mut tensors = Vec::new();
    for index in 0..header.tensors {
        let tensor = tensor(cursor, &format!("tensor {index} of {}", header.tensors), alignment)?;
        if !seen.insert(tensor.name.clone()) {
            return Err(Error::DuplicateTensor { name: tensor.name });
        }
        tensors.push(tensor);
    }
    let data = (cursor.at() as u64).next_multiple_of(alignment);
    for tensor in &mut tensors {
        let end = data.checked_add(tensor.offset).and_then(|start| start.checked_add(tensor.len));
        let Some(end) = end.filter(|&end| end <= file_len) else {
            let offset = data.saturating_add(tensor.offset);
            let place = format!("data of tensor {:?}", tensor.name);
            return Err(Error::Truncated { place, offset, needed: tensor.len, len: file_len });
        };
        tensor.offset = end - tensor.len;
    }
    refuse_overlaps(&tensors)?;
    Ok(tensors)
}

fn tensor(cursor: &mut Cursor<'_>, place: &str, alignment: u64) -> Result<TensorInfo, Error> {
    let name = name(cursor, place)?;
    let place = format!("tensor {name:?}");
    let corrupt = |reason: String| Error::Corrupt { place: place.clone(), reason };
    let n_dims = cursor.u32(&place)?;
    if !(1..=MAX_DIMS).contains(&n_dims) {
        return Err(corrupt(format!("{n_dims} dimensions, expected 1 to {MAX_DIMS}")));
    }
    let dims = (0..n_dims).map(|_| cursor.u64(&place)).collect::<Result<Vec<_>, _>>()?;
    let id = cursor.u32(&place)?;
    let Some(kind) = TensorType::from_id(id) else {
        let supported = TensorType::ALL.map(|kind| kind.to_string()).join(", ");
        return Err(Error::TensorType { name, kind: format!("{} (id {id})", foreign_name(id)), supported });
    };
    let offset = cursor.u64(&place)?;
    if !offset.is_multiple_of(alignment) {
        return Err(corrupt(format!("offset {offset} is not a multiple of the alignment {alignment}")));
    }
    if dims.contains(&0) || !dims[0].is_multiple_of(kind.block_size()) {
        return Err(corrupt(format!("shape {dims:?} is not made of whole {kind} blocks of {}", kind.block_size())));
    }
    let len = dims
        .iter()
        .try_fold(1u64, |product, &dim| product.checked_mul(dim))
        .and_then(|elements| (elements / kind.block_size()).checked_mul(kind.block_bytes()))
        .ok_or_else(|| corrupt(format!("shape {dims:?} overflows")))?;
    Ok(TensorInfo { name, dims, kind, offset, len })
}

fn refuse_overlaps(tensors: &[TensorInfo]) -> Result<(), Error> {
    let mut by_offset: Vec<&TensorInfo> = tensors.iter().collect();
    by_offset.sort_by_key(|tensor| tensor.offset);
    for pair in by_offset.windows(2) {
        if pair[0].offset + pair[0].len > pair[1].offset {
            let place = format!("tensor {:?}", pair[1].name);
            return Err(Error::Corrupt { place, reason: format!("its data overlaps tensor {:?}", pair[0].name) });
        }
    }
    Ok(())
}

fn alignment(metadata: &HashMap<String, Value>) -> Result<u64, Error> {
    const KEY: &str = "general.alignment";
    match metadata.get(KEY) {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(value) => match value.as_u64().filter(|&v| v.is_power_of_two() && v <= 1 << 20) {
            Some(alignment) => Ok(alignment),
            None => Err(Error::KeyType {
                key: KEY.to_owned(),
                found: value.to_string(),
                expected: "a power of two up to 1 MiB",
            }),
        },
    }
}

fn value(cursor: &mut Cursor<'_>, kind: ValueType, key: &str) -> Result<Value, Error> {
    Ok(match kind {
        ValueType::U8 => Value::U8(cursor.u8(key)?),
        ValueType::I8 => Value::I8(cursor.u8(key)? as i8),
        ValueType::U16 => Value::U16(cursor.u16(key)?),
        ValueType::I16 => Value::I16(cursor.u16(key)? as i16),
        ValueType::U32 => Value::U32(cursor.u32(key)?),
        ValueType::I32 => Value::I32(cursor.u32(key)? as i32),
        ValueType::F32 => Value::F32(f32::from_bits(cursor.u32(key)?)),
        ValueType::Bool => match cursor.u8(key)? {
            0 => Value::Bool(false),
            1 => Value::Bool(true),
            other => return Err(Error::Corrupt { place: place(key), reason: format!("bool {other}") }),
        },
        ValueType::String => Value::String(utf8(cursor.string(key)?, &place(key))?),
        ValueType::Array => Value::Array(array(cursor, key, 0)?),
        ValueType::U64 => Value::U64(cursor.u64(key)?),
        ValueType::I64 => Value::I64(cursor.u64(key)? as i64),
        ValueType::F64 => Value::F64(f64::from_bits(cursor.u64(key)?)),
    })
}

/// Walks an array without copying it: afterwards every element is known to lie inside the file.
pub(crate) fn array(cursor: &mut Cursor<'_>, key: &str, depth: u32) -> Result<ArrayAt, Error> {
    if depth == MAX_NESTING {
        return Err(Error::Corrupt {
            place: place(key),
            reason: format!("arrays nested more than {MAX_NESTING} deep"),
        });
    }
    let kind = value_type(cursor, key)?;
    let count = cursor.u64(key)?;
    let least = count.saturating_mul(kind.min_bytes());
    let start = cursor.at();
    match kind {
        // Counts are checked against the bytes left before the walk, so a hostile one costs nothing.
        ValueType::String | ValueType::Array if least > cursor.remaining() => {
            cursor.take(least, key)?;
        }
        ValueType::String => {
            for _ in 0..count {
                cursor.string(key)?;
            }
        }
        ValueType::Array => {
            for _ in 0..count {
                array(cursor, key, depth + 1)?;
            }
        }
        _ => {
            cursor.take(least, key)?;
        }
    }
    Ok(ArrayAt { kind, count, start, end: cursor.at() })
}

fn value_type(cursor: &mut Cursor<'_>, key: &str) -> Result<ValueType, Error> {
    let id = cursor.u32(key)?;
    ValueType::from_id(id)
        .ok_or_else(|| Error::Corrupt { place: place(key), reason: format!("unknown value type {id}") })
}

fn name(cursor: &mut Cursor<'_>, place: &str) -> Result<String, Error> {
    let len = cursor.u64(place)?;
    if len > MAX_NAME {
        return Err(Error::Corrupt { place: place.to_owned(), reason: format!("its name has {len} bytes") });
    }
    utf8(cursor.take(len, place)?, place)
}

fn utf8(bytes: &[u8], place: &str) -> Result<String, Error> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text.to_owned()),
        Err(error) => Err(Error::Corrupt { place: place.to_owned(), reason: format!("text is not UTF-8: {error}") }),
    }
}

fn place(key: &str) -> String {
    format!("metadata key {key:?}")
}

fn limit(place: &'static str, found: u64, limit: u64) -> Result<u64, Error> {
    if found > limit { Err(Error::Limit { place, found, limit }) } else { Ok(found) }
}
