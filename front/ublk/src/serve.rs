//! The glue between the kernel, the block command set and the reactor: one [`Front`] per core.
//!
//! * `kernel`: control commands; the first core gives those of all devices
//! * `queue`: a queue of a device and its tags, on the core that serves it; `path`: the data of a request
//! * here: the devices of a core, and the end of service
//!
//! Each queue is served by one core: the kernel accepts the commands of a queue from one thread only.

mod kernel;
mod path;
mod queue;

use crate::life::{self, Claim, DiskRequest, InForce};
use crate::params::params;
use kernel::ControlDevice;
use lunar_blk::{BlockSet, Client, Limits};
use lunar_core::unit::UnitId;
use lunar_reactor::end::End;
use lunar_reactor::endpoint::Endpoint;
use lunar_reactor::endpoint::command::CommandDevice;
use lunar_reactor::endpoint::ublk::UblkDevice;
use lunar_reactor::{Reactor, log};
use queue::Queue;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::future::pending;
use std::io;
use std::rc::Rc;
use std::time::Duration;

/// Pause between two checks whether something has ended.
const LOOK: Duration = Duration::from_millis(5);
/// How long the kernel may take to start or to stop a device: it reads the table of partitions, or writes back what
/// file systems have cached.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Opens what the kernel offers: that of this machine, or that of a simulation.
#[derive(Clone, Copy)]
pub struct Opener {
    /// The control device.
    pub control: fn() -> io::Result<Endpoint>,
    /// The queues of the device of this number.
    pub queues: fn(u32) -> io::Result<Queues>,
}

impl Opener {
    /// That of this machine.
    pub const KERNEL: Self = Self { control, queues };
}

fn control() -> io::Result<Endpoint> {
    CommandDevice::ublk_control().map(Endpoint::Command)
}

fn queues(number: u32) -> io::Result<Queues> {
    let device = UblkDevice::open(number)?;
    let endpoints: io::Result<Vec<_>> =
        (0..device.queues()).map(|queue| device.queue(queue).map(Endpoint::Command)).collect();
    Ok(Queues { depth: device.depth(), buffer_bytes: device.buffer_bytes(), endpoints: endpoints? })
}

/// Reports something to the operator.
pub fn report(is_error: bool, what: &str) {
    match is_error {
        true => log!(error, "{what}"),
        false => log!("{what}"),
    }
}

/// The queues of a device.
#[derive(Debug)]
pub struct Queues {
    /// Tags of each.
    pub depth: u16,
    /// Bytes of memory of each tag.
    pub buffer_bytes: usize,
    /// The queues.
    pub endpoints: Vec<Endpoint>,
}

/// A client of a volume: this machine, for one device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Local {
    /// The unit.
    pub unit: UnitId,
    /// The client.
    pub client: Client,
}

/// The state that all devices of a core share.
struct Core {
    reactor: Reactor,
    block: Rc<BlockSet>,
    open: Opener,
    /// Requests in progress.
    busy: Cell<usize>,
    draining: End,
    /// Whether devices stay for the next process when this one ends.
    keeps: bool,
}

impl Core {
    /// Whether further requests are left to the next process.
    fn leaves(&self) -> bool {
        self.keeps && self.draining.has_come()
    }
}

/// The devices that one core serves.
pub struct Front {
    core: Rc<Core>,
    drain: Duration,
    control: RefCell<Option<Rc<ControlDevice>>>,
    /// The queues, by the numbers of their devices.
    queues: RefCell<BTreeMap<u32, Vec<Rc<Queue>>>>,
    /// The devices that this core has started: on the first core.
    started: RefCell<BTreeMap<u32, Claim>>,
}

/// The result of work that takes no longer than `time`; `None`: it goes on alone.
async fn within<T: 'static>(reactor: &Reactor, time: Duration, work: impl Future<Output = T> + 'static) -> Option<T> {
    let result = Rc::new(Cell::new(None));
    let to = result.clone();
    reactor.spawn(async move { to.set(Some(work.await)) });
    let end = reactor.now() + time;
    loop {
        if let Some(value) = result.take() {
            return Some(value);
        }
        if reactor.now() >= end {
            return None;
        }
        reactor.sleep(LOOK).await;
    }
}

