//! Which fields the file has, their defaults and their bounds. Quota rules are in `rules`; their schema twin is
//! in `schema`, and a test holds the two together.

use std::{cell::RefCell, collections::HashMap, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use sha2::{Digest, Sha256};
use wire::slo::Slo;

use super::{
    AccessLog, Config, Key, Lease, Limits, Model, OnExpiry, StoreUrl, TokenizerSource, Upstream, doubts, failure,
    holding, on_limit,
    read::{At, Fields},
    rules, tiers,
    units::{duration, size},
    upstream_url::UpstreamUrl,
};
use crate::quota::{Level, Price, RedisAddress, Tier};

/// Beyond this no model generates, and sums stay far from overflow.
pub(super) const MAX_TOKENS: u64 = 10_000_000;

pub(super) fn file(at: At<'_>) -> Option<Config> {
    let mut fields = at.fields()?;
    let listen = fields.or("listen", address, SocketAddr::from(([127, 0, 0, 1], 8080)));
    let admin = fields.or("admin", address, SocketAddr::from(([127, 0, 0, 1], 9090)));
    let store = fields.or("store", store, StoreUrl::Memory);
    let store_timeout = fields.or("store_timeout", failure::store_timeout, failure::STORE_TIMEOUT);
    let replicas = fields.or("replicas", |at| at.whole(1, 10_000), 1) as usize;
    let data_dir = fields.or("data_dir", path, PathBuf::from("./penstock-data"));
    let lease = fields.optional("lease", lease).unwrap_or(DEFAULT_LEASE);
    let limits = fields.optional("limits", limits).unwrap_or(DEFAULT_LIMITS);
    let access_log = fields.or("access_log", access_log, AccessLog::Stdout);
    let models = fields.required("models", "[{ name: .., upstreams: [..] }]", |at| at.list(model));
    let tiers = fields.optional("tiers", tiers::tiers).unwrap_or_default();
    let keys = fields.required("keys", "[{ secret: .., org: .. }]", |at| keys(at, &tiers));
    let quotas = fields.optional("quotas", |at| at.list(rules::rule)).unwrap_or_default();
    unique_names(&mut fields);
    fields.finish();
    let (models, keys) = (models?, keys?);
    rules::cross_check(at, &quotas, &models, &keys);
    failure::cross_check(at, &quotas, replicas);
    doubts::cross_check(at, &quotas, &models, &keys);
    if listen == admin && listen.port() != 0 {
        at.report.problem(at.node.place, "admin", "the address is also that of listen", "write another port");
    }
    on_limit::cross_check(at, &quotas);
    in_one_slot(at, &store, &quotas);
    holding::cross_check(at, &quotas, &models, &keys);
    let quotas = quotas.into_iter().map(|placed| placed.rule).collect();
    Some(Config {
        listen,
        admin,
        store,
        store_timeout,
        replicas,
        data_dir,
        lease,
        limits,
        access_log,
        models,
        keys,
        tiers,
        quotas,
        digest: [0; 32],
        warnings: Vec::new(),
    })
}

fn address(at: At<'_>) -> Option<SocketAddr> {
    let text = at.text()?;
    match text.parse() {
        Ok(address) => Some(address),
        Err(_) => {
            at.problem(format!("{} is not an address", at.shown()), "write an IP address and a port: 127.0.0.1:8080")
        }
    }
}

fn path(at: At<'_>) -> Option<PathBuf> {
    at.text().map(PathBuf::from)
}

const STORE_ADDRESS: &str =
    "write memory, redis://host:6379/0, redis+sentinel://host:26379,host:26379/GROUP/0 or redis+cluster://host:6379";

fn store(at: At<'_>) -> Option<StoreUrl> {
    let text = at.text()?;
    match text.split_once("://") {
        None if text == "memory" => Some(StoreUrl::Memory),
        Some(("redis" | "redis+sentinel" | "redis+cluster", _)) => match RedisAddress::parse(&text) {
            Ok(_usable) => Some(StoreUrl::Redis(text)),
            // Not shown: an address may hold a password.
            Err(why) => at.problem(format!("not an address of a store: {why}"), STORE_ADDRESS),
        },
        Some(("rediss", _)) => at.problem("TLS to the store is not built yet", "use redis:// on a private network"),
        Some(_) => at.problem("unknown kind of store", STORE_ADDRESS),
        None => at.problem("the store is neither memory nor an address", STORE_ADDRESS),
    }
}

/// On a Cluster each org has a slot of its own, and a script touches one.
fn in_one_slot(at: At<'_>, store: &StoreUrl, rules: &[rules::Placed]) {
    let StoreUrl::Redis(url) = store else { return };
    if !url.starts_with("redis+cluster://") {
        return;
    }
    for placed in rules.iter().filter(|placed| placed.rule.level == Level::Global) {
        at.report.problem(
            placed.place,
            &format!("{}.level", placed.path),
            "a global limit on a Cluster is not built yet",
            "use limits of each org, or a store of one primary: redis:// or redis+sentinel://",
        );
    }
}

const DEFAULT_LEASE: Lease = Lease { ttl: Duration::from_secs(60), on_expiry: OnExpiry::Charge };

fn lease(at: At<'_>) -> Option<Lease> {
    let mut fields = at.fields()?;
    let ttl = fields.or("ttl", lease_ttl, DEFAULT_LEASE.ttl);
    let choices = [("charge", OnExpiry::Charge), ("refund", OnExpiry::Refund)];
    let on_expiry = fields.or("on_expiry", |at| at.choice(&choices), DEFAULT_LEASE.on_expiry);
    fields.finish();
    Some(Lease { ttl, on_expiry })
}

/// Renewals go out at a third of it; under a second they would be most of the traffic.
fn lease_ttl(at: At<'_>) -> Option<Duration> {
    let ttl = duration(at)?;
    if ttl < Duration::from_secs(1) || ttl > Duration::from_secs(3600) {
        return at.problem("a lease lives from 1s to 1h", "write ttl: 60s");
    }
    Some(ttl)
}

const DEFAULT_LIMITS: Limits = Limits {
    body: 64 << 20,
    body_timeout: Duration::from_secs(60),
    body_budget: 1 << 30,
    in_flight: 10_000,
    header_timeout: Duration::from_secs(10),
    connect_timeout: Duration::from_secs(5),
    response_timeout: Duration::from_secs(600),
    idle_stream_timeout: Duration::from_secs(300),
    keepalive_interval: Duration::from_secs(15),
    drain: Duration::from_secs(300),
};

fn limits(at: At<'_>) -> Option<Limits> {
    let mut fields = at.fields()?;
    let body = fields.or("body", size, DEFAULT_LIMITS.body);
    let limits = Limits {
        body,
        body_timeout: fields.or("body_timeout", duration, DEFAULT_LIMITS.body_timeout),
        body_budget: fields.or("body_budget", |at| body_budget(at, body), DEFAULT_LIMITS.body_budget.max(body)),
        in_flight: fields.or("in_flight", |at| at.whole(1, 1_000_000), DEFAULT_LIMITS.in_flight as u64) as usize,
        header_timeout: fields.or("header_timeout", duration, DEFAULT_LIMITS.header_timeout),
        connect_timeout: fields.or("connect_timeout", duration, DEFAULT_LIMITS.connect_timeout),
        response_timeout: fields.or("response_timeout", duration, DEFAULT_LIMITS.response_timeout),
        idle_stream_timeout: fields.or("idle_stream_timeout", duration, DEFAULT_LIMITS.idle_stream_timeout),
        keepalive_interval: fields.or("keepalive_interval", duration, DEFAULT_LIMITS.keepalive_interval),
        drain: fields.or("drain", duration, DEFAULT_LIMITS.drain),
    };
    fields.finish();
    Some(limits)
}

fn body_budget(at: At<'_>, body: usize) -> Option<usize> {
    let budget = size(at)?;
    if budget < body {
        return at.problem("the budget of all bodies is smaller than one may be", "raise it, or lower limits.body");
    }
    Some(budget)
}

fn access_log(at: At<'_>) -> Option<AccessLog> {
    Some(match at.text()?.as_str() {
        "off" => AccessLog::Off,
        "stdout" => AccessLog::Stdout,
        file => AccessLog::File(file.into()),
    })
}

fn model(at: At<'_>) -> Option<Model> {
    let mut fields = at.fields()?;
    let name = fields.required("name", "my-model", |at| at.text());
    let aliases = fields.optional("aliases", |at| at.list(|at| at.text())).unwrap_or_default();
    let tokenizer = fields.or("tokenizer", tokenizer, TokenizerSource::Builtin("o200k_base".to_owned()));
    let default_max_tokens = fields.or("default_max_tokens", |at| at.whole(1, MAX_TOKENS), 1024);
    let price = fields.optional("price", price).unwrap_or_default();
    let slo = fields.optional("slo", slo);
    fields.not_built("route", "list the upstreams of the model instead");
    let upstreams = fields.required("upstreams", "[{ name: a, url: \"http://127.0.0.1:9099/v1\" }]", upstreams);
    fields.finish();
    Some(Model { name: name?, aliases, tokenizer, default_max_tokens, price, slo, upstreams: upstreams? })
}

fn tokenizer(at: At<'_>) -> Option<TokenizerSource> {
    let text = at.text()?;
    match text.split_once(':') {
        None if matches!(text.as_str(), "o200k_base" | "cl100k_base") => Some(TokenizerSource::Builtin(text)),
        None if text == "engine" => {
            at.problem("asking the engine is not built yet", "name its model file: gguf:PATH counts exactly alike")
        }
        Some(("gguf", path)) if !path.is_empty() => Some(TokenizerSource::Gguf(path.into())),
        Some(("file", path)) if !path.is_empty() => Some(TokenizerSource::File(path.into())),
        _ => at.problem(
            format!("unknown tokenizer {}", at.shown()),
            "write o200k_base, cl100k_base, gguf:PATH or file:PATH/tokenizer.json",
        ),
    }
}

fn price(at: At<'_>) -> Option<Price> {
    let mut fields = at.fields()?;
    let input = fields.or("input", |at| at.number(1e6), 0.0);
    let output = fields.or("output", |at| at.number(1e6), 0.0);
    fields.finish();
    Some(Price::per_million_usd(input, output))
}

fn slo(at: At<'_>) -> Option<Slo> {
    let mut fields = at.fields()?;
    let ttft = fields.required("ttft", "450ms", duration);
    let tpot = fields.required("tpot", "40ms", duration);
    fields.finish();
    Some(Slo { ttft: ttft?, tpot: tpot? })
}

fn upstreams(at: At<'_>) -> Option<Vec<Upstream>> {
    let seen = RefCell::new(HashMap::new());
    let upstreams = at.list(|at| {
        let upstream = upstream(at)?;
        if let Some(first) = seen.borrow_mut().insert(upstream.name.clone(), at.path.to_owned()) {
            return at.problem(format!("the name is also that of {first}"), "give each upstream a name of its own");
        }
        Some(upstream)
    })?;
    if upstreams.is_empty() {
        return at.problem("the list is empty", "name at least one upstream");
    }
    Some(upstreams)
}

fn upstream(at: At<'_>) -> Option<Upstream> {
    let mut fields = at.fields()?;
    let name = fields.required("name", "a", |at| at.text());
    let url = fields.required("url", "\"http://127.0.0.1:9099/v1\"", url);
    let api_key = fields.optional("api_key", header_text);
    let weight = fields.or("weight", |at| at.whole(1, 1_000_000), 1) as u32;
    let model = fields.optional("model", |at| at.text());
    fields.not_built("limits", "limits of a provider come later: put a limit under quotas for now");
    fields.finish();
    Some(Upstream { name: name?, url: url?, api_key, weight, model })
}

fn url(at: At<'_>) -> Option<UpstreamUrl> {
    match UpstreamUrl::parse(&at.text()?) {
        Ok(url) => Some(url),
        Err(error) => at.problem(error.to_string(), "write http://host:port/v1, https://host/v1 or unix:/path/to.sock"),
    }
}

/// A secret that travels in a header.
fn header_text(at: At<'_>) -> Option<String> {
    let text = at.text()?;
    if http::HeaderValue::from_str(&text).is_err() {
        return at
            .problem("the text has characters that no header may carry", "remove line ends and control characters");
    }
    Some(text)
}

/// One secret is one key: of two, the calls of one would be charged to the other.
fn keys(at: At<'_>, tiers: &[Arc<Tier>]) -> Option<Vec<Key>> {
    let seen = RefCell::new(HashMap::new());
    at.list(|at| {
        let key = key(at, tiers)?;
        if let Some(first) = seen.borrow_mut().insert(key.sha256, at.path.to_owned()) {
            return at.problem(format!("the secret is also that of {first}"), "give each key a secret of its own");
        }
        Some(key)
    })
}

fn key(at: At<'_>, tiers: &[Arc<Tier>]) -> Option<Key> {
    let mut fields = at.fields()?;
    let secret = fields.optional("secret", header_text);
    let digest = fields.optional("secret_sha256", sha256);
    let [org, app, user] = ["org", "app", "user"].map(|name| fields.optional(name, subject));
    let tier = fields.optional("tier", |at| tiers::named(at, tiers)).or_else(|| tiers.last().cloned());
    let sha256 = match (secret, digest) {
        (Some(secret), None) => Some(Sha256::digest(secret.trim()).into()),
        (None, Some(digest)) => Some(digest),
        (Some(_), Some(_)) => at.problem("both secret and secret_sha256 are given", "keep one of the two"),
        // A field that was given but wrong has its own message.
        (None, None) if fields.entry("secret").or(fields.entry("secret_sha256")).is_some() => None,
        (None, None) => at.problem("the key has no secret", "add `secret: \"${KEY}\"` or `secret_sha256: ..`"),
    };
    fields.finish();
    Some(Key { sha256: sha256?, org, app, user, tier })
}

fn sha256(at: At<'_>) -> Option<[u8; 32]> {
    let text = at.text()?;
    let byte = |index: usize| u8::from_str_radix(text.get(2 * index..2 * index + 2)?, 16).ok();
    let bytes: Option<Vec<u8>> = (0..32).map(byte).collect();
    match bytes.map(<[u8; 32]>::try_from) {
        Some(Ok(digest)) if text.len() == 64 => Some(digest),
        _ => at.problem("not a SHA-256 digest", "write its 64 hexadecimal digits"),
    }
}

/// One step of a subject's path.
pub(super) fn subject(at: At<'_>) -> Option<String> {
    let text = at.text()?;
    if text.contains(['/', '*']) || text.chars().any(char::is_control) || text.len() > 200 {
        return at.problem(
            format!("{} cannot be part of a subject path", at.shown()),
            "use a name of at most 200 bytes without / and *",
        );
    }
    Some(text)
}

/// Model names and aliases must be told apart.
fn unique_names(fields: &mut Fields<'_>) {
    use super::tree::Value;
    let mut taken: HashMap<String, String> = HashMap::new();
    let report = fields.at().report;
    let Some(entry) = fields.entry("models") else { return };
    let Value::List(models) = &entry.node.value else { return };
    for (index, model) in models.iter().enumerate() {
        let Value::Map(entries) = &model.value else { continue };
        for entry in entries.iter().filter(|entry| matches!(entry.key.as_str(), "name" | "aliases")) {
            let path = format!("models[{index}].{}", entry.key);
            let names: Vec<_> = match &entry.node.value {
                Value::List(items) => items.iter().collect(),
                _ => vec![&entry.node],
            };
            for node in names {
                let Value::Text { text, .. } = &node.value else { continue };
                if let Some(first) = taken.insert(text.clone(), path.clone()) {
                    let message = format!("the model name {} is already taken by {first}", node.value.describe());
                    report.problem(node.place, &path, message, "give each model and alias its own name");
                }
            }
        }
    }
}
