//! A connection of Scheduled Transfer: its login, its regions, and the Transfers of its commands.

use crate::exchange::{Broken, CommandId, Exchanges};
use crate::limits::RETRY_INTERVAL;
use crate::wire::fcp::ResponseBytes;
use crate::wire::{COMMAND_LEN, CommandBlock, RESPONSE_LEN};
use lunar_core::mem::{PeerMemory, Sg, SgMut};
use lunar_core::shares::{Member, Share};
use lunar_core::time::Instant;
use lunar_engine::link_ports::{Usage, View};
use lunar_reactor::Reactor;
use lunar_reactor::end::End;
use lunar_scsi::Nexus;
use lunar_st::port::Port;
use lunar_st::{Access, Chunk, Id, Peer, PutRequest, Reason, Refused, VcId, Wake};
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// The use of a sequence.
pub(super) enum Use {
    /// The Transfer with the login.
    Login,
    /// The Transfer with the answer; whether the connection ends then.
    Answer(bool),
    /// The Transfer with the data of a read, the share of its memory, and since when the data waits.
    Sending(#[expect(dead_code, reason = "dropping it gives it back")] Option<Share>, Instant),
    /// The Put of a response.
    Response,
    /// The region of the commands.
    Commands,
    /// The region of the responses, at the initiator.
    Responses,
}

/// How far a login is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// The login has not arrived.
    Login,
    /// It has arrived, and is decided about.
    Deciding,
    /// It was granted: the regions are made.
    Regions,
    /// Commands are executed.
    Up,
}

/// A response that waits to be sent.
struct Ready {
    response: ResponseBytes,
    data: Sg,
    share: Option<Share>,
    since: Instant,
}

/// The state of the Data-Out of a command.
#[derive(Default)]
struct DataOut {
    /// Memory for a Transfer for which the initiator has not asked yet.
    memory: Option<SgMut>,
    arrived: Option<Sg>,
    is_gone: bool,
    waker: Option<Waker>,
}

/// An initiator that is logged in.
pub(super) struct Session {
    pub(super) name: Arc<str>,
    /// Its group, and its LUN map.
    pub(super) view: View,
    /// The name of the section of its port.
    pub(super) section: Arc<str>,
    pub(super) nexus: Rc<Nexus>,
    /// Its shares of the memory of the core.
    pub(super) memory: PeerMemory,
    /// Its share of the slots, and the number of commands that wait for one.
    pub(super) slots: Member,
    pub(super) waiting: Cell<usize>,
    depth: u16,
    commands: Cell<Option<Id>>,
    responses: Cell<Option<Id>>,
    /// Places of commands that came before the initiator had granted its region.
    early: RefCell<Vec<u16>>,
    /// Its commands that have succeeded, and when the last one did.
    usage: Usage,
    exchanges: RefCell<Exchanges>,
    ready: RefCell<BTreeMap<CommandId, Ready>>,
    outs: RefCell<BTreeMap<CommandId, DataOut>>,
}

impl Session {
    pub(super) fn new(
        (name, view, section): (Arc<str>, View, Arc<str>),
        nexus: Rc<Nexus>,
        (memory, slots): (PeerMemory, Member),
        (depth, now): (u16, Instant),
    ) -> Self {
        Self {
            name,
            view,
            section,
            nexus,
            memory,
            slots,
            waiting: Cell::new(0),
            depth,
            commands: Cell::default(),
            responses: Cell::default(),
            early: RefCell::default(),
            usage: Usage::new(now),
            exchanges: RefCell::new(Exchanges::new(depth)),
            ready: RefCell::default(),
            outs: RefCell::default(),
        }
    }

    /// A command of it has succeeded.
    pub(super) fn succeed(&self, now: Instant) {
        self.usage.succeed();
        self.usage.see(now);
    }

    /// Its order among the sessions that may end for another one. `None`: it has commands in progress.
    pub(super) fn eviction_order(&self) -> Option<(u32, Instant)> {
        self.exchanges.borrow().is_empty().then(|| self.usage.eviction_order())
    }
}

/// A connection.
pub(super) struct Connection {
    pub(super) vc: VcId,
    pub(super) peer: Peer,
    /// When it was accepted.
    pub(super) since: Instant,
    port: Rc<Port>,
    reactor: Reactor,
    pub(super) step: Cell<Step>,
    uses: RefCell<BTreeMap<Id, Use>>,
    session: OnceCell<Session>,
    closed: End,
    /// A task tries again to send what was refused.
    retries: Cell<bool>,
    /// A task looks whether its data is taken.
    pub(super) is_watched: Cell<bool>,
}

