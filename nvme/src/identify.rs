//! Identify data: what controllers, namespaces and the subsystem say of themselves.

use crate::cmd::ranges::{COPY_BYTES_MAX, COPY_RANGES_MAX};
use crate::context::Context;
use crate::controller::{ABORTS_MAX, KEEP_ALIVE_GRANULARITY, Kind, QUEUE_ENTRIES_MAX, VERSION};
use crate::errors::ERRORS_MAX;
use crate::event::{ACCESS_NOTICES, DISCOVERY_NOTICES, NAMESPACE_NOTICES, REQUESTS_MAX};
use crate::execute::TRANSFER_EXPONENT;
use crate::history::LOG_BYTES_MAX;
use crate::manage::FORMATS;
use crate::namespace::{Attached, Namespace};
use crate::space::Made;
use lunar_core::protection::{INFO_BYTES, Kind as Protection};
use lunar_core::step::PIECE_BYTES;
use lunar_core::uncorrectable::MARKED_BLOCKS_MAX;

/// Bytes of each of the data structures.
pub const IDENTIFY_LEN: usize = 4096;
/// Bytes of a submission queue entry, in the unit of capsule sizes.
const ENTRY_UNITS: u32 = 64 / 16;

/// A data structure that is filled in field by field.
#[derive(Debug)]
pub struct Page(Box<[u8; IDENTIFY_LEN]>);

impl Default for Page {
    fn default() -> Self {
        Self(Box::new([0; IDENTIFY_LEN]))
    }
}

impl Page {
    /// Writes a field; fields lie within.
    fn put(&mut self, at: usize, field: &[u8]) -> &mut Self {
        self.0[at..at + field.len()].copy_from_slice(field);
        self
    }

    /// Writes text, filled up with spaces.
    fn text(&mut self, at: usize, len: usize, text: &str) -> &mut Self {
        self.0[at..at + len].fill(b' ');
        let short = &text.as_bytes()[..text.len().min(len)];
        self.put(at, short)
    }

    fn u16(&mut self, at: usize, value: u16) -> &mut Self {
        self.put(at, &value.to_le_bytes())
    }

    fn u32(&mut self, at: usize, value: u32) -> &mut Self {
        self.put(at, &value.to_le_bytes())
    }

    fn u64(&mut self, at: usize, value: u64) -> &mut Self {
        self.put(at, &value.to_le_bytes())
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &*self.0
    }
}

/// Bits of the Identify Controller data structure.
mod bits {
    /// CMIC: several ports, several controllers, asymmetric access.
    pub(super) const SHARED: u8 = 0x01 | 0x02 | 0x08;
    /// CTRATT: host identifiers of sixteen bytes; every command keeps the controller alive.
    pub(super) const ATTRIBUTES: u32 = 0x01 | 0x40;
    /// OACS: Format NVM, Device Self-test.
    pub(super) const ADMIN: u16 = 0x02 | 0x10;
    /// OACS: Namespace Management and Attachment.
    pub(super) const MANAGES: u16 = 0x08;
    /// CTRATT: the list of granularities is there.
    pub(super) const GRANULARITY: u32 = 0x80;
    /// OACS: Doorbell Buffer Config.
    pub(super) const DOORBELLS: u16 = 0x100;
    /// DSTO: one self-test at a time, of the subsystem.
    pub(super) const ONE_TEST: u8 = 0x01;
    /// FRMW: one slot, which cannot be written.
    pub(super) const FIRMWARE: u8 = 0x03;
    /// LPA: commands supported and effects, offsets into log pages.
    pub(super) const LOG_PAGES: u8 = 0x02 | 0x04;
    /// LPA: persistent event log.
    pub(super) const PERSISTENT_EVENTS: u8 = 0x10;
    /// ANACAP: the five states; the group of a namespace never changes.
    pub(super) const ACCESS: u8 = 0x1f | 0x40;
    /// SQES, CQES: 64 and 16 bytes, as powers of two, at least and at most.
    pub(super) const ENTRIES: [u8; 2] = [0x66, 0x44];
    /// ONCS: Compare, Write Uncorrectable, Dataset Management, Write Zeroes, select, reservations, timestamp, Verify,
    /// Copy.
    pub(super) const COMMANDS: u16 = 0x01 | 0x02 | 0x04 | 0x08 | 0x10 | 0x20 | 0x40 | 0x80 | 0x100;
    /// FUSES: Compare and Write.
    pub(super) const FUSED: u16 = 0x01;
    /// VWC: Flush of all namespaces is there.
    pub(super) const FLUSHES_ALL: u8 = 0x06;
    /// VWC: there is a volatile write cache. Hosts ask once, and namespaces come and go: who was told that there is
    /// none would not flush those with one.
    pub(super) const CACHES: u8 = 0x01;
    /// SGLS: there are scatter-gather lists, with offsets into capsules, and of the transport.
    pub(super) const SGL: u32 = 0x01 | 1 << 20 | 1 << 21;
    /// SGLS of queues in memory: there are scatter-gather lists, and they may be longer than the data.
    pub(super) const SGL_IN_MEMORY: u32 = 0x01 | 1 << 18;
    /// OCFS: source ranges of formats 0 to 3, the latter two for hosts that have said that they use them.
    pub(super) const COPY_FORMATS: u16 = 0x0f;
    /// OFCS: Disconnect.
    pub(super) const DISCONNECTS: u16 = 0x01;
}

