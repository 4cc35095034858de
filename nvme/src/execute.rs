//! The execution of a command: its row, admission, plan and steps.

use crate::admit::admit;
use crate::command::{Command, FUSE, Refusal, Reply, Sqe, Status};
use crate::context::Context;
use crate::controller::Controller;
use crate::fault;
use crate::features;
use crate::history::{Happened, TestResult};
use crate::namespace::{ALL, Attached, Namespace};
use crate::namespace_management::pool_of;
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
use lunar_core::slow::Ending;
use lunar_core::step::{Failure, PIECE_BYTES, Protected, SlotContext, Step, carry_out, carry_out_now, yield_once};
use lunar_core::tally::{Event, Tally, latency};
use lunar_core::traffic::Class;
use lunar_core::unit::Admitted;
use lunar_unit::reserve::Request;
use std::borrow::Cow;
use std::cell::Cell;
use std::rc::Rc;

pub use crate::limits::TRANSFER_BYTES_MAX;

impl Subsystem {
    /// Executes a command. The reply is written in place.
    pub async fn execute<T: Transfer>(
        &self,
        queue: &Rc<Queue>,
        task: &Task,
        command: &Command,
        transfer: &T,
        slot: &mut SlotContext,
        reply: &mut Reply,
    ) {
        let stats = &self.config().stats;
        let arrived = stats.now();
        stats.commands.add(1);
        let attached = queue.counted(&command.sqe);
        let counters = queue.counters(attached.as_deref());
        let _in_flight = counters.unit.map(Tally::begin);
        slot.watch.begin();
        let result = match command.sqe.flags & FUSE {
            0 => self.perform(queue, task, command, transfer, slot, reply).await,
            // The transport calls `execute_fused` when it has both halves.
            _ => Err(Status::FUSED_MISSING.into()),
        };
        let (class, nanoseconds) = (class(queue, &command.sqe), latency(arrived, stats.now()));
        let timed = |ending| {
            let name = || find_entry(&command.sqe, queue.id).map_or("unknown command", |row| row.policy.name);
            match queue.id {
                // An Asynchronous Event Request takes as long as nothing happens.
                0 => drop(slot.watch.end(nanoseconds)),
                _ => counters.timed(stats, &slot.watch, nanoseconds, ending, (class, name)),
            }
        };
        if task.aborted() {
            counters.failed(class, nanoseconds, Some(Event::Aborted));
            timed(Ending::Aborted);
            *reply = aborted(queue, command);
            return;
        }
        match result {
            Ok(moved) => {
                counters.ended(class, nanoseconds, moved);
                timed(Ending::Done);
            }
            Err(refusal) => {
                counters.failed(class, nanoseconds, error_of(refusal.status));
                timed(Ending::Failed);
                *reply = self.refuse(queue, command, refusal);
            }
        }
    }

    /// Counts a command that got no slot.
    #[cold]
    pub fn task_set_full(&self, queue: &Queue, command: &Command) {
        self.config().stats.task_set_full.add(1);
        queue.counters(queue.counted(&command.sqe).as_deref()).task_set_full();
    }

