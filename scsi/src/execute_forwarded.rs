//! Executes the commands of forwarded logical units: first the checks of Lunar, then the device.

use crate::admit::{Refusal, pass};
use crate::command::{Cdb, Reply, Status};
use crate::context::Call;
use crate::device_server::{FORWARDED_BYTES_MAX, ForwardedData, ForwardedReply};
use crate::execute::{check_attribute, contiguous, pull_list};
use crate::fault;
use crate::fit::mismatch;
use crate::forwarding::edit::{self, is_offered};
use crate::forwarding::follow::{self, concerns_facts};
use crate::forwarding::length::{self, Moves};
use crate::forwarding::possession::unloads;
use crate::forwarding::sending::Sending;
use crate::forwarding::{DeviceFacts, timeouts};
use crate::lu::Forwarded;
use crate::nexus::ItlNexus;
use crate::plan::{Edit, Plan};
use crate::policy::{Effect, Forwarding, OpCode, Timeout, UNKNOWN_COMMAND};
use crate::row::{Flow, Row};
use crate::sense::{Asc, Sense, SenseData, SenseKey};
use crate::spc::inquiry;
use crate::target::Target;
use lunar_core::io::Fault;
use lunar_core::mem::{Arena, SgMut};
use lunar_core::port::Transfer;
use lunar_core::step::SlotContext;
use lunar_core::traffic::Class;
use lunar_core::wire::Writer;

/// The refusal of a command that the logical unit does not have.
const UNSUPPORTED: Sense = Sense::illegal(Asc::INVALID_COMMAND_OPERATION_CODE);

impl Target {
    /// Executes a command of a forwarded logical unit.
    pub(crate) async fn forward<T: Transfer>(
        &self,
        call: Call<'_>,
        (itl, lu): (&ItlNexus, &Forwarded),
        transfer: &T,
        slot: &mut SlotContext,
        reply: &mut Reply,
    ) -> Result<(Class, u64), Refusal> {
        check_attribute(call.command)?;
        check_cdb(&call.command.cdb)?;
        let row = call.device.find_forwarded(call.command.cdb.bytes())?;
        let policy = row.map_or(&UNKNOWN_COMMAND, |row| &row.policy);
        let generation = lu.unit.device.generation();
        self.take_event((&itl.lu, lu)).await;
        let sent = Sent { call, itl, lu, transfer, row, generation };
        let edit = match (policy.admission.forwarded, row) {
            (Forwarding::Refused, row) if !is_offered(row, lu) => return Err(UNSUPPORTED.into()),
            (Forwarding::Lunar, Some(row)) => match self.execute_row(row, &sent, slot, reply).await? {
                Some(edit) => edit,
                None => return Ok((Class::Other, reply.wanted)),
            },
            (Forwarding::Counted, _) => {
                (reply.status, reply.sense) = self.prevent(call, (itl, lu), policy).await?;
                return Ok((Class::Other, 0));
            }
            _ => {
                pass(policy, itl)?;
                Edit::None
            }
        };
        self.possess(call, (itl, lu), policy).await?;
        if policy.effect != Effect::None {
            self.follow((&itl.lu, lu), &slot.arena).await;
        }
        let (flow, moved) = self.send(&sent, edit, slot, reply).await?;
        Ok((class(flow, policy.effect), moved))
    }

    /// Executes a command that Lunar executes instead of the device. Returns the edit of its Data-In if the plan is
    /// that the device executes it all the same.
    async fn execute_row<T: Transfer>(
        &self,
        row: &'static Row,
        sent: &Sent<'_, T>,
        slot: &SlotContext,
        reply: &mut Reply,
    ) -> Result<Option<Edit>, Refusal> {
        let call = sent.call;
        let cdb = call.command.cdb.bytes();
        row.check(cdb)?;
        pass(&row.policy, sent.itl)?;
        let amount = row.amount(cdb)?;
        let list = pull_list(row, amount, call, sent.transfer).await?;
        reply.wanted = list.len() as u64;
        match self.plan(call, row, amount, &contiguous(&list))? {
            Plan::Done => {}
            Plan::Answer => return self.answer(slot, reply).map(|()| None),
            Plan::Conflict => return Err(Refusal::bare(Status::RESERVATION_CONFLICT)),
            Plan::Propose(change) => self.propose(call.nexus, call.command.tag, &sent.itl.lu, *change).await?,
            Plan::Forward(edit) => return Ok(Some(edit)),
            // These plans need a store.
            _ => return Err(UNSUPPORTED.into()),
        }
        self.count(row.flow, list.len() as u64);
        Ok(None)
    }