/// SANICAP: block erase and overwrite; what is not to be deallocated is not changed once more either.
pub(crate) const SANITIZE: u32 = 0x02 | 0x04 | 0x4000_0000;
/// PELS: units of 64 KiB.
const PERSISTENT_EVENT_UNITS: u32 = (LOG_BYTES_MAX >> 16) as u32;
/// How long a change of asymmetric access may take. Seconds.
const TRANSITION_SECONDS: u8 = 10;
/// AWUN, AWUPF, NAWUN, NAWUPF: one block, 0-based. A Write does not keep its range to itself on all cores, so what
/// reads beside it may see the one part before and the other after it, whatever the store promises.
const WRITE: u16 = 0;
/// Blocks that Compare and Write may have at least: those of the largest blocks. 0-based.
const COMPARE_WRITE: u16 = (PIECE_BYTES / 4096 - 1) as u16;

/// CNS 01h: the controller.
#[must_use]
pub fn controller(cx: &Context<'_>) -> Page {
    let controller = cx.controller();
    let entry = &controller.standing.subsystem;
    let mut page = Page::default();
    page.text(4, 20, &entry.serial).text(24, 40, &entry.model).text(64, 8, &entry.firmware);
    page.put(77, &[TRANSFER_EXPONENT]).u16(78, controller.id).u32(80, VERSION);
    page.u32(96, bits::ATTRIBUTES).put(111, &[if controller.kind == Kind::Io { 1 } else { 2 }]);
    let memory = controller.path.memory;
    page.u16(256, bits::ADMIN | if memory { bits::DOORBELLS } else { 0 })
        .put(258, &[ABORTS_MAX - 1, (REQUESTS_MAX - 1) as u8, bits::FIRMWARE, bits::LOG_PAGES]);
    page.put(262, &[(ERRORS_MAX - 1) as u8]);
    page.u16(320, KEEP_ALIVE_GRANULARITY).u16(514, QUEUE_ENTRIES_MAX);
    if memory {
        page.u32(536, bits::SGL_IN_MEMORY);
    } else {
        page.u32(536, bits::SGL).u32(1792, ENTRY_UNITS + controller.path.in_capsule / 16).u32(1796, 1);
        page.put(1803, &[1]).u16(1804, bits::DISCONNECTS);
    }
    if controller.kind == Kind::Discovery {
        page.u32(92, DISCOVERY_NOTICES).put(768, entry.nqn.as_bytes());
        return page;
    }
    page.put(261, &[bits::LOG_PAGES | bits::PERSISTENT_EVENTS]).u32(352, PERSISTENT_EVENT_UNITS);
    page.u16(316, 1).put(318, &[bits::ONE_TEST]).u32(328, SANITIZE);
    if let Some(pool) = cx.pool() {
        page.u16(256, bits::ADMIN | bits::MANAGES | if memory { bits::DOORBELLS } else { 0 });
        page.u32(96, bits::ATTRIBUTES | bits::GRANULARITY);
        page.u64(280, pool.capacity).u64(296, pool.left);
    }
    let last = cx.queue.last_namespace();
    page.put(76, &[bits::SHARED]).u32(92, NAMESPACE_NOTICES | ACCESS_NOTICES);
    page.put(342, &[TRANSITION_SECONDS, bits::ACCESS]).u32(344, last).u32(348, last);
    page.put(512, &bits::ENTRIES).u32(516, last).u16(520, bits::COMMANDS).u16(522, bits::FUSED);
    page.put(525, &[bits::FLUSHES_ALL | bits::CACHES]);
    page.u16(526, WRITE).u16(528, WRITE).u16(532, COMPARE_WRITE).u16(534, bits::COPY_FORMATS).u32(540, last);
    page.put(768, entry.nqn.as_bytes());
    page
}

