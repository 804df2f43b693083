//! One history: plays its plan on gateways of its own, then waits until nothing is under way any more, and compares the
//! accounts with what each call may have cost.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proxy::Config;
use proxy::quota::{Options, Store};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::books;
use super::client::{self, Seen};
use super::fate::{End, Known, fate};
use super::gateway::{Gateway, Place};
use super::link::Trouble;
use super::plan::{self, Event, Plan};
use super::world::{Kind, Server, World};
use crate::quota::rig::{ana, waits};

const PATIENCE: Duration = Duration::from_secs(30);

pub struct History<'w> {
    world: &'w World,
    /// Of the world's server, and part of the ids of its calls.
    pub database: usize,
    pub plan: Plan,
    config: Arc<Config>,
    key: String,
    folder: tempfile::TempDir,
    gateways: Vec<Gateway>,
    began: Instant,
    killed: usize,
    calls: Vec<Call>,
}

/// Histories and calls, by how much is known of them: what the histories of a run were worth.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    histories: usize,
    calls: usize,
    answered: usize,
    refused: usize,
    stopped: usize,
    left: usize,
    killed: usize,
    /// Calls with one allowed cost.
    certain: usize,
}

impl Tally {
    fn of(calls: &[Known]) -> Self {
        let count = |what: fn(&Known) -> bool| calls.iter().filter(|call| what(call)).count();
        Self {
            histories: 1,
            calls: calls.len(),
            answered: count(|call| call.end == End::Answered),
            refused: count(|call| call.end == End::Refused),
            stopped: count(|call| call.end == End::Stopped),
            left: count(|call| matches!(call.end, End::Left { .. })),
            killed: count(|call| call.end == End::Killed),
            certain: count(|call| fate(call).len() == 1),
        }
    }

    pub fn plus(self, other: Self) -> Self {
        Self {
            histories: self.histories + other.histories,
            calls: self.calls + other.calls,
            answered: self.answered + other.answered,
            refused: self.refused + other.refused,
            stopped: self.stopped + other.stopped,
            left: self.left + other.left,
            killed: self.killed + other.killed,
            certain: self.certain + other.certain,
        }
    }
}

struct Call {
    plan: plan::Call,
    id: String,
    began: Instant,
    task: Option<JoinHandle<Seen>>,
    seen: Option<Seen>,
    /// Its gateway was killed before it was known to have settled.
    killed: bool,
    settled: bool,
}

impl<'w> History<'w> {
    pub async fn new(world: &'w World, database: usize, seed: u64) -> Self {
        let plan = plan::draw(seed, world.kind);
        // A client of a killed gateway may find another history's on its port, and must be a stranger there.
        let key = format!("K-{seed}");
        let config = Arc::new(books::config(&plan, &key, &world.upstream.url()));
        let folder = tempfile::tempdir().unwrap();
        let (gateways, calls, began) = (Vec::new(), Vec::new(), Instant::now());
        let mut history = Self { world, database, plan, config, key, folder, gateways, began, killed: 0, calls };
        for _ in 0..history.plan.gateways {
            let gateway = history.gateway().await;
            history.gateways.push(gateway);
        }
        history
    }

    async fn gateway(&self) -> Gateway {
        let place = match self.world.kind {
            Kind::Redis => Place::Redis { link: self.world.link(), database: self.database },
            Kind::Memory => Place::Memory { folder: self.data() },
        };
        let options = Options {
            lease_ttl: self.plan.lease_ttl,
            on_expiry: self.plan.on_expiry,
            undispatched_ttl: Duration::from_millis(200),
            capacity: 4096,
            ..Options::default()
        };
        Gateway::start(self.config.clone(), place, options).await
    }

    /// A gateway with a journal finds what the one before had written.
    fn data(&self) -> std::path::PathBuf {
        self.folder.path().join(self.killed.to_string())
    }

    pub async fn play(mut self) -> Result<Tally, String> {
        for event in self.plan.events.clone() {
            match event {
                Event::Call(call) => self.call(call),
                Event::Pause(pause) => sleep(pause).await,
                Event::Trouble { gateway, trouble, lasts } => {
                    if let Some(link) = self.gateways[gateway].link.clone() {
                        link.trouble(trouble);
                        tokio::spawn(async move {
                            sleep(lasts).await;
                            link.trouble(Trouble::None);
                        });
                    }
                }
                Event::Cut { gateway, cut } => {
                    if let Some(link) = &self.gateways[gateway].link {
                        link.cut(cut);
                    }
                }
                Event::Kill { gateway } => self.kill(gateway).await,
                Event::Calm => self.calm(Duration::from_secs(2)).await,
            }
        }
        self.finish().await
    }

