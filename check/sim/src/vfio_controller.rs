//! The driver of a simulated virtual machine: initializes an NVMe controller behind a vfio-user socket, with queues and
//! data in guest memory.

use crate::vfio_control::{Control, Wake};
use crate::wire::Lost;
use lunar_core::mem::Region;
use lunar_core::time::Instant;
use lunar_guest::window::Window;
use lunar_nvme::{Sqe, Status};
use lunar_nvme_host::Error;
use lunar_nvme_host::bringup::{Answer, Bringup, Next};
use lunar_nvme_host::command::{self, Property};
use lunar_nvme_host::rings::{DoorbellMode, PAGE, Pair};
use lunar_nvme_host::vfio;
use lunar_reactor::Reactor;
use lunar_reactor::shared;
use lunar_reactor::sim::eventfd;
use lunar_vfio_user::wire::Code;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Entries of the admin queues: one command at a time is in progress.
const ADMIN_ENTRIES: u16 = 32;
/// The register AQA; ASQ and ACQ follow (NVMe Base 2.0 3.1.3).
const ADMIN_ATTRIBUTES: u32 = 0x24;
const ADMIN_SUBMISSIONS: u32 = 0x28;
const ADMIN_COMPLETIONS: u32 = 0x30;
/// The most I/O queues of a guest.
pub const QUEUES_MAX: u16 = 2;
/// Entries of an I/O queue: few, so that queues are full now and then.
pub const ENTRIES: u16 = 12;
/// Guest addresses of the memory of queues and of the data: both need more than 32 bits.
const QUEUE_ADDRESS: u64 = 1 << 32;
/// The guest address of the memory of data.
pub const DATA_ADDRESS: u64 = 1 << 40;
/// Offsets in the memory of queues, after the admin queues: data of admin commands, shadow doorbells, event indexes,
/// I/O queues.
const ADMIN_DATA: usize = 2 * PAGE;
const SHADOW: usize = 3 * PAGE;
const EVENTS: usize = 4 * PAGE;
const IO_QUEUES: usize = 5 * PAGE;
/// The memory of one I/O queue with its completion queue: less than a page each.
const IO_QUEUE_LEN: usize = 2 * PAGE;
const QUEUE_MEMORY_LEN: usize = IO_QUEUES + QUEUES_MAX as usize * IO_QUEUE_LEN;
/// The pause between two polls for the completion of an admin command.
const ADMIN_PAUSE: Duration = Duration::from_micros(100);

/// How a guest rings doorbells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Doorbells {
    /// By messages.
    Messages,
    /// By shadow doorbells in guest memory.
    Shadow,
    /// By a mapping of the doorbell registers.
    Mapped,
}

/// The properties of a guest.
#[derive(Clone, Copy, Debug)]
pub struct GuestConfig {
    /// How it rings doorbells.
    pub doorbells: Doorbells,
    /// Whether it waits for interrupts; it polls otherwise.
    pub has_interrupts: bool,
    /// Its I/O queues.
    pub queues: u16,
    /// Bytes of memory for data, and those of its first region; the second one follows.
    pub data_len: usize,
    /// Bytes of the first region.
    pub first_len: usize,
}

impl GuestConfig {
    /// Guest address, offset in the file, and length of both regions of the data.
    #[must_use]
    pub fn regions(&self) -> [(u64, u64, u64); 2] {
        let (first, all) = (self.first_len as u64, self.data_len as u64);
        [(DATA_ADDRESS, 0, first), (DATA_ADDRESS + first, first, all - first)]
    }
}

/// A controller that serves I/O queues.
pub struct VfioController {
    core: Reactor,
    config: GuestConfig,
    /// The connection.
    pub control: Control,
    queue_memory: Region,
    data_file: OwnedFd,
    /// The memory of the data.
    pub data: Region,
    mapped_doorbells: Option<Window>,
    admin: Option<Pair>,
    /// The I/O queues.
    pub queues: Vec<Pair>,
    /// The eventfds of their interrupts.
    pub interrupts: Vec<OwnedFd>,
}

