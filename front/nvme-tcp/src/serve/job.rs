//! A command in a slot: the ways that its data takes, and its reply.

use super::connection::Connection;
use crate::session::{Pull, TaskKey};
use lunar_core::io::Fault;
use lunar_core::mem::{Sg, SgMut};
use lunar_core::port::Transfer;
use lunar_core::step::{PIECE_BYTES, Tools};
use lunar_nvme::{Command, Queue, Reply, Task};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

/// Bytes queued or under way to a peer before its reads wait for room: enough to keep a wire busy while the next are
/// read, few enough that a peer that does not read ties up little.
const SEND_QUEUE_MAX: usize = 1 << 20;
/// A host that was asked for data and does not send it for so long has lost the command.
const DATA_TIMEOUT: Duration = Duration::from_secs(60);

/// A command, or half of a fused operation.
pub(super) struct Half {
    pub(super) key: TaskKey,
    pub(super) task: Task,
    pub(super) command: Command,
}

/// What a slot carries out: a command, or both halves of a fused operation.
pub(super) struct Job {
    pub(super) connection: Rc<Connection>,
    pub(super) queue: Rc<Queue>,
    pub(super) first: Half,
    pub(super) second: Option<Half>,
    /// What it does to the connection is looked at when it has ended.
    pub(super) is_fabrics: bool,
}

impl Job {
    /// Carries it out and queues the reply.
    pub(super) async fn run(&self, tools: &mut Tools) {
        let Self { connection, queue, first, second, .. } = self;
        let subsystem = &connection.front.subsystem;
        let way = |half| Way::of(connection, half);
        match second {
            None => {
                let mut reply = Reply::default();
                subsystem.execute(queue, &first.task, &first.command, &way(first), tools, &mut reply).await;
                self.reply(first, reply);
            }
            // Seldom, and larger than the other: it does not make its future larger.
            Some(second) => {
                let mut replies = [Reply::default(), Reply::default()];
                let (tasks, commands) = ([&first.task, &second.task], [&first.command, &second.command]);
                let ways = [&way(first), &way(second)];
                Box::pin(subsystem.execute_fused(queue, tasks, commands, ways, tools, &mut replies)).await;
                let [one, other] = replies;
                self.reply(first, one);
                self.reply(second, other);
            }
        }
        connection.kick();
    }

    fn reply(&self, half: &Half, mut reply: Reply) {
        let mut session = self.connection.session.borrow_mut();
        if reply.parked {
            return session.park(half.key);
        }
        session.reply(half.key, reply.status, reply.result, &mut reply.tail);
        if self.is_fabrics {
            drop(session);
            self.connection.after_fabrics(&self.queue, half.command.sqe.fabrics_type(), reply.status);
        }
    }
}

/// The way of one command's data.
struct Way<'a> {
    connection: &'a Connection,
    key: TaskKey,
    task: &'a Task,
    /// Bytes that the host will send.
    expected: usize,
}

impl<'a> Way<'a> {
    fn of(connection: &'a Connection, half: &'a Half) -> Self {
        Self { connection, key: half.key, task: &half.task, expected: half.command.sent as usize }
    }

    fn is_crowded(&self) -> bool {
        self.connection.session.borrow().queued_bytes() + self.connection.sending.get() >= SEND_QUEUE_MAX
    }

    /// Memory for bytes to ask for. More than is waited for, if there is plenty: the host sends it meanwhile.
    async fn memory(&self, wanted: usize, end: usize) -> Result<SgMut, Fault> {
        let arena = self.connection.front.reactor.arena();
        let ahead = (self.expected - end).min(PIECE_BYTES);
        if arena.used() < arena.size() / 2
            && let Some(memory) = arena.take_sg(wanted + ahead)
        {
            return Ok(memory);
        }
        self.task.unless_aborted(arena.wait_sg(wanted)).await
    }

    /// Waits until the session says that a pull may go on.
    async fn data(&self) -> Result<(), Fault> {
        let mut timeout = pin!(self.connection.front.reactor.sleep(DATA_TIMEOUT));
        let mut asked = false;
        let arrived = poll_fn(|cx| {
            let mut pulls = self.connection.pulls.borrow_mut();
            if std::mem::replace(&mut asked, true) && !pulls.contains_key(&self.key) {
                return Poll::Ready(Ok(()));
            }
            pulls.insert(self.key, cx.waker().clone());
            timeout.as_mut().poll(cx).map(|()| Err(Fault::Timeout))
        });
        let result = self.task.unless_aborted(arrived).await;
        self.connection.pulls.borrow_mut().remove(&self.key);
        result?
    }
}

impl Transfer for Way<'_> {
    async fn room(&self) -> Result<(), Fault> {
        if !self.is_crowded() {
            return Ok(());
        }
        let room = poll_fn(|cx| {
            if !self.is_crowded() {
                return Poll::Ready(());
            }
            self.connection.crowd.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        });
        self.task.unless_aborted(room).await
    }

    async fn pull(&self, offset: usize, len: usize) -> Result<Sg, Fault> {
        loop {
            if self.task.aborted() {
                return Err(Fault::Aborted);
            }
            let pull = self.connection.session.borrow_mut().pull(self.key, offset, len);
            match pull {
                Pull::Ready(data) => return Ok(data),
                Pull::Failed(fault) => return Err(fault),
                Pull::Memory(wanted) => {
                    let memory = self.memory(wanted, offset + len).await?;
                    self.connection.session.borrow_mut().supply(self.key, memory);
                    self.connection.kick();
                }
                Pull::Pending => self.data().await?,
            }
        }
    }

    fn push(&self, offset: usize, data: Sg) -> Result<(), Fault> {
        let result = self.connection.session.borrow_mut().push(self.key, offset, data);
        self.connection.kick();
        result
    }

    fn aborted(&self) -> bool {
        self.task.aborted()
    }
}
