//! The local nexus: SCSI commands of the operator to the logical units of all volumes, without a transport. Its
//! initiator port has a name of its own, so that reservations of other hosts hold for it as well. It is on one core.

use lunar_control::scsi::{
    COMMANDS_MAX, DATA_BYTES_MAX, ScsiCall, ScsiError, ScsiOrder, ScsiOutcome, VOLUME_COMMANDS_MAX,
};
use lunar_control::write_freeze::{Reach, WritePermit};
use lunar_core::io::Fault;
use lunar_core::mem::{Arena, Sg, SgMut};
use lunar_core::port::{NexusName, Transfer};
use lunar_core::step::SlotContext;
use lunar_core::time::Instant;
use lunar_core::unit::UnitId;
use lunar_reactor::Reactor;
use lunar_reactor::end::End;
use lunar_reactor::slots::Slots;
use lunar_scsi::nexus::Addressee;
use lunar_scsi::row::Flow;
use lunar_scsi::written::{Changes, WrittenCommand};
use lunar_scsi::{Asc, Command, Lun, Nexus, Reply, SenseData, Status, Target, Task, TaskAttribute, device_types};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::pending;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// The name of its initiator port, in the spelling of iSCSI, which persistent reservations know.
pub const INITIATOR_PORT: &str = "iqn.2026-01.io.lunar:local-scsi,i,0x000000000000";
/// It has no target port: access states of target port groups do not concern it.
const NO_PORT: u16 = 0;
/// The time without a command after which the nexus ends: then it gives back what only one nexus may have, such as a
/// tape drive or an SPC-2 reservation.
const IDLE: Duration = Duration::from_secs(5 * 60);
/// How long an aborted command is waited for. One that takes longer goes on, and the nexus with it.
const ABORT_PATIENCE: Duration = Duration::from_secs(20);

/// The local nexus of a core.
pub struct LocalNexus {
    reactor: Reactor,
    target: Rc<Target>,
    slots: Slots<Job>,
    /// The nexus, while it is used.
    nexus: RefCell<Option<Rc<Nexus>>>,
    /// Comes when the nexus that is being ended has ended: the next one has the same name, and begins afterwards.
    closing: RefCell<Option<Rc<End>>>,
    /// A mark of each logical unit, which its commands in progress share.
    seats: RefCell<BTreeMap<u16, Rc<()>>>,
    /// The logical units that it has addressed.
    known: RefCell<BTreeSet<u16>>,
    last_tag: Cell<u64>,
    last_used: Cell<Instant>,
}

impl fmt::Debug for LocalNexus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LocalNexus")
    }
}

impl LocalNexus {
    /// The nexus of a core; it begins with its first command.
    pub(crate) fn new(reactor: &Reactor, target: &Rc<Target>) -> Rc<Self> {
        Rc::new(Self {
            reactor: reactor.clone(),
            target: target.clone(),
            slots: Slots::new(reactor, COMMANDS_MAX, async |job: &Job, slot: &mut SlotContext| {
                job.run(slot).await;
            }),
            nexus: RefCell::default(),
            closing: RefCell::default(),
            seats: RefCell::default(),
            known: RefCell::default(),
            last_tag: Cell::default(),
            last_used: Cell::new(reactor.now()),
        })
    }

    /// Executes a command at the logical unit of a unit.
    ///
    /// # Errors
    /// [`ScsiError`].
    pub async fn execute(self: &Rc<Self>, unit: UnitId, call: ScsiCall) -> Result<ScsiOutcome, ScsiError> {
        let ScsiCall { order, offer, begins } = call;
        let lun = u16::try_from(unit.0).map_err(|_| ScsiError::NotServed)?;
        let nexus = self.nexus().await;
        let written = self.read(&nexus, lun, &order.command)?;
        let (data_in, data_out) = lengths(&order, written.flow)?;
        let permit = offer.accept(reach(written.changes)).ok_or(ScsiError::Copied)?;
        // Commands that have not ended after their abort count, too.
        let seat = self.seats.borrow_mut().entry(lun).or_default().clone();
        if Rc::strong_count(&seat) > VOLUME_COMMANDS_MAX + 1 {
            return Err(ScsiError::Busy);
        }
        let tag = self.last_tag.get() + 1;
        self.last_tag.set(tag);
        let address = Lun::from_number(lun);
        let command =
            Command { lun: address, cdb: written.cdb, attribute: TaskAttribute::SIMPLE, tag, data_in, data_out };
        let exchange = Rc::new(Exchange {
            ended: End::default(),
            data_out: order.data_out,
            expected: data_in as usize,
            data_in: RefCell::default(),
            reply: RefCell::default(),
        });
        let job = Job {
            target: self.target.clone(),
            task: nexus.tasks.enter((tag, address)),
            nexus: nexus.clone(),
            command,
            arena: self.reactor.arena().clone(),
            exchange: exchange.clone(),
            _seat: seat,
            _permit: permit,
        };
        begins(written.cdb.bytes(), written.name);
        self.slots.start(job).map_err(|_| ScsiError::Busy)?;
        let is_late = exchange.ended.unless(self.reactor.sleep(order.patience)).await.is_some();
        if is_late {
            nexus.tasks.abort(|(known, _)| known == tag);
            exchange.ended.unless(self.reactor.sleep(ABORT_PATIENCE)).await;
        }
        self.last_used.set(self.reactor.now());
        match exchange.reply.take() {
            Some(reply) if is_late && reply.status == Status::TASK_ABORTED => Err(ScsiError::Aborted(order.patience)),
            Some(reply) => Ok(outcome(&written, &reply, exchange.data_in.take())),
            None if exchange.ended.has_come() => Err(ScsiError::Failed),
            None => Err(ScsiError::Unfinished(order.patience)),
        }
    }

