//! Queues to namespaces of vfio-user controllers, in memory that is shared with the controller. With `--spin` the
//! completion queues are polled; otherwise an eventfd wakes this thread. The socket carries the set-up, and doorbells
//! unless they are in memory.

use crate::connection::{ConnectionLost, check_open};
use crate::options::{Doorbells, Options};
use crate::report::{MemoryQueues, Negotiated};
use crate::session::{Misses, Outcome, Request, Session, SessionEvent, Work, pass_on};
use crate::target::{Capacity, OpenSessions};
use anyhow::{Context, Result, bail, ensure};
use lunar_core::mem::Region;
use lunar_guest::window::Window;
use lunar_nvme::controller::property;
use lunar_nvme::{Sqe, Status};
use lunar_nvme_host::bringup::{Answer, Bringup, Info, Next, READY, SHUTDOWN};
use lunar_nvme_host::command::{self, Property};
use lunar_nvme_host::rings::{self, DoorbellMode, PAGE, Pair, Write};
use lunar_nvme_host::vfio::{self, Conversation};
use lunar_reactor::{shared, unix};
use lunar_vfio_user::wire::{Code, HEADER_LEN, REGION_BAR0, REGION_CONFIG};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::cell::RefCell;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// The number of entries of the admin queues: one command at a time is outstanding.
const ADMIN_ENTRIES: u16 = 32;
/// The register AQA; ASQ and ACQ follow (NVMe Base 2.0 3.1.3).
const ADMIN_ATTRIBUTES: u32 = 0x24;
const ADMIN_SUBMISSIONS: u32 = 0x28;
const ADMIN_COMPLETIONS: u32 = 0x30;
/// CC: disabled.
const DISABLED: u32 = 0;
/// The command register of the PCI configuration space: memory space, bus master, INTx disabled.
const PCI_COMMAND: u64 = 0x04;
const PCI_ENABLE: u16 = 0x0406;
/// The capabilities pointer of the PCI configuration space; the capability ID of MSI-X and its enable bit (PCI 3.0 6.7,
/// 6.8.2.3).
const PCI_CAPABILITIES: u64 = 0x34;
const MSIX: u8 = 0x11;
const MSIX_ENABLE: u16 = 0x8000;
/// The most capabilities that fit in a PCI configuration space.
const CAPABILITIES_MAX: usize = 48;
/// The DMA addresses of the admin memory and of the I/O queues' memory: both need more than 32 bits, as a test of the
/// controller.
const ADMIN_ADDRESS: u64 = 1 << 32;
const ADDRESS: u64 = 1 << 40;
/// Offsets in the admin memory, after its queues: data of admin commands, shadow doorbells, event indexes.
const ADMIN_DATA: usize = 2 * PAGE;
const SHADOW: usize = 3 * PAGE;
const EVENTS: usize = 4 * PAGE;
const ADMIN_LEN: usize = 5 * PAGE;
/// The fewest entries of an I/O queue: few drivers create smaller ones, and in a small queue the event indexes are
/// updated often.
const ENTRIES_MIN: u16 = 128;
/// The pause between two polls of the controller during set-up.
const PAUSE: Duration = Duration::from_micros(100);
/// The most logical blocks of one command: NLB has 16 bits and is zero-based.
const BLOCKS_MAX: u32 = 1 << 16;

/// The control socket of a controller.
#[derive(Debug)]
struct ControlSocket {
    socket: OwnedFd,
    exchange: Conversation,
    timeout: Duration,
}

impl ControlSocket {
    fn connect(url: &str, timeout: Duration) -> Result<Self> {
        let mut path = Path::new(url).to_owned();
        if path.is_dir() {
            path.push("cntrl");
        }
        let socket = UnixStream::connect(&path).with_context(|| format!("connecting to {}", path.display()))?;
        Ok(Self { socket: socket.into(), exchange: Conversation::default(), timeout })
    }

