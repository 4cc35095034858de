//! The declaration of ATA over Ethernet for the configuration: the section `[aoe.NAME]`.

use lunar_control::common_sections::{BlockSize, Group, PortalGroup, Target, Volume};
use lunar_control::kind::{FrontKind, Kind};
use lunar_control::links::To;
use lunar_control::schema::{Finder, FrontSchema, FrontSection};
use lunar_control::section::{Objects, Resource, optional, or, required};
use lunar_control::sections;
use lunar_control::stations::{LinkName, StationAddress};
use lunar_control::value::Whole;

use std::collections::HashMap;

/// Its name: the word of the transport.
pub const WORD: &str = "aoe";

/// The kind of the section.
pub const AOE: FrontKind = FrontKind { place: 2, section: "aoe", noun: "AoE shelf", may_be_missing: true };
/// The highest slot: the next one names all slots.
pub const SLOT_MAX: u8 = 254;
/// A shelf that the initiator of Linux refuses: it names all shelves in an old form.
const REFUSED_SHELF: u64 = 0x0fff;

sections! {
    /// A shelf of disks for the stations of an Ethernet (ATA over Ethernet). A station is a host whose name is its MAC
    /// address, such as `52:54:00:12:34:56`, and sees the volumes of its group: the logical unit number, added to the
    /// first slot, is the slot. Stations do not authenticate, and MAC addresses can be forged: only a VLAN or an
    /// interface of its own protects the volumes. Groups with networks or with authentication do not fit.
    Aoe (made: Live, removed: EndsSessions) {
        /// The link: a network interface (`eth0`), which needs the capability CAP_NET_RAW; `xdp:eth0`, the same through
        /// its driver (AF_XDP), which needs CAP_NET_ADMIN and CAP_BPF as well; `tap:NAME`; or `unix:PATH,PEER`, where
        /// each datagram is a frame, for virtual machines.
        link: LinkName = required() => EndsSessions;
        /// The shelf (major address).
        shelf: Whole<0, 65534> = required() => EndsSessions;
        /// The slot (minor address) of logical unit number 0.
        first_slot: Whole<0, 254> = or(Whole::new(0)) => EndsSessions;
        /// The target whose volumes the stations see.
        target: To<Target> = required() => EndsSessions;
        /// The portal group whose asymmetric access state applies; without this key, active/optimized.
        portal_group: Option<To<PortalGroup>> = optional() => EndsSessions;
        /// The VLAN; without this key, frames without a tag.
        vlan: Option<Whole<1, 4094>> = optional() => EndsSessions;
        /// The MAC address of a link without an interface; without this key, an address derived from the link.
        mac: Option<StationAddress> = optional() => EndsSessions;
        /// The largest payload of a frame; without this key, that of the interface, 1500 without an interface.
        mtu: Option<Whole<1500, 9216>> ["bytes"] = optional() => EndsSessions;
    }
}

impl Resource for Aoe {
    const KIND: Kind = Kind::Front(AOE);
}

impl Aoe {
    /// The slot of a logical unit number, if there is one.
    #[must_use]
    pub fn slot(&self, lun: u16) -> Option<u8> {
        let slot = self.first_slot.get() + u64::from(lun);
        u8::try_from(slot).ok().filter(|slot| *slot <= SLOT_MAX)
    }

    fn brief(&self) -> String {
        format!("shelf {} on {}, target {}", self.shelf.get(), self.link.as_str(), self.target.name())
    }
}

/// Checks shelves, slots and volumes.
pub fn check(objects: &dyn Objects, find: &mut Finder<'_>) {
    let mut shelves = HashMap::new();
    for (name, aoe) in objects.all::<Aoe>() {
        if aoe.shelf.get() == REFUSED_SHELF {
            let what = "is a shelf that the initiator of Linux refuses: choose another one";
            find(name, "shelf", aoe.marks.of("shelf"), what.into());
        }
        let place = (aoe.link.clone(), aoe.vlan.map(Whole::get), aoe.shelf.get());
        if let Some(twin) = shelves.insert(place, name) {
            find(name, "shelf", aoe.marks.of("shelf"), format!("is also that of AoE shelf {twin} on this link"));
        }
        check_volumes(objects, name, aoe, find);
    }
}

/// The volumes that the stations of a shelf see.
fn check_volumes(objects: &dyn Objects, name: &str, aoe: &Aoe, find: &mut Finder<'_>) {
    let groups = objects.all::<Group>().filter(|(_, group)| group.targets.contains(aoe.target.name()));
    for (of, group) in groups {
        for (lun, mapped) in &group.luns.0 {
            if aoe.slot(*lun).is_none() {
                let what = format!("leaves no slot for LUN {lun} of group {of}: the highest slot is {SLOT_MAX}");
                find(name, "first-slot", aoe.marks.whole, what);
            }
            let volume = mapped.volume.name();
            if objects.find::<Volume>(volume).is_some_and(|volume| volume.block_size != BlockSize::B512) {
                let what = format!(
                    "shows volume {volume} (LUN {lun} of group {of}), whose blocks do not have 512 bytes, as ATA's have"
                );
                find(name, "target", aoe.marks.of("target"), what);
            }
        }
    }
}

/// The declaration, without the checks of links.
pub static FRONT: FrontSchema =
    FrontSchema { portals: None, section: Some(FrontSection::of::<Aoe>(AOE, check)), limits: None };
