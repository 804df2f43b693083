//! The JSON Schema of the file, for editors. These types are only described, never read into: reading is the
//! part of `sections` and `rules`, and a test compares the two field by field.

#[cfg(test)]
use std::collections::BTreeMap;

use schemars::JsonSchema;

/// The JSON Schema that `penstock config schema` prints.
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(Gateway).to_value()
}

/// A duration such as `250ms`, `30s`, `5m`, `2h`.
type Duration = String;
/// A size such as `512KiB`, `64MiB`.
type Size = String;

/// Configuration of the Penstock gateway. `${NAME}` in any value is replaced from the environment.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
#[expect(dead_code, reason = "only its shape is used, by the derive")]
struct Gateway {
    /// Address of the API, an IP and a port.
    listen: Option<String>,
    /// Address of /metrics, /healthz, /livez and /readyz.
    admin: Option<String>,
    /// `memory`, `redis://host:6379/0`, `redis+cluster://host:6379,host:6379` (any of its nodes, without `level: global`), or
    /// `redis+sentinel://host:26379,host:26379/GROUP/0`, where GROUP is the name under which
    /// the sentinels watch the servers. A login before the hosts is that of the servers; that of the sentinels comes last:
    /// `?sentinel_user=U&sentinel_password=P`.
    store: Option<String>,
    /// The longest that a call waits for a store that says nothing, 5ms to 10s.
    store_timeout: Option<Duration>,
    /// The most gateways that share the store at a time; a slice is divided by it.
    replicas: Option<u64>,
    /// The only folder that the gateway writes to.
    data_dir: Option<String>,
    lease: Option<Lease>,
    limits: Option<Limits>,
    /// `stdout`, `off`, or a file: one JSON line per call.
    access_log: Option<String>,
    models: Vec<Model>,
    keys: Vec<Key>,
    /// The highest first; at most 16. A key without `tier` is of the last.
    tiers: Option<Vec<Tier>>,
    quotas: Option<Vec<Rule>>,
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
#[expect(dead_code, reason = "only its shape is used, by the derive")]
struct Lease {
    /// How long a reservation lives without renewal.
    ttl: Option<Duration>,
    /// What an expired lease costs: its last checkpoint, or nothing.
    on_expiry: Option<OnExpiry>,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "lowercase")]
