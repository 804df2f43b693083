//! Golden counts: how many tokens independent implementations, or OpenAI's own API, found in a prompt. A file's name
//! says what it holds, and of which model. Counting the same prompts is `measured`'s part.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::Context;
use serde::Deserialize;
use serde_json::Value;

const BUILT_IN: &[(&str, &str)] = &[
    ("smollm2_tokenize.json", include_str!("../../../../tests/golden/smollm2_tokenize.json")),
    ("smollm2_chat_template.json", include_str!("../../../../tests/golden/smollm2_chat_template.json")),
    ("smollm2_perplexity.json", include_str!("../../../../tests/golden/smollm2_perplexity.json")),
    ("gemma3_tokenize.json", include_str!("../../../../tests/golden/gemma3_tokenize.json")),
    ("gemma3_perplexity.json", include_str!("../../../../tests/golden/gemma3_perplexity.json")),
    ("openai_chat_counts.json", include_str!("../../../../tests/golden/openai_chat_counts.json")),
    ("openai_text_counts.json", include_str!("../../../../tests/golden/openai_text_counts.json")),
    ("text_dev.txt", include_str!("../../../../tests/golden/text_dev.txt")),
];
const ENCODINGS: [&str; 2] = ["cl100k_base", "o200k_base"];

/// The texts of golden files by name.
pub struct Files(BTreeMap<String, String>);

impl Files {
    pub fn built_in() -> Self {
        Self(BUILT_IN.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect())
    }

    pub fn read(folder: &Path) -> anyhow::Result<Self> {
        let context = || format!("cannot read golden counts in {}", folder.display());
        let mut files = BTreeMap::new();
        for entry in fs::read_dir(folder).with_context(context)? {
            let path = entry.with_context(context)?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if Kind::of(&name).is_some() || name.ends_with(".txt") {
                files.insert(name, fs::read_to_string(&path).with_context(context)?);
            }
        }
        anyhow::ensure!(
            files.keys().any(|name| Kind::of(name).is_some()),
            "{} holds no golden counts: files such as smollm2_tokenize.json or openai_chat_counts.json",
            folder.display()
        );
        Ok(Self(files))
    }

    fn text(&self, name: &str) -> anyhow::Result<&str> {
        self.0.get(name).map(String::as_str).with_context(|| format!("the golden file {name} is missing"))
    }
}

