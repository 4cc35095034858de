//! The configuration in force: volumes, portals, access control, maps, and the cores that serve them.
//!
//! Its changes are in `transaction` (what can fail) and `publish` (what cannot); [`lunar_control::live::Live`], which
//! shows it, is in `status`.

use crate::core_set::shared::{CoreConfig, Shared};
use crate::core_set::{CoreSet, SteppedCores, start_fronts};
use crate::error::EngineError;
use crate::front::PortalRef;
use crate::health::Health;
use crate::host::{Host, StateLock};
use crate::lun_maps::{GroupState, LunMaps};
use crate::metrics::Metrics;
use crate::name_service::NameService;
use crate::namespaces::{Histories, NamespaceMaps, UnitsByName};
use crate::notice::{AuditSink, Notice};
use crate::origin::Origin;
use crate::participant::Participant;
use crate::placed::PlacedVolume;
use crate::published_config::BoundPortal;
use crate::refusals::Keeping;
use crate::registry::Registry;
use crate::retirement::Latch;
use crate::target_ports::TargetPorts;
use crate::unavailable::Lack;
use crate::unit_numbers::UnitNumbers;
use crate::wake::Wake;
use lunar_control::common_sections::Driver;
use lunar_control::config::Config;
use lunar_core::unit::{Identity, UnitId};
use lunar_reactor::{Choice, Reactor, log};
use lunar_scsi::PortConfig;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How long a port may stay in use by a process that has ended.
pub const PORT_PATIENCE: Duration = Duration::from_secs(3);

/// The pause between two attempts to listen at an address that is in use.
const PORT_PAUSE: Duration = Duration::from_millis(10);

/// The shape of the target that the cores have.
#[derive(Debug, Default)]
pub(crate) struct Shape {
    pub(crate) ports: Vec<PortConfig>,
    pub(crate) maps: LunMaps,
    /// The asymmetric access states of portal groups at units, where they are not as after power on.
    pub(crate) states: BTreeMap<(UnitId, u16), GroupState>,
    /// The front of each portal with a listening socket, by the number of the portal.
    pub(crate) portals: BTreeMap<u32, (usize, PortalRef)>,
    pub(crate) namespaces: NamespaceMaps,
    /// Names of targets in the configuration, by their names in iSCSI and NVMe.
    pub(crate) names: BTreeMap<Arc<str>, String>,
    /// Portals, by their numbers, at which listening again failed, and the reason.
    pub(crate) closed: BTreeMap<u32, String>,
}

/// The sink of notices that is named once the engine runs; until then they are lines of the log.
type NamedSink = Arc<OnceLock<Box<AuditSink>>>;

/// The parts that the program supplies to an engine.
pub struct EngineOptions {
    /// The fronts and back ends.
    pub registry: &'static Registry,
    /// The machine.
    pub host: Arc<dyn Host>,
    /// Keeps other engines from the state folder, if the host has one.
    pub lock: Option<StateLock>,
    /// The origin of the configuration.
    pub origin: Origin,
}

impl fmt::Debug for EngineOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EngineOptions({:?})", self.host)
    }
}

/// A storage target: the configuration in force.
pub struct Engine {
    pub(crate) core_set: CoreSet,
    pub(crate) registry: &'static Registry,
    lock: Option<StateLock>,
    pub(crate) volumes: BTreeMap<Arc<str>, Arc<PlacedVolume>>,
    pub(crate) portals: BTreeMap<String, BoundPortal>,
    /// Volumes that were served before, and are not now.
    pub(crate) expected: BTreeSet<String>,
    /// Volumes whose stores are unavailable.
    pub(crate) lacks: BTreeMap<Arc<str>, Lack>,
    /// Volumes whose clients know that space is low.
    pub(crate) low_on_space: BTreeSet<Arc<str>>,
    /// Wakes the thread that looks for stores, and its end until that thread takes it.
    pub(crate) store_wake: Wake,
    pub(crate) store_wake_ups: Option<Receiver<()>>,
    /// The volume whose store an operator accepts now.
    pub(crate) accepting: Option<Arc<str>>,
    pub(crate) ports: TargetPorts,
    /// The histories of NVM subsystems, by their names.
    pub(crate) histories: Histories,
    pub(crate) participants: Vec<Box<dyn Participant>>,
    /// The sink that was named last.
    sink: NamedSink,
    pub(crate) name_service: Option<Box<dyn NameService>>,
    pub(crate) units: UnitNumbers,
    tickets: u64,
    last_portal: u32,
    pub(crate) shape: Shape,
    /// Opens when the last change has ended.
    pub(crate) finalizing: Latch,
    /// Looks after the media of the volumes.
    pub(crate) health: Health,
    pub(crate) metrics: Arc<Metrics>,
    /// Keeps the refused logins in the state folder.
    refusals: Keeping,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Engine({} volumes, {} portals)", self.volumes.len(), self.portals.len())
    }
}

