//! The state of a world: the time, future events, and the state of each core.

use super::carrier::{Carrier, Flight};
use super::chance::Chance;
use super::core_state::{Answer, CoreState, Host};
use super::device::Shared;
use super::disk::Disk;
use super::faults::Faults;
use super::job::{CommandJob, HeldRequest, Job, Signal};
use super::link::{Link, Listener, Side};
use super::trace::Trace;
use crate::op::Handle;
use lunar_core::io::{Data, Done, Extent, Fault, Outcome};
use lunar_core::time::Instant;
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::task::Waker;
use std::time::Duration;

/// Turns of all cores within which time must move on: more turns mean a busy loop.
const TURNS_WITHOUT_EVENT_MAX: u32 = 1_000_000;

pub(super) struct State {
    pub(super) now: Instant,
    /// The simulation must be over by then.
    pub(super) deadline: Instant,
    pub(super) chance: Chance,
    pub(super) faults: Faults,
    pub(super) trace: Trace,
    events: BTreeMap<(Instant, u64), Event>,
    serial: u64,
    pub(super) paths: BTreeMap<PathBuf, usize>,
    pub(super) disks: Vec<Disk>,
    pub(super) jobs: BTreeMap<u64, Job>,
    /// Endpoints of datagrams and frames.
    pub(super) carriers: BTreeMap<u32, Carrier>,
    /// The largest payloads of the frames of each Ethernet segment.
    pub(super) segments: Vec<usize>,
    /// Datagrams and frames in flight, with their receivers.
    pub(super) flights: BTreeMap<u64, (u32, Flight)>,
    pub(super) devices: BTreeMap<u32, Shared>,
    pub(super) commands: BTreeMap<u64, CommandJob>,
    /// Requests that foreign threads hold.
    pub(super) foreign: BTreeMap<u64, HeldRequest>,
    pub(super) links: BTreeMap<u32, Link>,
    pub(super) listeners: BTreeMap<SocketAddr, Listener>,
    /// The addresses behind the paths of Unix sockets.
    pub(super) socket_paths: BTreeMap<PathBuf, SocketAddr>,
    /// Eventfds that cores signal, by core and handle.
    pub(super) eventfds: BTreeMap<(usize, u32), Rc<OwnedFd>>,
    /// Signals on their way to eventfds.
    pub(super) signals: BTreeMap<u64, Signal>,
    /// Tasks that wait for a signal.
    pub(super) signal_wakers: Vec<Waker>,
    pub(super) cores: Vec<CoreState>,
    /// Answers that are ready but not yet to be seen.
    late: BTreeMap<u64, Answer>,
    pub(super) left: Leftovers,
    /// Whether the operation that is being submitted is answered at once when it can be.
    pub(super) eager: bool,
    turns_without_event: u32,
}

/// Work that is done once the state is no longer borrowed, because it may call into the world again.
#[derive(Default)]
pub(super) struct Leftovers {
    pub(super) answers: Vec<Answer>,
    pub(super) wakers: Vec<Waker>,
    pub(super) jobs: Vec<Job>,
    /// Commands that devices execute now.
    pub(super) commands: Vec<CommandJob>,
    /// Commands whose core has ended.
    pub(super) dropped_commands: Vec<CommandJob>,
    pub(super) carriers: Vec<Carrier>,
    /// Requests whose foreign threads answer now.
    pub(super) foreign: Vec<HeldRequest>,
    /// Requests whose core has ended.
    pub(super) orphans: Vec<HeldRequest>,
    pub(super) links: Vec<Link>,
    pub(super) listeners: Vec<Listener>,
    pub(super) signals: Vec<Signal>,
}

/// A future event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Event {
    /// A connection request reaches its listener.
    Connect(u32),
    /// Bytes arrive at one side of a connection, or room for sending becomes free there.
    Stir(u32, Side),
    /// A part of a write takes effect.
    Half(u64),
    /// A file operation ends.
    Finish(u64),
    /// An answer becomes visible.
    Late(u64),
    /// A foreign thread answers a request.
    Foreign(u64),
    /// A datagram or frame arrives.
    Arrive(u64),
    /// A device executes a command.
    Command(u64),
    /// A signal reaches its eventfd.
    Signal(u64),
}

