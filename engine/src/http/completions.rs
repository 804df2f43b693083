//! `POST /v1/completions`: prompts as text or tokens, one or many; `echo` with `logprobs` and `max_tokens: 0` scores
//! a prompt without generating.

use std::sync::Arc;

use http::Response;
use serde::Serialize;
use serde_json::{Map, Value};
use tokenizer::{Detokenizer, Special, Tokenizer};
use wire::Usage;
use wire::openai::WireUsage;

use super::answers::Answers;
use super::body::{self, Body};
use super::error::Error;
use super::fields::{Fields, missing, wrong};
use super::logprobs::{CompletionLogprobs, CompletionScores};
use super::params::{self, MAX_LOGPROBS, token_ids};
use super::sse::{self, Events, Shape};
use super::{App, Model, finish_name, identity::Identity};
use crate::request::Request;
use crate::stream::Event;

/// What OpenAI generates when the request does not say.
const DEFAULT_MAX_TOKENS: u32 = 16;
const MAX_PROMPTS: usize = 256;

pub(super) async fn handle(app: &App, model: &Arc<Model>, object: Map<String, Value>) -> Result<Response<Body>, Error> {
    let fields = Fields::new(&object);
    app.check_model(fields, true)?;
    params::refuse_what_is_not_built(&object)?;
    let delivery = params::delivery(fields)?;
    let request = request(fields, model.handle.spec().vocab_size)?;
    let echo = fields.flag("echo")?;
    let prompts = model.encode_all(prompts(fields)?).await?;
    let texts = prompts.iter().map(|prompt| if echo { prompt.shown(&model.tokenizer) } else { String::new() });
    let choices = texts.flat_map(|text| std::iter::repeat_n(text, request.choices as usize));
    let writer = Writer {
        identity: Identity::new("cmpl", &app.options.name),
        include_usage: delivery.include_usage,
        choices: choices.map(|text| Choice::new(text, request.logprobs, &model.tokenizer)).collect(),
        per_prompt: request.choices,
    };
    let requests = prompts.into_iter().map(|prompt| Request { prompt: prompt.tokens, ..request.clone() }).collect();
    let answers = Answers::submit(&model.handle, requests, "prompt", app.options.stall_timeout)?;
    if delivery.stream { Ok(sse::response(answers, writer)) } else { writer.whole(answers).await }
}

fn request(fields: Fields<'_>, vocabulary: u32) -> Result<Request, Error> {
    let echo = fields.flag("echo")?;
    let max_tokens = fields.count("max_tokens", 0..=u32::MAX)?.unwrap_or(DEFAULT_MAX_TOKENS);
    if max_tokens == 0 && !echo {
        return Err(Error::invalid("max_tokens", "'max_tokens' may be 0 only with 'echo'."));
    }
    let logprobs = fields.count("logprobs", 0..=MAX_LOGPROBS)?;
    let shared = params::shared(fields, vocabulary)?;
    if fields.count("best_of", 1..=u32::MAX)?.is_some_and(|best_of| best_of != shared.choices) {
        return Err(Error::Unsupported { param: "best_of".to_owned(), cure: "leave it out or use the value of 'n'" });
    }
    Ok(Request { max_tokens: Some(max_tokens), logprobs, score_prompt: echo && logprobs.is_some(), ..shared })
}

pub(super) enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
}

pub(super) struct Encoded {
    pub(super) tokens: Vec<u32>,
    /// As the client wrote it, if it was text.
    pub(super) text: Option<String>,
}

impl Encoded {
    fn shown(&self, tokenizer: &Arc<Tokenizer>) -> String {
        self.text.clone().unwrap_or_else(|| {
            let mut text = Detokenizer::new(Arc::clone(tokenizer), Special::Plain);
            self.tokens.iter().fold(String::new(), |shown, token| shown + text.push(*token))
        })
    }
}

/// A string, a list of strings, a list of token ids, or a list of such lists.
fn prompts(fields: Fields<'_>) -> Result<Vec<Prompt>, Error> {
    let wanted = "a string, a list of strings, a list of token ids or a list of lists of token ids";
    let value = fields.value("prompt").ok_or_else(|| missing("prompt"))?;
    let prompts: Option<Vec<Prompt>> = match value {
        Value::String(text) => Some(vec![Prompt::Text(text.clone())]),
        Value::Array(list) if list.is_empty() => {
            return Err(Error::invalid("prompt", "'prompt' must hold at least one prompt."));
        }
        Value::Array(list) if list[0].is_number() => token_ids(list).map(|ids| vec![Prompt::Tokens(ids)]),
        Value::Array(list) => list.iter().map(one_prompt).collect(),
        _ => None,
    };
    let prompts = prompts.ok_or_else(|| wrong("prompt", wanted, value))?;
    if prompts.len() > MAX_PROMPTS {
        let message = format!("'prompt' must hold at most {MAX_PROMPTS} prompts, not {}.", prompts.len());
        return Err(Error::invalid("prompt", message));
    }
    Ok(prompts)
}

