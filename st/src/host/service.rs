//! The thread of a host: calls and events.

use super::{ArrivedPut, Options, PUTS_MAX, Reply, StError};
use crate::engine::{FetchRequest, PutRequest, Ulp};
use crate::event::{Access, Event, Id, Refused, VcId, Wake};
use crate::path::Path;
use crate::port::{OpenedPort, Port};
use crate::wire::Reason;
use lunar_core::time::Instant;
use lunar_reactor::Reactor;
use lunar_reactor::channel::{Receiver, Sender, channel};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

/// The time for the last packets of a host that ends.
const FAREWELL: Duration = Duration::from_millis(200);
/// Connections of a port that wait to be accepted: further ones are closed.
const BACKLOG: usize = 64;

/// A call.
#[allow(missing_docs)]
pub(super) enum Command {
    Listen { port: u16, ulp: Ulp, options: Options, reply: Reply<()> },
    Accept { port: u16, reply: Reply<VcId> },
    Connect { paths: Vec<Path>, port: u16, ulp: Ulp, options: Options, reply: Reply<VcId> },
    Close { vc: VcId },
    Write { vc: VcId, bytes: Vec<u8>, reply: Reply<Vec<u8>> },
    Read { vc: VcId, room: Room, reply: Reply<Vec<u8>> },
    RequestRegion { vc: VcId, access: Access, len: u64, reply: Reply<Id> },
    GrantRegion { vc: VcId, access: Access, most: u64, reply: Reply<(Id, u64)> },
    Paths { vc: VcId, reply: Reply<Vec<(Path, bool)>> },
    Put { vc: VcId, region: Id, offset: u64, bytes: Vec<u8>, opaque: u32, reply: Reply<()> },
    Get { vc: VcId, region: Id, offset: u64, len: u32, reply: Reply<Vec<u8>> },
    Fetch { vc: VcId, request: FetchRequest, reply: Reply<u64> },
    ReadRegion { vc: VcId, region: Id, offset: u64, len: usize, reply: Reply<Vec<u8>> },
    WriteRegion { vc: VcId, region: Id, offset: u64, bytes: Vec<u8>, reply: Reply<()> },
    Poll { vc: VcId, region: Id, patience: Duration, reply: Reply<ArrivedPut> },
    Arm { vc: VcId, region: Id, wake: Wake, reply: Reply<()> },
    Stop,
}

/// The memory of a reader.
pub(super) enum Room {
    /// So many bytes at most, which are allocated when the length of the Transfer is known.
    Most(usize),
    /// This memory.
    Memory(Vec<u8>),
}

impl Room {
    /// The memory of a Transfer of this length; `None` if it is too long.
    fn memory(self, len: u64) -> Option<Vec<u8>> {
        let len = usize::try_from(len).ok()?;
        match self {
            Self::Most(most) => (len <= most).then(|| vec![0; len]),
            Self::Memory(mut memory) => {
                let fits = len <= memory.len();
                memory.truncate(len);
                fits.then_some(memory)
            }
        }
    }
}

/// The calls that wait for the end of a sequence.
enum Waiting {
    Unit(Reply<()>),
    Bytes(Reply<Vec<u8>>),
    Word(Reply<u64>),
    Region(Reply<Id>),
}

impl Waiting {
    fn fail(self, why: StError) {
        // A caller that is gone needs no answer.
        let _ = match self {
            Self::Unit(reply) => reply.send(Err(why)).is_ok(),
            Self::Bytes(reply) => reply.send(Err(why)).is_ok(),
            Self::Word(reply) => reply.send(Err(why)).is_ok(),
            Self::Region(reply) => reply.send(Err(why)).is_ok(),
        };
    }
}

/// A region of this host.
#[derive(Default)]
struct Granted {
    puts: VecDeque<ArrivedPut>,
    polls: VecDeque<(Instant, Reply<ArrivedPut>)>,
}

/// Regions that the program would grant: the rights, the most bytes, the caller.
type Grant = (Access, u64, Reply<(Id, u64)>);

