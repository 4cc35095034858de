//! The declaration of ublk for the configuration: the section `[ublk.NAME]`.

use lunar_control::common_sections::{PortalGroup, Target, Volume};
use lunar_control::kind::{FrontKind, Kind};
use lunar_control::links::To;
use lunar_control::names::IscsiName;
use lunar_control::schema::{Finder, FrontSchema, FrontSection};
use lunar_control::section::{Objects, Resource, optional, or};
use lunar_control::sections;
use lunar_control::value::Whole;
use std::collections::HashMap;

/// Its name: the word of the transport.
pub const WORD: &str = "ublk";

/// The first part of the name as a host of this machine without a configured one; the name of the disk follows.
pub const LOCAL_IQN: &str = "iqn.2026-01.io.lunar:local:";
/// Queues of a disk without a configured number, unless there are fewer cores: one core serves more than most programs
/// request.
pub const QUEUES: usize = 4;
/// The most bytes of a name.
pub const NAME_MAX: usize = 64;

/// The kind of the section.
pub const UBLK: FrontKind = FrontKind { place: 3, section: "ublk", noun: "ublk disk", may_be_missing: true };

sections! {
    /// A disk of this machine, `/dev/ublkbN`, without a network: a volume, or one volume of the group to which this
    /// machine belongs as a host. `lunar attach` makes such a section for a volume. It needs the kernel module ublk_drv
    /// and the capability CAP_SYS_ADMIN. When Lunar ends or is killed, the disk stays, its users wait, and the next
    /// start serves it again. Groups with networks do not fit, because the machine has no address.
    Ublk (made: Live, removed: EndsSessions) {
        /// The volume; without this key, `target` says whose groups decide.
        volume: Option<To<Volume>> = optional() => EndsSessions;
        /// Refuse writes of this machine; without `volume`, the LUN map of the group decides.
        read_only: bool = or(false) => EndsSessions;
        /// The target whose volume it is; without this key, `volume` is the volume.
        target: Option<To<Target>> = optional() => EndsSessions;
        /// The logical unit number of the volume in the LUN map of the group; without this key, the lowest one.
        lun: Option<Whole<0, 16383>> = optional() => EndsSessions;
        /// The name of this machine as a host, by which groups know it; without this key,
        /// `iqn.2026-01.io.lunar:local:` and the name of the section.
        host: Option<IscsiName> = optional() => EndsSessions;
        /// The portal group whose asymmetric access state applies; without this key, active/optimized.
        portal_group: Option<To<PortalGroup>> = optional() => EndsSessions;
        /// The N of `/dev/ublkbN`; without this key, the lowest number that is free.
        number: Option<Whole<0, 255>> = optional() => EndsSessions;
        /// Queues, each served by one core; without this key, one for each core, 4 at most.
        queues: Option<Whole<1, 64>> ["queues"] = optional() => EndsSessions;
        /// Requests in progress in each queue. Each may take up to 512 KiB of memory.
        depth: Whole<1, 1024> ["requests"] = or(Whole::new(64)) => EndsSessions;
    }
}

impl Resource for Ublk {
    const KIND: Kind = Kind::Front(UBLK);
}

impl Ublk {
    /// The name of this machine as a host, for the disk of this name.
    #[must_use]
    pub fn host(&self, name: &str) -> String {
        self.host.as_ref().map_or_else(|| format!("{LOCAL_IQN}{name}"), |host| host.as_str().to_owned())
    }

    /// The section of this name with its most important key, as it is written in a file.
    pub(crate) fn written(&self, name: &str) -> String {
        let key = match (&self.volume, &self.target) {
            (Some(volume), _) => format!(", volume = \"{}\"", volume.name()),
            (None, Some(target)) => format!(", target = \"{}\"", target.name()),
            (None, None) => String::new(),
        };
        format!("[ublk.{name}]{key}")
    }

    fn brief(&self) -> String {
        match (&self.volume, &self.target) {
            (Some(volume), _) => format!("volume {}", volume.name()),
            (None, Some(target)) => format!("target {}", target.name()),
            (None, None) => String::new(),
        }
    }

    /// Keys that do not belong together, each with the reason.
    fn mistakes(&self) -> Vec<(&'static str, &'static str)> {
        let of_target = [("lun", self.lun.is_some()), ("portal-group", self.portal_group.is_some())];
        match (&self.volume, &self.target) {
            (None, None) => vec![("", "has no 'volume', and no 'target' whose groups show it one")],
            (Some(_), Some(_)) => vec![("target", "is not needed with 'volume': remove one of them")],
            (Some(_), None) => {
                let given = of_target.into_iter().filter(|(_, is_given)| *is_given);
                given.map(|(key, _)| (key, "is for disks with 'target'")).collect()
            }
            (None, Some(_)) if self.read_only => vec![("read-only", "is for disks with 'volume'")],
            (None, Some(_)) => Vec::new(),
        }
    }
}

/// Names and numbers.
fn check(objects: &dyn Objects, find: &mut Finder<'_>) {
    let mut numbers = HashMap::new();
    for (name, ublk) in objects.all::<Ublk>() {
        if name.len() > NAME_MAX {
            find(name, "", ublk.marks.whole, format!("the name of a ublk disk has at most {NAME_MAX} bytes"));
        }
        for (key, what) in ublk.mistakes() {
            let place = if key.is_empty() { ublk.marks.whole } else { ublk.marks.of(key) };
            find(name, key, place, what.to_owned());
        }
        let Some(number) = ublk.number.map(Whole::get) else { continue };
        if let Some(twin) = numbers.insert(number, name) {
            find(name, "number", ublk.marks.of("number"), format!("is also that of ublk disk {twin}"));
        }
    }
}

/// The declaration.
pub static FRONT: FrontSchema =
    FrontSchema { portals: None, section: Some(FrontSection::of::<Ublk>(UBLK, check)), limits: None };

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
             [ublk.d]\n{keys}\n"
        );
        let host = LocalHost { config: "/nowhere/lunar.toml".into() };
        check(&SCHEMA, "lunar.toml", &text, &host).map_or_else(|why| why.to_string(), |_| String::new())
    }

    #[test]
    fn a_disk_has_a_volume_or_a_target() {
        assert_eq!(mistakes("target = 't'\nlun = 3\nportal-group = 'p'"), "");
        for (keys, words) in [
            ("", "no 'volume', and no 'target'"),
            ("volume = 'v'\ntarget = 't'", "not needed with 'volume'"),
            ("volume = 'v'\nlun = 1", "for disks with 'target'"),
            ("volume = 'v'\nportal-group = 'p'", "for disks with 'target'"),
            ("target = 't'\nread-only = true", "for disks with 'volume'"),
            ("volume = 'v'", "'v'"),
        ] {
            let found = mistakes(keys);
            assert!(found.contains(words), "{keys}: {found}");
        }
        assert!(!mistakes("volume = 'v'\nread-only = true").contains("for disks"));
    }
}
