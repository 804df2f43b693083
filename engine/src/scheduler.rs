//! Who runs in the next step: continuous batching at iteration level, decodes first, prompts in chunks under a token
//! budget, preemption by recompute when blocks run out. Pure: it takes time as an argument and waits for nothing.

use std::collections::VecDeque;
use std::time::Instant;

use crate::backend::{StepOut, StepPlan};
use crate::happening::Happening;
use crate::kv::KvCache;
use crate::sequence::{Sequence, SequenceId};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) max_seqs: u32,
    /// Rows of one step. At least `max_seqs`, so that every decode always has its row.
    pub(crate) token_budget: u32,
}

pub(crate) struct Scheduler {
    limits: Limits,
    /// In order of arrival; preempted ones before all.
    waiting: VecDeque<Sequence>,
    /// In order of age: the last is the youngest.
    running: Vec<Sequence>,
    happened: Vec<Happening>,
}

/// How many are where, for `/load` and the gauges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Occupancy {
    pub(crate) running: u32,
    /// Waiting again after a preemption; those that never ran are counted by the queue.
    pub(crate) preempted: u32,
    pub(crate) preempted_tokens: u64,
}

impl Scheduler {
    pub(crate) fn new(limits: Limits) -> Self {
        let limits = Limits { token_budget: limits.token_budget.max(limits.max_seqs).max(1), ..limits };
        Self { limits, waiting: VecDeque::new(), running: Vec::new(), happened: Vec::new() }
    }

    pub(crate) fn token_budget(&self) -> u32 {
        self.limits.token_budget
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// Takes arrivals in and lets go of those whose reader has left, queued or running.
    pub(crate) fn admit(&mut self, arrivals: impl IntoIterator<Item = Sequence>, kv: &mut KvCache) {
        self.waiting.extend(arrivals);
        self.waiting.retain(|sequence| !sequence.is_abandoned());
        self.retire(kv, Sequence::is_abandoned);
    }

    /// The next step; `None` if nobody wants one.
    pub(crate) fn schedule(&mut self, kv: &mut KvCache, now: Instant) -> Option<StepPlan> {
        let mut budget = self.limits.token_budget;
        // Answers under way come first, so that a long prompt never stalls them.
        self.continue_running(kv, &mut budget, true);
        self.continue_running(kv, &mut budget, false);
        self.start_waiting(kv, &mut budget, now);
        let mut plan = StepPlan::default();
        let planned = self.running.iter_mut().filter(|sequence| sequence.planned_rows() > 0);
        planned.for_each(|sequence| sequence.append_to(&mut plan));
        (!plan.rows.is_empty()).then_some(plan)
    }

    fn continue_running(&mut self, kv: &mut KvCache, budget: &mut u32, decoding: bool) {
        let mut index = 0;
        while index < self.running.len() && *budget > 0 {
            if self.running[index].is_decoding() == decoding {
                self.book(index, kv, budget);
            }
            index += 1;
        }
    }

    /// Books rows for `running[index]`. While blocks are short the youngest gives way, if need be this one: so the
    /// oldest always gets through, and every sequence becomes the oldest in the end.
    fn book(&mut self, index: usize, kv: &mut KvCache, budget: &mut u32) {
        let rows = self.running[index].next_rows(*budget);
        while !self.running[index].book(rows, kv) {
            *budget += self.preempt_youngest(kv);
            if index == self.running.len() {
                return;
            }
        }
        *budget -= rows;
    }

    /// Returns the rows that were booked for it in this step.
    fn preempt_youngest(&mut self, kv: &mut KvCache) -> u32 {
        let Some(mut youngest) = self.running.pop() else { return 0 };
        let rows = youngest.planned_rows();
        youngest.stop(kv);
        self.waiting.push_front(youngest);
        self.happened.push(Happening::Preempted);
        rows
    }

    fn start_waiting(&mut self, kv: &mut KvCache, budget: &mut u32, now: Instant) {
        let mut index = 0;
        while *budget > 0 && self.running.len() < self.limits.max_seqs as usize {
            let Some(next) = self.waiting.get(index) else { return };
            if next.leader.is_some() {
                // Its prompt is being computed by another choice; later arrivals may pass it.
                index += 1;
                continue;
            }
            if !self.has_room(next, kv) {
                return;
            }
            let Some(mut sequence) = self.waiting.remove(index) else { return };
            self.happened.push(sequence.start(kv, now));
            self.running.push(sequence);
            self.book(self.running.len() - 1, kv, budget);
        }
    }

    /// Room for the whole of it now, and for everyone who runs to grow by one block: else it would soon be preempted.
    /// Alone it always fits, because what never fits is refused at submission.
    fn has_room(&self, sequence: &Sequence, kv: &KvCache) -> bool {
        let growth = self.running.len() as u64 * u64::from(kv.groups());
        let wanted = kv.blocks_for(sequence.len() + 1, self.limits.token_budget);
        self.running.is_empty() || wanted + growth <= u64::from(kv.idle())
    }

    /// Hands each sequence its part of the results and lets go of the finished.
    pub(crate) fn commit(&mut self, out: StepOut, kv: &mut KvCache, now: Instant) {
        let mut samples = out.samples.into_iter();
        let mut computed = Vec::new();
        for sequence in self.running.iter_mut().filter(|sequence| sequence.planned_rows() > 0) {
            let was_computed = sequence.prompt_is_computed();
            self.happened.extend(sequence.commit(&mut samples, kv, now));
            if !was_computed && sequence.prompt_is_computed() {
                computed.push(sequence.id);
            }
        }
        computed.into_iter().for_each(|id| self.release_followers(id));
        self.retire(kv, Sequence::is_finished);
    }

    fn retire(&mut self, kv: &mut KvCache, is_over: impl Fn(&Sequence) -> bool) {
        for mut sequence in self.running.extract_if(.., |sequence| is_over(sequence)).collect::<Vec<_>>() {
            sequence.stop(kv);
            self.release_followers(sequence.id);
        }
    }

    fn release_followers(&mut self, leader: SequenceId) {
        let followers = self.waiting.iter_mut().filter(|sequence| sequence.leader == Some(leader));
        followers.for_each(|sequence| sequence.leader = None);
    }

    pub(crate) fn fail_all(&mut self, why: &str) {
        self.waiting.drain(..).chain(self.running.drain(..)).for_each(|mut sequence| sequence.fail(why));
    }

    pub(crate) fn take_happenings(&mut self) -> Vec<Happening> {
        std::mem::take(&mut self.happened)
    }

    pub(crate) fn occupancy(&self) -> Occupancy {
        let preempted = || self.waiting.iter().filter(|sequence| sequence.slot.is_none());
        Occupancy {
            running: self.running.len() as u32,
            preempted: preempted().count() as u32,
            preempted_tokens: preempted().map(|sequence| u64::from(sequence.pending())).sum(),
        }
    }
}

#[cfg(test)]
mod tests;