impl Connection {
    pub(super) fn new(reactor: &Reactor, port: &Rc<Port>, vc: VcId, peer: Peer) -> Rc<Self> {
        Rc::new(Self {
            vc,
            peer,
            since: reactor.now(),
            port: port.clone(),
            reactor: reactor.clone(),
            step: Cell::new(Step::Login),
            uses: RefCell::default(),
            session: OnceCell::new(),
            closed: End::default(),
            retries: Cell::new(false),
            is_watched: Cell::new(false),
        })
    }

    pub(super) fn session(&self) -> Option<&Session> {
        self.session.get()
    }

    /// A command has succeeded.
    pub(super) fn succeed(&self) {
        self.session().into_iter().for_each(|session| session.succeed(self.reactor.now()));
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.has_come()
    }

    /// Waits for this time; false: the connection has ended before. The tasks of connections end with them, so that
    /// stations without end leave nothing behind.
    pub(super) async fn is_open_after(&self, time: Duration) -> bool {
        self.closed.unless(self.reactor.sleep(time)).await.is_some()
    }

    /// The connection has ended: its memory is freed, and its commands get no data any more.
    pub(super) fn shut(&self) {
        self.closed.come();
        self.uses.take();
        self.port.forget(self.vc);
        let Some(session) = self.session() else { return };
        session.ready.take();
        for out in session.outs.borrow_mut().values_mut() {
            (out.is_gone, out.memory, out.arrived) = (true, None, None);
            out.waker.take().into_iter().for_each(Waker::wake);
        }
    }

    /// Since when data and responses wait that the initiator has not taken: the oldest of them.
    pub(super) fn waiting_since(&self) -> Option<Instant> {
        let ready = self.session()?.ready.borrow().values().map(|ready| ready.since).min();
        let uses = self.uses.borrow();
        let sending =
            uses.values().filter_map(|usage| if let Use::Sending(_, since) = usage { Some(*since) } else { None });
        ready.into_iter().chain(sending).min()
    }

    /// Closes the connection.
    pub(super) fn close(&self, reason: Reason) {
        self.port.with(|engine, now| engine.close(self.vc, reason, now));
    }

    /// A sequence of the connection is used so from now on.
    pub(super) fn note(&self, id: Id, usage: Use) {
        self.uses.borrow_mut().insert(id, usage);
    }

    pub(super) fn end_use(&self, id: Id) -> Option<Use> {
        self.uses.borrow_mut().remove(&id)
    }

    /// Ends a sequence, and frees its memory.
    fn cancel(&self, id: Id) {
        // One that has ended meanwhile needs no end.
        let _ = self.port.with(|engine, now| engine.cancel(self.vc, id, Reason::ABORTED, now));
        self.port.take(self.vc, id);
    }

    /// Takes the login: there is memory for it.
    pub(super) fn take_login(&self, id: Id, len: usize) -> Result<(), Refused> {
        self.step.set(Step::Deciding);
        self.port.give(self.vc, id, vec![0; len]);
        self.note(id, Use::Login);
        self.port.with(|engine, now| engine.grant(self.vc, id, now)).map(drop)
    }

    /// The bytes of the login, which have arrived.
    pub(super) fn login_bytes(&self, id: Id) -> Vec<u8> {
        self.port.take_bytes(self.vc, id)
    }

    /// Answers the login; a refused connection ends when its peer has the answer.
    pub(super) fn answer(&self, bytes: &[u8], is_refused: bool) {
        let len = bytes.len() as u64;
        match self.port.start_with(self.vc, bytes.to_vec(), |engine, now| engine.send(self.vc, len, now)) {
            Ok(id) => self.note(id, Use::Answer(is_refused)),
            Err(_) => self.close(Reason::NO_RESOURCES),
        }
    }

    /// The login was granted.
    pub(super) fn begin(&self, session: Session) {
        // A connection logs in once: its step says so.
        let _ = self.session.set(session);
        self.step.set(Step::Regions);
    }

    /// The initiator asks for the region of its commands. The region of the responses is asked for in turn.
    pub(super) fn grant_region(&self, id: Id, access: Access, len: u64) -> Result<(), Refused> {
        let session = self.session().filter(|session| session.commands.get().is_none()).ok_or(Refused::Access)?;
        let depth = u64::from(session.depth);
        if self.step.get() != Step::Regions || !access.put || len != depth * COMMAND_LEN as u64 {
            return Err(Refused::Range);
        }
        session.commands.set(Some(id));
        self.port.give(self.vc, id, vec![0; len as usize]);
        self.note(id, Use::Commands);
        let access = Access { put: true, ..Access::default() };
        self.port.with(|engine, now| {
            engine.grant_region(self.vc, id, (access, Wake::Every), now)?;
            let id = engine.request_region(self.vc, access, depth * RESPONSE_LEN as u64, now)?;
            self.note(id, Use::Responses);
            Ok(())
        })
    }

