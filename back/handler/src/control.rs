//! The thread of a volume that has its socket and the connection of its handler. It sleeps unless a handler connects,
//! ends, or says something, or a core opens or closes the volume. It never waits for a process that connects: the end
//! of Lunar, and another volume at the same path, wait for it.

use crate::error::Mistake;
use crate::queue::{BLOCK_SIZES, DEPTH, SCSI_SIZES};
use crate::rbd::supervisor::Supervisor;
use crate::schema::DeviceType;
use crate::shared::{Connected, Event, Port, QueueParts, Shared, Unit, served};
use lunar_handler::ring::{TargetEnd, ring_bytes};
use lunar_handler::wire::{
    Close, Hello, LEVEL_BLOCK, LEVEL_MIXED, LEVEL_SCSI, MESSAGE_BYTES_MAX, Message, OperationCodes, PROTOCOL, Queue,
    Welcome, features, name_field, name_of, unit_flags,
};
use lunar_reactor::log;
use lunar_reactor::packets::{Cleaner, Packets};
use lunar_reactor::shared::share;
use lunar_reactor::unix::{Permission, SOCKET_PATH_MAX, clear, make_folder, send_waiting};
use lunar_scsi::device_types::DEVICE_TYPES;
use lunar_scsi::peripheral::PeripheralType;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, socket_with,
};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::fmt;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Connections that wait to be accepted: one handler, and another that is refused.
const BACKLOG: i32 = 4;
/// How long a process that has connected may take to say HELLO.
const HELLO_TIME: Duration = Duration::from_secs(5);
/// The pause before another connection after the end of one or a refusal: a handler that is started again and again
/// must not keep a processor busy.
const PAUSE: Duration = Duration::from_millis(200);
/// Time after which the log tells that a connection is not closed yet: it takes a moment.
const CLOSE_TIME: Duration = Duration::from_secs(2);
/// How long a process may take to end after it has closed its socket.
const EXIT_TIME: Duration = Duration::from_millis(100);
/// Messages of a handler after its HELLO in [`MESSAGES_TIME`]: SPACE comes every few seconds at most, and a later
/// version has few others.
const MESSAGES_MAX: u32 = 64;
const MESSAGES_TIME: Duration = Duration::from_secs(60);
/// How long the process of an image may take to say HELLO: it connects to the cluster, for which it has 30 seconds, and
/// takes the lock of a process that was killed.
const START_TIME: Duration = Duration::from_secs(120);
/// Why the process of an image is turned away.
const OTHER_IMAGE: &str = "the image is another one than the one that was served under this name";
/// Queues that a handler is told to expect: one for each core, and more while volumes are opened again.
const QUEUES_MAX: u32 = 64;

/// Listens at the socket of a volume.
///
/// # Errors
/// When the socket cannot be made, or another process listens there.
pub(crate) fn listen_at(path: &Path, mode: u32) -> Result<OwnedFd, Mistake> {
    if path.as_os_str().len() > SOCKET_PATH_MAX {
        return Err(Mistake::LongPath);
    }
    let failed = |why: Errno| Mistake::Socket(why.into());
    // Neither a connection to a process that does not accept any, nor `accept`, may wait.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = || socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map_err(failed);
    let address = SocketAddrUnix::new(path).map_err(failed)?;
    match connect(&socket()?, &address) {
        Ok(()) | Err(Errno::AGAIN) => return Err(Mistake::InUse),
        Err(Errno::CONNREFUSED) => clear(path).map_err(Mistake::Socket)?,
        // There is none, or none that is visible to this process: binding reports that.
        Err(_) => {}
    }
    path.parent().map_or(Ok(()), make_folder).map_err(Mistake::Socket)?;
    let listener = socket()?;
    bind(&listener, &address).map_err(|why| if why == Errno::ADDRINUSE { Mistake::InUse } else { failed(why) })?;
    Permission { mode, owner: None, group: None }.grant(path).map_err(Mistake::Socket)?;
    listen(&listener, BACKLOG).map_err(failed)?;
    Ok(listener)
}

