//! What SCSI calls a logical unit and NVMe a namespace, as both see it: geometry, identity, store.

use crate::io::{Fault, Store, Traits};
use crate::keep::Keep;
use crate::medium::Medium;
use crate::protection::{Kind, Protection};
use crate::range::{Era, Guard, Ranges, Span, enter_both};
use crate::tally::Tally;
use std::any::Any;
use std::fmt;
use std::ops::Deref;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

/// Number of a unit in this process; the same on every core.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct UnitId(pub u32);

/// Blocks of a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Bytes of a logical block: 512 or 4096, and 2048 on a CD or DVD.
    pub block_size: u32,
    /// Logical blocks; at least one.
    pub blocks: u64,
    /// Logical blocks of a physical one, as a power of two.
    pub physical_exponent: u8,
}

impl Geometry {
    /// The geometry of a store with this block size. `None` when its size is not a whole number of blocks.
    #[must_use]
    pub fn of(traits: &Traits, block_size: u32) -> Option<Self> {
        let blocks = traits.size / u64::from(block_size);
        let whole = blocks > 0 && traits.size.is_multiple_of(u64::from(block_size));
        let ratio = (traits.physical_block / block_size).max(1);
        whole.then_some(Self { block_size, blocks, physical_exponent: ratio.ilog2() as u8 })
    }

    /// Bytes in all.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.blocks * u64::from(self.block_size)
    }
}

/// Who a unit is, to those that keep track of disks across paths and restarts. Never changes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    /// T10 vendor identification, at most 8 ASCII characters.
    pub vendor: String,
    /// Product identification, at most 16 ASCII characters.
    pub product: String,
    /// Product revision level, at most 4 ASCII characters.
    pub revision: String,
    /// Unit serial number, at most 32 ASCII characters.
    pub serial: String,
    /// A UUID (RFC 9562): what names it to those who know UUIDs (SPC-6 7.7.6.11; NVMe).
    pub uuid: [u8; 16],
    /// NAA 3, locally assigned (SPC-6 7.7.6.6.3): the one NAA format that needs no company number of the IEEE,
    /// which the project does not have and does not borrow. Its 60 bits are random, so it is unique in practice.
    pub naa: [u8; 8],
}

impl Identity {
    /// An EUI-64 that is locally administered, for who has no company number of the IEEE: an administratively assigned
    /// one (IEEE 802c), with the last 56 bits of the other name, which is random.
    #[must_use]
    pub fn eui64(&self) -> [u8; 8] {
        /// Of an individual, local, administratively assigned.
        const LOCAL: u8 = 0x02;
        let [_, rest @ ..] = self.naa;
        let mut eui = [LOCAL; 8];
        eui[1..].copy_from_slice(&rest);
        eui
    }
}

/// Holds a range of a unit on every core; the range is let go when the box drops.
pub trait Exclusive {
    /// Waits until no other I/O touches `span`, and keeps it so.
    fn hold(&self, unit: UnitId, span: Span) -> Pin<Box<dyn Future<Output = Box<dyn Any>>>>;
}

/// One core's view of a unit.
pub struct Unit {
    /// Its number.
    pub id: UnitId,
    /// Who it is.
    pub identity: Arc<Identity>,
    /// Its blocks.
    pub geometry: Geometry,
    /// Whether writes are refused: asked for, or the store cannot.
    pub read_only: bool,
    /// Where its bytes are, as this core opened it.
    pub store: Box<dyn Store>,
    /// What protects its blocks, if its store can keep it.
    pub protection: Option<Protection>,
    /// What runs on it on this core.
    pub ranges: Rc<Ranges>,
    /// What sort of medium it has, and work on the whole of it.
    pub medium: Medium,
    /// What was done to it, by all cores.
    pub tally: Tally,
    /// How an atomic command gets its range on all cores.
    pub exclusive: Rc<dyn Exclusive>,
    /// What it keeps across restarts; the same on all cores.
    pub keep: Arc<dyn Keep>,
}