impl Front {
    /// The front of a core. `keeps`: devices stay for the next process when this one ends, and requests in progress get
    /// `drain` to finish.
    #[must_use]
    pub fn new(reactor: &Reactor, block: &Rc<BlockSet>, open: Opener, (keeps, drain): (bool, Duration)) -> Rc<Self> {
        let (reactor, block, busy, draining) = (reactor.clone(), block.clone(), Cell::new(0), End::default());
        let core = Core { reactor, block, open, busy, draining, keeps };
        let (control, queues, started) = (RefCell::default(), RefCell::default(), RefCell::default());
        Rc::new(Self { core: Rc::new(core), drain, control, queues, started })
    }

    /// The control device, which is opened when it is used first.
    fn control(&self) -> Result<Rc<ControlDevice>, String> {
        if let Some(control) = &*self.control.borrow() {
            return Ok(control.clone());
        }
        let opened = (self.core.open.control)().and_then(|endpoint| ControlDevice::new(&self.core.reactor, endpoint));
        let control = Rc::new(opened.map_err(|why| why_no_control(&why))?);
        Ok(self.control.borrow_mut().insert(control).clone())
    }

    /// Checks that there is ublk.
    ///
    /// # Errors
    /// Why not, in words that say what to do.
    pub async fn check(&self) -> Result<u64, String> {
        life::features(&*self.control()?).await
    }

    /// Finds or makes a device.
    ///
    /// # Errors
    /// Why there cannot be one, in words that say what to do.
    pub async fn claim(&self, request: DiskRequest) -> Result<Claim, String> {
        life::claim(&*self.control()?, &request).await
    }

    /// The limits of a client.
    fn limits(&self, local: &Local) -> Option<Limits> {
        let unit = self.core.block.unit(local.unit)?;
        Some(Limits::of(&unit.unit, local.client.read_only))
    }

    /// Sets the parameters of a device before its queues are served; returns whether its size must be changed when it
    /// is started.
    ///
    /// # Errors
    /// Why the kernel does not take them.
    pub async fn set_params(&self, claim: Claim, local: Local) -> Result<InForce, String> {
        let limits = self.limits(&local).ok_or("its volume is not served")?;
        life::set_params(&*self.control()?, &claim, &params(&limits, claim.buffer_bytes)).await
    }

    /// Serves a queue on this core.
    ///
    /// # Errors
    /// Those of the operating system.
    pub fn serve(
        self: &Rc<Self>,
        (name, claim): (&str, Claim),
        local: Local,
        number: u16,
        (endpoint, depth, buffer): (Endpoint, u16, usize),
        has_volatile_cache: bool,
    ) -> Result<(), String> {
        let attachment = self.core.block.attach(local.unit, local.client.clone());
        let attachment = attachment.ok_or("its volume is not served")?;
        let has_cache = attachment.limits().is_some_and(|limits| limits.has_write_cache);
        attachment.set_write_cache(has_volatile_cache && has_cache);
        let queue = Queue::start(&self.core, name, &attachment, number, (endpoint, depth, buffer));
        let queue = queue.map_err(|why| format!("queue {number}: {why}"))?;
        self.queues.borrow_mut().entry(claim.number).or_default().push(queue);
        Ok(())
    }

    /// Starts a device whose queues are served. Its size follows that of its volume from now on.
    ///
    /// # Errors
    /// Why the kernel does not start it.
    pub async fn start(self: &Rc<Self>, claim: Claim, local: Local, resizes: bool) -> Result<(), String> {
        let control = self.control()?;
        let starting = async move { life::start(&*control, &claim, std::process::id()).await };
        let started = within(&self.core.reactor, PATIENCE, starting).await;
        started.unwrap_or_else(|| Err(format!("the kernel does not start it within {} s", PATIENCE.as_secs())))?;
        self.started.borrow_mut().insert(claim.number, claim);
        if resizes {
            self.resize(claim, &local).await;
        }
        let front = self.clone();
        self.core.reactor.spawn(async move { front.follow(claim, local).await });
        Ok(())
    }

    /// Changes the size of a device when that of its volume changes, as long as it is served.
    async fn follow(&self, claim: Claim, local: Local) {
        let first = |queues: &Vec<Rc<Queue>>| queues.first().cloned();
        let Some(queue) = self.queues.borrow().get(&claim.number).and_then(first) else { return };
        let attachment = queue.attachment().clone();
        let mut changes = attachment.changes();
        let mut size = attachment.limits().map(|limits| limits.capacity);
        while queue.ended().unless(attachment.until_changed(changes)).await.is_some() {
            changes = attachment.changes();
            let new = attachment.limits().map(|limits| limits.capacity);
            if new.is_some() && new != size {
                size = new;
                self.resize(claim, &local).await;
            }
        }
    }

