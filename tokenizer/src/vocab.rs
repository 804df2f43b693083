//! The vocabulary of a model: the bytes each token stands for and what kind of token it is. How text becomes
//! tokens is the models' business.

use crate::byte_level::byte_of;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Made by merging text.
    Normal,
    /// Stands for text the vocabulary has no token for.
    Unknown,
    /// Steers the model (end of turn, role marks); text never becomes one unless parsing is asked for.
    Control,
    /// A fixed string that always becomes this token (tags, runs of newlines).
    UserDefined,
    /// In the vocabulary, but never produced from text.
    Unused,
    /// One byte of a character that has no token.
    Byte,
}

impl Kind {
    /// The numbers of `tokenizer.ggml.token_type`.
    pub(crate) fn from_ggml(id: i32) -> Self {
        match id {
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => Self::Normal,
        }
    }
}

/// All tokens' bytes in one buffer: two small allocations instead of one per token.
#[derive(Debug, Default)]
pub(crate) struct Vocab {
    bytes: Vec<u8>,
    ends: Vec<u32>,
    kinds: Vec<Kind>,
}

impl Vocab {
    pub(crate) fn with_capacity(tokens: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(tokens * 8),
            ends: Vec::with_capacity(tokens),
            kinds: Vec::with_capacity(tokens),
        }
    }

    pub(crate) fn push(&mut self, bytes: impl IntoIterator<Item = u8>, kind: Kind) {
        self.bytes.extend(bytes);
        let end = u32::try_from(self.bytes.len()).expect("invariant: vocabularies are far below 4 GiB");
        self.ends.push(end);
        self.kinds.push(kind);
    }

    pub(crate) fn set_kind(&mut self, id: u32, kind: Kind) {
        self.kinds[id as usize] = kind;
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn kind(&self, id: u32) -> Option<Kind> {
        self.kinds.get(id as usize).copied()
    }

    pub(crate) fn bytes(&self, id: u32) -> Option<&[u8]> {
        let index = id as usize;
        let end = *self.ends.get(index)? as usize;
        let start = if index == 0 { 0 } else { self.ends[index - 1] as usize };
        Some(&self.bytes[start..end])
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &[u8], Kind)> {
        (0..self.len() as u32).map(|id| (id, self.bytes(id).unwrap_or_default(), self.kinds[id as usize]))
    }

    /// A SentencePiece piece: U+2581 is a space, `<0x0A>` a byte.
    pub(crate) fn push_piece(&mut self, piece: &[u8], kind: Kind) {
        match kind {
            Kind::Byte => match parse_byte(piece) {
                Some(byte) => self.push([byte], kind),
                None => self.push(piece.iter().copied(), Kind::Unused),
            },
            Kind::Normal | Kind::Unused => self.push(Spaced(piece), kind),
            _ => self.push(piece.iter().copied(), kind),
        }
    }

    /// A byte-level piece: each character stands for one byte. Added tokens are plain text.
    pub(crate) fn push_byte_level(&mut self, piece: &str, kind: Kind) {
        match kind {
            Kind::Normal | Kind::Unused => match piece.chars().map(byte_of).collect::<Option<Vec<u8>>>() {
                Some(bytes) => self.push(bytes, kind),
                None => self.push(piece.bytes(), kind),
            },
            _ => self.push(piece.bytes(), kind),
        }
    }
}

/// `<0x0A>` -> 10.
pub(crate) fn parse_byte(piece: &[u8]) -> Option<u8> {
    let hex = piece.strip_prefix(b"<0x")?.strip_suffix(b">")?;
    if hex.len() != 2 {
        return None;
    }
    u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok()
}

/// The mark SentencePiece writes for a space.
pub(crate) const SPACE_MARK: &str = "\u{2581}";

/// The bytes of a piece with every space mark as a space.
struct Spaced<'a>(&'a [u8]);

impl Iterator for Spaced<'_> {
    type Item = u8;

    fn next(&mut self) -> Option<u8> {
        if let Some(rest) = self.0.strip_prefix(SPACE_MARK.as_bytes()) {
            self.0 = rest;
            return Some(b' ');
        }
        let (&byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(byte)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_become_the_bytes_they_stand_for() {
        let mut vocab = Vocab::default();
        vocab.push_piece("▁a▁▁b".as_bytes(), Kind::Normal);
        vocab.push_piece(b"<0xE2>", Kind::Byte);
        vocab.push_piece(b"<0xXY>", Kind::Byte);
        vocab.push_byte_level("Ġé", Kind::Normal);
        vocab.push_byte_level("<｜end▁of｜>", Kind::Control);
        assert_eq!(vocab.bytes(0), Some(&b" a  b"[..]));
        assert_eq!(vocab.bytes(1), Some(&b"\xE2"[..]));
        assert_eq!((vocab.bytes(2), vocab.kind(2)), (Some(&b"<0xXY>"[..]), Some(Kind::Unused)));
        assert_eq!(vocab.bytes(3), Some(&b" \xE9"[..]));
        assert_eq!(vocab.bytes(4), Some("<｜end▁of｜>".as_bytes()));
        assert_eq!((vocab.bytes(5), vocab.kind(5)), (None, None));
    }
}
