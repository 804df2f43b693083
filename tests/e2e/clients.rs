//! The OpenAI client changes its base URL, nothing else: openai-python and openai-node, as their registries ship them,
//! against gateway + engine + SmolLM2. The checks are in `clients/`; here is the stack they talk to.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tests::{Config, Engine, Gateway, Process, environment};

/// One script, all its checks, on two busy cores.
const LIMIT: Duration = Duration::from_secs(180);

struct Stack {
    engine: Engine,
    gateway: Gateway,
}

impl Stack {
    async fn start() -> Self {
        let engine = Engine::start(&environment::smollm2(), "smollm2").await;
        let tokenizer = format!("tokenizer: gguf:{}\ndefault_max_tokens: 64", environment::smollm2().display());
        let mut config = Config::new().model_with("smollm2", &engine.base(), &tokenizer);
        for client in ["", "node-"] {
            config = limited_keys(config, client);
        }
        Self { gateway: config.start().await, engine }
    }

    fn base(&self) -> String {
        format!("{}/v1", self.gateway.url())
    }
}

/// One key for each behaviour, so that no check spends what another needs.
fn limited_keys(config: Config, client: &str) -> Config {
    let limits = [
        ("message", "requests: 1, per: minute, burst: 1"),
        ("stream", "requests: 1, per: minute, burst: 1"),
        ("paced", "requests: 30, per: minute, burst: 1"),
        ("daily", "requests: 1, per: day, window: calendar"),
        ("small", "tokens: 500, per: minute, burst: 500"),
    ];
    let config = config
        .key(&format!("sk-{client}free"), &format!("acme/web/{client}free"))
        .key(&format!("sk-{client}cut"), &format!("acme/web/{client}cut"))
        .quota(&format!(
            "{{ level: user, match: {client}cut, limits: [ {{ output_tokens: 80, per: lifetime }} ], overrun: stop }}"
        ));
    limits.into_iter().fold(config, |config, (name, limit)| {
        config
            .key(&format!("sk-{client}{name}"), &format!("acme/web/{client}{name}"))
            .quota(&format!("{{ level: user, match: {client}{name}, limits: [ {{ {limit} }} ] }}"))
    })
}

fn scripts(language: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("clients").join(language)
}

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden")
}

async fn passes(mut script: Process) {
    let status = script.wait(LIMIT).await;
    assert!(status.success(), "{status}\n{}", script.log());
}

fn python(script: &str, args: &[&str]) -> Process {
    let mut command = Command::new(environment::python());
    // Unbuffered, so that the log of a script that hangs shows how far it came.
    command.args(["-u", "-B"]).arg(scripts("python").join(script)).args(args);
    Process::start_with(script, &mut command)
}

/// Node looks for packages beside the script, so the scripts are run from a folder that has them.
fn node(folder: &Path, script: &str, args: &[&str]) -> Process {
    for entry in fs::read_dir(scripts("node")).expect("the scripts' folder") {
        let path = entry.expect("a readable entry").path();
        let name = path.file_name().expect("a file has a name");
        fs::copy(&path, folder.join(name)).expect("a script can be copied");
    }
    std::os::unix::fs::symlink(environment::node_modules(), folder.join("node_modules")).expect("a link can be made");
    Process::start_with(script, Command::new(environment::node()).arg(folder.join(script)).args(args))
}

#[tokio::test(flavor = "multi_thread")]
async fn openai_python_is_served() {
    let stack = Stack::start().await;
    let golden = golden();
    let args = [&stack.base(), &stack.engine.url(), &*golden.to_string_lossy()].map(String::from);
    passes(python("openai_client.py", &args.each_ref().map(String::as_str))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn openai_python_meets_errors_and_limits() {
    let stack = Stack::start().await;
    passes(python("openai_errors.py", &[&stack.base()])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn openai_node_is_served() {
    let stack = Stack::start().await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let golden = golden();
    let args = [&stack.base(), &stack.engine.url(), &*golden.to_string_lossy()].map(String::from);
    passes(node(folder.path(), "openai_client.mjs", &args.each_ref().map(String::as_str))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn openai_node_meets_errors_and_limits() {
    let stack = Stack::start().await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    passes(node(folder.path(), "openai_errors.mjs", &[&stack.base()])).await;
}