/// The configuration of the cores.
#[must_use]
pub fn core_config(config: &Config) -> CoreConfig {
    let server = &config.server;
    CoreConfig {
        cores: match server.cores {
            Some(cores) => cores.get() as usize,
            None => std::thread::available_parallelism().map_or(1, usize::from),
        },
        driver: match server.driver {
            Driver::Auto => Choice::Auto,
            Driver::IoUring => Choice::IoUring,
            Driver::Epoll => Choice::Epoll,
        },
        memory: server.memory.0 as usize,
        spin: server.spin.0,
        register: config.volumes.values().any(|volume| volume.direct),
        drain: server.drain.0,
    }
}

impl Engine {
    /// Starts the cores of a configuration on threads; nothing is served yet.
    ///
    /// # Errors
    /// When they do not start, or the state folder cannot be read.
    pub fn start(config: &Config, options: EngineOptions) -> Result<Self, EngineError> {
        let ports = TargetPorts::open(options.host.state())?;
        let (shared, sink) = shared(core_config(config), &options)?;
        Ok(Self::new(CoreSet::start(shared)?, ports, sink, options))
    }

    /// The same on these reactors of this thread, a core on each; the host has no threads and runs the reactors.
    ///
    /// # Errors
    /// When the state folder cannot be read.
    pub fn on_reactors(
        config: &Config,
        options: EngineOptions,
        reactors: impl FnOnce(&Shared) -> Vec<Reactor>,
    ) -> Result<(Self, SteppedCores), EngineError> {
        let ports = TargetPorts::open(options.host.state())?;
        let (shared, sink) = shared(core_config(config), &options)?;
        let reactors = reactors(&shared);
        let (core_set, stepped) = CoreSet::on_reactors(shared, reactors);
        Ok((Self::new(core_set, ports, sink, options), stepped))
    }

    fn new(core_set: CoreSet, ports: TargetPorts, sink: NamedSink, options: EngineOptions) -> Self {
        let EngineOptions { registry, lock, .. } = options;
        let shared = core_set.shared();
        let (store_wake, store_wake_ups) = Wake::new();
        let health = Health::start(&shared.host, &shared.audit, &store_wake);
        Self {
            metrics: Metrics::new(shared.clone(), core_set.cores().clone(), health.spaces()),
            refusals: shared.refusals.keep(),
            health,
            core_set,
            registry,
            lock,
            volumes: BTreeMap::new(),
            portals: BTreeMap::new(),
            expected: BTreeSet::new(),
            lacks: BTreeMap::new(),
            low_on_space: BTreeSet::new(),
            store_wake,
            store_wake_ups: Some(store_wake_ups),
            accepting: None,
            ports,
            histories: Histories::new(),
            participants: Vec::new(),
            sink,
            name_service: None,
            units: UnitNumbers::default(),
            tickets: 0,
            last_portal: 0,
            shape: Shape::default(),
            finalizing: Latch::opened(),
        }
    }

    /// The cores.
    #[must_use]
    pub fn core_set(&self) -> &CoreSet {
        &self.core_set
    }

    /// The unit of a volume.
    #[must_use]
    pub fn unit_of(&self, volume: &str) -> Option<UnitId> {
        self.volumes.get(volume).map(|placed| placed.unit)
    }

    /// The portals with listening sockets, by their names.
    #[must_use]
    pub fn portals(&self) -> &BTreeMap<String, BoundPortal> {
        &self.portals
    }

    pub(crate) fn host(&self) -> &Arc<dyn Host> {
        &self.core_set.shared().host
    }