/// Starts the thread.
///
/// # Errors
/// When there are too many threads.
pub(crate) fn start(shared: &Arc<Shared>, door: Door) -> io::Result<JoinHandle<()>> {
    let shared = shared.clone();
    let unit = shared.unit();
    let (newcomer, handler, process, pause) = (None, None, None, None);
    let (cleaner, busy_since) = (Cleaner::default(), None);
    let control = Control { shared, unit, door, newcomer, handler, process, generation: 0, pause, cleaner, busy_since };
    std::thread::Builder::new().name("handler".into()).spawn(move || control.run())
}

/// Where connections of handlers come from.
pub(crate) enum Door {
    /// Processes connect to this socket.
    Socket(OwnedFd),
    /// Lunar starts the process of an image.
    Program(Box<Supervisor>),
}

/// A process that has connected and said nothing yet.
struct Newcomer {
    socket: Packets,
    /// When it has to say HELLO; `None`: it stands by.
    until: Option<Instant>,
}

/// The process at the other end of a connection.
struct Peer {
    process: i32,
    user: u32,
    /// The process, to see its end.
    watched: Option<(Pid, OwnedFd)>,
}

/// The handler.
struct Handler {
    socket: Packets,
    level: u32,
    features: u64,
    /// Messages since that time.
    messages: (u32, Instant),
}

struct Control {
    shared: Arc<Shared>,
    /// The terms at the last look.
    unit: Unit,
    door: Door,
    newcomer: Option<Newcomer>,
    handler: Option<Handler>,
    /// The last process that was the handler. None where processes have no numbers that this one sees.
    process: Option<(Pid, OwnedFd)>,
    generation: u32,
    /// No connection is accepted until then.
    pause: Option<Instant>,
    /// Closes connections that have ended.
    cleaner: Cleaner,
    /// Since when a process waits for that; the second: whether the log tells it.
    busy_since: Option<(Instant, bool)>,
}

/// The sources that have something.
#[derive(Clone, Copy, Default)]
struct Ready {
    listener: bool,
    newcomer: bool,
    handler: bool,
}

/// The most files that the thread waits for.
const SOURCES: usize = 6;

impl Control {
    fn run(mut self) {
        loop {
            let ready = self.wait();
            if self.shared.state().is_over {
                break;
            }
            let now = Instant::now();
            self.look_at_terms();
            if ready.handler {
                self.listen_to_handler();
            }
            self.end_if_faulty();
            if ready.newcomer {
                self.greet();
            }
            if self.newcomer.as_ref().is_some_and(|newcomer| newcomer.until.is_some_and(|until| until <= now)) {
                self.refuse("no HELLO arrived in time");
            }
            self.pause = self.pause.filter(|until| *until > now);
            if ready.listener && self.pause.is_none() && self.newcomer.is_none() {
                self.accept();
            }
            self.look_at_process();
            if self.newcomer.as_ref().is_none_or(|newcomer| newcomer.until.is_some()) {
                self.shared.state().standing_by = None;
            }
            self.open_and_close_queues();
        }
        let Self { shared, unit, door, newcomer, handler, cleaner, .. } = self;
        drop((newcomer, handler));
        match door {
            Door::Socket(listener) => {
                // It is no error if the file was removed already.
                let _ = std::fs::remove_file(&unit.path);
                cleaner.close_listener(listener);
            }
            Door::Program(supervisor) => supervisor.end(&shared),
        }
    }

    /// Looks at the process of an image, and starts it.
    fn look_at_process(&mut self) {
        let (Door::Program(supervisor), Some(image)) = (&mut self.door, &self.unit.image) else { return };
        let has_connection = self.handler.is_some() || self.newcomer.is_some();
        if let Some(socket) = supervisor.look(&self.shared, image, has_connection) {
            let socket = Packets::new(socket, &self.cleaner);
            self.newcomer = Some(Newcomer { socket, until: Some(Instant::now() + START_TIME) });
        } else if supervisor.process().is_none() && has_connection {
            // Another process may have the end of the connection.
            self.newcomer = None;
            if self.handler.is_some() {
                self.lose();
            }
        }
    }

