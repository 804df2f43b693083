//! Encoding in one pass against its definition, which merges the lowest rank first, and lists that are refused.

use proptest::prelude::*;

use super::super::DeadEnds;
use super::*;

fn vocab(texts: &[&str]) -> Vocab {
    let mut vocab = Vocab::default();
    texts.iter().for_each(|text| vocab.push(text.bytes(), Kind::Normal));
    vocab
}

/// Symbols are single bytes; ids are ranks.
fn bpe(vocab: &Vocab) -> Option<Bpe> {
    Bpe::of_order(vocab, 0..vocab.len() as u32, |text| text.len() == 1, false)
}

fn encode(bpe: &Bpe, text: &str) -> Vec<u32> {
    let mut ids = vec![7];
    let end = bpe.encode(text.as_bytes(), &mut DeadEnds::default(), &mut ids);
    assert_eq!(end, text.len());
    ids.split_off(1)
}

/// The definition: the lowest rank first, the leftmost of equals.
fn merged(vocab: &Vocab, text: &str) -> Vec<u32> {
    let id = |text: &[u8]| vocab.iter().find(|&(_, bytes, _)| bytes == text).map(|(id, ..)| id);
    let mut parts: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
    let mut at: Vec<usize> = (0..=text.len()).collect();
    loop {
        let joined = |n: usize| &text.as_bytes()[at[n]..at[n + 2]];
        let best = (0..parts.len().saturating_sub(1)).filter_map(|n| Some((id(joined(n))?, n))).min();
        let Some((_, n)) = best else { return parts.iter().filter_map(|part| id(part)).collect() };
        parts[n] = joined(n);
        parts.remove(n + 1);
        at.remove(n + 1);
    }
}

#[test]
fn the_longest_token_gives_way_where_merging_would_not_make_it() {
    let vocab = vocab(&["a", "b", "c", "ab", "bc", "abc", "ca"]);
    let bpe = bpe(&vocab).unwrap();
    for text in ["abc", "bca", "bcab", "cabc", "ccc", "abcabcabc", "bbcabb"] {
        assert_eq!(encode(&bpe, text), merged(&vocab, text), "{text}");
    }
}

#[test]
fn a_token_may_come_before_what_it_is_made_of() {
    // As in Gemma's vocabulary: "=====" comes late, and then "======" at once.
    let vocab = vocab(&["=", "x", "x======", "======", "==", "x=", "====", "=x", "=====", "x====="]);
    let bpe = bpe(&vocab).unwrap();
    for length in 0..40 {
        for text in ["=".repeat(length), format!("x{}", "=".repeat(length)), format!("{}x==", "=".repeat(length))] {
            assert_eq!(encode(&bpe, &text), merged(&vocab, &text), "{text}");
        }
    }
}

#[test]
fn a_list_of_merges_with_tokens_of_later_ones_is_refused() {
    let merges = [Merge { left: 0, right: 3, merged: 4 }, Merge { left: 1, right: 2, merged: 3 }];
    let texts = vocab(&["a", "b", "c", "bc", "abc"]);
    assert!(Bpe::of_merges(&texts, merges.into_iter(), false).is_none());
    let bpe = Bpe::of_merges(&texts, merges.into_iter().rev(), false).unwrap();
    assert_eq!(encode(&bpe, "abcab"), [4, 0, 1]);
}

#[test]
fn a_vocabulary_that_training_cannot_make_is_refused() {
    let texts: Vec<String> = (0..2_000).map(|number| format!("{number:04}")).collect();
    let mut texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    texts.extend(["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]);
    assert!(bpe(&vocab(&texts)).is_none());
}

#[test]
fn a_token_that_merging_never_makes_is_a_whole_piece_or_nothing() {
    let texts = vocab(&["a", "b", "c", "d", "ab", "bc", "bcd"]);
    assert_eq!(encode(&bpe(&texts).unwrap(), "bcdab"), [6, 4]);
    // Without "bc" nothing makes "bcd".
    let merging = Bpe::of_order(&texts, [4, 6].into_iter(), |text| text.len() == 1, false).unwrap();
    assert_eq!(encode(&merging, "bcd"), [1, 2, 3]);
    let whole = Bpe::of_order(&texts, [4, 6].into_iter(), |text| text.len() == 1, true).unwrap();
    assert_eq!((encode(&whole, "bcd"), encode(&whole, "bcdd")), (vec![6], vec![1, 2, 3, 3]));
}

#[test]
fn what_no_token_begins_with_ends_the_encoding() {
    let vocab = vocab(&["a", "aa"]);
    let mut ids = Vec::new();
    assert_eq!(bpe(&vocab).unwrap().encode(b"aaaxa", &mut DeadEnds::default(), &mut ids), 3);
    assert_eq!(ids, [1, 0]);
    assert_eq!(bpe(&vocab).unwrap().encode(b"x", &mut DeadEnds::default(), &mut ids), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    /// Each token joins two others, as in training; but which comes first is left to chance.
    #[test]
    fn every_text_is_encoded_as_by_merging(
        joins in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..40),
        places in prop::collection::vec(any::<prop::sample::Index>(), 40),
        shuffled: bool,
        texts in prop::collection::vec("[abc]{0,60}", 1..6),
    ) {
        let mut tokens: Vec<String> = ["a", "b", "c"].map(str::to_owned).to_vec();
        for (left, right) in joins {
            let joined = format!("{}{}", left.get(&tokens), right.get(&tokens));
            if joined.len() < 20 && !tokens.contains(&joined) {
                tokens.push(joined);
            }
        }
        for (at, place) in places.iter().enumerate().take(if shuffled { tokens.len() } else { 0 }) {
            let place = place.index(tokens.len());
            tokens.swap(at, place);
        }
        let vocab = vocab(&tokens.iter().map(String::as_str).collect::<Vec<_>>());
        let bpe = bpe(&vocab).unwrap();
        for text in texts {
            prop_assert_eq!(encode(&bpe, &text), merged(&vocab, &text), "{} of {:?}", text, tokens);
        }
    }
}
