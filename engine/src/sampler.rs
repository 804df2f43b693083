//! What sampling means: the pure function from one row of logits to a token. Every backend that samples elsewhere
//! must agree with it. Who is sampled, when and with which parameters is the scheduler's business, not this file's.

use std::cmp::Ordering;

use crate::backend::{SamplePlan, Sampled, SamplingParams, SeenToken};
use crate::philox;

mod top;

/// Buffers reused from row to row, so that sampling allocates nothing once they have grown to the vocabulary.
#[derive(Debug, Default)]
pub struct Scratch {
    /// Logits after bias, penalties and mask.
    adjusted: Vec<f32>,
    /// `exp((adjusted - max) / temperature)`, by token id.
    weights: Vec<f32>,
    /// The tokens that top_k, top_p and min_p leave.
    kept: Vec<u32>,
}

/// Samples the token that will stand at `position`. `logits` covers the whole vocabulary; NaN counts as -infinity.
pub fn sample(logits: &[f32], plan: &SamplePlan, position: u32, scratch: &mut Scratch) -> Sampled {
    let token = if is_plain_greedy(plan) {
        top::argmax(logits)
    } else {
        adjust(logits, plan, &mut scratch.adjusted);
        choose(plan, position, scratch)
    };
    report(logits, plan, token)
}

fn is_plain_greedy(plan: &SamplePlan) -> bool {
    plan.params.temperature == 0.0 && plan.params.logit_bias.is_empty() && plan.seen.is_empty() && plan.mask.is_none()
}

