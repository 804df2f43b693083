//! What a node of a Cluster answers for keys that it does not have, or not yet, and how the right one is asked.
//! <https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/>

use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, FromRedisValue, RedisError, RedisResult, ServerErrorKind};

use super::address::{Primary, primary};
use super::script::Call;
use crate::quota::store::StoreError;

/// What a server is asked, as often as it takes.
pub enum Asked {
    Script(Call),
    Command(Cmd),
}

/// How a command is put to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Usual,
    /// Of a key that is being moved there: <https://redis.io/docs/latest/commands/asking/>.
    Asking,
}

/// Of a node of a Cluster: the key is, or may be, at another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Detour {
    Moved(Primary),
    Ask(Primary),
    /// Some keys of a script have been moved already, and some not.
    TryAgain,
}

impl Detour {
    pub fn of(error: &RedisError) -> Option<Self> {
        let node = || error.redirect_node().and_then(|(address, _slot)| primary(address));
        match error.kind() {
            ErrorKind::Server(ServerErrorKind::Moved) => node().map(Self::Moved),
            ErrorKind::Server(ServerErrorKind::Ask) => node().map(Self::Ask),
            ErrorKind::Server(ServerErrorKind::TryAgain) => Some(Self::TryAgain),
            _ => None,
        }
    }
}

#[derive(Debug)]
pub enum Unserved {
    Elsewhere(Detour),
    Failed(StoreError),
}

impl From<StoreError> for Unserved {
    fn from(error: StoreError) -> Self {
        Self::Failed(error)
    }
}

pub async fn query<T: FromRedisValue>(
    command: Cmd,
    way: Way,
    connection: &mut MultiplexedConnection,
) -> RedisResult<T> {
    if way == Way::Usual {
        return command.query_async(connection).await;
    }
    let mut both = redis::pipe();
    both.cmd("ASKING").ignore().add_command(command);
    both.query_async::<(T,)>(connection).await.map(|(reply,)| reply)
}

#[cfg(test)]
mod tests {
    use redis::parse_redis_value;

    use super::*;

    #[test]
    fn a_detour_names_the_node_and_other_errors_are_none() {
        let node = || ("10.0.0.7".to_owned(), 6381);
        for (reply, detour) in [
            ("-MOVED 3999 10.0.0.7:6381\r\n", Some(Detour::Moved(node()))),
            ("-ASK 3999 10.0.0.7:6381\r\n", Some(Detour::Ask(node()))),
            ("-MOVED 3999 ::1:6381\r\n", Some(Detour::Moved(("::1".to_owned(), 6381)))),
            ("-TRYAGAIN Multiple keys request during rehashing of slot\r\n", Some(Detour::TryAgain)),
            ("-CLUSTERDOWN Hash slot not served\r\n", None),
            ("-ERR MOVED\r\n", None),
        ] {
            let value = parse_redis_value(reply.as_bytes()).expect("a reply");
            let error = value.extract_error().expect_err("an error");
            assert_eq!(Detour::of(&error), detour, "{reply}");
        }
    }
}
