//! The models that exist, by name and alias, ready to serve: tokenizer loaded, prices and upstream requests prepared.

use std::{collections::HashMap, sync::Arc};

use http::{HeaderValue, Uri};
use prometheus::IntCounter;
use tokenizer::PromptCounter;
use wire::{openai, slo::Slo};

use crate::{
    StartError,
    config::{self, TokenizerSource},
    demand::{self, LoadError},
    events::{Events, ModelEvents},
    pace::Pace,
    paths::Endpoint,
    quota::Price,
    upstreams::Pool,
};

pub struct Catalogue {
    names: HashMap<String, Name>,
    /// Of the list that clients see, in the order of the file.
    models: Vec<Arc<Model>>,
}

/// A name a client may ask for.
pub struct Name {
    /// Dense, for tables kept per name.
    pub index: usize,
    pub model: Arc<Model>,
}

pub struct Model {
    pub name: String,
    aliases: Vec<String>,
    tokenizer: TokenizerSource,
    pub counter: PromptCounter,
    pub default_max_tokens: u64,
    pub price: Price,
    pub slo: Option<Slo>,
    pub upstreams: Vec<Arc<Upstream>>,
    pub pace: Arc<Pace>,
    pub events: ModelEvents,
    pub header: HeaderValue,
}

pub struct Upstream {
    pub name: String,
    pub weight: u32,
    /// What it calls the model.
    pub model: String,
    pub host: HeaderValue,
    pub authorization: Option<HeaderValue>,
    pub header: HeaderValue,
    /// The bundled engine: it alone is reached over a Unix socket.
    pub is_engine: bool,
    /// Bytes read from it.
    pub received: IntCounter,
    /// Where to connect; only scheme and authority count.
    pub origin: Uri,
    pub pool: Arc<Pool>,
    chat: Uri,
    completions: Uri,
    embeddings: Uri,
}

impl Catalogue {
    /// Checked here as well as in the file: a caller may put models together, and of two with one name the later would
    /// take the calls, and the quotas, of the first.
    ///
    /// What `former` has loaded and learned of a model serves on, unless the model's tokenizer is another now.
    pub fn new(models: &[config::Model], events: &Events, former: Option<&Self>) -> Result<Self, StartError> {
        let mut catalogue = Self { names: HashMap::new(), models: Vec::with_capacity(models.len()) };
        for model in models {
            let former = former.and_then(|former| former.models.iter().find(|known| known.name == model.name));
            let model = Arc::new(Model::new(model, events, former.map(|former| &**former))?);
            for name in std::iter::once(&model.name).chain(&model.aliases) {
                let index = catalogue.names.len();
                if catalogue.names.insert(name.clone(), Name { index, model: model.clone() }).is_some() {
                    return Err(StartError::NameTaken(name.clone()));
                }
            }
            catalogue.models.push(model);
        }
        Ok(catalogue)
    }

    pub fn find(&self, name: &str) -> Option<&Name> {
        self.names.get(name)
    }

    /// How many names there are.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// From the configuration alone: no upstream is asked, so none can delay it.
    pub fn list(&self) -> openai::ModelList {
        let names = self.models.iter().flat_map(|model| std::iter::once(&model.name).chain(&model.aliases));
        openai::ModelList::new(names.map(|name| entry(name)).collect())
    }

    pub fn show(&self, name: &str) -> Option<openai::Model> {
        self.names.contains_key(name).then(|| entry(name))
    }
}

fn entry(name: &str) -> openai::Model {
    openai::Model::new(name, 0, "penstock")
}

impl Model {
    fn new(config: &config::Model, events: &Events, former: Option<&Self>) -> Result<Self, LoadError> {
        let counter = match former.filter(|former| former.tokenizer == config.tokenizer) {
            Some(former) => former.counter.clone(),
            None => demand::load(&config.name, &config.tokenizer)?,
        };
        let upstream = |upstream: &config::Upstream| {
            let known = former.and_then(|former| former.upstreams.iter().find(|known| known.name == upstream.name));
            Arc::new(Upstream::new(upstream, &config.name, events, known.map(|known| &**known)))
        };
        let upstreams = config.upstreams.iter().map(upstream).collect();
        Ok(Self {
            name: config.name.clone(),
            aliases: config.aliases.clone(),
            tokenizer: config.tokenizer.clone(),
            counter,
            default_max_tokens: config.default_max_tokens,
            price: config.price,
            slo: config.slo,
            upstreams,
            pace: former.map(|former| former.pace.clone()).unwrap_or_default(),
            events: events.model(&config.name),
            header: header_of(&config.name),
        })
    }
}

impl Upstream {
    /// The open connections of `former` serve on, if they lead to the same place.
    fn new(config: &config::Upstream, model: &str, events: &Events, former: Option<&Self>) -> Self {
        let authorization = config.api_key.as_ref().map(|key| {
            let mut value = header_of(&format!("Bearer {key}"));
            value.set_sensitive(true);
            value
        });
        let path = |endpoint: Endpoint| origin_form(&config.url.join(endpoint.path()));
        let origin = config.url.join("");
        let pool = former.filter(|former| former.origin == origin).map(|former| former.pool.clone());
        Self {
            name: config.name.clone(),
            weight: config.weight,
            model: config.model.clone().unwrap_or_else(|| model.to_owned()),
            host: header_of(config.url.host()),
            authorization,
            header: header_of(&config.name),
            is_engine: config.url.transport == config::Transport::Unix,
            received: events.received_bytes(model, &config.name),
            origin,
            pool: pool.unwrap_or_default(),
            chat: path(Endpoint::ChatCompletions),
            completions: path(Endpoint::Completions),
            embeddings: path(Endpoint::Embeddings),
        }
    }

    /// As it stands in a request's first line.
    pub fn path(&self, endpoint: Endpoint) -> &Uri {
        match endpoint {
            Endpoint::ChatCompletions => &self.chat,
            Endpoint::Completions => &self.completions,
            Endpoint::Embeddings => &self.embeddings,
        }
    }
}

/// Without scheme and authority: what a server that is not a proxy expects (RFC 9112, 3.2.1).
fn origin_form(address: &Uri) -> Uri {
    address.path_and_query().map_or_else(Uri::default, |path| Uri::from(path.clone()))
}

/// Names may have any letters; what no header may carry is left out of it.
fn header_of(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or_else(|_| {
        let plain: String = text.chars().filter(|c| c.is_ascii_graphic() || *c == ' ').collect();
        HeaderValue::from_str(&plain).unwrap_or(HeaderValue::from_static("-"))
    })
}