/// A connection.
#[derive(Default)]
struct Connected {
    /// Readers that wait, and Transfers that wait for one.
    readers: VecDeque<(Room, Reply<Vec<u8>>)>,
    asked: VecDeque<(Id, u64)>,
    waiting: BTreeMap<Id, Waiting>,
    /// Writes that wait for room in the engine.
    writes: VecDeque<(Vec<u8>, Reply<Vec<u8>>)>,
    region_asks: VecDeque<(Id, u64)>,
    grants: VecDeque<Grant>,
    regions: BTreeMap<Id, Granted>,
}

#[derive(Default)]
struct State {
    connections: BTreeMap<VcId, Connected>,
    opening: BTreeMap<VcId, Reply<VcId>>,
    /// Connections that wait to be accepted, and callers that wait for one, by port.
    backlog: BTreeMap<u16, VecDeque<VcId>>,
    accepting: BTreeMap<u16, VecDeque<Reply<VcId>>>,
    /// Why connections have ended that their programs still hold.
    ended: BTreeMap<VcId, Reason>,
}

/// The thread of a host.
pub(super) struct Service {
    port: Rc<Port>,
    reactor: Reactor,
    state: Rc<RefCell<State>>,
    commands: Receiver<Command>,
}

type Attached = (Service, Sender<Command>, Vec<Option<SocketAddr>>);

fn answer<T>(reply: &Reply<T>, result: Result<T, StError>) {
    // A caller that is gone needs no answer.
    let _ = reply.send(result);
}

impl Service {
    pub(super) fn attach(reactor: &Reactor, links: Vec<OpenedPort>, secret: [u64; 2]) -> io::Result<Attached> {
        let state: Rc<RefCell<State>> = Rc::default();
        let of_events = state.clone();
        let on_event = Box::new(move |port: &Rc<Port>, event| of_events.borrow_mut().take(port, event));
        let count = links.len();
        let port = Port::attach(reactor, links, secret, on_event)?;
        let locals = (0..count).map(|link| port.local(link)).collect();
        let (sender, commands) = channel(reactor);
        Ok((Self { port, reactor: reactor.clone(), state, commands }, sender, locals))
    }

    /// Executes calls until the host ends.
    pub(super) async fn serve(mut self) {
        while let Some(command) = self.commands.recv().await {
            if let Command::Stop = command {
                break;
            }
            self.execute(command);
        }
        let all: Vec<VcId> = self.state.borrow().connections.keys().copied().collect();
        for vc in all {
            self.port.with(|engine, now| engine.close(vc, Reason::NONE, now));
        }
        self.port.flushed(FAREWELL).await;
        self.port.close();
    }

    fn execute(&self, command: Command) {
        let (port, state) = (&self.port, &mut *self.state.borrow_mut());
        match command {
            Command::Listen { port: number, ulp, options, reply } => {
                let settings = options.settings(port.mtu(0));
                let result = port.with(|engine, _| engine.listen(number, ulp, settings));
                answer(&reply, result.map_err(StError::Refused));
            }
            Command::Accept { port, reply } => match state.backlog.entry(port).or_default().pop_front() {
                Some(vc) => answer(&reply, Ok(vc)),
                None => state.accepting.entry(port).or_default().push_back(reply),
            },
            Command::Connect { paths, port: number, ulp, options, reply } => {
                let settings = options.settings(port.mtu(paths.first().map_or(0, |path| path.link.into())));
                match port.with(|engine, now| engine.connect(&paths, (number, ulp), settings, now)) {
                    Ok(vc) => drop(state.opening.insert(vc, reply)),
                    Err(why) => answer(&reply, Err(StError::Refused(why))),
                }
            }
            Command::Close { vc } => {
                port.with(|engine, now| engine.close(vc, Reason::NONE, now));
                state.forget(port, vc, Reason::ABORTED);
                state.ended.remove(&vc);
            }
            Command::Paths { vc, reply } => answer(&reply, Ok(port.with(|engine, _| engine.paths(vc)))),
            Command::Stop => {}
            command => state.on_connection(port, &self.reactor, command),
        }
    }
}

