//! Prompt tokens of a request for one model: by its own chat template where there is one, else as OpenAI counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use crate::Tokenizer;
use crate::chat_prompt::ChatPrompt;
use crate::chat_template::ChatTemplate;
use crate::count_cache::CountCache;
use crate::openai_chat::{self, Estimates};

/// Everything that counting the prompts of one model needs.
#[derive(Clone, Debug)]
pub struct PromptCounter {
    tokenizer: Arc<Tokenizer>,
    template: Option<Arc<ChatTemplate>>,
    estimates: Estimates,
    cache: Arc<CountCache>,
    /// Set once nobody waits for the counts any more.
    gone: Option<Arc<AtomicBool>>,
}

impl PromptCounter {
    pub fn new(tokenizer: Arc<Tokenizer>, template: Option<Arc<ChatTemplate>>, estimates: Estimates) -> Self {
        Self { tokenizer, template, estimates, cache: Arc::default(), gone: None }
    }

    /// The same, for one who may leave: it stops counting when `gone` is set, and what it says then means nothing.
    pub fn until(&self, gone: Arc<AtomicBool>) -> Self {
        Self { gone: Some(gone), ..self.clone() }
    }

    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// Prompt tokens of a chat request. Messages that the template refuses are counted as OpenAI would: the model's
    /// server will refuse them in its own words. `scope` names the tenant: only its own texts make its counts quicker.
    pub fn chat(&self, request: &openai_chat::Request<'_>, scope: &[u8]) -> u64 {
        let count = |text: &str| self.count(text, scope);
        if let (Some(template), Some(messages)) = (&self.template, request.messages)
            && let Ok(tokens) = ChatPrompt::count(template, &self.tokenizer, messages, request.tools, count)
        {
            // What the template writes for an image is a mark of a token or two; the image comes on top.
            return tokens + openai_chat::media(request, &self.estimates);
        }
        openai_chat::count(&count, request, &self.estimates)
    }

    /// Prompt tokens of a `prompt` or an `input`: a text, token ids, or a list of either. Ids count by their number
    /// and are not looked at, lists are summed; each text gets the begin token that the model puts before it.
    pub fn text(&self, prompt: &Value, scope: &[u8]) -> u64 {
        match prompt {
            Value::String(text) => self.count(text, scope) + u64::from(self.tokenizer.adds_bos()),
            Value::Array(items) => items.iter().map(|item| self.text(item, scope)).sum(),
            Value::Number(_) => 1,
            _ => 0,
        }
    }

    fn count(&self, text: &str, scope: &[u8]) -> u64 {
        let is_wanted = || self.gone.as_ref().is_none_or(|gone| !gone.load(Ordering::Relaxed));
        self.cache.count(&self.tokenizer, scope, text, is_wanted)
    }
}
