//! The interface to device servers outside of this process: a real device, or a handler process. The commands of a
//! forwarded logical unit are sent to a [`DeviceServer`] after the checks of Lunar.

use crate::command::{Cdb, Status, TaskAttribute};
use crate::forwarding::{DeviceFacts, Terms};
use crate::operation_code::OpCode;
use crate::peripheral::PeripheralType;
use crate::sense::{Asc, SenseData};
use lunar_core::io::Fault;
use lunar_core::mem::{Sg, SgMut};
use lunar_core::port::NexusName;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

/// Bytes of the longest Data-In or Data-Out of a forwarded command. The data is in memory as a whole, because the
/// device gets it in one piece: the longest block of an LTO tape.
pub const FORWARDED_BYTES_MAX: usize = 8 << 20;

/// One core's connection to a device server.
///
/// The device server sees one initiator, whatever the number of nexuses. Lunar keeps reservations, unit attentions,
/// task sets and LUNs for it; see [`Forwarding`](crate::policy::Forwarding) for the commands that are not sent to it.
pub trait DeviceServer {
    /// PERIPHERAL DEVICE TYPE of the device, which never changes.
    fn device_type(&self) -> PeripheralType;

    /// Whether it has the commands with this operation code. Asked only if it executes some commands of an emulated
    /// logical unit, those that Lunar does not have.
    fn has_command(&self, code: OpCode) -> bool {
        let _ = code;
        true
    }

    /// Bytes of the longest Data-In or Data-Out that the device accepts. At most [`FORWARDED_BYTES_MAX`] count.
    fn transfer_bytes_max(&self) -> usize;

    /// The terms on which the device is shared.
    fn terms(&self) -> &Terms;

    /// The properties of the device that Lunar follows: the same object on all cores.
    fn facts(&self) -> &DeviceFacts;

    /// Takes the unit attention condition of an event that the device itself cannot report, because its only initiator
    /// has noticed it otherwise: it vanished and came back. One core gets it, once; or every command gets it, until
    /// [`DeviceServer::event_told`].
    fn take_event(&self) -> Option<Asc>;

    /// All nexuses were told of the event that [`DeviceServer::take_event`] returned in this generation.
    fn event_told(&self, generation: u64) {
        let _ = generation;
    }

    /// A number that changes when the device has lost the state that commands depend on. A command that was admitted in
    /// an earlier generation is not executed, but ends with BUSY: its nexus has to be told first.
    fn generation(&self) -> u64 {
        0
    }

    /// A nexus has ended, or was reset. It has no command in progress on this core.
    fn lose_nexus(&self, nexus: &NexusName) {
        let _ = nexus;
    }

    /// Starts a command. `done` is completed exactly once, now or later, with the memory of the command. The device may
    /// access that memory until then, even if the command was aborted.
    fn submit(&self, command: ForwardedCommand, done: ForwardDone);

    /// Asks the device to abort the command with this number. The command's [`ForwardDone`] is completed in any case,
    /// when the device does not process the command any more.
    fn abort(&self, id: u64);

    /// Resets the logical unit. All commands of all cores end. When the future is ready, the unit attention that the
    /// device has established for the reset was taken, so that no later command reports it again.
    fn reset(&self) -> Pin<Box<dyn Future<Output = Result<(), Fault>>>>;
}

/// A command for a device server.
#[derive(Debug)]
pub struct ForwardedCommand {
    /// A number for [`DeviceServer::abort`], which is unique among the commands in progress on this core.
    pub id: u64,
    /// The nexus that sent it; `None`: Lunar itself.
    pub nexus: Option<NexusName>,
    /// [`DeviceServer::generation`] when the command was admitted.
    pub generation: u64,
    /// The CDB, with all bytes that the transport received: see [`Cdb::command_bytes`].
    pub cdb: Cdb,
    /// The task attribute. Lunar has ordered the command among others of its nexus; the device orders nexuses.
    pub attribute: TaskAttribute,
    /// Direction, memory and length of the data.
    pub data: ForwardedData,
    /// How long the command may take, unless the device itself reports another time.
    pub timeout: Duration,
}

/// Direction and memory of the data of a forwarded command.
#[derive(Debug, Default)]
pub enum ForwardedData {
    /// No data.
    #[default]
    None,
    /// Data-Out.
    Out(Sg),
    /// Memory for Data-In, as long as the initiator expects.
    In(SgMut),
}

impl ForwardedData {
    /// Bytes of the data.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Out(data) => data.len(),
            Self::In(memory) => memory.len(),
        }
    }

    /// Whether there is no data.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The reply of a device server.
#[derive(Debug)]
pub struct ForwardedReply {
    /// Status.
    pub status: Status,
    /// Sense data, in the format of the device; empty if there is none.
    pub sense: SenseData,
    /// Bytes of the data that were moved: the length of the data without the residual.
    pub moved: usize,
    /// The memory of the command. Data-In has valid bytes up to `moved`.
    pub data: ForwardedData,
}

/// The duty to complete one command. Dropping it completes the command with [`Fault::Aborted`].
#[must_use = "a command must be completed"]
pub struct ForwardDone(Option<Rc<Slot>>);

#[derive(Default)]
struct Slot {
    reply: RefCell<Option<Result<ForwardedReply, Fault>>>,
    waker: Cell<Option<Waker>>,
}

impl Slot {
    fn complete(&self, reply: Result<ForwardedReply, Fault>) {
        *self.reply.borrow_mut() = Some(reply);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl ForwardDone {
    /// Completes the command. A fault is the reason for which the device did not process it.
    pub fn complete(mut self, reply: Result<ForwardedReply, Fault>) {
        if let Some(slot) = self.0.take() {
            slot.complete(reply);
        }
    }
}

impl Drop for ForwardDone {
    fn drop(&mut self) {
        if let Some(slot) = self.0.take() {
            slot.complete(Err(Fault::Aborted));
        }
    }
}

impl fmt::Debug for ForwardDone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ForwardDone")
    }
}

/// The receiver of the reply to one command.
#[derive(Default)]
pub struct PendingReply(Rc<Slot>);

impl PendingReply {
    /// The duty to complete the command.
    pub fn duty(&self) -> ForwardDone {
        ForwardDone(Some(self.0.clone()))
    }

    /// Waits for the reply.
    ///
    /// # Errors
    /// Why the device did not process the command.
    pub async fn wait(&self) -> Result<ForwardedReply, Fault> {
        poll_fn(|cx| match self.0.reply.take() {
            Some(reply) => Poll::Ready(reply),
            None => {
                self.0.waker.set(Some(cx.waker().clone()));
                Poll::Pending
            }
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at_once;

    #[test]
    fn a_dropped_duty_completes_the_command_with_a_fault() {
        let pending = PendingReply::default();
        drop(pending.duty());
        assert_eq!(at_once(pending.wait()).map(|reply| reply.status), Err(Fault::Aborted));
    }

    #[test]
    fn a_reply_arrives_once() {
        let pending = PendingReply::default();
        let reply =
            ForwardedReply { status: Status::GOOD, sense: SenseData::default(), moved: 0, data: ForwardedData::None };
        pending.duty().complete(Ok(reply));
        assert_eq!(at_once(pending.wait()).map(|reply| reply.status), Ok(Status::GOOD));
        assert!(pending.0.reply.borrow().is_none());
    }
}
