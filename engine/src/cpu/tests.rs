//! The backend as a whole on small random models: the same bits however a step is cut, and errors instead of panics.

use gguf::TensorType;
use gguf::write::{Entry, Writer};

use super::*;
use crate::backend::{BLOCK_SIZE, BlockId, Row, SamplePlan, SamplingParams, SeqPlan};

const OPTIONS: CpuOptions = CpuOptions { threads: 1, exact: false, kv_blocks: 400 };
const BLOCKS_PER_GROUP: u32 = 20;

fn backend(architecture: &str, options: CpuOptions, isa: Isa) -> CpuBackend {
    CpuBackend::load_with(&fixtures::open(fixtures::model(architecture)), options, isa).expect("the model loads")
}

fn tokens(sequence: u64, len: usize) -> Vec<u32> {
    let mut random = fixtures::Random(sequence + 99);
    (0..len).map(|_| (random.next() % fixtures::VOCAB) as u32).collect()
}

fn sample(row: u32) -> SamplePlan {
    let params = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
    let top = Some(fixtures::VOCAB as u32);
    SamplePlan { row, params, seed: 0, choice: 0, top_logprobs: top, score: None, seen: Vec::new(), mask: None }
}

/// Adds rows `positions` of a sequence, all of them sampled with the whole vocabulary reported.
fn add(plan: &mut StepPlan, groups: u32, sequence: u32, tokens: &[u32], positions: std::ops::Range<usize>) {
    let start = plan.rows.len() as u32;
    for position in positions.clone() {
        plan.samples.push(sample(plan.rows.len() as u32));
        plan.rows.push(Row { token: RowToken::Id(tokens[position]), position: position as u32 });
    }
    let blocks = (positions.end as u32).div_ceil(BLOCK_SIZE);
    let first = |group| (sequence * groups + group) * BLOCKS_PER_GROUP;
    let table = |group| (0..blocks).map(|block| BlockId(first(group) + block)).collect();
    plan.seqs.push(SeqPlan { rows: start..plan.rows.len() as u32, tables: (0..groups).map(table).collect() });
}

fn run(backend: &mut CpuBackend, plan: StepPlan) -> Vec<Sampled> {
    let ticket = backend.submit(plan).expect("the plan is valid");
    backend.wait(ticket).expect("it was just submitted").samples
}

/// Log-probabilities of the whole vocabulary after each token, fed in chunks.
fn chunked(backend: &mut CpuBackend, tokens: &[u32], chunk: usize) -> Vec<Sampled> {
    let groups = backend.spec().kv.groups.len() as u32;
    let mut out = Vec::new();
    for first in (0..tokens.len()).step_by(chunk) {
        let mut plan = StepPlan::default();
        add(&mut plan, groups, 0, tokens, first..tokens.len().min(first + chunk));
        out.extend(run(backend, plan));
    }
    out
}

const ARCHITECTURES: [&str; 2] = ["llama", "gemma3"];

/// Rules (b), (d), (e) and (f) of docs/numerics.md over the whole forward pass, in both modes.
#[test]
fn instruction_sets_and_threads_agree_bit_for_bit() {
    let tokens = tokens(0, 100);
    for architecture in ARCHITECTURES {
        for exact in [false, true] {
            let expected =
                chunked(&mut backend(architecture, CpuOptions { exact, ..OPTIONS }, Isa::scalar()), &tokens, 100);
            for isa in Isa::available() {
                for threads in [1, 2, 3] {
                    let options = CpuOptions { exact, threads, ..OPTIONS };
                    let found = chunked(&mut backend(architecture, options, isa), &tokens, 100);
                    assert!(found == expected, "{architecture}, exact {exact}, {}, {threads} threads", isa.name());
                }
            }
        }
    }
}

/// Rule (d): the window of 40 is crossed at every offset.
#[test]
fn chunks_agree_bit_for_bit() {
    let tokens = tokens(1, 130);
    for architecture in ARCHITECTURES {
        let mut backend = backend(architecture, OPTIONS, Isa::detect());
        let expected = chunked(&mut backend, &tokens, tokens.len());
        for chunk in [1, 7, 16, 65] {
            assert!(chunked(&mut backend, &tokens, chunk) == expected, "{architecture}, chunks of {chunk}");
        }
    }
}

