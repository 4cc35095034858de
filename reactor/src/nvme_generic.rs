//! NVMe namespaces of this machine through the generic driver of Linux: `/dev/ngXnY` (linux/nvme_ioctl.h). The kernel
//! goes on using the namespace as a disk.
//!
//! * [`Node`]: an open namespace, and its Identify data: for threads other than those of cores
//! * [`Namespace`]: the commands of one core, through io_uring, or on worker threads where the core has none
//! * [`Request`]: a command by its meaning. Its length follows from its memory, so a device never moves more bytes than
//!   there is memory for.

use crate::Reactor;
use crate::endpoint::Endpoint;
use crate::endpoint::command::{Command, CommandDevice, Family, NvmeCommand, Request as DeviceRequest};
use crate::op::Handle;
use crate::sys::raw;
use lunar_core::io::{Completion, Data, Fault};
use rustix::fs::{FileType, fstat, major, minor};
use std::cell::RefCell;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;

/// Bytes of an Identify data structure.
pub const IDENTIFY_BYTES: usize = 4096;
/// An Identify data structure.
pub type Identified = [u8; IDENTIFY_BYTES];
/// Blocks of the longest command: the field has 16 bits and counts from zero.
pub const BLOCKS_MAX: u32 = 1 << 16;

/// NVME_IOCTL_ID: `_IO('N', 0x40)`.
const NVME_IOCTL_ID: u32 = 0x4e40;
/// NVME_IOCTL_ADMIN_CMD: `_IOWR('N', 0x41, struct nvme_admin_cmd)`, of 72 bytes.
const NVME_IOCTL_ADMIN_CMD: u32 = 0xc048_4e41;
/// Bytes of a block that an LBA format can have: 2^9, the least that NVMe has, to 2^16.
const BLOCK_SHIFTS: std::ops::RangeInclusive<u8> = 9..=16;

/// Opcodes (NVMe Base 2.0, 5; NVM Command Set 1.0, 3.2).
mod opcode {
    pub(super) const FLUSH: u8 = 0x00;
    pub(super) const WRITE: u8 = 0x01;
    pub(super) const READ: u8 = 0x02;
    pub(super) const WRITE_ZEROES: u8 = 0x08;
    pub(super) const DATASET_MANAGEMENT: u8 = 0x09;
    pub(super) const COPY: u8 = 0x19;
    /// Of the admin queue.
    pub(super) const IDENTIFY: u8 = 0x06;
}
/// Force Unit Access, and Deallocate of Write Zeroes, in Command Dword 12.
const FUA: u32 = 1 << 30;
const DEAC: u32 = 1 << 25;
/// Attribute Deallocate of Dataset Management, in Command Dword 11.
const AD: u32 = 1 << 2;

/// Whether this device number (as in `st_rdev`) is that of a generic node of a namespace.
#[must_use]
pub fn is_node(device: u64) -> bool {
    let class = format!("/sys/dev/char/{}:{}/subsystem", major(device), minor(device));
    std::fs::read_link(class).is_ok_and(|class| class.ends_with("nvme-generic"))
}

/// The blocks of a namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Format {
    /// Bytes of data of a block.
    pub block_bytes: u32,
    /// Bytes of metadata of a block.
    pub metadata_bytes: u16,
}

impl Format {
    /// The format of a namespace by its Identify Namespace data (NVM Command Set 1.0, 4.1.5.1); `None` if its blocks
    /// have a size that does not exist.
    #[must_use]
    pub fn of(namespace: &Identified) -> Option<Self> {
        const NLBAF: usize = 25;
        const FLBAS: usize = 26;
        const LBAF: usize = 128;
        let (formats, current) = (namespace[NLBAF], namespace[FLBAS]);
        // The upper bits count if there are more than 16 formats; the first number is zero.
        let upper = if formats >= 16 { current >> 1 & 0x30 } else { 0 };
        let at = LBAF + 4 * usize::from(current & 0x0f | upper);
        let shift = namespace[at + 2];
        let metadata_bytes = u16::from_le_bytes([namespace[at], namespace[at + 1]]);
        BLOCK_SHIFTS.contains(&shift).then(|| Self { block_bytes: 1 << shift, metadata_bytes })
    }
}

/// An open namespace.
#[derive(Debug)]
pub struct Node {
    fd: OwnedFd,
    nsid: u32,
    format: Format,
    namespace: Box<Identified>,
    controller: Box<Identified>,
}

