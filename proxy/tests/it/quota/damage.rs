//! Accounts that no script can read: a call that meets one fails and changes nothing at all, so that it can be made
//! again once the account is mended.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use proxy::quota::audit::audit;
use proxy::quota::store::{Answer, Renewal, Status};
use proxy::quota::{Chain, LeaseId, Level, Limit, Rule, Store, StoreError, Subject, Unit};

use super::outages::{eventually, gateway};
use super::redis_server::RedisServer;
use super::rig::*;

const LONG: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Op {
    Reserve,
    Amend,
    Reassert,
    Settle,
    SettleLate,
    Cancel,
    Expire,
}

const OPS: [Op; 7] = [Op::Reserve, Op::Amend, Op::Reassert, Op::Settle, Op::SettleLate, Op::Cancel, Op::Expire];

/// One lease, on accounts of all levels.
struct Scene {
    server: RedisServer,
    store: Store,
    chain: Arc<Chain>,
    /// Shares the accounts of org and all.
    other: Arc<Chain>,
    id: LeaseId,
}

impl Scene {
    async fn new() -> Self {
        let server = RedisServer::start();
        let store = patient(&server.url()).await;
        let rules = everywhere(&[tokens(1000), Limit::per(Unit::Tokens, 1000, LONG)]);
        let (chain, other) = (chain(&rules), chain(&rules[2..]));
        Self { server, store, chain, other, id: LeaseId::random() }
    }

    /// An empty store, then all that comes before the call in question.
    async fn prepare(&mut self, op: Op) {
        redis::cmd("FLUSHALL").exec(&mut self.server.connection()).unwrap();
        self.id = LeaseId::random();
        let short = Duration::from_millis(1);
        let due = matches!(op, Op::Expire | Op::SettleLate);
        done(&self.store.reserve(&self.chain, &ask(self.id, 60, 40, LONG)).await.unwrap());
        done(&self.store.renew(&self.chain, &self.renewal(if due { short } else { LONG }, false)).await.unwrap());
        tokio::time::sleep(short * 2).await;
        if op == Op::SettleLate {
            done(&self.store.expire(&self.chain, self.id, CHARGE).await.unwrap());
        }
        if op == Op::Reassert {
            redis::cmd("DEL").arg(self.lease_key()).exec(&mut self.server.connection()).unwrap();
        }
    }

    async fn call(&self, op: Op) -> Result<Answer, StoreError> {
        let (store, chain, id) = (&self.store, &self.chain, self.id);
        match op {
            Op::Reserve => store.reserve(chain, &ask(LeaseId::random(), 6, 4, LONG)).await,
            Op::Amend => store.amend(chain, &self.other, &ask(id, 6, 4, LONG)).await,
            Op::Reassert => store.renew(chain, &self.renewal(LONG, true)).await,
            Op::Settle | Op::SettleLate => store.settle(chain, id, &spent(60, 10)).await,
            Op::Cancel => store.cancel(chain, id).await,
            Op::Expire => store.expire(chain, id, CHARGE).await,
        }
    }

    fn renewal(&self, ttl: Duration, reassert: bool) -> Renewal {
        Renewal { reassert, ..renewal(self.id, (60, 40), 5, ttl) }
    }

    fn lease_key(&self) -> String {
        format!("ps1:{{acme}}:L:{}", self.id)
    }

    /// Every key, as it would move to another server.
    fn keys(&self) -> BTreeMap<String, Vec<u8>> {
        let mut raw = self.server.connection();
        let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut raw).unwrap();
        keys.into_iter()
            .map(|key| {
                let dump = redis::cmd("DUMP").arg(&key).query(&mut raw).unwrap();
                (key, dump)
            })
            .collect()
    }
}

/// Puts something else in place of a string.
type Damage = fn(&mut redis::Connection, &str, &[u8]);

const DAMAGES: [(&str, Damage); 5] = [
    ("a list", |raw, key, _| redis::pipe().del(key).rpush(key, "x").exec(raw).unwrap()),
    ("cut short", |raw, key, whole| set(raw, key, &whole[..whole.len() - 5])),
    ("empty", |raw, key, _| set(raw, key, b"")),
    ("of another version", |raw, key, whole| set(raw, key, &[&[2], &whole[1..]].concat())),
    ("of more slots than there are", |raw, key, whole| set(raw, key, &[&[1, 250], &whole[2..]].concat())),
];

fn set(raw: &mut redis::Connection, key: &str, value: &[u8]) {
    redis::cmd("SET").arg(key).arg(value).exec(raw).unwrap();
}