    /// Sends a command and waits for its reply. Returns the payload and the file descriptors of the reply.
    fn call(&mut self, code: Code, payload: &[u8], files: &[BorrowedFd<'_>]) -> Result<(Vec<u8>, Vec<OwnedFd>)> {
        let bytes = self.exchange.command(code, payload, true);
        unix::send_waiting(&self.socket, &bytes, files, self.timeout).map_err(ConnectionLost)?;
        let (mut head, mut given) = ([0; HEADER_LEN], Vec::new());
        unix::receive_waiting(&self.socket, &mut head, &mut given, self.timeout).map_err(ConnectionLost)?;
        let mut answer = vec![0; self.exchange.reply(&head)?];
        unix::receive_waiting(&self.socket, &mut answer, &mut given, self.timeout).map_err(ConnectionLost)?;
        Ok((answer, given))
    }

    fn register(&mut self, offset: u32, eight: bool) -> Result<u64> {
        let len = if eight { 8 } else { 4 };
        let (answer, _) = self.call(Code::REGION_READ, &vfio::read(REGION_BAR0, offset.into(), len), &[])?;
        let mut bytes = [0; 8];
        bytes[..len as usize].copy_from_slice(vfio::read_data(&answer, len as usize)?);
        Ok(u64::from_le_bytes(bytes))
    }

    /// Reads `N` bytes of the PCI configuration space.
    fn space<const N: usize>(&mut self, at: u64) -> Result<[u8; N]> {
        let (answer, _) = self.call(Code::REGION_READ, &vfio::read(REGION_CONFIG, at, N as u32), &[])?;
        let mut bytes = [0; N];
        bytes.copy_from_slice(vfio::read_data(&answer, N)?);
        Ok(bytes)
    }

    /// Enables MSI-X.
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
        bail!("the controller's list of PCI capabilities is circular")
    }

    fn set_register(&mut self, offset: u32, bytes: &[u8]) -> Result<()> {
        self.call(Code::REGION_WRITE, &vfio::write(REGION_BAR0, offset.into(), bytes), &[]).map(drop)
    }

    /// Writes a doorbell register; the controller sends no reply.
    fn ring(&mut self, (offset, value): Write) -> Result<()> {
        let write = vfio::write(REGION_BAR0, offset.into(), &value.to_le_bytes());
        let bytes = self.exchange.command(Code::REGION_WRITE, &write, false);
        Ok(unix::send_waiting(&self.socket, &bytes, &[], self.timeout).map_err(ConnectionLost)?)
    }

    /// Disables the controller, which an earlier client may have left enabled.
    fn disable(&mut self) -> Result<()> {
        self.set_register(property::CC, &DISABLED.to_le_bytes())?;
        let end = Instant::now() + self.timeout;
        while self.register(property::CSTS, false)? & READY != 0 {
            ensure!(Instant::now() < end, "the controller was not disabled in time");
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }
}

/// A command slot of a queue, with memory for its data.
#[derive(Debug)]
struct Slot {
    /// The offset of the data in the memory, and its PRP 1 and PRP 2.
    at: usize,
    pointers: [u64; 2],
    cookie: u32,
    /// Whether the outstanding command is a read; `None` if no command is outstanding.
    reads: Option<bool>,
    /// Whether the memory contains data to write.
    is_filled: bool,
}

/// A queue, and the namespace of its commands.
#[derive(Debug)]
pub(crate) struct MemoryQueue {
    control: Rc<RefCell<ControlSocket>>,
    pair: Pair,
    /// The namespace ID; 0 for the admin queue.
    namespace: u32,
    memory: Region,
    chunks: Vec<Slot>,
    free: Vec<u16>,
    /// The length of a command's data, in bytes.
    bytes: usize,
    /// Whether the data is used, so that it is copied from and to the shared memory.
    copies: bool,
    /// An epoll descriptor that is readable when an interrupt or the end of the connection has arrived.
    ready: OwnedFd,
    /// The eventfd of the interrupt vector, unless the queue is polled.
    signal: Option<OwnedFd>,
    misses: Misses,
    rings: u64,
}

impl MemoryQueue {
    fn new(control: &Rc<RefCell<ControlSocket>>, pair: Pair, namespace: u32, memory: &Region) -> Result<Self> {
        let ready = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&ready, &control.borrow().socket, EventData::new_u64(0), EventFlags::IN)?;
        Ok(Self {
            control: control.clone(),
            pair,
            namespace,
            memory: memory.clone(),
            chunks: Vec::new(),
            free: Vec::new(),
            bytes: 0,
            copies: false,
            ready,
            signal: None,
            misses: Misses::default(),
            rings: 0,
        })
    }