impl Node {
    /// Takes over an open generic node, and asks the controller about it. Waits for the answers.
    ///
    /// # Errors
    /// `InvalidInput` if it is no such node; `InvalidData` if its blocks have no size; `PermissionDenied` if this user
    /// may not ask, as with kernels before 6.2 without the capability CAP_SYS_ADMIN; others of the operating system.
    pub fn adopt(fd: OwnedFd) -> io::Result<Self> {
        let stat = fstat(&fd)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::CharacterDevice || !is_node(stat.st_rdev) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: the call touches no memory of this process.
        let nsid = unsafe { libc::ioctl(raw(&fd), NVME_IOCTL_ID as libc::Ioctl) };
        let nsid = u32::try_from(nsid).map_err(|_| io::Error::last_os_error())?;
        let namespace = identify(&fd, Subject::Namespace(nsid))?;
        let format = Format::of(&namespace).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { nsid, format, namespace, controller: identify(&fd, Subject::Controller)?, fd })
    }

    /// The same open file once more, with its locks.
    ///
    /// # Errors
    /// When there is no room for open files.
    pub fn again(&self) -> io::Result<OwnedFd> {
        self.fd.try_clone()
    }

    /// Locks bytes of the namespace, which was opened for writing, for this open file alone. The lock lasts until all
    /// commands that were given through it have ended, also those of a process that was killed.
    ///
    /// # Errors
    /// `WouldBlock` while another open file has locked some of them; others of the operating system.
    pub fn lock(&self, start: u64, len: u64) -> io::Result<()> {
        lock(&self.fd, start, len)
    }

    /// The number of the namespace.
    #[must_use]
    pub fn nsid(&self) -> u32 {
        self.nsid
    }

    /// The format of its blocks.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// Identify Namespace data.
    #[must_use]
    pub fn namespace(&self) -> &Identified {
        &self.namespace
    }

    /// Identify Controller data.
    #[must_use]
    pub fn controller(&self) -> &Identified {
        &self.controller
    }

    /// The namespace for one core. Its blocks must be without metadata.
    ///
    /// # Errors
    /// `Unsupported` if they have metadata; when there is no room for open files.
    pub fn attach(&self, reactor: &Reactor) -> io::Result<Namespace> {
        if self.format.metadata_bytes > 0 {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let device = CommandDevice { fd: self.fd.try_clone()?, family: Family::Nvme, descriptors: None };
        Namespace::over(reactor, Endpoint::Command(device), self.nsid, self.format.block_bytes)
    }
}

fn lock(fd: &OwnedFd, start: u64, len: u64) -> io::Result<()> {
    let bytes = |bytes: u64| i64::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput);
    let (kind, whence) = (libc::F_WRLCK as libc::c_short, libc::SEEK_SET as libc::c_short);
    let range = libc::flock { l_type: kind, l_whence: whence, l_start: bytes(start)?, l_len: bytes(len)?, l_pid: 0 };
    // SAFETY: the kernel reads the structure, which lives until the call has ended.
    match unsafe { libc::fcntl(raw(fd), libc::F_OFD_SETLK, &raw const range) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The subject of an Identify command.
#[derive(Clone, Copy, Debug)]
enum Subject {
    Namespace(u32),
    Controller,
}

fn identify(fd: &OwnedFd, subject: Subject) -> io::Result<Box<Identified>> {
    let mut page = Box::new([0; IDENTIFY_BYTES]);
    let mut put = NvmeAdminCommand { opcode: opcode::IDENTIFY, data_len: IDENTIFY_BYTES as u32, ..Default::default() };
    (put.nsid, put.cdw10) = match subject {
        Subject::Namespace(nsid) => (nsid, 0),
        Subject::Controller => (0, 1),
    };
    put.addr = page.as_mut_ptr().expose_provenance() as u64;
    // SAFETY: the kernel reads and writes the structure, and the device writes the page, which is as long as Identify
    // data is.
    match unsafe { libc::ioctl(raw(fd), NVME_IOCTL_ADMIN_CMD as libc::Ioctl, &raw mut put) } {
        0 => Ok(page),
        1.. => Err(io::Error::other("the controller refuses to identify the namespace")),
        _ => Err(io::Error::last_os_error()),
    }
}

/// `struct nvme_admin_cmd`.
#[repr(C)]
#[derive(Default)]
struct NvmeAdminCommand {
    opcode: u8,
    flags: u8,
    reserved: u16,
    nsid: u32,
    cdw2_3: [u32; 2],
    metadata: u64,
    addr: u64,
    metadata_len: u32,
    data_len: u32,
    cdw10: u32,
    cdw11_15: [u32; 5],
    timeout_ms: u32,
    result: u32,
}

/// A command to a namespace. Blocks are those of its format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    /// Fills the memory from this block on.
    Read {
        /// The first block.
        block: u64,
    },
    /// Writes the memory from this block on.
    Write {
        /// The first block.
        block: u64,
        /// FUA.
        durable: bool,
    },
    /// Brings everything written to the medium.
    Flush,
    /// Deallocates blocks (Dataset Management). Its memory has one range: see [`Request::range`].
    Deallocate,
    /// Writes zeroes.
    Zero {
        /// The first block.
        block: u64,
        /// Their number, at most [`BLOCKS_MAX`].
        count: u32,
        /// Whether the controller deallocates them, if they read as zeroes then.
        deallocate: bool,
        /// FUA.
        durable: bool,
    },
    /// Copies blocks of the namespace to this block and those that follow. Its memory has the sources: see
    /// [`Request::source`].
    Copy {
        /// The first block.
        block: u64,
        /// FUA.
        durable: bool,
    },
}

