//! The options of `lunar serve` for virtio devices of virtual machines.

use crate::hypervisor::{cloud_hypervisor, qemu};
use crate::schema::{SocketRole, VM_IQN, VM_NAME_MAX, VhostKind};
use clap::{ArgMatches, Args, Command, FromArgMatches};
use lunar_engine::command_line::mistake::{OptionMistake, socket_text};
use lunar_engine::command_line::{Client, Draft, FrontOptions, FrontRequest, Given, Serving, Shown, TARGET};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The options of vhost-user.
#[derive(Clone, Copy, Debug)]
pub struct VhostUserOptions;

/// The options, as they were given. Their names differ from those of other fronts.
#[derive(Args, Debug, Default)]
struct VhostUserRequest {
    /// Make a virtio disk of the first volume for the virtual machine of this name (vhost-user-blk), or of the volume
    /// of another LUN: NAME:LUN; may be given several times
    #[arg(long = "vhost-blk", value_name = "NAME", value_parser = disk)]
    vhost_disks: Vec<Disk>,
    /// Make a SCSI host adapter with all volumes for the virtual machine of this name (vhost-user-scsi); may be given
    /// several times
    #[arg(long = "vhost-scsi", value_name = "NAME", value_parser = adapter)]
    vhost_adapters: Vec<String>,
    /// Where virtual machines find their sockets, NAME.sock each [default: lunar/vhost in $XDG_RUNTIME_DIR, or in /run]
    #[arg(long = "vhost-folder", value_name = "FOLDER")]
    vhost_folder: Option<PathBuf>,
    /// Permissions of these sockets, in octal: a user who may connect may use the volume
    #[arg(long = "vhost-mode", value_name = "MODE", default_value = "600", value_parser = mode)]
    vhost_mode: u32,
    /// Connect to these sockets, at which the virtual machine monitors listen, whenever they do
    #[arg(long = "vhost-client")]
    vhost_client: bool,
}

/// A disk of a virtual machine.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Disk {
    name: String,
    lun: Option<u16>,
}

/// A name that is a file's as well, and perhaps a LUN.
fn disk(text: &str) -> Result<Disk, String> {
    let (name, lun) = text.split_once(':').map_or((text, None), |(name, lun)| (name, Some(lun)));
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > VM_NAME_MAX || !name.chars().all(plain) || name.starts_with('.') {
        let what = "has letters, digits, '-', '_' and '.', 64 at most, and begins with no '.'";
        return Err(format!("a virtual machine's name {what}"));
    }
    let number = |lun: &str| lun.parse().map_err(|_| format!("{lun} is no LUN: NAME:LUN, as in web:1"));
    Ok(Disk { name: name.to_owned(), lun: lun.map(number).transpose()? })
}

fn adapter(text: &str) -> Result<String, String> {
    match disk(text)? {
        Disk { name, lun: None } => Ok(name),
        Disk { .. } => Err("a SCSI host adapter has all volumes: NAME, without a LUN".into()),
    }
}

fn mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "permissions are octal, from 0 to 777: 660".into())
}

impl FrontOptions for VhostUserOptions {
    fn declare(&self, command: Command) -> Command {
        VhostUserRequest::augment_args(command)
    }

    fn read(&self, matches: &ArgMatches) -> Result<Box<dyn FrontRequest>, clap::Error> {
        Ok(Box::new(VhostUserRequest::from_arg_matches(matches)?))
    }
}

impl VhostUserRequest {
    /// The socket of the virtual machine of this name.
    fn socket(&self, name: &str) -> PathBuf {
        let folder = self.vhost_folder.clone().unwrap_or_else(|| {
            let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty());
            runtime.map_or_else(|| PathBuf::from("/run"), PathBuf::from).join("lunar/vhost")
        });
        folder.join(format!("{name}.sock"))
    }

    /// The end of the sockets that Lunar has.
    fn role(&self) -> SocketRole {
        if self.vhost_client { SocketRole::Client } else { SocketRole::Server }
    }

    /// All devices: the option, the kind, the name, the LUN.
    fn devices(&self) -> impl Iterator<Item = (&'static str, VhostKind, &str, Option<u16>)> {
        let disks = self.vhost_disks.iter().map(|disk| ("--vhost-blk", VhostKind::Blk, &*disk.name, disk.lun));
        let adapters = self.vhost_adapters.iter().map(|name| ("--vhost-scsi", VhostKind::Scsi, &**name, None));
        disks.chain(adapters)
    }

    /// The name of a socket in the draft. Other fronts have sockets of virtual machines with the same names.
    fn key(name: &str) -> String {
        format!("vhost/{name}")
    }
}

