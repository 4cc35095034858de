//! Identify data of controllers, namespaces and the subsystem (NVMe Base 2.0 5.17); `layout` has the structures.

mod layout;

use crate::context::Context;
use crate::controller::VERSION;
use crate::errors::ERRORS_MAX;
use crate::event::{ACCESS_NOTICES, DISCOVERY_NOTICES, NAMESPACE_NOTICES, REQUESTS_MAX};
use crate::history::LOG_BYTES_MAX;
use crate::limits::{
    ABORTS_MAX, COPY_BYTES_MAX, COPY_RANGES_MAX, KEEP_ALIVE_GRANULARITY, QUEUE_ENTRIES_MAX, TRANSFER_EXPONENT,
};
use crate::namespace::{Attached, Namespace};
use crate::namespace_map::NamespaceSharing;
use crate::path::Kind;
use crate::pool::{FORMATS, Pool};
use layout::Descriptor;
use lunar_core::protection::{INFO_BYTES, Kind as Protection};
use lunar_core::step::PIECE_BYTES;
use lunar_core::uncorrectable::MARKED_BLOCKS_MAX;
use lunar_core::wire::le;
use zerocopy::{FromZeros, Immutable, IntoBytes};

/// Bytes of each of the data structures.
pub const IDENTIFY_LEN: usize = 4096;
/// Bytes of a submission queue entry, in the unit of capsule sizes.
const ENTRY_UNITS: u32 = 64 / 16;

/// An Identify data structure as the host receives it.
#[derive(Debug)]
pub struct Page(Box<[u8; IDENTIFY_LEN]>);

impl Default for Page {
    fn default() -> Self {
        Self(Box::new([0; IDENTIFY_LEN]))
    }
}

impl Page {
    /// The bytes of a data structure of `layout`, all of which have [`IDENTIFY_LEN`].
    fn of(structure: &(impl IntoBytes + Immutable)) -> Self {
        let mut page = Self::default();
        page.0.copy_from_slice(structure.as_bytes());
        page
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &*self.0
    }
}

/// An ASCII field: `text`, cut to the field or padded with spaces.
fn padded<const LEN: usize>(text: &str) -> [u8; LEN] {
    let mut field = [b' '; LEN];
    let len = text.len().min(LEN);
    field[..len].copy_from_slice(&text.as_bytes()[..len]);
    field
}

/// The NQN field: the name, and zeroes up to the end of the field.
fn terminated(nqn: &str) -> [u8; 256] {
    let mut field = [0; 256];
    field[..nqn.len()].copy_from_slice(nqn.as_bytes());
    field
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
    /// VWC: there is a volatile write cache. Hosts read the field once, and namespaces are added later: a host without
    /// a cache in this field would not flush them.
    pub(super) const CACHES: u8 = 0x01;
    /// SGLS: there are scatter-gather lists, with offsets into capsules, and of the transport.
    pub(super) const SGL: u32 = 0x01 | 1 << 20 | 1 << 21;
    /// SGLS of RDMA: there are scatter-gather lists, with offsets into capsules, and with keys.
    pub(super) const SGL_WITH_KEYS: u32 = 0x01 | 1 << 2 | 1 << 20;
    /// SGLS of queues in memory: there are scatter-gather lists, and they may be longer than the data.
    pub(super) const SGL_IN_MEMORY: u32 = 0x01 | 1 << 18;
    /// OCFS: source ranges of formats 0 to 3, the latter two for hosts that have said that they use them.
    pub(super) const COPY_FORMATS: u16 = 0x0f;
    /// OFCS: Disconnect.
    pub(super) const DISCONNECTS: u16 = 0x01;
}

/// SANICAP: block erase and overwrite; No-Deallocate is supported and does not modify the media.
pub(crate) const SANITIZE: u32 = 0x02 | 0x04 | 0x4000_0000;
/// PELS: units of 64 KiB.
const PERSISTENT_EVENT_UNITS: u32 = (LOG_BYTES_MAX >> 16) as u32;
/// How long a change of asymmetric access may take. Seconds.
const TRANSITION_SECONDS: u8 = 10;
/// AWUN, AWUPF, NAWUN, NAWUPF: one block, 0-based. A Write does not lock its range on all cores, so a concurrent read
/// may see a part before and a part after the write, independent of the store.
const WRITE: u16 = 0;
/// Blocks that Compare and Write may have at least: those of the largest blocks. 0-based.
const COMPARE_WRITE: u16 = (PIECE_BYTES / 4096 - 1) as u16;