/// Bytes of a range of Dataset Management.
pub const RANGE_BYTES: usize = 16;
/// Bytes of a source range of Copy, of format 0.
pub const SOURCE_BYTES: usize = 32;
/// Source ranges of a Copy command at most: the field has 8 bits and counts from zero.
pub const SOURCES_MAX: usize = 256;

impl Request {
    /// The memory of a [`Request::Deallocate`] of so many blocks from this one on (NVM Command Set 1.0, 3.2.3).
    #[must_use]
    pub fn range(block: u64, count: u32) -> [u8; RANGE_BYTES] {
        let mut range = [0; RANGE_BYTES];
        range[4..8].copy_from_slice(&count.to_le_bytes());
        range[8..].copy_from_slice(&block.to_le_bytes());
        range
    }

    /// A source of a [`Request::Copy`]: so many blocks, at most [`BLOCKS_MAX`], from this one on (NVM Command Set 1.0,
    /// 3.2.1).
    #[must_use]
    pub fn source(block: u64, count: u32) -> [u8; SOURCE_BYTES] {
        let mut source = [0; SOURCE_BYTES];
        source[8..16].copy_from_slice(&block.to_le_bytes());
        source[16..18].copy_from_slice(&(count.saturating_sub(1) as u16).to_le_bytes());
        source
    }

    /// The command, with memory of so many bytes; `None` if they are not those of whole blocks, or too many.
    fn command(self, nsid: u32, block_bytes: u32, len: usize) -> Option<NvmeCommand> {
        let zero_based = |count: u32| (1..=BLOCKS_MAX).contains(&count).then(|| count - 1);
        let blocks = || {
            let is_whole = len.is_multiple_of(block_bytes as usize);
            zero_based(u32::try_from(len / block_bytes as usize).ok().filter(|_| is_whole)?)
        };
        let at = |block: u64, rest: u32| [block as u32, (block >> 32) as u32, rest, 0, 0, 0];
        let flag = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
        let (opcode, cdw10_15) = match self {
            Self::Read { block } => (opcode::READ, at(block, blocks()?)),
            Self::Write { block, durable } => (opcode::WRITE, at(block, blocks()? | flag(durable, FUA))),
            Self::Flush => (opcode::FLUSH, [0; 6]),
            Self::Deallocate => (opcode::DATASET_MANAGEMENT, [0, AD, 0, 0, 0, 0]),
            Self::Zero { block, count, deallocate, durable } => {
                let flags = flag(deallocate, DEAC) | flag(durable, FUA);
                (opcode::WRITE_ZEROES, at(block, zero_based(count)? | flags))
            }
            Self::Copy { block, durable } => {
                let sources = (len / SOURCE_BYTES).checked_sub(1).filter(|last| *last < SOURCES_MAX)?;
                (opcode::COPY, at(block, sources as u32 | flag(durable, FUA)))
            }
        };
        let is_fitting = match self {
            Self::Read { .. } | Self::Write { .. } => true,
            Self::Flush | Self::Zero { .. } => len == 0,
            Self::Deallocate => len == RANGE_BYTES,
            Self::Copy { .. } => len.is_multiple_of(SOURCE_BYTES),
        };
        is_fitting.then(|| NvmeCommand { opcode, nsid, cdw10_15, ..NvmeCommand::default() })
    }
}

