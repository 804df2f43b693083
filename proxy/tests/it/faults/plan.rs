//! What happens in one history, drawn from its seed: calls, what their upstreams and clients do, and what goes wrong.

use std::time::Duration;

use proxy::quota::OnExpiry;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::fate::{Failure, Script, ZERO_SAYS};
use super::link::{Cut, Trouble};
use super::world::Kind;
use crate::gateway::upstream::{self, DONE, STOP, Step, chunk, stream_end, stream_head, text_event};

/// Errors of a real server that passes none of our scripts, and of something in between that understood nothing.
const ERRORS: [&str; 8] = [
    "READONLY You can't write against a read only replica.",
    "LOADING Redis is loading the dataset in memory",
    "MISCONF Redis is configured to save RDB snapshots, but it is currently unable to persist to disk.",
    "OOM command not allowed when used memory > 'maxmemory'.",
    "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
    "NOREPLICAS Not enough good replicas to write.",
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "ERR upstream failure",
];

#[derive(Clone, Debug)]
pub struct Plan {
    pub gateways: usize,
    /// `on_store_failure` of all rules.
    pub policy: &'static str,
    pub on_expiry: OnExpiry,
    /// Of all rules.
    pub overrun: &'static str,
    pub lease_ttl: Duration,
    /// Tokens of the org, if they may run out.
    pub budget: Option<u64>,
    pub events: Vec<Event>,
}

#[derive(Clone, Debug)]
pub enum Event {
    Call(Call),
    Trouble {
        gateway: usize,
        trouble: Trouble,
        lasts: Duration,
    },
    Cut {
        gateway: usize,
        cut: Cut,
    },
    /// Another one takes its place.
    Kill {
        gateway: usize,
    },
    /// All calls end and everything settles, before which nothing may be certain and after which all is.
    Calm,
    Pause(Duration),
}

