//! The disk, from its start to its end, on one thread: the kernel accepts the commands of a queue from one thread only,
//! and Lunar serves all rings of a disk on one core, too.

use crate::error::{ServerError, SessionError};
use crate::link::{Link, connected};
use crate::options::Options;
use crate::session::Session;
use crate::size::Size;
use crate::traffic::Traffic;
use lunar_blk::{Code, Error};
use lunar_core::io::{Completion, Fault};
use lunar_reactor::end::End;
use lunar_reactor::endpoint::Endpoint;
use lunar_reactor::endpoint::command::{Command, CommandDevice, Request, UblkQueue};
use lunar_reactor::endpoint::ublk::UblkDevice;
use lunar_reactor::op::Handle;
use lunar_reactor::unix::Stream;
use lunar_reactor::{Choice, Config, Reactor, flusher, log};
use lunar_ublk::error::{QueueBroken, ServeError};
use lunar_ublk::life::{self, Claim, DiskRequest as DeviceRequest, Key, Quiet, Removal, Rights, Stopped};
use lunar_ublk::params::{TRANSFER_BYTES, params};
use lunar_ublk::serve::kernel::ControlDevice;
use lunar_ublk::serve::{PATIENCE, link};
use lunar_ublk::tag::{IoRequest, Next, Tag};
use lunar_ublk::user::DiskUser;
use lunar_ublk::wire::{Descriptor, SECTOR, TagCommand, disk_at};
use lunar_vhost_client::blk::DiskRequest;
use lunar_vhost_client::disk::Shape;
use lunar_vhost_client::lane::Answer;
use lunar_vhost_client::layout::Layout;
use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

/// How long a request of an unprivileged process may take. The kernel kills the process after 30 seconds.
const UNPRIVILEGED_PATIENCE: Duration = Duration::from_secs(20);
/// Pause between two looks whether something has ended.
const LOOK: Duration = Duration::from_millis(5);
/// How long a program may have a disk open that ends: services of the machine look at a disk that was closed.
const OPEN_TIME: Duration = Duration::from_secs(2);
/// Bytes of memory for control commands and messages.
const ARENA_BYTES: usize = 1 << 20;
/// The bit of CAP_SYS_ADMIN in a set of capabilities (capabilities(7)).
const SYS_ADMIN: u32 = 21;

/// Serves a disk until a byte comes through `stop`, which the signals of the process send.
///
/// # Errors
/// Why it is not served.
pub fn run(options: &Options, stop: OwnedFd) -> Result<(), ServerError> {
    let config = Config { driver: Choice::IoUring, arena_bytes: ARENA_BYTES, register: false, ..Config::default() };
    let reactor = Reactor::new(config).map_err(ServerError::Start)?;
    let stop = Stop::new(&reactor, stop)?;
    let (name, socket) = (options.name(), options.socket.clone().unwrap_or_default());
    let server = Server {
        reactor: reactor.clone(),
        name,
        socket,
        options: options.clone(),
        rights: rights(),
        stop,
        has_opened: Cell::new(false),
    };
    reactor.run(server.serve())
}

/// Removes a device that a process has left.
///
/// # Errors
/// Why it stays.
pub fn remove(number: u32) -> Result<(), ServerError> {
    let config = Config { driver: Choice::IoUring, arena_bytes: ARENA_BYTES, register: false, ..Config::default() };
    let reactor = Reactor::new(config).map_err(ServerError::Start)?;
    reactor.run(async {
        // The device of another user is known by its node, which root may use, too.
        let control = control(&reactor, Rights::Unprivileged)?;
        life::clear_away(&control, number).await?;
        Ok(())
    })
}

/// The rights of this process.
fn rights() -> Rights {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    match has_sys_admin(&status) {
        true => Rights::Privileged,
        false => Rights::Unprivileged,
    }
}

