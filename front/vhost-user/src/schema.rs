//! The declaration of vhost-user for the configuration: the section `[vhost.NAME]`.

use lunar_control::common_sections::{PortalGroup, Target};
use lunar_control::kind::{FrontKind, Kind};
use lunar_control::links::To;
use lunar_control::names::IscsiName;
use lunar_control::schema::{Finder, FrontSchema, FrontSection};
use lunar_control::section::{Objects, Resource, optional, or, required};
use lunar_control::value::{FilePath, Line, Mode, Whole};
use lunar_control::{choices, sections};
use lunar_engine::command_line::mistake::SOCKET_PATH_MAX;
use lunar_engine::vm_sockets::Role;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Its name: the word of the transport.
pub const WORD: &str = "vhost-user";

/// The most bytes of the name of a virtual machine, which is part of the path of its socket.
pub const VM_NAME_MAX: usize = 64;
/// The first part of the name as a host of a virtual machine without a configured one; its name follows.
pub const VM_IQN: &str = "iqn.2026-01.io.lunar:vm:";

/// The kind of the section.
pub const VHOST: FrontKind = FrontKind { place: 1, section: "vhost", noun: "vhost device", may_be_missing: true };

choices! {
    /// The device of a virtual machine.
    VhostKind {
        /// a disk (virtio-blk): one volume
        Blk = "blk",
        /// a SCSI host adapter (virtio-scsi): all volumes of the group
        Scsi = "scsi",
    }
}

choices! {
    /// The end of the socket that Lunar has.
    SocketRole {
        /// it listens, and the virtual machine monitor connects
        Server = "server",
        /// the virtual machine monitor listens (`server=on` in QEMU), and Lunar connects whenever it does
        Client = "client",
    }
}

impl SocketRole {
    /// The same for the engine.
    #[must_use]
    pub fn end(self) -> Role {
        match self {
            Self::Server => Role::Server,
            Self::Client => Role::Client,
        }
    }
}

sections! {
    /// A virtio device of a virtual machine on this host, at a socket of its own (vhost-user): a disk or a SCSI host
    /// adapter with the volumes of the group to which the virtual machine belongs as a host. Groups with networks do
    /// not fit, because it has no address. It does not authenticate: every process that may open its socket, or make it
    /// where the virtual machine monitor listens, is admitted.
    Vhost (made: Live, removed: EndsSessions) {
        /// The target whose volumes it sees. For a SCSI host adapter it needs an iSCSI name, which names its ports.
        target: To<Target> = required() => EndsSessions;
        /// The device.
        device: VhostKind = or(VhostKind::Blk) => EndsSessions;
        /// The logical unit number of the volume of a disk in the LUN map of the group; without this key, the lowest
        /// one.
        lun: Option<Whole<0, 16383>> = optional() => EndsSessions;
        /// The name of the virtual machine as a host, by which groups know it; without this key,
        /// `iqn.2026-01.io.lunar:vm:` and its name.
        host: Option<IscsiName> = optional() => EndsSessions;
        /// The portal group whose asymmetric access state applies, and whose target port a SCSI host adapter uses;
        /// without this key, active/optimized for a disk, and the first portal group of the target for a SCSI host
        /// adapter.
        portal_group: Option<To<PortalGroup>> = optional() => EndsSessions;
        /// Queues that the virtual machine may use. QEMU refuses a device with fewer queues than it wants, which are as
        /// many as the virtual machine has processors unless `num-queues` is given.
        queues: Whole<1, 250> ["queues"] = or(Whole::new(64)) => EndsSessions;
        /// The path of the socket; without this key, `vhost/NAME.sock` in the default folder of the API socket.
        socket: Option<FilePath> = optional() => EndsSessions;
        /// The end of the socket that Lunar has.
        role: SocketRole = or(SocketRole::Server) => EndsSessions;
        /// The permissions of a socket at which Lunar listens. A process that may open it may use the volumes.
        mode: Mode = or(Mode(0o600)) => Live;
        /// The user that owns a socket at which Lunar listens, by name or number; without this key, the user that
        /// runs Lunar. Another user requires root.
        owner: Option<Line<32>> = optional() => Live;
        /// The group of this host that a socket at which Lunar listens belongs to, by name or number; the user that
        /// runs Lunar must be a member.
        group: Option<Line<32>> = optional() => Live;
    }
}

