//! Cuts a text where the tokens of its parts are certain to add up, so that a part once counted need not be counted
//! again when more follows it.

/// Blocks of at least `wanted` bytes, cut before a space between two ASCII letters: there every pattern ends a word.
/// `may_end` says whether a block may end with this byte. Without such a place the rest is one block.
pub(crate) fn blocks(text: &str, wanted: usize, may_end: impl Fn(u8) -> bool) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let bytes = rest.as_bytes();
        let is_place = |at: &usize| {
            bytes[*at] == b' '
                && bytes[at - 1].is_ascii_alphabetic()
                && bytes[at + 1].is_ascii_alphabetic()
                && may_end(bytes[at - 1])
        };
        let place = (wanted.max(1)..bytes.len().saturating_sub(1)).find(is_place);
        let (block, after) = rest.split_at(place.unwrap_or(rest.len()));
        rest = after;
        Some(block)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_lose_nothing_and_begin_with_a_space_before_a_letter() {
        let text = "some words, 5 of them ".repeat(100);
        let found: Vec<&str> = blocks(&text, 64, |_| true).collect();
        assert_eq!(found.concat(), text);
        assert!(found.len() > 20 && found[1..].iter().all(|block| block[..2].starts_with(' ')), "{found:?}");
        let longer = format!("{text}and more");
        assert_eq!(blocks(&longer, 64, |_| true).take(found.len() - 1).collect::<Vec<_>>(), found[..found.len() - 1]);
    }

    #[test]
    fn a_text_without_a_place_is_one_block() {
        for text in ["漢字".repeat(100), "a".repeat(100), "1 2 ".repeat(100), " ".into()] {
            assert_eq!(blocks(&text, 16, |_| true).collect::<Vec<_>>(), [text.as_str()]);
        }
        assert_eq!(blocks(&"so it is ".repeat(9), 16, |byte| byte == b'q').count(), 1);
        assert_eq!(blocks("", 16, |_| true).count(), 0);
    }
}
