//! Random bytes that all processes on one store share and nobody else knows: those of the first that came. With them
//! gateways agree on what tenants must not guess, without a word to each other.

use std::fmt;

use rand::RngCore;

use super::store::StoreError;

#[derive(Clone)]
pub struct Secret([u8; 32]);

impl Secret {
    pub fn random() -> Self {
        let mut bytes = [0; 32];
        rand::rng().fill_bytes(&mut bytes);
        Self(bytes)
    }

    /// What lay at `key`.
    pub(super) fn read(key: &str, bytes: &[u8]) -> Result<Self, StoreError> {
        let whole = bytes.try_into().map(Self);
        whole.map_err(|_| {
            StoreError::Unreadable(format!("{key} holds no secret of 32 bytes; delete it, a new one is made"))
        })
    }

    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}
