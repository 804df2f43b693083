//! Calendar windows with time zones: where the window that holds an instant starts and ends. Pure; the current time is an argument.

use jiff::{RoundMode, Timestamp, ToSpan, Unit, ZonedDateTime, ZonedDateTimeRound, tz::TimeZone};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CalendarPeriod {
    Second,
    Minute,
    Hour,
    Day,
    Month,
}

impl CalendarPeriod {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Month => "month",
        }
    }

    /// Mean length in microseconds. Only used to count the windows between two starts, where no real window
    /// is off by more than half of it (a month is 28 to 31 days, a day with a clock change 23 to 25 hours).
    pub fn nominal_us(self) -> f64 {
        match self {
            Self::Second => 1e6,
            Self::Minute => 60e6,
            Self::Hour => 3600e6,
            Self::Day => 86_400e6,
            Self::Month => 2_629_746e6,
        }
    }
}

/// Starts of four consecutive windows, microseconds since the Unix epoch: the previous one, the current one, the next two.
/// The store's clock, not the gateway's, picks among them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Windows(pub [f64; 4]);

impl Windows {
    /// Around `now_us`. An instant outside what the calendar can express gets windows of nominal length.
    pub fn around(period: CalendarPeriod, zone: &TimeZone, now_us: f64) -> Self {
        Self::exact(period, zone, now_us).unwrap_or_else(|_| {
            let nominal = period.nominal_us();
            let start = (now_us / nominal).floor() * nominal;
            Self([start - nominal, start, start + nominal, start + 2.0 * nominal])
        })
    }

    fn exact(period: CalendarPeriod, zone: &TimeZone, now_us: f64) -> Result<Self, jiff::Error> {
        let now = Timestamp::from_microsecond(now_us as i64)?.to_zoned_datetime(zone.clone());
        let current = start_of(period, &now)?;
        let previous = start_of(period, &before(&current)?)?;
        let next = next_start(period, &current)?;
        let last = next_start(period, &next)?;
        Ok(Self([previous, current, next, last].map(|at| at.timestamp().as_microsecond() as f64)))
    }

    /// Start of the window that holds `now_us`, or `None` when these windows do not cover it.
    pub fn start(&self, now_us: f64) -> Option<f64> {
        let [previous, current, next, last] = self.0;
        match now_us {
            t if t < previous || t >= last => None,
            t if t < current => Some(previous),
            t if t < next => Some(current),
            _ => Some(next),
        }
    }

    /// End of the window that starts at `start`, if it is one of these.
    pub fn end(&self, start: f64) -> Option<f64> {
        let at = self.0[..3].iter().position(|s| *s == start)?;
        Some(self.0[at + 1])
    }
}

/// Microseconds at which the `count`-th window after the one that holds `now_us` starts.
pub fn start_after(period: CalendarPeriod, zone: &TimeZone, now_us: f64, count: u64) -> f64 {
    let windows = Windows::around(period, zone, now_us);
    let next = windows.0[2];
    // Far starts are an answer to "when will this debt be paid": walking is exact, and short for any sane debt.
    if count > 1000 {
        return next + (count - 1) as f64 * period.nominal_us();
    }
    (1..count).fold(next, |at, _| Windows::around(period, zone, at).0[2])
}

fn start_of(period: CalendarPeriod, at: &ZonedDateTime) -> Result<ZonedDateTime, jiff::Error> {
    let trunc = |unit| at.round(ZonedDateTimeRound::new().smallest(unit).mode(RoundMode::Trunc));
    match period {
        CalendarPeriod::Second => trunc(Unit::Second),
        CalendarPeriod::Minute => trunc(Unit::Minute),
        CalendarPeriod::Hour => trunc(Unit::Hour),
        CalendarPeriod::Day => at.start_of_day(),
        CalendarPeriod::Month => at.first_of_month()?.start_of_day(),
    }
}

fn before(at: &ZonedDateTime) -> Result<ZonedDateTime, jiff::Error> {
    at.checked_sub(1.microsecond())
}

fn next_start(period: CalendarPeriod, start: &ZonedDateTime) -> Result<ZonedDateTime, jiff::Error> {
    match period {
        CalendarPeriod::Second => start.checked_add(1.second()),
        CalendarPeriod::Minute => start.checked_add(1.minute()),
        CalendarPeriod::Hour => start.checked_add(1.hour()),
        // A day is added to the civil date, so 23 and 25 hour days come out right.
        CalendarPeriod::Day => start.checked_add(1.day())?.start_of_day(),
        CalendarPeriod::Month => start.checked_add(1.month())?.start_of_day(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(period: CalendarPeriod, zone: &str, now: &str, expect: [&str; 4]) {
        let zone = TimeZone::get(zone).unwrap();
        let now: Timestamp = now.parse().unwrap();
        let got = Windows::around(period, &zone, now.as_microsecond() as f64);
        let got = got.0.map(|us| Timestamp::from_microsecond(us as i64).unwrap().to_string());
        assert_eq!(got, expect);
    }

    #[test]
    fn a_day_follows_the_clock_changes_of_its_zone() {
        check(
            CalendarPeriod::Day,
            "Europe/Lisbon",
            "2026-03-29T12:00:00Z",
            ["2026-03-28T00:00:00Z", "2026-03-29T00:00:00Z", "2026-03-29T23:00:00Z", "2026-03-30T23:00:00Z"],
        );
    }

    #[test]
    fn a_month_starts_at_local_midnight() {
        check(
            CalendarPeriod::Month,
            "America/New_York",
            "2026-02-10T00:00:00Z",
            ["2026-01-01T05:00:00Z", "2026-02-01T05:00:00Z", "2026-03-01T05:00:00Z", "2026-04-01T04:00:00Z"],
        );
    }

    #[test]
    fn an_instant_outside_the_four_windows_is_not_guessed() {
        let windows = Windows([10.0, 20.0, 30.0, 40.0]);
        assert_eq!(windows.start(9.0), None);
        assert_eq!(windows.start(10.0), Some(10.0));
        assert_eq!(windows.start(39.0), Some(30.0));
        assert_eq!(windows.start(40.0), None);
        assert_eq!(windows.end(30.0), Some(40.0));
    }

    #[test]
    fn counting_windows_by_their_mean_length_is_exact_for_months() {
        let zone = TimeZone::get("Europe/Lisbon").unwrap();
        let now: Timestamp = "2026-01-15T00:00:00Z".parse().unwrap();
        let now = now.as_microsecond() as f64;
        let start = Windows::around(CalendarPeriod::Month, &zone, now).0[1];
        for k in 1..120u64 {
            let later = start_after(CalendarPeriod::Month, &zone, now, k);
            assert_eq!(((later - start) / CalendarPeriod::Month.nominal_us()).round() as u64, k);
        }
    }
}
