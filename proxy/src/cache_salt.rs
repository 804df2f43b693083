//! Keeps what one org's prompts left in the engine's prefix cache from every other org: whose prompts share a prefix
//! would otherwise show in `cached_tokens` and in the time to the first token.

use rand::RngCore;

/// Salts of this process. Gateways that share an engine do not share prefixes; that costs time, never privacy.
pub struct CacheSalts {
    secret: [u8; 32],
}

impl CacheSalts {
    pub fn random() -> Self {
        let mut secret = [0; 32];
        rand::rng().fill_bytes(&mut secret);
        Self { secret }
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
        let salts = CacheSalts::random();
        assert_eq!(salts.of(b"acme", b"\"x\""), salts.of(b"acme", b"\"x\""));
        let all = [(&b"acme"[..], &b""[..]), (b"beta", b""), (b"acme", b"a"), (b"acm", b"ea"), (b"acmea", b"")];
        let distinct: std::collections::HashSet<_> = all.iter().map(|(scope, own)| salts.of(scope, own)).collect();
        assert_eq!(distinct.len(), all.len());
        assert_ne!(salts.of(b"acme", b""), CacheSalts::random().of(b"acme", b""));
    }
}
