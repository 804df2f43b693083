//! Group commit: reserves and settles that come while others are under way wait for those, and travel as one script.
//! Alone an operation costs its own round trip and its own reading and writing of every account; among many it shares
//! them. Nobody waits for company: an operation that meets no other goes at once. What a batch looks like is in
//! `batch.lua`.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::connection::Connection;
use super::script::{Call, SCRIPTS, deadlines_key, lease_key};
use crate::quota::chain::{Calendars, Chain};
use crate::quota::codec;
use crate::quota::lease::LeaseId;
use crate::quota::store::StoreError;

/// Operations that may be under way alone before the next ones wait for company.
const ALONE: usize = 2;
/// So many need not wait for the batch before them: while the server works on that one, they travel.
const ENOUGH: usize = 16;
/// Operations of one batch. It must not block the server: 32 take it half a millisecond.
const LARGEST: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Reserve = 0,
    Settle = 1,
}

/// One reserve or settle. The numbers are those of its script.
#[derive(Debug)]
pub struct Operation {
    pub kind: Kind,
    pub id: LeaseId,
    pub chain: Arc<Chain>,
    pub windows: Arc<Calendars>,
    pub numbers: [f64; 4],
}

type Reply = Result<Vec<u8>, StoreError>;

#[derive(Debug)]
struct Waiting {
    operation: Operation,
    answer: oneshot::Sender<Reply>,
}

#[derive(Debug)]
pub struct Batches {
    connection: Connection,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Under way alone.
    alone: usize,
    /// Batches under way.
    batches: usize,
    /// A batch has been formed and is not on the wire yet: nothing may overtake it.
    forming: bool,
    /// Batches whose callers have just been answered, and may ask again at once.
    gathering: usize,
    /// In order of arrival. As bounded as the calls and settlements that may be in flight.
    waiting: VecDeque<Waiting>,
}

/// One of those under way alone, until it is dropped.
#[derive(Debug)]
struct Place(Arc<Batches>);

/// A batch under way, until it is dropped: also when its task panics, or its runtime ends.
#[derive(Debug)]
struct Flight {
    batches: Arc<Batches>,
    on_the_wire: bool,
    gathering: bool,
}

enum Entered {
    Alone(Operation, Place),
    Waits(oneshot::Receiver<Reply>),
}

impl Batches {
    pub fn new(connection: Connection) -> Arc<Self> {
        Arc::new(Self { connection, state: Mutex::default() })
    }