/// A number of blocks, 0-based; none counts as one.
fn zero_based(bytes: u32, block: u32) -> u16 {
    u16::try_from((bytes / block).saturating_sub(1)).unwrap_or(u16::MAX)
}

/// NSFEAT: blocks take space when they are written.
const THIN: u8 = 0x01;

/// NSFEAT: thin provisioning, atomicity of its own, preferred sizes.
fn features(namespace: &Namespace) -> u8 {
    (if namespace.unit.traits().thin { THIN } else { 0 }) | 0x02 | 0x10
}

/// RESCAP: all types, and keys that are not asked for; and whether they may outlive a restart.
fn reservations(namespace: &Namespace) -> u8 {
    0xfe | u8::from(namespace.unit.keep.outlives())
}

/// FPI: supported, and percent that remain.
fn format_progress(namespace: &Namespace) -> u8 {
    let medium = &namespace.unit.medium;
    let done = if medium.is_worked_on() { u32::from(medium.progress()) * 100 / 0x1_0000 } else { 100 };
    0x80 | (100 - done) as u8
}

/// NMIC: more than one controller may have it.
pub(crate) const IS_SHARED: u8 = 0x01;

fn sharing(seen: &Attached) -> u8 {
    if seen.made == Some(Made::Private) { 0 } else { IS_SHARED }
}

/// CNS 00h of all: what namespaces have in common that hosts make.
#[must_use]
pub fn common_namespace() -> Page {
    let mut page = Page::default();
    page.put(25, &[FORMATS.len() as u8 - 1]).put(30, &[IS_SHARED]);
    for (at, block) in FORMATS.iter().enumerate() {
        page.put(130 + 4 * at, &[block.ilog2() as u8]);
    }
    page
}

/// CNS 16h: sizes of namespaces that hosts make waste nothing if they are whole multiples of this, in every format.
#[must_use]
pub fn granularity() -> Page {
    let mut page = Page::default();
    let largest = u64::from(FORMATS[FORMATS.len() - 1]);
    page.u64(32, largest).u64(40, largest);
    page
}

/// CNS 00h: a namespace.
#[must_use]
pub fn namespace(seen: &Attached) -> Page {
    let namespace = &*seen.namespace;
    let (unit, traits, block) = (&namespace.unit, namespace.unit.traits(), namespace.block_size());
    let mut page = Page::default();
    let blocks = unit.geometry.blocks;
    page.u64(0, blocks).u64(8, blocks).u64(16, blocks).put(24, &[features(namespace)]);
    page.put(30, &[sharing(seen), reservations(namespace), format_progress(namespace)]);
    // DLFEAT: reads zeroes after deallocation; Write Zeroes may deallocate.
    let zeroes = traits.unmap_zeroes && namespace.deallocates();
    page.put(33, &[if zeroes { 0x01 | 0x08 } else { 0 }]);
    page.u16(34, WRITE).u16(36, WRITE).u16(38, zero_based(PIECE_BYTES as u32, block));
    page.put(48, &u128::from(unit.geometry.bytes()).to_le_bytes());
    let physical = zero_based(traits.physical_block, block);
    let granularity = zero_based(traits.unmap_granularity, block);
    page.u16(64, physical).u16(66, physical).u16(68, granularity).u16(70, granularity);
    page.u16(72, zero_based(traits.optimal_io, block));
    let copied = COPY_BYTES_MAX / u64::from(block);
    page.u16(74, u16::try_from(copied).unwrap_or(u16::MAX)).u32(76, copied as u32).put(80, &[COPY_RANGES_MAX]);
    page.u32(92, seen.id).put(99, &[seen.read_only.into()]);
    page.put(104, &unit.identity.uuid).put(120, &unit.identity.eui64());
    page.put(130, &[block.ilog2() as u8]);
    if let Some(kind) = seen.shown() {
        protected(&mut page, kind);
    }
    page
}

