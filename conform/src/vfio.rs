//! A guest and its emulator in one, over vfio-user: messages, a file as memory, queues in it. It maps nothing: who
//! shares a file changes it by writing to it. It can break every rule.

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
        Ok(Self { socket, id: 0, memory, turns: [Turn { tail: 0, head: 0, phase: true }; 8], next: 0 })
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
        self.set(DOORBELLS + u64::from(queue) * 8, &tail.to_le_bytes())
    }

    /// The next completion: whose, and its status.
    pub(crate) fn ended(&mut self, queue: u16) -> Result<(u16, u16)> {
        let (at, end) = (places(queue)[1], Instant::now() + PATIENCE);
        let turn = self.turns[usize::from(queue)];
        let mut entry = [0; 16];
        loop {
            self.memory.read_exact_at(&mut entry, at + u64::from(turn.head) * 16)?;
            let last = u16::from_le_bytes([entry[14], entry[15]]);
            if (last & 1 != 0) == turn.phase {
                let head = (turn.head + 1) % Self::entries(queue);
                self.turns[usize::from(queue)] = Turn { head, phase: turn.phase ^ (head == 0), ..turn };
                self.set(DOORBELLS + u64::from(queue) * 8 + 4, &u32::from(head).to_le_bytes())?;
                return Ok((u16::from_le_bytes([entry[12], entry[13]]), last >> 1 & 0x7ff));
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
