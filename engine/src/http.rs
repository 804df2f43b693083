//! The engine over HTTP: OpenAI's endpoints, tokens, health, load and metrics, on TCP or a Unix socket. Everything
//! below is synchronous; only this module and its children know an async runtime.

use std::convert::Infallible;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use serde_json::{Map, Value};
use tokenizer::{ChatPrompt, ChatTemplate, Special, Tokenizer};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use wire::load::LoadReport;
use wire::openai::{self, ModelList};

use crate::backend::BLOCK_SIZE;
use crate::handle::{Handle, Load};
use crate::request::FinishReason;

mod answers;
mod body;
mod chat;
mod completions;
mod error;
mod fields;
mod identity;
mod listen;
mod logprobs;
mod messages;
mod params;
mod sse;
mod tokens;

use body::Body;
use completions::{Encoded, Prompt};
use error::Error;
use fields::{Fields, missing};
pub use listen::Listener;

#[derive(Clone, Debug)]
pub struct Options {
    /// What clients call the model.
    pub name: String,
    /// Bytes of a request body.
    pub body_limit: usize,
    pub body_timeout: Duration,
    /// The longest wait for the next token, time in the queue included.
    pub stall_timeout: Duration,
    /// The longest that running answers may take once the server drains.
    pub drain_timeout: Duration,
}

impl Options {
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            body_limit: 16 << 20,
            body_timeout: Duration::from_secs(30),
            stall_timeout: Duration::from_secs(300),
            drain_timeout: Duration::from_secs(30),
        }
    }
}

/// A loaded model: what [`Server::install`] makes available.
#[derive(Clone)]
pub struct Model {
    pub handle: Handle,
    pub tokenizer: Arc<Tokenizer>,
    /// A base model has none.
    pub template: Option<Arc<ChatTemplate>>,
}

/// How soon a failure of the engine is noticed.
const FAILURE_POLL: Duration = Duration::from_millis(100);

/// Answers from the first moment: 503 while the model loads.
pub struct Server {
    app: Arc<App>,
    draining: watch::Sender<bool>,
}

struct App {
    options: Options,
    boot_id: String,
    created: u64,
    model: OnceLock<Arc<Model>>,
}

impl Server {
    pub fn new(options: Options) -> Self {
        let app = App {
            options,
            boot_id: identity::random_id(),
            created: identity::unix_ms() / 1000,
            model: OnceLock::new(),
        };
        Self { app: Arc::new(app), draining: watch::Sender::new(false) }
    }

    /// From now on requests are served. A second model is not taken.
    pub fn install(&self, model: Model) {
        if self.app.model.set(Arc::new(model)).is_err() {
            tracing::error!("a model is installed already");
        }
    }

    /// Serves until drained. May be called for several listeners.
    pub async fn serve(&self, listener: Listener) {
        let drain_timeout = self.app.options.drain_timeout;
        listen::serve(Arc::clone(&self.app), listener, self.draining.subscribe(), drain_timeout).await;
    }

    /// Returns once the engine has failed. What ran has been told; nothing can be served any more.
    pub async fn failed(&self) {
        while !self.app.model.get().is_some_and(|model| model.handle.has_stopped()) {
            tokio::time::sleep(FAILURE_POLL).await;
        }
    }

    /// Takes no more requests; running answers go on to their end, then [`Server::serve`] returns.
    pub fn drain(&self) {
        if let Some(model) = self.app.model.get() {
            model.handle.drain();
        }
        self.draining.send_replace(true);
    }
}

const GET: &str = "GET";
const POST: &str = "POST";

