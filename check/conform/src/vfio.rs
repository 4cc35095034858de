//! A vfio-user client that is emulator and guest in one: the messages, a memory file, and NVMe queues in that file. It
//! accesses the file by reads and writes and does not map it. It can break every rule.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{IoSlice, Read, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// Commands of vfio-user.
pub(crate) mod code {
    pub(crate) const VERSION: u16 = 1;
    pub(crate) const MAP: u16 = 2;
    pub(crate) const UNMAP: u16 = 3;
    pub(crate) const SET_IRQS: u16 = 8;
    pub(crate) const READ: u16 = 9;
    pub(crate) const WRITE: u16 = 10;
    pub(crate) const RESET: u16 = 13;
    pub(crate) const FEATURE: u16 = 16;
    pub(crate) const MIGRATION_READ: u16 = 17;
    pub(crate) const MIGRATION_WRITE: u16 = 18;
}

/// Features and flags of DEVICE_FEATURE.
pub(crate) mod feature {
    pub(crate) const MIGRATION: u32 = 1;
    pub(crate) const STATE: u32 = 2;
    pub(crate) const LOGGING_START: u32 = 6;
    pub(crate) const LOGGING_REPORT: u32 = 8;
    pub(crate) const GET: u32 = 1 << 16;
    pub(crate) const SET: u32 = 1 << 17;
}

/// Migration states of the device.
pub(crate) mod state {
    pub(crate) const STOP: u32 = 1;
    pub(crate) const RUNNING: u32 = 2;
    pub(crate) const STOP_COPY: u32 = 3;
    pub(crate) const RESUMING: u32 = 4;
}

/// Bytes of guest memory, which begins at address zero.
pub(crate) const MEMORY: u64 = 16 << 20;
/// The address of data buffers.
pub(crate) const DATA: u64 = 1 << 20;
/// The two pages of Doorbell Buffer Config: shadow doorbells and EventIdx.
pub(crate) const SHADOW: u64 = 0x3000;
pub(crate) const EVENTS: u64 = 0x4000;
/// Entries of an I/O queue: one page of submission queue entries.
pub(crate) const ENTRIES: u16 = 64;
/// A target that has not answered by then is taken for hung.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_micros(50);
/// Offsets of controller registers.
const CC: u64 = 0x14;
const CSTS: u64 = 0x1c;
const DOORBELLS: u64 = 0x1000;

/// A submission queue entry.
#[derive(Clone, Copy)]
pub(crate) struct Entry(pub [u8; 64]);

impl Entry {
    pub(crate) fn new(opcode: u8, namespace: u32) -> Self {
        let mut bytes = [0; 64];
        bytes[0] = opcode;
        bytes[4..8].copy_from_slice(&namespace.to_le_bytes());
        Self(bytes)
    }

    pub(crate) fn pages(mut self, first: u64, second: u64) -> Self {
        self.0[24..32].copy_from_slice(&first.to_le_bytes());
        self.0[32..40].copy_from_slice(&second.to_le_bytes());
        self
    }

    /// Sets command dword `number`.
    pub(crate) fn dword(mut self, number: usize, value: u32) -> Self {
        self.0[number * 4..number * 4 + 4].copy_from_slice(&value.to_le_bytes());
        self
    }

    /// A Read or Write command.
    pub(crate) fn blocks(opcode: u8, namespace: u32, block: u32, count: u32) -> Self {
        Self::new(opcode, namespace).dword(10, block).dword(12, count - 1)
    }
}

/// The addresses of a queue pair: submission queue, completion queue, PRP list.
pub(crate) fn queue_addresses(queue: u16) -> [u64; 3] {
    match queue {
        0 => [0, 0x1000, 0x2000],
        _ => {
            let at = 0x1_0000 + u64::from(queue) * 0x4000;
            [at, at + 0x1000, at + 0x2000]
        }
    }
}

/// Indexes of a queue pair: the submission tail, the completion head, and the expected phase tag.
#[derive(Clone, Copy)]
struct QueueState {
    tail: u16,
    head: u16,
    phase: bool,
}

pub(crate) struct Guest {
    socket: UnixStream,
    id: u16,
    pub(crate) memory: File,
    queues: [QueueState; 8],
    next: u16,
    /// Whether Doorbell Buffer Config is in effect.
    has_shadow: bool,
}

