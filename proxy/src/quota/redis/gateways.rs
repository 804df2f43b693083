//! How many gateways share the server, as their beats tell: what a slice is divided by. No I/O here.

use std::time::Duration;

/// How long a gateway counts after its last beat.
pub const BEAT_COUNTS: Duration = Duration::from_secs(15);
/// A count goes down only after so many beats that agree: an empty server that is back hears of the others one by one.
const FEWER_BEATS: u32 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gateways {
    pub count: usize,
    /// Regular beats in a row that found fewer.
    fewer: u32,
}

impl Default for Gateways {
    /// This one.
    fn default() -> Self {
        Self { count: 1, fewer: 0 }
    }
}

impl Gateways {
    /// `regular`: of a server that is up, at its usual time.
    pub fn beat(&mut self, count: usize, regular: bool) {
        let fewer = count < self.count;
        self.fewer = if fewer { self.fewer + u32::from(regular) } else { 0 };
        if !fewer || self.fewer >= FEWER_BEATS {
            *self = Self { count: count.max(1), fewer: 0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_count_at_once_and_fewer_only_when_it_lasts() {
        let mut gateways = Gateways::default();
        let mut beats = |counts: &[usize], regular| {
            counts.iter().for_each(|&count| gateways.beat(count, regular));
            gateways.count
        };
        assert_eq!(beats(&[3], true), 3);
        assert_eq!(beats(&[1, 1, 1, 1, 1], false), 3, "a server that just came back has heard of few");
        assert_eq!(beats(&[1, 2], true), 3);
        assert_eq!(beats(&[3, 2, 2], true), 3, "they were back");
        assert_eq!(beats(&[2], true), 2);
    }
}
