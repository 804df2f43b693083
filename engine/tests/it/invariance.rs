//! The real models against themselves: the same bits for any chunk, any company in the batch and any thread count.

use engine::backend::{Backend, Sampled, StepPlan};
use engine::cpu::CpuOptions;

use crate::driver::{self, GEMMA3, OPTIONS, SMOLLM2, Sequence, scored};

/// Tokens whose text does not matter, more than one window of Gemma's long.
fn tokens(len: u32) -> Vec<u32> {
    (0..len).map(|i| 100 + i.wrapping_mul(2_654_435_761) % 40_000).collect()
}

#[test]
fn smollm2_gives_the_same_bits_for_any_chunk() {
    chunks(SMOLLM2);
}

#[test]
fn gemma3_gives_the_same_bits_for_any_chunk() {
    chunks(GEMMA3);
}

fn chunks(model: &str) {
    let tokens = tokens(600);
    let mut backend = driver::load(model, OPTIONS);
    let whole = driver::score(&mut backend, &tokens, 540, 600, 5);
    for chunk in [7, 16, 511] {
        assert!(driver::score(&mut backend, &tokens, 540, chunk, 5) == whole, "{model} in chunks of {chunk}");
    }
    let whole = driver::score(&mut backend, &tokens[..40], 1, 40, 5);
    assert!(driver::score(&mut backend, &tokens[..40], 1, 1, 5) == whole, "{model} token by token");
}

#[test]
fn threads_and_company_change_no_bit() {
    for model in [SMOLLM2, GEMMA3] {
        let tokens = tokens(60);
        let alone = driver::score(&mut driver::load(model, CpuOptions { threads: 1, ..OPTIONS }), &tokens, 1, 60, 5);
        let mut backend = driver::load(model, OPTIONS);
        let found = in_company(&mut backend, &tokens);
        assert!(found == alone, "{model}");
    }
}

/// The first sequence decodes token by token while seven others come in chunks of growing size.
fn in_company(backend: &mut dyn Backend, tokens: &[u32]) -> Vec<Sampled> {
    let groups = backend.spec().kv.groups.len() as u32;
    let mut sequences: Vec<Sequence> =
        (0..8).map(|index| Sequence::new(index, 64, &tokens[index as usize..], groups)).collect();
    let mut out = Vec::new();
    while sequences[0].computed + 1 < tokens.len() {
        let mut plan = StepPlan::default();
        for (index, sequence) in sequences.iter_mut().enumerate() {
            let left = sequence.tokens.len() - 1 - sequence.computed;
            let count = if index == 0 { 1 } else { left.min(2 * index + 1) };
            if count > 0 {
                let next = sequence.tokens.clone();
                let sample = |position: usize| (index == 0).then(|| scored(Some(next[position + 1]), 5));
                sequence.plan(&mut plan, count, groups, sample);
            }
        }
        out.extend(driver::run(backend, plan));
    }
    out
}
