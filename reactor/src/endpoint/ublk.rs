//! Block devices that this process serves (ublk): how they are opened. The kernel writes the descriptor of each request
//! into memory that it shares, and the driver copies it into [`Command::result`].

use super::command::{Command, CommandDevice, Encoded, Family, Place, Request, UblkControl};
use crate::sys::raw;
use io_uring::types::Fd;
use io_uring::{IoUring, cqueue, opcode, squeue};
use lunar_core::mem::PAGE;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::ptr::NonNull;

/// The device that makes other devices, of the kernel module ublk_drv.
pub const CONTROL: &str = "/dev/ublk-control";
/// Bytes of the descriptor of a request (`struct ublksrv_io_desc` of linux/ublk_cmd.h).
const DESCRIPTOR: usize = 24;
/// The most tags of a queue (UBLK_MAX_QUEUE_DEPTH): the descriptors of queues are so far apart.
const DEPTH_MAX: usize = 4096;
/// UBLK_CMD_GET_DEV_INFO2, which names the node of the device so that an unprivileged process may ask, and the bytes of
/// its answer (`struct ublksrv_ctrl_dev_info`).
const GET_DEV_INFO2: u8 = 0x12;
const INFO: usize = 64;
/// Where the answer has the features, of which this bit is for unprivileged devices, and the owner.
const FLAGS_AT: usize = 24;
const UNPRIVILEGED: u32 = 1 << 5;
const OWNER_AT: usize = 40;
/// No queue, in a control command.
const NO_QUEUE: u16 = u16::MAX;

/// The path of the character device through which a device is served.
#[must_use]
pub fn served_at(number: u32) -> String {
    format!("/dev/ublkc{number}")
}

impl CommandDevice {
    /// Opens [`CONTROL`].
    ///
    /// # Errors
    /// The error of the operating system, with the path.
    pub fn ublk_control() -> io::Result<Self> {
        // SAFETY: the kernel moves no more bytes than the length in a control command, which is that of its memory.
        unsafe { Self::open(Path::new(CONTROL), Family::UblkControl) }
    }
}

/// A device that was added, and that this process alone has opened. Any thread may open it.
#[derive(Debug)]
pub struct UblkDevice {
    fd: OwnedFd,
    queues: u16,
    depth: u16,
    buffer_bytes: usize,
}

impl UblkDevice {
    /// Opens the device of this number. Waits for the kernel for a moment.
    ///
    /// # Errors
    /// The error of the operating system, with the path: `ResourceBusy` while another process has it open.
    pub fn open(number: u32) -> io::Result<Self> {
        let path = served_at(number);
        let told = |error: io::Error| io::Error::new(error.kind(), format!("{path}: {error}"));
        let file = File::options().read(true).write(true).open(&path).map_err(told)?;
        // Asked after it was opened: no device with other sizes can have this number any more.
        let info = info(number).map_err(told)?;
        let short = |at: usize| u16::from_ne_bytes([info[at], info[at + 1]]);
        let buffer_bytes = u32::from_ne_bytes([info[8], info[9], info[10], info[11]]) as usize;
        Ok(Self { fd: file.into(), queues: short(0), depth: short(2), buffer_bytes })
    }

    /// Queues of the device.
    #[must_use]
    pub fn queues(&self) -> u16 {
        self.queues
    }

    /// Tags of each queue.
    #[must_use]
    pub fn depth(&self) -> u16 {
        self.depth
    }

    /// Bytes of memory that each command of a queue needs.
    #[must_use]
    pub fn buffer_bytes(&self) -> usize {
        self.buffer_bytes
    }

    /// The endpoint of one queue, for the core that serves it.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn queue(&self, queue: u16) -> io::Result<CommandDevice> {
        let fd = self.fd.try_clone()?;
        let descriptors = Descriptors::map(&fd, queue, self.depth)?;
        let family = Family::UblkQueue { buffer_bytes: self.buffer_bytes };
        Ok(CommandDevice { fd, family, descriptors: Some(descriptors) })
    }
}

