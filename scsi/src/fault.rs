//! Faults of stores and transports as status and sense data.

use crate::admit::Refusal;
use crate::command::Status;
use crate::sense::{Asc, Sense, SenseKey};
use lunar_core::io::Fault;
use lunar_core::protection::Field;
use lunar_core::step::{Failure, Step};
use lunar_core::tally::Event;

/// The blocks of a step, to find out which block failed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Site {
    /// First byte, if the step has a range.
    offset: Option<u64>,
    block: u32,
    writes: bool,
    verifies: bool,
}

impl Site {
    pub(crate) fn of(step: &Step, block: u32) -> Self {
        if let Step::Protected(protected) = step {
            return Self::of(&protected.step, block);
        }
        let (offset, writes) = match step {
            Step::Read { offset, .. } | Step::Compare { offset, .. } | Step::Verify { offset, .. } => {
                (Some(*offset), false)
            }
            Step::Write { offset, .. }
            | Step::Fill { offset, .. }
            | Step::CompareWrite { offset, .. }
            | Step::Copy { offset, .. }
            | Step::OrWrite { offset, .. }
            | Step::WriteAtomic { offset, .. }
            | Step::WriteVerify { offset, .. }
            | Step::Mark { offset, .. } => (Some(*offset), true),
            Step::Flush | Step::Unmap(_) | Step::Protected(_) => (None, true),
        };
        let verifies = matches!(step, Step::Compare { .. } | Step::Verify { .. });
        Self { offset, block, writes, verifies }
    }

    /// The event to count for a failure; only failures of the medium and of space are counted.
    pub(crate) fn error(&self, failure: Failure) -> Option<Event> {
        if matches!(failure, Failure::Fault { fault: Fault::NoSpace, .. }) {
            return Some(Event::SpaceError);
        }
        let is_medium = matches!(failure, Failure::Fault { fault: Fault::Medium, .. });
        is_medium.then_some(match (self.writes, self.verifies) {
            (true, _) => Event::WriteError,
            (false, true) => Event::VerifyError,
            (false, false) => Event::ReadError,
        })
    }

    /// The LBA of a byte of the step.
    fn block_at(&self, at: u64) -> Option<u64> {
        self.offset.map(|offset| (offset + at) / u64::from(self.block))
    }

    /// Status and sense data of a failure.
    pub(crate) fn refusal(&self, failure: Failure) -> Refusal {
        match failure {
            Failure::Miscompare { at } => {
                Sense::new(SenseKey::MISCOMPARE, Asc::MISCOMPARE_DURING_VERIFY).with_information(at).into()
            }
            // SBC-3 4.22.2.1, 5.29
            Failure::Protection { field, at, compared } => {
                let key = if compared { SenseKey::MISCOMPARE } else { SenseKey::ABORTED_COMMAND };
                let asc = match field {
                    Field::Guard => Asc::GUARD_CHECK_FAILED,
                    Field::Application => Asc::APPLICATION_TAG_CHECK_FAILED,
                    Field::Reference => Asc::REFERENCE_TAG_CHECK_FAILED,
                };
                Sense { information: self.block_at(at), ..Sense::new(key, asc) }.into()
            }
            Failure::Fault { fault: Fault::Medium, at } => {
                let asc = if self.writes { Asc::WRITE_ERROR } else { Asc::UNRECOVERED_READ_ERROR };
                Sense { information: self.block_at(at), ..Sense::new(SenseKey::MEDIUM_ERROR, asc) }.into()
            }
            // SBC-3 4.18.2
            Failure::Fault { fault: Fault::Marked, at } => {
                let sense = Sense::new(SenseKey::MEDIUM_ERROR, Asc::LBA_MARKED_BAD);
                Sense { information: self.block_at(at), ..sense }.into()
            }
            Failure::Origin { fault: Fault::Marked, .. } => {
                Sense::new(SenseKey::MEDIUM_ERROR, Asc::LBA_MARKED_BAD).into()
            }
            Failure::Origin { fault: Fault::Medium, .. } => {
                Sense::new(SenseKey::MEDIUM_ERROR, Asc::UNRECOVERED_READ_ERROR).into()
            }
            Failure::Fault { fault, .. } | Failure::Origin { fault, .. } => transfer(fault),
        }
    }
}

