//! A connection of a client: its messages, one after the other, as the protocol wants them answered.

use super::device::Device;
use super::{Endpoint, Front};
use crate::config::DESCRIPTORS_MAX;
use crate::feature::{self, Wish};
use crate::pci;
use crate::registers::{DOORBELLS, DOORBELLS_LEN};
use crate::session::{self, Head, Request};
use crate::wire::{
    Access, Code, DmaMap, Errno, Feature, HEADER_LEN, IRQ_DATA_BOOL, IRQ_DATA_EVENTFD, IRQ_DATA_NONE, IRQ_INTX,
    IRQ_MASK, IRQ_MSIX, IRQ_TRIGGER, IRQ_UNMASK, REGION_BAR0, REGION_CONFIG, SetIrqs,
};
use lunar_core::mem::Region;
use lunar_guest::dirty::{DirtyLog, DirtyPages};
use lunar_guest::map::MapError;
use lunar_reactor::log;
use lunar_reactor::shared;
use lunar_reactor::unix::{Signal, Stream};
use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;
use zerocopy::IntoBytes;

/// How often it is looked whether memory that is unmapped is still in use: a store's request is over in less.
const UNMAP_LOOK: Duration = Duration::from_micros(200);

/// A connection of a client.
pub(super) struct Client {
    front: Rc<Front>,
    stream: Stream,
    name: String,
    device: Rc<Device>,
    /// Whether the first message came.
    is_open: Cell<bool>,
    /// Whether it wants doorbells that it can map, and the page, once it has asked.
    maps: Cell<bool>,
    doorbells: RefCell<Option<OwnedFd>>,
}

impl Client {
    /// `None` when there are too many controllers.
    pub(super) fn new(front: &Rc<Front>, stream: Stream, endpoint: &Endpoint) -> Option<Rc<Self>> {
        let admin = front.subsystem.attach(&endpoint.tenant, front.reactor.now())?;
        Some(Rc::new(Self {
            front: front.clone(),
            stream,
            name: endpoint.name.clone(),
            device: Device::new(front, &endpoint.name, admin),
            is_open: Cell::new(false),
            maps: Cell::new(false),
            doorbells: RefCell::default(),
        }))
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.device.is_quiet()
    }

    /// Ends the connection: no further message is answered.
    pub(super) fn end(&self) {
        self.stream.cancel();
    }

    fn log(&self, what: &str) {
        log!("vm {}: {what}", self.name);
    }

    /// Serves the client until it is gone.
    pub(super) async fn serve(&self) {
        let stats = self.front.reactor.stats();
        stats.connections.add(1);
        stats.connections_accepted.add(1);
        stats.sessions.add(1);
        if let Err(why) = self.converse().await
            && self.is_open.get()
            && !self.front.draining.get()
        {
            self.log(&format!("its client is given up: {why}"));
        }
        if self.is_open.get() {
            self.log("its client is gone");
        }
        self.device.end().await;
        stats.connections.sub(1);
        stats.sessions.sub(1);
    }

