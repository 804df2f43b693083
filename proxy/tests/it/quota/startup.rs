//! A store that cannot keep the promise is refused at start, within a bounded time and with the cure.

use std::time::{Duration, Instant};

use proxy::quota::{RedisOptions, Store, StoreError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::redis_server::RedisServer;

async fn refused(url: &str) -> StoreError {
    let options = RedisOptions {
        timeout: Duration::from_millis(100),
        start_timeout: Duration::from_secs(1),
        ..RedisOptions::default()
    };
    let start = Instant::now();
    let error = Store::redis(url, options).await.expect_err("the store must be refused");
    assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
    error
}

async fn listener() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    (listener, url)
}

#[tokio::test]
async fn nobody_listens() {
    let (listener, url) = listener().await;
    drop(listener);
    assert!(matches!(refused(&url).await, StoreError::Unreachable(_)));
}

#[tokio::test]
async fn somebody_listens_and_never_answers() {
    let (_listener, url) = listener().await;
    assert!(matches!(refused(&url).await, StoreError::Timeout(_)));
}

#[tokio::test]
async fn something_else_answers() {
    let (listener, url) = listener().await;
    tokio::spawn(async move {
        loop {
            let (mut peer, _) = listener.accept().await.unwrap();
            let mut buffer = [0u8; 512];
            let _asked = peer.read(&mut buffer).await.unwrap();
            peer.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        }
    });
    let error = refused(&url).await;
    assert!(matches!(error, StoreError::Unreachable(_) | StoreError::Broken(_)), "{error:?}");
}

#[tokio::test]
async fn an_address_that_is_none() {
    assert!(refused("http://127.0.0.1/").await.to_string().contains("not a usable store address"));
}

#[tokio::test]
async fn a_user_without_scripting_permission() {
    let server = RedisServer::start();
    let acl = ["SETUSER", "default", "on", "nopass", "~*", "+@all", "-@scripting"];
    redis::cmd("ACL").arg(&acl).exec(&mut server.connection()).unwrap();
    let message = refused(&server.url()).await.to_string();
    assert!(message.contains("may not run the quota scripts") && message.contains("+@scripting"), "{message}");
}

#[tokio::test]
async fn a_user_without_our_keys() {
    let server = RedisServer::start();
    let acl = ["SETUSER", "default", "on", "nopass", "resetkeys", "~other:*", "+@all"];
    redis::cmd("ACL").arg(&acl).exec(&mut server.connection()).unwrap();
    let message = refused(&server.url()).await.to_string();
    assert!(message.contains("~ps1:*"), "{message}");
}

#[tokio::test]
async fn keys_of_another_type() {
    let server = RedisServer::start();
    redis::cmd("SET").arg("ps1:{%probe}:dl").arg("text").exec(&mut server.connection()).unwrap();
    assert!(refused(&server.url()).await.to_string().contains("WRONGTYPE"));
}

#[tokio::test]
async fn a_secret_that_is_none() {
    let server = RedisServer::start();
    redis::cmd("SET").arg("ps1:{g}:salt").arg("short").exec(&mut server.connection()).unwrap();
    let message = refused(&server.url()).await.to_string();
    assert!(message.contains("ps1:{g}:salt holds no secret") && message.contains("delete it"), "{message}");
}

#[tokio::test]
async fn a_replica_that_takes_no_writes() {
    let server = RedisServer::start();
    redis::cmd("REPLICAOF").arg(&["127.0.0.1", "1"]).exec(&mut server.connection()).unwrap();
    let error = refused(&server.url()).await;
    assert!(matches!(error, StoreError::Refused(_)), "{error:?}");
}

#[tokio::test]
async fn a_server_that_may_forget_is_warned_about() {
    use super::rig::{everywhere, patient, tokens};
    let server = RedisServer::with(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]);
    let warnings = proxy::quota::warnings(&everywhere(&[tokens(1)]), &patient(&server.url()).await);
    assert!(warnings.iter().any(|text| text.contains("appendonly")), "{warnings:?}");
    assert!(warnings.iter().any(|text| text.contains("noeviction")), "{warnings:?}");
    let server = RedisServer::with(&["--appendonly", "yes"]);
    assert_eq!(proxy::quota::warnings(&everywhere(&[tokens(1)]), &patient(&server.url()).await), Vec::<String>::new());
}
