//! The connection of a client: one message after the other, as the protocol orders their replies.

use super::core::Core;
use super::device::Device;
use crate::config::DESCRIPTORS_MAX;
use crate::feature::{self, FeatureRequest};
use crate::pci;
use crate::registers::{DOORBELLS, DOORBELLS_LEN};
use crate::session::{self, Head, Request};
use crate::wire::{
    Access, Code, DmaMap, Errno, Feature, HEADER_LEN, IRQ_DATA_BOOL, IRQ_DATA_EVENTFD, IRQ_DATA_NONE, IRQ_INTX,
    IRQ_MASK, IRQ_MSIX, IRQ_TRIGGER, IRQ_UNMASK, REGION_BAR0, REGION_CONFIG, SetIrqs,
};
use lunar_core::mem::Region;
use lunar_engine::vm_sockets::{Endpoint, SocketClient};
use lunar_guest::dirty::{DirtyLog, DirtyPages};
use lunar_guest::map::MapError;
use lunar_guest::poll::Backoff;
use lunar_nvme::Tenant;
use lunar_reactor::shared::{quota::Quota, share_within};
use lunar_reactor::unix::{PeerFile, Signal, Stream};
use std::cell::RefCell;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use zerocopy::IntoBytes;

/// The result of the negotiation with the client.
enum Handshake {
    /// VERSION has not come.
    Awaited,
    /// The client writes doorbells by messages, or its guest has shadow doorbells.
    Registers,
    /// The client wants to map the doorbells, and has not asked for them.
    WantsDoorbells,
    /// The client can map the doorbells: the descriptor of their page.
    HasDoorbells(OwnedFd),
}

/// The connection of a client.
pub struct Client {
    core: Rc<Core>,
    stream: Stream,
    device: Rc<Device>,
    /// The memory that it has mapped.
    quota: Quota,
    handshake: RefCell<Handshake>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Client")
    }
}

impl SocketClient for Client {
    async fn serve(&self) -> bool {
        let ended = self.device.failed.unless(self.converse()).await;
        if self.has_shaken_hands() {
            if let Some(Err(why)) = &ended
                && !self.core.is_draining()
            {
                self.log(&format!("connection to its client lost: {why}"));
            }
            self.log("client disconnected");
        }
        ended.is_some()
    }

    async fn finish(&self) {
        self.device.end().await;
    }

    fn has_unmapped(&self) -> bool {
        self.quota.is_settled()
    }

    fn end(&self) {
        self.stream.cancel();
    }

    fn is_quiet(&self) -> bool {
        self.device.is_quiet()
    }

    fn silence(&self) {
        self.device.is_silent.set(true);
    }
}

impl Client {
    /// `None` when there are too many controllers.
    pub(super) fn new(core: &Rc<Core>, stream: Stream, endpoint: &Endpoint<Tenant>) -> Option<Rc<Self>> {
        let admin = core.subsystem.open_controller(&endpoint.tenant, core.reactor.now())?;
        Some(Rc::new(Self {
            core: core.clone(),
            stream,
            device: Device::new(core, &endpoint.name, admin),
            quota: Quota::default(),
            handshake: RefCell::new(Handshake::Awaited),
        }))
    }

    fn log(&self, what: &str) {
        self.device.log(what);
    }

