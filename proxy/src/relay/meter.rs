//! Follows a stream for its usage. Payloads are only scanned; their text is logged raw and counted when the log is
//! full or when the stream ends without a usage.

use tokenizer::Tokenizer;
use wire::{Metered, Usage};

use super::{count::Count, usage};

/// Raw payloads kept before they are counted and dropped.
const LOG: usize = 8 << 10;

/// How one event goes on to the client.
pub(super) enum Pass {
    AsIs,
    /// With this payload.
    Instead(Vec<u8>),
    Nothing,
}

#[derive(Default)]
pub(super) struct Meter {
    usage: Option<Usage>,
    count: Count,
    /// Payloads, each ended by a NUL, which JSON cannot hold.
    log: Vec<u8>,
    /// Tokens when all was last counted, and the events since: each is about a token.
    counted: u64,
    since: u64,
    done: bool,
    said_error: bool,
}

impl Meter {
    /// `hide`: the client did not ask for usage.
    pub fn event(&mut self, payload: &[u8], hide: bool, tokenizer: &Tokenizer) -> Pass {
        let found = usage::find(payload);
        if let Some(usage) = found.as_ref().and_then(|found| found.usage) {
            self.usage = Some(usage);
        }
        let alone = found.as_ref().is_some_and(|found| found.alone);
        if !alone {
            self.record(payload, tokenizer);
        }
        match found {
            Some(_) if hide && alone => Pass::Nothing,
            Some(found) if hide => Pass::Instead([&payload[..found.cut.start], &payload[found.cut.end..]].concat()),
            _ => Pass::AsIs,
        }
    }

    fn record(&mut self, payload: &[u8], tokenizer: &Tokenizer) {
        if payload.starts_with(b"{\"error\"") {
            self.said_error = true;
        }
        if self.log.len() + payload.len() > LOG {
            self.fold(tokenizer);
        }
        if payload.len() > LOG {
            self.count.fold(payload, tokenizer);
            self.since += 1;
            return;
        }
        self.log.extend_from_slice(payload);
        self.log.push(0);
        self.since += 1;
    }

    fn fold(&mut self, tokenizer: &Tokenizer) {
        for payload in self.log.split(|byte| *byte == 0).filter(|payload| !payload.is_empty()) {
            self.count.fold(payload, tokenizer);
        }
        self.log.clear();
    }

    /// Output tokens so far, without work: exact up to the last count, then a token per event.
    pub fn so_far(&self) -> u64 {
        (self.counted + self.since).max(self.reported())
    }

    /// Everything so far, read: a measure that no count of tokens grows faster than.
    pub fn written(&mut self, tokenizer: &Tokenizer) -> u64 {
        self.fold(tokenizer);
        self.count.written()
    }

    /// Output tokens so far, all counted or reported.
    pub fn counted(&mut self, tokenizer: &Tokenizer) -> u64 {
        self.fold(tokenizer);
        (self.counted, self.since) = (self.count.total(tokenizer), 0);
        self.counted.max(self.reported())
    }

    /// As the upstream says itself.
    pub fn reported(&self) -> u64 {
        self.usage.map_or(0, |usage| usage.completion)
    }

    /// Every choice said why it stopped, of what has been read.
    pub fn is_finished(&self) -> bool {
        self.count.is_finished()
    }

    pub fn open_choices(&self, expected: u64) -> Vec<u64> {
        self.count.open(expected)
    }

    pub fn done(&mut self) {
        self.done = true;
    }

    /// `[DONE]` was seen.
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// The upstream sent an error event of its own.
    pub fn said_error(&self) -> bool {
        self.said_error
    }

    /// Ended by `[DONE]`, or every choice said why it stopped. Ask after [`Meter::metered`], which counts the rest.
    pub fn is_complete(&self) -> bool {
        self.done || (self.count.is_finished() && !self.said_error)
    }

    pub fn metered(&mut self, prompt: u64, tokenizer: &Tokenizer) -> Metered {
        if let Some(usage) = self.usage
            && self.done
        {
            return Metered::Exact(usage);
        }
        self.fold(tokenizer);
        let seen = self.count.total(tokenizer);
        match self.usage {
            // In a stream that was cut short it may be a placeholder that came before the text.
            Some(usage) if !self.is_complete() && usage.completion < seen => {
                Metered::Estimated(Usage { completion: seen, ..usage })
            }
            Some(usage) => Metered::Exact(usage),
            None => Metered::Estimated(Usage { prompt, completion: seen, cached: 0 }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "one two three four five six seven eight nine ten";

    fn metered(payloads: &[String], done: bool) -> Metered {
        let tokenizer = Tokenizer::builtin("o200k_base").expect("built in");
        let mut meter = Meter::default();
        for payload in payloads {
            meter.event(payload.as_bytes(), true, &tokenizer);
        }
        if done {
            meter.done();
        }
        meter.metered(7, &tokenizer)
    }

    fn chunk(usage: u64, finish: &str) -> String {
        let usage = format!(r#"{{"prompt_tokens":5,"completion_tokens":{usage}}}"#);
        format!(r#"{{"choices":[{{"delta":{{"content":"{TEXT}"}},"finish_reason":{finish}}}],"usage":{usage}}}"#)
    }

    #[test]
    fn usage_that_came_before_the_text_is_not_the_usage_of_a_stream_that_was_cut() {
        let cut = metered(&[chunk(0, "null")], false);
        assert_eq!(cut, Metered::Estimated(Usage { prompt: 5, completion: 10, cached: 0 }));
        let running = metered(&[chunk(12, "null")], false);
        assert_eq!(running, Metered::Exact(Usage { prompt: 5, completion: 12, cached: 0 }));
    }

    #[test]
    fn an_explicit_zero_of_a_whole_stream_is_trusted() {
        let zero = Metered::Exact(Usage { prompt: 5, completion: 0, cached: 0 });
        assert_eq!(metered(&[chunk(0, "null")], true), zero);
        assert_eq!(metered(&[chunk(0, "\"stop\"")], false), zero);
    }
}
