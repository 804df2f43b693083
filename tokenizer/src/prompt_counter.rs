//! Prompt tokens of a request for one model: by its own chat template where there is one, else as OpenAI counts.

use std::sync::Arc;

use serde_json::Value;

use crate::Tokenizer;
use crate::chat_prompt::ChatPrompt;
use crate::chat_template::ChatTemplate;
use crate::openai_chat::{self, Estimates};

/// Everything that counting the prompts of one model needs.
#[derive(Clone, Debug)]
pub struct PromptCounter {
    tokenizer: Arc<Tokenizer>,
    template: Option<Arc<ChatTemplate>>,
    estimates: Estimates,
}

impl PromptCounter {
    pub fn new(tokenizer: Arc<Tokenizer>, template: Option<Arc<ChatTemplate>>, estimates: Estimates) -> Self {
        Self { tokenizer, template, estimates }
    }

    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// Prompt tokens of a chat request. Messages that the template refuses are counted as OpenAI would: the model's
    /// server will refuse them in its own words.
    pub fn chat(&self, request: &openai_chat::Request<'_>) -> u64 {
        if let (Some(template), Some(messages)) = (&self.template, request.messages)
            && let Ok(ids) = ChatPrompt::render(template, &self.tokenizer, messages, request.tools, true)
        {
            // What the template writes for an image is a mark of a token or two; the image comes on top.
            return ids.len() as u64 + openai_chat::media(request, &self.estimates);
        }
        openai_chat::count(&self.tokenizer, request, &self.estimates)
    }

    /// Prompt tokens of a `prompt` or an `input`: a text, token ids, or a list of either. Ids count by their number
    /// and are not looked at, lists are summed; each text gets the begin token that the model puts before it.
    pub fn text(&self, prompt: &Value) -> u64 {
        match prompt {
            Value::String(text) => self.tokenizer.count(text) as u64 + u64::from(self.tokenizer.adds_bos()),
            Value::Array(items) => items.iter().map(|item| self.text(item)).sum(),
            Value::Number(_) => 1,
            _ => 0,
        }
    }
}