impl Resource for Vhost {
    const KIND: Kind = Kind::Front(VHOST);
}

impl Vhost {
    /// The name of the virtual machine of this name as a host.
    #[must_use]
    pub fn host(&self, name: &str) -> String {
        self.host.as_ref().map_or_else(|| format!("{VM_IQN}{name}"), |host| host.as_str().to_owned())
    }

    /// The socket of the virtual machine of this name; `runtime` is the folder of sockets without a configured path.
    #[must_use]
    pub fn socket(&self, name: &str, runtime: &Path) -> PathBuf {
        let usual = || runtime.join("vhost").join(format!("{name}.sock"));
        self.socket.as_ref().map_or_else(usual, |socket| socket.path().to_owned())
    }

    fn brief(&self) -> String {
        format!("{}, target {}", self.device.word(), self.target.name())
    }
}

/// Names, hosts and sockets.
fn check(objects: &dyn Objects, find: &mut Finder<'_>) {
    let mut sockets = HashMap::new();
    for (name, vhost) in objects.all::<Vhost>() {
        if name.starts_with('.') || name.len() > VM_NAME_MAX {
            let what = format!("the name of a vhost device has at most {VM_NAME_MAX} bytes and no '.' at its start");
            find(name, "", vhost.marks.whole, what);
        }
        let target = vhost.target.name();
        if vhost.device == VhostKind::Scsi && objects.find::<Target>(target).is_some_and(|own| own.iqn.is_none()) {
            let what = format!("target {target} has no 'iqn', which names the ports of a SCSI host adapter");
            find(name, "target", vhost.marks.of("target"), what);
        }
        if vhost.device == VhostKind::Scsi && vhost.lun.is_some() {
            find(name, "lun", vhost.marks.of("lun"), "is for disks: a SCSI host adapter has all volumes".into());
        }
        for (key, is_given) in [("owner", vhost.owner.is_some()), ("group", vhost.group.is_some())] {
            if is_given && vhost.role == SocketRole::Client {
                let what = "is for a socket at which Lunar listens: the virtual machine monitor owns this one";
                find(name, key, vhost.marks.of(key), what.into());
            }
        }
        let Some(socket) = &vhost.socket else { continue };
        if socket.path().as_os_str().len() > SOCKET_PATH_MAX {
            let what = format!("is too long for a socket: {SOCKET_PATH_MAX} bytes at most");
            find(name, "socket", vhost.marks.of("socket"), what);
        }
        if let Some(twin) = sockets.insert(socket.path().to_owned(), name) {
            find(name, "socket", vhost.marks.of("socket"), format!("is also that of vhost device {twin}"));
        }
    }
}

/// The declaration.
pub static FRONT: FrontSchema =
    FrontSchema { portals: None, section: Some(FrontSection::of::<Vhost>(VHOST, check)), limits: None };

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_control::Schema;
    use lunar_control::check::{LocalHost, check};

    static SCHEMA: Schema = Schema { fronts: &[&FRONT], stores: &[] };

    /// The mistakes of a configuration with this section.
    fn mistakes(keys: &str) -> String {
        let text = format!(
            "[portal-group.p]\ntag = 1\n[target.t]\niqn = 'iqn.2026-01.org.example:t'\nportal-groups = ['p']\n\
             [vhost.d]\ntarget = 't'\n{keys}\n"
        );
        let host = LocalHost { config: "/nowhere/lunar.toml".into() };
        check(&SCHEMA, "lunar.toml", &text, &host).map_or_else(|why| why.to_string(), |_| String::new())
    }

    #[test]
    fn keys_that_do_not_fit_the_device_or_the_end_of_its_socket_are_mistakes() {
        for keys in ["role = 'client'", "role = 'server'\nowner = 'root'\ngroup = 'kvm'", "device = 'scsi'", "lun = 1"]
        {
            assert_eq!(mistakes(keys), "", "{keys}");
        }
        for (keys, words) in [
            ("role = 'client'\nowner = 'root'", "for a socket at which Lunar listens"),
            ("role = 'client'\ngroup = 'kvm'", "for a socket at which Lunar listens"),
            ("role = 'both'", "role"),
            ("device = 'scsi'\nlun = 1", "a SCSI host adapter has all volumes"),
        ] {
            let found = mistakes(keys);
            assert!(found.contains(words), "{keys}: {found}");
        }
    }
}
