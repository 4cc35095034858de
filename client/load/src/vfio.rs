//! Namespaces behind vfio-user: queues in memory that is shared with the controller. Who polls looks there; who sleeps
//! is told by eventfds. The socket only sets things up, and carries doorbells where they are told.

use crate::driven::{Ending, Request, Session, Told, Work};
use crate::link::Lost;
use crate::options::{Doorbells, Options};
use crate::report::{Negotiated, Rings};
use crate::{Capacity, Opened};
use anyhow::{Context, Result, bail, ensure};
use lunar_core::mem::Region;
use lunar_nvme::controller::property;
use lunar_nvme::{Sqe, Status};
use lunar_nvme_host::bringup::{Answer, Bringup, Info, Next, READY, SHUTDOWN};
use lunar_nvme_host::command::{self, Property};
use lunar_nvme_host::rings::{self, DoorbellMode, PAGE, Pair, Write};
use lunar_nvme_host::vfio::{self, Conversation};
use lunar_reactor::{shared, unix};
use lunar_vfio_user::memory::Window;
use lunar_vfio_user::wire::{Code, HEADER_LEN, REGION_BAR0, REGION_CONFIG};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::cell::RefCell;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Entries of the admin queues: one command at a time is under way.
const ADMIN_ENTRIES: u16 = 32;
/// Registers of the admin queues (NVMe Base 2.0 3.1.3).
const ADMIN_ATTRIBUTES: u32 = 0x24;
const ADMIN_SUBMISSIONS: u32 = 0x28;
const ADMIN_COMPLETIONS: u32 = 0x30;
/// CC: nothing.
const DISABLED: u32 = 0;
/// The command register of the configuration space: memory, bus master, no INTx.
const PCI_COMMAND: u64 = 0x04;
const PCI_ENABLE: u16 = 0x0406;
/// Where the configuration space says where its first capability is; MSI-X, and the bit that enables it (PCI 3.0 6.7,
/// 6.8.2.3).
const PCI_CAPABILITIES: u64 = 0x34;
const MSIX: u8 = 0x11;
const MSIX_ENABLE: u16 = 0x8000;
/// Capabilities that a configuration space has room for.
const CAPABILITIES_MAX: usize = 48;
/// Where the controller finds the memory of the admin queues, and that of the others: beyond what 32 bits can say.
const ADMIN_ADDRESS: u64 = 1 << 32;
const ADDRESS: u64 = 1 << 40;
/// Pages of the admin memory: its queues, data of its commands, both pages of doorbells.
const ADMIN_DATA: usize = 2 * PAGE;
const SHADOW: usize = 3 * PAGE;
const EVENTS: usize = 4 * PAGE;
const ADMIN_LEN: usize = 5 * PAGE;
/// Entries of an I/O queue at least: few drivers make smaller ones, and words that tell how far it came are written
/// seldom.
const ENTRIES_MIN: u16 = 128;
/// How long a controller that has no answer yet is left alone.
const PAUSE: Duration = Duration::from_micros(100);
/// Looks in vain after which it is asked whether anybody is there: some milliseconds of polling.
const MISSES: u32 = 1 << 17;
/// Blocks of one command: a number of 16 bits that counts from zero.
const BLOCKS_MAX: u32 = 1 << 16;

/// The socket of a controller.
#[derive(Debug)]
struct Control {
    socket: OwnedFd,
    talk: Conversation,
    patience: Duration,
}

impl Control {
    fn connect(url: &str, patience: Duration) -> Result<Self> {
        let mut path = Path::new(url).to_owned();
        if path.is_dir() {
            path.push("cntrl");
        }
        let socket = UnixStream::connect(&path).with_context(|| format!("connecting to {}", path.display()))?;
        Ok(Self { socket: socket.into(), talk: Conversation::default(), patience })
    }