/// What a file holds; the first four name their model.
#[derive(Clone, Copy)]
enum Kind<'n> {
    Tokenize(&'n str),
    ChatTemplate(&'n str),
    Perplexity(&'n str),
    ChatCounts,
    TextCounts,
}

impl<'n> Kind<'n> {
    fn of(name: &'n str) -> Option<Self> {
        match name {
            "openai_chat_counts.json" => return Some(Self::ChatCounts),
            "openai_text_counts.json" => return Some(Self::TextCounts),
            _ => {}
        }
        let of = |end: &str| name.strip_suffix(end);
        of("_tokenize.json")
            .map(Self::Tokenize)
            .or_else(|| of("_chat_template.json").map(Self::ChatTemplate))
            .or_else(|| of("_perplexity.json").map(Self::Perplexity))
    }
}

/// One prompt and its true count.
pub struct Case {
    pub id: String,
    pub prompt: Prompt,
    pub tokens: u64,
}

pub enum Prompt {
    /// Begins with the model's begin token, or is counted without it.
    Text { text: String, begins: bool },
    /// A chat request.
    Chat(Value),
}

/// The fields of an item of any of the files.
#[derive(Deserialize)]
struct Item {
    id: String,
    text: Option<String>,
    text_file: Option<String>,
    unit: Option<String>,
    times: Option<usize>,
    ids: Option<Vec<u32>>,
    #[serde(default)]
    add_special: bool,
    #[serde(default)]
    parse_special: bool,
    #[serde(default)]
    add_generation_prompt: bool,
    note: Option<String>,
    prompt_tokens: Option<u64>,
    /// Counts by encoding among them.
    #[serde(flatten)]
    rest: Value,
}

impl Files {
    /// All prompts by model: a bundled one by its name, or an encoding.
    pub fn cases(&self) -> anyhow::Result<BTreeMap<String, Vec<Case>>> {
        let mut cases: BTreeMap<String, Vec<Case>> = BTreeMap::new();
        for (name, text) in &self.0 {
            let Some(kind) = Kind::of(name) else { continue };
            let context = || format!("the golden file {name} is not as expected");
            let file: Value = serde_json::from_str(text).with_context(context)?;
            for (model, case) in self.cases_in(kind, &file).with_context(context)? {
                cases.entry(model).or_default().push(case);
            }
        }
        Ok(cases)
    }

    fn cases_in(&self, kind: Kind<'_>, file: &Value) -> anyhow::Result<Vec<(String, Case)>> {
        if let Kind::Perplexity(model) = kind {
            return Ok(vec![(model.to_owned(), self.perplexity(file)?)]);
        }
        let mut cases = Vec::new();
        for value in file["items"].as_array().context("it has no list `items`")? {
            let item = Item::deserialize(value)?;
            match kind {
                Kind::Tokenize(model) => cases.extend(item.tokenized().map(|case| (model.to_owned(), case))),
                Kind::ChatTemplate(model) => cases.extend(item.chat(value).map(|case| (model.to_owned(), case))),
                Kind::ChatCounts => {
                    let encoding = file["encoding"].as_str().context("it names no `encoding`")?;
                    let tokens = item.prompt_tokens.context("an item has no `prompt_tokens`")?;
                    let case = Case { id: item.id, prompt: Prompt::Chat(value.clone()), tokens };
                    cases.push((encoding.to_owned(), case));
                }
                Kind::TextCounts => cases.extend(self.counted(&item)?),
                Kind::Perplexity(_) => {}
            }
        }
        Ok(cases)
    }

    /// One long text.
    fn perplexity(&self, file: &Value) -> anyhow::Result<Case> {
        let name = file["text_file"].as_str().context("it names no `text_file`")?;
        let tokens = file["ids"].as_array().context("it has no list `ids`")?.len() as u64;
        let begins = file["add_bos"] == true;
        let prompt = Prompt::Text { text: self.text(name)?.to_owned(), begins };
        Ok(Case { id: name.to_owned(), prompt, tokens })
    }

    /// A text with its count in each encoding.
    fn counted(&self, item: &Item) -> anyhow::Result<Vec<(String, Case)>> {
        let text = match (&item.text, &item.unit, &item.text_file) {
            (Some(text), ..) => text.clone(),
            (_, Some(unit), _) => unit.repeat(item.times.unwrap_or(1)),
            (.., Some(file)) => self.text(file)?.to_owned(),
            _ => anyhow::bail!("item {} has no text", item.id),
        };
        let counts = ENCODINGS.iter().filter_map(|encoding| Some((*encoding, item.rest[*encoding].as_u64()?)));
        Ok(counts
            .map(|(encoding, tokens)| {
                let prompt = Prompt::Text { text: text.clone(), begins: false };
                (encoding.to_owned(), Case { id: item.id.clone(), prompt, tokens })
            })
            .collect())
    }
}

impl Item {
    /// A gateway takes what a prompt spells as text, never as control tokens: items that parse them say nothing of it.
    fn tokenized(self) -> Option<Case> {
        let (text, tokens) = (self.text?, self.ids?.len() as u64);
        let prompt = Prompt::Text { text, begins: self.add_special };
        (!self.parse_special).then_some(Case { id: self.id, prompt, tokens })
    }

    /// Requests always ask for an answer, so an item without its beginning is none; one with a note has ids that a
    /// safe server does not make.
    fn chat(self, value: &Value) -> Option<Case> {
        let tokens = self.ids?.len() as u64;
        let is_request = self.add_generation_prompt && self.note.is_none();
        is_request.then(|| Case { id: self.id, prompt: Prompt::Chat(value.clone()), tokens })
    }
}