impl VfioController {
    /// Connects guest memory and interrupts, and initializes the controller. When VERSION is answered, `on_connect` is
    /// called: the server has ended all commands of the client before.
    ///
    /// # Errors
    /// The target ends or refuses it.
    pub async fn open(
        core: &Reactor,
        mut control: Control,
        config: GuestConfig,
        until: Instant,
        on_connect: impl FnOnce(),
    ) -> Result<Self, Lost> {
        let announces = config.doorbells != Doorbells::Mapped;
        control.call(Code::VERSION, &vfio::version(announces), &[], until).await?;
        on_connect();
        let share = |name, len| shared::share(name, len).expect("memory for a small guest");
        let (queue_file, queue_memory) = share("lunar-sim-queues", QUEUE_MEMORY_LEN);
        let (data_file, data) = share("lunar-sim-data", config.data_len);
        let map = vfio::map(QUEUE_ADDRESS, 0, QUEUE_MEMORY_LEN as u64);
        control.call(Code::DMA_MAP, &map, &[queue_file.as_fd()], until).await?;
        let mapped_doorbells = if announces { None } else { Some(map_doorbells(&mut control, until).await?) };
        let (core, interrupts, queues) = (core.clone(), Vec::new(), Vec::new());
        let mut controller = Self {
            core,
            config,
            control,
            queue_memory,
            data_file,
            data,
            mapped_doorbells,
            admin: None,
            queues,
            interrupts,
        };
        for region in 0..2 {
            controller.map(region, until).await?;
        }
        controller.control.enable_function(until).await?;
        for vector in 1..=config.queues * u16::from(config.has_interrupts) {
            let eventfd = eventfd().expect("a descriptor for an eventfd");
            controller.control.call(Code::SET_IRQS, &vfio::interrupt(vector), &[eventfd.as_fd()], until).await?;
            controller.interrupts.push(eventfd);
        }
        controller.initialize(until).await?;
        Ok(controller)
    }

    /// Maps one of the regions of the data.
    ///
    /// # Errors
    /// Errors of [`Control::call`].
    pub async fn map(&mut self, region: usize, until: Instant) -> Result<(), Lost> {
        let (address, offset, len) = self.config.regions()[region];
        let map = vfio::map(address, offset, len);
        self.control.call(Code::DMA_MAP, &map, &[self.data_file.as_fd()], until).await.map(drop)
    }

    /// Unmaps one of the regions of the data.
    ///
    /// # Errors
    /// Errors of [`Control::call`].
    pub async fn unmap(&mut self, region: usize, until: Instant) -> Result<(), Lost> {
        let (address, _, len) = self.config.regions()[region];
        self.control.call(Code::DMA_UNMAP, &vfio::unmap(address, len), &[], until).await.map(drop)
    }

    /// Resets the device.
    ///
    /// # Errors
    /// Errors of [`Control::call`].
    pub async fn reset(&mut self, until: Instant) -> Result<(), Lost> {
        self.control.call(Code::RESET, &[], &[], until).await?;
        self.control.enable_function(until).await
    }

    /// Initializes the controller, which is disabled first: no command is in progress afterwards.
    ///
    /// # Errors
    /// The target ends or refuses it.
    pub async fn initialize(&mut self, until: Instant) -> Result<(), Lost> {
        self.control.disable(until).await?;
        self.queues.clear();
        let is_cleared = self.queue_memory.write(0, &vec![0; QUEUE_MEMORY_LEN]);
        assert!(is_cleared, "the memory of the queues is there");
        if let Some(page) = &self.mapped_doorbells {
            (0..PAGE).step_by(4).for_each(|at| assert!(page.store(at, 0), "the page is there"));
        }
        let last = u32::from(ADMIN_ENTRIES - 1);
        let addresses = [(ADMIN_SUBMISSIONS, QUEUE_ADDRESS), (ADMIN_COMPLETIONS, QUEUE_ADDRESS + PAGE as u64)];
        self.control.set_register(ADMIN_ATTRIBUTES, &(last | last << 16).to_le_bytes(), until).await?;
        for (register, address) in addresses {
            self.control.set_register(register, &address.to_le_bytes(), until).await?;
        }
        let mode = self.mapped_doorbells.clone().map_or(DoorbellMode::Registers, DoorbellMode::Mapped);
        self.admin = Pair::new(0, ADMIN_ENTRIES, &self.queue_memory, 0, mode.clone());
        let mut bringup = Bringup::in_memory(self.config.queues, 1);
        let mut answer = self.call(bringup.first(), 0, until).await?;
        loop {
            answer = match bringup.next(&answer)? {
                Next::Command(sqe, room) => self.call(sqe, room, until).await?,
                Next::Later(sqe) => {
                    self.core.sleep(ADMIN_PAUSE).await;
                    self.call(sqe, 0, until).await?
                }
                Next::Ready(_) => break,
            };
        }
        let mode = if self.config.doorbells == Doorbells::Shadow { self.shadow_doorbells(until).await? } else { mode };
        for id in 1..=self.config.queues {
            self.create_queue(id, mode.clone(), until).await?;
        }
        Ok(())
    }

