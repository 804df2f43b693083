//! One admitted call's hold, from admission to its single resolution.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use wire::{Metered, Usage};

use super::account::Amounts;
use super::chain::Chain;
use super::holding::Holding;
use super::keeper::Live;
use super::lease::LeaseId;
use super::outage::Ticket;
use super::rate::RateHeaders;
use super::refusal::{self, Refused};
use super::rule::Demand;
use super::settler::{Permit, Settlement};
use super::shadow::Shadowed;
use super::stats::Operation;
use super::store::{Ask, Status, StoreError};
use super::waiting::Served;
use super::{Admitted, Shared};

mod extension;

/// How a call ended, as far as its budget is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Charged as metered, an explicit zero included.
    Used { metered: Metered, nano_usd: u64 },
    /// Connect error, 5xx, 429, reset before the first byte: everything comes back, the request included.
    Refund,
    /// Another upstream 4xx: tokens and money come back, the request counts.
    Rejected,
}

impl Outcome {
    pub(super) fn amounts(self) -> Amounts {
        match self {
            Self::Used { metered, nano_usd } => {
                let Usage { prompt, completion, .. } = metered.usage();
                Amounts::used(1, prompt, completion, nano_usd)
            }
            Self::Refund => Amounts::default(),
            Self::Rejected => Amounts::used(1, 0, 0, 0),
        }
    }
}

/// Resolves exactly once: by [`Reservation::settle`] or by being dropped. Neither awaits.
#[derive(Debug)]
pub struct Reservation {
    shared: Arc<Shared>,
    live: Arc<Live>,
    admitted: Admitted,
    /// The turn that it had.
    served: Option<Served>,
    /// Taken when the reservation resolves.
    permit: Option<Permit>,
}

impl Reservation {
    pub fn id(&self) -> LeaseId {
        self.live.id
    }

    pub fn demand(&self) -> Demand {
        self.live.demand()
    }

    pub fn rate(&self) -> &RateHeaders {
        &self.admitted.rate
    }

    /// What becomes of a stream of this call that uses more than it holds.
    pub fn holding(&self) -> Holding {
        self.live.chain().holding()
    }

    /// How long it waited for its turn.
    pub fn queued(&self) -> Duration {
        self.admitted.queued
    }

    /// The shadow limits that would have refused this call.
    pub fn shadowed(&self) -> &[Shadowed] {
        &self.admitted.shadowed
    }

    /// Moves the hold to another candidate, all or nothing. Refused, the old hold stays as it was.
    pub async fn amend(&mut self, chain: &Arc<Chain>, demand: Demand) -> Result<(), Refused> {
        if let Some(refusal) = refusal::before_store(chain, &demand) {
            return Err(self.shared.refused(refusal));
        }
        let queued = self.admitted.queued;
        let admitted = match (&mut self.permit, self.live.is_stored(), chain.is_free()) {
            (Some(Permit::Unstored(ticket)), ..) => {
                let need = Amounts::of_demand(&demand);
                self.shared.outage.amend(ticket, chain, need, self.shared.store.gateways())?;
                self.shared.admitted(chain, &demand, &[], chain.rate())
            }
            (_, false, true) => self.shared.admitted(chain, &demand, &[], RateHeaders::default()),
            (_, true, _) => self.swap(chain, &demand).await?,
            (_, false, false) => self.first_hold(chain, &demand).await?,
        };
        self.shared
            .stats
            .amended(Amounts::of_demand(&self.live.demand()).tokens(), Amounts::of_demand(&demand).tokens());
        self.live.amended(chain.clone(), demand);
        self.admitted = Admitted { queued, ..admitted };
        Ok(())
    }

    async fn swap(&self, new: &Arc<Chain>, demand: &Demand) -> Result<Admitted, Refused> {
        let (old, ask) = (self.live.chain(), self.ask(demand));
        let amend = self.shared.store.amend(&old, new, &ask);
        let answer = self.shared.stats.timed(Operation::Amend, amend).await.map_err(Refused::Store)?;
        if matches!(answer.status, Status::Absent | Status::Buried) {
            let lost = StoreError::Refused("the lease expired before it could be amended".to_owned());
            return Err(Refused::Store(lost));
        }
        self.shared.judged(new, demand, &answer)
    }