/// The descriptors of a queue, which the kernel writes.
pub(crate) struct Descriptors {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: it is an address range, which belongs to the process and not to a thread.
unsafe impl Send for Descriptors {}

impl std::fmt::Debug for Descriptors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Descriptors({} bytes)", self.len)
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: mapped by this module with this length, and no address in it is used after the drop.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

impl Descriptors {
    /// Maps those of a queue with so many tags.
    fn map(fd: &OwnedFd, queue: u16, depth: u16) -> io::Result<Self> {
        let len = (usize::from(depth) * DESCRIPTOR).next_multiple_of(PAGE);
        let offset = usize::from(queue) * (DEPTH_MAX * DESCRIPTOR).next_multiple_of(PAGE);
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let base = unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, fd, offset as u64) }?;
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, len })
    }

    /// Puts the descriptor of the request of a command's tag into its result: `op_flags` and `nr_sectors` in the first
    /// number, `start_sector` in the second.
    pub(crate) fn describe(&self, command: &mut Command) {
        let Request::UblkQueue(queue) = command.request else { return };
        let at = usize::from(queue.tag) * DESCRIPTOR;
        if at + DESCRIPTOR > self.len {
            return;
        }
        // SAFETY: within the mapping, and aligned, as the start and the length of descriptors are. The kernel does not
        // change the descriptor of a tag while this process has its request.
        let half = |at: usize| unsafe { self.base.add(at).cast::<u64>().read_volatile() };
        command.result = [half(at), half(at + 8)];
    }
}

/// The user and the group that own a device without privileges; `None` for a device of a privileged process. For the
/// service of nodes, which gives them the nodes of the device.
///
/// # Errors
/// The error of the operating system.
pub fn owner(number: u32) -> io::Result<Option<(u32, u32)>> {
    let info = info(number)?;
    let word = |at: usize| u32::from_ne_bytes([info[at], info[at + 1], info[at + 2], info[at + 3]]);
    Ok((word(FLAGS_AT) & UNPRIVILEGED != 0).then(|| (word(OWNER_AT), word(OWNER_AT + 4))))
}

/// Asks the kernel about a device.
fn info(number: u32) -> io::Result<Box<[u8; INFO]>> {
    let control = CommandDevice::ublk_control()?;
    let mut ring: IoUring<squeue::Entry128, cqueue::Entry> = IoUring::builder().dontfork().build(1)?;
    // The path of the node, and the answer behind it.
    let path = served_at(number);
    let mut memory = path.clone().into_bytes();
    memory.resize(path.len() + INFO, 0);
    let mut memory = memory.into_boxed_slice();
    let (number, device) = (GET_DEV_INFO2, number);
    // The path of a node is short.
    let path_len = path.len() as u16;
    let request = UblkControl { number, only_reads: true, device, queue: NO_QUEUE, data: 0, path_len };
    let (address, len) = (memory.as_mut_ptr().expose_provenance() as u64, memory.len() as u32);
    let place = Place { address, len, is_list: false };
    let Encoded { operation, bytes } = Request::UblkControl(request).encode(place, Place::default());
    let sqe = opcode::UringCmd80::new(Fd(raw(&control.fd)), operation).cmd(bytes).build();
    // SAFETY: the memory lives until the command has ended: otherwise it is leaked.
    unsafe { ring.submission().push(&sqe) }.map_err(io::Error::other)?;
    loop {
        match ring.submit_and_wait(1) {
            Err(why) if why.kind() != io::ErrorKind::Interrupted => {
                Box::leak(memory);
                return Err(why);
            }
            _ => {}
        }
        match ring.completion().next().map(|cqe| cqe.result()) {
            None => {}
            Some(0..) => return Ok(Box::new(std::array::from_fn(|at| memory[path.len() + at]))),
            Some(error) => return Err(io::Error::from_raw_os_error(-error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::command::UblkQueue;
    use super::*;
    use lunar_core::io::Data;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use std::os::unix::fs::FileExt;

    #[test]
    fn the_descriptor_of_a_tag_becomes_its_result() {
        let file = File::from(memfd_create("descriptors", MemfdFlags::CLOEXEC).expect("a memfd"));
        let second = (DEPTH_MAX * DESCRIPTOR) as u64;
        ftruncate(&file, 2 * second).expect("room");
        let mut descriptor = [0_u8; DESCRIPTOR];
        descriptor[..4].copy_from_slice(&1_u32.to_ne_bytes());
        descriptor[4..8].copy_from_slice(&8_u32.to_ne_bytes());
        descriptor[8..16].copy_from_slice(&77_u64.to_ne_bytes());
        file.write_all_at(&descriptor, second + 3 * DESCRIPTOR as u64).expect("room");
        let queue = Descriptors::map(&file.into(), 1, 4).expect("it is mapped");
        let command = |tag| {
            let fetch = UblkQueue { number: 0x20, queue: 1, tag, result: 0 };
            let mut command = Command::new(Request::UblkQueue(fetch), Data::None);
            queue.describe(&mut command);
            command.result
        };
        assert_eq!(command(3), [1 | 8 << 32, 77]);
        assert_eq!((command(2), command(200)), ([0; 2], [0; 2]), "no request, no such tag");
    }

    #[test]
    fn a_device_that_is_missing_is_named() {
        let why = UblkDevice::open(u32::MAX).expect_err("there is none");
        assert!(why.kind() == io::ErrorKind::NotFound && why.to_string().contains("/dev/ublkc4294967295"), "{why}");
    }
}
