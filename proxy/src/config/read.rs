//! Taking typed fields out of a tree. Every mistake is reported and reading goes on, so that one run names them
//! all. The fields themselves are declared in `sections` and `rules`.

use std::{cell::RefCell, collections::HashSet};

use super::{
    problem::{Place, Problem},
    tree::{Entry, Node, Value, join},
};

/// Collects problems and warnings while the tree is read.
#[derive(Default)]
pub(super) struct Report {
    problems: RefCell<Vec<Problem>>,
    warnings: RefCell<Vec<Problem>>,
    /// Path of each mapping that was read, and the fields it was asked for.
    #[cfg(test)]
    known: RefCell<Vec<(String, Vec<&'static str>)>>,
}

impl Report {
    pub fn problem(&self, place: Place, path: &str, message: impl Into<String>, cure: impl Into<String>) {
        self.problems.borrow_mut().push(Problem::new(place, path, message, cure));
    }

    pub fn warning(&self, place: Place, path: &str, message: impl Into<String>, cure: impl Into<String>) {
        self.warnings.borrow_mut().push(Problem::new(place, path, message, cure));
    }

    /// (problems, warnings), in the order of the file.
    pub fn finish(self) -> (Vec<Problem>, Vec<Problem>) {
        let (mut problems, mut warnings) = (self.problems.into_inner(), self.warnings.into_inner());
        problems.sort_by_key(|problem| problem.place);
        warnings.sort_by_key(|warning| warning.place);
        (problems, warnings)
    }
}

/// A node with its path: what a parse function gets.
#[derive(Clone, Copy)]
pub(super) struct At<'a> {
    pub node: &'a Node,
    pub path: &'a str,
    pub report: &'a Report,
}

impl<'a> At<'a> {
    pub fn problem<T>(&self, message: impl Into<String>, cure: impl Into<String>) -> Option<T> {
        self.report.problem(self.node.place, self.path, message, cure);
        None
    }

    /// The value as messages show it: what came from the environment may be a secret, and stays out of them.
    pub fn shown(&self) -> String {
        self.node.value.describe()
    }

    fn wrong<T>(&self, expected: &str, example: &str) -> Option<T> {
        self.problem(format!("expected {expected}, found {}", self.shown()), format!("write {example}"))
    }

    /// The fields of a mapping.
    pub fn fields(self) -> Option<Fields<'a>> {
        let Value::Map(entries) = &self.node.value else {
            return self.wrong("a mapping", "`key: value` lines, or `{ key: value }`");
        };
        let mut seen = HashSet::new();
        for entry in entries.iter().filter(|entry| !seen.insert(entry.key.as_str())) {
            let path = join(self.path, &entry.key);
            self.report.problem(entry.place, &path, "the key is given twice", "keep one of the two");
        }
        Some(Fields { at: self, entries, known: Vec::new() })
    }

    /// The items of a list, each read by `parse`; items that fail are reported and left out.
    pub fn list<T>(self, parse: impl Fn(At<'_>) -> Option<T>) -> Option<Vec<T>> {
        let Value::List(items) = &self.node.value else {
            return self.wrong("a list", "`- item` lines, or `[item, item]`");
        };
        let read = items.iter().enumerate().filter_map(|(index, node)| {
            let path = format!("{}[{index}]", self.path);
            parse(At { node, path: &path, report: self.report })
        });
        Some(read.collect())
    }

    pub fn text(self) -> Option<String> {
        match &self.node.value {
            Value::Text { text, .. } if !text.is_empty() => Some(text.clone()),
            Value::Text { .. } => self.problem("the text is empty", "write a value, or remove the field"),
            Value::Int(number) => Some(number.to_string()),
            _ => self.wrong("a text", "a name, in quotes if it has special characters"),
        }
    }

    pub fn boolean(self) -> Option<bool> {
        match &self.node.value {
            Value::Bool(value) => Some(*value),
            Value::Text { text, expanded: true } if text == "true" || text == "false" => Some(text == "true"),
            _ => self.wrong("true or false", "true or false"),
        }
    }

    /// A whole number within `min..=max`.
    pub fn whole(self, min: u64, max: u64) -> Option<u64> {
        let value = match &self.node.value {
            Value::Int(value) => *value,
            Value::Float(value) if value.fract() == 0.0 && value.abs() < 1e18 => *value as i128,
            Value::Float(value) if value.abs() >= 1e18 => i128::MAX,
            Value::Text { text, .. } if text.parse::<i128>().is_ok() => text.parse().ok()?,
            _ => return self.wrong("a whole number", &format!("a number from {min} to {max}")),
        };
        match u64::try_from(value) {
            Ok(value) if (min..=max).contains(&value) => Some(value),
            _ => {
                self.problem(format!("{} is out of range", self.shown()), format!("write a number from {min} to {max}"))
            }
        }
    }

    /// A number of at least zero and at most `max`.
    pub fn number(self, max: f64) -> Option<f64> {
        let value = match &self.node.value {
            Value::Int(value) => *value as f64,
            Value::Float(value) => *value,
            Value::Text { text, expanded: true } if text.parse::<f64>().is_ok() => text.parse().ok()?,
            _ => return self.wrong("a number", "a number such as 0.15"),
        };
        if value.is_finite() && (0.0..=max).contains(&value) {
            return Some(value);
        }
        self.problem(format!("{} is out of range", self.shown()), format!("write a number from 0 to {max}"))
    }

    /// One of `choices`, by name.
    pub fn choice<T: Copy>(self, choices: &[(&str, T)]) -> Option<T> {
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        if let Value::Text { text, .. } = &self.node.value
            && let Some((_, value)) = choices.iter().find(|(name, _)| name == text)
        {
            return Some(*value);
        }
        self.problem(format!("unknown value {}", self.shown()), format!("write one of {}", names.join(", ")))
    }
}

