//! Fetches a model file over HTTP(S). A broken download goes on where it stopped, in this run and in the next one,
//! as long as the server says that the file is still the same.

use std::{fs, path::PathBuf, time::Duration};

use anyhow::Context;
use reqwest::{Client, Response, StatusCode, Url, header};
use serde::{Deserialize, Serialize};

use super::{
    cache::{self, Cache, Cached, Record},
    incoming::{self, Incoming},
    progress,
};
use crate::output;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// Between two reads, not for the whole: a large file may take hours.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Tries in a row that bring no byte.
const FRUITLESS_TRIES: u32 = 4;

pub fn pull(cache: &Cache, source: &str, name: Option<&str>, sha256: Option<&str>) -> anyhow::Result<Cached> {
    let url = Url::parse(source).with_context(|| format!("`{source}` is not a URL"))?;
    let name = match name {
        Some(name) => name.to_owned(),
        None => name_from(&url)?,
    };
    let file = cache::file_of(&name);
    let shown = without_secrets(&url);

    let _lock = cache.lock(&file)?;
    if let Some(present) = cache.cached(&file)? {
        let same = match sha256 {
            Some(sum) => present.sha256.as_deref() == Some(sum),
            None => present.source.as_deref() == Some(shown.as_str()),
        };
        return present.reuse(same);
    }
    let download = Download { url, name, partial: cache.partial(&file) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let incoming = runtime.block_on(download.run()).with_context(|| format!("cannot fetch {shown}"))?;
    incoming::remove(&download.memo_path());
    let checked = incoming.finish(sha256).with_context(|| format!("cannot use {shown}"))?;
    cache.publish(&checked.path, &file, &Record { source: shown, sha256: checked.sha256 })
}

/// What a URL may carry besides the place: credentials. They are never stored or shown.
fn without_secrets(url: &Url) -> String {
    let mut shown = url.clone();
    shown.set_query(None);
    shown.set_fragment(None);
    match shown.set_username("").and_then(|()| shown.set_password(None)) {
        Ok(()) => shown.to_string(),
        // A URL that cannot hold credentials where others do is not shown in full.
        Err(()) => shown.origin().ascii_serialization(),
    }
}

fn name_from(url: &Url) -> anyhow::Result<String> {
    let last = url.path_segments().and_then(|mut segments| segments.next_back()).unwrap_or_default();
    let stem = last.strip_suffix(".gguf").unwrap_or(last);
    cache::parse_name(stem).map_err(|error| anyhow::anyhow!("`{last}`: {error}; choose one with --name"))
}

struct Download {
    url: Url,
    name: String,
    partial: PathBuf,
}

/// Kept beside a `.partial`: what it is a part of.
#[derive(Serialize, Deserialize)]
struct Memo {
    url: String,
    validator: String,
}

enum Failure {
    /// The network's fault: another try may help.
    Passing(anyhow::Error),
    Final(anyhow::Error),
}

impl Download {
    async fn run(&self) -> anyhow::Result<Incoming> {
        let client = client()?;
        let mut fruitless = 0;
        loop {
            let before = self.held();
            match self.attempt(&client).await {
                Ok(incoming) => return Ok(incoming),
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Passing(error)) => {
                    fruitless = if self.held() > before { 0 } else { fruitless + 1 };
                    if fruitless == FRUITLESS_TRIES {
                        return Err(error.context("the same command goes on from here when the network is back"));
                    }
                    output::note(&format!("{}: {error:#}; trying again", self.name));
                    tokio::time::sleep(Duration::from_millis(500) * 2u32.pow(fruitless)).await;
                }
            }
        }
    }

    /// Bytes on disk so far.
    fn held(&self) -> u64 {
        fs::metadata(&self.partial).map_or(0, |metadata| metadata.len())
    }

    async fn attempt(&self, client: &Client) -> Result<Incoming, Failure> {
        let response = self.request(client).await?;
        let (mut incoming, total) = self.open(&response).map_err(Failure::Final)?;
        let bar = progress::bar(&self.name, total);
        bar.set_position(incoming.written());
        bar.reset_eta();
        let mut response = response;
        while let Some(chunk) = response.chunk().await.map_err(network)? {
            incoming.write(&chunk).map_err(Failure::Final)?;
            bar.set_position(incoming.written());
        }
        bar.finish_and_clear();
        match total {
            Some(total) if incoming.written() != total => {
                Err(Failure::Passing(anyhow::anyhow!("{} of {total} bytes came", incoming.written())))
            }
            _ => Ok(incoming),
        }
    }

    /// Asks for the rest if a part is here and the file can be recognised, else for the whole.
    async fn request(&self, client: &Client) -> Result<Response, Failure> {
        let mut request = client.get(self.url.clone());
        let held = self.held();
        if let Some(memo) = self.memo().filter(|_| held > 0) {
            request = request.header(header::RANGE, format!("bytes={held}-")).header(header::IF_RANGE, memo.validator);
        }
        let response = request.send().await.map_err(network)?;
        let status = response.status();
        if status == StatusCode::RANGE_NOT_SATISFIABLE {
            // The part is as long as the file or longer, so it says nothing: begin anew.
            incoming::remove(&self.partial);
            return Err(Failure::Passing(anyhow::anyhow!("the server has no more bytes than the part kept here")));
        }
        if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
            return Err(Failure::Passing(anyhow::anyhow!("the server answered {status}")));
        }
        if status != StatusCode::OK && status != StatusCode::PARTIAL_CONTENT {
            return Err(Failure::Final(anyhow::anyhow!("the server answered {status}")));
        }
        Ok(response)
    }

    /// The file to write to, and how long it will be.
    fn open(&self, response: &Response) -> anyhow::Result<(Incoming, Option<u64>)> {
        if response.status() == StatusCode::PARTIAL_CONTENT {
            let (start, total) = content_range(response).context("the server sent a part without saying which")?;
            if start == self.held() {
                return Ok((Incoming::resume(self.partial.clone())?, total));
            }
            incoming::remove(&self.memo_path());
            anyhow::bail!("the server sent another part than the one asked for: run the command again");
        }
        self.remember(response)?;
        Ok((Incoming::create(self.partial.clone())?, response.content_length()))
    }

    fn memo_path(&self) -> PathBuf {
        self.partial.with_added_extension("json")
    }

    fn memo(&self) -> Option<Memo> {
        let memo: Memo = serde_json::from_slice(&fs::read(self.memo_path()).ok()?).ok()?;
        (memo.url == without_secrets(&self.url)).then_some(memo)
    }

    /// Without a validator a part could be the beginning of another file, so it is not resumed.
    fn remember(&self, response: &Response) -> anyhow::Result<()> {
        match validator(response) {
            Some(validator) => {
                let memo = Memo { url: without_secrets(&self.url), validator };
                let path = self.memo_path();
                fs::write(&path, serde_json::to_vec(&memo)?).map_err(|error| incoming::explain(error, &path))
            }
            None => {
                incoming::remove(&self.memo_path());
                Ok(())
            }
        }
    }
}

/// Without the URL, which may hold credentials.
fn network(error: reqwest::Error) -> Failure {
    Failure::Passing(error.without_url().into())
}

fn client() -> anyhow::Result<Client> {
    Client::builder()
        .user_agent(concat!("penstock/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(CONNECT_TIMEOUT)
        .read_timeout(IDLE_TIMEOUT)
        .build()
        .context("cannot make an HTTP client")
}

/// A strong entity tag, else the date of last change: what `If-Range` takes (RFC 9110, 13.1.5).
fn validator(response: &Response) -> Option<String> {
    let text = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
    let tag = text(header::ETAG).filter(|tag| !tag.starts_with("W/"));
    tag.or_else(|| text(header::LAST_MODIFIED)).map(str::to_owned)
}

/// `bytes 100-199/200` -> `(100, Some(200))`.
fn content_range(response: &Response) -> Option<(u64, Option<u64>)> {
    let value = response.headers().get(header::CONTENT_RANGE)?.to_str().ok()?;
    let (range, total) = value.strip_prefix("bytes ")?.split_once('/')?;
    let (start, _) = range.split_once('-')?;
    Some((start.parse().ok()?, total.parse().ok()))
}