impl FrontRequest for VhostUserRequest {
    fn is_addressed(&self) -> bool {
        // Virtual machines are served beside the portals, and instead of none.
        false
    }

    fn clients(&self) -> Vec<Client> {
        Vec::new()
    }

    fn local_clients(&self) -> Vec<String> {
        self.devices().map(|(_, _, name, _)| format!("{VM_IQN}{name}")).collect()
    }

    fn configure(&self, given: &Given<'_>, draft: &mut Draft) -> Result<(), OptionMistake> {
        let mut names = BTreeSet::new();
        for (option, kind, name, lun) in self.devices() {
            if !names.insert(name) {
                return Err(OptionMistake::NameTwice(format!("{option} {name}")));
            }
            let path = self.socket(name);
            let socket = socket_text(&path, "--vhost-folder")?;
            let mut keys = draft.object_of(&format!("{option} {name}"), "vhost", name);
            keys.set("target", TARGET).set("socket", socket).set("mode", format!("{:03o}", self.vhost_mode));
            // The first, as for other hosts.
            keys.set("portal-group", given.groups[0].as_str());
            keys.set("device", kind.word()).set("role", self.role().word());
            if let Some(lun) = lun {
                keys.set("lun", i64::from(lun));
            }
            draft.socket(&Self::key(name), &path);
        }
        Ok(())
    }

