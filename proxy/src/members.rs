//! Reads chosen members of a JSON object as raw text, without parsing what they or the others hold. Of a key given twice
//! the last counts, as it does for the parsers of upstreams.

use std::{borrow::Cow, fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};
use serde_json::value::RawValue;

/// The members that somebody wants.
pub trait Members<'t>: Default {
    /// Where the value of `key` goes; `None` if nobody wants it.
    fn member(&mut self, key: &str) -> Option<&mut Option<&'t RawValue>>;
}

/// `text` must be one object and nothing else.
pub fn read<'t, M: Members<'t>>(text: &'t [u8]) -> serde_json::Result<M> {
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let members = deserializer.deserialize_map(Object(PhantomData))?;
    deserializer.end()?;
    Ok(members)
}

/// Where a value that was borrowed from `text` stands in it.
pub fn place(text: &[u8], value: &RawValue) -> std::ops::Range<usize> {
    let start = value.get().as_ptr() as usize - text.as_ptr() as usize;
    start..start + value.get().len()
}

struct Object<M>(PhantomData<M>);

impl<'t, M: Members<'t>> Visitor<'t> for Object<M> {
    type Value = M;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'t>>(self, mut map: A) -> Result<M, A::Error> {
        #[derive(Deserialize)]
        struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

        let mut members = M::default();
        while let Some(Key(key)) = map.next_key()? {
            match members.member(&key) {
                Some(member) => *member = Some(map.next_value()?),
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(members)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct A<'t>(Option<&'t RawValue>);

    impl<'t> Members<'t> for A<'t> {
        fn member(&mut self, key: &str) -> Option<&mut Option<&'t RawValue>> {
            (key == "a").then_some(&mut self.0)
        }
    }

    #[test]
    fn the_last_of_a_key_counts_and_only_whole_objects_are_read() {
        for (text, expect) in
            [(r#"{"a":1,"b":{"a":2},"a": [3 ]}"#, Some("[3 ]")), (r#"{"\u0061":4}"#, Some("4")), ("{}", None)]
        {
            let read: A<'_> = read(text.as_bytes()).expect(text);
            assert_eq!(read.0.map(RawValue::get), expect);
            assert!(read.0.is_none_or(|value| text[place(text.as_bytes(), value)] == *value.get()));
        }
        for text in ["", "[]", "{}x", "{\"a\":1", "{\"a\":1,}", "7"] {
            assert!(read::<A<'_>>(text.as_bytes()).is_err(), "{text}");
        }
    }
}
