//! Who calls: from the credential in the headers to the tenant that pays. Keys are only ever compared as digests.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use http::{HeaderMap, header::AUTHORIZATION};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use wire::access::Who;

use crate::{
    StartError,
    config::Key,
    quota::{Chain, RateHeaders, Refused, Reservation, Subject},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unauthenticated {
    #[error("no API key was sent: use the header `Authorization: Bearer KEY`")]
    Missing,
    #[error("the API key is not known")]
    Unknown,
}

pub struct Tenants {
    by_digest: HashMap<[u8; 32], Arc<Tenant>>,
}

pub struct Tenant {
    digest: [u8; 32],
    /// Whose prompts may share a cached prefix: an org, else the key alone.
    cache_scope: Box<[u8]>,
    pub subject: Subject,
    pub who: Who,
    /// One per name that a client may ask for, resolved on first use.
    chains: Box<[OnceLock<Arc<Chain>>]>,
    /// What the last call said, for answers that ask no store.
    last_rate: Mutex<RateHeaders>,
}

impl Tenants {
    /// `names`: how many model names the catalogue knows. One secret is one tenant: of two with the same, one would pay
    /// for the calls of the other.
    pub fn new(keys: &[Key], names: usize) -> Result<Self, StartError> {
        let tenant = |key: &Key| Tenant {
            digest: key.sha256,
            cache_scope: key.org.as_ref().map_or(&key.sha256[..], |org| org.as_bytes()).into(),
            subject: key.subject(),
            who: who(key),
            chains: (0..names).map(|_| OnceLock::new()).collect(),
            last_rate: Mutex::default(),
        };
        let mut by_digest = HashMap::new();
        for key in keys {
            if by_digest.insert(key.sha256, Arc::new(tenant(key))).is_some() {
                return Err(StartError::SecretTaken);
            }
        }
        Ok(Self { by_digest })
    }

    /// A caller that an earlier set of keys knew.
    pub fn again(&self, tenant: &Tenant) -> Result<Arc<Tenant>, Unauthenticated> {
        self.by_digest.get(&tenant.digest).cloned().ok_or(Unauthenticated::Unknown)
    }

    pub fn authenticate(&self, headers: &HeaderMap) -> Result<Arc<Tenant>, Unauthenticated> {
        let secret = credential(headers).ok_or(Unauthenticated::Missing)?;
        let digest: [u8; 32] = Sha256::digest(secret).into();
        let tenant = self.by_digest.get(&digest).ok_or(Unauthenticated::Unknown)?;
        // The map compares digests byte by byte; this comparison takes the same time whatever they hold.
        match bool::from(tenant.digest.ct_eq(&digest)) {
            true => Ok(tenant.clone()),
            false => Err(Unauthenticated::Unknown),
        }
    }
}

impl Tenant {
    pub fn chain(&self, name: usize, resolve: impl FnOnce(&Subject) -> Arc<Chain>) -> &Arc<Chain> {
        self.chains[name].get_or_init(|| resolve(&self.subject))
    }

    pub fn cache_scope(&self) -> &[u8] {
        &self.cache_scope
    }

    pub fn last_rate(&self) -> RateHeaders {
        *self.last_rate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admitted or refused, the store said how things stand; an answer that did not ask it says nothing.
    pub fn remember_rate(&self, reserved: &Result<Reservation, Refused>) {
        let rate = match reserved {
            Ok(reservation) => *reservation.rate(),
            Err(Refused::Limit(refusal)) => refusal.rate,
            Err(Refused::Store(_) | Refused::Overloaded) => return,
        };
        if rate != RateHeaders::default() {
            *self.last_rate.lock().unwrap_or_else(PoisonError::into_inner) = rate;
        }
    }
}

fn who(key: &Key) -> Who {
    let tier = key.tier.as_ref().map(|tier| tier.name.clone());
    Who { org: key.org.clone(), app: key.app.clone(), user: key.user.clone(), tier }
}

/// `Authorization: Bearer KEY` with the scheme in any case and any spacing (RFC 9110, 11.1), else `api-key` or `x-api-key`.
fn credential(headers: &HeaderMap) -> Option<&[u8]> {
    if let Some(value) = headers.get(AUTHORIZATION) {
        let value = value.as_bytes().trim_ascii();
        let end = value.iter().position(u8::is_ascii_whitespace)?;
        let (scheme, key) = value.split_at(end);
        let key = key.trim_ascii();
        return (scheme.eq_ignore_ascii_case(b"bearer") && !key.is_empty()).then_some(key);
    }
    let value = headers.get("api-key").or_else(|| headers.get("x-api-key"))?;
    Some(value.as_bytes().trim_ascii()).filter(|key| !key.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(header: &str, value: &str) -> Result<(), Unauthenticated> {
        let key =
            Key { sha256: Sha256::digest("K").into(), org: Some("acme".into()), app: None, user: None, tier: None };
        let headers = HeaderMap::from_iter([(
            http::HeaderName::try_from(header).expect("valid"),
            http::HeaderValue::from_str(value).expect("valid"),
        )]);
        Tenants::new(&[key], 1).expect("one key").authenticate(&headers).map(drop)
    }

    #[test]
    fn the_scheme_is_case_insensitive_and_the_key_is_not() {
        for value in ["bearer K", "BEARER  K", "Bearer K ", "Bearer\tK"] {
            assert_eq!(check("authorization", value), Ok(()), "{value:?}");
        }
        assert_eq!(check("authorization", "Bearer k"), Err(Unauthenticated::Unknown));
    }

    #[test]
    fn azure_and_anthropic_headers_are_taken() {
        assert_eq!(check("api-key", "K"), Ok(()));
        assert_eq!(check("x-api-key", " K"), Ok(()));
    }

    #[test]
    fn what_is_no_key_is_missing() {
        for value in ["", "Bearer", "Bearer ", "Basic K", "K"] {
            assert_eq!(check("authorization", value), Err(Unauthenticated::Missing), "{value:?}");
        }
    }
}
