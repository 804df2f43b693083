//! Figures, not assertions: run with `cargo test -p proxy --release --test it -- --ignored --nocapture speed`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use proxy::quota::{Clock, Level, Limit, Quota, Rule, Store, Unit};

use super::queue::queues;
use super::redis_server::RedisServer;
use super::rig::{demand, everywhere, options, patient, reserve, used};

/// Four levels, each with a token bucket, a request bucket and a slot.
fn rules() -> Vec<Rule> {
    let minute = Duration::from_secs(60);
    everywhere(&[
        Limit::per(Unit::Tokens, 1_000_000_000, minute),
        Limit::per(Unit::Requests, 1_000_000_000, minute),
        Limit::concurrency(100_000),
    ])
}

async fn pairs(quota: &Arc<Quota>, in_flight: usize, total: usize) -> Duration {
    let start = Instant::now();
    let workers: Vec<_> = (0..in_flight)
        .map(|_| {
            let quota = quota.clone();
            tokio::spawn(async move {
                for _ in 0..total / in_flight {
                    reserve(&quota, demand(200, 100)).await.unwrap().settle(used(200, 50));
                }
            })
        })
        .collect();
    for worker in workers {
        worker.await.unwrap();
    }
    assert!(quota.drain(Duration::from_secs(30)).await);
    start.elapsed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn redis_cpu_per_pair() {
    let server = RedisServer::start();
    let quota = Quota::new(rules(), patient(&server.url()).await, options());
    for in_flight in [1, 8, 32] {
        pairs(&quota, in_flight, 2000).await;
        let (total, before) = (40_000, server.cpu());
        let took = pairs(&quota, in_flight, total).await;
        let cpu = (server.cpu() - before).as_secs_f64() * 1e6 / total as f64;
        println!(
            "redis, {in_flight:>2} in flight: {cpu:5.1} us of server CPU per pair, {:.0} pairs/s",
            total as f64 / took.as_secs_f64()
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn redis_cpu_per_call_of_limits_that_queue() {
    let server = RedisServer::start();
    for (name, slots, in_flight) in [("nobody waits", 100_000, 8), ("4 wait", 4, 8), ("196 wait", 4, 200)] {
        let rules = rules().into_iter().map(|rule| match rule.level {
            Level::Org => {
                queues(Rule { limits: vec![Limit::concurrency(slots)], ..rule }, Duration::from_secs(600), 1000)
            }
            _ => rule,
        });
        let quota = Quota::new(rules.collect(), patient(&server.url()).await, options());
        let (total, before) = (8000, server.cpu());
        let took = pairs(&quota, in_flight, total).await;
        let cpu = (server.cpu() - before).as_secs_f64() * 1e6 / total as f64;
        println!("{name}: {cpu:5.1} us of server CPU per call, {:.0} calls/s", total as f64 / took.as_secs_f64());
    }
}

#[tokio::test]
#[ignore = "a measurement"]
async fn memory_pairs_per_second() {
    let quota = Quota::new(rules(), Store::memory(Clock::Wall), options());
    let chain = quota.chain(&super::rig::ana(), &["m"]);
    let total = 300_000;
    let start = Instant::now();
    for _ in 0..total {
        quota.reserve(&chain, demand(200, 100)).await.unwrap().settle(used(200, 50));
    }
    println!("memory, one core, 12 limits: {:.0} pairs/s", f64::from(total) / start.elapsed().as_secs_f64());
}