    /// Assigns memory to each of `count` command slots from `at` on: data, followed by PRP lists.
    fn assign_memory(&mut self, count: u16, mut at: usize, bytes: usize) -> Result<()> {
        self.bytes = bytes;
        for cid in 0..count {
            let lists = at + bytes.next_multiple_of(PAGE);
            let [data_address, lists_address] = [at, lists].map(|at| ADDRESS + at as u64);
            let pointers = rings::pointers(data_address, bytes, &self.memory, lists, lists_address)?;
            self.chunks.push(Slot { at, pointers, cookie: 0, reads: None, is_filled: false });
            self.free.push(cid);
            at = lists + rings::list_bytes(bytes);
        }
        Ok(())
    }

    /// Enables the interrupt of this vector, signalled by an eventfd.
    fn enable_interrupt(&mut self, vector: u16) -> Result<()> {
        let signal = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        self.control.borrow_mut().call(Code::SET_IRQS, &vfio::interrupt(vector), &[signal.as_fd()])?;
        epoll::add(&self.ready, &signal, EventData::new_u64(1), EventFlags::IN)?;
        self.signal = Some(signal);
        Ok(())
    }

    /// Executes a command of the admin queue with an allocation length of `room` bytes.
    fn call(&mut self, sqe: Sqe, room: u32) -> Result<Answer> {
        let good = |result| Answer { status: Status::SUCCESS, result, data: Vec::new() };
        let timeout = self.control.borrow().timeout;
        match command::property(&sqe) {
            Some(Property::Get(offset, eight)) => return self.control.borrow_mut().register(offset, eight).map(good),
            Some(Property::Set(offset, value)) => {
                self.control.borrow_mut().set_register(offset, &value.to_le_bytes())?;
                return Ok(good(0));
            }
            None if room > 0 => {
                ensure!(room as usize <= PAGE, "the data of an admin command is at most one page");
                ensure!(
                    self.pair.submit(&command::in_pages(sqe, [ADMIN_ADDRESS + ADMIN_DATA as u64, 0])),
                    "the admin queue is full"
                );
            }
            None => ensure!(self.pair.submit(&sqe), "the admin queue is full"),
        }
        self.send()?;
        let end = Instant::now() + timeout;
        let ended = loop {
            match self.pair.take() {
                Some(ended) => break ended,
                None if Instant::now() < end => {
                    check_open(&self.control.borrow().socket)?;
                    std::thread::sleep(PAUSE);
                }
                None => bail!("the target does not answer"),
            }
        };
        self.send()?;
        let mut data = vec![0; room as usize];
        ensure!(self.memory.read(ADMIN_DATA, &mut data), "the data page is in the admin memory");
        Ok(Answer { status: ended.status, result: ended.result, data })
    }

    /// The same for a command without data that must succeed.
    fn call_checked(&mut self, sqe: Sqe, what: &'static str) -> Result<()> {
        match self.call(sqe, 0)?.status {
            Status::SUCCESS => Ok(()),
            status => Err(lunar_nvme_host::Error::Refused(what, status).into()),
        }
    }
}

impl Session for MemoryQueue {
    // Polling a queue in memory costs nearly nothing.
    const POLLED_MAX: usize = usize::MAX;

    #[inline]
    fn room(&self) -> u32 {
        // There are as many slots as the queue takes commands.
        self.free.len() as u32
    }

