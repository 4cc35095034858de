//! A command from its CDB to its status: found, checked, admitted, planned, carried out.

use crate::admit::{Refusal, admit};
use crate::command::{Command, Reply, Status};
use crate::context::Context;
use crate::fault;
use crate::lu::LogicalUnit;
use crate::nexus::{Addressee, Nexus};
use crate::plan::Plan;
use crate::sense::{Asc, Sense, SenseData};
use crate::table::{Flow, Reach, Row, find};
use crate::target::Target;
use lunar_core::mem::Sg;
use lunar_core::port::Transfer;
use lunar_core::step::{Step, Tail, Tools, carry_out};
use lunar_core::wire::Writer;
use std::borrow::Cow;
use std::rc::Rc;

/// The longest answer: REPORT LUNS with every logical unit number there is.
const ANSWER_BYTES_MAX: usize = 8 + 8 * (crate::lun::LUNS_MAX as usize + 1);

impl Target {
    /// Carries a command out. Called in the order in which the commands of a nexus arrived: ORDERED relies on it.
    pub async fn execute<T: Transfer>(
        &self,
        nexus: &Rc<Nexus>,
        command: &Command,
        transfer: &T,
        tools: &mut Tools,
    ) -> Reply {
        self.config.stats.commands.add(1);
        let addressee = nexus.addressee(command.lun);
        let _turn = match &addressee {
            Addressee::Disk(itl) => Some(itl.order.enter(command.attribute).await),
            _ => None,
        };
        let result = self.perform(nexus, &addressee, command, transfer, tools).await;
        if transfer.aborted() {
            return Reply::bare(Status::TASK_ABORTED);
        }
        result.unwrap_or_else(|refusal| self.refuse(&refusal, &addressee))
    }

    async fn perform<T: Transfer>(
        &self,
        nexus: &Nexus,
        addressee: &Addressee,
        command: &Command,
        transfer: &T,
        tools: &mut Tools,
    ) -> Result<Reply, Refusal> {
        // Asked first: a command that is not answered must not take a unit attention with it.
        if transfer.aborted() {
            return Err(Refusal::bare(Status::TASK_ABORTED));
        }
        let (row, amount) = self.admitted(addressee, command)?;
        let list = match row.flow {
            Flow::List | Flow::Block => pull_list(row, amount, addressee, command, transfer).await?,
            _ => Sg::default(),
        };
        let plan = match self.plan(row, amount, nexus, addressee, command, &contiguous(&list))? {
            Plan::Answer => return self.answer(tools),
            plan => plan,
        };
        let mut reply = Moved { tail: Tail::default(), moved: list.len() as u64, wanted: list.len() as u64 };
        if let Addressee::Disk(itl) = addressee {
            let carrier = Carrier { lu: &itl.lu, command, transfer };
            match plan {
                Plan::Done | Plan::Answer => {}
                Plan::Do(step) => carrier.carry(step, &mut reply, tools).await?,
                Plan::Both(steps) => {
                    for step in *steps {
                        carrier.carry(step, &mut reply, tools).await?;
                    }
                }
                Plan::Change { flush, change } => {
                    if flush {
                        carrier.carry(Step::Flush, &mut reply, tools).await?;
                    }
                    self.change(nexus, itl.lu.lun, change).await;
                }
            }
        }
        Ok(self.good(row, reply))
    }

    /// Finds the command's row, checks its CDB and admits it; with what the CDB says of lengths.
    pub(crate) fn admitted(&self, addressee: &Addressee, command: &Command) -> Result<(&'static Row, u32), Refusal> {
        let cdb = command.cdb.bytes();
        let row = match (find(cdb), addressee) {
            (Ok(row), Addressee::Nobody) if row.policy.gates.reach == Reach::Anywhere => row,
            (_, Addressee::Nobody) => return Err(Sense::illegal(Asc::LOGICAL_UNIT_NOT_SUPPORTED).into()),
            (found, _) => found?,
        };
        row.check(cdb)?;
        admit(row, addressee)?;
        Ok((row, row.amount(cdb)?))
    }

    /// Has the command plan; what it answers is in `self.scratch`.
    pub(crate) fn plan(
        &self,
        row: &Row,
        amount: u32,
        nexus: &Nexus,
        addressee: &Addressee,
        command: &Command,
        list: &[u8],
    ) -> Result<Plan, Refusal> {
        let cdb = command.cdb.bytes();
        if row.flow != Flow::Answer {
            let mut cx = Context { target: self, nexus, addressee, command, out: Writer::new(&mut []) };
            return Ok(row.run(cdb, &mut cx, list)?);
        }
        let mut scratch = self.scratch.borrow_mut();
        let room = (amount as usize).min(ANSWER_BYTES_MAX);
        scratch.resize(room, 0);
        let mut cx = Context { target: self, nexus, addressee, command, out: Writer::new(&mut scratch) };
        let plan = row.run(cdb, &mut cx, list)?;
        let kept = cx.out.kept();
        scratch.truncate(kept);
        Ok(plan)
    }

    /// GOOD, with what the command wrote.
    fn answer(&self, tools: &Tools) -> Result<Reply, Refusal> {
        let scratch = self.scratch.borrow();
        let wanted = scratch.len() as u64;
        let data = match scratch.is_empty() {
            true => Sg::default(),
            false => tools.arena.copy(&scratch).ok_or_else(|| Refusal::bare(Status::BUSY))?.into(),
        };
        let stats = &self.config.stats;
        stats.read_commands.add(1);
        stats.read_bytes.add(wanted);
        Ok(Reply { tail: Tail { offset: 0, data }, wanted, ..Reply::bare(Status::GOOD) })
    }