    /// Takes over the terms of the configuration. A handler that was welcomed on others has to connect again.
    fn look_at_terms(&mut self) {
        let unit = self.shared.unit();
        if unit == self.unit {
            return;
        }
        if matches!(self.door, Door::Socket(_))
            && unit.mode != self.unit.mode
            && let Err(why) = (Permission { mode: unit.mode, owner: None, group: None }).grant(&unit.path)
        {
            log!(error, "volume {}: {} keeps its permissions: {why}", unit.name, unit.path.display());
        }
        let terms = |unit: &Unit| {
            let shape = (unit.size, unit.block_size, unit.discard, unit.device);
            (unit.name.clone(), shape, unit.read_only, unit.image.clone())
        };
        let is_other = terms(&unit) != terms(&self.unit);
        self.unit = unit;
        if is_other && matches!(self.door, Door::Program(_)) {
            // It was started on the terms before.
            self.newcomer = None;
        }
        if is_other && self.handler.is_some() {
            log!("volume {}: the handler has to connect again, because the volume was changed", self.unit.name);
            self.lose();
        }
    }

    fn wait(&self) -> Ready {
        let accepts = self.newcomer.is_none() && self.pause.is_none();
        let (listener, [errors, process], start) = match &self.door {
            Door::Socket(listener) => (Some(listener), [None, None], None),
            Door::Program(supervisor) => (None, supervisor.sources(), supervisor.due()),
        };
        let sources: [Option<&OwnedFd>; SOURCES] = [
            Some(self.shared.bell()),
            listener.filter(|_| accepts),
            self.newcomer.as_ref().map(|newcomer| newcomer.socket.socket()),
            self.handler.as_ref().map(|handler| handler.socket.socket()),
            errors,
            process,
        ];
        let mut polled: Vec<PollFd<'_>> = sources.iter().flatten().map(|fd| PollFd::new(*fd, PollFlags::IN)).collect();
        let due =
            self.newcomer.as_ref().and_then(|newcomer| newcomer.until).into_iter().chain(self.pause).chain(start).min();
        // The kernel rounds up.
        let wait = due.map(|due| due.saturating_duration_since(Instant::now()));
        let wait = wait.and_then(|wait| Timespec::try_from(wait).ok());
        if poll(&mut polled, wait.as_ref()).is_err() {
            return Ready::default();
        }
        let mut polled = polled.iter().map(|source| !source.revents().is_empty());
        let ready = sources.map(|source| source.is_some() && polled.next() == Some(true));
        if ready[0] {
            let _ = rustix::io::read(self.shared.bell(), &mut [0; size_of::<u64>()]);
        }
        Ready { listener: ready[1], newcomer: ready[2], handler: ready[3] }
    }