    /// The nexus, which begins if there is none.
    async fn nexus(self: &Rc<Self>) -> Rc<Nexus> {
        self.closed().await;
        self.last_used.set(self.reactor.now());
        if let Some(nexus) = &*self.nexus.borrow() {
            return nexus.clone();
        }
        let name = NexusName { initiator: Arc::from(INITIATOR_PORT), target_port: NO_PORT };
        let nexus = self.target.nexus(name);
        self.nexus.replace(Some(nexus.clone()));
        let local = self.clone();
        self.reactor.spawn(async move { local.watch().await });
        nexus
    }

    /// Ends the nexus when it is not used any more.
    async fn watch(&self) {
        loop {
            let idle = self.reactor.now().since(self.last_used.get());
            let is_busy = self.nexus.borrow().as_ref().is_some_and(|nexus| !nexus.tasks.is_empty());
            match IDLE.checked_sub(idle).filter(|left| !left.is_zero()) {
                Some(left) => self.reactor.sleep(left).await,
                None if is_busy => self.reactor.sleep(IDLE).await,
                None => break,
            }
        }
        self.close().await;
    }

    /// Ends the nexus: its commands are aborted and have ended when this returns, and only its persistent registrations
    /// are left.
    pub(crate) async fn close(&self) {
        self.closed().await;
        let Some(nexus) = self.nexus.take() else { return };
        let end = Rc::<End>::default();
        self.closing.replace(Some(end.clone()));
        self.known.take();
        self.target.close(&nexus).await;
        self.closing.take();
        end.come();
    }

    /// Waits until no nexus is being ended.
    async fn closed(&self) {
        loop {
            let closing = self.closing.borrow().clone();
            match closing {
                Some(end) => end.unless(pending::<()>()).await,
                None => return,
            };
        }
    }

    /// Ends its commands at a unit that is not served any more.
    pub(crate) async fn leave(&self, unit: UnitId) {
        let Ok(lun) = u16::try_from(unit.0) else { return };
        self.known.borrow_mut().remove(&lun);
        self.seats.borrow_mut().remove(&lun);
        let nexus = self.nexus.borrow().clone();
        if let Some(nexus) = nexus {
            let is_at = |(_, at): (u64, Lun)| at.number() == Some(lun);
            nexus.tasks.abort(is_at);
            nexus.tasks.until_gone(is_at).await;
        }
    }

    /// Reads a command as the logical unit knows it.
    fn read(&self, nexus: &Nexus, lun: u16, text: &str) -> Result<WrittenCommand, ScsiError> {
        let itl = nexus.itl(lun).ok_or(ScsiError::NotServed)?;
        // The nexus has no history that it could have lost, and it addresses volumes by their names.
        if self.known.borrow_mut().insert(lun) {
            itl.forget_attention(Asc::POWER_ON_OR_RESET);
        }
        itl.forget_attention(Asc::REPORTED_LUNS_DATA_CHANGED);
        let is_forwarded = itl.lu.forwarded().is_some();
        let device = device_types::of(&Addressee::Unit(itl));
        device.written(is_forwarded, text).map_err(|why| ScsiError::Command(why.into()))
    }
}

fn reach(changes: Changes) -> Reach {
    match changes {
        Changes::None => Reach::None,
        Changes::Unit => Reach::Volume,
        Changes::Others => Reach::Any,
    }
}