    /// GOOD, after all that was moved.
    fn good(&self, row: &Row, Moved { tail, moved, wanted }: Moved) -> Reply {
        let stats = &self.config.stats;
        match row.flow {
            Flow::In | Flow::Answer => {
                stats.read_commands.add(1);
                stats.read_bytes.add(moved);
            }
            Flow::Out | Flow::List | Flow::Block if moved > 0 => {
                stats.write_commands.add(1);
                stats.write_bytes.add(moved);
            }
            _ => {}
        }
        Reply { tail, wanted, ..Reply::bare(Status::GOOD) }
    }

    /// CHECK CONDITION and the like.
    #[cold]
    fn refuse(&self, refusal: &Refusal, addressee: &Addressee) -> Reply {
        let descriptor = match addressee {
            Addressee::Disk(itl) => itl.lu.mode().descriptor_sense,
            _ => false,
        };
        let stats = &self.config.stats;
        match refusal.status {
            Status::CHECK_CONDITION => stats.check_conditions.add(1),
            Status::BUSY => stats.busy_refused.add(1),
            _ => {}
        }
        let sense = refusal.sense.map_or_else(SenseData::default, |sense| sense.data(descriptor));
        Reply { sense, wanted: refusal.wanted, ..Reply::bare(refusal.status) }
    }
}

/// What a command has moved so far.
struct Moved {
    tail: Tail,
    moved: u64,
    wanted: u64,
}

/// Carries steps out.
struct Carrier<'a, T> {
    lu: &'a LogicalUnit,
    command: &'a Command,
    transfer: &'a T,
}

impl<T: Transfer> Carrier<'_, T> {
    async fn carry(&self, step: Step, so_far: &mut Moved, tools: &mut Tools) -> Result<(), Refusal> {
        let block = self.lu.block_size();
        let Fitted { step, moved, wanted } = fit(step, block, self.command)?;
        so_far.wanted += wanted;
        if let Some(step) = step {
            let site = fault::Site::of(&step, block);
            match carry_out(&self.lu.unit, step, self.transfer, tools).await {
                Ok(tail) if !tail.data.is_empty() => so_far.tail = tail,
                Ok(_) => {}
                Err(failure) => return Err(site.refusal(failure).wanting(so_far.wanted)),
            }
        }
        so_far.moved += moved;
        Ok(())
    }
}

/// Pulls what the command reads before it plans: no more than the initiator sends.
async fn pull_list<T: Transfer>(
    row: &Row,
    amount: u32,
    addressee: &Addressee,
    command: &Command,
    transfer: &T,
) -> Result<Sg, Refusal> {
    let length = match (row.flow, addressee) {
        (Flow::List, _) => amount.min(command.data_out),
        (Flow::Block, Addressee::Disk(itl)) if amount > 0 => {
            let block = itl.lu.block_size();
            match command.data_out {
                // What it means that nothing comes, the command knows.
                0 => 0,
                sent if sent == block => block,
                _ => return Err(mismatch(u64::from(block))),
            }
        }
        _ => 0,
    };
    if length == 0 {
        return Ok(Sg::default());
    }
    let pulled = transfer.pull(0, length as usize).await;
    pulled.map_err(fault::transfer)
}

fn contiguous(list: &Sg) -> Cow<'_, [u8]> {
    match list.pieces() {
        [] => Cow::Borrowed(&[]),
        [one] => Cow::Borrowed(one),
        _ => Cow::Owned(list.to_vec()),
    }
}

/// A step cut to what the initiator sends or expects.
struct Fitted {
    /// `None`: nothing is left to do.
    step: Option<Step>,
    moved: u64,
    wanted: u64,
}

/// The expected length is not what the CDB's lengths come to, and cutting the command would change its meaning
/// (FCP-4 9.4.2 names the choices; iSCSI leaves them open).
fn mismatch(wanted: u64) -> Refusal {
    Refusal::from(Sense::illegal(Asc::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT)).wanting(wanted)
}

/// Cuts a step to the blocks that the initiator sends or expects. A part of a block is never written.
fn fit(step: Step, block: u32, command: &Command) -> Result<Fitted, Refusal> {
    let (sends, expects) = (u64::from(command.data_out), u64::from(command.data_in));
    let block = u64::from(block);
    let whole = |step: Step, moved: u64| Ok(Fitted { step: (moved > 0).then_some(step), moved, wanted: moved });
    let cut = |len: u64| match sends < len {
        true if !sends.is_multiple_of(block) => Err(mismatch(len)),
        true => Ok(sends),
        false => Ok(len),
    };
    match step {
        Step::Read { offset, len } => {
            let cut = len.min(expects.next_multiple_of(block));
            let step = (cut > 0).then_some(Step::Read { offset, len: cut });
            Ok(Fitted { step, moved: len.min(expects), wanted: len })
        }
        Step::Write { offset, len, durable } => {
            let cut = cut(len)?;
            let step = (cut > 0).then_some(Step::Write { offset, len: cut, durable });
            Ok(Fitted { step, moved: cut, wanted: len })
        }
        Step::Compare { offset, len, block: None } => {
            let cut = cut(len)?;
            let step = (cut > 0).then_some(Step::Compare { offset, len: cut, block: None });
            Ok(Fitted { step, moved: cut, wanted: len })
        }
        Step::Compare { block: Some(size), .. } if sends < u64::from(size) => Err(mismatch(u64::from(size))),
        Step::Compare { block: Some(size), .. } => whole(step, u64::from(size)),
        Step::CompareWrite { len, .. } if sends != 2 * len => Err(mismatch(2 * len)),
        Step::CompareWrite { len, .. } => whole(step, 2 * len),
        _ => Ok(Fitted { step: Some(step), moved: 0, wanted: 0 }),
    }
}

#[cfg(test)]
#[path = "execute_tests.rs"]
mod tests;
