//! Model files that are wrong: the engine says what is wrong with the file and ends; it neither crashes nor serves.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tests::{Engine, environment};

/// A model is refused while it is opened; the limit only tells a hang from a slow machine.
const LIMIT: Duration = Duration::from_secs(60);

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary folder"))
    }

    fn file(&self, bytes: &[u8]) -> PathBuf {
        let path = self.0.path().join("model.gguf");
        fs::write(&path, bytes).expect("a file can be written");
        path
    }
}

/// Starts the engine on the file and returns what it said when it ended.
async fn refusal(path: &Path, what: &str) -> String {
    let mut engine = Engine::launch(path, "broken", &[]);
    let status = engine.process.wait(LIMIT).await;
    let log = engine.process.log();
    assert!(!status.success(), "{what}: served a broken file\n{log}");
    assert!(status.code().is_some(), "{what}: ended by a signal: {status}\n{log}");
    assert!(!log.contains("panicked"), "{what}: {log}");
    log
}

async fn assert_refused(path: &Path, words: &[&str], what: &str) {
    let log = refusal(path, what).await;
    for word in words {
        assert!(log.contains(word), "{what}: no `{word}` in\n{log}");
    }
}

fn smollm2() -> Vec<u8> {
    fs::read(environment::smollm2()).expect("the model can be read")
}

/// Where the bytes of `needle` start; the first place, which must exist.
fn find(haystack: &[u8], needle: &[u8]) -> usize {
    haystack.windows(needle.len()).position(|window| window == needle).expect("the model file has it")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_missing_empty_or_no_gguf() {
    let folder = Folder::new();
    let missing = folder.0.path().join("missing.gguf");
    assert_refused(&missing, &["missing.gguf"], "missing").await;
    assert_refused(folder.0.path(), &[], "a folder").await;
    assert_refused(&folder.file(b""), &["model.gguf"], "empty").await;
    assert_refused(&folder.file(b"GGU"), &["model.gguf"], "three bytes").await;
    assert_refused(&folder.file(&[b'x'; 4096]), &["model.gguf"], "no magic").await;
    assert_refused(&folder.file(b"GGUF\x09\x00\x00\x00"), &["model.gguf"], "a version of the future").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_truncated_file_is_refused_wherever_it_was_cut() {
    let folder = Folder::new();
    let whole = smollm2();
    for keep in [20, 1000, 100_000, 2_000_000, whole.len() / 2, whole.len() - 1] {
        assert_refused(&folder.file(&whole[..keep]), &["model.gguf"], &format!("{keep} bytes")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_architecture_and_an_unknown_tensor_type_are_named() {
    let folder = Folder::new();
    let mut model = smollm2();
    let at = find(&model, b"general.architecture") + b"general.architecture".len() + 4 + 8;
    assert_eq!(&model[at..at + 5], b"llama");
    model[at..at + 5].copy_from_slice(b"mamba");
    assert_refused(&folder.file(&model), &["mamba"], "architecture").await;

    let mut model = smollm2();
    let name = b"token_embd.weight";
    let dims = find(&model, name) + name.len();
    let count = u32::from_le_bytes(model[dims..dims + 4].try_into().expect("four bytes"));
    let kind = dims + 4 + 8 * count as usize;
    model[kind..kind + 4].copy_from_slice(&99u32.to_le_bytes());
    assert_refused(&folder.file(&model), &["99", "token_embd.weight"], "tensor type").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fuzzed_header_never_crashes_the_engine() {
    let folder = Folder::new();
    let whole = smollm2();
    // The counts and the first keys, where one byte changes the meaning of all that follows; and lengths set to the
    // largest there is. Deeper fuzzing is the reader's own test, in the crate `gguf`.
    let mut random = Xorshift(0x9e37_79b9_7f4a_7c15);
    for round in 0..12 {
        let mut model = whole[..4_000_000].to_vec();
        for _ in 0..1 + round % 4 {
            let at = 4 + (random.next() % 600) as usize;
            model[at] = random.next() as u8;
        }
        if round % 3 == 0 {
            let at = 8 + 8 * (random.next() % 40) as usize;
            model[at..at + 8].fill(0xff);
        }
        // Without its weights no header makes a good file.
        refusal(&folder.file(&model), &format!("round {round}")).await;
    }
}

/// A fixed sequence, so that a failure can be repeated.
struct Xorshift(u64);

impl Xorshift {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}
