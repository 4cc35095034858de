//! A command in a slot: the ways that its data takes, and its reply.

use super::connection::Connection;
use crate::session::{Pull, TaskKey};
use lunar_core::io::Fault;
use lunar_core::mem::{Sg, SgMut};
use lunar_core::port::Transfer;
use lunar_core::step::{PIECE_BYTES, Tools};
use lunar_scsi::{Command, Nexus, Reply, Task};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

/// Bytes queued or under way to a peer before its reads wait for room: enough to keep a wire busy while the next are
/// read, few enough that a peer that does not read ties up little.
const SEND_QUEUE_MAX: usize = 1 << 20;
/// An initiator that was asked for data and does not send it for so long has lost the command.
const DATA_TIMEOUT: Duration = Duration::from_secs(60);

/// A command for a slot.
pub(super) struct Job {
    pub(super) connection: Rc<Connection>,
    pub(super) nexus: Rc<Nexus>,
    pub(super) key: TaskKey,
    pub(super) task: Task,
    pub(super) command: Command,
}

impl Job {
    /// Carries the command out and queues its reply.
    pub(super) async fn run(&self, tools: &mut Tools) {
        let Self { connection, nexus, key, task, command } = self;
        let way = Way { connection, key: *key, task, expected: command.data_out as usize };
        let mut reply = Reply::default();
        connection.front.target.execute(nexus, command, &way, tools, &mut reply).await;
        let mut session = connection.session.borrow_mut();
        if task.aborted() {
            session.drop_task(*key);
        } else {
            session.reply(*key, reply.status.0, &reply.sense, &mut reply.tail, reply.wanted);
        }
        drop(session);
        connection.kick();
    }
}

/// The way of one command's data.
struct Way<'a> {
    connection: &'a Connection,
    key: TaskKey,
    task: &'a Task,
    /// Bytes that the initiator will send.
    expected: usize,
}

impl Way<'_> {
    fn is_crowded(&self) -> bool {
        self.connection.session.borrow().queued_bytes() + self.connection.sending.get() >= SEND_QUEUE_MAX
    }

    /// Memory for bytes to ask for. More than is waited for, if there is plenty: the initiator sends it meanwhile.
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
