//! Before the first request: proves that the server is new enough and lets us run the scripts, or says what to change.

use std::time::Duration;

use super::RedisOptions;
use super::connection::Connection;
use super::script::{Call, SCRIPTS};
use crate::quota::chain::Chain;
use crate::quota::codec;
use crate::quota::lease::LeaseId;
use crate::quota::rule::Subject;
use crate::quota::store::{Status, StoreError};

/// Keys of the probe: an org that no config can name, since `%` is always encoded as `%25`.
pub(super) const TAG: &str = "%probe";

/// What the server promises about keeping data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Durability {
    pub append_only: bool,
    /// It never drops keys to make room: an evicted account is free quota.
    pub noeviction: bool,
}

pub async fn run(connection: &Connection, options: RedisOptions) -> Result<Option<Durability>, StoreError> {
    let durability = match connection.info(options.start_timeout).await {
        Ok(all) => weakest(&all)?,
        // Not every user may ask; the scripts decide.
        Err(StoreError::Refused(_)) => None,
        Err(error) => return Err(error),
    };
    life_of_a_lease(connection, options.start_timeout).await.map_err(explain)?;
    Ok(durability)
}

/// Of several servers, what all of them promise.
fn weakest(all: &[String]) -> Result<Option<Durability>, StoreError> {
    let mut promised: Option<Durability> = None;
    for info in all {
        let one = read_info(info)?;
        let known = promised.get_or_insert(one);
        known.append_only &= one.append_only;
        known.noeviction &= one.noeviction;
    }
    Ok(promised)
}

fn read_info(info: &str) -> Result<Durability, StoreError> {
    let field = |name: &str| info.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':'));
    let version = field("redis_version").unwrap_or("unknown");
    let major: Option<u32> = version.split('.').next().and_then(|major| major.parse().ok());
    if major.is_none_or(|major| major < 7) {
        return Err(StoreError::Refused(format!("the server is version {version}; Redis 7 or Valkey is needed")));
    }
    Ok(Durability {
        append_only: field("aof_enabled") == Some("1"),
        noeviction: field("maxmemory_policy").is_none_or(|policy| policy == "noeviction"),
    })
}

/// Reserve, renew, settle, and look for due leases, as a call without limits would.
async fn life_of_a_lease(connection: &Connection, bound: Duration) -> Result<(), StoreError> {
    let id = LeaseId::random();
    // Longer than all steps may take together, or another gateway takes it for the lease of a dead one.
    let life_us = (bound * 4).as_micros() as f64;
    let empty = Chain::resolve(&[], &Subject::default(), &[]);
    let call = |source| Call::on_keys(source, TAG, id, std::iter::empty());
    let reserve = call(&SCRIPTS.reserve).arg(codec::pack_numbers(&[1.0, 1.0, 0.0, life_us])).arg(&empty.packed).arg("");
    let renew = call(&SCRIPTS.renew).arg(codec::pack_numbers(&[1.0, 1.0, 0.0, 0.0, life_us])).arg("1").arg("0");
    let settle =
        call(&SCRIPTS.settle).arg(codec::pack_numbers(&[1.0, 1.0, 0.0, 0.0])).arg("").arg(codec::mark(&empty.packed));
    for step in [reserve, renew, settle] {
        let answer = codec::read_answer(&connection.call_within(step, bound).await?)?;
        if answer.status != Status::Done {
            return Err(StoreError::Unreadable(format!("the probe ended as {:?}", answer.status)));
        }
    }
    connection.due(TAG, 1).await.map(|_none| ())
}

fn explain(error: StoreError) -> StoreError {
    match error {
        StoreError::Refused(why) if why.contains("NOPERM") || why.contains("permission") => {
            StoreError::Refused(format!(
                "its user may not run the quota scripts ({why}); allow it: \
             ACL SETUSER <user> +@scripting +@read +@write ~ps1:*"
            ))
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_server_is_named() {
        let error = read_info("redis_version:6.2.1\r\n").unwrap_err();
        assert!(error.to_string().contains("6.2.1"), "{error}");
    }

    #[test]
    fn durability_is_read_from_info() {
        let info = "redis_version:7.0.15\r\naof_enabled:0\r\nmaxmemory_policy:allkeys-lru\r\n";
        assert_eq!(read_info(info), Ok(Durability { append_only: false, noeviction: false }));
    }
}
