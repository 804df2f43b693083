//! Log-probabilities in OpenAI's two shapes: chat's list of tokens and completions' parallel arrays.

use std::sync::Arc;

use serde::{Serialize, Serializer};
use tokenizer::{Detokenizer, Special, Tokenizer};

use crate::stream::Score;

/// What OpenAI reports for a token that is as good as impossible; JSON knows no infinity.
const LOWEST: f32 = -9999.0;

#[derive(Debug, Default, Serialize)]
pub(super) struct ChatLogprobs {
    pub(super) content: Vec<ChatToken>,
    refusal: Option<String>,
}

impl ChatLogprobs {
    pub(super) fn of(content: Vec<ChatToken>) -> Self {
        Self { content, refusal: None }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct ChatToken {
    #[serde(flatten)]
    token: ChatCandidate,
    top_logprobs: Vec<ChatCandidate>,
}

#[derive(Debug, Serialize)]
struct ChatCandidate {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
}

pub(super) fn chat_token(tokenizer: &Tokenizer, score: &Score) -> ChatToken {
    let candidate = |token: u32, logprob: f32| {
        let bytes = tokenizer.token_bytes(token).unwrap_or_default();
        let text = String::from_utf8_lossy(bytes).into_owned();
        ChatCandidate { token: text, logprob: logprob.max(LOWEST), bytes: bytes.to_vec() }
    };
    ChatToken {
        token: candidate(score.token, score.logprob.unwrap_or(LOWEST)),
        top_logprobs: score.top.iter().map(|(token, logprob)| candidate(*token, *logprob)).collect(),
    }
}

#[derive(Debug, Default, Serialize)]
pub(super) struct CompletionLogprobs {
    pub(super) tokens: Vec<String>,
    token_logprobs: Vec<Option<f32>>,
    /// Text to log-probability; the token itself is always in it. Null for the first token of a prompt.
    top_logprobs: Vec<Option<Candidates>>,
    /// In characters, from the start of the answer's text.
    text_offset: Vec<usize>,
}

/// A JSON object, in order of likelihood.
#[derive(Debug, Default)]
struct Candidates(Vec<(String, f32)>);

impl Serialize for Candidates {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, logprob)| (name, logprob)))
    }
}

/// Adds tokens to [`CompletionLogprobs`], keeping count of the text they make.
pub(super) struct CompletionScores {
    tokenizer: Arc<Tokenizer>,
    text: Detokenizer,
    characters: usize,
}

impl CompletionScores {
    pub(super) fn new(tokenizer: Arc<Tokenizer>) -> Self {
        let text = Detokenizer::new(Arc::clone(&tokenizer), Special::Plain);
        Self { tokenizer, text, characters: 0 }
    }

    /// `position`: where the token stands in its sequence; the very first has no probability.
    pub(super) fn add(&mut self, score: &Score, to: &mut CompletionLogprobs) {
        to.tokens.push(self.name(score.token));
        to.token_logprobs.push(score.logprob.map(|logprob| logprob.max(LOWEST)));
        to.top_logprobs.push(score.logprob.map(|logprob| self.candidates(score, logprob)));
        to.text_offset.push(self.characters);
        self.characters += self.text.push(score.token).chars().count();
    }

    fn candidates(&self, score: &Score, logprob: f32) -> Candidates {
        let mut candidates = Candidates::default();
        for (token, logprob) in score.top.iter().copied().chain([(score.token, logprob)]) {
            let name = self.name(token);
            // Two tokens may share a name; the likelier came first.
            if candidates.0.iter().all(|(other, _)| *other != name) {
                candidates.0.push((name, logprob.max(LOWEST)));
            }
        }
        candidates
    }

    /// The text of a token, or OpenAI's spelling of bytes that are no text.
    fn name(&self, token: u32) -> String {
        let bytes = self.tokenizer.token_bytes(token).unwrap_or_default();
        match std::str::from_utf8(bytes) {
            Ok(text) => text.to_owned(),
            Err(_) => bytes.iter().fold("bytes:".to_owned(), |name, byte| name + &format!("\\x{byte:02x}")),
        }
    }
}
