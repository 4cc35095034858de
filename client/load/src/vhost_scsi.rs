//! Queues to a logical unit of a vhost-user SCSI host adapter (virtio-scsi). The rings of task management and of events
//! stay stopped, as those of a firmware do: a load needs neither.

use crate::options::Options;
use crate::scsi::{self, Answer};
use crate::session::{Outcome, Request, Work};
use crate::target::{Capacity, OpenSessions};
use crate::vhost::{self, ControlSocket, Device, Plan, Queue};
use anyhow::{Context, Result, ensure};
use lunar_iscsi_initiator::cdb::{self, CAPACITY_LEN, Cdb, Status};
use lunar_vhost_client::scsi::{self as adapter, CommandData, CommandEnd, NO_RESPONSE, Scsi, ScsiCommand, ScsiLane};
use lunar_vhost_user::scsi::{COMMANDS, Response, address_of};
use std::time::Duration;

/// The longest transfer of a command is not known: a target refuses those that are too long.
const TRANSFER_MAX: u32 = u32::MAX;

/// A logical unit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogicalUnit {
    /// Its address in a header.
    lun: [u8; 8],
}

impl Device for LogicalUnit {
    type Form = Scsi;

    #[inline]
    fn request(&self, command: &Request, tag: u64) -> ScsiCommand {
        let data = match command.work {
            Work::Read => CommandData::In(command.bytes),
            Work::Write(_) => CommandData::Out(command.bytes),
            Work::Flush => CommandData::Nothing,
        };
        let cdb = scsi::cdb_of(&command.work, (command.lba, command.blocks), command.fua);
        ScsiCommand { lun: self.lun, tag, cdb, data }
    }

    #[inline]
    fn outcome(lane: &ScsiLane, slot: u16, end: CommandEnd) -> Outcome {
        let is_good = end.response == Response::OK && end.status == Status::GOOD.0 && end.residual == 0;
        if is_good { Outcome::Good } else { failure(lane, slot, end) }
    }
}

#[cold]
fn failure(lane: &ScsiLane, slot: u16, end: CommandEnd) -> Outcome {
    let CommandEnd { response, status, residual } = end;
    match response {
        Response::OK => scsi::failure(Status(status), &lane.sense(slot), || {
            format!("{:?}, {residual} bytes were not moved", Status(status))
        }),
        Response::BUSY => Outcome::Again,
        _ => Outcome::Failed(words(response)),
    }
}

/// The meaning of a response that is not OK.
fn words(response: Response) -> String {
    match response {
        NO_RESPONSE => "the device has written no response: is it a host adapter (virtio-scsi)?".to_owned(),
        Response::BAD_TARGET | Response::INCORRECT_LUN => format!("{response:?}: there is no such logical unit"),
        _ => format!("the response of the device is {response:?}"),
    }
}

impl Queue<LogicalUnit> {
    /// Executes one command before the load starts.
    fn set_up(&mut self, (unit, cdb): (LogicalUnit, Cdb), data_in: u32, timeout: Duration) -> Result<Vec<u8>> {
        let data = if data_in == 0 { CommandData::Nothing } else { CommandData::In(data_in) };
        scsi::set_up(|| {
            let (slot, end) = self.run(&ScsiCommand { lun: unit.lun, tag: 0, cdb, data }, timeout)?;
            if end.response == Response::BUSY {
                return Ok(Answer { status: Status::BUSY.0, ..Answer::default() });
            }
            ensure!(end.response == Response::OK, words(end.response));
            let len = data_in.saturating_sub(end.residual);
            Ok(Answer { status: end.status, sense: self.lane().sense(slot), data: self.data(slot, len as usize) })
        })
    }
}

/// Opens all queues of a run and queries the capacity of the logical unit.
pub(crate) fn open(options: &Options) -> Result<OpenSessions<Queue<LogicalUnit>>> {
    options.check_for_vhost_scsi().map_err(anyhow::Error::msg)?;
    let (url, timeout) = (options.url.clone(), options.timeout);
    let control = ControlSocket::connect(&url.host, timeout)?;
    let negotiated = control.negotiate(adapter::features, adapter::protocol_features);
    let (_, rings) = negotiated.with_context(|| url.to_string())?;
    // LUNs in URLs have 14 bits.
    let unit = LogicalUnit { lun: address_of(url.unit as u16) };
    let queues = adapter::queues(rings);
    ensure!(queues > 0, "{url}: the device has no queue for commands: is it a host adapter (virtio-scsi)?");
    let plan = Plan { device: unit, first_ring: COMMANDS as u16, queues, piece: usize::MAX };
    let mut active = vhost::start(control, &plan, options).with_context(|| url.to_string())?;
    let first = active.first_mut().context("a queue")?;
    first.set_up((unit, cdb::TEST_UNIT_READY), 0, timeout).context("the unit is not ready")?;
    let data = first.set_up((unit, cdb::read_capacity()), CAPACITY_LEN, timeout);
    let capacity: Capacity = scsi::capacity(&data.context("READ CAPACITY (16) failed")?)?;
    let negotiated = vhost::negotiated(&active, TRANSFER_MAX);
    let transfer_max = TRANSFER_MAX;
    Ok(OpenSessions { url, active, idle: Vec::new(), capacity, transfer_max, negotiated, logins: None })
}