    /// Executes a read or a write if the store answers at once and the data is available. Returns whether the command
    /// has ended; if not, nothing was done, and [`Subsystem::execute`] executes it.
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
        let Some(immediate) = unit.store.immediate().filter(|_| matches!(row.data, Data::Step)) else { return false };
        let stats = &self.config().stats;
        let begun = stats.sampler.begin(stats.commands.get(), stats.now());
        // A command that is not admitted goes through `execute`, which refuses it.
        if admit(row, queue, Some(&attached)).is_err() {
            return false;
        }
        let Ok(Plan::Do(step)) = self.plan(row, queue, Some(&attached), command, &[]) else { return false };
        let Ok(moved) = fit(&step, unit.geometry.block_size, command) else { return false };
        match carry_out_now(unit, immediate, &step, transfer, arena, &mut reply.final_data) {
            None => return false,
            Some(Ok(())) => {
                let bytes = self.count(moved);
                queue.counters(Some(&attached)).ended_at_once(stats, row.class, bytes, begun);
            }
            Some(Err(failure)) => {
                queue.counters(Some(&attached)).failed(row.class, 0, None);
                *reply = self.refuse(queue, command, failed(&attached.namespace, &step, failure));
            }
        }
        stats.commands.add(1);
        true
    }

    #[cold]
    pub(crate) fn refuse(&self, queue: &Queue, command: &Command, refusal: Refusal) -> Reply {
        self.config().stats.check_conditions.add(1);
        let status = queue.failed(&command.sqe, refusal);
        Reply { result: refusal.result.into(), ..Reply::of(status) }
    }

    /// Returns the bytes that the command moved between the host and a namespace.
    async fn perform<T: Transfer>(
        &self,
        queue: &Rc<Queue>,
        task: &Task,
        command: &Command,
        transfer: &T,
        slot: &mut SlotContext,
        reply: &mut Reply,
    ) -> Result<u64, Refusal> {
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
            Plan::Answer => self.answer(length, slot, reply)?,
            Plan::Park => {
                queue.controller.park(command.sqe.cid.get())?;
                reply.parked = true;
            }
            // Larger than the others: it does not make their future larger.
            plan if plan.is_rare() => {
                Box::pin(self.seldom(queue, task, (plan, length), transfer, slot, reply)).await?;
            }
            Plan::Manage(operation) => {
                reply.result = Box::pin(self.manage(queue, task, command.sqe.cid.get(), *operation)).await?.into();
            }
            plan => {
                let namespace = &namespace.as_ref().ok_or(Status::INVALID_NAMESPACE)?.namespace;
                let admitted = admitted.ok_or(Status::INVALID_NAMESPACE)?;
                // The state may have changed while the list was transferred.
                admitted.check().map_err(fault::transfer)?;
                let carrier = Carrier { controller: &queue.controller, namespace, admitted, transfer };
                match plan {
                    Plan::Do(step) => {
                        let moved = fit(&step, namespace.block_size(), command)?;
                        carrier.carry_all(std::slice::from_ref(&step), slot, reply).await?;
                        return Ok(self.count(moved));
                    }
                    Plan::Steps(steps) => carrier.carry_all(&steps, slot, reply).await?,
                    Plan::Reserve(request) => self.reserve(queue, task, namespace, *request).await?,
                    _ => {}
                }
            }
        }
        Ok(0)
    }

    /// Rare commands, which apply to several namespaces or to none.
    async fn seldom<T: Transfer>(
        &self,
        queue: &Rc<Queue>,
        task: &Task,
        (plan, length): (Plan, usize),
        transfer: &T,
        slot: &mut SlotContext,
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
                self.answer(length, slot, reply)?;
            }
            Plan::Flush => flush_all(queue, transfer, slot).await?,
            Plan::DisableWriteCache => {
                disable_write_cache(queue, transfer, slot).await?;
                self.note(&queue.controller, Happened::Feature([features::WRITE_CACHE.into(), 0]));
            }
            Plan::Format(named, asked) => {
                for id in named {
                    let seen = queue.attached(id).ok_or(Status::INVALID_NAMESPACE)?;
                    self.note(&queue.controller, Happened::Formats { namespace: id, asked });
                    let result = self.format(queue, task, &seen.namespace, &slot.arena).await;
                    let status = result.as_ref().err().map_or(0, |refusal| refusal.status.0);
                    self.note(&queue.controller, Happened::Formatted { namespace: id, status });
                    result?;
                }
            }
            Plan::Sanitize(all, asked) => self.sanitize(queue, all, asked, &slot.arena).await?,
            Plan::Test(test) => self.test(queue, test, transfer, slot).await,
            _ => {}
        }
        Ok(())
    }

    /// Reads the first and the last block of each medium, and more of it in between if the test is an extended one. The
    /// result is in the log page.
    async fn test<T: Transfer>(&self, queue: &Queue, test: Test, transfer: &T, slot: &mut SlotContext) {
        const EXTENDED: u8 = 2;
        /// Few enough to finish before the command timeout of hosts.
        const EXTENDED_PLACES: u64 = 1024;
        /// Reads before other tasks run: a store in memory never makes the test wait.
        const READS_PER_TURN: u64 = 64;
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
                if place % READS_PER_TURN == 0 {
                    yield_once().await;
                }
                // The last one is the last block.
                let offset = (last / places * place + last % places * place / places) * block;
                let step = Step::Verify { offset, len: block };
                let mut reply = Reply::default();
                if failed.is_none() && carry(namespace, &step, transfer, slot, &mut reply).await.is_err() {
                    failed = Some((seen.id, offset / block));
                }
            }
        }
        let when = (self.config().clock)();
        let result = TestResult { code: test.code, named: test.named, failed, when };
        queue.controller.access_grant.subsystem.history.tested(result);
    }

    /// Finds the command's row, and admits it for the namespace that it names.
    pub(crate) fn admitted(
        &self,
        queue: &Queue,
        command: &Command,
    ) -> Result<(&'static Row, Option<Rc<Attached>>), Refusal> {
        let sqe = &command.sqe;
        let row = find_entry(sqe, queue.id).ok_or(Status::INVALID_OPCODE)?;
        let makes = || pool_of(&self.config().subsystems.directory(), &queue.controller).is_some();
        if row.policy.effect == Effect::Inventory && !makes() {
            return Err(Status::INVALID_OPCODE.into());
        }
        let names_one = match row.policy.admission.scope {
            CommandScope::Controller => false,
            CommandScope::Namespaces => sqe.nsid.get() != ALL,
            CommandScope::Namespace => true,
        };
        let namespace = names_one.then(|| queue.attached(sqe.nsid.get())).flatten();
        // First, because a controller that has ended may have lost its namespaces.
        admit(row, queue, namespace.as_deref())?;
        if names_one && namespace.is_none() {
            return Err(Status::INVALID_NAMESPACE.into());
        }
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
    fn answer(&self, length: usize, slot: &SlotContext, reply: &mut Reply) -> Result<(), Refusal> {
        let mut scratch = self.scratch.borrow_mut();
        scratch.resize(length, 0);
        if length > 0 {
            let mut memory = slot.arena.take_sg(length).ok_or(Status::NOT_READY)?;
            memory.copy_from(0, &scratch);
            reply.final_data.data = memory.share();
        }
        let stats = &self.config().stats;
        stats.read_commands.add(1);
        stats.read_bytes.add(length as u64);
        Ok(())
    }

    /// Counts a successful command; returns the bytes that it moved.
    fn count(&self, moved: Moved) -> u64 {
        let stats = &self.config().stats;
        match moved {
            Moved::Nothing => 0,
            Moved::In(bytes) => {
                stats.read_commands.add(1);
                stats.read_bytes.add(bytes);
                bytes
            }
            Moved::Out(bytes) => {
                stats.write_commands.add(1);
                stats.write_bytes.add(bytes);
                bytes
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
        slot: &mut SlotContext,
        replies: &mut [Reply; 2],
    ) {
        let stats = &self.config().stats;
        let arrived = stats.now();
        stats.commands.add(2);
        let attached = queue.counted(&commands[0].sqe);
        let counters = queue.counters(attached.as_deref());
        let _in_flight = counters.unit.map(Tally::begin);
        slot.watch.begin();
        let result = self.compare_and_write(queue, commands, transfers, slot).await;
        let nanoseconds = latency(arrived, stats.now());
        let ending = if result.is_ok() { Ending::Done } else { Ending::Failed };
        counters.timed(stats, &slot.watch, nanoseconds, ending, (Class::CompareAndWrite, || "Compare and Write"));
        // The two halves are one command for the medium.
        match result {
            Ok(moved) => counters.ended(Class::CompareAndWrite, nanoseconds, moved),
            Err((_, refusal)) => counters.failed(Class::CompareAndWrite, nanoseconds, error_of(refusal.status)),
        }
        for (at, reply) in replies.iter_mut().enumerate() {
            if tasks[at].aborted() {
                *reply = aborted(queue, commands[at]);
            } else if let Err((compared, refusal)) = result {
                // The half that did not fail is aborted.
                let blamed = usize::from(compared);
                let why = if at == blamed { refusal } else { Status::FUSED_FAILED.into() };
                *reply = self.refuse(queue, commands[at], why);
            }
        }
    }

    /// Returns the bytes that were written. The error says whether the first half failed.
    async fn compare_and_write<T: Transfer>(
        &self,
        queue: &Rc<Queue>,
        commands: [&Command; 2],
        transfers: [&T; 2],
        slot: &mut SlotContext,
    ) -> Result<u64, (bool, Refusal)> {
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
        let both = Both { halves: transfers, first: first as usize, failed: Cell::new(None) };
        let namespace = &*to.namespace;
        let admitted = Admitted::to(&namespace.unit);
        let carrier = Carrier { controller: &queue.controller, namespace, admitted, transfer: &both };
        let result = carrier.carry_all(std::slice::from_ref(&step), slot, &mut Reply::default()).await;
        result.map(|()| len).map_err(|refusal| {
            let blamed = both.failed.get().unwrap_or_else(|| usize::from(!of_first_half(refusal.status)));
            (blamed > 0, refusal)
        })
    }
}

/// Whether the first half of Compare and Write has failed. If both halves request a check, the failed one is unknown;
/// nothing was written.
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

/// A step, and its protection checks if it has any.
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
    /// The half whose data could not be transferred.
    failed: Cell<Option<usize>>,
}

impl<T> Both<'_, T> {
    fn note_failure(&self, half: usize, pulled: Result<Sg, Fault>) -> Result<Sg, Fault> {
        pulled.inspect_err(|_| self.failed.set(Some(half)))
    }
}

