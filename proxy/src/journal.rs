//! Fills the line of the access log as a call becomes known. Writing it is `access_log`'s part; the end of an admitted
//! call is `charge`'s.

use std::time::UNIX_EPOCH;

use http::request;
use serde::Serialize;
use wire::access::{self, Decision, Entry, Outcome, Timing};

use crate::{
    call::{Call, ReadError},
    error::Error,
    paths::Endpoint,
    quota::{Demand, Refused},
    tenants::Tenant,
    trace::Arrival,
};

/// A line that knows who calls and nothing else.
pub fn entry(parts: &request::Parts, tenant: &Tenant, endpoint: Endpoint) -> Box<Entry> {
    let arrival = parts.extensions.get().copied().unwrap_or_else(Arrival::now);
    Box::new(Entry {
        v: access::VERSION,
        ts_ms: arrival.wall.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64),
        request_id: arrival.id.to_string(),
        who: tenant.who.clone(),
        model: String::new(),
        served_model: None,
        upstream: None,
        endpoint: endpoint.path().to_owned(),
        stream: false,
        status: 0,
        decision: Decision::new(Outcome::Invalid),
        demand: None,
        usage: None,
        estimated: false,
        timing: Timing::default(),
    })
}

pub fn asked(entry: &mut Option<Box<Entry>>, call: &Call) {
    if let Some(entry) = entry {
        entry.model.clone_from(&call.model);
        entry.stream = call.stream;
    }
}

/// `held` of `worst`.
pub fn demanded(entry: &mut Option<Box<Entry>>, worst: &Demand, held: &Demand) {
    if let Some(entry) = entry {
        let held_output = (held.output < worst.output).then_some(held.output);
        let (prompt, max_output, nano_usd) = (worst.input, worst.output, held.nano_usd());
        entry.demand = Some(access::Demand { prompt, max_output, held_output, nano_usd });
    }
}

/// The end of a call that was never admitted.
pub fn refused(entry: &mut Entry, error: &Error, status: u16, arrival: &Arrival) {
    let is = Decision::new;
    entry.decision = match error {
        Error::Refused(Refused::Limit(refusal)) => Decision {
            level: Some(refusal.level.as_str().to_owned()),
            limit: Some(refusal.limit.clone()),
            ..is(Outcome::Refused)
        },
        Error::Refused(Refused::Store(_)) => is(Outcome::StoreUnavailable),
        Error::Refused(Refused::Overloaded)
        | Error::Overloaded
        | Error::Uncounted
        | Error::Read(ReadError::Overloaded) => is(Outcome::Overloaded),
        Error::Upstream(_) => is(Outcome::UpstreamFailed),
        _ => is(Outcome::Invalid),
    };
    entry.status = status;
    let e2e_ms = arrival.at.elapsed().as_secs_f64() * 1000.0;
    let queued_ms = match error {
        Error::Refused(Refused::Limit(refusal)) => refusal.shed.map_or(0.0, |shed| shed.queued.as_secs_f64() * 1000.0),
        _ => 0.0,
    };
    entry.timing = Timing { e2e_ms, overhead_ms: e2e_ms - queued_ms, queued_ms, ..Timing::default() };
}

/// Our own small answers.
pub fn to_json(body: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(body).expect("invariant: our own answers hold only texts and numbers")
}
