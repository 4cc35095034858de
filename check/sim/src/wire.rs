//! Queues of our own NVMe/TCP host over the simulated network.

use crate::configuration::{NQN, NVME_PORTAL};
use crate::exchange::{Woken, exchange, take};
use lunar_core::outgoing::Moves;
use lunar_core::time::Instant;
use lunar_nvme::{Sqe, Status};
use lunar_nvme_host::Error;
use lunar_nvme_host::bringup::{Answer, Bringup, Info, Next};
use lunar_nvme_host::command::{ANY_CONTROLLER, Connect};
use lunar_nvme_host::queue::{ADMIN_IN_CAPSULE, Command, Event, Offer, Queue};
use lunar_reactor::Reactor;
use lunar_reactor::sim::{Peer, World};
use std::time::Duration;

/// Entries of an admin queue: the fewest that there may be.
const ADMIN_ENTRIES: u16 = 32;
/// Entries of an I/O queue, as a rule.
pub const ENTRIES: u16 = 64;
/// The pause between two reads of the status of a controller that is not ready.
const READY_PAUSE: Duration = Duration::from_millis(1);

/// The reason for which a queue cannot be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Lost {
    /// The connection ended.
    Gone,
    /// No answer was received in time.
    Time,
    /// The controller violated the protocol, or refused a command.
    Error(Error),
}

impl From<Error> for Lost {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

/// A queue and its connection.
pub struct Wire {
    /// The connection.
    pub peer: Peer,
    /// The queue.
    pub queue: Queue,
    out: Vec<u8>,
}

impl Wire {
    fn open(world: &World, offer: Offer, connect: Connect) -> Self {
        Self { peer: world.connect(NVME_PORTAL), queue: Queue::new(offer, connect), out: Vec::new() }
    }

    /// Sends and receives, each if it is allowed to, until at most `most` bytes were received or the time has come.
    pub async fn wait(&mut self, core: &Reactor, until: Instant, may: (bool, bool), most: usize) -> Woken {
        while !self.queue.output().is_empty() {
            let count = take(self.queue.output(), &mut self.out);
            self.queue.sent(count);
        }
        exchange(core, &self.peer, &mut self.out, until, may, most).await
    }

    /// Waits for the next bytes.
    async fn heard(&mut self, core: &Reactor, until: Instant) -> Result<Vec<u8>, Lost> {
        match self.wait(core, until, (true, true), 8192).await {
            Woken::Bytes(bytes) => Ok(bytes),
            Woken::Ended => Err(Lost::Gone),
            Woken::Time => Err(Lost::Time),
        }
    }

    /// Waits until the queue is connected. Returns the controller ID.
    async fn connected(&mut self, core: &Reactor, until: Instant) -> Result<u16, Lost> {
        loop {
            let (bytes, mut found) = (self.heard(core, until).await?, None);
            self.queue.receive(&bytes, &mut |event| {
                if let Event::Connected { controller } = event {
                    found = Some(controller);
                }
            })?;
            if let Some(controller) = found {
                return Ok(controller);
            }
        }
    }

    /// Executes one command while no other command is in progress.
    ///
    /// # Errors
    /// The connection ends before the answer.
    pub async fn call(&mut self, core: &Reactor, sqe: Sqe, moves: Moves, until: Instant) -> Result<Answer, Lost> {
        let room = self.queue.submit(Command { cookie: 0, sqe, moves });
        room.map_err(|_| Error::Protocol("the queue is full although nothing is under way"))?;
        let mut answer = Answer { status: Status::SUCCESS, result: 0, data: Vec::new() };
        let mut over = false;
        while !over {
            let bytes = self.heard(core, until).await?;
            self.queue.receive(&bytes, &mut |event| match event {
                Event::Data { bytes, .. } => answer.data.extend_from_slice(bytes),
                Event::Done { status, result, .. } => {
                    (answer.status, answer.result, over) = (status, result, true);
                }
                Event::Connected { .. } => {}
            })?;
        }
        Ok(answer)
    }
}

/// A controller that serves: its admin queue, and one I/O queue.
pub struct Controller {
    /// The admin queue: the controller ends with its connection.
    pub admin: Wire,
    /// The I/O queue.
    pub io: Wire,
    /// Its properties.
    pub info: Info,
}

/// The properties of a host.
#[derive(Clone, Copy, Debug)]
pub struct HostConfig {
    /// Its number, from which its NQN and host identifier are formed.
    pub number: u8,
    /// The digests that it requests.
    pub offer: Offer,
    /// Whether it uses submission queue flow control.
    pub flow_control: bool,
    /// Entries of its I/O queue.
    pub entries: u16,
}

impl HostConfig {
    fn connect(&self, queue: u16, entries: u16, controller: u16) -> Connect {
        Connect {
            queue,
            entries,
            controller,
            keep_alive: 0,
            flow_control: self.flow_control,
            subsystem: NQN.to_owned(),
            host: format!("nqn.2026-01.io.lunar:host{}", self.number),
            host_id: [self.number + 1; 16],
        }
    }
}

impl Controller {
    /// Connects the queues and initializes the controller.
    ///
    /// # Errors
    /// The target ends the connection or refuses a command.
    pub async fn open(world: &World, core: &Reactor, config: HostConfig, until: Instant) -> Result<Self, Lost> {
        let offer = Offer { in_capsule: ADMIN_IN_CAPSULE, ..config.offer };
        let mut admin = Wire::open(world, offer, config.connect(0, ADMIN_ENTRIES, ANY_CONTROLLER));
        let id = admin.connected(core, until).await?;
        let mut way = Bringup::new(1, Some(1));
        let mut answer = admin.call(core, way.first(), Moves::Nothing, until).await?;
        let info = loop {
            answer = match way.next(&answer)? {
                Next::Command(sqe, 0) => admin.call(core, sqe, Moves::Nothing, until).await?,
                Next::Command(sqe, room) => admin.call(core, sqe, Moves::In(room), until).await?,
                Next::Later(sqe) => {
                    core.sleep(READY_PAUSE).await;
                    admin.call(core, sqe, Moves::Nothing, until).await?
                }
                Next::Ready(info) => break info,
            };
        };
        let offer = Offer { in_capsule: info.in_capsule, ..config.offer };
        let mut io = Wire::open(world, offer, config.connect(1, config.entries, id));
        io.connected(core, until).await?;
        Ok(Self { admin, io, info })
    }
}
