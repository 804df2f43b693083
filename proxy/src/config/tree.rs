//! YAML text to a tree whose every node knows its line and column, `${ENV}` expanded. What the fields mean is
//! not known here: see `read` (how fields are taken from a node) and `sections` (which fields exist).

use std::{collections::HashMap, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, SeqAccess, Visitor},
};
use serde_saphyr::{Spanned, options::DuplicateKeyPolicy};

use super::problem::{Place, Problem};

#[derive(Clone, Debug)]
pub(super) struct Node {
    pub place: Place,
    pub value: Value,
}

#[derive(Clone, Debug)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Int(i128),
    Float(f64),
    /// `expanded`: part of it came from `${ENV}`, so that a number may stand in it.
    Text {
        text: String,
        expanded: bool,
    },
    List(Vec<Node>),
    Map(Vec<Entry>),
}

#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub key: String,
    pub place: Place,
    pub node: Node,
}

/// Parses one YAML document and expands `${NAME}` in every value. An unset variable is a problem at its place.
pub(super) fn parse(text: &str, env: &HashMap<String, String>) -> Result<Node, Vec<Problem>> {
    let options = serde_saphyr::options! { duplicate_keys: DuplicateKeyPolicy::PassThrough, strict_booleans: true };
    let mut root: Node =
        serde_saphyr::from_str_with_options(text, options).map_err(|error| vec![syntax(&error, text)])?;
    let mut problems = Vec::new();
    expand(&mut root, "", env, &mut problems);
    if problems.is_empty() { Ok(root) } else { Err(problems) }
}

fn syntax(error: &serde_saphyr::Error, text: &str) -> Problem {
    let place = error.location().map_or(Place::START, Place::of);
    let message = error.without_snippet().to_string();
    let first_line = message.lines().next().unwrap_or("not readable as YAML").to_owned();
    let line = text.lines().nth(place.line.saturating_sub(1) as usize).unwrap_or_default();
    Problem::new(place, "", format!("not valid YAML: {first_line}"), cure(line))
}

/// Of what people run into; the parser says where, in its own words.
fn cure(line: &str) -> &'static str {
    let value = line.split_once(": ").map_or("", |(_, value)| value.trim_start());
    if line.trim_start_matches(' ').starts_with('\t') {
        "indent with spaces"
    } else if value.starts_with(['*', '&', '%', '@', '`']) {
        "put the value in quotes: it begins with a character that YAML keeps for itself"
    } else if line.contains("${") && line.contains(['{', '[']) {
        "put ${NAME} in quotes: \"${NAME}\""
    } else {
        "correct the syntax at this place"
    }
}

fn expand(node: &mut Node, path: &str, env: &HashMap<String, String>, problems: &mut Vec<Problem>) {
    match &mut node.value {
        Value::Text { text, expanded } if text.contains("${") => match expand_text(text, env) {
            Ok(new) => (*text, *expanded) = (new, true),
            Err(name) => problems.push(Problem::new(
                node.place,
                path,
                format!("the environment variable {name:?} is not set"),
                format!("set it, or write the value in place of ${{{name}}}"),
            )),
        },
        Value::List(items) => {
            for (index, item) in items.iter_mut().enumerate() {
                expand(item, &format!("{path}[{index}]"), env, problems);
            }
        }
        Value::Map(entries) => {
            for entry in entries {
                expand(&mut entry.node, &join(path, &entry.key), env, problems);
            }
        }
        _ => {}
    }
}

/// `Err`: the name that is not set (or the rest of an unclosed `${`).
fn expand_text(text: &str, env: &HashMap<String, String>) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("${") {
        out.push_str(&rest[..start]);
        let after = &rest[start + 2..];
        let Some(end) = after.find('}') else { return Err(after.to_owned()) };
        let name = &after[..end];
        out.push_str(env.get(name).ok_or_else(|| name.to_owned())?);
        rest = &after[end + 1..];
    }
    out.push_str(rest);
    Ok(out)
}

/// `a` and `b` to `a.b`; the root has an empty path.
pub(super) fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

impl Value {
    /// What the reader sees, for "expected X, found Y": never what came from the environment.
    pub fn describe(&self) -> String {
        match self {
            Self::Null => "nothing".into(),
            Self::Bool(value) => format!("{value}"),
            Self::Int(value) => format!("{value}"),
            Self::Float(value) => format!("{value}"),
            Self::Text { expanded: true, .. } => "a text from the environment".into(),
            Self::Text { text, .. } => format!("{text:?}"),
            Self::List(_) => "a list".into(),
            Self::Map(_) => "a mapping".into(),
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Value>::deserialize(deserializer)?;
        Ok(Self { place: Place::of(spanned.referenced), value: spanned.value })
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Int(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Int(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::Text { text: value.to_owned(), expanded: false })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Value::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = map.next_key::<Spanned<String>>()? {
            let node = map.next_value()?;
            entries.push(Entry { key: key.value, place: Place::of(key.referenced), node });
        }
        Ok(Value::Map(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env() -> HashMap<String, String> {
        HashMap::from([("PORT".to_owned(), "80".to_owned())])
    }

    #[test]
    fn every_node_knows_its_place() {
        let root = parse("a: 1\nb:\n  - {c: x}\n", &env()).expect("valid");
        let Value::Map(entries) = root.value else { panic!("a mapping") };
        assert_eq!((entries[1].place.line, entries[1].place.column), (2, 1));
        let Value::List(items) = &entries[1].node.value else { panic!("a list") };
        let Value::Map(inner) = &items[0].value else { panic!("a mapping") };
        assert_eq!((inner[0].node.place.line, inner[0].node.place.column), (3, 9));
    }

    #[test]
    fn variables_are_expanded_and_an_unset_one_is_named() {
        assert_eq!(expand_text("h:${PORT}!", &env()).as_deref(), Ok("h:80!"));
        let problems = parse("a: ${NOPE}", &env()).expect_err("not set");
        assert!(problems[0].to_string().contains("NOPE"), "{}", problems[0]);
        assert_eq!(problems[0].field, "a");
    }

    #[test]
    fn broken_yaml_is_one_problem_with_its_place() {
        let problems = parse("a: [1,\nb: }", &env()).expect_err("broken");
        assert_eq!(problems.len(), 1);
        assert!(problems[0].place.line >= 1);
    }
}
