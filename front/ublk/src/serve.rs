//! The glue between the kernel, the block command set and the reactor: one [`Front`] per core.
//!
//! * `kernel`: control commands; the first core gives those of all devices
//! * `queue`: a queue of a device and its tags, on the core that serves it; `path`: the data of a request
//! * here: the devices of a core, and the end of service
//!
//! Each queue is served by one core: the kernel accepts the commands of a queue from one thread only.

pub mod kernel;
pub mod link;
mod path;
mod queue;

use crate::disk::Disk;
use crate::error::{DeviceError, ServeError};
use crate::life::{self, Claim, DiskRequest, InForce, Quiet, Removal, Rights};
use crate::params::params;
use crate::schema::WORD;
use crate::user::DiskUser;
use crate::wire::DeviceInfo;
use kernel::ControlDevice;
use lunar_blk::{BlockSet, Client, Limits};
use lunar_core::unit::UnitId;
use lunar_reactor::end::End;
use lunar_reactor::endpoint::Endpoint;
use lunar_reactor::endpoint::command::CommandDevice;
use lunar_reactor::endpoint::ublk::UblkDevice;
use lunar_reactor::{Reactor, flusher, log};
use queue::Queue;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::future::pending;
use std::io;
use std::path::Path as FilePath;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Pause between two checks whether something has ended.
const LOOK: Duration = Duration::from_millis(5);
/// How long a change of the configuration, or the end of the process, waits for a device that starts or ends: the
/// kernel reads the table of partitions, and requests in progress come to their ends. Both go on afterwards.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Opens what the kernel offers: that of this machine, or that of a simulation.
#[derive(Clone, Copy)]
pub struct Opener {
    /// The control device.
    pub control: fn() -> io::Result<Endpoint>,
    /// The queues of the device of this number.
    pub queues: fn(u32) -> io::Result<Queues>,
    /// Tells the kernel that this thread serves disks.
    pub flusher: fn() -> io::Result<()>,
    /// Whether there are disks of ublk.
    pub has_disks: fn() -> bool,
    /// The user of the disk of this number.
    pub user: fn(u32) -> Option<DiskUser>,
    /// Makes or replaces the link at this path to the disk of this number.
    pub link: fn(&FilePath, u32) -> io::Result<()>,
    /// Removes the link at this path, if it leads to the disk of this number.
    pub unlink: fn(&FilePath, u32),
    /// The links in this folder: their names, and the numbers of the disks to which they lead.
    pub links: fn(&FilePath) -> Vec<(String, u32)>,
}

impl Opener {
    /// The opener of this machine.
    pub const KERNEL: Self = Self {
        control,
        queues,
        flusher: flusher::serve_write_back,
        has_disks,
        user: DiskUser::of,
        link: link::make,
        unlink: link::remove,
        links: link::all,
    };
}

fn has_disks() -> bool {
    let is_disk = |entry: std::fs::DirEntry| entry.file_name().to_string_lossy().starts_with("ublkb");
    std::fs::read_dir("/sys/block").is_ok_and(|all| all.flatten().any(is_disk))
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
    /// Whether the time for the requests in progress at the end is over.
    is_late: Cell<bool>,
    /// Whether the kernel knows that this thread serves disks.
    is_flusher: Cell<bool>,
}

impl Core {
    /// Whether further requests are left to the next process. A kernel that `quiesces` keeps them itself.
    fn leaves(&self, quiesces: bool) -> bool {
        self.keeps && self.draining.has_come() && (!quiesces || self.is_late.get())
    }

    /// Tells the kernel that this thread, which writes back its page cache, must not wait for that.
    fn become_flusher(&self) {
        if self.is_flusher.replace(true) {
            return;
        }
        if let Err(why) = (self.open.flusher)() {
            log!(
                warning,
                "ublk: writing back to its disks may wait for memory that only writing back frees ({why}): give the \
                 service AmbientCapabilities=CAP_SYS_RESOURCE, and do not swap to such a disk"
            );
        }
    }
}

