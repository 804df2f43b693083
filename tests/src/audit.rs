//! An audit of the ledger's keys in Redis that shares no code with the ledger: it reads the packed strings by
//! offsets of its own and checks that every token that was ever reserved is accounted for.

use std::collections::BTreeMap;
use std::fmt;

use crate::RedisServer;
use crate::resp::Reply;

/// All keys of the ledger at one moment, as far as an audit cares.
#[derive(Debug, Default)]
pub struct Audit {
    /// By key.
    pub accounts: BTreeMap<String, Account>,
    /// Live leases by key: the tokens each holds.
    pub live: BTreeMap<String, f64>,
    /// Tombstones of expired leases: the tokens each was charged.
    pub expired: BTreeMap<String, f64>,
    /// Entries in the queues of deadlines.
    pub deadlines: i64,
}

/// Totals in tokens, and the level of each limit (drained, used or running, by the kind of the limit).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Account {
    pub reserved: f64,
    pub settled: f64,
    pub refunded: f64,
    pub expired: f64,
    pub levels: Vec<f64>,
}

impl Account {
    /// What live leases should hold of it.
    pub fn held(&self) -> f64 {
        self.reserved - self.settled - self.refunded - self.expired
    }

    pub fn charged(&self) -> f64 {
        self.settled + self.expired
    }
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "reserved {} = settled {} + refunded {} + expired {} + held {}; levels {:?}",
            self.reserved,
            self.settled,
            self.refunded,
            self.expired,
            self.held(),
            self.levels
        )
    }
}

impl Audit {
    pub fn of(redis: &RedisServer) -> Self {
        Self::of_all([redis])
    }

    /// Of the primaries of a Cluster, each of which has keys that the others have not.
    pub fn of_all<'s>(servers: impl IntoIterator<Item = &'s RedisServer>) -> Self {
        let mut audit = Self::default();
        for redis in servers {
            audit.read_all(redis);
        }
        audit
    }

    fn read_all(&mut self, redis: &RedisServer) {
        let Reply::Array(keys) = redis.call(&["KEYS", "ps1:*"]) else { panic!("KEYS answers a list") };
        for key in keys {
            let Reply::Bulk(key) = key else { panic!("a key is a string") };
            let key = String::from_utf8(key).expect("keys are ASCII");
            self.read(redis, key);
        }
    }

    fn read(&mut self, redis: &RedisServer, key: String) {
        let kind = key.split_once("}:").map(|(_, rest)| rest).unwrap_or_default();
        match kind.split(':').next() {
            Some("a") => {
                self.accounts.insert(key.clone(), account(&value(redis, &key)));
            }
            Some("L") => {
                let lease = value(redis, &key);
                match lease.first() {
                    Some(b'L') => self.live.insert(key, double(&lease, 11) + double(&lease, 19)),
                    Some(b'E') => self.expired.insert(key, double(&lease, 43) + double(&lease, 51)),
                    // A cancelled id, kept for a while so that a late reserve finds it.
                    Some(b'X') => None,
                    other => panic!("{key}: a lease in state {other:?}"),
                };
            }
            Some("dl") => {
                let Reply::Integer(count) = look(redis, &["ZCARD", &key]) else { panic!("ZCARD answers a number") };
                self.deadlines += count;
            }
            _ => {}
        }
    }

    /// The account of one level: `u`, `a`, `o` or `g`. Fails unless there is exactly one.
    pub fn level(&self, letter: &str) -> &Account {
        let mut found = self.accounts.iter().filter(|(key, _)| key.contains(&format!("}}:a:{letter}")));
        match (found.next(), found.next()) {
            (Some((_, account)), None) => account,
            _ => panic!("not one account of level {letter}: {:?}", self.accounts.keys()),
        }
    }

    /// Every token that was reserved is settled, refunded, expired, or held by a live lease.
    pub fn assert_balanced(&self) {
        let held: f64 = self.live.values().sum();
        for (key, account) in &self.accounts {
            assert_eq!(account.held(), held, "{key}: live leases hold {held}; {account}");
        }
        assert_eq!(self.deadlines, i64::try_from(self.live.len()).expect("few leases"), "deadlines without a lease");
    }
}

/// Also at a node whose slot of the key is still on its way there.
fn look(redis: &RedisServer, parts: &[&str]) -> Reply {
    let mut connection = redis.connect();
    let mut ask = |parts: &[&str]| {
        let bytes: Vec<&[u8]> = parts.iter().map(|part| part.as_bytes()).collect();
        connection.call(&bytes).expect("Redis answers")
    };
    match ask(parts) {
        Reply::Error(error) if error.starts_with("MOVED") => {
            ask(&["ASKING"]);
            ask(parts)
        }
        reply => reply,
    }
}

fn value(redis: &RedisServer, key: &str) -> Vec<u8> {
    match look(redis, &["GET", key]) {
        Reply::Bulk(bytes) => bytes,
        // It expired between KEYS and GET.
        Reply::Nil => b"X".to_vec(),
        other => panic!("{key}: {other:?}"),
    }
}

/// Version 1, then the count of limits, both a byte, and 8 bytes for the id of each limit; then doubles: keep-until,
/// reserved, settled, refunded, expired, and for each limit its level and since when.
fn account(packed: &[u8]) -> Account {
    assert_eq!(packed.first(), Some(&1), "an account of another version");
    let limits = usize::from(packed[1]);
    let totals = 2 + 8 * limits;
    assert_eq!(packed.len(), totals + 8 * (5 + 2 * limits), "the length of an account with {limits} limits");
    Account {
        reserved: double(packed, totals + 8),
        settled: double(packed, totals + 16),
        refunded: double(packed, totals + 24),
        expired: double(packed, totals + 32),
        levels: (0..limits).map(|limit| double(packed, totals + 40 + 16 * limit)).collect(),
    }
}

fn double(packed: &[u8], at: usize) -> f64 {
    let bytes = packed.get(at..at + 8).unwrap_or_else(|| panic!("{} bytes, wanted 8 at {at}", packed.len()));
    f64::from_le_bytes(bytes.try_into().expect("eight bytes"))
}
