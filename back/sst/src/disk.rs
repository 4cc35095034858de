//! The logical unit of a target, without I/O: it is looked at after each login and when it says that it has changed;
//! requests become SCSI commands, which are sent until they are executed.

use crate::error::Why;
use crate::facts::Facts;
use crate::scsi::{Blocks, Commands, Verdict, judge, lun_of, sense_of};
use lunar_core::io::Fault;
use lunar_core::time::Instant;
use lunar_sst_initiator::{Carrier, Command, DATA_MAX, Initiator, InitiatorEvent};
use lunar_st::Event;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// The number of the command that looks at the logical unit.
const PROBE: u32 = u32::MAX - 1;
/// The pause before a command is sent again, and before a logical unit that is not ready is looked at again.
const PAUSE: Duration = Duration::from_millis(100);
/// The pause before a logical unit is looked at again that cannot be used.
const LONG_PAUSE: Duration = Duration::from_secs(1);
/// Unit attention conditions in a row that are taken without a pause: more than a target keeps.
const ATTENTIONS_MAX: u32 = 32;

/// A request of a core.
#[derive(Debug)]
pub(crate) struct Request {
    /// The core, and its number there.
    pub(crate) core: u32,
    pub(crate) number: u64,
    pub(crate) work: Work,
}

/// The work of a request, in bytes.
#[derive(Debug)]
pub(crate) enum Work {
    Read { offset: u64, len: usize },
    Write { offset: u64, data: Vec<u8>, durable: bool },
    Flush,
    Unmap { offset: u64, len: u64 },
    Zero { offset: u64, len: u64, unmap: bool },
}

/// The answer to a request.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) core: u32,
    pub(crate) number: u64,
    /// The data of a read, or why the request has failed.
    pub(crate) result: Result<Vec<u8>, Fault>,
}

/// A request in progress.
#[derive(Debug)]
struct Job {
    core: u32,
    number: u64,
    /// Commands that have not ended.
    left: usize,
    fault: Option<Fault>,
    data: Vec<u8>,
}

/// A command of a request.
#[derive(Debug)]
struct Piece {
    job: u64,
    /// The place of its data in that of the request.
    at: usize,
    command: Command,
    begun: Instant,
    /// When it is sent again.
    resend: Option<Instant>,
}

/// How far a look at the logical unit is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Look {
    /// There is no login.
    Down,
    TestReady,
    Inquiry,
    Identification,
    Limits,
    Characteristics,
    Provisioning,
    Capacity,
    Caching,
    /// It can be used.
    Done,
    /// It cannot be used, and is looked at again at this time.
    Wait(Instant),
}

/// The knowledge about the logical unit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct View {
    /// Its properties, as they were seen last.
    pub(crate) facts: Option<Facts>,
    /// Why it is not served now; `None`: it is.
    pub(crate) why: Option<Why>,
}

/// A logical unit.
#[derive(Debug)]
pub(crate) struct RemoteDisk<C> {
    initiator: Initiator<C>,
    name: String,
    lun: u8,
    look: Look,
    attentions: u32,
    draft: Facts,
    view: View,
    /// The designators of the one that is served: another one gets no command.
    identity: Option<String>,
    timeout: Duration,
    jobs: BTreeMap<u64, Job>,
    pieces: BTreeMap<u32, Piece>,
    last_job: u64,
    last_cookie: u32,
    answers: Vec<Answer>,
}

impl<C: Carrier> RemoteDisk<C> {
    /// The logical unit with this LUN, for an initiator with this name. `identity`: it must have these designators.
    pub(crate) fn new(mut initiator: Initiator<C>, name: String, lun: u8, identity: Option<String>) -> Self {
        initiator.hold();
        Self {
            initiator,
            name,
            lun,
            look: Look::Down,
            attentions: 0,
            draft: Facts::default(),
            view: View { facts: None, why: Some(Why::Silent) },
            identity,
            timeout: Duration::MAX,
            jobs: BTreeMap::new(),
            pieces: BTreeMap::new(),
            last_job: 0,
            last_cookie: 0,
            answers: Vec::new(),
        }
    }