    fn accept(&mut self) {
        let Door::Socket(listener) = &self.door else { return };
        if !self.cleaner.is_idle() {
            // Each connection may leave descriptors whose close waits.
            return self.rest();
        }
        self.busy_since = None;
        match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => {
                let socket = Packets::new(socket, &self.cleaner);
                self.newcomer = Some(Newcomer { socket, until: Some(Instant::now() + HELLO_TIME) });
            }
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
            Err(why) => {
                log!(error, "volume {}: no connection of a handler can be accepted: {why}", self.unit.name);
                self.pause = Some(Instant::now() + PAUSE);
            }
        }
    }

    /// Accepts no connection for a while, because one that has ended is not closed yet.
    fn rest(&mut self) {
        let now = Instant::now();
        self.pause = Some(now + PAUSE);
        let (since, is_told) = self.busy_since.get_or_insert((now, false));
        if !*is_told && now.duration_since(*since) >= CLOSE_TIME {
            *is_told = true;
            let name = &self.unit.name;
            log!(warning, "volume {name}: a process has sent a file whose close waits; no handler is accepted before");
        }
    }

    /// Ends the connection of the newcomer.
    fn refuse(&mut self, why: &str) {
        let Some(newcomer) = self.newcomer.take() else { return };
        log!(warning, "volume {}: a handler was refused: {why}", self.unit.name);
        self.turn_away(&newcomer, why);
    }

    /// Sends the reason to a newcomer that is refused.
    fn turn_away(&mut self, newcomer: &Newcomer, why: &str) {
        // It may have gone.
        let _ = send(&newcomer.socket, &Message::Refused(why.to_owned()), &[]);
        self.pause = Some(Instant::now() + PAUSE);
    }

    /// The newcomer says HELLO.
    fn greet(&mut self) {
        let Some(newcomer) = &self.newcomer else { return };
        let hello = match receive(&newcomer.socket) {
            Ok(Some(Message::Hello(hello))) => hello,
            Ok(Some(Message::StandBy(hello))) if self.unit.image.is_some() && newcomer.until.is_some() => {
                return self.let_stand_by(&hello);
            }
            Ok(Some(_)) => return self.refuse("its first message is no HELLO"),
            Ok(None) => return,
            // A connection without any message is a look whether Lunar listens.
            Err(Ended::Closed) => return self.newcomer = None,
            Err(Ended::Broken(why)) => return self.refuse(&why),
        };
        let unit = &self.unit;
        if let Err(why) = check(&hello, unit) {
            return self.refuse(&why.to_string());
        }
        if self.handler.is_some() {
            return self.refuse("the volume has a handler, which is still connected");
        }
        let peer = match self.peer(newcomer.socket.socket()) {
            Ok(peer) => peer,
            Err(why) => return self.refuse(&why.to_string()),
        };
        let Some(newcomer) = self.newcomer.take() else { return };
        if unit.image.is_some() && !self.shared.admit(name_of(&hello.identity)) {
            // The process says so itself, and its words are logged once.
            return self.turn_away(&newcomer, OTHER_IMAGE);
        }
        self.generation = self.generation.wrapping_add(1).max(1);
        let agreed = hello.features.get() & features::ALL;
        let welcome = Message::Welcome(Welcome {
            protocol: hello.protocol.get().min(PROTOCOL).into(),
            flags: if unit.read_only { unit_flags::READ_ONLY } else { 0 }.into(),
            features: agreed.into(),
            size: if unit.image.is_some() { hello.size } else { unit.size.into() },
            block_size: unit.block_size.into(),
            queues: QUEUES_MAX.into(),
            volume: name_field(&unit.name),
        });
        self.process = peer.watched;
        let connected = Connected {
            name: name_of(&hello.name),
            process: peer.process,
            user: peer.user,
            since: Instant::now(),
            generation: self.generation,
            level: hello.level.get(),
            size: hello.size.get(),
        };
        // Before a command can see the handler: commands that were admitted until now are not for it.
        let codes = if hello.level.get() == LEVEL_MIXED { hello.codes } else { OperationCodes::default() };
        self.shared.device.begin(self.generation, &codes);
        let Connected { name, process, user, .. } = &connected;
        log!("volume {}: handler '{name}' (process {process}, user {user}) is connected", unit.name);
        self.shared.counts.connections.fetch_add(1, Ordering::Relaxed);
        self.shared.connect(connected);
        // A handler that does not read gets no queue either, and loses its connection then.
        let _ = send(&newcomer.socket, &welcome, &[]);
        let level = hello.level.get();
        self.handler =
            Some(Handler { socket: newcomer.socket, level, features: agreed, messages: (0, Instant::now()) });
        if let Door::Program(supervisor) = &mut self.door {
            supervisor.serves();
        }
    }

    /// The process of an image waits until another server does not have the image any more.
    fn let_stand_by(&mut self, hello: &Hello) {
        if let Err(why) = check(hello, &self.unit) {
            return self.refuse(&why.to_string());
        }
        if !self.shared.admit(name_of(&hello.identity)) {
            let Some(newcomer) = self.newcomer.take() else { return };
            return self.turn_away(&newcomer, OTHER_IMAGE);
        }
        if let Some(newcomer) = &mut self.newcomer {
            newcomer.until = None;
        }
        self.shared.state().standing_by = Some(hello.size.get());
    }

    /// The process at the other end of a connection, which may be the handler.
    ///
    /// # Errors
    /// Why it may not.
    fn peer(&self, socket: &OwnedFd) -> Result<Peer, NoHandler> {
        let peer = socket_peercred(socket).ok();
        let (process, user) = peer.as_ref().map_or((0, 0), |peer| (peer.pid.as_raw_nonzero().get(), peer.uid.as_raw()));
        if let Door::Program(supervisor) = &self.door {
            // This process has made both ends. The process of an image starts when the one before it has ended.
            return Ok(Peer { process: supervisor.process().unwrap_or(process), user, watched: None });
        }
        if let Some(process) = self.other_process(peer.as_ref().map(|peer| peer.pid)) {
            return Err(NoHandler::Second(process));
        }
        let watched = match peer.map(|peer| (peer.pid, pidfd_open(peer.pid, PidfdFlags::empty()))) {
            Some((pid, Ok(handle))) => Some((pid, handle)),
            // Without a handle nothing would say whether it has ended when the next one comes.
            Some((_, Err(why @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)))) => {
                return Err(NoHandler::Unwatched(why));
            }
            // It has ended already, or has no number that this process sees.
            Some((_, Err(_))) | None => None,
        };
        Ok(Peer { process, user, watched })
    }

    /// The process that was the handler, if it is another one than this and lives: it may still execute commands of its
    /// connection, after newer commands of another process.
    fn other_process(&self, newcomer: Option<Pid>) -> Option<i32> {
        let (process, handle) = self.process.as_ref()?;
        if newcomer == Some(*process) {
            return None;
        }
        // A process closes its socket a moment before it has ended.
        let mut end = [PollFd::new(handle, PollFlags::IN)];
        let has_ended = poll(&mut end, Timespec::try_from(EXIT_TIME).ok().as_ref()).is_ok_and(|count| count > 0);
        (!has_ended).then_some(process.as_raw_nonzero().get())
    }

    /// The handler says something, or has gone.
    fn listen_to_handler(&mut self) {
        let Some(handler) = &mut self.handler else { return };
        match receive(&handler.socket) {
            Ok(Some(message)) => {
                if handler.messages.1.elapsed() >= MESSAGES_TIME {
                    handler.messages = (0, Instant::now());
                }
                handler.messages.0 += 1;
                if handler.messages.0 > MESSAGES_MAX {
                    self.shared.fail(self.generation, "it sends messages without end".into());
                }
                if let (Message::Space(space), true) = (message, handler.features & features::SPACE != 0) {
                    self.shared.state().space = Some((space, Instant::now()));
                }
            }
            Ok(None) => {}
            Err(Ended::Broken(why)) => self.shared.fail(self.generation, why),
            Err(Ended::Closed) => {
                let name = &self.unit.name;
                log!(warning, "volume {name}: the handler has gone; commands wait for it to come back");
                self.lose();
                self.pause = Some(Instant::now() + PAUSE);
            }
        }
    }

    /// Ends the connection if the handler has a defect.
    fn end_if_faulty(&mut self) {
        let fault = self.shared.state().fault.take();
        let Some((_, why)) = fault.filter(|(generation, _)| *generation == self.generation) else { return };
        let Some(handler) = &self.handler else { return };
        let name = &self.unit.name;
        log!(error, "volume {name}: the handler breaks the protocol, and its connection ends: {why}");
        self.shared.counts.faults.fetch_add(1, Ordering::Relaxed);
        // It may not read.
        let _ = send(&handler.socket, &Message::Fault(why), &[]);
        self.lose();
        self.pause = Some(Instant::now() + PAUSE);
    }

    /// The connection is over: the cores keep their commands for the next handler.
    fn lose(&mut self) {
        self.handler = None;
        let mut state = self.shared.state();
        state.connected = None;
        for port in &mut state.ports {
            if std::mem::take(&mut port.generation) != 0 {
                port.events.send(Event::Lost(self.generation));
            }
        }
    }

    /// Gives queues to cores that have none, and takes those of cores that have closed the volume.
    fn open_and_close_queues(&mut self) {
        let closed = std::mem::take(&mut self.shared.state().closed);
        let Some(handler) = &self.handler else { return };
        let mut result: io::Result<()> = Ok(());
        for number in closed {
            let close = Message::Close(Close { number: number.into() });
            result = result.and_then(|()| send(&handler.socket, &close, &[]));
        }
        let mut state = self.shared.state();
        let is_served = |port: &&mut Port| handler.level == LEVEL_MIXED || port.level == handler.level;
        for port in state.ports.iter_mut().filter(|port| port.generation == 0).filter(is_served) {
            let made = result.and_then(|()| make_queue((port.number, port.level), self.generation, handler));
            result = made.map(|parts| {
                port.generation = self.generation;
                port.events.send(Event::Attached(Box::new(parts)));
            });
            if result.is_err() {
                break;
            }
        }
        drop(state);
        if let Err(why) = result {
            self.shared.fail(self.generation, format!("it cannot be given a queue: {why}"));
        }
    }
}