    /// Waits until the last change has ended.
    pub fn wait_until_final(&self) {
        self.finalizing.wait();
    }

    /// Ends it: everything is flushed. The iSNS server sends no more initiators, and when it has ended another engine
    /// may have the state folder.
    ///
    /// # Errors
    /// When something could not be flushed.
    pub fn end(self) -> Result<(), EngineError> {
        let Self { name_service, core_set, lock, health, refusals, volumes, registry, .. } = self;
        drop((name_service, health, refusals));
        let ended = core_set.end();
        drop(volumes);
        registry.backends.iter().for_each(|backend| backend.finish());
        drop(lock);
        ended
    }

    /// Adds a participant to all later changes; it has the current configuration already.
    pub fn add_participant(&mut self, participant: Box<dyn Participant>) {
        self.participants.push(participant);
    }

    /// Registers the targets with this iSNS server from now on.
    pub fn set_name_service(&mut self, service: Box<dyn NameService>) {
        self.name_service = Some(service);
    }

    /// Sets the sink of notices. Only the first call has an effect.
    pub fn audit_to(&self, sink: Box<AuditSink>) {
        let _ = self.sink.set(sink);
    }

    /// Sends a notice to operators.
    pub fn notify(&self, notice: &Notice<'_>) {
        (self.core_set.shared().audit)(notice);
    }

    /// Removes the metadata of a volume that is not served any more.
    pub fn forget_volume(&self, volume: [u8; 16]) {
        self.host().state().forget_volume(volume);
    }

    pub(crate) fn units_by_name(&self) -> UnitsByName {
        self.volumes.iter().map(|(name, placed)| ((**name).to_owned(), placed.unit)).collect()
    }

    /// The identities of the volumes that are served, by their names.
    pub(crate) fn identities(&self) -> BTreeMap<Arc<str>, Arc<Identity>> {
        self.volumes.iter().map(|(name, placed)| (name.clone(), placed.volume.identity().clone())).collect()
    }

    pub(crate) fn ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }

    pub(crate) fn portal_number(&mut self) -> u32 {
        self.last_portal += 1;
        self.last_portal
    }

    /// Drops a unit that was never served.
    pub(crate) fn give_back(&mut self, unit: UnitId) {
        self.core_set.shared().units.forget(unit);
        self.units.give_back(unit.0);
    }

    /// Listens at an address; while it is in use, attempts are repeated for as long as `patience`.
    pub(crate) fn listen_when_free(&self, id: u32, address: SocketAddr, patience: Duration) -> io::Result<SocketAddr> {
        let host = self.host();
        let end = host.now() + patience;
        loop {
            match self.core_set.listen(id, address) {
                Err(why) if why.kind() == ErrorKind::AddrInUse && host.now() < end => host.pause(PORT_PAUSE),
                outcome => return outcome,
            }
        }
    }

    /// Listens again at the address of a portal that was closed for a failed change.
    pub fn listen_again(&mut self, portal: BoundPortal, patience: Duration) {
        match self.listen_when_free(portal.id, portal.address, patience) {
            Ok(_) => {
                if let Some(front) = self.shape.portals.get(&portal.id) {
                    self.core_set.accept(portal.id, *front);
                }
            }
            Err(why) => {
                let trouble = format!("Lunar no longer listens at {}: {why}", portal.address);
                log!(error, "{trouble}");
                self.shape.closed.insert(portal.id, trouble);
            }
        }
    }
}

/// The shared state of the cores, with the fronts started, and the sink that may be set later.
fn shared(config: CoreConfig, options: &EngineOptions) -> Result<(Arc<Shared>, NamedSink), EngineError> {
    let sink = NamedSink::default();
    let named = sink.clone();
    let audit: Arc<AuditSink> = Arc::new(move |notice: &Notice<'_>| match named.get() {
        Some(sink) => sink(notice),
        None => log!("audit: {notice}"),
    });
    let shared = Shared::new(config, options.host.clone(), options.origin.clone(), audit);
    let fronts: Vec<_> = options.registry.fronts.iter().map(|entry| entry.front).collect();
    start_fronts(&fronts, &shared)?;
    Ok((shared, sink))
}