/// Whether the effective capabilities in a text of /proc/self/status include CAP_SYS_ADMIN.
fn has_sys_admin(status: &str) -> bool {
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).is_some_and(|set| set >> SYS_ADMIN & 1 == 1)
}

fn control(reactor: &Reactor, rights: Rights) -> Result<ControlDevice, ServerError> {
    let opened = CommandDevice::ublk_control().map(Endpoint::Command);
    let control = opened.and_then(|endpoint| ControlDevice::new(reactor, endpoint, rights));
    Ok(control.map_err(ServeError::NoControl)?)
}

/// The signals that end the process.
#[derive(Debug)]
struct Stop(Stream);

impl Stop {
    fn new(reactor: &Reactor, stop: OwnedFd) -> Result<Self, ServerError> {
        Stream::adopt(reactor, stop).map(Self).map_err(ServerError::Start)
    }

    /// Waits for the next signal.
    async fn asked(&self) {
        // A closed end is the end, too.
        let _ = self.0.receive(&mut [0], &mut Vec::new()).await;
    }
}

/// A disk whose volume is known.
struct Known {
    session: Session,
    shape: Shape,
    /// Its UUID.
    volume: [u8; 16],
}

/// The process.
struct Server {
    reactor: Reactor,
    name: String,
    socket: PathBuf,
    options: Options,
    rights: Rights,
    stop: Stop,
    /// Whether the queues of the device were opened.
    has_opened: Cell<bool>,
}

impl Server {
    async fn serve(&self) -> Result<(), ServerError> {
        let control = Rc::new(control(&self.reactor, self.rights)?);
        life::features(&*control).await?;
        let known = match first(self.know(), self.stop.asked()).await {
            First::Left(known) => known?,
            First::Right(()) => return Ok(()),
        };
        // The kernel may wait for a program that has the disk of a process before this one open.
        let claim = match first(self.claim(&control, &known), self.stop.asked()).await {
            First::Left(claim) => claim?,
            First::Right(()) => return Ok(()),
        };
        match self.begin(&control, &claim, known).await {
            Ok(Begun::Serves(disk)) => {
                let stopped = self.until_stopped(&control, &disk).await?;
                self.finish(&control, &disk, stopped).await
            }
            Ok(Begun::Ends(disk)) => self.finish(&control, &disk, Stopped::Unknown).await,
            Ok(Begun::Left) => {
                self.withdraw(&control, &claim).await;
                Ok(())
            }
            Err(why) => {
                self.withdraw(&control, &claim).await;
                Err(why)
            }
        }
    }

    /// Gives back a device that is not served.
    async fn withdraw(&self, control: &ControlDevice, claim: &Claim) {
        // Requests that wait in a device of a process before this one must not be lost. The kernel removes an
        // unprivileged one only when nothing has it open: the next start does.
        let stays = claim.is_old || (self.rights == Rights::Unprivileged && self.has_opened.get());
        if !stays && let Err(why) = life::remove(control, claim.number, !self.has_opened.get()).await {
            log!(error, "ublk {}: {why}", self.name);
        }
    }

    /// Serves a device and starts it, unless the process is to end before.
    async fn begin(&self, control: &Rc<ControlDevice>, claim: &Claim, known: Known) -> Result<Begun, ServerError> {
        let disk = match first(self.prepare(control, claim, known), self.stop.asked()).await {
            First::Left(disk) => disk?,
            First::Right(()) => return Ok(Begun::Left),
        };
        let (started, is_asked) = {
            let starting = disk.over.unless(life::start(&**control, claim, std::process::id()));
            let mut starting = std::pin::pin!(starting);
            match first(starting.as_mut(), self.stop.asked()).await {
                First::Left(started) => (started, false),
                First::Right(()) if claim.is_old => return Ok(Begun::Left),
                First::Right(()) => {
                    // The kernel reads the table of partitions, and nothing ends the command before that has ended.
                    disk.traffic.give_up();
                    (starting.await, true)
                }
            }
        };
        match started {
            Some(started) => started?,
            None => return Err(disk.why_over()),
        }
        if is_asked {
            return Ok(Begun::Ends(disk));
        }
        self.follow_size(control, &disk);
        self.tell(claim);
        Ok(Begun::Serves(disk))
    }

