//! How the rest of the program reaches the engine: submit a request, read its tokens, look at the load. Needs no
//! async runtime.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use wire::load::KvBlocks;

use crate::backend::{Backend, Spec};
use crate::kv::KvCache;
use crate::metrics::Metrics;
use crate::queue::{Queue, Slot};
use crate::request::{Refused, Request};
use crate::scheduler::{Limits, Scheduler};
use crate::sequence::{Arrival, Sequence, SequenceId};
use crate::step::{Board, Engine};
use crate::stream::{TokenStream, channel};
use crate::text::{Assembler, TokenText};

/// What the core needs of a vocabulary.
pub trait Vocabulary: Send + Sync {
    /// A fresh text of tokens, for one sequence.
    fn text(&self) -> Box<dyn TokenText>;

    /// The tokens that end a generation.
    fn end_tokens(&self) -> Vec<u32>;
}

#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Sequences in one step.
    pub max_seqs: u32,
    /// Rows in one step: bounds how long a prompt delays the tokens of others.
    pub token_budget: u32,
    /// Sequences that may wait; one more is refused.
    pub max_waiting: u32,
    /// At most this many positions per sequence; `None`: what the model was trained for.
    pub context: Option<u32>,
}

impl Default for Config {
    fn default() -> Self {
        Self { max_seqs: 32, token_budget: 256, max_waiting: 512, context: None }
    }
}

/// Cheap to clone. When the last one is dropped, the engine finishes its work and its thread ends.
#[derive(Clone)]
pub struct Handle {
    shared: Arc<Shared>,
}

struct Shared {
    inbox: SyncSender<Vec<Sequence>>,
    queue: Arc<Queue>,
    board: Arc<Board>,
    metrics: Arc<Metrics>,
    vocabulary: Box<dyn Vocabulary>,
    end_tokens: Arc<[u32]>,
    spec: Spec,
    context: u32,
    max_seqs: u32,
    next_id: AtomicU64,
    draining: AtomicBool,
}

/// How busy the engine is right now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    pub running: u32,
    pub waiting: u32,
    /// Prompt tokens not yet computed, of those that wait.
    pub waiting_tokens: u64,
    pub kv: KvBlocks,
}

/// Starts the engine's thread. `model_name` labels its metrics.
pub fn spawn(
    backend: Box<dyn Backend>,
    vocabulary: Box<dyn Vocabulary>,
    model_name: &str,
    config: Config,
) -> io::Result<Handle> {
    let spec = backend.spec().clone();
    let limits = Limits { max_seqs: config.max_seqs.max(1), token_budget: config.token_budget };
    let scheduler = Scheduler::new(limits);
    let kv = KvCache::new(&spec);
    let wanted = config.context.unwrap_or(u32::MAX).min(spec.context_length);
    // A sequence is taken only if it can finish alone, so the pool bounds the context too.
    let context = kv.longest(wanted, scheduler.token_budget());
    let metrics = Arc::new(Metrics::new(model_name).map_err(io::Error::other)?);
    let board = Arc::new(Board::default());
    // Each entry holds at least one slot of the queue, so a send never finds this full.
    let (inbox, receiver) = sync_channel(config.max_waiting as usize);
    let engine =
        Engine { backend, scheduler, kv, inbox: receiver, metrics: Arc::clone(&metrics), board: Arc::clone(&board) };
    std::thread::Builder::new().name("engine".to_owned()).spawn(move || engine.run())?;
    Ok(Handle {
        shared: Arc::new(Shared {
            inbox,
            queue: Queue::new(config.max_waiting),
            board,
            metrics,
            end_tokens: vocabulary.end_tokens().into(),
            vocabulary,
            spec,
            context,
            max_seqs: limits.max_seqs,
            next_id: AtomicU64::new(0),
            draining: AtomicBool::new(false),
        }),
    })
}