    /// The initiator has granted the region of the responses; returns the places of commands that came before.
    pub(super) fn region_granted(&self, id: Id, access: Access, len: u64) -> Option<Vec<u16>> {
        let session = self.session()?;
        let is_right = access.put && len >= u64::from(session.depth) * RESPONSE_LEN as u64;
        if self.step.get() != Step::Regions || !is_right {
            return None;
        }
        session.responses.set(Some(id));
        self.step.set(Step::Up);
        Some(session.early.take())
    }

    /// The place of a command that has arrived, if it may be executed now.
    ///
    /// # Errors
    /// When it is not in a place of the region.
    pub(super) fn arrived(&self, region: Id, offset: u64, len: u32) -> Result<Option<u16>, Broken> {
        let session = self.session().filter(|session| session.commands.get() == Some(region)).ok_or(Broken::Slot)?;
        let unit = COMMAND_LEN as u64;
        if u64::from(len) != unit || !offset.is_multiple_of(unit) || offset / unit >= session.depth.into() {
            return Err(Broken::Slot);
        }
        let slot = (offset / unit) as u16;
        if self.step.get() == Step::Up {
            return Ok(Some(slot));
        }
        let mut early = session.early.borrow_mut();
        if early.contains(&slot) {
            return Err(Broken::Slot);
        }
        early.push(slot);
        Ok(None)
    }

    /// The command in a place.
    pub(super) fn command_bytes(&self, slot: u16) -> [u8; COMMAND_LEN] {
        let mut bytes = [0; COMMAND_LEN];
        let at = usize::from(slot) * COMMAND_LEN;
        let region = self.session().and_then(|session| session.commands.get());
        region
            .and_then(|id| self.port.with_bytes(self.vc, id, |all| bytes.copy_from_slice(&all[at..at + COMMAND_LEN])));
        bytes
    }

    /// Begins a command.
    pub(super) fn begin_command(&self, slot: u16, block: &CommandBlock<'_>) -> Result<CommandId, Broken> {
        self.session().ok_or(Broken::Slot)?.exchanges.borrow_mut().begin(slot, block)
    }

    /// The command with a tag.
    pub(super) fn tagged(&self, tag: u32) -> Option<CommandId> {
        self.session()?.exchanges.borrow().tagged(tag)
    }

    /// The initiator wants to send the data of a command.
    pub(super) fn send_asked(&self, peer_id: u16, id: Id, len: u64) -> Result<(), Broken> {
        let session = self.session().ok_or(Broken::Transfer)?;
        let place = session.exchanges.borrow_mut().send_asked(peer_id, id, len)?;
        let Some(place) = place else { return Ok(()) };
        let memory = session.outs.borrow_mut().get_mut(&place).and_then(|out| out.memory.take());
        memory.into_iter().for_each(|memory| self.grant(id, memory));
        Ok(())
    }

    fn grant(&self, id: Id, memory: SgMut) {
        self.port.give(self.vc, id, Chunk::Room(memory));
        if self.port.with(|engine, now| engine.grant(self.vc, id, now)).is_err() {
            // It has ended meanwhile: its event follows.
            self.port.take(self.vc, id);
        }
    }

    /// The initiator wants to receive the data of a command.
    pub(super) fn receive_asked(self: &Rc<Self>, peer_id: u16, id: Id, len: u64) -> Result<(), Broken> {
        let session = self.session().ok_or(Broken::Transfer)?;
        session.exchanges.borrow_mut().receive_asked(peer_id, id, len)?;
        self.flush();
        Ok(())
    }

    /// All bytes of a Transfer have arrived.
    pub(super) fn received(&self, id: Id) {
        let memory = self.port.take(self.vc, id);
        let Some(session) = self.session() else { return };
        let place = session.exchanges.borrow_mut().forget(id);
        let mut outs = session.outs.borrow_mut();
        if let (Some(Chunk::Room(memory)), Some(out)) = (memory, place.and_then(|place| outs.get_mut(&place))) {
            out.arrived = Some(memory.share());
            out.waker.take().into_iter().for_each(Waker::wake);
        }
    }

    /// A Transfer has failed, or the initiator has ended it: its command is aborted. Returns the command.
    pub(super) fn failed(&self, id: Id) -> Option<CommandId> {
        self.port.take(self.vc, id);
        let session = self.session()?;
        let place = session.exchanges.borrow_mut().forget(id)?;
        if let Some(out) = session.outs.borrow_mut().get_mut(&place) {
            (out.is_gone, out.memory) = (true, None);
            out.waker.take().into_iter().for_each(Waker::wake);
        }
        Some(place)
    }

    /// The peer has all bytes of a sequence.
    pub(super) fn done(&self, id: Id) -> Option<Use> {
        self.port.take(self.vc, id);
        self.end_use(id)
    }