    fn lost(&self, why: SessionError) -> ServerError {
        ServerError::Session(self.socket.clone(), why)
    }

    /// Connects, and asks for the volume and its UUID.
    async fn know(&self) -> Result<Known, ServerError> {
        let session = connected(&self.reactor, &self.name, &self.socket).await;
        let asked = async {
            session.accept(true).await?;
            session.shape().await
        };
        let shape = asked.await.map_err(|why| self.lost(why))?;
        // One ring with one request, for the question.
        let layout = Layout::new(1, 1, 4096).ok_or(ServerError::TooMany)?;
        let traffic = Traffic::new(&self.reactor, &self.name, (layout, 4096), None)?;
        let volume = traffic.begin(&session).await;
        traffic.end();
        let volume = volume.map_err(|why| self.lost(why))?;
        session.stop(0).await.map_err(|why| self.lost(why))?;
        Ok(Known { session, shape, volume })
    }

    /// Finds or makes the device.
    async fn claim(&self, control: &ControlDevice, known: &Known) -> Result<Claim, ServerError> {
        let request = DeviceRequest {
            name: self.name.clone(),
            // The daemon has no disk of such a name: it must not take over one whose requests it may still execute.
            key: Key::of(&format!("vhost/{}", self.name), known.volume),
            number: self.options.number,
            queues: self.options.queues,
            depth: self.options.depth,
            survives: true,
        };
        Ok(life::claim(control, &request, std::process::id()).await?)
    }

    /// Serves a device that is about to start.
    async fn prepare(&self, control: &Rc<ControlDevice>, claim: &Claim, known: Known) -> Result<Rc<Disk>, ServerError> {
        let Known { session, shape, volume } = known;
        let transfer = shape.transfer(TRANSFER_BYTES.min(claim.buffer_bytes) as usize);
        // No more than 512 KiB.
        let in_force = life::set_params(&**control, claim, &params(&shape.limits, transfer as u32)).await?;
        let is_unprivileged = self.rights == Rights::Unprivileged;
        // A tag takes its second slot when the request in the first one has taken too long.
        let slots = claim.depth.checked_mul(if is_unprivileged { 2 } else { 1 }).ok_or(ServerError::TooMany)?;
        let layout = Layout::new(claim.queues, slots, claim.buffer_bytes as usize).ok_or(ServerError::TooMany)?;
        let patience = is_unprivileged.then_some(UNPRIVILEGED_PATIENCE);
        let traffic = Traffic::new(&self.reactor, &self.name, (layout, shape.pieces.0), patience)?;
        let begun = async {
            session.accept(in_force.has_volatile_cache).await?;
            traffic.begin(&session).await
        };
        let again = begun.await.map_err(|why| self.lost(why))?;
        if again != volume {
            return Err(self.lost(SessionError::OtherVolume));
        }
        if claim.is_old {
            life::recover(&**control, claim).await?;
        }
        let known = (shape, volume, in_force.has_volatile_cache);
        let size = Rc::new(Size::new(in_force.sectors, shape.limits.capacity / SECTOR));
        let link = Link::new((&self.reactor, &self.name, &self.socket), (&traffic, &size), known);
        let disk = Rc::new(Disk {
            reactor: self.reactor.clone(),
            name: self.name.clone(),
            claim: *claim,
            traffic,
            link: link.clone(),
            size,
            may_unmap: shape.limits.write_zeroes_may_unmap,
            handles: RefCell::default(),
            tags: Cell::new(0),
            over: End::default(),
            broken: RefCell::default(),
            has_lost_memory: Cell::new(false),
        });
        if let Err(why) = flusher::serve_write_back() {
            log!(
                warning,
                "ublk {}: writing back to the disk may wait for memory that only writing back frees ({why}): give the \
                 process CAP_SYS_RESOURCE, and do not swap to the disk",
                self.name
            );
        }
        let watched = disk.clone();
        self.reactor.spawn(async move {
            watched.traffic.memory_lost().await;
            watched.has_lost_memory.set(true);
            watched.over.come();
        });
        self.has_opened.set(true);
        disk.open()?;
        self.reactor.spawn(async move { link.keep(session).await });
        Ok(disk)
    }