    async fn shadow_doorbells(&mut self, until: Instant) -> Result<DoorbellMode, Lost> {
        let [doorbells, events] = [SHADOW, EVENTS].map(|at| QUEUE_ADDRESS + at as u64);
        self.call_checked(command::doorbell_buffers(doorbells, events), "Doorbell Buffer Config", until).await?;
        let page = |at| Window::new(&self.queue_memory, at, PAGE).expect("the page is in the memory of the queues");
        Ok(DoorbellMode::Shadow(page(SHADOW), page(EVENTS)))
    }

    async fn create_queue(&mut self, id: u16, mode: DoorbellMode, until: Instant) -> Result<(), Lost> {
        let at = IO_QUEUES + usize::from(id - 1) * IO_QUEUE_LEN;
        let address = QUEUE_ADDRESS + at as u64;
        let pair = Pair::new(id, ENTRIES, &self.queue_memory, at, mode).expect("the queue is in its memory");
        let vector = self.config.has_interrupts.then_some(id);
        let completions = command::create_completions(id, ENTRIES, address + PAGE as u64, vector);
        self.call_checked(completions, "Create I/O Completion Queue", until).await?;
        let submissions = command::create_submissions(id, ENTRIES, address);
        self.call_checked(submissions, "Create I/O Submission Queue", until).await?;
        self.queues.push(pair);
        Ok(())
    }

    async fn call_checked(&mut self, sqe: Sqe, what: &'static str, until: Instant) -> Result<(), Lost> {
        match self.call(sqe, 0, until).await?.status {
            Status::SUCCESS => Ok(()),
            status => Err(Error::Refused(what, status).into()),
        }
    }

    /// Executes a command of the admin queue, with `room` bytes of data from the controller.
    async fn call(&mut self, sqe: Sqe, room: u32, until: Instant) -> Result<Answer, Lost> {
        let good = |result| Answer { status: Status::SUCCESS, result, data: Vec::new() };
        let control = &mut self.control;
        match command::property(&sqe) {
            Some(Property::Get(offset, is_long)) => return control.register(offset, is_long, until).await.map(good),
            Some(Property::Set(offset, value)) => {
                control.set_register(offset, &value.to_le_bytes(), until).await?;
                return Ok(good(0));
            }
            None => {}
        }
        let data = QUEUE_ADDRESS + ADMIN_DATA as u64;
        let sqe = if room > 0 { command::in_pages(sqe, [data, 0]) } else { sqe };
        let admin = self.admin.as_mut().expect("the admin queue is there before its commands");
        assert!(admin.submit(&sqe), "one admin command at a time is in progress");
        control.ring(admin.ring().into_iter().flatten());
        let done = loop {
            if let Some(done) = admin.take() {
                break done;
            }
            match control.wait(&[], self.core.now() + ADMIN_PAUSE).await {
                Wake::Closed => return Err(Lost::Gone),
                Wake::Message => return Err(Error::Protocol("a message that no command asked for").into()),
                _ if self.core.now() >= until => return Err(Lost::Time),
                _ => {}
            }
        };
        control.ring(admin.ring().into_iter().flatten());
        let mut data = vec![0; room as usize];
        assert!(self.queue_memory.read(ADMIN_DATA, &mut data), "the data page is in the memory of the queues");
        Ok(Answer { status: done.status, result: done.result, data })
    }

    /// Rings the doorbells of all I/O queues.
    pub fn ring(&mut self) {
        let Self { control, queues, .. } = self;
        queues.iter_mut().for_each(|queue| control.ring(queue.ring().into_iter().flatten()));
    }
}

async fn map_doorbells(control: &mut Control, until: Instant) -> Result<Window, Lost> {
    let (answer, files) = control.call(Code::REGION_INFO, &vfio::registers_info(), &[], until).await?;
    let offset = vfio::doorbells(&answer)?;
    let page = files.first().and_then(|file| shared::map(file, offset, PAGE, true).ok());
    let window = page.and_then(|page| Window::new(&page, 0, PAGE));
    Ok(window.ok_or(Error::Protocol("the doorbells cannot be mapped"))?)
}
