//! vhost-user as a front of the engine: the virtual machines of a configuration and their sockets. Each socket is made
//! on one of the cores before any front-end is accepted.

use crate::command_line::VhostUserOptions;
use crate::hypervisor::qemu;
use crate::schema::{self, VHOST, Vhost, VhostKind};
use crate::serve::{self, DeviceView, Disk, Endpoint, Permission, ScsiPort, Tenant};
use crate::sessions::{Session, Sessions};
use lunar_control::api::{SessionView, VmView};
use lunar_control::common_sections::Group;
use lunar_control::live::Later;
use lunar_control::plan::{Action, Change};
use lunar_control::visibility::group_of_local;
use lunar_control::{Checked, Config, Kind};
use lunar_engine::command_line::mistake::SOCKET_PATH_MAX;
use lunar_engine::core_set::context::CoreContext;
use lunar_engine::core_set::front_handle::FrontHandle;
use lunar_engine::core_set::shared::Shared;
use lunar_engine::error::EngineError;
use lunar_engine::front::{Front, FrontOnCore, FrontPaths, FrontRuntime, Incoming, PortalRef, Prepared};
use lunar_engine::origin::Wording;
use lunar_engine::published_config::PublishedConfig;
use lunar_engine::registry::FrontEntry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::ready;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The name of the front, with which the IDs of its sessions begin.
pub const NAME: &str = schema::WORD;
/// How long a session that an operator ends may take: requests in the store have to come back first.
const END_PATIENCE: Duration = Duration::from_secs(30);
/// Time between two checks whether it has ended.
const END_LOOK: Duration = Duration::from_millis(5);

/// vhost-user, in the registry.
#[derive(Clone, Copy, Debug)]
pub struct VhostUser;

/// Its line in a registry.
pub const ENTRY: FrontEntry =
    FrontEntry { front: &VhostUser, schema: &schema::FRONT, options: Some(&VhostUserOptions) };

impl Front for VhostUser {
    fn name(&self) -> &'static str {
        NAME
    }

    fn start(&self, _index: usize, shared: &Arc<Shared>) -> Result<Arc<dyn FrontRuntime>, EngineError> {
        Ok(Arc::new(VhostUserRuntime { shared: shared.clone(), sessions: Arc::default(), state: Mutex::default() }))
    }

    fn paths(&self, config: &Config, runtime: &Path) -> FrontPaths {
        let folder = |(name, vhost): (&str, &Vhost)| {
            // Where the folder itself has to be made, the one above it is kept.
            let usual = vhost.socket.is_none().then(|| runtime.to_owned());
            usual.or_else(|| vhost.socket(name, runtime).parent().map(Path::to_owned))
        };
        FrontPaths { keep: config.section::<Vhost>().filter_map(folder).collect(), ..FrontPaths::default() }
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
    /// Its target in the configuration.
    target: String,
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

/// vhost-user of a process.
pub struct VhostUserRuntime {
    shared: Arc<Shared>,
    sessions: Arc<Sessions>,
    state: Mutex<State>,
}

impl fmt::Debug for VhostUserRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VhostUserRuntime({} sockets)", self.state().sockets.len())
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
                AddrInUse => {
                    write!(f, "{path} is served by another process; choose another --vhost-blk or --vhost-folder")
                }
                PermissionDenied => {
                    write!(f, "{path} cannot be made: choose another --vhost-folder, in which this user may write")
                }
                _ => write!(f, "making {path} (--vhost-folder): {why}"),
            },
            Wording::Keys => match why.kind() {
                AddrInUse => write!(f, "{path} is served by another process"),
                PermissionDenied => write!(
                    f,
                    "{path} cannot be made, or not given to this user or group: the folder must be one that Lunar may \
                     write to, and configured when it starts (`folders` in [server]); giving it to another user takes \
                     root, and as a service the capability CAP_CHOWN"
                ),
                _ => write!(f, "{path}: {why}"),
            },
        }
    }
}

impl std::error::Error for SocketError {}

/// The volume that a virtual machine of this group sees.
fn disk(vhost: &Vhost, group: &Group, published: &PublishedConfig<'_>) -> Option<Disk> {
    let mut luns = group.luns.0.iter();
    let (_, lun) = luns.find(|(number, _)| vhost.lun.is_none_or(|wanted| wanted.get() == u64::from(**number)))?;
    let unit = published.units.get(lun.volume.name())?;
    Some(Disk { unit: *unit, read_only: lun.read_only })
}

/// The target port of a virtio-scsi device: that of its portal group, or else of the first one of the target.
fn port(vhost: &Vhost, published: &PublishedConfig<'_>) -> Option<ScsiPort> {
    let config = &published.wanted.config;
    let target = config.targets.get(vhost.target.name())?;
    let group =
        vhost.portal_group.as_ref().map(|group| group.name()).or_else(|| target.portal_groups.names().next())?;
    let tag = config.portal_groups.get(group)?.tag.get() as u16;
    Some(ScsiPort { relative: published.ports.of(target.iqn.as_ref()?.as_str(), tag)? })
}

