//! The end of a command, as the kernel reports it, in the terms of SCSI.

use lunar_core::io::{Data, Fault};
use lunar_reactor::scsi_generic::{Outcome, Reply};
use lunar_scsi::command::Status;
use lunar_scsi::device_server::{ForwardedData, ForwardedReply};
use lunar_scsi::sense::{Asc, Sense, SenseData, SenseKey};
use std::io;

/// The status of the host adapter (scsi/scsi_status.h).
mod host {
    pub(super) const OK: u16 = 0x00;
    pub(super) const NO_CONNECT: u16 = 0x01;
    pub(super) const BUS_BUSY: u16 = 0x02;
    pub(super) const TIME_OUT: u16 = 0x03;
    pub(super) const ABORT: u16 = 0x05;
    pub(super) const PARITY: u16 = 0x06;
    pub(super) const RESET: u16 = 0x08;
    pub(super) const SOFT_ERROR: u16 = 0x0b;
    pub(super) const IMM_RETRY: u16 = 0x0c;
    pub(super) const REQUEUE: u16 = 0x0d;
    pub(super) const TRANSPORT_DISRUPTED: u16 = 0x0e;
    pub(super) const TRANSPORT_FAILFAST: u16 = 0x0f;
    pub(super) const NEXUS_FAILURE: u16 = 0x11;
    pub(super) const ALLOC_FAILURE: u16 = 0x12;
    pub(super) const MEDIUM_ERROR: u16 = 0x13;
}

/// The reply to a command.
pub(crate) fn of(outcome: Outcome) -> Result<ForwardedReply, Fault> {
    let len = outcome.data.len();
    let data = match outcome.data {
        Data::In(memory) => ForwardedData::In(memory),
        Data::Out(memory) => ForwardedData::Out(memory),
        _ => ForwardedData::None,
    };
    match outcome.reply {
        Ok(reply) => {
            let (status, sense) = ended(&reply)?;
            // An adapter that reports an error may not have counted.
            let moved = if reply.host_status == host::OK { reply.moved(len) } else { 0 };
            Ok(ForwardedReply { status, sense, moved, data })
        }
        Err(error) => {
            not_taken(&error).map(|status| ForwardedReply { status, sense: SenseData::default(), moved: 0, data })
        }
    }
}

/// Status and sense data of a command that the kernel took.
fn ended(reply: &Reply) -> Result<(Status, SenseData), Fault> {
    let check = |key, asc| Ok((Status::CHECK_CONDITION, Sense::new(key, asc).data(false)));
    match reply.host_status {
        host::OK => Ok((Status(reply.status), SenseData::of_device(reply.sense()))),
        host::BUS_BUSY
        | host::SOFT_ERROR
        | host::IMM_RETRY
        | host::REQUEUE
        | host::TRANSPORT_DISRUPTED
        | host::TRANSPORT_FAILFAST
        | host::ALLOC_FAILURE => Ok((Status::BUSY, SenseData::default())),
        host::NO_CONNECT => Err(Fault::Gone),
        host::TIME_OUT => Err(Fault::Timeout),
        host::ABORT | host::NEXUS_FAILURE => check(SenseKey::ABORTED_COMMAND, Asc::COMMANDS_CLEARED_BY_DEVICE_SERVER),
        host::PARITY => Err(Fault::Protocol),
        // All initiators have to know it, as if the device itself had said so.
        host::RESET => check(SenseKey::UNIT_ATTENTION, Asc::POWER_ON_OR_RESET),
        host::MEDIUM_ERROR => Err(Fault::Medium),
        _ => Err(Fault::Os(rustix::io::Errno::IO.raw_os_error())),
    }
}

/// The status of a command that the kernel did not take.
fn not_taken(error: &io::Error) -> Result<Status, Fault> {
    use rustix::io::Errno;
    let errno = error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error);
    match errno {
        Errno::NODEV | Errno::NXIO | Errno::PIPE => Err(Fault::Gone),
        // Room in the kernel.
        Errno::NOMEM | Errno::AGAIN | Errno::DOM | Errno::BUSY => Ok(Status::BUSY),
        other => Err(Fault::Os(other.raw_os_error())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn failed(errno: i32) -> Result<Status, Fault> {
        let reply = Err(io::Error::from_raw_os_error(errno));
        of(Outcome { reply, data: Data::None }).map(|reply| reply.status)
    }

    #[test]
    fn a_command_that_was_not_taken_is_repeated_or_fails() {
        assert_eq!(failed(19), Err(Fault::Gone));
        assert_eq!(failed(33), Ok(Status::BUSY), "EDOM: 16 commands are in progress");
        assert_eq!(failed(1), Err(Fault::Os(1)));
        assert_eq!(failed(22), Err(Fault::Os(22)));
    }

    proptest! {
        #[test]
        fn no_error_is_a_success(errno in 1..200) {
            prop_assert!(failed(errno) != Ok(Status::GOOD));
        }
    }
}