/// Rule (c): prefill and decode of other sequences in the same step change nothing.
#[test]
fn mixed_batches_agree_bit_for_bit() {
    for architecture in ARCHITECTURES {
        let mut backend = backend(architecture, OPTIONS, Isa::detect());
        let groups = backend.spec().kv.groups.len() as u32;
        let prompts: Vec<Vec<u32>> = (0..4).map(|sequence| tokens(sequence, 60)).collect();
        let alone: Vec<Vec<Sampled>> = prompts.iter().map(|prompt| chunked(&mut backend, prompt, 60)).collect();
        let mut found = vec![Vec::new(); 4];
        let mut done = [0; 4];
        while done.iter().any(|done| *done < 60) {
            let mut plan = StepPlan::default();
            let mut counts = [0; 4];
            for sequence in 0..4 {
                // The second decodes, the others come in chunks of their own size.
                let count = [13, 1, 29, 17][sequence].min(60 - done[sequence]);
                if count > 0 {
                    add(&mut plan, groups, sequence as u32, &prompts[sequence], done[sequence]..done[sequence] + count);
                }
                counts[sequence] = count;
                done[sequence] += count;
            }
            let mut samples = run(&mut backend, plan).into_iter();
            for (found, count) in found.iter_mut().zip(counts) {
                found.extend(samples.by_ref().take(count));
            }
        }
        assert!(found == alone, "{architecture}");
    }
}

/// Blocks that fell out of the window are never read: their entries may be anything.
#[test]
fn a_window_group_does_not_read_what_it_has_left() {
    let tokens = tokens(2, 120);
    let mut backend = backend("gemma3", OPTIONS, Isa::detect());
    let groups = backend.spec().kv.groups.clone();
    let expected = chunked(&mut backend, &tokens, 60);
    let mut plan = StepPlan::default();
    add(&mut plan, groups.len() as u32, 0, &tokens, 60..120);
    for (group, table) in groups.iter().zip(&mut plan.seqs[0].tables) {
        if group.window.is_some() {
            // Position 60 sees 21 ..= 60: block 0 is gone.
            table[0] = BlockId::NONE;
        }
    }
    assert!(run(&mut backend, plan) == expected[60..]);
}

#[test]
fn a_token_of_an_earlier_step_and_copied_blocks_continue_a_sequence() {
    let mut backend = backend("llama", OPTIONS, Isa::detect());
    let prompt = tokens(3, 20);
    let mut plan = StepPlan::default();
    add(&mut plan, 1, 0, &prompt, 0..20);
    let ticket = backend.submit(plan).expect("the plan is valid");
    let next = |token: RowToken, first_block: u32| StepPlan {
        rows: vec![Row { token, position: 20 }],
        seqs: vec![SeqPlan { rows: 0..1, tables: vec![vec![BlockId(first_block), BlockId(first_block + 1)]] }],
        samples: vec![sample(0)],
    };
    let second = backend.submit(next(RowToken::FromSample { ticket, sample: 19 }, 0)).expect("the plan is valid");
    let token = backend.wait(ticket).expect("it is the first").samples[19].token;
    let expected = backend.wait(second).expect("it is the next").samples;
    let copies = [(0, 300), (1, 301)].map(|(from, to)| BlockCopy { from: BlockId(from), to: BlockId(to) });
    backend.copy_blocks(&copies).expect("the blocks are in the pool");
    assert!(run(&mut backend, next(RowToken::Id(token), 300)) == expected);
}