impl State {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            now: Instant(1),
            deadline: Instant(u64::MAX),
            chance: Chance::new(seed),
            faults: Faults::none(),
            trace: Trace::default(),
            events: BTreeMap::new(),
            serial: 0,
            paths: BTreeMap::new(),
            disks: Vec::new(),
            jobs: BTreeMap::new(),
            carriers: BTreeMap::new(),
            segments: Vec::new(),
            flights: BTreeMap::new(),
            devices: BTreeMap::new(),
            commands: BTreeMap::new(),
            foreign: BTreeMap::new(),
            links: BTreeMap::new(),
            listeners: BTreeMap::new(),
            socket_paths: BTreeMap::new(),
            eventfds: BTreeMap::new(),
            signals: BTreeMap::new(),
            signal_wakers: Vec::new(),
            cores: Vec::new(),
            late: BTreeMap::new(),
            left: Leftovers::default(),
            eager: false,
            turns_without_event: 0,
        }
    }

    pub(super) fn note(&mut self, what: fmt::Arguments<'_>) {
        self.trace.note(self.now, what);
    }

    /// A number that was not given out before.
    pub(super) fn serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    pub(super) fn schedule(&mut self, at: Instant, event: Event) {
        let serial = self.serial();
        self.events.insert((at, serial), event);
    }

    /// The time of the next event.
    pub(super) fn next_event(&self) -> Option<Instant> {
        self.events.first_key_value().map(|((at, _), _)| *at)
    }

    /// How long an operation of a file, a device or a foreign thread takes.
    pub(super) fn operation_time(&mut self) -> Duration {
        let slow = self.chance.odds(self.faults.slow);
        let bounds = if slow { self.faults.slow_time } else { self.faults.file_time };
        self.chance.time(&bounds)
    }

    /// Answers an operation of a core: at once if it is just being submitted and chance decides so, else in the core's
    /// next turn.
    pub(super) fn answer(&mut self, core: usize, done: Done, outcome: Outcome, handle: Option<Handle>) {
        let answer = Answer { done, outcome, handle };
        if self.eager {
            self.left.answers.push(answer);
        } else {
            self.cores[core].due.push(answer);
        }
    }

    pub(super) fn refuse(&mut self, core: usize, done: Done, fault: Fault, data: Data, handle: Option<Handle>) {
        let outcome = Outcome { result: Err(fault), data, extent: Extent::default() };
        self.answer(core, done, outcome, handle);
    }

    /// Answers after a while: memory that was sent stays with the driver until the peer has it.
    pub(super) fn answer_later(
        &mut self,
        core: usize,
        done: Done,
        outcome: Outcome,
        handle: Option<Handle>,
        wait: Duration,
    ) {
        if self.eager {
            return self.answer(core, done, outcome, handle);
        }
        let key = self.serial();
        let answer = Answer { done, outcome, handle };
        self.late.insert(key << CORE_BITS | core as u64, answer);
        self.schedule(self.now + wait, Event::Late(key << CORE_BITS | core as u64));
    }

    /// Processes all events that are due until now. Returns whether there were any.
    pub(super) fn settle(&mut self) -> bool {
        let mut has_settled = false;
        while self.next_event().is_some_and(|at| at <= self.now) {
            if let Some((_, event)) = self.events.pop_first() {
                self.happen(event);
                self.turns_without_event = 0;
                has_settled = true;
            }
        }
        for core in 0..self.cores.len() {
            self.hear_bell(core);
        }
        has_settled
    }

    /// Goes on to the next event, or to `until` if that is earlier. `false` when there is neither.
    pub(super) fn advance(&mut self, until: Option<Instant>) -> bool {
        let Some(at) = [self.next_event(), until].into_iter().flatten().min() else { return false };
        self.now = self.now.max(at);
        self.turns_without_event = 0;
        assert!(self.now <= self.deadline, "virtual time is up: something hangs");
        self.settle();
        true
    }

    /// One more turn of a core: takes a moment.
    pub(super) fn tick(&mut self) {
        self.turns_without_event += 1;
        assert!(self.turns_without_event < TURNS_WITHOUT_EVENT_MAX, "a core turns and turns: something spins");
        let moment = self.chance.within(0..=500);
        self.now = self.now + Duration::from_nanos(moment);
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Connect(link) => self.arrive_at_listener(link),
            Event::Stir(link, side) => self.stir(link, side),
            Event::Half(job) => self.half_done(job),
            Event::Finish(job) => self.finish(job),
            Event::Arrive(key) => self.arrive(key),
            Event::Signal(key) => self.signal_eventfd(key),
            Event::Command(key) => self.left.commands.extend(self.commands.remove(&key)),
            Event::Foreign(key) => self.left.foreign.extend(self.foreign.remove(&key)),
            Event::Late(key) => {
                if let Some(answer) = self.late.remove(&key) {
                    self.cores[(key & ((1 << CORE_BITS) - 1)) as usize].due.push(answer);
                }
            }
        }
    }

    pub(super) fn hear_bell(&mut self, core: usize) {
        let state = &mut self.cores[core];
        if state.bell_done.is_some()
            && state.bell.heard()
            && let Some(done) = state.bell_done.take()
        {
            state.due.push(Answer { done, outcome: Outcome::new(Ok(0)), handle: None });
        }
    }

    /// The machine stops: its cores answer nothing any more, its connections are gone, its files hold the surviving
    /// data. `power`: data that was not on the medium may be lost, as in a power failure; otherwise only the program
    /// has ended.
    pub(super) fn crash(&mut self, host: Host, power: bool) {
        self.note(format_args!("host {} crashes{}", host.0, if power { ", power lost" } else { "" }));
        for core in 0..self.cores.len() {
            if self.cores[core].host == host {
                self.end_core(core);
            }
        }
        if power {
            let lost: usize = self.disks.iter_mut().map(|disk| disk.crash(&mut self.chance)).sum();
            self.note(format_args!("{lost} sectors lost their last write"));
        } else {
            self.disks.iter_mut().for_each(Disk::reopen);
        }
    }

    /// A core ends: its operations are interrupted.
    pub(super) fn end_core(&mut self, core: usize) {
        if !std::mem::replace(&mut self.cores[core].alive, false) {
            return;
        }
        self.drop_jobs(core);
        let (orphans, kept): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.foreign).into_iter().partition(|(_, held)| held.core == core);
        self.foreign = kept.into_iter().collect();
        self.left.orphans.extend(orphans.into_iter().map(|(_, held)| held));
        self.drop_links(core);
        self.drop_carriers(core);
        self.drop_commands(core);
        self.drop_signals(core);
        let state = &mut self.cores[core];
        state.handles.clear();
        self.left.answers.append(&mut state.due);
        if let Some(done) = state.bell_done.take() {
            self.left.answers.push(Answer { done, outcome: Outcome::new(Err(Fault::Aborted)), handle: None });
        }
        for (key, answer) in std::mem::take(&mut self.late) {
            if (key & ((1 << CORE_BITS) - 1)) as usize == core {
                self.left.answers.push(answer);
            } else {
                self.late.insert(key, answer);
            }
        }
    }
}

/// Low bits of a late answer's key that hold its core.
const CORE_BITS: u32 = 8;
