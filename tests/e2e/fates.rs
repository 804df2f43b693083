//! Random histories of real gateways that are killed in the middle of whatever they do: afterwards each org's accounts
//! are a sum of what its calls may have cost, by the same truth table as in the crate's own histories.

#[expect(dead_code, reason = "not all that can happen to a call happens here")]
#[path = "../../proxy/tests/it/faults/fate.rs"]
mod fate;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bench::mock::{Mock, Options};
use fate::{End, Failure, Known, Script, sums};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use tests::audit::{Account, Audit};
use tests::{Client, Config, Gateway, RedisServer, until};
use tokio::task::JoinSet;

const ORGS: usize = 40;
const CALLS: usize = 8;
/// Calls begin within this time, and gateways are killed in it.
const SPAN: Duration = Duration::from_secs(5);
const TTL: Duration = Duration::from_secs(2);
/// A gateway notices a client that has left when it next looks, and settles then.
const NOTICED: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread")]
async fn histories_with_killed_gateways_leak_nothing() {
    round(rand::random()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: a thousand histories, a quarter of an hour"]
async fn a_thousand_histories_with_killed_gateways_leak_nothing() {
    for _ in 0..25 {
        round(rand::random()).await;
    }
}

#[derive(Clone)]
struct Plan {
    id: String,
    gateway: usize,
    at: Duration,
    script: Script,
    stream: bool,
    words: u64,
    cap: u64,
    leaves_after: Option<usize>,
    itl_ms: u64,
}

/// A call that has ended for its client.
struct Call {
    plan: Plan,
    began: Instant,
    ended: Instant,
    outcome: Result<u16, String>,
}

async fn round(seed: u64) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let redis = RedisServer::start().await;
    let mock = Mock::start(Options::default()).expect("a mock");
    let config = config(&redis, &mock);
    let mut gateways = [config.start().await, config.start().await];
    let clients: Vec<Client> = gateways.iter().map(|gateway| gateway.client("")).collect();
    let mut calls = JoinSet::new();
    for org in 0..ORGS {
        for call in 0..CALLS {
            let plan = plan(&mut rng, format!("{org}.{call}"));
            let client = clients[plan.gateway].with_key(&format!("sk-{org}"));
            calls.spawn(async move { (org, play(client, plan).await) });
        }
    }
    let [one, other] = &mut gateways;
    let (first, second) = (rng.random_range(0.2..0.4), rng.random_range(0.3..0.6));
    let kills = tokio::join!(kill_twice(one, first), kill_twice(other, second));
    let kills = [kills.0, kills.1];
    let (mut of_orgs, mut witnesses): (Vec<Vec<Call>>, [Vec<Witness>; 2]) = Default::default();
    of_orgs.resize_with(ORGS, Vec::new);
    while let Some(done) = calls.join_next().await {
        let (org, call) = done.expect("a call does not panic");
        if matches!(call.outcome, Ok(status) if status != 503) && call.plan.leaves_after.is_none() {
            witnesses[call.plan.gateway].push((call.began, call.ended));
        }
        of_orgs[org].push(call);
    }
    until(TTL * 10, "every lease to be settled or reclaimed", async || Audit::of(&redis).live.is_empty().then_some(()))
        .await;
    let (audit, mut asked) = (Audit::of(&redis), HashMap::<String, usize>::new());
    audit.assert_balanced();
    for record in mock.requests() {
        *asked.entry(record.json()["user"].as_str().unwrap_or_default().to_owned()).or_default() += 1;
    }
    let mut all = [0.0; 4];
    for (org, calls) in of_orgs.iter().enumerate() {
        let known: Vec<Known> = calls.iter().map(|call| call.known(&kills, &witnesses, &asked)).collect();
        let accounts: Vec<&Account> = accounts_of(&audit, org);
        let levels = accounts[0].levels.clone();
        assert!(accounts.iter().all(|account| account.levels == levels), "org {org} of seed {seed}: {accounts:?}");
        explained(&known, &levels).unwrap_or_else(|why| panic!("org {org} of seed {seed}: {why}"));
        all.iter_mut().zip(&levels).for_each(|(sum, level)| *sum += level);
    }
    assert_eq!(audit.level("g").levels, all, "the global account is the sum of the orgs");
    let by_checkpoint = audit.expired.values().filter(|charged| **charged > 0.0).count();
    assert!(by_checkpoint > 0, "no kill was worth anything: seed {seed}");
}

/// A whole call that the store admitted, between these times.
type Witness = (Instant, Instant);

/// When it was killed, and when it was back.
type Kill = (Instant, Instant);

async fn kill_twice(gateway: &mut Gateway, after: f64) -> Vec<Kill> {
    let mut kills = Vec::new();
    for _ in 0..2 {
        tokio::time::sleep(SPAN.mul_f64(after)).await;
        gateway.process.kill();
        let killed = Instant::now();
        gateway.restart().await;
        kills.push((killed, Instant::now()));
    }
    kills
}

fn config(redis: &RedisServer, mock: &Mock) -> Config {
    let limits = "limits: [ { requests: 1000000, per: lifetime }, { input_tokens: 1000000, per: lifetime }, \
                  { output_tokens: 1000000, per: lifetime }, { concurrency: 1000 } ]";
    let config = Config::new()
        .store(&redis.url())
        .model("mock-model", &mock.url())
        // What is silent for longer has been killed.
        .line("store_timeout: 2s")
        .line(&format!("lease: {{ ttl: {}s, on_expiry: charge }}", TTL.as_secs()))
        .quota(&format!("{{ level: global, {limits} }}"));
    (0..ORGS)
        .fold(config, |config, org| {
            config
                .key(&format!("sk-{org}"), &format!("org-{org}/web/ana"))
                .quota(&format!("{{ level: org, match: org-{org}, {limits} }}"))
        })
        .quota(&format!("{{ level: user, match: ana, {limits} }}"))
}

fn plan(rng: &mut SmallRng, id: String) -> Plan {
    let (prompt, completion, words) = (rng.random_range(1..40), rng.random_range(4..20), rng.random_range(1..30));
    let script = match rng.random_range(0..10) {
        0..=3 => Script::Finishes { prompt, completion },
        4 => Script::Zero,
        5 => Script::NoUsage { completion },
        6 => Script::Fails(Failure::Status([500, 503, 429][rng.random_range(0..3)])),
        7 => Script::Fails(Failure::Reset),
        8 => Script::Rejects(400),
        _ => Script::Dies { after: completion },
    };
    let stream = matches!(script, Script::Dies { .. }) || rng.random_bool(0.7);
    let produces = matches!(script, Script::Finishes { .. } | Script::NoUsage { .. } | Script::Dies { .. });
    let leaves_after = (stream && produces && rng.random_bool(0.3)).then(|| rng.random_range(1..3));
    Plan {
        id,
        gateway: rng.random_range(0..2),
        at: SPAN.mul_f64(rng.random_range(0.0..1.0)),
        script,
        stream,
        words,
        cap: completion,
        leaves_after,
        // Some outlast the time after which the store knows how far they have come.
        itl_ms: if rng.random_bool(0.5) { rng.random_range(1..20) } else { rng.random_range(100..300) },
    }
}

impl Plan {
    fn body(&self) -> Value {
        let prompt = vec!["hi"; self.words as usize].join(" ");
        json!({"model": "mock-model", "messages": [{"role": "user", "content": prompt}], "max_tokens": self.cap,
               "user": self.id, "stream": self.stream, "x_mock": self.mock()})
    }

    fn mock(&self) -> Value {
        let chunks = |chunks: u64, more: Value| {
            let mut all = json!({"chunks": chunks, "itl_ms": self.itl_ms, "chunk_text": " there"});
            for (name, value) in more.as_object().expect("an object") {
                all[name] = value.clone();
            }
            all
        };
        match self.script {
            Script::Finishes { prompt, completion } => chunks(completion, json!({"prompt_tokens": prompt})),
            Script::Zero => chunks(fate::ZERO_SAYS, json!({"usage": "zero"})),
            Script::NoUsage { completion } => chunks(completion, json!({"usage": "missing"})),
            Script::Fails(Failure::Status(status)) | Script::Rejects(status) => json!({"status": status}),
            Script::Dies { after } => chunks(
                after + 5,
                json!({"ignore_max_tokens": true, "fault": {"die": {"after_chunks": after, "ending": "fin"}}}),
            ),
            _ => json!({"fault": {"cut": {"after_bytes": 0, "ending": "reset"}}}),
        }
    }
}

async fn play(client: Client, plan: Plan) -> Call {
    tokio::time::sleep(plan.at).await;
    let began = Instant::now();
    let outcome = client.try_events("/v1/chat/completions", &plan.body(), plan.leaves_after).await;
    Call { plan, began, ended: Instant::now(), outcome }
}

impl Call {
    fn known(&self, kills: &[Vec<Kill>; 2], witnesses: &[Vec<Witness>; 2], asked: &HashMap<String, usize>) -> Known {
        let Plan { script, stream, words, cap, leaves_after, id, gateway, .. } = self.plan.clone();
        let killed = kills[gateway].iter().any(|(killed, back)| {
            let settled = match leaves_after {
                // A settlement leaves before its client sees the end, and operations reach the store in order.
                None => witnesses[gateway].iter().any(|(began, ended)| *began > self.ended && ended < killed),
                Some(_) => self.ended + NOTICED < *killed,
            };
            self.began <= *back && !settled
        });
        let end = match (&self.outcome, killed) {
            (_, true) => End::Killed,
            (Err(why), false) => panic!("{id} broke without a kill: {why}"),
            (Ok(503), false) => End::Refused,
            (Ok(_), false) if leaves_after.is_some() => End::Left { events: 0 },
            (Ok(_), false) => End::Answered,
        };
        let asked = asked.get(&id).copied().unwrap_or(0);
        // OpenAI's envelope takes seven.
        Known { script, stream, prompt: words + 7, cap, asked, end, store_lost: false }
    }
}

/// Of its user and of the org.
fn accounts_of(audit: &Audit, org: usize) -> Vec<&Account> {
    let own = format!("{{org-{org}}}:a:");
    let found: Vec<&Account> =
        audit.accounts.iter().filter(|(key, _)| key.contains(&own)).map(|(_, account)| account).collect();
    assert_eq!(found.len(), 2, "{:?}", audit.accounts.keys());
    found
}

/// Requests, input, output and slots in flight as a sum of what the calls may have cost.
fn explained(calls: &[Known], levels: &[f64]) -> Result<(), String> {
    let fates: Vec<_> = calls.iter().map(fate::fate).collect();
    let [requests, input, output, slots] = levels else { return Err(format!("four limits, not {levels:?}")) };
    let fits = |sum: &(u64, u64, u64, u64)| {
        (sum.0 as f64, sum.1 as f64) == (*requests, *input) && (sum.2 as f64..=sum.3 as f64).contains(output)
    };
    if *slots == 0.0 && sums(&fates).iter().any(fits) {
        return Ok(());
    }
    let calls: Vec<String> =
        calls.iter().zip(&fates).map(|(call, fate)| format!("{call:?}\n    may cost {fate:?}")).collect();
    Err(format!("{levels:?} is no sum of what the calls may cost:\n{}", calls.join("\n")))
}