    /// The size of the disk, which the kernel has now, follows that of the volume.
    fn follow_size(&self, control: &Rc<ControlDevice>, disk: &Rc<Disk>) {
        let (control, disk) = (control.clone(), disk.clone());
        disk.size.begin();
        self.reactor.spawn(async move {
            let change = async |sectors| {
                if let Err(why) = life::resize(&*control, &disk.claim, sectors).await {
                    log!(error, "ublk {}: {why}", disk.name);
                }
            };
            disk.size.follow(change).await;
        });
    }

    /// The size of the disk does not change any more.
    async fn keep_size(&self, disk: &Disk) {
        disk.size.end();
        while disk.size.is_followed() {
            self.reactor.sleep(LOOK).await;
        }
    }

    fn tell(&self, claim: &Claim) {
        let rights = match self.rights {
            Rights::Privileged => "",
            Rights::Unprivileged => ", without privileges: it ends with this process",
        };
        let linked = match &self.options.link {
            Some(path) => match link::make(path, claim.number) {
                Ok(()) => format!(", {}", path.display()),
                Err(why) => {
                    log!(error, "ublk {}: {}: {why}", self.name, path.display());
                    String::new()
                }
            },
            None => String::new(),
        };
        log!("ublk {}: serves {}{linked}{rights}", self.name, disk_at(claim.number));
    }

    /// Waits for a signal that finds the disk without users, or until the disk ends by itself. Returns whether the
    /// device was stopped.
    async fn until_stopped(&self, control: &Rc<ControlDevice>, disk: &Rc<Disk>) -> Result<Stopped, ServerError> {
        let stays = |why: &str, remedy: &str| {
            let place = disk_at(disk.claim.number);
            log!(error, "ublk {}: {place} stays, because {why}: {remedy}, and end this process again", self.name);
        };
        while disk.over.unless(self.stop.asked()).await.is_some() {
            if let Some(user) = DiskUser::of(disk.claim.number) {
                stays(&user.to_string(), &format!("run: {}", user.remedy()));
                continue;
            }
            self.keep_size(disk).await;
            match self.stop_unused(control, disk).await? {
                Stopped::Open => {
                    let place = disk_at(disk.claim.number);
                    stays("a program has it open", &format!("close it (lsof {place} shows which)"));
                    self.follow_size(control, disk);
                }
                stopped => return Ok(stopped),
            }
        }
        Err(disk.why_over())
    }

    /// Stops the device, unless a program has it open and keeps it open.
    async fn stop_unused(&self, control: &ControlDevice, disk: &Disk) -> Result<Stopped, ServerError> {
        let end = self.reactor.now() + OPEN_TIME;
        loop {
            let stopped = life::stop_unused(control, disk.claim.number, disk.claim.features).await?;
            if stopped != Stopped::Open || self.reactor.now() >= end {
                return Ok(stopped);
            }
            self.reactor.sleep(LOOK).await;
        }
    }

