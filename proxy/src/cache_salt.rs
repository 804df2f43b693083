//! Keeps what one org's prompts left in the engine's prefix cache from every other org: whose prompts share a prefix
//! would otherwise show in `cached_tokens` and in the time to the first token.

use crate::quota::Secret;

/// Salts of all gateways on one store. They share an engine's prefixes; whoever keeps quotas apart does not.
pub struct CacheSalts {
    secret: [u8; 32],
}

impl CacheSalts {
    pub fn new(secret: &Secret) -> Self {
        Self { secret: *secret.bytes() }
    }

    /// For calls within `scope`. The client's own salt only divides its scope further: it is hashed in, so that no
    /// client can name the salt of another.
    pub fn of(&self, scope: &[u8], own: &[u8]) -> String {
        let mut hasher = blake3::Hasher::new_keyed(&self.secret);
        hasher.update(&(scope.len() as u64).to_le_bytes()).update(scope).update(own);
        hasher.finalize().to_hex().to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_and_own_salts_divide_and_nothing_else_does() {
        let secret = Secret::random();
        let salts = CacheSalts::new(&secret);
        assert_eq!(salts.of(b"acme", b"\"x\""), salts.of(b"acme", b"\"x\""));
        let all = [(&b"acme"[..], &b""[..]), (b"beta", b""), (b"acme", b"a"), (b"acm", b"ea"), (b"acmea", b"")];
        let distinct: std::collections::HashSet<_> = all.iter().map(|(scope, own)| salts.of(scope, own)).collect();
        assert_eq!(distinct.len(), all.len());
        assert_eq!(salts.of(b"acme", b""), CacheSalts::new(&secret).of(b"acme", b""));
        assert_ne!(salts.of(b"acme", b""), CacheSalts::new(&Secret::random()).of(b"acme", b""));
    }
}
