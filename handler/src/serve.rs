//! The loop of a handler: connects to the socket of a volume, and executes the commands of all queues on a [`Device`],
//! a [`ScsiDevice`] or a [`MixedDevice`], one after the other.

use crate::ring::{HandlerEnd, ScsiEnd, Unusable};
use crate::scsi::{self, Attached, MixedDevice, ScsiDevice};
use crate::wire::{
    self, Hello, IDENTITY_BYTES, LEVEL_BLOCK, LEVEL_MIXED, LEVEL_SCSI, MESSAGE_BYTES_MAX, Malformed, Message,
    Operation, OperationCodes, PROTOCOL, QUEUE_DESCRIPTORS, Queue, Status, Submission, Welcome, name_of, unit_flags,
};
use lunar_core::io::Extent;
use lunar_core::mem::Region;
use lunar_reactor::shared::map;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType, connect, recvmsg, send, socket_with,
};
use std::fmt;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long the loop looks for commands before it sleeps: to sleep and be woken costs about as much.
const SPIN: Duration = Duration::from_micros(50);
/// Passes without a command after which the loop reads the clock.
const PASSES: u32 = 16;
/// How often the loop looks for messages while there are always commands.
const MESSAGES: Duration = Duration::from_millis(10);
/// Most queues of one connection: Lunar has one for each of its cores.
const QUEUES_MAX: usize = 1024;

/// The data that a handler serves.
///
/// A write that was answered must outlive the process of the handler, because Lunar does not repeat it: it is in the
/// kernel at least. A write that is durable, or that was answered before a flush, is on the medium.
pub trait Device {
    /// Name and version for the operator, at most 64 bytes: `file 1.0`.
    fn name(&self) -> &str;

    /// Bytes of the data. The volume may be smaller.
    fn size(&self) -> u64;

    /// The optional operations: [`wire::features`].
    fn features(&self) -> u64 {
        0
    }

    /// A connection begins: what Lunar says about the volume.
    fn begin(&mut self, unit: &Unit) {
        let _ = unit;
    }

    /// Fills `into` from `offset` on.
    ///
    /// # Errors
    /// The status of the command.
    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), Status>;

    /// Writes `data` at `offset`. `durable`: it is on the medium afterwards.
    ///
    /// # Errors
    /// The status of the command.
    fn write(&mut self, offset: u64, data: &[u8], durable: bool) -> Result<(), Status>;

    /// Brings all writes that were answered to the medium. Once that has failed, it fails until the device is opened
    /// again: an operating system reports lost data of its page cache only once.
    ///
    /// # Errors
    /// The status of the command.
    fn flush(&mut self) -> Result<(), Status>;

    /// Releases the space of `length` bytes. Afterwards they read as the old data or as zeroes.
    ///
    /// # Errors
    /// The status of the command.
    fn unmap(&mut self, offset: u64, length: u64) -> Result<(), Status> {
        let _ = (offset, length);
        Err(Status::UNSUPPORTED)
    }

    /// Writes zeroes. `release`: the space may be released.
    ///
    /// # Errors
    /// The status of the command.
    fn zero(&mut self, offset: u64, length: u64, release: bool) -> Result<(), Status> {
        let _ = (offset, length, release);
        Err(Status::UNSUPPORTED)
    }

    /// How far the bytes from `offset` on, 1 to `length`, are all mapped, or all unmapped: those read as zeroes. Bytes
    /// are mapped in doubt.
    ///
    /// # Errors
    /// The status of the command: all bytes count as mapped.
    fn extent(&mut self, offset: u64, length: u64) -> Result<Extent, Status> {
        let _ = (offset, length);
        Err(Status::UNSUPPORTED)
    }
}

/// The volume, as Lunar describes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unit {
    /// Its name in the configuration of Lunar.
    pub name: String,
    /// Bytes; zero at the level of SCSI commands.
    pub size: u64,
    /// Bytes of a block.
    pub block_size: u32,
    /// Whether no command changes data.
    pub read_only: bool,
    /// The optional operations that Lunar uses.
    pub features: u64,
}

