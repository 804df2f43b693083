//! Golden prompts counted as the gateway counts them, and how far that is from their true counts.

use std::fmt;

use anyhow::Context;
use proxy::config::TokenizerSource;
use serde::Serialize;
use tokenizer::{PromptCounter, openai_chat::Request};

use super::golden::{Case, Files, Prompt};
use crate::model;

/// Misses of one row that are told one by one.
const SHOWN: usize = 20;

#[derive(Serialize)]
pub struct Report {
    exact: bool,
    rows: Vec<Row>,
}

/// All prompts of one kind for one model.
#[derive(Serialize)]
struct Row {
    model: String,
    prompts: &'static str,
    count: usize,
    exact: usize,
    /// The largest difference, negative where too little was counted.
    worst_error_tokens: i64,
    golden_tokens: u64,
    counted_tokens: u64,
    misses: Vec<Miss>,
}

#[derive(Serialize)]
struct Miss {
    id: String,
    golden_tokens: u64,
    counted_tokens: u64,
}

pub fn measure(files: &Files) -> anyhow::Result<Report> {
    let mut rows = Vec::new();
    for (model, cases) in files.cases()? {
        let counter = counter(&model)?;
        let (chats, texts): (Vec<Case>, Vec<Case>) =
            cases.into_iter().partition(|case| matches!(case.prompt, Prompt::Chat(_)));
        for (prompts, cases) in [("chat", chats), ("text", texts)] {
            if !cases.is_empty() {
                rows.push(Row::of(&model, prompts, &cases, &counter));
            }
        }
    }
    Ok(Report { exact: rows.iter().all(|row| row.exact == row.count), rows })
}

/// As a gateway with this model loads it. A bundled model is fetched if it is not here.
fn counter(name: &str) -> anyhow::Result<PromptCounter> {
    let source = match name {
        "cl100k_base" | "o200k_base" => TokenizerSource::Builtin(name.to_owned()),
        bundled => TokenizerSource::Gguf(model::ensure(bundled).context("its golden counts need it")?.path),
    };
    Ok(proxy::prompt_counter(name, &source)?)
}

fn counted(counter: &PromptCounter, prompt: &Prompt) -> u64 {
    match prompt {
        Prompt::Chat(body) => counter.chat(&Request::of(body), b""),
        Prompt::Text { text, begins } => {
            let tokens = counter.text(&text.as_str().into(), b"");
            tokens - u64::from(counter.tokenizer().adds_bos() && !begins)
        }
    }
}

impl Row {
    fn of(model: &str, prompts: &'static str, cases: &[Case], counter: &PromptCounter) -> Self {
        let mut row = Self {
            model: model.to_owned(),
            prompts,
            count: cases.len(),
            exact: 0,
            worst_error_tokens: 0,
            golden_tokens: 0,
            counted_tokens: 0,
            misses: Vec::new(),
        };
        for case in cases {
            let counted = counted(counter, &case.prompt);
            row.golden_tokens += case.tokens;
            row.counted_tokens += counted;
            let error = counted.cast_signed() - case.tokens.cast_signed();
            if error == 0 {
                row.exact += 1;
                continue;
            }
            if error.unsigned_abs() > row.worst_error_tokens.unsigned_abs() {
                row.worst_error_tokens = error;
            }
            let miss = Miss { id: case.id.clone(), golden_tokens: case.tokens, counted_tokens: counted };
            row.misses.push(miss);
        }
        row
    }

    /// Of all tokens together.
    fn error_percent(&self) -> f64 {
        let (counted, golden) = (self.counted_tokens as f64, self.golden_tokens.max(1) as f64);
        (counted / golden - 1.0) * 100.0
    }
}

impl Report {
    pub fn is_exact(&self) -> bool {
        self.exact
    }

    /// What was counted wrongly, a line each.
    pub fn misses(&self) -> impl Iterator<Item = String> {
        self.rows.iter().flat_map(|row| {
            let (model, prompts) = (&row.model, row.prompts);
            row.misses.iter().take(SHOWN).map(move |Miss { id, golden_tokens, counted_tokens }| {
                format!("{model} {prompts} {id}: {counted_tokens} tokens counted, {golden_tokens} are right")
            })
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<14} {:<8} {:>8} {:>8} {:>8} {:>10} {:>10} {:>8}",
            "model", "prompts", "count", "exact", "worst", "golden", "counted", "error"
        )?;
        for row in &self.rows {
            let Row { model, prompts, count, exact, worst_error_tokens, golden_tokens, counted_tokens, .. } = row;
            let error = row.error_percent();
            writeln!(
                f,
                "{model:<14} {prompts:<8} {count:>8} {exact:>8} {worst_error_tokens:>8} {golden_tokens:>10} {counted_tokens:>10} {error:>7.2}%"
            )?;
        }
        f.write_str(if self.exact {
            "every prompt is counted to the token"
        } else {
            "not every prompt is counted to the token"
        })
    }
}
