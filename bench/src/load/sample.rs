//! What one exchange took, and the sums over many. Times are nanoseconds in histograms of three digits.

use std::{collections::BTreeMap, time::Instant};

use hdrhistogram::Histogram;
use memchr::memmem;
use wire::sse;

use crate::clock::monotonic_ns;

/// The most one event of a stream may take.
const MAX_EVENT: usize = 1 << 20;

/// A series of durations.
#[derive(Clone, Debug)]
pub struct Series(Histogram<u64>);

impl Default for Series {
    fn default() -> Self {
        Self(Histogram::new(3).expect("invariant: three digits are in range"))
    }
}

impl Series {
    pub fn add_ns(&mut self, ns: u64) {
        // A growing histogram records any value it can grow to hold; what is beyond counts as its largest.
        if self.0.record(ns).is_err() {
            self.0.saturating_record(ns);
        }
    }

    pub fn merge(&mut self, other: &Self) {
        // Both grow to hold any value.
        if self.0.add(&other.0).is_err() {
            other
                .0
                .iter_recorded()
                .for_each(|value| self.0.saturating_record_n(value.value_iterated_to(), value.count_at_value()));
        }
    }

    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// `None` without a sample.
    pub fn quantile_ms(&self, quantile: f64) -> Option<f64> {
        (!self.0.is_empty()).then(|| self.0.value_at_quantile(quantile) as f64 / 1e6)
    }

    pub fn mean_ms(&self) -> Option<f64> {
        (!self.0.is_empty()).then(|| self.0.mean() / 1e6)
    }

    pub fn max_ms(&self) -> Option<f64> {
        (!self.0.is_empty()).then(|| self.0.max() as f64 / 1e6)
    }
}

/// The stream of one exchange while it arrives.
#[derive(Debug)]
pub struct StreamSample {
    decoder: sse::Decoder,
    first: Option<Instant>,
    last: Option<Instant>,
    pub gaps_ns: Vec<u64>,
    /// From the mock's stamp to here, per stamped chunk.
    pub transits_ns: Vec<u64>,
    pub chunks: u64,
    /// Completion tokens of the last usage reported.
    pub usage: Option<u64>,
    pub done_seen: bool,
    pub broken: bool,
}

impl Default for StreamSample {
    fn default() -> Self {
        Self {
            decoder: sse::Decoder::new(MAX_EVENT),
            first: None,
            last: None,
            gaps_ns: Vec::new(),
            transits_ns: Vec::new(),
            chunks: 0,
            usage: None,
            done_seen: false,
            broken: false,
        }
    }
}

impl StreamSample {
    pub fn feed(&mut self, bytes: &[u8], now: Instant) {
        let now_ns = monotonic_ns();
        self.decoder.push(bytes);
        loop {
            match self.decoder.next_event() {
                Ok(Some(event)) => {
                    if let Some(data) = event.data() {
                        self.event(&data, now, now_ns);
                    }
                }
                Ok(None) => return,
                Err(sse::TooLong { .. }) => {
                    self.broken = true;
                    return;
                }
            }
        }
    }

    fn event(&mut self, data: &[u8], now: Instant, now_ns: u64) {
        if data == sse::DONE.as_bytes() {
            self.done_seen = true;
        } else if let Some(content) = content(data) {
            self.chunks += 1;
            self.first.get_or_insert(now);
            if let Some(last) = self.last.replace(now) {
                self.gaps_ns.push(nanos(last, now));
            }
            if let Some(stamp) = stamp(content) {
                self.transits_ns.push(now_ns.saturating_sub(stamp));
            }
        } else if memmem::find(data, b"\"error\":").is_some() {
            self.broken = true;
        }
        if let Some(tokens) = after(data, b"\"completion_tokens\":").and_then(leading_number) {
            self.usage = Some(tokens);
        }
    }

    pub fn first(&self) -> Option<Instant> {
        self.first
    }
}

fn after<'a>(data: &'a [u8], key: &[u8]) -> Option<&'a [u8]> {
    memmem::find(data, key).map(|at| &data[at + key.len()..])
}

fn leading_number(text: &[u8]) -> Option<u64> {
    let text = text.trim_ascii_start();
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&text[..digits]).ok()?.parse().ok()
}

/// The text of a content chunk up to the end of the event, if there is any.
fn content(data: &[u8]) -> Option<&[u8]> {
    let value = after(data, b"\"content\":").or_else(|| after(data, b"\"text\":"))?;
    let text = value.trim_ascii_start().strip_prefix(b"\"")?;
    (text.first()? != &b'"').then_some(text)
}

