//! The glue between the controller as its guest sees it, the controller behind it, and the reactor: one [`Front`] per
//! core.
//!
//! * [`client`]: a connection of a client: messages, one after the other
//! * [`device`]: a device: what is fetched from its queues, and what its interrupts are
//! * [`job`]: one command in a slot, and the ways that its data takes
//! * here: the sockets of a core, slots, draining
//!
//! All queues of a device are served by one core. While that is awake it looks into the guest's memory itself; before
//! it sleeps it asks the guest to ring.

mod client;
mod device;
mod job;

use client::Client;
use device::Device;
use job::Job;
use lunar_core::step::Tools;
use lunar_nvme::Subsystem;
use lunar_reactor::Reactor;
use lunar_reactor::slots::Slots;
use lunar_reactor::unix::Listener;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::path::PathBuf;
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

/// Commands that one core carries out at once: a full queue of the largest size. Each takes some 3 KiB for its task.
const SLOTS: usize = 1024;
/// How often a core that stops looks whether commands are done.
const DRAIN_LOOK: Duration = Duration::from_millis(10);
/// How long a core rests when it has no file descriptor left for a client.
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// Where a virtual machine finds its controller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Endpoint {
    /// What the virtual machine is called. It is a host of this name, so its reservations stay its own.
    pub name: String,
    /// The socket.
    pub path: PathBuf,
    /// Permissions of the socket.
    pub mode: u32,
}

/// One core's controllers of virtual machines.
pub struct Front {
    reactor: Reactor,
    subsystem: Rc<Subsystem>,
    drain_time: Duration,
    slots: Slots<Job>,
    listeners: RefCell<Vec<Rc<Listener>>>,
    clients: RefCell<Vec<Rc<Client>>>,
    /// Devices that found no slot.
    starved: RefCell<Vec<Weak<Device>>>,
    draining: Cell<bool>,
    waiters: RefCell<Vec<Waker>>,
}

impl Front {
    /// The front of a core. Commands get `drain` to finish when the target stops.
    #[must_use]
    pub fn new(reactor: &Reactor, subsystem: &Rc<Subsystem>, drain: Duration) -> Rc<Self> {
        let slots = Slots::new(reactor, SLOTS, async |job: &Job, tools: &mut Tools| job.run(tools).await);
        Rc::new(Self {
            reactor: reactor.clone(),
            subsystem: subsystem.clone(),
            drain_time: drain,
            slots,
            listeners: RefCell::default(),
            clients: RefCell::default(),
            starved: RefCell::default(),
            draining: Cell::new(false),
            waiters: RefCell::default(),
        })
    }

    /// Makes the socket of a virtual machine, and serves it, one client at a time.
    ///
    /// # Errors
    /// `AddrInUse` when somebody serves it; else the operating system's.
    pub fn listen(self: &Rc<Self>, endpoint: Endpoint) -> io::Result<()> {
        let listener = Rc::new(Listener::bind(&self.reactor, &endpoint.path, endpoint.mode)?);
        self.listeners.borrow_mut().push(listener.clone());
        let front = self.clone();
        self.reactor.spawn(async move { front.accept(&listener, &endpoint).await });
        Ok(())
    }

    async fn accept(self: &Rc<Self>, listener: &Listener, endpoint: &Endpoint) {
        while !self.draining.get() {
            match listener.accept().await {
                Ok(_) if self.draining.get() => {}
                Ok(stream) => {
                    let Some(client) = Client::new(self, stream, endpoint) else {
                        eprintln!("vm {}: refused, for there are too many controllers", endpoint.name);
                        continue;
                    };
                    self.clients.borrow_mut().push(client.clone());
                    client.serve().await;
                    self.clients.borrow_mut().retain(|other| !Rc::ptr_eq(other, &client));
                }
                Err(_) if self.draining.get() => {}
                Err(why) => {
                    eprintln!("vm {}: accepting its client failed: {why}", endpoint.name);
                    self.reactor.sleep(ACCEPT_REST).await;
                }
            }
        }
    }

    /// Takes no more clients, lets commands finish, and ends: see [`Front::drained`].
    pub fn drain(&self) {
        self.draining.set(true);
        self.listeners.borrow().iter().for_each(|listener| listener.cancel());
        self.waiters.take().into_iter().for_each(Waker::wake);
    }

    /// Waits for [`Front::drain`], and then until all clients are gone.
    pub async fn drained(&self) {
        poll_fn(|cx| {
            if self.draining.get() {
                return Poll::Ready(());
            }
            self.waiters.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await;
        let end = self.reactor.now() + self.drain_time;
        loop {
            let clients = self.clients.borrow().clone();
            if clients.is_empty() {
                return drop(self.listeners.take());
            }
            let is_late = self.reactor.now() >= end;
            clients.iter().filter(|client| is_late || client.is_quiet()).for_each(|client| client.end());
            self.reactor.sleep(DRAIN_LOOK).await;
        }
    }

    /// A device found no slot: it is told when one is free.
    fn starve(&self, device: &Weak<Device>) {
        let mut starved = self.starved.borrow_mut();
        if !starved.iter().any(|other| other.ptr_eq(device)) {
            starved.push(device.clone());
        }
    }

    /// A slot is free soon: whoever waited for one looks again.
    fn feed(&self) {
        if !self.starved.borrow().is_empty() {
            self.starved.take().iter().filter_map(Weak::upgrade).for_each(|device| device.look_again());
        }
    }
}

impl fmt::Debug for Front {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Front({} clients)", self.clients.borrow().len())
    }
}
