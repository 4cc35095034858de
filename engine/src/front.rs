//! The contract of a transport.
//!
//! A [`Front`] is in the registry of the program. A process that serves starts one [`FrontRuntime`] of each; its
//! methods are called by the thread that changes the configuration, and by threads that look at the state. A core that
//! is given a connection makes a [`FrontOnCore`] from it. All of that is dispatched dynamically: when something is
//! configured, opened or connected, never for a command.

use crate::core_set::context::CoreContext;
use crate::core_set::front_handle::FrontHandle;
use crate::core_set::shared::Shared;
use crate::error::EngineError;
use crate::published_config::PublishedConfig;
use lunar_control::api::{LocalDisksView, SessionView, VmView};
use lunar_control::explain::{LoginQuestion, LoginVerdict};
use lunar_control::in_use::{AffectedHost, LostDisk, Taking};
use lunar_control::live::Later;
use lunar_control::plan::Change;
use lunar_control::{Checked, Config};
use lunar_core::unit::Identity;
use lunar_nvme::directory as nvme;
use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

pub use crate::core_set::front_on_core::{FrontOnCore, PortalRef};
pub use crate::target_ports::FrontPort;
pub use lunar_reactor::op::Incoming;
pub use lunar_reactor::tcp::TcpState;

/// A transport, as the registry lists it.
pub trait Front: Sync {
    /// Its name in the configuration (`protocol` of a portal), on the command line, in the API and in logs: one word.
    fn name(&self) -> &'static str;

    /// Starts it for a process, before the cores start. `index` is its place in the registry.
    ///
    /// # Errors
    /// Why it cannot start.
    fn start(&self, index: usize, shared: &Arc<Shared>) -> Result<Arc<dyn FrontRuntime>, EngineError>;

    /// The paths that it needs for a configuration besides those that all targets need. `runtime` is the folder for
    /// sockets whose place is not configured.
    fn paths(&self, config: &Config, runtime: &Path) -> FrontPaths;

    /// Loads the libraries that a configuration needs, before the process is confined: it cannot do that any more.
    /// Failures are reported when the library is used.
    fn preload(&self, config: &Config) {
        let _ = config;
    }

    /// The most bytes of memory that it takes for a configuration besides the data memory of cores and the sessions.
    fn memory(&self, config: &Config) -> u64 {
        let _ = config;
        0
    }
}

/// Paths that a front needs, for the confinement of the process.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct FrontPaths {
    /// Files and folders that it reads.
    pub read: Vec<PathBuf>,
    /// Files, and folders with files, that it reads and writes: devices.
    pub write: Vec<PathBuf>,
    /// Folders in which it makes and removes files and sockets.
    pub keep: Vec<PathBuf>,
    /// Folders in which devices appear later, which it opens, reads, writes and maps, and uses in no other way.
    pub devices: Vec<PathBuf>,
    /// Folders in which it makes, replaces and removes folders and symbolic links.
    pub links: Vec<PathBuf>,
    /// Whether it loads programs into the kernel: bpf(2), for links through XDP.
    pub loads_programs: bool,
}

/// Prepared work of a front, which is rolled back or published.
pub type Prepared = Box<dyn Any + Send>;

/// A map of units that is for one client of a front alone, such as a virtual machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PrivateMap {
    /// The name of the map: that of no group.
    pub name: Arc<str>,
    /// The target that the client reaches, by its name in the configuration.
    pub target: String,
    /// The group whose units it shows; `None`: nothing is shown.
    pub group: Option<String>,
}

/// A transport, while a process serves.
pub trait FrontRuntime: Any + Send + Sync + fmt::Debug {
    /// Makes the front of a core.
    fn on_core(&self, core: &CoreContext) -> Rc<dyn FrontOnCore>;

