//! A backend for tests that keeps a KV cache of its own: each cell remembers the token and position written to it,
//! and the logits are a hash of all cells that a row sees. A wrong block, a stale prefix or a skipped position thus
//! changes the answer or is an error at once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::backend::{
    BLOCK_SIZE, Backend, BlockCopy, BlockId, Error, KvGroup, KvLayout, RowToken, SamplePlan, SeqPlan, Spec, StepOut,
    StepPlan, Ticket,
};
use crate::handle::Vocabulary;
use crate::sampler::{Scratch, sample};
use crate::text::TokenText;

/// Tokens below are characters; this one ends a generation.
pub(crate) const END: u32 = 256;
const VOCABULARY: u32 = 257;

pub(crate) struct FakeBackend {
    spec: Spec,
    cells: HashMap<(BlockId, u32), (u32, u32)>,
    done: Option<(Ticket, StepOut)>,
    scratch: Scratch,
    pub(crate) log: Arc<Mutex<Log>>,
    /// How long a step takes.
    pub(crate) pace: Duration,
    /// Steps after which the device fails.
    pub(crate) fails_after: Option<u64>,
}

#[derive(Debug, Default)]
pub(crate) struct Log {
    pub(crate) steps: u64,
    pub(crate) rows: u64,
    pub(crate) widest: usize,
}

pub(crate) fn spec(windows: &[Option<u32>], total_blocks: u32, context_length: u32) -> Spec {
    let groups = windows.iter().map(|window| KvGroup { layers: vec![0], window: *window }).collect();
    Spec {
        vocab_size: VOCABULARY,
        context_length,
        kv: KvLayout { groups, total_blocks, bytes_per_block: 1 },
        numerics_id: "fake".to_owned(),
        model_digest: [7; 32],
    }
}

impl FakeBackend {
    pub(crate) fn new(spec: Spec) -> Self {
        Self {
            spec,
            cells: HashMap::new(),
            done: None,
            scratch: Scratch::default(),
            log: Arc::default(),
            pace: Duration::ZERO,
            fails_after: None,
        }
    }

    fn write(&mut self, plan: &StepPlan, sequence: &SeqPlan) -> Result<(), Error> {
        for row in &plan.rows[sequence.rows.start as usize..sequence.rows.end as usize] {
            let RowToken::Id(token) = row.token else { return Err(Error::Plan("no overlap here".to_owned())) };
            for table in &sequence.tables {
                let block = *table.get((row.position / BLOCK_SIZE) as usize).ok_or_else(|| short(row.position))?;
                if block == BlockId::NONE || block.0 >= self.spec.kv.total_blocks {
                    return Err(Error::Plan(format!("position {} has no block", row.position)));
                }
                self.cells.insert((block, row.position % BLOCK_SIZE), (token, row.position));
            }
        }
        Ok(())
    }

    fn logits(&self, sequence: &SeqPlan, position: u32) -> Result<Vec<f32>, Error> {
        let mut state = blake3::Hasher::new();
        for (group, table) in self.spec.kv.groups.iter().zip(&sequence.tables) {
            let first = group.window.map_or(0, |window| (position + 1).saturating_sub(window));
            for seen in first..=position {
                let block = *table.get((seen / BLOCK_SIZE) as usize).ok_or_else(|| short(seen))?;
                let cell = self.cells.get(&(block, seen % BLOCK_SIZE)).filter(|(_, at)| *at == seen);
                let (token, _) = cell.ok_or_else(|| Error::Plan(format!("position {seen} is not in {block:?}")))?;
                state.update(&token.to_le_bytes());
            }
        }
        let mut bytes = vec![0; VOCABULARY as usize];
        state.finalize_xof().fill(&mut bytes);
        let letter = |token: u32| (u32::from(b'a')..=u32::from(b'z')).contains(&token);
        Ok((0..VOCABULARY)
            .zip(bytes)
            .map(|(token, byte)| match token {
                _ if letter(token) => f32::from(byte) / 64.0,
                END => f32::from(byte) / 70.0,
                _ => -50.0,
            })
            .collect())
    }

    fn run(&mut self, plan: &StepPlan) -> Result<StepOut, Error> {
        for sequence in &plan.seqs {
            self.write(plan, sequence)?;
        }
        let owner = |sample: &SamplePlan| plan.seqs.iter().find(|sequence| sequence.rows.contains(&sample.row));
        let mut out = StepOut::default();
        for wanted in &plan.samples {
            let sequence = owner(wanted).ok_or_else(|| Error::Plan("a sample of no sequence".to_owned()))?;
            let position = plan.rows[wanted.row as usize].position;
            let logits = self.logits(sequence, position)?;
            out.samples.push(sample(&logits, wanted, position + 1, &mut self.scratch));
        }
        Ok(out)
    }
}

fn short(position: u32) -> Error {
    Error::Plan(format!("the table ends before position {position}"))
}

impl Backend for FakeBackend {
    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn submit(&mut self, plan: StepPlan) -> Result<Ticket, Error> {
        let out = self.run(&plan)?;
        let mut log = self.log.lock().expect("tests do not poison it");
        log.steps += 1;
        log.rows += plan.rows.len() as u64;
        log.widest = log.widest.max(plan.rows.len());
        if self.fails_after.is_some_and(|steps| log.steps > steps) {
            return Err(Error::Device("pulled out".to_owned()));
        }
        let ticket = Ticket(log.steps);
        self.done = Some((ticket, out));
        Ok(ticket)
    }

    fn wait(&mut self, ticket: Ticket) -> Result<StepOut, Error> {
        std::thread::sleep(self.pace);
        match self.done.take() {
            Some((done, out)) if done == ticket => Ok(out),
            _ => Err(Error::Plan("no such ticket".to_owned())),
        }
    }

    fn copy_blocks(&mut self, _: &[BlockCopy]) -> Result<(), Error> {
        Err(Error::Plan("nobody forks".to_owned()))
    }
}

/// The vocabulary in which a token is the character of its number.
pub(crate) struct Bytes;

#[derive(Default)]
struct ByteText(String);

impl TokenText for ByteText {
    fn push(&mut self, token: u32) -> &str {
        self.0.clear();
        self.0.extend(u8::try_from(token).map(char::from));
        &self.0
    }
}

impl Vocabulary for Bytes {
    fn text(&self) -> Box<dyn TokenText> {
        Box::new(ByteText::default())
    }

    fn end_tokens(&self) -> Vec<u32> {
        vec![END]
    }
}