/// Bias, penalties and mask, in this order.
fn adjust(logits: &[f32], plan: &SamplePlan, adjusted: &mut Vec<f32>) {
    adjusted.clear();
    adjusted.extend_from_slice(logits);
    for &(token, bias) in &plan.params.logit_bias {
        if let Some(logit) = adjusted.get_mut(token as usize) {
            *logit += bias;
        }
    }
    for seen in &plan.seen {
        if let Some(logit) = adjusted.get_mut(seen.token as usize) {
            *logit = penalise(*logit, seen, &plan.params);
        }
    }
    if let Some(mask) = &plan.mask {
        for (token, logit) in adjusted.iter_mut().enumerate() {
            let word = mask.get(token / 32).copied().unwrap_or(0);
            if word >> (token % 32) & 1 == 0 {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
}

/// Repetition first (prompt and output), then frequency and presence (output only), as vLLM does.
fn penalise(logit: f32, seen: &SeenToken, params: &SamplingParams) -> f32 {
    let mut logit = logit;
    if seen.output + seen.prompt > 0 {
        logit = if logit > 0.0 { logit / params.repetition_penalty } else { logit * params.repetition_penalty };
    }
    if seen.output > 0 {
        logit -= params.frequency_penalty * seen.output as f32 + params.presence_penalty;
    }
    logit
}

fn choose(plan: &SamplePlan, position: u32, scratch: &mut Scratch) -> u32 {
    let best = top::argmax(&scratch.adjusted);
    let max = scratch.adjusted[best as usize];
    if plan.params.temperature == 0.0 || !max.is_finite() {
        return best;
    }
    let scale = plan.params.temperature.recip();
    scratch.weights.clear();
    scratch.weights.extend(scratch.adjusted.iter().map(|logit| top::exp((logit - max) * scale)));
    let u = philox::uniform(plan.seed, plan.choice, position);
    if plan.params.top_k == 0 && plan.params.top_p >= 1.0 && plan.params.min_p <= 0.0 {
        return draw_from_all(&scratch.weights, u).unwrap_or(best);
    }
    filter(&plan.params, scratch);
    draw_from_kept(&scratch.kept, &scratch.weights, u).unwrap_or(best)
}

/// Leaves in `kept`, in ascending id, what top_k, then top_p (of the mass that top_k left), then min_p allow.
fn filter(params: &SamplingParams, scratch: &mut Scratch) {
    let Scratch { adjusted, weights, kept } = scratch;
    kept.clear();
    kept.extend((0_u32..).zip(weights.iter()).filter(|(_, weight)| **weight > 0.0).map(|(token, _)| token));
    let by_rank = |a: &u32, b: &u32| rank(adjusted, *a, *b);
    let k = params.top_k as usize;
    if k > 0 && k < kept.len() {
        kept.select_nth_unstable_by(k - 1, by_rank);
        kept.truncate(k);
    }
    if params.top_p < 1.0 {
        keep_nucleus(f64::from(params.top_p), weights, kept, by_rank);
    }
    // The most likely token has weight 1, so the rule p >= min_p * p_max needs no normalisation.
    kept.retain(|token| weights[*token as usize] >= params.min_p);
    kept.sort_unstable();
}

/// Most likely first, ties to the lower id.
fn rank(logits: &[f32], a: u32, b: u32) -> Ordering {
    logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b))
}

/// The shortest run of most likely tokens whose mass reaches `top_p`; at least one. Sorts only as far as needed:
/// a full sort of a 262,144-token vocabulary would cost more than the step.
fn keep_nucleus(top_p: f64, weights: &[f32], kept: &mut Vec<u32>, by_rank: impl Fn(&u32, &u32) -> Ordering) {
    // Summed in ascending id: an earlier selection leaves `kept` in an order that is no part of the definition.
    kept.sort_unstable();
    let goal = top_p * kept.iter().map(|token| f64::from(weights[*token as usize])).sum::<f64>();
    let (mut sorted, mut mass) = (0, 0.0);
    while sorted < kept.len() {
        let run = (sorted * 4).max(256).min(kept.len() - sorted);
        let rest = &mut kept[sorted..];
        if run < rest.len() {
            rest.select_nth_unstable_by(run - 1, &by_rank);
        }
        rest[..run].sort_unstable_by(&by_rank);
        for (index, token) in rest[..run].iter().enumerate() {
            mass += f64::from(weights[*token as usize]);
            if mass >= goal {
                kept.truncate(sorted + index + 1);
                return;
            }
        }
        sorted += run;
    }
}

/// The first token, in ascending id, at which the running mass passes `u` of the whole.
fn draw_from_kept(kept: &[u32], weights: &[f32], u: f64) -> Option<u32> {
    let weight = |token: &u32| f64::from(weights[*token as usize]);
    let goal = u * kept.iter().map(weight).sum::<f64>();
    let mut mass = 0.0;
    kept.iter().copied().find(|token| {
        mass += weight(token);
        mass > goal
    })
}

/// As [`draw_from_kept`] over the whole vocabulary, by chunks: the sums vectorise and only one chunk is walked.
fn draw_from_all(weights: &[f32], u: f64) -> Option<u32> {
    let goal = u * weights.chunks(top::CHUNK).map(top::sum).sum::<f64>();
    let mut before = 0.0;
    for (index, chunk) in weights.chunks(top::CHUNK).enumerate() {
        let mass = top::sum(chunk);
        if before + mass > goal {
            let offset = walk(chunk, goal - before)?;
            return Some((index * top::CHUNK + offset) as u32);
        }
        before += mass;
    }
    None
}

/// Rounding may leave the goal just past the end of the chunk: then its last possible token is the one.
fn walk(chunk: &[f32], goal: f64) -> Option<usize> {
    let mut mass = 0.0;
    let hit = chunk.iter().position(|weight| {
        mass += f64::from(*weight);
        mass > goal
    });
    hit.or_else(|| chunk.iter().rposition(|weight| *weight > 0.0))
}

/// Log-probabilities are those of the raw logits, before bias, penalties, mask and temperature.
fn report(logits: &[f32], plan: &SamplePlan, token: u32) -> Sampled {
    if plan.top_logprobs.is_none() && plan.score.is_none() {
        return Sampled { token, logprob: None, top: Vec::new(), score: None };
    }
    let norm = top::log_sum_exp(logits);
    let logprob = |id: u32| logits.get(id as usize).map(|logit| (f64::from(*logit) - norm) as f32);
    Sampled {
        token,
        logprob: plan.top_logprobs.and_then(|_| logprob(token)),
        top: top::most_likely(logits, plan.top_logprobs.unwrap_or(0) as usize)
            .into_iter()
            .map(|id| (id, (f64::from(logits[id as usize]) - norm) as f32))
            .collect(),
        score: plan.score.and_then(logprob),
    }
}

#[cfg(test)]
mod tests;
