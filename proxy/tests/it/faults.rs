//! Random histories of whole gateways, each between clients that leave, upstreams that fail, and a store that can be
//! slow, silent, lying, killed, emptied or replaced. After each one the accounts must be a sum of what its calls may
//! cost by the settlement truth table, at every level alike, with nothing held and nothing leaked.
//!
//! A failure prints its seed; `PENSTOCK_FAULT_SEED=N` plays that world again, alone.

mod books;
mod client;
mod fate;
mod gateway;
mod history;
mod link;
mod page;
mod plan;
mod resp;
mod rows;
mod world;

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::future::join_all;
use history::{History, Tally};
use world::{Kind, World};

/// Histories that share a server and its troubles.
const TOGETHER: usize = 25;
/// Most of a history is waiting.
const WORLDS_AT_ONCE: usize = 3;

#[test]
fn four_hundred_histories_on_redis_leak_nothing() {
    play(Kind::Redis, 400);
}

#[test]
fn a_hundred_histories_in_memory_leak_nothing() {
    play(Kind::Memory, 100);
}

#[test]
#[ignore = "long: eight thousand histories, about a quarter of an hour"]
fn eight_thousand_histories_on_redis_leak_nothing() {
    play(Kind::Redis, 8000);
}

#[test]
#[ignore = "long: two thousand histories, some minutes"]
fn two_thousand_histories_in_memory_leak_nothing() {
    play(Kind::Memory, 2000);
}

#[expect(clippy::print_stdout, reason = "what a run was worth")]
fn play(kind: Kind, histories: usize) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (first, worlds) = match told() {
        Some(seed) => (seed, 1),
        None => (rand::random_range(0..1 << 40), (histories / TOGETHER) as u64),
    };
    let start = Instant::now();
    let sum = runtime.block_on(async {
        let worlds = (first..first + worlds).map(|seed| tokio::spawn(world(kind, seed)));
        let worlds = futures_util::stream::iter(worlds).buffer_unordered(WORLDS_AT_ONCE);
        worlds.fold(Tally::default(), async |sum, world| sum.plus(world.expect("what broke is above"))).await
    });
    println!("from seed {first} in {:.1?}: {sum:?}", start.elapsed());
}

async fn world(kind: Kind, seed: u64) -> Tally {
    let world = &World::new(kind, seed).await;
    let histories = (0..TOGETHER).map(|number| async move {
        let history = History::new(world, number, seed.wrapping_mul(1009) + number as u64).await;
        let plan = history.plan.clone();
        history.play().await.map_err(|why| {
            format!("{why}\n\nhistory {number}: {plan:?}\nserver: {:?}\nPENSTOCK_FAULT_SEED={seed}", world.server)
        })
    });
    let all = async { tokio::join!(join_all(histories), world.go_wrong(seed)).0 };
    let played = tokio::time::timeout(Duration::from_secs(120), all).await;
    let played = played.unwrap_or_else(|_| panic!("it hangs: PENSTOCK_FAULT_SEED={seed}"));
    let broken: Vec<String> = played.iter().filter_map(|outcome| outcome.clone().err()).collect();
    assert!(broken.is_empty(), "{}", broken.join("\n\n"));
    played.into_iter().flatten().fold(Tally::default(), Tally::plus)
}

#[expect(clippy::disallowed_methods, reason = "how a failure is played again")]
fn told() -> Option<u64> {
    std::env::var("PENSTOCK_FAULT_SEED").ok().map(|seed| seed.parse().expect("PENSTOCK_FAULT_SEED is a number"))
}
