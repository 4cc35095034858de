//! A command from its entry to its completion: found, admitted, planned, carried out.

use crate::admit::admit;
use crate::command::{Command, FUSE, Refusal, Reply, Status};
use crate::context::Context;
use crate::controller::Controller;
use crate::fault;
use crate::history::{Happened, TestResult};
use crate::manage::pool_of;
use crate::namespace::{ALL, Attached, Namespace};
use crate::plan::{Plan, Test};
use crate::policy::{CommandScope, Effect};
use crate::queue::{Queue, Task};
use crate::row::{Data, Row};
use crate::subsystem::Subsystem;
use crate::table::find_entry;
use lunar_core::io::Fault;
use lunar_core::mem::{Arena, Sg};
use lunar_core::port::Transfer;
use lunar_core::protection::Terms;
use lunar_core::step::{Failure, PIECE_BYTES, Protected, Step, Tools, carry_out, carry_out_now};
use lunar_core::tally::Event;
use lunar_core::unit::Admitted;
use lunar_unit::reserve::Request;
use std::borrow::Cow;
use std::rc::Rc;

pub use crate::limits::TRANSFER_BYTES_MAX;

impl Subsystem {
    /// Carries a command out. The reply is written where it will be read.
    pub async fn execute<T: Transfer>(
        &self,
        queue: &Rc<Queue>,
        task: &Task,
        command: &Command,
        transfer: &T,
        tools: &mut Tools,
        reply: &mut Reply,
    ) {
        self.config().stats.commands.add(1);
        let result = match command.sqe.flags & FUSE {
            0 => self.perform(queue, task, command, transfer, tools, reply).await,
            // Whoever finds both halves calls `execute_fused`.
            _ => Err(Status::FUSED_MISSING.into()),
        };
        if task.aborted() {
            *reply = aborted(queue, command);
        } else if let Err(refusal) = result {
            *reply = self.refuse(queue, command, refusal);
        }
    }

    /// Carries out a read or a write, if nobody has to be waited for: the store answers at once, and the data is there.
    /// Tells whether it has ended. If not, nothing was done, and [`Subsystem::execute`] does it.
    pub fn execute_now<T: Transfer>(
        &self,
        queue: &Rc<Queue>,
        command: &Command,
        transfer: &T,
        arena: &Arena,
        reply: &mut Reply,
    ) -> bool {
        let sqe = &command.sqe;
        let found = find_entry(sqe, queue.id).filter(|row| row.policy.admission.scope == CommandScope::Namespace);
        let (Some(row), Some(attached), 0) = (found, queue.attached(sqe.nsid.get()), sqe.flags & FUSE) else {
            return false;
        };
        let unit = &attached.namespace.unit;
        let Some(quick) = unit.store.quick().filter(|_| matches!(row.data, Data::Step)) else { return false };
        // Who may not is told so by the other way.
        if admit(row, queue, Some(&attached)).is_err() {
            return false;
        }
        let Ok(Plan::Do(step)) = self.plan(row, queue, Some(&attached), command, &[]) else { return false };
        let Ok(moved) = fit(&step, unit.geometry.block_size, command) else { return false };
        match carry_out_now(unit, quick, &step, transfer, arena, &mut reply.tail) {
            None => return false,
            Some(Ok(())) => self.count(&attached.namespace, moved),
            Some(Err(failure)) => *reply = self.refuse(queue, command, failed(&attached.namespace, &step, failure)),
        }
        self.config().stats.commands.add(1);
        true
    }

    #[cold]
    pub(crate) fn refuse(&self, queue: &Queue, command: &Command, refusal: Refusal) -> Reply {
        self.config().stats.check_conditions.add(1);
        let status = queue.failed(&command.sqe, refusal);
        Reply { result: refusal.result.into(), ..Reply::of(status) }
    }