impl Unit {
    fn of(welcome: &Welcome) -> Self {
        Self {
            name: name_of(&welcome.volume),
            size: welcome.size.get(),
            block_size: welcome.block_size.get(),
            read_only: welcome.flags.get() & unit_flags::READ_ONLY != 0,
            features: welcome.features.get(),
        }
    }
}

/// Why a connection has ended.
#[derive(Debug)]
pub enum ServeError {
    /// Lunar does not want this handler, with the reason.
    Refused(String),
    /// Lunar ended the connection, with the reason: a defect of the handler.
    Fault(String),
    /// Lunar sent something that this version does not understand.
    Protocol,
    /// The operating system.
    Io(io::Error),
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(why) => write!(f, "Lunar refuses this handler: {why}"),
            Self::Fault(why) => write!(f, "Lunar ended the connection: {why}"),
            Self::Protocol => f.write_str("Lunar sent a message that is not understood: is it of another version?"),
            Self::Io(why) => write!(f, "{why}"),
        }
    }
}

impl std::error::Error for ServeError {}

impl From<Errno> for ServeError {
    fn from(why: Errno) -> Self {
        Self::Io(why.into())
    }
}

impl From<io::Error> for ServeError {
    fn from(why: io::Error) -> Self {
        Self::Io(why)
    }
}

impl From<Malformed> for ServeError {
    fn from(_: Malformed) -> Self {
        Self::Protocol
    }
}

impl From<Unusable> for ServeError {
    fn from(_: Unusable) -> Self {
        Self::Protocol
    }
}

/// Serves one connection, until Lunar closes it; the caller connects again, for example once a second.
///
/// # Errors
/// When Lunar cannot be reached, refuses the handler, or finds a defect in it.
pub fn serve(path: &Path, device: &mut dyn Device) -> Result<(), ServeError> {
    serve_on(Connection::open(path, device.name(), device.size(), device.features())?, device)
}

/// Serves on a connection that is open, until Lunar closes it.
///
/// # Errors
/// When Lunar refuses the handler, or finds a defect in it.
pub fn serve_on(connection: Connection, device: &mut dyn Device) -> Result<(), ServeError> {
    run(connection, &mut Blocks { device, buffer: Vec::new() })
}

/// Serves a SCSI device for one connection, until Lunar closes it; the caller connects again after a while. A process
/// with several logical units calls it for each of them, in threads of their own.
///
/// # Errors
/// Errors of [`serve`].
pub fn serve_scsi(path: &Path, device: &mut dyn ScsiDevice) -> Result<(), ServeError> {
    let connection = Connection::open_scsi(path, device.name(), device.device_type())?;
    let mut commands = Commands { device, attached: Attached::new() };
    let result = run(connection, &mut commands);
    let Commands { device, attached } = commands;
    attached.into_keys().for_each(|nexus| device.detach(nexus));
    result
}

/// Serves blocks and SCSI commands of the same volume for one connection, until Lunar closes it; the caller connects
/// again after a while.
///
/// # Errors
/// Errors of [`serve`].
pub fn serve_mixed(path: &Path, device: &mut dyn MixedDevice) -> Result<(), ServeError> {
    let codes = device.operation_codes().iter().copied().collect();
    let blocks = device.blocks();
    let connection = Connection::open_mixed(path, blocks.name(), (blocks.size(), blocks.features()), codes)?;
    let mut mixed = Mixed { device, buffer: Vec::new(), attached: Attached::new() };
    let result = run(connection, &mut mixed);
    let Mixed { device, attached, .. } = mixed;
    attached.into_keys().for_each(|nexus| device.commands().detach(nexus));
    result
}

/// The end of a command that was executed.
enum End {
    Plain,
    Scsi(ScsiEnd),
    Extent(Extent),
}

/// The commands of one level.
trait Level {
    /// A connection begins.
    fn begin(&mut self, unit: &Unit);
    /// Executes a command of a queue.
    fn execute(&mut self, command: &Submission, queue: (u32, &Region)) -> Result<End, Status>;
    /// A queue is closed.
    fn close(&mut self, queue: u32) {
        let _ = queue;
    }
}