/// Why a command did not succeed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// The status of the controller, or of the driver in its place, without the phase tag (NVMe Base 2.0, 3.3.3.2.1).
    Status(u16),
    /// The kernel did not take the command, or ended it without a status.
    Kernel(Fault),
}

/// A namespace on one core.
pub struct Namespace {
    reactor: Reactor,
    device: Handle,
    nsid: u32,
    block_bytes: u32,
    /// Commands that were used before, so that a command allocates nothing. The driver takes them boxed.
    #[expect(clippy::vec_box, reason = "a command moves into the driver and back in its box")]
    spare: RefCell<Vec<Box<Command>>>,
}

impl Namespace {
    fn over(reactor: &Reactor, endpoint: Endpoint, nsid: u32, block_bytes: u32) -> io::Result<Self> {
        let device = reactor.attach(endpoint)?;
        Ok(Self { reactor: reactor.clone(), device, nsid, block_bytes, spare: RefCell::default() })
    }

    /// A simulated namespace.
    ///
    /// # Errors
    /// When the endpoint is attached already.
    #[cfg(any(test, feature = "testing"))]
    pub fn simulated(reactor: &Reactor, number: u32, nsid: u32, block_bytes: u32) -> io::Result<Self> {
        Self::over(reactor, Endpoint::Simulated(number), nsid, block_bytes)
    }

    /// Bytes of a block.
    #[must_use]
    pub fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    /// Executes a command; its memory comes back, unless the core has ended. The kernel cannot cancel a command: it
    /// ends with the answer of the controller, or when the kernel has reset the controller because there was none for
    /// its time-out (`nvme_core.io_timeout`, 30 seconds).
    ///
    /// # Errors
    /// [`Failure`]. [`Fault::OUT_OF_RANGE`] if the memory is not that of whole blocks.
    pub async fn execute(
        &self,
        request: Request,
        data: Data,
        completion: &mut Completion,
    ) -> (Result<(), Failure>, Data) {
        let Some(command) = request.command(self.nsid, self.block_bytes, data.len()) else {
            return (Err(Failure::Kernel(Fault::OUT_OF_RANGE)), data);
        };
        let request = DeviceRequest::Nvme(command);
        let spare = self.spare.borrow_mut().pop();
        let command = match spare {
            Some(mut spare) => {
                (spare.request, spare.data) = (request, data);
                spare
            }
            None => Command::new(request, data),
        };
        let (result, command) = self.reactor.command(&self.device, command, completion).await;
        let result = match result {
            Ok(0) => Ok(()),
            Ok(status) => Err(Failure::Status(status as u16)),
            Err(fault) => Err(Failure::Kernel(fault)),
        };
        let Some(mut command) = command else { return (result, Data::None) };
        let data = std::mem::take(&mut command.data);
        self.spare.borrow_mut().push(command);
        (result, data)
    }
}

