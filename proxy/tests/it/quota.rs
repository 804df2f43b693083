//! Quotas on both stores. A missing redis-server is a failure, never a skip.

mod balance;
mod calls;
mod concurrency;
mod damage;
mod extensions;
mod journal;
mod leases;
mod model;
pub mod outages;
mod policies;
mod queue;
mod queue_order;
mod queue_shared;
pub mod redis_server;
pub mod rig;
mod shadow;
mod slots;
mod slow_link;
mod speed;
mod startup;
mod tiers;
mod turn_model;
mod windows;
