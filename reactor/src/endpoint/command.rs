//! Commands that a device takes through io_uring (IORING_OP_URING_CMD): NVMe pass-through, and ublk.
//!
//! A command is a value of a known layout. Where the layout has an address and a length, the driver fills in those of
//! the command's memory, which it owns until the device has answered: a command cannot name other memory.

use super::ublk::Descriptors;
use crate::vector::{PIECES_MAX, Vector};
use lunar_core::io::Data;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

/// NVME_URING_CMD_IO of linux/nvme_ioctl.h: `_IOWR('N', 0x80, struct nvme_uring_cmd)`, of 72 bytes.
const NVME_IO: u32 = 0xc048_4e80;
/// NVME_URING_CMD_ADMIN: the same with number 0x82.
const NVME_ADMIN: u32 = 0xc048_4e82;
/// A flag of either number: the address is that of a list of pieces, and the length is their number.
const NVME_VECTORED: u32 = 1;
/// NVME_IOCTL_IO64_CMD, the same command as a call that waits: `_IOWR('N', 0x48, struct nvme_passthru_cmd64)`, of 80
/// bytes, and NVME_IOCTL_ADMIN64_CMD. They have the same flag.
const NVME_IO_CALL: u32 = 0xc050_4e48;
const NVME_ADMIN_CALL: u32 = 0xc050_4e47;
/// `_IOR('u', 0, struct ublksrv_ctrl_cmd)` of linux/ublk_cmd.h, of 32 bytes.
const UBLK_CONTROL_READ: u32 = 0x8020_7500;
/// `_IOWR('u', 0, struct ublksrv_ctrl_cmd)`.
const UBLK_CONTROL_WRITE: u32 = 0xc020_7500;
/// `_IOWR('u', 0, struct ublksrv_io_cmd)`, of 16 bytes.
const UBLK_QUEUE: u32 = 0xc010_7500;

/// Bytes of a command in an SQE of 128 bytes.
pub(crate) const WIDE: usize = 80;
/// Bytes of a command in an SQE of 64 bytes.
pub(crate) const NARROW: usize = 16;

/// The commands of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// [`Request::Nvme`]: a namespace (/dev/ng0n1) or a controller (/dev/nvme0).
    Nvme,
    /// [`Request::UblkControl`]: /dev/ublk-control.
    UblkControl,
    /// [`Request::UblkQueue`]: a ublk device (/dev/ublkc0).
    UblkQueue {
        /// The largest request of the device in bytes (`max_io_buf_bytes`), for which each command has memory.
        buffer_bytes: usize,
    },
}

/// A device that takes commands. Any thread may open it, before its core starts.
#[derive(Debug)]
pub struct CommandDevice {
    pub(crate) fd: OwnedFd,
    pub(crate) family: Family,
    /// Of a ublk queue: where the kernel describes the requests.
    pub(crate) descriptors: Option<Descriptors>,
}

impl CommandDevice {
    /// Opens the device at `path`.
    ///
    /// # Safety
    /// The kernel and the device move as many bytes as a command says in the fields that the device interprets, even
    /// if its memory has fewer. Each command that is submitted to the device must have memory for all that it
    /// transfers, and [`Family::UblkQueue`] must state the size that the device was added with.
    ///
    /// # Errors
    /// The error of the operating system, with the path.
    pub unsafe fn open(path: &Path, family: Family) -> io::Result<Self> {
        let file = File::options().read(true).write(true).open(path);
        let file = file.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
        Ok(Self { fd: file.into(), family, descriptors: None })
    }
}

impl CommandDevice {
    /// Whether its commands need an SQE of 128 bytes and a CQE of 32.
    pub(crate) fn is_wide(&self) -> bool {
        !matches!(self.family, Family::UblkQueue { .. })
    }
}

/// One command, with its memory and the answer of the device. It is reused, so that a command allocates nothing.
#[derive(Debug)]
pub struct Command {
    /// The request to the device.
    pub request: Request,
    /// The memory of the command, which the device fills or reads.
    pub data: Data,
    /// NVMe: the memory of the metadata, in one piece.
    pub metadata: Data,
    /// The second half of the completion, if the ring has one: for NVMe, Dwords 0 and 1 of the completion queue entry
    /// in the first number. For a ublk queue, the descriptor of the request: `op_flags` and, 32 bits higher,
    /// `nr_sectors` in the first number, `start_sector` in the second.
    pub result: [u64; 2],
}