impl<T: Transfer> Transfer for Both<'_, T> {
    async fn room(&self) -> Result<(), Fault> {
        Ok(())
    }

    async fn pull(&self, offset: usize, len: usize) -> Result<Sg, Fault> {
        // The first part is kept while the rest is transferred, so it is small: otherwise waiting commands could hold
        // all memory.
        let first = if offset == 0 { len.min(self.first) } else { 0 };
        let mut data = match first {
            0 => Sg::default(),
            first => self.note_failure(0, self.halves[0].pull(0, first).await)?,
        };
        if first < len {
            data.append(self.pull_more(offset + first, len - first).await?);
        }
        Ok(data)
    }

    async fn pull_more(&self, offset: usize, len: usize) -> Result<Sg, Fault> {
        let mut data = Sg::default();
        while data.len() < len {
            let (at, left) = (offset + data.len(), len - data.len());
            let (half, from, count) = match self.first.saturating_sub(at) {
                0 => (1, at - self.first, left),
                first => (0, at, left.min(first)),
            };
            data.append(self.note_failure(half, self.halves[half].pull_more(from, count).await)?);
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

/// The class of a command in metrics.
#[inline]
fn class(queue: &Queue, sqe: &Sqe) -> Class {
    match find_entry(sqe, queue.id) {
        Some(row) => row.class,
        _ => Class::Other,
    }
}

/// The kind of error of a command with this status; those of its steps are counted where they fail.
#[cold]
fn error_of(status: Status) -> Option<Event> {
    (status == Status::RESERVATION_CONFLICT).then_some(Event::Conflict)
}

/// Bytes that a command transferred, and the direction.
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
    slot: &mut SlotContext,
    reply: &mut Reply,
) -> Result<(), Refusal> {
    let result = carry_out(Admitted::to(&namespace.unit), step, transfer, slot, &mut reply.final_data).await;
    result.map_err(|failure| failed(namespace, step, failure))
}

/// Flushes all namespaces of a queue's controller.
async fn flush_all<T: Transfer>(queue: &Queue, transfer: &T, slot: &mut SlotContext) -> Result<(), Refusal> {
    for seen in queue.namespaces() {
        carry(&seen.namespace, &Step::Flush, transfer, slot, &mut Reply::default()).await?;
    }
    Ok(())
}

/// Disables the volatile write cache of a controller (NVMe Base 2.0 5.27.1.4). Writes that end from now on are flushed
/// with their commands, earlier ones are flushed here. If that fails the cache stays as it was.
async fn disable_write_cache<T: Transfer>(queue: &Queue, transfer: &T, slot: &mut SlotContext) -> Result<(), Refusal> {
    let controller = &queue.controller;
    let was_enabled = controller.caches_writes();
    controller.set_write_cache(false);
    let flushed = flush_all(queue, transfer, slot).await;
    if flushed.is_err() {
        controller.set_write_cache(was_enabled);
    }
    flushed
}

/// Carries the steps of a command out.
struct Carrier<'a, T> {
    controller: &'a Controller,
    namespace: &'a Namespace,
    admitted: Admitted<'a>,
    transfer: &'a T,
}

impl<T: Transfer> Carrier<'_, T> {
    /// Carries out the steps in order. If the volatile write cache is off, the writes are flushed. The setting is read
    /// after the steps, because the host may change it while the data is transferred.
    async fn carry_all(&self, steps: &[Step], slot: &mut SlotContext, reply: &mut Reply) -> Result<(), Refusal> {
        for step in steps {
            self.carry(step, slot, reply).await?;
        }
        let is_cached = steps.last().is_some_and(Step::leaves_cached);
        if is_cached && !self.controller.caches_writes() { self.carry(&Step::Flush, slot, reply).await } else { Ok(()) }
    }

    async fn carry(&self, step: &Step, slot: &mut SlotContext, reply: &mut Reply) -> Result<(), Refusal> {
        let result = carry_out(self.admitted, step, self.transfer, slot, &mut reply.final_data).await;
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
    // Failures of the host's own protection information have their own status codes. Bad data of the host is no media
    // error.
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
