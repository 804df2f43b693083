//! Tensor types with their block layout, and where each tensor lies. The arithmetic on them is the engine's.

use std::fmt;

/// The element types the engine computes with. Any other type in a file is an error that names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(non_camel_case_types, reason = "the names every GGUF tool and file uses")]
pub enum TensorType {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q8_0,
    Q4_K,
    Q5_K,
    Q6_K,
}

impl TensorType {
    pub const ALL: [Self; 10] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q8_0,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
    ];

    pub const fn id(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q4_0 => 2,
            Self::Q4_1 => 3,
            Self::Q5_0 => 6,
            Self::Q8_0 => 8,
            Self::Q4_K => 12,
            Self::Q5_K => 13,
            Self::Q6_K => 14,
            Self::BF16 => 30,
        }
    }

    pub fn from_id(id: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.id() == id)
    }

    /// Elements per block; rows are a whole number of blocks.
    pub const fn block_size(self) -> u64 {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q8_0 => 32,
            Self::Q4_K | Self::Q5_K | Self::Q6_K => 256,
        }
    }

    pub const fn block_bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Q4_0 => 2 + 16,            // scale, nibbles
            Self::Q4_1 => 2 + 2 + 16,        // scale, minimum, nibbles
            Self::Q5_0 => 2 + 4 + 16,        // scale, fifth bits, nibbles
            Self::Q8_0 => 2 + 32,            // scale, bytes
            Self::Q4_K => 4 + 12 + 128,      // scale and minimum, 6-bit scales, nibbles
            Self::Q5_K => 4 + 12 + 32 + 128, // the same and fifth bits
            Self::Q6_K => 128 + 64 + 16 + 2, // low nibbles, high pairs, scales, scale
        }
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Names of ggml types for errors: what the file holds, though the engine cannot compute with it.
pub(crate) fn foreign_name(id: u32) -> &'static str {
    match id {
        7 => "Q5_1",
        9 => "Q8_1",
        10 => "Q2_K",
        11 => "Q3_K",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        20 => "IQ4_NL",
        21 => "IQ3_S",
        22 => "IQ2_S",
        23 => "IQ4_XS",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        39 => "MXFP4",
        40 => "NVFP4",
        _ => "unknown",
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    pub name: String,
    /// In ggml's `ne` order: `dims[0]` is the length of a row, contiguous in memory. One to four entries, none 0.
    pub dims: Vec<u64>,
    pub kind: TensorType,
    /// From the start of the file; checked together with `len` to lie inside it.
    pub offset: u64,
    /// Bytes of the whole tensor.
    pub len: u64,
}

impl TensorInfo {
    pub fn elements(&self) -> u64 {
        self.dims.iter().product()
    }
}
