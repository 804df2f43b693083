//! How long a client is willing to wait for its turn, as its headers say, and the line of one that left meanwhile.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use http::{HeaderMap, request};
use wire::access::{Decision, Entry, Outcome, Timing};

use crate::{
    call::{Call, Invalid},
    catalogue::Model,
    charge::{Books, CLIENT_CLOSED},
    quota::Patience,
    respond::names,
    trace::Arrival,
};

/// What OpenAI's clients say of the time after which they give up, in seconds; the answer needs some of it.
const STAINLESS: [&str; 2] = ["x-stainless-read-timeout", "x-stainless-timeout"];
const FOR_THE_ANSWER: Duration = Duration::from_secs(1);

pub fn patience(parts: &request::Parts, call: &Call) -> Result<Patience, Invalid> {
    let own = deadline(&parts.headers)?;
    let client = STAINLESS.iter().filter_map(|name| stainless(&parts.headers, name));
    let passed = parts.extensions.get::<Arrival>().map_or(Duration::ZERO, |arrival| arrival.at.elapsed());
    let most = own.into_iter().chain(client).min().map(|most| most.saturating_sub(passed));
    Ok(Patience { most, bytes: call.body.len() })
}

fn deadline(headers: &HeaderMap) -> Result<Option<Duration>, Invalid> {
    let Some(value) = headers.get(names::DEADLINE_MS) else { return Ok(None) };
    let ms = value.to_str().ok().and_then(|text| text.trim().parse::<u64>().ok());
    match ms {
        Some(ms) => Ok(Some(Duration::from_millis(ms))),
        None => Err(Invalid::new("x-penstock-deadline-ms", "it must be a whole number of milliseconds")),
    }
}

/// What no client of theirs would say is not taken for a wish.
fn stainless(headers: &HeaderMap, name: &str) -> Option<Duration> {
    let seconds: f64 = headers.get(name)?.to_str().ok()?.trim().parse().ok()?;
    let timeout = Duration::try_from_secs_f64(seconds).ok()?;
    Some(timeout.saturating_sub(FOR_THE_ANSWER))
}

/// Dropped while the call waits, it writes down that the client has left.
pub struct Leaving<'e> {
    entry: &'e mut Option<Box<Entry>>,
    model: Arc<Model>,
    arrival: Arrival,
    books: Books,
    begin: Instant,
    stays: bool,
}

impl<'e> Leaving<'e> {
    pub fn new(entry: &'e mut Option<Box<Entry>>, model: &Arc<Model>, arrival: Arrival, books: Books) -> Self {
        Self { entry, model: model.clone(), arrival, books, begin: Instant::now(), stays: false }
    }

    pub fn stayed(mut self) {
        self.stays = true;
    }
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        if self.stays {
            return;
        }
        let Some(mut entry) = self.entry.take() else { return };
        self.books.events.answered(Some(&self.model.name), CLIENT_CLOSED);
        let ms = |since: Instant| since.elapsed().as_secs_f64() * 1000.0;
        let (e2e_ms, queued_ms) = (ms(self.arrival.at), ms(self.begin));
        entry.status = CLIENT_CLOSED;
        entry.decision = Decision::new(Outcome::ClientDisconnected);
        entry.timing = Timing { e2e_ms, overhead_ms: e2e_ms - queued_ms, queued_ms, ..Timing::default() };
        self.books.log.send(entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paths::Endpoint;

    fn most(headers: &[(&str, &str)]) -> Result<Option<u128>, Invalid> {
        let mut request = http::Request::builder();
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).expect("valid").into_parts();
        let body = bytes::Bytes::from_static(br#"{"model":"m","messages":[]}"#);
        let call = Call::parse(Endpoint::ChatCompletions, None, body).expect("valid");
        patience(&parts, &call).map(|patience| patience.most.map(|most| most.as_millis()))
    }

    #[test]
    fn the_shortest_of_what_a_client_says_counts() {
        assert_eq!(most(&[]).expect("fine"), None);
        assert_eq!(most(&[("x-penstock-deadline-ms", "250")]).expect("fine"), Some(250));
        assert_eq!(most(&[("x-stainless-timeout", "600")]).expect("fine"), Some(599_000));
        assert_eq!(most(&[("x-stainless-read-timeout", "0.5")]).expect("fine"), Some(0));
        let all =
            [("x-penstock-deadline-ms", "9000"), ("x-stainless-timeout", "5.5"), ("x-stainless-read-timeout", "8")];
        assert_eq!(most(&all).expect("fine"), Some(4500));
        for odd in ["NaN", "-1", "soon", "inf"] {
            assert_eq!(most(&[("x-stainless-timeout", odd)]).expect("fine"), None, "{odd}");
        }
    }

    #[test]
    fn a_deadline_that_is_no_number_is_the_caller_s_mistake() {
        for odd in ["", "1s", "-5", "1.5"] {
            assert!(most(&[("x-penstock-deadline-ms", odd)]).is_err(), "{odd}");
        }
    }
}