fn one_prompt(value: &Value) -> Option<Prompt> {
    match value {
        Value::String(text) => Some(Prompt::Text(text.clone())),
        Value::Array(list) => token_ids(list).map(Prompt::Tokens),
        _ => None,
    }
}

struct Writer {
    identity: Identity,
    include_usage: bool,
    choices: Vec<Choice>,
    /// Choices of one prompt.
    per_prompt: u32,
}

/// One answer under way.
struct Choice {
    /// The prompt, as long as it is to be echoed and has not been.
    echo: String,
    scores: Option<CompletionScores>,
}

impl Choice {
    fn new(echo: String, logprobs: Option<u32>, tokenizer: &Arc<Tokenizer>) -> Self {
        Self { echo, scores: logprobs.map(|_| CompletionScores::new(Arc::clone(tokenizer))) }
    }
}

#[derive(Serialize)]
struct Completion<'a> {
    #[serde(flatten)]
    identity: &'a Identity,
    object: &'static str,
    choices: &'a [Part],
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<WireUsage>>,
}

/// A whole choice, or what a chunk adds to one.
#[derive(Debug, Default, Serialize)]
struct Part {
    index: u32,
    text: String,
    logprobs: Option<CompletionLogprobs>,
    finish_reason: Option<&'static str>,
}

impl Part {
    fn is_empty(&self) -> bool {
        self.text.is_empty()
            && self.finish_reason.is_none()
            && self.logprobs.as_ref().is_none_or(|l| l.tokens.is_empty())
    }
}

impl Writer {
    async fn whole(mut self, mut answers: Answers) -> Result<Response<Body>, Error> {
        let mut parts: Vec<Part> = (0..answers.count()).map(|index| Part { index, ..Part::default() }).collect();
        for part in &mut parts {
            part.logprobs = self.choices[part.index as usize].scores.as_ref().map(|_| CompletionLogprobs::default());
        }
        while let Some((index, event)) = answers.next_event().await? {
            for index in self.concerned(index, &event) {
                self.add(&event, &mut parts[index as usize]);
            }
        }
        let usage = Some(Some(answers.usage().into()));
        Ok(body::ok(&Completion { identity: &self.identity, object: "text_completion", choices: &parts, usage }))
    }

    /// The scores of a prompt are those of all its choices.
    fn concerned(&self, index: u32, event: &Event) -> std::ops::Range<u32> {
        match event {
            Event::Prompt { .. } => index..index + self.per_prompt,
            _ => index..index + 1,
        }
    }

    fn add(&mut self, event: &Event, part: &mut Part) {
        let Choice { echo, scores } = &mut self.choices[part.index as usize];
        part.text.push_str(&std::mem::take(echo));
        let mut note = |score: &_| {
            if let (Some(scores), Some(logprobs)) = (scores.as_mut(), part.logprobs.as_mut()) {
                scores.add(score, logprobs);
            }
        };
        match event {
            Event::Prompt { scores, .. } => scores.iter().for_each(note),
            Event::Token { token, text, .. } => {
                note(token);
                part.text.push_str(text);
            }
            Event::Finished { text, reason, .. } => {
                part.text.push_str(text);
                part.finish_reason = Some(finish_name(reason));
            }
        }
    }

    fn send(&self, parts: &[Part], usage: Option<Option<WireUsage>>, out: &mut Events) {
        out.send(&Completion { identity: &self.identity, object: "text_completion", choices: parts, usage });
    }
}

impl Shape for Writer {
    fn event(&mut self, index: u32, event: Event, out: &mut Events) {
        for index in self.concerned(index, &event) {
            let logprobs = self.choices[index as usize].scores.as_ref().map(|_| CompletionLogprobs::default());
            let mut part = Part { index, logprobs, ..Part::default() };
            self.add(&event, &mut part);
            if !part.is_empty() {
                self.send(&[part], self.include_usage.then_some(None), out);
            }
        }
    }

    fn end(&mut self, usage: Usage, out: &mut Events) {
        if self.include_usage {
            self.send(&[], Some(Some(usage.into())), out);
        }
    }
}