impl Unit {
    /// What the store says of itself.
    #[must_use]
    pub fn traits(&self) -> &Traits {
        self.store.traits()
    }

    /// What protects its blocks, if they are protected.
    #[must_use]
    pub fn protected(&self) -> Option<&Protection> {
        self.protection.as_ref().filter(|protection| protection.kind() != Kind::None)
    }
}

/// A unit as a command was admitted to it. When its whole medium is formatted or sanitized, what still waits for its
/// peer, for memory or for a range does nothing there any more: [`Fault::Cleared`].
#[derive(Clone, Copy, Debug)]
pub struct Admitted<'a> {
    unit: &'a Unit,
    era: Era,
}

impl<'a> Admitted<'a> {
    /// From now on.
    #[must_use]
    pub fn to(unit: &'a Unit) -> Self {
        Self { unit, era: unit.ranges.era() }
    }

    /// # Errors
    /// When it has lost its admission.
    pub fn check(&self) -> Result<(), Fault> {
        if self.era == self.ranges.era() { Ok(()) } else { Err(Fault::Cleared) }
    }

    pub(crate) async fn enter(&self, span: Span) -> Result<Guard, Fault> {
        let guard = self.ranges.enter(span).await;
        self.check().map(|()| guard)
    }

    /// On every core.
    pub(crate) async fn hold(&self, span: Span) -> Result<Box<dyn Any>, Fault> {
        let held = self.exclusive.hold(self.id, span).await;
        self.check().map(|()| held)
    }

    /// Enters one range of this unit, and one of another.
    pub(crate) async fn enter_both(&self, span: Span, other: &Self, there: Span) -> Result<(Guard, Guard), Fault> {
        let guards = enter_both((&self.ranges, span), (&other.ranges, there)).await;
        self.check().and_then(|()| other.check()).map(|()| guards)
    }
}

impl Deref for Admitted<'_> {
    type Target = Unit;

    fn deref(&self) -> &Unit {
        self.unit
    }
}

/// A unit is its number.
impl PartialEq for Unit {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for Unit {}

impl fmt::Debug for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Unit({} {:?})", self.id.0, self.geometry)
    }
}

/// The range holder of a program with one core.
#[derive(Debug)]
pub struct OneCore(pub Rc<Ranges>);

impl Exclusive for OneCore {
    fn hold(&self, _unit: UnitId, span: Span) -> Pin<Box<dyn Future<Output = Box<dyn Any>>>> {
        let ranges = self.0.clone();
        Box::pin(async move {
            let guard: Guard = ranges.hold(span).await;
            Box::new(guard) as Box<dyn Any>
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traits(size: u64, physical_block: u32) -> Traits {
        Traits {
            size,
            read_only: false,
            write_cache: true,
            thin: true,
            unmap_granularity: 4096,
            unmap_zeroes: true,
            physical_block,
            optimal_io: 0,
            rotational: false,
            atomic_write: 0,
        }
    }

    #[test]
    fn an_eui64_is_local_and_follows_from_the_other_name() {
        let of = |naa| {
            let text = String::new;
            let (vendor, product, revision, serial) = (text(), text(), text(), text());
            Identity { vendor, product, revision, serial, uuid: [0; 16], naa }.eui64()
        };
        assert_eq!(of([0x3f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]), [2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(of([0x3a, 0x76, 0x50, 0x00, 0xc9, 0x1e, 0x6b, 0xf6]), [2, 0x76, 0x50, 0x00, 0xc9, 0x1e, 0x6b, 0xf6]);
    }

    #[test]
    fn geometry_counts_whole_blocks_only() {
        assert_eq!(Geometry::of(&traits(8192, 4096), 512).map(|g| (g.blocks, g.physical_exponent)), Some((16, 3)));
        assert_eq!(Geometry::of(&traits(8192, 512), 4096).map(|g| (g.blocks, g.physical_exponent)), Some((2, 0)));
        assert_eq!(Geometry::of(&traits(8193, 512), 512), None);
        assert_eq!(Geometry::of(&traits(0, 512), 512), None);
    }
}
