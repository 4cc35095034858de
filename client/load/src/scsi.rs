//! The SCSI commands of a load, for all transports that carry CDBs.

use crate::session::{Outcome, Work};
use crate::target::Capacity;
use anyhow::{Context, Result, bail};
use lunar_iscsi_initiator::cdb::{self, Cdb, Key, Sense, Status};
use std::time::Duration;

/// Attempts of a command before the load starts: a new nexus may get several unit attentions.
const SET_UP_TRIES: u32 = 16;
/// The pause before a busy target is tried again.
const BUSY_PAUSE: Duration = Duration::from_millis(10);

/// The CDB of a command for so many blocks of a disk.
#[inline]
pub(crate) fn cdb_of(work: &Work, (lba, blocks): (u64, u32), fua: bool) -> Cdb {
    match work {
        Work::Read => cdb::read(lba, blocks, false),
        Work::Write(_) => cdb::write(lba, blocks, fua),
        Work::Flush => cdb::synchronize_cache(),
    }
}

/// The result of a command that is waited for.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) status: u8,
    pub(crate) sense: Vec<u8>,
    pub(crate) data: Vec<u8>,
}

/// Executes one command with `call` before the load starts; retries it while the target is busy or reports unit
/// attentions. Returns its data.
pub(crate) fn set_up(mut call: impl FnMut() -> Result<Answer>) -> Result<Vec<u8>> {
    let mut trouble = String::new();
    for _ in 0..SET_UP_TRIES {
        let answer = call()?;
        let (status, sense) = (Status(answer.status), Sense::parse(&answer.sense));
        let attention = sense.is_some_and(|sense| sense.key == Key::UNIT_ATTENTION);
        trouble = sense.map_or_else(|| format!("{status:?}"), |sense| sense.to_string());
        match status {
            Status::GOOD => return Ok(answer.data),
            Status::BUSY | Status::TASK_SET_FULL => std::thread::sleep(BUSY_PAUSE),
            Status::CHECK_CONDITION if attention => {}
            _ => break,
        }
    }
    bail!(trouble)
}

/// The capacity in READ CAPACITY (16) data.
pub(crate) fn capacity(data: &[u8]) -> Result<Capacity> {
    let capacity = cdb::Capacity::parse(data).context("READ CAPACITY (16) returned invalid data")?;
    Ok(Capacity { blocks: capacity.blocks, block_size: capacity.block_size })
}

/// The outcome of a command that has failed; `otherwise` describes it if it has no sense data.
#[cold]
pub(crate) fn failure(status: Status, sense: &[u8], otherwise: impl FnOnce() -> String) -> Outcome {
    let sense = Sense::parse(sense);
    let attention = sense.is_some_and(|sense| sense.key == Key::UNIT_ATTENTION);
    if status == Status::BUSY || status == Status::TASK_SET_FULL || attention {
        return Outcome::Again;
    }
    Outcome::Failed(sense.map_or_else(otherwise, |sense| format!("{status:?}, {sense}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ATTENTION: [u8; 4] = [0x72, 6, 0x29, 0];
    const MEDIUM_ERROR: [u8; 4] = [0x72, 3, 0x11, 0];

    fn answers(all: &[(Status, &[u8])]) -> Result<Vec<u8>> {
        let mut next = all.iter();
        set_up(|| {
            let (status, sense) = next.next().context("no more answers")?;
            Ok(Answer { status: status.0, sense: sense.to_vec(), data: vec![7] })
        })
    }

    #[test]
    fn a_command_is_retried_until_the_target_is_ready() {
        let ready = [(Status::CHECK_CONDITION, &ATTENTION[..]), (Status::BUSY, &[]), (Status::GOOD, &[])];
        assert_eq!(answers(&ready).expect("at the third time"), [7]);
        let why = answers(&[(Status::CHECK_CONDITION, &MEDIUM_ERROR[..])]).expect_err("an error");
        assert_eq!(why.to_string(), "MEDIUM_ERROR 11h/00h");
        assert!(answers(&[(Status::CHECK_CONDITION, &ATTENTION[..]); 99]).is_err(), "it never ends");
    }

    #[test]
    fn commands_that_were_not_executed_are_sent_again() {
        let outcome = |status, sense: &[u8]| failure(status, sense, || "no sense".into());
        assert_eq!(outcome(Status::CHECK_CONDITION, &ATTENTION), Outcome::Again);
        assert_eq!(outcome(Status::TASK_SET_FULL, &[]), Outcome::Again);
        let text = "CHECK_CONDITION, MEDIUM_ERROR 11h/00h".to_owned();
        assert_eq!(outcome(Status::CHECK_CONDITION, &MEDIUM_ERROR), Outcome::Failed(text));
        assert_eq!(outcome(Status::RESERVATION_CONFLICT, &[]), Outcome::Failed("no sense".into()));
    }
}
