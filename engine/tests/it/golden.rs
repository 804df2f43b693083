//! Both real models in both modes against the committed reference values, teacher-forced. The limits are those of
//! tests/golden/README.md: a limit that fails is a finding about an operation, never a reason to widen it.

use engine::backend::Sampled;
use engine::cpu::CpuOptions;
use serde_json::Value;

use crate::driver::{self, GEMMA3, OPTIONS, SMOLLM2};

/// What the reference engine itself misses the exact values by; production mode is held to it.
struct Reference {
    file: &'static str,
    golden: &'static str,
    top5_mean: f64,
    top5_p99: f64,
    perplexity: f64,
}

const MODELS: [Reference; 2] = [
    Reference { file: SMOLLM2, golden: "smollm2", top5_mean: 0.097, top5_p99: 0.52, perplexity: 0.005 },
    Reference { file: GEMMA3, golden: "gemma3", top5_mean: 0.122, top5_p99: 0.73, perplexity: 0.01 },
];

#[test]
fn smollm2_in_exact_mode_is_exact() {
    exact(&MODELS[0]);
}

#[test]
fn gemma3_in_exact_mode_is_exact() {
    exact(&MODELS[1]);
}

#[test]
fn smollm2_in_production_mode_is_as_close_as_the_reference_engine() {
    production(&MODELS[0]);
}

#[test]
fn gemma3_in_production_mode_is_as_close_as_the_reference_engine() {
    production(&MODELS[1]);
}

fn exact(model: &Reference) {
    let found = Findings::of(model, true);
    eprintln!("{} exact: {found}", model.golden);
    assert!(found.top5.iter().all(|error| *error <= 0.01), "a top-5 value is off by {}", found.worst());
    assert_eq!(found.wrong_argmax_above(0.02), 0, "an argmax differs where the margin is above 0.02");
    assert!(found.perplexity.abs() <= 0.0002, "perplexity is off by {:.5} %", found.perplexity * 100.0);
}

fn production(model: &Reference) {
    let found = Findings::of(model, false);
    eprintln!("{} production: {found}", model.golden);
    assert!(found.mean() <= model.top5_mean, "mean top-5 error {} is above {}", found.mean(), model.top5_mean);
    let p99 = model.top5_p99 * 1.15;
    assert!(found.quantile(0.99) <= p99, "p99 top-5 error {} is above {p99}", found.quantile(0.99));
    assert_eq!(found.wrong_argmax_above(0.75), 0, "an argmax differs where the margin is above 0.75");
    let right = 1.0 - found.wrong_argmax_above(-1.0) as f64 / found.steps as f64;
    assert!(right >= 0.97, "only {right} of the argmaxes are equal");
    assert!(found.perplexity.abs() <= model.perplexity, "perplexity is off by {:.3} %", found.perplexity * 100.0);
}

/// Differences from the exact reference.
struct Findings {
    /// Of the log-probabilities of the five likeliest tokens of the first eight steps; sorted.
    top5: Vec<f64>,
    /// Margins of the steps whose argmax differs.
    wrong_argmax: Vec<f64>,
    steps: usize,
    /// Relative.
    perplexity: f64,
}

impl Findings {
    fn of(model: &Reference, exact: bool) -> Self {
        let mut backend = driver::load(model.file, CpuOptions { exact, ..OPTIONS });
        let mut found = Self { top5: Vec::new(), wrong_argmax: Vec::new(), steps: 0, perplexity: 0.0 };
        for item in list(&golden(model, "greedy")["items"]) {
            let prompt = ids(&item["ids"]);
            let tokens = [prompt.clone(), ids(&item["greedy_ids"])].concat();
            let steps = driver::score(&mut backend, &tokens, prompt.len(), 512, 100);
            found.add_item(item, &steps);
        }
        found.top5.sort_by(f64::total_cmp);
        let perplexity = golden(model, "perplexity");
        let scores = driver::score(&mut backend, &ids(&perplexity["ids"]), 1, 512, 0);
        let nll = -scores.iter().map(|step| f64::from(step.score.expect("it was asked for"))).sum::<f64>();
        let exact = perplexity["exact_f32"]["mean_nll"].as_f64().expect("a number");
        found.perplexity = (nll / scores.len() as f64 - exact).exp() - 1.0;
        found
    }

    fn add_item(&mut self, item: &Value, steps: &[Sampled]) {
        for (expected, step) in list(&item["exact_f32_top5_first8"]).iter().zip(steps) {
            for top in list(expected) {
                let id = top["id"].as_u64().expect("an id") as u32;
                let found =
                    step.top.iter().find(|(token, _)| *token == id).map_or(f64::NEG_INFINITY, |top| top.1.into());
                self.top5.push((found - top["logprob"].as_f64().expect("a number")).abs());
            }
        }
        let margins = list(&item["exact_f32_margin"]);
        for ((argmax, margin), step) in ids(&item["exact_f32_argmax"]).iter().zip(margins).zip(steps) {
            self.steps += 1;
            if step.token != *argmax {
                self.wrong_argmax.push(margin.as_f64().expect("a number"));
            }
        }
    }

    fn mean(&self) -> f64 {
        self.top5.iter().sum::<f64>() / self.top5.len() as f64
    }

    fn quantile(&self, q: f64) -> f64 {
        self.top5[((self.top5.len() - 1) as f64 * q).round() as usize]
    }

    fn worst(&self) -> f64 {
        self.quantile(1.0)
    }

    fn wrong_argmax_above(&self, margin: f64) -> usize {
        self.wrong_argmax.iter().filter(|wrong| **wrong > margin).count()
    }
}

impl std::fmt::Display for Findings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "top-5 error mean {:.5} p99 {:.5} max {:.5}; argmax wrong in {} of {} (largest margin {:.3}); perplexity {:+.4} %",
            self.mean(),
            self.quantile(0.99),
            self.worst(),
            self.wrong_argmax.len(),
            self.steps,
            self.wrong_argmax.iter().copied().fold(0.0, f64::max),
            self.perplexity * 100.0
        )
    }
}

fn golden(model: &Reference, kind: &str) -> Value {
    let path = format!("{}/../tests/golden/{}_{kind}.json", env!("CARGO_MANIFEST_DIR"), model.golden);
    let text = std::fs::read_to_string(&path).expect("the golden file is in the repository");
    serde_json::from_str(&text).expect("it is JSON")
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("an array")
}

fn ids(value: &Value) -> Vec<u32> {
    list(value).iter().map(|id| id.as_u64().expect("an id") as u32).collect()
}
