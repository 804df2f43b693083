//! An engine process (`penstock engine`) on a loopback port, with a real model file.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use crate::wait::free_address;
use crate::{Client, Process, environment, until};

/// Mapping and repacking a small model, on two busy cores.
const START: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct Engine {
    pub process: Process,
    listen: SocketAddr,
}

impl Engine {
    pub async fn start(model: &Path, name: &str) -> Self {
        Self::start_with(model, name, &[]).await
    }

    pub async fn start_with(model: &Path, name: &str, args: &[&str]) -> Self {
        let mut engine = Self::launch(model, name, args);
        let client = engine.client();
        let process = &mut engine.process;
        until(START, "the engine to be healthy", async || {
            process.assert_alive();
            (client.try_get("/health").await? == 200).then_some(())
        })
        .await;
        engine
    }

    /// Starts it and does not wait: for files that are meant to be refused.
    pub fn launch(model: &Path, name: &str, args: &[&str]) -> Self {
        Self::launch_on(free_address(), model, name, args)
    }

    pub fn launch_on(listen: SocketAddr, model: &Path, name: &str, args: &[&str]) -> Self {
        let (model, address) = (model.to_string_lossy().into_owned(), listen.to_string());
        let fixed = ["engine", "--model", &model, "--name", name, "--listen", &address];
        let all = fixed.iter().chain(args).copied();
        Self { process: Process::start(&format!("engine-{name}"), &environment::penstock(), all), listen }
    }

    /// Base URL without `/v1`.
    pub fn url(&self) -> String {
        format!("http://{}", self.listen)
    }

    /// What a gateway is configured with.
    pub fn base(&self) -> String {
        format!("{}/v1", self.url())
    }

    pub fn client(&self) -> Client {
        Client::new(self.url(), None)
    }
}
