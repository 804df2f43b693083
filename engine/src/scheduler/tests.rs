use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::backend::{Backend, SamplingParams, Spec};
use crate::fake::{Bytes, END, FakeBackend, spec};
use crate::handle::Vocabulary;
use crate::queue::Queue;
use crate::request::{FinishReason, Request};
use crate::sequence::Arrival;
use crate::stream::{Event, TokenStream, channel};
use crate::text::Assembler;

/// The core without its thread: steps are taken one by one.
struct Sim {
    scheduler: Scheduler,
    kv: KvCache,
    backend: FakeBackend,
    inbox: Vec<Sequence>,
    next_id: u64,
}

impl Sim {
    fn new(spec: Spec, limits: Limits) -> Self {
        let (kv, backend) = (KvCache::new(&spec), FakeBackend::new(spec));
        Self { scheduler: Scheduler::new(limits), kv, backend, inbox: Vec::new(), next_id: 0 }
    }

    fn submit(&mut self, request: Request) -> TokenStream {
        let (outlets, stream) = channel(request.choices);
        let slots = Queue::new(1000).enter(request.choices, 0).expect("room");
        let (leader, request) = (SequenceId(self.next_id), Arc::new(request));
        for (outlet, slot) in outlets.into_iter().zip(slots) {
            let id = SequenceId(self.next_id);
            self.next_id += 1;
            self.inbox.push(Sequence::new(Arrival {
                id,
                seed: request.seed.unwrap_or(0),
                max_tokens: request.max_tokens.expect("tests name it"),
                end_tokens: Bytes.end_tokens().into(),
                leader: (id != leader).then_some(leader),
                text: Assembler::new(Bytes.text(), request.stop.clone()),
                request: Arc::clone(&request),
                outlet,
                slot,
                now: Instant::now(),
            }));
        }
        stream
    }

    fn step(&mut self) {
        self.scheduler.admit(self.inbox.drain(..), &mut self.kv);
        if let Some(plan) = self.scheduler.schedule(&mut self.kv, Instant::now()) {
            let ticket = self.backend.submit(plan).expect("a valid plan");
            let out = self.backend.wait(ticket).expect("submitted");
            self.scheduler.commit(out, &mut self.kv, Instant::now());
        } else {
            assert!(self.scheduler.is_idle(), "work is left but nobody runs");
        }
    }

    fn run_to_the_end(&mut self) {
        for _ in 0..20_000 {
            self.step();
            if self.scheduler.is_idle() && self.inbox.is_empty() {
                assert_eq!(self.kv.usage().used, 0, "blocks leak");
                return;
            }
        }
        panic!("the work does not end");
    }
}

#[derive(Debug, Default, PartialEq)]
struct Answer {
    tokens: Vec<(u32, Option<f32>)>,
    text: String,
    scores: Vec<(u32, Option<f32>)>,
    reason: Option<FinishReason>,
}

fn answers(mut stream: TokenStream, choices: u32) -> Vec<Answer> {
    let mut answers: Vec<Answer> = (0..choices).map(|_| Answer::default()).collect();
    while let Some(event) = stream.try_next() {
        match event {
            Event::Prompt { choice, scores } => {
                answers[choice as usize].scores = scores.into_iter().map(|s| (s.token, s.logprob)).collect();
            }
            Event::Token { choice, token, text } => {
                answers[choice as usize].tokens.push((token.token, token.logprob));
                answers[choice as usize].text.push_str(&text);
            }
            Event::Finished { choice, text, reason, .. } => {
                answers[choice as usize].text.push_str(&text);
                answers[choice as usize].reason = Some(reason);
            }
        }
    }
    answers
}

const ROOMY: Limits = Limits { max_seqs: 64, token_budget: 4096 };

/// The same request with nobody beside it, in one chunk, without a cache to hit.
fn alone(spec: &Spec, request: &Request) -> Vec<Answer> {
    let mut spec = spec.clone();
    spec.kv.total_blocks = 10_000;
    let mut sim = Sim::new(spec, ROOMY);
    let stream = sim.submit(request.clone());
    sim.run_to_the_end();
    answers(stream, request.choices)
}

fn prompt(family: u32, len: u32) -> Vec<u32> {
    (0..len).map(|i| 97 + (i * (family + 1)) % 26).collect()
}

#[test]
fn an_answer_ends_at_the_end_token_and_counts_it() {
    let spec = spec(&[None], 100, 1000);
    let request = Request::greedy(prompt(0, 5), 500);
    let answer = alone(&spec, &request).remove(0);
    assert_eq!(answer.reason, Some(FinishReason::Stop));
    assert_eq!(answer.tokens.last().map(|(token, _)| *token), Some(END));
    assert_eq!(answer.text.len() + 1, answer.tokens.len());
}

#[test]
fn an_answer_ends_at_max_tokens() {
    let spec = spec(&[None], 100, 1000);
    let request = Request { ignore_eos: true, ..Request::greedy(prompt(0, 5), 7) };
    let answer = alone(&spec, &request).remove(0);
    assert_eq!((answer.tokens.len(), answer.reason), (7, Some(FinishReason::Length)));
}

#[test]
fn a_stop_string_ends_the_answer_and_is_not_shown() {
    let spec = spec(&[None], 100, 1000);
    let request = Request { ignore_eos: true, ..Request::greedy(prompt(0, 5), 40) };
    let whole = alone(&spec, &request).remove(0).text;
    let stop = whole[10..13].to_owned();
    let cut = alone(&spec, &Request { stop: vec![stop.clone()], ..request }).remove(0);
    let at = whole.find(&stop).expect("taken from it");
    assert_eq!((cut.text.as_str(), cut.tokens.len()), (&whole[..at], at + 3));
    assert_eq!(cut.reason, Some(FinishReason::Stop));
}

