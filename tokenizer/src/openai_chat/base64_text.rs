//! Base64 text, read in places: a header tells enough, so the rest is never decoded.

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

#[derive(Clone, Copy)]
pub(super) struct Base64Text<'a>(&'a [u8]);

const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

impl<'a> Base64Text<'a> {
    /// The text itself, or that of a `data:` URL.
    pub(super) fn new(text: &'a str) -> Option<Self> {
        let Some(url) = text.strip_prefix("data:") else { return Some(Self(text.as_bytes())) };
        let (head, data) = url.split_once(',')?;
        head.ends_with(";base64").then_some(Self(data.as_bytes()))
    }

    /// How many bytes it stands for.
    pub(super) fn len(self) -> u64 {
        let padding = self.0.iter().rev().take_while(|byte| **byte == b'=').count().min(2);
        (self.0.len() - padding) as u64 * 3 / 4
    }

    /// `N` decoded bytes from an offset: only the groups of four characters that hold them are decoded.
    pub(super) fn read<const N: usize>(self, at: usize) -> Option<[u8; N]> {
        let first = at / 3;
        let last = at.checked_add(N)?.div_ceil(3);
        let text = self.0.get(first.checked_mul(4)?..self.0.len().min(last.checked_mul(4)?))?;
        let mut decoded = [0; 48];
        let len = BASE64.decode_slice(text, &mut decoded).ok()?;
        let skip = at - first * 3;
        decoded[..len].get(skip..skip + N)?.try_into().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_from_anywhere() {
        let bytes: Vec<u8> = (0..100).collect();
        let text = base64::engine::general_purpose::STANDARD.encode(&bytes);
        let text = Base64Text::new(&text).unwrap();
        for at in 0..=96 {
            assert_eq!(text.read(at), Some([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]));
        }
        assert_eq!((text.read::<4>(97), text.read::<4>(usize::MAX)), (None, None));
        assert_eq!(text.len(), 100);
    }

    #[test]
    fn a_data_url_is_its_data() {
        assert_eq!(Base64Text::new("data:audio/wav;base64,AAAA").map(Base64Text::len), Some(3));
        assert_eq!(Base64Text::new("AA==").map(Base64Text::len), Some(1));
        assert!(Base64Text::new("data:,x").is_none() && Base64Text::new("data:text/plain,x").is_none());
    }
}