/// The virtual machines, by their sockets.
fn vms(published: &PublishedConfig<'_>, runtime: &Path) -> BTreeMap<PathBuf, ServedVm> {
    let config = &published.wanted.config;
    let vm = |(name, vhost): (&str, &Vhost)| {
        let (host, target) = (vhost.host(name), vhost.target.name());
        let enabled = config.targets.get(target).is_some_and(|target| target.enabled);
        let group = group_of_local(config, target, &host).filter(|_| enabled);
        let portal_group = vhost.portal_group.as_ref().and_then(|group| config.portal_groups.get(group.name()));
        let tenant = Tenant {
            host: host.into(),
            group: group.map(|(name, _)| name.into()),
            tag: portal_group.map_or(0, |group| group.tag.get() as u16),
            queues: vhost.queues.get() as usize,
            device: match vhost.device {
                VhostKind::Blk => DeviceView::Blk(group.and_then(|(_, group)| disk(vhost, group, published))),
                VhostKind::Scsi => DeviceView::Scsi(group.and_then(|_| port(vhost, published))),
            },
        };
        (vhost.socket(name, runtime), ServedVm { name: name.to_owned(), tenant, target: target.to_owned() })
    };
    config.section::<Vhost>().map(vm).collect()
}

impl VhostUserRuntime {
    fn state(&self) -> MutexGuard<'_, State> {
        // Every change is one insert, remove or assignment, so a panic of another thread leaves the state consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the socket of the virtual machine of this name, or changes its permissions.
    fn provide_socket(&self, cores: &FrontHandle, name: &str, wanted: &Checked) -> Result<PreparedSocket, EngineError> {
        let host = &self.shared.host;
        let vhost = wanted.config.find::<Vhost>(name).ok_or(EngineError::NotConfigured)?;
        let path = vhost.socket(name, host.runtime());
        let (owner, group) = (vhost.owner.as_ref(), vhost.group.as_ref());
        let names = (owner.map(|name| name.as_str()), group.map(|name| name.as_str()));
        let permission = host.permission(vhost.mode.0, names.0, names.1)?;
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
        let bind = move |front: Rc<VhostUserCore>| ready(front.0.bind(&place, permission));
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
            cores.ask(bound.core, async move |front: Rc<VhostUserCore>| front.0.close(&path)).wait();
        }
    }
}

impl FrontRuntime for VhostUserRuntime {
    fn on_core(&self, core: &CoreContext) -> Rc<dyn FrontOnCore> {
        Rc::new(VhostUserCore(serve::Front::new(
            &core.reactor,
            (&core.block, &core.target),
            &self.sessions,
            self.shared.config.drain,
        )))
    }

    fn prepare(&self, cores: &FrontHandle, change: &Change, wanted: &Checked) -> Result<Option<Prepared>, EngineError> {
        match (change.object.kind, &change.action) {
            (Kind::Front(VHOST), Action::Create | Action::Change(_)) => {
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
        state.vms = vms(published, self.shared.host.runtime());
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
            cores.ask(core, async move |front: Rc<VhostUserCore>| front.0.serve(endpoint)).wait();
        }
    }

    fn sessions(&self, _targets: &BTreeMap<Arc<str>, String>) -> Vec<SessionView> {
        let (state, now) = (self.state(), self.shared.host.now());
        let view = |(number, session): (u64, Session)| {
            let vm = state.vms.get(&session.path)?;
            Some(SessionView {
                id: format!("{NAME}-{number}"),
                protocol: NAME,
                discovery: false,
                initiator: vm.tenant.host.to_string(),
                source: session.path.display().to_string(),
                target: Some(vm.target.clone()),
                group: vm.tenant.group.as_deref().map(str::to_owned),
                user: None,
                seconds: now.since(session.since).as_secs(),
            })
        };
        self.sessions.all().into_iter().filter_map(view).collect()
    }

    fn end_session(&self, cores: &FrontHandle, id: &str) -> Option<Later<bool>> {
        let number = id.strip_prefix(NAME).and_then(|rest| rest.strip_prefix('-')?.parse().ok())?;
        let path = self.sessions.find(number)?.path;
        let bound = self.state().sockets.get(&path).copied();
        if let Some(bound) = bound {
            cores.ask(bound.core, move |front: Rc<VhostUserCore>| ready(front.0.end_client(&path))).wait();
        }
        let (sessions, host) = (self.sessions.clone(), self.shared.host.clone());
        Some(Box::new(move || {
            let end = host.now() + END_PATIENCE;
            while sessions.find(number).is_some() && host.now() < end {
                if host.has_threads() {
                    host.pause(END_LOOK);
                } else {
                    host.step();
                }
            }
            sessions.find(number).is_none()
        }))
    }

    fn leftovers(&self) -> Vec<String> {
        let count = self.sessions.all().len();
        (count > 0).then(|| format!("{count} front-ends registered")).into_iter().collect()
    }

    fn vms(&self) -> Vec<VmView> {
        let kind = |vm: &ServedVm| match vm.tenant.device {
            DeviceView::Blk(_) => VhostKind::Blk,
            DeviceView::Scsi(_) => VhostKind::Scsi,
        };
        let view = |(path, vm): (&PathBuf, &ServedVm)| VmView {
            name: vm.name.clone(),
            socket: path.display().to_string(),
            qemu: qemu(path, kind(vm)),
        };
        self.state().vms.iter().map(view).collect()
    }

    fn troubles(&self) -> Vec<String> {
        self.state().troubles.iter().map(ToString::to_string).collect()
    }
}

/// vhost-user on a core.
#[derive(Debug)]
pub struct VhostUserCore(Rc<serve::Front>);

impl VhostUserCore {
    /// The sockets of the core.
    #[must_use]
    pub fn sockets(&self) -> &Rc<serve::Front> {
        &self.0
    }
}

impl FrontOnCore for VhostUserCore {
    /// It has no portals.
    fn serve(&self, _incoming: Incoming, _portal: PortalRef) {}

    fn connections(&self) -> usize {
        self.0.clients()
    }

    /// A session that the configuration no longer allows ends when the configuration is published.
    fn review(&self, ended: Arc<BTreeSet<Arc<str>>>) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        Box::pin(async move { self.0.review(&ended).await })
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
