//! vfio-user as a front of the engine: the virtual machines of a configuration and their sockets. Each socket is made
//! on one of the cores before any client is accepted.

use crate::command_line::VfioUserOptions;
use crate::hypervisor::qemu;
use crate::schema::{self, VM, Vm};
use crate::serve::{self, Endpoint, Permission};
use lunar_control::Kind;
use lunar_control::api::{SessionView, VmView};
use lunar_control::live::Later;
use lunar_control::plan::{Action, Change};
use lunar_control::visibility::group_of_local;
use lunar_control::{Checked, Config};
use lunar_engine::command_line::mistake::SOCKET_PATH_MAX;
use lunar_engine::core_set::context::CoreContext;
use lunar_engine::core_set::front_handle::FrontHandle;
use lunar_engine::core_set::shared::Shared;
use lunar_engine::error::EngineError;
use lunar_engine::front::{Front, FrontOnCore, FrontPaths, FrontRuntime, Incoming, PortalRef, Prepared, PrivateMap};
use lunar_engine::origin::Wording;
use lunar_engine::published_config::PublishedConfig;
use lunar_engine::registry::FrontEntry;
use lunar_engine::{namespaces, nvme_sessions};
use lunar_nvme::{Controller, Tenant};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::ready;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The name of the front.
pub const NAME: &str = "vfio-user";

/// vfio-user, in the registry.
#[derive(Clone, Copy, Debug)]
pub struct VfioUser;

/// Its line in a registry.
pub const ENTRY: FrontEntry = FrontEntry { front: &VfioUser, schema: &schema::FRONT, options: Some(&VfioUserOptions) };

impl Front for VfioUser {
    fn name(&self) -> &'static str {
        NAME
    }

    fn start(&self, _index: usize, shared: &Arc<Shared>) -> Result<Arc<dyn FrontRuntime>, EngineError> {
        Ok(Arc::new(VfioUserRuntime { shared: shared.clone(), state: Mutex::default() }))
    }

    fn paths(&self, config: &Config, runtime: &Path) -> FrontPaths {
        let folder = |(name, vm): (&str, &Vm)| {
            // Where the folder itself has to be made, the one above it is kept.
            let usual = vm.socket.is_none().then(|| runtime.to_owned());
            usual.or_else(|| vm.socket(name, runtime).parent().map(Path::to_owned))
        };
        FrontPaths { keep: config.section::<Vm>().filter_map(folder).collect(), ..FrontPaths::default() }
    }
}

/// A socket that is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct BoundSocket {
    /// Its core.
    core: usize,
    /// The users that may open it.
    permission: Permission,
}

/// A virtual machine that is served.
#[derive(Clone, PartialEq, Eq, Debug)]
struct ServedVm {
    /// Its name.
    name: String,
    /// The host that it is, and what it sees.
    tenant: Tenant,
    /// The group that it belongs to.
    group: Option<String>,
}

/// A socket that is prepared, and its permissions before if it was there already.
struct PreparedSocket {
    path: PathBuf,
    before: Option<Permission>,
}

/// The sockets and virtual machines of a process.
#[derive(Default, Debug)]
struct State {
    sockets: BTreeMap<PathBuf, BoundSocket>,
    /// The virtual machines, by their sockets.
    vms: BTreeMap<PathBuf, ServedVm>,
    troubles: Vec<SocketError>,
}

/// vfio-user of a process.
pub struct VfioUserRuntime {
    shared: Arc<Shared>,
    state: Mutex<State>,
}

impl fmt::Debug for VfioUserRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VfioUserRuntime({} sockets)", self.state().sockets.len())
    }
}

/// A socket cannot be made as it is configured.
#[derive(Debug)]
struct SocketError {
    path: PathBuf,
    mistake: SocketMistake,
    wording: Wording,
}

#[derive(Debug)]
enum SocketMistake {
    /// The path is longer than [`SOCKET_PATH_MAX`].
    TooLong,
    /// It cannot be bound, or not with its permissions.
    Bind(io::Error),
}

impl fmt::Display for SocketError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use ErrorKind::{AddrInUse, PermissionDenied};
        let path = self.path.display();
        let why = match &self.mistake {
            SocketMistake::TooLong => {
                return write!(f, "{path} is too long for a socket: say where it is with 'socket'");
            }
            SocketMistake::Bind(why) => why,
        };
        match self.wording {
            Wording::Options => match why.kind() {
                AddrInUse => write!(f, "{path} is served by another process; choose another --vm or --vm-folder"),
                PermissionDenied => {
                    write!(f, "{path} cannot be made: choose another --vm-folder, in which this user may write")
                }
                _ => write!(f, "making {path} (--vm-folder): {why}"),
            },
            Wording::Keys => match why.kind() {
                AddrInUse => write!(f, "{path} is served by another process"),
                PermissionDenied if rustix::process::geteuid().is_root() => write!(
                    f,
                    "{path} cannot be made, or not given to this user or group: the folder must be configured when \
                     Lunar starts (`folders` in [server]), and the service may lack the capability CAP_CHOWN"
                ),
                PermissionDenied => write!(
                    f,
                    "{path} cannot be made, or not given to this user or group: the folder must be one that Lunar may \
                     write to, and configured when it starts (`folders` in [server]); giving it to another user takes \
                     root"
                ),
                _ => write!(f, "{path}: {why}"),
            },
        }
    }
}