    /// Carries out a command; gives what its reply has, and the descriptors that came with it.
    fn call(&mut self, code: Code, payload: &[u8], files: &[BorrowedFd<'_>]) -> Result<(Vec<u8>, Vec<OwnedFd>)> {
        let bytes = self.talk.command(code, payload, true);
        unix::send_waiting(&self.socket, &bytes, files, self.patience).map_err(Lost)?;
        let (mut head, mut given) = ([0; HEADER_LEN], Vec::new());
        unix::receive_waiting(&self.socket, &mut head, &mut given, self.patience).map_err(Lost)?;
        let mut answer = vec![0; self.talk.reply(&head)?];
        unix::receive_waiting(&self.socket, &mut answer, &mut given, self.patience).map_err(Lost)?;
        Ok((answer, given))
    }

    fn register(&mut self, offset: u32, eight: bool) -> Result<u64> {
        let len = if eight { 8 } else { 4 };
        let (answer, _) = self.call(Code::REGION_READ, &vfio::read(REGION_BAR0, offset.into(), len), &[])?;
        let mut bytes = [0; 8];
        bytes[..len as usize].copy_from_slice(vfio::read_data(&answer, len as usize)?);
        Ok(u64::from_le_bytes(bytes))
    }

    /// Bytes of the configuration space.
    fn space<const N: usize>(&mut self, at: u64) -> Result<[u8; N]> {
        let (answer, _) = self.call(Code::REGION_READ, &vfio::read(REGION_CONFIG, at, N as u32), &[])?;
        let mut bytes = [0; N];
        bytes.copy_from_slice(vfio::read_data(&answer, N)?);
        Ok(bytes)
    }

    /// Has interrupts come by vectors.
    fn enable_vectors(&mut self) -> Result<()> {
        let [first] = self.space(PCI_CAPABILITIES)?;
        let mut at = u64::from(first);
        for _ in 0..CAPABILITIES_MAX {
            ensure!(at >= 0x40, "the controller has no MSI-X");
            let [kind, next] = self.space(at)?;
            if kind == MSIX {
                let control = u16::from_le_bytes(self.space(at + 2)?) | MSIX_ENABLE;
                let enable = vfio::write(REGION_CONFIG, at + 2, &control.to_le_bytes());
                return self.call(Code::REGION_WRITE, &enable, &[]).map(drop);
            }
            at = next.into();
        }
        bail!("the controller's capabilities have no end")
    }

    fn set_register(&mut self, offset: u32, bytes: &[u8]) -> Result<()> {
        self.call(Code::REGION_WRITE, &vfio::write(REGION_BAR0, offset.into(), bytes), &[]).map(drop)
    }

    /// Writes a doorbell, without waiting for an answer.
    fn ring(&mut self, (offset, value): Write) -> Result<()> {
        let write = vfio::write(REGION_BAR0, offset.into(), &value.to_le_bytes());
        let bytes = self.talk.command(Code::REGION_WRITE, &write, false);
        Ok(unix::send_waiting(&self.socket, &bytes, &[], self.patience).map_err(Lost)?)
    }

    /// Whether anybody is there: nothing comes by the socket that was not asked for, but its end.
    fn is_there(&self) -> Result<()> {
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
        let came = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        match came {
            Ok(1..) => Err(Lost(io::Error::new(io::ErrorKind::UnexpectedEof, "closed by the target")).into()),
            _ => Ok(()),
        }
    }

    /// Disables the controller: whoever had it before may have left it enabled.
    fn disable(&mut self) -> Result<()> {
        self.set_register(property::CC, &DISABLED.to_le_bytes())?;
        let end = Instant::now() + self.patience;
        while self.register(property::CSTS, false)? & READY != 0 {
            ensure!(Instant::now() < end, "the controller does not let itself be disabled");
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }
}

/// A command of a queue: the memory of its data, and whose it is.
#[derive(Debug)]
struct Place {
    /// Where its data is in the memory, and how the controller finds it.
    at: usize,
    pointers: [u64; 2],
    cookie: u32,
    /// What it does, while it is under way: whether it reads.
    reads: Option<bool>,
    /// Whether its memory has something to be written.
    is_filled: bool,
}

/// A queue, and the namespace that its commands are for.
#[derive(Debug)]
pub(crate) struct OfController {
    control: Rc<RefCell<Control>>,
    pair: Pair,
    /// 0: it is the admin queue's.
    namespace: u32,
    memory: Region,
    places: Vec<Place>,
    free: Vec<u16>,
    /// Bytes of each command's data.
    bytes: usize,
    /// Whether data is looked at, and so moves in and out of the shared memory.
    copies: bool,
    /// Readable when the controller has rung, or has gone.
    ready: OwnedFd,
    /// What it rings, for those who sleep.
    signal: Option<OwnedFd>,
    misses: u32,
    rings: u64,
}

impl OfController {
    fn new(control: &Rc<RefCell<Control>>, pair: Pair, namespace: u32, memory: &Region) -> Result<Self> {
        let ready = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&ready, &control.borrow().socket, EventData::new_u64(0), EventFlags::IN)?;
        Ok(Self {
            control: control.clone(),
            pair,
            namespace,
            memory: memory.clone(),
            places: Vec::new(),
            free: Vec::new(),
            bytes: 0,
            copies: false,
            ready,
            signal: None,
            misses: 0,
            rings: 0,
        })
    }

    /// Gives each of so many commands its memory, one behind the other from `at` on, and lists behind that.
    fn furnish(&mut self, count: u16, mut at: usize, bytes: usize) -> Result<()> {
        self.bytes = bytes;
        for cid in 0..count {
            let lists = at + bytes.next_multiple_of(PAGE);
            let [data_address, lists_address] = [at, lists].map(|at| ADDRESS + at as u64);
            let pointers = rings::pointers(data_address, bytes, &self.memory, lists, lists_address)?;
            self.places.push(Place { at, pointers, cookie: 0, reads: None, is_filled: false });
            self.free.push(cid);
            at = lists + rings::list_bytes(bytes);
        }
        Ok(())
    }

    /// Is told by an eventfd from now on, which the vector of this number rings.
    fn be_told(&mut self, vector: u16) -> Result<()> {
        let signal = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        self.control.borrow_mut().call(Code::SET_IRQS, &vfio::interrupt(vector), &[signal.as_fd()])?;
        epoll::add(&self.ready, &signal, EventData::new_u64(1), EventFlags::IN)?;
        self.signal = Some(signal);
        Ok(())
    }

    /// Carries out a command of the admin queue, with room for so many bytes.
    fn call(&mut self, sqe: Sqe, room: u32) -> Result<Answer> {
        let good = |result| Answer { status: Status::SUCCESS, result, data: Vec::new() };
        let patience = self.control.borrow().patience;
        match command::property(&sqe) {
            Some(Property::Get(offset, eight)) => return self.control.borrow_mut().register(offset, eight).map(good),
            Some(Property::Set(offset, value)) => {
                self.control.borrow_mut().set_register(offset, &value.to_le_bytes())?;
                return Ok(good(0));
            }
            None if room > 0 => {
                ensure!(room as usize <= PAGE, "an admin command has a page of data at most");
                ensure!(
                    self.pair.submit(&command::in_pages(sqe, [ADMIN_ADDRESS + ADMIN_DATA as u64, 0])),
                    "it is full"
                );
            }
            None => ensure!(self.pair.submit(&sqe), "the admin queue is full"),
        }
        self.send()?;
        let end = Instant::now() + patience;
        let ended = loop {
            match self.pair.take() {
                Some(ended) => break ended,
                None if Instant::now() < end => {
                    self.control.borrow().is_there()?;
                    std::thread::sleep(PAUSE);
                }
                None => bail!("the target does not answer"),
            }
        };
        self.send()?;
        let mut data = vec![0; room as usize];
        ensure!(self.memory.read(ADMIN_DATA, &mut data), "the admin memory has a page of data");
        Ok(Answer { status: ended.status, result: ended.result, data })
    }

    /// The same for a command that must end well.
    fn must(&mut self, sqe: Sqe, what: &'static str) -> Result<()> {
        match self.call(sqe, 0)?.status {
            Status::SUCCESS => Ok(()),
            status => Err(lunar_nvme_host::Error::Refused(what, status).into()),
        }
    }

    /// Tells the data of a read, piece by piece.
    fn tell(&self, at: usize, cookie: u32, buffer: &mut [u8], on: &mut impl FnMut(Told<'_>)) {
        let mut done = 0;
        while done < self.bytes {
            let count = (self.bytes - done).min(buffer.len());
            if !self.memory.read(at + done, &mut buffer[..count]) {
                return;
            }
            on(Told::Data(cookie, &buffer[..count]));
            done += count;
        }
    }
}

impl Session for OfController {
    // A look costs nothing.
    const POLLED_MAX: usize = usize::MAX;

    #[inline]
    fn room(&self) -> u32 {
        // As many as the queue has room for.
        self.free.len() as u32
    }

    #[inline]
    fn start(&mut self, request: Request) {
        let Request { cookie, work, lba, blocks, fua, .. } = request;
        let cid = self.free.pop().expect("no more are started than there is room for");
        let place = &mut self.places[usize::from(cid)];
        let reads = matches!(work, Work::Read);
        (place.cookie, place.reads) = (cookie, Some(reads));
        let sqe = match work {
            Work::Read => command::read(self.namespace, lba, blocks, false),
            Work::Write(data) => {
                // What nobody looks at needs to be there once.
                if self.copies || !place.is_filled {
                    place.is_filled = self.memory.write(place.at, data.bytes());
                }
                command::write(self.namespace, lba, blocks, fua)
            }
            Work::Flush => command::flush(self.namespace),
        };
        let mut sqe = command::in_pages(sqe, place.pointers);
        sqe.cid = cid.into();
        assert!(self.pair.submit(&sqe), "there are as many places as the queue has room for");
    }

    #[inline]
    fn send(&mut self) -> Result<bool> {
        for write in self.pair.ring().into_iter().flatten() {
            self.control.borrow_mut().ring(write)?;
            self.rings += 1;
        }
        Ok(true)
    }

    #[inline]
    fn take(&mut self, buffer: &mut [u8], on: &mut impl FnMut(Told<'_>)) -> Result<bool> {
        if let Some(signal) = &self.signal {
            // Before the look: what comes behind it rings again.
            let _ = rustix::io::read(signal, &mut [0; 8]);
        }
        let mut came = false;
        while let Some(ended) = self.pair.take() {
            came = true;
            let place = self.places.get_mut(usize::from(ended.cid));
            let under_way = place.and_then(|place| place.reads.take().map(|reads| (place.at, place.cookie, reads)));
            let (at, cookie, reads) = under_way.context("a command has ended that was not under way")?;
            self.free.push(ended.cid);
            let is_good = ended.status == Status::SUCCESS;
            if is_good && reads && self.copies {
                self.tell(at, cookie, buffer, on);
            }
            on(Told::Done(
                cookie,
                if is_good { Ending::Good } else { crate::nvme::not_good(ended.status, ended.retry) },
            ));
        }
        if came {
            self.misses = 0;
        } else {
            self.misses += 1;
            if self.signal.is_some() || self.misses > MISSES {
                self.misses = 0;
                self.control.borrow().is_there()?;
            }
        }
        Ok(came)
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }

    fn rings(&self) -> u64 {
        self.rings
    }
}

/// Tells the controller of an admin queue that the host goes; its memory goes with the socket.
pub(crate) fn close(session: OfController, _patience: Duration) {
    if session.namespace == 0 {
        // A controller that does not answer loses nothing by it.
        let _ = session.control.borrow_mut().set_register(property::CC, &SHUTDOWN.to_le_bytes());
    }
}

/// A controller that serves.
struct Controller {
    admin: OfController,
    bell: DoorbellMode,
    info: Info,
}

impl Controller {
    fn open(options: &Options, queues: u16) -> Result<Self> {
        let mut control = Control::connect(&options.url.host, options.timeout)?;
        let maps = options.doorbells == Doorbells::Mapped;
        control.call(Code::VERSION, &vfio::version(!maps), &[])?;
        let (file, memory) = shared::share("lunar-bench-admin", ADMIN_LEN)?;
        control.call(Code::DMA_MAP, &vfio::map(ADMIN_ADDRESS, 0, ADMIN_LEN as u64), &[file.as_fd()])?;
        let enable = vfio::write(REGION_CONFIG, PCI_COMMAND, &PCI_ENABLE.to_le_bytes());
        control.call(Code::REGION_WRITE, &enable, &[])?;
        if !options.spin {
            control.enable_vectors()?;
        }
        let page = if maps { Some(map_doorbells(&mut control)?) } else { None };
        control.disable()?;
        let last = u32::from(ADMIN_ENTRIES - 1);
        let [submissions, _] = Pair::bytes(ADMIN_ENTRIES);
        control.set_register(ADMIN_ATTRIBUTES, &(last | last << 16).to_le_bytes())?;
        control.set_register(ADMIN_SUBMISSIONS, &ADMIN_ADDRESS.to_le_bytes())?;
        control.set_register(ADMIN_COMPLETIONS, &(ADMIN_ADDRESS + submissions as u64).to_le_bytes())?;
        let told = page.map_or(DoorbellMode::Registers, DoorbellMode::Mapped);
        let pair = Pair::new(0, ADMIN_ENTRIES, &memory, 0, told.clone()).context("the admin memory has room")?;
        let mut admin = OfController::new(&Rc::new(RefCell::new(control)), pair, 0, &memory)?;
        let mut way = Bringup::in_memory(queues, options.url.unit);
        let (mut answer, end) = (admin.call(way.first(), 0)?, Instant::now() + options.timeout);
        let info = loop {
            answer = match way.next(&answer)? {
                Next::Command(sqe, room) => admin.call(sqe, room)?,
                Next::Later(sqe) => {
                    ensure!(Instant::now() < end, "the controller does not become ready");
                    std::thread::sleep(PAUSE);
                    admin.call(sqe, 0)?
                }
                Next::Ready(info) => break info,
            };
        };
        let bell = match options.doorbells {
            Doorbells::Shadow => {
                let [doorbells, events] = [SHADOW, EVENTS].map(|at| ADMIN_ADDRESS + at as u64);
                admin.must(command::doorbell_buffers(doorbells, events), "Doorbell Buffer Config")?;
                let page = |at| Window::new(&memory, at, PAGE).context("the admin memory has room");
                DoorbellMode::Shadow(page(SHADOW)?, page(EVENTS)?)
            }
            Doorbells::Mapped | Doorbells::Told => told,
        };
        Ok(Self { admin, bell, info })
    }

    /// Makes its I/O queues, with memory for as many commands as they hold.
    fn queues(&mut self, options: &Options, count: u16) -> Result<Vec<OfController>> {
        let Info { queues: granted, entries_max, transfer_max, .. } = self.info;
        ensure!(count <= granted, "the controller grants {granted} I/O queues");
        let bytes = options.bs as usize;
        ensure!(options.bs <= transfer_max, "--bs is more than the target moves at once ({transfer_max} bytes)");
        // A queue is full with one entry left.
        let wanted = u16::try_from(options.depth).unwrap_or(u16::MAX).saturating_add(1);
        let entries = wanted.max(ENTRIES_MIN).min(entries_max.max(2));
        let depth = wanted.min(entries) - 1;
        let rings: usize = Pair::bytes(entries).iter().sum();
        let places = usize::from(depth) * (bytes.next_multiple_of(PAGE) + rings::list_bytes(bytes));
        let len = (rings + places) * usize::from(count);
        let (file, memory) = shared::share("lunar-bench", len).context("memory for the queues and their data")?;
        let control = self.admin.control.clone();
        control.borrow_mut().call(Code::DMA_MAP, &vfio::map(ADDRESS, 0, len as u64), &[file.as_fd()])?;
        let queues = (1..=count).map(|id| {
            let at = usize::from(id - 1) * (rings + places);
            let pair = Pair::new(id, entries, &memory, at, self.bell.clone()).context("the memory has room")?;
            let mut queue = OfController::new(&control, pair, options.url.unit, &memory)?;
            queue.furnish(depth, at + rings, bytes)?;
            queue.copies = options.verify || options.ack_log.is_some() || options.check_ack_log.is_some();
            if !options.spin {
                queue.be_told(id)?;
            }
            let [submissions, _] = Pair::bytes(entries);
            let address = ADDRESS + at as u64;
            let vector = (!options.spin).then_some(id);
            let create = command::create_completions(id, entries, address + submissions as u64, vector);
            self.admin.must(create, "Create I/O Completion Queue")?;
            self.admin.must(command::create_submissions(id, entries, address), "Create I/O Submission Queue")?;
            Ok(queue)
        });
        queues.collect()
    }
}

fn map_doorbells(control: &mut Control) -> Result<Window> {
    let (answer, files) = control.call(Code::REGION_INFO, &vfio::registers_info(), &[])?;
    let offset = vfio::doorbells(&answer)?;
    let file = files.first().context("the description of the doorbells brings no file")?;
    let page = shared::map(file, offset, PAGE, true).context("mapping the doorbells")?;
    Window::new(&page, 0, PAGE).context("a page is a page")
}

/// All queues of a run, and the namespace they are for.
pub(crate) fn open(options: &Options) -> Result<Opened<OfController>> {
    options.check_for_vfio_user().map_err(anyhow::Error::msg)?;
    let count = u16::try_from(options.sessions).ok().filter(|count| *count < u16::MAX);
    let count = count.context("--sessions: a controller has fewer queues")?;
    let mut controller = Controller::open(options, count).with_context(|| options.url.to_string())?;
    let active = controller.queues(options, count)?;
    let info = controller.info;
    let negotiated = Negotiated::VfioUser(Rings {
        doorbells: match options.doorbells {
            Doorbells::Shadow => "shadow",
            Doorbells::Mapped => "mapped",
            Doorbells::Told => "told",
        },
        max_transfer: info.transfer_max,
        entries_max: info.entries_max,
        window: active.first().map_or(0, Session::room),
    });
    let capacity = Capacity { blocks: info.blocks, block_size: info.block_size };
    let transfer_max = info.transfer_max.min(BLOCKS_MAX.saturating_mul(info.block_size));
    let (url, idle) = (options.url.clone(), vec![controller.admin]);
    Ok(Opened { url, active, idle, capacity, transfer_max, negotiated, logins: None })
}
