//! Tokens back to text, one at a time: what a stream may send so far. A token may end one character and begin the
//! next, so bytes wait here until their character is whole.

use std::sync::Arc;

use crate::Tokenizer;
use crate::specials::Special;

/// The text of one growing sequence. Its pieces are append-only and hold whole characters.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    special: Special,
    /// The beginning of a character: at most three bytes between calls.
    pending: Vec<u8>,
    text: String,
}

impl Detokenizer {
    /// `Special::Plain` leaves control tokens out of the text, `Special::Parse` spells them.
    pub fn new(tokenizer: Arc<Tokenizer>, special: Special) -> Self {
        Self { tokenizer, special, pending: Vec::new(), text: String::new() }
    }

    /// The text that this token makes certain; empty while a character is incomplete. Bytes that cannot be part of
    /// any character become U+FFFD.
    pub fn push(&mut self, id: u32) -> &str {
        self.text.clear();
        let hidden = self.special == Special::Plain && self.tokenizer.is_special(id);
        if let Some(bytes) = self.tokenizer.token_bytes(id).filter(|_| !hidden) {
            self.pending.extend_from_slice(bytes);
            let whole = take_whole(&self.pending, &mut self.text);
            self.pending.drain(..whole);
        }
        &self.text
    }

    /// The bytes of a character that has begun and is not whole: no text (yet).
    pub fn pending(&self) -> &[u8] {
        &self.pending
    }

    /// Ends the sequence. All whole characters were handed out by [`push`](Self::push); this returns the bytes of a
    /// character that the sequence broke off in, which is no text and must not be shown as such.
    pub fn finish(self) -> Vec<u8> {
        self.pending
    }
}

/// Appends what is certain of `bytes` to `text` and returns how many bytes that took.
fn take_whole(bytes: &[u8], text: &mut String) -> usize {
    let mut taken = 0;
    loop {
        match std::str::from_utf8(&bytes[taken..]) {
            Ok(rest) => {
                text.push_str(rest);
                return bytes.len();
            }
            Err(error) => {
                let valid = &bytes[taken..taken + error.valid_up_to()];
                text.push_str(std::str::from_utf8(valid).expect("invariant: checked up to here"));
                taken += error.valid_up_to();
                let Some(broken) = error.error_len() else { return taken };
                text.push(char::REPLACEMENT_CHARACTER);
                taken += broken;
            }
        }
    }
}
