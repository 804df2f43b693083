//! Changes to a body by cutting and pasting bytes: everything else, key order and unknown fields included, stays as
//! the client sent it.

use std::ops::Range;

use bytes::{Bytes, BytesMut};

use super::Call;

/// Replacements in one text, in any order; ranges do not overlap.
#[derive(Debug, Default)]
pub struct Splices(Vec<(Range<usize>, Vec<u8>)>);

impl Splices {
    pub fn replace(&mut self, range: Range<usize>, with: impl Into<Vec<u8>>) {
        self.0.push((range, with.into()));
    }

    /// `None`: nothing changes.
    pub fn apply(mut self, text: &[u8]) -> Option<Bytes> {
        if self.0.is_empty() {
            return None;
        }
        self.0.sort_by_key(|(range, _)| range.start);
        let grown: usize = self.0.iter().map(|(_, with)| with.len()).sum();
        let mut out = BytesMut::with_capacity(text.len() + grown);
        let mut at = 0;
        for (range, with) in self.0 {
            out.extend_from_slice(&text[at..range.start]);
            out.extend_from_slice(&with);
            at = range.end;
        }
        out.extend_from_slice(&text[at..]);
        Some(out.freeze())
    }
}

impl Call {
    /// The body for an upstream that calls the model `model`; usage is asked for in streams, and `cache_salt` stands in
    /// place of the client's own.
    pub fn forward(&self, model: &str, cache_salt: Option<&str>) -> Bytes {
        let mut splices = Splices::default();
        let open = self.body.iter().position(|byte| *byte == b'{').map_or(0, |at| at + 1);
        if let Some(salt) = cache_salt {
            // First: of what is put in at the start, the model comes last and may be the last of the object.
            match &self.shape.cache_salt {
                Some(range) => splices.replace(range.clone(), format!("\"{salt}\"")),
                None => splices.replace(open..open, format!("\"cache_salt\":\"{salt}\",")),
            }
        }
        let name = || serde_json::to_vec(model).expect("invariant: a text always serialises");
        match &self.shape.model {
            Some(range) if self.text(range) != name() => splices.replace(range.clone(), name()),
            Some(_) => {}
            None => {
                let empty = self.body[open..].trim_ascii_start().starts_with(b"}");
                let comma: &[u8] = if empty { b"" } else { b"," };
                splices.replace(open..open, [b"\"model\":", &name()[..], comma].concat());
            }
        }
        if self.stream && !self.wants_usage {
            self.ask_for_usage(open, &mut splices);
        }
        splices.apply(&self.body).unwrap_or_else(|| self.body.clone())
    }

    fn ask_for_usage(&self, open: usize, splices: &mut Splices) {
        const ASKED: &str = "\"include_usage\":true";
        let Some(range) = &self.shape.stream_options else {
            return splices.replace(open..open, format!("\"stream_options\":{{{ASKED}}},"));
        };
        let options = self.text(range);
        if options == b"null" {
            return splices.replace(range.clone(), format!("{{{ASKED}}}"));
        }
        let others: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(options).unwrap_or_default();
        let mut options = others;
        options.insert("include_usage".to_owned(), true.into());
        let options = serde_json::to_vec(&options).expect("invariant: what was parsed serialises");
        splices.replace(range.clone(), options);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paths::Endpoint;

    fn forwarded(body: &'static str, model: &str) -> String {
        let call = Call::parse(Endpoint::ChatCompletions, None, Bytes::from(body)).expect("valid");
        String::from_utf8(call.forward(model, None).to_vec()).expect("UTF-8")
    }

    #[test]
    fn a_body_that_needs_no_change_is_the_same_bytes() {
        let body = "{ \"messages\":[],  \"model\":\"m\" }";
        assert_eq!(forwarded(body, "m"), body);
    }

    #[test]
    fn an_alias_changes_the_last_model_and_nothing_else() {
        let body = r#"{"model":"x","z":{"model":"alias"},"messages":[],"model":"alias","a":1e2}"#;
        let expect = r#"{"model":"x","z":{"model":"alias"},"messages":[],"model":"re\"al","a":1e2}"#;
        assert_eq!(forwarded(body, "re\"al"), expect);
    }

    #[test]
    fn usage_is_asked_for_in_every_spelling_of_the_options() {
        for (options, expect) in [
            ("", r#"{"stream_options":{"include_usage":true},"model":"m","stream":true,"messages":[]}"#),
            (
                r#","stream_options":null"#,
                r#"{"model":"m","stream":true,"messages":[],"stream_options":{"include_usage":true}}"#,
            ),
            (
                r#","stream_options":{"x":1,"include_usage":false}"#,
                r#"{"model":"m","stream":true,"messages":[],"stream_options":{"x":1,"include_usage":true}}"#,
            ),
            (
                r#","stream_options":{"include_usage":true}"#,
                r#"{"model":"m","stream":true,"messages":[],"stream_options":{"include_usage":true}}"#,
            ),
        ] {
            let body = format!(r#"{{"model":"m","stream":true,"messages":[]{options}}}"#);
            assert_eq!(forwarded(body.leak(), "m"), expect);
        }
    }

    #[test]
    fn our_cache_salt_stands_in_place_of_the_clients() {
        for (body, expect) in [
            (r#"{"model":"m","messages":[]}"#, r#"{"cache_salt":"s","model":"m","messages":[]}"#),
            (r#"{"cache_salt":"x","model":"m","messages":[]}"#, r#"{"cache_salt":"s","model":"m","messages":[]}"#),
            (r#"{"model":"m","messages":[],"cache_salt":null}"#, r#"{"model":"m","messages":[],"cache_salt":"s"}"#),
        ] {
            let call = Call::parse(Endpoint::ChatCompletions, None, Bytes::from(body)).expect("valid");
            assert_eq!(call.forward("m", Some("s")), expect);
        }
        let call = Call::parse(Endpoint::Completions, Some("m".into()), Bytes::from("{}")).expect("valid");
        assert_eq!(call.forward("m", Some("s")), r#"{"cache_salt":"s","model":"m"}"#);
    }

    #[test]
    fn a_model_named_by_the_path_stands_in_place_of_any_in_the_body() {
        for (body, expect) in [
            (r#"{"messages":[]}"#, r#"{"model":"dep","messages":[]}"#),
            (r#"{"model":null,"messages":[]}"#, r#"{"model":"dep","messages":[]}"#),
            (r#"{"messages":[],"model": null }"#, r#"{"messages":[],"model": "dep" }"#),
            (r#"{"messages":[],"model":{"a":1}}"#, r#"{"messages":[],"model":"dep"}"#),
            (r#"{"model":"x","messages":[],"model":null}"#, r#"{"model":"x","messages":[],"model":"dep"}"#),
        ] {
            let call = Call::parse(Endpoint::ChatCompletions, Some("dep".into()), Bytes::from(body))
                .expect("the path names it");
            assert_eq!((call.model.as_str(), call.forward("dep", None).as_ref()), ("dep", expect.as_bytes()), "{body}");
        }
    }
}
