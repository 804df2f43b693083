//! `penstock up` with the real SmolLM2: an engine that dies, an impatient Ctrl-C, and starts that cannot work. What a
//! newcomer sees when all goes well is told by the end-to-end tests.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use crate::penstock::{Penstock, Running, signal};

const START: Duration = Duration::from_secs(60);

#[expect(clippy::disallowed_methods, reason = "where the model files are is told by the environment")]
fn test_model() -> PathBuf {
    let dir = std::env::var_os("PENSTOCK_TEST_MODELS")
        .expect("PENSTOCK_TEST_MODELS must name the folder of model files; `tests/run` sets it");
    PathBuf::from(dir).join("smollm2-135m-instruct-q4_1.gguf")
}

/// A running `penstock up`.
struct Up {
    process: Running,
    address: String,
    key: String,
}

impl Up {
    fn start(penstock: &Penstock) -> Self {
        Self::start_with(penstock, None)
    }

    /// `file`: a configuration and one of its keys.
    fn start_with(penstock: &Penstock, file: Option<(&Path, &str)>) -> Self {
        penstock.run(["model", "pull", test_model().to_str().expect("UTF-8")]).ok();
        let mut child = penstock
            .command()
            .args(["up", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
            .args(file.iter().flat_map(|(file, _)| ["--config", file.to_str().expect("UTF-8")]))
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines().map_while(Result::ok);
        let banner: Vec<String> = lines.by_ref().take_while(|line| !line.starts_with("Ctrl-C")).collect();
        let banner = banner.join("\n");
        // The access log must not fill the pipe.
        thread::spawn(move || lines.for_each(drop));
        let value = |label: &str| {
            let line = banner.lines().find_map(|line| line.trim().strip_prefix(label));
            line.unwrap_or_else(|| panic!("no {label} in: {banner}")).trim().to_owned()
        };
        let address = value("Base URL").replace("http://", "").replace("/v1", "");
        let key = file.map_or_else(|| value("API key"), |(_, key)| key.to_owned());
        Self { process: Running(child), address, key }
    }

    /// Sends a chat that streams; the answer is read by the caller.
    fn stream(&self, max_tokens: u32) -> BufReader<TcpStream> {
        let body = format!(
            r#"{{"model":"smollm2","stream":true,"max_tokens":{max_tokens},"messages":[{{"role":"user","content":"Count from one to one hundred."}}]}}"#
        );
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        stream.set_read_timeout(Some(START)).expect("set");
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            self.key,
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).expect("sent");
        BufReader::new(stream)
    }

    fn answers(&self) -> bool {
        self.answer().contains("[DONE]")
    }

    /// Head and body of a short answer, as far as they come.
    fn answer(&self) -> String {
        let mut text = String::new();
        drop(self.stream(2).read_to_string(&mut text));
        text
    }

    fn engine(&self) -> u32 {
        let engines = children(self.process.0.id());
        assert_eq!(engines.len(), 1, "{engines:?}");
        engines[0]
    }
}

/// `(parent, state)` of a process.
fn stat(process: u32) -> Option<(u32, char)> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name in parentheses may hold anything, so fields are counted from its end.
    let mut fields = text.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?.chars().next()?;
    Some((fields.next()?.parse().ok()?, state))
}

fn children(parent: u32) -> Vec<u32> {
    let processes =
        fs::read_dir("/proc").expect("Linux").filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    processes.filter(|process| stat(*process).is_some_and(|(of, state)| of == parent && state != 'Z')).collect()
}

fn until(limit: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + limit;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}: not within {limit:?}");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_second_ctrl_c_ends_at_once() {
    let penstock = Penstock::new();
    let mut up = Up::start(&penstock);
    let mut answer = up.stream(2000);
    answer.read_line(&mut String::new()).expect("the answer begins");
    up.process.signal("-INT");
    thread::sleep(Duration::from_millis(300));
    up.process.signal("-INT");
    assert_eq!(up.process.end(Duration::from_secs(2)), Some(130));
}

#[test]
fn a_terminal_that_closes_lets_the_running_answer_end() {
    let penstock = Penstock::new();
    let mut up = Up::start(&penstock);
    let mut answer = up.stream(60);
    answer.read_line(&mut String::new()).expect("the answer begins");
    // The shell sends it as well as the kernel.
    up.process.signal("-HUP");
    thread::sleep(Duration::from_millis(100));
    up.process.signal("-HUP");
    let mut rest = String::new();
    answer.read_to_string(&mut rest).expect("the answer is whole");
    assert!(rest.contains("[DONE]"), "{rest}");
    assert_eq!(up.process.end(Duration::from_secs(20)), Some(0));
}

#[test]
fn a_file_is_read_again_on_sighup_and_the_local_models_stay() {
    let penstock = Penstock::new();
    let write = |requests: u64| {
        let rule = format!("{{ level: org, match: acme, limits: [ {{ requests: {requests}, per: day }} ] }}");
        let data = penstock.home.path().join("data");
        let text = format!(
            "data_dir: {}\nmodels: []\nkeys: [ {{ secret: sk-1, org: acme }} ]\nquotas: [ {rule} ]\n",
            data.display()
        );
        penstock.file("gateway.yaml", text.as_bytes())
    };
    let up = Up::start_with(&penstock, Some((&write(1000), "sk-1")));
    assert!(up.answer().contains("x-ratelimit-limit-requests: 1000\r\n"), "{}", up.answer());
    write(500);
    up.process.signal("-HUP");
    until(START, "the file to be in force", || up.answer().contains("x-ratelimit-limit-requests: 500\r\n"));
    assert!(up.answers());
}

#[test]
fn a_killed_engine_is_started_again() {
    let penstock = Penstock::new();
    let up = Up::start(&penstock);
    let killed = up.engine();
    signal("-KILL", killed);
    until(START, "the engine to be back", || up.answers());
    assert_ne!(up.engine(), killed);
}

#[test]
fn a_hung_engine_is_killed_and_started_again() {
    let penstock = Penstock::new();
    let up = Up::start(&penstock);
    let hung = up.engine();
    signal("-STOP", hung);
    // It is alive, so only its silence tells.
    let another = || children(up.process.0.id()).first().is_some_and(|engine| *engine != hung);
    until(Duration::from_secs(90), "another engine", another);
    until(START, "the engine to be back", || up.answers());
}

#[test]
fn a_name_of_the_file_is_no_name_of_a_local_model() {
    let penstock = Penstock::new();
    for model in ["name: smollm2, ", "name: gpt, aliases: [smollm2], "] {
        let file = format!(
            "models:\n  - {{ {model}tokenizer: o200k_base, default_max_tokens: 100, \
             upstreams: [ {{ name: a, url: 'http://127.0.0.1:9/v1' }} ] }}\nkeys: [ {{ secret: sk-1, org: acme }} ]\n"
        );
        let file = penstock.file("gateway.yaml", file.as_bytes());
        let args = ["up", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--config"];
        let args = args.into_iter().chain(file.to_str());
        penstock.run(args).failed(1, &["`smollm2`", "configuration file", "--models"]);
    }
}

#[test]
fn a_taken_port_names_the_flag() {
    let penstock = Penstock::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    penstock.run(["up", "--listen", &address]).failed(1, &[&address, "in use", "--listen"]);
}

#[test]
fn a_model_that_is_not_known_names_those_that_are() {
    let penstock = Penstock::new();
    let args = ["up", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--models", "gpt-17"];
    penstock.run(args).failed(1, &["gpt-17", "smollm2, gemma3"]);
}
