//! Example of a front: a transport that returns every byte that it receives. It is this folder, and one line in the
//! registry of a program. [`command_line`] has its option of `lunar serve`.

pub mod command_line;

use command_line::EchoOptions;
use lunar_control::Config;
use lunar_control::api::SessionView;
use lunar_control::live::Later;
use lunar_control::schema::{FrontSchema, PortalSchema};
use lunar_core::io::Completion;
use lunar_engine::core_set::context::CoreContext;
use lunar_engine::core_set::front_handle::FrontHandle;
use lunar_engine::core_set::shared::Shared;
use lunar_engine::error::EngineError;
use lunar_engine::front::{Front, FrontOnCore, FrontPaths, FrontRuntime, PortalRef};
use lunar_engine::published_config::PublishedConfig;
use lunar_engine::registry::FrontEntry;
use lunar_reactor::Reactor;
use lunar_reactor::end::End;
use lunar_reactor::op::{Handle, Incoming};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::{pending, ready};
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// The name of the front.
pub const NAME: &str = "echo";
/// The TCP port of the echo protocol (RFC 862).
pub const PORT: u16 = 7;
/// Bytes that are received at once.
const PIECE: usize = 4096;
/// Time between two looks at whether the connections have ended, while the core stops.
const DRAIN_LOOK: Duration = Duration::from_millis(5);

/// The declaration for the configuration: `protocol = "echo"` of a portal.
pub static SCHEMA: FrontSchema = FrontSchema {
    portals: Some(PortalSchema {
        word: NAME,
        doc: "bytes come back, port 7 unless one is given",
        port: PORT,
        keys: None,
    }),
    section: None,
    limits: None,
};

/// Its line in a registry.
pub const ENTRY: FrontEntry = FrontEntry { front: &Echo, schema: &SCHEMA, options: Some(&EchoOptions) };

/// The front.
#[derive(Clone, Copy, Debug)]
pub struct Echo;

impl Front for Echo {
    fn name(&self) -> &'static str {
        NAME
    }

    fn start(&self, _index: usize, _shared: &Arc<Shared>) -> Result<Arc<dyn FrontRuntime>, EngineError> {
        Ok(Arc::new(EchoRuntime))
    }

    fn paths(&self, _config: &Config, _runtime: &Path) -> FrontPaths {
        FrontPaths::default()
    }
}

/// The front of a process.
#[derive(Debug)]
struct EchoRuntime;

impl FrontRuntime for EchoRuntime {
    fn on_core(&self, core: &CoreContext) -> Rc<dyn FrontOnCore> {
        Rc::new(EchoCore(Rc::new(Connections {
            reactor: core.reactor.clone(),
            sockets: RefCell::default(),
            count: Cell::new(0),
            next: Cell::new(0),
            draining: End::default(),
        })))
    }

    fn publish(&self, _published: &PublishedConfig<'_>) {}

    fn sessions(&self, _targets: &BTreeMap<Arc<str>, String>) -> Vec<SessionView> {
        Vec::new()
    }

    fn end_session(&self, _cores: &FrontHandle, _id: &str) -> Option<Later<bool>> {
        None
    }

    fn leftovers(&self) -> Vec<String> {
        Vec::new()
    }
}

/// The connections of a core.
struct Connections {
    reactor: Reactor,
    sockets: RefCell<BTreeMap<u64, Handle>>,
    count: Cell<usize>,
    /// The number of the next connection.
    next: Cell<u64>,
    draining: End,
}

impl Connections {
    /// Serves a connection until its peer closes it, or the core stops.
    async fn serve(&self, incoming: Incoming) {
        let Ok((socket, ..)) = self.reactor.driver().join(incoming) else { return };
        let number = self.next.get();
        self.next.set(number + 1);
        self.sockets.borrow_mut().insert(number, socket.clone());
        self.echo(&socket).await;
        self.sockets.borrow_mut().remove(&number);
    }

    /// Returns every byte until the connection ends.
    async fn echo(&self, socket: &Handle) {
        let mut completion = Completion::new();
        // An operation that ended just before it could be cancelled is followed by no other.
        while !self.draining.has_come() {
            let memory = self.reactor.arena().wait_sg(PIECE).await;
            let (received, memory) = self.reactor.receive(socket, memory, &mut completion).await;
            let Ok(length @ 1..) = received else { return };
            let data = memory.share().part(0..length);
            if self.reactor.send(socket, data, &mut completion).await.is_err() {
                return;
            }
        }
    }
}

/// The front of a core.
pub struct EchoCore(Rc<Connections>);

impl fmt::Debug for EchoCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EchoCore({} connections)", self.0.count.get())
    }
}

impl FrontOnCore for EchoCore {
    fn serve(&self, incoming: Incoming, _portal: PortalRef) {
        let connections = self.0.clone();
        connections.count.set(connections.count.get() + 1);
        self.0.reactor.spawn(async move {
            connections.serve(incoming).await;
            connections.count.set(connections.count.get() - 1);
        });
    }

    fn connections(&self) -> usize {
        self.0.count.get()
    }

    fn review(&self, _ended: Arc<BTreeSet<Arc<str>>>) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        Box::pin(ready(()))
    }

    fn drain(&self) {
        self.0.draining.come();
        self.0.sockets.borrow().values().for_each(|socket| self.0.reactor.driver().cancel(socket));
    }

    fn drained(&self) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        Box::pin(async move {
            self.0.draining.unless(pending::<()>()).await;
            while self.0.count.get() > 0 {
                self.0.reactor.sleep(DRAIN_LOOK).await;
            }
        })
    }

    fn abandon(&self) {
        self.0.sockets.take();
    }
}
