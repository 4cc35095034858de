//! SCSI devices that a handler serves: the trait, and the execution of the commands of a queue on it.

use crate::data::{DataIn, DataOut};
use crate::ring::ScsiEnd;
use crate::serve::{Device, Unit};
use crate::wire::{FRAME_BYTES, Frame, NexusNames, Operation, SENSE_BYTES_MAX, Status, Submission, flags};
use lunar_core::mem::Region;
use std::collections::BTreeMap;
use std::time::Duration;
use zerocopy::{FromZeros, IntoBytes};

/// GOOD (SAM-5 5.3.1).
pub const GOOD: u8 = 0x00;
/// CHECK CONDITION (SAM-5 5.3.1).
pub const CHECK_CONDITION: u8 = 0x02;
/// The nexus of commands that Lunar sends by itself, for example to learn the block length of a tape.
pub const OWN_NEXUS: u64 = 0;

/// A SCSI device that a handler serves: a logical unit of any peripheral device type.
///
/// Lunar shares the device among all initiators, and executes what belongs to the target by itself: REPORT LUNS,
/// reservations, the Device Identification VPD page, PREVENT ALLOW MEDIUM REMOVAL of several initiators. The device
/// reports a unit attention condition once, to the next command of any nexus: Lunar tells the other nexuses. It
/// establishes none for power on, for a reset, and for what a command of an initiator has changed (MODE SELECT):
/// Lunar does.
///
/// A command that was answered outlives the process of the handler as far as its standard promises. Lunar repeats no
/// command: after the end of a handler, those without an answer end with ABORTED COMMAND.
pub trait ScsiDevice {
    /// Name and version for the operator, at most 64 bytes: `tape 1.0`.
    fn name(&self) -> &str;

    /// PERIPHERAL DEVICE TYPE (SPC-4 6.6.2): the same as in the configuration of Lunar.
    fn device_type(&self) -> u8;

    /// A connection begins: what Lunar says about the logical unit.
    fn begin(&mut self, unit: &Unit) {
        let _ = unit;
    }

    /// A nexus begins, before its first command.
    fn attach(&mut self, nexus: &Nexus) {
        let _ = nexus;
    }

    /// A nexus ends, or was reset (I_T NEXUS RESET); then it begins again before its next command.
    fn detach(&mut self, nexus: u64) {
        let _ = nexus;
    }

    /// LOGICAL UNIT RESET.
    fn reset(&mut self) {}

    /// Executes a command. `data_in` has as many bytes as the initiator expects.
    fn execute(&mut self, command: &ScsiCommand<'_>, data_in: &mut DataIn<'_>) -> Outcome;
}

/// A volume whose blocks a handler serves, with SCSI commands that Lunar does not have.
///
/// Lunar executes its own commands, from INQUIRY to COMPARE AND WRITE, and over every transport; the handler gets their
/// reads, writes and flushes as blocks. Commands with the [`MixedDevice::operation_codes`] go to the handler as a
/// whole, from SCSI initiators only. Lunar checks reservations, access states and write protection before. It takes
/// them for commands that may write.
pub trait MixedDevice {
    /// The operation codes of the commands. Lunar refuses a handler with one of its own; those of vendors, C0h to FFh,
    /// are always free.
    fn operation_codes(&self) -> &[u8];

    /// The blocks, with the name for the operator.
    fn blocks(&mut self) -> &mut dyn Device;

    /// The commands. [`ScsiDevice::device_type`] and [`ScsiDevice::begin`] are not called.
    fn commands(&mut self) -> &mut dyn ScsiDevice;
}

/// A nexus: an initiator port at a target port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Nexus {
    /// The number by which commands name it; never [`OWN_NEXUS`].
    pub id: u64,
    /// The initiator port in the spelling of its transport: for iSCSI `name,i,0xISID`.
    pub initiator: String,
    /// The relative identifier of the target port.
    pub target_port: u16,
}

/// A SCSI command.
#[derive(Clone, Copy, Debug)]
pub struct ScsiCommand<'a> {
    /// The nexus that sent it; [`OWN_NEXUS`]: Lunar itself.
    pub nexus: u64,
    /// The CDB.
    pub cdb: &'a [u8],
    /// The task attribute (SAM-5 8.9): 0 simple, 1 head of queue, 2 ordered. Lunar keeps the order within a nexus.
    pub attribute: u8,
    /// Data from the initiator.
    pub data_out: DataOut<'a>,
    /// How long it may take.
    pub timeout: Duration,
}

