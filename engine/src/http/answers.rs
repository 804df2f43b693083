//! The answers of one HTTP request, which may ask several prompts at once: choice `k` of prompt `p` has index
//! `p * n + k`. Dropping them cancels what still runs.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use wire::Usage;

use super::error::Error;
use crate::handle::Handle;
use crate::request::{FinishReason, Request};
use crate::stream::{Event, TokenStream};

pub(super) struct Answers {
    streams: Vec<TokenStream>,
    choices: u32,
    usage: Usage,
    stall_timeout: Duration,
}

impl Answers {
    /// Submits all prompts, or none: those before a refused one are cancelled. `param` is where the prompts were.
    pub(super) fn submit(
        handle: &Handle,
        requests: Vec<Request>,
        param: &'static str,
        stall_timeout: Duration,
    ) -> Result<Self, Error> {
        let choices = requests.first().map_or(1, |request| request.choices);
        let prompt = requests.iter().map(|request| request.prompt.len() as u64).sum();
        let wanted: u64 = requests.iter().map(|request| u64::from(request.choices)).sum();
        let most = handle.max_waiting();
        // An answer of "overloaded" would be asked again for ever.
        if wanted > u64::from(most) {
            let message = format!("{wanted} answers are more than this engine queues ({most}); ask for fewer at once.");
            return Err(Error::invalid("n", message));
        }
        let refused = |refused| Error::Refused { refused, param };
        let streams = requests.into_iter().map(|request| handle.submit(request).map_err(refused));
        let streams = streams.collect::<Result<_, _>>()?;
        Ok(Self { streams, choices, usage: Usage { prompt, ..Usage::default() }, stall_timeout })
    }

    /// How many answers there will be.
    pub(super) fn count(&self) -> u32 {
        self.streams.len() as u32 * self.choices
    }

    /// What was used so far; final at the end. The prompt of several choices counts once.
    pub(super) fn usage(&self) -> Usage {
        self.usage
    }

    /// The next event of any answer; `None` when all have finished.
    pub(super) async fn next_event(&mut self) -> Result<Option<(u32, Event)>, Error> {
        let timeout = self.stall_timeout;
        let event = tokio::time::timeout(timeout, self.next()).await.map_err(|_| Error::Stalled)?;
        event.map(|event| self.account(event)).transpose()
    }

    /// An event that is there already.
    pub(super) fn ready_event(&mut self) -> Result<Option<(u32, Event)>, Error> {
        let choices = self.choices;
        let mut streams = (0_u32..).zip(&mut self.streams);
        let event =
            streams.find_map(|(prompt, stream)| stream.try_next().map(|event| numbered(prompt, choices, event)));
        event.map(|event| self.account(event)).transpose()
    }

    fn account(&mut self, (index, event): (u32, Event)) -> Result<(u32, Event), Error> {
        match &event {
            Event::Token { .. } => self.usage.completion += 1,
            Event::Finished { reason: FinishReason::Failed(why), .. } => return Err(Error::Failed(why.clone())),
            Event::Finished { choice: 0, cached, .. } => self.usage.cached += u64::from(*cached),
            Event::Finished { .. } | Event::Prompt { .. } => {}
        }
        Ok((index, event))
    }
}

impl Stream for Answers {
    type Item = (u32, Event);

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let choices = self.choices;
        let mut open = false;
        for (prompt, stream) in (0_u32..).zip(&mut self.streams) {
            match stream.poll_next_unpin(context) {
                Poll::Ready(Some(event)) => return Poll::Ready(Some(numbered(prompt, choices, event))),
                Poll::Ready(None) => {}
                Poll::Pending => open = true,
            }
        }
        if open { Poll::Pending } else { Poll::Ready(None) }
    }
}

fn numbered(prompt: u32, choices: u32, event: Event) -> (u32, Event) {
    (prompt * choices + event.choice(), event)
}