    #[inline]
    fn start(&mut self, request: Request) {
        let Request { cookie, work, lba, blocks, fua, .. } = request;
        let cid = self.free.pop().expect("the caller checks for room");
        let chunk = &mut self.chunks[usize::from(cid)];
        let reads = matches!(work, Work::Read);
        (chunk.cookie, chunk.reads) = (cookie, Some(reads));
        let sqe = match work {
            Work::Read => command::read(self.namespace, lba, blocks, false),
            Work::Write(data) => {
                // Data that is not read back is written once.
                if self.copies || !chunk.is_filled {
                    chunk.is_filled = self.memory.write(chunk.at, data.bytes());
                }
                command::write(self.namespace, lba, blocks, fua)
            }
            Work::Flush => command::flush(self.namespace),
        };
        let mut sqe = command::in_pages(sqe, chunk.pointers);
        sqe.cid = cid.into();
        assert!(self.pair.submit(&sqe), "there are as many slots as the queue takes commands");
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
    fn take(&mut self, buffer: &mut [u8], on: &mut impl FnMut(SessionEvent<'_>)) -> Result<bool> {
        if let Some(signal) = &self.signal {
            // Reset the eventfd before the poll: a later completion signals it again.
            let _ = rustix::io::read(signal, &mut [0; 8]);
        }
        let mut came = false;
        while let Some(ended) = self.pair.take() {
            came = true;
            let chunk = self.chunks.get_mut(usize::from(ended.cid));
            let under_way = chunk.and_then(|chunk| chunk.reads.take().map(|reads| (chunk.at, chunk.cookie, reads)));
            let (at, cookie, reads) = under_way.context("a completion for a command that is not outstanding")?;
            self.free.push(ended.cid);
            let is_good = ended.status == Status::SUCCESS;
            if is_good && reads && self.copies {
                pass_on((&self.memory, at, self.bytes), cookie, buffer, on);
            }
            on(SessionEvent::Done(
                cookie,
                if is_good { Outcome::Good } else { crate::nvme::failure(ended.status, ended.retry) },
            ));
        }
        if self.misses.count(came, self.signal.is_some()) {
            check_open(&self.control.borrow().socket)?;
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

/// Shuts the controller of an admin queue down. The shared memory is released with the socket.
pub(crate) fn close(session: MemoryQueue, _patience: Duration) {
    if session.namespace == 0 {
        // A missing answer to a shutdown is no error of the run.
        let _ = session.control.borrow_mut().set_register(property::CC, &SHUTDOWN.to_le_bytes());
    }
}

/// An initialized controller.
struct Controller {
    admin: MemoryQueue,
    mode: DoorbellMode,
    info: Info,
}

impl Controller {
    fn open(options: &Options, queues: u16) -> Result<Self> {
        let mut control = ControlSocket::connect(&options.url.host, options.timeout)?;
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
        let mode = page.map_or(DoorbellMode::Registers, DoorbellMode::Mapped);
        let pair =
            Pair::new(0, ADMIN_ENTRIES, &memory, 0, mode.clone()).context("the queues are in the admin memory")?;
        let mut admin = MemoryQueue::new(&Rc::new(RefCell::new(control)), pair, 0, &memory)?;
        let mut bringup = Bringup::in_memory(queues, options.url.unit);
        let (mut answer, end) = (admin.call(bringup.first(), 0)?, Instant::now() + options.timeout);
        let info = loop {
            answer = match bringup.next(&answer)? {
                Next::Command(sqe, room) => admin.call(sqe, room)?,
                Next::Later(sqe) => {
                    ensure!(Instant::now() < end, "the controller is not ready");
                    std::thread::sleep(PAUSE);
                    admin.call(sqe, 0)?
                }
                Next::Ready(info) => break info,
            };
        };
        let mode = match options.doorbells {
            Doorbells::Shadow => {
                let [doorbells, events] = [SHADOW, EVENTS].map(|at| ADMIN_ADDRESS + at as u64);
                admin.call_checked(command::doorbell_buffers(doorbells, events), "Doorbell Buffer Config")?;
                let page = |at| Window::new(&memory, at, PAGE).context("the page is in the admin memory");
                DoorbellMode::Shadow(page(SHADOW)?, page(EVENTS)?)
            }
            Doorbells::Mapped | Doorbells::Messages => mode,
        };
        Ok(Self { admin, mode, info })
    }

    /// Creates the I/O queues, with memory for the data of their commands.
    fn queues(&mut self, options: &Options, count: u16) -> Result<Vec<MemoryQueue>> {
        let Info { queues: granted, entries_max, transfer_max, .. } = self.info;
        ensure!(count <= granted, "the controller has only {granted} I/O queues: choose fewer --sessions");
        let bytes = options.bs as usize;
        ensure!(options.bs <= transfer_max, "--bs exceeds the longest transfer of the target ({transfer_max} bytes)");
        // A queue is full when one entry is left.
        let wanted = u16::try_from(options.depth).unwrap_or(u16::MAX).saturating_add(1);
        let entries = wanted.max(ENTRIES_MIN).min(entries_max.max(2));
        let depth = wanted.min(entries) - 1;
        let rings: usize = Pair::bytes(entries).iter().sum();
        let chunks = usize::from(depth) * (bytes.next_multiple_of(PAGE) + rings::list_bytes(bytes));
        // Memory is mapped in whole pages.
        let len = ((rings + chunks) * usize::from(count)).next_multiple_of(PAGE);
        let (file, memory) =
            shared::share("lunar-bench", len).context("cannot allocate memory for the queues and their data")?;
        let control = self.admin.control.clone();
        control.borrow_mut().call(Code::DMA_MAP, &vfio::map(ADDRESS, 0, len as u64), &[file.as_fd()])?;
        let queues = (1..=count).map(|id| {
            let at = usize::from(id - 1) * (rings + chunks);
            let pair =
                Pair::new(id, entries, &memory, at, self.mode.clone()).context("the queues are in the memory")?;
            let mut queue = MemoryQueue::new(&control, pair, options.url.unit, &memory)?;
            queue.assign_memory(depth, at + rings, bytes)?;
            queue.copies = options.verify || options.ack_log.is_some() || options.check_ack_log.is_some();
            if !options.spin {
                queue.enable_interrupt(id)?;
            }
            let [submissions, _] = Pair::bytes(entries);
            let address = ADDRESS + at as u64;
            let vector = (!options.spin).then_some(id);
            let create = command::create_completions(id, entries, address + submissions as u64, vector);
            self.admin.call_checked(create, "Create I/O Completion Queue")?;
            self.admin
                .call_checked(command::create_submissions(id, entries, address), "Create I/O Submission Queue")?;
            Ok(queue)
        });
        queues.collect()
    }
}

fn map_doorbells(control: &mut ControlSocket) -> Result<Window> {
    let (answer, files) = control.call(Code::REGION_INFO, &vfio::registers_info(), &[])?;
    let offset = vfio::doorbells(&answer)?;
    let file = files.first().context("the region information has no file descriptor for the doorbells")?;
    let page = shared::map(file, offset, PAGE, true).context("cannot map the doorbells")?;
    Window::new(&page, 0, PAGE).context("the mapping is one page")
}

/// Opens all queues of a run and identifies the namespace.
pub(crate) fn open(options: &Options) -> Result<OpenSessions<MemoryQueue>> {
    options.check_for_vfio_user().map_err(anyhow::Error::msg)?;
    let count = u16::try_from(options.sessions).ok().filter(|count| *count < u16::MAX);
    let count = count.context("--sessions exceeds the number of queues of a controller")?;
    let mut controller = Controller::open(options, count).with_context(|| options.url.to_string())?;
    let active = controller.queues(options, count)?;
    let info = controller.info;
    let negotiated = Negotiated::VfioUser(MemoryQueues {
        doorbells: match options.doorbells {
            Doorbells::Shadow => "shadow",
            Doorbells::Mapped => "mapped",
            Doorbells::Messages => "told",
        },
        max_transfer: info.transfer_max,
        entries_max: info.entries_max,
        window: active.first().map_or(0, Session::room),
    });
    let capacity = Capacity { blocks: info.blocks, block_size: info.block_size };
    let transfer_max = info.transfer_max.min(BLOCKS_MAX.saturating_mul(info.block_size));
    let (url, idle) = (options.url.clone(), vec![controller.admin]);
    Ok(OpenSessions { url, active, idle, capacity, transfer_max, negotiated, logins: None })
}
