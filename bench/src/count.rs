//! `penstock bench count`: what it costs the gateway to count a long prompt, on one core: the request's JSON, the chat
//! template and the tokens, as it does before it reserves. Which tokenizers, is the caller's choice.

mod texts;

use serde_json::{Value, json};
use tokenizer::{PromptCounter, openai_chat::Request};

use crate::{
    clock,
    report::{Figure, Machine, Report, Section, TargetMet},
};

const TARGET_MS: f64 = 25.0;

#[derive(Clone, Debug)]
pub struct Options {
    /// Of one prompt.
    pub bytes: usize,
    pub repetitions: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { bytes: 1 << 20, repetitions: 7 }
    }
}

impl Options {
    pub fn quick() -> Self {
        Self { repetitions: 1, ..Self::default() }
    }
}

/// A tokenizer by the name that the report calls it.
pub struct Named {
    pub name: String,
    pub counter: PromptCounter,
}

/// Messages of a conversation that grows: a prompt as long as all of them, sent again with a short one more.
const TURNS: usize = 64;

pub fn run(options: &Options, counters: &[Named], progress: &mut dyn FnMut(&str)) -> Report {
    let machine = Machine::here();
    let (mut sections, mut targets) = (Vec::new(), Vec::new());
    for Named { name, counter } in counters {
        progress(name);
        let columns = ["one message, ms", "64 messages, ms", "and one more, ms", "tokens"];
        let mut section = Section::new(&format!("{name}: a chat of {} KiB", options.bytes / 1024), &columns);
        let mut worst = None;
        for (kind, text) in texts::all(options.bytes) {
            let case = Case::measure(options, counter, &text);
            let median = Figure::of(case.one.iter().copied()).map_or(f64::NAN, |figure| figure.median);
            worst = Some(worst.map_or(median, |worst: f64| worst.max(median)));
            section.row(kind, case.cells());
        }
        targets.push(TargetMet::at_most(&format!("{name}: slowest text, ms"), TARGET_MS, worst));
        sections.push(section);
    }
    let notes = vec![format!(
        "CPU time of one thread, median [min .. max] over {} repetitions; JSON and chat template included; nothing is \
         remembered but in the column of one message more, whose other messages were counted before",
        options.repetitions.max(1)
    )];
    Report { title: "penstock bench count".into(), machine, sections, notes, targets }
}

#[derive(Default)]
struct Case {
    one: Vec<f64>,
    many: Vec<f64>,
    again: Vec<f64>,
    tokens: u64,
}

impl Case {
    fn measure(options: &Options, counter: &PromptCounter, text: &str) -> Self {
        let one = messages([text].into_iter());
        let turns: Vec<&str> = split(text, TURNS);
        let many = messages(turns.iter().copied());
        let more = messages(turns.into_iter().chain(["And what does that mean?"]));
        let mut case = Self::default();
        for repetition in 0..options.repetitions.max(1) {
            // A scope for each, so that none finds what another has counted.
            let scope = |part: u8| [&[part][..], &repetition.to_le_bytes()].concat();
            case.tokens = timed(counter, &one, &scope(0), &mut case.one);
            timed(counter, &many, &scope(1), &mut case.many);
            timed(counter, &more, &scope(1), &mut case.again);
        }
        case
    }

    fn cells(self) -> Vec<Option<Figure>> {
        let tokens = Figure::of([self.tokens as f64]);
        vec![Figure::of(self.one), Figure::of(self.many), Figure::of(self.again), tokens]
    }
}

fn timed(counter: &PromptCounter, messages: &str, scope: &[u8], took: &mut Vec<f64>) -> u64 {
    let start = clock::thread_cpu_ns();
    let messages: Value = serde_json::from_str(messages).unwrap_or_default();
    let tokens = counter.chat(&Request { messages: Some(&messages), ..Request::default() }, scope);
    took.push((clock::thread_cpu_ns() - start) as f64 / 1e6);
    tokens
}

fn messages<'t>(texts: impl Iterator<Item = &'t str>) -> String {
    let roles = ["user", "assistant"].into_iter().cycle();
    let messages: Vec<Value> = texts.zip(roles).map(|(text, role)| json!({"role": role, "content": text})).collect();
    Value::from(messages).to_string()
}

/// About equal parts.
fn split(text: &str, parts: usize) -> Vec<&str> {
    let mut rest = text;
    let mut found = Vec::with_capacity(parts);
    for left in (1..=parts).rev() {
        let (part, after) = rest.split_at(rest.ceil_char_boundary(rest.len() / left));
        found.push(part);
        rest = after;
    }
    found
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokenizer::{Tokenizer, openai_chat::Estimates};

    use super::*;

    #[test]
    fn every_kind_of_text_has_figures_and_the_slowest_is_judged() {
        let tokenizer = Arc::new(Tokenizer::builtin("cl100k_base").unwrap());
        let counters =
            [Named { name: "cl100k_base".into(), counter: PromptCounter::new(tokenizer, None, Estimates::default()) }];
        let options = Options { bytes: 20_000, repetitions: 2 };
        let report = run(&options, &counters, &mut |_| {});
        let rows = &report.sections[0].rows;
        assert!(rows.len() >= 8, "{rows:?}");
        for row in rows {
            let cells: Vec<f64> = row.cells.iter().map(|cell| cell.unwrap().median).collect();
            assert!(cells.iter().all(|cell| *cell > 0.0), "{row:?}");
        }
        assert!(report.targets[0].measured.is_some_and(|ms| ms > 0.0));
    }

    #[test]
    fn parts_are_the_whole() {
        let text = "漢字 and more".repeat(100);
        let parts = split(&text, TURNS);
        assert_eq!((parts.len(), parts.concat()), (TURNS, text));
    }
}