impl fmt::Debug for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Namespace({}, blocks of {})", self.nsid, self.block_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, memfd_create};

    fn command(request: Request, len: usize) -> Option<(u8, [u32; 6])> {
        request.command(7, 4096, len).map(|command| {
            assert_eq!((command.nsid, command.is_admin, command.cdw2_3, command.timeout_ms), (7, false, [0; 2], 0));
            (command.opcode, command.cdw10_15)
        })
    }

    #[test]
    fn commands_have_the_layout_of_the_standard() {
        let block = 0x0102_0304_0506_0708;
        let (low, high) = (0x0506_0708, 0x0102_0304);
        assert_eq!(command(Request::Read { block }, 8192), Some((0x02, [low, high, 1, 0, 0, 0])));
        let write = |durable| command(Request::Write { block, durable }, 4096);
        assert_eq!(write(false), Some((0x01, [low, high, 0, 0, 0, 0])));
        assert_eq!(write(true), Some((0x01, [low, high, 0x4000_0000, 0, 0, 0])));
        assert_eq!(command(Request::Flush, 0), Some((0x00, [0; 6])));
        assert_eq!(command(Request::Deallocate, 16), Some((0x09, [0, 4, 0, 0, 0, 0])));
        let range = Request::range(block, 0x0a0b);
        assert_eq!(range, [0, 0, 0, 0, 0x0b, 0x0a, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1]);
        let zero = |count, deallocate, durable| command(Request::Zero { block, count, deallocate, durable }, 0);
        assert_eq!(zero(3, false, false), Some((0x08, [low, high, 2, 0, 0, 0])));
        assert_eq!(zero(BLOCKS_MAX, true, true), Some((0x08, [low, high, 0x4200_ffff, 0, 0, 0])));
        assert_eq!((zero(0, false, false), zero(BLOCKS_MAX + 1, false, false)), (None, None));
        let copy = |len| command(Request::Copy { block, durable: true }, len);
        assert_eq!(copy(2 * SOURCE_BYTES), Some((0x19, [low, high, 0x4000_0001, 0, 0, 0])));
        assert_eq!([0, 33, SOURCE_BYTES * (SOURCES_MAX + 1)].map(copy), [None; 3]);
        let source = Request::source(block, 0x0a0b);
        assert_eq!(source[..18], [0, 0, 0, 0, 0, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1, 0x0a, 0x0a]);
        assert_eq!(source[18..], [0; 14]);
    }

    #[test]
    fn a_lock_of_blocks_lasts_as_long_as_any_copy_of_its_open_file() {
        let path = std::env::temp_dir().join(format!("lunar-nvme-lock-{}", std::process::id()));
        let open = || {
            let mut options = std::fs::OpenOptions::new();
            OwnedFd::from(options.read(true).write(true).create(true).truncate(false).open(&path).expect("room"))
        };
        let [first, other] = [open(), open()];
        lock(&first, 4096, 8192).expect("nobody has it");
        lock(&first, 4096, 16384).expect("it is its own");
        lock(&other, 0, 4096).expect("another partition");
        let is_taken = || lock(&other, 16384, 65536).is_err_and(|why| why.kind() == io::ErrorKind::WouldBlock);
        assert!(is_taken());
        let copy = first.try_clone().expect("room");
        drop(first);
        assert!(is_taken(), "commands in progress have the open file");
        drop(copy);
        assert!(!is_taken());
        std::fs::remove_file(path).expect("it is ours");
    }

    #[test]
    fn a_command_moves_no_more_than_its_memory() {
        let read = Request::Read { block: 0 };
        for (len, is_taken) in [(0, false), (4095, false), (4096, true), (4097, false), (4096 << 16, true)] {
            assert_eq!(command(read, len).is_some(), is_taken, "{len}");
        }
        assert_eq!(command(read, (4096 << 16) + 4096), None);
        assert_eq!((command(Request::Flush, 4096), command(Request::Deallocate, 32)), (None, None));
    }

    #[test]
    fn the_format_is_the_one_in_use() {
        let mut page = [0; IDENTIFY_BYTES];
        (page[25], page[26]) = (1, 1);
        page[128..136].copy_from_slice(&[0, 0, 9, 0, 8, 0, 12, 0]);
        assert_eq!(Format::of(&page), Some(Format { block_bytes: 4096, metadata_bytes: 8 }));
        page[26] = 0x20;
        assert_eq!(
            Format::of(&page),
            Some(Format { block_bytes: 512, metadata_bytes: 0 }),
            "the upper bits do not count"
        );
        page[25] = 16;
        page[128 + 4 * 16 + 2] = 16;
        assert_eq!(Format::of(&page), Some(Format { block_bytes: 65536, metadata_bytes: 0 }));
        for shift in [0, 8, 17, 255] {
            page[128 + 4 * 16 + 2] = shift;
            assert_eq!(Format::of(&page), None, "{shift}");
        }
        // The last format of the structure.
        (page[25], page[26]) = (255, 0x6f);
        assert_eq!(Format::of(&page), None);
    }

    #[test]
    fn other_files_are_no_namespaces() {
        let null = std::fs::File::open("/dev/null").expect("it is there");
        for fd in [null.into(), memfd_create("file", MemfdFlags::CLOEXEC).expect("a memfd")] {
            assert_eq!(Node::adopt(fd).expect_err("no namespace").kind(), io::ErrorKind::InvalidInput);
        }
    }
}
