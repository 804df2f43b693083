//! Where the store is: at one address, wherever its sentinels say that the primary is now, or on the nodes of a Cluster.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo};
use tokio::time::{Instant, timeout, timeout_at};

use crate::quota::store::StoreError;

const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

/// Host and port of a server that takes writes.
pub type Primary = (String, u16);

#[derive(Clone)]
pub enum RedisAddress {
    Server(Address),
    Cluster(Box<Seeds>),
}

/// Nodes of a Cluster that are asked for all others.
#[derive(Clone)]
pub struct Seeds {
    pub clients: Vec<Client>,
    pub login: Login,
}

/// How to log in to a server, wherever it is.
#[derive(Clone)]
pub struct Login(ConnectionInfo);

#[derive(Clone)]
pub enum Address {
    Node(Box<Client>),
    Sentinels(Box<Sentinels>),
}

/// The sentinels of one group of servers. <https://redis.io/docs/latest/develop/reference/sentinel-clients/>
#[derive(Clone)]
pub struct Sentinels {
    clients: Vec<Client>,
    name: String,
    login: Login,
}

/// A connection, and which primary it leads to where sentinels were asked.
pub type Dialled = (MultiplexedConnection, Option<Primary>);

impl RedisAddress {
    /// `redis://[user:password@]host:6379/0`,
    /// `redis+sentinel://[user:password@]host:26379,host:26379/GROUP/0?sentinel_user=U&sentinel_password=P`, or
    /// `redis+cluster://[user:password@]host:6379,host:6379`.
    /// The error says what is wrong and never shows the address, which may hold a password.
    pub fn parse(url: &str) -> Result<Self, String> {
        if let Some(rest) = url.strip_prefix("redis+cluster://") {
            return Seeds::parse(rest).map(|seeds| Self::Cluster(Box::new(seeds)));
        }
        let server = match url.strip_prefix("redis+sentinel://") {
            Some(rest) => Address::Sentinels(Box::new(Sentinels::parse(rest)?)),
            None => Address::Node(Box::new(Client::open(url).map_err(|error| error.to_string())?)),
        };
        Ok(Self::Server(server))
    }
}

impl Seeds {
    fn parse(rest: &str) -> Result<Self, String> {
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        if !path.is_empty() {
            return Err("a Cluster has no databases: nothing may follow the hosts".to_owned());
        }
        let (login, hosts) = hosts.rsplit_once('@').map_or(("", hosts), |(login, hosts)| (login, hosts));
        Ok(Self { clients: clients(login, hosts, PORT)?, login: Login::parse(login, "")? })
    }
}

impl Login {
    fn parse(login: &str, database: &str) -> Result<Self, String> {
        info(login, "elsewhere", database).map(Self).map_err(|error| error.to_string())
    }

    pub fn client(&self, (host, port): &Primary) -> Result<Client, StoreError> {
        let info = self.0.clone().set_addr(ConnectionAddr::Tcp(host.clone(), *port));
        Client::open(info).map_err(|error| StoreError::Refused(error.to_string()))
    }
}

/// For messages: without logins.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(client) => client.get_connection_info().addr().fmt(f),
            Self::Sentinels(sentinels) => write!(f, "the primary of {}", sentinels.name),
        }
    }
}

impl Address {
    /// Of a node: the host that its address names.
    pub fn host(&self) -> &str {
        match self {
            Self::Node(client) => host(client),
            Self::Sentinels(_) => "",
        }
    }

    /// Connects within `bound`.
    pub async fn dial(&self, bound: Duration) -> Result<Dialled, StoreError> {
        match self {
            Self::Node(client) => Ok((dial(client, bound).await?, None)),
            Self::Sentinels(sentinels) => {
                let primary = sentinels.primary(bound / 2).await?;
                Ok((dial(&sentinels.login.client(&primary)?, bound / 2).await?, Some(primary)))
            }
        }
    }

    /// Where the primary is, if that is not where `known` says.
    pub async fn elsewhere(&self, known: Option<&Primary>, bound: Duration) -> Option<Primary> {
        let Self::Sentinels(sentinels) = self else { return None };
        // Sentinels that do not answer are no reason to leave a server that does.
        let primary = sentinels.primary(bound).await.ok()?;
        (known != Some(&primary)).then_some(primary)
    }
}

impl Sentinels {
    fn parse(rest: &str) -> Result<Self, String> {
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = hosts.rsplit_once('@').map_or(("", hosts), |(login, hosts)| (login, hosts));
        let (name, database) = path.split_once('/').unwrap_or((path, ""));
        if name.is_empty() {
            return Err("the name of the group that the sentinels watch is missing after the hosts".to_owned());
        }
        let mut own_login = String::new();
        for (field, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
            match field {
                "sentinel_user" => own_login = format!("{value}{own_login}"),
                "sentinel_password" => own_login = format!("{own_login}:{value}"),
                _ => return Err("only sentinel_user and sentinel_password may follow the ?".to_owned()),
            }
        }
        let clients = clients(&own_login, hosts, SENTINEL_PORT)?;
        Ok(Self { clients, name: name.to_owned(), login: Login::parse(login, database)? })
    }

