//! Executes the commands of forwarded logical units: first the checks of Lunar, then the device.

use crate::admit::{Refusal, pass};
use crate::change::{Change, ScsiChange};
use crate::command::{Cdb, Command, Reply, Status};
use crate::context::Call;
use crate::device_server::{FORWARDED_BYTES_MAX, ForwardedCommand, ForwardedData, ForwardedReply, PendingReply};
use crate::execute::{check_attribute, contiguous, pull_list};
use crate::fault;
use crate::fit::mismatch;
use crate::lu::Forwarded;
use crate::nexus::ItlNexus;
use crate::plan::{Edit, Plan};
use crate::policy::{Admission, Alua, Code, Effect, Forwarding, Gate, OpCode, Persistent, Policy, Timeout};
use crate::row::{Flow, Row};
use crate::sense::{Asc, Sense, SenseKey};
use crate::spc::inquiry;
use crate::target::Target;
use lunar_core::io::Fault;
use lunar_core::mem::Arena;
use lunar_core::port::Transfer;
use lunar_core::step::SlotContext;
use lunar_core::traffic::Class;
use lunar_core::wire::Writer;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

/// The policy of a command of a forwarded logical unit that has no row: only the device knows it, so it may have any
/// effect.
pub static UNKNOWN_COMMAND: Policy = Policy {
    name: "command without a row",
    clause: "SPC-4 5.13.1",
    code: Code::of(OpCode(0xff)),
    effect: Effect::Write,
    admission: Admission {
        needs: None,
        forwarded: Forwarding::Device,
        attention: Gate::Stops,
        spc2: Gate::Stops,
        persistent: Persistent::Conflict,
        alua: Alua::Active,
        not_ready: Gate::Stops,
        write_protect: Gate::Stops,
        timeout: Timeout::Long,
    },
};

/// The data of one command takes this part of the memory of its core at most, so that other commands continue.
const ARENA_PART: usize = 4;

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
        let sent = Sent { call, itl, lu, transfer };
        let edit = match (policy.admission.forwarded, row) {
            (Forwarding::Refused, _) => return Err(UNSUPPORTED.into()),
            (Forwarding::Lunar, Some(row)) => match self.execute_row(row, &sent, slot, reply).await? {
                Some(edit) => edit,
                None => return Ok((Class::Other, reply.wanted)),
            },
            _ => {
                pass(policy, itl)?;
                Edit::None
            }
        };
        let news = match policy.admission.forwarded {
            Forwarding::DeviceThenAttention(asc) => Some(asc),
            _ => None,
        };
        let (flow, moved) = self.send(&sent, edit, news, slot, reply).await?;
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

    /// Sends a command to the device, and takes its reply over. `news` is established for other nexuses if the command
    /// ends with GOOD. Returns the direction of the data, and its bytes.
    async fn send<T: Transfer>(
        &self,
        sent: &Sent<'_, T>,
        edit: Edit,
        news: Option<Asc>,
        slot: &SlotContext,
        reply: &mut Reply,
    ) -> Result<(Flow, u64), Refusal> {
        let data = sent.data(&slot.arena).await?;
        let length = data.len();
        let ForwardedReply { status, sense, moved, data } = sent.reply(data).await.map_err(fault::transfer)?;
        let mut moved = moved.min(length);
        let flow = match data {
            ForwardedData::None => Flow::None,
            ForwardedData::Out(_) => Flow::Out,
            ForwardedData::In(mut memory) => {
                let cx = sent.call.context(self, Writer::new(&mut []));
                moved = moved.min(memory.len());
                moved = inquiry::edit(&cx, sent.itl, edit, &mut memory, moved);
                reply.final_data.data = memory.share().split_to(moved);
                Flow::In
            }
        };
        reply.wanted = moved as u64;
        let news = match (status, sense.meaning()) {
            (Status::GOOD, _) => news,
            // The device reports it to its only initiator, which is Lunar, once. The nexus of this command gets it now.
            (Status::CHECK_CONDITION, Some((SenseKey::UNIT_ATTENTION, asc))) => Some(asc),
            _ => None,
        };
        if let Some(asc) = news {
            let change = ScsiChange { change: Change::Device(asc), record: None };
            // It is never refused: it needs no metadata.
            let _ = self.config.units.propose(&*sent.itl.lu, Some(&sent.call.nexus.name), change.into()).await;
        }
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
fn check_cdb(cdb: &Cdb) -> Result<(), Sense> {
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
}

impl<T: Transfer> Sent<'_, T> {
    /// The data of the command. Only the device knows its direction and length, so those that the initiator expects are
    /// taken.
    async fn data(&self, arena: &Arena) -> Result<ForwardedData, Refusal> {
        let Command { data_in, data_out, .. } = *self.call.command;
        let length = data_in.max(data_out) as usize;
        let longest = FORWARDED_BYTES_MAX.min(self.lu.unit.device.transfer_bytes_max()).min(arena.size() / ARENA_PART);
        if length > longest {
            return Err(Sense::illegal(Asc::INVALID_FIELD_IN_CDB).into());
        }
        match (data_in, data_out) {
            (0, 0) => Ok(ForwardedData::None),
            (0, _) => {
                let pulled = self.transfer.pull(0, length).await.map_err(fault::transfer)?;
                Ok(ForwardedData::Out(pulled))
            }
            (_, 0) => {
                self.transfer.room().await.map_err(fault::transfer)?;
                self.transfer.reserve(length, length).await.map_err(fault::transfer)?;
                Ok(ForwardedData::In(arena.wait_sg(length).await))
            }
            // Bidirectional commands are not forwarded.
            (_, _) => Err(mismatch(0)),
        }
    }

    /// Submits the command and waits for its reply. If the command is aborted meanwhile, it is aborted at the device
    /// as well, whose reply is awaited in any case: the device may access the memory until then.
    async fn reply(&self, data: ForwardedData) -> Result<ForwardedReply, Fault> {
        let Command { cdb, attribute, tag, .. } = *self.call.command;
        let (nexus, device, id) = (self.call.nexus, &self.lu.unit.device, self.lu.next_command());
        let pending = PendingReply::default();
        device.submit(ForwardedCommand { id, cdb, attribute, data }, pending.duty());
        let is_aborted = nexus.tasks.until_aborted(|(t, l)| t == tag && l == self.call.command.lun);
        let (mut is_aborted, mut reply) = (pin!(is_aborted), pin!(pending.wait()));
        let first = poll_fn(|cx| match reply.as_mut().poll(cx) {
            Poll::Ready(reply) => Poll::Ready(Some(reply)),
            Poll::Pending => is_aborted.as_mut().poll(cx).map(|()| None),
        });
        match first.await {
            Some(reply) => reply,
            None => {
                device.abort(id);
                reply.await
            }
        }
    }
}

#[cfg(test)]
#[path = "testing/tape_tests.rs"]
mod tests;