/// CNS 01h: the controller.
#[must_use]
pub fn controller(cx: &Context<'_>) -> Page {
    let controller = cx.controller();
    let entry = &controller.access_grant.subsystem;
    let mut page = layout::Controller::new_zeroed();
    page.serial_number = padded(&entry.serial);
    page.model_number = padded(&entry.model);
    page.firmware_revision = padded(&entry.firmware);
    page.transfer_exponent = TRANSFER_EXPONENT;
    page.controller_id = controller.id.into();
    page.version = VERSION.into();
    page.attributes = bits::ATTRIBUTES.into();
    page.controller_type = if controller.kind == Kind::Io { 1 } else { 2 };
    let doorbells = if controller.path.memory { bits::DOORBELLS } else { 0 };
    page.admin_commands = (bits::ADMIN | doorbells).into();
    page.abort_limit = ABORTS_MAX - 1;
    page.async_event_limit = (REQUESTS_MAX - 1) as u8;
    page.firmware_updates = bits::FIRMWARE;
    page.log_page_attributes = bits::LOG_PAGES;
    page.error_log_entries = (ERRORS_MAX - 1) as u8;
    page.keep_alive = KEEP_ALIVE_GRANULARITY.into();
    page.commands_max = QUEUE_ENTRIES_MAX.into();
    page.subsystem_nqn = terminated(&entry.nqn);
    transport(&mut page, cx);
    if controller.kind == Kind::Discovery {
        page.async_events = DISCOVERY_NOTICES.into();
    } else {
        io_controller(&mut page, cx);
    }
    Page::of(&page)
}

/// Fields that depend on where the queues of the controller are: in host memory, or in capsules.
fn transport(page: &mut layout::Controller, cx: &Context<'_>) {
    let path = &cx.controller().path;
    if path.memory {
        page.sgl = bits::SGL_IN_MEMORY.into();
    } else {
        page.sgl = if path.is_rdma() { bits::SGL_WITH_KEYS } else { bits::SGL }.into();
        page.command_capsule_size = (ENTRY_UNITS + path.in_capsule / 16).into();
        page.response_capsule_size = 1.into();
        page.sgl_descriptors_max = 1;
        page.fabrics_commands = bits::DISCONNECTS.into();
    }
}

/// Fields that controllers with namespaces have, and discovery controllers do not.
fn io_controller(page: &mut layout::Controller, cx: &Context<'_>) {
    page.log_page_attributes = bits::LOG_PAGES | bits::PERSISTENT_EVENTS;
    page.persistent_event_log_size = PERSISTENT_EVENT_UNITS.into();
    page.self_test_time = 1.into();
    page.self_test_options = bits::ONE_TEST;
    page.sanitize = SANITIZE.into();
    if let Some(pool) = cx.pool() {
        page.admin_commands |= le::U16::new(bits::MANAGES);
        page.attributes = (bits::ATTRIBUTES | bits::GRANULARITY).into();
        page.total_capacity = u128::from(pool.capacity).into();
        page.unallocated_capacity = u128::from(pool.left).into();
    }
    let last = cx.queue.last_namespace();
    page.multi_path = bits::SHARED;
    page.async_events = (NAMESPACE_NOTICES | ACCESS_NOTICES).into();
    page.ana_transition_time = TRANSITION_SECONDS;
    page.ana_capabilities = bits::ACCESS;
    page.ana_group_max = last.into();
    page.ana_groups = last.into();
    page.entry_sizes = bits::ENTRIES;
    page.namespaces = last.into();
    page.namespaces_max = last.into();
    if let Some(pool) = cx.pool() {
        page.namespaces_max = allowed_namespaces(cx, &pool).into();
    }
    page.nvm_commands = bits::COMMANDS.into();
    page.fused = bits::FUSED.into();
    page.volatile_write_cache = bits::FLUSHES_ALL | bits::CACHES;
    page.atomic_write = WRITE.into();
    page.atomic_write_power_fail = WRITE.into();
    page.atomic_compare_write = COMPARE_WRITE.into();
    page.copy_formats = bits::COPY_FORMATS.into();
}

