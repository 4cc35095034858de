//! The connection to a target, its login, and SCSI commands. A connection that is lost is opened again, and the
//! commands that were not answered are sent again: the target has aborted them before it admits the initiator again.

use crate::carrier::{Carrier, Direct};
use crate::memory::Bytes;
use lunar_core::time::Instant;
use lunar_sst::wire::{
    ANSWER_LEN, COMMAND_LEN, CommandBlock, DATA_MAX, Login, LoginAnswer, LoginStatus, PORT, RESPONSE_LEN, fcp, flags,
    name_hash,
};
use lunar_st::limits::SLOTS_MAX;
use lunar_st::{Access, Event, Id, Path, PutRequest, Reason, Refused, Settings, Ulp, VcId, Wake};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

/// The pause before a connection that was lost or refused is opened again.
const PAUSE: Duration = Duration::from_millis(200);
/// The time after which a command without a response is aborted, and sent again: another initiator may have had it
/// aborted, and then it has none.
const PATIENCE: Duration = Duration::from_secs(20);
/// The status of a read whose data is not whole.
pub const STATUS_BROKEN: u8 = 0xff;

/// The settings of an initiator.
#[derive(Clone, Debug)]
pub struct InitiatorConfig {
    /// Its name: that of an iSCSI initiator.
    pub name: String,
    /// The name of the target; empty: that of the port.
    pub target: String,
    /// The links, and the address of the target on each: the first one connects, and all of them carry data.
    pub paths: Vec<Path>,
    /// The largest packet that all links carry.
    pub mtu: usize,
    /// Commands in progress.
    pub depth: u16,
    /// The time after which a target without an answer is given up.
    pub timeout: Duration,
    /// The time after which a command fails that could not be executed; `None`: it is sent again without end.
    pub command_timeout: Option<Duration>,
    /// Random bits, for Keys that others do not guess.
    pub secret: [u64; 2],
}

/// A command.
#[derive(Clone, Debug)]
pub struct Command {
    /// The LUN.
    pub lun: [u8; 8],
    /// The CDB.
    pub cdb: [u8; 16],
    /// The task management flags of FCP_CMND, instead of a CDB; 0: none.
    pub task: u8,
    /// Bytes to receive.
    pub data_in: u32,
    /// Bytes to send.
    pub data_out: Option<Rc<[u8]>>,
}

/// An event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum InitiatorEvent {
    /// It has logged in: for the first time, or again.
    Ready,
    /// A command has ended: its number, its status, its sense data or response information, and its data.
    Done(u32, u8, Vec<u8>, Vec<u8>),
    /// A command was not executed in time. The target does not execute it before a command that starts later.
    TimedOut(u32),
    /// The connection was lost: commands without a response wait for the next one.
    Down,
    /// The target refuses the login. It is tried again.
    Refused(LoginStatus),
    /// The target has not answered for the whole timeout.
    Lost,
}

/// A command in its place.
#[derive(Debug)]
struct Running {
    cookie: u32,
    command: Command,
    tag: u32,
    since: Instant,
    /// When it started for the first time.
    begun: Instant,
    is_probe: bool,
    transfer: Option<Id>,
    /// The data of a read has come, or will not come.
    is_moved: bool,
    data: Vec<u8>,
    /// Status, sense data, underrun.
    response: Option<(u8, Vec<u8>, i64)>,
    /// The tag of the command that this one aborts.
    aborts: Option<u32>,
}

impl Running {
    fn into_waiting(self) -> Waiting {
        Waiting { cookie: self.cookie, command: self.command, begun: self.begun, is_probe: self.is_probe }
    }
}

/// How far the login is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// There is no connection until this time.
    Down(Instant),
    Opening,
    LoggingIn,
    Regions,
    Up,
}

/// A command that waits for a place.
#[derive(Debug)]
struct Waiting {
    cookie: u32,
    command: Command,
    /// When it started for the first time.
    begun: Instant,
    /// It is sent although others are held.
    is_probe: bool,
}

