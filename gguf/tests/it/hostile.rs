//! Any damage whatsoever: the reader answers with a file or an error, never with a panic.

use proptest::prelude::*;

use crate::fixture::{open, valid};

#[test]
fn every_truncation_is_refused() {
    let bytes = valid();
    for len in 0..bytes.len() {
        assert!(open(&bytes[..len]).is_err(), "a file cut to {len} of {} bytes was accepted", bytes.len());
    }
}

/// Opens the bytes and touches all that can be touched.
fn read_everything(bytes: &[u8]) {
    let Ok(file) = open(bytes) else { return };
    for (key, value) in file.keys() {
        let _shown = value.to_string();
        let Ok(Some(array)) = file.opt_array(key) else { continue };
        walk(array);
    }
    for tensor in file.tensors() {
        assert_eq!(file.bytes(tensor).len() as u64, tensor.len);
        file.release(tensor).unwrap();
    }
}

fn walk(array: gguf::Array<'_>) {
    let read = [
        array.strings().map(Iterator::count).ok(),
        array.f32s().map(Iterator::count).ok(),
        array.i32s().map(Iterator::count).ok(),
        array.bools().map(Iterator::count).ok(),
    ];
    assert!(read.into_iter().flatten().all(|count| count == array.len()));
    if let Ok(inner) = array.arrays() {
        inner.for_each(walk);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn overwritten_bytes_never_panic(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let mut bytes = valid();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        read_everything(&bytes);
    }

    #[test]
    fn overwritten_numbers_never_panic(
        at in any::<prop::sample::Index>(),
        number in prop_oneof![Just(0), Just(u64::MAX), Just(1 << 63), Just(1 << 32), 0u64..1024, any::<u64>()],
    ) {
        let mut bytes = valid();
        let at = at.index(bytes.len() - 8);
        bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
        read_everything(&bytes);
    }

    #[test]
    fn removed_and_repeated_pieces_never_panic(a in any::<prop::sample::Index>(), b in any::<prop::sample::Index>(), repeat: bool) {
        let mut bytes = valid();
        let (a, b) = (a.index(bytes.len()), b.index(bytes.len()));
        let (from, to) = (a.min(b), a.max(b));
        if repeat {
            let piece = bytes[from..to].to_vec();
            bytes.splice(to..to, piece);
        } else {
            bytes.drain(from..to);
        }
        read_everything(&bytes);
    }

    #[test]
    fn noise_after_the_magic_never_panics(noise in prop::collection::vec(any::<u8>(), 0..256)) {
        read_everything(&[b"GGUF\x03\0\0\0".as_slice(), &noise].concat());
    }
}
