//! What a process has cost so far, read from `/proc`: CPU time and memory. The kernel counts CPU in ticks of 10 ms,
//! so windows should be long enough to hold many of them.

use std::{fs, io, time::Duration};

use crate::clock::ticks_per_second;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// User and system time of all threads, dead ones included.
    pub cpu: Duration,
    pub rss_bytes: u64,
    /// The most it ever was.
    pub peak_rss_bytes: u64,
}

impl Cost {
    /// The CPU time between `before` and this; memory as it is now.
    pub fn since(self, before: &Self) -> Self {
        Self { cpu: self.cpu.saturating_sub(before.cpu), ..self }
    }

    /// CPU seconds for a thousand of `requests`.
    pub fn per_thousand(&self, requests: u64) -> Option<f64> {
        (requests > 0).then(|| self.cpu.as_secs_f64() * 1e3 / requests as f64)
    }
}

pub fn read(pid: u32) -> io::Result<Cost> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    parse(&stat, &status, ticks_per_second())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("/proc/{pid}/stat is not as expected")))
}

fn parse(stat: &str, status: &str, ticks_per_second: f64) -> Option<Cost> {
    // The second field is the name in brackets and may hold anything, brackets and blanks included.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut times = fields.split_whitespace().skip(11).map(str::parse::<u64>);
    let ticks = times.next()?.ok()? + times.next()?.ok()?;
    let bytes = |name: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) * 1024
    };
    Some(Cost {
        cpu: Duration::from_secs_f64(ticks as f64 / ticks_per_second),
        rss_bytes: bytes("VmRSS"),
        peak_rss_bytes: bytes("VmHWM"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "42 (a) b (c) S 1 42 42 0 -1 4194560 100 0 0 0 150 25 7 8 20 0 4 0 999 1000000 500 1 2 3";

    #[test]
    fn names_with_brackets_and_blanks_do_not_shift_the_fields() {
        let cost = parse(STAT, "Name:\ta) b (c\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n", 100.0);
        let expect = Cost { cpu: Duration::from_millis(1750), rss_bytes: 1 << 20, peak_rss_bytes: 2 << 20 };
        assert_eq!(cost, Some(expect));
    }

    #[test]
    fn a_cut_stat_is_refused() {
        assert_eq!(parse("42 (a) S 1 42", "", 100.0), None);
    }

    #[test]
    fn work_done_here_shows() {
        let pid = std::process::id();
        let before = read(pid).unwrap();
        let mut sum = 0u64;
        while read(pid).unwrap().since(&before).cpu < Duration::from_millis(50) {
            sum = std::hint::black_box(sum.wrapping_mul(31).wrapping_add(1));
        }
        assert!(before.rss_bytes > 0 && before.peak_rss_bytes >= before.rss_bytes);
    }

    #[test]
    fn per_thousand_needs_requests() {
        let cost = Cost { cpu: Duration::from_millis(80), ..Cost::default() };
        assert_eq!(cost.per_thousand(2_000), Some(0.04));
        assert_eq!(cost.per_thousand(0), None);
    }
}
