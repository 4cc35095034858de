//! The sockets of virtual machines: each is made on one of the cores before anybody is let in.

use super::{Live, Ready};
use crate::house::Core;
use lunar_api::system;
use lunar_control::Checked;
use lunar_control::check::SOCKET_PATH_MAX;
use lunar_control::model::Vm;
use lunar_vfio_user::serve::Permission;
use std::future::ready;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Where sockets of virtual machines are that are given no place: beside the usual socket of the API.
#[must_use]
pub fn runtime() -> PathBuf {
    let socket = system::daemon_socket();
    socket.as_deref().and_then(Path::parent).unwrap_or_else(|| Path::new("/run/lunar")).to_owned()
}

/// A socket that is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Made {
    /// Its core.
    core: usize,
    /// Who may open it.
    permission: Permission,
}

/// Who may open the socket of a virtual machine.
fn permission(vm: &Vm) -> Result<Permission, String> {
    let number = |name: &str, what: &str, known: Option<u32>| {
        known.map(Some).ok_or_else(|| format!("this machine has no {what} {name}"))
    };
    let owner =
        vm.owner.as_ref().map_or(Ok(None), |name| number(name.as_str(), "user", system::user_number(name.as_str())))?;
    let group = vm
        .group
        .as_ref()
        .map_or(Ok(None), |name| number(name.as_str(), "group", system::group_number(name.as_str())))?;
    Ok(Permission { mode: vm.mode.0, owner, group })
}

/// What is in the way of a socket, in words that say what to do.
fn why_not(path: &Path, why: &io::Error) -> String {
    let path = path.display();
    match why.kind() {
        ErrorKind::AddrInUse => format!("{path} is served by another process"),
        ErrorKind::PermissionDenied => format!(
            "{path} cannot be made, or not given to this user or group: the folder must be one that Lunar may write \
             to, and configured when it starts (`folders` in [server]); giving it to another user takes root"
        ),
        _ => format!("{path}: {why}"),
    }
}

impl Live {
    /// Makes the socket of the virtual machine of this name, or says anew who may open it.
    pub(super) fn provide_socket(&mut self, name: &str, wanted: &Checked) -> Result<Ready, String> {
        let vm = wanted.config.vms.get(name).ok_or("it is not in the configuration")?;
        let (path, permission) = (vm.socket(name, &self.runtime), permission(vm)?);
        if path.as_os_str().len() > SOCKET_PATH_MAX {
            return Err(format!("{} is too long for a socket: say where it is with 'socket'", path.display()));
        }
        if let Some(made) = self.sockets.get(&path).copied() {
            if made.permission != permission {
                permission.grant(&path).map_err(|why| why_not(&path, &why))?;
                self.sockets.insert(path.clone(), Made { permission, ..made });
            }
            return Ok(Ready::Socket { path, before: Some(made.permission) });
        }
        let load = |core: &usize| self.sockets.values().filter(|made| made.core == *core).count();
        let core = (0..self.house.cores().count()).min_by_key(load).unwrap_or(0);
        let place = path.clone();
        let bind = move |core: Rc<Core>| ready(core.machines().bind(&place, permission));
        let bound = self.house.cores().ask(core, bind).wait().ok_or("a core has ended")?;
        bound.map_err(|why| why_not(&path, &why))?;
        self.sockets.insert(path.clone(), Made { core, permission });
        Ok(Ready::Socket { path, before: None })
    }

    /// As if [`Live::provide_socket`] had not been.
    pub(super) fn withdraw_socket(&mut self, path: PathBuf, before: Option<Permission>) {
        match (before, self.sockets.get_mut(&path)) {
            (Some(before), Some(made)) => {
                made.permission = before;
                if let Err(why) = before.grant(&path) {
                    self.settled.troubles.push(why_not(&path, &why));
                }
            }
            _ => self.close_socket(&path),
        }
    }

    fn close_socket(&mut self, path: &Path) {
        if let Some(made) = self.sockets.remove(path) {
            let path = path.to_owned();
            self.house.cores().ask(made.core, async move |core| core.machines().close(&path)).wait();
        }
    }

    /// Serves the virtual machines of a configuration, and no others.
    pub(super) fn settle_machines(&mut self) {
        let machines = &self.settled.machines;
        let gone: Vec<PathBuf> = self.sockets.keys().filter(|path| !machines.contains_key(*path)).cloned().collect();
        gone.iter().for_each(|path| self.close_socket(path));
        for (path, machine) in &self.settled.machines {
            let Some(made) = self.sockets.get(path) else { continue };
            let (name, tenant) = (machine.name.clone(), machine.tenant.clone());
            let endpoint =
                lunar_vfio_user::serve::Endpoint { name, path: path.clone(), permission: made.permission, tenant };
            self.house.cores().ask(made.core, async move |core| core.machines().serve(endpoint)).wait();
        }
    }

    /// Ends the client at a socket; whether there was one.
    pub(super) fn end_machine(&self, path: &Path) -> bool {
        let Some(made) = self.sockets.get(path) else { return false };
        let path = path.to_owned();
        let end = move |core: Rc<Core>| ready(core.machines().end_client(&path));
        self.house.cores().ask(made.core, end).wait() == Some(true)
    }
}