    /// Sends a command to the device, and takes its reply over. Returns the direction of the data, and its bytes.
    async fn send<T: Transfer>(
        &self,
        sent: &Sent<'_, T>,
        edit: Edit,
        slot: &SlotContext,
        reply: &mut Reply,
    ) -> Result<(Flow, u64), Refusal> {
        let sending = sent.sending();
        let data = sending.data(sent.moves()?, &slot.arena).await?;
        let length = data.len();
        let ForwardedReply { status, mut sense, moved, data } = sending.reply(data).await.map_err(of_device)?;
        if status == Status::CHECK_CONDITION && sense.is_empty() {
            sense = self.missing_sense(sent, &slot.arena).await;
        }
        let mut moved = moved.min(length);
        let flow = match data {
            ForwardedData::None => Flow::None,
            ForwardedData::Out(_) => Flow::Out,
            ForwardedData::In(mut memory) => {
                moved = self.edit(sent, edit, (&mut memory, moved.min(length)), status);
                reply.final_data.data = memory.share().split_to(moved);
                Flow::In
            }
        };
        reply.wanted = moved as u64;
        if flow == Flow::In && status == Status::GOOD {
            let head = follow::head(&reply.final_data.data, moved);
            follow::learn(sent.facts(), sent.itl.lu.device_type, sent.cdb(), &head);
        }
        self.notice(sent, status, &sense).await;
        match status {
            Status::GOOD => self.count(flow, moved as u64),
            Status::CHECK_CONDITION => self.config.stats.check_conditions.add(1),
            // Another initiator of the device has aborted the command. In a `Reply` the status means that the nexus has
            // aborted it.
            Status::TASK_ABORTED => {
                let sense = Sense::new(SenseKey::ABORTED_COMMAND, Asc::COMMANDS_CLEARED_BY_DEVICE_SERVER);
                return Err(Refusal::from(sense).wanting(moved as u64));
            }
            _ => {}
        }
        (reply.status, reply.sense) = (status, sense);
        Ok((flow, moved as u64))
    }

    /// Edits the Data-In of a command; returns the number of valid bytes.
    fn edit<T>(&self, sent: &Sent<'_, T>, edit: Edit, (memory, moved): (&mut SgMut, usize), status: Status) -> usize {
        let cx = sent.call.context(self, Writer::new(&mut []));
        let moved = inquiry::edit(&cx, sent.itl, edit, memory, moved.min(memory.len()));
        if status != Status::GOOD {
            return moved;
        }
        let longest = FORWARDED_BYTES_MAX.min(sent.lu.unit.device.transfer_bytes_max());
        edit::output((sent.call.device, sent.itl, sent.lu), sent.cdb(), (memory, moved), longest)
    }

    /// Sense data that the device did not return with CHECK CONDITION: it is asked for at once.
    async fn missing_sense<T>(&self, sent: &Sent<'_, T>, arena: &Arena) -> SenseData {
        /// Bytes of the longest sense data (SPC-4 4.5.1).
        const LENGTH: u8 = 252;
        let found = self.ask((&sent.itl.lu, sent.lu), &[0x03, 0, 0, 0, LENGTH, 0], LENGTH.into(), arena).await;
        SenseData::of_device(&found.unwrap_or_default())
    }

    /// Tells other nexuses what they have to know of the end of a command.
    async fn notice<T>(&self, sent: &Sent<'_, T>, status: Status, sense: &SenseData) {
        let (lu, facts, name) = (&*sent.itl.lu, sent.facts(), &sent.call.nexus.name);
        let meaning = sense.meaning().filter(|_| status == Status::CHECK_CONDITION);
        let asc = match (status, meaning, sent.row.map(|row| row.policy.admission.forwarded)) {
            (Status::GOOD, _, Some(Forwarding::DeviceThenAttention(asc))) => Some(asc),
            // The device reports it to its only initiator, which is Lunar, once. The nexus of this command gets it now.
            (_, Some((SenseKey::UNIT_ATTENTION, asc)), _) => Some(asc),
            _ => None,
        };
        let is_empty =
            matches!(meaning, Some((SenseKey::NOT_READY, asc)) if asc.0 >> 8 == Asc::MEDIUM_NOT_PRESENT.0 >> 8);
        if is_empty {
            facts.set_empty(true);
        }
        if let Some(asc) = asc {
            if concerns_facts(asc) {
                facts.expire();
            }
            self.tell(lu, Some(name), asc).await;
        }
        if status != Status::GOOD {
            return;
        }
        // The kernel of this machine polls drives as well, and takes the unit attention condition of a new medium.
        let needs_medium = sent.cdb().first() == Some(&OpCode::TEST_UNIT_READY.0)
            || sent.row.is_some_and(|row| row.policy.effect != Effect::None);
        if needs_medium && facts.set_empty(false) {
            facts.expire();
            self.tell(lu, Some(name), Asc::MEDIUM_MAY_HAVE_CHANGED).await;
        }
        if unloads(lu.device_type, sent.cdb()) {
            self.give_back(sent.call, sent.itl).await;
        }
    }
}

