//! Work row by row over the threads, and what products read: the rows quantised. Which operation needs which precision
//! is decided in `ops`; the arithmetic is in `acts`.
#![expect(unsafe_code, reason = "each task writes its own rows")]

use super::acts::{self, ActUnit, Input, LowUnit, Quantised};
use super::buffer::Disjoint;
use super::pool::Pool;
use super::quant::UNIT;
use super::simd::Isa;
use crate::backend::Error;

/// Few rows are not worth waking anybody.
pub fn each_row(threads: &mut Pool, rows: usize, f: &(dyn Fn(usize) + Sync)) -> Result<(), Error> {
    const PER_TASK: usize = 8;
    threads.run(rows.div_ceil(PER_TASK), &|task, _| {
        (task * PER_TASK..rows.min((task + 1) * PER_TASK)).for_each(f);
    })?;
    Ok(())
}

/// What a product reads its activations as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reads {
    #[default]
    Wide,
    Bytes,
    Pairs,
}

/// The input of the next product, as far as it reads whole numbers. Buffers grow to the largest step so far.
#[derive(Default)]
pub struct QuantisedRows {
    reads: Reads,
    /// (rows, columns / 32), unless `reads` is wide.
    units: Vec<ActUnit>,
    /// (rows, columns / 32), if `reads` is pairs.
    low: Vec<LowUnit>,
}

impl QuantisedRows {
    /// Makes room for `rows`, each to be written by whichever thread has it.
    pub fn begin(&mut self, reads: Reads, rows: usize, columns: usize) -> RowWriter<'_> {
        let per_row = columns / UNIT;
        self.reads = reads;
        if reads != Reads::Wide {
            grow(&mut self.units, rows * per_row);
        }
        if reads == Reads::Pairs {
            grow(&mut self.low, rows * per_row);
        }
        RowWriter { reads, per_row, units: Disjoint::new(&mut self.units), low: Disjoint::new(&mut self.low) }
    }

    /// All rows of `x`, (rows, columns).
    pub fn fill(&mut self, isa: Isa, threads: &mut Pool, reads: Reads, x: &[f32], columns: usize) -> Result<(), Error> {
        let rows = x.len() / columns;
        let out = self.begin(reads, rows, columns);
        if reads == Reads::Wide {
            return Ok(());
        }
        // SAFETY: each row is one call's.
        each_row(threads, rows, &|row| unsafe { out.write(isa, row, &x[row * columns..(row + 1) * columns]) })
    }

    /// `wide`: what was quantised.
    pub fn input<'a>(&'a self, wide: &'a [f32]) -> Input<'a> {
        let int = match self.reads {
            Reads::Wide => None,
            Reads::Bytes => Some(Quantised::Bytes(&self.units)),
            Reads::Pairs => Some(Quantised::Pairs(&self.units, &self.low)),
        };
        Input { wide, int }
    }
}

fn grow<T: Clone + Default>(buffer: &mut Vec<T>, len: usize) {
    if buffer.len() < len {
        buffer.resize(len, T::default());
    }
}

/// Where several threads quantise rows to.
pub struct RowWriter<'a> {
    reads: Reads,
    per_row: usize,
    units: Disjoint<'a, ActUnit>,
    low: Disjoint<'a, LowUnit>,
}

impl RowWriter<'_> {
    /// Nothing, if the product reads f32.
    ///
    /// # Safety
    /// No two threads write the same row at the same time.
    pub unsafe fn write(&self, isa: Isa, row: usize, x: &[f32]) {
        let range = row * self.per_row..(row + 1) * self.per_row;
        if self.reads == Reads::Wide {
            return;
        }
        // SAFETY: a row's units are its own, and rows are not shared, by this function's contract.
        let units = unsafe { self.units.slice(range.clone()) };
        // SAFETY: as above.
        let low = (self.reads == Reads::Pairs).then(|| unsafe { self.low.slice(range) });
        acts::quantise(isa, x, units, low);
    }
}
