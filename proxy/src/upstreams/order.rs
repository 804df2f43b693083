//! In which order the upstreams of a model are asked: each place drawn by weight among those left.

use std::sync::Arc;

use rand::Rng;

use crate::catalogue::Upstream;

pub(super) fn by_weight(upstreams: &[Arc<Upstream>]) -> impl Iterator<Item = &Arc<Upstream>> {
    let mut left: Vec<&Arc<Upstream>> = upstreams.iter().collect();
    std::iter::from_fn(move || {
        let place = match left.len() {
            0 => return None,
            1 => 0,
            _ => draw(&left, rand::rng().random_range(0..total(&left))),
        };
        Some(left.swap_remove(place))
    })
}

fn total(upstreams: &[&Arc<Upstream>]) -> u64 {
    upstreams.iter().map(|upstream| u64::from(upstream.weight)).sum()
}

/// Where `ticket` falls when the weights are laid end to end.
fn draw(upstreams: &[&Arc<Upstream>], mut ticket: u64) -> usize {
    for (index, upstream) in upstreams.iter().enumerate() {
        match ticket.checked_sub(u64::from(upstream.weight)) {
            Some(rest) => ticket = rest,
            None => return index,
        }
    }
    upstreams.len() - 1
}
