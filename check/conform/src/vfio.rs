//! A guest and its emulator in one, over vfio-user: messages, a file as memory, queues in it. It maps nothing: who
//! shares a file changes it by writing to it. It can break every rule.

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

/// Commands of the protocol.
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

/// Features of a device, and what is done with them.
pub(crate) mod feature {
    pub(crate) const MIGRATION: u32 = 1;
    pub(crate) const STATE: u32 = 2;
    pub(crate) const LOGGING_START: u32 = 6;
    pub(crate) const LOGGING_REPORT: u32 = 8;
    pub(crate) const GET: u32 = 1 << 16;
    pub(crate) const SET: u32 = 1 << 17;
}

/// States of a device on its way to another process.
pub(crate) mod state {
    pub(crate) const STOP: u32 = 1;
    pub(crate) const RUNNING: u32 = 2;
    pub(crate) const STOP_COPY: u32 = 3;
    pub(crate) const RESUMING: u32 = 4;
}

/// Bytes of the guest's memory, from address zero on.
pub(crate) const MEMORY: u64 = 16 << 20;
/// Where data is.
pub(crate) const DATA: u64 = 1 << 20;
/// Both pages of Doorbell Buffer Config.
pub(crate) const SHADOW: u64 = 0x3000;
pub(crate) const EVENTS: u64 = 0x4000;
/// Entries of a queue: a page of them.
pub(crate) const ENTRIES: u16 = 64;
/// A target that answers later than this is hung.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_micros(50);
/// Registers.
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

    /// Command dword `number`, from 10 on.
    pub(crate) fn dword(mut self, number: usize, value: u32) -> Self {
        self.0[number * 4..number * 4 + 4].copy_from_slice(&value.to_le_bytes());
        self
    }

    /// Read or Write of so many blocks.
    pub(crate) fn blocks(opcode: u8, namespace: u32, block: u32, count: u32) -> Self {
        Self::new(opcode, namespace).dword(10, block).dword(12, count - 1)
    }
}

/// Where the queues of this number are: submissions, completions, lists.
pub(crate) fn places(queue: u16) -> [u64; 3] {
    match queue {
        0 => [0, 0x1000, 0x2000],
        _ => {
            let at = 0x1_0000 + u64::from(queue) * 0x4000;
            [at, at + 0x1000, at + 0x2000]
        }
    }
}

/// How far a queue has come.
#[derive(Clone, Copy)]
struct Turn {
    tail: u16,
    head: u16,
    phase: bool,
}

pub(crate) struct Guest {
    socket: UnixStream,
    id: u16,
    pub(crate) memory: File,
    turns: [Turn; 8],
    next: u16,
    /// Whether the controller looks for doorbells in memory, too.
    has_shadow: bool,
}

impl Guest {
    /// A guest whose emulator has said hello and mapped its memory.
    pub(crate) fn start(socket: &Path) -> Result<Self> {
        let mut guest = Self::connect(socket)?;
        let hello = [&[0, 0, 1, 0][..], b"{\"capabilities\":{\"max_msg_fds\":8}}\0"].concat();
        guest.must(code::VERSION, &hello, &[])?;
        let memory = guest.memory.try_clone()?;
        guest.must(code::MAP, &map(0, 0, MEMORY), &[memory.as_fd()])?;
        Ok(guest)
    }

    /// The same with a controller that is enabled, and this many I/O queues.
    pub(crate) fn boot(socket: &Path, queues: u16) -> Result<Self> {
        let mut guest = Self::start(socket)?;
        guest.enable()?;
        for queue in 1..=queues {
            guest.create(queue)?;
        }
        Ok(guest)
    }

    /// A connection on which nothing was said.
    pub(crate) fn connect(socket: &Path) -> Result<Self> {
        let socket = UnixStream::connect(socket).context("the controller's socket")?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let memory = File::from(memfd_create("guest", MemfdFlags::CLOEXEC)?);
        memory.set_len(MEMORY)?;
        Ok(Self {
            socket,
            id: 0,
            memory,
            turns: [Turn { tail: 0, head: 0, phase: true }; 8],
            next: 0,
            has_shadow: false,
        })
    }

    /// Sends these bytes.
    pub(crate) fn raw(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(self.socket.write_all(bytes)?)
    }

    /// Whether the target closes the connection, whatever it says before.
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

