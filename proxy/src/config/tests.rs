//! The file as its author sees it: what is accepted, and what is said about each mistake.

use std::collections::{BTreeMap, HashMap};

use super::*;

/// A file with every field that exists.
const FULL: &str = r#"
listen: 127.0.0.1:8080
admin: 127.0.0.1:9090
store: memory
store_timeout: 50ms
replicas: 2
data_dir: ./penstock-data
lease: { ttl: 60s, on_expiry: charge }
limits: { body: 64MiB, body_timeout: 60s, body_budget: 1GiB, in_flight: 10000, header_timeout: 10s, connect_timeout: 5s, response_timeout: 600s, idle_stream_timeout: 300s, keepalive_interval: 15s, drain: 300s }
access_log: "off"
models:
  - name: mock-model
    aliases: [mock, small]
    tokenizer: o200k_base
    default_max_tokens: 1024
    price: { input: 0.15, output: 0.60 }
    slo: { ttft: 450ms, tpot: 40ms }
    upstreams:
      - { name: a, url: "http://127.0.0.1:9099/v1", api_key: "${UPSTREAM_KEY}", weight: 1, model: gpt-x }
keys:
  - { secret: "${KEY_A}", user: ana, app: web, org: acme, tier: premium }
  - { secret_sha256: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", org: beta }
tiers:
  - { name: premium, weight: 1, reserve: 0.2 }
  - { name: standard, min_share: 0.1 }
quotas:
  - level: org
    match: acme
    models: ["*"]
    name: acme-tokens
    limits:
      - { tokens: 100000, per: minute, burst: 100000 }
      - { usd: 500, per: month, window: calendar, timezone: Europe/Lisbon }
      - { concurrency: 50 }
      - { requests: 5, per: lifetime }
      - { max_request: { tokens: 200000, usd: 2 } }
    hold: calibrated
    hold_cap: 1.5
    overrun: charge
    on_limit: reject
    on_store_failure: closed
    shadow: false
  - level: global
    limits: [ { input_tokens: 90, per: day }, { output_tokens: 2000, per: second } ]
    on_store_failure: { slice: 0.05 }
    shadow: true
  - level: user
    match: "*"
    limits: [ { concurrency: 2 } ]
    on_limit: { queue: { max_wait: 5s, depth: 10 } }
"#;

const MODELS: &str = "models: [{ name: m, upstreams: [{ name: a, url: 'http://h/v1' }] }]\n";
const KEYS: &str = "keys: [{ secret: k, org: acme, user: ana }]\n";

fn env() -> HashMap<String, String> {
    HashMap::from([("UPSTREAM_KEY", "up"), ("KEY_A", "ka"), ("LIMIT", "7")].map(|(k, v)| (k.into(), v.into())))
}

fn problems(text: &str) -> Vec<String> {
    match check(text, "p.yaml", &env()) {
        Ok(_) => Vec::new(),
        Err(problems) => problems.iter().map(Problem::to_string).collect(),
    }
}

#[test]
fn a_file_with_every_field_is_accepted() {
    let config = check(FULL, "p.yaml", &env()).unwrap_or_else(|problems| panic!("{problems:#?}"));
    assert_eq!(config.models[0].upstreams[0].api_key.as_deref(), Some("up"));
    assert_eq!(config.quotas[0].limits.len(), 4);
    assert_eq!(config.quotas[0].ceilings.nano_usd, Some(2_000_000_000));
    assert_eq!([config.quotas[0].shadow, config.quotas[1].shadow], [false, true]);
    let wait = quota::Wait { most: Duration::from_secs(5), depth: 10 };
    assert_eq!(config.quotas[2].on_limit, quota::OnLimit::Queue(wait));
    assert_eq!(config.limits.body, 64 << 20);
    assert_eq!(config.warnings, Vec::new());
}

#[test]
fn a_tier_leaves_what_those_above_it_keep_and_a_key_without_one_is_of_the_last() {
    let text = format!(
        "tiers: [{{ name: a, reserve: 0.2 }}, {{ name: b, reserve: 0.3 }}, {{ name: c }}]\n{MODELS}\
         keys: [{{ secret: j, tier: a }}, {{ secret: k, tier: b }}, {{ secret: l }}]\n"
    );
    let config = check(&text, "p.yaml", &env()).expect("valid");
    let of = |key: &Key| key.tier.as_ref().map(|tier| (tier.name.clone(), tier.rank, tier.kept)).expect("a tier");
    let expect = [("a", 0, 0.0), ("b", 1, 0.2), ("c", 2, 0.5)];
    let expect = expect.map(|(name, rank, kept)| (name.to_owned(), rank, quota::Share::new(kept)));
    assert_eq!(config.keys.iter().map(of).collect::<Vec<_>>(), expect);
    let without = check(&format!("{MODELS}{KEYS}"), "p.yaml", &env()).expect("valid");
    assert_eq!(without.keys[0].tier, None);
}

#[test]
fn what_takes_a_restart_is_named() {
    let config = |text: &str| check(text, "p.yaml", &env()).unwrap_or_else(|problems| panic!("{text}\n{problems:#?}"));
    let started = config(FULL);
    for (from, to, expect) in [
        ("listen: 127.0.0.1:8080", "listen: 127.0.0.1:8081", &["listen"][..]),
        ("admin: 127.0.0.1:9090\nstore: memory", "admin: 127.0.0.1:9091\nstore: redis://h", &["admin", "store"]),
        ("store_timeout: 50ms\nreplicas: 2", "store_timeout: 60ms\nreplicas: 3", &["store_timeout", "replicas"]),
        ("./penstock-data\nlease: { ttl: 60s", "./other\nlease: { ttl: 61s", &["data_dir", "lease"]),
        ("in_flight: 10000", "in_flight: 9", &["limits"]),
        ("access_log: \"off\"", "access_log: stdout", &["access_log"]),
        ("tokens: 100000", "tokens: 5", &[]),
    ] {
        assert!(FULL.contains(from), "{from}");
        let edited = config(&FULL.replace(from, to));
        assert_eq!(edited.needs_restart(&started), expect, "{to}");
        assert_ne!(edited.digest, started.digest);
    }
}

#[test]
fn a_number_may_come_from_the_environment() {
    let text =
        format!("{MODELS}{KEYS}quotas: [{{ level: global, limits: [{{ requests: \"${{LIMIT}}\", per: day }}] }}]");
    let config = check(&text, "p.yaml", &env()).expect("valid");
    assert_eq!(config.quotas[0].limits[0].amount, 7);
}

/// Each mistake: what is added to a valid file, and what the one problem must say.
#[test]
fn each_mistake_names_place_field_and_cure() {
    for (added, expect) in [
        ("lisen: 1", "p.yaml:3:1: lisen: unknown key; did you mean `listen`?"),
        ("store: memory\nstore: memory", "p.yaml:4:1: store: the key is given twice"),
        ("listen: 127.0.0.1:80\nadmin: 127.0.0.1:80", "admin: the address is also that of listen; write another port"),
        ("listen: 8080", "p.yaml:3:9: listen: 8080 is not an address; write an IP address and a port"),
        ("limits: { body: 64mib }", "p.yaml:3:17: limits.body: expected a size"),
        ("limits: { body_budget: 1MiB }", "limits.body_budget: the budget of all bodies is smaller than one may be"),
        ("limits: { in_flight: 0 }", "limits.in_flight: 0 is out of range; write a number from 1 to"),
        ("limits: { header_timeout: 10 }", "limits.header_timeout: expected a duration, found 10"),
        (
            "lease: { ttl: 60s, on_expiry: forgive }",
            "lease.on_expiry: unknown value \"forgive\"; write one of charge, refund",
        ),
        ("lease: 60s", "lease: expected a mapping"),
        ("store: redis+cluster://h/0", "store: not an address of a store: a Cluster has no databases"),
        (
            "store: redis+cluster://h\nquotas: [{ level: global, limits: [{ concurrency: 5 }] }]",
            "quotas[0].level: a global limit on a Cluster is not built yet",
        ),
        ("store: redis+sentinel://h,i", "store: not an address of a store: the name of the group"),
        ("store: redis://:s3c@h:port", "store: not an address of a store: "),
        ("store: rediss://h", "store: TLS to the store is not built yet"),
        ("store: postgres://h", "store: unknown kind of store;"),
        ("store: nowhere", "store: the store is neither memory nor an address"),
        ("store: ${NOWHERE}", "store: the environment variable \"NOWHERE\" is not set"),
        ("tiers: [{ name: a, weight: 4 }]", "p.yaml:3:28: tiers[0].weight: not built yet; write 1, or remove it"),
        ("tiers: [{ name: a, min_share: 0.1 }]", "tiers: the first tier waits for nobody; remove its min_share"),
        ("tiers: [{ name: a }, { name: b, min_share: 0 }]", "tiers[1].min_share: without a share a tier could wait"),
        (
            "tiers: [{ name: a }, { name: b, min_share: 1 }]",
            "tiers: the shares of lower tiers leave nothing to the first",
        ),
        ("tiers: [{ name: a, reserve: 1 }, { name: b }]", "tiers[0].reserve: a reserve of everything"),
        ("tiers: [{ name: a, reserve: -0.1 }, { name: b }]", "tiers[0].reserve: -0.1 is out of range"),
        (
            "tiers: [{ name: a }, { name: b, reserve: 0.1 }]",
            "tiers: the last tier has a reserve, and nobody is below it",
        ),
        (
            "tiers: [{ name: a, reserve: 0.5 }, { name: b, reserve: 0.5 }, { name: c }]",
            "tiers: the reserves of higher tiers leave nothing to c; lower a reserve",
        ),
        ("tiers: [{ name: a }, { name: a }]", "tiers: two tiers have the same name"),
        ("tiers: [{ reserve: 0.1 }]", "tiers[0].name: the field is missing"),
        ("cache_scope: org", "cache_scope: unknown key"),
    ] {
        let found = problems(&format!("{MODELS}{KEYS}{added}\n"));
        assert_eq!(found.len(), 1, "{added}: {found:#?}");
        assert!(found[0].contains(expect), "{added}\n  found:  {}\n  expect: {expect}", found[0]);
    }
}

#[test]
fn each_mistake_in_a_rule_is_named() {
    let calibrated = |rest: &str| {
        format!("{{ level: org, match: acme, limits: [{{ tokens: 999, per: day }}], hold: calibrated, {rest} }}")
    };
    for (rule, expect) in [
        ("{ match: acme, limits: [] }", "quotas[0].level: the field is missing"),
        ("{ level: team, match: acme, limits: [] }", "quotas[0].level: unknown value \"team\""),
        ("{ level: global, match: acme, limits: [] }", "quotas[0].match: level: global takes no match"),
        ("{ level: org, limits: [] }", "quotas[0].match: the field is missing"),
        (
            "{ level: org, match: acme, models: [gone], limits: [] }",
            "quotas[0].models: no model or alias is named \"gone\"",
        ),
        ("{ level: org, match: acme, limits: [{ per: day }] }", "limits[0]: a limit needs exactly one unit"),
        ("{ level: org, match: acme, limits: [{ tokens: 1, usd: 1, per: day }] }", "exactly one unit"),
        ("{ level: org, match: acme, limits: [{ tokens: 1 }] }", "limits[0].per: the field is missing"),
        ("{ level: org, match: acme, limits: [{ tokens: -1, per: day }] }", "limits[0].tokens: -1 is out of range"),
        ("{ level: org, match: acme, limits: [{ tokens: 9223372036854775808, per: day }] }", "is out of range"),
        ("{ level: org, match: acme, limits: [{ tokens: 1e300, per: day }] }", "is out of range"),
        ("{ level: org, match: acme, limits: [{ tokens: 1.5, per: day }] }", "expected a whole number"),
        ("{ level: org, match: acme, limits: [{ usd: 1e12, per: day }] }", "is out of range"),
        ("{ level: org, match: acme, limits: [{ usd: 1, per: month }] }", "add `window: calendar`"),
        (
            "{ level: org, match: acme, limits: [{ usd: 1, per: day, window: calendar, timezone: Mars/X }] }",
            "unknown time zone",
        ),
        ("{ level: org, match: acme, limits: [{ usd: 1, per: day, timezone: UTC }] }", "timezone has no meaning"),
        ("{ level: org, match: acme, limits: [{ enqueued_tokens: 5, per: day }] }", "enqueued_tokens: not built yet"),
        ("{ level: org, match: acme, limits: [], hold: guess }", "quotas[0].hold: unknown value \"guess\""),
        (
            "{ level: org, match: acme, limits: [], hold: calibrated }",
            "quotas[0].hold: no limit of this rule counts output",
        ),
        (
            "{ level: org, match: acme, limits: [], hold_cap: 2 }",
            "quotas[0].hold_cap: only a calibrated hold has a hold_cap; write hold: calibrated",
        ),
        (&calibrated("hold_cap: 0.5"), "hold_cap: a call may use at least what it holds; write a number from 1"),
        (&calibrated("hold_cap: .nan"), "non-finite float `.nan` rejected"),
        (&calibrated("hold_cap: .inf"), "non-finite float `.inf` rejected"),
        (&calibrated("hold_cap: 1e9"), "hold_cap: 1000000000 is out of range"),
        (&calibrated("hold_cap: double"), "hold_cap: expected a number"),
        (
            &calibrated("hold_cap: 2, overrun: stop"),
            "hold_cap: with overrun: stop a stream ends when it is refused more",
        ),
        ("{ level: org, match: acme, limits: [], overrun: halt }", "quotas[0].overrun: unknown value \"halt\""),
        (
            "{ level: org, match: acme, limits: [{ concurrency: 3 }], overrun: stop }",
            "quotas[0].overrun: no limit of this rule counts output",
        ),
        (
            "{ level: org, match: acme, limits: [], on_limit: wait }",
            "on_limit: expected what to do, found \"wait\"; write",
        ),
        ("{ level: org, match: acme, limits: [], on_limit: {} }", "on_limit.queue: the field is missing"),
        ("{ level: org, match: acme, limits: [], on_limit: { queue: { depth: 0 } } }", "depth: 0 is out of range"),
        ("{ level: org, match: acme, limits: [], on_limit: { queue: { max_wait: 2h } } }", "no client waits for more"),
        ("{ level: org, match: acme, limits: [], on_limit: { queue: {} } }", "on_limit: there is no limit to wait for"),
        (
            "{ level: org, match: acme, limits: [{ usd: 1, per: lifetime }], on_limit: { queue: {} } }",
            "quotas[0].on_limit: no wait brings a lifetime limit back",
        ),
        (
            "{ level: org, match: acme, limits: [{ usd: 1, per: day }], shadow: true, on_limit: { queue: {} } }",
            "quotas[0].on_limit: a rule in shadow refuses nothing",
        ),
        (
            "{ level: org, match: acme, limits: [], on_store_failure: ajar }",
            "quotas[0].on_store_failure: expected a policy, found \"ajar\"; write closed, open or { slice: 0.05 }",
        ),
        (
            "{ level: org, match: acme, limits: [], on_store_failure: {} }",
            "on_store_failure.slice: the field is missing",
        ),
        ("{ level: org, match: acme, limits: [], on_store_failure: { slice: 0 } }", "slice: a slice of nothing"),
        ("{ level: org, match: acme, limits: [], on_store_failure: { slice: 1.5 } }", "slice: 1.5 is out of range"),
        ("{ level: org, match: acme, limits: [], shadow: maybe }", "quotas[0].shadow: expected true or false"),
    ] {
        let found = problems(&format!("{MODELS}{KEYS}quotas:\n  - {rule}\n"));
        assert!(found.iter().any(|line| line.contains(expect)), "{rule}\n  {found:#?}\n  expect: {expect}");
    }
}

#[test]
fn each_mistake_in_a_model_or_key_is_named() {
    for (text, expect) in [
        ("keys: []", "models: the field is missing"),
        ("models: []\nkeys: [{ org: a }]", "keys[0]: the key has no secret"),
        (
            "keys: []\nmodels: [{ name: m, upstreams: [{ name: a, url: 'http://h' }, { name: a, url: 'http://i' }] }]",
            "models[0].upstreams[1]: the name is also that of models[0].upstreams[0]",
        ),
        ("models: []\nkeys: [{ secret: a, secret_sha256: b }]", "not a SHA-256 digest"),
        ("models: []\nkeys: [{ secret: a, org: a/b }]", "keys[0].org: \"a/b\" cannot be part of a subject path"),
        (
            "models: []\nkeys: [{ secret: a, tier: premium }]",
            "keys[0].tier: no tier is named \"premium\"; declare it under `tiers`, or remove the field",
        ),
        (
            "models: []\ntiers: [{ name: gold }, { name: iron }]\nkeys: [{ secret: a, tier: premium }]",
            "keys[0].tier: no tier is named \"premium\"; write one of gold, iron",
        ),
        (
            "models: []\nkeys:\n  - { secret: k, org: a }\n  - { secret: k, org: b }",
            "p.yaml:4:5: keys[1]: the secret is also that of keys[0]; give each key a secret of its own",
        ),
        (
            "models: []\nkeys: [{ secret: '', org: a }, { secret: k }, { secret_sha256: '8254c329a92850f6d539dd376f4816ee2764517da5e0235514af433164480d7a' }]",
            "keys[2]: the secret is also that of keys[1]",
        ),
        ("keys: []\nmodels: [{ name: m }]", "models[0].upstreams: the field is missing"),
        ("keys: []\nmodels: [{ name: m, upstreams: [] }]", "models[0].upstreams: the list is empty"),
        (
            "keys: []\nmodels: [{ name: m, upstreams: [{ name: a, url: h }] }]",
            "upstreams[0].url: the URL has no scheme",
        ),
        (
            "keys: []\nmodels: [{ name: m, upstreams: [{ name: a, url: 'http://h/v1/chat/completions/' }] }]",
            "upstreams[0].url: the URL ends in an endpoint, which is added to it; write http://host:port/v1",
        ),
        (
            "keys: []\nmodels: [{ name: m, tokenizer: gpt2, upstreams: [{ name: a, url: 'http://h' }] }]",
            "unknown tokenizer",
        ),
        (
            "keys: []\nmodels: [{ name: m, route: {}, upstreams: [{ name: a, url: 'http://h' }] }]",
            "models[0].route: not built yet",
        ),
        (
            "keys: []\nmodels: [{ name: m, upstreams: [{ name: a, url: 'http://h', limits: [] }] }]",
            "upstreams[0].limits: limits of a provider",
        ),
        (
            "keys: []\nmodels: [{ name: m, aliases: [m], upstreams: [{ name: a, url: 'http://h' }] }]",
            "models[0].aliases: the model name \"m\" is already taken by models[0].name",
        ),
        ("", "expected a mapping"),
    ] {
        let found = problems(text);
        let hit =
            found.iter().any(|line| line.contains(expect) || (expect.contains("limits of") && line.contains("limits")));
        assert!(hit, "{text}\n  {found:#?}\n  expect: {expect}");
    }
}

#[test]
fn no_message_and_no_debug_shows_a_secret() {
    let env = HashMap::from([("URL".to_owned(), "valkey://:s3cret@h".to_owned())]);
    let found = check(&format!("{MODELS}{KEYS}store: ${{URL}}"), "p.yaml", &env).expect_err("not a store");
    assert!(!format!("{found:?}").contains("s3cret"), "{found:?}");
    let env = HashMap::from([("URL".to_owned(), "redis://:s3cret@h".to_owned())]);
    let models = "models: [{ name: m, upstreams: [{ name: a, url: 'http://h/v1', api_key: s3cret }] }]\n";
    let config = check(&format!("{models}{KEYS}store: ${{URL}}"), "p.yaml", &env).expect("valid");
    assert!(!format!("{config:?}").contains("s3cret"), "{config:?}");
}

/// Every value of a whole file in turn, and the mistakes that quote names.
#[test]
fn what_comes_from_the_environment_is_in_no_message() {
    let secret = "s3cret/*[";
    let env: HashMap<String, String> = env().into_iter().chain([("SECRET".to_owned(), secret.to_owned())]).collect();
    let model = |name: &str| format!("{{ name: {name}, upstreams: [{{ name: a, url: 'http://h/v1' }}] }}");
    let rule = |fields: &str| format!("{MODELS}{KEYS}quotas: [{{ level: org, limits: [], {fields} }}]");
    let mut texts = vec![
        format!("models: [{}, {}]\n{KEYS}", model("\"${SECRET}\""), model("\"${SECRET}\"")),
        format!(
            "models: [{{ name: m, upstreams: [{0}, {0}] }}]\n{KEYS}",
            "{ name: \"${SECRET}\", url: 'http://h/v1' }"
        ),
        rule("match: \"${PLAIN}\""),
        rule("match: acme, models: [\"${PLAIN}\"]"),
    ];
    let value_starts = FULL.match_indices(": ").map(|(at, _)| at + 2).filter(|at| !FULL[*at..].starts_with(['{', '[']));
    for start in value_starts {
        let end = start + FULL[start..].find([',', ' ', '}', ']', '\n']).expect("the file ends with a line end");
        texts.push(format!("{}\"${{SECRET}}\"{}", &FULL[..start], &FULL[end..]));
    }
    assert!(texts.len() > 40, "{texts:?}");
    let env: HashMap<String, String> = env.into_iter().chain([("PLAIN".to_owned(), "s3cret".to_owned())]).collect();
    for text in texts {
        let said = match check(&text, "p.yaml", &env) {
            Ok(config) => config.warnings,
            Err(problems) => problems,
        };
        assert!(!format!("{said:?}").contains("s3cret"), "{text}\n{said:#?}");
    }
}

#[test]
fn all_mistakes_are_reported_at_once_in_the_order_of_the_file() {
    let found = problems("store: x\nlisen: y\nmodels: []\nkeys: []\nlease: { ttl: 0s }\n");
    assert_eq!(found.len(), 3, "{found:#?}");
    assert!(
        found[0].starts_with("p.yaml:1:") && found[1].starts_with("p.yaml:2:") && found[2].starts_with("p.yaml:5:")
    );
}

#[test]
fn more_limits_than_an_account_can_hold_are_a_mistake() {
    let rules = |count: usize| {
        let rule =
            |at| format!("  - {{ level: org, match: acme, name: r{at}, limits: [{{ requests: 5, per: day }}] }}\n");
        problems(&format!("{MODELS}{KEYS}quotas:\n{}", (0..count).map(rule).collect::<String>()))
    };
    assert_eq!(rules(200), Vec::<String>::new());
    let found = rules(203);
    assert!(found.len() == 1 && found[0].contains("quotas[200].limits: more than 200 limits meet"), "{found:#?}");
}

#[test]
fn a_rule_that_keeps_another_from_calibrated_holds_is_a_warning() {
    let warnings = |other: &str| {
        let calibrated = "{ level: user, match: ana, limits: [{ tokens: 9000, per: minute }], hold: calibrated }";
        let text = format!("{MODELS}{KEYS}quotas: [{calibrated}, {{ level: org, match: acme, {other} }}]");
        let config = check(&text, "p.yaml", &HashMap::new()).expect("valid");
        config.warnings.iter().map(Problem::to_string).collect::<Vec<_>>()
    };
    for other in [
        "limits: [{ requests: 9, per: minute }]",
        "limits: [{ output_tokens: 9000, per: day }], hold: calibrated",
        "limits: [{ output_tokens: 9000, per: day }], shadow: true",
        "models: [other*], limits: [{ output_tokens: 9000, per: day }]",
    ] {
        assert_eq!(warnings(other), Vec::<String>::new(), "{other}");
    }
    let found = warnings("limits: [{ output_tokens: 9000, per: day }]");
    assert!(
        found.len() == 1 && found[0].contains("quotas[0].hold: some calls of models[0] hold the worst case: so says the rule of their org with output_tokens/day"),
        "{found:#?}"
    );
}

#[test]
fn a_default_cap_that_can_never_fit_is_a_warning() {
    let text =
        format!("{MODELS}{KEYS}quotas: [{{ level: org, match: acme, limits: [{{ tokens: 1000, per: minute }}] }}]");
    let config = check(&text, "p.yaml", &env()).expect("a warning is not an error");
    assert!(config.warnings[0].to_string().contains("default_max_tokens 1024 of models[0] never fits"));
}

#[test]
fn a_default_cap_that_never_fits_what_a_tier_may_use_is_a_warning() {
    let warnings = |reserve: &str| {
        let tiers = format!("tiers: [{{ name: a, reserve: {reserve} }}, {{ name: b }}]\n");
        let rule = "{ level: org, match: acme, limits: [{ tokens: 2000, per: minute }] }";
        let config = check(&format!("{tiers}{MODELS}{KEYS}quotas: [{rule}]"), "p.yaml", &env()).expect("valid");
        config.warnings.iter().map(Problem::to_string).collect::<Vec<_>>()
    };
    assert_eq!(warnings("0.4"), Vec::<String>::new());
    assert!(warnings("0.5")[0].contains("default_max_tokens 1024 of models[0] never fits tokens/minute of 1000"));
}

#[test]
fn what_will_hardly_do_what_its_author_hopes_is_a_warning() {
    let rule = |rule: &str| format!("{MODELS}{KEYS}quotas:\n  - {rule}\n");
    let priced = MODELS.replace("name: m,", "name: m, price: { input: 1 },");
    for (text, expect) in [
        (
            rule("{ level: org, match: acm, limits: [{ requests: 5, per: day }] }"),
            Some("no key has the org \"acm\", so"),
        ),
        (rule("{ level: org, match: \"ac?\", limits: [{ requests: 5, per: day }] }"), None),
        (rule("{ level: org, match: acme, limits: [] }"), Some("quotas[0].limits: the list is empty, so")),
        (rule("{ level: org, match: acme, limits: [{ max_request: { tokens: 9 } }] }"), None),
        (
            rule("{ level: org, match: acme, limits: [{ usd: 5, per: day }] }"),
            Some("quotas[0].limits: usd/day counts nothing of models[0], which has no price"),
        ),
        (
            rule("{ level: org, match: acme, limits: [{ max_request: { usd: 5 } }] }"),
            Some("max_request/usd counts nothing of models[0]"),
        ),
        (format!("{priced}{KEYS}quotas: [{{ level: org, match: acme, limits: [{{ usd: 5, per: day }}] }}]"), None),
        (
            format!(
                "tiers: [{{ name: a, reserve: 0.2 }}, {{ name: b }}]\n{}",
                rule("{ level: org, match: acme, limits: [{ concurrency: 1 }] }")
            ),
            Some("of 1 concurrency the tiers above b keep all but a fraction; raise the limit"),
        ),
        (
            format!(
                "tiers: [{{ name: a, reserve: 0.2 }}, {{ name: b }}]\n{}",
                rule("{ level: org, match: acme, limits: [{ concurrency: 2 }] }")
            ),
            None,
        ),
        (format!("models: []\n{KEYS}"), Some("models: the list is empty; name a model")),
        (format!("{MODELS}keys: []\n"), Some("keys: the list is empty; give somebody a key")),
    ] {
        let config = check(&text, "p.yaml", &env()).unwrap_or_else(|problems| panic!("{text}\n{problems:#?}"));
        let said: Vec<String> = config.warnings.iter().map(Problem::to_string).collect();
        match expect {
            Some(expect) => assert!(said.len() == 1 && said[0].contains(expect), "{text}\n{said:#?}\n{expect}"),
            None => assert_eq!(said, Vec::<String>::new(), "{text}"),
        }
    }
}

#[test]
fn yaml_that_cannot_be_read_has_the_cure_of_the_usual_mistakes() {
    for (text, cure) in [
        ("match: *\n", "put the value in quotes"),
        ("limits: { body: ${SIZE} }\n", "put ${NAME} in quotes"),
        ("limits:\n\tbody: 1MiB\n", "indent with spaces"),
        ("models: [\nkeys: [", "correct the syntax"),
    ] {
        let found = problems(text);
        assert!(found.len() == 1 && found[0].contains(cure), "{text}\n{found:#?}");
    }
}

#[test]
fn a_slice_below_one_unit_is_warned_about() {
    let warnings = |replicas: u64| {
        let rule = "{ level: org, match: acme, limits: [{ concurrency: 50 }], on_store_failure: { slice: 0.05 } }";
        let text = format!("replicas: {replicas}\n{MODELS}{KEYS}quotas:\n  - {rule}\n");
        let config = check(&text, "p.yaml", &env()).expect("a warning is not an error");
        config.warnings.iter().map(Problem::to_string).collect::<Vec<_>>()
    };
    assert_eq!(warnings(2), Vec::<String>::new());
    let found = warnings(3);
    assert!(found[0].contains("a slice of 0.05 of 50 concurrency over 3 gateways admits nothing"), "{found:?}");
}

/// What the reader asks for, by mapping, must be what the schema describes.
#[test]
fn the_schema_describes_exactly_the_fields_that_are_read() {
    let root = tree::parse(FULL, &env()).expect("valid");
    let report = read::Report::default();
    sections::file(read::At { node: &root, path: "", report: &report }).expect("valid");
    let mut read: BTreeMap<String, Vec<String>> = report.known();
    // Asked for only to be refused by name.
    for (section, refused) in [("Model", "route"), ("Upstream", "limits"), ("Limit", "enqueued_tokens")] {
        read.get_mut(section).expect(section).retain(|name| name != refused);
    }
    assert_eq!(read, schema::properties());
}
