//! `POST /tokenize` and `/detokenize`: the engine's own count, for whoever must agree with it.

use std::sync::Arc;

use http::Response;
use serde::Serialize;
use serde_json::{Map, Value};
use tokenizer::Special;

use super::body::{self, Body};
use super::error::Error;
use super::fields::{Fields, missing};
use super::{App, Model, messages, params};

#[derive(Serialize)]
struct Tokens {
    count: usize,
    max_model_len: u32,
    tokens: Vec<u32>,
}

#[derive(Serialize)]
struct Text {
    prompt: String,
}

/// Of `prompt`, or of `messages` as the chat endpoint would see them.
pub(super) async fn tokenize(
    app: &App,
    model: &Arc<Model>,
    object: Map<String, Value>,
) -> Result<Response<Body>, Error> {
    let fields = Fields::new(&object);
    app.check_model(fields, false)?;
    let add_special = fields.value("add_special_tokens").is_none() || fields.flag("add_special_tokens")?;
    let special = if fields.flag("parse_special")? { Special::Parse } else { Special::Plain };
    let tokens = match fields.text("prompt")? {
        Some(prompt) => model.encode(prompt.to_owned(), special, add_special).await?,
        None if fields.value("messages").is_some() => model.render(messages::read(fields)?).await?,
        None => return Err(missing("prompt")),
    };
    Ok(body::ok(&Tokens { count: tokens.len(), max_model_len: model.handle.context(), tokens }))
}

pub(super) fn detokenize(app: &App, model: &Model, object: &Map<String, Value>) -> Result<Response<Body>, Error> {
    let fields = Fields::new(object);
    app.check_model(fields, false)?;
    let list = fields.list("tokens")?.ok_or_else(|| missing("tokens"))?;
    let known = |tokens: &Vec<u32>| tokens.iter().all(|token| *token < model.handle.spec().vocab_size);
    let tokens = params::token_ids(list).filter(known);
    let tokens =
        tokens.ok_or_else(|| Error::invalid("tokens", "'tokens' must be a list of token ids of the model."))?;
    Ok(body::ok(&Text { prompt: model.tokenizer.decode(&tokens, Special::Parse) }))
}