/// How a command ended.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Outcome {
    /// The SCSI status.
    pub status: u8,
    /// Sense data of CHECK CONDITION, at most [`SENSE_BYTES_MAX`]; empty otherwise.
    pub sense: Vec<u8>,
    /// Bytes of the data, of either direction, that were not moved.
    pub residual: usize,
}

/// The nexuses that are attached, each with the number of its queue.
pub(crate) type Attached = BTreeMap<u64, u32>;

/// A queue as the execution of a command sees it.
pub(crate) struct Place<'a> {
    pub(crate) queue: u32,
    pub(crate) data: &'a Region,
    pub(crate) attached: &'a mut Attached,
}

/// Executes a command of a queue.
pub(crate) fn execute(command: &Submission, place: Place<'_>, device: &mut dyn ScsiDevice) -> Result<ScsiEnd, Status> {
    let at = || usize::try_from(command.data.get()).map_err(|_| Status::FAILED);
    let nexus = command.offset.get();
    match Operation(command.operation) {
        Operation::SCSI => return execute_cdb(command, at()?, place.data, device),
        Operation::ATTACH => {
            let mut names = NexusNames::new_zeroed();
            inside(place.data.read(at()?, names.as_mut_bytes()))?;
            let initiator = names.initiator.get(..usize::from(names.initiator_length.get())).ok_or(Status::FAILED)?;
            let initiator = String::from_utf8_lossy(initiator).into_owned();
            place.attached.insert(nexus, place.queue);
            device.attach(&Nexus { id: nexus, initiator, target_port: names.target_port.get() });
        }
        Operation::DETACH => {
            if place.attached.remove(&nexus).is_some() {
                device.detach(nexus);
            }
        }
        // Commands are executed one by one: the command has ended, or waits in the ring of another queue.
        Operation::ABORT => {}
        Operation::RESET => device.reset(),
        _ => return Err(Status::UNSUPPORTED),
    }
    Ok(ScsiEnd::default())
}

/// Ends the nexuses of a queue that is closed.
pub(crate) fn detach_all(queue: u32, attached: &mut Attached, device: &mut dyn ScsiDevice) {
    attached.retain(|nexus, of| {
        let stays = *of != queue;
        if !stays {
            device.detach(*nexus);
        }
        stays
    });
}

fn inside(is_inside: bool) -> Result<(), Status> {
    if is_inside { Ok(()) } else { Err(Status::FAILED) }
}

fn execute_cdb(command: &Submission, at: usize, data: &Region, device: &mut dyn ScsiDevice) -> Result<ScsiEnd, Status> {
    let mut frame = Frame::new_zeroed();
    inside(data.read(at, frame.as_mut_bytes()))?;
    let cdb = frame.cdb.get(..usize::from(frame.cdb_length)).filter(|cdb| !cdb.is_empty()).ok_or(Status::FAILED)?;
    let length = usize::try_from(command.length.get()).map_err(|_| Status::FAILED)?;
    let is_in = command.flags & flags::DATA_IN != 0;
    let (length_out, length_in) = if is_in { (0, length) } else { (length, 0) };
    let start = at + FRAME_BYTES;
    let data_out = DataOut::shared(data, start, length_out).ok_or(Status::FAILED)?;
    let mut data_in = DataIn::shared(data, start, length_in).ok_or(Status::FAILED)?;
    let of_nexus = ScsiCommand {
        nexus: command.offset.get(),
        cdb,
        attribute: frame.attribute,
        data_out,
        timeout: Duration::from_millis(command.timeout_milliseconds.get().into()),
    };
    let Outcome { status, sense, residual } = device.execute(&of_nexus, &mut data_in);
    let count = length.saturating_sub(residual);
    data_in.fill_to(count.min(length_in));
    let sense = &sense[..sense.len().min(SENSE_BYTES_MAX)];
    inside(data.write(at + std::mem::offset_of!(Frame, sense), sense))?;
    // Both are bounded by the memory of the data and by the frame.
    Ok(ScsiEnd { status, moved: count as u32, sense_length: sense.len() as u16 })
}

#[cfg(test)]
#[path = "scsi_tests.rs"]
mod tests;
