//! The elements of a changer and their addresses (SMC-3 4.2).

use std::ops::Range;

/// Most drives: each is a thread and a logical unit.
pub const DRIVES_MAX: u16 = 32;
/// Most storage elements: the status of all of them is 100 KiB.
pub const SLOTS_MAX: u16 = 2048;
/// Most import/export elements.
pub const PORTS_MAX: u16 = 64;
/// Address of the medium transport element.
pub(crate) const TRANSPORT: u16 = 0;
/// First addresses of the other types. The gaps have room for the limits above.
const FIRST_PORT: u16 = 0x0010;
const FIRST_DRIVE: u16 = 0x0100;
const FIRST_SLOT: u16 = 0x0400;

/// An element type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Medium transport element.
    Transport,
    /// Storage element.
    Slot,
    /// Import/export element.
    Port,
    /// Data transfer element.
    Drive,
}

impl Kind {
    /// In the order of their addresses.
    pub(crate) const ALL: [Self; 4] = [Self::Transport, Self::Port, Self::Drive, Self::Slot];

    /// ELEMENT TYPE CODE.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Transport => 1,
            Self::Slot => 2,
            Self::Port => 3,
            Self::Drive => 4,
        }
    }
}

/// Numbers of elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Data transfer elements.
    pub drives: u16,
    /// Storage elements.
    pub slots: u16,
    /// Import/export elements.
    pub ports: u16,
}

impl Layout {
    /// The addresses of a type.
    #[must_use]
    pub fn addresses(&self, kind: Kind) -> Range<u16> {
        let (first, count) = match kind {
            Kind::Transport => (TRANSPORT, 1),
            Kind::Port => (FIRST_PORT, self.ports),
            Kind::Drive => (FIRST_DRIVE, self.drives),
            Kind::Slot => (FIRST_SLOT, self.slots),
        };
        first..first + count
    }

    /// The type of the element with an address, and its number among those of its type.
    #[must_use]
    pub fn element(&self, address: u16) -> Option<(Kind, u16)> {
        let kind = Kind::ALL.into_iter().find(|kind| self.addresses(*kind).contains(&address))?;
        Some((kind, address - self.addresses(kind).start))
    }

    /// The element in words: `slot 3`. Numbers begin with 1, except those of drives, as in `mtx`.
    #[must_use]
    pub fn name(&self, address: u16) -> String {
        match self.element(address) {
            Some((Kind::Slot, number)) => format!("slot {}", number + 1),
            Some((Kind::Port, number)) => format!("port {}", number + 1),
            Some((Kind::Drive, number)) => format!("drive {number}"),
            Some((Kind::Transport, _)) => "transport".to_owned(),
            None => format!("element {address}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_the_largest_library_are_distinct() {
        let layout = Layout { drives: DRIVES_MAX, slots: SLOTS_MAX, ports: PORTS_MAX };
        let mut all: Vec<u16> = Kind::ALL.into_iter().flat_map(|kind| layout.addresses(kind)).collect();
        let count = all.len();
        assert!(all.is_sorted());
        all.dedup();
        assert_eq!(all.len(), count);
        assert_eq!(layout.element(FIRST_SLOT + 2), Some((Kind::Slot, 2)));
        assert_eq!((layout.name(FIRST_SLOT), layout.name(FIRST_DRIVE)), ("slot 1".into(), "drive 0".into()));
        assert_eq!(layout.element(0xffff), None);
    }
}
