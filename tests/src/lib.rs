//! The end-to-end harness: real processes of the built `penstock`, a real Redis, mock upstreams, a plain HTTP client.
//! Nothing of the product is linked in: a test sees what a user sees. The tests themselves are in `e2e/`.

pub mod audit;
pub mod clock;
pub mod cluster;
pub mod engine;
pub mod environment;
pub mod gateway;
pub mod http;
pub mod process;
pub mod redis_server;
pub mod resp;
pub mod sentinels;
pub mod sockets;
pub mod wait;

pub use engine::Engine;
pub use gateway::{Config, Gateway};
pub use http::{Answer, Client};
pub use process::Process;
pub use redis_server::RedisServer;
pub use wait::until;