impl State {
    /// A call on a connection.
    fn on_connection(&mut self, port: &Rc<Port>, reactor: &Reactor, command: Command) {
        match command {
            Command::Write { vc, bytes, reply } => match self.connections.get_mut(&vc) {
                Some(connected) => {
                    connected.writes.push_back((bytes, reply));
                    connected.start_writes(port, vc);
                }
                None => answer(&reply, Err(self.lost(vc))),
            },
            Command::Read { vc, room, reply } => match self.connections.get_mut(&vc) {
                Some(connected) => {
                    connected.readers.push_back((room, reply));
                    connected.match_readers(port, vc);
                }
                None => answer(&reply, Err(self.lost(vc))),
            },
            Command::RequestRegion { vc, access, len, reply } => {
                let started = port.with(|engine, now| engine.request_region(vc, access, len, now));
                self.wait(vc, started, Waiting::Region(reply));
            }
            Command::GrantRegion { vc, access, most, reply } => match self.connections.get_mut(&vc) {
                Some(connected) => {
                    connected.grants.push_back((access, most, reply));
                    connected.match_grants(port, vc);
                }
                None => answer(&reply, Err(self.lost(vc))),
            },
            Command::Put { vc, region, offset, bytes, opaque, reply } => {
                let Ok(len) = u32::try_from(bytes.len()) else {
                    return answer(&reply, Err(StError::Refused(Refused::TooLong)));
                };
                let request = PutRequest { region, offset, len, opaque, is_solicited: true, interrupts: true };
                let started = port.start_with(vc, bytes, |engine, now| engine.put(vc, &request, now));
                self.wait(vc, started, Waiting::Unit(reply));
            }
            Command::Get { vc, region, offset, len, reply } => {
                let started =
                    port.start_with(vc, vec![0; len as usize], |engine, now| engine.get(vc, region, offset, len, now));
                self.wait(vc, started, Waiting::Bytes(reply));
            }
            Command::Fetch { vc, request, reply } => {
                let started = port.with(|engine, now| engine.fetch(vc, &request, now));
                self.wait(vc, started, Waiting::Word(reply));
            }
            command => self.on_region(port, reactor, command),
        }
    }

    /// A call on a region of this host.
    fn on_region(&mut self, port: &Rc<Port>, reactor: &Reactor, command: Command) {
        let range = |bytes: &mut [u8], offset: u64, len: usize| {
            let start = usize::try_from(offset).ok().filter(|start| *start <= bytes.len())?;
            start.checked_add(len).filter(|end| *end <= bytes.len()).map(|end| start..end)
        };
        let refused = || StError::Refused(Refused::Range);
        match command {
            Command::ReadRegion { vc, region, offset, len, reply } => {
                let read = port.with_bytes(vc, region, |bytes| {
                    range(bytes, offset, len).map(|range| bytes[range].to_vec()).ok_or_else(refused)
                });
                answer(&reply, read.unwrap_or(Err(StError::Refused(Refused::Unknown))));
            }
            Command::WriteRegion { vc, region, offset, bytes: from, reply } => {
                let written = port.with_bytes(vc, region, |bytes| {
                    let range = range(bytes, offset, from.len()).ok_or_else(refused)?;
                    bytes[range].copy_from_slice(&from);
                    Ok(())
                });
                answer(&reply, written.unwrap_or(Err(StError::Refused(Refused::Unknown))));
            }
            Command::Arm { vc, region, wake, reply } => {
                let armed = port.with(|engine, now| engine.arm(vc, region, wake, now));
                answer(&reply, armed.map_err(StError::Refused));
            }
            Command::Poll { vc, region, patience, reply } => {
                let granted = self.connections.get_mut(&vc).and_then(|known| known.regions.get_mut(&region));
                let Some(granted) = granted else {
                    return answer(&reply, Err(StError::Refused(Refused::Unknown)));
                };
                match granted.puts.pop_front() {
                    Some(put) => answer(&reply, Ok(put)),
                    None => {
                        let end = reactor.now() + patience;
                        let (clock, late) = (reactor.clone(), reply.clone());
                        granted.polls.push_back((end, reply));
                        reactor.spawn(async move {
                            clock.sleep_until(end).await;
                            // The caller takes the first answer.
                            answer(&late, Err(StError::Timeout));
                        });
                    }
                }
            }
            _ => {}
        }
    }

    /// Why there is no such connection.
    fn lost(&self, vc: VcId) -> StError {
        StError::Ended(self.ended.get(&vc).copied().unwrap_or(Reason::ABORTED))
    }