#[test]
fn plans_that_lead_outside_are_errors_that_say_where() {
    let mut backend = backend("gemma3", OPTIONS, Isa::detect());
    let mut check = |change: &dyn Fn(&mut StepPlan), expected: &str| {
        let mut plan = StepPlan::default();
        add(&mut plan, 3, 0, &tokens(0, 20), 0..20);
        add(&mut plan, 3, 1, &tokens(1, 20), 0..20);
        change(&mut plan);
        match backend.submit(plan) {
            Err(Error::Plan(message)) => assert!(message.contains(expected), "{message:?} instead of {expected:?}"),
            other => panic!("{other:?} instead of {expected:?}"),
        }
    };
    check(&|plan| plan.rows[3].token = RowToken::Id(300), "row 3: token 300 is outside the vocabulary");
    check(&|plan| plan.rows[19].position = 512, "row 19: position 512 is past the context");
    check(&|plan| plan.rows[5].position = 9, "sequence 0: positions do not ascend");
    check(&|plan| plan.seqs[1].rows = 21..40, "sequence 1: rows 21..40 do not follow row 20");
    check(&|plan| plan.seqs.truncate(1), "row 20 belongs to no sequence");
    check(&|plan| plan.seqs[1].tables.truncate(2), "sequence 1: 2 block tables for 3 KV groups");
    check(&|plan| plan.seqs[1].tables[2].truncate(1), "sequence 1, group 2: a block of positions");
    check(&|plan| plan.seqs[0].tables[0][1] = BlockId(400), "sequence 0, group 0: a block");
    check(&|plan| plan.seqs[0].tables[1][0] = BlockId::NONE, "sequence 0, group 1: a block");
    check(&|plan| plan.seqs[0].tables[0][1] = plan.seqs[1].tables[2][0], "is written twice");
    check(&|plan| plan.samples.swap(0, 1), "samples do not name ascending rows");
    check(&|plan| plan.samples[39].row = 40, "samples do not name ascending rows");
    check(&|plan| plan.samples[0].score = Some(300), "outside the vocabulary");
    let unknown = RowToken::FromSample { ticket: Ticket(9), sample: 0 };
    check(&|plan| plan.rows[0].token = unknown, "sample 0 of ticket 9 is not known");
    let copy = BlockCopy { from: BlockId(0), to: BlockId(400) };
    assert!(matches!(backend.copy_blocks(&[copy]), Err(Error::Plan(_))));
    assert!(matches!(backend.wait(Ticket(0)), Err(Error::Plan(_))));
}

fn refused(writer: Writer) -> String {
    match CpuBackend::load(&fixtures::open(writer), OPTIONS) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("the model loads"),
    }
}

#[test]
fn models_that_cannot_be_computed_are_errors_that_name_the_place() {
    let name = |name: &str| Writer::new().key("general.architecture", Entry::String(name.to_owned()));
    assert!(refused(Writer::new()).contains("general.architecture"));
    assert!(refused(name("mamba")).contains("architecture \"mamba\" is not supported"));
    assert!(refused(name("llama")).contains("llama.embedding_length"));
    let extra = fixtures::model("llama").tensor("blk.0.attn_q.bias", &[256], TensorType::F32, vec![0; 1024]);
    assert!(refused(extra).contains("blk.0.attn_q.bias"));
    let experts = fixtures::model("llama").key("llama.expert_count", Entry::U32(8));
    assert!(refused(experts).contains("llama.expert_count"));
    let yarn = fixtures::model("llama").key("llama.rope.scaling.type", Entry::String("yarn".to_owned()));
    assert!(refused(yarn).contains("\"yarn\""));
    let more =
        fixtures::model("gemma3").tensor("output.weight", &[fixtures::WIDTH, 8], TensorType::F32, vec![0; 8 * 1024]);
    assert!(refused(more).contains("\"output.weight\" has dimensions [256, 8], expected [256, 300]"));
}

#[test]
fn groups_hold_equal_numbers_of_layers() {
    let llama = backend("llama", OPTIONS, Isa::scalar());
    assert_eq!(llama.spec().kv.groups.len(), 1);
    assert_eq!(llama.spec().kv.bytes_per_block, 3 * 2 * 2 * 64 * 16 * 2);
    let gemma = backend("gemma3", OPTIONS, Isa::scalar());
    let groups: Vec<_> = gemma.spec().kv.groups.iter().map(|group| (group.layers.clone(), group.window)).collect();
    assert_eq!(groups, [(vec![1], None), (vec![0], Some(40)), (vec![2], Some(40))]);
    assert_ne!(llama.spec().model_digest, gemma.spec().model_digest);
}