    /// What most of the sentinels say within `bound`. All are asked at once: the machine that took the primary with it
    /// may have had a sentinel too, and that one stays silent.
    async fn primary(&self, bound: Duration) -> Result<Primary, StoreError> {
        let deadline = Instant::now() + bound;
        let mut asked: FuturesUnordered<_> =
            self.clients.iter().map(|client| timeout_at(deadline, ask(client, &self.name, bound))).collect();
        let (mut votes, mut known, mut failed) = (HashMap::<Primary, usize>::new(), true, StoreError::Timeout(bound));
        while let Some(answer) = asked.next().await {
            match answer {
                Ok(Ok(Some(primary))) => {
                    let count = votes.entry(primary.clone()).or_default();
                    *count += 1;
                    if *count * 2 > self.clients.len() {
                        return Ok(primary);
                    }
                }
                Ok(Ok(None)) => known = false,
                Ok(Err(error)) => failed = error,
                Err(_elapsed) => {}
            }
        }
        match votes.into_iter().max_by_key(|(_, count)| *count) {
            Some((primary, _)) => Ok(primary),
            None if !known => Err(StoreError::Refused(format!("its sentinels watch no group named {}", self.name))),
            None => {
                Err(StoreError::Unreachable(format!("none of its {} sentinels answers: {failed}", self.clients.len())))
            }
        }
    }
}

/// `host:port`, as servers write it: the host of IPv6 stands without brackets.
pub fn primary(address: &str) -> Option<Primary> {
    let (host, port) = address.rsplit_once(':')?;
    Some((host.to_owned(), port.parse().ok()?)).filter(|_| !host.is_empty())
}

/// None: it does not know the name.
async fn ask(sentinel: &Client, name: &str, bound: Duration) -> Result<Option<Primary>, StoreError> {
    let mut connection = dial(sentinel, bound).await?;
    let mut question = redis::cmd("SENTINEL");
    question.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    question.query_async(&mut connection).await.map_err(|error| StoreError::Unreachable(error.to_string()))
}

fn info(login: &str, host: &str, database: &str) -> redis::RedisResult<ConnectionInfo> {
    let at = if login.is_empty() { "" } else { "@" };
    format!("redis://{login}{at}{host}/{database}").into_connection_info()
}

fn clients(login: &str, hosts: &str, port: u16) -> Result<Vec<Client>, String> {
    if hosts.split(',').any(str::is_empty) {
        return Err("a host is missing".to_owned());
    }
    let clients = hosts.split(',').map(|host| Client::open(info(login, &with_port(host, port), "")?));
    clients.collect::<Result<_, _>>().map_err(|error| error.to_string())
}

fn with_port(host: &str, port: u16) -> String {
    let after_name = host.rsplit_once(']').map_or(host, |(_address, rest)| rest);
    if after_name.contains(':') { host.to_owned() } else { format!("{host}:{port}") }
}

pub fn host(client: &Client) -> &str {
    match client.get_connection_info().addr() {
        ConnectionAddr::Tcp(host, _) => host,
        _ => "",
    }
}

/// The crate's own response timeout is off: ours covers each whole call.
pub async fn dial(client: &Client, bound: Duration) -> Result<MultiplexedConnection, StoreError> {
    let config = AsyncConnectionConfig::new().set_connection_timeout(Some(bound)).set_response_timeout(None);
    match timeout(bound, client.get_multiplexed_async_connection_with_config(&config)).await {
        Ok(Ok(connection)) => Ok(connection),
        Ok(Err(error)) if error.is_timeout() => Err(StoreError::Timeout(bound)),
        Ok(Err(error)) => Err(StoreError::Unreachable(error.to_string())),
        Err(_elapsed) => Err(StoreError::Timeout(bound)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sentinels(url: &str) -> Sentinels {
        match RedisAddress::parse(url) {
            Ok(RedisAddress::Server(Address::Sentinels(sentinels))) => *sentinels,
            Ok(_) => panic!("{url} names sentinels"),
            Err(why) => panic!("{url}: {why}"),
        }
    }

    #[test]
    fn an_address_of_sentinels_has_hosts_a_name_and_two_logins() {
        let found = sentinels("redis+sentinel://ana:s3c@a,b:7000,[::1]/main/2?sentinel_password=other");
        let at = |client: &Client| client.get_connection_info().addr().to_string();
        assert_eq!(found.clients.iter().map(at).collect::<Vec<_>>(), ["a:26379", "b:7000", "::1:26379"]);
        let login = |info: &ConnectionInfo| {
            let redis = info.redis_settings();
            (redis.username().map(str::to_owned), redis.password().map(str::to_owned), redis.db())
        };
        assert_eq!(found.name, "main");
        assert_eq!(login(&found.login.0), (Some("ana".into()), Some("s3c".into()), 2));
        assert_eq!(login(found.clients[0].get_connection_info()), (None, Some("other".into()), 0));
        let primary = found.login.client(&("10.0.0.7".to_owned(), 6380)).expect("a client");
        assert_eq!(at(&primary), "10.0.0.7:6380");
        assert_eq!(login(primary.get_connection_info()), login(&found.login.0));
    }

    #[test]
    fn what_an_address_lacks_is_said() {
        for (url, why) in [
            ("redis+sentinel://a,b", "name of the group"),
            ("redis+sentinel://a/", "name of the group"),
            ("redis+sentinel://a/main?user=b", "sentinel_user"),
            ("redis+sentinel:///main", "a host is missing"),
            ("redis+sentinel://a,/main", "a host is missing"),
            ("redis+cluster://a,,b", "a host is missing"),
            ("redis+cluster://a/0", "no databases"),
            ("redis+sentinel://a:x/main", "URL"),
            ("redis://a:x", "URL"),
        ] {
            let error = RedisAddress::parse(url).err().unwrap_or_else(|| panic!("{url} is not usable"));
            assert!(error.contains(why), "{url}: {error}");
        }
    }
}
