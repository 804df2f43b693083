//! One choice of one request, from arrival to its last token: what is known of it, what it wants of the next step,
//! and what a step's result makes of it. It neither chooses when it runs nor allocates blocks for others.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use crate::backend::{Row, RowToken, SamplePlan, Sampled, SamplingParams, SeenToken, SeqPlan, StepPlan};
use crate::happening::{Happening, Timing};
use crate::kv::{KvCache, Reuse, SequenceBlocks};
use crate::queue::Slot;
use crate::request::{FinishReason, Request};
use crate::stream::{Event, Outlet, Score};
use crate::text::Assembler;

/// Rows of prompt scoring per step: each goes through the output head, the widest matrix of the model.
const SCORE_ROWS: u32 = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SequenceId(pub(crate) u64);

pub(crate) struct Sequence {
    pub(crate) id: SequenceId,
    request: Arc<Request>,
    seed: u64,
    /// Prompt, then output.
    tokens: Vec<u32>,
    prompt: u32,
    /// `tokens` never grows past this.
    limit: u32,
    end_tokens: Arc<[u32]>,
    /// The choice of the same prompt that computes it; this one starts after it and finds it in the prefix cache.
    pub(crate) leader: Option<SequenceId>,
    /// Positions whose K and V are in the cache.
    computed: u32,
    blocks: Option<SequenceBlocks>,
    planned: Planned,
    /// Counted only when a penalty is set.
    seen: Option<BTreeMap<u32, SeenToken>>,
    /// Of the prompt, as far as scored.
    scores: Vec<Score>,
    scores_sent: bool,
    /// Positions found in the prefix cache when it first started.
    cached: Option<u32>,
    text: Assembler,
    outlet: Outlet,
    pub(crate) slot: Option<Slot>,
    timing: Timing,
    finished: Option<FinishReason>,
}

/// Its share of the step that is being made.
#[derive(Clone, Copy, Debug, Default)]
struct Planned {
    rows: u32,
    scores: u32,
    samples: bool,
}

/// What a new sequence is made of.
pub(crate) struct Arrival {
    pub(crate) id: SequenceId,
    pub(crate) request: Arc<Request>,
    pub(crate) seed: u64,
    pub(crate) max_tokens: u32,
    pub(crate) end_tokens: Arc<[u32]>,
    pub(crate) leader: Option<SequenceId>,
    pub(crate) text: Assembler,
    pub(crate) outlet: Outlet,
    pub(crate) slot: Slot,
    pub(crate) now: Instant,
}

impl Sequence {
    pub(crate) fn new(arrival: Arrival) -> Self {
        let Arrival { id, request, seed, max_tokens, end_tokens, leader, text, outlet, slot, now } = arrival;
        let prompt = request.prompt.len() as u32;
        let first = request.prompt.first().map(|token| Score { token: *token, logprob: None, top: Vec::new() });
        Self {
            id,
            seed,
            tokens: request.prompt.clone(),
            prompt,
            limit: prompt.saturating_add(max_tokens),
            end_tokens,
            leader,
            computed: 0,
            blocks: None,
            planned: Planned::default(),
            seen: count_prompt(&request),
            scores: first.into_iter().collect(),
            scores_sent: !request.score_prompt || leader.is_some(),
            cached: None,
            text,
            outlet,
            slot: Some(slot),
            timing: Timing::new(now),
            finished: None,
            request,
        }
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.outlet.is_abandoned()
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.finished.is_some()
    }

    /// One token away from its next: what remains of the prompt is not computed in chunks any more.
    pub(crate) fn is_decoding(&self) -> bool {
        self.pending() == 1
    }

    pub(crate) fn prompt_is_computed(&self) -> bool {
        self.computed >= self.prompt
    }

    pub(crate) fn pending(&self) -> u32 {
        self.len() - self.computed
    }

    pub(crate) fn len(&self) -> u32 {
        self.tokens.len() as u32
    }

    pub(crate) fn planned_rows(&self) -> u32 {
        self.planned.rows
    }

    /// Takes its place in the batch, with what the prefix cache already holds of it.
    pub(crate) fn start(&mut self, kv: &mut KvCache, now: Instant) -> Happening {
        let reuse = if self.is_scored() { Reuse::Prefix } else { Reuse::Nothing };
        let (blocks, hit) = kv.open(&self.request.cache_salt, &self.tokens, reuse);
        self.blocks = Some(blocks);
        self.computed = hit;
        self.cached.get_or_insert(hit);
        self.slot = None;
        let queued = self.timing.start(now);
        Happening::Started { queued, prompt: self.len(), hit }
    }

    /// Gives its blocks back. What it computed is computed again when it next starts, unless still cached.
    pub(crate) fn stop(&mut self, kv: &mut KvCache) {
        if let Some(blocks) = self.blocks.take() {
            kv.close(blocks);
        }
        self.computed = 0;
        self.planned = Planned::default();
    }

    /// Rows it wants of the next step, of `budget` that are left.
    pub(crate) fn next_rows(&self, budget: u32) -> u32 {
        let most = if self.is_scored() { budget } else { budget.min(SCORE_ROWS) };
        self.pending().min(most)
    }

    /// Books `rows` rows, if the cache has room for them.
    pub(crate) fn book(&mut self, rows: u32, kv: &mut KvCache) -> bool {
        let blocks = self.blocks.as_mut().expect("invariant: a running sequence holds blocks");
        let booked = kv.grow(blocks, self.computed + rows);
        if booked {
            self.planned.rows = rows;
        }
        booked
    }

