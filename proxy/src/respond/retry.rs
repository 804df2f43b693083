//! When a client may come back: `x-should-retry`, `retry-after` and `retry-after-ms`.

use std::time::Duration;

use http::{HeaderMap, HeaderValue, header};

use super::names;

/// Waiting longer than this is not left to a client's automatic retry: those obey 60 s at most.
const LONGEST: Duration = Duration::from_secs(60);

#[derive(Clone, Copy)]
pub enum Retry {
    No,
    /// It may help, nobody knows when.
    Yes,
    After {
        wait: Duration,
        estimate: bool,
    },
}

impl Retry {
    /// `chance`, from 0 to 1, says how late in the spread of `retry-after-ms` this client comes.
    pub fn stamp(self, headers: &mut HeaderMap, chance: f64) {
        let helps = match self {
            Self::No => false,
            Self::Yes => true,
            Self::After { wait, .. } => wait <= LONGEST,
        };
        headers.insert(names::SHOULD_RETRY, HeaderValue::from_static(if helps { "true" } else { "false" }));
        if let Self::After { wait, estimate } = self {
            let ms = whole_ms(wait).max(1);
            headers.insert(header::RETRY_AFTER, HeaderValue::from(ms.div_ceil(1000)));
            headers.insert(names::RETRY_AFTER_MS, HeaderValue::from(spread(ms, chance)));
            if estimate {
                headers.insert(names::RETRY, HeaderValue::from_static("estimate"));
            }
        }
    }
}

/// At most a twentieth later, so that those who were refused together do not come back together. Never sooner than is
/// true, and never past the longest wait that clients obey if the true one is not.
fn spread(ms: u64, chance: f64) -> u64 {
    let later = ms.saturating_add((ms as f64 / 20.0 * chance) as u64);
    let obeyed = whole_ms(LONGEST);
    if ms <= obeyed { later.min(obeyed) } else { later }
}

fn whole_ms(wait: Duration) -> u64 {
    u64::try_from(wait.as_micros().div_ceil(1000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spread_is_never_too_soon_nor_past_what_clients_obey() {
        for (ms, latest) in [(1, 1), (1501, 1576), (59_000, 60_000), (60_000, 60_000), (90_000, 94_500)] {
            assert_eq!((spread(ms, 0.0), spread(ms, 1.0)), (ms, latest));
        }
        assert_eq!(spread(u64::MAX, 1.0), u64::MAX);
    }

    #[test]
    fn seconds_are_those_of_the_true_time() {
        let mut headers = HeaderMap::new();
        Retry::After { wait: Duration::from_millis(2000), estimate: false }.stamp(&mut headers, 0.5);
        assert_eq!(
            (&headers[header::RETRY_AFTER], &headers[names::RETRY_AFTER_MS]),
            (&"2".parse().unwrap(), &"2050".parse().unwrap())
        );
    }
}