/// The level of blocks.
struct Blocks<'a> {
    device: &'a mut dyn Device,
    buffer: Vec<u8>,
}

impl Level for Blocks<'_> {
    fn begin(&mut self, unit: &Unit) {
        self.device.begin(unit);
    }

    fn execute(&mut self, command: &Submission, (_, data): (u32, &Region)) -> Result<End, Status> {
        execute(command, data, &mut self.buffer, self.device)
    }
}

/// The level of SCSI commands.
struct Commands<'a> {
    device: &'a mut dyn ScsiDevice,
    attached: Attached,
}

impl Level for Commands<'_> {
    fn begin(&mut self, unit: &Unit) {
        self.device.begin(unit);
    }

    fn execute(&mut self, command: &Submission, (queue, data): (u32, &Region)) -> Result<End, Status> {
        let place = scsi::Place { queue, data, attached: &mut self.attached };
        scsi::execute(command, place, self.device).map(End::Scsi)
    }

    fn close(&mut self, queue: u32) {
        scsi::detach_all(queue, &mut self.attached, self.device);
    }
}

/// The mixed level.
struct Mixed<'a> {
    device: &'a mut dyn MixedDevice,
    buffer: Vec<u8>,
    attached: Attached,
}

impl Level for Mixed<'_> {
    fn begin(&mut self, unit: &Unit) {
        self.device.blocks().begin(unit);
    }

    fn execute(&mut self, command: &Submission, (queue, data): (u32, &Region)) -> Result<End, Status> {
        let Self { device, buffer, attached } = self;
        if Operation(command.operation).is_of_blocks() {
            return execute(command, data, buffer, device.blocks());
        }
        scsi::execute(command, scsi::Place { queue, data, attached }, device.commands()).map(End::Scsi)
    }

    fn close(&mut self, queue: u32) {
        scsi::detach_all(queue, &mut self.attached, self.device.commands());
    }
}

fn run(mut connection: Connection, level: &mut dyn Level) -> Result<(), ServeError> {
    let (mut looked, mut idle_since, mut passes) = (Instant::now(), None, 0_u32);
    loop {
        let is_busy = execute_all(&mut connection.queues, level)?;
        if is_busy {
            idle_since = None;
        } else {
            passes = passes.wrapping_add(1);
            if !passes.is_multiple_of(PASSES) {
                std::hint::spin_loop();
                continue;
            }
            // The process that sends the next command may wait for this processor.
            std::thread::yield_now();
        }
        let now = Instant::now();
        let is_idle = !is_busy && now - *idle_since.get_or_insert(now) > SPIN;
        if !is_idle && now - looked < MESSAGES {
            continue;
        }
        let may_sleep = is_idle && connection.queues.iter().all(|queue| queue.ring.may_sleep());
        let has_message = connection.wait(may_sleep)?;
        connection.queues.iter().for_each(|queue| queue.ring.rise());
        if has_message {
            match connection.receive()? {
                Some(Message::Welcome(welcome)) => level.begin(&Unit::of(&welcome)),
                Some(Message::Close(close)) => level.close(close.number.get()),
                Some(_) => {}
                None => return Ok(()),
            }
        }
        looked = Instant::now();
    }
}

/// Executes the commands of all queues that wait; returns whether there were any.
fn execute_all(queues: &mut [HandlerQueue], level: &mut dyn Level) -> Result<bool, ServeError> {
    let mut is_busy = false;
    for queue in queues {
        // A queue that is always full must not keep the others, and messages, waiting.
        for _ in 0..queue.ring.depth() {
            let Some(command) = queue.ring.take()? else { break };
            match level.execute(&command, (queue.number, &queue.data)) {
                Ok(End::Plain) => queue.ring.complete(&command, Status::GOOD),
                Ok(End::Scsi(end)) => queue.ring.complete_scsi(&command, Status::GOOD, end),
                Ok(End::Extent(extent)) => queue.ring.complete_extent(&command, extent),
                Err(status) => queue.ring.complete(&command, status),
            }
            // An answer does not wait for the commands behind it, which may take long.
            queue.wake_lunar()?;
            is_busy = true;
        }
    }
    Ok(is_busy)
}

