//! What a call may use at most: prompt tokens by the model's own tokenizer, plus the cap on its answer. An estimate
//! before the fact; the charge after it is `charge`'s part. Long prompts are counted away from the threads that serve,
//! a few at once.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use serde_json::Value;
use tokenizer::{
    ChatTemplate, PromptCounter, Tokenizer,
    openai_chat::{Estimates, ImageRule, Request},
};
use tokio::{sync::Semaphore, time::timeout};

use crate::{
    call::{Call, Invalid},
    catalogue::Model,
    config::TokenizerSource,
    error::Error,
    paths::Endpoint,
    quota::Demand,
    tenants::Tenant,
};

/// Above this a prompt is counted away from the threads that serve: at 40 bytes a microsecond it would keep one from
/// its other calls for longer than the handover costs.
const LONG: usize = 16 << 10;
/// Above this it waits in a line of its own, where only such prompts are before it.
const HUGE: usize = 1 << 20;
/// For a long prompt to be counted, waiting for its turn included.
const DEADLINE: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
#[error("the tokenizer of model {model:?} cannot be loaded from {from}: {message}")]
pub struct LoadError {
    pub model: String,
    pub from: String,
    pub message: String,
}

/// What counts the prompts of one model.
pub fn load(model: &str, source: &TokenizerSource) -> Result<PromptCounter, LoadError> {
    let error = |from: &str, message: String| LoadError { model: model.to_owned(), from: from.to_owned(), message };
    let (tokenizer, template) = match source {
        TokenizerSource::Builtin(name) => {
            (Tokenizer::builtin(name).map_err(|cause| error(name, cause.to_string()))?, None)
        }
        TokenizerSource::File(path) => {
            let tokenizer = Tokenizer::from_file(path);
            (tokenizer.map_err(|cause| error(&path.display().to_string(), cause.to_string()))?, None)
        }
        TokenizerSource::Gguf(path) => {
            let from = path.display().to_string();
            let file = tokenizer::gguf::File::open_metadata(path).map_err(|cause| error(&from, cause.to_string()))?;
            let tokenizer = Tokenizer::from_gguf(&file).map_err(|cause| error(&from, cause.to_string()))?;
            let template = ChatTemplate::from_gguf(&file).map_err(|cause| error(&from, cause.to_string()))?;
            (tokenizer, template.map(Arc::new))
        }
    };
    let estimates = Estimates { image: ImageRule::of_model(model), ..Estimates::default() };
    Ok(PromptCounter::new(Arc::new(tokenizer), template, estimates))
}

/// The turns of long prompts.
pub struct Counting {
    long: Arc<Semaphore>,
    huge: Arc<Semaphore>,
}

impl Default for Counting {
    /// Half the cores for long prompts and one for huge ones: the others go on serving.
    fn default() -> Self {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        Self { long: Arc::new(Semaphore::new((cores / 2).max(1))), huge: Arc::new(Semaphore::new(1)) }
    }
}

impl Counting {
    /// The demand of `call` on `model`. Cancel-safe: a count that nobody waits for any more stops by itself.
    pub async fn demand(&self, call: &Call, model: &Arc<Model>, tenant: &Arc<Tenant>) -> Result<Demand, Error> {
        let input = match call.shape.counted() {
            size if size <= LONG => prompt(call, &model.counter, tenant.cache_scope())?,
            size => {
                let turns = if size <= HUGE { &self.long } else { &self.huge };
                in_turn(turns, DEADLINE, {
                    let (call, model, tenant) = (call.clone(), model.clone(), tenant.clone());
                    move |gone| prompt(&call, &model.counter.until(gone), tenant.cache_scope())
                })
                .await??
            }
        };
        let output = match call.endpoint.generates() {
            true => call.cap.unwrap_or(model.default_max_tokens).saturating_mul(call.choices),
            false => 0,
        };
        Ok(Demand::new(input, output, model.price))
    }
}

