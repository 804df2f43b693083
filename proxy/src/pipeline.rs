//! THE request path. Layers carry what is generic; what is ours is one typed function, so that a stage skipped or out
//! of order does not compile.

use std::{convert::Infallible, sync::Arc};

use futures_util::future::BoxFuture;
use http::{Request, Response, StatusCode, request};
use hyper::body::Incoming;
use tower::{Service, ServiceBuilder};
use wire::access::Entry;

use crate::{
    Proxy,
    body::Body,
    call::{Call, ReadError},
    charge::{Charge, Terms},
    error::Error,
    generation::Caller,
    journal,
    paths::{self, Endpoint, Target},
    patience::{Leaving, patience},
    quota::lengths::Calibrated,
    respond::{Errors, Failed, json, stamp_rate},
    server::framing::Ambiguous,
    tenants::Tenant,
    trace::{Arrival, Trace},
};

type Answering = BoxFuture<'static, Result<Response<Body>, Infallible>>;

impl Proxy {
    /// Outermost first: a request meets these top to bottom, then `answer`.
    pub(crate) fn service(
        self: &Arc<Self>,
    ) -> impl Service<Request<Incoming>, Response = Response<Body>, Error = Infallible, Future = Answering> + Clone + use<>
    {
        let proxy = self.clone();
        ServiceBuilder::new()
            .layer(Trace) // id and span, so that everything below logs with them
            .layer(Errors::new(self.events.clone())) // the only place where an error becomes an answer
            .layer(self.in_flight.clone()) // sheds at once; the slot lasts to the body's end
            .service_fn(move |request| proxy.clone().answer(request))
    }

    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Result<Response<Body>, Failed> {
        let (parts, body) = request.into_parts();
        if parts.extensions.get::<Ambiguous>().is_some() {
            return Err(Error::Read(ReadError::TwoLengths).into());
        }
        let target = paths::target(&parts.method, parts.uri.path()).map_err(|miss| Error::Path {
            miss,
            method: parts.method.clone(),
            path: parts.uri.path().to_owned(),
        })?;
        let generation = self.current();
        let tenant = generation.tenants.authenticate(&parts.headers)?;
        let mut caller = Caller { generation, tenant };
        let Caller { generation, tenant } = &caller;
        let answered = match target {
            Target::Models => Ok(self.listed(tenant, &generation.catalogue.list())),
            Target::Model(name) => match generation.catalogue.show(&name) {
                Some(model) => Ok(self.listed(tenant, &model)),
                None => Err(Error::UnknownModel(name)),
            },
            Target::Call { endpoint, deployment } => {
                let mut entry = Some(journal::entry(&parts, tenant, endpoint));
                let incoming = IncomingCall { parts: &parts, body, endpoint, deployment };
                let called = self.call(incoming, &mut caller, &mut entry).await;
                return called.map_err(|error| {
                    self.unanswered(entry, &caller, &error, &parts);
                    Failed { error, rate: caller.tenant.last_rate(), counted: true }
                });
            }
        };
        answered.map_err(|error| Failed { error, rate: tenant.last_rate(), counted: false })
    }

    async fn call(
        &self,
        incoming: IncomingCall<'_>,
        caller: &mut Caller,
        entry: &mut Option<Box<Entry>>,
    ) -> Result<Response<Body>, Error> {
        let IncomingCall { parts, body, endpoint, deployment } = incoming;
        let body = self.intake.collect(&parts.headers, body).await?;
        self.renewed(caller)?;
        let Caller { generation, tenant } = &*caller;
        let call = Call::parse(endpoint, deployment, body)?;
        journal::asked(entry, &call);
        let name = generation.catalogue.find(&call.model).ok_or_else(|| Error::UnknownModel(call.model.clone()))?;
        let demand = self.counting.demand(&call, &name.model, tenant).await?;
        let chain = tenant.chain(name.index, |who| self.quota.chain(who, &[&name.model.name, &call.model]));
        let Calibrated { demand: held, length } =
            self.lengths.hold(chain, &tenant.subject, &name.model.name, demand, call.choices);
        journal::demanded(entry, &demand, &held);
        self.quota.within_ceilings(chain, &demand).map_err(Error::Refused)?;
        let patience = patience(parts, &call)?;
        let leaving = Leaving::new(entry, &name.model, arrival(parts), self.books());
        let reserved = self.quota.admit(chain, held, patience).await; // dropped unsent: all back
        leaving.stayed();
        tenant.remember_rate(&reserved);
        let reservation = reserved.map_err(Error::Refused)?;
        let terms = Terms { worst: demand.output, choices: call.choices, length };
        let charge = Charge::new(reservation, terms, name.model.clone(), entry.take(), arrival(parts), self.books());
        Ok(self.upstreams.dispatch(&call, &parts.headers, tenant, charge).await?) // no retry after the first byte
    }

    /// A small answer of our own. It asks no store, so its rates are those last seen.
    fn listed(&self, tenant: &Tenant, body: &impl serde::Serialize) -> Response<Body> {
        self.events.answered(None, StatusCode::OK.as_u16());
        let mut answer = json(StatusCode::OK, journal::to_json(body));
        stamp_rate(answer.headers_mut(), &tenant.last_rate());
        answer
    }

    /// Counts and logs a call that was never charged; one that was has its line and its count already.
    fn unanswered(&self, entry: Option<Box<Entry>>, caller: &Caller, error: &Error, parts: &request::Parts) {
        let Some(mut entry) = entry else { return };
        let status = Failed::status_of(error).as_u16();
        let model = caller.generation.catalogue.find(&entry.model).map(|name| name.model.name.as_str());
        self.events.answered(model, status);
        journal::refused(&mut entry, error, status, &arrival(parts));
        self.log.send(entry);
    }
}

/// A call before it is read.
struct IncomingCall<'r> {
    parts: &'r request::Parts,
    body: Incoming,
    endpoint: Endpoint,
    deployment: Option<String>,
}

/// Set by the layer `Trace`; made here only if that layer is not there.
fn arrival(parts: &request::Parts) -> Arrival {
    parts.extensions.get().copied().unwrap_or_else(Arrival::now)
}