/// An initiator.
#[derive(Debug)]
pub struct Initiator<C = Direct> {
    config: InitiatorConfig,
    carrier: C,
    now: Instant,
    step: Step,
    vc: Option<VcId>,
    /// The region of the commands at the target, and that of the responses here.
    commands: Option<Id>,
    responses: Option<Id>,
    depth: u16,
    data_max: u32,
    places: Vec<Option<Running>>,
    waiting: VecDeque<Waiting>,
    /// Commands that are sent although others are held.
    probes: VecDeque<Waiting>,
    /// Commands are held after each login, and now.
    holds: bool,
    is_held: bool,
    last_tag: u32,
    /// When the target was heard last.
    heard: Instant,
    events: VecDeque<InitiatorEvent>,
}

impl Initiator {
    /// An initiator that connects at once.
    #[must_use]
    pub fn new(config: InitiatorConfig, now: Instant) -> Self {
        let carrier = Direct::new(config.secret);
        Self::over(config, carrier, now)
    }

    /// The next packet to send.
    pub fn next_packet(&mut self) -> Option<(Path, Vec<u8>)> {
        self.carrier.next_packet(self.now)
    }

    /// Takes a packet.
    pub fn receive(&mut self, path: Path, bytes: &[u8], now: Instant) {
        self.now = now;
        self.carrier.receive(path, bytes, now);
        self.follow_all();
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Instant) {
        self.look(now);
        self.carrier.expire(now);
        self.follow_all();
    }

    /// The longest packet of data, once there is a connection.
    #[must_use]
    pub fn stu(&self) -> Option<usize> {
        self.carrier.stu(self.vc?)
    }

    fn follow_all(&mut self) {
        while let Some(event) = self.carrier.next_event() {
            self.follow(event);
        }
        self.start_waiting();
    }
}

impl<C: Carrier> Initiator<C> {
    /// An initiator over this carrier, whose program passes the events of the engine on.
    #[must_use]
    pub fn over(config: InitiatorConfig, carrier: C, now: Instant) -> Self {
        Self {
            config,
            carrier,
            now,
            step: Step::Down(now),
            vc: None,
            commands: None,
            responses: None,
            depth: 0,
            data_max: 0,
            places: Vec::new(),
            waiting: VecDeque::new(),
            probes: VecDeque::new(),
            holds: false,
            is_held: false,
            last_tag: 0,
            heard: now,
            events: VecDeque::new(),
        }
    }

    /// Connects over other links from now on, the largest packet of which is `mtu`. Returns the carrier before.
    pub fn replace(&mut self, carrier: C, (paths, mtu): (Vec<Path>, usize), now: Instant) -> C {
        self.close(now);
        self.step = Step::Down(now);
        (self.config.paths, self.config.mtu) = (paths, mtu);
        std::mem::replace(&mut self.carrier, carrier)
    }

    /// Ends the connection, which is opened again.
    pub fn close(&mut self, now: Instant) {
        self.now = now;
        self.lose();
    }

    /// The carrier.
    #[must_use]
    pub fn carrier(&self) -> &C {
        &self.carrier
    }