impl Command {
    /// A command without metadata.
    #[must_use]
    pub fn new(request: Request, data: Data) -> Box<Self> {
        Box::new(Self { request, data, metadata: Data::None, result: [0; 2] })
    }

    /// Whether its memory has as many pieces as its layout can name.
    pub(crate) fn has_fitting_pieces(&mut self, vector: &mut Vector) -> bool {
        vector.gather_all(&mut self.metadata);
        let has_metadata = vector.pieces().len() <= 1;
        vector.gather_all(&mut self.data);
        let pieces_max = if self.request.takes_list() { PIECES_MAX } else { 1 };
        has_metadata && vector.pieces().len() <= pieces_max
    }

    /// The command in the layout of the device, with the addresses of its memory. A list of pieces stays in `vector`.
    pub(crate) fn encode(&mut self, vector: &mut Vector) -> Encoded {
        let place = |vector: &Vector| match vector.pieces() {
            [] => Place::default(),
            [piece] => {
                let len = u32::try_from(piece.iov_len).unwrap_or(u32::MAX);
                Place { address: piece.iov_base.expose_provenance() as u64, len, is_list: false }
            }
            pieces => {
                Place { address: pieces.as_ptr().expose_provenance() as u64, len: pieces.len() as u32, is_list: true }
            }
        };
        vector.gather_all(&mut self.metadata);
        let metadata = place(vector);
        vector.gather_all(&mut self.data);
        self.request.encode(place(vector), metadata)
    }
}

/// A request to a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    /// An NVMe command. The operation answers the status of the completion queue entry without its phase tag (NVMe
    /// Base 2.0, 3.3.3.2.1), 0 if the command succeeded.
    Nvme(NvmeCommand),
    /// A control command of ublk. Its memory is [`Data::In`] or none; the kernel reads it and may fill it.
    UblkControl(UblkControl),
    /// A command of a ublk queue: it is answered when the kernel has a request for the tag.
    UblkQueue(UblkQueue),
}

/// An NVMe command, without the fields that describe its memory (NVMe Base 2.0, 3.3.3.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NvmeCommand {
    /// Whether it is a command of the admin queue.
    pub is_admin: bool,
    /// Its opcode, whose low two bits state the direction of the data.
    pub opcode: u8,
    /// The namespace.
    pub nsid: u32,
    /// Command Dwords 2 and 3.
    pub cdw2_3: [u32; 2],
    /// Command Dwords 10 to 15.
    pub cdw10_15: [u32; 6],
    /// The time in milliseconds after which the kernel resets the controller; 0: the kernel's default, 30 seconds.
    pub timeout_ms: u32,
}

/// A control command of ublk (`struct ublksrv_ctrl_cmd`), without the fields that describe its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct UblkControl {
    /// Its number, such as 4 for ADD_DEV.
    pub number: u8,
    /// Whether the number is encoded as a read-only one (`_IOR`), as for GET commands.
    pub only_reads: bool,
    /// The device.
    pub device: u32,
    /// The queue, 65535 for none.
    pub queue: u16,
    /// The data field that some commands have.
    pub data: u64,
    /// Bytes of the path of the device, at the start of the memory: for unprivileged devices.
    pub path_len: u16,
}

/// A command of a ublk queue (`struct ublksrv_io_cmd`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct UblkQueue {
    /// Its number: 0x20 FETCH_REQ, 0x21 COMMIT_AND_FETCH_REQ.
    pub number: u8,
    /// The queue.
    pub queue: u16,
    /// The tag.
    pub tag: u16,
    /// COMMIT: the result of the request that the tag had: bytes, or a negative errno.
    pub result: i32,
}

/// The fields of a submission.
pub(crate) struct Encoded {
    /// `cmd_op` of the submission.
    pub(crate) operation: u32,
    pub(crate) bytes: [u8; WIDE],
}

