//! Statuses of NVMe commands (NVMe Base 2.0, 3.3.3.2.1; NVM Command Set 1.0, 3.1.2) in the terms of stores.

use lunar_core::io::Fault;
use lunar_reactor::nvme_generic::Failure;
use rustix::io::Errno;
use std::fmt;

/// A row: Status Code Type and Status Code, their name, the fault, and whether the command may succeed when it is
/// repeated a moment later.
type Row = (u16, &'static str, Fault, bool);

const fn os(errno: Errno) -> Fault {
    Fault::Os(errno.raw_os_error())
}

/// The statuses that are told from others.
const STATUSES: &[Row] = &[
    (0x001, "Invalid Command Opcode", Fault::Unsupported, false),
    (0x002, "Invalid Field in Command", os(Errno::INVAL), false),
    (0x004, "Data Transfer Error", os(Errno::IO), true),
    (0x005, "Commands Aborted due to Power Loss Notification", Fault::Aborted, true),
    (0x006, "Internal Error", os(Errno::IO), true),
    (0x007, "Command Abort Requested", Fault::Timeout, true),
    (0x008, "Command Aborted due to SQ Deletion", Fault::Aborted, true),
    (0x00b, "Invalid Namespace or Format", Fault::Gone, false),
    (0x01c, "Sanitize Failed", os(Errno::IO), false),
    (0x01d, "Sanitize In Progress", Fault::NotReady, false),
    (0x020, "Namespace is Write Protected", os(Errno::ROFS), false),
    (0x021, "Command Interrupted", Fault::NotReady, true),
    (0x022, "Transient Transport Error", Fault::NotReady, true),
    (0x080, "LBA Out of Range", Fault::OUT_OF_RANGE, false),
    (0x081, "Capacity Exceeded", Fault::NoSpace, false),
    (0x082, "Namespace Not Ready", Fault::NotReady, true),
    (0x083, "Reservation Conflict", Fault::Conflict, false),
    (0x084, "Format In Progress", Fault::NotReady, false),
    (0x182, "Attempted Write to Read Only Range", os(Errno::ROFS), false),
    (0x280, "Write Fault", Fault::Medium, false),
    (0x281, "Unrecovered Read Error", Fault::Medium, false),
    (0x282, "End-to-end Guard Check Error", Fault::Medium, false),
    (0x283, "End-to-end Application Tag Check Error", Fault::Medium, false),
    (0x284, "End-to-end Reference Tag Check Error", Fault::Medium, false),
    (0x286, "Access Denied", os(Errno::ACCESS), false),
    (0x287, "Deallocated or Unwritten Logical Block", Fault::Medium, false),
    (0x300, "Internal Path Error", Fault::NotReady, true),
    (0x301, "Asymmetric Access Persistent Loss", Fault::Gone, false),
    (0x302, "Asymmetric Access Inaccessible", Fault::NotReady, true),
    (0x303, "Asymmetric Access Transition", Fault::NotReady, true),
    (0x360, "Controller Pathing Error", Fault::NotReady, true),
    (0x370, "Host Pathing Error", Fault::NotReady, true),
    (0x371, "Command Aborted By Host", Fault::Aborted, true),
];

/// Status Code Type and Status Code.
const CODE: u16 = 0x7ff;
/// Do Not Retry.
const DNR: u16 = 1 << 14;

fn row(status: u16) -> Option<&'static Row> {
    STATUSES.iter().find(|(code, ..)| *code == status & CODE)
}

/// The fault of a failed command.
pub(crate) fn fault(failure: Failure) -> Fault {
    match failure {
        Failure::Status(status) => row(status).map_or(os(Errno::IO), |(.., fault, _)| *fault),
        // The kernel has reset the controller, and the command with it.
        Failure::Kernel(Fault::Os(errno)) if errno == Errno::INTR.raw_os_error() => Fault::Aborted,
        Failure::Kernel(fault) => fault,
    }
}

/// A number that distinguishes kinds of failures.
pub(crate) fn number(failure: Failure) -> u16 {
    /// No status has it.
    const KERNEL: u16 = 1 << 15;
    match failure {
        Failure::Status(status) => status & CODE,
        Failure::Kernel(Fault::Os(errno)) => KERNEL | errno as u16 & CODE,
        Failure::Kernel(_) => KERNEL,
    }
}

/// Whether the command may succeed when it is repeated. The kernel repeats such commands of its own, and none of those
/// that it was given.
pub(crate) fn is_transient(failure: Failure) -> bool {
    match failure {
        Failure::Status(status) => status & DNR == 0 && row(status).is_some_and(|(.., is_transient)| *is_transient),
        // A reset of the controller; no room; no path to the namespace for the moment.
        Failure::Kernel(Fault::Os(errno)) => {
            [Errno::INTR, Errno::AGAIN, Errno::INVAL].iter().any(|one| one.raw_os_error() == errno)
        }
        Failure::Kernel(fault) => fault == Fault::NoMemory,
    }
}

/// A failure in words.
pub(crate) struct Words(pub(crate) Failure);

impl fmt::Display for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Failure::Status(status) => {
                let name = row(status).map_or("a status without a name here", |(_, name, ..)| name);
                write!(f, "NVMe status {:03x}h, {name}", status & CODE)
            }
            Failure::Kernel(fault) => lunar_reactor::os_error(fault).fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_become_faults() {
        let of = |status| fault(Failure::Status(status));
        for (status, expected) in [
            (0x281, Fault::Medium),
            (0x280, Fault::Medium),
            (0x080, Fault::OUT_OF_RANGE),
            (0x081, Fault::NoSpace),
            (0x082, Fault::NotReady),
            (0x083, Fault::Conflict),
            (0x00b, Fault::Gone),
            (0x001, Fault::Unsupported),
            (0x020, Fault::Os(30)),
            (0x370, Fault::NotReady),
            (0x371, Fault::Aborted),
            (0x07f, Fault::Os(5)),
        ] {
            assert_eq!(of(status), expected, "{status:x}");
            // Do Not Retry, More, and the delay of a repetition are no part of the code.
            assert_eq!(of(status | 0x7800), expected, "{status:x}");
        }
    }

    #[test]
    fn no_status_is_a_success_and_each_has_one_row() {
        let mut codes: Vec<u16> = STATUSES.iter().map(|(code, ..)| *code).collect();
        assert!(codes.iter().all(|code| *code > 0 && *code <= CODE));
        codes.dedup();
        assert!(codes.is_sorted() && codes.len() == STATUSES.len());
    }

    #[test]
    fn only_what_may_pass_is_repeated() {
        for (failure, expected) in [
            (Failure::Status(0x371), true),
            (Failure::Status(0x371 | DNR), false),
            (Failure::Status(0x082), true),
            (Failure::Status(0x281), false),
            (Failure::Status(0x083), false),
            (Failure::Status(0x07f), false),
            (Failure::Kernel(Fault::Os(4)), true),
            (Failure::Kernel(Fault::NoMemory), true),
            (Failure::Kernel(Fault::Gone), false),
            (Failure::Kernel(Fault::Os(13)), false),
        ] {
            assert_eq!(is_transient(failure), expected, "{failure:?}");
        }
        assert_eq!(fault(Failure::Kernel(Fault::Os(4))), Fault::Aborted);
    }

    #[test]
    fn words_name_the_status() {
        let words = Words(Failure::Status(0x4281)).to_string();
        assert_eq!(words, "NVMe status 281h, Unrecovered Read Error");
        assert!(Words(Failure::Status(0x7f)).to_string().contains("07fh"));
        assert!(!Words(Failure::Kernel(Fault::Gone)).to_string().is_empty());
    }
}
