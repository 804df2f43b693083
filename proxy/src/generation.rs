//! What one configuration file says, ready to serve, and its exchange for the next one while calls run. Each call sees
//! one generation; use lives in the store, under names that no limit is part of, so it outlasts all of them.

use std::sync::{Arc, PoisonError};

use crate::{
    Config, Proxy, StartError,
    catalogue::Catalogue,
    events::Events,
    tenants::{Tenant, Tenants, Unauthenticated},
};

/// Who may call, and which models there are.
pub struct Generation {
    pub tenants: Tenants,
    pub catalogue: Catalogue,
}

/// One caller and the generation that holds for its call.
pub struct Caller {
    pub generation: Arc<Generation>,
    pub tenant: Arc<Tenant>,
}

impl Generation {
    /// Blocks while tokenizers load, those apart that `former` has loaded already.
    pub fn new(config: &Config, events: &Events, former: Option<&Self>) -> Result<Self, StartError> {
        let catalogue = Catalogue::new(&config.models, events, former.map(|former| &former.catalogue))?;
        Ok(Self { tenants: Tenants::new(&config.keys, catalogue.len())?, catalogue })
    }
}

impl Proxy {
    /// Puts rules, keys and models of `config` in force for every admission from now on. On an error nothing changes.
    /// Blocks while tokenizers load. What else the file says holds from the next start: [`Config::needs_restart`].
    pub fn reload(&self, config: &Config) -> Result<(), StartError> {
        let next = Generation::new(config, &self.events, Some(&self.current()));
        let next = next.inspect_err(|_| self.events.config_refused())?;
        let mut current = self.generation.write().unwrap_or_else(PoisonError::into_inner);
        // Rules first: no chain of the next generation can be resolved from the former rules and kept.
        self.quota.adopt(config.quotas.clone());
        *current = Arc::new(next);
        self.events.config_in_force(&config.digest);
        Ok(())
    }

    /// A file that was not even valid.
    pub fn config_refused(&self) {
        self.events.config_refused();
    }

    pub(crate) fn current(&self) -> Arc<Generation> {
        self.generation.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The same caller by what is in force now: its body may have taken a while to arrive.
    pub(crate) fn renewed(&self, caller: &mut Caller) -> Result<(), Unauthenticated> {
        let current = self.current();
        if !Arc::ptr_eq(&current, &caller.generation) {
            caller.tenant = current.tenants.again(&caller.tenant)?;
            caller.generation = current;
        }
        Ok(())
    }
}
