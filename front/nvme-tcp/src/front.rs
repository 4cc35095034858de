//! NVMe/TCP as a front of the engine: the portals of a configuration, TLS, and controllers for operators.

use crate::command_line::NvmeTcpOptions;
use crate::dry_run;
use crate::schema;
use crate::schema::requires_tls;
use crate::serve::{self, Settings};
use crate::tls::TlsContext;
use lunar_control::Config;
use lunar_control::api::SessionView;
use lunar_control::common_sections;
use lunar_control::explain::{LoginQuestion, LoginVerdict};
use lunar_control::live::Later;
use lunar_engine::core_set::context::CoreContext;
use lunar_engine::core_set::front_handle::FrontHandle;
use lunar_engine::core_set::shared::Shared;
use lunar_engine::error::EngineError;
use lunar_engine::front::{Front, FrontOnCore, FrontPaths, FrontRuntime, Incoming, PortalRef, TcpState};
use lunar_engine::nvme_sessions;
use lunar_engine::published_config::{BoundPortal, PublishedConfig};
use lunar_engine::registry::FrontEntry;
use lunar_nvme::Controller;
use lunar_nvme::directory::{self, Portal};
use lunar_nvme::path::TCP;
use openssl::error::ErrorStack;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::ready;
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

/// The name of the front.
pub const NAME: &str = schema::WORD;

/// NVMe/TCP, in the registry.
#[derive(Clone, Copy, Debug)]
pub struct NvmeTcp;

/// Its line in a registry.
pub const ENTRY: FrontEntry = FrontEntry { front: &NvmeTcp, schema: &schema::FRONT, options: Some(&NvmeTcpOptions) };

impl Front for NvmeTcp {
    fn name(&self) -> &'static str {
        NAME
    }

    fn start(&self, _index: usize, shared: &Arc<Shared>) -> Result<Arc<dyn FrontRuntime>, EngineError> {
        let authenticator = shared.authenticator.clone();
        // A key may be configured at any time.
        let tls = TlsContext::new(move |identity| authenticator.tls_psk(identity));
        let tls = tls.map_err(|why| EngineError::front(TlsStartError(why)))?;
        Ok(Arc::new(NvmeTcpRuntime { shared: shared.clone(), tls, tls_portals: TlsPortals::default() }))
    }

    fn paths(&self, _config: &Config, _runtime: &Path) -> FrontPaths {
        FrontPaths::default()
    }
}

/// TLS cannot be prepared.
#[derive(Debug)]
struct TlsStartError(ErrorStack);

impl fmt::Display for TlsStartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "preparing TLS: {}", self.0)
    }
}

impl std::error::Error for TlsStartError {}

/// The portals that require TLS, by their numbers.
#[derive(Clone, Debug, Default)]
struct TlsPortals(Arc<Mutex<BTreeSet<u32>>>);

impl TlsPortals {
    fn set(&self, portals: BTreeSet<u32>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = portals;
    }

    fn contains(&self, portal: u32) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(&portal)
    }
}

/// NVMe/TCP of a process.
pub struct NvmeTcpRuntime {
    shared: Arc<Shared>,
    tls: TlsContext,
    tls_portals: TlsPortals,
}

impl fmt::Debug for NvmeTcpRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NvmeTcpRuntime")
    }
}

/// Whether a controller is reached over TCP.
fn is_own(controller: &Controller) -> bool {
    controller.path.word() == NAME
}

impl FrontRuntime for NvmeTcpRuntime {
    fn on_core(&self, core: &CoreContext) -> Rc<dyn FrontOnCore> {
        let config = &self.shared.config;
        let settings = Settings { advertise: None, drain: config.drain, tls: Some(self.tls.clone()) };
        let front = serve::Front::new(&core.reactor, &core.subsystem, settings);
        Rc::new(NvmeTcpCore { front, tls_portals: self.tls_portals.clone() })
    }

    fn publish(&self, published: &PublishedConfig<'_>) {
        let with_tls = published.portals_of(NAME).filter(|(_, portal, _)| requires_tls(portal));
        self.tls_portals.set(with_tls.map(|(bound, ..)| bound.id).collect());
    }

    fn sessions(&self, targets: &BTreeMap<Arc<str>, String>) -> Vec<SessionView> {
        let all = self.shared.controllers.all();
        let view = |controller: &Arc<Controller>| nvme_sessions::view(&self.shared, controller, NAME, targets);
        all.iter().filter(|controller| is_own(controller)).map(view).collect()
    }

    fn end_session(&self, _cores: &FrontHandle, id: &str) -> Option<Later<bool>> {
        let controller = nvme_sessions::find(&self.shared, id).filter(|controller| is_own(controller))?;
        controller.end();
        Some(nvme_sessions::until_ended(&self.shared, controller))
    }

    fn dry_run(&self, question: &LoginQuestion) -> Option<LoginVerdict> {
        Some(dry_run::of(&self.shared.authenticator, &self.shared.subsystems, question))
    }

    fn leftovers(&self) -> Vec<String> {
        Vec::new()
    }

    fn discovery_portals(&self, published: &PublishedConfig<'_>) -> Vec<Portal> {
        let portal = |(bound, portal, group): (BoundPortal, &common_sections::Portal, u16)| {
            let own = Some(bound.address).filter(|address| !address.ip().is_unspecified());
            let (address, is_secure) = (portal.advertise().or(own), requires_tls(portal));
            Portal { id: bound.id, group, transport: TCP, address, is_secure }
        };
        published.portals_of(NAME).map(portal).collect()
    }
}

/// NVMe/TCP on a core.
#[derive(Debug)]
pub struct NvmeTcpCore {
    front: Rc<serve::Front>,
    tls_portals: TlsPortals,
}

impl FrontOnCore for NvmeTcpCore {
    fn serve(&self, incoming: Incoming, portal: PortalRef) {
        let PortalRef { portal, group } = portal;
        let is_secure = self.tls_portals.contains(portal);
        self.front.serve(incoming, directory::PortalRef { portal, group, is_secure });
    }

    fn connections(&self) -> usize {
        self.front.connections()
    }

    fn tcp_states(&self, only: Option<&str>) -> Vec<(String, TcpState)> {
        let is_wanted = |controller: &Controller| only.is_none_or(|only| only == nvme_sessions::id(controller));
        let states = self.front.tcp_states(is_wanted).into_iter();
        states.map(|(controller, state)| (nvme_sessions::id(&controller), state)).collect()
    }

    fn count_retransmits(&self) {
        self.front.count_retransmits();
    }

    /// The engine ends controllers that may no longer be there, and with them their connections.
    fn review(&self, _ended: Arc<BTreeSet<Arc<str>>>) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        Box::pin(ready(()))
    }

    fn drain(&self) {
        self.front.drain();
    }

    fn drained(&self) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        Box::pin(self.front.drained())
    }

    fn abandon(&self) {
        self.front.abandon();
    }
}