    /// The first candidate had no limits, so nothing is held yet.
    async fn first_hold(&self, chain: &Arc<Chain>, demand: &Demand) -> Result<Admitted, Refused> {
        let answer = self.shared.ask(chain, &self.ask(demand)).await.map_err(Refused::Store)?;
        let admitted = self.shared.judged(chain, demand, &answer)?;
        self.live.stored();
        self.shared.watch(&self.live);
        Ok(admitted)
    }

    fn ask(&self, demand: &Demand) -> Ask {
        Ask { id: self.live.id, need: Amounts::of_demand(demand), hold: self.shared.hold() }
    }

    /// The request is about to leave for the upstream. From here a crash charges by policy and a drop charges the prompt.
    ///
    /// The store learns of it with the first renewal, at most one second later, so that a short call costs two round
    /// trips and not three: a gateway killed within that second gives its hold back in full.
    pub fn dispatched(&mut self) {
        self.live.dispatched(self.shared.options.lease_ttl);
    }

    /// How often the output should be counted for the checkpoint: as often as it is sent.
    pub fn checkpoint_every(&self) -> Duration {
        self.shared.options.lease_ttl / 3
    }

    /// Checkpoint: output tokens received from the upstream so far, delivered or not. Cheap; call it per chunk.
    pub fn streamed(&self, output_tokens: u64) {
        self.live.streamed.store(output_tokens, Ordering::Relaxed);
    }

    pub fn settle(mut self, outcome: Outcome) {
        self.resolve(outcome);
    }

    fn resolve(&mut self, outcome: Outcome) {
        let Some(permit) = self.permit.take() else { return };
        let actual = outcome.amounts();
        self.live.end(actual);
        self.shared.live.forget(self.live.id);
        permit.send(&self.shared, Settlement::settle(&self.live, actual, self.served.take()));
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let outcome = if self.live.is_dispatched() {
            let demand = self.live.demand();
            let completion = self.live.streamed.load(Ordering::Relaxed);
            let usage = Usage { prompt: demand.input, completion, cached: 0 };
            Outcome::Used { metered: Metered::Estimated(usage), nano_usd: demand.price.cost(demand.input, completion) }
        } else {
            Outcome::Refund
        };
        self.resolve(outcome);
    }
}

/// A reserve whose answer is not known yet. Dropped, it cancels: the hold may exist, or be on its way.
#[derive(Debug)]
pub(super) struct Pending {
    shared: Arc<Shared>,
    chain: Arc<Chain>,
    id: LeaseId,
    permit: Option<Permit>,
}

impl Pending {
    pub fn new(shared: Arc<Shared>, chain: Arc<Chain>, id: LeaseId, permit: Permit) -> Self {
        Self { shared, chain, id, permit: Some(permit) }
    }

    pub fn held(&mut self, demand: Demand, admitted: Admitted, served: Option<Served>) -> Reservation {
        let live = Arc::new(Live::new(self.id, self.chain.clone(), demand, self.shared.options.undispatched_ttl));
        if !self.chain.is_free() {
            live.stored();
            self.shared.watch(&live);
        }
        self.shared.stats.reserved(Amounts::of_demand(&demand).tokens());
        Reservation { shared: self.shared.clone(), live, admitted, served, permit: self.permit.take() }
    }

    /// Admitted while the store is down. A hold that it may have taken all the same is cancelled when this is dropped.
    pub fn unstored(&self, demand: Demand, ticket: Ticket) -> Reservation {
        let live = Arc::new(Live::new(self.id, self.chain.clone(), demand, self.shared.options.undispatched_ttl));
        self.shared.stats.reserved(Amounts::of_demand(&demand).tokens());
        let permit = Some(Permit::Unstored(Box::new(ticket)));
        let admitted = self.shared.admitted(&self.chain, &demand, &[], self.chain.rate());
        Reservation { shared: self.shared.clone(), live, admitted, served: None, permit }
    }

    pub fn nothing_held(&mut self) {
        self.permit = None;
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(permit) = self.permit.take() {
            permit.send(&self.shared, Settlement::cancel(self.id, self.chain.clone()));
        }
    }
}

/// How soon the store must learn that a lease was dispatched.
pub(super) fn dispatch_mark(ttl: Duration) -> Duration {
    (ttl / 3).min(Duration::from_secs(1))
}
