//! The two bundled models, as their converters wrote them.

use gguf::{File, TensorType};

use crate::fixture::model;

fn count(file: &File, kind: TensorType) -> usize {
    file.tensors().iter().filter(|tensor| tensor.kind == kind).count()
}

#[test]
fn smollm2_is_read_whole() {
    let file = File::open(model("smollm2-135m-instruct-q4_1.gguf")).unwrap();
    assert_eq!(file.str("general.architecture").unwrap(), "llama");
    assert_eq!(file.u32("llama.block_count").unwrap(), 30);
    assert_eq!((count(&file, TensorType::Q4_1), count(&file, TensorType::Q8_0)), (210, 1));
    assert_eq!(count(&file, TensorType::F32), 61);
    assert_eq!(file.array("tokenizer.ggml.merges").unwrap().len(), 48_900);
    assert_eq!(file.tensor("token_embd.weight").unwrap().dims, [576, 49_152]);
}

#[test]
fn gemma3_is_read_whole() {
    let file = File::open(model("gemma-3-270m-q4_k_m.gguf")).unwrap();
    assert_eq!(file.str("general.architecture").unwrap(), "gemma3");
    assert_eq!(file.u32("gemma3.attention.sliding_window").unwrap(), 512);
    let kinds = [TensorType::Q5_0, TensorType::Q4_K, TensorType::Q6_K, TensorType::Q8_0, TensorType::F32];
    assert_eq!(kinds.map(|kind| count(&file, kind)), [81, 27, 9, 10, 109]);
    let tokens = file.array("tokenizer.ggml.tokens").unwrap();
    assert_eq!(tokens.strings().unwrap().nth(2), Some(&b"<bos>"[..]));
    assert_eq!(tokens.strings().unwrap().count(), 262_144);
}

#[test]
fn a_real_file_cut_short_names_the_tensor_that_is_missing() {
    let bytes = std::fs::read(model("smollm2-135m-instruct-q4_1.gguf")).unwrap();
    let error = crate::fixture::refusal(&bytes[..bytes.len() - 1]);
    assert!(error.contains("data of tensor") && error.contains("truncated"), "{error}");
    for len in [0, 3, 4, 7, 8, 23, 24, 31, 1 << 10, 1 << 20, 3 << 20, bytes.len() / 2] {
        assert!(crate::fixture::open(&bytes[..len]).is_err(), "cut to {len} bytes");
    }
}