impl App {
    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
        let (head, incoming) = request.into_parts();
        let request_id = request_id(&head);
        let mut response = self.route(&head, incoming).await.unwrap_or_else(Error::into_response);
        response.headers_mut().insert("x-request-id", request_id);
        Ok(response)
    }

    async fn route(&self, head: &Parts, incoming: Incoming) -> Result<Response<Body>, Error> {
        let path = normal_path(head.uri.path());
        let path = path.strip_prefix("/v1").filter(|rest| rest.starts_with('/')).unwrap_or(&path);
        match path {
            "/health" => self.get(head).and_then(|()| self.health()),
            "/load" => self.get(head).and_then(|()| self.load()),
            "/metrics" => self.get(head).and_then(|()| self.metrics()),
            "/models" => self.get(head).map(|()| body::ok(&ModelList::new(vec![self.model_entry()]))),
            "/chat/completions" => chat::handle(self, self.loaded()?, self.post(head, incoming).await?).await,
            "/completions" => completions::handle(self, self.loaded()?, self.post(head, incoming).await?).await,
            "/tokenize" => tokens::tokenize(self, self.loaded()?, self.post(head, incoming).await?).await,
            "/detokenize" => tokens::detokenize(self, self.loaded()?, &self.post(head, incoming).await?),
            _ => match path.strip_prefix("/models/") {
                Some(name) => self.get(head).and_then(|()| self.named_model(name)),
                None => Err(Error::UnknownPath(format!("{} {}", head.method, head.uri.path()))),
            },
        }
    }

    fn get(&self, head: &Parts) -> Result<(), Error> {
        if head.method == Method::GET || head.method == Method::HEAD { Ok(()) } else { Err(Error::Method(GET)) }
    }

    async fn post(&self, head: &Parts, incoming: Incoming) -> Result<Map<String, Value>, Error> {
        if head.method != Method::POST {
            return Err(Error::Method(POST));
        }
        body::read_object(&head.headers, incoming, self.options.body_limit, self.options.body_timeout).await
    }

    fn loaded(&self) -> Result<&Arc<Model>, Error> {
        self.model.get().ok_or(Error::Loading)
    }

    /// `required`: OpenAI's endpoints need the field, the others do not.
    fn check_model(&self, fields: Fields<'_>, required: bool) -> Result<(), Error> {
        match fields.text("model")? {
            Some(name) if name == self.options.name => Ok(()),
            Some(name) => Err(Error::UnknownModel(name.to_owned())),
            None if required => Err(missing("model")),
            None => Ok(()),
        }
    }

    fn health(&self) -> Result<Response<Body>, Error> {
        let handle = &self.loaded()?.handle;
        if handle.has_stopped() {
            return Err(Error::Refused { refused: crate::Refused::Stopped, param: "" });
        }
        // By now every caller has been told that nothing comes.
        if handle.step_time().is_some_and(|time| time > self.options.stall_timeout) {
            return Err(Error::Stalled);
        }
        Ok(body::json(StatusCode::OK, r#"{"status":"ok"}"#))
    }

    fn metrics(&self) -> Result<Response<Body>, Error> {
        let text = self.loaded()?.handle.metrics();
        Ok(body::with_type(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text))
    }

    fn load(&self) -> Result<Response<Body>, Error> {
        let handle = &self.loaded()?.handle;
        let Load { running, waiting, waiting_tokens, kv } = handle.load();
        Ok(body::ok(&LoadReport {
            boot_id: self.boot_id.clone(),
            ts_ms: identity::unix_ms(),
            model: self.options.name.clone(),
            adapters: Vec::new(),
            running,
            waiting,
            waiting_tokens,
            kv_blocks: kv,
            block_size: BLOCK_SIZE,
            max_num_seqs: handle.max_seqs(),
            draining: handle.is_draining(),
            step_model: None,
        }))
    }

    fn model_entry(&self) -> openai::Model {
        openai::Model::new(&self.options.name, self.created, "penstock")
    }

    fn named_model(&self, name: &str) -> Result<Response<Body>, Error> {
        if name == self.options.name {
            Ok(body::ok(&self.model_entry()))
        } else {
            Err(Error::UnknownModel(name.to_owned()))
        }
    }
}

impl Model {
    /// Messages as the model's template makes them a prompt. A template's complaint is the client's to mend.
    async fn render(self: &Arc<Self>, messages: Value) -> Result<Vec<u32>, Error> {
        let template = Arc::clone(self.template.as_ref().ok_or(Error::NoChatTemplate)?);
        let tokenizer = Arc::clone(&self.tokenizer);
        let render = move || ChatPrompt::render(&template, &tokenizer, &messages, None, true);
        let rendered = off_the_runtime(render).await?;
        rendered.map_err(|error| Error::invalid("messages", format!("The chat template refused the messages: {error}")))
    }

    async fn encode(self: &Arc<Self>, text: String, special: Special, add_special: bool) -> Result<Vec<u32>, Error> {
        let tokenizer = Arc::clone(&self.tokenizer);
        off_the_runtime(move || {
            let tokens = tokenizer.encode(&text, special);
            if add_special { tokenizer.frame(tokens) } else { tokens }
        })
        .await
    }

    /// Prompts as completions take them: text gets the model's begin token, token ids are left alone.
    async fn encode_all(self: &Arc<Self>, prompts: Vec<Prompt>) -> Result<Vec<Encoded>, Error> {
        let mut encoded = Vec::with_capacity(prompts.len());
        for prompt in prompts {
            encoded.push(match prompt {
                Prompt::Tokens(tokens) => Encoded { tokens, text: None },
                Prompt::Text(text) => {
                    let tokens = self.encode(text.clone(), Special::Plain, true).await?;
                    Encoded { tokens, text: Some(text) }
                }
            });
        }
        Ok(encoded)
    }
}

/// A long prompt takes a while to encode: other connections go on meanwhile.
async fn off_the_runtime<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Error> {
    spawn_blocking(work).await.map_err(|error| Error::Failed(format!("encoding the prompt failed: {error}")))
}

fn finish_name(reason: &FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::Failed(_) => "error",
    }
}

/// The caller's own id, if it is fit for a header of ours.
fn request_id(head: &Parts) -> HeaderValue {
    let theirs = head.headers.get("x-request-id").filter(|id| !id.is_empty() && id.len() <= 128);
    let ours = || HeaderValue::try_from(identity::random_id()).unwrap_or(HeaderValue::from_static("-"));
    theirs.cloned().unwrap_or_else(ours)
}

/// Without doubled or trailing slashes.
fn normal_path(path: &str) -> String {
    let parts = path.split('/').filter(|part| !part.is_empty());
    parts.fold(String::new(), |path, part| path + "/" + part)
}

#[cfg(test)]
mod tests;
