//! How long a call waits in a queue whose limit refills, told by the pure ledger on a clock of the test's own.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use proxy::quota::account::Amounts;
use proxy::quota::ledger::Ledger;
use proxy::quota::store::{Ask, Status, Turn};
use proxy::quota::{Chain, LeaseId, Level, Limit, Unit, Window};

use super::queue::{PATIENT, of_app, queues};
use super::rig::rule;

/// Tokens that come back per millisecond, and at once at most.
const RATE: f64 = 0.1;
const BURST: u64 = 100;
const SHARES: &[f64] = &[0.0, 0.05];

/// Calls that wait, asked again at every millisecond as their gateways would.
struct Queue {
    ledger: Ledger,
    chains: Vec<Arc<Chain>>,
    now: f64,
    calls: u128,
    waiting: Vec<(usize, Ask, f64)>,
    /// Milliseconds that a call waited.
    served: HashMap<LeaseId, f64>,
}

impl Queue {
    fn new() -> Self {
        let bucket = Window::Bucket { period: Duration::from_millis((BURST as f64 / RATE) as u64), burst: BURST };
        let limit = Limit { unit: Unit::Tokens, amount: BURST, window: bucket };
        let rules = [queues(rule(Level::Org, vec![limit]), PATIENT, 10_000)];
        let chain = |rank| Arc::new(Chain::resolve(&rules, &of_app("web", Some((rank, SHARES))), &["m"]));
        let chains = [0, 1].map(chain).into();
        Self { ledger: Ledger::default(), chains, now: 1e15, calls: 0, waiting: Vec::new(), served: HashMap::new() }
    }

    fn arrive(&mut self, rank: usize, tokens: u64) -> LeaseId {
        self.calls += 1;
        let id = LeaseId(self.calls);
        self.waiting.push((rank, Ask { id, need: Amounts::held(tokens, 0, 0), hold: PATIENT }, self.now));
        self.ask();
        id
    }

    fn ask(&mut self) {
        // Whoever was not next may be after another had its turn.
        let mut before = usize::MAX;
        while self.waiting.len() < before {
            before = self.waiting.len();
            let Self { ledger, chains, now, waiting, served, .. } = self;
            waiting.retain(|(rank, ask, since)| {
                let turn = Turn { gateway: 1, since: *since, wait_us: 1e12 };
                let waits = ledger.turn(&chains[*rank], ask, &turn, *now).answer.status == Status::Queued;
                if !waits {
                    served.insert(ask.id, (*now - since) / 1000.0);
                }
                waits
            });
        }
    }

    fn pass(&mut self, ms: u64) {
        for _ in 0..ms {
            self.now += 1000.0;
            self.ask();
        }
    }

    fn ahead(&self, rank: usize) -> f64 {
        self.waiting.iter().filter(|(other, ..)| *other == rank).map(|(_, ask, _)| ask.need.tokens()).sum()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_premium_call_waits_for_the_turn_being_filled_premium_calls_ahead_and_its_own_need(
        calls in prop::collection::vec((any::<bool>(), 1u64..=60, 0u64..300), 20..50)
    ) {
        let mut queue = Queue::new();
        for (premium, tokens, pause) in calls {
            let ahead = queue.ahead(0);
            let id = queue.arrive(usize::from(!premium), tokens);
            if premium {
                // What the lower tier is owed meanwhile: one turn of it, and its share of what goes ahead.
                let bound = (60.0 + ahead * (1.0 + SHARES[1]) + tokens as f64) / RATE;
                let before = queue.served.len();
                let mut left = bound.ceil() as u64 + 1;
                while !queue.served.contains_key(&id) && left > 0 {
                    queue.pass(1);
                    left -= 1;
                }
                prop_assert!(queue.served.contains_key(&id), "{tokens} behind {ahead} took over {bound} ms ({before})");
            }
            queue.pass(pause);
        }
    }
}

#[test]
fn a_lower_tier_waits_at_most_for_its_need_over_its_share_of_the_rate() {
    for tokens in [5, 30, 60] {
        let mut queue = Queue::new();
        queue.arrive(0, BURST);
        let low = queue.arrive(1, tokens);
        let (need, start) = (tokens as f64, queue.now);
        // Besides, the turn that is being filled when it is owed enough, and its own need.
        let (least, most) = (need / SHARES[1] / RATE, (need / SHARES[1] + 10.0 + need) / RATE + 2.0);
        while !queue.served.contains_key(&low) && queue.now - start <= most * 1000.0 {
            // Premium calls never stop coming.
            while queue.ahead(0) < 50.0 {
                queue.arrive(0, 10);
            }
            queue.pass(1);
        }
        let waited = queue.served.get(&low).copied();
        assert!(waited.is_some_and(|ms| (least..=most).contains(&ms)), "{tokens}: {waited:?} of {least} to {most} ms");
    }
}