/// One queue of a connection.
#[derive(Debug)]
pub struct HandlerQueue {
    /// Its number.
    pub number: u32,
    /// The rings.
    pub ring: HandlerEnd,
    /// The memory of the rings.
    pub ring_memory: Region,
    /// The memory of the data.
    pub data: Region,
    /// Lunar signals it.
    commands: OwnedFd,
    /// Lunar waits for it.
    answers: OwnedFd,
}

impl HandlerQueue {
    /// Wakes Lunar after answers, if it sleeps.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn wake_lunar(&self) -> Result<(), ServeError> {
        if self.ring.must_wake() {
            rustix::io::write(&self.answers, &1_u64.to_ne_bytes())?;
        }
        Ok(())
    }
}

/// A connection to Lunar, for handlers with a loop of their own: [`serve`] is enough for others.
#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
    /// The queues that Lunar has opened and not closed.
    pub queues: Vec<HandlerQueue>,
}

impl Connection {
    /// Connects to the socket of a volume, and says HELLO.
    ///
    /// # Errors
    /// When no target listens there.
    pub fn open(path: &Path, name: &str, size: u64, features: u64) -> Result<Self, ServeError> {
        Self::greet(path, Hello { features: features.into(), size: size.into(), ..hello(LEVEL_BLOCK, name) })
    }

    /// Says HELLO on a connection that Lunar has made, for a process that Lunar has started. `identity`: that of its
    /// data, at most [`wire::IDENTITY_BYTES`].
    ///
    /// # Errors
    /// When Lunar has closed it.
    pub fn over(socket: OwnedFd, name: &str, size: u64, features: u64, identity: &str) -> Result<Self, ServeError> {
        let identity = wire::name_field(identity);
        let hello = Hello { features: features.into(), size: size.into(), identity, ..hello(LEVEL_BLOCK, name) };
        send(&socket, &Message::Hello(hello).bytes(), SendFlags::NOSIGNAL)?;
        Ok(Self { socket, queues: Vec::new() })
    }