/// MNAN of a controller whose host creates namespaces: those of the operator, and as many as the pool allows.
fn allowed_namespaces(cx: &Context<'_>, pool: &Pool) -> u32 {
    let shown = cx.queue.all_allocated().iter().filter(|seen| seen.sharing.is_none()).count();
    // There are NAMESPACES_MAX at most.
    pool.namespaces_max.saturating_add(shown as u32).min(cx.queue.last_namespace())
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

/// RESCAP: all types, and IEKEY; and whether reservations may persist through power loss.
fn reservations(namespace: &Namespace) -> u8 {
    0xfe | u8::from(namespace.unit.metadata.is_durable())
}

/// FPI: supported, and percent that remain.
fn format_progress(namespace: &Namespace) -> u8 {
    let is_rewriting = namespace.medium().is_rewriting();
    let done = if is_rewriting { u32::from(namespace.shared.progress()) * 100 / 0x1_0000 } else { 100 };
    0x80 | (100 - done) as u8
}

/// NMIC: more than one controller may have it.
pub(crate) const IS_SHARED: u8 = 0x01;

fn sharing(seen: &Attached) -> u8 {
    if seen.sharing == Some(NamespaceSharing::Private) { 0 } else { IS_SHARED }
}

/// CNS 00h with NSID FFFFFFFFh: the common fields of all namespaces that hosts create.
#[must_use]
pub fn common_namespace() -> Page {
    let mut page = layout::Namespace::new_zeroed();
    page.formats = FORMATS.len() as u8 - 1;
    page.sharing = IS_SHARED;
    for (format, block) in page.lba_formats.iter_mut().zip(FORMATS) {
        format.block_exponent = block.ilog2() as u8;
    }
    Page::of(&page)
}

/// CNS 16h: namespaces that hosts create waste no space if their sizes are multiples of this, in every format.
#[must_use]
pub fn granularity() -> Page {
    let mut page = layout::Granularity::new_zeroed();
    let largest = u64::from(FORMATS[FORMATS.len() - 1]);
    page.size = largest.into();
    page.capacity = largest.into();
    Page::of(&page)
}

/// CNS 00h: a namespace.
#[must_use]
pub fn namespace(seen: &Attached) -> Page {
    let namespace = &*seen.namespace;
    let (unit, traits, block) = (&namespace.unit, namespace.unit.traits(), namespace.block_size());
    let mut page = layout::Namespace::new_zeroed();
    let blocks = unit.geometry.blocks;
    (page.size, page.capacity, page.utilization) = (blocks.into(), blocks.into(), blocks.into());
    page.features = features(namespace);
    page.sharing = sharing(seen);
    page.reservations = reservations(namespace);
    page.format_progress = format_progress(namespace);
    // DLFEAT: deallocated blocks read as zeroes, and Write Zeroes may deallocate.
    page.deallocation = if traits.unmap_zeroes && namespace.deallocates() { 0x01 | 0x08 } else { 0 };
    page.atomic_write = WRITE.into();
    page.atomic_write_power_fail = WRITE.into();
    page.atomic_compare_write = zero_based(PIECE_BYTES as u32, block).into();
    page.nvm_capacity = u128::from(unit.geometry.bytes()).into();
    let physical = zero_based(traits.physical_block, block);
    let granularity = zero_based(traits.unmap_granularity, block);
    (page.write_granularity, page.write_alignment) = (physical.into(), physical.into());
    (page.deallocate_granularity, page.deallocate_alignment) = (granularity.into(), granularity.into());
    page.optimal_write_size = zero_based(traits.optimal_io, block).into();
    let copied = COPY_BYTES_MAX / u64::from(block);
    page.copy_source_range_max = u16::try_from(copied).unwrap_or(u16::MAX).into();
    page.copy_length_max = (copied as u32).into();
    page.copy_source_ranges_max = COPY_RANGES_MAX;
    page.ana_group = seen.id.into();
    page.attributes = seen.read_only.into();
    page.nguid = unit.identity.uuid;
    page.eui64 = unit.identity.eui64();
    page.lba_formats[0].block_exponent = block.ilog2() as u8;
    if let Some(kind) = seen.shown() {
        protected(&mut page, kind);
    }
    Page::of(&page)
}

/// A namespace whose blocks carry their protection information as metadata. There is one format.
fn protected(page: &mut layout::Namespace, kind: Protection) {
    /// FLBAS: metadata is transferred with the data.
    const EXTENDED: u8 = 0x10;
    /// MC: extended LBAs only.
    const ONLY_EXTENDED: u8 = 0x01;
    /// DPC: protection information is the last bytes of metadata.
    const LAST_BYTES: u8 = 0x10;
    let number = kind as u8;
    let types = 1 << number >> 1;
    page.formatted_size = EXTENDED;
    page.metadata_capabilities = ONLY_EXTENDED;
    page.protection_capabilities = LAST_BYTES | types;
    page.protection_settings = number;
    page.lba_formats[0].metadata_size = (INFO_BYTES as u16).into();
}

/// CNS 08h: a namespace, without what depends on its command set.
#[must_use]
pub fn independent_namespace(seen: &Attached) -> Page {
    let namespace = &*seen.namespace;
    const READY: u8 = 0x01;
    /// NSFEAT.VWCNP: unlike other namespaces of the controller, this one has no volatile write cache.
    const NO_CACHE: u8 = 0x20;
    let cache = if namespace.unit.traits().write_cache { 0 } else { NO_CACHE };
    let mut page = layout::IndependentNamespace::new_zeroed();
    page.features = features(namespace) & THIN | cache;
    page.sharing = sharing(seen);
    page.reservations = reservations(namespace);
    page.format_progress = format_progress(namespace);
    page.ana_group = seen.id.into();
    page.attributes = seen.read_only.into();
    page.status = if namespace.medium().is_rewriting() { 0 } else { READY };
    Page::of(&page)
}

/// CNS 03h: the identifiers of a namespace.
#[must_use]
pub fn descriptors(namespace: &Namespace) -> Page {
    const EUI64: u8 = 1;
    const NGUID: u8 = 2;
    const UUID: u8 = 3;
    const COMMAND_SET: u8 = 4;
    /// The NVM command set.
    const NVM: u8 = 0;
    let identity = &namespace.unit.identity;
    let mut page = layout::Descriptors::new_zeroed();
    page.eui64 = Descriptor::new(EUI64, identity.eui64());
    page.nguid = Descriptor::new(NGUID, identity.uuid);
    page.uuid = Descriptor::new(UUID, identity.uuid);
    page.command_set = Descriptor::new(COMMAND_SET, [NVM]);
    Page::of(&page)
}

/// CNS 02h, 07h and 10h: namespace identifiers larger than `after`, in ascending order.
#[must_use]
pub fn namespaces(all: &[u32], after: u32) -> Page {
    let mut page = layout::NamespaceList::new_zeroed();
    let later = all.iter().filter(|id| **id > after);
    page.identifiers.iter_mut().zip(later).for_each(|(place, id)| *place = (*id).into());
    Page::of(&page)
}

/// CNS 12h, 13h: controller identifiers from `first` on, after their number.
#[must_use]
pub fn controllers(all: &[u16], first: u16) -> Page {
    let mut page = layout::ControllerList::new_zeroed();
    let mut count = 0_u16;
    for (place, id) in page.identifiers.iter_mut().zip(all.iter().filter(|id| **id >= first)) {
        *place = (*id).into();
        count += 1;
    }
    page.count = count.into();
    Page::of(&page)
}

/// CNS 05h: the fields of the NVM command set for a namespace: guards have 16 bits, and there is no storage tag (PIF
/// and STS of ELBAF0 are zero).
#[must_use]
pub fn nvm_namespace() -> Page {
    Page::default()
}

/// WUSL: blocks that Write Uncorrectable may mark in a namespace with the smallest blocks, in pages of 4 KiB, as a
/// power of two. A larger command is refused.
const UNCORRECTABLE_EXPONENT: u8 = (MARKED_BLOCKS_MAX * 512 / 4096).ilog2() as u8;

/// CNS 06h: limits of the NVM command set; no other limit is smaller than that of all transfers.
#[must_use]
pub fn nvm_controller() -> Page {
    let mut page = layout::NvmController::new_zeroed();
    page.write_uncorrectable_exponent = UNCORRECTABLE_EXPONENT;
    Page::of(&page)
}

/// CNS 1Ch: combinations of command sets: the NVM command set alone.
#[must_use]
pub fn command_sets() -> Page {
    let mut page = layout::CommandSets::new_zeroed();
    page.combinations[0] = 1.into();
    Page::of(&page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ascii_fields_are_cut_or_padded_with_spaces() {
        assert_eq!((padded::<4>("ab"), padded::<4>("abcdef")), (*b"ab  ", *b"abcd"));
    }

    #[test]
    fn controller_lists_count_what_they_hold() {
        let page = controllers(&[1, 2, 7], 2);
        assert_eq!(page.bytes()[..8], [2, 0, 2, 0, 7, 0, 0, 0]);
        let many: Vec<u16> = (1..=3000).collect();
        assert_eq!(controllers(&many, 0).bytes()[..2], 2047_u16.to_le_bytes());
    }

    #[test]
    fn descriptors_have_type_and_length_before_their_identifier() {
        let descriptor = Descriptor::new(1, [9; 8]);
        assert_eq!(descriptor.as_bytes(), [1, 8, 0, 0, 9, 9, 9, 9, 9, 9, 9, 9]);
    }
}
