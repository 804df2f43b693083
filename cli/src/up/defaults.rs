//! What `penstock up` serves when no file says otherwise: the local models, one demo key, and limits that show in
//! the headers. The configuration is written as YAML and read like any other, so it means what it would in a file.

use std::{
    fs::{self, File},
    io::{ErrorKind, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use anyhow::Context;
use proxy::config::Config;

use crate::environment;

const LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);
const ADMIN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9090);

/// A model of this machine and the socket of its engine.
#[derive(Debug)]
pub struct Local {
    pub name: String,
    pub path: PathBuf,
    pub socket: PathBuf,
    /// A base model has no chat template, so it completes text and does not chat.
    pub chats: bool,
}

impl Local {
    pub fn new(name: &str, path: PathBuf, socket: PathBuf) -> anyhow::Result<Self> {
        let file = gguf::File::open_metadata(&path).with_context(|| format!("cannot use {}", path.display()))?;
        let chats = file.metadata("tokenizer.chat_template").is_some();
        Ok(Self { name: name.to_owned(), path, socket, chats })
    }
}

/// What flags and the configuration file ask for.
pub struct Setup {
    file: Option<Config>,
    listen: Option<SocketAddr>,
    admin: Option<SocketAddr>,
}

impl Setup {
    pub fn new(file: Option<Config>, listen: Option<SocketAddr>, admin: Option<SocketAddr>) -> Self {
        Self { file, listen, admin }
    }

    /// Flag before file before default.
    pub fn listen(&self) -> SocketAddr {
        self.listen.or(self.file.as_ref().map(|file| file.listen)).unwrap_or(LISTEN)
    }

    pub fn admin(&self) -> SocketAddr {
        self.admin.or(self.file.as_ref().map(|file| file.admin)).unwrap_or(ADMIN)
    }

    /// Before anything is fetched: see [`refuse_taken`].
    pub fn refuse_taken(&self, names: &[&str]) -> anyhow::Result<()> {
        self.file.iter().try_for_each(|file| refuse_taken(file, names))
    }

    pub fn complete(self, locals: &[Local]) -> anyhow::Result<Complete> {
        let data_dir = match &self.file {
            Some(file) => file.data_dir.clone(),
            None => environment::data_dir()?,
        };
        fs::create_dir_all(&data_dir).with_context(|| format!("cannot make {}", data_dir.display()))?;
        let key = demo_key(&data_dir)?;
        let built_in = parse(&yaml(&data_dir, &key, locals))?;
        let (listen, admin) = (self.listen(), self.admin());
        let own = Own { listen: self.listen, admin: self.admin, built_in };
        let Some(file) = self.file else {
            let config = Config { listen, admin, ..own.built_in.clone() };
            return Ok(Complete { config, demo_key: Some(key), own });
        };
        let demo_key = file.keys.is_empty().then_some(key);
        Ok(Complete { config: own.added_to(file)?, demo_key, own })
    }
}

/// What to run.
pub struct Complete {
    pub config: Config,
    /// A file with keys of its own gets none.
    pub demo_key: Option<String>,
    pub own: Own,
}

/// What `up` brings to a configuration file, whenever that is read: addresses of its flags, the local models, and the demo
/// key for a file without keys.
pub struct Own {
    listen: Option<SocketAddr>,
    admin: Option<SocketAddr>,
    built_in: Config,
}

impl Own {
    pub fn added_to(&self, file: Config) -> anyhow::Result<Config> {
        let names: Vec<&str> = self.built_in.models.iter().map(|model| model.name.as_str()).collect();
        refuse_taken(&file, &names)?;
        let (listen, admin) = (self.listen.unwrap_or(file.listen), self.admin.unwrap_or(file.admin));
        let mut config = Config { listen, admin, ..file };
        config.models.extend(self.built_in.models.iter().cloned());
        if config.keys.is_empty() {
            config.keys.clone_from(&self.built_in.keys);
        }
        Ok(config)
    }
}

/// Two models of one name would take each other's calls, so the names of local models must be new to the file.
fn refuse_taken(file: &Config, names: &[&str]) -> anyhow::Result<()> {
    for model in &file.models {
        let mut given = std::iter::once(&model.name).chain(&model.aliases);
        if let Some(taken) = given.find(|name| names.contains(&name.as_str())) {
            anyhow::bail!(
                "`{taken}` is a local model (--models) and also a name or alias of model `{}` in the configuration \
                 file: rename it there, or serve other models with --models",
                model.name
            );
        }
    }
    Ok(())
}

fn parse(yaml: &str) -> anyhow::Result<Config> {
    proxy::config::check(yaml, "the built-in configuration", &Default::default()).map_err(|problems| {
        let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
        anyhow::anyhow!("{}", problems.join("\n"))
    })
}

fn yaml(data_dir: &Path, key: &str, locals: &[Local]) -> String {
    let data = quoted(data_dir);
    let log = quoted(&data_dir.join("access.jsonl"));
    let mut yaml = format!("store: memory\ndata_dir: {data}\naccess_log: {log}\nmodels:\n");
    for Local { name, path, socket, .. } in locals {
        let tokenizer = quoted_text(&format!("gguf:{}", path.display()));
        let url = quoted_text(&format!("unix:{}", socket.display()));
        yaml.push_str(&format!(
            "  - name: {}\n    tokenizer: {tokenizer}\n    default_max_tokens: 512\n    upstreams: [ {{ name: engine, url: {url} }} ]\n",
            quoted_text(name)
        ));
    }
    yaml.push_str(&format!("keys:\n  - {{ secret: {}, user: demo, app: demo, org: demo }}\n", quoted_text(key)));
    yaml.push_str("quotas:\n  - level: org\n    match: demo\n    limits:\n");
    yaml.push_str("      - { requests: 600, per: minute }\n      - { tokens: 200000, per: minute }\n");
    yaml
}

/// A JSON string is a YAML string too.
fn quoted_text(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn quoted(path: &Path) -> String {
    quoted_text(&path.display().to_string())
}

/// The key of the first start, so that a client keeps working after a restart. Only this user may read it.
fn demo_key(data_dir: &Path) -> anyhow::Result<String> {
    let path = data_dir.join("demo-key");
    let context = || format!("cannot use {}", path.display());
    match fs::read_to_string(&path) {
        Ok(key) if !key.trim().is_empty() => return Ok(key.trim().to_owned()),
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error).with_context(context),
        _ => {}
    }
    let key = format!("sk-demo-{:024x}", rand::random::<u128>() >> 32);
    let mut file: File =
        File::options().write(true).create(true).truncate(true).mode(0o600).open(&path).with_context(context)?;
    file.write_all(key.as_bytes()).with_context(context)?;
    Ok(key)
}
