//! The embedded store over restarts: what its journal keeps, and what makes it refuse to start.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use jiff::tz::TimeZone;
use proxy::quota::audit::{Audit, audit};
use proxy::quota::{
    CalendarPeriod, Chain, Clock, JournalError, LeaseId, Level, Limit, OnExpiry, Options, Quota, Store, Unit, Window,
    warnings,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::rig::*;

const LEASE: Duration = Duration::from_secs(60);

/// 2026-06-01 at noon, UTC.
fn noon() -> (Arc<AtomicU64>, Clock) {
    let clock = Arc::new(AtomicU64::new(1_780_315_200_000_000));
    (clock.clone(), Clock::Manual(clock))
}

fn daily() -> Vec<Limit> {
    let day = Window::Calendar { period: CalendarPeriod::Day, zone: TimeZone::get("Europe/Lisbon").unwrap() };
    vec![
        tokens(1_000_000),
        Limit { unit: Unit::OutputTokens, amount: 100_000, window: day },
        Limit::per(Unit::Requests, 500, Duration::from_secs(86_400)),
        Limit::concurrency(50),
    ]
}

fn flush(store: &Store) {
    let Store::Memory(memory) = store else { panic!("a store with a journal is the embedded one") };
    memory.flush();
}

/// The folder is free once the tasks of the store before have ended.
async fn open(folder: &Path, clock: &Clock) -> Store {
    let patience = Instant::now() + Duration::from_secs(20);
    loop {
        match Store::journalled(folder, clock.clone()) {
            Err(JournalError::Held(_)) if Instant::now() < patience => {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            other => return other.unwrap(),
        }
    }
}

/// Without the slots that say nothing: a journal does not keep what is as good as new.
fn spoken(mut books: Audit) -> Audit {
    for account in books.accounts.values_mut() {
        account.slots.retain(|_, (slot, _)| slot.level != 0.0);
    }
    books
}

#[tokio::test]
async fn a_restart_keeps_lifetime_calendar_and_daily_use_to_the_token() {
    let (folder, (_, clock)) = (tempfile::tempdir().unwrap(), noon());
    let rules = everywhere(&daily());
    let quota = Quota::new(rules.clone(), open(folder.path(), &clock).await, options());
    for n in 1..=20 {
        let mut call = reserve(&quota, demand(100 + n, 1000)).await.unwrap();
        call.dispatched();
        call.settle(used(100 + n, 7 * n));
    }
    let before = spoken(books(&quota).await);
    drop(quota);
    let store = open(folder.path(), &clock).await;
    assert_eq!(spoken(audit(&store).await.unwrap()), before);
    // 20 * 100 + 210 prompt, 7 * 210 output.
    assert_eq!(peek(&store, &chain(&rules)).await, [3680.0, 1470.0, 20.0, 0.0].repeat(4));
    assert_eq!(warnings(&rules, &store), Vec::<String>::new());
    assert_eq!(warnings(&rules, &Store::memory(clock)).len(), 1);
}

#[tokio::test]
async fn a_lease_of_a_dead_process_holds_until_its_deadline_and_is_charged_by_policy() {
    for (policy, charged) in [(OnExpiry::Charge, [150.0, 1.0, 0.0]), (OnExpiry::Refund, [0.0; 3])] {
        let (folder, (time, clock)) = (tempfile::tempdir().unwrap(), noon());
        let rules = everywhere(&[tokens(1000), requests(10), Limit::concurrency(3)]);
        let (store, id) = (open(folder.path(), &clock).await, LeaseId::random());
        done(&store.reserve(&chain(&rules), &ask(id, 100, 200, LEASE)).await.unwrap());
        done(&store.renew(&chain(&rules), &renewal(id, (100, 200), 50, LEASE)).await.unwrap());
        flush(&store);
        drop(store);

        time.fetch_add(30_000_000, Ordering::Relaxed);
        let store = open(folder.path(), &clock).await;
        let books = audit(&store).await.unwrap();
        assert!(books.is_balanced() && books.live_leases == 1, "{books:?}");
        assert_eq!(peek(&store, &chain(&rules)).await, [300.0, 1.0, 1.0].repeat(4));
        flush(&store);
        drop(store);

        time.fetch_add(30_000_000, Ordering::Relaxed);
        let options = Options { on_expiry: policy, ..options() };
        let quota = Quota::new(rules.clone(), open(folder.path(), &clock).await, options);
        let books = audit(quota.store()).await.unwrap();
        assert!(books.is_balanced() && books.live_leases == 0, "{books:?}");
        assert_eq!(peek(quota.store(), &chain(&rules)).await, charged.repeat(4));
    }
}

/// Without a request after the restart, which would name its org.
#[tokio::test]
async fn a_lease_of_a_dead_process_is_reclaimed_in_a_quiet_gateway() {
    let (folder, (time, clock)) = (tempfile::tempdir().unwrap(), noon());
    let rules = everywhere(&[tokens(1000)]);
    let store = open(folder.path(), &clock).await;
    done(&store.reserve(&chain(&rules), &ask(LeaseId::random(), 100, 200, LEASE)).await.unwrap());
    flush(&store);
    drop(store);
    let options = Options { lease_ttl: Duration::from_millis(100), ..options() };
    let quota = Quota::new(rules, open(folder.path(), &clock).await, options);
    assert_eq!(audit(quota.store()).await.unwrap().live_leases, 1);
    time.fetch_add(61_000_000, Ordering::Relaxed);
    let patience = Instant::now() + Duration::from_secs(20);
    while audit(quota.store()).await.unwrap().live_leases > 0 {
        assert!(Instant::now() < patience, "never reclaimed");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn calls_longer_than_their_lease_are_renewed() {
    let (folder, rules) = (tempfile::tempdir().unwrap(), everywhere(&[tokens(1000)]));
    let ttl = Duration::from_millis(900);
    let options = Options { lease_ttl: ttl, undispatched_ttl: ttl, ..options() };
    let quota = Quota::new(rules, open(folder.path(), &Clock::Wall).await, options);
    let mut call = reserve(&quota, demand(100, 200)).await.unwrap();
    call.dispatched();
    tokio::time::sleep(ttl * 3).await;
    let books = audit(quota.store()).await.unwrap();
    assert_eq!((books.live_leases, books.expired_leases), (1, 0));
}

/// Accounts with a long window, and what leases hold on them: all of that and only that, after any history.
#[tokio::test]
async fn any_history_is_read_back_as_it_was() {
    let only = |model: &str, rule: proxy::quota::Rule| proxy::quota::Rule {
        models: vec![proxy::quota::Pattern::new(model).unwrap()],
        ..rule
    };
    let minute = || Limit::per(Unit::Tokens, 4000, Duration::from_secs(60));
    let rules = [
        rule(Level::User, vec![minute(), Limit::concurrency(9)]),
        rule(Level::App, vec![minute()]),
        only("a", rule(Level::App, vec![tokens(90_000)])),
        only("b", rule(Level::Org, daily())),
        rule(Level::Global, vec![Limit::concurrency(9)]),
        only("c", rule(Level::Global, daily())),
    ];
    for seed in 0..40 {
        let (folder, (time, clock)) = (tempfile::tempdir().unwrap(), noon());
        let chains = ["a", "b", "c", "d"].map(|model| Arc::new(Chain::resolve(&rules, &ana(), &[model])));
        let mut store = open(folder.path(), &clock).await;
        play(&store, &chains, &time, seed).await;
        flush(&store);
        let before = audit(&store).await.unwrap();
        drop(store);
        store = open(folder.path(), &clock).await;
        let after = audit(&store).await.unwrap();
        assert!(after.is_balanced(), "seed {seed}: {:?}", after.faults());
        let kept = |key: &str| !key.contains(":a:u");
        let expect: Vec<_> = before.accounts.into_iter().filter(|(key, _)| kept(key)).collect();
        assert_eq!(after.accounts.into_iter().collect::<Vec<_>>(), expect, "seed {seed}");
    }
}

async fn play(store: &Store, chains: &[Arc<Chain>; 4], time: &AtomicU64, seed: u64) {
    let mut rng = SmallRng::seed_from_u64(seed);
    // All models have been used, so all accounts but the user's have their long limits.
    for (n, chain) in chains.iter().enumerate() {
        done(&store.reserve(chain, &ask(LeaseId(100 + n as u128), 3, 4, LEASE)).await.unwrap());
    }
    for _ in 0..rng.random_range(1..120) {
        let (id, chain) = (LeaseId(rng.random_range(1..9)), &chains[rng.random_range(0..4)]);
        let (input, output) = (rng.random_range(0..90), rng.random_range(0..90));
        let _status = match rng.random_range(0..8) {
            0..3 => store.reserve(chain, &ask(id, input, output, LEASE)).await,
            3 => store.amend(chain, chain, &ask(id, input, output, LEASE)).await,
            4 => store.renew(chain, &renewal(id, (input, output), output / 2, LEASE)).await,
            5 => store.settle(chain, id, &spent(input, output)).await,
            6 => store.cancel(chain, id).await,
            _ => store.expire(chain, id, CHARGE).await,
        };
        if rng.random_bool(0.2) {
            flush(store);
        }
        time.fetch_add(rng.random_range(0..20_000_000), Ordering::Relaxed);
    }
}

#[tokio::test]
async fn two_processes_on_one_folder_are_refused_with_the_cure() {
    let folder = tempfile::tempdir().unwrap();
    let first = Store::journalled(folder.path(), Clock::Wall).unwrap();
    let error = Store::journalled(folder.path(), Clock::Wall).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, JournalError::Held(_)) && text.contains("data_dir"), "{text}");
    assert!(text.contains(&folder.path().display().to_string()), "{text}");
    drop(first);
    Store::journalled(folder.path(), Clock::Wall).unwrap();
}

/// Three flushed settlements of 30 tokens each, one frame per settlement; the bytes of the file after each.
async fn three_frames(folder: &Path) -> (Vec<u8>, Vec<usize>, Arc<Chain>) {
    let (store, chain) = (open(folder, &Clock::Wall).await, chain(&everywhere(&[tokens(1000)])));
    let mut ends = Vec::new();
    for _ in 0..3 {
        let id = LeaseId::random();
        done(&store.reserve(&chain, &ask(id, 20, 30, LEASE)).await.unwrap());
        done(&store.settle(&chain, id, &spent(20, 10)).await.unwrap());
        flush(&store);
        ends.push(std::fs::metadata(folder.join("journal")).unwrap().len() as usize);
    }
    (std::fs::read(folder.join("journal")).unwrap(), ends, chain)
}

async fn global_use(folder: &Path) -> Vec<f64> {
    let books: Audit = audit(&open(folder, &Clock::Wall).await).await.unwrap();
    levels(&books)
}

#[tokio::test]
async fn a_torn_tail_costs_the_last_write_only() {
    let folder = tempfile::tempdir().unwrap();
    let (bytes, ends, _) = three_frames(folder.path()).await;
    let file = folder.path().join("journal");
    // The last eight bytes are zeros anyway.
    for cut in [ends[1] + 1, ends[1] + 10, ends[1] + 23, ends[1] + 24, ends[1] + 60, ends[2] - 9] {
        std::fs::write(&file, &bytes[..cut]).unwrap();
        assert_eq!(global_use(folder.path()).await, [60.0; 4], "cut at {cut}");
        // Grown to its size, not written: the bytes read as zeros.
        let grown = [&bytes[..cut], &vec![0; ends[2] - cut + 4096]].concat();
        std::fs::write(&file, grown).unwrap();
        assert_eq!(global_use(folder.path()).await, [60.0; 4], "zeros from {cut}");
    }
    std::fs::write(&file, &bytes).unwrap();
    assert_eq!(global_use(folder.path()).await, [90.0; 4]);
}

#[tokio::test]
async fn damage_before_the_end_and_other_files_are_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (bytes, ends, _) = three_frames(folder.path()).await;
    let file = folder.path().join("journal");
    for at in [ends[0], ends[0] + 9, ends[0] + 17, ends[0] + 30, ends[1] - 1] {
        let mut bad = bytes.clone();
        bad[at] ^= 0x10;
        std::fs::write(&file, &bad).unwrap();
        let error = Store::journalled(folder.path(), Clock::Wall).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, JournalError::Damaged { at, .. } if at == ends[0]), "byte {at}: {text}");
        assert!(text.contains(&file.display().to_string()) && text.contains("move it away"), "{text}");
        assert_eq!(std::fs::read(&file).unwrap(), bad);
    }
    for other in [&b"penstock quota journal 2\nwhatever"[..], b"", b"{}"] {
        std::fs::write(&file, other).unwrap();
        let error = Store::journalled(folder.path(), Clock::Wall).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, JournalError::Foreign { .. }) && text.contains("run the version"), "{text}");
        assert_eq!(std::fs::read(&file).unwrap(), other);
    }
}

