//! The commands of one core.

use crate::device::{Device, Shared};
use crate::reply;
use lunar_core::io::{Data, Fault};
use lunar_reactor::channel::channel;
use lunar_reactor::scsi_generic::{CDB_BYTES_MAX, Lane, Node, Outcome, Request, Token};
use lunar_reactor::{Reactor, log};
use lunar_scsi::command::Status;
use lunar_scsi::device_server::{DeviceServer, ForwardDone, ForwardedCommand, ForwardedData, ForwardedReply};
use lunar_scsi::forwarding::{DeviceFacts, Terms};
use lunar_scsi::peripheral::PeripheralType;
use lunar_scsi::sense::{Asc, SenseData};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

/// Time between two looks for an unavailable device.
const SEARCH_INTERVAL: Duration = Duration::from_secs(1);

/// The connection of one core to a device.
pub(crate) struct Connection {
    reactor: Reactor,
    shared: Arc<Shared>,
    terms: Terms,
    own: Weak<Self>,
    /// None while the device is unavailable.
    lanes: RefCell<Vec<Rc<Lane<InProgress>>>>,
    /// Lanes to an unavailable device, until the kernel has returned their commands.
    leaving: RefCell<Vec<Rc<Lane<InProgress>>>>,
    /// Commands that wait for others: the device takes no more.
    waiting: RefCell<VecDeque<(ForwardedCommand, ForwardDone)>>,
    depth: Cell<usize>,
    generation: Cell<u64>,
}

impl Connection {
    /// Connects a core to a device.
    ///
    /// # Errors
    /// When the device is unavailable, or there is no room for open files.
    pub(crate) fn open(reactor: &Reactor, device: &Device) -> io::Result<Rc<Self>> {
        let (nodes, generation) = device.shared.connect()?;
        let connection = Rc::new_cyclic(|own| Self {
            reactor: reactor.clone(),
            shared: device.shared.clone(),
            terms: device.terms.clone(),
            own: own.clone(),
            lanes: RefCell::default(),
            leaving: RefCell::default(),
            waiting: RefCell::default(),
            depth: Cell::new(1),
            generation: Cell::new(generation),
        });
        connection.begin(nodes, generation)?;
        Ok(connection)
    }

    /// Uses these nodes from now on.
    fn begin(&self, nodes: Vec<Node>, generation: u64) -> io::Result<()> {
        let (depth, may_wait) = self.shared.depth();
        let lanes = nodes.into_iter().map(|node| Lane::new(&self.reactor, node, may_wait));
        let lanes: Vec<Rc<Lane<InProgress>>> = lanes.collect::<io::Result<_>>()?;
        if let Some(first) = lanes.first() {
            let (own, first) = (self.own.clone(), Rc::downgrade(first));
            self.reactor.spawn(async move {
                Lane::until_gone(first).await;
                if let Some(own) = own.upgrade() {
                    own.lose();
                }
            });
        }
        self.depth.set(depth);
        self.generation.set(generation);
        *self.lanes.borrow_mut() = lanes;
        Ok(())
    }

    /// The device is unavailable: the commands that wait end, and the device is looked for until it comes back.
    fn lose(&self) {
        let lanes = std::mem::take(&mut *self.lanes.borrow_mut());
        if lanes.iter().all(|lane| !lane.is_gone()) {
            *self.lanes.borrow_mut() = lanes;
            return;
        }
        self.shared.lose(self.generation.get());
        self.leaving.borrow_mut().extend(lanes);
        for (_, done) in self.waiting.take() {
            done.complete(Err(Fault::Gone));
        }
        self.reactor.spawn(search(self.own.clone(), self.reactor.clone()));
    }

    /// Starts commands for which the device has room.
    fn start_waiting(&self) {
        loop {
            if self.lanes.borrow().iter().any(|lane| lane.is_gone()) {
                return self.lose();
            }
            let lane = {
                let lanes = self.lanes.borrow();
                let in_progress: usize = lanes.iter().map(|lane| lane.in_progress()).sum();
                if in_progress >= self.depth.get() {
                    return;
                }
                lanes.iter().min_by_key(|lane| lane.in_progress()).cloned()
            };
            let Some(lane) = lane else { return };
            let Some((command, done)) = self.waiting.borrow_mut().pop_front() else { return };
            let (request, token) = self.request(command, done);
            // The lanes have room for as many commands as the device takes.
            lane.start(request, token);
        }
    }

    fn request(&self, command: ForwardedCommand, done: ForwardDone) -> (Request, InProgress) {
        let ForwardedCommand { cdb, data, timeout, .. } = command;
        let mut bytes = [0; CDB_BYTES_MAX];
        let own = cdb.command_bytes();
        bytes[..own.len()].copy_from_slice(own);
        let timeout = self.shared.timeouts.of_cdb(own, timeout);
        let data = match data {
            ForwardedData::None => Data::None,
            ForwardedData::Out(memory) => Data::Out(memory),
            ForwardedData::In(memory) => Data::In(memory),
        };
        let request = Request { cdb: bytes, cdb_len: own.len(), data, may_be_short: !is_read(own), timeout };
        (request, InProgress { connection: self.own.clone(), done })
    }