/// Blocks of which each has its protection information behind it. There is one format: FLBAS, MC, DPC, DPS, LBAF0.MS.
fn protected(page: &mut Page, kind: Protection) {
    /// FLBAS: with the data.
    const EXTENDED: u8 = 0x10;
    /// MC: there is no other way.
    const ONLY_EXTENDED: u8 = 0x01;
    /// DPC: the last bytes of metadata; and the one type that the medium has.
    const LAST_BYTES: u8 = 0x10;
    let number = kind as u8;
    let types = 1 << number >> 1;
    page.put(26, &[EXTENDED, ONLY_EXTENDED, LAST_BYTES | types, number]).u16(128, INFO_BYTES as u16);
}

/// CNS 08h: a namespace, whatever its command set.
#[must_use]
pub fn independent_namespace(seen: &Attached) -> Page {
    let namespace = &*seen.namespace;
    const READY: u8 = 0x01;
    /// NSFEAT.VWCNP: unlike others of the controller, it has no volatile write cache.
    const NO_CACHE: u8 = 0x20;
    let mut page = Page::default();
    let features = features(namespace) & 0x01 | if namespace.unit.traits().write_cache { 0 } else { NO_CACHE };
    page.put(0, &[features, sharing(seen), reservations(namespace), format_progress(namespace)]);
    page.u32(4, seen.id).put(8, &[seen.read_only.into()]);
    page.put(14, &[if namespace.unit.medium.is_worked_on() { 0 } else { READY }]);
    page
}

/// CNS 03h: who a namespace is.
#[must_use]
pub fn descriptors(namespace: &Namespace) -> Page {
    const EUI64: u8 = 1;
    const NGUID: u8 = 2;
    const UUID: u8 = 3;
    const COMMAND_SET: u8 = 4;
    let identity = &namespace.unit.identity;
    let mut page = Page::default();
    page.put(0, &[EUI64, 8]).put(4, &identity.eui64());
    page.put(12, &[NGUID, 16]).put(16, &identity.uuid).put(32, &[UUID, 16]).put(36, &identity.uuid);
    page.put(52, &[COMMAND_SET, 1]);
    page
}

/// CNS 02h and the like: identifiers that are larger than `after`, in ascending order.
#[must_use]
pub fn namespaces(all: &[u32], after: u32) -> Page {
    let mut page = Page::default();
    let later = all.iter().filter(|id| **id > after);
    later.take(IDENTIFY_LEN / 4).enumerate().for_each(|(at, id)| _ = page.u32(at * 4, *id));
    page
}

/// CNS 12h, 13h: controllers from `first` on, behind their number.
#[must_use]
pub fn controllers(all: &[u16], first: u16) -> Page {
    let mut page = Page::default();
    let mut count = 0;
    for id in all.iter().filter(|id| **id >= first).take(IDENTIFY_LEN / 2 - 1) {
        count += 1;
        page.u16(usize::from(count) * 2, *id);
    }
    page.u16(0, count);
    page
}

/// CNS 05h: what the NVM command set has to say of a namespace: guards have 16 bits, and there is no storage tag (PIF
/// and STS of ELBAF0 are zero).
#[must_use]
pub fn nvm_namespace() -> Page {
    Page::default()
}

/// WUSL: what may be marked as unreadable of a namespace with the smallest blocks, in pages of 4 KiB, as a power of
/// two. More in one command is not advised: it would be refused.
const UNCORRECTABLE_EXPONENT: u8 = (MARKED_BLOCKS_MAX * 512 / 4096).ilog2() as u8;

/// CNS 06h: what the NVM command set has to say of a controller: no other limit is tighter than that of all transfers.
#[must_use]
pub fn nvm_controller() -> Page {
    let mut page = Page::default();
    page.put(2, &[UNCORRECTABLE_EXPONENT]);
    page
}

/// CNS 1Ch: combinations of command sets: the NVM command set alone.
#[must_use]
pub fn command_sets() -> Page {
    let mut page = Page::default();
    page.u64(0, 1);
    page
}