    /// A sequence has started, or not.
    fn wait(&mut self, vc: VcId, started: Result<Id, Refused>, waiting: Waiting) {
        match (started, self.connections.get_mut(&vc)) {
            (Ok(id), Some(connected)) => drop(connected.waiting.insert(id, waiting)),
            (Err(why), Some(_)) => waiting.fail(StError::Refused(why)),
            (_, None) => waiting.fail(self.lost(vc)),
        }
    }

    /// Whether a connection was not accepted yet.
    fn is_waiting(&self, vc: VcId) -> bool {
        self.backlog.values().flatten().any(|waiting| *waiting == vc)
    }

    /// A connection has ended.
    fn forget(&mut self, port: &Rc<Port>, vc: VcId, reason: Reason) {
        port.forget(vc);
        let why = || StError::Ended(reason);
        if let Some(reply) = self.opening.remove(&vc) {
            answer(&reply, Err(why()));
        }
        self.backlog.values_mut().for_each(|waiting| waiting.retain(|known| *known != vc));
        let Some(connected) = self.connections.remove(&vc) else { return };
        connected.waiting.into_values().for_each(|waiting| waiting.fail(why()));
        connected.readers.iter().for_each(|(_, reply)| answer(reply, Err(why())));
        connected.writes.iter().for_each(|(_, reply)| answer(reply, Err(why())));
        connected.grants.iter().for_each(|(.., reply)| answer(reply, Err(why())));
        let polls = connected.regions.values().flat_map(|region| &region.polls);
        polls.for_each(|(_, reply)| answer(reply, Err(why())));
    }

    fn take(&mut self, port: &Rc<Port>, event: Event) {
        match event {
            Event::Connected { vc } => {
                self.connections.insert(vc, Connected::default());
                self.opening.remove(&vc).iter().for_each(|reply| answer(reply, Ok(vc)));
            }
            Event::Accepted { vc, port: number, .. } => {
                let backlog = self.backlog.entry(number).or_default();
                match self.accepting.get_mut(&number).and_then(VecDeque::pop_front) {
                    Some(reply) => answer(&reply, Ok(vc)),
                    None if backlog.len() < BACKLOG => backlog.push_back(vc),
                    None => return port.with(|engine, now| engine.close(vc, Reason::NO_RESOURCES, now)),
                }
                self.connections.insert(vc, Connected::default());
            }
            Event::Closed { vc, reason } => {
                let is_held = self.connections.contains_key(&vc) && !self.is_waiting(vc);
                self.forget(port, vc, reason);
                if is_held {
                    self.ended.insert(vc, reason);
                }
            }
            Event::SendAsked { vc, .. }
            | Event::ReceiveAsked { vc, .. }
            | Event::Received { vc, .. }
            | Event::Done { vc, .. }
            | Event::Failed { vc, .. }
            | Event::RegionAsked { vc, .. }
            | Event::RegionGranted { vc, .. }
            | Event::RegionEnded { vc, .. }
            | Event::PutArrived { vc, .. }
            | Event::Fetched { vc, .. } => {
                if let Some(connected) = self.connections.get_mut(&vc) {
                    connected.take(port, vc, event);
                }
            }
        }
    }
}

