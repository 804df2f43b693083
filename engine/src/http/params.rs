//! The fields that chat and completions share, read into an engine request. What is not built is refused by name:
//! a field that is accepted and ignored would change the answer silently.

use serde_json::{Map, Value};

use super::error::Error;
use super::fields::{Fields, wrong};
use crate::backend::SamplingParams;
use crate::request::Request;

const MAX_CHOICES: u32 = 128;
const MAX_STOPS: usize = 16;
const MAX_STOP_BYTES: usize = 1024;
/// As OpenAI's chat allows; completions allow the same here, not 5 only.
pub(super) const MAX_LOGPROBS: u32 = 20;

/// How the answer is delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Delivery {
    pub(super) stream: bool,
    pub(super) include_usage: bool,
}

/// A request without prompt and limits, which the endpoints read differently.
pub(super) fn shared(fields: Fields<'_>, vocabulary: u32) -> Result<Request, Error> {
    Ok(Request {
        prompt: Vec::new(),
        choices: fields.count("n", 1..=MAX_CHOICES)?.unwrap_or(1),
        max_tokens: None,
        sampling: sampling(fields, vocabulary)?,
        // Any 64 bits will do as a seed, so a negative one is as good.
        seed: fields.integer("seed", i64::MIN..=i64::MAX)?.map(|seed| seed as u64),
        stop: stop(fields)?,
        stop_tokens: stop_tokens(fields)?,
        ignore_eos: fields.flag("ignore_eos")?,
        logprobs: None,
        score_prompt: false,
        cache_salt: fields.text("cache_salt")?.unwrap_or_default().to_owned(),
    })
}

fn sampling(fields: Fields<'_>, vocabulary: u32) -> Result<SamplingParams, Error> {
    let off = SamplingParams::default();
    let penalty = |name| fields.number(name, -2.0..=2.0);
    Ok(SamplingParams {
        temperature: fields.number("temperature", 0.0..=2.0)?.unwrap_or(off.temperature),
        // vLLM's -1 and 0 both mean all.
        top_k: fields.integer("top_k", -1..=i64::from(i32::MAX))?.map_or(off.top_k, |k| k.max(0) as u32),
        top_p: fields.number("top_p", 0.0..=1.0)?.unwrap_or(off.top_p),
        min_p: fields.number("min_p", 0.0..=1.0)?.unwrap_or(off.min_p),
        presence_penalty: penalty("presence_penalty")?.unwrap_or(off.presence_penalty),
        frequency_penalty: penalty("frequency_penalty")?.unwrap_or(off.frequency_penalty),
        repetition_penalty: fields.number("repetition_penalty", 0.01..=100.0)?.unwrap_or(off.repetition_penalty),
        logit_bias: logit_bias(fields, vocabulary)?,
    })
}

fn logit_bias(fields: Fields<'_>, vocabulary: u32) -> Result<Vec<(u32, f32)>, Error> {
    let wanted = "a map from token ids of the model to numbers between -100 and 100";
    let entry = |(token, bias): (&String, &Value)| {
        let token = token.parse::<u32>().ok().filter(|token| *token < vocabulary);
        let bias = bias.as_f64().filter(|bias| (-100.0..=100.0).contains(bias));
        token.zip(bias).map(|(token, bias)| (token, bias as f32))
    };
    let Some(map) = fields.object("logit_bias")? else { return Ok(Vec::new()) };
    map.iter().map(|pair| entry(pair).ok_or_else(|| wrong("logit_bias", wanted, &Value::Object(map.clone())))).collect()
}

/// A string or a list of strings. An empty one would stop at once and is ignored.
fn stop(fields: Fields<'_>) -> Result<Vec<String>, Error> {
    let wanted = "a string or a list of at most 16 strings, each of at most 1024 bytes";
    let Some(value) = fields.value("stop") else { return Ok(Vec::new()) };
    let stops = match value {
        Value::String(stop) => Some(vec![stop.clone()]),
        Value::Array(stops) => stops.iter().map(|stop| stop.as_str().map(str::to_owned)).collect(),
        _ => None,
    };
    stops
        .filter(|stops: &Vec<String>| stops.len() <= MAX_STOPS && stops.iter().all(|stop| stop.len() <= MAX_STOP_BYTES))
        .ok_or_else(|| wrong("stop", wanted, value))
}

