//! SentencePiece BPE ("llama" vocabularies): the best-scored adjacent pair whose concatenation is a piece is merged
//! until none is left. Merges are implied by the pieces and their scores, so none are stored: the 513,511 merges
//! that Gemma's vocabulary implies would cost seconds and tens of megabytes at load. Where the scores allow it, words
//! are encoded in one pass (`bpe`), else pair by pair.

mod by_score;

use by_score::{Buffers, ByScore};

use crate::bpe::{Bpe, DeadEnds};
use crate::error::LoadError;
use crate::vocab::{Kind, SPACE_MARK, Vocab};

#[derive(Debug)]
pub(crate) struct SentencePiece {
    merging: Merging,
    /// The token of each byte, for characters that have none.
    bytes: [Option<u32>; 256],
    unknown: Option<u32>,
    /// The vocabulary was trained with a space before the first word.
    space_prefix: bool,
    /// Bytes after which a piece may go on with a space. After any other byte a space starts a new word, and words
    /// can be merged one by one: the same tokens, with small heaps.
    joins_space: [bool; 256],
}

#[derive(Debug)]
enum Merging {
    OnePass(Box<Bpe>),
    ByScore(ByScore),
}

/// Buffers of one encode call, used again for every word.
#[derive(Default)]
pub(crate) struct Scratch {
    dead: DeadEnds,
    merging: Buffers,
}

impl SentencePiece {
    pub(crate) fn new(
        vocab: &Vocab,
        scores: Vec<f32>,
        unknown: Option<u32>,
        space_prefix: bool,
    ) -> Result<Self, LoadError> {
        if scores.len() < vocab.len() {
            let reason = format!("{} scores for {} tokens", scores.len(), vocab.len());
            return Err(LoadError::Vocabulary { reason });
        }
        let mut bytes = [None; 256];
        let mut joins_space = [false; 256];
        for (id, text, kind) in vocab.iter() {
            match kind {
                Kind::Byte => bytes[text[0] as usize] = Some(id),
                Kind::Normal => {
                    for pair in text.windows(2).filter(|pair| pair[0] != b' ' && pair[1] == b' ') {
                        joins_space[pair[0] as usize] = true;
                    }
                }
                _ => {}
            }
        }
        let merging = match one_pass(vocab, &scores) {
            Some(bpe) => Merging::OnePass(Box::new(bpe)),
            None => Merging::ByScore(ByScore::new(vocab, scores)),
        };
        Ok(Self { merging, bytes, unknown, space_prefix, joins_space })
    }

    /// Whether a space after this byte starts a new word, and both sides of it can be encoded apart.
    pub(crate) fn may_cut_after(&self, before: u8) -> bool {
        !self.space_prefix && !self.joins_space[before as usize]
    }

    pub(crate) fn space_prefix(&self) -> bool {
        self.space_prefix
    }

    /// Appends the tokens of `text`, which holds no fixed strings any more.
    pub(crate) fn encode(&self, vocab: &Vocab, text: &str, scratch: &mut Scratch, ids: &mut Vec<u32>) {
        let replaced;
        let mut text = text;
        if self.space_prefix || text.contains(SPACE_MARK) {
            let prefix = if self.space_prefix { " " } else { "" };
            replaced = format!("{prefix}{}", text.replace(SPACE_MARK, " "));
            text = &replaced;
        }
        let bytes = text.as_bytes();
        let mut start = 0;
        for at in 1..bytes.len() {
            let (before, here) = (bytes[at - 1], bytes[at]);
            if here == b' ' && before != b' ' && !self.joins_space[before as usize] {
                self.word(vocab, &text[start..at], scratch, ids);
                start = at;
            }
        }
        if start < text.len() {
            self.word(vocab, &text[start..], scratch, ids);
        }
    }

