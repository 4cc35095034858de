//! vhost-user as a front of the engine: the virtual machines of a configuration, which connect at sockets.

use crate::command_line::VhostUserOptions;
use crate::hypervisor::qemu;
use crate::schema::{self, SocketRole, VHOST, Vhost, VhostKind};
use crate::serve::{self, DeviceView, Devices, Disk, ScsiPort, Tenant};
use crate::sessions::{Session, Sessions};
use lunar_control::api::{SessionView, VmView};
use lunar_control::common_sections::Group;
use lunar_control::live::Later;
use lunar_control::negotiated::{DEPTH_MIN, ParameterView, shallow};
use lunar_control::plan::{Action, Change};
use lunar_control::visibility::group_of_local;
use lunar_control::{Checked, Config, Kind};
use lunar_engine::core_set::context::CoreContext;
use lunar_engine::core_set::front_handle::FrontHandle;
use lunar_engine::core_set::shared::Shared;
use lunar_engine::error::EngineError;
use lunar_engine::front::{Front, FrontOnCore, FrontPaths, FrontRuntime, Prepared};
use lunar_engine::published_config::PublishedConfig;
use lunar_engine::registry::FrontEntry;
use lunar_engine::vm_sockets::{Place, ServedVm, SocketKeys, SocketOptions, SocketsOnCore, VmSockets, kept_folder};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
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
        let sockets = VmSockets::new(shared, &SOCKET_OPTIONS);
        Ok(Arc::new(VhostUserRuntime { shared: shared.clone(), sessions: Arc::default(), sockets }))
    }

    fn paths(&self, config: &Config, runtime: &Path) -> FrontPaths {
        let folder = |(name, vhost): (&str, &Vhost)| {
            // Connecting to a socket of another process needs no right to change its folder.
            let is_made_there = vhost.role == SocketRole::Server || vhost.socket.is_none();
            is_made_there.then(|| kept_folder(&vhost.socket(name, runtime), vhost.socket.is_some(), runtime)).flatten()
        };
        FrontPaths { keep: config.section::<Vhost>().filter_map(folder).collect(), ..FrontPaths::default() }
    }
}

/// The options that messages about sockets name.
const SOCKET_OPTIONS: SocketOptions = SocketOptions { socket: "--vhost-blk", folder: "--vhost-folder" };

/// vhost-user of a process.
#[derive(Debug)]
pub struct VhostUserRuntime {
    shared: Arc<Shared>,
    sessions: Arc<Sessions>,
    sockets: VmSockets<Devices>,
}

/// The rings of a front-end, as it has set them up.
fn negotiated(session: &Session) -> Vec<ParameterView> {
    let depth: u32 = session.rings.iter().copied().map(u32::from).sum();
    let sizes: Vec<String> = session.rings.iter().map(u16::to_string).collect();
    let is_slow = !sizes.is_empty() && depth < DEPTH_MIN;
    let layout = if session.is_packed { "packed" } else { "split" };
    vec![
        ParameterView::new("rings", sizes.len()),
        ParameterView::new("sizes of the rings", if sizes.is_empty() { "none".to_owned() } else { sizes.join(" ") })
            .costs(is_slow, shallow(depth))
            .mended("shows the queue size that QEMU was started with", ["pgrep", "-a", "qemu"]),
        ParameterView::new("layout of the rings", layout),
    ]
}

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
fn vms(published: &PublishedConfig<'_>, runtime: &Path) -> BTreeMap<PathBuf, ServedVm<Tenant>> {
    let config = &published.wanted.config;
    let vm = |(name, vhost): (&str, &Vhost)| {
        let (path, host, target) = (vhost.socket(name, runtime), vhost.host(name), vhost.target.name());
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
        let (name, target, group) = (name.to_owned(), target.to_owned(), group.map(|(name, _)| name.to_owned()));
        (path, ServedVm { name, role: vhost.role.end(), tenant, target, group })
    };
    config.section::<Vhost>().map(vm).collect()
}

impl FrontRuntime for VhostUserRuntime {
    fn on_core(&self, core: &CoreContext) -> Rc<dyn FrontOnCore> {
        let sets = (&core.block, &core.target);
        Rc::new(SocketsOnCore(serve::sockets(&core.reactor, sets, &self.sessions, self.shared.config.drain)))
    }

    fn prepare(&self, cores: &FrontHandle, change: &Change, wanted: &Checked) -> Result<Option<Prepared>, EngineError> {
        match (change.object.kind, &change.action) {
            (Kind::Front(VHOST), Action::Create | Action::Change(_)) => {
                let name = &change.object.name;
                let vhost = wanted.config.find::<Vhost>(name).ok_or(EngineError::NotConfigured)?;
                let keys = SocketKeys {
                    place: Place { path: vhost.socket(name, self.shared.host.runtime()), role: vhost.role.end() },
                    mode: vhost.mode.0,
                    owner: vhost.owner.as_ref().map(|name| name.as_str()),
                    group: vhost.group.as_ref().map(|name| name.as_str()),
                };
                self.sockets.prepare(cores, keys).map(Some)
            }
            _ => Ok(None),
        }
    }

    fn roll_back(&self, cores: &FrontHandle, prepared: Prepared) {
        self.sockets.roll_back(cores, prepared);
    }

    fn publish(&self, published: &PublishedConfig<'_>) {
        self.sockets.publish(vms(published, self.shared.host.runtime()));
    }

    fn finalize(&self, cores: &FrontHandle, _published: &PublishedConfig<'_>) {
        self.sockets.finalize(cores);
    }

    fn sessions(&self, _targets: &BTreeMap<Arc<str>, String>) -> Vec<SessionView> {
        let now = self.shared.host.now();
        let view = |(number, session): (u64, Session)| {
            let vm = self.sockets.vm(&session.path)?;
            Some(SessionView {
                id: format!("{NAME}-{number}"),
                protocol: NAME,
                discovery: false,
                initiator: vm.tenant.host.to_string(),
                source: session.path.display().to_string(),
                target: Some(vm.target),
                group: vm.group,
                portal_group: None,
                user: None,
                seconds: now.since(session.since).as_secs(),
                parameters: negotiated(&session),
                tcp: Vec::new(),
            })
        };
        self.sessions.all().into_iter().filter_map(view).collect()
    }

    fn end_session(&self, cores: &FrontHandle, id: &str) -> Option<Later<bool>> {
        let number = id.strip_prefix(NAME).and_then(|rest| rest.strip_prefix('-')?.parse().ok())?;
        self.sockets.end_client(cores, self.sessions.find(number)?.path);
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
        let kind = |vm: &ServedVm<Tenant>| match vm.tenant.device {
            DeviceView::Blk(_) => VhostKind::Blk,
            DeviceView::Scsi(_) => VhostKind::Scsi,
        };
        let view = |path: &Path, vm: &ServedVm<Tenant>| VmView {
            name: vm.name.clone(),
            socket: path.display().to_string(),
            qemu: qemu(path, kind(vm), vm.role),
        };
        self.sockets.vms(view)
    }

    fn troubles(&self) -> Vec<String> {
        self.sockets.troubles()
    }
}