    fn has_shaken_hands(&self) -> bool {
        !matches!(*self.handshake.borrow(), Handshake::Awaited)
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
            // Otherwise a client that sends without waiting for replies would keep the core busy.
            self.core.reactor.end_of_turn().await;
        }
    }

    async fn message(&self, head: &Head, payload: &[u8], descriptors: Vec<PeerFile>) -> io::Result<()> {
        let code = Code(head.header.code.get());
        let stats = self.core.reactor.stats();
        stats.received_bytes.add((HEADER_LEN + payload.len()) as u64);
        let asked = match session::parse(code, payload) {
            // VERSION is the first message, and no other.
            Ok(request) if matches!(request, Request::Version { .. }) != self.has_shaken_hands() => Ok(request),
            Ok(_) => Err(Errno::INVAL),
            Err(why) => Err(why),
        };
        let mut has_descriptor = false;
        let answer = match asked {
            // Descriptors that the command does not expect are closed.
            Ok(request) => self.answer(request, payload, descriptors, &mut has_descriptor).await,
            Err(why) => Err(why),
        };
        if !head.is_answered {
            return Ok(());
        }
        let reply = session::reply(&head.header, &answer);
        let doorbells = match &*self.handshake.borrow() {
            Handshake::HasDoorbells(file) if has_descriptor => Some(file.try_clone()?),
            _ => None,
        };
        let descriptors: Vec<BorrowedFd<'_>> = doorbells.iter().map(AsFd::as_fd).collect();
        self.stream.send(&reply, &descriptors).await?;
        stats.sent_bytes.add(reply.len() as u64);
        Ok(())
    }

    async fn answer(
        &self,
        request: Request<'_>,
        payload: &[u8],
        descriptors: Vec<PeerFile>,
        has_descriptor: &mut bool,
    ) -> Result<Vec<u8>, Errno> {
        match request {
            Request::Version { answer, has_capabilities } => {
                self.core.reactor.stats().logins.add(1);
                let (handshake, what) = match has_capabilities {
                    true => (Handshake::Registers, "client connected"),
                    false => (Handshake::WantsDoorbells, "client connected; it maps the doorbells"),
                };
                self.handshake.replace(handshake);
                self.log(what);
                Ok(answer)
            }
            Request::Map(map) => self.map(&map, descriptors).map(|()| Vec::new()),
            Request::Unmap(_, range) => self.unmap(range).await.map(|()| payload.to_vec()),
            Request::DeviceInfo => Ok(session::device_info()),
            Request::RegionInfo(asked) => {
                let (answer, with_doorbells) = session::region_info(&asked, self.share_doorbells())?;
                *has_descriptor = with_doorbells;
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
            Request::Feature(feature, request) => self.feature(&feature, request, payload).await,
            Request::ReadState(len) => self.device.read_record(len as usize).map(|piece| session::state_piece(&piece)),
            Request::WriteState(piece) => self.device.write_record(piece).map(|()| Vec::new()),
        }
    }

    async fn feature(&self, feature: &Feature, request: FeatureRequest, payload: &[u8]) -> Result<Vec<u8>, Errno> {
        let mut answer = payload.to_vec();
        match request {
            FeatureRequest::Probe => {}
            FeatureRequest::Migration => return Ok(feature::migration(feature)),
            FeatureRequest::State => return Ok(feature::state(feature, self.device.state())),
            FeatureRequest::SetState(state) => self.device.change_state(state).await?,
            FeatureRequest::StartLogging(page_size, ranges) => {
                let log = DirtyPages::new(page_size, &ranges)?;
                feature::set_page_size(&mut answer, log.page_size());
                if self.device.registers().memory.is_logged() {
                    return Err(Errno::INVAL);
                }
                self.device.with(|registers| registers.memory.start_log(DirtyLog::Pages(log)));
            }
            FeatureRequest::StopLogging => drop(self.device.with(|registers| registers.memory.stop_log())),
            FeatureRequest::Report(report) => {
                let (range, page_size) = (report.span.range(), report.page_size.get());
                let bitmap = feature::dirty_pages(&self.device.registers().memory, range, page_size)?;
                return Ok(feature::answer(feature, &[report.as_bytes(), &bitmap]));
            }
        }
        Ok(answer)
    }

    /// Whether the client can map the doorbells. Creates their page when a client that wants to asks for the first
    /// time.
    fn share_doorbells(&self) -> bool {
        let mut handshake = self.handshake.borrow_mut();
        if let Handshake::WantsDoorbells = *handshake {
            let at = DOORBELLS as usize;
            match share_within(&self.quota, "lunar-doorbells", at + DOORBELLS_LEN) {
                Ok((file, page)) => {
                    self.device.map_doorbells(&page, at);
                    *handshake = Handshake::HasDoorbells(file);
                }
                Err(why) => self.device.log_fault(&format!("the page of its doorbells could not be created: {why}")),
            }
        }
        matches!(*handshake, Handshake::HasDoorbells(_))
    }

    fn map(&self, map: &DmaMap, descriptors: Vec<PeerFile>) -> Result<(), Errno> {
        let (address, size) = (map.address.get(), map.size.get());
        let region = match descriptors.as_slice() {
            // Memory that can be reached by messages only: no driver of a guest has its queues or data there.
            [] => None,
            [file] => {
                let len = usize::try_from(size).map_err(|_| Errno::INVAL)?;
                let mapped = file.map(&self.quota, map.offset.get(), len, session::is_writable(map));
                Some(mapped.map_err(|why| {
                    let what = format!("{size} bytes of guest memory at {address:#x} cannot be mapped: {why}");
                    self.device.log_fault(&what);
                    if why.kind() == io::ErrorKind::QuotaExceeded { Errno::NOSPC } else { Errno::INVAL }
                })?)
            }
            _ => return Err(Errno::INVAL),
        };
        let mapped = self.device.with(|registers| {
            registers.memory.map(address, size, region)?;
            registers.locate();
            Ok::<_, MapError>(())
        });
        // The doorbell buffers may be in this memory.
        self.device.wake();
        Ok(mapped?)
    }

    /// Unmaps memory. It is not used any more when the client has the reply.
    async fn unmap(&self, range: Option<(u64, u64)>) -> Result<(), Errno> {
        let regions: Vec<Region> = self.device.with(|registers| {
            let regions = match range {
                None => registers.memory.clear(),
                Some((address, size)) => registers.memory.unmap(address, size)?.into_iter().collect(),
            };
            registers.locate();
            Ok::<_, MapError>(regions)
        })?;
        self.device.wake();
        self.until(|| !regions.iter().any(Region::is_in_use)).await?;
        drop(regions);
        self.until(|| self.quota.is_settled()).await
    }

    /// Waits until this holds, or until the connection ends.
    async fn until(&self, holds: impl Fn() -> bool) -> Result<(), Errno> {
        let mut pauses = Backoff::for_stores();
        while !holds() {
            if self.stream.is_closed() {
                // The reply has no reader, and the end of the device aborts the commands.
                return Err(Errno::IO);
            }
            self.core.reactor.sleep(pauses.next(false)).await;
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
            REGION_BAR0 => self.device.registers().read(offset, into),
            REGION_CONFIG => self.device.configuration_space.borrow().read(offset as usize, into),
            // The client keeps the MSI-X table itself, and no vector is pending without its knowledge.
            _ => {}
        }
        Ok(answer)
    }

    async fn write(&self, access: &Access, data: &[u8]) -> Result<(), Errno> {
        let offset = session::within(access)?;
        match access.region.get() {
            // A device that is stopped changes no state.
            REGION_BAR0 if !self.device.is_running() => return Err(Errno::BUSY),
            REGION_BAR0 => self.device.write(offset, data),
            REGION_CONFIG => {
                let effect = self.device.configuration_space.borrow_mut().write(offset as usize, data);
                if effect == pci::Effect::Reset {
                    self.device.reset().await;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn set_irqs(&self, set: &SetIrqs, data: &[u8], descriptors: Vec<PeerFile>) -> Result<(), Errno> {
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
                    self.device.interrupts.borrow_mut().set_masked(what == IRQ_MASK);
                    if what == IRQ_UNMASK {
                        self.device.raise_unread();
                    }
                }
                Ok(())
            }
            _ => Err(Errno::INVAL),
        }
    }

    /// Sets the eventfds of the interrupts from `start` to `end`; those without a descriptor have none any more.
    fn set_signals(&self, index: u32, start: u32, end: u32, descriptors: Vec<PeerFile>) -> Result<(), Errno> {
        let mut signals = Vec::new();
        for descriptor in descriptors {
            signals.push(Signal::new(&self.core.reactor, descriptor).map_err(|_| Errno::INVAL)?);
        }
        let mut interrupts = self.device.interrupts.borrow_mut();
        match index {
            IRQ_INTX => interrupts.set_line(signals.pop()),
            IRQ_MSIX => interrupts.set_vectors(start, end, signals),
            _ => {}
        }
        drop(interrupts);
        // Completions from before are raised now.
        self.device.raise_unread();
        Ok(())
    }

    /// Raises one interrupt: the client tests its eventfd.
    fn trigger(&self, index: u32, at: u32) {
        let interrupts = self.device.interrupts.borrow();
        match index {
            IRQ_INTX => interrupts.trigger_line(),
            _ => interrupts.trigger_vector(at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_engine::vm_sockets::{Place, Role};
    use lunar_nvme::fuzzing::{Rig, tenant};
    use lunar_reactor::watch::Watch;
    use lunar_reactor::{Choice, Config, Reactor};
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    #[test]
    fn memory_in_use_does_not_keep_a_client_that_has_gone() {
        let reactor = Reactor::new(Config { driver: Choice::Epoll, ..Config::default() }).expect("a driver");
        let rig = Rig::default();
        let (client, theirs) = client(&reactor, &rig);
        let memory = Region::zeroed(4096);
        client.device.with(|registers| registers.memory.map(0, 4096, Some(memory.clone()))).expect("free");
        reactor.spawn({
            let reactor = reactor.clone();
            async move {
                reactor.sleep(Duration::from_millis(1)).await;
                drop(theirs);
            }
        });
        // A store has a part of it, and does not answer.
        let lent = memory.slice(0, 512);
        drop(memory);
        assert_eq!(reactor.run(client.unmap(Some((0, 4096)))), Err(Errno::IO));
        assert!(lent.is_some());
    }

    /// A client, and the other end of its connection.
    fn client(reactor: &Reactor, rig: &Rig) -> (Rc<Client>, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        ours.set_nonblocking(true).expect("a socket");
        let stream = Stream::adopt(reactor, OwnedFd::from(ours)).expect("a socket");
        let place = Place { path: "test".into(), role: Role::Server };
        let endpoint = Endpoint { name: "test".into(), place, tenant: tenant() };
        (Client::new(&Core::new(reactor, &rig.subsystem), stream, &endpoint).expect("there is room"), theirs)
    }

    #[test]
    fn a_device_that_fails_disconnects_its_client() {
        let reactor = Reactor::new(Config { driver: Choice::Epoll, ..Config::default() }).expect("a driver");
        let rig = Rig::default();
        let (client, _theirs) = client(&reactor, &rig);
        // A defect: the registers are in use.
        let registers = client.device.registers();
        client.device.wake();
        assert!(client.device.wants_poll() && client.device.look());
        drop(registers);
        assert!(!client.device.wants_poll() && !client.device.look() && client.device.prepare_sleep());
        assert!(!reactor.run(client.serve()));
        reactor.run(client.finish());
        assert!(client.is_quiet());
    }

    #[test]
    fn a_client_is_refused_more_memory_than_others_leave_to_it() {
        let reactor = Reactor::new(Config { driver: Choice::Epoll, ..Config::default() }).expect("a driver");
        let rig = Rig::default();
        let (client, _theirs) = client(&reactor, &rig);
        let file = memfd_create("guest", MemfdFlags::CLOEXEC).expect("a memfd");
        ftruncate(&file, 8 << 40).expect("it is sparse");
        let map = |address: u64| {
            let map = DmaMap {
                argsz: 32.into(),
                flags: 3.into(),
                offset: 0.into(),
                address: address.into(),
                size: (8 << 40).into(),
            };
            client.map(&map, vec![PeerFile::from(file.try_clone().expect("a descriptor"))])
        };
        // All that one client gets is 16.5 TiB.
        assert_eq!([0, 8 << 40, 16 << 40].map(map), [Ok(()), Ok(()), Err(Errno::NOSPC)]);
        assert_eq!(reactor.run(client.unmap(Some((0, 8 << 40)))), Ok(()));
        assert_eq!(map(16 << 40), Ok(()), "the first one is unmapped");
        reactor.run(client.finish());
        // 64 MiB of the mapping at a time are unmapped, by another thread.
        reactor.run(async {
            while !client.has_unmapped() {
                reactor.sleep(Duration::from_millis(1)).await;
            }
        });
    }
}