/// Status and sense data of a fault that concerns no particular block.
pub(crate) fn transfer(fault: Fault) -> Refusal {
    let (key, asc) = match fault {
        Fault::NoMemory => return Refusal::bare(Status::BUSY),
        Fault::Conflict => return Refusal::bare(Status::RESERVATION_CONFLICT),
        Fault::NoSpace => (SenseKey::DATA_PROTECT, Asc::SPACE_ALLOCATION_FAILED),
        Fault::NotReady => (SenseKey::NOT_READY, Asc::NOT_READY_CAUSE_NOT_REPORTABLE),
        // As of commands after the store was found to be unavailable. LOGICAL UNIT FAILURE would be permanent for ESXi.
        Fault::Gone => (SenseKey::NOT_READY, Asc::NOT_READY_UNAVAILABLE),
        Fault::Timeout => (SenseKey::ABORTED_COMMAND, Asc::TIME_OUT_ON_LOGICAL_UNIT),
        Fault::Protocol => (SenseKey::ABORTED_COMMAND, Asc::DATA_PHASE_ERROR),
        // The store dropped the request. An aborted task would not be answered at all.
        Fault::Aborted => (SenseKey::ABORTED_COMMAND, Asc::INTERNAL_TARGET_FAILURE),
        Fault::Cleared => (SenseKey::ABORTED_COMMAND, Asc::COMMANDS_CLEARED_BY_DEVICE_SERVER),
        Fault::Medium | Fault::Marked | Fault::Unsupported | Fault::Os(_) => {
            (SenseKey::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE)
        }
    };
    Sense::new(key, asc).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(step: &Step, failure: Failure) -> (Status, Option<(SenseKey, Asc, Option<u64>)>) {
        let refusal = Site::of(step, 512).refusal(failure);
        (refusal.status, refusal.sense.map(|sense| (sense.key, sense.asc, sense.information)))
    }

    #[test]
    fn a_medium_error_reports_the_first_block() {
        let failure = Failure::Fault { fault: Fault::Medium, at: 1024 };
        let read = Step::Read { offset: 5120, len: 4096 };
        let sense = (SenseKey::MEDIUM_ERROR, Asc::UNRECOVERED_READ_ERROR, Some(12));
        assert_eq!(ended(&read, failure), (Status::CHECK_CONDITION, Some(sense)));
        let write = Step::Write { offset: 5120, len: 4096, durable: false };
        let sense = (SenseKey::MEDIUM_ERROR, Asc::WRITE_ERROR, Some(12));
        assert_eq!(ended(&write, failure), (Status::CHECK_CONDITION, Some(sense)));
        let sense = (SenseKey::MEDIUM_ERROR, Asc::WRITE_ERROR, None);
        assert_eq!(ended(&Step::Flush, failure), (Status::CHECK_CONDITION, Some(sense)));
    }

    #[test]
    fn a_marked_block_is_reported_as_marked_bad() {
        let failure = Failure::Fault { fault: Fault::Marked, at: 1024 };
        let marked = |information| (SenseKey::MEDIUM_ERROR, Asc::LBA_MARKED_BAD, information);
        for step in [
            Step::Read { offset: 5120, len: 4096 },
            Step::Verify { offset: 5120, len: 4096 },
            Step::CompareWrite { offset: 5120, len: 4096, durable: false },
        ] {
            assert_eq!(ended(&step, failure), (Status::CHECK_CONDITION, Some(marked(Some(12)))));
            assert_eq!(Site::of(&step, 512).error(failure), None, "a marked block is no error of the medium");
        }
        let failure = Failure::Origin { fault: Fault::Marked, at: 1024 };
        assert_eq!(ended(&Step::Flush, failure), (Status::CHECK_CONDITION, Some(marked(None))));
    }

    #[test]
    fn other_faults_have_their_own_sense_data() {
        let of = |fault| ended(&Step::Flush, Failure::Fault { fault, at: 0 });
        assert_eq!(of(Fault::NoMemory), (Status::BUSY, None));
        assert_eq!(of(Fault::Conflict), (Status::RESERVATION_CONFLICT, None));
        let expected = [
            (Fault::NoSpace, SenseKey::DATA_PROTECT, Asc::SPACE_ALLOCATION_FAILED),
            (Fault::NotReady, SenseKey::NOT_READY, Asc::NOT_READY_CAUSE_NOT_REPORTABLE),
            (Fault::Gone, SenseKey::NOT_READY, Asc::NOT_READY_UNAVAILABLE),
            (Fault::Timeout, SenseKey::ABORTED_COMMAND, Asc::TIME_OUT_ON_LOGICAL_UNIT),
            (Fault::Protocol, SenseKey::ABORTED_COMMAND, Asc::DATA_PHASE_ERROR),
            (Fault::Aborted, SenseKey::ABORTED_COMMAND, Asc::INTERNAL_TARGET_FAILURE),
            (Fault::Cleared, SenseKey::ABORTED_COMMAND, Asc::COMMANDS_CLEARED_BY_DEVICE_SERVER),
            (Fault::Os(9), SenseKey::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE),
        ];
        for (fault, key, asc) in expected {
            assert_eq!(of(fault), (Status::CHECK_CONDITION, Some((key, asc, None))));
        }
    }
}