    /// Puts a configuration in force for new sessions, before connections are accepted by it. Cannot fail.
    fn publish(&self, published: &PublishedConfig<'_>);

    /// Its sessions. `targets` has the names of targets in the configuration by their names in protocols.
    fn sessions(&self, targets: &BTreeMap<Arc<str>, String>) -> Vec<SessionView>;

    /// Ends the session of this ID; `None` if it has none. The work waits for a bounded time until it has ended.
    fn end_session(&self, cores: &FrontHandle, id: &str) -> Option<Later<bool>>;

    /// Decides about a login as it would about a real one, without any effect; `None`: its clients do not log in.
    fn dry_run(&self, question: &LoginQuestion) -> Option<LoginVerdict> {
        let _ = question;
        None
    }

    /// The names of clients that two machines use, each with two addresses of it: a login of one ends the session of
    /// the other.
    fn shared_names(&self) -> Vec<(String, [IpAddr; 2])> {
        Vec::new()
    }

    /// State that is left over once no client is connected any more; for tests.
    fn leftovers(&self) -> Vec<String>;

    /// The identities of the volumes, by their names in the configuration: before each step of a change to a section of
    /// a front is prepared, with those that earlier steps have opened, and before a change ends.
    fn identify(&self, volumes: &BTreeMap<Arc<str>, Arc<Identity>>) {
        let _ = volumes;
    }

    /// Does everything of a change that can fail, such as making a socket, without any client noticing; `None`: the
    /// change does not concern the front, as no change concerns a front that has portals only.
    ///
    /// # Errors
    /// Why it cannot be done, in words that say what to do.
    fn prepare(&self, cores: &FrontHandle, change: &Change, wanted: &Checked) -> Result<Option<Prepared>, EngineError> {
        let _ = (cores, change, wanted);
        Ok(None)
    }

    /// Undoes what was prepared.
    fn roll_back(&self, cores: &FrontHandle, prepared: Prepared) {
        let _ = (cores, prepared);
    }

    /// Ends and starts what it serves without portals, such as sockets of virtual machines, after all fronts have
    /// published the configuration. Cannot fail.
    fn finalize(&self, cores: &FrontHandle, published: &PublishedConfig<'_>) {
        let _ = (cores, published);
    }

    /// The portals at which NVMe hosts find subsystems, as the discovery service reports them.
    fn discovery_portals(&self, published: &PublishedConfig<'_>) -> Vec<nvme::Portal> {
        let _ = published;
        Vec::new()
    }

    /// The maps that are for single clients of it.
    fn private_maps(&self, wanted: &Checked) -> Vec<PrivateMap> {
        let _ = wanted;
        Vec::new()
    }

    /// Its SCSI target ports in a configuration. The same configuration has the same ports.
    fn ports(&self, config: &Config) -> Vec<FrontPort> {
        let _ = config;
        Vec::new()
    }

    /// The virtual machines that it serves.
    fn vms(&self) -> Vec<VmView> {
        Vec::new()
    }

    /// The places that it has chosen itself, such as disks of this machine, by their names in the draft of a command
    /// line.
    fn places(&self) -> BTreeMap<String, PathBuf> {
        BTreeMap::new()
    }

    /// Asks the operating system about the disks of this machine that it serves, and about what there is for them;
    /// `None`: it serves none.
    fn local_disks(&self, cores: &FrontHandle) -> Option<Later<LocalDisksView>> {
        let _ = cores;
        None
    }

    /// The disks of this machine that programs use, and that a change would take away.
    fn lost_disks(&self, taking: &Taking<'_>) -> Vec<LostDisk> {
        let _ = taking;
        Vec::new()
    }

    /// The loss of programs of this machine when the session of this ID ends; `None`: its client may reconnect, or
    /// nothing that is known uses it.
    fn lost_with(&self, id: &str) -> Option<AffectedHost> {
        let _ = id;
        None
    }

    /// The troubles since the last change, in words that say what to do.
    fn troubles(&self) -> Vec<String> {
        Vec::new()
    }
}
