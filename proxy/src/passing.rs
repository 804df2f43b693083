//! Which headers pass the gateway, in either direction. What it adds itself is said where it adds it.

use http::{HeaderMap, HeaderName, HeaderValue, header};

/// Of one hop, whichever way it goes (RFC 9110, 7.6.1).
const HOP: [&str; 8] =
    ["connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "content-length"];

/// Credentials, and the account at the provider that goes with them: upstreams get the gateway's own. What names this
/// hop or the client. `accept-encoding` too: usage must be readable.
const OF_CLIENT: [&str; 18] = [
    "authorization",
    "api-key",
    "x-api-key",
    "openai-organization",
    "openai-project",
    "cookie",
    "proxy-authorization",
    "host",
    "content-type",
    "content-encoding",
    "accept-encoding",
    "expect",
    "forwarded",
    "via",
    "origin",
    "referer",
    "x-real-ip",
    "x-request-id",
];

/// What speaks of the upstream's own origin, keys and account.
const OF_UPSTREAM: [&str; 10] = [
    "proxy-authenticate",
    "www-authenticate",
    "openai-organization",
    "openai-project",
    "alt-svc",
    "strict-transport-security",
    "server",
    "set-cookie",
    "x-request-id",
    "date",
];

/// The headers of a client's request that go on to an upstream.
pub fn to_upstream(headers: &HeaderMap) -> impl Iterator<Item = (&HeaderName, &HeaderValue)> {
    headers.iter().filter(|(name, _)| {
        let text = name.as_str();
        let stays = HOP.contains(&text)
            || OF_CLIENT.contains(&text)
            || text.starts_with("x-forwarded-")
            || text.starts_with("x-penstock-")
            || is_of_connection(headers, text);
        !stays
    })
}

/// Takes out of an upstream's headers those that do not go on to the client.
pub fn from_upstream(headers: &mut HeaderMap) {
    let stays = |name: &&HeaderName| {
        let text = name.as_str();
        HOP.contains(&text)
            || OF_UPSTREAM.contains(&text)
            || text.starts_with("x-ratelimit-")
            || text.starts_with("x-penstock-")
            || is_of_connection(headers, text)
    };
    let stays: Vec<HeaderName> = headers.keys().filter(stays).cloned().collect();
    for name in stays {
        headers.remove(name);
    }
}

/// Named by `Connection`, which makes it a header of this hop.
fn is_of_connection(headers: &HeaderMap, name: &str) -> bool {
    let values = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|option| option.trim().eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(names: &[&'static str]) -> HeaderMap {
        let mut headers: HeaderMap =
            names.iter().map(|name| (HeaderName::from_static(name), HeaderValue::from_static("x"))).collect();
        headers.insert(header::CONNECTION, HeaderValue::from_static("close, X-Hop"));
        headers
    }

    #[test]
    fn an_upstreams_own_limits_account_and_origin_stay_behind() {
        let mut headers = headers(&[
            "x-ratelimit-remaining-tokens",
            "set-cookie",
            "transfer-encoding",
            "openai-organization",
            "alt-svc",
            "x-hop",
            "content-type",
            "openai-processing-ms",
        ]);
        from_upstream(&mut headers);
        let mut left: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["content-type", "openai-processing-ms"]);
    }

    #[test]
    fn a_clients_credentials_account_and_hop_stay_here() {
        let headers = headers(&["authorization", "openai-organization", "openai-project", "x-hop", "x-mine"]);
        let went: Vec<_> = to_upstream(&headers).map(|(name, _)| name.as_str()).collect();
        assert_eq!(went, ["x-mine"]);
    }
}
