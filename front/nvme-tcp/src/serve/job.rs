//! A command in a slot, and its reply.

use super::connection::Connection;
use super::secure::Security;
use crate::session::{CloseReason, Session, TaskKey};
use lunar_core::shares::Share;
use lunar_core::step::SlotContext;
use lunar_core::time::Instant;
use lunar_nvme::{Command, Queue, Reply, Task};
use lunar_stream::serve::DataPath;
use std::rc::Rc;

/// A command, or half of a fused operation.
pub(super) struct Half {
    pub(super) key: TaskKey,
    pub(super) task: Task,
    pub(super) command: Command,
}

impl Half {
    /// Whether the host reads data of the command.
    pub(super) fn reads(&self) -> bool {
        self.command.room > 0
    }

    pub(super) fn data_path<'a>(&'a self, connection: &'a Connection) -> DataPath<'a, Session, (u16, u32), Security> {
        DataPath::new(&connection.stream, self.key, &self.task, self.command.sent)
    }
}

/// A command, or both halves of a fused operation, without a slot.
pub(super) struct Request {
    pub(super) queue: Rc<Queue>,
    pub(super) first: Half,
    /// Rare, and so behind a pointer: jobs are moved.
    pub(super) second: Option<Box<Half>>,
    pub(super) is_fabrics: bool,
}

impl Request {
    pub(super) fn halves(&self) -> impl Iterator<Item = &Half> {
        std::iter::once(&self.first).chain(self.second.as_deref())
    }

    /// The job of the request. `arrived`: when it arrived, if it has waited for its slot.
    pub(super) fn with(self, connection: &Rc<Connection>, arrived: Option<Instant>, share: Share) -> Job {
        let Self { queue, first, second, is_fabrics } = self;
        Job { connection: connection.clone(), queue, first, second, is_fabrics, arrived, share }
    }
}

/// The work of a slot: a command, or both halves of a fused operation.
pub(super) struct Job {
    pub(super) connection: Rc<Connection>,
    pub(super) queue: Rc<Queue>,
    pub(super) first: Half,
    /// Rare, and so behind a pointer: jobs are moved.
    pub(super) second: Option<Box<Half>>,
    /// Whether it is a Fabrics command, whose effects on the connection are applied after its completion.
    pub(super) is_fabrics: bool,
    arrived: Option<Instant>,
    /// Its share of the slots.
    #[expect(dead_code, reason = "dropping it with the job gives it back")]
    pub(super) share: Share,
}

impl Job {
    /// Executes the command and queues the reply.
    pub(super) async fn run(&self, slot: &mut SlotContext) {
        let Self { connection, queue, first, second, .. } = self;
        let subsystem = &connection.front.subsystem;
        self.arrived.iter().for_each(|arrived| slot.watch.waited_since(*arrived));
        match second {
            None => {
                let (mut reply, data_path) = (Reply::default(), first.data_path(connection));
                subsystem.execute(queue, &first.task, &first.command, &data_path, slot, &mut reply).await;
                self.reply(first, &mut reply);
            }
            // Rare and large, so boxed: it does not enlarge the common future.
            Some(second) => {
                let mut replies = [Reply::default(), Reply::default()];
                let (tasks, commands) = ([&first.task, &second.task], [&first.command, &second.command]);
                let data_paths = [&first.data_path(connection), &second.data_path(connection)];
                Box::pin(subsystem.execute_fused(queue, tasks, commands, data_paths, slot, &mut replies)).await;
                let [one, other] = &mut replies;
                self.reply(first, one);
                self.reply(second, other);
            }
        }
        connection.stream.schedule_send();
    }

    fn reply(&self, half: &Half, reply: &mut Reply) {
        let mut session = self.connection.stream.session();
        if reply.parked {
            return session.park(half.key);
        }
        session.reply(half.key, reply.status, reply.result, &mut reply.final_data);
        if session.closed() == Some(CloseReason::DataTimeout) {
            drop(session);
            return self.connection.end_late();
        }
        if self.is_fabrics {
            drop(session);
            self.connection.after_fabrics(&self.queue, half.command.sqe.fabrics_type(), reply.status);
        }
    }
}
