//! The options of `lunar serve` for virtual machines.

use crate::hypervisor::qemu;
use crate::schema::{VM_NAME_MAX, VM_NQN};
use clap::{ArgMatches, Args, Command, FromArgMatches};
use lunar_engine::command_line::mistake::{OptionMistake, socket_text};
use lunar_engine::command_line::{Client, Draft, FrontOptions, FrontRequest, Given, Serving, Shown, TARGET};
use std::path::{Path, PathBuf};

/// The options of vfio-user.
#[derive(Clone, Copy, Debug)]
pub struct VfioUserOptions;

/// The options, as they were given.
#[derive(Args, Debug, Default)]
struct VfioUserRequest {
    /// Make an NVMe controller for the virtual machine of this name (vfio-user); may be given several times
    #[arg(long = "vm", value_name = "NAME", value_parser = vm_name)]
    names: Vec<String>,
    /// Where virtual machines find their sockets, NAME/cntrl each [default: lunar/vm in $XDG_RUNTIME_DIR, or in /run]
    #[arg(long = "vm-folder", value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// Permissions of these sockets, in octal: a user who may connect may use all volumes
    #[arg(long = "vm-mode", value_name = "MODE", default_value = "600", value_parser = mode)]
    mode: u32,
}

/// A name that is a file's as well.
fn vm_name(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if !text.is_empty() && text.len() <= VM_NAME_MAX && text.chars().all(plain) && !text.starts_with('.') {
        return Ok(text.to_owned());
    }
    Err("a virtual machine's name has letters, digits, '-', '_' and '.', 64 at most, and begins with no '.'".into())
}

fn mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "permissions are octal, from 0 to 777: 660".into())
}

impl FrontOptions for VfioUserOptions {
    fn declare(&self, command: Command) -> Command {
        VfioUserRequest::augment_args(command)
    }

    fn read(&self, matches: &ArgMatches) -> Result<Box<dyn FrontRequest>, clap::Error> {
        Ok(Box::new(VfioUserRequest::from_arg_matches(matches)?))
    }
}

impl VfioUserRequest {
    /// The socket of the virtual machine of this name.
    fn socket(&self, name: &str) -> PathBuf {
        let folder = self.folder.clone().unwrap_or_else(|| {
            let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty());
            runtime.map_or_else(|| PathBuf::from("/run"), PathBuf::from).join("lunar/vm")
        });
        // The name that SPDK's initiator looks for in a folder.
        folder.join(name).join("cntrl")
    }
}

impl FrontRequest for VfioUserRequest {
    fn is_addressed(&self) -> bool {
        // Virtual machines are served beside the portals, and instead of none.
        false
    }

    fn clients(&self) -> Vec<Client> {
        Vec::new()
    }

    fn local_clients(&self) -> Vec<String> {
        self.names.iter().map(|name| format!("{VM_NQN}{name}")).collect()
    }

    fn configure(&self, given: &Given<'_>, draft: &mut Draft) -> Result<(), OptionMistake> {
        for (at, name) in self.names.iter().enumerate() {
            if self.names[..at].contains(name) {
                let advice = "each virtual machine has a name of its own";
                return Err(OptionMistake::Twice { argument: format!("--vm {name}"), advice });
            }
            let path = self.socket(name);
            let socket = socket_text(&path, "--vm-folder")?;
            let mut keys = draft.object_of(&format!("--vm {name}"), "vm", name);
            keys.set("target", TARGET).set("socket", socket).set("mode", format!("{:03o}", self.mode));
            // The first, as for other hosts.
            keys.set("portal-group", given.groups[0].as_str());
            draft.socket(name, &path);
        }
        Ok(())
    }

    fn shown(&self, serving: &Serving<'_>) -> Option<Shown> {
        let sockets: Vec<(&String, &Path)> =
            self.names.iter().filter_map(|name| Some((name, &**serving.sockets.get(name)?))).collect();
        let (_, first) = sockets.first()?;
        let options = qemu(first);
        let line = |(at, option): (usize, &String)| {
            let head = if at == 0 { "QEMU     qemu-system-x86_64 -m 1G " } else { "           " };
            format!("{head}{option}{}", if at + 1 == options.len() { "" } else { " \\" })
        };
        Some(Shown {
            transport: "vfio-user",
            places: sockets.iter().map(|(name, path)| format!("VM       {name} at {}", path.display())).collect(),
            connect: options.iter().enumerate().map(line).collect(),
            keeps_local: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::FRONT;
    use crate::schema::Vm;
    use lunar_control::Schema;
    use std::collections::BTreeMap;

    static SCHEMA: Schema = Schema { fronts: &[&FRONT], stores: &[] };

    fn request(names: &[&str], folder: &str) -> VfioUserRequest {
        let names = names.iter().map(ToString::to_string).collect();
        VfioUserRequest { names, folder: Some(folder.into()), mode: 0o660 }
    }

    fn drafted(request: &VfioUserRequest) -> Result<Draft, String> {
        let groups = ["1".to_owned()];
        let given = Given { groups: &groups, is_addressed: false, advertise: &[], is_restricted: false, user: None };
        let mut draft = Draft::default();
        draft.object("portal-group", "1").set("tag", 1);
        draft.object("target", TARGET).set("nqn", "nqn.2026-01.org.example:s").set("portal-groups", vec!["1"]);
        request.configure(&given, &mut draft).map(|()| draft).map_err(|why| why.to_string())
    }

    #[test]
    fn virtual_machines_have_their_sockets() {
        let config = drafted(&request(&["a"], "/x")).expect("short").check(&SCHEMA).expect("right").config;
        let vm = config.find::<Vm>("a").expect("it is there");
        assert_eq!(vm.socket("a", Path::new("/none")), Path::new("/x/a/cntrl"));
        assert_eq!((vm.mode.0, vm.host("a").as_str()), (0o660, "nqn.2026-01.io.lunar:vm:a"));
        assert!(drafted(&request(&["a"], &"/x".repeat(60))).expect_err("too long").contains("--vm-folder"));
        assert_eq!((mode("660"), vm_name("web-1.a_b")), (Ok(0o660), Ok("web-1.a_b".into())));
        assert!(mode("1777").is_err() && mode("8").is_err());
        for bad in ["", "..", "a/b", "a b", &"a".repeat(65)] {
            assert!(vm_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_virtual_machine_is_named_once() {
        let why = drafted(&request(&["web", "db", "web"], "/x")).expect_err("twice");
        assert!(why.starts_with("--vm web is given twice"), "{why}");
    }

    #[test]
    fn the_banner_has_the_command_line_of_qemu() {
        let request = request(&["web"], "/run/lunar/vm");
        let draft = drafted(&request).expect("short");
        let portals = BTreeMap::new();
        let serving =
            Serving { iqn: "iqn.x", nqn: "nqn.x", portals: &portals, advertise: None, sockets: draft.sockets() };
        let shown = request.shown(&serving).expect("one");
        assert_eq!(shown.places, ["VM       web at /run/lunar/vm/web/cntrl"]);
        let device =
            r#"-device '{"driver":"vfio-user-pci","socket":{"type":"unix","path":"/run/lunar/vm/web/cntrl"}}'"#;
        assert!(shown.connect.iter().any(|line| line.contains(device)), "{:?}", shown.connect);
        assert_eq!(VfioUserRequest::default().shown(&serving), None);
    }
}