#[expect(dead_code, reason = "only its shape is used, by the derive")]
enum OnExpiry {
    Charge,
    Refund,
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
#[expect(dead_code, reason = "only its shape is used, by the derive")]
struct Limits {
    /// The largest request body; more is answered 413 at once.
    body: Option<Size>,
    /// For all of a request body to arrive.
    body_timeout: Option<Duration>,
    /// Request bodies held at the same time; a call that gets no room in time is answered 503.
    body_budget: Option<Size>,
    /// Calls at the same time; more are answered 503 at once.
    in_flight: Option<u64>,
    /// For the head of a client's request.
    header_timeout: Option<Duration>,
    /// For a connection to an upstream.
    connect_timeout: Option<Duration>,
    /// For the head of an upstream's answer.
    response_timeout: Option<Duration>,
    /// Between two pieces of a body.
    idle_stream_timeout: Option<Duration>,
    /// A comment is sent into a silent stream this often.
    keepalive_interval: Option<Duration>,
    /// For running answers to end after SIGTERM or SIGINT; those still running are cut then, and settled.
    drain: Option<Duration>,
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
#[expect(dead_code, reason = "only its shape is used, by the derive")]
struct Model {
    /// What the client asks for.
    name: String,
    aliases: Option<Vec<String>>,
    /// `o200k_base`, `cl100k_base`, `gguf:PATH` or `file:PATH/tokenizer.json`.
    tokenizer: Option<String>,
    /// Reserved for the answer when the request names no cap.
    default_max_tokens: Option<u64>,
    price: Option<Price>,
    slo: Option<Slo>,
    upstreams: Vec<Upstream>,
}

/// USD per million tokens.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
#[expect(dead_code, reason = "only its shape is used, by the derive")]
struct Price {
    input: Option<f64>,
    output: Option<f64>,
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
#[expect(dead_code, reason = "only its shape is used, by the derive")]
struct Slo {
    /// Time to the first token.
    ttft: Duration,
    /// Mean time per token after the first.
    tpot: Duration,
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
#[expect(dead_code, reason = "only its shape is used, by the derive")]
struct Upstream {
    name: String,
    /// `http://host:port/v1`, `https://host/v1` or `unix:/path/to.sock`.
    url: String,
    api_key: Option<String>,
    /// Share of the calls, against the other upstreams of the model.
    weight: Option<u32>,
    /// What this upstream calls the model, if not by our name.
    model: Option<String>,
}

/// A client key: `secret` or `secret_sha256`, and whose it is.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
#[expect(dead_code, reason = "only its shape is used, by the derive")]
struct Key {
    secret: Option<String>,
    /// 64 hexadecimal digits.
    secret_sha256: Option<String>,
    org: Option<String>,
    app: Option<String>,
    user: Option<String>,
    /// The name of one of `tiers`.
    tier: Option<String>,
}

/// How calls of some keys stand against those of others.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
#[expect(dead_code, reason = "only its shape is used, by the derive")]
struct Tier {
    name: String,
    /// `1`: the order between tiers is strict, and within one all are equal.
    weight: Option<f64>,
    /// The share of every limit that lower tiers leave to this one, from 0 and below 1. Not in the last tier.
    reserve: Option<f64>,
    /// While calls of this tier wait, at least this share of the tokens granted in their queue is theirs, whatever higher
    /// tiers ask for; 0.05. So the next one waits at most until higher tiers were granted its need divided by the share.
    /// Not in the first tier.
    min_share: Option<f64>,
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
#[expect(dead_code, reason = "only its shape is used, by the derive")]
struct Rule {
    level: Level,
    /// A name, a glob, or `*` for each. Not with `level: global`.
    r#match: Option<String>,
    models: Option<Vec<String>>,
    /// The account keeps its use under this name when the rule moves.
    name: Option<String>,
    limits: Vec<Limit>,
    /// How much of its output a call holds.
    hold: Option<Hold>,
    /// With `hold: calibrated`: how many times what it holds a call may use when the limits have nothing left (1 to 1000, 2
    /// when absent). Beyond its limits it goes by (hold_cap - 1) times its held output and one event of the upstream at most.
    hold_cap: Option<f64>,
    /// What becomes of a call that uses up its hold and goes on. A whole answer cannot be stopped: it is always charged.
    overrun: Option<Overrun>,
    /// `reject`, or wait in a queue of the account.
    on_limit: Option<OnLimit>,
    /// What these limits mean while the store is down.
    on_store_failure: Option<OnStoreFailure>,
    /// Count and never refuse; what it would have refused is in the metrics and the access log.
    shadow: Option<bool>,
}

/// `worst_case`: all that it may use, by its own cap or the model's default. `calibrated`: what 99 of 100 answers of this key's
/// subject by this model have not exceeded, once 200 have ended, and the worst case until then; a stream asks for a quarter
/// more of it before it is used up, and goes on up to `hold_cap` when that is refused. Of 100 answers about one exceeds its
/// hold; a whole answer that does is charged. Holds where every rule says so that counts the output of a call.
#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
#[expect(dead_code, reason = "only its shape is used, by the derive")]
enum Hold {
    WorstCase,
    Calibrated,
}

/// `charge`: it goes on, and what it uses beyond is debt that the next calls wait out. `stop`: a stream goes on while more
/// can be held for it, a quarter of its hold at a time, and is ended with `finish_reason: length` when nothing is left; at
/// most one event of the upstream goes beyond the limit.
#[derive(JsonSchema)]
#[schemars(rename_all = "lowercase")]
#[expect(dead_code, reason = "only its shape is used, by the derive")]
enum Overrun {
    Charge,
    Stop,
}

#[derive(JsonSchema)]
#[schemars(untagged)]
#[expect(dead_code, reason = "only its shape is used, by the derive")]
enum OnLimit {
    Reject(Reject),
    Queue(OnLimitQueue),
}

#[derive(JsonSchema)]
#[schemars(rename_all = "lowercase")]
#[expect(dead_code, reason = "only its shape is used, by the derive")]
enum Reject {
    Reject,
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
#[expect(dead_code, reason = "only its shape is used, by the derive")]
struct OnLimitQueue {
    queue: Queue,
}

/// Calls wait for their turn, in one queue per account whatever limit is in the way: one that would fit waits too where others
/// do, so give models that should not wait for each other rules without a queue. The highest tier first, then the child of the account (app of an org, user of an app) that was
/// served the fewest tokens, then in order of arrival. Of one gateway at most half of `limits.in_flight` calls and half of
/// `limits.body_budget` wait. A call waits no longer than `max_wait`, its header `x-penstock-deadline-ms`, or
/// `x-stainless-timeout` less a second; one whose turn would not come in time is refused at once.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
#[expect(dead_code, reason = "only its shape is used, by the derive")]
struct Queue {
    /// The longest that a call waits; 20s, at most 1h.
    max_wait: Option<Duration>,
    /// Calls of each tier that wait at once for one account; 1000. More are refused at once.
    depth: Option<u64>,
}

#[derive(JsonSchema)]
#[schemars(untagged)]
#[expect(dead_code, reason = "only its shape is used, by the derive")]
enum OnStoreFailure {
    Whole(Whole),
    Slice(Slice),
}

/// Admit nothing, or everything.
#[derive(JsonSchema)]
#[schemars(rename_all = "lowercase")]
#[expect(dead_code, reason = "only its shape is used, by the derive")]
enum Whole {
    Closed,
    Open,
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
#[expect(dead_code, reason = "only its shape is used, by the derive")]
struct Slice {
    /// The share of each limit that all gateways together may admit in one outage, above 0 and at most 1.
    slice: f64,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "lowercase")]
#[expect(dead_code, reason = "only its shape is used, by the derive")]
enum Level {
    User,
    App,
    Org,
    Global,
}

/// Exactly one of the units, or `max_request`.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
#[expect(dead_code, reason = "only its shape is used, by the derive")]
struct Limit {
    tokens: Option<u64>,
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    requests: Option<u64>,
    usd: Option<f64>,
    concurrency: Option<u64>,
    /// What one request may ask for at most: `tokens`, `usd`.
    max_request: Option<Ceilings>,
    per: Option<Per>,
    /// At most this much at once (bucket windows); the limit itself when absent.
    burst: Option<f64>,
    window: Option<WindowKind>,
    /// IANA name, for calendar windows.
    timezone: Option<String>,
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
#[expect(dead_code, reason = "only its shape is used, by the derive")]
struct Ceilings {
    tokens: Option<u64>,
    usd: Option<f64>,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "lowercase")]
#[expect(dead_code, reason = "only its shape is used, by the derive")]
enum Per {
    Second,
    Minute,
    Hour,
    Day,
    Month,
    Lifetime,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "lowercase")]
#[expect(dead_code, reason = "only its shape is used, by the derive")]
enum WindowKind {
    Bucket,
    Calendar,
}

/// Property names of each described mapping, for the comparison with what is read.
#[cfg(test)]
pub(super) fn properties() -> BTreeMap<String, Vec<String>> {
    let schema = schema();
    let mut out = BTreeMap::from([("Gateway".to_owned(), keys(&schema))]);
    for (name, part) in schema["$defs"].as_object().into_iter().flatten() {
        if part["properties"].is_object() {
            out.insert(name.clone(), keys(part));
        }
    }
    out
}

#[cfg(test)]
fn keys(schema: &serde_json::Value) -> Vec<String> {
    let mut keys: Vec<String> =
        schema["properties"].as_object().into_iter().flatten().map(|(k, _)| k.clone()).collect();
    keys.sort();
    keys
}
