//! GGUF model files: a memory-mapped, bounds-checked reader of versions 2 and 3, and a small writer.
//! What a tensor or a key means (architectures, vocabularies, arithmetic) is not known here.

mod array;
mod cursor;
mod error;
mod file;
mod map;
mod parse;
mod tensor;
mod value;
pub mod write;

pub use array::Array;
pub use error::Error;
pub use file::File;
pub use tensor::{TensorInfo, TensorType};
pub use value::{Value, ValueType};