/// The refusal of a command that the device did not process. A device that cannot be reached is not ready.
pub(crate) fn of_device(fault: Fault) -> Refusal {
    match fault {
        Fault::Gone => Sense::new(SenseKey::NOT_READY, Asc::NO_RESPONSE_TO_SELECTION).into(),
        fault => fault::transfer(fault),
    }
}

/// The class of a command of a device in metrics.
fn class(flow: Flow, effect: Effect) -> Class {
    match (flow, effect) {
        (_, Effect::None) => Class::Other,
        (Flow::In, _) => Class::Read,
        (Flow::Out, _) => Class::Write,
        _ => Class::Other,
    }
}

/// Refuses a CDB that is shorter than its command, and NACA: ACA conditions do not exist.
pub(crate) fn check_cdb(cdb: &Cdb) -> Result<(), Sense> {
    /// NACA in the CONTROL byte (SAM-5 5.2).
    const NACA_BIT: u8 = 2;
    let bytes = cdb.bytes();
    if cdb.length().is_some_and(|length| bytes.len() < length) {
        return Err(Sense::in_cdb(bytes.len()));
    }
    match cdb.control_at() {
        Some(at) if bytes.get(at).is_some_and(|control| control & 1 << NACA_BIT != 0) => {
            Err(Sense::bit_in_cdb(at, NACA_BIT))
        }
        _ => Ok(()),
    }
}

/// A command that is sent to a device.
struct Sent<'a, T> {
    call: Call<'a>,
    itl: &'a ItlNexus,
    lu: &'a Forwarded,
    transfer: &'a T,
    /// The row of the command; `None` if only the device knows it.
    row: Option<&'static Row>,
    /// The generation of the device when the command was admitted.
    generation: u64,
}

impl<T> Sent<'_, T> {
    fn cdb(&self) -> &[u8] {
        self.call.command.cdb.command_bytes()
    }

    fn facts(&self) -> &DeviceFacts {
        self.lu.unit.device.facts()
    }

    /// Direction and bytes of the data. Those of reads and writes are known from the CDB, so that the device gets as
    /// much memory as it moves. Those of other commands are as the initiator expects them, but at least the allocation
    /// length: a device that returns more than there is room for ends with an error of the host adapter.
    fn moves(&self) -> Result<Option<Moves>, Refusal> {
        /// Allocation lengths are often far longer than the data.
        const ANSWER_BYTES_MAX: usize = 64 << 10;
        let expected = length::expected(self.call.command);
        let of_cdb = length::of(self.itl.lu.device_type, self.cdb(), self.facts().block_length());
        Ok(match (of_cdb, expected) {
            (Some(Moves::In(0) | Moves::Out(0)), _) => None,
            (Some(Moves::In(bytes)), None | Some(Moves::In(_))) => Some(Moves::In(bytes)),
            (Some(Moves::Out(bytes)), Some(Moves::Out(sent))) if sent >= bytes => Some(Moves::Out(bytes)),
            (Some(Moves::In(bytes) | Moves::Out(bytes)), _) => return Err(mismatch(bytes as u64)),
            (None, Some(Moves::In(bytes))) => {
                let asked = self.row.filter(|row| row.flow == Flow::Answer).map(|row| row.amount(self.cdb()));
                let asked = asked.and_then(Result::ok).map_or(0, |asked| asked as usize);
                Some(Moves::In(bytes.max(asked.min(ANSWER_BYTES_MAX))))
            }
            (None, expected) => expected,
        })
    }
}

impl<T> Sent<'_, T> {
    fn sending(&self) -> Sending<'_, T> {
        let (device, id) = (&*self.lu.unit.device, self.lu.next_command());
        let class = self.row.map_or(Timeout::Long, |row| row.policy.admission.timeout);
        let timeout = timeouts::of(class, self.itl.lu.device_type);
        Sending { call: self.call, transfer: self.transfer, device, id, timeout, generation: self.generation }
    }
}