    pub(crate) fn append_to(&mut self, plan: &mut StepPlan) {
        let (first_row, end) = (plan.rows.len() as u32, self.computed + self.planned.rows);
        let positions = self.computed..end;
        plan.rows.extend(
            positions.clone().map(|position| Row { token: RowToken::Id(self.tokens[position as usize]), position }),
        );
        let blocks = self.blocks.as_ref().expect("invariant: a running sequence holds blocks");
        plan.seqs.push(SeqPlan { rows: first_row..plan.rows.len() as u32, tables: blocks.tables(end) });
        let samples_before = plan.samples.len();
        for position in positions.filter(|position| self.wants_score(position + 1)) {
            plan.samples.push(self.score_plan(first_row + position - self.computed, position + 1));
        }
        self.planned.scores = (plan.samples.len() - samples_before) as u32;
        self.planned.samples = end == self.len() && self.len() < self.limit;
        if self.planned.samples {
            plan.samples.push(self.sample_plan(plan.rows.len() as u32 - 1));
        }
    }

    fn is_scored(&self) -> bool {
        self.scores_sent || self.scores.len() as u32 == self.prompt
    }

    fn wants_score(&self, position: u32) -> bool {
        !self.scores_sent && position < self.prompt && position >= self.scores.len() as u32
    }

    fn score_plan(&self, row: u32, position: u32) -> SamplePlan {
        SamplePlan {
            row,
            params: SamplingParams { temperature: 0.0, ..SamplingParams::default() },
            seed: 0,
            choice: 0,
            top_logprobs: Some(self.request.logprobs.unwrap_or(0)),
            score: Some(self.tokens[position as usize]),
            seen: Vec::new(),
            mask: None,
        }
    }

    fn sample_plan(&self, row: u32) -> SamplePlan {
        SamplePlan {
            row,
            params: self.request.sampling.clone(),
            seed: self.seed,
            choice: self.outlet.choice(),
            top_logprobs: self.request.logprobs,
            score: None,
            seen: self.seen.iter().flat_map(|seen| seen.values().copied()).collect(),
            mask: None,
        }
    }

    /// Takes its part of a step's results and tells its reader.
    pub(crate) fn commit(
        &mut self,
        samples: &mut impl Iterator<Item = Sampled>,
        kv: &mut KvCache,
        now: Instant,
    ) -> Vec<Happening> {
        let planned = std::mem::take(&mut self.planned);
        self.computed += planned.rows;
        let blocks = self.blocks.as_mut().expect("invariant: a running sequence holds blocks");
        kv.commit(blocks, &self.tokens, self.computed);
        for sampled in samples.take(planned.scores as usize) {
            let token = self.tokens[self.scores.len()];
            self.scores.push(Score { token, logprob: sampled.score, top: sampled.top });
        }
        self.send_scores();
        if planned.samples {
            return samples.next().map(|sampled| self.push(sampled, now)).unwrap_or_default();
        }
        if self.prompt_is_computed() && self.len() == self.limit {
            return vec![self.finish(FinishReason::Length, now)];
        }
        Vec::new()
    }

    fn send_scores(&mut self) {
        if !self.scores_sent && self.is_scored() {
            self.scores_sent = true;
            let scores = std::mem::take(&mut self.scores);
            self.outlet.send(Event::Prompt { choice: self.outlet.choice(), scores });
        }
    }

    fn push(&mut self, sampled: Sampled, now: Instant) -> Vec<Happening> {
        let token = sampled.token;
        self.tokens.push(token);
        if let Some(seen) = &mut self.seen {
            seen.entry(token).or_insert(SeenToken { token, output: 0, prompt: 0 }).output += 1;
        }
        // An end token is a token of the answer, and counted, but no text.
        let ends = self.ends_with(token);
        let added = if ends { Default::default() } else { self.text.push(token) };
        let score = Score { token, logprob: sampled.logprob, top: sampled.top };
        self.outlet.send(Event::Token { choice: self.outlet.choice(), token: score, text: added.text });
        let mut happened = vec![self.timing.token(now)];
        if added.stopped {
            happened.push(self.finish_with(String::new(), FinishReason::Stop, now));
        } else if ends {
            happened.push(self.finish(FinishReason::Stop, now));
        } else if self.len() == self.limit {
            happened.push(self.finish(FinishReason::Length, now));
        }
        happened
    }

    fn ends_with(&self, token: u32) -> bool {
        self.request.stop_tokens.contains(&token) || (!self.request.ignore_eos && self.end_tokens.contains(&token))
    }

    /// Ends without a stop string; what was held back for one is text after all.
    fn finish(&mut self, reason: FinishReason, now: Instant) -> Happening {
        let rest = self.text.finish();
        self.finish_with(rest, reason, now)
    }

    fn finish_with(&mut self, text: String, reason: FinishReason, now: Instant) -> Happening {
        self.finished = Some(reason.clone());
        let cached = self.cached.unwrap_or(0);
        self.outlet.send(Event::Finished { choice: self.outlet.choice(), text, reason: reason.clone(), cached });
        let (prompt, completion) = (self.prompt, self.len() - self.prompt);
        Happening::Finished(self.timing.finish(reason, prompt, completion, now))
    }

    pub(crate) fn fail(&mut self, why: &str) {
        self.outlet.fail(why);
    }
}

fn count_prompt(request: &Request) -> Option<BTreeMap<u32, SeenToken>> {
    let params = &request.sampling;
    let penalises =
        params.presence_penalty != 0.0 || params.frequency_penalty != 0.0 || params.repetition_penalty != 1.0;
    penalises.then(|| {
        let mut seen = BTreeMap::new();
        for &token in &request.prompt {
            seen.entry(token).or_insert(SeenToken { token, output: 0, prompt: 0 }).prompt += 1;
        }
        seen
    })
}
