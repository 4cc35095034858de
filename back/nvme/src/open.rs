//! The checks of a namespace when it is opened as a volume.

use crate::identify::{Abilities, CopyLimits};
use crate::resolve::{NoNamespace, Nodes, locate, remember, resolve};
use crate::volume::{NvmeVolume, Shared, State};
use lunar_control::files::{self, Access};
use lunar_core::io::Traits;
use lunar_engine::backend::Mark;
use lunar_reactor::block_device::{device_folder, queue_limit};
use lunar_reactor::linger::until_free;
use lunar_reactor::log;
use lunar_reactor::nvme_generic::{BLOCKS_MAX, Format, Node};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Bytes that one command deallocates at most: drives that write a table for each gibibyte need well below a second.
const DEALLOCATE_BYTES_MAX: u64 = 256 << 20;
/// Bytes that one command zeroes at most: a drive that has to write them needs less than a tenth of a second.
const ZERO_BYTES_MAX: u64 = 64 << 20;
/// Bytes of a segment of memory, as the kernel counts those of a transfer.
const SEGMENT_BYTES: u64 = 4096;
/// How long a process that has ended may still have the disk open.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long the drive may still execute its commands: many may have been in progress.
const LOCK_PATIENCE: Duration = Duration::from_secs(15);

/// How a namespace is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Options {
    pub(crate) read_only: bool,
    /// Every change is on the medium before it is answered.
    pub(crate) writes_through: bool,
    /// Programs of this machine may use the disk or partition, too.
    pub(crate) shared: bool,
    /// Bytes of the unit's logical block.
    pub(crate) block_size: u32,
}

/// The limits and abilities of an open namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Limits {
    /// Bytes of its block.
    pub(crate) block_bytes: u32,
    /// The first block that is served.
    pub(crate) first_block: u64,
    /// Bytes of the longest transfer.
    pub(crate) transfer_bytes_max: usize,
    /// Bytes that one Dataset Management command deallocates at most; 0: the controller does not deallocate.
    pub(crate) deallocate_bytes_max: u64,
    /// Bytes that one Write Zeroes command zeroes at most; 0: the controller has no such command.
    pub(crate) zero_bytes_max: u64,
    /// Whether zeroes may be made by deallocating.
    pub(crate) zero_deallocates: bool,
    /// The limits of Copy; `None`: the controller does not copy.
    pub(crate) copy: Option<CopyLimits>,
    /// Whether the controller has a volatile write cache.
    pub(crate) has_cache: bool,
    /// Whether every change is on the medium before it is answered.
    pub(crate) writes_through: bool,
}

/// Why a namespace cannot be a volume.
#[derive(Debug)]
pub(crate) enum Unusable {
    /// The path leads to none.
    NoNamespace(NoNamespace),
    /// The disk or partition is mounted, part of another device, or served by another process.
    InUse(PathBuf),
    /// The node of the disk or partition cannot be opened, so other programs cannot be kept away.
    NotClaimed(PathBuf, Errno),
    /// The generic node cannot be opened.
    Closed(PathBuf, Errno),
    /// Another disk took its number meanwhile.
    Moved,
    /// This user may not ask the controller about it.
    NotIdentified,
    /// The controller does not answer.
    Silent(io::Error),
    /// Its blocks have metadata of so many bytes.
    Metadata(u16),
    /// It is zoned.
    Zoned,
    /// It has so many bytes, and those that the kernel has for it are more.
    Beyond(u64),
    /// It has larger blocks than the volume.
    LargeBlocks(u32),
    /// Its size is not a whole number of blocks.
    Uneven(u64),
}

/// Opens a namespace; `previous` is what this process has open already.
pub(crate) fn open(path: &Path, options: &Options, previous: Option<&NvmeVolume>) -> Result<NvmeVolume, Unusable> {
    let nodes = locate(path).map_err(Unusable::NoNamespace)?;
    let claim = if options.shared { None } else { Some(claim(&nodes, previous)?) };
    let node = open_node(&nodes, options.read_only, previous)?;
    if !options.shared && !options.read_only {
        lock(&node, &nodes)?;
    }
    let abilities = Abilities::of(node.controller(), node.namespace());
    let limits = check(&nodes, node.format(), &abilities, options)?;
    if previous.is_none() {
        log!("{} is {}, blocks of {} bytes", path.display(), abilities.identity(node.nsid()), limits.block_bytes);
    }
    let traits = traits(&nodes, &limits, &abilities, options);
    let state = State::new(path.display().to_string());
    let mark = mark(path, &nodes);
    remember(path, &nodes);
    let shared = Arc::new(Shared { path: path.to_owned(), nodes, node, state });
    Ok(NvmeVolume { shared, claim, mark, traits, limits })
}