    /// Whether it is logged in.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.step == Step::Up
    }

    /// Whether the target has accepted the connection.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        !matches!(self.step, Step::Down(_) | Step::Opening)
    }

    /// The most bytes of data of a command, once it has logged in.
    #[must_use]
    pub fn data_max(&self) -> u32 {
        self.data_max
    }

    /// Sets the time after which a command fails that could not be executed.
    pub fn set_command_timeout(&mut self, timeout: Option<Duration>) {
        self.config.command_timeout = timeout;
    }

    /// Holds commands now and after each login, except those of [`Initiator::probe`]: the logical unit may be another
    /// one.
    pub fn hold(&mut self) {
        (self.holds, self.is_held) = (true, true);
    }

    /// Sends the commands that were held.
    pub fn release(&mut self, now: Instant) {
        (self.is_held, self.now) = (false, now);
        self.start_waiting();
    }

    /// Starts a command that is not held. It ends without an event when the connection is lost.
    pub fn probe(&mut self, cookie: u32, command: Command, now: Instant) {
        self.now = now;
        self.probes.push_back(Waiting { cookie, command, begun: now, is_probe: true });
        self.start_waiting();
    }

    /// Commands that have started and not ended.
    #[must_use]
    pub fn in_progress(&self) -> usize {
        self.probes.len() + self.waiting.len() + self.places.iter().flatten().count()
    }

    /// Starts a command. Its number is not that of another one in progress.
    pub fn start(&mut self, cookie: u32, command: Command, now: Instant) {
        self.start_again(cookie, command, now, now);
    }

    /// Starts a command that has started at `begun` for the first time.
    pub fn start_again(&mut self, cookie: u32, command: Command, begun: Instant, now: Instant) {
        self.now = now;
        if self.in_progress() == 0 {
            // The target owes nothing while nothing is asked.
            self.heard = self.heard.max(now);
        }
        self.waiting.push_back(Waiting { cookie, command, begun, is_probe: false });
        self.start_waiting();
    }

    /// Connects, and looks at commands that take too long.
    pub fn look(&mut self, now: Instant) {
        self.now = now;
        match self.step {
            Step::Down(until) if now >= until => self.connect(),
            Step::Up => {
                self.abort_silent();
                self.start_waiting();
            }
            _ => {}
        }
        self.give_up();
        if now.since(self.heard) >= self.config.timeout && self.step != Step::Up {
            self.heard = now;
            self.events.push_back(InitiatorEvent::Lost);
        }
    }

    /// Ends the commands that wait for too long. The target may still have one of a lost connection; it ends it before
    /// it admits this initiator again, and so before any later command.
    fn give_up(&mut self) {
        let (Some(patience), now) = (self.config.command_timeout, self.now) else { return };
        let is_late = |waiting: &Waiting| now.since(waiting.begun) >= patience;
        if self.waiting.iter().any(is_late) {
            let all = std::mem::take(&mut self.waiting);
            let (late, left): (VecDeque<Waiting>, _) = all.into_iter().partition(is_late);
            self.waiting = left;
            self.events.extend(late.into_iter().map(|waiting| InitiatorEvent::TimedOut(waiting.cookie)));
        }
    }

    /// The next event.
    pub fn next_event(&mut self) -> Option<InitiatorEvent> {
        self.events.pop_front()
    }

    fn connect(&mut self) {
        // Blocks of 64 STUs fit into the data of a command.
        let settings = Settings { slots: SLOTS_MAX, ..Settings::default() }.for_mtu(self.config.mtu);
        let (paths, now) = (&self.config.paths, self.now);
        match self.carrier.with(|engine| engine.connect(paths, (PORT, Ulp::SCSI), settings, now)) {
            Ok(vc) => {
                self.vc = Some(vc);
                self.step = Step::Opening;
            }
            Err(_) => self.step = Step::Down(self.now + PAUSE),
        }
    }

    /// The connection has ended: its commands wait for the next one.
    fn lose(&mut self) {
        let now = self.now;
        if let Some(vc) = self.vc.take() {
            self.carrier.with(|engine| engine.close(vc, Reason::ABORTED, now));
            self.carrier.forget(vc);
        }
        self.step = Step::Down(now + PAUSE);
        (self.commands, self.responses) = (None, None);
        let mut running: Vec<Running> = std::mem::take(&mut self.places).into_iter().flatten().collect();
        running.sort_by_key(|running| running.tag);
        running.retain(|running| running.aborts.is_none() && !running.is_probe);
        self.probes.clear();
        self.is_held = self.holds;
        running.into_iter().rev().for_each(|running| self.waiting.push_front(running.into_waiting()));
        self.events.push_back(InitiatorEvent::Down);
    }

    /// Takes an event of the engine.
    pub fn take(&mut self, event: Event, now: Instant) {
        self.now = now;
        self.follow(event);
        self.start_waiting();
    }

    fn follow(&mut self, event: Event) {
        let followed = match event {
            Event::Closed { vc, .. } if self.vc == Some(vc) => Err(Refused::Unknown),
            Event::Connected { vc } if self.vc == Some(vc) => self.log_in(vc),
            Event::SendAsked { vc, id, len, .. } if self.vc == Some(vc) => self.take_answer(vc, id, len),
            Event::Received { vc, id, len } if self.vc == Some(vc) => self.received(vc, id, len),
            Event::Done { vc, id } if self.vc == Some(vc) => {
                self.carrier.take(vc, id);
                self.moved(id, None);
                Ok(())
            }
            Event::Failed { vc, id, .. } if self.vc == Some(vc) => self.failed(vc, id),
            Event::RegionAsked { vc, id, access, len } if self.vc == Some(vc) => self.grant(vc, id, access, len),
            Event::RegionGranted { vc, id, access, .. } if self.vc == Some(vc) => match access.put {
                true => {
                    self.commands = Some(id);
                    self.come_up();
                    Ok(())
                }
                false => Err(Refused::Access),
            },
            Event::RegionEnded { vc, .. } if self.vc == Some(vc) => Err(Refused::Unknown),
            Event::PutArrived { vc, region, offset, len, opaque } if self.vc == Some(vc) => {
                self.responded((vc, region), (offset, len), opaque)
            }
            _ => Ok(()),
        };
        if followed.is_err() {
            self.lose();
        }
    }

    fn log_in(&mut self, vc: VcId) -> Result<(), Refused> {
        self.step = Step::LoggingIn;
        let InitiatorConfig { name, target, depth, .. } = &self.config;
        let login = Login { depth: *depth, initiator: name, target }.bytes();
        let (len, now) = (login.len() as u64, self.now);
        let id = self.carrier.with(|engine| engine.send(vc, len, now))?;
        self.carrier.give(vc, id, Bytes::Own(login));
        Ok(())
    }

    fn take_answer(&mut self, vc: VcId, id: Id, len: u64) -> Result<(), Refused> {
        if self.step != Step::LoggingIn || len != ANSWER_LEN as u64 {
            return Err(Refused::Range);
        }
        self.carrier.give(vc, id, Bytes::Own(vec![0; ANSWER_LEN]));
        let now = self.now;
        self.carrier.with(|engine| engine.grant(vc, id, now)).map(drop)
    }

    fn received(&mut self, vc: VcId, id: Id, len: u64) -> Result<(), Refused> {
        let mut bytes = self.carrier.take(vc, id).ok_or(Refused::Unknown)?;
        // The target may send fewer bytes than were asked for.
        bytes.truncate(usize::try_from(len).unwrap_or(usize::MAX));
        if self.step != Step::LoggingIn {
            self.moved(id, Some(bytes));
            return Ok(());
        }
        let answer = LoginAnswer::parse(&bytes).ok_or(Refused::Range)?;
        if answer.status() != LoginStatus::GOOD {
            self.events.push_back(InitiatorEvent::Refused(answer.status()));
            return Err(Refused::Access);
        }
        self.depth = answer.depth().min(self.config.depth);
        self.data_max = answer.data_max().min(DATA_MAX);
        if self.depth == 0 || self.data_max == 0 {
            return Err(Refused::Range);
        }
        self.step = Step::Regions;
        let (access, len) = (Access { put: true, ..Access::default() }, usize::from(self.depth) * COMMAND_LEN);
        let now = self.now;
        self.carrier.with(|engine| engine.request_region(vc, access, len as u64, now)).map(drop)
    }

    fn grant(&mut self, vc: VcId, id: Id, access: Access, len: u64) -> Result<(), Refused> {
        let own = usize::from(self.depth) * RESPONSE_LEN;
        if self.step != Step::Regions || self.responses.is_some() || !access.put || len != own as u64 {
            return Err(Refused::Range);
        }
        self.carrier.give(vc, id, Bytes::Own(vec![0; own]));
        self.responses = Some(id);
        let (access, now) = (Access { put: true, ..Access::default() }, self.now);
        self.carrier.with(|engine| engine.grant_region(vc, id, (access, Wake::Every), now))?;
        self.come_up();
        Ok(())
    }

    fn come_up(&mut self) {
        if self.step == Step::Regions && self.commands.is_some() && self.responses.is_some() {
            self.step = Step::Up;
            self.heard = self.now;
            self.places = (0..self.depth).map(|_| None).collect();
            self.events.push_back(InitiatorEvent::Ready);
        }
    }

    /// Starts commands, as far as there are places.
    fn start_waiting(&mut self) {
        while self.step == Step::Up
            && let Some(slot) = self.places.iter().position(Option::is_none)
            && let Some(waiting) = self.next_waiting()
        {
            let flags = flags_of(&waiting.command);
            if self.put(slot, &waiting, flags, None).is_err() {
                // The end of another sequence makes room.
                return self.wait_first(waiting);
            }
        }
    }

    fn next_waiting(&mut self) -> Option<Waiting> {
        let probe = self.probes.pop_front();
        probe.or_else(|| if self.is_held { None } else { self.waiting.pop_front() })
    }

    /// Makes a command the next one.
    fn wait_first(&mut self, waiting: Waiting) {
        let queue = if waiting.is_probe { &mut self.probes } else { &mut self.waiting };
        queue.push_front(waiting);
    }

    /// Puts a command into a place.
    fn put(&mut self, slot: usize, waiting: &Waiting, flags: u16, aborts: Option<u32>) -> Result<(), Refused> {
        let Waiting { cookie, command, begun, is_probe } = waiting;
        let now = self.now;
        let (vc, region) = self.vc.zip(self.commands).ok_or(Refused::Unknown)?;
        let data_out = command.data_out.as_ref().map_or(0, |data| data.len());
        let transfer = match &command.data_out {
            Some(data) if data_out > 0 => {
                let id = self.carrier.with(|engine| engine.send(vc, data_out as u64, now))?;
                self.carrier.give(vc, id, Bytes::Shared(data.clone()));
                Some(id)
            }
            _ if command.data_in > 0 => {
                let id = self.carrier.with(|engine| engine.request(vc, command.data_in.into(), now))?;
                self.carrier.give(vc, id, Bytes::Own(vec![0; command.data_in as usize]));
                Some(id)
            }
            _ => None,
        };
        self.last_tag = self.last_tag.wrapping_add(1);
        let tag = self.last_tag;
        let fcp = fcp::Command {
            lun: command.lun,
            attribute: 0,
            task: command.task,
            cdb: &command.cdb,
            data_in: command.data_in,
            data_out: data_out as u32,
        };
        let name = name_hash(&self.config.name.to_ascii_lowercase());
        let block = CommandBlock { command: fcp, tag, transfer: transfer.unwrap_or(0), flags, name };
        let (offset, len) = ((slot * COMMAND_LEN) as u64, COMMAND_LEN as u32);
        let request = PutRequest { region, offset, len, opaque: tag, is_solicited: true, interrupts: true };
        match self.carrier.with(|engine| engine.put(vc, &request, now)) {
            Ok(id) => self.carrier.give(vc, id, Bytes::Own(block.bytes().to_vec())),
            Err(why) => {
                transfer.into_iter().for_each(|id| self.cancel(id));
                return Err(why);
            }
        }
        let (is_moved, command) = (command.data_in == 0, command.clone());
        let (cookie, begun, is_probe, data, response, since) = (*cookie, *begun, *is_probe, Vec::new(), None, now);
        let running =
            Running { cookie, command, tag, since, begun, is_probe, transfer, is_moved, data, response, aborts };
        self.places[slot] = Some(running);
        Ok(())
    }

    fn cancel(&mut self, id: Id) {
        if let Some(vc) = self.vc {
            // One that has ended meanwhile needs no end.
            let now = self.now;
            let _ = self.carrier.with(|engine| engine.cancel(vc, id, Reason::ABORTED, now));
            self.carrier.take(vc, id);
        }
    }

    /// A Transfer has ended, with this data of a read.
    fn moved(&mut self, id: Id, data: Option<Vec<u8>>) {
        let found = self.places.iter().position(|place| place.as_ref().is_some_and(|r| r.transfer == Some(id)));
        let Some((slot, running)) = found.and_then(|slot| Some((slot, self.places[slot].as_mut()?))) else { return };
        (running.transfer, running.is_moved) = (None, true);
        running.data = data.unwrap_or_default();
        self.complete(slot);
    }

    fn failed(&mut self, vc: VcId, id: Id) -> Result<(), Refused> {
        self.carrier.take(vc, id);
        let is_transfer = self.places.iter().flatten().any(|running| running.transfer == Some(id));
        // A region, the login, or a command that did not reach the target: the connection is useless.
        if !is_transfer {
            return Err(Refused::Unknown);
        }
        self.moved(id, None);
        Ok(())
    }

    /// A response has come into its place.
    fn responded(&mut self, at: (VcId, Id), (offset, len): (u64, u32), tag: u32) -> Result<(), Refused> {
        let slot = (offset / RESPONSE_LEN as u64) as usize;
        let bytes = self.carrier.part(at, offset as usize, len as usize);
        let running = self.places.get_mut(slot).and_then(Option::as_mut).filter(|running| running.tag == tag);
        let (Some(bytes), Some(running)) = (bytes, running) else { return Err(Refused::Range) };
        let response = fcp::Response::parse(&bytes).ok_or(Refused::Range)?;
        let sense = match response.information {
            Some((code, [a, b, c])) => vec![code, a, b, c],
            None => response.sense.to_vec(),
        };
        running.response = Some((response.status, sense, response.residual.min(0)));
        self.heard = self.now;
        self.complete(slot);
        Ok(())
    }

    /// Ends a command whose response and data have come.
    fn complete(&mut self, slot: usize) {
        let Some(place) = self.places.get_mut(slot) else { return };
        let over = place.take_if(|running| running.response.is_some() && running.is_moved);
        let Some(Running { cookie, command, transfer, data, response: Some(response), aborts, .. }) = over else {
            return;
        };
        transfer.into_iter().for_each(|id| self.cancel(id));
        let (status, sense, underrun) = response;
        if let Some(tag) = aborts {
            return match sense.first().map(|code| fcp::ResponseCode(*code)) {
                Some(fcp::ResponseCode::COMPLETE | fcp::ResponseCode::SUCCEEDED) => self.aborted(tag),
                // The target may still execute the command: the end of the connection ends it.
                _ => self.lose(),
            };
        }
        let is_whole = data.len() as i64 >= i64::from(command.data_in) + underrun;
        let status = if status == 0 && !is_whole { STATUS_BROKEN } else { status };
        self.events.push_back(InitiatorEvent::Done(cookie, status, sense, data));
    }

    /// Aborts a command that has no response for a long time.
    fn abort_silent(&mut self) {
        let now = self.now;
        let patience = self.config.command_timeout.map_or(PATIENCE, |timeout| timeout.min(PATIENCE));
        let is_silent = |place: &Option<Running>| place.as_ref().is_some_and(|r| now.since(r.since) >= patience);
        let Some(silent) = self.places.iter().position(is_silent) else { return };
        let Some(running) = &mut self.places[silent] else { return };
        if running.aborts.is_some() {
            // The target does not answer: a new connection ends its commands.
            return self.lose();
        }
        running.since = now;
        let (tag, lun, transfer) = (running.tag, running.command.lun, running.transfer.take());
        running.is_moved = true;
        transfer.into_iter().for_each(|id| self.cancel(id));
        let mut cdb = [0; 16];
        cdb[..4].copy_from_slice(&tag.to_be_bytes());
        let command = Command { lun, cdb, task: 0, data_in: 0, data_out: None };
        let slot = self.places.iter().position(Option::is_none);
        let abort = Waiting { cookie: u32::MAX, command, begun: now, is_probe: true };
        let is_put = slot.is_some_and(|slot| self.put(slot, &abort, flags::ABORT, Some(tag)).is_ok());
        if !is_put {
            self.lose();
        }
    }

    /// A command was aborted, or has ended: it is sent again.
    fn aborted(&mut self, tag: u32) {
        let found = self.places.iter().position(|place| place.as_ref().is_some_and(|running| running.tag == tag));
        let running = found.and_then(|slot| self.places[slot].take());
        running.into_iter().for_each(|running| self.wait_first(running.into_waiting()));
        self.give_up();
    }
}

/// The flags of a command.
fn flags_of(command: &Command) -> u16 {
    match (&command.data_out, command.data_in) {
        (Some(data), _) if !data.is_empty() => flags::DATA_OUT,
        (_, 1..) => flags::DATA_IN,
        _ => 0,
    }
}