    /// Says on a connection that Lunar has made what HELLO will say, as soon as no other server has the data.
    ///
    /// # Errors
    /// When Lunar has closed it.
    pub fn stand_by(
        socket: BorrowedFd<'_>,
        name: &str,
        size: u64,
        features: u64,
        identity: &str,
    ) -> Result<(), ServeError> {
        let identity = wire::name_field(identity);
        let hello = Hello { features: features.into(), size: size.into(), identity, ..hello(LEVEL_BLOCK, name) };
        send(socket, &Message::StandBy(hello).bytes(), SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Connects to the socket of a volume as a SCSI device of this type, and says HELLO.
    ///
    /// # Errors
    /// When no target listens there.
    pub fn open_scsi(path: &Path, name: &str, device_type: u8) -> Result<Self, ServeError> {
        Self::greet(path, Hello { device_type, ..hello(LEVEL_SCSI, name) })
    }

    /// Connects to the socket of a volume as a handler of so many bytes with these [`wire::features`], which also
    /// executes the SCSI commands with these codes, and says HELLO.
    ///
    /// # Errors
    /// When no target listens there.
    pub fn open_mixed(
        path: &Path,
        name: &str,
        (size, features): (u64, u64),
        codes: OperationCodes,
    ) -> Result<Self, ServeError> {
        let hello = hello(LEVEL_MIXED, name);
        Self::greet(path, Hello { features: features.into(), size: size.into(), codes, ..hello })
    }

    fn greet(path: &Path, hello: Hello) -> Result<Self, ServeError> {
        Self::open_raw(path, &Message::Hello(hello).bytes())
    }

    /// Connects to the socket of a volume with this HELLO, for tests of other versions.
    ///
    /// # Errors
    /// When no target listens there.
    pub fn open_raw(path: &Path, hello: &[u8]) -> Result<Self, ServeError> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        send(&socket, hello, SendFlags::NOSIGNAL)?;
        Ok(Self { socket, queues: Vec::new() })
    }

    /// Sends a message.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn send(&self, message: &Message) -> Result<(), ServeError> {
        send(&self.socket, &message.bytes(), SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Looks for a message; returns whether there is one. `may_sleep`: sleeps until there may be one, or commands.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn wait(&self, may_sleep: bool) -> Result<bool, ServeError> {
        Ok(self.wait_also(may_sleep, [])?.0)
    }

    /// Like [`Connection::wait`], and ends also when one of the other files is readable; returns which are.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn wait_also<const N: usize>(
        &self,
        may_sleep: bool,
        others: [BorrowedFd<'_>; N],
    ) -> Result<(bool, [bool; N]), ServeError> {
        let own = std::iter::once(&self.socket).chain(self.queues.iter().map(|queue| &queue.commands));
        let all = own.map(AsFd::as_fd).chain(others);
        let mut sources: Vec<PollFd<'_>> = all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        match poll(&mut sources, if may_sleep { None } else { Some(&now) }) {
            Err(Errno::INTR) => return Ok((false, [false; N])),
            other => other?,
        };
        let is_ready = |at: usize| !sources[at].revents().is_empty();
        for (queue, _) in self.queues.iter().zip(1..).filter(|(_, at)| is_ready(*at)) {
            // The counter says nothing that the ring does not say.
            let _ = rustix::io::read(&queue.commands, &mut [0; size_of::<u64>()]);
        }
        Ok((is_ready(0), std::array::from_fn(|at| is_ready(1 + self.queues.len() + at))))
    }

    /// Takes the next message, and waits for it; `None` when Lunar has closed the connection. Queues are opened and
    /// closed as the messages say.
    ///
    /// # Errors
    /// When Lunar refuses the handler or finds a defect in it, and those of the operating system.
    pub fn receive(&mut self) -> Result<Option<Message>, ServeError> {
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(QUEUE_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let into = &mut [IoSliceMut::new(&mut bytes)];
        let length = match recvmsg(&self.socket, into, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::CONNRESET) => return Ok(None),
            other => other?.bytes,
        };
        if length == 0 {
            return Ok(None);
        }
        let mut descriptors = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(more) = message {
                descriptors.extend(more);
            }
        }
        let message = Message::parse(&bytes[..length])?;
        match &message {
            Message::Refused(why) => return Err(ServeError::Refused(why.clone())),
            Message::Fault(why) => return Err(ServeError::Fault(why.clone())),
            Message::Queue(queue) => self.add(queue, descriptors)?,
            Message::Close(close) => self.queues.retain(|queue| queue.number != close.number.get()),
            // Lunar says HELLO to no handler; a message of a later version needs no answer.
            Message::Welcome(_) | Message::Hello(_) | Message::StandBy(_) | Message::Space(_) => {}
            Message::Unknown(_) => {}
        }
        Ok(Some(message))
    }

    fn add(&mut self, queue: &Queue, descriptors: Vec<OwnedFd>) -> Result<(), ServeError> {
        let Ok([rings, data, commands, answers]) = <[OwnedFd; QUEUE_DESCRIPTORS]>::try_from(descriptors) else {
            return Err(ServeError::Protocol);
        };
        let bytes = |length: u64| usize::try_from(length).map_err(|_| ServeError::Protocol);
        if self.queues.len() == QUEUES_MAX {
            return Err(ServeError::Protocol);
        }
        let ring_memory = map(&rings, 0, bytes(queue.ring_bytes.get())?, true)?;
        let ring = HandlerEnd::open(ring_memory.clone())?;
        let data = map(&data, 0, bytes(queue.data_bytes.get())?, true)?;
        self.queues.push(HandlerQueue { number: queue.number.get(), ring, ring_memory, data, commands, answers });
        Ok(())
    }
}