/// Makes a queue and sends it to the handler.
fn make_queue((number, level): (u32, u32), generation: u32, handler: &Handler) -> io::Result<QueueParts> {
    let length = ring_bytes(DEPTH);
    let (rings, memory) = share("lunar-handler-rings", length)?;
    // The core makes its end of the same rings; the handler may look at once.
    drop(TargetEnd::new(memory, DEPTH, generation));
    let sizes = if level == LEVEL_SCSI { SCSI_SIZES } else { BLOCK_SIZES };
    let (data, _) = share("lunar-handler-data", sizes.data)?;
    let bell = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    let (commands, answers) = (bell()?, bell()?);
    let queue = Message::Queue(Queue {
        number: number.into(),
        depth: DEPTH.into(),
        generation: generation.into(),
        transfer_max: (sizes.transfer as u32).into(),
        ring_bytes: (length as u64).into(),
        data_bytes: (sizes.data as u64).into(),
    });
    send(&handler.socket, &queue, &[rings.as_fd(), data.as_fd(), commands.as_fd(), answers.as_fd()])?;
    Ok(QueueParts { generation, sizes, features: handler.features, rings, data, commands, answers })
}

/// Why a process may not be the handler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NoHandler {
    /// This process was the handler before, and has not ended.
    Second(i32),
    /// Its end could not be seen.
    Unwatched(Errno),
}

