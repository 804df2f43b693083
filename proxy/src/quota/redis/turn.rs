//! Turns of calls that may wait. They go alone and not in batches, in the order in which they are asked for, so that calls
//! without queues are as quick as ever.

use std::sync::Arc;

use super::script::{Call, SCRIPTS};
use super::{RedisStore, pack_ask, stale};
use crate::quota::account::Amounts;
use crate::quota::chain::Chain;
use crate::quota::codec;
use crate::quota::lease::LeaseId;
use crate::quota::store::{Answer, Ask, Status, StoreError, Turn, Turned};

impl RedisStore {
    pub async fn turn(&self, chain: &Arc<Chain>, ask: &Ask, turn: &Turn) -> Result<Turned, StoreError> {
        let plan = codec::pack_turn(chain, ask.id, turn);
        let keys = || {
            let accounts = chain.accounts.iter().map(|account| account.key.clone());
            accounts.chain((0..chain.queues.len()).flat_map(|queue| keys_of(chain, queue))).collect::<Vec<_>>()
        };
        let mut now = self.server_now();
        for _ in 0..2 {
            let call = Call::on_keys(&SCRIPTS.turn, &chain.tag, ask.id, keys().iter().map(String::as_str));
            let call = call.arg(pack_ask(ask)).arg(&chain.packed).arg(&chain.calendars(now).packed).arg(&plan);
            let reply = self.hot.call(call).await?;
            let (reply, spot) = codec::read_spot(&reply)?;
            let answer = self.answer(reply)?;
            if answer.status != Status::Stale {
                return Ok(Turned { answer, spot });
            }
            now = answer.now_us;
        }
        Err(stale())
    }

    pub async fn leave(&self, chain: &Arc<Chain>, id: LeaseId) -> Result<(), StoreError> {
        let keys = (0..chain.queues.len()).flat_map(|queue| keys_of(chain, queue)).collect();
        let call = Call::plain(&SCRIPTS.leave, keys).arg(id.0.to_be_bytes()).arg(ranks(chain).to_string());
        self.hot.call(call.arg(chain.queues.len().to_string())).await.map(drop)
    }

    pub async fn correct(&self, chain: &Arc<Chain>, queue: usize, change: f64) -> Result<(), StoreError> {
        let call = Call::plain(&SCRIPTS.correct, keys_of(chain, queue)).arg(ranks(chain).to_string());
        let call = call.arg(chain.rank.to_string()).arg(chain.queues[queue].tenant).arg(change.to_le_bytes());
        self.hot.call(call).await.map(drop)
    }

    /// Of a call that may have waited: its settle is before the next turn that is asked for.
    pub(super) async fn settle_alone(
        &self,
        chain: &Arc<Chain>,
        id: LeaseId,
        actual: &Amounts,
    ) -> Result<(Answer, Vec<u8>), StoreError> {
        let used = codec::pack_numbers(&[actual.requests, actual.input, actual.output, actual.nano_usd]);
        let mark = codec::mark(&chain.packed);
        let call = |windows: &[u8]| Call::new(&SCRIPTS.settle, chain, id).arg(&used).arg(windows).arg(mark);
        self.in_windows(chain, call).await
    }
}

/// See the head of `line.lua`.
fn keys_of(chain: &Chain, queue: usize) -> Vec<String> {
    let key = &chain.queues[queue].key;
    let of_ranks = |what: &'static str| (0..ranks(chain)).map(move |rank| format!("{key}:{what}{rank}"));
    [format!("{key}:f"), format!("{key}:h")].into_iter().chain(of_ranks("w")).chain(of_ranks("i")).collect()
}

fn ranks(chain: &Chain) -> usize {
    chain.shares.len().max(1)
}
