//! The glue between the controller as its guest sees it, the controller behind it, and the reactor: one [`Front`] per
//! core.
//!
//! * [`client`]: a connection of a client: messages, one after the other
//! * [`device`]: a device: what is fetched from its queues, and what its interrupts are
//! * [`job`]: one command in a slot, and the ways that its data takes
//! * [`motion`]: a device on its way to another process
//! * here: the sockets of a core, slots, draining
//!
//! All queues of a device are served by one core. While that is awake it looks into the guest's memory itself; before
//! it sleeps it asks the guest to ring.

mod client;
mod device;
mod job;
mod motion;

use client::Client;
use device::Device;
use job::Job;
use lunar_core::step::Tools;
use lunar_nvme::{Subsystem, Tenant};
use lunar_reactor::Reactor;
use lunar_reactor::log;
use lunar_reactor::slots::Slots;
use lunar_reactor::unix::{self, Listener};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
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
    /// What the virtual machine is called, in logs.
    pub name: String,
    /// The socket.
    pub path: PathBuf,
    /// Who may open it.
    pub permission: Permission,
    /// As whom it comes, and what it sees.
    pub tenant: Tenant,
}

/// Who may open a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Permission {
    /// Permissions.
    pub mode: u32,
    /// The number of the user who owns it; without, whoever made it.
    pub owner: Option<u32>,
    /// The number of the group that it belongs to.
    pub group: Option<u32>,
}

impl Permission {
    /// Gives it to the socket at this path.
    ///
    /// # Errors
    /// The operating system's.
    pub fn grant(self, path: &Path) -> io::Result<()> {
        unix::permit(path, self.mode, self.owner, self.group)
    }
}

/// Makes a folder that everybody may pass through: who may open a socket in it, the socket says.
fn make_folder(folder: &Path) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    folder.parent().map_or(Ok(()), make_folder)?;
    match std::fs::create_dir(folder) {
        Err(why) if why.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made.and_then(|()| std::fs::set_permissions(folder, std::fs::Permissions::from_mode(PASSABLE))),
    }
}

/// Permissions of the folders of sockets.
const PASSABLE: u32 = 0o711;

/// A socket that is listened at.
struct Socket {
    listener: Listener,
    /// Whose it is; nobody's yet: clients are not accepted.
    endpoint: RefCell<Option<Endpoint>>,
    client: RefCell<Option<Rc<Client>>>,
    is_closed: Cell<bool>,
}

impl Socket {
    fn end_client(&self) -> bool {
        let client = self.client.borrow().clone();
        client.iter().for_each(|client| client.end());
        client.is_some()
    }

    fn close(&self) {
        self.is_closed.set(true);
        self.listener.retire();
        self.end_client();
    }
}

/// One core's controllers of virtual machines.
pub struct Front {
    reactor: Reactor,
    subsystem: Rc<Subsystem>,
    drain_time: Duration,
    slots: Slots<Job>,
    sockets: RefCell<BTreeMap<PathBuf, Rc<Socket>>>,
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
            sockets: RefCell::default(),
            clients: RefCell::default(),
            starved: RefCell::default(),
            draining: Cell::new(false),
            waiters: RefCell::default(),
        })
    }

    /// Makes a socket, and the folder that it is in. Clients are accepted when it is somebody's: [`Front::serve`].
    ///
    /// # Errors
    /// `AddrInUse` when somebody serves it; else the operating system's.
    pub fn bind(&self, path: &Path, permission: Permission) -> io::Result<()> {
        if let Some(folder) = path.parent() {
            make_folder(folder)?;
        }
        // Nobody else's until it has been granted.
        let listener = Listener::bind(&self.reactor, path, 0o600)?;
        permission.grant(path)?;
        let (endpoint, client) = (RefCell::default(), RefCell::default());
        let socket = Rc::new(Socket { listener, endpoint, client, is_closed: Cell::new(false) });
        self.sockets.borrow_mut().insert(path.to_owned(), socket);
        Ok(())
    }

    /// Closes a socket; its client is gone.
    pub fn close(&self, path: &Path) {
        let socket = self.sockets.borrow_mut().remove(path);
        socket.iter().for_each(|socket| socket.close());
    }

    /// Serves whoever calls at the socket of this endpoint, one client at a time. Who is there as somebody else now has
    /// to come again.
    pub fn serve(self: &Rc<Self>, endpoint: Endpoint) {
        let Some(socket) = self.sockets.borrow().get(&endpoint.path).cloned() else { return };
        let tenant = endpoint.tenant.clone();
        match socket.endpoint.replace(Some(endpoint)) {
            Some(old) if old.tenant == tenant => {}
            Some(_) => drop(socket.end_client()),
            None => {
                let front = self.clone();
                self.reactor.spawn(async move { front.accept(&socket).await });
            }
        }
    }

    /// Ends the client at this socket, if there is one; it may come again.
    pub fn end_client(&self, path: &Path) -> bool {
        self.sockets.borrow().get(path).is_some_and(|socket| socket.end_client())
    }

    /// Those that it serves, by their sockets.
    #[must_use]
    pub fn endpoints(&self) -> Vec<Endpoint> {
        self.sockets.borrow().values().filter_map(|socket| socket.endpoint.borrow().clone()).collect()
    }

    async fn accept(self: &Rc<Self>, socket: &Socket) {
        let is_over = || self.draining.get() || socket.is_closed.get();
        while !is_over() {
            let accepted = socket.listener.accept().await;
            let Some(endpoint) = socket.endpoint.borrow().clone() else { return };
            match accepted {
                _ if is_over() => {}
                Ok(stream) => {
                    let Some(client) = Client::new(self, stream, &endpoint) else {
                        log!("vm {}: refused, for there are too many controllers", endpoint.name);
                        self.reactor.end_of_turn().await;
                        continue;
                    };
                    self.clients.borrow_mut().push(client.clone());
                    *socket.client.borrow_mut() = Some(client.clone());
                    client.serve().await;
                    socket.client.take();
                    self.clients.borrow_mut().retain(|other| !Rc::ptr_eq(other, &client));
                }
                Err(why) => {
                    log!("vm {}: accepting its client failed: {why}", endpoint.name);
                    self.reactor.sleep(ACCEPT_REST).await;
                }
            }
        }
    }

    /// Takes no more clients, lets commands finish, and ends: see [`Front::drained`].
    pub fn drain(&self) {
        self.draining.set(true);
        self.sockets.borrow().values().for_each(|socket| socket.listener.cancel());
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
                return drop(self.sockets.take());
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
