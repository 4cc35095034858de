//! The Unix sockets of a front for virtual machines, one for each virtual machine: the client connects there, or it
//! listens and the front connects. Each is on one of the cores; it is made before any client is served.
//!
//! * [`on_core`]: the sockets of a core, and the end of service; [`log`]: limits of the log
//! * [`error`]: why a socket cannot be made
//! * here: the sockets of a process, as the configuration changes them

pub mod error;
pub mod log;
pub mod on_core;

pub use error::SocketOptions;
pub use on_core::{CoreSockets, Endpoint, Leaving, SocketClient, SocketService, SocketsOnCore};

use crate::core_set::front_handle::FrontHandle;
use crate::core_set::shared::Shared;
use crate::error::EngineError;
use crate::front::Prepared;
use error::{SocketError, SocketMistake};
use lunar_reactor::unix::{Permission, SOCKET_PATH_MAX};
use std::collections::BTreeMap;
use std::fmt;
use std::future::ready;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The end of a socket that a front has.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Role {
    /// It listens, and the client connects.
    Server,
    /// The client listens, and the front connects.
    Client,
}

/// A socket of a front.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Place {
    /// Its path.
    pub path: PathBuf,
    /// The end of the front.
    pub role: Role,
}

/// The keys of a socket.
#[derive(Clone, Debug)]
pub struct SocketKeys<'a> {
    /// The socket. The other keys are for one at which the front listens.
    pub place: Place,
    /// Permission bits.
    pub mode: u32,
    /// The user that owns it.
    pub owner: Option<&'a str>,
    /// The user group that owns it.
    pub group: Option<&'a str>,
}

/// A virtual machine that is served.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServedVm<T> {
    /// Its name.
    pub name: String,
    /// The end of its socket that the front has.
    pub role: Role,
    /// The host that it is, and what it sees.
    pub tenant: T,
    /// Its target in the configuration.
    pub target: String,
    /// The host group that it belongs to, in the configuration.
    pub group: Option<String>,
}

impl Place {
    /// Sets the permissions of a socket at which the front listens. Those of others belong to the clients.
    fn grant(&self, permission: Permission) -> io::Result<()> {
        if self.role == Role::Server { permission.grant(&self.path) } else { Ok(()) }
    }
}

/// The folder of a socket that the sandbox keeps. Where the folder itself has to be made, the one above it is kept.
#[must_use]
pub fn kept_folder(path: &Path, is_configured: bool, runtime: &Path) -> Option<PathBuf> {
    if is_configured { path.parent().map(Path::to_owned) } else { Some(runtime.to_owned()) }
}

/// A socket that is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct BoundSocket {
    /// Its core.
    core: usize,
    /// The users that may open it.
    permission: Permission,
}

/// A socket that is prepared, and its permissions before if it was there already.
struct PreparedSocket {
    place: Place,
    before: Option<Permission>,
}

struct State<T> {
    sockets: BTreeMap<Place, BoundSocket>,
    /// The virtual machines, by their sockets.
    vms: BTreeMap<PathBuf, ServedVm<T>>,
    /// Sockets that were closed, by their paths.
    leaving: BTreeMap<PathBuf, Vec<Leaving>>,
    troubles: Vec<SocketError>,
}

/// The sockets of a front, and its virtual machines.
pub struct VmSockets<S: SocketService> {
    shared: Arc<Shared>,
    options: &'static SocketOptions,
    state: Mutex<State<S::Tenant>>,
}

impl<S: SocketService> fmt::Debug for VmSockets<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VmSockets({})", self.state().sockets.len())
    }
}

