//! The prompt tokens of a chat request as OpenAI's API counts them, found by comparing requests with the usage they
//! were billed: a few tokens around each message, tools as TypeScript definitions, images by their size.

mod audio;
mod base64_text;
mod functions;
mod image;
mod parts;
mod response_format;

use serde_json::Value;

pub use image::ImageRule;
pub use parts::Estimates;

/// Around every message: start, role and end marks.
const PER_MESSAGE: u64 = 3;
/// Opens the answer.
const ANSWER: u64 = 3;
/// The system message that OpenAI writes around function definitions.
const AROUND_DEFINITIONS: u64 = 9;
/// Of those, what is not needed where the request has a system message already.
const SHARED_WITH_SYSTEM: u64 = 4;
const FUNCTION_CALL: u64 = 3;

/// The fields of a chat request that cost prompt tokens, borrowed from the body.
#[derive(Clone, Copy, Debug, Default)]
pub struct Request<'r> {
    pub messages: Option<&'r Value>,
    pub tools: Option<&'r Value>,
    pub tool_choice: Option<&'r Value>,
    /// The older form of `tools` and `tool_choice`.
    pub functions: Option<&'r Value>,
    pub function_call: Option<&'r Value>,
    pub response_format: Option<&'r Value>,
}

impl<'r> Request<'r> {
    /// The fields of a whole request body.
    pub fn of(body: &'r Value) -> Self {
        Self {
            messages: body.get("messages"),
            tools: body.get("tools"),
            tool_choice: body.get("tool_choice"),
            functions: body.get("functions"),
            function_call: body.get("function_call"),
            response_format: body.get("response_format"),
        }
    }

    fn messages(&self) -> &'r [Value] {
        self.messages.and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    /// The definitions in either form.
    fn functions(&self) -> Vec<&'r Value> {
        let tools = self.tools.and_then(Value::as_array).into_iter().flatten();
        let tools = tools.filter_map(|tool| tool.get("function"));
        let functions = self.functions.and_then(Value::as_array).into_iter().flatten();
        tools.chain(functions).collect()
    }
}

/// Prompt tokens of the request; `count` counts a text. Exact for text, names, functions and calls; parts that are not
/// text cost what `estimates` says, and a schema for the answer what it costs written out. Malformed fields cost
/// nothing: refusing them is not the count's business.
pub(crate) fn count(count: &dyn Fn(&str) -> u64, request: &Request<'_>, estimates: &Estimates) -> u64 {
    let counter = Counter { count, estimates };
    let functions = request.functions();
    let system = request.messages().iter().position(is_system);
    let mut tokens = ANSWER;
    for (index, message) in request.messages().iter().enumerate() {
        // With functions, the first system message is joined to the definitions by a newline.
        let padded = !functions.is_empty() && system == Some(index);
        tokens += counter.message(message, if padded { "\n" } else { "" });
    }
    if !functions.is_empty() {
        tokens += counter.text(&functions::definitions(&functions)) + AROUND_DEFINITIONS;
        tokens -= if system.is_some() { SHARED_WITH_SYSTEM } else { 0 };
    }
    if let Some(schema) = request.response_format.and_then(response_format::written) {
        tokens += counter.text(&schema);
    }
    tokens + counter.choice(request.function_call) + counter.choice(request.tool_choice)
}

/// What the parts of all messages that are not text cost.
pub(crate) fn media(request: &Request<'_>, estimates: &Estimates) -> u64 {
    let contents = request.messages().iter().filter_map(|message| message["content"].as_array());
    let others = contents.flatten().filter(|part| part.is_object() && parts::text(part).is_none());
    others.map(|part| estimates.part(part)).sum()
}

fn is_system(message: &Value) -> bool {
    matches!(message["role"].as_str(), Some("system" | "developer"))
}

struct Counter<'c> {
    count: &'c dyn Fn(&str) -> u64,
    estimates: &'c Estimates,
}

impl Counter<'_> {
    fn text(&self, text: &str) -> u64 {
        if text.is_empty() { 0 } else { (self.count)(text) }
    }

    fn field(&self, object: &Value, name: &str) -> u64 {
        object[name].as_str().map_or(0, |text| self.text(text))
    }

    fn message(&self, message: &Value, padding: &str) -> u64 {
        let mut tokens = PER_MESSAGE + self.field(message, "role") + self.content(&message["content"], padding);
        tokens += self.field(message, "refusal");
        if message["name"].as_str().is_some_and(|name| !name.is_empty()) {
            tokens += self.field(message, "name") + 1;
        }
        let calls = message["tool_calls"].as_array().into_iter().flatten().map(|call| &call["function"]);
        for call in calls.chain(message.get("function_call")).filter(|call| call.is_object()) {
            tokens += FUNCTION_CALL + self.field(call, "name") + self.field(call, "arguments");
        }
        // A function's answer is written without two of the marks around a message.
        if message["role"] == "function" { tokens - 2 } else { tokens }
    }

    fn content(&self, content: &Value, padding: &str) -> u64 {
        match content {
            Value::String(text) if padding.is_empty() => self.text(text),
            Value::String(text) => self.text(&format!("{text}{padding}")),
            Value::Array(parts) => parts.iter().map(|part| self.part(part)).sum(),
            _ => 0,
        }
    }

    fn part(&self, part: &Value) -> u64 {
        match (part, parts::text(part)) {
            (Value::String(text), _) => self.text(text),
            (_, Some(text)) => self.text(text),
            _ => self.estimates.part(part),
        }
    }

    /// `tool_choice` or `function_call`: a mode, or a function by name.
    fn choice(&self, choice: Option<&Value>) -> u64 {
        match choice {
            Some(Value::String(mode)) if mode == "none" => 1,
            Some(choice @ Value::Object(_)) => match (&choice["name"], &choice["function"]["name"]) {
                (Value::String(name), _) | (_, Value::String(name)) => self.text(name) + 4,
                _ => 0,
            },
            _ => 0,
        }
    }
}