#[tokio::test]
async fn a_call_that_meets_a_damaged_account_changes_nothing_and_works_once_it_is_mended() {
    let mut scene = Scene::new().await;
    let keys = [0, 3].map(|account| scene.chain.accounts()[account].key.clone());
    for op in OPS {
        for (what, damage) in DAMAGES {
            for key in &keys {
                scene.prepare(op).await;
                let mut raw = scene.server.connection();
                let whole: Vec<u8> = redis::cmd("GET").arg(key).query(&mut raw).unwrap();
                damage(&mut raw, key, &whole);
                let before = scene.keys();
                let failed = scene.call(op).await;
                assert!(matches!(failed, Err(StoreError::Refused(_))), "{op:?}, {key} {what}: {failed:?}");
                assert!(scene.keys() == before, "{op:?}, {key} {what}: something was written");
                set(&mut raw, key, &whole);
                let expect = if op == Op::SettleLate { Status::Late } else { Status::Done };
                assert_eq!(scene.call(op).await.unwrap().status, expect, "{op:?}, {key} {what}");
                let books = audit(&scene.store).await.unwrap();
                // A lease written anew is held twice here: its loss was made up.
                assert!(op == Op::Reassert || books.is_balanced(), "{op:?}: {:#?}", books.faults());
            }
        }
    }
    assert!(scene.store.health().is_ok(), "one bad account is not an outage");
}

#[tokio::test]
async fn a_settlement_that_meets_a_damaged_account_is_kept_until_it_is_mended() {
    let server = RedisServer::start();
    let quota = gateway(&server, options()).await;
    let reservation = reserve(&quota, demand(60, 40)).await.unwrap();
    let key = quota.chain(&ana(), &["m"]).accounts()[3].key.clone();
    let mut raw = server.connection();
    redis::pipe().atomic().rename(&key, "aside").rpush(&key, "x").exec(&mut raw).unwrap();
    reservation.settle(used(60, 10));
    let errors = || quota.stats().store.iter().map(|operation| operation.errors).sum::<u64>();
    eventually("an attempt", async || errors() > 0).await;
    redis::pipe().atomic().del(&key).rename("aside", &key).exec(&mut raw).unwrap();
    assert_eq!(levels(&books(&quota).await), [70.0; 4]);
    assert_eq!(quota.stats().lost_leases, 0);
}

#[tokio::test]
async fn a_damaged_account_keeps_no_other_lease_from_being_reclaimed() {
    let server = RedisServer::start();
    let store = patient(&server.url()).await;
    let rules: Vec<Rule> = vec![rule(Level::User, vec![tokens(1000)])];
    let of = |user: &str| {
        let subject = Subject { user: Some(user.to_owned()), ..ana() };
        Arc::new(Chain::resolve(&rules, &subject, &["m"]))
    };
    let chains = ["bad", "good", "fine"].map(of);
    for chain in &chains {
        done(&store.reserve(chain, &ask(LeaseId::random(), 1, 2, Duration::from_millis(1))).await.unwrap());
    }
    tokio::time::sleep(Duration::from_millis(5)).await;
    set(&mut server.connection(), &chains[0].accounts()[0].key, b"");
    assert_eq!(store.reclaim("acme", CHARGE).await.unwrap().leases, 2);
    assert!(store.reclaim("acme", CHARGE).await.is_err(), "what is left cannot be reclaimed, and says so");
}

#[tokio::test]
async fn a_damaged_account_fails_its_own_calls_of_a_batch_and_no_other() {
    let server = RedisServer::start();
    let store = patient(&server.url()).await;
    let rules: Vec<Rule> = vec![rule(Level::User, vec![tokens(1000)])];
    let of = |user: usize| {
        let subject = Subject { user: Some(format!("u{user}")), ..ana() };
        Arc::new(Chain::resolve(&rules, &subject, &["m"]))
    };
    let chains: Vec<_> = (0..12).map(of).collect();
    let ids: Vec<LeaseId> = chains.iter().map(|_| LeaseId::random()).collect();
    let actual = spent(1, 1);
    let settled = async |only: fn(usize) -> bool| {
        let calls = chains.iter().zip(&ids).enumerate().filter(|(index, _)| only(*index));
        let calls = calls.map(|(_, (chain, id))| store.settle(chain, *id, &actual));
        futures_util::future::join_all(calls).await
    };
    for (what, damage) in DAMAGES {
        let calls = chains.iter().zip(&ids).map(|(chain, id)| {
            let ask = ask(*id, 1, 2, LONG);
            let store = &store;
            async move { store.reserve(chain, &ask).await }
        });
        futures_util::future::join_all(calls).await.iter().for_each(|answer| done(answer.as_ref().unwrap()));
        let mut raw = server.connection();
        let key = chains[7].accounts()[0].key.clone();
        let whole: Vec<u8> = redis::cmd("GET").arg(&key).query(&mut raw).unwrap();
        damage(&mut raw, &key, &whole);
        for (index, answer) in settled(|_| true).await.into_iter().enumerate() {
            match index {
                7 => assert!(matches!(answer, Err(StoreError::Refused(_))), "{what}: {answer:?}"),
                _ => done(&answer.unwrap()),
            }
        }
        set(&mut raw, &key, &whole);
        done(settled(|index| index == 7).await[0].as_ref().unwrap());
        let books = audit(&store).await.unwrap();
        assert!(books.is_balanced() && books.live_leases == 0, "{what}: {:#?}", books.faults());
    }
}