    /// Gives memory to the Data-Out of a command. Returns false when its Transfer has ended.
    pub(super) fn request(&self, place: CommandId, memory: SgMut) -> bool {
        let Some(session) = self.session().filter(|_| !self.is_closed()) else { return false };
        let asked = session.exchanges.borrow().transfer(place);
        let Some(asked) = asked else { return false };
        let mut outs = session.outs.borrow_mut();
        let out = outs.entry(place).or_default();
        match asked {
            Some(id) => self.grant(id, memory),
            None => out.memory = Some(memory),
        }
        true
    }

    /// The Data-Out of a command, once it has arrived; `None`: its Transfer has ended.
    pub(super) fn poll_data(&self, place: CommandId, cx: &mut Context<'_>) -> Poll<Option<Sg>> {
        let Some(session) = self.session() else { return Poll::Ready(None) };
        let mut outs = session.outs.borrow_mut();
        let Some(out) = outs.get_mut(&place) else { return Poll::Ready(None) };
        if let Some(data) = out.arrived.take() {
            return Poll::Ready(Some(data));
        }
        if out.is_gone {
            return Poll::Ready(None);
        }
        out.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Ends a command with a response and the data of a read.
    pub(super) fn respond(
        self: &Rc<Self>,
        place: CommandId,
        response: ResponseBytes,
        (data, share): (Sg, Option<Share>),
    ) {
        let Some(session) = self.session().filter(|_| !self.is_closed()) else { return };
        session.outs.borrow_mut().remove(&place);
        session.ready.borrow_mut().insert(place, Ready { response, data, share, since: self.reactor.now() });
        self.flush();
    }

    /// Ends a command without a response.
    pub(super) fn release(&self, place: CommandId) {
        let Some(session) = self.session() else { return };
        session.outs.borrow_mut().remove(&place);
        let ended = session.exchanges.borrow_mut().end(place);
        let transfer = ended.and_then(|ended| ended.transfer).filter(|_| !self.is_closed());
        transfer.into_iter().for_each(|id| self.cancel(id));
    }

    /// Sends the responses that are ready, as far as the engine has room for them.
    pub(super) fn flush(self: &Rc<Self>) {
        let Some(session) = self.session().filter(|_| !self.is_closed()) else { return };
        let places: Vec<CommandId> = session.ready.borrow().keys().copied().collect();
        let refused = places.into_iter().filter(|place| self.send(session, *place).is_err()).count();
        if refused == 0 || self.retries.replace(true) {
            return;
        }
        let connection = self.clone();
        self.reactor.spawn(async move {
            connection.reactor.sleep(RETRY_INTERVAL).await;
            connection.retries.set(false);
            connection.flush();
        });
    }

    /// Sends the data of a command, then its response.
    fn send(&self, session: &Session, place: CommandId) -> Result<(), Refused> {
        let mut ready = session.ready.borrow_mut();
        let tag = session.exchanges.borrow().tag(place);
        let (Some(waiting), Some(tag)) = (ready.get_mut(&place), tag) else {
            ready.remove(&place);
            return Ok(());
        };
        if session.exchanges.borrow().is_read(place) {
            let asked = session.exchanges.borrow().transfer(place);
            match asked {
                // The initiator asks for it soon: its request follows.
                Some(None) => return Ok(()),
                Some(Some(id)) => {
                    let len = waiting.data.len() as u64;
                    match self.port.with(|engine, now| engine.send_asked(self.vc, id, len, now)) {
                        Ok(()) => {
                            self.port.give(self.vc, id, Chunk::Data(std::mem::take(&mut waiting.data)));
                            self.note(id, Use::Sending(waiting.share.take(), waiting.since));
                        }
                        Err(Refused::Busy) => return Err(Refused::Busy),
                        // It has ended meanwhile: its event follows.
                        Err(_) => {}
                    }
                    session.exchanges.borrow_mut().forget(id);
                }
                None => {}
            }
        }
        let Some(region) = session.responses.get() else { return Ok(()) };
        let (offset, len) = (u64::from(place.slot) * RESPONSE_LEN as u64, waiting.response.len() as u32);
        let put = PutRequest { region, offset, len, opaque: tag, is_solicited: true, interrupts: true };
        let bytes = waiting.response.to_vec();
        match self.port.start_with(self.vc, bytes, |engine, now| engine.put(self.vc, &put, now)) {
            Ok(id) => self.note(id, Use::Response),
            Err(Refused::Busy) => return Err(Refused::Busy),
            // The region or the connection has ended: so does this command.
            Err(_) => {}
        }
        ready.remove(&place);
        drop(ready);
        self.release(place);
        Ok(())
    }
}
