//! The declaration of vfio-user for the configuration: the section `[vm.NAME]`.

use lunar_control::common_sections::{PortalGroup, Target};
use lunar_control::kind::{FrontKind, Kind};
use lunar_control::links::To;
use lunar_control::names::Nqn;
use lunar_control::schema::{Finder, FrontSchema, FrontSection};
use lunar_control::section::{Objects, Resource, optional, or, required};
use lunar_control::sections;
use lunar_control::value::{FilePath, Line, Mode};
use lunar_engine::command_line::mistake::SOCKET_PATH_MAX;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// The most bytes of the name of a virtual machine, which is part of the path of its socket.
pub const VM_NAME_MAX: usize = 64;
/// The first part of the NQN of a virtual machine without a configured NQN; its name follows.
pub const VM_NQN: &str = "nqn.2026-01.io.lunar:vm:";

/// The kind of the section.
pub const VM: FrontKind = FrontKind { place: 0, section: "vm", noun: "VM", may_be_missing: true };

sections! {
    /// A virtual machine on this host. It gets an NVMe controller at a socket of its own (vfio-user), with the volumes
    /// of the group to which it belongs as a host. Groups with networks do not fit, because it has no address. It does
    /// not authenticate: every process that may open its socket is admitted.
    Vm (made: Live, removed: EndsSessions) {
        /// The target whose volumes it sees. The target needs an NQN.
        target: To<Target> = required() => EndsSessions;
        /// The NQN of the virtual machine as a host, by which groups and reservations know it; without this key,
        /// `nqn.2026-01.io.lunar:vm:` and its name.
        host: Option<Nqn> = optional() => EndsSessions;
        /// The portal group whose asymmetric access state applies; without this key, active/optimized.
        portal_group: Option<To<PortalGroup>> = optional() => EndsSessions;
        /// The path of the socket; without this key, `vm/NAME/cntrl` in the default folder of the API socket.
        socket: Option<FilePath> = optional() => EndsSessions;
        /// The permissions of the socket. A process that may open it may use the volumes.
        mode: Mode = or(Mode(0o600)) => Live;
        /// The user that owns the socket, by name or number; without this key, the user that runs Lunar. Another user
        /// requires root.
        owner: Option<Line<32>> = optional() => Live;
        /// The group of this host that the socket belongs to, by name or number; the user that runs Lunar must be a
        /// member.
        group: Option<Line<32>> = optional() => Live;
    }
}

impl Resource for Vm {
    const KIND: Kind = Kind::Front(VM);
}

impl Vm {
    /// The NQN of the virtual machine of this name as a host.
    #[must_use]
    pub fn host(&self, name: &str) -> String {
        self.host.as_ref().map_or_else(|| format!("{VM_NQN}{name}"), |host| host.as_str().to_owned())
    }

    /// The socket of the virtual machine of this name; `runtime` is the folder of sockets without a configured path.
    /// `cntrl` is the file name that clients expect in a folder.
    #[must_use]
    pub fn socket(&self, name: &str, runtime: &Path) -> PathBuf {
        let usual = || runtime.join("vm").join(name).join("cntrl");
        self.socket.as_ref().map_or_else(usual, |socket| socket.path().to_owned())
    }

    fn brief(&self) -> String {
        format!("target {}", self.target.name())
    }
}

/// Names, targets, host NQNs and sockets.
fn check(objects: &dyn Objects, find: &mut Finder<'_>) {
    let (mut hosts, mut sockets) = (HashMap::new(), HashMap::new());
    for (name, vm) in objects.all::<Vm>() {
        if name.starts_with('.') || name.len() > VM_NAME_MAX {
            let what = format!("the name of a virtual machine has at most {VM_NAME_MAX} bytes and no '.' at its start");
            find(name, "", vm.marks.whole, what);
        }
        let target = vm.target.name();
        if objects.find::<Target>(target).is_some_and(|target| target.nqn.is_none()) {
            find(
                name,
                "target",
                vm.marks.of("target"),
                format!("target {target} has no 'nqn': it is no NVM subsystem"),
            );
        }
        let twin = hosts.insert(vm.host(name), name);
        if let Some(twin) = twin {
            find(name, "host", vm.marks.of("host"), format!("is also that of VM {twin}"));
        }
        let Some(socket) = &vm.socket else { continue };
        if socket.path().as_os_str().len() > SOCKET_PATH_MAX {
            let what = format!("is too long for a socket: {SOCKET_PATH_MAX} bytes at most");
            find(name, "socket", vm.marks.of("socket"), what);
        }
        if let Some(twin) = sockets.insert(socket.path().to_owned(), name) {
            find(name, "socket", vm.marks.of("socket"), format!("is also that of VM {twin}"));
        }
    }
}

/// The declaration.
pub static FRONT: FrontSchema =
    FrontSchema { portals: None, section: Some(FrontSection::of::<Vm>(VM, check)), limits: None };

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_control::check::LocalHost;
    use lunar_control::{Checked, Problems, Schema};

    static SCHEMA: Schema = Schema { fronts: &[&FRONT], stores: &[] };

    fn checked(subsystem: &str, vm: &str) -> Result<Checked, Problems> {
        let text = format!(
            "[portal-group.p]\ntag = 1\n[target.t]\n{subsystem}.2026-01.org.example:t'\nportal-groups = ['p']\n\
             [vm.web]\n{vm}"
        );
        lunar_control::check(&SCHEMA, "x", &text, &LocalHost { config: "/nowhere".into() })
    }

    /// The one problem of a virtual machine: its place, and what it says.
    #[track_caller]
    fn refused(subsystem: &str, vm: &str, place: &str, words: &str) {
        let found = checked(subsystem, vm).expect_err(vm).to_string();
        assert!(found.starts_with(&format!("x:{place}: ")) && found.contains(words), "{vm}: {found}");
        assert_eq!(found.lines().count(), 1, "{found}");
    }

    #[test]
    fn virtual_machines_see_a_subsystem() {
        let (nqn, iqn) = ("nqn = 'nqn", "iqn = 'iqn");
        checked(nqn, "target = 't'\nmode = '0660'\nowner = 'qemu'\nportal-group = 'p'\n").expect("valid");
        refused(iqn, "target = 't'\n", "7:10", "target t has no 'nqn'");
        refused(nqn, "target = 't'\nmode = '888'\n", "8:8", "three octal digits");
        refused(nqn, "target = 't'\nsocket = 'x'\n", "8:10", "begins with '/'");
        refused(nqn, "mode = '600'\n", "6:5", "has no 'target'");
        let long = format!("target = 't'\nsocket = '/{}'\n", "x".repeat(120));
        refused(nqn, &long, "8:10", "too long for a socket");
        let twin = "target = 't'\n[vm.db]\ntarget = 't'\nhost = 'nqn.2026-01.io.lunar:vm:web'\n";
        refused(nqn, twin, "6:5", "is also that of VM db");
        let config = checked(nqn, "target = 't'\n").expect("valid").config;
        let web = config.find::<Vm>("web").expect("it is in the text");
        assert_eq!(web.socket("web", Path::new("/run/lunar")), Path::new("/run/lunar/vm/web/cntrl"));
        assert_eq!(web.host("web"), "nqn.2026-01.io.lunar:vm:web");
    }
}
