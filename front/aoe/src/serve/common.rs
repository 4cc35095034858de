//! The state that all cores share, and that threads of the engine look at.

use crate::schema::WORD;
use crate::slot::{RECORD, SlotState, SlotStates};
use crate::wire::Address;
use lunar_core::access::refusal::RefusalCode;
use lunar_core::metadata::MetadataStore;
use lunar_core::time::Instant;
use lunar_engine::core_set::shared::Shared;
use lunar_engine::notice::{Notice, NoticeTopic, RefusedLogin};
use lunar_link::{LinkConfig, MacAddress, OpenedLink};
use lunar_reactor::log;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Opens links.
pub type OpenLink = fn(&LinkConfig) -> io::Result<OpenedLink>;

/// A station that uses volumes.
#[derive(Clone, Debug)]
pub(crate) struct StationInfo {
    /// When its first command came.
    pub(crate) since: Instant,
    /// Its link.
    pub(crate) link: String,
    /// Its group.
    pub(crate) group: Arc<str>,
    /// The target in the configuration.
    pub(crate) target: String,
}

/// The stations of all shelves, by the name of the shelf and their address.
pub(crate) type Stations = BTreeMap<(Arc<str>, MacAddress), StationInfo>;

/// The shared state.
pub(crate) struct Common {
    pub(crate) shared: Arc<Shared>,
    pub(crate) open: OpenLink,
    stations: Mutex<Stations>,
    /// The states of the slots of each volume, by its UUID; `None`: the record is not readable.
    states: Mutex<BTreeMap<[u8; 16], Option<SlotStates>>>,
    troubles: Mutex<BTreeMap<Arc<str>, String>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change is one insert or remove, so a panic of another thread leaves the state consistent.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Common {
    pub(crate) fn new(shared: &Arc<Shared>, open: OpenLink) -> Arc<Self> {
        let (stations, states, troubles) = (Mutex::default(), Mutex::default(), Mutex::default());
        Arc::new(Self { shared: shared.clone(), open, stations, states, troubles })
    }

    pub(crate) fn stations(&self) -> MutexGuard<'_, Stations> {
        lock(&self.stations)
    }

    /// Reports the trouble of a shelf, or its end.
    pub(crate) fn set_trouble(&self, shelf: &Arc<str>, trouble: Option<String>) {
        match trouble {
            Some(trouble) => lock(&self.troubles).insert(shelf.clone(), trouble),
            None => lock(&self.troubles).remove(shelf),
        };
    }

    pub(crate) fn troubles(&self) -> Vec<String> {
        lock(&self.troubles).values().cloned().collect()
    }

    /// The state of a slot of a volume.
    pub(crate) fn slot_state(
        &self,
        uuid: [u8; 16],
        metadata: &dyn MetadataStore,
        address: Address,
    ) -> Option<SlotState> {
        let mut all = lock(&self.states);
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
        let mut all = lock(&self.states);
        let states = all.entry(uuid).or_default().get_or_insert_default();
        states.0.insert(address, state);
        save(states.record())
    }

    /// Tells operators that a station logged in, or that it was refused for this reason at this target.
    pub(crate) fn notify(&self, station: MacAddress, refused: Option<(RefusalCode, &str)>, words: &str) {
        let subject = station.to_string();
        let topic = if refused.is_some() { NoticeTopic::Refusal } else { NoticeTopic::Login };
        let refusal =
            refused.map(|(code, target)| RefusedLogin { transport: WORD, code, source: None, target, user: "" });
        (self.shared.audit)(&Notice { refusal, ..Notice::new(topic, &subject, &words) });
    }
}

impl std::fmt::Debug for Common {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Common({} stations)", self.stations().len())
    }
}
