//! The state that all cores share, and that threads of the engine look at.

use crate::schema::WORD;
use crate::slot::{RECORD, SlotState, SlotStates};
use crate::wire::Address;
use lunar_core::metadata::MetadataStore;
use lunar_engine::core_set::shared::Shared;
use lunar_engine::link_ports::PortState;
use lunar_engine::link_ports::state::Open;
use lunar_link::{LinkConfig, MacAddress, OpenedLink};
use lunar_reactor::log;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The stations of all shelves, and the opener of links.
pub(crate) type Ports = PortState<MacAddress, LinkConfig, OpenedLink>;

/// Opens links.
pub type OpenLink = Open<LinkConfig, OpenedLink>;

/// The shared state.
pub(crate) struct Common {
    pub(crate) ports: Ports,
    /// The states of the slots of each volume, by its UUID; `None`: the record is not readable.
    states: Mutex<BTreeMap<[u8; 16], Option<SlotStates>>>,
}

impl Common {
    pub(crate) fn new(shared: &Arc<Shared>, open: OpenLink) -> Arc<Self> {
        Arc::new(Self { ports: Ports::new(WORD, shared, open), states: Mutex::default() })
    }

    fn states(&self) -> MutexGuard<'_, BTreeMap<[u8; 16], Option<SlotStates>>> {
        // Every change is one insert, so a panic of another thread leaves the state consistent.
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state of a slot of a volume.
    pub(crate) fn slot_state(
        &self,
        uuid: [u8; 16],
        metadata: &dyn MetadataStore,
        address: Address,
    ) -> Option<SlotState> {
        let mut all = self.states();
        let states = all.entry(uuid).or_insert_with(|| match metadata.load(RECORD) {
            None => Some(SlotStates::default()),
            Some(record) => {
                let states = SlotStates::parse(&record);
                if states.is_err() {
                    log!(error, "a volume is not served by ATA over Ethernet: its metadata record is malformed");
                }
                states.ok()
            }
        });
        states.as_ref().map(|states| states.0.get(&address).cloned().unwrap_or_default())
    }

    /// Changes the state of a slot; `save` gets the record of the volume, in the order of changes on all cores.
    pub(crate) fn change_slot<T>(
        &self,
        uuid: [u8; 16],
        address: Address,
        state: SlotState,
        save: impl FnOnce(Vec<u8>) -> T,
    ) -> T {
        let mut all = self.states();
        let states = all.entry(uuid).or_default().get_or_insert_default();
        states.0.insert(address, state);
        save(states.record())
    }
}

impl std::fmt::Debug for Common {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.ports.fmt(f)
    }
}
