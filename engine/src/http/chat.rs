//! `POST /v1/chat/completions`: its fields, its answer and its chunks.

use std::sync::Arc;

use http::Response;
use serde::Serialize;
use serde_json::{Map, Value};
use tokenizer::Tokenizer;
use wire::Usage;
use wire::openai::WireUsage;

use super::answers::Answers;
use super::body::{self, Body};
use super::error::Error;
use super::fields::Fields;
use super::logprobs::{ChatLogprobs, chat_token};
use super::params::{self, MAX_LOGPROBS};
use super::sse::{self, Events, Shape};
use super::{App, Model, finish_name, identity::Identity, messages};
use crate::request::Request;
use crate::stream::{Event, Score};

pub(super) async fn handle(app: &App, model: &Arc<Model>, object: Map<String, Value>) -> Result<Response<Body>, Error> {
    let fields = Fields::new(&object);
    app.check_model(fields, true)?;
    params::refuse_what_is_not_built(&object)?;
    let delivery = params::delivery(fields)?;
    let mut request = Request {
        max_tokens: max_tokens(fields)?,
        logprobs: logprobs(fields)?,
        ..params::shared(fields, model.handle.spec().vocab_size)?
    };
    request.prompt = model.render(messages::read(fields)?).await?;
    let wants_logprobs = request.logprobs.is_some();
    let answers = Answers::submit(&model.handle, vec![request], "messages", app.options.stall_timeout)?;
    let identity = Identity::new("chatcmpl", &app.options.name);
    if delivery.stream {
        let started = vec![false; answers.count() as usize];
        let tokenizer = Arc::clone(&model.tokenizer);
        let include_usage = delivery.include_usage;
        return Ok(sse::response(answers, Chunks { identity, tokenizer, wants_logprobs, include_usage, started }));
    }
    whole(answers, identity, wants_logprobs, &model.tokenizer).await
}

/// The newer name wins. Absent: what fits in the context.
fn max_tokens(fields: Fields<'_>) -> Result<Option<u32>, Error> {
    let old = fields.count("max_tokens", 1..=u32::MAX)?;
    Ok(fields.count("max_completion_tokens", 1..=u32::MAX)?.or(old))
}

fn logprobs(fields: Fields<'_>) -> Result<Option<u32>, Error> {
    let top = fields.count("top_logprobs", 0..=MAX_LOGPROBS)?;
    match (fields.flag("logprobs")?, top) {
        (true, top) => Ok(Some(top.unwrap_or(0))),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => Err(Error::invalid("top_logprobs", "'top_logprobs' needs 'logprobs' to be true.")),
    }
}

#[derive(Serialize)]
struct Completion {
    #[serde(flatten)]
    identity: Identity,
    object: &'static str,
    choices: Vec<Choice>,
    usage: WireUsage,
}

#[derive(Default, Serialize)]
struct Choice {
    index: u32,
    message: Message,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<&'static str>,
}

#[derive(Serialize)]
struct Message {
    role: &'static str,
    content: String,
    refusal: Option<String>,
}

impl Default for Message {
    fn default() -> Self {
        Self { role: "assistant", content: String::new(), refusal: None }
    }
}

async fn whole(
    mut answers: Answers,
    identity: Identity,
    wants_logprobs: bool,
    tokenizer: &Tokenizer,
) -> Result<Response<Body>, Error> {
    let choice = |index| Choice { index, logprobs: wants_logprobs.then(ChatLogprobs::default), ..Choice::default() };
    let mut choices: Vec<Choice> = (0..answers.count()).map(choice).collect();
    while let Some((index, event)) = answers.next_event().await? {
        let choice = &mut choices[index as usize];
        match event {
            Event::Prompt { .. } => {}
            Event::Token { token, text, .. } => {
                choice.message.content.push_str(&text);
                choice.logprobs.iter_mut().for_each(|logprobs| logprobs.content.push(chat_token(tokenizer, &token)));
            }
            Event::Finished { text, reason, .. } => {
                choice.message.content.push_str(&text);
                choice.finish_reason = Some(finish_name(&reason));
            }
        }
    }
    Ok(body::ok(&Completion { identity, object: "chat.completion", choices, usage: answers.usage().into() }))
}

struct Chunks {
    identity: Identity,
    tokenizer: Arc<Tokenizer>,
    wants_logprobs: bool,
    include_usage: bool,
    /// Choices whose first chunk, which names the role, is out.
    started: Vec<bool>,
}

#[derive(Serialize)]
struct Chunk<'a> {
    #[serde(flatten)]
    identity: &'a Identity,
    object: &'static str,
    choices: &'a [ChunkChoice],
    /// Null in every chunk but the last if usage was asked for, else absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<WireUsage>>,
}

#[derive(Default, Serialize)]
struct ChunkChoice {
    index: u32,
    delta: Delta,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<&'static str>,
}

#[derive(Default, Serialize)]
struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
}

impl Chunks {
    fn send(&self, choice: ChunkChoice, out: &mut Events) {
        self.send_chunk(&[choice], self.include_usage.then_some(None), out);
    }

    fn send_chunk(&self, choices: &[ChunkChoice], usage: Option<Option<WireUsage>>, out: &mut Events) {
        out.send(&Chunk { identity: &self.identity, object: "chat.completion.chunk", choices, usage });
    }

    fn start(&mut self, index: u32, out: &mut Events) {
        if !std::mem::replace(&mut self.started[index as usize], true) {
            let delta = Delta { role: Some("assistant"), content: Some(String::new()) };
            self.send(ChunkChoice { index, delta, ..ChunkChoice::default() }, out);
        }
    }

    /// A token may have no text (yet) and still have a log-probability.
    fn send_text(&self, index: u32, text: String, token: Option<&Score>, out: &mut Events) {
        let wanted = token.filter(|_| self.wants_logprobs);
        let logprobs = wanted.map(|token| ChatLogprobs::of(vec![chat_token(&self.tokenizer, token)]));
        if !text.is_empty() || logprobs.is_some() {
            let delta = Delta { content: Some(text), ..Delta::default() };
            self.send(ChunkChoice { index, delta, logprobs, finish_reason: None }, out);
        }
    }
}

impl Shape for Chunks {
    fn event(&mut self, index: u32, event: Event, out: &mut Events) {
        self.start(index, out);
        match event {
            Event::Prompt { .. } => {}
            Event::Token { token, text, .. } => self.send_text(index, text, Some(&token), out),
            Event::Finished { text, reason, .. } => {
                self.send_text(index, text, None, out);
                let finish_reason = Some(finish_name(&reason));
                self.send(ChunkChoice { index, finish_reason, ..ChunkChoice::default() }, out);
            }
        }
    }

    fn end(&mut self, usage: Usage, out: &mut Events) {
        if self.include_usage {
            self.send_chunk(&[], Some(Some(usage.into())), out);
        }
    }
}
