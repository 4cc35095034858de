//! SCSI target ports that each have a link or socket of their own, and that initiators log in at without a portal: the
//! skeleton of the fronts for them. A front adds a [`PortProtocol`]: its section, its link, and its endpoint.
//!
//! * here: what a protocol has to provide
//! * [`runtime`]: the front of a process: it opens, replaces and closes the links of the sections of a configuration
//! * [`on_core`]: the ports of a core, and the end of service
//! * [`state`]: the state that all cores share, also for fronts whose clients do not log in
//! * [`table`]: the links of a process
//! * [`turns`]: the turns of the nexuses of a port
//! * [`directory`]: which initiators see which volumes
//! * [`options`]: the options of `lunar serve` that become ports
//! * [`usage`]: how much an initiator has used a port
//! * [`rdma`]: what the sections of ports over RDMA have in common

pub mod directory;
pub mod on_core;
pub mod options;
pub mod rdma;
pub mod runtime;
pub mod state;
pub mod table;
pub mod turns;
pub mod usage;

pub use directory::{Groups, View};
pub use on_core::PortsOnCore;
pub use options::PortOption;
pub use rdma::{GatewayAddress, RdmaAddress, RdmaArgument, RdmaKeys, RdmaSection, check_rdma};
pub use runtime::PortsFront;
pub use state::{PortSession, PortState};
pub use table::{BoundLink, LinkTable};
pub use turns::{NexusTurns, Outcome};
pub use usage::Usage;

use crate::core_set::context::CoreContext;
use crate::error::EngineError;
use crate::front::FrontPort;
use crate::published_config::PublishedConfig;
use lunar_control::Config;
use lunar_control::section::Resource;
use lunar_reactor::end::End;
use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

/// The state of a protocol that all cores share.
pub type StateOf<P> =
    PortState<<P as PortProtocol>::Initiator, <P as PortProtocol>::Settings, <P as PortProtocol>::Opened>;

/// A protocol whose sections of the configuration are ports.
pub trait PortProtocol: Sized + 'static {
    /// The name of the front: one word.
    const NAME: &'static str;
    /// Its section.
    type Section: Resource;
    /// The settings of the link of a port.
    type Settings: Clone + PartialEq + Send + 'static;
    /// A link that is open.
    type Opened: Send + 'static;
    /// A port in a published configuration.
    type View: Clone + Send + 'static;
    /// The name of an initiator.
    type Initiator: Clone + Ord + fmt::Display + Send + 'static;
    /// The state that all ports of a core share.
    type Core: PortCore<Self>;
    /// A port on its link.
    type Endpoint: PortEndpoint<Self>;

    /// The settings of the link of a section.
    ///
    /// # Errors
    /// Why they are wrong.
    fn settings(section: &Self::Section) -> Result<Self::Settings, EngineError>;

    /// The refusal of a change whose link cannot be opened.
    fn not_opened(settings: &Self::Settings, why: io::Error) -> EngineError {
        let _ = settings;
        EngineError::front(why)
    }

    /// The core of a link of these settings, of so many; `None`: the one with the fewest links of the front.
    fn core(settings: &Self::Settings, cores: usize) -> Option<usize> {
        let _ = (settings, cores);
        None
    }

    /// Whether programs are loaded into the kernel for a link of these settings.
    fn loads_program(settings: &Self::Settings) -> bool {
        let _ = settings;
        false
    }

    /// The folders in which the link makes and removes sockets.
    fn folders(settings: &Self::Settings) -> Vec<PathBuf> {
        let _ = settings;
        Vec::new()
    }

    /// The folders with device files that the link uses.
    fn devices(settings: &Self::Settings) -> Vec<PathBuf> {
        let _ = settings;
        Vec::new()
    }

    /// Loads the libraries that the link uses, before the process is confined. Failures are reported when it is opened.
    fn preload(settings: &Self::Settings) {
        let _ = settings;
    }

    /// The most bytes of memory that the link takes besides the data memory of its core.
    fn memory(settings: &Self::Settings) -> u64 {
        let _ = settings;
        0
    }

    /// The SCSI target port of a section; `None`: it has no name.
    fn port(name: &str, section: &Self::Section, config: &Config) -> Option<FrontPort>;

    /// The port of a section in a configuration that is published; `None`: it has no name.
    fn view(name: &str, section: &Self::Section, published: &PublishedConfig<'_>) -> Option<Self::View>;

    /// The ID of an initiator as a session at the port of this name.
    fn session_id(port: &str, initiator: &Self::Initiator) -> String;
}

/// The state that all ports of a core share.
pub trait PortCore<P: PortProtocol> {
    /// The state of a core.
    fn new(context: &CoreContext, state: &Arc<StateOf<P>>) -> Rc<Self>;

    /// Comes when the core takes no more commands.
    fn draining(&self) -> &End;
}

/// A port on its link. Initiators cannot log in before [`PortEndpoint::publish`].
pub trait PortEndpoint<P: PortProtocol> {
    /// Starts the port on a link that is open.
    ///
    /// # Errors
    /// Errors of the operating system.
    fn start(core: &Rc<P::Core>, settings: P::Settings, opened: P::Opened) -> io::Result<Rc<Self>>;

    /// Serves this view of the port.
    fn publish(&self, view: P::View);

    /// Initiators that are logged in.
    fn initiators(&self) -> usize;

    /// Commands and task management functions in progress.
    fn in_progress(&self) -> usize;

    /// Ends the logins of these groups, and those that are not allowed any more; done when they have ended.
    fn review(&self, ended: &BTreeSet<Arc<str>>) -> impl Future<Output = ()>;

    /// Logs out an initiator; returns whether it was logged in. It may log in again.
    fn log_out(&self, initiator: &P::Initiator) -> impl Future<Output = bool>;

    /// Logs out all initiators: they log in at another port, or wait for this one.
    fn log_all_out(&self);

    /// Closes the link; done when the commands have ended.
    fn close(&self) -> impl Future<Output = ()>;

    /// Closes the link at once.
    fn abandon(&self);
}