    fn word(&self, vocab: &Vocab, word: &str, scratch: &mut Scratch, ids: &mut Vec<u32>) {
        match &self.merging {
            Merging::OnePass(bpe) => self.in_one_pass(bpe, word, &mut scratch.dead, ids),
            Merging::ByScore(by_score) => {
                by_score.encode(vocab, word, &mut scratch.merging, ids, |char, ids| self.fall_back(char, ids));
            }
        }
    }

    /// Characters without a piece stand between what is encoded.
    fn in_one_pass(&self, bpe: &Bpe, word: &str, dead: &mut DeadEnds, ids: &mut Vec<u32>) {
        let mut at = 0;
        loop {
            at += bpe.encode(&word.as_bytes()[at..], dead, ids);
            let Some(char) = word[at..].chars().next() else { return };
            let end = at + char.len_utf8();
            self.fall_back(&word.as_bytes()[at..end], ids);
            at = end;
        }
    }

    fn fall_back(&self, char: &[u8], ids: &mut Vec<u32>) {
        if char.iter().all(|&byte| self.bytes[byte as usize].is_some()) {
            ids.extend(char.iter().filter_map(|&byte| self.bytes[byte as usize]));
        } else {
            ids.extend(self.unknown);
        }
    }
}

/// `None`: the pieces or their scores are such that the order of merges matters in more ways than a rank can say.
fn one_pass(vocab: &Vocab, scores: &[f32]) -> Option<Bpe> {
    let is_symbol = |text: &[u8]| std::str::from_utf8(text).is_ok_and(|text| text.chars().nth(1).is_none());
    let normal = || vocab.iter().filter(|&(_, text, kind)| kind == Kind::Normal && !text.is_empty());
    let mut has_piece = vec![false; char::MAX as usize + 1];
    for char in normal().filter_map(|(_, text, _)| std::str::from_utf8(text).ok().filter(|_| is_symbol(text))) {
        char.chars().for_each(|char| has_piece[char as usize] = true);
    }
    let is_made_of_pieces =
        |text: &[u8]| std::str::from_utf8(text).is_ok_and(|text| text.chars().all(|char| has_piece[char as usize]));
    if !normal().all(|(_, text, _)| is_made_of_pieces(text)) {
        return None;
    }
    let score = |id: &u32| scores[*id as usize];
    let mut order: Vec<u32> = normal().filter(|(_, text, _)| !is_symbol(text)).map(|(id, ..)| id).collect();
    order.sort_by(|a, b| score(b).total_cmp(&score(a)));
    let is_tied = order.windows(2).any(|pair| score(&pair[0]) == score(&pair[1]));
    if is_tied { None } else { Bpe::of_order(vocab, order.into_iter(), is_symbol, false) }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use proptest::prelude::*;

    use super::*;
    use crate::{Model, gguf_vocab, real};

    fn model(pieces: &[(&str, f32, Kind)]) -> (Vocab, SentencePiece) {
        let mut vocab = Vocab::default();
        pieces.iter().for_each(|(piece, _, kind)| vocab.push_piece(piece.as_bytes(), *kind));
        let scores = pieces.iter().map(|(_, score, _)| *score).collect();
        let model = SentencePiece::new(&vocab, scores, Some(0), false).unwrap();
        (vocab, model)
    }

    fn encode((vocab, model): &(Vocab, SentencePiece), text: &str) -> Vec<u32> {
        let mut ids = Vec::new();
        model.encode(vocab, text, &mut Scratch::default(), &mut ids);
        ids
    }

    /// The same vocabulary, merged pair by pair.
    fn by_score(vocab: &Vocab, scores: &[f32], model: SentencePiece) -> SentencePiece {
        SentencePiece { merging: Merging::ByScore(ByScore::new(vocab, scores.to_vec())), ..model }
    }

    fn small() -> (Vocab, SentencePiece) {
        model(&[
            ("<unk>", 0.0, Kind::Unknown),
            ("a", -4.0, Kind::Normal),
            ("b", -5.0, Kind::Normal),
            ("ab", -1.0, Kind::Normal),
            ("ba", -0.5, Kind::Normal),
            ("▁a", -2.0, Kind::Normal),
            ("▁", -6.0, Kind::Normal),
            ("a▁a", -0.1, Kind::Normal),
            ("<0xC3>", 0.0, Kind::Byte),
            ("<0xA9>", 0.0, Kind::Byte),
            ("bb", 0.0, Kind::Control),
        ])
    }

    #[test]
    fn the_best_score_is_merged_first_and_ties_from_the_left() {
        assert_eq!(encode(&small(), "aba"), [1, 4]); // "ba" before "ab"
        assert_eq!(encode(&small(), "abab"), [1, 4, 2]);
        assert_eq!(encode(&small(), "bb"), [2, 2]); // never a control token
    }

    #[test]
    fn a_piece_may_span_a_space() {
        assert_eq!(encode(&small(), "a a"), [7]); // " a" first, then "a" and " a"
        assert_eq!(encode(&small(), "b a"), [2, 5]);
    }

    #[test]
    fn characters_without_a_piece_become_bytes_or_the_unknown_token() {
        assert_eq!(encode(&small(), "é"), [8, 9]);
        assert_eq!(encode(&small(), "aßb"), [1, 0, 2]);
    }

    #[test]
    fn literal_space_marks_are_spaces() {
        assert_eq!(encode(&small(), "b▁a"), encode(&small(), "b a"));
    }

    #[test]
    fn vocabularies_with_ties_or_missing_characters_are_merged_pair_by_pair() {
        let is_one_pass = |pieces: &[(&str, f32, Kind)]| matches!(model(pieces).1.merging, Merging::OnePass(_));
        let small = [("a", -4.0, Kind::Normal), ("b", -5.0, Kind::Normal), ("ab", -1.0, Kind::Normal)];
        assert!(is_one_pass(&small));
        assert!(!is_one_pass(&[&small[..], &[("ba", -1.0, Kind::Normal)]].concat()));
        assert!(!is_one_pass(&[&small[..], &[("ac", -2.0, Kind::Normal)]].concat()));
    }

    /// Gemma 3 in one pass, and pair by pair.
    static GEMMA3: LazyLock<[(Vocab, SentencePiece); 2]> = LazyLock::new(|| {
        let file = gguf::File::open_metadata(real::model(real::GEMMA3)).unwrap();
        let load = || {
            let (Model::SentencePiece(model), vocab) = gguf_vocab::sentencepiece_of(&file).unwrap() else {
                panic!("a SentencePiece model")
            };
            (vocab, *model)
        };
        let (fast, (vocab, slow)) = (load(), load());
        assert!(matches!(fast.1.merging, Merging::OnePass(_)), "the bundled model goes the fast way");
        let scores: Vec<f32> = file.array("tokenizer.ggml.scores").unwrap().f32s().unwrap().collect();
        let slow = by_score(&vocab, &scores, slow);
        [fast, (vocab, slow)]
    });

    fn check(text: &str) {
        let [fast, slow] = GEMMA3.each_ref().map(|model| encode(model, text));
        assert_eq!(fast, slow, "{text:?}");
    }

    #[test]
    fn long_words_of_every_kind() {
        for piece in ["a", "Ab", "xq", " ", "=", "z'", "漢", "😀", "字的", "é", "\u{301}", "-=", "7", "\u{e000}a"]
        {
            [2, 31, 64, 200, 1000].into_iter().for_each(|length| check(&piece.repeat(length)));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        #[test]
        fn any_text_has_the_same_tokens_both_ways(
            text in "\\PC{0,80}|[abtehnsi]{0,400}|[的是不我一有大在人]{0,120}|[0-9A-Za-z+/]{0,300}|([a-z]{1,9}[ ,.']{1,2}){0,30}"
        ) {
            check(&text);
        }
    }
}