/// The bytes that are expected and sent.
fn lengths(order: &ScsiOrder, flow: Option<Flow>) -> Result<(u32, u32), ScsiError> {
    let sent = u32::try_from(order.data_out.len()).map_err(|_| ScsiError::TooLong)?;
    let expected = match (order.data_in, flow) {
        (Some(expected), _) => expected,
        (None, Some(Flow::In | Flow::Answer)) if sent == 0 => DATA_BYTES_MAX,
        (None, _) => 0,
    };
    match (expected, sent) {
        (1.., 1..) => Err(ScsiError::BothDirections),
        (expected, sent) if expected.max(sent) > DATA_BYTES_MAX => Err(ScsiError::TooLong),
        lengths => Ok(lengths),
    }
}

fn outcome(written: &WrittenCommand, reply: &Reply, data: Vec<u8>) -> ScsiOutcome {
    ScsiOutcome {
        cdb: written.cdb.bytes().to_vec(),
        name: written.name.map(str::to_owned),
        status: reply.status.0,
        status_name: format!("{:?}", reply.status).replace('_', " "),
        sense: reply.sense.to_vec(),
        sense_words: words(&reply.sense),
        data,
        wanted: reply.wanted,
    }
}

/// The meaning of sense data; empty if there is none.
fn words(sense: &SenseData) -> String {
    let Some(sense) = sense.read() else { return String::new() };
    let [asc, ascq] = sense.asc.0.to_be_bytes();
    let mut words = format!("{sense} ({asc:02X}h/{ascq:02X}h)");
    if let Some(information) = sense.information {
        words.push_str(&format!(", information {information}"));
    }
    if let Some(progress) = sense.progress {
        words.push_str(&format!(", progress {} %", u32::from(progress) * 100 / 0x1_0000));
    }
    words
}

/// The data and the reply of a command.
struct Exchange {
    /// Comes when the command has ended.
    ended: End,
    data_out: Vec<u8>,
    /// The bytes that are expected.
    expected: usize,
    data_in: RefCell<Vec<u8>>,
    reply: RefCell<Option<Reply>>,
}

impl Exchange {
    /// Keeps data of the command, as far as it is expected.
    fn keep(&self, offset: usize, data: &Sg) {
        let end = (offset + data.len()).min(self.expected);
        let mut kept = self.data_in.borrow_mut();
        if offset < end {
            if kept.len() < end {
                kept.resize(end, 0);
            }
            data.copy_to(0, &mut kept[offset..end]);
        }
    }
}

/// A command in a slot.
struct Job {
    target: Rc<Target>,
    nexus: Rc<Nexus>,
    command: Command,
    task: Task,
    arena: Arena,
    exchange: Rc<Exchange>,
    _seat: Rc<()>,
    /// No copy of a volume that it may change begins before it has ended.
    _permit: WritePermit,
}

impl Job {
    async fn run(&self, slot: &mut SlotContext) {
        let mut reply = Reply::default();
        self.target.execute(&self.nexus, &self.command, self, slot, &mut reply).await;
        self.exchange.keep(reply.final_data.offset, &reply.final_data.data);
        reply.final_data.data = Sg::default();
        self.exchange.reply.replace(Some(reply));
    }

    /// Fills memory with data for the command.
    fn fill(&self, offset: usize, mut memory: SgMut) -> Result<Sg, Fault> {
        let data = self.exchange.data_out.get(offset..).unwrap_or_default();
        let wanted = memory.len();
        if memory.copy_from(0, &data[..data.len().min(wanted)]) < wanted {
            return Err(Fault::Protocol);
        }
        Ok(memory.share())
    }
}

/// The asking task goes on when the job is dropped, also by a panic.
impl Drop for Job {
    fn drop(&mut self) {
        self.exchange.ended.come();
    }
}

impl Transfer for Job {
    async fn room(&self) -> Result<(), Fault> {
        Ok(())
    }

    fn has_room(&self) -> bool {
        true
    }

    async fn pull(&self, offset: usize, len: usize) -> Result<Sg, Fault> {
        let memory = self.task.unless_aborted(self.arena.wait_sg(len)).await?;
        self.fill(offset, memory)
    }

    async fn pull_more(&self, offset: usize, len: usize) -> Result<Sg, Fault> {
        self.fill(offset, self.arena.take_sg(len).ok_or(Fault::NoMemory)?)
    }

    fn push(&self, offset: usize, data: Sg) -> Result<(), Fault> {
        self.exchange.keep(offset, &data);
        Ok(())
    }

    fn aborted(&self) -> bool {
        self.task.aborted()
    }
}

#[cfg(test)]
#[path = "local_nexus_tests.rs"]
mod tests;