impl fmt::Display for NoHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Second(process) => write!(f, "process {process}, which was the handler before, has not ended"),
            Self::Unwatched(why) => write!(f, "its process cannot be watched: {why}"),
        }
    }
}

impl std::error::Error for NoHandler {}

/// Why a handler does not fit the volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Misfit {
    /// It has no version of the protocol.
    Protocol,
    /// It wants one level, and the volume has the other.
    Level(u32, u32),
    /// It has so many bytes, and the volume so many.
    Small(u64, u64),
    /// The volume is thin, and the handler has no UNMAP.
    Thick,
    /// It does not say which image it has.
    Unnamed,
    /// It is a device of one type, and another is configured.
    Device(PeripheralType, PeripheralType),
    /// Of the mixed level, it has a command that Lunar has itself.
    Command(u8, &'static str),
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Protocol => f.write_str("it has no version of the protocol"),
            Self::Level(own, wanted) => {
                let key = if wanted == LEVEL_BLOCK { "has no `device-type`" } else { "has a `device-type`" };
                let (own_name, wanted) = (served(own), served(wanted));
                write!(f, "it serves {own_name} (level {own}), and the volume is of {wanted}: it {key}")
            }
            Self::Small(own, wanted) => write!(f, "its data has {own} bytes, and the volume has {wanted}"),
            Self::Thick => f.write_str("the volume has `discard = true`, and the handler has no UNMAP"),
            Self::Command(code, name) => write!(
                f,
                "it names the operation code {code:02X}h, and Lunar executes {name} itself: a handler of the mixed \
                 level may have commands that Lunar does not have, such as those of vendors (C0h to FFh)"
            ),
            Self::Unnamed => {
                f.write_str("it does not say which image it serves: install lunar-rbd and lunar of the same version")
            }
            Self::Device(own, wanted) => {
                let types = (own.0, DeviceType::word_of(own), wanted.0, DeviceType::word_of(wanted));
                write!(
                    f,
                    "its device type is {:#04x} ({}), and that of the volume is {:#04x} ({})",
                    types.0, types.1, types.2, types.3
                )
            }
        }
    }
}

