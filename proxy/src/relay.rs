//! Answers on their way to the client. Streams are forwarded event by event as they came; only usage that the client
//! did not ask for is cut out. Whole answers are read for their usage and passed on untouched.

mod count;
mod ending;
mod gate;
mod meter;
mod stream;
mod usage;

use bytes::Bytes;
use http::{HeaderValue, Response, header, response};
use wire::{Metered, Usage};

pub use self::stream::{Relay, Wishes};
use crate::{
    body::Body,
    call::Call,
    charge::Charge,
    config::Limits,
    passing,
    respond::{names, stamp_rate},
    upstreams::Stream,
};

/// The answer of a call that was read whole.
pub fn whole(head: response::Parts, body: Bytes, mut charge: Charge) -> Response<Body> {
    let status = head.status.as_u16();
    let mut answer = start(head, Body::whole(body.clone()), &charge);
    if answer.status().is_success() {
        let metered = whole_usage(&body, &charge);
        if metered.is_estimated() {
            answer.headers_mut().insert(names::USAGE, HeaderValue::from_static("estimated"));
        }
        charge.finished(status, metered);
    } else {
        charge.rejected(status);
    }
    answer
}

fn whole_usage(body: &Bytes, charge: &Charge) -> Metered {
    if let Some(usage) = usage::of_whole(body) {
        return Metered::Exact(usage);
    }
    let mut count = count::Count::default();
    count.fold(body, charge.model.counter.tokenizer());
    let completion = count.total(charge.model.counter.tokenizer());
    Metered::Estimated(Usage { prompt: charge.prompt(), completion, cached: 0 })
}

/// The answer of a call that streams.
pub fn stream(stream: Stream, call: &Call, charge: Charge, limits: &Limits) -> Response<Body> {
    let Stream { head, body, first, received } = stream;
    let mut answer = start(head, Body::whole(Bytes::new()), &charge);
    let headers = answer.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(names::ACCEL_BUFFERING, HeaderValue::from_static("no"));
    let mut relay = Relay::new(body, Wishes::of(call), charge, limits, received);
    relay.take(&first);
    answer.map(|_| Body::relay(relay))
}

/// Status and headers of the upstream, without those that speak of its own connection, keys and limits.
fn start(head: response::Parts, body: Body, charge: &Charge) -> Response<Body> {
    let mut answer = Response::new(body);
    *answer.status_mut() = head.status;
    let headers = answer.headers_mut();
    *headers = head.headers;
    passing::from_upstream(headers);
    headers.insert(names::MODEL, charge.model.header.clone());
    if let Some(upstream) = charge.upstream() {
        headers.insert(names::UPSTREAM, upstream.header.clone());
    }
    stamp_rate(headers, &charge.rate());
    answer
}
