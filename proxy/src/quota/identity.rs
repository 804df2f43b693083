//! What accounts, limits and orgs are called in a store. No name depends on a list index or on a limit's value, so editing
//! a quota keeps its use.

use sha2::{Digest, Sha256};

use super::account::LimitId;
use super::rule::{Level, Limit, Rule, Window};

/// The slots that a rule takes in the accounts it matches.
pub(crate) fn slots(rule: &Rule) -> impl Iterator<Item = LimitId> {
    rule.limits.iter().map(|limit| if rule.shadow { beside(limit_id(rule, limit)) } else { limit_id(rule, limit) })
}

/// The identity of a shadow limit beside a limit in force that counts the same: a bucket's level depends on its rate.
pub(super) fn beside(id: LimitId) -> LimitId {
    first_eight(&Sha256::new().chain_update("shadow\0").chain_update(id).finalize())
}

fn first_eight(digest: &[u8]) -> LimitId {
    let mut id = LimitId::default();
    id.copy_from_slice(&digest[..8]);
    id
}

/// sha256 of (name or sorted models, unit, window, period, zone): never an index, never the limit's value.
pub(super) fn limit_id(rule: &Rule, limit: &Limit) -> LimitId {
    let scope = match &rule.name {
        Some(name) => format!("name\0{name}"),
        None => {
            let mut models: Vec<&str> = rule.models.iter().map(|model| model.as_str()).collect();
            models.sort_unstable();
            models.dedup();
            if models.is_empty() { "models\0*".to_owned() } else { format!("models\0{}", models.join("\0")) }
        }
    };
    let window = match &limit.window {
        Window::Bucket { period, .. } => format!("bucket\0{}", period.as_micros()),
        Window::Calendar { period, zone } => {
            format!("calendar\0{}\0{}", period.as_str(), zone.iana_name().unwrap_or("UTC"))
        }
        Window::Lifetime => "lifetime".to_owned(),
        Window::Held => "held".to_owned(),
    };
    first_eight(&Sha256::digest(format!("{scope}\0\0{}\0{window}", limit.unit.as_str())))
}

/// `ps1:` is the version of the whole key layout. The subject is hashed: bounded length, no character can break a tag.
pub(super) fn account_key(tag: &str, level: Level, path: &str) -> String {
    let digest = Sha256::digest(format!("{}\0{path}", level.as_str()));
    let hex: String = digest[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    let tag = if level == Level::Global { GLOBAL_TAG } else { tag };
    format!("ps1:{{{tag}}}:a:{}{hex}", &level.as_str()[..1])
}

/// The queue of an account, before what each of its keys holds.
pub(super) fn queue_key(account: &str) -> String {
    account.replacen("}:a:", "}:q:", 1)
}

/// A child of an account, as its queue tells them apart.
pub(super) fn tenant(path: &str) -> [u8; 8] {
    first_eight(&Sha256::digest(path))
}

pub(super) const GLOBAL_TAG: &str = "g";

/// An org as it stands between the braces of a key: everything that is not plain is percent-encoded, and `-` is the
/// tag of keys without an org.
pub(super) fn hash_tag(org: Option<&str>) -> String {
    let Some(org) = org else { return "-".to_owned() };
    if org == "-" || org.is_empty() {
        return format!("%{}", if org.is_empty() { "" } else { "2D" });
    }
    let encode = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' | b'-' | b'@' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    org.bytes().map(encode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_tags_never_collide_or_break() {
        let tags = [None, Some("-"), Some(""), Some("a}b"), Some("a%7Db"), Some("a b"), Some("g")].map(hash_tag);
        let distinct: std::collections::HashSet<_> = tags.iter().collect();
        assert_eq!(distinct.len(), tags.len(), "{tags:?}");
        assert!(tags.iter().all(|tag| !tag.is_empty() && !tag.contains(['{', '}'])));
    }
}
