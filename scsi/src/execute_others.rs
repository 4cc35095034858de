//! Executes the commands of emulated logical units that Lunar does not have, and a handler has: first the checks of
//! Lunar, then the handler.

use crate::admit::{Refusal, pass};
use crate::command::{Command, Reply, Status};
use crate::context::Call;
use crate::device_server::{ForwardedData, ForwardedReply};
use crate::device_types;
use crate::execute::check_attribute;
use crate::execute_forwarded::{check_cdb, of_device};
use crate::forwarding::length::expected;
use crate::forwarding::sending::Sending;
use crate::forwarding::timeouts;
use crate::lu::{Emulated, LogicalUnit, OtherCommands};
use crate::nexus::{Addressee, ItlNexus, Nexus};
use crate::policy::{OpCode, UNKNOWN_COMMAND};
use crate::row::Flow;
use crate::sense::{Asc, Sense, SenseKey};
use crate::target::Target;
use lunar_core::port::Transfer;
use lunar_core::step::SlotContext;
use lunar_core::traffic::Class;

/// The process that has the command of `call`, if Lunar does not have it.
pub(crate) fn others_of<'a>(call: Call<'_>, lu: &'a Emulated) -> Option<&'a OtherCommands> {
    let others = lu.others.as_ref()?;
    let cdb = call.command.cdb.bytes();
    let code = OpCode(*cdb.first()?);
    (others.device.has_command(code) && call.device.find(cdb).is_err()).then_some(others)
}

impl Nexus {
    /// Whether Lunar alone executes a command: no device and no process gets it, even one that is not connected now.
    /// A transport that does not know whether a command was executed may repeat no other one.
    #[must_use]
    pub fn stays_in_lunar(&self, command: &Command) -> bool {
        let addressee = self.addressee(command.lun);
        let Addressee::Unit(itl) = &addressee else { return true };
        match &*itl.lu {
            LogicalUnit::Emulated(lu) => {
                lu.others.is_none() || device_types::of(&addressee).find(command.cdb.bytes()).is_ok()
            }
            LogicalUnit::Forwarded(_) => false,
        }
    }
}

impl Target {
    /// Sends a command to the process that has it.
    pub(crate) async fn send_to_others<T: Transfer>(
        &self,
        call: Call<'_>,
        (itl, others): (&ItlNexus, &OtherCommands),
        transfer: &T,
        slot: &mut SlotContext,
        reply: &mut Reply,
    ) -> Result<(Class, u64), Refusal> {
        check_attribute(call.command)?;
        check_cdb(&call.command.cdb)?;
        let device = &*others.device;
        let generation = device.generation();
        pass(&UNKNOWN_COMMAND, itl)?;
        let timeout = timeouts::of(UNKNOWN_COMMAND.admission.timeout, itl.lu.device_type);
        let sending = Sending { call, transfer, device, id: others.next_command(), timeout, generation };
        let data = sending.data(expected(call.command), &slot.arena).await?;
        let length = data.len();
        let ForwardedReply { status, sense, moved, data } = sending.reply(data).await.map_err(of_device)?;
        let moved = moved.min(length);
        let flow = match data {
            ForwardedData::None => Flow::None,
            ForwardedData::Out(_) => Flow::Out,
            ForwardedData::In(memory) => {
                reply.final_data.data = memory.share().split_to(moved);
                Flow::In
            }
        };
        let moved = moved as u64;
        reply.wanted = moved;
        let meaning = sense.meaning();
        match status {
            Status::GOOD => self.count(flow, moved),
            Status::CHECK_CONDITION => {
                self.config.stats.check_conditions.add(1);
                // The process reports it to its only initiator, which is Lunar, once. This nexus gets it now.
                if let Some((SenseKey::UNIT_ATTENTION, asc)) = meaning {
                    self.tell(&itl.lu, Some(&call.nexus.name), asc).await;
                }
            }
            // In a `Reply` this status means that the nexus has aborted the command.
            Status::TASK_ABORTED => {
                let sense = Sense::new(SenseKey::ABORTED_COMMAND, Asc::COMMANDS_CLEARED_BY_DEVICE_SERVER);
                return Err(Refusal::from(sense).wanting(moved));
            }
            _ => {}
        }
        if status == Status::CHECK_CONDITION && sense.is_empty() {
            return Err(Sense::new(SenseKey::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE).into());
        }
        (reply.status, reply.sense) = (status, sense);
        Ok((Class::Other, moved))
    }
}

#[cfg(test)]
#[path = "execute_others_tests.rs"]
mod tests;
