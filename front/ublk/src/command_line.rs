//! The options of `lunar serve` for disks of this machine.

use crate::schema::{LOCAL_IQN, NAME_MAX};
use clap::{ArgMatches, Args, Command, FromArgMatches};
use lunar_engine::command_line::{
    Client, Draft, FrontOptions, FrontRequest, Given, OptionMistake, Serving, Shown, TARGET,
};
use std::collections::BTreeSet;

/// The options of ublk.
#[derive(Clone, Copy, Debug)]
pub struct UblkOptions;

/// The options, as they were given.
#[derive(Args, Debug, Default)]
struct UblkRequest {
    /// Make the first volume a disk of this machine, /dev/ublkbN (Linux ublk, as root), or the volume of another LUN:
    /// NAME:LUN; may be given several times. The disk outlasts a kill: the same command serves it again
    #[arg(long = "ublk", value_name = "NAME", value_parser = disk)]
    ublk_disks: Vec<Disk>,
}

/// A disk.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Disk {
    name: String,
    lun: Option<u16>,
}

fn disk(text: &str) -> Result<Disk, String> {
    let (name, lun) = text.split_once(':').map_or((text, None), |(name, lun)| (name, Some(lun)));
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > NAME_MAX || !name.chars().all(plain) {
        return Err("the name of a disk has letters, digits, '-', '_' and '.', 64 at most".into());
    }
    let number = |lun: &str| lun.parse().map_err(|_| format!("{lun} is no LUN: NAME:LUN, as in data:1"));
    Ok(Disk { name: name.to_owned(), lun: lun.map(number).transpose()? })
}

/// The name of the place of a disk in a draft.
pub(crate) fn place_of(name: &str) -> String {
    format!("ublk/{name}")
}

impl FrontOptions for UblkOptions {
    fn declare(&self, command: Command) -> Command {
        UblkRequest::augment_args(command)
    }

    fn read(&self, matches: &ArgMatches) -> Result<Box<dyn FrontRequest>, clap::Error> {
        Ok(Box::new(UblkRequest::from_arg_matches(matches)?))
    }
}

impl FrontRequest for UblkRequest {
    fn is_addressed(&self) -> bool {
        // This machine is served beside the portals, and instead of none.
        false
    }

    fn clients(&self) -> Vec<Client> {
        Vec::new()
    }

    fn local_clients(&self) -> Vec<String> {
        self.ublk_disks.iter().map(|disk| format!("{LOCAL_IQN}{}", disk.name)).collect()
    }

    fn configure(&self, given: &Given<'_>, draft: &mut Draft) -> Result<(), OptionMistake> {
        let mut names = BTreeSet::new();
        for Disk { name, lun } in &self.ublk_disks {
            if !names.insert(name) {
                return Err(OptionMistake::NameTwice(format!("--ublk {name}")));
            }
            let mut keys = draft.object_of(&format!("--ublk {name}"), "ublk", name);
            // The first, as for other hosts.
            keys.set("target", TARGET).set("portal-group", given.groups[0].as_str());
            if let Some(lun) = lun {
                keys.set("lun", i64::from(*lun));
            }
        }
        Ok(())
    }

    fn shown(&self, serving: &Serving<'_>) -> Option<Shown> {
        let names = self.ublk_disks.iter().map(|disk| &*disk.name);
        let places = names.filter_map(|name| Some((name, serving.sockets.get(&place_of(name))?.display())));
        let places: Vec<_> = places.collect();
        let (_, first) = places.first()?;
        let connect = vec![format!("Linux    mkfs.ext4 {first}; mount {first} /mnt")];
        let places = places.iter().map(|(name, disk)| format!("disk     {name} is {disk} of this machine (ublk)"));
        Some(Shown { transport: "ublk", places: places.collect(), connect, keeps_local: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{FRONT, Ublk};
    use lunar_control::Schema;
    use std::collections::BTreeMap;
    use std::path::Path;

    static SCHEMA: Schema = Schema { fronts: &[&FRONT], stores: &[] };

    fn request(disks: &[&str]) -> UblkRequest {
        UblkRequest { ublk_disks: disks.iter().map(|text| disk(text).expect(text)).collect() }
    }

    fn drafted(request: &UblkRequest) -> Result<Draft, String> {
        let groups = ["1".to_owned()];
        let given = Given { groups: &groups, is_addressed: false, advertise: &[], is_restricted: false, user: None };
        let mut draft = Draft::default();
        draft.object("portal-group", "1").set("tag", 1);
        draft.object("target", TARGET).set("iqn", "iqn.2026-01.org.example:s").set("portal-groups", vec!["1"]);
        request.configure(&given, &mut draft).map(|()| draft).map_err(|why| why.to_string())
    }

    #[test]
    fn disks_become_sections() {
        let config = drafted(&request(&["data", "log:1"])).expect("right").check(&SCHEMA).expect("right").config;
        let lun = |name: &str| config.find::<Ublk>(name).and_then(|ublk| ublk.lun).map(|lun| lun.get());
        assert_eq!((lun("data"), lun("log")), (None, Some(1)));
        assert_eq!(config.find::<Ublk>("data").expect("one").host("data"), "iqn.2026-01.io.lunar:local:data");
        assert!(drafted(&request(&["a", "a:1"])).expect_err("twice").contains("--ublk a: this name is given twice"));
        for text in ["", "a b", "a:", "a:x", &"a".repeat(65)] {
            assert!(disk(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_banner_names_the_disk() {
        let (portals, mut sockets) = (BTreeMap::new(), BTreeMap::new());
        sockets.insert("ublk/data".to_owned(), Box::<Path>::from(Path::new("/dev/ublkb3")));
        let serving = Serving { iqn: "iqn.x", nqn: "nqn.x", portals: &portals, advertise: None, sockets: &sockets };
        let shown = request(&["data"]).shown(&serving).expect("one");
        assert_eq!(shown.places, ["disk     data is /dev/ublkb3 of this machine (ublk)"]);
        assert!(shown.connect[0].contains("mount /dev/ublkb3"));
        assert_eq!(request(&["other"]).shown(&serving), None);
    }
}