    /// Ends and removes the device, which is served until it has stopped.
    async fn finish(&self, control: &Rc<ControlDevice>, disk: &Rc<Disk>, stopped: Stopped) -> Result<(), ServerError> {
        let number = disk.claim.number;
        if let Some(path) = &self.options.link {
            link::remove(path, number);
        }
        let ending = async {
            self.keep_size(disk).await;
            if stopped != Stopped::Done {
                while disk.tags.get() > 0 && life::quiesce(&**control, &disk.claim).await != Quiet::Never {
                    self.reactor.sleep(LOOK).await;
                }
                life::stop(&**control, number).await?;
            }
            while disk.tags.get() > 0 {
                self.reactor.sleep(LOOK).await;
            }
            Ok::<_, ServerError>(life::remove(&**control, number, true).await?)
        };
        let ended = match first(ending, self.reactor.sleep(PATIENCE)).await {
            First::Left(ended) => ended,
            First::Right(()) => Err(ServeError::EndsLate(number, PATIENCE.as_secs()).into()),
        };
        disk.link.end();
        disk.traffic.end();
        if ended? == Removal::Held {
            log!("ublk {}: {} is removed when programs have closed it", self.name, disk_at(number));
        }
        Ok(())
    }
}

/// The outcome of a start.
enum Begun {
    /// The disk is served.
    Serves(Rc<Disk>),
    /// It was started, and the process is to end.
    Ends(Rc<Disk>),
    /// It was not started, because the process is to end.
    Left,
}

/// A disk that is served.
struct Disk {
    reactor: Reactor,
    name: String,
    claim: Claim,
    traffic: Rc<Traffic>,
    link: Rc<Link>,
    size: Rc<Size>,
    may_unmap: bool,
    /// The queues at the kernel, until their tags have ended: while they are open, the device cannot be removed.
    handles: RefCell<Vec<Handle>>,
    /// Tags that have not ended.
    tags: Cell<usize>,
    /// All tags have ended.
    over: End,
    broken: RefCell<Option<QueueBroken>>,
    has_lost_memory: Cell<bool>,
}

impl Disk {
    /// Opens the queues, and starts their tags.
    fn open(self: &Rc<Self>) -> Result<(), ServerError> {
        let device = UblkDevice::open(self.claim.number).map_err(ServeError::NoDevice)?;
        let sizes = (device.queues(), device.depth(), device.buffer_bytes());
        if sizes != (self.claim.queues, self.claim.depth, self.claim.buffer_bytes as usize) {
            return Err(ServeError::OtherDevice(self.claim.number).into());
        }
        for queue in 0..device.queues() {
            let attached = device.queue(queue).and_then(|own| self.reactor.attach(Endpoint::Command(own)));
            let attached = attached.map_err(|why| ServeError::Attach(queue, self.claim.number, why))?;
            self.handles.borrow_mut().push(attached);
        }
        self.tags.set(usize::from(device.queues()) * usize::from(device.depth()));
        for (queue, handle) in (0..).zip(self.handles.borrow().iter()) {
            for tag in 0..device.depth() {
                let (disk, handle) = (self.clone(), handle.clone());
                self.reactor.spawn(async move { disk.serve(queue, tag, handle).await });
            }
        }
        Ok(())
    }

    /// Serves a tag until the device stops.
    async fn serve(&self, queue: u16, number: u16, handle: Handle) {
        let _ended = TagEnd(self);
        let mut tag = Tag::new(queue, number, self.claim.buffer_bytes as usize);
        // Without a slot, the data of a request is in memory that is not shared, and the request fails.
        let (mut slot, mut has_slot) = (number, true);
        let mut command = Command::new(Request::UblkQueue(UblkQueue::default()), self.traffic.data(queue, slot));
        let mut completion = Completion::new();
        while let Some(TagCommand { number, queue, tag: of, result }) = tag.command() {
            command.request = Request::UblkQueue(UblkQueue { number, queue, tag: of, result });
            let (result, back) = self.reactor.command(&handle, command, &mut completion).await;
            let Some(back) = back else { return };
            command = back;
            match tag.answered(result.map(|_| Descriptor::of(command.result))) {
                Next::Execute(request) => {
                    let executed = match has_slot {
                        true => self.execute(&request, queue, slot).await,
                        false => Err(Error::IoError),
                    };
                    // Lunar may still use the memory of a request that has failed because it took too long.
                    if !has_slot || !self.traffic.is_free(queue, slot) {
                        slot = self.free_slot(queue, slot);
                        has_slot = self.traffic.is_free(queue, slot);
                        command.data = if has_slot { self.traffic.data(queue, slot) } else { self.traffic.spare() };
                    }
                    tag.finish(executed);
                }
                Next::Refuse | Next::Stopped => {}
                Next::Broken(why) => self.break_off(queue, why),
            }
        }
    }