/// Work that goes on alone, and its result once it has ended.
struct Work<T>(Rc<Cell<Option<T>>>);

impl<T: 'static> Work<T> {
    fn begin(reactor: &Reactor, work: impl Future<Output = T> + 'static) -> Self {
        let result = Rc::new(Cell::new(None));
        let to = result.clone();
        reactor.spawn(async move { to.set(Some(work.await)) });
        Self(result)
    }

    /// Whether it is in progress. A result that was taken is the end, too.
    fn is_in_progress(&self) -> bool {
        Rc::strong_count(&self.0) > 1
    }

    /// Waits for the result until `time` has passed, or `is_vain`; `None`: the work goes on.
    async fn wait(&self, reactor: &Reactor, time: Duration, is_vain: impl Fn() -> bool) -> Option<T> {
        let end = reactor.now() + time;
        loop {
            if let Some(value) = self.0.take() {
                return Some(value);
            }
            if reactor.now() >= end || is_vain() {
                return None;
            }
            reactor.sleep(LOOK).await;
        }
    }
}

/// The devices that one core serves.
pub struct Front {
    core: Rc<Core>,
    drain: Duration,
    control: RefCell<Option<Rc<ControlDevice>>>,
    /// Queues that are not served yet, by the numbers of their devices.
    reserved: RefCell<BTreeMap<u32, Vec<Rc<Queue>>>>,
    /// The queues, by the numbers of their devices.
    queues: RefCell<BTreeMap<u32, Vec<Rc<Queue>>>>,
    /// On the first core: the devices that were started, and those whose start or end goes on.
    started: RefCell<BTreeMap<u32, (Claim, Arc<Disk>)>>,
    starting: RefCell<BTreeMap<u32, Work<Result<(), DeviceError>>>>,
    ending: RefCell<BTreeMap<u32, Work<Result<Removal, ServeError>>>>,
}

impl Front {
    /// The front of a core. `keeps`: devices stay for the next process when this one ends, and requests in progress get
    /// `drain` to finish.
    #[must_use]
    pub fn new(reactor: &Reactor, block: &Rc<BlockSet>, open: Opener, (keeps, drain): (bool, Duration)) -> Rc<Self> {
        let core = Core {
            reactor: reactor.clone(),
            block: block.clone(),
            open,
            busy: Cell::new(0),
            draining: End::default(),
            keeps,
            is_late: Cell::new(false),
            is_flusher: Cell::new(false),
        };
        Rc::new(Self {
            core: Rc::new(core),
            drain,
            control: RefCell::default(),
            reserved: RefCell::default(),
            queues: RefCell::default(),
            started: RefCell::default(),
            starting: RefCell::default(),
            ending: RefCell::default(),
        })
    }

    /// The control device, which is opened when it is used first.
    fn control(&self) -> Result<Rc<ControlDevice>, ServeError> {
        if let Some(control) = &*self.control.borrow() {
            return Ok(control.clone());
        }
        let opened = (self.core.open.control)()
            .and_then(|endpoint| ControlDevice::new(&self.core.reactor, endpoint, Rights::Privileged));
        let control = Rc::new(opened.map_err(ServeError::NoControl)?);
        Ok(self.control.borrow_mut().insert(control).clone())
    }

    /// Checks that there is ublk.
    ///
    /// # Errors
    /// Why not, in words that say what to do.
    pub async fn check(&self) -> Result<u64, ServeError> {
        Ok(life::features(&*self.control()?).await?)
    }

    /// Finds or makes a device.
    ///
    /// # Errors
    /// Why there cannot be one, in words that say what to do.
    pub async fn claim(&self, request: DiskRequest) -> Result<Claim, ServeError> {
        Ok(life::claim(&*self.control()?, &request, std::process::id()).await?)
    }

    /// The devices that were left, and that have none of these names.
    ///
    /// # Errors
    /// Why that cannot be known.
    pub async fn left_behind(&self, names: Vec<String>) -> Result<Vec<DeviceInfo>, ServeError> {
        Ok(life::left_behind(&*self.control()?, &names).await?)
    }