impl std::error::Error for SocketError {}

/// The name of the map of a virtual machine: no group has such a name.
fn map_of(vm: &str) -> Arc<str> {
    format!("vm/{vm}").into()
}

/// The virtual machines, by their sockets. A virtual machine whose target is not served keeps its socket, and no client
/// is accepted.
fn vms(wanted: &Checked, runtime: &Path) -> BTreeMap<PathBuf, ServedVm> {
    let config = &wanted.config;
    let vm = |(name, vm): (&str, &Vm)| {
        let path = vm.socket(name, runtime);
        let group = vm.portal_group.as_ref().and_then(|group| config.portal_groups.get(group.name()));
        let subsystem = config.targets.get(vm.target.name()).and_then(|target| namespaces::subsystem(target));
        let tenant = Tenant {
            host: vm.host(name).into(),
            subsystem: subsystem.unwrap_or_default().into(),
            map: Some(map_of(name)),
            group: group.map_or(0, |group| group.tag.get() as u16),
            address: path.display().to_string(),
        };
        let group = group_of_local(config, vm.target.name(), &vm.host(name)).map(|(name, _)| name.to_owned());
        (path, ServedVm { name: name.to_owned(), tenant, group })
    };
    config.section::<Vm>().map(vm).collect()
}

impl VfioUserRuntime {
    fn state(&self) -> MutexGuard<'_, State> {
        // Every change is one insert, remove or assignment, so a panic of another thread leaves the state consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the socket of the virtual machine of this name, or changes its permissions.
    fn provide_socket(&self, cores: &FrontHandle, name: &str, wanted: &Checked) -> Result<PreparedSocket, EngineError> {
        let host = &self.shared.host;
        let vm = wanted.config.find::<Vm>(name).ok_or(EngineError::NotConfigured)?;
        let path = vm.socket(name, host.runtime());
        let (owner, group) = (vm.owner.as_ref(), vm.group.as_ref());
        let names = (owner.map(|name| name.as_str()), group.map(|name| name.as_str()));
        let permission = host.permission(vm.mode.0, names.0, names.1)?;
        let refused = |mistake| EngineError::front(self.socket_error(&path, mistake));
        if path.as_os_str().len() > SOCKET_PATH_MAX {
            return Err(refused(SocketMistake::TooLong));
        }
        let known = self.state().sockets.get(&path).copied();
        if let Some(bound) = known {
            if bound.permission != permission {
                permission.grant(&path).map_err(|why| refused(SocketMistake::Bind(why)))?;
                self.state().sockets.insert(path.clone(), BoundSocket { permission, ..bound });
            }
            return Ok(PreparedSocket { path, before: Some(bound.permission) });
        }
        let core = {
            let state = self.state();
            let load = |core: &usize| state.sockets.values().filter(|bound| bound.core == *core).count();
            (0..cores.count()).min_by_key(load).unwrap_or(0)
        };
        let place = path.clone();
        let bind = move |front: Rc<VfioUserCore>| ready(front.0.bind(&place, permission));
        let bound = cores.ask(core, bind).wait().ok_or(EngineError::CoreEnded)?;
        bound.map_err(|why| refused(SocketMistake::Bind(why)))?;
        self.state().sockets.insert(path.clone(), BoundSocket { core, permission });
        Ok(PreparedSocket { path, before: None })
    }

    fn socket_error(&self, path: &Path, mistake: SocketMistake) -> SocketError {
        SocketError { path: path.to_owned(), mistake, wording: self.shared.origin.wording() }
    }

    fn close_socket(&self, cores: &FrontHandle, path: &Path) {
        let removed = self.state().sockets.remove(path);
        if let Some(bound) = removed {
            let path = path.to_owned();
            cores.ask(bound.core, async move |front: Rc<VfioUserCore>| front.0.close(&path)).wait();
        }
    }

    /// The virtual machine of a controller.
    fn vm_of(&self, controller: &Controller) -> Option<ServedVm> {
        let path = &controller.path;
        path.memory.then(|| self.state().vms.get(Path::new(&path.address)).cloned()).flatten()
    }
}

impl FrontRuntime for VfioUserRuntime {
    fn on_core(&self, core: &CoreContext) -> Rc<dyn FrontOnCore> {
        Rc::new(VfioUserCore(serve::Front::new(&core.reactor, &core.subsystem, self.shared.config.drain)))
    }