/// The name that the namespace reports, the same on every machine, and the same as that of a block device: a volume
/// keeps its identity if its kind changes between both.
pub(crate) fn mark(path: &Path, nodes: &Nodes) -> Mark {
    match nodes.name() {
        Some(name) => Mark::Global { space: "device", name },
        None => Mark::Local { space: "place", parts: vec![path.display().to_string()] },
    }
}

/// Opens the disk or partition in such a way that it cannot be mounted.
pub(crate) fn claim(nodes: &Nodes, previous: Option<&NvmeVolume>) -> Result<Arc<OwnedFd>, Unusable> {
    let held = previous.filter(|previous| previous.shared.nodes == *nodes).and_then(|previous| previous.claim.clone());
    if let Some(held) = held {
        return Ok(held);
    }
    let attempt = || files::open(&nodes.block, Access::ReadDevice);
    until_free(PATIENCE, attempt, |why| *why == Errno::BUSY).map(Arc::new).map_err(|why| match why {
        Errno::BUSY => Unusable::InUse(nodes.block.clone()),
        why => Unusable::NotClaimed(nodes.block.clone(), why),
    })
}

/// Waits until the drive has executed the writes of a process that was killed: its disk or partition is free as soon as
/// the process has ended, but not its open generic node. Other partitions of the namespace have locks of their own.
fn lock(node: &Node, nodes: &Nodes) -> Result<(), Unusable> {
    let attempt = || node.lock(nodes.start, nodes.size);
    until_free(LOCK_PATIENCE, attempt, |why| why.kind() == io::ErrorKind::WouldBlock).map_err(|why| match why.kind() {
        io::ErrorKind::WouldBlock => Unusable::InUse(nodes.generic.clone()),
        _ => Unusable::NotClaimed(nodes.generic.clone(), Errno::from_io_error(&why).unwrap_or(Errno::IO)),
    })
}

fn open_node(nodes: &Nodes, read_only: bool, previous: Option<&NvmeVolume>) -> Result<Node, Unusable> {
    // A volume that this process has open already may have the lock.
    let is_it = |previous: &&NvmeVolume| {
        let open = &previous.shared.nodes;
        !read_only && !previous.traits.read_only && (open.disk, open.instance) == (nodes.disk, nodes.instance)
    };
    let held = previous.filter(is_it).and_then(|previous| previous.shared.node.again().ok());
    let access = if read_only { Access::ReadNamespace } else { Access::WriteNamespace };
    let opened = held.map_or_else(|| files::open(&nodes.generic, access), Ok);
    let fd = opened.map_err(|why| Unusable::Closed(nodes.generic.clone(), why))?;
    // The numbers of disks change when disks come and go.
    let again = resolve(&nodes.generic).map_err(Unusable::NoNamespace)?;
    if again.instance != nodes.instance || again.disk != nodes.disk {
        return Err(Unusable::Moved);
    }
    Node::adopt(fd).map_err(|why| match why.kind() {
        io::ErrorKind::PermissionDenied => Unusable::NotIdentified,
        io::ErrorKind::InvalidInput => Unusable::Moved,
        _ => Unusable::Silent(why),
    })
}

/// Checks the format and the size; returns the limits.
fn check(nodes: &Nodes, format: Format, abilities: &Abilities, options: &Options) -> Result<Limits, Unusable> {
    let Format { block_bytes, metadata_bytes } = format;
    if metadata_bytes > 0 {
        return Err(Unusable::Metadata(metadata_bytes));
    }
    if is_zoned(nodes.disk) {
        return Err(Unusable::Zoned);
    }
    if !options.block_size.is_multiple_of(block_bytes) {
        return Err(Unusable::LargeBlocks(block_bytes));
    }
    let block = u64::from(block_bytes);
    let has = abilities.blocks.saturating_mul(block);
    if nodes.start.checked_add(nodes.size).is_none_or(|end| end > has) {
        return Err(Unusable::Beyond(has));
    }
    // The kernel aligns partitions to blocks.
    if !nodes.size.is_multiple_of(options.block_size.into()) || !nodes.start.is_multiple_of(block) {
        return Err(Unusable::Uneven(nodes.size));
    }
    let limit = |name| queue_limit(nodes.disk, name).unwrap_or(0);
    let whole = |bytes: u64| bytes / block * block;
    // The kernel refuses longer transfers: they are beyond those of the controller (MDTS), or have more pieces than it
    // can describe.
    let segments = limit("max_segments").saturating_sub(1).max(1) * SEGMENT_BYTES;
    let transfer = whole((limit("max_hw_sectors_kb") * 1024).min(segments)).max(block);
    // The kernel knows of drives that say they have a command, and fail with it.
    let may =
        |is_able: bool, bytes: u64, most: u64| if is_able && !options.read_only { whole(bytes.min(most)) } else { 0 };
    let longest = u64::from(BLOCKS_MAX) * block;
    Ok(Limits {
        block_bytes,
        first_block: nodes.start / block,
        transfer_bytes_max: usize::try_from(transfer.min(longest)).unwrap_or(block_bytes as usize),
        deallocate_bytes_max: may(abilities.can_deallocate, limit("discard_max_bytes"), DEALLOCATE_BYTES_MAX),
        zero_bytes_max: may(abilities.can_zero, limit("write_zeroes_max_bytes"), ZERO_BYTES_MAX.min(longest)),
        zero_deallocates: abilities.zero_deallocates,
        copy: abilities.copy.filter(|_| !options.read_only),
        has_cache: abilities.write_cache,
        writes_through: options.writes_through,
    })
}

