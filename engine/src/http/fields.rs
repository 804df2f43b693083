//! Typed access to the fields of a request. Null is absent; everything else that does not fit is an error that names
//! the field, what it must be, and what it was.

use std::fmt::Display;
use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use super::error::Error;

#[derive(Clone, Copy)]
pub(super) struct Fields<'a>(&'a Map<String, Value>);

impl<'a> Fields<'a> {
    pub(super) fn new(object: &'a Map<String, Value>) -> Self {
        Self(object)
    }

    pub(super) fn value(&self, name: &str) -> Option<&'a Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    pub(super) fn text(&self, name: &str) -> Result<Option<&'a str>, Error> {
        self.typed(name, "a string", Value::as_str)
    }

    pub(super) fn flag(&self, name: &str) -> Result<bool, Error> {
        Ok(self.typed(name, "a boolean", Value::as_bool)?.unwrap_or(false))
    }

    pub(super) fn object(&self, name: &str) -> Result<Option<&'a Map<String, Value>>, Error> {
        self.typed(name, "an object", Value::as_object)
    }

    pub(super) fn list(&self, name: &str) -> Result<Option<&'a Vec<Value>>, Error> {
        self.typed(name, "a list", Value::as_array)
    }

    pub(super) fn integer(&self, name: &str, range: RangeInclusive<i64>) -> Result<Option<i64>, Error> {
        let wanted = between("an integer", &range);
        self.typed(name, &wanted, |value| value.as_i64().filter(|number| range.contains(number)))
    }

    /// As [`Fields::integer`], for a field that must be positive and fit 32 bits.
    pub(super) fn count(&self, name: &str, range: RangeInclusive<u32>) -> Result<Option<u32>, Error> {
        let wide = i64::from(*range.start())..=i64::from(*range.end());
        Ok(self.integer(name, wide)?.and_then(|number| u32::try_from(number).ok()))
    }

    pub(super) fn number(&self, name: &str, range: RangeInclusive<f64>) -> Result<Option<f32>, Error> {
        let wanted = between("a number", &range);
        self.typed(name, &wanted, |value| value.as_f64().filter(|number| range.contains(number)).map(|n| n as f32))
    }

    fn typed<T>(&self, name: &str, wanted: &str, read: impl Fn(&'a Value) -> Option<T>) -> Result<Option<T>, Error> {
        let Some(value) = self.value(name) else { return Ok(None) };
        match read(value) {
            Some(read) => Ok(Some(read)),
            None => Err(wrong(name, wanted, value)),
        }
    }
}

/// The error for a field that is not what it must be.
pub(super) fn wrong(name: &str, wanted: &str, value: &Value) -> Error {
    Error::invalid(name, format!("'{name}' must be {wanted}, not {}.", shown(value)))
}

pub(super) fn missing(name: &str) -> Error {
    Error::invalid(name, format!("'{name}' is required."))
}

fn between<T: Display>(kind: &str, range: &RangeInclusive<T>) -> String {
    format!("{kind} between {} and {}", range.start(), range.end())
}

/// A value, cut so that a message never repeats a whole prompt.
fn shown(value: &Value) -> String {
    const MOST: usize = 40;
    let text = value.to_string();
    match text.char_indices().nth(MOST) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
        result.expect_err("must be refused").to_string()
    }

    #[test]
    fn absurd_numbers_are_refused_by_name() {
        let json = r#"{"a":9223372036854775807,"b":18446744073709551615,"c":1e30,"d":-5,"e":2.5,"f":"50","g":true}"#;
        let object: Map<String, Value> = serde_json::from_str(json).expect("valid");
        let fields = Fields::new(&object);
        for name in ["a", "b", "c", "d", "e", "f", "g"] {
            let said = message(fields.count(name, 1..=u32::MAX));
            assert!(said.starts_with(&format!("'{name}' must be an integer between 1 and 4294967295, not ")), "{said}");
        }
    }

    #[test]
    fn null_is_absent() {
        let object = serde_json::from_str(r#"{"a":null}"#).expect("valid");
        let fields = Fields::new(&object);
        assert!(matches!(fields.number("a", 0.0..=1.0), Ok(None)));
        assert!(matches!(fields.flag("a"), Ok(false)));
        assert!(matches!(fields.text("b"), Ok(None)));
    }

    #[test]
    fn a_long_value_is_cut_in_the_message() {
        let object: Map<String, Value> = [("a".to_owned(), Value::from("é".repeat(5000)))].into_iter().collect();
        assert!(message(Fields::new(&object).flag("a")).len() < 200);
    }
}
