//! `penstock up`, as a newcomer meets it: one command, what it prints works, Ctrl-C is gentle, the next start is fast.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::gateway::metric;
use tests::wait::free_address;
use tests::{Client, Process, environment, until};

/// Mapping a model and building its tables, at most.
const START: Duration = Duration::from_secs(60);

/// A machine of one's own: cache and data folder. The model is there already, as after the first start.
struct Home(tempfile::TempDir);

struct Up {
    process: Process,
    listen: SocketAddr,
    admin: SocketAddr,
}

impl Home {
    fn new() -> Self {
        let home = Self(tempfile::tempdir().expect("a temporary folder"));
        let pulled = home.penstock(&["model", "pull"]).arg(environment::smollm2()).output().expect("penstock runs");
        assert!(pulled.status.success(), "{}", String::from_utf8_lossy(&pulled.stderr));
        home
    }

    fn penstock(&self, args: &[&str]) -> Command {
        let mut command = Command::new(environment::penstock());
        command.args(args).env("PENSTOCK_CACHE", self.0.path().join("cache"));
        command.env("HOME", self.0.path()).env_remove("XDG_DATA_HOME").env_remove("XDG_CACHE_HOME");
        command
    }

    fn up(&self) -> Up {
        let (listen, admin) = (free_address(), free_address());
        let (l, a) = (listen.to_string(), admin.to_string());
        let mut command = self.penstock(&["up", "--listen", &l, "--admin", &a, "--models", "smollm2"]);
        // A terminal gives a command a process group of its own, and Ctrl-C goes to all of it.
        command.process_group(0);
        Up { process: Process::start_with("up", &mut command), listen, admin }
    }
}

impl Up {
    async fn banner(&mut self) -> String {
        let process = &mut self.process;
        until(START, "`up` to say that it is ready", async || {
            process.assert_alive();
            let log = process.log();
            log.contains("Ctrl-C").then_some(log)
        })
        .await
    }

    fn client(&self, key: &str) -> Client {
        Client::new(format!("http://{}", self.listen), Some(key))
    }
}

/// The word after a label of the banner.
fn labelled<'a>(banner: &'a str, label: &str) -> &'a str {
    let (_, rest) = banner.split_once(label).unwrap_or_else(|| panic!("no `{label}` in\n{banner}"));
    rest.split_whitespace().next().expect("a word after its label")
}

fn chat(max_tokens: u32) -> Value {
    json!({"model": "smollm2", "messages": [{"role": "user", "content": "Tell me a long story about a river."}],
           "max_tokens": max_tokens, "temperature": 0, "stream": true})
}

#[tokio::test(flavor = "multi_thread")]
async fn what_it_prints_works_as_printed() {
    let home = Home::new();
    let mut up = home.up();
    let banner = up.banner().await;
    assert_eq!(labelled(&banner, "Base URL"), format!("http://{}/v1", up.listen));
    assert_eq!(labelled(&banner, "Metrics"), format!("http://{}/metrics", up.admin));
    let lines = |of: &str| banner.lines().skip_while(|line| !line.contains(of)).map(str::trim).collect::<Vec<_>>();
    let python = lines("from openai import")[..4].join("\n");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let script = folder.path().join("hello.py");
    fs::write(&script, python).expect("the script can be written");
    let answer = Command::new(environment::python()).arg(&script).output().expect("Python runs");
    assert!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
    assert!(String::from_utf8_lossy(&answer.stdout).trim().len() > 20, "hardly an answer: {answer:?}");

    // The curl line, put together again where it was broken for the screen.
    let curl = lines("curl ")[..2].join(" ").replace("\\ ", "");
    let answer = Command::new("bash").args(["-c", &format!("{curl} --silent --fail")]).output().expect("bash runs");
    let said = String::from_utf8_lossy(&answer.stdout).into_owned();
    assert!(answer.status.success() && said.contains("\"choices\""), "{curl}\n{answer:?}");

    let metrics = Client::new(format!("http://{}", up.admin), None).get("/metrics").await;
    assert_eq!(metrics.status, 200);
    assert_eq!(metric(&metrics.text(), "penstock_requests_total", "smollm2"), 2.0, "{}", metrics.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_second_start_answers_within_three_seconds() {
    let home = Home::new();
    let mut first = home.up();
    let key = labelled(&first.banner().await, "API key").to_owned();
    first.process.interrupt_group();
    assert!(first.process.wait(Duration::from_secs(10)).await.success(), "{}", first.process.log());

    // Other work on the machine can only delay a start, so the quickest of a few is what a start takes.
    let mut took = Duration::MAX;
    for _ in 0..3 {
        took = took.min(start_to_first_token(&home, &key).await);
        if took < Duration::from_secs(3) {
            return;
        }
    }
    panic!("start to first token took {took:?} at best");
}

async fn start_to_first_token(home: &Home, key: &str) -> Duration {
    let began = Instant::now();
    let mut up = home.up();
    up.banner().await;
    // The key of the first start is still good.
    let mut stream = up.client(key).stream_chat(&chat(8)).await;
    assert_eq!(stream.status, 200);
    loop {
        let event = stream.next().await.expect("an open stream").expect("a token before the end");
        let chunk: Value = serde_json::from_str(&event).expect("a JSON chunk");
        if chunk["choices"][0]["delta"]["content"].as_str().is_some_and(|text| !text.is_empty()) {
            return began.elapsed();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_lets_a_running_stream_finish_and_takes_no_new_call() {
    let home = Home::new();
    let mut up = home.up();
    let key = labelled(&up.banner().await, "API key").to_owned();
    let mut stream = up.client(&key).stream_chat(&chat(120)).await;
    for _ in 0..3 {
        stream.next().await.expect("an open stream").expect("an event");
    }
    up.process.interrupt_group();
    let newcomer = up.client(&key);
    until(Duration::from_secs(2), "new calls to be turned away", async || match newcomer.try_chat(&chat(1)).await {
        Err(_) => Some(()),
        Ok(answer) => (answer.status == 503).then_some(()),
    })
    .await;
    let rest = stream.all().await;
    let finish: Value = serde_json::from_str(&rest[rest.len() - 2]).expect("a last JSON chunk");
    assert_eq!(finish["choices"][0]["finish_reason"], "length", "the stream was cut: {finish}");
    assert_eq!(rest.last().map(String::as_str), Some("[DONE]"));
    assert!(up.process.wait(Duration::from_secs(10)).await.success(), "{}", up.process.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn no_engine_outlives_a_killed_up() {
    let home = Home::new();
    let mut up = home.up();
    up.banner().await;
    let children = up.process.children();
    assert_eq!(children.len(), 1, "one engine for one model");
    up.process.kill();
    until(Duration::from_secs(5), "the engine to end", async || {
        let alive = fs::read_to_string(format!("/proc/{}/stat", children[0]));
        // A zombie that nobody has reaped yet has ended too.
        alive.map_or(true, |stat| stat.contains(") Z ")).then_some(())
    })
    .await;
}
