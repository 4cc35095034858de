//! The place of a store that is unavailable: it has the properties of the store, and fails every request.

use crate::backend::{Mark, OpenedStore, ProtectionRequest, Refusal};
use lunar_core::io::{Done, Fault, Io, Op, Outcome, Store, Traits};
use lunar_reactor::Reactor;
use std::io;
use std::sync::Arc;

/// The place of a store.
#[derive(Clone, Debug)]
pub(crate) struct StandIn {
    traits: Traits,
}

impl StandIn {
    /// The place of a store with these properties.
    pub(crate) fn new(traits: Traits) -> Self {
        Self { traits }
    }
}

impl OpenedStore for StandIn {
    fn traits(&self) -> &Traits {
        &self.traits
    }

    fn mark(&self) -> Option<Mark> {
        None
    }

    fn is_direct(&self) -> bool {
        false
    }

    fn open(&self, _: &Reactor) -> io::Result<Box<dyn Store>> {
        Ok(Box::new(self.clone()))
    }

    fn with_sharing(&self, _: bool) -> Result<Arc<dyn OpenedStore>, Refusal> {
        Ok(Arc::new(self.clone()))
    }

    fn finalize(&self) {}

    fn open_protection(&self, request: &ProtectionRequest<'_>) -> Result<Arc<dyn OpenedStore>, Refusal> {
        Err(request.no_place())
    }
}

impl Store for StandIn {
    fn traits(&self) -> &Traits {
        &self.traits
    }

    fn submit(&self, io: Io, done: Done) {
        // Nothing was written that a flush could lose.
        let result = if io.op == Op::Flush { Ok(0) } else { Err(Fault::Gone) };
        done.complete(Outcome::with(result, io.data));
    }
}