impl Guest {
    /// Connects, negotiates the version and maps all guest memory.
    pub(crate) fn start(socket: &Path) -> Result<Self> {
        let mut guest = Self::connect(socket)?;
        let hello = [&[0, 0, 1, 0][..], b"{\"capabilities\":{\"max_msg_fds\":8}}\0"].concat();
        guest.call_ok(code::VERSION, &hello, &[])?;
        let memory = guest.memory.try_clone()?;
        guest.call_ok(code::MAP, &map(0, 0, MEMORY), &[memory.as_fd()])?;
        Ok(guest)
    }

    /// Connects, enables the controller and creates this many I/O queue pairs.
    pub(crate) fn boot(socket: &Path, queues: u16) -> Result<Self> {
        let mut guest = Self::start(socket)?;
        guest.enable()?;
        for queue in 1..=queues {
            guest.create(queue)?;
        }
        Ok(guest)
    }

    /// Connects without sending anything.
    pub(crate) fn connect(socket: &Path) -> Result<Self> {
        let socket = UnixStream::connect(socket).context("the controller's socket")?;
        socket.set_read_timeout(Some(ANSWER_LIMIT))?;
        let memory = File::from(memfd_create("guest", MemfdFlags::CLOEXEC)?);
        memory.set_len(MEMORY)?;
        Ok(Self {
            socket,
            id: 0,
            memory,
            queues: [QueueState { tail: 0, head: 0, phase: true }; 8],
            next: 0,
            has_shadow: false,
        })
    }

    /// Sends bytes that need not be a message.
    pub(crate) fn send_raw(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(self.socket.write_all(bytes)?)
    }

