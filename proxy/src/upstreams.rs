//! From an admitted call to an answer's first byte: picks upstreams by weight, tries the next one while nothing has
//! gone to the client, and settles what fails before that. What follows the first byte is `relay`'s part.

mod attempt;
mod connector;
mod line;
mod order;
mod outgoing;
mod pool;

use std::{sync::Arc, time::Duration};

use http::{HeaderMap, Response};

use self::{attempt::Answer, connector::Connector, outgoing::Outgoing};
pub use self::{attempt::Stream, line::Reply, pool::Pool};
use crate::{
    body::Body, cache_salt::CacheSalts, call::Call, charge::Charge, config::Limits, events::Events, relay,
    respond::Failed, tenants::Tenant,
};

/// Why an upstream gave no answer to pass on, named for the reader of the error.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("upstream {upstream} cannot be reached: {message}")]
    Unreachable { upstream: String, message: String },
    #[error("upstream {upstream} closed the connection before it answered: {message}")]
    Reset { upstream: String, message: String },
    #[error("upstream {upstream} answered {status}: {message}")]
    Status { upstream: String, status: u16, message: String },
    #[error("upstream {upstream} is over its own rate limit: {message}")]
    RateLimited { upstream: String, retry_after: Option<Duration>, message: String },
    /// Its message stays with us: it may quote the key.
    #[error("upstream {upstream} refused the gateway's credentials with {status}")]
    Credentials { upstream: String, status: u16 },
    #[error("upstream {upstream} did not answer within {waited:?}")]
    TimedOut { upstream: String, waited: Duration },
    #[error("upstream {upstream} answered more than {limit} bytes")]
    TooLong { upstream: String, limit: usize },
}

pub struct Upstreams {
    connector: Connector,
    salts: CacheSalts,
    limits: Limits,
    events: Arc<Events>,
}

impl Upstreams {
    pub fn new(limits: Limits, salts: CacheSalts, events: Arc<Events>) -> Self {
        Self { connector: Connector::new(limits.connect_timeout), salts, limits, events }
    }

    /// Asks the upstreams of the call's model, one after the other, until one answers. One lease covers all attempts:
    /// they ask for the same, so its hold stays as it is.
    pub async fn dispatch(
        &self,
        call: &Call,
        headers: &HeaderMap,
        tenant: &Tenant,
        mut charge: Charge,
    ) -> Result<Response<Body>, Failure> {
        let model = charge.model.clone();
        let mut last = None;
        for upstream in order::by_weight(&model.upstreams) {
            let written = charge.dispatched(upstream);
            let salt = upstream.is_engine.then(|| self.salts.of(tenant.cache_scope(), call.cache_salt()));
            let body = Outgoing::new(call.forward(&upstream.model, salt.as_deref()), written);
            let tried = self.attempt(attempt::request(call, headers, upstream, body), upstream).await;
            self.events.attempted(&model.name, &upstream.name, attempt::outcome(&tried));
            match tried {
                Ok(Answer::Stream(stream)) => return Ok(relay::stream(stream, call, charge, &self.limits)),
                Ok(Answer::Whole { head, body }) => return Ok(relay::whole(head, body, charge)),
                Err(failure) => {
                    let stop = !failure.moves_on();
                    last = Some(failure.or_sooner(last));
                    if stop {
                        break;
                    }
                }
            }
        }
        let failure = last.expect("invariant: a model has at least one upstream");
        Err(settle(failure, &mut charge))
    }
}

impl Failure {
    /// Another upstream may do better, and nothing was produced that somebody pays for.
    fn moves_on(&self) -> bool {
        !matches!(self, Self::TimedOut { .. })
    }

    /// Of two upstreams over their limits, the one that is back first says when to come again.
    fn or_sooner(self, earlier: Option<Self>) -> Self {
        match (&self, earlier) {
            (Self::RateLimited { retry_after, .. }, Some(earlier)) => match &earlier {
                Self::RateLimited { retry_after: Some(back), .. } if retry_after.is_none_or(|own| *back < own) => {
                    earlier
                }
                _ => self,
            },
            _ => self,
        }
    }
}

fn settle(failure: Failure, charge: &mut Charge) -> Failure {
    let timed_out = matches!(failure, Failure::TimedOut { .. });
    let status = Failed::status_of_failure(&failure).as_u16();
    if timed_out {
        charge.timed_out(status)
    } else {
        charge.failed(status)
    }
    failure
}
