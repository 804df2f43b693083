//! The real vocabulary behind the core's view of one.

use std::sync::Arc;

use tokenizer::{Detokenizer, Special, Tokenizer};

use crate::handle::Vocabulary;
use crate::text::TokenText;

impl Vocabulary for Arc<Tokenizer> {
    fn text(&self) -> Box<dyn TokenText> {
        Box::new(Detokenizer::new(Arc::clone(self), Special::Plain))
    }

    fn end_tokens(&self) -> Vec<u32> {
        self.eog_ids().to_vec()
    }
}

impl TokenText for Detokenizer {
    fn push(&mut self, token: u32) -> &str {
        Detokenizer::push(self, token)
    }
}
