//! vfio-user as a front of the engine: the virtual machines of a configuration, which connect at sockets.

use crate::command_line::VfioUserOptions;
use crate::hypervisor::qemu;
use crate::schema::{self, VM, Vm};
use crate::serve::{self, Controllers};
use lunar_control::api::{SessionView, VmView};
use lunar_control::live::Later;
use lunar_control::plan::{Action, Change};
use lunar_control::visibility::group_of_local;
use lunar_control::{Checked, Config, Kind};
use lunar_engine::core_set::context::CoreContext;
use lunar_engine::core_set::front_handle::FrontHandle;
use lunar_engine::core_set::shared::Shared;
use lunar_engine::error::EngineError;
use lunar_engine::front::{Front, FrontOnCore, FrontPaths, FrontRuntime, Prepared, PrivateMap};
use lunar_engine::published_config::PublishedConfig;
use lunar_engine::registry::FrontEntry;
use lunar_engine::vm_sockets::{
    Place, Role, ServedVm, SocketKeys, SocketOptions, SocketsOnCore, VmSockets, kept_folder,
};
use lunar_engine::{namespaces, nvme_sessions};
use lunar_nvme::{Controller, Tenant};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

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
        Ok(Arc::new(VfioUserRuntime { shared: shared.clone(), sockets: VmSockets::new(shared, &SOCKET_OPTIONS) }))
    }

    fn paths(&self, config: &Config, runtime: &Path) -> FrontPaths {
        let folder = |(name, vm): (&str, &Vm)| kept_folder(&vm.socket(name, runtime), vm.socket.is_some(), runtime);
        FrontPaths { keep: config.section::<Vm>().filter_map(folder).collect(), ..FrontPaths::default() }
    }
}

/// The options that messages about sockets name.
const SOCKET_OPTIONS: SocketOptions = SocketOptions { socket: "--vm", folder: "--vm-folder" };

/// vfio-user of a process.
#[derive(Debug)]
pub struct VfioUserRuntime {
    shared: Arc<Shared>,
    sockets: VmSockets<Controllers>,
}

/// The name of the map of a virtual machine: no group has such a name.
fn map_of(vm: &str) -> Arc<str> {
    format!("vm/{vm}").into()
}

/// The virtual machines, by their sockets. A virtual machine whose target is not served keeps its socket, and no client
/// is accepted.
fn vms(wanted: &Checked, runtime: &Path) -> BTreeMap<PathBuf, ServedVm<Tenant>> {
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
        let (name, target) = (name.to_owned(), vm.target.name().to_owned());
        (path, ServedVm { name, role: Role::Server, tenant, target, group })
    };
    config.section::<Vm>().map(vm).collect()
}

impl VfioUserRuntime {
    /// The virtual machine of a controller.
    fn vm_of(&self, controller: &Controller) -> Option<ServedVm<Tenant>> {
        let path = &controller.path;
        path.memory.then(|| self.sockets.vm(Path::new(&path.address))).flatten()
    }
}

impl FrontRuntime for VfioUserRuntime {
    fn on_core(&self, core: &CoreContext) -> Rc<dyn FrontOnCore> {
        Rc::new(SocketsOnCore(serve::sockets(&core.reactor, &core.subsystem, self.shared.config.drain)))
    }

    fn prepare(&self, cores: &FrontHandle, change: &Change, wanted: &Checked) -> Result<Option<Prepared>, EngineError> {
        match (change.object.kind, &change.action) {
            (Kind::Front(VM), Action::Create | Action::Change(_)) => {
                let name = &change.object.name;
                let vm = wanted.config.find::<Vm>(name).ok_or(EngineError::NotConfigured)?;
                let keys = SocketKeys {
                    place: Place { path: vm.socket(name, self.shared.host.runtime()), role: Role::Server },
                    mode: vm.mode.0,
                    owner: vm.owner.as_ref().map(|name| name.as_str()),
                    group: vm.group.as_ref().map(|name| name.as_str()),
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
        self.sockets.publish(vms(published.wanted, self.shared.host.runtime()));
    }

    fn finalize(&self, cores: &FrontHandle, _published: &PublishedConfig<'_>) {
        self.sockets.finalize(cores);
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
        self.sockets.end_client(cores, PathBuf::from(&controller.path.address));
        Some(nvme_sessions::until_ended(&self.shared, controller))
    }

    fn leftovers(&self) -> Vec<String> {
        Vec::new()
    }

    fn vms(&self) -> Vec<VmView> {
        let view = |path: &Path, vm: &ServedVm<Tenant>| VmView {
            name: vm.name.clone(),
            socket: path.display().to_string(),
            qemu: qemu(path),
        };
        self.sockets.vms(view)
    }

    fn troubles(&self) -> Vec<String> {
        self.sockets.troubles()
    }
}
