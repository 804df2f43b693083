//! Who is next, and how long the others wait for it.

use super::*;

const A: Tenant = [1; 8];
const B: Tenant = [2; 8];
const SHARES: [f64; 3] = [0.0, 0.05, 0.1];

struct Queue {
    turns: Turns,
    calls: u128,
}

impl Queue {
    fn new() -> Self {
        Self { turns: Turns::new(1e6), calls: 0 }
    }

    fn enter(&mut self, rank: u8, tenant: Tenant, cost: f64) -> LeaseId {
        self.calls += 1;
        let id = LeaseId(self.calls);
        let place = Place { rank, tenant, since: self.calls as f64, until: f64::INFINITY, cost, gateway: 7 };
        self.turns.enter(id, place, 0.0);
        id
    }

    fn next(&mut self) -> Option<LeaseId> {
        self.turns.next(0.0)
    }

    /// The rank, the tenant and the cost of the turn that it gives.
    fn serve(&mut self) -> (u8, Tenant, f64) {
        let id = self.next().expect("somebody waits");
        let Place { rank, tenant, cost, .. } = self.turns.places[&id];
        self.turns.serve(id, &SHARES.map(Share::new));
        (rank, tenant, cost)
    }
}

#[test]
fn a_lower_tier_waits_for_its_need_over_its_share_and_no_longer() {
    for (rank, share, cost) in [(1, 0.05, 30.0), (1, 0.05, 1.0), (2, 0.1, 30.0)] {
        let mut queue = Queue::new();
        queue.enter(rank, B, cost);
        let mut granted = 0.0;
        loop {
            queue.enter(0, A, 7.0);
            queue.enter(0, A, 7.0);
            let (served, _, cost) = queue.serve();
            if served == rank {
                break;
            }
            granted += cost;
        }
        let bound = cost / share;
        assert!((bound..bound + 7.0).contains(&granted), "{granted} of {bound}");
    }
}

#[test]
fn lower_tiers_that_wait_get_their_shares_and_the_first_the_rest() {
    let mut queue = Queue::new();
    let mut served = [0.0; 3];
    for _ in 0..20_000 {
        for rank in 0..3 {
            if queue.turns.depth(rank) < 2 {
                queue.enter(rank, A, 10.0);
            }
        }
        let (rank, _, cost) = queue.serve();
        served[usize::from(rank)] += cost;
    }
    for (rank, share) in [(1, 0.05), (2, 0.1)] {
        let found = served[rank] / served[0];
        assert!((found / share - 1.0).abs() < 0.1, "{found} for {share}: {served:?}");
    }
}

#[test]
fn a_tier_that_stops_waiting_is_owed_nothing() {
    let mut queue = Queue::new();
    let low = queue.enter(1, B, 1.0);
    for _ in 0..100 {
        queue.enter(0, A, 1.0);
    }
    for _ in 0..10 {
        queue.serve();
    }
    queue.turns.leave(low);
    queue.enter(1, B, 1.0);
    assert_eq!((0..20).map(|_| queue.serve().0).sum::<u8>(), 0, "it begins anew");
}

#[test]
fn served_tokens_of_tenants_that_wait_stay_within_twice_the_largest_call() {
    let mut queue = Queue::new();
    let mut served = [0.0; 2];
    let mut number = 12_345u64;
    let mut random = |most: u64| {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (number >> 33) % most + 1
    };
    for _ in 0..30 {
        queue.enter(0, A, random(100) as f64);
    }
    for _ in 0..2 {
        queue.enter(0, B, random(100) as f64);
    }
    for _ in 0..5000 {
        let (_, tenant, cost) = queue.serve();
        // What it uses is known when it ends, and is less than it held.
        let used = (cost / random(4) as f64).floor();
        queue.turns.correct(0, tenant, used - cost);
        served[usize::from(tenant == B)] += used;
        queue.enter(0, tenant, random(100) as f64);
        assert!((served[0] - served[1]).abs() <= 2.0 * 100.0, "{served:?}");
    }
}

#[test]
fn a_tenant_that_comes_late_has_nothing_to_catch_up_with_and_one_that_is_back_keeps_its_lead() {
    let mut queue = Queue::new();
    for _ in 0..100 {
        queue.enter(0, A, 10.0);
    }
    for _ in 0..50 {
        queue.serve();
    }
    queue.enter(0, B, 200.0);
    queue.enter(0, B, 200.0);
    // B goes first or second, and then not before A had as much.
    let firsts: Vec<Tenant> = (0..2).map(|_| queue.serve().1).collect();
    assert!(firsts.contains(&B), "{firsts:?}");
    let second = queue.next().expect("both wait");
    assert_eq!(queue.turns.places[&second].tenant, A);
    // It leaves and comes back: it is as far ahead as it was.
    for id in (1..=queue.calls)
        .map(LeaseId)
        .filter(|id| queue.turns.places.get(id).is_some_and(|p| p.tenant == B))
        .collect::<Vec<_>>()
    {
        queue.turns.leave(id);
    }
    queue.enter(0, B, 1.0);
    let before = (0..40).take_while(|_| queue.serve().1 == A).count();
    assert!((18..=20).contains(&before), "{before}");
}

#[test]
fn places_of_those_that_are_gone_are_given_up() {
    let mut queue = Queue::new();
    let dead = queue.enter(0, A, 5.0);
    let place = Place { rank: 0, tenant: A, since: 9.0, until: 3e6, cost: 5.0, gateway: 8 };
    queue.turns.enter(LeaseId(100), place, 1.5e6);
    assert_eq!(queue.turns.next(1e6), Some(dead));
    assert_eq!(queue.turns.next(1.1e6), Some(LeaseId(100)), "its gateway has said nothing for a second");
    assert!(!queue.turns.renew(dead, 9e9, 2e6), "it has to come again");
    assert!(queue.turns.renew(LeaseId(100), 3e6, 2.9e6));
    assert_eq!(queue.turns.next(3e6), Some(LeaseId(100)));
    assert_eq!(queue.turns.next(3.1e6), None, "nobody waits so long");
    assert!(queue.turns.is_empty());
}

#[test]
fn what_is_ahead_is_told_by_tier_tenant_and_arrival() {
    let mut queue = Queue::new();
    for tenant in [A, A, A, B] {
        queue.enter(1, tenant, 10.0);
    }
    queue.enter(0, A, 7.0);
    let last = queue.enter(1, A, 10.0);
    let told = |ahead: Ahead| (ahead.calls, ahead.tokens);
    assert_eq!(told(queue.turns.ahead(1, A, Some(last))), (5.0, 47.0), "one above, three of its own, one of B");
    assert_eq!(told(queue.turns.ahead(1, [3; 8], None)), (3.0, 27.0), "one above, one of each other tenant");
    assert_eq!(told(queue.turns.ahead(0, B, None)), (1.0, 7.0));
    assert_eq!(told(queue.turns.ahead(2, B, None)), (6.0, 57.0), "all that there are");
}
