//! Cuts long text where every byte-level pattern starts a new word anyway, so that each call into a pattern
//! matcher stays small: their back-tracking limits, heaps and buffers then never meet megabytes at once.

/// Texts up to this length are not cut at all.
const WANTED: usize = 64 << 10;
/// Without a good place until here, the cut is made at any character. It can change a token or two there, in text
/// that has not one word boundary in this many bytes.
const LONGEST: usize = 128 << 10;

/// The text in order, nothing lost.
pub(crate) fn chunks(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (chunk, after) = rest.split_at(cut(rest));
        rest = after;
        Some(chunk)
    })
}

fn cut(text: &str) -> usize {
    if text.len() <= WANTED {
        return text.len();
    }
    let bytes = text.as_bytes();
    let last = text.len().min(LONGEST);
    // Letter, space, letter: all patterns end a word before such a space and start the next one with it.
    let boundary = (WANTED..last.saturating_sub(1))
        .find(|&at| bytes[at] == b' ' && bytes[at - 1].is_ascii_alphabetic() && bytes[at + 1].is_ascii_alphabetic());
    boundary.unwrap_or_else(|| text.floor_char_boundary(last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_lose_nothing_and_are_bounded() {
        for text in ["word ".repeat(100_000), "é".repeat(300_000), " ".repeat(1_000_000), String::new(), "ab".into()] {
            assert!(chunks(&text).all(|chunk| !chunk.is_empty() && chunk.len() <= LONGEST));
            assert_eq!(chunks(&text).collect::<String>(), text);
        }
    }

    #[test]
    fn cuts_fall_before_a_space_between_letters() {
        let text = "some words, ".repeat(20_000);
        let starts: Vec<&str> = chunks(&text).skip(1).map(|chunk| &chunk[..6]).collect();
        assert!(starts.len() >= 3 && starts.iter().all(|start| *start == " words"), "{starts:?}");
    }
}