    /// The slot of a tag for its next request: the one that it has had, or its second one, where tags have two.
    fn free_slot(&self, queue: u16, slot: u16) -> u16 {
        let depth = self.claim.depth;
        let other = if slot < depth { slot + depth } else { slot - depth };
        let has_other = other < self.traffic.layout().last() && self.traffic.is_free(queue, other);
        if has_other && !self.traffic.is_free(queue, slot) { other } else { slot }
    }

    async fn execute(&self, request: &IoRequest, queue: u16, slot: u16) -> Result<(), Error> {
        let since = self.reactor.now();
        let range = request.request().ranges.first().copied();
        let (offset, len) = range.map_or((0, 0), |range| (range.offset, range.len));
        let unmap = request.unmap && self.may_unmap;
        let own = DiskRequest { code: request.code, offset, len, unmap };
        let flush = DiskRequest { code: Code::Flush, offset: 0, len: 0, unmap: false };
        // virtio-blk has no writes that are on the medium when they end: a flush follows.
        let follows = (request.durable && request.code != Code::Flush).then_some(flush);
        for part in [Some(own), follows].into_iter().flatten() {
            match self.traffic.carry(queue, slot, &part, since).await {
                Answer::Ended(ended) => ended?,
                Answer::Expired => return Err(Error::IoError),
            }
        }
        Ok(())
    }

    fn break_off(&self, queue: u16, why: Fault) {
        let broken = QueueBroken { name: self.name.clone(), queue, why };
        self.broken.borrow_mut().get_or_insert(broken);
        self.over.come();
    }

    /// Why the disk has ended by itself.
    fn why_over(&self) -> ServerError {
        if self.has_lost_memory.get() {
            return ServerError::MemoryLost(self.claim.number);
        }
        let broken = self.broken.borrow_mut().take();
        broken.map_or(ServerError::Removed(self.claim.number), |broken| ServeError::Broken(broken).into())
    }
}

/// Counts a tag that ends, also by the end of its task.
struct TagEnd<'a>(&'a Disk);

impl Drop for TagEnd<'_> {
    fn drop(&mut self) {
        let left = self.0.tags.get() - 1;
        self.0.tags.set(left);
        if left == 0 {
            self.0.handles.take();
            self.0.over.come();
        }
    }
}

/// The outcome of the future that ended first.
enum First<L, R> {
    Left(L),
    Right(R),
}

async fn first<L, R>(left: impl Future<Output = L>, right: impl Future<Output = R>) -> First<L, R> {
    let (mut left, mut right) = (std::pin::pin!(left), std::pin::pin!(right));
    std::future::poll_fn(|cx| {
        if let std::task::Poll::Ready(value) = left.as_mut().poll(cx) {
            return std::task::Poll::Ready(First::Left(value));
        }
        right.as_mut().poll(cx).map(First::Right)
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_capability_is_found_in_the_status_of_the_process() {
        assert!(has_sys_admin("Name:\tx\nCapPrm:\t0\nCapEff:\t000001ffffffffff\n"));
        assert!(has_sys_admin("CapEff:\t0000000000200000\n"));
        assert!(!has_sys_admin("CapEff:\t0000000000000000\n") && !has_sys_admin("") && !has_sys_admin("CapEff:\tx\n"));
    }
}