impl<S: SocketService> VmSockets<S> {
    /// No sockets; messages name these options.
    #[must_use]
    pub fn new(shared: &Arc<Shared>, options: &'static SocketOptions) -> Self {
        let state =
            State { sockets: BTreeMap::new(), vms: BTreeMap::new(), leaving: BTreeMap::new(), troubles: Vec::new() };
        Self { shared: shared.clone(), options, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State<S::Tenant>> {
        // Every change is one insert, remove or assignment, so a panic of another thread leaves the state consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a socket, or changes its permissions.
    ///
    /// # Errors
    /// Why that cannot be done, in words that say what to do.
    pub fn prepare(&self, cores: &FrontHandle, keys: SocketKeys<'_>) -> Result<Prepared, EngineError> {
        let SocketKeys { place, mode, owner, group } = keys;
        let permission = self.shared.host.permission(mode, owner, group)?;
        let refused = |mistake| EngineError::front(self.error(&place.path, mistake));
        if place.path.as_os_str().len() > SOCKET_PATH_MAX {
            return Err(refused(SocketMistake::TooLong));
        }
        let known = self.state().sockets.get(&place).copied();
        if let Some(bound) = known {
            if bound.permission != permission {
                place.grant(permission).map_err(|why| refused(SocketMistake::Bind(why)))?;
                self.state().sockets.insert(place.clone(), BoundSocket { permission, ..bound });
            }
            return Ok(Box::new(PreparedSocket { place, before: Some(bound.permission) }));
        }
        let core = {
            let state = self.state();
            let load = |core: &usize| state.sockets.values().filter(|bound| bound.core == *core).count();
            (0..cores.count()).min_by_key(load).unwrap_or(0)
        };
        let own = place.clone();
        let bind = move |front: Rc<SocketsOnCore<S>>| ready(front.0.open(own, permission));
        let bound = cores.ask(core, bind).wait().ok_or(EngineError::CoreEnded)?;
        bound.map_err(|why| refused(SocketMistake::Bind(why)))?;
        self.state().sockets.insert(place.clone(), BoundSocket { core, permission });
        Ok(Box::new(PreparedSocket { place, before: None }))
    }

    /// Undoes [`VmSockets::prepare`].
    pub fn roll_back(&self, cores: &FrontHandle, prepared: Prepared) {
        let Ok(socket) = prepared.downcast::<PreparedSocket>() else { return };
        let PreparedSocket { place, before } = *socket;
        let Some(before) = before else { return self.close(cores, &place) };
        let mut state = self.state();
        if let Some(bound) = state.sockets.get_mut(&place) {
            bound.permission = before;
        }
        if let Err(why) = place.grant(before) {
            state.troubles.push(self.error(&place.path, SocketMistake::Bind(why)));
        }
    }

    /// From now on these virtual machines are served, by their sockets.
    pub fn publish(&self, vms: BTreeMap<PathBuf, ServedVm<S::Tenant>>) {
        let mut state = self.state();
        state.vms = vms;
        state.troubles.clear();
    }

    /// Closes the sockets that no virtual machine has any more, and serves the others.
    pub fn finalize(&self, cores: &FrontHandle) {
        let (gone, served) = {
            let State { sockets, vms, .. } = &*self.state();
            let is_gone = |place: &&Place| vms.get(&place.path).is_none_or(|vm| vm.role != place.role);
            let gone: Vec<Place> = sockets.keys().filter(is_gone).cloned().collect();
            let served = vms.iter().filter_map(|(path, vm)| {
                let place = Place { path: path.clone(), role: vm.role };
                Some((*sockets.get(&place)?, place, vm.clone()))
            });
            (gone, served.collect::<Vec<_>>())
        };
        gone.iter().for_each(|place| self.close(cores, place));
        for (BoundSocket { core, .. }, place, ServedVm { name, tenant, .. }) in served {
            let before = self.state().leaving.get(&place.path).cloned().unwrap_or_default();
            let endpoint = Endpoint { name, place, tenant };
            cores.ask(core, async move |front: Rc<SocketsOnCore<S>>| front.0.serve(endpoint, before)).wait();
        }
    }

    fn close(&self, cores: &FrontHandle, place: &Place) {
        let removed = self.state().sockets.remove(place);
        if let Some(bound) = removed {
            let own = place.clone();
            let close = async move |front: Rc<SocketsOnCore<S>>| front.0.close(&own);
            let closed = cores.ask(bound.core, close).wait().flatten();
            let mut state = self.state();
            let leaving = &mut state.leaving;
            leaving.values_mut().for_each(|all| all.retain(|one| !one.is_gone()));
            leaving.retain(|_, all| !all.is_empty());
            leaving.entry(place.path.clone()).or_default().extend(closed);
        }
    }

    /// Disconnects the client of this socket, which may connect again.
    pub fn end_client(&self, cores: &FrontHandle, path: PathBuf) {
        let Some(role) = self.vm(&path).map(|vm| vm.role) else { return };
        let place = Place { path, role };
        let bound = self.state().sockets.get(&place).copied();
        if let Some(bound) = bound {
            cores.ask(bound.core, move |front: Rc<SocketsOnCore<S>>| ready(front.0.end_client(&place))).wait();
        }
    }

    /// The virtual machine of this socket.
    #[must_use]
    pub fn vm(&self, path: &Path) -> Option<ServedVm<S::Tenant>> {
        self.state().vms.get(path).cloned()
    }

    /// All virtual machines, as `view` shows them.
    pub fn vms<V>(&self, view: impl Fn(&Path, &ServedVm<S::Tenant>) -> V) -> Vec<V> {
        self.state().vms.iter().map(|(path, vm)| view(path, vm)).collect()
    }

    /// The sockets that are not as they are configured, and why.
    #[must_use]
    pub fn troubles(&self) -> Vec<String> {
        self.state().troubles.iter().map(ToString::to_string).collect()
    }

    fn error(&self, path: &Path, mistake: SocketMistake) -> SocketError {
        SocketError { path: path.to_owned(), mistake, wording: self.shared.origin.wording(), options: self.options }
    }
}