#[test]
fn the_prompt_of_several_choices_is_computed_once() {
    let mut sim = Sim::new(spec(&[None], 100, 1000), ROOMY);
    let stream = sim.submit(Request { choices: 3, seed: Some(1), ..Request::greedy(prompt(0, 320), 1) });
    sim.run_to_the_end();
    assert!(answers(stream, 3).iter().all(|answer| answer.tokens.len() == 1));
    // The other two find all but the last token, whose row gives their first token.
    assert!(sim.backend.log.lock().expect("not poisoned").rows <= 320 + 2 * 16);
}

#[test]
fn decodes_go_first_and_a_long_prompt_fills_the_rest() {
    let mut sim = Sim::new(spec(&[None], 200, 2000), Limits { max_seqs: 8, token_budget: 16 });
    let early = sim.submit(Request { ignore_eos: true, ..Request::greedy(prompt(0, 4), 100) });
    sim.step();
    let late = sim.submit(Request::greedy(prompt(1, 300), 1));
    for _ in 0..10 {
        sim.step();
    }
    assert_eq!(answers(early, 1)[0].tokens.len(), 11);
    assert_eq!(answers(late, 1)[0].tokens.len(), 0);
    assert_eq!(sim.backend.log.lock().expect("not poisoned").widest, 16);
}

#[test]
fn prompt_scores_cover_every_token_but_the_first() {
    let spec = spec(&[None, Some(20)], 100, 1000);
    let request = Request { score_prompt: true, logprobs: Some(2), ..Request::greedy(prompt(2, 50), 0) };
    let answer = alone(&spec, &request).remove(0);
    assert_eq!(answer.scores.iter().map(|(token, _)| *token).collect::<Vec<_>>(), prompt(2, 50));
    assert!(answer.scores[0].1.is_none() && answer.scores[1..].iter().all(|(_, logprob)| logprob.is_some()));
    assert_eq!((answer.tokens.len(), answer.reason), (0, Some(FinishReason::Length)));
}

#[test]
fn a_cancelled_request_leaves_the_batch_and_the_queue_at_the_next_step() {
    let mut sim = Sim::new(spec(&[None], 100, 1000), Limits { max_seqs: 1, token_budget: 64 });
    let running = sim.submit(Request { ignore_eos: true, ..Request::greedy(prompt(0, 20), 400) });
    let queued = sim.submit(Request::greedy(prompt(1, 20), 400));
    let last = sim.submit(Request { ignore_eos: true, ..Request::greedy(prompt(2, 20), 3) });
    sim.step();
    drop(queued);
    sim.step();
    assert_eq!(sim.scheduler.waiting.len(), 1);
    drop(running);
    sim.run_to_the_end();
    assert_eq!(answers(last, 1)[0].tokens.len(), 3);
}

#[derive(Clone, Debug)]
enum Act {
    Submit(Request),
    Cancel(usize),
    Steps(u32),
}

fn requests() -> impl Strategy<Value = Request> {
    let penalty = prop_oneof![Just(0.0_f32), Just(0.7)];
    let shape = (0_u32..3, 1_u32..90, 0_u32..40, 1_u32..4);
    (shape, any::<u64>(), any::<bool>(), any::<bool>(), penalty, 0_u32..3).prop_map(
        |((family, len, max_tokens, choices), seed, hot, score, penalty, stops)| Request {
            choices,
            seed: Some(seed),
            sampling: SamplingParams {
                temperature: if hot { 1.0 } else { 0.0 },
                presence_penalty: penalty,
                ..SamplingParams::default()
            },
            stop: ["ab", "q", "xyz"][..stops as usize].iter().map(|stop| (*stop).to_owned()).collect(),
            logprobs: score.then_some(1),
            score_prompt: score,
            cache_salt: if family == 2 { "other" } else { "" }.to_owned(),
            ..Request::greedy(prompt(family % 2, len), max_tokens)
        },
    )
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        4 => requests().prop_map(Act::Submit),
        1 => any::<usize>().prop_map(Act::Cancel),
        4 => (1_u32..12).prop_map(Act::Steps),
    ];
    prop::collection::vec(act, 1..30)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever shares the batch, however the prompt is cut, whoever is preempted or cancelled.
    #[test]
    fn every_answer_is_that_of_the_request_alone(
        windows in prop::collection::vec(prop_oneof![Just(None), (4_u32..60).prop_map(Some)], 1..4),
        spare in 0_u32..20,
        max_seqs in 1_u32..8,
        token_budget in 1_u32..70,
        acts in acts(),
    ) {
        let limits = Limits { max_seqs, token_budget };
        let mut spec = spec(&windows, 0, 130);
        // Just enough for the longest request alone, and a little more: preemption is the rule.
        spec.kv.total_blocks = KvCache::new(&spec).blocks_for(130, limits.token_budget.max(max_seqs)) as u32 + spare;
        let mut sim = Sim::new(spec.clone(), limits);
        let mut live = Vec::new();
        for act in acts {
            match act {
                Act::Submit(request) => live.push((sim.submit(request.clone()), request)),
                Act::Cancel(which) if !live.is_empty() => drop(live.swap_remove(which % live.len())),
                Act::Cancel(_) => {}
                Act::Steps(count) => (0..count).for_each(|_| sim.step()),
            }
        }
        sim.run_to_the_end();
        for (stream, request) in live {
            prop_assert_eq!(answers(stream, request.choices), alone(&spec, &request));
        }
    }
}