    /// Ends a command for an unavailable device. INQUIRY data is known.
    fn answer_away(&self, mut command: ForwardedCommand, done: ForwardDone) {
        let cdb = command.cdb.command_bytes();
        let (Some(known), ForwardedData::In(memory)) = (self.shared.found.inquiry(cdb), &mut command.data) else {
            return done.complete(Err(Fault::Gone));
        };
        let allocation = usize::from(u16::from_be_bytes([cdb[3], cdb[4]]));
        let moved = memory.copy_from(0, &known[..known.len().min(allocation)]);
        let (status, sense) = (Status::GOOD, SenseData::default());
        done.complete(Ok(ForwardedReply { status, sense, moved, data: command.data }));
    }
}

/// Whether the CDB reads a medium: as many bytes as there is memory for, unless it reports fewer. Parameter data may be
/// shorter than its allocation length.
fn is_read(cdb: &[u8]) -> bool {
    /// READ and READ REVERSE of 6, 10, 12 and 16 bytes, RECOVER BUFFERED DATA, READ CD and READ CD MSF.
    const READS: [u8; 9] = [0x08, 0x0f, 0x14, 0x28, 0x81, 0x88, 0xa8, 0xb9, 0xbe];
    cdb.first().is_some_and(|op| READS.contains(op))
}

/// Looks for a device until it is back.
async fn search(connection: Weak<Connection>, reactor: Reactor) {
    loop {
        reactor.sleep(SEARCH_INTERVAL).await;
        let Some(shared) = connection.upgrade().map(|connection| connection.shared.clone()) else { return };
        let connected = in_thread(&reactor, move || shared.connect()).await;
        let Some(connection) = connection.upgrade() else { return };
        connection.leaving.borrow_mut().retain(|lane| lane.in_progress() > 0);
        let begun = connected.and_then(|(nodes, generation)| connection.begin(nodes, generation));
        if begun.is_ok() {
            return connection.start_waiting();
        }
    }
}

/// Executes a function that waits, in a thread of its own.
async fn in_thread<T: Send + 'static>(
    reactor: &Reactor,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (sender, mut receiver) = channel(reactor);
    std::thread::Builder::new().name("scsi-device".into()).spawn(move || sender.send(work()))?;
    receiver.recv().await.unwrap_or_else(|| Err(io::ErrorKind::Interrupted.into()))
}

/// A command that the kernel has.
struct InProgress {
    connection: Weak<Connection>,
    done: ForwardDone,
}

impl Token for InProgress {
    fn complete(self, outcome: Outcome) {
        if let Err(error) = &outcome.reply
            && error.kind() == io::ErrorKind::PermissionDenied
            && let Some(connection) = self.connection.upgrade()
        {
            log!(
                error,
                "the kernel refuses commands for {}: {error}: give the user of Lunar write permission for its generic \
                 node (`ls -l`)",
                connection.shared.path.display()
            );
        }
        self.done.complete(reply::of(outcome));
        if let Some(connection) = self.connection.upgrade() {
            connection.start_waiting();
        }
    }
}

impl DeviceServer for Connection {
    fn device_type(&self) -> PeripheralType {
        self.shared.found.device_type
    }

    fn transfer_bytes_max(&self) -> usize {
        self.shared.transfer_bytes_max
    }

    fn terms(&self) -> &Terms {
        &self.terms
    }

    fn facts(&self) -> &DeviceFacts {
        &self.shared.facts
    }

    fn take_event(&self) -> Option<Asc> {
        self.shared.take_event().then_some(Asc::POWER_ON_OR_RESET)
    }

    fn submit(&self, command: ForwardedCommand, done: ForwardDone) {
        if self.lanes.borrow().is_empty() {
            return self.answer_away(command, done);
        }
        self.waiting.borrow_mut().push_back((command, done));
        self.start_waiting();
    }

    /// Ends a command that still waits here. The kernel cannot cancel one that it has.
    fn abort(&self, id: u64) {
        let mut waiting = self.waiting.borrow_mut();
        if let Some(at) = waiting.iter().position(|(command, _)| command.id == id)
            && let Some((_, done)) = waiting.remove(at)
        {
            drop(waiting);
            done.complete(Err(Fault::Aborted));
        }
    }

    fn reset(&self) -> Pin<Box<dyn Future<Output = Result<(), Fault>>>> {
        let (reactor, shared) = (self.reactor.clone(), self.shared.clone());
        Box::pin(async move {
            let device = shared.clone();
            let reset = in_thread(&reactor, move || device.reset()).await;
            reset.map_err(|error| {
                let path = shared.path.display();
                log!(warning, "{path} cannot be reset: {error}: the reset of the initiator fails; see `dmesg`");
                Fault::from_errno(error.raw_os_error().unwrap_or(rustix::io::Errno::IO.raw_os_error()))
            })
        })
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connection({:?})", self.shared.found.device_type)
    }
}
