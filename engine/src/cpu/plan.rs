//! A step plan, checked and cut into work: after this, no index of the plan can lead outside a buffer, and no two
//! pieces of work write the same KV block.

use std::ops::Range;

use super::attention;
use super::kv::POSITIONS;
use crate::backend::{BlockId, Error, KvGroup, StepPlan};

pub struct Work {
    /// Per row, resolved.
    pub tokens: Vec<u32>,
    pub positions: Vec<u32>,
    /// Rows of one sequence whose K and V go to the same blocks.
    pub writes: Vec<Piece>,
    /// Rows of one sequence that attend together.
    pub reads: Vec<Piece>,
}

#[derive(Clone, Debug)]
pub struct Piece {
    pub seq: usize,
    pub rows: Range<usize>,
}

pub struct Limits<'a> {
    pub vocab_size: usize,
    pub context_length: u32,
    pub groups: &'a [KvGroup],
    pub total_blocks: u32,
}

impl Work {
    /// `tokens` are the plan's row tokens, resolved by the caller.
    pub fn new(plan: &StepPlan, tokens: Vec<u32>, limits: &Limits) -> Result<Self, Error> {
        let positions: Vec<u32> = plan.rows.iter().map(|row| row.position).collect();
        for (row, (token, position)) in tokens.iter().zip(&positions).enumerate() {
            check(*token < limits.vocab_size as u32, || format!("row {row}: token {token} is outside the vocabulary"))?;
            check(*position < limits.context_length, || format!("row {row}: position {position} is past the context"))?;
        }
        let mut work = Self { tokens, positions, writes: Vec::new(), reads: Vec::new() };
        let mut next = 0;
        for (index, seq) in plan.seqs.iter().enumerate() {
            let rows = seq.rows.start as usize..seq.rows.end as usize;
            let contiguous = rows.start == next && rows.end > rows.start && rows.end <= plan.rows.len();
            check(contiguous, || format!("sequence {index}: rows {:?} do not follow row {next}", seq.rows))?;
            next = rows.end;
            work.cut(index, rows.clone())?;
            check_tables(index, &seq.tables, &work.positions[rows], limits)?;
        }
        check(next == plan.rows.len(), || format!("row {next} belongs to no sequence"))?;
        check_samples(plan, limits)?;
        work.check_writes(plan)?;
        Ok(work)
    }

    fn cut(&mut self, seq: usize, rows: Range<usize>) -> Result<(), Error> {
        let positions = &self.positions[rows.clone()];
        let ascending = positions.windows(2).all(|pair| pair[0] + 1 == pair[1]);
        check(ascending, || format!("sequence {seq}: positions do not ascend one by one"))?;
        let mut start = rows.start;
        for row in rows.clone() {
            if row + 1 == rows.end || (self.positions[row] as usize + 1).is_multiple_of(POSITIONS) {
                self.writes.push(Piece { seq, rows: start..row + 1 });
                start = row + 1;
            }
        }
        let reads = rows.clone().step_by(attention::ROWS);
        self.reads.extend(reads.map(|first| Piece { seq, rows: first..rows.end.min(first + attention::ROWS) }));
        Ok(())
    }

    /// A block written by two pieces would be a data race.
    fn check_writes(&self, plan: &StepPlan) -> Result<(), Error> {
        let mut blocks: Vec<BlockId> = Vec::new();
        for piece in &self.writes {
            let block = self.positions[piece.rows.start] as usize / POSITIONS;
            blocks.extend(plan.seqs[piece.seq].tables.iter().map(|table| table[block]));
        }
        blocks.sort_unstable();
        let twice = blocks.windows(2).find(|pair| pair[0] == pair[1]);
        check(twice.is_none(), || format!("block {:?} is written twice", twice.map(|pair| pair[0].0)))
    }
}

/// Every block that the rows read or write is in the table and in the pool.
fn check_tables(seq: usize, tables: &[Vec<BlockId>], positions: &[u32], limits: &Limits) -> Result<(), Error> {
    let (found, expected) = (tables.len(), limits.groups.len());
    check(found == expected, || format!("sequence {seq}: {found} block tables for {expected} KV groups"))?;
    let (Some(first), Some(last)) = (positions.first(), positions.last()) else { return Ok(()) };
    for (index, (table, group)) in tables.iter().zip(limits.groups).enumerate() {
        let seen = group.window.map_or(0, |window| (first + 1).saturating_sub(window));
        let blocks = table.get(seen as usize / POSITIONS..=*last as usize / POSITIONS);
        let valid = blocks.is_some_and(|blocks| blocks.iter().all(|block| block.0 < limits.total_blocks));
        check(valid, || format!("sequence {seq}, group {index}: a block of positions {seen}..={last} is missing"))?;
    }
    Ok(())
}

fn check_samples(plan: &StepPlan, limits: &Limits) -> Result<(), Error> {
    let ascending = plan.samples.windows(2).all(|pair| pair[0].row <= pair[1].row);
    let inside = plan.samples.last().is_none_or(|sample| (sample.row as usize) < plan.rows.len());
    check(ascending && inside, || "samples do not name ascending rows of the plan".to_owned())?;
    let scored = plan.samples.iter().filter_map(|sample| sample.score);
    let outside = scored.into_iter().find(|token| *token >= limits.vocab_size as u32);
    check(outside.is_none(), || format!("score of token {outside:?} outside the vocabulary"))
}

fn check(holds: bool, message: impl FnOnce() -> String) -> Result<(), Error> {
    if holds { Ok(()) } else { Err(Error::Plan(message())) }
}