/// HELLO without the properties of the data.
fn hello(level: u32, name: &str) -> Hello {
    Hello {
        protocol: PROTOCOL.into(),
        level: level.into(),
        features: 0.into(),
        size: 0.into(),
        name: wire::name_field(name),
        device_type: 0,
        reserved: [0; 7],
        codes: OperationCodes::default(),
        identity: [0; IDENTITY_BYTES],
    }
}

fn execute(command: &Submission, data: &Region, buffer: &mut Vec<u8>, device: &mut dyn Device) -> Result<End, Status> {
    let (offset, length) = (command.offset.get(), command.length.get());
    let within = |is_within: bool| if is_within { Ok(()) } else { Err(Status::FAILED) };
    within(offset.checked_add(length).is_some_and(|end| end <= device.size()))?;
    let place = usize::try_from(command.data.get()).map_err(|_| Status::FAILED)?;
    match Operation(command.operation) {
        Operation::READ => {
            let memory = memory(buffer, length, data)?;
            device.read(offset, memory)?;
            within(data.write(place, memory))?;
        }
        Operation::WRITE => {
            let memory = memory(buffer, length, data)?;
            within(data.read(place, memory))?;
            device.write(offset, memory, command.flags & wire::flags::DURABLE != 0)?;
        }
        Operation::FLUSH => device.flush()?,
        Operation::UNMAP => device.unmap(offset, length)?,
        Operation::ZERO => device.zero(offset, length, command.flags & wire::flags::RELEASE != 0)?,
        Operation::EXTENT => return device.extent(offset, length).map(End::Extent),
        _ => return Err(Status::UNSUPPORTED),
    }
    Ok(End::Plain)
}

/// Memory for the data of one command.
fn memory<'a>(buffer: &'a mut Vec<u8>, length: u64, data: &Region) -> Result<&'a mut [u8], Status> {
    let length = usize::try_from(length).ok().filter(|length| *length <= data.len()).ok_or(Status::FAILED)?;
    // It stays as long as the longest command so far: zeroes are not written for every command.
    if buffer.len() < length {
        buffer.resize(length, 0);
    }
    Ok(&mut buffer[..length])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::{Command, TargetEnd, ring_bytes};
    use rustix::event::{EventfdFlags, eventfd};

    /// Notes before each command whether Lunar was woken.
    struct Notes<'a>(&'a OwnedFd, Vec<bool>);

    impl Level for Notes<'_> {
        fn begin(&mut self, _: &Unit) {}

        fn execute(&mut self, _: &Submission, _: (u32, &Region)) -> Result<End, Status> {
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            let signalled = poll(&mut [PollFd::new(self.0, PollFlags::IN)], Some(&now)).expect("it is open");
            self.1.push(signalled > 0);
            Ok(End::Plain)
        }
    }

    #[test]
    fn an_answer_wakes_lunar_before_the_next_command_is_executed() {
        let file = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd");
        let memory = Region::zeroed(ring_bytes(4));
        let mut lunar = TargetEnd::new(memory.clone(), 4, 1);
        let operation = Operation::FLUSH;
        let command = Command { operation, flags: 0, offset: 0, length: 0, data: 0, timeout_milliseconds: 0 };
        for _ in 0..3 {
            assert!(lunar.submit(&command).is_some());
        }
        lunar.publish();
        assert!(lunar.may_sleep());
        let (answers, data) = (file(), Region::zeroed(4096));
        let noted = answers.try_clone().expect("an eventfd");
        let ring = HandlerEnd::open(memory.clone()).expect("they are sound");
        let mut queues = [HandlerQueue { number: 1, ring, ring_memory: memory, data, commands: file(), answers }];
        let mut notes = Notes(&noted, Vec::new());
        assert!(execute_all(&mut queues, &mut notes).expect("the rings are sound"));
        assert_eq!(notes.1, [false, true, true]);
        assert!(!execute_all(&mut queues, &mut notes).expect("the rings are sound"));
    }
}