    async fn converse(&self) -> io::Result<()> {
        let mut payload = Vec::new();
        loop {
            let (mut bytes, mut descriptors) = ([0; HEADER_LEN], Vec::new());
            let got = self.stream.receive(&mut bytes, &mut descriptors).await?;
            if got == 0 {
                return Ok(());
            }
            let head = session::head(&bytes).map_err(|_| io::ErrorKind::InvalidData)?;
            payload.resize(head.len, 0);
            if got < HEADER_LEN || self.stream.receive(&mut payload, &mut descriptors).await? < head.len {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.message(&head, &payload, descriptors).await?;
            // Who sends faster than he is answered, or wants no answer, would have the core for himself.
            self.front.reactor.end_of_turn().await;
        }
    }

    async fn message(&self, head: &Head, payload: &[u8], descriptors: Vec<OwnedFd>) -> io::Result<()> {
        let code = Code(head.header.code.get());
        let stats = self.front.reactor.stats();
        stats.received_bytes.add((HEADER_LEN + payload.len()) as u64);
        let asked = match session::parse(code, payload) {
            Ok(request) if matches!(request, Request::Version { .. }) == !self.is_open.get() => Ok(request),
            Ok(_) => Err(Errno::INVAL),
            Err(why) => Err(why),
        };
        let mut gives = false;
        let answer = match asked {
            // What the codes below do not want is closed.
            Ok(request) => self.answer(request, payload, descriptors, &mut gives).await,
            Err(why) => Err(why),
        };
        if !head.is_answered {
            return Ok(());
        }
        let reply = session::reply(&head.header, &answer);
        let doorbells = self.doorbells.borrow().as_ref().filter(|_| gives).map(OwnedFd::try_clone).transpose()?;
        let given: Vec<_> = doorbells.iter().map(AsFd::as_fd).collect();
        self.stream.send(&reply, &given).await?;
        stats.sent_bytes.add(reply.len() as u64);
        Ok(())
    }

    async fn answer(
        &self,
        request: Request<'_>,
        payload: &[u8],
        descriptors: Vec<OwnedFd>,
        gives: &mut bool,
    ) -> Result<Vec<u8>, Errno> {
        match request {
            Request::Version { answer, told } => {
                self.is_open.set(true);
                self.maps.set(!told);
                self.front.reactor.stats().logins.add(1);
                self.log(if told { "its client is here" } else { "its client is here, and maps the doorbells" });
                Ok(answer)
            }
            Request::Map(map) => self.map(&map, descriptors).map(|()| Vec::new()),
            Request::Unmap(_, range) => self.unmap(range).await.map(|()| payload.to_vec()),
            Request::DeviceInfo => Ok(session::device_info()),
            Request::RegionInfo(asked) => {
                let maps = self.maps.get() && self.share_doorbells();
                let (answer, file) = session::region_info(&asked, maps)?;
                *gives = file;
                Ok(answer)
            }
            Request::RegionDescriptors(asked) => Ok(session::region_descriptors(&asked)),
            Request::IrqInfo(asked) => session::irq_info(&asked),
            Request::SetIrqs(set, data) => self.set_irqs(&set, data, descriptors).map(|()| Vec::new()),
            Request::Read(access) => self.read(&access),
            Request::Write(access, data) => {
                self.write(&access, data).await?;
                Ok(access.as_bytes().to_vec())
            }
            Request::WriteMany(writes) => {
                for write in &writes {
                    self.write(&write.access, &write.data[..write.access.count.get() as usize]).await?;
                }
                Ok((writes.len() as u64).to_le_bytes().to_vec())
            }
            Request::Reset => {
                self.device.reset().await;
                Ok(Vec::new())
            }
            Request::Feature(feature, wish) => self.feature(&feature, wish, payload).await,
            Request::ReadState(len) => self.device.tell(len as usize).map(|piece| session::state_piece(&piece)),
            Request::WriteState(piece) => self.device.hear(piece).map(|()| Vec::new()),
        }
    }

    async fn feature(&self, feature: &Feature, wish: Wish, payload: &[u8]) -> Result<Vec<u8>, Errno> {
        let mut answer = payload.to_vec();
        match wish {
            Wish::Probe => {}
            Wish::Migration => return Ok(feature::migration(feature)),
            Wish::State => return Ok(feature::state(feature, self.device.state())),
            Wish::SetState(state) => self.device.move_to(state).await?,
            Wish::StartLogging(page_size, ranges) => {
                let log = DirtyPages::new(page_size, &ranges)?;
                feature::choose_page_size(&mut answer, log.page_size());
                self.device.with(|machine| match machine.memory.is_logged() {
                    true => Err(Errno::INVAL),
                    false => {
                        machine.memory.start_log(DirtyLog::Pages(log));
                        Ok(())
                    }
                })?;
            }
            Wish::StopLogging => drop(self.device.with(|machine| machine.memory.stop_log())),
            Wish::Report(report) => {
                let bitmap =
                    feature::dirty_pages(&self.device.machine().memory, report.span.range(), report.page_size.get())?;
                return Ok(feature::answer(feature, &[report.as_bytes(), &bitmap]));
            }
        }
        Ok(answer)
    }

    /// Makes the page of doorbells that a client can map, once; tells whether there is one.
    fn share_doorbells(&self) -> bool {
        let mut doorbells = self.doorbells.borrow_mut();
        if doorbells.is_none() {
            let at = DOORBELLS as usize;
            match shared::share("lunar-doorbells", at + DOORBELLS_LEN) {
                Ok((file, page)) => {
                    self.device.map_doorbells(&page, at);
                    *doorbells = Some(file);
                }
                Err(why) => self.log(&format!("no page for its doorbells: {why}")),
            }
        }
        doorbells.is_some()
    }

    fn map(&self, map: &DmaMap, descriptors: Vec<OwnedFd>) -> Result<(), Errno> {
        let (address, size) = (map.address.get(), map.size.get());
        let region = match descriptors.as_slice() {
            // Reached by messages only, which no guest's driver needs: what lies there is not used.
            [] => None,
            [file] => {
                let len = usize::try_from(size).map_err(|_| Errno::INVAL)?;
                let mapped = shared::map(file, map.offset.get(), len, session::is_writable(map));
                Some(mapped.map_err(|why| {
                    self.log(&format!("{size} bytes of its memory at {address:#x} cannot be mapped: {why}"));
                    Errno::INVAL
                })?)
            }
            _ => return Err(Errno::INVAL),
        };
        let mapped = self.device.with(|machine| {
            machine.memory.map(address, size, region)?;
            machine.lie();
            Ok(())
        });
        // Where the guest rings may have changed with it.
        self.device.look_again();
        mapped
    }

    /// Memory is gone when this is answered: nobody uses it any more.
    async fn unmap(&self, range: Option<(u64, u64)>) -> Result<(), Errno> {
        let regions: Vec<Region> = self.device.with(|machine| {
            let regions = match range {
                None => machine.memory.clear(),
                Some((address, size)) => machine.memory.unmap(address, size)?.into_iter().collect(),
            };
            machine.lie();
            Ok::<_, MapError>(regions)
        })?;
        self.device.look_again();
        while regions.iter().any(Region::is_in_use) {
            self.front.reactor.sleep(UNMAP_LOOK).await;
        }
        Ok(())
    }

    fn read(&self, access: &Access) -> Result<Vec<u8>, Errno> {
        let offset = session::within(access)?;
        let mut answer = access.as_bytes().to_vec();
        let start = answer.len();
        answer.resize(start + access.count.get() as usize, 0);
        let into = &mut answer[start..];
        match access.region.get() {
            REGION_BAR0 => self.device.machine().read(offset, into),
            REGION_CONFIG => self.device.space.borrow().read(offset as usize, into),
            // The table of vectors is the client's own; nothing is pending that it does not know of.
            _ => {}
        }
        Ok(answer)
    }

    async fn write(&self, access: &Access, data: &[u8]) -> Result<(), Errno> {
        let offset = session::within(access)?;
        match access.region.get() {
            // What stands still has no registers to be written.
            REGION_BAR0 if self.device.is_still.get() => return Err(Errno::BUSY),
            REGION_BAR0 => self.device.write(offset, data),
            REGION_CONFIG => {
                let effect = self.device.space.borrow_mut().write(offset as usize, data);
                if effect == pci::Effect::Reset {
                    self.device.reset().await;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn set_irqs(&self, set: &SetIrqs, data: &[u8], descriptors: Vec<OwnedFd>) -> Result<(), Errno> {
        const DATA: u32 = IRQ_DATA_NONE | IRQ_DATA_BOOL | IRQ_DATA_EVENTFD;
        let (index, start, count) = (set.index.get(), set.start.get(), set.count.get());
        let (what, how) = (set.flags.get() & !DATA, set.flags.get() & DATA);
        let end = start.checked_add(count).filter(|end| *end <= session::irq_count(index)).ok_or(Errno::INVAL)?;
        if descriptors.len() > DESCRIPTORS_MAX || descriptors.len() > count as usize {
            return Err(Errno::INVAL);
        }
        let chosen = |at: u32| match how {
            IRQ_DATA_NONE => true,
            _ => data.get(at as usize).is_some_and(|byte| *byte != 0),
        };
        match (what, how) {
            (IRQ_TRIGGER, IRQ_DATA_NONE) if count == 0 => self.set_signals(index, 0, session::irq_count(index), vec![]),
            (IRQ_TRIGGER, IRQ_DATA_EVENTFD) => self.set_signals(index, start, end, descriptors),
            (IRQ_TRIGGER, IRQ_DATA_NONE | IRQ_DATA_BOOL) => {
                (0..count).filter(|at| chosen(*at)).for_each(|at| self.trigger(index, start + at));
                Ok(())
            }
            (IRQ_MASK | IRQ_UNMASK, IRQ_DATA_NONE | IRQ_DATA_BOOL) if index == IRQ_INTX => {
                if chosen(0) && count > 0 {
                    match what {
                        IRQ_UNMASK => self.device.unmask_line(),
                        _ => self.device.interrupts.borrow_mut().line_is_masked = true,
                    }
                }
                Ok(())
            }
            _ => Err(Errno::INVAL),
        }
    }

    /// Interrupts are raised by these from now on; those without one by nothing.
    fn set_signals(&self, index: u32, start: u32, end: u32, descriptors: Vec<OwnedFd>) -> Result<(), Errno> {
        let mut signals = Vec::new();
        for descriptor in descriptors {
            signals.push(Signal::new(&self.front.reactor, descriptor).map_err(|_| Errno::INVAL)?);
        }
        let mut signals = signals.into_iter();
        let mut interrupts = self.device.interrupts.borrow_mut();
        match index {
            IRQ_INTX => {
                interrupts.line = signals.next();
                interrupts.line_is_masked = false;
            }
            IRQ_MSIX => {
                let vectors = &mut interrupts.vectors;
                if vectors.len() < end as usize {
                    vectors.resize_with(end as usize, || None);
                }
                (start..end).for_each(|at| vectors[at as usize] = signals.next());
                while vectors.pop_if(|last| last.is_none()).is_some() {}
            }
            _ => {}
        }
        drop(interrupts);
        // What was completed before is told now.
        self.device.with(|machine| machine.raise_unread());
        self.device.look_again();
        Ok(())
    }

    fn trigger(&self, index: u32, at: u32) {
        let interrupts = self.device.interrupts.borrow();
        let signal = match index {
            IRQ_INTX => interrupts.line.as_ref(),
            _ => interrupts.vectors.get(at as usize).and_then(Option::as_ref),
        };
        // One that is under way is one that comes.
        let _ = signal.map(Signal::ring);
    }
}