    pub(crate) fn initiator(&mut self) -> &mut Initiator<C> {
        &mut self.initiator
    }

    /// The knowledge now.
    pub(crate) fn view(&self) -> &View {
        &self.view
    }

    /// No link can be opened.
    pub(crate) fn has_no_links(&mut self, why: String) {
        self.view.why = Some(Why::Links(why));
    }

    /// Whether the logical unit is served and nothing is in progress.
    pub(crate) fn is_idle(&self) -> bool {
        self.look == Look::Done && self.pieces.is_empty()
    }

    /// The time after which a request fails that could not be executed.
    pub(crate) fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
        self.initiator.set_command_timeout(Some(timeout));
    }

    /// The answers since the last call.
    pub(crate) fn take_answers(&mut self) -> Vec<Answer> {
        std::mem::take(&mut self.answers)
    }

    fn commands(&self) -> Commands {
        Commands { lun: lun_of(self.lun) }
    }

    /// Starts a request.
    pub(crate) fn start(&mut self, request: Request, now: Instant) {
        let Request { core, number, work } = request;
        let planned = self.view.facts.as_ref().map(|facts| plan(facts, self.commands(), self.data_max(), &work));
        let result = match planned {
            Some(Ok(pieces)) if !pieces.is_empty() => Ok(pieces),
            Some(Ok(_)) => return self.answers.push(Answer { core, number, result: Ok(Vec::new()) }),
            Some(Err(fault)) => Err(fault),
            None => Err(Fault::NotReady),
        };
        let pieces = match result {
            Ok(pieces) => pieces,
            Err(fault) => return self.answers.push(Answer { core, number, result: Err(fault) }),
        };
        self.last_job += 1;
        let job = self.last_job;
        let data = if let Work::Read { len, .. } = work { vec![0; len] } else { Vec::new() };
        self.jobs.insert(job, Job { core, number, left: pieces.len(), fault: None, data });
        for (at, command) in pieces {
            let cookie = self.new_cookie();
            self.pieces.insert(cookie, Piece { job, at, command: command.clone(), begun: now, resend: None });
            self.initiator.start(cookie, command, now);
        }
        self.follow(now);
    }

    fn data_max(&self) -> u32 {
        match self.initiator.data_max() {
            0 => DATA_MAX,
            most => most,
        }
    }

    fn new_cookie(&mut self) -> u32 {
        loop {
            self.last_cookie = self.last_cookie.wrapping_add(1) % PROBE;
            if !self.pieces.contains_key(&self.last_cookie) {
                return self.last_cookie;
            }
        }
    }

    /// Takes an event of the engine.
    pub(crate) fn take(&mut self, event: Event, now: Instant) {
        self.initiator.take(event, now);
        self.follow(now);
    }

    /// Does what is due.
    pub(crate) fn look(&mut self, now: Instant) {
        self.initiator.look(now);
        self.follow(now);
        if let Look::Wait(at) = self.look
            && at <= now
        {
            self.begin_look(now);
        }
        let due = |piece: &Piece| piece.resend.is_some_and(|at| at <= now);
        let due: Vec<u32> = self.pieces.iter().filter(|(_, piece)| due(piece)).map(|(cookie, _)| *cookie).collect();
        due.into_iter().for_each(|cookie| self.send_again(cookie, now));
        self.follow(now);
    }

    fn send_again(&mut self, cookie: u32, now: Instant) {
        let Some(piece) = self.pieces.get_mut(&cookie) else { return };
        piece.resend = None;
        self.initiator.start_again(cookie, piece.command.clone(), piece.begun, now);
    }

    fn follow(&mut self, now: Instant) {
        while let Some(event) = self.initiator.next_event() {
            match event {
                InitiatorEvent::Ready => self.begin_look(now),
                InitiatorEvent::Down => {
                    self.look = Look::Down;
                    // The reason of a refusal stays until another one is known.
                    if self.view.why.is_none() {
                        self.view.why = Some(Why::Silent);
                    }
                }
                InitiatorEvent::Refused(status) => self.view.why = Some(Why::Refused(status, self.name.clone())),
                InitiatorEvent::Lost if matches!(self.view.why, Some(Why::Links(_))) => {}
                InitiatorEvent::Lost => self.view.why = Some(Why::Silent),
                InitiatorEvent::TimedOut(cookie) => {
                    let fault = if self.look == Look::Done { Fault::Timeout } else { Fault::NotReady };
                    self.end(cookie, Err(fault));
                }
                InitiatorEvent::Done(PROBE, status, sense, data) => self.looked(status, &sense, &data, now),
                InitiatorEvent::Done(cookie, status, sense, data) => {
                    self.ended(cookie, judge(status, &sense), data, now);
                }
            }
        }
    }

    /// A command has ended so.
    fn ended(&mut self, cookie: u32, verdict: Verdict, data: Vec<u8>, now: Instant) {
        let Some(piece) = self.pieces.get_mut(&cookie) else { return };
        let is_late = now.since(piece.begun) >= self.timeout;
        let is_short = data.len() != piece.command.data_in as usize;
        match verdict {
            Verdict::Good if !is_short => self.end(cookie, Ok(data)),
            Verdict::Failed(fault) => self.end(cookie, Err(fault)),
            _ if is_late => self.end(cookie, Err(Fault::NotReady)),
            // A good end without all data: as if it had not come.
            Verdict::Good | Verdict::Repeat | Verdict::Later(..) => piece.resend = Some(now + PAUSE),
            Verdict::Changed => {
                if self.look == Look::Done {
                    self.initiator.hold();
                    self.begin_look(now);
                }
                self.send_again(cookie, now);
            }
        }
    }

    /// A command ends.
    fn end(&mut self, cookie: u32, result: Result<Vec<u8>, Fault>) {
        let Some(piece) = self.pieces.remove(&cookie) else { return };
        let Some(job) = self.jobs.get_mut(&piece.job) else { return };
        match result {
            Ok(data) => {
                // A write has no data here.
                let place = job.data.get_mut(piece.at..piece.at + data.len());
                place.into_iter().for_each(|place| place.copy_from_slice(&data));
            }
            Err(fault) => job.fault = job.fault.or(Some(fault)),
        }
        job.left -= 1;
        if job.left == 0
            && let Some(Job { core, number, fault, data, .. }) = self.jobs.remove(&piece.job)
        {
            self.answers.push(Answer { core, number, result: fault.map_or(Ok(data), Err) });
        }
    }

    /// Looks at the logical unit from the beginning: it is new, or has changed.
    fn begin_look(&mut self, now: Instant) {
        if !self.initiator.is_up() {
            return self.look = Look::Down;
        }
        (self.look, self.attentions, self.draft) = (Look::TestReady, 0, Facts::default());
        self.ask(now);
    }

    /// Sends the command of this part of the look.
    fn ask(&mut self, now: Instant) {
        let commands = self.commands();
        let command = match self.look {
            Look::TestReady => commands.test_unit_ready(),
            Look::Inquiry => commands.inquiry(None),
            Look::Identification => commands.inquiry(Some(0x83)),
            Look::Limits => commands.inquiry(Some(0xb0)),
            Look::Characteristics => commands.inquiry(Some(0xb1)),
            Look::Provisioning => commands.inquiry(Some(0xb2)),
            Look::Capacity => commands.read_capacity(),
            Look::Caching => commands.mode_sense_caching(),
            Look::Down | Look::Done | Look::Wait(_) => return,
        };
        self.initiator.probe(PROBE, command, now);
    }

    /// A command of the look has ended.
    fn looked(&mut self, status: u8, sense: &[u8], data: &[u8], now: Instant) {
        let (key, code) = sense_of(sense);
        match judge(status, sense) {
            Verdict::Good => match self.learn(data) {
                Ok(Look::Done) => self.settle(now),
                Ok(next) => {
                    self.look = next;
                    self.ask(now);
                }
                Err(why) => self.fail(why, now + LONG_PAUSE),
            },
            Verdict::Changed if code == 0x2500 => self.fail(Why::NoUnit(self.lun), now + LONG_PAUSE),
            Verdict::Changed if self.attentions < ATTENTIONS_MAX => {
                self.attentions += 1;
                self.ask(now);
            }
            // A page that the target does not have.
            Verdict::Failed(Fault::Unsupported) if matches!(self.look, Look::Limits | Look::Characteristics) => {
                self.skip(now);
            }
            Verdict::Failed(Fault::Unsupported) if matches!(self.look, Look::Provisioning | Look::Caching) => {
                self.skip(now);
            }
            Verdict::Repeat | Verdict::Later(..) | Verdict::Changed => {
                self.fail(Why::NotReady(key, code), now + PAUSE);
            }
            Verdict::Failed(_) => self.fail(Why::NotReady(key, code), now + LONG_PAUSE),
        }
    }

    fn skip(&mut self, now: Instant) {
        match self.learn(&[]) {
            Ok(Look::Done) => self.settle(now),
            Ok(next) => {
                self.look = next;
                self.ask(now);
            }
            Err(why) => self.fail(why, now + LONG_PAUSE),
        }
    }

    fn fail(&mut self, why: Why, at: Instant) {
        self.view.why = Some(why);
        self.look = Look::Wait(at);
    }

    /// Takes the data of this part of the look; returns the next part.
    fn learn(&mut self, data: &[u8]) -> Result<Look, Why> {
        let draft = &mut self.draft;
        Ok(match self.look {
            Look::TestReady => Look::Inquiry,
            Look::Inquiry => {
                // Peripheral qualifier and device type.
                match data.first() {
                    Some(0) => Look::Identification,
                    Some(device) if device >> 5 == 0 => return Err(Why::NotADisk(device & 0x1f)),
                    _ => return Err(Why::NoUnit(self.lun)),
                }
            }
            Look::Identification if draft.take_identification(data) => Look::Limits,
            Look::Limits => {
                draft.take_limits(data);
                Look::Characteristics
            }
            Look::Characteristics => {
                draft.take_characteristics(data);
                Look::Provisioning
            }
            Look::Provisioning => {
                draft.take_provisioning(data);
                Look::Capacity
            }
            Look::Capacity if draft.take_capacity(data) => Look::Caching,
            Look::Caching => {
                draft.take_caching(data);
                Look::Done
            }
            Look::Identification | Look::Capacity => return Err(Why::Nameless),
            other @ (Look::Down | Look::Done | Look::Wait(_)) => other,
        })
    }

    /// The look is over: the commands that were held are sent if it is the right logical unit.
    fn settle(&mut self, now: Instant) {
        let facts = std::mem::take(&mut self.draft);
        if self.identity.as_ref().is_some_and(|known| *known != facts.identity) {
            return self.fail(Why::Stranger, now + LONG_PAUSE);
        }
        if self.view.facts.as_ref().is_some_and(|known| known.block != facts.block) {
            return self.fail(Why::Blocks(facts.block), now + LONG_PAUSE);
        }
        self.identity = Some(facts.identity.clone());
        self.view = View { facts: Some(facts), why: None };
        self.look = Look::Done;
        self.initiator.release(now);
    }
}