#[derive(Clone, Debug)]
pub struct Call {
    pub gateway: usize,
    pub script: Script,
    pub stream: bool,
    /// Words of the prompt.
    pub words: u64,
    pub cap: u64,
    pub client: Client,
    /// Between two tokens of the upstream.
    pub pace: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Client {
    Stays,
    Leaves { after: Duration, reset: bool },
    LeavesAt { event: u64 },
}

pub fn draw(seed: u64, kind: Kind) -> Plan {
    let mut rng = SmallRng::seed_from_u64(seed);
    let on_redis = kind == Kind::Redis;
    let gateways = if on_redis { rng.random_range(1..=2) } else { 1 };
    let stops = rng.random_bool(0.3);
    let mut events: Vec<Event> = (0..rng.random_range(8..=18)).map(|_| event(&mut rng, gateways, on_redis)).collect();
    if stops {
        events.iter_mut().for_each(|event| overrun(&mut rng, event));
    }
    Plan {
        gateways,
        policy: ["closed", "open", "{ slice: 0.5 }"].choose(&mut rng).copied().unwrap(),
        on_expiry: [OnExpiry::Charge, OnExpiry::Refund].choose(&mut rng).copied().unwrap(),
        overrun: if stops { "stop" } else { "charge" },
        // Some shorter than an outage, so that leases expire under calls that still run.
        lease_ttl: Duration::from_millis(*[150, 400, 2000].choose(&mut rng).unwrap()),
        budget: rng.random_bool(if stops { 0.8 } else { 0.3 }).then(|| rng.random_range(40..200)),
        events,
    }
}

fn event(rng: &mut SmallRng, gateways: usize, on_redis: bool) -> Event {
    let gateway = rng.random_range(0..gateways);
    match rng.random_range(0..20) {
        0..=9 => Event::Call(call(rng, gateway)),
        10..=12 if on_redis => {
            let lasts = if rng.random_bool(0.15) { 400..1000 } else { 10..250 };
            Event::Trouble { gateway, trouble: trouble(rng), lasts: ms(rng, lasts) }
        }
        13 if on_redis => {
            let bytes = rng.random_range(0..200);
            Event::Cut { gateway, cut: if rng.random() { Cut::Command(bytes) } else { Cut::Reply(bytes) } }
        }
        14 => Event::Kill { gateway },
        15 => Event::Calm,
        _ => Event::Pause(ms(rng, 1..60)),
    }
}

fn trouble(rng: &mut SmallRng) -> Trouble {
    let error = ERRORS.choose(rng).copied().unwrap();
    match rng.random_range(0..8) {
        0 => Trouble::LateCommands(ms(rng, 5..150)),
        1 => Trouble::LateReplies(ms(rng, 5..150)),
        2 => Trouble::Frozen,
        3 => Trouble::Mute,
        4 | 5 => Trouble::Refused(error),
        6 => Trouble::Denied(error),
        _ => Trouble::Down,
    }
}

fn call(rng: &mut SmallRng, gateway: usize) -> Call {
    let cap = rng.random_range(1..=20);
    let script = script(rng, cap);
    // Who waits for an upstream that hangs waits long.
    let stays = if matches!(script, Script::Hangs { .. }) { 1 } else { 6 };
    let client = match rng.random_range(0..10) {
        at if at < stays => Client::Stays,
        0..=7 => Client::Leaves { after: ms(rng, 0..120), reset: rng.random() },
        _ => Client::LeavesAt { event: rng.random_range(1..4) },
    };
    let pace = ms(rng, 0..15);
    Call { gateway, script, stream: rng.random_bool(0.6), words: rng.random_range(1..30), cap, client, pace }
}

/// Streams that only a budget ends, now and then.
fn overrun(rng: &mut SmallRng, event: &mut Event) {
    if let Event::Call(call) = event
        && rng.random_bool(0.5)
    {
        let completion = call.cap + rng.random_range(1..60);
        (call.stream, call.client) = (true, Client::Stays);
        call.script = Script::Finishes { prompt: call.prompt(), completion };
    }
}

fn script(rng: &mut SmallRng, cap: u64) -> Script {
    let failures = [
        Failure::Status(500),
        Failure::Status(503),
        Failure::Status(429),
        Failure::Status(408),
        Failure::Status(401),
        Failure::Reset,
        Failure::CutHead,
        Failure::EmptyStream,
    ];
    let failure = *failures.choose(rng).unwrap();
    let (prompt, completion) = (rng.random_range(1..40), rng.random_range(0..=cap));
    match rng.random_range(0..14) {
        0..=2 => Script::Finishes { prompt, completion },
        3 | 4 => Script::Finishes { prompt, completion: cap + rng.random_range(1..20) },
        5 => Script::Zero,
        6 => Script::NoUsage { completion },
        7 | 8 => Script::Fails(failure),
        9 => Script::Rejects(*[400, 404, 413, 422].choose(rng).unwrap()),
        10 => Script::Dies { after: rng.random_range(0..=cap) },
        11 => Script::Hangs { after: rng.random_range(0..4) },
        _ => Script::FallsBack { failure, prompt, completion },
    }
}

fn ms(rng: &mut SmallRng, range: std::ops::Range<u64>) -> Duration {
    Duration::from_millis(rng.random_range(range))
}

impl Call {
    /// The upstream's part at the given attempt, from 0.
    pub fn steps(&self, attempt: usize) -> Vec<Step> {
        match &self.script {
            Script::Finishes { prompt, completion } => self.whole(*completion, Some((*prompt, *completion))),
            Script::Zero => self.whole(ZERO_SAYS, Some((0, 0))),
            Script::NoUsage { completion } => self.whole(*completion, None),
            Script::Fails(failure) => failed(*failure),
            Script::FallsBack { failure, .. } if attempt == 0 => failed(*failure),
            Script::FallsBack { prompt, completion, .. } => self.whole(*completion, Some((*prompt, *completion))),
            Script::Rejects(status) => upstream::json(*status, "{\"error\":{\"message\":\"no\",\"type\":\"x\"}}"),
            Script::Dies { after } if self.stream => {
                // Not a reset, which takes with it what was not read yet.
                [self.begun(*after), vec![Step::Close]].concat()
            }
            Script::Dies { .. } => {
                let half =
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{\"choices\":";
                vec![Step::Send(half.into()), Step::Wait(Duration::from_millis(20)), Step::Reset]
            }
            Script::Hangs { after } if self.stream => [self.begun(*after), vec![Step::AwaitClose]].concat(),
            Script::Hangs { .. } => vec![Step::AwaitClose],
        }
    }

    fn begun(&self, tokens: u64) -> Vec<Step> {
        let tokens = (0..tokens).flat_map(|at| [Step::Wait(self.pace), chunk(text_event(word(at)))]);
        [stream_head()].into_iter().chain(tokens).collect()
    }

    fn whole(&self, tokens: u64, usage: Option<(u64, u64)>) -> Vec<Step> {
        let usage = usage.map(|(prompt, completion)| {
            format!(
                "\"usage\":{{\"prompt_tokens\":{prompt},\"completion_tokens\":{completion},\"total_tokens\":{}}}",
                prompt + completion
            )
        });
        if self.stream {
            let usage = usage.map(|usage| chunk(format!("data: {{\"id\":\"c\",\"choices\":[],{usage}}}\n\n")));
            let end = [chunk(STOP)].into_iter().chain(usage).chain([chunk(DONE), stream_end()]);
            return self.begun(tokens).into_iter().chain(end).collect();
        }
        let text: String = (0..tokens).map(word).collect();
        let usage = usage.map(|usage| format!(",{usage}")).unwrap_or_default();
        let choice = format!("{{\"index\":0,\"message\":{{\"content\":\"{text}\"}},\"finish_reason\":\"stop\"}}");
        let body = format!("{{\"choices\":[{choice}]{usage}}}");
        [vec![Step::Wait(self.pace * 3)], upstream::json(200, &body)].concat()
    }

    pub fn body(&self, id: &str) -> String {
        let (prompt, cap) = (["hi"; 30][..self.words as usize].join(" "), self.cap);
        let stream = if self.stream { ",\"stream\":true" } else { "" };
        format!(
            "{{\"model\":\"m\",\"user\":\"{id}\",\"max_tokens\":{cap}{stream},\"messages\":[{{\"role\":\"user\",\"content\":\"{prompt}\"}}]}}"
        )
    }

    /// OpenAI's envelope takes seven.
    pub fn prompt(&self) -> u64 {
        self.words + 7
    }
}

/// Each is one token after the ones before it.
fn word(at: u64) -> &'static str {
    if at == 0 { "hello" } else { " there" }
}

fn failed(failure: Failure) -> Vec<Step> {
    match failure {
        Failure::Status(status) => upstream::json(status, "{\"error\":{\"message\":\"no\",\"type\":\"x\"}}"),
        Failure::Reset => vec![Step::Reset],
        Failure::CutHead => vec![Step::Send(b"HTTP/1.1 200 OK\r\ncontent-".to_vec()), Step::Close],
        Failure::EmptyStream => vec![stream_head(), Step::Close],
    }
}
