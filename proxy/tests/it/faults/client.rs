//! One client: sends a call, reads what comes, and leaves when its plan says so.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::fate::{End, Failure, Script};
use super::plan::{Call, Client};
use crate::gateway::rig::{Answer, request};

/// Longer than any answer may take, whatever the store does.
const HANGS: Duration = Duration::from_secs(15);

/// Far longer than the store may be waited for, on a machine that is busy.
const REFUSES: Duration = Duration::from_secs(5);
/// How long an upstream may say nothing.
pub const UPSTREAM_TIMEOUT: Duration = Duration::from_secs(2);

/// What a client saw.
#[derive(Debug)]
pub struct Seen {
    bytes: Vec<u8>,
    left: bool,
    took: Duration,
}

pub async fn call(address: SocketAddr, key: String, call: Call, id: String) -> Seen {
    let (start, mut bytes, mut left) = (Instant::now(), Vec::new(), false);
    let (body, bearer) = (call.body(&id), format!("Bearer {key}"));
    if let Ok(mut socket) = TcpStream::connect(address).await {
        let sent =
            socket.write_all(&request("POST", "/v1/chat/completions", &[("authorization", &bearer)], &body)).await;
        let patience = match call.client {
            Client::Leaves { after, .. } => after,
            Client::Stays | Client::LeavesAt { .. } => HANGS,
        };
        let reading = async {
            while let Ok(1..) = socket.read_buf(&mut bytes).await {
                if matches!(call.client, Client::LeavesAt { event } if events(&bytes) >= event) {
                    return true;
                }
            }
            false
        };
        let ended = tokio::time::timeout(patience, reading).await;
        left = sent.is_ok() && ended.unwrap_or(true);
        if let Client::Leaves { reset: true, .. } = call.client {
            let _gone = socket2::SockRef::from(&socket).set_linger(Some(Duration::ZERO));
        }
    }
    Seen { bytes, left, took: start.elapsed() }
}

/// Events with a token.
fn events(bytes: &[u8]) -> u64 {
    memchr::memmem::find_iter(bytes, b"\"delta\":{\"content\":").count() as u64
}

impl Seen {
    /// How the call ended for its client, and whether that is what the client should have seen.
    pub fn end(&self, call: &Call) -> Result<End, String> {
        if self.left {
            return match call.client {
                Client::Stays => Err(format!("no end after {:?}: {}", self.took, self.text())),
                _ => Ok(End::Left { events: events(&self.bytes) }),
            };
        }
        if memchr::memmem::find(&self.bytes, b"\r\n\r\n").is_none() {
            return Err(format!("closed without an answer after {:?}: {}", self.took, self.text()));
        }
        let answer = Answer::parse(&self.bytes);
        let code = serde_json::from_slice::<serde_json::Value>(&answer.body).ok();
        let code = code.as_ref().and_then(|body| body["error"]["code"].as_str()).unwrap_or("none");
        let refusals =
            ["quota_store_unavailable", "overloaded", "insufficient_quota", "rate_limit_exceeded", "request_too_large"];
        if refusals.contains(&code) && self.took > REFUSES {
            return Err(format!("refused after {:?}: {}", self.took, self.text()));
        }
        if refusals.contains(&code) {
            return Ok(End::Refused);
        }
        // On a machine that is busy an upstream may take that long for anything.
        let text = self.text();
        let timed_out = code == "upstream_timeout" || text.contains("silent for");
        if timed_out && self.took >= UPSTREAM_TIMEOUT && !matches!(call.script, Script::Hangs { .. }) {
            return Ok(End::TimedOut);
        }
        // No script says this.
        if call.stream && text.contains("\"finish_reason\":\"length\"") {
            return if text.contains("[DONE]") { Ok(End::Stopped) } else { Err(format!("ended by half: {text}")) };
        }
        self.judge(call, &answer).map(|()| End::Answered)
    }

    fn judge(&self, call: &Call, answer: &Answer) -> Result<(), String> {
        let expect = match &call.script {
            Script::Finishes { .. } | Script::Zero | Script::NoUsage { .. } | Script::FallsBack { .. } => 200,
            Script::Fails(Failure::Status(429)) => 429,
            Script::Fails(_) => 502,
            Script::Rejects(status) => *status,
            Script::Dies { after: 1.. } | Script::Hangs { .. } if call.stream => 200,
            Script::Dies { .. } => 502,
            Script::Hangs { .. } => 504,
        };
        if answer.status != expect {
            return Err(format!("answered {} in place of {expect}: {}", answer.status, self.text()));
        }
        let (text, broken) = (self.text(), matches!(call.script, Script::Dies { .. } | Script::Hangs { .. }));
        if call.stream && expect == 200 && text.contains("[DONE]") == broken {
            return Err(format!("a made-up end, or none: {text}"));
        }
        if call.stream && expect == 200 && broken && !text.contains("upstream_died") {
            return Err(format!("a broken stream says nothing: {text}"));
        }
        Ok(())
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}
