use proptest::prelude::*;

use super::*;

fn plan(params: SamplingParams) -> SamplePlan {
    SamplePlan { row: 0, params, seed: 7, choice: 0, top_logprobs: None, score: None, seen: Vec::new(), mask: None }
}

fn greedy() -> SamplePlan {
    plan(SamplingParams { temperature: 0.0, ..SamplingParams::default() })
}

fn token(logits: &[f32], plan: &SamplePlan) -> u32 {
    sample(logits, plan, 0, &mut Scratch::default()).token
}

/// How often each token is drawn over `draws` positions.
fn histogram(logits: &[f32], plan: &SamplePlan, draws: u32) -> Vec<u32> {
    let mut scratch = Scratch::default();
    let mut counts = vec![0; logits.len()];
    for position in 0..draws {
        counts[sample(logits, plan, position, &mut scratch).token as usize] += 1;
    }
    counts
}

#[test]
fn greedy_takes_the_highest_and_ties_to_the_lower_id() {
    assert_eq!(token(&[1.0, 5.0, 5.0, 2.0], &greedy()), 1);
}

#[test]
fn bias_comes_before_the_choice() {
    let mut plan = greedy();
    plan.params.logit_bias = vec![(0, 100.0), (1, -100.0), (77, 100.0)];
    assert_eq!(token(&[1.0, 5.0, 3.0], &plan), 0);
}

#[test]
fn presence_and_frequency_count_the_output_only() {
    let mut plan = greedy();
    plan.params.presence_penalty = 1.0;
    plan.params.frequency_penalty = 0.5;
    plan.seen = vec![
        SeenToken { token: 0, output: 0, prompt: 9 },
        SeenToken { token: 1, output: 2, prompt: 0 }, // 5.0 - 2 * 0.5 - 1.0 = 3.0
    ];
    assert_eq!(token(&[3.5, 5.0], &plan), 0);
    assert_eq!(token(&[2.9, 5.0], &plan), 1);
}

#[test]
fn repetition_counts_the_prompt_too_and_pushes_negative_logits_down() {
    let mut plan = greedy();
    plan.params.repetition_penalty = 2.0;
    plan.seen = vec![SeenToken { token: 0, output: 0, prompt: 1 }];
    assert_eq!(token(&[4.0, 3.0], &plan), 1);
    assert_eq!(token(&[-1.0, -1.5], &plan), 1);
}

#[test]
fn the_mask_forbids() {
    let mut plan = greedy();
    plan.mask = Some(vec![0b100]);
    assert_eq!(token(&[9.0, 8.0, 1.0], &plan), 2);
    plan.params.temperature = 1.0;
    assert_eq!(histogram(&[9.0, 8.0, 1.0], &plan, 50), [0, 0, 50]);
}

#[test]
fn nothing_possible_still_gives_a_token() {
    let mut plan = plan(SamplingParams::default());
    plan.mask = Some(vec![0]);
    assert_eq!(token(&[1.0, 2.0], &plan), 0);
    assert_eq!(token(&[f32::NAN; 3], &plan), 0);
}

#[test]
fn top_k_keeps_k_with_ties_to_the_lower_id() {
    let plan = plan(SamplingParams { top_k: 2, ..SamplingParams::default() });
    let counts = histogram(&[1.0, 2.0, 2.0, 2.0], &plan, 400);
    assert!(counts[1] > 100 && counts[2] > 100);
    assert_eq!((counts[0], counts[3]), (0, 0));
}

#[test]
fn top_p_keeps_the_shortest_run_that_reaches_the_mass() {
    // Probabilities 0.5, 0.3, 0.2.
    let logits = [0.5_f32.ln(), 0.3_f32.ln(), 0.2_f32.ln()];
    let kept = |top_p| {
        let plan = plan(SamplingParams { top_p, ..SamplingParams::default() });
        histogram(&logits, &plan, 300).iter().filter(|count| **count > 0).count()
    };
    assert_eq!([kept(0.0), kept(0.49), kept(0.51), kept(0.79), kept(0.81)], [1, 1, 2, 2, 3]);
}

#[test]
fn top_p_is_of_the_mass_that_top_k_left() {
    // After top_k = 2 the masses are 0.625 and 0.375, so 0.6 keeps one; of the whole it would keep two.
    let logits = [0.5_f32.ln(), 0.3_f32.ln(), 0.2_f32.ln()];
    let plan = plan(SamplingParams { top_k: 2, top_p: 0.6, ..SamplingParams::default() });
    assert_eq!(histogram(&logits, &plan, 100), [100, 0, 0]);
}

#[test]
fn min_p_is_relative_to_the_most_likely() {
    let logits = [0.5_f32.ln(), 0.3_f32.ln(), 0.2_f32.ln()];
    let plan = plan(SamplingParams { min_p: 0.5, ..SamplingParams::default() });
    let counts = histogram(&logits, &plan, 300);
    assert!(counts[0] > 0 && counts[1] > 0);
    assert_eq!(counts[2], 0);
}