    fn shown(&self, serving: &Serving<'_>) -> Option<Shown> {
        let socket = |(_, kind, name, _): (_, VhostKind, &str, _)| {
            Some((kind, name.to_owned(), &**serving.sockets.get(&Self::key(name))?))
        };
        let sockets: Vec<(VhostKind, String, &Path)> = self.devices().filter_map(socket).collect();
        let (kind, _, first) = sockets.first()?;
        let command = |head: &str, options: Vec<String>| {
            let last = options.len().saturating_sub(1);
            let line = |(at, option): (usize, String)| {
                let head = if at == 0 { head } else { "           " };
                format!("{head}{option}{}", if at == last { "" } else { " \\" })
            };
            options.into_iter().enumerate().map(line).collect::<Vec<_>>()
        };
        let mut connect = command("QEMU     qemu-system-x86_64 -m 1G ", qemu(first, *kind, self.role().end()));
        // It has no vhost-user-scsi, and does not listen for disks.
        if *kind == VhostKind::Blk && !self.vhost_client {
            connect.extend(command("Cloud Hypervisor  cloud-hypervisor ", cloud_hypervisor(first)));
        }
        let place = |(kind, name, path): &(VhostKind, String, &Path)| {
            let label = if *kind == VhostKind::Blk { "disk     " } else { "SCSI     " };
            format!("{label}{name} at {}", path.display())
        };
        Some(Shown { transport: "vhost-user", places: sockets.iter().map(place).collect(), connect, keeps_local: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{FRONT, Vhost};
    use lunar_control::Schema;
    use lunar_engine::vm_sockets::Role;
    use std::collections::BTreeMap;

    static SCHEMA: Schema = Schema { fronts: &[&FRONT], stores: &[] };

    fn request(names: &[&str], folder: &str) -> VhostUserRequest {
        let vhost_disks = names.iter().map(|name| disk(name).expect("a name")).collect();
        VhostUserRequest { vhost_disks, vhost_folder: Some(folder.into()), vhost_mode: 0o660, ..Default::default() }
    }

    fn drafted(request: &VhostUserRequest) -> Result<Draft, String> {
        let groups = ["1".to_owned()];
        let given = Given { groups: &groups, is_addressed: false, advertise: &[], is_restricted: false, user: None };
        let mut draft = Draft::default();
        draft.object("portal-group", "1").set("tag", 1);
        draft.object("target", TARGET).set("iqn", "iqn.2026-01.org.example:s").set("portal-groups", vec!["1"]);
        request.configure(&given, &mut draft).map(|()| draft).map_err(|why| why.to_string())
    }

    #[test]
    fn disks_have_their_sockets() {
        let config = drafted(&request(&["a", "b:1"], "/x")).expect("short").check(&SCHEMA).expect("right").config;
        let vhost = config.find::<Vhost>("a").expect("it is there");
        assert_eq!(vhost.socket("a", Path::new("/none")), Path::new("/x/a.sock"));
        assert_eq!((vhost.mode.0, vhost.host("a").as_str()), (0o660, "iqn.2026-01.io.lunar:vm:a"));
        let lun = |name: &str| config.find::<Vhost>(name).and_then(|vhost| vhost.lun).map(|lun| lun.get());
        assert_eq!((lun("a"), lun("b")), (None, Some(1)));
        assert!(drafted(&request(&["a"], &"/x".repeat(60))).expect_err("too long").contains("--vhost-folder"));
        assert_eq!((vhost.role, vhost.role.end()), (SocketRole::Server, Role::Server));
        let client = VhostUserRequest { vhost_client: true, ..request(&["a"], "/x") };
        let config = drafted(&client).expect("short").check(&SCHEMA).expect("right").config;
        assert_eq!(config.find::<Vhost>("a").map(|vhost| vhost.role), Some(SocketRole::Client));
        assert_eq!((mode("660"), disk("web-1.a_b").map(|disk| disk.lun)), (Ok(0o660), Ok(None)));
        assert!(mode("1777").is_err() && mode("8").is_err());
        for bad in ["", "..", "a/b", "a b", "a:", "a:x", &"a".repeat(65)] {
            assert!(disk(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_disk_is_named_once() {
        let why = drafted(&request(&["web", "db", "web:1"], "/x")).expect_err("twice");
        assert!(why.starts_with("--vhost-blk web: this name is given twice"), "{why}");
        let mut both = request(&["web"], "/x");
        both.vhost_adapters.push("web".into());
        assert!(drafted(&both).expect_err("twice").starts_with("--vhost-scsi web: this name"));
    }

    #[test]
    fn the_banner_has_the_command_lines_of_qemu_and_cloud_hypervisor() {
        let request = request(&["web"], "/run/lunar/vhost");
        let draft = drafted(&request).expect("short");
        let portals = BTreeMap::new();
        let serving =
            Serving { iqn: "iqn.x", nqn: "nqn.x", portals: &portals, advertise: None, sockets: draft.sockets() };
        let shown = request.shown(&serving).expect("one");
        assert_eq!(shown.places, ["disk     web at /run/lunar/vhost/web.sock"]);
        let has = |part: &str| shown.connect.iter().any(|line| line.contains(part));
        assert!(
            has("-chardev 'socket,id=disk,path=/run/lunar/vhost/web.sock,reconnect-ms=1000'"),
            "{:?}",
            shown.connect
        );
        assert!(has("vhost_user=on,socket=/run/lunar/vhost/web.sock"), "{:?}", shown.connect);
        assert_eq!(VhostUserRequest::default().shown(&serving), None);
        let request = VhostUserRequest { vhost_client: true, ..request };
        let connect = request.shown(&serving).expect("one").connect.join("\n");
        assert!(connect.contains("web.sock,server=on,wait=off'") && !connect.contains("cloud-hypervisor"), "{connect}");
        let mut request = VhostUserRequest { vhost_disks: Vec::new(), vhost_client: false, ..request };
        request.vhost_adapters.push("web".into());
        let shown = request.shown(&serving).expect("one");
        assert_eq!(shown.places, ["SCSI     web at /run/lunar/vhost/web.sock"]);
        assert!(shown.connect.iter().any(|line| line.contains("-device vhost-user-scsi-pci,chardev=disk")));
        assert!(!shown.connect.iter().any(|line| line.contains("cloud-hypervisor")));
        assert!(adapter("a:1").is_err() && adapter("a").is_ok());
    }
}