#[tokio::test]
async fn a_journal_is_bounded_by_what_it_says_not_by_its_history() {
    let folder = tempfile::tempdir().unwrap();
    let (store, chain) = (open(folder.path(), &Clock::Wall).await, chain(&everywhere(&[tokens(1 << 50)])));
    for _ in 0..1000 {
        for _ in 0..20 {
            let id = LeaseId::random();
            done(&store.reserve(&chain, &ask(id, 1, 0, LEASE)).await.unwrap());
        }
        flush(&store);
        let live: Vec<LeaseId> = match &store {
            Store::Memory(memory) => memory.ledger().live().map(|(id, ..)| id).collect(),
            Store::Redis(_) => Vec::new(),
        };
        for id in live {
            done(&store.settle(&chain, id, &spent(1, 0)).await.unwrap());
        }
    }
    flush(&store);
    let size = std::fs::metadata(folder.path().join("journal")).unwrap().len();
    assert!(size < 2 << 20, "{size} bytes for four accounts");
    drop(store);
    assert_eq!(global_use(folder.path()).await, [20_000.0; 4]);
}

const MARK: &str = "to-be-killed";

/// Not a test: the process that the next one kills. It says how many calls it has settled, over and over.
#[tokio::test]
#[ignore = "a process for another test to kill"]
async fn victim() {
    if !Path::new(MARK).exists() {
        return;
    }
    let rules = everywhere(&[tokens(1_000_000_000)]);
    let quota = Quota::new(rules, open(Path::new("ledger"), &Clock::Wall).await, options());
    for settled in 1u64.. {
        let mut call = reserve(&quota, demand(1, 100)).await.unwrap();
        call.dispatched();
        call.settle(used(1, 0));
        println!("settled {settled}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn a_killed_process_loses_at_most_its_last_second() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join(MARK), "").unwrap();
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "quota::journal::victim", "--nocapture"])
        .current_dir(folder.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut heard, start) = (Vec::new(), Instant::now());
    for line in BufReader::new(process.stdout.take().unwrap()).lines() {
        let Some(settled) = line.unwrap().strip_prefix("settled ").and_then(|count| count.parse::<f64>().ok()) else {
            continue;
        };
        heard.push((Instant::now(), settled));
        if start.elapsed() > Duration::from_secs(4) {
            break;
        }
    }
    let killed = Instant::now();
    process.kill().unwrap();
    process.wait().unwrap();
    let promised = |(at, _): &&(Instant, f64)| killed.duration_since(*at) > Duration::from_secs(1);
    let promised = heard.iter().rfind(promised).expect("it ran for longer than a second").1;
    let kept = global_use(&folder.path().join("ledger")).await;
    assert_eq!(kept.len(), 4);
    assert!(promised > 100.0 && kept.iter().all(|kept| *kept >= promised), "{kept:?}, promised {promised}");
}