    async fn resize(&self, claim: Claim, local: &Local) {
        let Some(limits) = self.limits(local) else { return };
        let Ok(control) = self.control() else { return };
        if let Err(why) = life::resize(&*control, &claim, limits.capacity / crate::wire::SECTOR).await {
            log!(error, "ublk: {why}");
        }
    }

    /// Stops a device; its queues are served until it has stopped.
    ///
    /// # Errors
    /// Why the kernel does not stop it.
    pub async fn stop(&self, number: u32) -> Result<(), String> {
        self.started.borrow_mut().remove(&number);
        let control = self.control()?;
        let stopping = async move { life::stop(&*control, number).await };
        let stopped = within(&self.core.reactor, PATIENCE, stopping).await;
        stopped.unwrap_or_else(|| Err(format!("the kernel does not stop it within {} s", PATIENCE.as_secs())))
    }

    /// Ends the service of the queues of a device on this core, whose tags have ended or end in a moment.
    pub async fn close(&self, number: u32) {
        let queues = self.queues.borrow_mut().remove(&number).unwrap_or_default();
        let end = self.core.reactor.now() + self.drain;
        while queues.iter().any(|queue| queue.is_served()) && self.core.reactor.now() < end {
            self.core.reactor.sleep(LOOK).await;
        }
        queues.iter().for_each(|queue| queue.ended().come());
    }

    /// Removes a device that is closed on all cores, or was never served.
    ///
    /// # Errors
    /// Why the kernel does not remove it.
    pub async fn remove(&self, number: u32) -> Result<(), String> {
        let control = self.control()?;
        let removing = async move { life::remove(&*control, number, true).await };
        // A kernel that waits for the last user of the disk goes on alone.
        within(&self.core.reactor, LOOK * 20, removing).await.unwrap_or(Ok(()))
    }

    /// Requests in progress.
    #[must_use]
    pub fn in_progress(&self) -> usize {
        self.core.busy.get()
    }

    /// Ends the service: see [`Front::drained`].
    pub fn drain(&self) {
        self.core.draining.come();
    }

    /// Waits for [`Front::drain`], and then for the end of the service. Devices that stay are left to the next process;
    /// others are removed.
    pub async fn drained(&self) {
        self.core.draining.unless(pending::<()>()).await;
        let started = self.started.take();
        for (number, claim) in started {
            if self.core.keeps {
                if let Ok(control) = self.control() {
                    let leaving = async move { life::leave(&*control, &claim).await };
                    within(&self.core.reactor, self.drain, leaving).await;
                }
                continue;
            }
            match self.stop(number).await {
                Ok(()) => drop(self.remove(number).await),
                Err(why) => log!(error, "ublk: {why}"),
            }
        }
        let end = self.core.reactor.now() + if self.core.keeps { self.drain } else { PATIENCE };
        while self.has_work() && self.core.reactor.now() < end {
            self.core.reactor.sleep(LOOK).await;
        }
        // The last answers leave with the end of this turn.
        self.core.reactor.sleep(LOOK).await;
        self.abandon();
    }

    fn has_work(&self) -> bool {
        let is_served = || self.queues.borrow().values().flatten().any(|queue| queue.is_served());
        self.in_progress() > 0 || (!self.core.keeps && is_served())
    }

    /// Forgets all queues at once.
    pub fn abandon(&self) {
        self.queues.take().values().flatten().for_each(|queue| queue.ended().come());
    }
}

/// Why the control device cannot be opened, in words that say what to do.
fn why_no_control(why: &io::Error) -> String {
    match why.kind() {
        io::ErrorKind::NotFound => "this kernel has no ublk, or its module is not loaded: modprobe ublk_drv \
             (Linux 6.5 or newer; as a service, put ublk_drv into /etc/modules-load.d/lunar.conf)"
            .into(),
        io::ErrorKind::PermissionDenied => "/dev/ublk-control may not be opened: run Lunar as root, or give the \
             service AmbientCapabilities=CAP_SYS_ADMIN and CAP_DAC_OVERRIDE"
            .into(),
        io::ErrorKind::Unsupported => {
            format!(
                "{why}: ublk needs io_uring: choose the driver io_uring, or none, and set kernel.io_uring_disabled=0"
            )
        }
        _ => format!("ublk: {why}"),
    }
}

impl fmt::Debug for Front {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Front({} devices)", self.queues.borrow().len())
    }
}

#[cfg(test)]
#[path = "serve_tests.rs"]
mod tests;