    async fn perform<T: Transfer>(
        &self,
        queue: &Rc<Queue>,
        task: &Task,
        command: &Command,
        transfer: &T,
        tools: &mut Tools,
        reply: &mut Reply,
    ) -> Result<(), Refusal> {
        let (row, namespace) = self.admitted(queue, command)?;
        let admitted = namespace.as_ref().map(|seen| Admitted::to(&seen.namespace.unit));
        let (plan, length) = match row.data {
            Data::None | Data::Step => (self.plan(row, queue, namespace.as_ref(), command, &[])?, 0),
            Data::Queues => return Err(Status::INVALID_OPCODE.into()),
            Data::Answer(length) => {
                let length = length(&command.sqe);
                if length > TRANSFER_BYTES_MAX {
                    return Err(Status::INVALID_FIELD.into());
                }
                if length > u64::from(command.room) {
                    return Err(Status::SGL_LENGTH.into());
                }
                (self.plan(row, queue, namespace.as_ref(), command, &[])?, length as usize)
            }
            Data::List(length) => {
                let list = pull_list(length(&command.sqe), command, transfer).await?;
                (self.plan(row, queue, namespace.as_ref(), command, &contiguous(&list))?, 0)
            }
        };
        match plan {
            Plan::Done(result) => reply.result = result,
            Plan::Answer => self.answer(length, tools, reply)?,
            Plan::Park => {
                queue.controller.park(command.sqe.cid.get())?;
                reply.parked = true;
            }
            // Larger than the others: it does not make their future larger.
            plan @ (Plan::Abort { .. }
            | Plan::SetPtpl(..)
            | Plan::AuthSend(_)
            | Plan::AuthReceive
            | Plan::Flush
            | Plan::Format(..)
            | Plan::Sanitize(..)
            | Plan::Test(_)) => {
                Box::pin(self.seldom(queue, task, (plan, length), transfer, tools, reply)).await?;
            }
            Plan::Manage(wish) => {
                reply.result = Box::pin(self.manage(queue, task, command.sqe.cid.get(), *wish)).await?.into();
            }
            plan => {
                let namespace = &namespace.as_ref().ok_or(Status::INVALID_NAMESPACE)?.namespace;
                let admitted = admitted.ok_or(Status::INVALID_NAMESPACE)?;
                // Its list may have been waited for.
                admitted.check().map_err(fault::transfer)?;
                let carrier = Carrier { controller: &queue.controller, namespace, admitted, transfer };
                match plan {
                    Plan::Do(step) => {
                        let moved = fit(&step, namespace.block_size(), command)?;
                        carrier.carry_all(std::slice::from_ref(&step), tools, reply).await?;
                        self.count(namespace, moved);
                    }
                    Plan::Steps(steps) => carrier.carry_all(&steps, tools, reply).await?,
                    Plan::Reserve(request) => self.reserve(queue, task, namespace, *request).await?,
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// What is seldom asked for, and of several namespaces or of none.
    async fn seldom<T: Transfer>(
        &self,
        queue: &Rc<Queue>,
        task: &Task,
        (plan, length): (Plan, usize),
        transfer: &T,
        tools: &mut Tools,
        reply: &mut Reply,
    ) -> Result<(), Refusal> {
        match plan {
            Plan::Abort { queue: other, command } => {
                reply.result = self.abort(queue, task, other, command).await?.into();
            }
            Plan::SetPtpl(named, ptpl) => {
                for id in named {
                    let seen = queue.attached(id).ok_or(Status::INVALID_NAMESPACE)?;
                    self.reserve(queue, task, &seen.namespace, Request::SetPtpl(ptpl)).await?;
                }
            }
            Plan::AuthSend(message) => self.auth_send(queue, &message).await?,
            Plan::AuthReceive => {
                let message = self.auth_receive(queue, length).await?;
                *self.scratch.borrow_mut() = message;
                self.answer(length, tools, reply)?;
            }
            Plan::Flush => {
                for seen in queue.namespaces() {
                    carry(&seen.namespace, &Step::Flush, transfer, tools, reply).await?;
                }
            }
            Plan::Format(named, asked) => {
                for id in named {
                    let seen = queue.attached(id).ok_or(Status::INVALID_NAMESPACE)?;
                    self.note(&queue.controller, Happened::Formats { namespace: id, asked });
                    let result = self.format(queue, task, &seen.namespace, &tools.arena).await;
                    let status = result.as_ref().err().map_or(0, |refusal| refusal.status.0);
                    self.note(&queue.controller, Happened::Formatted { namespace: id, status });
                    result?;
                }
            }
            Plan::Sanitize(all, asked) => self.sanitize(queue, all, asked, &tools.arena).await?,
            Plan::Test(test) => self.test(queue, test, transfer, tools).await,
            _ => {}
        }
        Ok(())
    }

    /// Reads the first and the last block of each medium, and more of it in between if the test is an extended one.
    /// What comes of it is in the log.
    async fn test<T: Transfer>(&self, queue: &Queue, test: Test, transfer: &T, tools: &mut Tools) {
        const EXTENDED: u8 = 2;
        /// Few enough to be read before a host loses its patience with the command.
        const EXTENDED_PLACES: u64 = 1024;
        let mut failed = None;
        for seen in test.namespaces.iter().filter_map(|id| queue.attached(*id)) {
            let namespace = &seen.namespace;
            let (block, size) = (u64::from(namespace.block_size()), namespace.unit.geometry.bytes());
            let last = (size / block).saturating_sub(1);
            let places = match test.code {
                EXTENDED => EXTENDED_PLACES,
                _ => 1,
            };
            for place in 0..=places {
                // The last one is the last block.
                let offset = (last / places * place + last % places * place / places) * block;
                let step = Step::Verify { offset, len: block };
                let mut reply = Reply::default();
                if failed.is_none() && carry(namespace, &step, transfer, tools, &mut reply).await.is_err() {
                    failed = Some((seen.id, offset / block));
                }
            }
        }
        let when = (self.config().clock)();
        let result = TestResult { code: test.code, named: test.named, failed, when };
        queue.controller.standing.subsystem.history.tested(result);
    }

    /// Finds the command's row, and admits it for the namespace that it names.
    pub(crate) fn admitted(
        &self,
        queue: &Queue,
        command: &Command,
    ) -> Result<(&'static Row, Option<Rc<Attached>>), Refusal> {
        let sqe = &command.sqe;
        let row = find_entry(sqe, queue.id).ok_or(Status::INVALID_OPCODE)?;
        let makes = || pool_of(&self.config().board.directory(), &queue.controller).is_some();
        if row.policy.effect == Effect::Inventory && !makes() {
            return Err(Status::INVALID_OPCODE.into());
        }
        let namespace = match row.policy.admission.scope {
            CommandScope::Controller => None,
            CommandScope::Namespaces if sqe.nsid.get() == ALL => None,
            CommandScope::Namespace | CommandScope::Namespaces => {
                Some(queue.attached(sqe.nsid.get()).ok_or(Status::INVALID_NAMESPACE)?)
            }
        };
        admit(row, queue, namespace.as_deref())?;
        Ok((row, namespace))
    }

    pub(crate) fn plan(
        &self,
        row: &Row,
        queue: &Rc<Queue>,
        namespace: Option<&Rc<Attached>>,
        command: &Command,
        list: &[u8],
    ) -> Result<Plan, Refusal> {
        let mut nothing = Vec::new();
        let mut cx = Context { subsystem: self, queue, namespace, out: &mut nothing };
        if !matches!(row.data, Data::Answer(_)) {
            return (row.run)(&command.sqe, &mut cx, list);
        }
        let mut scratch = self.scratch.borrow_mut();
        scratch.clear();
        cx.out = &mut scratch;
        (row.run)(&command.sqe, &mut cx, list)
    }

    /// Success, with what the command wrote, as long as the host asked for.
    fn answer(&self, length: usize, tools: &Tools, reply: &mut Reply) -> Result<(), Refusal> {
        let mut scratch = self.scratch.borrow_mut();
        scratch.resize(length, 0);
        if length > 0 {
            let mut memory = tools.arena.take_sg(length).ok_or(Status::NOT_READY)?;
            memory.copy_from(0, &scratch);
            reply.tail.data = memory.share();
        }
        let stats = &self.config().stats;
        stats.read_commands.add(1);
        stats.read_bytes.add(length as u64);
        Ok(())
    }

    /// Counts a command that went well, and what it moved.
    fn count(&self, namespace: &Namespace, moved: Moved) {
        let stats = &self.config().stats;
        match moved {
            Moved::Nothing => {}
            Moved::In(bytes) => {
                stats.read_commands.add(1);
                stats.read_bytes.add(bytes);
                namespace.unit.tally.add(Event::ReadCommand, 1);
                namespace.unit.tally.add(Event::ReadBytes, bytes);
            }
            Moved::Out(bytes) => {
                stats.write_commands.add(1);
                stats.write_bytes.add(bytes);
                namespace.unit.tally.add(Event::WriteCommand, 1);
                namespace.unit.tally.add(Event::WriteBytes, bytes);
            }
        }
    }

    /// Carries out Compare and Write, the one fused operation there is (NVM Command Set 1.0 5.1): what is compared is
    /// the data of the first half, what is written that of the second.
    pub async fn execute_fused<T: Transfer>(
        &self,
        queue: &Rc<Queue>,
        tasks: [&Task; 2],
        commands: [&Command; 2],
        transfers: [&T; 2],
        tools: &mut Tools,
        replies: &mut [Reply; 2],
    ) {
        self.config().stats.commands.add(2);
        let result = self.compare_and_write(queue, commands, transfers, tools).await;
        for (at, reply) in replies.iter_mut().enumerate() {
            if tasks[at].aborted() {
                *reply = aborted(queue, commands[at]);
            } else if let Err((compared, refusal)) = result {
                // The half that is not to blame ends with the other.
                let blamed = usize::from(compared);
                let why = if at == blamed { refusal } else { Status::FUSED_FAILED.into() };
                *reply = self.refuse(queue, commands[at], why);
            }
        }
    }

    /// The error says whether the first half is without fault.
    async fn compare_and_write<T: Transfer>(
        &self,
        queue: &Rc<Queue>,
        commands: [&Command; 2],
        transfers: [&T; 2],
        tools: &mut Tools,
    ) -> Result<(), (bool, Refusal)> {
        let [first, second] = commands;
        let mut plans = Vec::with_capacity(2);
        for (at, command) in [first, second].into_iter().enumerate() {
            let planned = self.admitted(queue, command).and_then(|(row, namespace)| {
                let plan = self.plan(row, queue, namespace.as_ref(), command, &[])?;
                if let (Plan::Do(step), Some(seen)) = (&plan, &namespace) {
                    fit(step, seen.namespace.block_size(), command)?;
                }
                Ok((plan, namespace))
            });
            plans.push(planned.map_err(|refusal| (at == 1, refusal))?);
        }
        let (Some((Plan::Do(write), Some(to))), Some((Plan::Do(compare), Some(_)))) = (plans.pop(), plans.pop()) else {
            return Err((false, Status::INVALID_FIELD.into()));
        };
        let ((compare, other), (write, terms)) = (taken_apart(compare), taken_apart(write));
        let (Step::Compare { offset, len, block: None }, Step::Write { offset: at, len: count, durable }) =
            (compare, write)
        else {
            return Err((false, Status::INVALID_FIELD.into()));
        };
        if (offset, len, first.sqe.nsid) != (at, count, second.sqe.nsid) {
            return Err((true, Status::INVALID_FIELD.into()));
        }
        if len > PIECE_BYTES as u64 {
            return Err((false, Status::COMMAND_SIZE.into()));
        }
        let step = Step::CompareWrite { offset, len, durable };
        let (step, first) = match (terms, other) {
            (Some(terms), Some(other)) => {
                let first = other.wire(len, to.namespace.block_size());
                (Step::Protected(Box::new(Protected { step, terms, other })), first)
            }
            _ => (step, len),
        };
        let both = Both { halves: transfers, first: first as usize };
        let result = carry(&to.namespace, &step, &both, tools, &mut Reply::default()).await;
        result.map_err(|refusal| (!of_first_half(refusal.status), refusal))
    }
}

/// Whether it is what the first half of Compare and Write ends with. Of checks that both ask for nobody can tell which
/// one failed, but that nothing was written.
fn of_first_half(status: Status) -> bool {
    const READS: [Status; 5] = [
        Status::COMPARE_FAILURE,
        Status::READ_ERROR,
        Status::GUARD_CHECK,
        Status::APPLICATION_CHECK,
        Status::REFERENCE_CHECK,
    ];
    READS.contains(&status)
}

/// A step, and its own terms if it has any.
fn taken_apart(step: Step) -> (Step, Option<Terms>) {
    match step {
        Step::Protected(protected) => (protected.step, Some(protected.terms)),
        step => (step, None),
    }
}

/// The data of both halves of a fused operation, one behind the other.
struct Both<'a, T> {
    halves: [&'a T; 2],
    first: usize,
}

impl<T: Transfer> Transfer for Both<'_, T> {
    async fn room(&self) -> Result<(), Fault> {
        Ok(())
    }

    async fn pull(&self, offset: usize, len: usize) -> Result<Sg, Fault> {
        // Whoever carries this out keeps what came before: enough of those who waited for more would have all.
        let first = if offset == 0 { len.min(self.first) } else { 0 };
        let mut data = if first > 0 { self.halves[0].pull(0, first).await? } else { Sg::default() };
        if first < len {
            data.append(self.pull_beside(offset + first, len - first).await?);
        }
        Ok(data)
    }

    async fn pull_beside(&self, offset: usize, len: usize) -> Result<Sg, Fault> {
        let mut data = Sg::default();
        while data.len() < len {
            let (at, left) = (offset + data.len(), len - data.len());
            let (half, from, count) = match self.first.saturating_sub(at) {
                0 => (self.halves[1], at - self.first, left),
                first => (self.halves[0], at, left.min(first)),
            };
            data.append(half.pull_beside(from, count).await?);
        }
        Ok(data)
    }

    fn push(&self, _offset: usize, _data: Sg) -> Result<(), Fault> {
        Err(Fault::Protocol)
    }

    fn aborted(&self) -> bool {
        self.halves.iter().any(|half| half.aborted())
    }
}

/// Bytes that a command moved, and which way.
#[derive(Clone, Copy)]
enum Moved {
    Nothing,
    In(u64),
    Out(u64),
}

/// Whether the host sends, or has room for, what the step moves.
fn fit(step: &Step, block: u32, command: &Command) -> Result<Moved, Status> {
    let (step, terms) = match step {
        Step::Protected(protected) => (&protected.step, protected.terms),
        step => (step, Terms::PLAIN),
    };
    let wire = |len| terms.wire(len, block);
    let (moved, there) = match step {
        Step::Read { len, .. } => (Moved::In(*len), wire(*len) <= u64::from(command.room)),
        Step::Write { len, .. } | Step::WriteAtomic { len, .. } => {
            (Moved::Out(*len), wire(*len) <= u64::from(command.sent))
        }
        Step::Compare { len, .. } => (Moved::Nothing, wire(*len) <= u64::from(command.sent)),
        _ => (Moved::Nothing, true),
    };
    if there { Ok(moved) } else { Err(Status::SGL_LENGTH) }
}

async fn carry<T: Transfer>(
    namespace: &Namespace,
    step: &Step,
    transfer: &T,
    tools: &mut Tools,
    reply: &mut Reply,
) -> Result<(), Refusal> {
    let result = carry_out(Admitted::to(&namespace.unit), step, transfer, tools, &mut reply.tail).await;
    result.map_err(|failure| failed(namespace, step, failure))
}

/// Carries the steps of a command out.
struct Carrier<'a, T> {
    controller: &'a Controller,
    namespace: &'a Namespace,
    admitted: Admitted<'a>,
    transfer: &'a T,
}

impl<T: Transfer> Carrier<'_, T> {
    /// One after the other. What they have written lasts, if the host has switched the cache off: it is looked at when
    /// they are done, for that may have been while their data was waited for.
    async fn carry_all(&self, steps: &[Step], tools: &mut Tools, reply: &mut Reply) -> Result<(), Refusal> {
        for step in steps {
            self.carry(step, tools, reply).await?;
        }
        let is_cached = steps.last().is_some_and(Step::leaves_cached);
        if is_cached && !self.controller.caches_writes() {
            self.carry(&Step::Flush, tools, reply).await
        } else {
            Ok(())
        }
    }

    async fn carry(&self, step: &Step, tools: &mut Tools, reply: &mut Reply) -> Result<(), Refusal> {
        let result = carry_out(self.admitted, step, self.transfer, tools, &mut reply.tail).await;
        result.map_err(|failure| failed(self.namespace, step, failure))
    }
}

#[cold]
fn aborted(queue: &Queue, command: &Command) -> Reply {
    Reply::of(queue.failed(&command.sqe, Status::ABORTED))
}

#[cold]
fn failed(namespace: &Namespace, step: &Step, failure: Failure) -> Refusal {
    let writes = fault::writes(step);
    // Of its own terms a host is told in their words. What it sends may be to blame, too: that is no error of a medium.
    if let (Step::Protected(_), Failure::Protection { field, .. }) = (step, failure) {
        if !writes {
            namespace.unit.tally.add(Event::ReadError, 1);
        }
        return fault::check(field).into();
    }
    if let Some(event) = fault::event(failure, writes) {
        namespace.unit.tally.add(event, 1);
    }
    let block = fault::place(step, failure).map(|at| at / u64::from(namespace.block_size()));
    Refusal { block, ..fault::status(failure, writes).into() }
}

/// Pulls what the command reads before it plans.
async fn pull_list<T: Transfer>(length: u32, command: &Command, transfer: &T) -> Result<Sg, Refusal> {
    if length > command.sent {
        return Err(Status::SGL_LENGTH.into());
    }
    if length == 0 {
        return Ok(Sg::default());
    }
    Ok(transfer.pull(0, length as usize).await.map_err(fault::transfer)?)
}

fn contiguous(list: &Sg) -> Cow<'_, [u8]> {
    match list.pieces() {
        [] => Cow::Borrowed(&[]),
        [one] => Cow::Borrowed(one),
        _ => Cow::Owned(list.to_vec()),
    }
}

#[cfg(test)]
#[path = "execute_tests.rs"]
mod tests;