    /// A message and its reply: what it has, or its error.
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
        ensure!(head[..2] == self.id.to_le_bytes() && word(8) & 1 != 0, "what came is no reply to the last message");
        let mut answer = vec![0; (word(4) as usize).checked_sub(16).context("a reply has a header")?];
        self.socket.read_exact(&mut answer)?;
        Ok(if word(8) & 0x20 == 0 { Ok(answer) } else { Err(word(12)) })
    }

    pub(crate) fn must(&mut self, code: u16, payload: &[u8], files: &[BorrowedFd<'_>]) -> Result<Vec<u8>> {
        self.call(code, payload, files)?.map_err(|errno| anyhow::anyhow!("message {code} was refused: errno {errno}"))
    }

    /// Writes to the registers.
    pub(crate) fn set(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.must(code::WRITE, &[&access(offset, 0, bytes.len()), bytes].concat(), &[]).map(drop)
    }

    pub(crate) fn status(&mut self) -> Result<u32> {
        let answer = self.must(code::READ, &access(CSTS, 0, 4), &[])?;
        let bytes = answer.get(16..20).and_then(|bytes| bytes.try_into().ok()).context("four bytes")?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// Resets the controller, and enables it.
    pub(crate) fn enable(&mut self) -> Result<()> {
        self.disable()?;
        self.has_shadow = false;
        self.turns = [Turn { tail: 0, head: 0, phase: true }; 8];
        let [submissions, completions, _] = places(0);
        self.memory.write_all_at(&[0; 0x2000], submissions)?;
        self.set(0x24, &(31_u32 | 31 << 16).to_le_bytes())?;
        self.set(0x28, &submissions.to_le_bytes())?;
        self.set(0x30, &completions.to_le_bytes())?;
        self.set(CC, &0x46_0001_u32.to_le_bytes())?;
        self.until(|guest| Ok(guest.status()? & 1 != 0), "it is not ready")
    }

    pub(crate) fn disable(&mut self) -> Result<()> {
        self.set(CC, &[0; 4])?;
        self.until(|guest| Ok(guest.status()? & 1 == 0), "it stays ready")
    }

    fn until(&mut self, mut is_so: impl FnMut(&mut Self) -> Result<bool>, what: &str) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        while !is_so(self)? {
            ensure!(Instant::now() < end, "after {} s {what}", PATIENCE.as_secs());
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Makes both queues of a number.
    pub(crate) fn create(&mut self, queue: u16) -> Result<()> {
        let [submissions, completions, _] = places(queue);
        self.memory.write_all_at(&[0; 0x4000], submissions)?;
        let both = u32::from(queue) | u32::from(ENTRIES - 1) << 16;
        let make = Entry::new(5, 0).pages(completions, 0).dword(10, both).dword(11, 1);
        ensure!(self.run(0, make)? == 0, "no completion queue {queue}");
        let make = Entry::new(1, 0).pages(submissions, 0).dword(10, both).dword(11, 1 | u32::from(queue) << 16);
        ensure!(self.run(0, make)? == 0, "no submission queue {queue}");
        self.turns[usize::from(queue)] = Turn { tail: 0, head: 0, phase: true };
        Ok(())
    }

    fn entries(queue: u16) -> u16 {
        if queue == 0 { 32 } else { ENTRIES }
    }

    /// Puts a command into a queue, without ringing; tells its identifier.
    pub(crate) fn put(&mut self, queue: u16, mut entry: Entry) -> Result<u16> {
        let (turn, at) = (&mut self.turns[usize::from(queue)], places(queue)[0]);
        entry.0[2..4].copy_from_slice(&self.next.to_le_bytes());
        self.memory.write_all_at(&entry.0, at + u64::from(turn.tail) * 64)?;
        turn.tail = (turn.tail + 1) % Self::entries(queue);
        self.next = self.next.wrapping_add(1);
        Ok(self.next.wrapping_sub(1))
    }

    pub(crate) fn ring(&mut self, queue: u16) -> Result<()> {
        let tail = u32::from(self.turns[usize::from(queue)].tail);
        self.tell_doorbell(2 * u64::from(queue), tail)
    }

    /// Rings, whether or not the controller wants to be rung.
    fn tell_doorbell(&mut self, number: u64, value: u32) -> Result<()> {
        if self.has_shadow && number > 1 {
            self.memory.write_all_at(&value.to_le_bytes(), SHADOW + number * 4)?;
        }
        self.set(DOORBELLS + number * 4, &value.to_le_bytes())
    }

    /// The next completion: whose, and its status.
    pub(crate) fn ended(&mut self, queue: u16) -> Result<(u16, u16)> {
        self.ended_with(queue).map(|(id, status, _)| (id, status))
    }

    /// The same, and dword 0.
    pub(crate) fn ended_with(&mut self, queue: u16) -> Result<(u16, u16, u32)> {
        let (at, end) = (places(queue)[1], Instant::now() + PATIENCE);
        let turn = self.turns[usize::from(queue)];
        let mut entry = [0; 16];
        loop {
            self.memory.read_exact_at(&mut entry, at + u64::from(turn.head) * 16)?;
            let last = u16::from_le_bytes([entry[14], entry[15]]);
            if (last & 1 != 0) == turn.phase {
                let head = (turn.head + 1) % Self::entries(queue);
                self.turns[usize::from(queue)] = Turn { head, phase: turn.phase ^ (head == 0), ..turn };
                self.tell_doorbell(2 * u64::from(queue) + 1, u32::from(head))?;
                let result = u32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]);
                return Ok((u16::from_le_bytes([entry[12], entry[13]]), last >> 1 & 0x7ff, result));
            }
            if Instant::now() > end {
                bail!("a command of queue {queue} has not ended after {} s", PATIENCE.as_secs());
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Carries out a command that is alone in its queue; gives its status.
    pub(crate) fn run(&mut self, queue: u16, entry: Entry) -> Result<u16> {
        let id = self.put(queue, entry)?;
        self.ring(queue)?;
        let (ended, status) = self.ended(queue)?;
        ensure!(ended == id, "command {ended} has ended, not {id}");
        Ok(status)
    }

    /// Writes blocks of a namespace and reads them back: one page at a time and by a list.
    pub(crate) fn keeps(&mut self, namespace: u32, block: u32, data: &[u8]) -> Result<()> {
        let (list, back) = (places(1)[2], DATA + (4 << 20));
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
        ensure!(read == data, "other data than was written");
        Ok(())
    }
}

/// What moves it to another process.
impl Guest {
    /// Has the controller look for doorbells in memory.
    pub(crate) fn shadow(&mut self) -> Result<()> {
        ensure!(self.run(0, Entry::new(0x7c, 0).pages(SHADOW, EVENTS))? == 0, "Doorbell Buffer Config");
        self.has_shadow = true;
        Ok(())
    }

    /// DEVICE_FEATURE, with room for so many bytes of an answer; gives what follows its head.
    pub(crate) fn feature(&mut self, method: u32, what: u32, data: &[u8], room: u32) -> Result<Result<Vec<u8>, u32>> {
        let payload = [&(8 + room).to_le_bytes()[..], &(method | what).to_le_bytes(), data].concat();
        let answer = self.call(code::FEATURE, &payload, &[])?;
        Ok(match answer {
            Ok(answer) => Ok(answer.get(8..).context("an answer has a head")?.to_vec()),
            Err(errno) => Err(errno),
        })
    }

    /// Whether it can be moved.
    pub(crate) fn migrates(&mut self) -> Result<bool> {
        let flags = self.feature(feature::GET, feature::MIGRATION, &[], 8)?;
        Ok(flags.is_ok_and(|flags| flags == 1_u64.to_le_bytes()))
    }

    pub(crate) fn become_state(&mut self, state: u32) -> Result<Result<(), u32>> {
        let data = [state.to_le_bytes(), [0; 4]].concat();
        Ok(self.feature(feature::SET, feature::STATE, &data, 8)?.map(drop))
    }

    pub(crate) fn state(&mut self) -> Result<u32> {
        let answer = self.feature(feature::GET, feature::STATE, &[], 8)?;
        let answer = answer.map_err(|errno| anyhow::anyhow!("it does not tell its state: errno {errno}"))?;
        Ok(u32::from_le_bytes(*answer.first_chunk().context("four bytes")?))
    }

    /// Has it remember what it writes to, in pages of so many bytes.
    pub(crate) fn log(&mut self, page: u64) -> Result<Result<(), u32>> {
        let data = [page.to_le_bytes(), [0; 8]].concat();
        let answer = self.feature(feature::SET, feature::LOGGING_START, &data, 16)?;
        ensure!(answer.as_ref().map_or(true, |answer| *answer == data), "it remembers other pages");
        Ok(answer.map(drop))
    }

    /// A bit for each page that it has written to.
    pub(crate) fn written(&mut self, address: u64, len: u64, page: u64) -> Result<Result<Vec<u8>, u32>> {
        let data = [address, len, page].map(u64::to_le_bytes).concat();
        let answer = self.feature(feature::GET, feature::LOGGING_REPORT, &data, 1 << 20)?;
        Ok(match answer {
            Ok(answer) => Ok(answer.strip_prefix(&data[..]).context("an answer has its question")?.to_vec()),
            Err(errno) => Err(errno),
        })
    }

    /// All of what it is, so many bytes at a time.
    pub(crate) fn read_state(&mut self, size: u32) -> Result<Vec<u8>> {
        let mut record = Vec::new();
        loop {
            let piece = self.must(code::MIGRATION_READ, &moved(8 + size, size), &[])?;
            let piece = piece.get(8..).context("a piece has a head")?;
            record.extend(piece);
            if piece.len() < size as usize {
                return Ok(record);
            }
        }
    }

    /// A piece of what it becomes.
    pub(crate) fn write_state(&mut self, piece: &[u8]) -> Result<Result<(), u32>> {
        let len = u32::try_from(piece.len())?;
        Ok(self.call(code::MIGRATION_WRITE, &[moved(8 + len, len), piece.to_vec()].concat(), &[])?.map(drop))
    }

    /// The same guest by another process's controller, with this in its memory.
    pub(crate) fn migrate_to(&self, socket: &Path, memory: &[u8]) -> Result<Self> {
        let mut other = Self::start(socket)?;
        other.memory.write_all_at(memory, 0)?;
        (other.turns, other.next, other.has_shadow) = (self.turns, self.next, self.has_shadow);
        Ok(other)
    }

    /// Reads a page's blocks, while other commands of the queue end: those that are known by their identifiers.
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
            let (id, status) = self.ended(queue)?;
            ensure!(status == 0, "command {id} ended with {status:#x}");
            if id == mine {
                break;
            }
            ensure!(others.remove(&id).is_some(), "command {id} has ended twice, or never began");
        }
        let mut page = vec![0; 4096];
        self.memory.read_exact_at(&mut page, at)?;
        Ok(page)
    }
}

/// What MIGRATION_READ and MIGRATION_WRITE begin with.
pub(crate) fn moved(argsz: u32, size: u32) -> Vec<u8> {
    [argsz.to_le_bytes(), size.to_le_bytes()].concat()
}

/// DMA_MAP.
pub(crate) fn map(address: u64, offset: u64, size: u64) -> Vec<u8> {
    let mut bytes = [32_u32.to_le_bytes(), 3_u32.to_le_bytes()].concat();
    [offset, address, size].iter().for_each(|value| bytes.extend(value.to_le_bytes()));
    bytes
}

/// DMA_UNMAP.
pub(crate) fn unmap(address: u64, size: u64, flags: u32) -> Vec<u8> {
    let mut bytes = [24_u32.to_le_bytes(), flags.to_le_bytes()].concat();
    [address, size].iter().for_each(|value| bytes.extend(value.to_le_bytes()));
    bytes
}

/// What REGION_READ and REGION_WRITE begin with.
pub(crate) fn access(offset: u64, region: u32, count: usize) -> Vec<u8> {
    let mut bytes = offset.to_le_bytes().to_vec();
    bytes.extend(region.to_le_bytes());
    bytes.extend(u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes());
    bytes
}

/// DEVICE_SET_IRQS: vectors from `start` on are rung by what goes with it.
pub(crate) fn vectors(start: u32, count: u32) -> Vec<u8> {
    [20, 0x24, 2, start, count].iter().flat_map(|value: &u32| value.to_le_bytes()).collect()
}

/// A memory file of so many bytes.
pub(crate) fn memory(len: u64) -> Result<OwnedFd> {
    let file = File::from(memfd_create("more", MemfdFlags::CLOEXEC)?);
    file.set_len(len)?;
    Ok(file.into())
}