impl Connected {
    fn take(&mut self, port: &Rc<Port>, vc: VcId, event: Event) {
        match event {
            Event::SendAsked { id, len, .. } => {
                self.asked.push_back((id, len));
                self.match_readers(port, vc);
            }
            Event::ReceiveAsked { id, .. } => {
                // Programs of this library write, and do not ask for writes. The sequence was asked for just now.
                let _ = port.with(|engine, now| engine.cancel(vc, id, Reason::UNEXPECTED, now));
            }
            Event::Received { id, len, .. } => {
                let mut bytes = port.take_bytes(vc, id);
                bytes.truncate(usize::try_from(len).unwrap_or(usize::MAX));
                if let Some(Waiting::Bytes(reply)) = self.waiting.remove(&id) {
                    answer(&reply, Ok(bytes));
                }
            }
            Event::Done { id, .. } => {
                let bytes = port.take_bytes(vc, id);
                match self.waiting.remove(&id) {
                    Some(Waiting::Unit(reply)) => answer(&reply, Ok(())),
                    Some(Waiting::Bytes(reply)) => answer(&reply, Ok(bytes)),
                    _ => {}
                }
                self.start_writes(port, vc);
            }
            Event::Failed { id, reason, .. } => {
                drop(port.take_bytes(vc, id));
                self.asked.retain(|(asked, _)| *asked != id);
                self.waiting.remove(&id).into_iter().for_each(|waiting| waiting.fail(StError::Ended(reason)));
                self.start_writes(port, vc);
            }
            Event::Fetched { id, old, .. } => {
                if let Some(Waiting::Word(reply)) = self.waiting.remove(&id) {
                    answer(&reply, Ok(old));
                }
            }
            Event::RegionAsked { id, len, .. } => {
                self.region_asks.push_back((id, len));
                self.match_grants(port, vc);
            }
            Event::RegionGranted { id, .. } => {
                if let Some(Waiting::Region(reply)) = self.waiting.remove(&id) {
                    answer(&reply, Ok(id));
                }
            }
            Event::RegionEnded { id, .. } => {
                drop(port.take_bytes(vc, id));
                let ended = self.regions.remove(&id);
                let polls = ended.iter().flat_map(|region| &region.polls);
                polls.for_each(|(_, reply)| answer(reply, Err(StError::Ended(Reason::ABORTED))));
            }
            Event::PutArrived { region, offset, len, opaque, .. } => {
                let Some(granted) = self.regions.get_mut(&region) else { return };
                let put = ArrivedPut { offset, len, opaque };
                let now = port.with(|_, now| now);
                while granted.polls.front().is_some_and(|(end, _)| *end <= now) {
                    granted.polls.pop_front();
                }
                match granted.polls.pop_front() {
                    Some((_, reply)) => answer(&reply, Ok(put)),
                    None if granted.puts.len() < PUTS_MAX => granted.puts.push_back(put),
                    None => {}
                }
            }
            Event::Connected { .. } | Event::Accepted { .. } | Event::Closed { .. } => {}
        }
    }

    /// Gives the memory of readers to Transfers, in order.
    fn match_readers(&mut self, port: &Rc<Port>, vc: VcId) {
        while let Some((id, len)) = self.asked.front().copied() {
            let Some((room, reply)) = self.readers.pop_front() else { return };
            self.asked.pop_front();
            let Some(memory) = room.memory(len) else {
                // The sequence waits for this decision.
                let _ = port.with(|engine, now| engine.cancel(vc, id, Reason::TOO_LONG, now));
                answer(&reply, Err(StError::TooLong(len)));
                continue;
            };
            port.give(vc, id, memory);
            self.waiting.insert(id, Waiting::Bytes(reply));
            if let Err(why) = port.with(|engine, now| engine.grant(vc, id, now)) {
                self.waiting.remove(&id).into_iter().for_each(|waiting| waiting.fail(StError::Refused(why)));
            }
        }
    }

    /// Starts writes, as far as there is room.
    fn start_writes(&mut self, port: &Rc<Port>, vc: VcId) {
        while let Some((bytes, reply)) = self.writes.pop_front() {
            let len = bytes.len() as u64;
            match port.with(|engine, now| engine.send(vc, len, now)) {
                Ok(id) => {
                    port.give(vc, id, bytes);
                    self.waiting.insert(id, Waiting::Bytes(reply));
                }
                // The end of another sequence makes room.
                Err(Refused::Busy) if !self.waiting.is_empty() => return self.writes.push_front((bytes, reply)),
                Err(why) => answer(&reply, Err(StError::Refused(why))),
            }
        }
    }

    fn match_grants(&mut self, port: &Rc<Port>, vc: VcId) {
        while let (Some((id, len)), Some((access, most, _))) = (self.region_asks.front().copied(), self.grants.front())
        {
            let (access, fits) = (*access, len <= *most);
            self.region_asks.pop_front();
            if !fits {
                // The sequence waits for this decision.
                let _ = port.with(|engine, now| engine.cancel(vc, id, Reason::NO_RESOURCES, now));
                continue;
            }
            let Some((.., reply)) = self.grants.pop_front() else { return };
            let Ok(bytes) = usize::try_from(len) else { return };
            port.give(vc, id, vec![0; bytes]);
            let granted = port.with(|engine, now| engine.grant_region(vc, id, (access, Wake::Every), now));
            if granted.is_ok() {
                self.regions.insert(id, Granted::default());
            }
            answer(&reply, granted.map(|()| (id, len)).map_err(StError::Refused));
        }
    }
}