/// The commands of a request, and the places of their data in that of the request.
///
/// # Errors
/// [`Fault::Os`] with EINVAL when it is not a whole number of blocks: the caller has checked that.
fn plan(facts: &Facts, commands: Commands, data_max: u32, work: &Work) -> Result<Vec<(usize, Command)>, Fault> {
    let block = u64::from(facts.block);
    let transfer_max = u64::from(data_max) / block;
    let (offset, len, most) = match work {
        Work::Flush => return Ok(vec![(0, commands.flush())]),
        Work::Read { offset, len } => (*offset, *len as u64, transfer_max),
        Work::Write { offset, data, .. } => (*offset, data.len() as u64, transfer_max),
        Work::Unmap { offset, len } => (*offset, *len, facts.unmap_max()),
        Work::Zero { offset, len, .. } => (*offset, *len, facts.zero_max()),
    };
    let is_whole = offset.is_multiple_of(block) && len.is_multiple_of(block) && most > 0;
    let ends_at = offset.checked_add(len).filter(|_| is_whole).ok_or(Fault::OUT_OF_RANGE)?;
    let zeroes: Rc<[u8]> =
        if matches!(work, Work::Zero { .. }) { Rc::from(vec![0; facts.block as usize]) } else { Rc::from([]) };
    let mut pieces = Vec::new();
    let mut at = offset;
    while at < ends_at {
        // At most 2^32 blocks: the limits of commands have 32 bits, or are shorter.
        let count = ((ends_at - at) / block).min(most).min(u32::MAX.into()) as u32;
        let (blocks, bytes) = (Blocks { lba: at / block, count }, u64::from(count) * block);
        let place = (at - offset) as usize;
        let command = match work {
            // Within the data of a command, which is shorter than 4 GiB.
            Work::Read { .. } => commands.read(blocks, bytes as u32),
            Work::Write { data, durable, .. } => {
                commands.write(blocks, Rc::from(&data[place..place + bytes as usize]), *durable)
            }
            Work::Unmap { .. } => commands.unmap(blocks),
            Work::Zero { unmap, .. } => commands.zero(blocks, zeroes.clone(), *unmap && facts.zero_unmaps),
            Work::Flush => commands.flush(),
        };
        pieces.push((place, command));
        at += bytes;
    }
    Ok(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        let mut facts = Facts::default();
        let mut capacity = [0; 32];
        capacity[..8].copy_from_slice(&0xffff_u64.to_be_bytes());
        capacity[8..12].copy_from_slice(&512_u32.to_be_bytes());
        assert!(facts.take_capacity(&capacity));
        facts
    }

    fn planned(work: &Work) -> Result<Vec<(usize, Command)>, Fault> {
        plan(&facts(), Commands { lun: lun_of(1) }, 4096, work)
    }

    #[test]
    fn requests_become_commands_that_the_target_takes() {
        let data: Vec<u8> = (0..9728).map(|at| (at / 512) as u8).collect();
        let pieces = planned(&Work::Write { offset: 1024, data: data.clone(), durable: true }).expect("whole blocks");
        let parts: Vec<(usize, &[u8])> =
            pieces.iter().map(|(at, command)| (*at, command.data_out.as_deref().unwrap_or_default())).collect();
        assert_eq!(parts, [(0, &data[..4096]), (4096, &data[4096..8192]), (8192, &data[8192..])]);
        assert_eq!(pieces[2].1.cdb, [0x8a, 8, 0, 0, 0, 0, 0, 0, 0, 18, 0, 0, 0, 3, 0, 0]);
        let pieces = planned(&Work::Read { offset: 0, len: 5120 }).expect("whole blocks");
        assert_eq!(
            pieces.iter().map(|(at, command)| (*at, command.data_in)).collect::<Vec<_>>(),
            [(0, 4096), (4096, 1024)]
        );
        let pieces = planned(&Work::Zero { offset: 0, len: 64 << 20, unmap: true }).expect("whole blocks");
        // The target says nothing about UNMAP.
        assert_eq!((pieces.len(), pieces[0].1.cdb[1]), (1, 0));
        assert_eq!(planned(&Work::Flush).map(|pieces| pieces.len()), Ok(1));
        for wrong in [
            Work::Read { offset: 100, len: 512 },
            Work::Read { offset: 0, len: 100 },
            Work::Unmap { offset: u64::MAX - 511, len: 512 },
        ] {
            assert_eq!(planned(&wrong).map(|pieces| pieces.len()), Err(Fault::OUT_OF_RANGE), "{wrong:?}");
        }
    }
}