    /// Nothing lets a lease expire under a call that runs, and nothing is admitted without the store.
    fn keeps_to_its_budget(&self) -> bool {
        let troubled = |event: &Event| matches!(event, Event::Trouble { .. } | Event::Cut { .. });
        self.world.server == Server::Well && !self.plan.events.iter().any(troubled) && self.plan.policy == "closed"
    }

    fn call(&mut self, plan: plan::Call) {
        let id = format!("{}.{}", self.database, self.calls.len());
        self.world.script(&id, plan.clone());
        let task =
            tokio::spawn(client::call(self.gateways[plan.gateway].address, self.key.clone(), plan.clone(), id.clone()));
        let began = Instant::now();
        self.calls.push(Call { plan, id, began, task: Some(task), seen: None, killed: false, settled: false });
    }

    async fn kill(&mut self, at: usize) {
        let gateway = self.gateways.remove(at);
        if gateway.link.is_none() {
            let before = self.data();
            self.killed += 1;
            survive(&before, &self.data());
        }
        gateway.kill().await;
        for call in self.calls.iter_mut().filter(|call| call.plan.gateway == at) {
            call.killed |= !call.settled;
        }
        let next = self.gateway().await;
        self.gateways.insert(at, next);
    }

    /// Everything ends that can. What has settled then is settled for good.
    async fn calm(&mut self, patience: Duration) {
        for call in &mut self.calls {
            if let Some(task) = call.task.take() {
                call.seen = Some(task.await.unwrap());
            }
        }
        for (at, gateway) in self.gateways.iter().enumerate() {
            if let Some(link) = &gateway.link {
                link.trouble(Trouble::None);
            }
            if gateway.quota.drain(patience).await {
                self.calls.iter_mut().filter(|call| call.plan.gateway == at).for_each(|call| call.settled = true);
            }
        }
    }

    async fn finish(mut self) -> Result<Tally, String> {
        self.world.is_well().await;
        self.calm(PATIENCE).await;
        for gateway in &self.gateways {
            let stats = gateway.quota.stats();
            if stats.leaked() != 0 || stats.held != 0 || stats.leases != 0 || stats.outage.owed != 0 {
                return Err(format!("a gateway has not settled within {PATIENCE:?}: {stats:?}"));
            }
        }
        let mut known = Vec::new();
        for call in &self.calls {
            let seen = call.known(self.world).map_err(|why| format!("call {}: {why}", call.id))?;
            if seen.end == End::Stopped && self.plan.overrun != "stop" {
                return Err(format!("call {} was ended by nobody's wish", call.id));
            }
            known.push(seen);
        }
        let store = match self.world.kind {
            Kind::Redis => {
                let url = format!("unix://{}?db={}", self.world.socket().display(), self.database);
                let store = Store::redis(&url, waits(PATIENCE)).await;
                Some(store.map_err(|error| format!("no store to audit: {error}"))?)
            }
            Kind::Memory => None,
        };
        let quota = &self.gateways[0].quota;
        if self.world.lost_after(self.began) {
            // A store that forgets the names of orgs learns them when they are used.
            quota.chain(&ana(), &["m"]);
        }
        let budget = self.plan.budget.filter(|_| self.keeps_to_its_budget());
        let store = store.as_ref().unwrap_or(quota.store());
        books::balance(&self.config.quotas, store, budget, &known).await?;
        for gateway in self.gateways {
            gateway.kill().await;
        }
        Ok(Tally::of(&known))
    }
}

impl Call {
    fn known(&self, world: &World) -> Result<Known, String> {
        let seen = self.seen.as_ref().expect("it has ended");
        let end = if self.killed { End::Killed } else { seen.end(&self.plan)? };
        let asked = world.asked(&self.id);
        if end == End::Refused && asked > 0 {
            return Err("refused, and sent to its upstream".to_owned());
        }
        let plan::Call { script, stream, cap, .. } = self.plan.clone();
        let store_lost = world.lost_after(self.began);
        Ok(Known { script, stream, prompt: self.plan.prompt(), cap, asked, end, store_lost })
    }
}

/// What is on disk when a process is killed: what it has written, to the byte.
fn survive(before: &Path, after: &Path) {
    std::fs::create_dir_all(after).unwrap();
    std::fs::copy(before.join("journal"), after.join("journal")).unwrap();
}