impl std::error::Error for Misfit {}

/// Whether a handler fits the volume.
fn check(hello: &Hello, unit: &Unit) -> Result<(), Misfit> {
    let (level, wanted, size) = (hello.level.get(), unit.level(), hello.size.get());
    if hello.protocol.get() == 0 {
        return Err(Misfit::Protocol);
    }
    if !unit.accepts(level) {
        return Err(Misfit::Level(level, wanted));
    }
    let own = |code: u8| {
        let row = DEVICE_TYPES.iter().find_map(|device| device.commands.rows_of(code).first())?;
        Some((code, row.policy.name))
    };
    if level == LEVEL_MIXED
        && let Some((code, name)) = hello.codes.iter().find_map(own)
    {
        return Err(Misfit::Command(code, name));
    }
    match unit.device {
        Some(device) if hello.device_type == device.0 => Ok(()),
        Some(device) => Err(Misfit::Device(PeripheralType(hello.device_type), device)),
        None if size < unit.size.max(unit.block_size.into()) => {
            Err(Misfit::Small(size, unit.size.max(unit.block_size.into())))
        }
        None if unit.image.is_some() && name_of(&hello.identity).is_empty() => Err(Misfit::Unnamed),
        None if unit.discard && hello.features.get() & features::UNMAP == 0 => Err(Misfit::Thick),
        None => Ok(()),
    }
}

/// Why nothing more can be received.
enum Ended {
    Closed,
    Broken(String),
}

/// The next message, if there is one.
fn receive(socket: &Packets) -> Result<Option<Message>, Ended> {
    // One byte more shows that it is too long.
    let mut bytes = [0; MESSAGE_BYTES_MAX + 1];
    match socket.receive(&mut bytes) {
        Ok(0) => Err(Ended::Closed),
        Ok(length) if length > MESSAGE_BYTES_MAX => Err(Ended::Broken("its message is too long".into())),
        Ok(length) => {
            Message::parse(&bytes[..length]).map(Some).map_err(|_| Ended::Broken("its message is malformed".into()))
        }
        Err(why) => match why.kind() {
            ErrorKind::WouldBlock | ErrorKind::Interrupted => Ok(None),
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => Err(Ended::Closed),
            ErrorKind::InvalidData => Err(Ended::Broken("it sends descriptors, which have no use here".into())),
            _ => Err(Ended::Broken(format!("its socket fails: {why}"))),
        },
    }
}

/// Sends a message now. A handler that does not read its few messages is broken.
fn send(socket: &Packets, message: &Message, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    send_waiting(socket.socket(), &message.bytes(), descriptors, Duration::ZERO)
}