    /// Reads until the target closes the connection; false if it does not in time.
    pub(crate) fn is_closed(&mut self) -> bool {
        let mut bytes = [0; 4096];
        loop {
            match self.socket.read(&mut bytes) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(why) => return why.kind() == std::io::ErrorKind::ConnectionReset,
            }
        }
    }

    /// Sends a message and waits for its reply: the payload, or the errno of an error reply.
    pub(crate) fn call(&mut self, code: u16, payload: &[u8], files: &[BorrowedFd<'_>]) -> Result<Result<Vec<u8>, u32>> {
        self.id = self.id.wrapping_add(1);
        let size = u32::try_from(16 + payload.len())?;
        let mut bytes = [self.id.to_le_bytes(), code.to_le_bytes()].concat();
        bytes.extend(size.to_le_bytes());
        bytes.extend([0; 8]);
        bytes.extend(payload);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        ensure!(files.is_empty() || control.push(SendAncillaryMessage::ScmRights(files)), "too many files");
        let sent = sendmsg(&self.socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
        self.socket.write_all(&bytes[sent..])?;
        let mut head = [0; 16];
        self.socket.read_exact(&mut head).context("no reply")?;
        let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        ensure!(
            head[..2] == self.id.to_le_bytes() && word(8) & 1 != 0,
            "the message that came is not the reply to the last command"
        );
        let mut answer = vec![0; (word(4) as usize).checked_sub(16).context("a reply has a header")?];
        self.socket.read_exact(&mut answer)?;
        Ok(if word(8) & 0x20 == 0 { Ok(answer) } else { Err(word(12)) })
    }

    pub(crate) fn call_ok(&mut self, code: u16, payload: &[u8], files: &[BorrowedFd<'_>]) -> Result<Vec<u8>> {
        self.call(code, payload, files)?.map_err(|errno| anyhow::anyhow!("message {code} was refused: errno {errno}"))
    }

    /// Writes to the controller's registers.
    pub(crate) fn set(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.call_ok(code::WRITE, &[&region_access(offset, 0, bytes.len()), bytes].concat(), &[]).map(drop)
    }

    pub(crate) fn status(&mut self) -> Result<u32> {
        let answer = self.call_ok(code::READ, &region_access(CSTS, 0, 4), &[])?;
        let bytes = answer.get(16..20).and_then(|bytes| bytes.try_into().ok()).context("four bytes")?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// Resets and enables the controller.
    pub(crate) fn enable(&mut self) -> Result<()> {
        self.disable()?;
        self.has_shadow = false;
        self.queues = [QueueState { tail: 0, head: 0, phase: true }; 8];
        let [submissions, completions, _] = queue_addresses(0);
        self.memory.write_all_at(&[0; 0x2000], submissions)?;
        self.set(0x24, &(31_u32 | 31 << 16).to_le_bytes())?;
        self.set(0x28, &submissions.to_le_bytes())?;
        self.set(0x30, &completions.to_le_bytes())?;
        self.set(CC, &0x46_0001_u32.to_le_bytes())?;
        self.until(|guest| Ok(guest.status()? & 1 != 0), "CSTS.RDY is not set")
    }

    pub(crate) fn disable(&mut self) -> Result<()> {
        self.set(CC, &[0; 4])?;
        self.until(|guest| Ok(guest.status()? & 1 == 0), "CSTS.RDY stays set")
    }

    fn until(&mut self, mut is_so: impl FnMut(&mut Self) -> Result<bool>, what: &str) -> Result<()> {
        let end = Instant::now() + ANSWER_LIMIT;
        while !is_so(self)? {
            ensure!(Instant::now() < end, "after {} s {what}", ANSWER_LIMIT.as_secs());
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Creates a completion and a submission queue.
    pub(crate) fn create(&mut self, queue: u16) -> Result<()> {
        let [submissions, completions, _] = queue_addresses(queue);
        self.memory.write_all_at(&[0; 0x4000], submissions)?;
        let both = u32::from(queue) | u32::from(ENTRIES - 1) << 16;
        let make = Entry::new(5, 0).pages(completions, 0).dword(10, both).dword(11, 1);
        ensure!(self.run(0, make)? == 0, "cannot create completion queue {queue}");
        let make = Entry::new(1, 0).pages(submissions, 0).dword(10, both).dword(11, 1 | u32::from(queue) << 16);
        ensure!(self.run(0, make)? == 0, "cannot create submission queue {queue}");
        self.queues[usize::from(queue)] = QueueState { tail: 0, head: 0, phase: true };
        Ok(())
    }

    fn entries(queue: u16) -> u16 {
        if queue == 0 { 32 } else { ENTRIES }
    }

    /// Writes a command to a submission queue without ringing its doorbell; returns the command identifier.
    pub(crate) fn put(&mut self, queue: u16, mut entry: Entry) -> Result<u16> {
        let (state, at) = (&mut self.queues[usize::from(queue)], queue_addresses(queue)[0]);
        entry.0[2..4].copy_from_slice(&self.next.to_le_bytes());
        self.memory.write_all_at(&entry.0, at + u64::from(state.tail) * 64)?;
        state.tail = (state.tail + 1) % Self::entries(queue);
        self.next = self.next.wrapping_add(1);
        Ok(self.next.wrapping_sub(1))
    }

    pub(crate) fn ring(&mut self, queue: u16) -> Result<()> {
        let tail = u32::from(self.queues[usize::from(queue)].tail);
        self.write_doorbell(2 * u64::from(queue), tail)
    }

    /// Writes the shadow doorbell, if configured, and the register, whatever EventIdx says.
    fn write_doorbell(&mut self, number: u64, value: u32) -> Result<()> {
        if self.has_shadow && number > 1 {
            self.memory.write_all_at(&value.to_le_bytes(), SHADOW + number * 4)?;
        }
        self.set(DOORBELLS + number * 4, &value.to_le_bytes())
    }

    /// Waits for the next completion; returns the command identifier and the status field.
    pub(crate) fn next_completion(&mut self, queue: u16) -> Result<(u16, u16)> {
        self.next_completion_with_result(queue).map(|(id, status, _)| (id, status))
    }

    /// Waits for the next completion; returns the command identifier, the status field and Dword 0.
    pub(crate) fn next_completion_with_result(&mut self, queue: u16) -> Result<(u16, u16, u32)> {
        let end = Instant::now() + ANSWER_LIMIT;
        loop {
            if let Some(completion) = self.poll_completion(queue)? {
                return Ok(completion);
            }
            if Instant::now() > end {
                bail!("a command of queue {queue} has not ended after {} s", ANSWER_LIMIT.as_secs());
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// The next completion, if there is one: the command identifier, the status field and Dword 0.
    pub(crate) fn poll_completion(&mut self, queue: u16) -> Result<Option<(u16, u16, u32)>> {
        let (at, state) = (queue_addresses(queue)[1], self.queues[usize::from(queue)]);
        let mut entry = [0; 16];
        self.memory.read_exact_at(&mut entry, at + u64::from(state.head) * 16)?;
        let last = u16::from_le_bytes([entry[14], entry[15]]);
        if (last & 1 != 0) != state.phase {
            return Ok(None);
        }
        let head = (state.head + 1) % Self::entries(queue);
        self.queues[usize::from(queue)] = QueueState { head, phase: state.phase ^ (head == 0), ..state };
        self.write_doorbell(2 * u64::from(queue) + 1, u32::from(head))?;
        let result = u32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]);
        Ok(Some((u16::from_le_bytes([entry[12], entry[13]]), last >> 1 & 0x7ff, result)))
    }

    /// Runs a command that is the only one in its queue; returns its status field.
    pub(crate) fn run(&mut self, queue: u16, entry: Entry) -> Result<u16> {
        let id = self.put(queue, entry)?;
        self.ring(queue)?;
        let (next_completion, status) = self.next_completion(queue)?;
        ensure!(next_completion == id, "command {next_completion} has ended, not {id}");
        Ok(status)
    }

    /// Writes blocks of a namespace, reads them back and compares them. Data of more than two pages uses a PRP list.
    pub(crate) fn write_and_verify(&mut self, namespace: u32, block: u32, data: &[u8]) -> Result<()> {
        let (list, back) = (queue_addresses(1)[2], DATA + (4 << 20));
        let pages = data.len().div_ceil(4096);
        let count = u32::try_from(data.len() / 512)?;
        self.memory.write_all_at(data, DATA)?;
        for (opcode, at) in [(1, DATA), (2, back)] {
            let second = if pages > 2 { list } else { at + 4096 };
            let entries: Vec<u8> = (1..pages as u64).flat_map(|page| (at + page * 4096).to_le_bytes()).collect();
            self.memory.write_all_at(&entries, list)?;
            let status = self.run(1, Entry::blocks(opcode, namespace, block, count).pages(at, second))?;
            ensure!(status == 0, "command {opcode} ended with {status:#x}");
        }
        let mut read = vec![0; data.len()];
        self.memory.read_exact_at(&mut read, back)?;
        ensure!(read == data, "the data that was read differs from the data written");
        Ok(())
    }
}

/// Shadow doorbells, and migration to another process.
impl Guest {
    /// Sends Doorbell Buffer Config.
    pub(crate) fn configure_shadow_doorbells(&mut self) -> Result<()> {
        ensure!(self.run(0, Entry::new(0x7c, 0).pages(SHADOW, EVENTS))? == 0, "Doorbell Buffer Config failed");
        self.has_shadow = true;
        Ok(())
    }

    /// Sends DEVICE_FEATURE with `room` bytes for the data of the answer; returns the data after the header.
    pub(crate) fn feature(&mut self, method: u32, what: u32, data: &[u8], room: u32) -> Result<Result<Vec<u8>, u32>> {
        let payload = [&(8 + room).to_le_bytes()[..], &(method | what).to_le_bytes(), data].concat();
        let answer = self.call(code::FEATURE, &payload, &[])?;
        Ok(match answer {
            Ok(answer) => Ok(answer.get(8..).context("an answer has a head")?.to_vec()),
            Err(errno) => Err(errno),
        })
    }

    /// Whether the device reports that it supports migration by stop-and-copy.
    pub(crate) fn supports_migration(&mut self) -> Result<bool> {
        let flags = self.feature(feature::GET, feature::MIGRATION, &[], 8)?;
        Ok(flags.is_ok_and(|flags| flags == 1_u64.to_le_bytes()))
    }

    pub(crate) fn set_state(&mut self, state: u32) -> Result<Result<(), u32>> {
        let data = [state.to_le_bytes(), [0; 4]].concat();
        Ok(self.feature(feature::SET, feature::STATE, &data, 8)?.map(drop))
    }

    pub(crate) fn state(&mut self) -> Result<u32> {
        let answer = self.feature(feature::GET, feature::STATE, &[], 8)?;
        let answer = answer.map_err(|errno| anyhow::anyhow!("the migration state cannot be read: errno {errno}"))?;
        Ok(u32::from_le_bytes(*answer.first_chunk().context("four bytes")?))
    }

    /// Starts dirty page logging with pages of `page` bytes.
    pub(crate) fn log(&mut self, page: u64) -> Result<Result<(), u32>> {
        let data = [page.to_le_bytes(), [0; 8]].concat();
        let answer = self.feature(feature::SET, feature::LOGGING_START, &data, 16)?;
        ensure!(answer.as_ref().map_or(true, |answer| *answer == data), "the device logs other pages than requested");
        Ok(answer.map(drop))
    }

    /// Reads the dirty page bitmap of a range: one bit for each page that the device has written.
    pub(crate) fn dirty_pages(&mut self, address: u64, len: u64, page: u64) -> Result<Result<Vec<u8>, u32>> {
        let data = [address, len, page].map(u64::to_le_bytes).concat();
        let answer = self.feature(feature::GET, feature::LOGGING_REPORT, &data, 1 << 20)?;
        Ok(match answer {
            Ok(answer) => Ok(answer.strip_prefix(&data[..]).context("an answer has its question")?.to_vec()),
            Err(errno) => Err(errno),
        })
    }

    /// Reads the whole migration data, at most `size` bytes at a time.
    pub(crate) fn read_state(&mut self, size: u32) -> Result<Vec<u8>> {
        let mut record = Vec::new();
        loop {
            let piece = self.call_ok(code::MIGRATION_READ, &migration_header(8 + size, size), &[])?;
            let piece = piece.get(8..).context("a piece has a head")?;
            record.extend(piece);
            if piece.len() < size as usize {
                return Ok(record);
            }
        }
    }

    /// Writes a piece of migration data.
    pub(crate) fn write_state(&mut self, piece: &[u8]) -> Result<Result<(), u32>> {
        let len = u32::try_from(piece.len())?;
        Ok(self.call(code::MIGRATION_WRITE, &[migration_header(8 + len, len), piece.to_vec()].concat(), &[])?.map(drop))
    }

    /// Continues the guest with another process's controller; the guest memory there gets the content of `memory`.
    pub(crate) fn migrate_to(&self, socket: &Path, memory: &[u8]) -> Result<Self> {
        let mut other = Self::start(socket)?;
        other.memory.write_all_at(memory, 0)?;
        (other.queues, other.next, other.has_shadow) = (self.queues, self.next, self.has_shadow);
        Ok(other)
    }

    /// Reads 8 blocks of 512 bytes while other commands of the queue are outstanding. Removes those that complete from
    /// `others`, which is keyed by command identifier.
    pub(crate) fn read_block<T>(
        &mut self,
        queue: u16,
        namespace: u32,
        block: u32,
        others: &mut BTreeMap<u16, T>,
    ) -> Result<Vec<u8>> {
        let at = DATA + (14 << 20);
        let mine = self.put(queue, Entry::blocks(2, namespace, block, 8).pages(at, 0))?;
        self.ring(queue)?;
        loop {
            let (id, status) = self.next_completion(queue)?;
            ensure!(status == 0, "command {id} ended with {status:#x}");
            if id == mine {
                break;
            }
            ensure!(others.remove(&id).is_some(), "unexpected completion of command {id}");
        }
        let mut page = vec![0; 4096];
        self.memory.read_exact_at(&mut page, at)?;
        Ok(page)
    }
}

/// The header of MIGRATION_READ and MIGRATION_WRITE.
pub(crate) fn migration_header(argsz: u32, size: u32) -> Vec<u8> {
    [argsz.to_le_bytes(), size.to_le_bytes()].concat()
}

/// The payload of DMA_MAP, readable and writable.
pub(crate) fn map(address: u64, offset: u64, size: u64) -> Vec<u8> {
    let mut bytes = [32_u32.to_le_bytes(), 3_u32.to_le_bytes()].concat();
    [offset, address, size].iter().for_each(|value| bytes.extend(value.to_le_bytes()));
    bytes
}

/// The payload of DMA_UNMAP.
pub(crate) fn unmap(address: u64, size: u64, flags: u32) -> Vec<u8> {
    let mut bytes = [24_u32.to_le_bytes(), flags.to_le_bytes()].concat();
    [address, size].iter().for_each(|value| bytes.extend(value.to_le_bytes()));
    bytes
}

/// The header of REGION_READ and REGION_WRITE.
pub(crate) fn region_access(offset: u64, region: u32, count: usize) -> Vec<u8> {
    let mut bytes = offset.to_le_bytes().to_vec();
    bytes.extend(region.to_le_bytes());
    bytes.extend(u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes());
    bytes
}

/// The payload of DEVICE_SET_IRQS that assigns the eventfds of the message to MSI-X vectors from `start` on.
pub(crate) fn vectors(start: u32, count: u32) -> Vec<u8> {
    [20, 0x24, 2, start, count].iter().flat_map(|value: &u32| value.to_le_bytes()).collect()
}

/// Creates a memory file of `len` bytes.
pub(crate) fn memory(len: u64) -> Result<OwnedFd> {
    let file = File::from(memfd_create("more", MemfdFlags::CLOEXEC)?);
    file.set_len(len)?;
    Ok(file.into())
}
