//! The order of changes of a unit.

use crate::change::{Denial, Ordered, Proposal, Record};
use crate::publish::Publisher;
use crate::shared::{SharedUnits, UnitRef};
use lunar_core::io::Fault;
use lunar_core::metadata::MetadataStore;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

/// A future of one core.
pub type LocalFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Why a proposal is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// The state does not allow it.
    Denied(Denial),
    /// Its metadata record could not be saved.
    Metadata(Fault),
}

/// Puts the changes of units in order, and puts them in force.
///
/// Today there is [`LocalLedger`], for the cores of one process. An implementation that agrees between several nodes
/// can take its place without a change of the command sets. Every implementation guarantees:
///
/// * **One order.** All views of a unit, on all cores and all nodes, see the same changes in the same order, each
///   exactly once, and no view skips one.
/// * **Pure changes.** The state after a change is [`UnitState::apply`](crate::state::UnitState::apply) of the state
///   before it and of nothing else. A proposal is judged by the state in its place of the order, not by the state at
///   the time of the call. A proposal that is denied changes nothing, anywhere.
/// * **Durable first.** If the effects name a metadata record, it is durable on every node that would restore the unit
///   from its own metadata, before any view sees the change. If a required record cannot be saved, the change is
///   refused, and the record of the state before is saved again.
/// * **In force before the answer.** When the future returns `Ok`, the change is published: it applies to every view
///   on every core and node. A core or a node that has ended is not waited for. A node that is cut off has to be
///   fenced before it counts as one.
/// * **No wait for tasks.** The ledger waits for metadata, for other cores and for other nodes, never for tasks of
///   clients: a task may wait for its own proposal. [`CommandSet::changed`](crate::publish::CommandSet::changed) marks
///   the tasks that a change aborts; the proposer waits for them after its turn.
/// * **Abandoned proposals.** Dropping the future before the change takes effect withdraws the proposal, or lets it
///   take effect as a whole. In both cases later proposals continue.
/// * **Changes of other nodes.** An implementation that agrees between nodes also publishes, by the same
///   [`Publisher`], the changes that other nodes proposed. Names of nexuses have to be unique across the nodes then.
pub trait Ledger {
    /// Proposes a change of a unit. Returns when the change is in force. A change that leaves the state unchanged is
    /// not published; its effects say so.
    ///
    /// # Errors
    /// [`Refused`]: nothing has changed.
    fn propose<'a>(&'a self, unit: UnitRef<'a>, proposal: Proposal) -> LocalFuture<'a, Result<Arc<Ordered>, Refused>>;
}

/// The ledger of one process: changes of a unit take turns.
#[derive(Debug)]
pub struct LocalLedger {
    shared: Arc<SharedUnits>,
    publisher: Rc<Publisher>,
}

impl LocalLedger {
    /// The ledger of one core of the process.
    #[must_use]
    pub fn new(shared: Arc<SharedUnits>, publisher: Rc<Publisher>) -> Self {
        Self { shared, publisher }
    }

    async fn order(&self, unit: UnitRef<'_>, proposal: Proposal) -> Result<Arc<Ordered>, Refused> {
        let shared = self.shared.of_ref(unit);
        let _turn = shared.changes.next().await;
        let mut next = shared.state().clone();
        let effects = next.apply(&proposal).map_err(Refused::Denied)?;
        let ordered = Arc::new(Ordered { unit: unit.id, proposal, effects });
        if let Some(record) = &ordered.effects.record {
            let saved = save(unit.metadata, record).await;
            if record.is_required {
                saved.map_err(Refused::Metadata)?;
            }
        }
        if ordered.effects.is_published {
            shared.set(next);
            self.publisher.publish(&ordered).await;
        }
        Ok(ordered)
    }
}

impl Ledger for LocalLedger {
    fn propose<'a>(&'a self, unit: UnitRef<'a>, proposal: Proposal) -> LocalFuture<'a, Result<Arc<Ordered>, Refused>> {
        Box::pin(self.order(unit, proposal))
    }
}

/// Saves a record. If that fails or is abandoned, the previous record is saved again: the new one may have reached the
/// medium, and must not come back after a restart.
async fn save(metadata: &dyn MetadataStore, record: &Record) -> Result<(), Fault> {
    let before = metadata.load(record.name).unwrap_or_default();
    let mut undo = Undo { metadata, name: record.name, before: Some(before) };
    let saved = metadata.save(record.name, record.bytes.clone()).await;
    if saved.is_ok() {
        undo.before = None;
    }
    saved
}

/// Saves a record again when it is dropped.
struct Undo<'a> {
    metadata: &'a dyn MetadataStore,
    name: &'static str,
    before: Option<Vec<u8>>,
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        if let Some(before) = self.before.take() {
            // Records are saved in the order of the calls, and dropping a future does not take a call back.
            drop(self.metadata.save(self.name, before));
        }
    }
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
