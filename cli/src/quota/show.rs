//! What `penstock quota show` and `check` print of an audit: accounts by name where the configuration knows them, what is
//! left of each limit, who holds, and the lease that has gone longest without a renewal.

use std::collections::BTreeMap;

use proxy::{
    Config,
    quota::{
        Chain, Clock, Unit,
        audit::{AccountAudit, Audit},
        balance::{Balance, LimitBalance, balances},
    },
};
use serde_json::{Map, Value, json};

use crate::output;

pub struct Shown {
    pub audit: Audit,
    /// By key; none without a configuration.
    named: BTreeMap<String, Balance>,
    now_us: f64,
}

impl Shown {
    /// The clock is this machine's: what a bucket has refilled since is as exact as that.
    pub fn new(audit: Audit, chains: &[Chain]) -> Self {
        let now_us = Clock::Wall.now_us();
        let named = balances(chains, &audit, now_us);
        Self { audit, named, now_us }
    }

    pub fn print(&self) -> anyhow::Result<()> {
        for (key, account) in &self.audit.accounts {
            let name = match self.named.get(key) {
                Some(named) => format!("{} {}", named.level.as_str(), named.subject),
                None => key.clone(),
            };
            output::line(&name)?;
            let figures = figures(account).map(|(name, value)| format!("{name} {value}")).join(", ");
            output::line(&format!("  tokens: {figures}"))?;
            for limit in self.named.get(key).iter().flat_map(|named| &named.limits) {
                output::line(&format!("  {}", told(limit)))?;
            }
            if let Some(holders) = self.holders(account) {
                output::line(&format!("  {holders}"))?;
            }
        }
        output::line(&self.summary())
    }

    fn holders(&self, account: &AccountAudit) -> Option<String> {
        let oldest = account.oldest.as_ref()?;
        let seconds = (oldest.deadline - self.now_us) / 1e6;
        let due =
            if seconds < 0.0 { format!("overdue by {:.1} s", -seconds) } else { format!("due in {seconds:.1} s") };
        let state = if oldest.dispatched { "dispatched" } else { "not dispatched" };
        Some(format!(
            "live leases: {}; oldest {} holds {} tokens, {state}, {due}",
            account.leases, oldest.id, oldest.tokens
        ))
    }

    pub fn summary(&self) -> String {
        let Audit { accounts, live_leases, expired_leases } = &self.audit;
        format!(
            "{} accounts, {live_leases} live leases, {expired_leases} expired ones still remembered",
            accounts.len()
        )
    }

    pub fn json(&self) -> Value {
        let accounts = self.audit.accounts.iter().map(|(key, account)| (key.clone(), self.account(key, account)));
        json!({
            "balanced": self.audit.is_balanced(),
            "leaked_tokens": self.audit.leaked(),
            "live_leases": self.audit.live_leases,
            "expired_leases": self.audit.expired_leases,
            "accounts": accounts.collect::<Map<_, _>>(),
        })
    }

    fn account(&self, key: &str, account: &AccountAudit) -> Value {
        let mut value: Map<String, Value> =
            figures(account).into_iter().map(|(name, value)| (format!("{name}_tokens"), value.into())).collect();
        value.insert("leaked_tokens".to_owned(), account.leaked().into());
        value.insert("live_leases".to_owned(), account.leases.into());
        if let Some(oldest) = &account.oldest {
            let lease = json!({
                "id": oldest.id.to_string(),
                "due_in_s": (oldest.deadline - self.now_us) / 1e6,
                "tokens": oldest.tokens,
                "dispatched": oldest.dispatched,
            });
            value.insert("oldest_lease".to_owned(), lease);
        }
        if let Some(named) = self.named.get(key) {
            value.insert("level".to_owned(), named.level.as_str().into());
            value.insert("subject".to_owned(), named.subject.clone().into());
            value.insert("limits".to_owned(), named.limits.iter().map(limit_json).collect());
        }
        value.into()
    }
}

/// Every way in which a key of the file can ask for a model.
pub fn chains(config: &Config) -> Vec<Chain> {
    let names = |model: &proxy::config::Model| {
        let asked: Vec<String> = std::iter::once(&model.name).chain(&model.aliases).cloned().collect();
        let own = model.name.clone();
        asked.into_iter().map(move |asked| [own.clone(), asked])
    };
    let models: Vec<[String; 2]> = config.models.iter().flat_map(names).collect();
    let mut chains = Vec::with_capacity(config.keys.len() * models.len());
    for key in &config.keys {
        let subject = key.subject();
        chains.extend(models.iter().map(|[own, asked]| Chain::resolve(&config.quotas, &subject, &[own, asked])));
    }
    chains
}

fn figures(account: &AccountAudit) -> [(&'static str, f64); 5] {
    let totals = &account.totals;
    [
        ("reserved", totals.reserved),
        ("settled", totals.settled),
        ("refunded", totals.refunded),
        ("expired", totals.expired),
        ("held", account.live_tokens),
    ]
}

fn told(limit: &LimitBalance) -> String {
    let amount = |count: f64| match limit.unit {
        Unit::NanoUsd => format!("${:.6}", count / 1e9),
        _ => format!("{}", count.ceil()),
    };
    let shadow = if limit.shadow { " (shadow)" } else { "" };
    format!(
        "{}{shadow}: {} left of {}, {} used",
        limit.limit,
        amount(limit.left as f64),
        amount(limit.most as f64),
        amount(limit.used)
    )
}

/// Amounts as they are counted: money in 1e-9 USD.
fn limit_json(limit: &LimitBalance) -> Value {
    let LimitBalance { limit: name, shadow, most, used, left, .. } = limit;
    json!({ "limit": name, "shadow": shadow, "most": most, "used": used, "left": left })
}