/// The clock of `@<ns>;`.
fn stamp(content: &[u8]) -> Option<u64> {
    leading_number(content.strip_prefix(b"@")?)
}

pub fn nanos(from: Instant, to: Instant) -> u64 {
    u64::try_from(to.saturating_duration_since(from).as_nanos()).unwrap_or(u64::MAX)
}

/// The sums over all counted exchanges with one target.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    pub ok: u64,
    /// What went wrong, and how often.
    pub failures: BTreeMap<String, u64>,
    pub chunks: u64,
    /// Completion tokens, as reported.
    pub tokens: u64,
    pub streams_without_usage: u64,
    /// From the scheduled start to the last byte.
    pub e2e: Series,
    /// From the scheduled start to the first content.
    pub ttft: Series,
    pub itl: Series,
    pub transit: Series,
    /// How late the generator itself was: from the scheduled start to the first write.
    pub slip: Series,
}

impl Totals {
    pub fn failed(&mut self, why: impl Into<String>) {
        *self.failures.entry(why.into()).or_default() += 1;
    }

    pub fn errors(&self) -> u64 {
        self.failures.values().sum()
    }

    pub fn succeeded(&mut self, scheduled: Instant, ended: Instant, stream: Option<&StreamSample>) {
        if let Some(stream) = stream {
            if stream.broken || !stream.done_seen {
                return self.failed("incomplete stream");
            }
            let Some(first) = stream.first() else { return self.failed("stream without content") };
            self.ttft.add_ns(nanos(scheduled, first));
            self.chunks += stream.chunks;
            self.streams_without_usage += u64::from(stream.usage.is_none());
            self.tokens += stream.usage.unwrap_or(0);
            stream.gaps_ns.iter().for_each(|ns| self.itl.add_ns(*ns));
            stream.transits_ns.iter().for_each(|ns| self.transit.add_ns(*ns));
        }
        self.ok += 1;
        self.e2e.add_ns(nanos(scheduled, ended));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn quantiles_are_those_of_the_samples() {
        let mut series = Series::default();
        assert_eq!(series.quantile_ms(0.5), None);
        (1..=1000u64).for_each(|ms| series.add_ns(ms * 1_000_000));
        let near = |got: Option<f64>, want: f64| (got.unwrap() - want).abs() <= want * 0.001;
        assert!(near(series.quantile_ms(0.5), 500.0) && near(series.quantile_ms(0.99), 990.0));
        assert!(near(series.max_ms(), 1000.0) && near(series.mean_ms(), 500.5));
    }

    #[test]
    fn a_stream_is_timed_at_its_content() {
        let began = Instant::now();
        let at = |ms: u64| began + Duration::from_millis(ms);
        let mut stream = StreamSample::default();
        stream.feed(b"data: {\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}\n\n", at(1));
        stream.feed(b"data: {\"delta\":{\"content\":\"@1;\"}}\n\ndata: {\"delta\":{\"con", at(5));
        stream.feed(b"tent\":\"b\"}}\n\ndata: {\"usage\":{\"completion_tokens\": 17}}\n\ndata: [DONE]\n\n", at(9));
        assert_eq!((stream.chunks, stream.first(), stream.gaps_ns.as_slice()), (2, Some(at(5)), &[4_000_000][..]));
        assert_eq!((stream.transits_ns.len(), stream.usage, stream.done_seen), (1, Some(17), true));
        let mut totals = Totals::default();
        totals.succeeded(began, at(10), Some(&stream));
        assert_eq!((totals.ok, totals.ttft.quantile_ms(0.5).map(f64::round)), (1, Some(5.0)));
    }

    #[test]
    fn a_cut_or_failed_stream_is_an_error() {
        let mut totals = Totals::default();
        let mut cut = StreamSample::default();
        cut.feed(b"data: {\"delta\":{\"content\":\"a\"}}\n\n", Instant::now());
        totals.succeeded(Instant::now(), Instant::now(), Some(&cut));
        let mut failed = StreamSample::default();
        failed
            .feed(b"data: {\"delta\":{\"content\":\"a\"}}\n\ndata: {\"error\":{}}\n\ndata: [DONE]\n\n", Instant::now());
        totals.succeeded(Instant::now(), Instant::now(), Some(&failed));
        assert_eq!((totals.ok, totals.errors()), (0, 2));
    }
}
