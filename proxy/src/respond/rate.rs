//! `x-ratelimit-*`: the caller's own limits, in OpenAI's spelling.

use std::{fmt::Write, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::quota::{Rate, RateHeaders};

/// limit, remaining, reset.
type Names = [HeaderName; 3];

const REQUESTS: Names = [
    HeaderName::from_static("x-ratelimit-limit-requests"),
    HeaderName::from_static("x-ratelimit-remaining-requests"),
    HeaderName::from_static("x-ratelimit-reset-requests"),
];
const TOKENS: Names = [
    HeaderName::from_static("x-ratelimit-limit-tokens"),
    HeaderName::from_static("x-ratelimit-remaining-tokens"),
    HeaderName::from_static("x-ratelimit-reset-tokens"),
];

pub fn stamp_rate(headers: &mut HeaderMap, rate: &RateHeaders) {
    stamp(headers, REQUESTS, rate.requests.as_ref());
    stamp(headers, TOKENS, rate.tokens.as_ref());
}

fn stamp(headers: &mut HeaderMap, [limit, remaining, reset]: Names, rate: Option<&Rate>) {
    let Some(rate) = rate else { return };
    headers.insert(limit, HeaderValue::from(rate.limit));
    headers.insert(remaining, HeaderValue::from(rate.remaining));
    if let Some(after) = rate.reset {
        headers.insert(reset, spell(after));
    }
}

/// As Go prints durations, which is what OpenAI sends: `120ms`, `1s`, `8.64s`, `6m0s`, `1h0m0s`. Rounded up.
fn spell(duration: Duration) -> HeaderValue {
    let ms = u64::try_from(duration.as_micros().div_ceil(1000)).unwrap_or(u64::MAX);
    let mut text = String::with_capacity(16);
    let written = if ms == 0 {
        write!(text, "0s")
    } else if ms < 1000 {
        write!(text, "{ms}ms")
    } else {
        let (hours, minutes) = (ms / 3_600_000, ms / 60_000 % 60);
        let seconds = (ms % 60_000) as f64 / 1000.0;
        match (hours, minutes) {
            (0, 0) => write!(text, "{seconds}s"),
            (0, _) => write!(text, "{minutes}m{seconds}s"),
            _ => write!(text, "{hours}h{minutes}m{seconds}s"),
        }
    };
    written.expect("invariant: writing to a String cannot fail");
    HeaderValue::try_from(text).expect("invariant: digits and letters are a valid header")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_spelled_as_openai_does() {
        for (ms, expect) in
            [(0, "0s"), (120, "120ms"), (1000, "1s"), (8640, "8.64s"), (360_000, "6m0s"), (3_661_500, "1h1m1.5s")]
        {
            assert_eq!(spell(Duration::from_millis(ms)), expect);
        }
        assert_eq!(spell(Duration::from_micros(1)), "1ms");
    }
}
