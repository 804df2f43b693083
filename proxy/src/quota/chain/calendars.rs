//! The windows in which a chain's calendar limits count. What a window is, and where it begins, is `quota/calendar.rs`.

use super::{Chain, ChainLimit};
use crate::quota::account::Kind;
use crate::quota::calendar::Windows;
use crate::quota::codec;
use crate::quota::rule::Window;

/// The windows of the chain's calendar limits, in chain order, valid while every current window lasts.
#[derive(Debug)]
pub struct Calendars {
    pub windows: Vec<Windows>,
    /// The windows, each with what a caller of this tier may use in it.
    pub packed: Vec<u8>,
    pub(super) from: f64,
    pub(super) until: f64,
}

impl Calendars {
    pub(super) fn around(chain: &Chain, now_us: f64) -> Self {
        let windows: Vec<Windows> = chain
            .limits
            .iter()
            .filter_map(|entry| match &entry.limit.window {
                Window::Calendar { period, zone } => Some(Windows::around(*period, zone, now_us)),
                _ => None,
            })
            .collect();
        let from = windows.iter().map(|w| w.0[1]).fold(f64::NEG_INFINITY, f64::max);
        let until = windows.iter().map(|w| w.0[2]).fold(f64::INFINITY, f64::min);
        let calendars = chain.limits.iter().filter(|entry| entry.terms.kind == Kind::Calendar);
        let packed = calendars.zip(&windows).flat_map(|(entry, window)| codec::pack_window(window, &entry.terms));
        Self { packed: packed.collect(), windows, from, until }
    }

    /// Start of the window that holds `now_us` for each limit of the chain (0 where it has none), or `None` if one
    /// of them does not cover it.
    pub fn starts(&self, chain: &Chain, now_us: f64) -> Option<Vec<f64>> {
        let mut windows = self.windows.iter();
        let start = |entry: &ChainLimit| match entry.terms.kind {
            Kind::Calendar => windows.next()?.start(now_us),
            _ => Some(0.0),
        };
        chain.limits.iter().map(start).collect()
    }
}
