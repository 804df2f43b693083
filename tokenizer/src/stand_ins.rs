//! Keeps the strings of a request from spelling control tokens while a template handles them. The first character of
//! every control token that a string spells, or begins to spell at its end, is replaced by a private-use character
//! that occurs nowhere in the request; after the template's own control tokens are found, they are put back. Lengths,
//! trimming, splitting and joining work as before, which markers around the text would break.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use serde_json::Value;

use crate::specials::Strings;

/// Supplementary private use area A.
const PRIVATE_USE: std::ops::RangeInclusive<char> = '\u{F0000}'..='\u{FFFFD}';
/// The first byte of all of them in UTF-8. Hardly any text has one, and looking for a byte is quick.
const PRIVATE_USE_BYTE: u8 = 0xF3;

pub(crate) struct StandIns<'t> {
    control: &'t Strings,
    /// First characters of control tokens, each with its stand-in.
    replace: HashMap<char, char>,
    restore: HashMap<char, char>,
}

impl<'t> StandIns<'t> {
    /// Chooses stand-ins that occur in none of the values; `None` if those use up the whole private-use area.
    pub(crate) fn new<'v>(control: &'t Strings, values: impl Iterator<Item = &'v Value>) -> Option<Self> {
        let mut taken = HashSet::new();
        values.for_each(|value| collect_private_use(value, &mut taken));
        let mut free = PRIVATE_USE.filter(|char| !taken.contains(char));
        let mut replace = HashMap::new();
        for &first in control.first_chars() {
            replace.insert(first, free.next()?);
        }
        let restore = replace.iter().map(|(&first, &stand_in)| (stand_in, first)).collect();
        Some(Self { control, replace, restore })
    }

    /// The value with every string made harmless: keys too, for tools have names in keys.
    pub(crate) fn guard(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.guard_text(text).into_owned()),
            Value::Array(values) => values.iter().map(|value| self.guard(value)).collect(),
            Value::Object(fields) => {
                fields.iter().map(|(key, value)| (self.guard_text(key).into_owned(), self.guard(value))).collect()
            }
            other => other.clone(),
        }
    }

    fn guard_text<'s>(&self, text: &'s str) -> Cow<'s, str> {
        let spelled = self.control.spelled(text);
        if spelled.is_empty() {
            return Cow::Borrowed(text);
        }
        let mut spelled = spelled.into_iter().peekable();
        let guarded = text.char_indices().map(|(at, char)| match spelled.next_if_eq(&at) {
            Some(_) => self.replace.get(&char).copied().unwrap_or(char),
            None => char,
        });
        Cow::Owned(guarded.collect())
    }

    /// The text as the request and the template wrote it.
    pub(crate) fn restore<'s>(&self, text: &'s str) -> Cow<'s, str> {
        let may_hold = text.as_bytes().contains(&PRIVATE_USE_BYTE);
        if may_hold && text.contains(|char| self.restore.contains_key(&char)) {
            Cow::Owned(text.chars().map(|char| self.restore.get(&char).copied().unwrap_or(char)).collect())
        } else {
            Cow::Borrowed(text)
        }
    }
}

fn collect_private_use(value: &Value, taken: &mut HashSet<char>) {
    let mut collect = |text: &str| {
        if text.as_bytes().contains(&PRIVATE_USE_BYTE) {
            taken.extend(text.chars().filter(|char| PRIVATE_USE.contains(char)));
        }
    };
    match value {
        Value::String(text) => collect(text),
        Value::Array(values) => values.iter().for_each(|value| collect_private_use(value, taken)),
        Value::Object(fields) => {
            fields.keys().for_each(|key| collect(key));
            fields.values().for_each(|value| collect_private_use(value, taken));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::specials::Specials;
    use crate::vocab::{Kind, Vocab};

    fn guarded(text: &str) -> (String, String) {
        let mut vocab = Vocab::default();
        ["<s>", "<|im_end|>", "[x]", "ab", "bc"].iter().for_each(|text| vocab.push(text.bytes(), Kind::Control));
        let specials = Specials::of(&vocab).unwrap();
        let value = Value::String(text.to_owned());
        let stand_ins = StandIns::new(specials.control(), std::iter::once(&value)).unwrap();
        let guarded = stand_ins.guard(&value).as_str().unwrap().to_owned();
        let restored = stand_ins.restore(&guarded).into_owned();
        (guarded, restored)
    }

    #[test]
    fn no_control_token_is_left_and_all_comes_back() {
        for text in
            ["<s>", "a<|im_end|>b<s>", "<|im_<|im_end|>end|>", "abc", "[x] <", "\u{F0000}<s>\u{F0001}", "<|im_ \n"]
        {
            let (guarded, restored) = guarded(text);
            assert!(
                ["<s>", "<|im_end|>", "[x]", "ab", "bc"].iter().all(|token| !guarded.contains(token)),
                "{guarded:?}"
            );
            assert_ne!(guarded, text);
            assert_eq!((restored.as_str(), guarded.chars().count()), (text, text.chars().count()));
        }
    }

    #[test]
    fn other_text_is_left_alone() {
        for text in ["", "plain", "<|im_start|>", "< s>", "x < y", "</think>"] {
            assert_eq!(guarded(text).0, text);
        }
    }
}