    fn prepare(&self, cores: &FrontHandle, change: &Change, wanted: &Checked) -> Result<Option<Prepared>, EngineError> {
        match (change.object.kind, &change.action) {
            (Kind::Front(VM), Action::Create | Action::Change(_)) => {
                let socket = self.provide_socket(cores, &change.object.name, wanted)?;
                Ok(Some(Box::new(socket)))
            }
            _ => Ok(None),
        }
    }

    fn roll_back(&self, cores: &FrontHandle, prepared: Prepared) {
        let Ok(socket) = prepared.downcast::<PreparedSocket>() else { return };
        let PreparedSocket { path, before } = *socket;
        let Some(before) = before else { return self.close_socket(cores, &path) };
        let mut state = self.state();
        if let Some(bound) = state.sockets.get_mut(&path) {
            bound.permission = before;
        }
        if let Err(why) = before.grant(&path) {
            state.troubles.push(self.socket_error(&path, SocketMistake::Bind(why)));
        }
    }

    fn publish(&self, published: &PublishedConfig<'_>) {
        let mut state = self.state();
        state.vms = vms(published.wanted, self.shared.host.runtime());
        state.troubles.clear();
    }

    fn finalize(&self, cores: &FrontHandle, _published: &PublishedConfig<'_>) {
        let (gone, served) = {
            let State { sockets, vms, .. } = &*self.state();
            let gone: Vec<PathBuf> = sockets.keys().filter(|path| !vms.contains_key(*path)).cloned().collect();
            let served = vms.iter().filter_map(|(path, vm)| Some((path.clone(), *sockets.get(path)?, vm.clone())));
            (gone, served.collect::<Vec<_>>())
        };
        gone.iter().for_each(|path| self.close_socket(cores, path));
        for (path, BoundSocket { core, permission }, ServedVm { name, tenant, .. }) in served {
            let endpoint = Endpoint { name, path, permission, tenant };
            cores.ask(core, async move |front: Rc<VfioUserCore>| front.0.serve(endpoint)).wait();
        }
    }

    fn private_maps(&self, wanted: &Checked) -> Vec<PrivateMap> {
        let config = &wanted.config;
        let map = |(name, vm): (&str, &Vm)| PrivateMap {
            name: map_of(name),
            target: vm.target.name().to_owned(),
            group: group_of_local(config, vm.target.name(), &vm.host(name)).map(|(group, _)| group.to_owned()),
        };
        config.section::<Vm>().map(map).collect()
    }

    fn sessions(&self, targets: &BTreeMap<Arc<str>, String>) -> Vec<SessionView> {
        let all = self.shared.controllers.all();
        let view = |controller: &Arc<Controller>| {
            let view = nvme_sessions::view(&self.shared, controller, NAME, targets);
            match self.vm_of(controller) {
                Some(vm) => SessionView { group: vm.group, ..view },
                None => view,
            }
        };
        all.iter().filter(|controller| controller.path.memory).map(view).collect()
    }

    fn end_session(&self, cores: &FrontHandle, id: &str) -> Option<Later<bool>> {
        let controller = nvme_sessions::find(&self.shared, id).filter(|controller| controller.path.memory)?;
        let path = PathBuf::from(&controller.path.address);
        let bound = self.state().sockets.get(&path).copied();
        if let Some(bound) = bound {
            cores.ask(bound.core, move |front: Rc<VfioUserCore>| ready(front.0.end_client(&path))).wait();
        }
        Some(nvme_sessions::until_ended(&self.shared, controller))
    }

    fn leftovers(&self) -> Vec<String> {
        Vec::new()
    }

    fn vms(&self) -> Vec<VmView> {
        let view = |(path, vm): (&PathBuf, &ServedVm)| VmView {
            name: vm.name.clone(),
            socket: path.display().to_string(),
            qemu: qemu(path),
        };
        self.state().vms.iter().map(view).collect()
    }

    fn troubles(&self) -> Vec<String> {
        self.state().troubles.iter().map(ToString::to_string).collect()
    }
}

/// vfio-user on a core.
#[derive(Debug)]
pub struct VfioUserCore(Rc<serve::Front>);

impl VfioUserCore {
    /// The sockets of the core.
    #[must_use]
    pub fn sockets(&self) -> &Rc<serve::Front> {
        &self.0
    }
}

impl FrontOnCore for VfioUserCore {
    /// Virtual machines have sockets of their own: no portal is for them.
    fn serve(&self, _incoming: Incoming, _portal: PortalRef) {}

    fn connections(&self) -> usize {
        self.0.clients()
    }

    /// The engine ends controllers that may no longer be there, and with them their connections.
    fn review(&self, _ended: Arc<BTreeSet<Arc<str>>>) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        Box::pin(ready(()))
    }

    fn drain(&self) {
        self.0.drain();
    }

    fn drained(&self) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        Box::pin(self.0.drained())
    }

    fn abandon(&self) {
        self.0.abandon();
    }
}
