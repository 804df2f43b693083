//! A model's own Jinja chat template: compiled once, rendered with bounded work. Templates come with model files and
//! are untrusted: no files, no environment, a fuel limit. Turning the text into tokens is `chat_prompt`'s.

use gguf::File;
use jiff::Timestamp;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value};
use minijinja::{Environment, ErrorKind, context};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde::Serialize as _;

use crate::error::LoadError;

/// Instructions and 64-byte units of text that one rendering may use: about 0.2 s and 128 MB at the worst.
const FUEL: u64 = 2_000_000;
const NAME: &str = "chat";

/// Why a conversation could not be rendered. The template decides what it accepts, so all of these are the client's:
/// status 400, `param: "messages"`.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// The template called `raise_exception`: its own words.
    #[error("{message}")]
    Refused { message: String },
    #[error("the model's chat template cannot render these messages: {message}")]
    Failed { message: String },
    #[error("the model's chat template needs too much work for these messages; send fewer or shorter ones")]
    TooMuchWork,
    #[error("messages[{index}].content: this model takes text only, not a part of type {kind:?}")]
    PartType { index: usize, kind: String },
    #[error("messages: more than 65,000 different private-use characters; remove some")]
    PrivateUse,
}

#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos: String,
    eos: String,
    takes_parts: bool,
    knows_developers: bool,
}

impl ChatTemplate {
    /// The template in a model file; `None` for a base model, which has none.
    pub fn from_gguf(file: &File) -> Result<Option<Self>, LoadError> {
        let Some(source) = file.opt_str("tokenizer.chat_template")? else { return Ok(None) };
        let token = |key: &str| -> Result<String, LoadError> {
            let Some(id) = file.opt_u32(key)? else { return Ok(String::new()) };
            let text = file.array("tokenizer.ggml.tokens")?.strings()?.nth(id as usize).unwrap_or_default();
            Ok(String::from_utf8_lossy(text).into_owned())
        };
        Self::new(source, &token("tokenizer.ggml.bos_token_id")?, &token("tokenizer.ggml.eos_token_id")?).map(Some)
    }

    /// Compiles a template; `bos` and `eos` are the texts of the tokens it may write.
    pub fn new(source: &str, bos: &str, eos: &str) -> Result<Self, LoadError> {
        let refuse = |error: minijinja::Error| LoadError::Template { reason: error.to_string() };
        let mut environment = Environment::new();
        // As Hugging Face renders them, which is what template authors test with.
        environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(refuse)?);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(unknown_method_callback);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_now);
        environment.add_filter("tojson", tojson);
        environment.add_template_owned(NAME, source.to_owned()).map_err(refuse)?;
        // Templates that take lists of content parts look at the parts' types; the others expect a string.
        let takes_parts = ["['type']", "[\"type\"]", ".type"].iter().any(|look| source.contains(look));
        let knows_developers = source.contains("developer");
        Ok(Self { environment, bos: bos.to_owned(), eos: eos.to_owned(), takes_parts, knows_developers })
    }

    /// Whether message contents may stay lists of parts.
    pub(crate) fn takes_parts(&self) -> bool {
        self.takes_parts
    }

    /// Whether it has words for the role that other templates call system.
    pub(crate) fn knows_developers(&self) -> bool {
        self.knows_developers
    }

    pub(crate) fn render(
        &self,
        messages: &serde_json::Value,
        tools: Option<&serde_json::Value>,
        add_generation_prompt: bool,
    ) -> Result<String, TemplateError> {
        let template = self.environment.get_template(NAME).map_err(explain)?;
        let context = context! {
            messages => Value::from(Serde(messages)),
            tools => tools.map(|tools| Value::from(Serde(tools))),
            add_generation_prompt,
            bos_token => self.bos.as_str(),
            eos_token => self.eos.as_str(),
        };
        template.render(context).map_err(explain)
    }
}

fn explain(error: minijinja::Error) -> TemplateError {
    match error.kind() {
        ErrorKind::OutOfFuel => TemplateError::TooMuchWork,
        _ => match std::error::Error::source(&error).and_then(|source| source.downcast_ref::<Raised>()) {
            Some(raised) => TemplateError::Refused { message: raised.0.clone() },
            None => TemplateError::Failed { message: error.to_string() },
        },
    }
}

/// The template's own refusal, kept apart from errors of the engine.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

fn raise_exception(message: String) -> Result<Value, minijinja::Error> {
    let error = minijinja::Error::new(ErrorKind::InvalidOperation, "raise_exception");
    Err(error.with_source(Raised(message)))
}

/// Today's date for templates that mention it, in UTC so that every replica renders the same.
fn strftime_now(format: &str) -> Result<String, minijinja::Error> {
    let now = Timestamp::now().to_zoned_datetime(jiff::tz::TimeZone::UTC);
    jiff::fmt::strtime::format(format, &now)
        .map_err(|error| minijinja::Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {error}")))
}

/// As Python's `json.dumps(ensure_ascii=False)`: a space after `,` and `:`, nothing escaped for HTML.
fn tojson(value: &Value, arguments: Kwargs) -> Result<String, minijinja::Error> {
    let indent: Option<usize> = arguments.get("indent")?;
    let _ascii: Option<bool> = arguments.get("ensure_ascii")?;
    arguments.assert_all_used()?;
    let mut out = Vec::new();
    let written = match indent {
        Some(width) => {
            let indent = vec![b' '; width.min(16)];
            let format = serde_json::ser::PrettyFormatter::with_indent(&indent);
            value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, format))
        }
        None => value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, Spaced)),
    };
    let invalid =
        |error: &dyn std::fmt::Display| minijinja::Error::new(ErrorKind::InvalidOperation, format!("tojson: {error}"));
    written.map_err(|error| invalid(&error))?;
    String::from_utf8(out).map_err(|error| invalid(&error))
}

struct Spaced;

impl serde_json::ser::Formatter for Spaced {
    fn begin_array_value<W: ?Sized + std::io::Write>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(&mut self, writer: &mut W) -> std::io::Result<()> {
        writer.write_all(b": ")
    }
}