    /// Whether the device of this number is the disk of this name.
    ///
    /// # Errors
    /// Why that cannot be known.
    pub async fn bears(&self, number: u32, name: &str, is_wanted: bool) -> Result<bool, ServeError> {
        Ok(life::bears(&*self.control()?, number, name, is_wanted).await?)
    }

    /// Removes a device that was left, unless it is in use.
    ///
    /// # Errors
    /// Why it stays.
    pub async fn discard_left(&self, number: u32) -> Result<Removal, ServeError> {
        let control = self.control()?;
        let work = async move { life::discard_left(&*control, number).await };
        let work = Work::begin(&self.core.reactor, work);
        let removed = work.wait(&self.core.reactor, PATIENCE, || false).await;
        Ok(removed.ok_or(ServeError::RemovedLate(number))??)
    }

    /// The limits of a client.
    fn limits(&self, local: &Local) -> Option<Limits> {
        let unit = self.core.block.unit(local.unit)?;
        Some(Limits::of(&unit.unit, local.client.read_only))
    }

    /// Sets the parameters of a device before its queues are served; returns those in force.
    ///
    /// # Errors
    /// Why the kernel does not take them.
    pub async fn set_params(&self, claim: Claim, local: Local) -> Result<InForce, ServeError> {
        let limits = self.limits(&local).ok_or(ServeError::NotServed)?;
        Ok(life::set_params(&*self.control()?, &claim, &params(&limits, claim.buffer_bytes)).await?)
    }

    /// Takes the memory of a queue for this core. The device is not changed.
    ///
    /// # Errors
    /// When the volume is not served, or there is no memory, in words that say what to do.
    pub fn reserve(
        &self,
        (name, claim, disk): (&str, &Claim, &Arc<Disk>),
        local: &Local,
        number: u16,
        has_volatile_cache: bool,
    ) -> Result<(), ServeError> {
        let attachment = self.core.block.attach(local.unit, local.client.clone());
        let attachment = attachment.ok_or(ServeError::NotServed)?;
        let (hosts, host) = (&self.core.reactor.stats().hosts, &local.client.name);
        let session = match number {
            0 => hosts.session(WORD, name, host),
            _ => hosts.connection(WORD, name, host),
        };
        // It is new, and has no counters.
        let _ = attachment.host.set(session);
        let has_cache = attachment.limits().is_some_and(|limits| limits.has_write_cache);
        attachment.set_write_cache(has_volatile_cache && has_cache);
        let Claim { depth, buffer_bytes, .. } = *claim;
        let no_memory = |why| ServeError::Memory { queue: number, depth, buffer_bytes, why };
        let queue = Queue::reserve(&self.core, (name, number, disk), &attachment, claim).map_err(no_memory)?;
        self.reserved.borrow_mut().entry(claim.number).or_default().push(queue);
        Ok(())
    }

    /// Begins to take over a device that was left.
    ///
    /// # Errors
    /// Why the kernel does not give it.
    pub async fn recover(&self, claim: Claim) -> Result<(), ServeError> {
        Ok(life::recover(&*self.control()?, &claim).await?)
    }

