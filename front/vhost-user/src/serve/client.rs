//! The connection of a front-end: one message after the other, as the protocol orders their replies.

use super::blk::BlkDevice;
use super::core::Core;
use super::device::Device;
use super::job::Kind;
use super::scsi::ScsiDevice;
use super::tenant::{DeviceView, Tenant};
use crate::config::{CONFIG_MAX, INFLIGHT_MAX, SLOTS_MAX};
use crate::schema::WORD;
use crate::session::{self, Head, Request, RingEvent, RingIndex};
use crate::sessions::Listed;
use crate::virtio::{Refused, VirtioDevice};
use crate::wire::{Code, ConfigHead, HEADER_LEN, Inflight, LogBase, MemoryRegion, VringState, feature, protocol};
use lunar_blk::Client as BlockClient;
use lunar_core::mem::Region;
use lunar_core::port::NexusName;
use lunar_engine::vm_sockets::{Endpoint, SocketClient};
use lunar_guest::map::MapError;
use lunar_guest::poll::Backoff;
use lunar_reactor::shared::{quota::Quota, share_within};
use lunar_reactor::unix::{Kick, PeerFile, Signal, Stream};
use std::cell::Cell;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;
use zerocopy::IntoBytes;

/// How long requests may go on whose front-end has disconnected before they are aborted: a thousand long ones take
/// minutes, in which the next front-end would wait. It does wait for the answers of stores: one that does not answer,
/// for instance because its handler is not connected, keeps the socket for longer. Requests of a connection that Lunar
/// ends are not aborted: its front-end is there, and a device that executes commands itself must not be interrupted.
const FINISH_TIME: Duration = Duration::from_secs(1);
/// The value of a reply: success, and refusal.
const SUCCESS: u64 = 0;
const REFUSAL: u64 = 1;

/// Why a virtual machine sees nothing.
const NO_DISK: &str = "it sees no volume: its target is disabled, no group of the target has it as an initiator, or \
                       the group has no such LUN; see `lunar explain` for the keys of [vhost] and [group]";
const NOT_SERVED: &str = "its volume is not served now: `lunar status` says why";
const NO_PORT: &str = "it sees no target port: its target is disabled or has no portal group, or no group of the \
                       target has it as an initiator";

/// The answer to a message.
enum Answer {
    /// None but an acknowledgement, if the front-end wants one.
    Done,
    /// A reply with this payload, and perhaps a descriptor.
    Reply(Vec<u8>, Option<OwnedFd>),
}

impl Answer {
    fn number(number: u64) -> Self {
        Self::Reply(number.to_le_bytes().to_vec(), None)
    }
}

/// The connection of a front-end.
pub struct Client {
    core: Rc<Core>,
    /// Its socket.
    path: PathBuf,
    stream: Stream,
    device: Rc<Device>,
    /// The memory that it has mapped.
    quota: Quota,
    listed: Listed,
    /// Whether the front-end has sent anything.
    has_spoken: Cell<bool>,
    /// Whether the connection ends.
    is_ended: Cell<bool>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({})", self.path.display())
    }
}

impl SocketClient for Client {
    async fn serve(&self) -> bool {
        let ended = self.device.rings.failed.unless(self.converse()).await;
        if self.has_spoken.get() {
            if let Some(Err(why)) = &ended
                && !self.core.is_draining()
            {
                self.log(&format!("connection to its front-end lost: {why}"));
            }
            self.log("front-end disconnected");
        }
        ended.is_some()
    }

    async fn finish(&self) {
        self.device.end((!self.is_ended.get()).then_some(FINISH_TIME)).await;
    }

    fn has_unmapped(&self) -> bool {
        self.quota.is_settled()
    }

    /// No further message is answered, and no further request is taken from the rings.
    fn end(&self) {
        self.is_ended.set(true);
        self.device.rings.with(VirtioDevice::pause_all);
        self.stream.cancel();
    }