#[test]
fn draws_follow_the_distribution() {
    // Chi-square over 8 tokens (7 degrees of freedom) at temperature 0.7; 24.3 is the 0.1 % point. The seed is
    // fixed, so this cannot flake.
    let logits: Vec<f32> = (0..8).map(|i| (i % 5) as f32 * 0.4).collect();
    for params in [
        SamplingParams { temperature: 0.7, ..SamplingParams::default() },
        SamplingParams { temperature: 0.7, top_k: 8, top_p: 0.999_999, ..SamplingParams::default() },
    ] {
        let draws = 40_000;
        let counts = histogram(&logits, &plan(params), draws);
        let weights: Vec<f64> = logits.iter().map(|logit| (f64::from(*logit) / 0.7).exp()).collect();
        let total: f64 = weights.iter().sum();
        let chi: f64 = counts
            .iter()
            .zip(&weights)
            .map(|(count, weight)| {
                let expected = weight / total * f64::from(draws);
                (f64::from(*count) - expected).powi(2) / expected
            })
            .sum();
        assert!(chi < 24.3, "chi-square {chi}, {counts:?}");
    }
}

#[test]
fn seed_choice_and_position_alone_decide_the_draw() {
    let logits: Vec<f32> = (0..5000).map(|i| ((i * 37) % 100) as f32 * 0.01).collect();
    let base = plan(SamplingParams::default());
    let other_seed = SamplePlan { seed: 8, ..base.clone() };
    let other_choice = SamplePlan { choice: 1, ..base.clone() };
    let run = |plan: &SamplePlan| -> Vec<u32> {
        (0..20).map(|position| sample(&logits, plan, position, &mut Scratch::default()).token).collect()
    };
    assert_eq!(run(&base), run(&base));
    assert_ne!(run(&base), run(&other_seed));
    assert_ne!(run(&base), run(&other_choice));
}

#[test]
fn logprobs_are_those_of_the_raw_logits() {
    let logits = [0.5_f32.ln(), 0.3_f32.ln(), 0.2_f32.ln()];
    let mut plan = greedy();
    plan.params.logit_bias = vec![(2, 100.0)];
    plan.top_logprobs = Some(2);
    plan.score = Some(1);
    let out = sample(&logits, &plan, 0, &mut Scratch::default());
    assert_eq!(out.token, 2);
    assert!((out.logprob.expect("asked for") - 0.2_f32.ln()).abs() < 1e-6);
    assert!((out.score.expect("asked for") - 0.3_f32.ln()).abs() < 1e-6);
    assert_eq!(out.top.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [0, 1]);
}

#[test]
fn a_tiny_temperature_is_greedy_not_nan() {
    let plan = plan(SamplingParams { temperature: 1e-30, ..SamplingParams::default() });
    assert_eq!(histogram(&[1.0, 1.5, 1.2], &plan, 20), [0, 20, 0]);
}

/// The definition, written the slow way: sort everything, then filter, then walk in id order.
fn slow_kept(logits: &[f32], params: &SamplingParams) -> Vec<u32> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weight = |id: u32| f64::from(top::exp((logits[id as usize] - max) * params.temperature.recip()));
    let mut ids: Vec<u32> = (0..logits.len() as u32).filter(|id| weight(*id) > 0.0).collect();
    ids.sort_by(|a, b| rank(logits, *a, *b));
    if params.top_k > 0 {
        ids.truncate(params.top_k as usize);
    }
    if params.top_p < 1.0 {
        let mut by_id = ids.clone();
        by_id.sort_unstable();
        let goal = f64::from(params.top_p) * by_id.iter().map(|id| weight(*id)).sum::<f64>();
        let mut mass = 0.0;
        let end = ids.iter().position(|id| {
            mass += weight(*id);
            mass >= goal
        });
        ids.truncate(end.map_or(ids.len(), |end| end + 1));
    }
    ids.retain(|id| weight(*id) >= f64::from(params.min_p));
    ids.sort_unstable();
    ids
}

proptest! {
    #[test]
    fn partial_sorting_keeps_what_full_sorting_keeps(
        levels in prop::collection::vec(0_u8..40, 1..3000),
        top_k in prop_oneof![Just(0_u32), 1_u32..2000],
        top_p in 0.0_f32..=1.0,
        min_p in prop_oneof![Just(0.0_f32), 0.0_f32..0.5],
    ) {
        let logits: Vec<f32> = levels.iter().map(|level| f32::from(*level) * 0.1).collect();
        let params = SamplingParams { temperature: 0.8, top_k, top_p, min_p, ..SamplingParams::default() };
        let mut scratch = Scratch::default();
        let plan = plan(params);
        adjust(&logits, &plan, &mut scratch.adjusted);
        choose(&plan, 0, &mut scratch);
        if top_k > 0 || top_p < 1.0 || min_p > 0.0 {
            prop_assert_eq!(&scratch.kept, &slow_kept(&logits, &plan.params));
        }
    }
}
