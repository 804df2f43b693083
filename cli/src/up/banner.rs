//! What a newcomer sees when everything runs: the addresses, the key, and two ways to ask.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use proxy::{
    config::{AccessLog, Config},
    quota::{Level, Limit, Unit},
};

use super::defaults::Local;

pub struct Banner<'a> {
    pub listen: SocketAddr,
    pub admin: SocketAddr,
    /// Absent when the configuration file has keys of its own.
    pub key: Option<String>,
    pub locals: &'a [Local],
    pub config: &'a Config,
}

impl fmt::Display for Banner<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (listen, admin) = (&reachable(self.listen), &reachable(self.admin));
        let key = self.key.as_deref().unwrap_or("(one of your configuration file)");
        writeln!(f, "Penstock is ready.\n")?;
        writeln!(f, "  Base URL  {listen}/v1")?;
        writeln!(f, "  API key   {key}")?;
        writeln!(f, "  Metrics   {admin}/metrics")?;
        for (index, local) in self.locals.iter().enumerate() {
            let label = if index == 0 { "Models" } else { "" };
            let note = if local.chats { "" } else { "   (a base model: completions, chat is not available)" };
            writeln!(f, "  {label:<9} {}{note}", local.name)?;
        }
        let limits = self.config.quotas.iter().flat_map(|rule| rule.limits.iter().map(|limit| (rule.level, limit)));
        for (index, (level, limit)) in limits.take(MOST_LIMITS).enumerate() {
            let label = if index == 0 { "Limits" } else { "" };
            let whose =
                if level == Level::Global { "for all".to_owned() } else { format!("of each {}", level.as_str()) };
            writeln!(f, "  {label:<9} {} {whose}", limited(limit))?;
        }
        match &self.config.access_log {
            AccessLog::File(path) => writeln!(f, "  Calls     {}", path.display())?,
            AccessLog::Off | AccessLog::Stdout => {}
        }
        let key = self.key.as_deref().unwrap_or("KEY");
        match self.locals.iter().find(|local| local.chats) {
            Some(local) => chat(f, listen, key, &local.name)?,
            None => complete(f, listen, key, &self.locals[0].name)?,
        }
        write!(f, "\nCtrl-C stops it; answers that run are finished first.")
    }
}

/// Enough of a long file to see whether the right one was read.
const MOST_LIMITS: usize = 4;

fn limited(limit: &Limit) -> String {
    match limit.unit {
        Unit::NanoUsd => format!("{} {}", limit.amount as f64 / 1e9, limit.label()),
        _ => format!("{} {}", limit.amount, limit.label()),
    }
}

/// A listener on every address is shown by one that a client of this machine can use.
fn reachable(address: SocketAddr) -> String {
    match address.ip() {
        ip if ip.is_unspecified() => {
            format!("http://{}", SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), address.port()))
        }
        _ => format!("http://{address}"),
    }
}

fn chat(f: &mut fmt::Formatter<'_>, listen: &str, key: &str, model: &str) -> fmt::Result {
    let body = r#""messages":[{"role":"user","content":"What is a penstock?"}],"max_tokens":80"#;
    curl(f, listen, key, "chat/completions", model, body)?;
    python(f, listen, key)?;
    writeln!(
        f,
        r#"  answer = client.chat.completions.create(model="{model}", max_tokens=80, messages=[{{"role": "user", "content": "What is a penstock?"}}])"#
    )?;
    writeln!(f, "  print(answer.choices[0].message.content)")
}

fn complete(f: &mut fmt::Formatter<'_>, listen: &str, key: &str, model: &str) -> fmt::Result {
    let body = r#""prompt":"A penstock is","max_tokens":40"#;
    curl(f, listen, key, "completions", model, body)?;
    python(f, listen, key)?;
    writeln!(f, r#"  answer = client.completions.create(model="{model}", prompt="A penstock is", max_tokens=40)"#)?;
    writeln!(f, "  print(answer.choices[0].text)")
}

fn curl(f: &mut fmt::Formatter<'_>, listen: &str, key: &str, endpoint: &str, model: &str, body: &str) -> fmt::Result {
    writeln!(f, "\n  curl {listen}/v1/{endpoint} -H 'Authorization: Bearer {key}' \\")?;
    writeln!(f, "    -H 'Content-Type: application/json' -d '{{\"model\":\"{model}\",{body}}}'\n")
}

fn python(f: &mut fmt::Formatter<'_>, listen: &str, key: &str) -> fmt::Result {
    writeln!(f, "  from openai import OpenAI")?;
    writeln!(f, r#"  client = OpenAI(base_url="{listen}/v1", api_key="{key}")"#)
}