    /// Gives a queue its endpoint.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn attach(&self, device: u32, number: u16, endpoint: Endpoint) -> Result<(), ServeError> {
        let is_it = |queue: &&Rc<Queue>| queue.number() == number;
        let queue = self.reserved.borrow().get(&device).and_then(|queues| queues.iter().find(is_it).cloned());
        let attached = queue.ok_or(ServeError::NotServed)?.attach(endpoint);
        attached.map_err(|why| ServeError::Attach(number, device, why))
    }

    /// Serves the queues of a device that were reserved.
    pub fn go(&self, device: u32) {
        let reserved = self.reserved.borrow_mut().remove(&device).unwrap_or_default();
        if !reserved.is_empty() {
            self.core.become_flusher();
        }
        reserved.iter().for_each(Queue::go);
        let mut queues = self.queues.borrow_mut();
        let queues = queues.entry(device).or_default();
        // A device of this number before may have ended without being closed.
        queues.retain(|queue| queue.is_served());
        queues.extend(reserved);
    }

    /// Gives back the queues that were reserved and are not served.
    pub fn release(&self, device: u32) {
        self.reserved.borrow_mut().remove(&device);
    }

    /// Starts a device whose queues are served, and which has so many sectors. Its size follows that of its volume from
    /// now on. A start that failed, or took too long, may be repeated.
    ///
    /// # Errors
    /// Why the kernel does not start it.
    pub async fn start(
        self: &Rc<Self>,
        (claim, disk): (Claim, Arc<Disk>),
        local: Local,
        sectors: u64,
    ) -> Result<(), ServeError> {
        let (control, reactor) = (self.control()?, &self.core.reactor);
        let before = self.starting.borrow_mut().remove(&claim.number);
        let starting = before.unwrap_or_else(|| {
            let starting = async move { life::start(&*control, &claim, std::process::id()).await };
            Work::begin(reactor, starting)
        });
        match starting.wait(reactor, PATIENCE, || disk.trouble().is_some()).await {
            Some(started) => started?,
            None => {
                self.starting.borrow_mut().insert(claim.number, starting);
                let late = ServeError::StartsLate(claim.number, PATIENCE.as_secs());
                return Err(disk.trouble().cloned().map_or(late, ServeError::Broken));
            }
        }
        self.started.borrow_mut().insert(claim.number, (claim, disk));
        // The volume may have changed since the parameters were set.
        let sectors = self.resize(claim, &local, sectors).await;
        let front = self.clone();
        self.core.reactor.spawn(async move { front.follow(claim, local, sectors).await });
        Ok(())
    }

    /// Changes the size of a device, which has so many sectors, when that of its volume changes, while it is served.
    async fn follow(&self, claim: Claim, local: Local, mut sectors: u64) {
        let first = |queues: &Vec<Rc<Queue>>| queues.first().cloned();
        let Some(queue) = self.queues.borrow().get(&claim.number).and_then(first) else { return };
        let attachment = queue.attachment().clone();
        loop {
            let changes = attachment.changes();
            sectors = self.resize(claim, &local, sectors).await;
            if queue.ended().unless(attachment.until_changed(changes)).await.is_none() {
                return;
            }
        }
    }

    /// Gives a device with so many sectors the size of its volume, which is returned.
    async fn resize(&self, claim: Claim, local: &Local, sectors: u64) -> u64 {
        let (Some(limits), Ok(control)) = (self.limits(local), self.control()) else { return sectors };
        let wanted = limits.capacity / crate::wire::SECTOR;
        if wanted != sectors
            && let Err(why) = life::resize(&*control, &claim, wanted).await
        {
            log!(error, "ublk: {why}");
        }
        wanted
    }

    /// Ends and removes a device. It is served until it has stopped, however long that takes; the caller waits for
    /// [`PATIENCE`].
    ///
    /// # Errors
    /// Why the kernel does not remove it, or that it takes longer.
    pub async fn end(self: &Rc<Self>, claim: Claim, disk: Arc<Disk>) -> Result<Removal, ServeError> {
        let reactor = &self.core.reactor;
        self.started.borrow_mut().remove(&claim.number);
        self.starting.borrow_mut().remove(&claim.number);
        let before = self.ending.borrow_mut().remove(&claim.number);
        let ending = before.unwrap_or_else(|| {
            let front = self.clone();
            Work::begin(reactor, async move { front.finish(claim, disk).await })
        });
        match ending.wait(reactor, PATIENCE, || false).await {
            Some(ended) => ended,
            None => {
                self.ending.borrow_mut().insert(claim.number, ending);
                Err(too_long(claim.number))
            }
        }
    }

    /// Ends and removes a device.
    ///
    /// Where the kernel can keep further requests, the device is stopped when all its tags have ended. Otherwise a
    /// process that is killed in the meantime would hang: the kernel waits in the command for requests that the process
    /// has, and with the end of the process for the command.
    async fn finish(&self, claim: Claim, disk: Arc<Disk>) -> Result<Removal, ServeError> {
        let control = self.control()?;
        self.quiet(&control, &claim, &disk).await;
        life::stop(&*control, claim.number).await?;
        while disk.tags() > 0 {
            self.core.reactor.sleep(LOOK).await;
        }
        let removed = life::remove(&*control, claim.number, true).await?;
        disk.go();
        Ok(removed)
    }

    /// Has the kernel keep further requests until all tags have ended, if it can.
    async fn quiet(&self, control: &ControlDevice, claim: &Claim, disk: &Disk) {
        while disk.tags() > 0 {
            if life::quiesce(control, claim).await == Quiet::Never {
                return;
            }
            self.core.reactor.sleep(LOOK).await;
        }
    }

    /// Forgets the queues of a device that has ended.
    pub fn close(&self, number: u32) {
        let queues = self.queues.borrow_mut().remove(&number).unwrap_or_default();
        queues.iter().for_each(|queue| queue.ended().come());
    }

    /// Removes a device that was never served.
    ///
    /// # Errors
    /// Why the kernel does not remove it.
    pub async fn remove(&self, number: u32) -> Result<Removal, ServeError> {
        let control = self.control()?;
        let removing = Work::begin(&self.core.reactor, async move { life::remove(&*control, number, true).await });
        // A kernel that waits for the last user of the disk goes on alone.
        Ok(removing.wait(&self.core.reactor, PATIENCE, || false).await.unwrap_or(Ok(Removal::Held))?)
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

    /// Waits for [`Front::drain`], and then for the end of the service. Devices that stay are left to the next process:
    /// first the kernel is told to keep their requests, and the requests in progress are answered. Others are removed.
    pub async fn drained(self: &Rc<Self>) {
        self.core.draining.unless(pending::<()>()).await;
        let (reactor, keeps) = (&self.core.reactor, self.core.keeps);
        let end = reactor.now() + if keeps { self.drain } else { PATIENCE };
        let mut ending = if keeps { BTreeMap::new() } else { self.ending.take() };
        for (number, (claim, disk)) in self.started.take() {
            let front = self.clone();
            if keeps {
                reactor.spawn(async move {
                    if let Ok(control) = front.control() {
                        front.quiet(&control, &claim, &disk).await;
                    }
                });
            } else {
                ending.insert(number, Work::begin(reactor, async move { front.finish(claim, disk).await }));
            }
        }
        let is_ending = |ending: &BTreeMap<u32, Work<_>>| ending.values().any(Work::is_in_progress);
        while (self.has_work() || is_ending(&ending)) && reactor.now() < end {
            reactor.sleep(LOOK).await;
        }
        self.core.is_late.set(true);
        for (number, work) in ending {
            match work.0.take() {
                Some(Ok(_)) => {}
                Some(Err(why)) => log!(error, "ublk: {why}"),
                None => log!(error, "ublk: {}", too_long(number)),
            }
        }
        // The last answers leave with the end of this turn.
        reactor.sleep(LOOK).await;
        self.abandon();
    }

    fn has_work(&self) -> bool {
        let ends = |queue: &Rc<Queue>| queue.is_served() && (!self.core.keeps || queue.quiesces());
        self.in_progress() > 0 || self.queues.borrow().values().flatten().any(ends)
    }

    /// Forgets all queues at once.
    pub fn abandon(&self) {
        self.queues.take().values().flatten().for_each(|queue| queue.ended().come());
    }
}

/// A device that does not end in time.
fn too_long(number: u32) -> ServeError {
    ServeError::EndsLate(number, PATIENCE.as_secs())
}

impl fmt::Debug for Front {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Front({} devices)", self.queues.borrow().len())
    }
}

#[cfg(test)]
#[path = "serve_tests.rs"]
mod tests;