fn stop_tokens(fields: Fields<'_>) -> Result<Vec<u32>, Error> {
    let Some(list) = fields.list("stop_token_ids")? else { return Ok(Vec::new()) };
    token_ids(list).ok_or_else(|| Error::invalid("stop_token_ids", "'stop_token_ids' must be a list of token ids."))
}

pub(super) fn token_ids(list: &[Value]) -> Option<Vec<u32>> {
    list.iter().map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok())).collect()
}

pub(super) fn delivery(fields: Fields<'_>) -> Result<Delivery, Error> {
    let stream = fields.flag("stream")?;
    let options = fields.object("stream_options")?;
    if options.is_some() && !stream {
        return Err(Error::invalid("stream_options", "'stream_options' is only allowed when 'stream' is true."));
    }
    let include_usage = match options {
        Some(options) => Fields::new(options).flag("include_usage")?,
        None => false,
    };
    Ok(Delivery { stream, include_usage })
}

/// The field, whether a value asks for nothing, and what to do instead.
struct NotBuilt(&'static str, fn(&Value) -> bool, &'static str);

/// Fields that would change the answer if they were built, with the values that ask for nothing.
const NOT_BUILT: &[NotBuilt] = &[
    NotBuilt("response_format", |value| value["type"] == "text", "leave it out or use {\"type\": \"text\"}"),
    NotBuilt("tools", is_empty, "leave it out"),
    NotBuilt("tool_choice", |value| value == "none" || value == "auto", "leave it out"),
    NotBuilt("functions", is_empty, "leave it out"),
    NotBuilt("function_call", |value| value == "none" || value == "auto", "leave it out"),
    NotBuilt("modalities", |value| *value == serde_json::json!(["text"]), "only text is made"),
    NotBuilt("audio", is_empty, "only text is made"),
    NotBuilt("prediction", is_empty, "leave it out"),
    NotBuilt("web_search_options", |_| false, "leave it out"),
    NotBuilt("structured_outputs", is_empty, "leave it out"),
    NotBuilt("guided_json", is_empty, "leave it out"),
    NotBuilt("guided_regex", is_empty, "leave it out"),
    NotBuilt("guided_choice", is_empty, "leave it out"),
    NotBuilt("guided_grammar", is_empty, "leave it out"),
    NotBuilt("grammar", is_empty, "leave it out"),
    NotBuilt("json_schema", is_empty, "leave it out"),
    NotBuilt("suffix", is_empty, "leave it out"),
    NotBuilt("use_beam_search", is_false, "leave it out"),
    NotBuilt("length_penalty", |value| value.as_f64() == Some(1.0), "leave it out"),
    NotBuilt("min_tokens", |value| value == 0, "use ignore_eos with max_tokens"),
    NotBuilt("prompt_logprobs", |_| false, "use completions with echo and logprobs"),
    NotBuilt("truncate_prompt_tokens", |_| false, "shorten the prompt"),
    NotBuilt("include_stop_str_in_output", is_false, "append the stop string yourself"),
    NotBuilt("skip_special_tokens", |value| value == true, "leave it out"),
    NotBuilt("return_token_ids", is_false, "use logprobs and /tokenize"),
    NotBuilt("priority", |value| value == 0, "leave it out"),
    NotBuilt("chat_template", is_empty, "the model's own template is used"),
    NotBuilt("chat_template_kwargs", is_empty, "leave it out"),
    NotBuilt("continue_final_message", is_false, "use completions"),
    NotBuilt("add_generation_prompt", |value| value == true, "use completions"),
];

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}

fn is_false(value: &Value) -> bool {
    value == false
}

pub(super) fn refuse_what_is_not_built(object: &Map<String, Value>) -> Result<(), Error> {
    let fields = Fields::new(object);
    let asked =
        NOT_BUILT.iter().find(|NotBuilt(name, harmless, _)| fields.value(name).is_some_and(|value| !harmless(value)));
    match asked {
        Some(NotBuilt(name, _, cure)) => Err(Error::Unsupported { param: (*name).to_owned(), cure }),
        None => Ok(()),
    }
}