/// The fields of one mapping. Ask for each known field, then call `finish`, which reports the others.
pub(super) struct Fields<'a> {
    at: At<'a>,
    entries: &'a [Entry],
    known: Vec<&'static str>,
}

impl<'a> Fields<'a> {
    pub fn at(&self) -> At<'a> {
        self.at
    }

    pub fn entry(&mut self, name: &'static str) -> Option<&'a Entry> {
        self.known.push(name);
        let entry = self.entries.iter().rev().find(|entry| entry.key == name)?;
        (!matches!(entry.node.value, Value::Null)).then_some(entry)
    }

    pub fn optional<T>(&mut self, name: &'static str, parse: impl FnOnce(At<'_>) -> Option<T>) -> Option<T> {
        let entry = self.entry(name)?;
        let path = join(self.at.path, name);
        parse(At { node: &entry.node, path: &path, report: self.at.report })
    }

    pub fn or<T>(&mut self, name: &'static str, parse: impl FnOnce(At<'_>) -> Option<T>, default: T) -> T {
        self.optional(name, parse).unwrap_or(default)
    }

    pub fn required<T>(
        &mut self,
        name: &'static str,
        example: &str,
        parse: impl FnOnce(At<'_>) -> Option<T>,
    ) -> Option<T> {
        if self.entry(name).is_none() {
            let path = join(self.at.path, name);
            self.at.report.problem(
                self.at.node.place,
                &path,
                "the field is missing",
                format!("add `{name}: {example}`"),
            );
            return None;
        }
        self.optional(name, parse)
    }

    /// A field of the contract whose feature does not exist yet: refused, never ignored.
    pub fn not_built(&mut self, name: &'static str, cure: &str) {
        if let Some(entry) = self.entry(name) {
            self.at.report.problem(entry.place, &join(self.at.path, name), "not built yet", cure);
        }
    }

    /// Reports the keys nobody asked for.
    pub fn finish(self) {
        #[cfg(test)]
        self.at.report.known.borrow_mut().push((self.at.path.to_owned(), self.known.clone()));
        let mut known = self.known;
        let mut seen = HashSet::new();
        known.retain(|name| seen.insert(*name));
        for entry in self.entries.iter().filter(|entry| !seen.contains(entry.key.as_str())) {
            let cure = match nearest(&entry.key, &known) {
                Some(name) => format!("did you mean `{name}`?"),
                None => format!("known here: {}", known.join(", ")),
            };
            self.at.report.problem(entry.place, &join(self.at.path, &entry.key), "unknown key", cure);
        }
    }
}

/// The known name that is at most a third of its letters away.
fn nearest<'n>(word: &str, names: &[&'n str]) -> Option<&'n str> {
    let word = word.to_ascii_lowercase().replace('-', "_");
    names
        .iter()
        .map(|name| (distance(&word, name), *name))
        .min()
        .filter(|(distance, name)| *distance <= 1 + name.len() / 4)
        .map(|(_, name)| name)
}

/// Levenshtein distance, one row at a time.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
impl Report {
    /// Fields asked for, by the name that the schema gives to the mapping.
    pub fn known(&self) -> std::collections::BTreeMap<String, Vec<String>> {
        let mut known = std::collections::BTreeMap::new();
        for (path, names) in self.known.borrow().iter() {
            let section = match path.split(['[', '.']).next_back().filter(|last| !last.ends_with(']')) {
                Some("") => "Gateway",
                Some("lease") => "Lease",
                Some("limits") => "Limits",
                Some("price") => "Price",
                Some("slo") => "Slo",
                Some("max_request") => "Ceilings",
                Some("on_store_failure") => "Slice",
                Some("on_limit") => "OnLimitQueue",
                Some("queue") => "Queue",
                _ if path.contains("upstreams") => "Upstream",
                _ if path.starts_with("models") => "Model",
                _ if path.starts_with("keys") => "Key",
                _ if path.starts_with("tiers") => "Tier",
                _ if path.contains("].limits[") => "Limit",
                _ => "Rule",
            };
            let fields: &mut Vec<String> = known.entry(section.to_owned()).or_default();
            fields.extend(names.iter().map(|name| (*name).to_owned()));
            fields.sort();
            fields.dedup();
        }
        known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_near_name_is_suggested_and_a_far_one_is_not() {
        let names = ["default_max_tokens", "tokenizer", "price"];
        assert_eq!(nearest("default-max-token", &names), Some("default_max_tokens"));
        assert_eq!(nearest("tokeniser", &names), Some("tokenizer"));
        assert_eq!(nearest("colour", &names), None);
    }
}
