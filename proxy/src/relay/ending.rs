//! The end of a stream that a spent budget cuts off: the one finish that the gateway makes up. It looks like the
//! upstream's own: a chunk with `finish_reason: length` per open choice, the usage if the client asked, `[DONE]`.

use bytes::BytesMut;
use serde_json::value::RawValue;
use wire::{Usage, sse};

use crate::{
    members::{self, Members},
    paths::Endpoint,
};

/// What the chunks of one answer have in common, as the upstream spelled it.
#[derive(Default)]
pub(super) struct Envelope(String);

/// In the order in which they are written.
const COMMON: [&str; 5] = ["id", "object", "created", "model", "system_fingerprint"];

#[derive(Default)]
struct Top<'a>([Option<&'a RawValue>; COMMON.len()]);

impl<'a> Members<'a> for Top<'a> {
    fn member(&mut self, key: &str) -> Option<&mut Option<&'a RawValue>> {
        COMMON.iter().position(|name| *name == key).map(|at| &mut self.0[at])
    }
}

impl Envelope {
    pub fn of(payload: &[u8]) -> Option<Self> {
        let top: Top<'_> = members::read(payload).ok()?;
        let common = COMMON.iter().zip(top.0);
        Some(Self(common.filter_map(|(name, value)| Some(format!("\"{name}\":{},", value?.get()))).collect()))
    }

    /// `usage`, if the client asked for it: then every other chunk has a null in its place.
    pub fn end(&self, endpoint: Endpoint, open: &[u64], usage: Option<Usage>, out: &mut BytesMut) {
        let text = if endpoint == Endpoint::Completions { "\"text\":\"\"" } else { "\"delta\":{}" };
        let null = if usage.is_some() { ",\"usage\":null" } else { "" };
        for index in open {
            let choice = format!("{{\"index\":{index},{text},\"logprobs\":null,\"finish_reason\":\"length\"}}");
            out.extend_from_slice(&sse::encode(format!("{{{}\"choices\":[{choice}]{null}}}", self.0).as_bytes()));
        }
        if let Some(Usage { prompt, completion, .. }) = usage {
            let total = prompt.saturating_add(completion);
            let usage =
                format!("{{\"prompt_tokens\":{prompt},\"completion_tokens\":{completion},\"total_tokens\":{total}}}");
            out.extend_from_slice(&sse::encode(format!("{{{}\"choices\":[],\"usage\":{usage}}}", self.0).as_bytes()));
        }
        out.extend_from_slice(&sse::encode(sse::DONE.as_bytes()));
    }
}