fn is_zoned(disk: u64) -> bool {
    let file = device_folder(disk).join("queue/zoned");
    std::fs::read_to_string(file).is_ok_and(|zoned| zoned.trim() != "none")
}

fn traits(nodes: &Nodes, limits: &Limits, abilities: &Abilities, options: &Options) -> Traits {
    let limit = |name| queue_limit(nodes.disk, name).and_then(|value| u32::try_from(value).ok()).unwrap_or(0);
    let can_deallocate = limits.deallocate_bytes_max > 0;
    let longest = u32::try_from(limits.transfer_bytes_max).unwrap_or(u32::MAX);
    Traits {
        size: nodes.size,
        read_only: options.read_only,
        write_cache: limits.has_cache && !limits.writes_through,
        thin: can_deallocate,
        unmap_granularity: if can_deallocate { limit("discard_granularity").max(limits.block_bytes) } else { 0 },
        // Deallocated blocks may keep their data.
        unmap_zeroes: false,
        physical_block: limit("physical_block_size").max(limits.block_bytes),
        optimal_io: limit("optimal_io_size"),
        rotational: limit("rotational") == 1,
        atomic_write: abilities.atomic_blocks.saturating_mul(limits.block_bytes).min(longest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_reactor::nvme_generic::IDENTIFY_BYTES;

    fn nodes(start: u64, size: u64) -> Nodes {
        let path = |name: &str| Path::new("/dev").join(name);
        Nodes { generic: path("ng9n1"), block: path("nvme9n1"), device: 0, disk: 0, start, size, instance: 1 }
    }

    fn checked(nodes: &Nodes, format: Format, block_size: u32) -> Result<Limits, Unusable> {
        let mut abilities = Abilities::of(&[0; IDENTIFY_BYTES], &[0; IDENTIFY_BYTES]);
        abilities.blocks = (1 << 20) / u64::from(format.block_bytes);
        let options = Options { read_only: false, writes_through: false, shared: false, block_size };
        check(nodes, format, &abilities, &options)
    }

    #[test]
    fn a_format_that_cannot_be_served_is_refused() {
        let plain = Format { block_bytes: 4096, metadata_bytes: 0 };
        let whole = nodes(0, 1 << 20);
        let limits = checked(&whole, plain, 4096).expect("it can be served");
        assert_eq!((limits.first_block, limits.block_bytes, limits.has_cache), (0, 4096, false));
        assert_eq!((limits.deallocate_bytes_max, limits.zero_bytes_max), (0, 0), "what it does not have");
        assert!(matches!(checked(&whole, Format { metadata_bytes: 8, ..plain }, 4096), Err(Unusable::Metadata(8))));
        assert!(matches!(checked(&whole, plain, 512), Err(Unusable::LargeBlocks(4096))));
        assert!(checked(&whole, Format { block_bytes: 512, ..plain }, 4096).is_ok());
    }

    #[test]
    fn a_partition_lies_within_its_namespace() {
        let plain = Format { block_bytes: 512, metadata_bytes: 0 };
        let limits = checked(&nodes(4096, 8192), plain, 512).expect("it can be served");
        assert_eq!(limits.first_block, 8);
        for (start, size) in [(4096, 1 << 20), (u64::MAX - 511, 512), (1 << 20, 512)] {
            assert!(matches!(checked(&nodes(start, size), plain, 512), Err(Unusable::Beyond(_))), "{start}, {size}");
        }
        assert!(matches!(checked(&nodes(0, 512 * 9), plain, 4096), Err(Unusable::Uneven(4608))));
    }
}