    fn is_quiet(&self) -> bool {
        self.device.rings.is_quiet()
    }

    fn silence(&self) {
        self.device.rings.is_silent.set(true);
    }
}

impl Client {
    /// The connection of a front-end that was accepted.
    ///
    /// # Errors
    /// Why the virtual machine sees nothing, and what to do.
    pub(super) fn new(core: &Rc<Core>, stream: Stream, endpoint: &Endpoint<Tenant>) -> Result<Rc<Self>, &'static str> {
        let tenant = &endpoint.tenant;
        let session = || core.reactor.stats().hosts.session(WORD, &endpoint.name, &tenant.host);
        let kind = match tenant.device {
            DeviceView::Blk(disk) => {
                let disk = disk.ok_or(NO_DISK)?;
                let client = BlockClient { name: tenant.host.clone(), group: tenant.tag, read_only: disk.read_only };
                let attachment = core.block.attach(disk.unit, client).ok_or(NOT_SERVED)?;
                // It is new, and has no counters.
                let _ = attachment.host.set(session());
                Kind::Blk(Rc::new(BlkDevice::new(&core.block, attachment, tenant.queues)))
            }
            DeviceView::Scsi(port) => {
                let (port, group) = port.zip(tenant.group.as_ref()).ok_or(NO_PORT)?;
                let name = NexusName { initiator: tenant.port(), target_port: port.relative };
                let nexus = core.target.nexus_behind(name, group);
                let _ = nexus.host.set(session());
                Kind::Scsi(Rc::new(ScsiDevice::new(&core.target, nexus, tenant.queues)))
            }
        };
        let path = endpoint.place.path.clone();
        Ok(Rc::new(Self {
            core: core.clone(),
            listed: core.sessions.begin(&path, core.reactor.now()),
            path,
            stream,
            device: Device::new(core, &endpoint.name, kind),
            quota: Quota::default(),
            has_spoken: Cell::new(false),
            is_ended: Cell::new(false),
        }))
    }

    fn log(&self, what: &str) {
        self.device.rings.log(what);
    }

    /// Answers messages until the connection ends.
    async fn converse(&self) -> io::Result<()> {
        let mut payload = Vec::new();
        loop {
            let (mut bytes, mut descriptors) = ([0; HEADER_LEN], Vec::new());
            let got = self.stream.receive(&mut bytes, &mut descriptors).await?;
            if got == 0 {
                return Ok(());
            }
            let head = session::head(&bytes).map_err(|_| self.malformed())?;
            payload.resize(head.len, 0);
            if got < HEADER_LEN || self.stream.receive(&mut payload, &mut descriptors).await? < head.len {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.look_for_end()?;
            self.message(&head, &payload, descriptors).await?;
            let (rings, is_packed) = self.device.rings.with(|state| {
                let is_packed = state.features() & feature::RING_PACKED != 0;
                (state.running_sizes(), is_packed)
            });
            self.listed.set_rings(rings, is_packed);
            // Otherwise a front-end that sends without waiting for replies would keep the core busy.
            self.core.reactor.end_of_turn().await;
        }
    }

    /// Messages that were received before the connection was ended may still be in the socket.
    fn look_for_end(&self) -> io::Result<()> {
        if self.is_ended.get() { Err(io::ErrorKind::ConnectionAborted.into()) } else { Ok(()) }
    }

    fn malformed(&self) -> io::Error {
        self.core.reactor.stats().protocol_errors.add(1);
        io::ErrorKind::InvalidData.into()
    }

    async fn message(&self, head: &Head, payload: &[u8], descriptors: Vec<PeerFile>) -> io::Result<()> {
        let stats = self.core.reactor.stats();
        stats.received_bytes.add((HEADER_LEN + payload.len()) as u64);
        if !self.has_spoken.replace(true) {
            stats.logins.add(1);
            self.log("front-end connected");
        }
        let request = session::parse(head.code, payload).map_err(|_| self.malformed())?;
        let answered = self.answer(request, descriptors).await;
        if matches!(answered, Err(Refused::Ended)) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        self.look_for_end()?;
        let is_acknowledged = head.needs_reply && self.device.rings.state().uses(protocol::REPLY_ACK);
        let (payload, descriptor) = match answered {
            Ok(Answer::Reply(payload, descriptor)) => (payload, descriptor),
            Ok(Answer::Done) if is_acknowledged => (SUCCESS.to_le_bytes().to_vec(), None),
            Ok(Answer::Done) => return Ok(()),
            Err(why) => {
                stats.rejects.add(1);
                self.device.rings.log_fault(&format!("its front-end was refused {:?}: {why:?}", head.code));
                match head.code {
                    // An empty configuration space means failure.
                    Code::GET_CONFIG => (Vec::new(), None),
                    // A reply of another kind is awaited.
                    Code::GET_VRING_BASE | Code::GET_INFLIGHT_FD | Code::SET_LOG_BASE => {
                        return Err(io::ErrorKind::InvalidInput.into());
                    }
                    _ if is_acknowledged => (REFUSAL.to_le_bytes().to_vec(), None),
                    _ => return Ok(()),
                }
            }
        };
        let reply = session::reply(head.code, &payload);
        let descriptors: Vec<BorrowedFd<'_>> = descriptor.iter().map(AsFd::as_fd).collect();
        self.stream.send(&reply, &descriptors).await?;
        stats.sent_bytes.add(reply.len() as u64);
        Ok(())
    }

    async fn answer(&self, request: Request<'_>, descriptors: Vec<PeerFile>) -> Result<Answer, Refused> {
        let device = &self.device;
        match request {
            Request::GetFeatures => return Ok(Answer::number(device.rings.state().offered())),
            Request::SetFeatures(features) => device.set_features(features)?,
            Request::SetOwner | Request::SetLogFd => {}
            Request::ResetOwner | Request::ResetDevice => {
                device.rings.with(VirtioDevice::pause_all);
                self.until_ended(|| device.rings.is_quiet()).await?;
                device.rings.state().all().for_each(|ring| device.rings.end_kick(ring));
                device.reset();
            }
            Request::SetMemTable(table) => self.set_memory(table, descriptors).await?,
            Request::AddMemReg(region) => self.add_memory(&region, descriptors)?,
            Request::RemMemReg(region) => {
                let removed = device.rings.with(|state| state.remove_memory(&region))?;
                self.until_free(removed.into_iter().collect()).await?;
            }
            Request::GetMaxMemSlots => return Ok(Answer::number(SLOTS_MAX)),
            Request::SetLogBase(log) => return self.set_log(&log, descriptors),
            Request::GetProtocolFeatures => return Ok(Answer::number(device.protocol())),
            Request::SetProtocolFeatures(features) => device.rings.with(|state| state.set_protocol(features)),
            Request::GetQueueNum => return Ok(Answer::number(device.rings.state().count() as u64)),
            Request::SetBackendReqFd => self.set_channel(descriptors)?,
            Request::GetConfig(offset, len) => return self.config(offset, len),
            Request::SetConfig(offset, bytes) => {
                if !device.write_config(offset, bytes) {
                    return Err(Refused::Unsupported);
                }
            }
            Request::GetInflightFd(queues, size) => return self.share_inflight(queues, size),
            Request::SetInflightFd(given) => self.set_inflight(&given, descriptors)?,
            Request::SetStatus(status) => device.rings.with(|state| state.set_status(status)),
            Request::GetStatus => return Ok(Answer::number(device.rings.state().status().into())),
            Request::Unknown => return Err(Refused::Unsupported),
            request => return self.answer_ring(request, descriptors).await,
        }
        Ok(Answer::Done)
    }

    /// Answers a message about one ring.
    async fn answer_ring(&self, request: Request<'_>, descriptors: Vec<PeerFile>) -> Result<Answer, Refused> {
        let device = &self.device;
        match request {
            Request::SetVringNum(ring, size) => device.rings.with(|state| state.set_size(ring, size))?,
            Request::SetVringAddr(ring, address) => {
                device.rings.with(|state| state.set_address(ring, address))?;
                // A ring that is started was moved: its driver has not been asked to notify there.
                device.rings.wake();
            }
            Request::SetVringBase(ring, base) => device.rings.with(|state| state.set_base(ring, base))?,
            Request::SetVringEnable(ring, is_enabled) => {
                device.rings.with(|state| state.enable(ring, is_enabled))?;
                device.rings.wake();
            }
            Request::SetVringEvent(event, ring, has_descriptor) => {
                self.set_event(event, ring, has_descriptor, descriptors)?;
            }
            Request::GetVringBase(ring) => return self.stop(ring).await,
            // All others are answered elsewhere.
            _ => return Err(Refused::Unsupported),
        }
        Ok(Answer::Done)
    }

    /// Waits until something has ended, or until the connection ends: its end aborts the requests.
    async fn until_ended(&self, has_ended: impl Fn() -> bool) -> Result<(), Refused> {
        let mut pauses = Backoff::for_stores();
        while !has_ended() {
            if self.is_ended.get() || self.stream.is_closed() {
                return Err(Refused::Ended);
            }
            self.core.reactor.sleep(pauses.next(false)).await;
        }
        Ok(())
    }

    /// Waits until regions that were removed are not in use any more, and unmapped.
    async fn until_free(&self, regions: Vec<Region>) -> Result<(), Refused> {
        self.device.rings.wake();
        self.until_ended(|| !regions.iter().any(Region::is_in_use)).await?;
        drop(regions);
        self.until_ended(|| self.quota.is_settled()).await
    }

    /// Stops a ring, once all that was taken from it has been returned.
    async fn stop(&self, ring: RingIndex) -> Result<Answer, Refused> {
        let device = &self.device;
        if !device.rings.state().has(ring) {
            return Err(Refused::Ring);
        }
        device.rings.with(|state| state.pause(ring));
        device.rings.end_kick(ring);
        self.until_ended(|| device.rings.state().in_progress(ring) == 0).await?;
        // A driver that the front-end goes on to serve by itself waits for what was returned.
        device.rings.signal();
        let base = device.rings.with(|state| state.stop(ring))?;
        // The number of a ring is a byte.
        let state = VringState { index: (ring.at() as u32).into(), num: base.into() };
        Ok(Answer::Reply(state.as_bytes().to_vec(), None))
    }

    fn map(&self, file: &PeerFile, offset: u64, size: u64) -> Result<Region, Refused> {
        let mapped = usize::try_from(size).map_err(|_| io::ErrorKind::OutOfMemory.into());
        mapped.and_then(|len| file.map(&self.quota, offset, len, true)).map_err(|why| {
            self.device.rings.log_fault(&format!("{size} bytes of its memory cannot be mapped: {why}"));
            match why.kind() {
                io::ErrorKind::QuotaExceeded => Refused::Memory(MapError::TooMany),
                _ => Refused::Descriptors,
            }
        })
    }

    async fn set_memory(&self, table: Vec<MemoryRegion>, descriptors: Vec<PeerFile>) -> Result<(), Refused> {
        if table.len() != descriptors.len() {
            return Err(Refused::Descriptors);
        }
        VirtioDevice::may_have(&table)?;
        let mut regions = Vec::new();
        for (region, file) in table.into_iter().zip(&descriptors) {
            let memory = self.map(file, region.offset.get(), region.size.get())?;
            regions.push((region, memory));
        }
        let old = self.device.rings.with(|state| state.set_memory(regions))?;
        self.until_free(old).await
    }

    fn add_memory(&self, region: &MemoryRegion, descriptors: Vec<PeerFile>) -> Result<(), Refused> {
        let file = only(descriptors)?;
        self.device.rings.state().may_add(region)?;
        let memory = self.map(&file, region.offset.get(), region.size.get())?;
        self.device.rings.with(|state| state.add_memory(region, memory))?;
        self.device.rings.wake();
        Ok(())
    }

    fn set_log(&self, log: &LogBase, descriptors: Vec<PeerFile>) -> Result<Answer, Refused> {
        if !self.device.rings.state().uses(protocol::LOG_SHMFD) {
            return Err(Refused::Unsupported);
        }
        let memory = self.map(&only(descriptors)?, log.offset.get(), log.size.get())?;
        self.device.rings.with(|state| state.set_log(&memory));
        Ok(Answer::number(SUCCESS))
    }

    fn set_channel(&self, descriptors: Vec<PeerFile>) -> Result<(), Refused> {
        let channel = Stream::adopt(&self.core.reactor, only(descriptors)?).map_err(|_| Refused::Descriptors)?;
        self.device.rings.set_channel(channel);
        Ok(())
    }

    fn set_event(
        &self,
        event: RingEvent,
        ring: RingIndex,
        has_descriptor: bool,
        descriptors: Vec<PeerFile>,
    ) -> Result<(), Refused> {
        let device = &self.device;
        if !device.rings.state().has(ring) {
            return Err(Refused::Ring);
        }
        let descriptor = has_descriptor.then(|| only(descriptors)).transpose()?;
        let reactor = &self.core.reactor;
        if event == RingEvent::Kick {
            let kick = descriptor.map(|file| Kick::new(reactor, file)).transpose().map_err(|_| Refused::Descriptors)?;
            device.rings.with(|state| state.start(ring))?;
            device.rings.set_kick(ring, kick);
        } else {
            let signal = descriptor.map(|file| Signal::new(reactor, file)).transpose();
            device.rings.set_signal(event, ring, signal.map_err(|_| Refused::Descriptors)?);
        }
        Ok(())
    }

    fn config(&self, offset: usize, len: usize) -> Result<Answer, Refused> {
        let mut space = self.device.config_space().ok_or(Refused::Unsupported)?;
        space.resize(CONFIG_MAX, 0);
        // Both were checked against the length of a configuration space.
        let head = ConfigHead { offset: (offset as u32).into(), size: (len as u32).into(), flags: 0.into() };
        Ok(Answer::Reply([head.as_bytes(), &space[offset..offset + len]].concat(), None))
    }

    fn share_inflight(&self, queues: u16, size: u16) -> Result<Answer, Refused> {
        let len = VirtioDevice::inflight_len(queues, size);
        if len == 0 || len as u64 > INFLIGHT_MAX {
            return Err(Refused::Unsupported);
        }
        let (file, region) = share_within(&self.quota, "lunar-inflight", len).map_err(|why| {
            self.device.rings.log_fault(&format!("the record of its requests in progress cannot be made: {why}"));
            Refused::Unsupported
        })?;
        self.device.rings.with(|state| state.set_inflight(region, queues))?;
        self.device.note();
        let (offset, padding) = (0.into(), [0; 4]);
        let made =
            Inflight { size: (len as u64).into(), offset, queues: queues.into(), queue_size: size.into(), padding };
        Ok(Answer::Reply(made.as_bytes().to_vec(), Some(file)))
    }

    fn set_inflight(&self, given: &Inflight, descriptors: Vec<PeerFile>) -> Result<(), Refused> {
        let region = self.map(&only(descriptors)?, given.offset.get(), given.size.get())?;
        self.device.rings.with(|state| state.set_inflight(region, given.queues.get()))?;
        self.device.recall();
        Ok(())
    }
}

/// The descriptor of a message that comes with exactly one.
fn only(mut descriptors: Vec<PeerFile>) -> Result<PeerFile, Refused> {
    match descriptors.pop() {
        Some(descriptor) if descriptors.is_empty() => Ok(descriptor),
        _ => Err(Refused::Descriptors),
    }
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