/// The memory in the fields of a command.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    /// The address of the bytes, or of the list of their pieces.
    pub(crate) address: u64,
    /// Number of bytes, or of pieces.
    pub(crate) len: u32,
    pub(crate) is_list: bool,
}

impl Request {
    /// Whether it needs an SQE of 128 bytes and a CQE of 32.
    pub(crate) fn is_wide(&self) -> bool {
        !matches!(self, Self::UblkQueue(_))
    }

    /// Whether a device supports the command with this memory.
    pub(crate) fn fits(&self, family: Family, data: &Data) -> bool {
        let fills = matches!(data, Data::In(_));
        match (self, family) {
            (Self::Nvme(command), Family::Nvme) => match command.opcode & 3 {
                // The device fills the memory, or transfers in both directions.
                2 | 3 => fills,
                1 => matches!(data, Data::Out(_)),
                _ => data.is_empty(),
            },
            (Self::UblkControl(_), Family::UblkControl) => {
                (fills || data.is_empty()) && u16::try_from(data.len()).is_ok()
            }
            (Self::UblkQueue(_), Family::UblkQueue { buffer_bytes }) => fills && data.len() >= buffer_bytes,
            _ => false,
        }
    }

    /// Whether the memory may have several pieces.
    pub(crate) fn takes_list(&self) -> bool {
        matches!(self, Self::Nvme(_))
    }

    /// The command in the layout of the device.
    pub(crate) fn encode(&self, data: Place, metadata: Place) -> Encoded {
        let mut bytes = [0; WIDE];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        let operation = match self {
            Self::Nvme(command) => {
                put(0, &[command.opcode]);
                put(4, &command.nsid.to_ne_bytes());
                put(8, &command.cdw2_3[0].to_ne_bytes());
                put(12, &command.cdw2_3[1].to_ne_bytes());
                put(16, &metadata.address.to_ne_bytes());
                put(24, &data.address.to_ne_bytes());
                put(32, &metadata.len.to_ne_bytes());
                put(36, &data.len.to_ne_bytes());
                for (at, word) in command.cdw10_15.iter().enumerate() {
                    put(40 + 4 * at, &word.to_ne_bytes());
                }
                put(64, &command.timeout_ms.to_ne_bytes());
                let operation = if command.is_admin { NVME_ADMIN } else { NVME_IO };
                operation + u32::from(data.is_list) * NVME_VECTORED
            }
            Self::UblkControl(command) => {
                put(0, &command.device.to_ne_bytes());
                put(4, &command.queue.to_ne_bytes());
                put(6, &(data.len as u16).to_ne_bytes());
                put(8, &data.address.to_ne_bytes());
                put(16, &command.data.to_ne_bytes());
                put(24, &command.path_len.to_ne_bytes());
                let base = if command.only_reads { UBLK_CONTROL_READ } else { UBLK_CONTROL_WRITE };
                base | u32::from(command.number)
            }
            Self::UblkQueue(command) => {
                put(0, &command.queue.to_ne_bytes());
                put(2, &command.tag.to_ne_bytes());
                put(4, &command.result.to_ne_bytes());
                put(8, &data.address.to_ne_bytes());
                UBLK_QUEUE | u32::from(command.number)
            }
        };
        Encoded { operation, bytes }
    }
}