/// Waits for a turn and does the work on a thread for such things. The turn lasts as long as the work does, which is told
/// when nobody waits for it any more.
async fn in_turn<T: Send + 'static>(
    turns: &Arc<Semaphore>,
    deadline: Duration,
    work: impl FnOnce(Arc<AtomicBool>) -> T + Send + 'static,
) -> Result<T, Error> {
    let counted = async {
        let turn = turns.clone().acquire_owned().await.ok()?;
        let waiting = Waiting::default();
        let gone = waiting.gone.clone();
        let work = move || {
            let done = work(gone);
            drop(turn);
            done
        };
        tokio::task::spawn_blocking(work).await.ok()
    };
    timeout(deadline, counted).await.ok().flatten().ok_or(Error::Uncounted)
}

/// Tells the count when it is dropped.
#[derive(Default)]
struct Waiting {
    gone: Arc<AtomicBool>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.gone.store(true, Ordering::Relaxed);
    }
}

fn prompt(call: &Call, counter: &PromptCounter, scope: &[u8]) -> Result<u64, Invalid> {
    let shape = &call.shape;
    let part = |param, range: &Option<Range<usize>>| range.as_ref().map(|range| read(param, call, range)).transpose();
    match call.endpoint {
        Endpoint::ChatCompletions => {
            let messages = part("messages", &shape.prompt)?;
            let (tools, tool_choice) = (part("tools", &shape.tools)?, part("tool_choice", &shape.tool_choice)?);
            let (functions, function_call) =
                (part("functions", &shape.functions)?, part("function_call", &shape.function_call)?);
            let response_format = part("response_format", &shape.response_format)?;
            let request = Request {
                messages: messages.as_ref(),
                tools: tools.as_ref(),
                tool_choice: tool_choice.as_ref(),
                functions: functions.as_ref(),
                function_call: function_call.as_ref(),
                response_format: response_format.as_ref(),
            };
            Ok(counter.chat(&request, scope))
        }
        Endpoint::Completions => {
            let parts = [part("prompt", &shape.prompt)?, part("suffix", &shape.suffix)?];
            Ok(parts.iter().flatten().map(|text| counter.text(text, scope)).sum())
        }
        Endpoint::Embeddings => Ok(part("input", &shape.prompt)?.map_or(0, |input| counter.text(&input, scope))),
    }
}

fn read(param: &'static str, call: &Call, range: &Range<usize>) -> Result<Value, Invalid> {
    let cannot = |error| Invalid::new(param, format!("{param} cannot be read: {error}"));
    serde_json::from_slice(call.text(range)).map_err(cannot)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    fn turns() -> Arc<Semaphore> {
        Arc::new(Semaphore::new(1))
    }

    #[tokio::test]
    async fn a_long_prompt_waits_for_its_turn_and_no_longer_than_its_deadline() {
        let turns = turns();
        let (go_on, wait) = sync_channel::<()>(0);
        let first = tokio::spawn({
            let turns = turns.clone();
            async move { in_turn(&turns, DEADLINE, move |_| wait.recv().is_ok()).await }
        });
        while turns.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        let late = in_turn(&turns, Duration::from_millis(20), |_| true).await;
        assert!(matches!(late, Err(Error::Uncounted)), "{late:?}");
        go_on.send(()).expect("it waits");
        assert!(matches!(in_turn(&turns, DEADLINE, |_| 7).await, Ok(7)));
        assert!(matches!(first.await, Ok(Ok(true))));
    }

    #[tokio::test]
    async fn a_count_that_nobody_waits_for_is_told_and_keeps_its_turn_until_it_is_done() {
        let turns = turns();
        let (go_on, wait) = sync_channel::<()>(0);
        let until_gone = move |gone: Arc<AtomicBool>| {
            while !gone.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            wait.recv().is_ok()
        };
        assert!(in_turn(&turns, Duration::from_millis(20), until_gone).await.is_err());
        assert_eq!(turns.available_permits(), 0);
        go_on.send(()).expect("it still works");
        assert!(in_turn(&turns, DEADLINE, |gone| gone.load(Ordering::Relaxed)).await.is_ok_and(|gone| !gone));
    }
}