impl Handle {
    /// Queues a request. Its tokens come through the stream; dropping the stream cancels it.
    pub fn submit(&self, request: Request) -> Result<TokenStream, Refused> {
        let shared = &self.shared;
        if shared.draining.load(Ordering::Relaxed) {
            return Err(Refused::Draining);
        }
        let max_tokens = self.max_tokens(&request)?;
        if let Some(token) = request.prompt.iter().find(|token| **token >= shared.spec.vocab_size) {
            return Err(Refused::UnknownToken { token: *token, vocabulary: shared.spec.vocab_size });
        }
        let choices = request.choices.max(1);
        let slots = shared
            .queue
            .enter(choices, request.prompt.len() as u64)
            .map_err(|waiting| Refused::Overloaded { waiting })?;
        let (sequences, stream) = shared.sequences(request, max_tokens, slots);
        match shared.inbox.try_send(sequences) {
            Ok(()) => Ok(stream),
            Err(TrySendError::Full(_)) => Err(Refused::Overloaded { waiting: shared.queue.waiting() }),
            Err(TrySendError::Disconnected(_)) => Err(Refused::Stopped),
        }
    }

    /// What the request may generate, if prompt and that fit in the context together.
    fn max_tokens(&self, request: &Request) -> Result<u32, Refused> {
        let context = self.shared.context;
        let prompt = u32::try_from(request.prompt.len()).unwrap_or(u32::MAX);
        let room = context.saturating_sub(prompt);
        match request.max_tokens {
            _ if prompt == 0 => Err(Refused::EmptyPrompt),
            // Without a cap there must be room for an answer at all.
            None if room == 0 => Err(Refused::ContextLength { context, prompt, max_tokens: 1 }),
            None => Ok(room),
            Some(max_tokens) if prompt > context || max_tokens > room => {
                Err(Refused::ContextLength { context, prompt, max_tokens })
            }
            Some(max_tokens) => Ok(max_tokens),
        }
    }

    /// Refuses new requests from now on; those taken run to their end.
    pub fn drain(&self) {
        self.shared.draining.store(true, Ordering::Relaxed);
    }

    pub fn is_draining(&self) -> bool {
        self.shared.draining.load(Ordering::Relaxed)
    }

    /// Positions that one sequence may have, prompt and output together.
    pub fn context(&self) -> u32 {
        self.shared.context
    }

    pub fn max_seqs(&self) -> u32 {
        self.shared.max_seqs
    }

    pub fn spec(&self) -> &Spec {
        &self.shared.spec
    }

    pub fn load(&self) -> Load {
        let posted = self.shared.board.read();
        Load {
            running: posted.occupancy.running,
            waiting: self.shared.queue.waiting() + posted.occupancy.preempted,
            waiting_tokens: self.shared.queue.tokens() + posted.occupancy.preempted_tokens,
            kv: posted.kv,
        }
    }

    /// The Prometheus text of this engine.
    pub fn metrics(&self) -> Vec<u8> {
        self.shared.metrics.render(&self.load())
    }

    /// The most sequences that may wait, and so the most that one caller may ask at once.
    pub fn max_waiting(&self) -> u32 {
        self.shared.queue.limit()
    }

    /// How long the step that runs now has taken; `None` between steps.
    pub fn step_time(&self) -> Option<Duration> {
        self.shared.board.read().step_began.map(|began| began.elapsed())
    }

    /// The backend failed: nothing is computed any more.
    pub fn has_stopped(&self) -> bool {
        self.shared.board.has_stopped()
    }
}

impl Shared {
    fn sequences(&self, request: Request, max_tokens: u32, slots: Vec<Slot>) -> (Vec<Sequence>, TokenStream) {
        let (outlets, stream) = channel(slots.len() as u32);
        let first = SequenceId(self.next_id.fetch_add(slots.len() as u64, Ordering::Relaxed));
        let seed = request.seed.unwrap_or_else(rand::random);
        let request = Arc::new(request);
        let now = Instant::now();
        let sequence = |(index, (outlet, slot))| {
            Sequence::new(Arrival {
                id: SequenceId(first.0 + index),
                request: Arc::clone(&request),
                seed,
                max_tokens,
                end_tokens: Arc::clone(&self.end_tokens),
                leader: (index > 0).then_some(first),
                text: Assembler::new(self.vocabulary.text(), request.stop.clone()),
                outlet,
                slot,
                now,
            })
        };
        let sequences = (0_u64..).zip(outlets.into_iter().zip(slots)).map(sequence).collect();
        (sequences, stream)
    }
}
