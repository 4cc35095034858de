//! A unit as the data path sees it: geometry, identity, store. SCSI presents it as a logical unit, NVMe as a namespace.

use crate::ascii::Ascii;
use crate::io::{Fault, Store, Traits};
use crate::medium::Medium;
use crate::metadata::MetadataStore;
use crate::protection::{Kind, Protection};
use crate::range::{Epoch, RangeGuard, Ranges, Span, lock_shared_both};
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

/// Number and size of a unit's blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Bytes of a logical block: 512 or 4096, and 2048 on a CD or DVD.
    pub block_size: u32,
    /// Logical blocks; at least one.
    pub blocks: u64,
    /// Logical blocks per physical block, as a power of two.
    pub physical_exponent: u8,
}

impl Geometry {
    /// The geometry of a store with this block size; `None` if its size is not a whole number of blocks.
    #[must_use]
    pub fn of(traits: &Traits, block_size: u32) -> Option<Self> {
        let blocks = traits.size / u64::from(block_size);
        let whole = blocks > 0 && traits.size.is_multiple_of(u64::from(block_size));
        let ratio = (traits.physical_block / block_size).max(1);
        whole.then_some(Self { block_size, blocks, physical_exponent: ratio.ilog2() as u8 })
    }

    /// Size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.blocks * u64::from(self.block_size)
    }
}

/// Identifies a unit to clients that recognise disks across paths and restarts. It never changes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    /// T10 vendor identification.
    pub vendor: Ascii<8>,
    /// Product identification.
    pub product: Ascii<16>,
    /// Product revision level.
    pub revision: Ascii<4>,
    /// Unit serial number.
    pub serial: Ascii<32>,
    /// A UUID (RFC 9562; SPC-6 7.7.6.11, NVMe Base 2.0).
    pub uuid: [u8; 16],
    /// NAA 3, locally assigned (SPC-6 7.7.6.6.3): the only NAA format that needs no company identifier of the IEEE,
    /// which the project does not have. Its 60 bits are random, so it is unique in practice.
    pub naa: [u8; 8],
}

impl Identity {
    /// A locally administered EUI-64, because the project has no company identifier of the IEEE: administratively
    /// assigned (IEEE 802c), with the last 56 bits of the NAA identifier, which are random.
    #[must_use]
    pub fn eui64(&self) -> [u8; 8] {
        /// Individual, locally administered, administratively assigned.
        const LOCAL: u8 = 0x02;
        let [_, rest @ ..] = self.naa;
        let mut eui = [LOCAL; 8];
        eui[1..].copy_from_slice(&rest);
        eui
    }
}

/// Takes exclusive range locks on every core.
pub trait Exclusive {
    /// Waits until no other I/O overlaps `span` on any core. Dropping the box releases the lock.
    fn lock_exclusive(&self, unit: UnitId, span: Span) -> Pin<Box<dyn Future<Output = Box<dyn Any>>>>;
}

/// One core's view of a unit.
pub struct Unit {
    /// Its number.
    pub id: UnitId,
    /// Its identity.
    pub identity: Arc<Identity>,
    /// Number and size of its blocks.
    pub geometry: Geometry,
    /// Whether writes are refused, by configuration or because the store cannot write.
    pub read_only: bool,
    /// Its store, as this core opened it.
    pub store: Box<dyn Store>,
    /// Its protection information, if it has a protection store.
    pub protection: Option<Protection>,
    /// Its range locks on this core.
    pub ranges: Rc<Ranges>,
    /// The part of its medium that the data path needs; the same on all cores.
    pub medium: Medium,
    /// Its counters, of all cores.
    pub tally: Tally,
    /// Takes range locks on all cores.
    pub exclusive: Rc<dyn Exclusive>,
    /// Its metadata store; the same on all cores.
    pub metadata: Arc<dyn MetadataStore>,
}

impl Unit {
    /// The traits of its store.
    #[must_use]
    pub fn traits(&self) -> &Traits {
        self.store.traits()
    }

    /// Its protection information, unless its blocks have protection type 0.
    #[must_use]
    pub fn protected(&self) -> Option<&Protection> {
        self.protection.as_ref().filter(|protection| protection.kind() != Kind::None)
    }
}

/// A unit, for a command that was admitted to it in this epoch. When the unit is formatted or sanitized, a command that
/// still waits for its peer, for memory or for a range fails with [`Fault::Cleared`].
#[derive(Clone, Copy, Debug)]
pub struct Admitted<'a> {
    unit: &'a Unit,
    epoch: Epoch,
}

impl<'a> Admitted<'a> {
    /// Admits a command in the current epoch.
    #[must_use]
    pub fn to(unit: &'a Unit) -> Self {
        Self { unit, epoch: unit.ranges.epoch() }
    }

    /// Checks that the epoch has not changed since the admission.
    ///
    /// # Errors
    /// [`Fault::Cleared`].
    pub fn check(&self) -> Result<(), Fault> {
        if self.epoch == self.ranges.epoch() { Ok(()) } else { Err(Fault::Cleared) }
    }

    pub(crate) async fn lock_shared(&self, span: Span) -> Result<RangeGuard, Fault> {
        let guard = self.ranges.lock_shared(span).await;
        self.check().map(|()| guard)
    }

    /// Takes an exclusive lock on every core.
    pub(crate) async fn lock_exclusive(&self, span: Span) -> Result<Box<dyn Any>, Fault> {
        let held = self.exclusive.lock_exclusive(self.id, span).await;
        self.check().map(|()| held)
    }

    /// Takes a shared lock on a range of this unit and on one of another.
    pub(crate) async fn lock_shared_both(
        &self,
        span: Span,
        other: &Self,
        there: Span,
    ) -> Result<(RangeGuard, RangeGuard), Fault> {
        let guards = lock_shared_both((&self.ranges, span), (&other.ranges, there)).await;
        self.check().and_then(|()| other.check()).map(|()| guards)
    }
}

impl Deref for Admitted<'_> {
    type Target = Unit;

    fn deref(&self) -> &Unit {
        self.unit
    }
}

/// Units are equal if their numbers are.
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

/// Range locks of a program with one core.
#[derive(Debug)]
pub struct OneCore(pub Rc<Ranges>);

impl Exclusive for OneCore {
    fn lock_exclusive(&self, _unit: UnitId, span: Span) -> Pin<Box<dyn Future<Output = Box<dyn Any>>>> {
        let ranges = self.0.clone();
        Box::pin(async move {
            let guard: RangeGuard = ranges.lock_exclusive(span).await;
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
    fn the_eui64_is_locally_administered_and_derived_from_the_naa_identifier() {
        let of = |naa| {
            let (vendor, product, revision, serial) = ("".into(), "".into(), "".into(), "".into());
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
