//! Which endpoint a path means. Tidy spellings are served directly, never redirected: a redirect turns a POST into
//! a GET or loses the key on the way.

use http::Method;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    ChatCompletions,
    Completions,
    Embeddings,
}

impl Endpoint {
    /// Below the base of an upstream, and in logs.
    pub fn path(self) -> &'static str {
        match self {
            Self::ChatCompletions => "chat/completions",
            Self::Completions => "completions",
            Self::Embeddings => "embeddings",
        }
    }

    /// Whether an answer has tokens of its own to reserve.
    pub fn generates(self) -> bool {
        self != Self::Embeddings
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// `deployment`: the model, when the path names it in Azure's way.
    Call {
        endpoint: Endpoint,
        deployment: Option<String>,
    },
    Models,
    Model(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Miss {
    NotFound,
    /// What the path does take.
    Method(&'static str),
}

/// Reads method and path. Empty segments and one leading `v1` do not count.
pub fn target(method: &Method, path: &str) -> Result<Target, Miss> {
    let mut segments = path.split('/').filter(|segment| !segment.is_empty()).peekable();
    let mut deployment = None;
    if segments.next_if_eq(&"openai").is_some() {
        if segments.next_if_eq(&"deployments").is_some() {
            deployment = Some(decode(segments.next().ok_or(Miss::NotFound)?).ok_or(Miss::NotFound)?);
        } else if segments.peek() != Some(&"v1") {
            return Err(Miss::NotFound);
        }
    }
    if deployment.is_none() {
        segments.next_if_eq(&"v1");
    }
    let call = |endpoint| match *method {
        Method::POST => Ok(Target::Call { endpoint, deployment: deployment.clone() }),
        _ => Err(Miss::Method("POST")),
    };
    let rest: Vec<&str> = segments.collect();
    match (&rest[..], deployment.is_some()) {
        (["chat", "completions"], _) => call(Endpoint::ChatCompletions),
        (["completions"], _) => call(Endpoint::Completions),
        (["embeddings"], _) => call(Endpoint::Embeddings),
        // Where GET is, HEAD is: the answer without its body, which hyper leaves out.
        (["models", ..], false) if method != Method::GET && method != Method::HEAD => Err(Miss::Method("GET, HEAD")),
        (["models"], false) => Ok(Target::Models),
        // A model's name may have slashes of its own.
        (["models", id @ ..], false) => decode(&id.join("/")).map(Target::Model).ok_or(Miss::NotFound),
        _ => Err(Miss::NotFound),
    }
}

/// Percent-decoding; `None` if what comes out is not text.
fn decode(segment: &str) -> Option<String> {
    let mut out = Vec::with_capacity(segment.len());
    let mut rest = segment.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()).filter(|_| byte == b'%') {
            Some(decoded) => {
                out.push(decoded);
                rest = &after[2..];
            }
            None => {
                out.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat(deployment: Option<&str>) -> Result<Target, Miss> {
        Ok(Target::Call { endpoint: Endpoint::ChatCompletions, deployment: deployment.map(str::to_owned) })
    }

    #[test]
    fn tidy_spellings_are_one_endpoint() {
        for path in ["/v1/chat/completions", "/v1/chat/completions/", "/v1//chat/completions", "/chat/completions"] {
            assert_eq!(target(&Method::POST, path), chat(None), "{path}");
        }
        assert_eq!(target(&Method::POST, "/openai/deployments/my%20m/chat/completions"), chat(Some("my m")));
        assert_eq!(target(&Method::POST, "/openai/v1/chat/completions"), chat(None));
        assert_eq!(target(&Method::GET, "/v1/models/"), Ok(Target::Models));
        assert_eq!(target(&Method::HEAD, "/v1/models"), Ok(Target::Models));
        assert_eq!(target(&Method::GET, "/v1/models/org/name"), Ok(Target::Model("org/name".into())));
    }

    #[test]
    fn others_are_not_found_or_not_allowed() {
        for path in ["/", "/v1", "/v1/v1/chat/completions", "/v1/responses", "/openai/chat/completions", "/v1/chat"] {
            assert_eq!(target(&Method::POST, path), Err(Miss::NotFound), "{path}");
        }
        assert_eq!(target(&Method::GET, "/v1/chat/completions"), Err(Miss::Method("POST")));
        assert_eq!(target(&Method::HEAD, "/v1/chat/completions"), Err(Miss::Method("POST")));
        assert_eq!(target(&Method::DELETE, "/v1/models/x"), Err(Miss::Method("GET, HEAD")));
    }
}