impl Encoded {
    /// The number of the call (ioctl(2)) that executes the command and waits for it; `None` for commands that no call
    /// executes.
    pub(crate) fn call(&self) -> Option<u32> {
        match self.operation & !NVME_VECTORED {
            NVME_IO => Some(NVME_IO_CALL | self.operation & NVME_VECTORED),
            // The numbers of vectored calls of the admin queue do not exist.
            NVME_ADMIN if self.operation == NVME_ADMIN => Some(NVME_ADMIN_CALL),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_core::mem::{Arena, Sg};

    fn place(address: u64, len: u32) -> Place {
        Place { address, len, is_list: false }
    }

    #[test]
    fn an_nvme_command_has_the_layout_of_the_kernel() {
        let command = NvmeCommand {
            is_admin: false,
            opcode: 0x02,
            nsid: 0x0102_0304,
            cdw2_3: [2, 3],
            cdw10_15: [10, 11, 12, 13, 14, 15],
            timeout_ms: 0x0a0b,
        };
        let request = Request::Nvme(command);
        let encoded = request.encode(place(0x1122_3344_5566_7788, 4096), place(0x99, 64));
        assert_eq!(encoded.operation, 0xc048_4e80);
        let word = |at: usize| u32::from_ne_bytes(encoded.bytes[at..at + 4].try_into().expect("four bytes"));
        assert_eq!((encoded.bytes[0], encoded.bytes[1], word(4), word(8), word(12)), (2, 0, 0x0102_0304, 2, 3));
        let long = |at: usize| u64::from_ne_bytes(encoded.bytes[at..at + 8].try_into().expect("eight bytes"));
        assert_eq!((long(16), long(24), word(32), word(36)), (0x99, 0x1122_3344_5566_7788, 64, 4096));
        assert_eq!([40, 44, 48, 52, 56, 60, 64, 68].map(word), [10, 11, 12, 13, 14, 15, 0x0a0b, 0]);
        let admin = Request::Nvme(NvmeCommand { is_admin: true, ..command });
        assert_eq!(admin.encode(Place::default(), Place::default()).operation, 0xc048_4e82);
        let list = Place { address: 1, len: 2, is_list: true };
        let vectored = request.encode(list, Place::default());
        assert_eq!(vectored.operation, 0xc048_4e81);
        let calls = [encoded.call(), vectored.call(), admin.encode(Place::default(), Place::default()).call()];
        assert_eq!(calls, [Some(0xc050_4e48), Some(0xc050_4e49), Some(0xc050_4e47)]);
        assert_eq!(admin.encode(list, Place::default()).call(), None);
        assert_eq!(Request::UblkQueue(UblkQueue::default()).encode(list, Place::default()).call(), None);
    }

    #[test]
    fn ublk_commands_have_the_layout_of_the_kernel() {
        let control = UblkControl { number: 4, only_reads: false, device: 7, queue: 65535, data: 9, path_len: 13 };
        let encoded = Request::UblkControl(control).encode(place(0x55, 64), Place::default());
        assert_eq!(encoded.operation, 0xc020_7504);
        let expected = [7, 0, 0, 0, 255, 255, 64, 0, 0x55, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 13, 0];
        assert_eq!(encoded.bytes[..26], expected);
        let get = Request::UblkControl(UblkControl { number: 0x13, only_reads: true, ..control });
        assert_eq!(get.encode(Place::default(), Place::default()).operation, 0x8020_7513);
        let queue = Request::UblkQueue(UblkQueue { number: 0x21, queue: 1, tag: 2, result: -5 });
        let encoded = queue.encode(place(0x66, 1), Place::default());
        assert_eq!((encoded.operation, queue.is_wide()), (0xc010_7521, false));
        assert_eq!(encoded.bytes[..16], [1, 0, 2, 0, 0xfb, 0xff, 0xff, 0xff, 0x66, 0, 0, 0, 0, 0, 0, 0]);
        assert!(encoded.bytes[NARROW..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn memory_must_suit_the_direction_and_the_device() {
        let arena = Arena::new(1 << 20);
        let fill = || Data::In(arena.take_sg(4096).expect("room"));
        let out = Data::Out(Sg::from(arena.copy(&[0; 512]).expect("room")));
        let nvme = |opcode| Request::Nvme(NvmeCommand { opcode, ..NvmeCommand::default() });
        assert!(nvme(0x02).fits(Family::Nvme, &fill()) && !nvme(0x02).fits(Family::Nvme, &out));
        assert!(nvme(0x01).fits(Family::Nvme, &out) && !nvme(0x01).fits(Family::Nvme, &fill()));
        assert!(nvme(0x00).fits(Family::Nvme, &Data::None) && !nvme(0x00).fits(Family::Nvme, &out));
        assert!(!nvme(0x00).fits(Family::UblkControl, &Data::None));
        let queue = Request::UblkQueue(UblkQueue::default());
        assert!(queue.fits(Family::UblkQueue { buffer_bytes: 4096 }, &fill()));
        assert!(!queue.fits(Family::UblkQueue { buffer_bytes: 4097 }, &fill()));
        assert!(!Request::UblkControl(UblkControl::default()).fits(Family::UblkControl, &out));
    }
}