    /// The script's reply for this operation. Operations reach the server in the order of their first poll.
    pub async fn ask(self: &Arc<Self>, operation: Operation) -> Reply {
        match self.enter(operation) {
            Entered::Alone(operation, _place) => self.connection.call(operation.alone()).await,
            Entered::Waits(reply) => {
                let gone = |_| Err(StoreError::Unreachable("this gateway is stopping".to_owned()));
                codec::fault_in(reply.await.unwrap_or_else(gone)?)
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(self: &Arc<Self>, operation: Operation) -> Entered {
        let mut state = self.state();
        // A Cluster takes no script on keys of several slots.
        if !self.connection.is_one_server() || state.may_go_alone() {
            state.alone += 1;
            return Entered::Alone(operation, Place(self.clone()));
        }
        let (answer, reply) = oneshot::channel();
        state.waiting.push_back(Waiting { operation, answer });
        Entered::Waits(reply)
    }

    /// Sends the next batch of those that wait, if it may go now; `change` is what has happened.
    fn go_on(self: &Arc<Self>, change: &dyn Fn(&mut State)) {
        let together = {
            let mut state = self.state();
            change(&mut state);
            state.form()
        };
        if together.is_empty() {
            return;
        }
        // Without the lock: a runtime that ends drops what it is given, and that asks for the lock again.
        let flight = Flight { batches: self.clone(), on_the_wire: false, gathering: false };
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(self.clone().run(together, flight));
        }
        // Else nothing runs any more, and those that wait hear so.
    }

    async fn run(self: Arc<Self>, together: Vec<Waiting>, mut flight: Flight) {
        let (operations, answers): (Vec<_>, Vec<_>) =
            together.into_iter().map(|waiting| (waiting.operation, waiting.answer)).unzip();
        let mut replies = pin!(self.send(&operations));
        // The first poll puts it on the wire, and so before whatever comes next.
        let first = poll_fn(|context| Poll::Ready(replies.as_mut().poll(context))).await;
        flight.on_the_wire = true;
        self.go_on(&|state| state.forming = false);
        let replies = match first {
            Poll::Ready(replies) => replies,
            Poll::Pending => replies.await,
        };
        flight.gathering = true;
        self.state().gathering += 1;
        for (index, answer) in answers.into_iter().enumerate() {
            let reply = match &replies {
                Ok(replies) => replies.get(index).cloned().ok_or_else(|| codec::unreadable("a reply per operation")),
                Err(error) => Err(error.clone()),
            };
            // Whoever left meanwhile cancels what it asked for.
            let _left = answer.send(reply);
        }
        // Many of them have more to ask: a settle after a short call, a reserve of the next one.
        tokio::task::yield_now().await;
    }

    async fn send(&self, operations: &[Operation]) -> Result<Vec<Vec<u8>>, StoreError> {
        match operations {
            [alone] => self.connection.call(alone.alone()).await.map(|reply| vec![reply]),
            together => self.connection.call_all(batch(together)).await,
        }
    }
}

impl State {
    fn may_go_alone(&self) -> bool {
        let quiet = self.batches == 0 && !self.forming && self.gathering == 0;
        quiet && self.alone < ALONE && self.waiting.is_empty()
    }

    /// The next batch, counted as under way; empty if none may go now.
    fn form(&mut self) -> Vec<Waiting> {
        let may_go = self.batches == 0 || (self.batches == 1 && self.waiting.len() >= ENOUGH);
        if self.forming || self.gathering > 0 || !may_go {
            return Vec::new();
        }
        let together = self.take();
        if !together.is_empty() {
            (self.batches, self.forming) = (self.batches + 1, true);
        }
        together
    }

    /// The next ones in order: at most one operation of a lease, since a batch reads each lease once.
    fn take(&mut self) -> Vec<Waiting> {
        let mut together: Vec<Waiting> = Vec::with_capacity(self.waiting.len().min(LARGEST));
        while together.len() < LARGEST
            && let Some(next) = self.waiting.pop_front()
        {
            if next.answer.is_closed() {
                continue;
            }
            if together.iter().any(|other| other.operation.id == next.operation.id) {
                self.waiting.push_front(next);
                break;
            }
            together.push(next);
        }
        together
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.go_on(&|state| state.alone -= 1);
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.batches.go_on(&|state| {
            state.batches -= 1;
            state.forming &= self.on_the_wire;
            state.gathering -= usize::from(self.gathering);
        });
    }
}

impl Operation {
    /// As a script of its own, which is shorter than a batch of one.
    fn alone(&self) -> Call {
        let numbers = codec::pack_numbers(&self.numbers);
        let (chain, windows) = (&*self.chain, &self.windows.packed);
        match self.kind {
            Kind::Reserve => Call::new(&SCRIPTS.reserve, chain, self.id).arg(numbers).arg(&chain.packed).arg(windows),
            Kind::Settle => {
                let mark = codec::mark(&chain.packed);
                Call::new(&SCRIPTS.settle, chain, self.id).arg(numbers).arg(windows).arg(mark)
            }
        }
    }
}

/// Keys of a batch, each once, by their place from 1.
#[derive(Default)]
struct Keys<'o> {
    places: HashMap<&'o str, u16>,
    keys: Vec<String>,
}

impl<'o> Keys<'o> {
    fn place(&mut self, key: &'o str) -> u16 {
        *self.places.entry(key).or_insert_with(|| {
            self.keys.push(key.to_owned());
            self.keys.len() as u16
        })
    }
}

/// See the head of `batch.lua`. At most `LARGEST` chains of a few accounts: every place fits 16 bits.
fn batch(operations: &[Operation]) -> Call {
    let (chains, members) = chains_of(operations);
    let mut keys = Keys::default();
    let accounts: Vec<Vec<u16>> = chains
        .iter()
        .map(|operation| operation.chain.accounts.iter().map(|account| keys.place(&account.key)).collect())
        .collect();
    let account_count = keys.keys.len();
    let lists: Vec<String> = chains.iter().map(|operation| deadlines_key(&operation.chain.tag)).collect();
    let lists: Vec<u16> = lists.iter().map(|list| keys.place(list)).collect();
    let mut all = keys.keys;
    let counts = [account_count, all.len() - account_count, chains.len()];
    let mut plan: Vec<u8> = counts.iter().flat_map(|count| (*count as u16).to_le_bytes()).collect();
    for (accounts, list) in accounts.iter().zip(lists) {
        plan.extend(accounts.iter().chain([&list]).flat_map(|place| place.to_le_bytes()));
    }
    all.extend(operations.iter().map(|operation| lease_key(&operation.chain.tag, operation.id)));
    let mut call = Call::plain(&SCRIPTS.batch, all).arg(plan);
    for operation in chains {
        call = call.arg(&operation.chain.packed).arg(&operation.windows.packed);
    }
    let mut packed = Vec::with_capacity(operations.len() * 35);
    for (operation, chain) in operations.iter().zip(members) {
        packed.push(operation.kind as u8);
        packed.extend((chain as u16 + 1).to_le_bytes());
        packed.extend(codec::pack_numbers(&operation.numbers));
    }
    call.arg(packed)
}

/// One operation of each chain and set of windows, and for every operation the index of its like.
fn chains_of(operations: &[Operation]) -> (Vec<&Operation>, Vec<usize>) {
    let mut chains: Vec<&Operation> = Vec::new();
    let alike = |one: &Operation, other: &Operation| {
        Arc::ptr_eq(&one.chain, &other.chain) && Arc::ptr_eq(&one.windows, &other.windows)
    };
    let members = operations.iter().map(|operation| {
        chains.iter().position(|known| alike(known, operation)).unwrap_or_else(|| {
            chains.push(operation);
            chains.len() - 1
        })
    });
    let members = members.collect();
    (chains, members)
}
