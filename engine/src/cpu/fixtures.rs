//! Models small enough for a test, with random weights of any type: the bits that a kernel gives are compared with
//! those of another instruction set, chunk or thread count, so that the weights need not mean anything.

use gguf::TensorType;
use gguf::write::{Entry, Writer};

use super::pool::Pool;
use super::weights::Matrix;

/// xorshift64*: the same numbers on every machine.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// From -1 to 1.
    pub fn float(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub fn floats(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.float()).collect()
    }

    /// Blocks of `kind` with any quants and small scales.
    pub fn blocks(&mut self, kind: TensorType, elements: u64) -> Vec<u8> {
        let half = |x: f32| half::f16::from_f32(x).to_le_bytes();
        match kind {
            TensorType::F32 => self.floats(elements as usize).iter().flat_map(|x| x.to_le_bytes()).collect(),
            TensorType::F16 => self.floats(elements as usize).iter().flat_map(|x| half(*x)).collect(),
            TensorType::BF16 => {
                self.floats(elements as usize).iter().flat_map(|x| half::bf16::from_f32(*x).to_le_bytes()).collect()
            }
            _ => {
                let len = kind.block_bytes() as usize;
                let mut bytes = vec![0; (elements / kind.block_size()) as usize * len];
                for block in bytes.chunks_exact_mut(len) {
                    block.fill_with(|| self.next() as u8);
                    for at in scales(kind) {
                        block[*at..at + 2].copy_from_slice(&half(self.float() * 0.01));
                    }
                }
                bytes
            }
        }
    }
}

/// Where a block holds its half-precision scales.
fn scales(kind: TensorType) -> &'static [usize] {
    match kind {
        TensorType::Q4_1 | TensorType::Q4_K | TensorType::Q5_K => &[0, 2],
        TensorType::Q6_K => &[208],
        _ => &[0],
    }
}

pub fn open(writer: Writer) -> gguf::File {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), writer.finish()).expect("it is written");
    // The mapping keeps the file's content alive after its name is gone.
    gguf::File::open(file.path()).expect("the writer writes what the reader reads")
}

pub fn matrix(kind: TensorType, rows: usize, columns: usize, seed: u64) -> Matrix {
    let data = Random(seed).blocks(kind, (rows * columns) as u64);
    let file = open(Writer::new().tensor("m", &[columns as u64, rows as u64], kind, data));
    let tensor = file.tensor("m").expect("it was written");
    let mut pool = Pool::new(1).expect("no thread is started");
    Matrix::load(&file, tensor, [columns, rows], &mut pool).expect("it loads").0
}

pub const VOCAB: u64 = 300;
pub const WIDTH: u64 = 256;

/// Two layers, width 256, every matrix of another type in turn.
pub fn model(architecture: &str) -> Writer {
    let gemma = architecture == "gemma3";
    let key = |name: &str| format!("{architecture}.{name}");
    let mut writer = Writer::new()
        .key("general.architecture", Entry::String(architecture.to_owned()))
        .key(&key("block_count"), Entry::U32(3))
        .key(&key("context_length"), Entry::U32(512))
        .key(&key("embedding_length"), Entry::U32(WIDTH as u32))
        .key(&key("feed_forward_length"), Entry::U32(512))
        .key(&key("attention.head_count"), Entry::U32(4))
        .key(&key("attention.head_count_kv"), Entry::U32(2))
        .key(&key("attention.key_length"), Entry::U32(64))
        .key(&key("attention.value_length"), Entry::U32(64))
        .key(&key("attention.layer_norm_rms_epsilon"), Entry::F32(1e-6));
    if gemma {
        // Window, global, window: groups of one layer.
        writer = writer
            .key(&key("attention.sliding_window"), Entry::U32(40))
            .key(&key("attention.sliding_window_pattern"), Entry::U32(2));
    }
    let mut random = Random(architecture.len() as u64 + 1);
    let mut kinds = TensorType::ALL.into_iter().cycle();
    let mut tensors = vec![("token_embd".to_owned(), vec![WIDTH, VOCAB]), ("output_norm".to_owned(), vec![WIDTH])];
    tensors.extend((0..3).flat_map(|layer| layer_tensors(layer, gemma)));
    for (name, dims) in tensors {
        let kind = if dims.len() == 1 { TensorType::F32 } else { kinds.next().expect("it cycles") };
        let data = random.blocks(kind, dims.iter().product());
        writer = writer.tensor(&format!("{name}.weight"), &dims, kind, data);
    }
    writer
}

fn layer_tensors(layer: u64, gemma: bool) -> Vec<(String, Vec<u64>)> {
    let mut parts = vec![
        ("attn_norm", vec![WIDTH]),
        ("attn_q", vec![WIDTH, 256]),
        ("attn_k", vec![WIDTH, 128]),
        ("attn_v", vec![WIDTH, 128]),
        ("attn_output", vec![256, WIDTH]),
        ("ffn_norm", vec![WIDTH]),
        ("ffn_gate", vec![WIDTH, 512]),
        ("ffn_up", vec![WIDTH, 512]),
        ("ffn_down", vec![512, WIDTH]),
    ];
    if gemma {
        parts.extend([("attn_q_norm", vec![64]), ("attn_k_norm", vec![64])]);
        parts.extend([("post_attention_norm", vec![WIDTH]), ("post_ffw_norm", vec![WIDTH])]);
    }
    parts.into_iter().map(|(part, dims)| (format!("blk.{layer}.{part}"), dims)).collect()
}
