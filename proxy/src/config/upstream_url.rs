//! Base addresses of upstreams: `http://`, `https://` and `unix:/path/to.sock`.

use http::uri::{Authority, PathAndQuery, Uri};

/// Where an upstream is, and the path below which its API lives (`/v1` unless the URL names another).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamUrl {
    pub transport: Transport,
    pub authority: Authority,
    /// With a leading slash and without a trailing one; may be empty.
    base: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transport {
    Http,
    Https,
    Unix,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    #[error("the URL has no scheme that is known")]
    Scheme,
    #[error("the URL is not readable")]
    Unreadable,
    #[error("the URL has a query")]
    Query,
    #[error("the URL has a fragment")]
    Fragment,
    #[error("the URL holds a user name or a password: give the key in `api_key`")]
    UserInfo,
    #[error("the URL ends in an endpoint, which is added to it")]
    Endpoint,
    #[error("the URL names no host")]
    Host,
    #[error("the port of the URL is not a number from 1 to 65535")]
    Port,
    #[error("the socket path is not absolute")]
    RelativeSocket,
}

/// Copied from a provider's example with the rest of the URL.
const ENDPOINTS: [&str; 3] = ["/completions", "/responses", "/embeddings"];

impl UpstreamUrl {
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        if let Some(path) = text.strip_prefix("unix:") {
            return Self::unix(path);
        }
        let uri: Uri = text.parse().map_err(|_| UrlError::Unreadable)?;
        let transport = match uri.scheme_str() {
            Some("http") => Transport::Http,
            Some("https") => Transport::Https,
            _ => return Err(UrlError::Scheme),
        };
        if uri.query().is_some() {
            return Err(UrlError::Query);
        }
        if text.contains('#') {
            return Err(UrlError::Fragment);
        }
        let authority = uri.authority().cloned().ok_or(UrlError::Unreadable)?;
        check(&authority)?;
        let base = match uri.path().trim_end_matches('/') {
            "" => "/v1".to_owned(),
            path if ENDPOINTS.iter().any(|endpoint| path.ends_with(endpoint)) => return Err(UrlError::Endpoint),
            path => path.to_owned(),
        };
        Ok(Self { transport, authority, base })
    }

    /// A URI needs an authority, so the path of the socket travels in it, in hexadecimal.
    fn unix(path: &str) -> Result<Self, UrlError> {
        let path = path.strip_prefix("//").unwrap_or(path);
        if !path.starts_with('/') {
            return Err(UrlError::RelativeSocket);
        }
        let hex: String = path.bytes().map(|byte| format!("{byte:02x}")).collect();
        let authority = hex.parse().map_err(|_| UrlError::Unreadable)?;
        Ok(Self { transport: Transport::Unix, authority, base: "/v1".to_owned() })
    }

    /// The address of an endpoint such as `chat/completions`.
    pub fn join(&self, endpoint: &str) -> Uri {
        let path = PathAndQuery::try_from(format!("{}/{endpoint}", self.base));
        let scheme = match self.transport {
            Transport::Http => "http",
            Transport::Https => "https",
            Transport::Unix => "unix",
        };
        Uri::builder()
            .scheme(scheme)
            .authority(self.authority.clone())
            .path_and_query(path.expect("invariant: the base was checked and endpoints are ours"))
            .build()
            .expect("invariant: scheme, authority and path are each valid")
    }

    /// What to say in `Host`.
    pub fn host(&self) -> &str {
        match self.transport {
            Transport::Unix => "localhost",
            Transport::Http | Transport::Https => self.authority.as_str(),
        }
    }
}

/// What parses and could never be connected to.
fn check(authority: &Authority) -> Result<(), UrlError> {
    let text = authority.as_str();
    if text.contains('@') {
        return Err(UrlError::UserInfo);
    }
    if authority.host().is_empty() {
        return Err(UrlError::Host);
    }
    let has_port = text.len() > authority.host().len();
    let port: Option<u16> = text[authority.host().len()..].strip_prefix(':').and_then(|port| port.parse().ok());
    if has_port && port.is_none_or(|port| port == 0) {
        return Err(UrlError::Port);
    }
    Ok(())
}

/// The socket path in the authority of a `unix` URI.
pub(crate) fn socket_path(authority: &str) -> Option<std::path::PathBuf> {
    let byte = |index: usize| u8::from_str_radix(authority.get(index..index + 2)?, 16).ok();
    let bytes: Vec<u8> = (0..authority.len()).step_by(2).map(byte).collect::<Option<_>>()?;
    Some(String::from_utf8(bytes).ok()?.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_the_base_joins_with_one_slash() {
        for base in ["http://h:1/v1", "http://h:1/v1/", "http://h:1", "http://h:1/"] {
            let url = UpstreamUrl::parse(base).expect(base);
            assert_eq!(url.join("chat/completions").to_string(), "http://h:1/v1/chat/completions", "{base}");
        }
        let other = UpstreamUrl::parse("https://h/api/v3").expect("valid");
        assert_eq!(other.join("embeddings").to_string(), "https://h/api/v3/embeddings");
    }

    #[test]
    fn a_socket_path_survives_the_way_through_a_uri() {
        let url = UpstreamUrl::parse("unix:/tmp/a b.sock").expect("valid");
        let uri = url.join("models");
        assert_eq!(uri.path(), "/v1/models");
        assert_eq!(socket_path(uri.authority().expect("set").as_str()), Some("/tmp/a b.sock".into()));
    }

    #[test]
    fn wrong_urls_say_why() {
        assert_eq!(UpstreamUrl::parse("ftp://h"), Err(UrlError::Scheme));
        assert_eq!(UpstreamUrl::parse("h:1"), Err(UrlError::Scheme));
        assert_eq!(UpstreamUrl::parse("unix:x.sock"), Err(UrlError::RelativeSocket));
        assert_eq!(UpstreamUrl::parse("http://h/v1?x=1"), Err(UrlError::Query));
        assert_eq!(UpstreamUrl::parse("http://h/v1#x"), Err(UrlError::Fragment));
        for url in ["http://h:99999/v1", "http://h:0", "https://[::1]:x"] {
            let error = UpstreamUrl::parse(url).expect_err(url);
            assert!(matches!(error, UrlError::Port | UrlError::Unreadable), "{url}: {error:?}");
        }
        for url in ["http://:80", "http:///v1"] {
            let error = UpstreamUrl::parse(url).expect_err(url);
            assert!(matches!(error, UrlError::Host | UrlError::Unreadable), "{url}: {error:?}");
        }
        assert_eq!(UpstreamUrl::parse("http://ana:s3cret@h/v1"), Err(UrlError::UserInfo));
        assert!(UpstreamUrl::parse("https://[::1]:8443/v1").is_ok());
    }
}
