//! The gateway: authenticates, reserves, dispatches, relays, settles. Reading files, flags and the environment, and
//! everything global to a process, is the caller's part.

pub mod admin;
pub mod config;
pub mod quota;
pub mod replay;

mod access_log;
mod body;
mod cache_salt;
mod call;
mod catalogue;
mod charge;
mod demand;
mod error;
mod events;
mod generation;
mod in_flight;
mod journal;
mod members;
mod pace;
mod passing;
mod paths;
mod patience;
mod pipeline;
mod relay;
mod respond;
mod server;
mod tenants;
mod trace;
mod upstreams;

use std::sync::{
    Arc, RwLock,
    atomic::{AtomicBool, Ordering},
};

use access_log::AccessLog;
use cache_salt::CacheSalts;
use call::Intake;
use charge::Books;
pub use config::Config;
use config::Limits;
use demand::Counting;
pub use demand::{LoadError, load as prompt_counter};
use events::Events;
use generation::Generation;
use in_flight::InFlight;
use quota::{Quota, Readiness, lengths::Lengths};
use upstreams::Upstreams;

/// Why a gateway could not start from a valid configuration.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Tokenizer(#[from] demand::LoadError),
    #[error("two models answer to the name {0:?}; give each model and alias a name of its own")]
    NameTaken(String),
    #[error("two keys have the same secret; give each key a secret of its own")]
    SecretTaken,
    #[error("the access log cannot be written: {0}")]
    AccessLog(#[source] std::io::Error),
}

/// One gateway, ready to serve on any number of listeners.
pub struct Proxy {
    limits: Limits,
    intake: Intake,
    generation: RwLock<Arc<Generation>>,
    counting: Counting,
    lengths: Lengths,
    quota: Arc<Quota>,
    upstreams: Upstreams,
    events: Arc<Events>,
    log: Arc<AccessLog>,
    in_flight: InFlight,
    draining: AtomicBool,
}

impl Proxy {
    /// Loads what the models need. Call it inside a tokio runtime.
    pub fn new(config: &Config, quota: Arc<Quota>) -> Result<Arc<Self>, StartError> {
        let events = Arc::new(Events::default());
        let generation = Generation::new(config, &events, None)?;
        events.config_in_force(&config.digest);
        let log = AccessLog::open(&config.access_log, events.clone()).map_err(StartError::AccessLog)?;
        let salts = CacheSalts::new(quota.store().secret());
        Ok(Arc::new(Self {
            limits: config.limits,
            intake: Intake::new(&config.limits),
            generation: RwLock::new(Arc::new(generation)),
            counting: Counting::default(),
            lengths: Lengths::default(),
            quota,
            upstreams: Upstreams::new(config.limits, salts, events.clone()),
            in_flight: InFlight::new(config.limits.in_flight, events.in_flight()),
            events,
            log: Arc::new(log),
            draining: AtomicBool::new(false),
        }))
    }

    /// Whether this gateway should be sent traffic, or why not.
    pub fn ready(&self) -> Result<Readiness, String> {
        if self.draining.load(Ordering::Relaxed) {
            return Err("draining".to_owned());
        }
        self.quota.ready().map_err(|error| error.to_string())
    }

    fn draining(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    fn books(&self) -> Books {
        Books { events: self.events.clone(), log: self.log.clone() }
    }
}
