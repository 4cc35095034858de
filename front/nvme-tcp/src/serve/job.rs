//! A command in a slot, and its reply.

use super::connection::Connection;
use super::secure::Security;
use crate::session::{Session, TaskKey};
use lunar_core::step::Tools;
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
    pub(super) fn data_path<'a>(&'a self, connection: &'a Connection) -> DataPath<'a, Session, (u16, u32), Security> {
        DataPath::new(&connection.stream, self.key, &self.task, self.command.sent)
    }
}

/// What a slot carries out: a command, or both halves of a fused operation.
pub(super) struct Job {
    pub(super) connection: Rc<Connection>,
    pub(super) queue: Rc<Queue>,
    pub(super) first: Half,
    /// Seldom, and so behind a pointer: jobs are moved.
    pub(super) second: Option<Box<Half>>,
    /// What it does to the connection is looked at when it has ended.
    pub(super) is_fabrics: bool,
}

impl Job {
    /// Carries it out and queues the reply.
    pub(super) async fn run(&self, tools: &mut Tools) {
        let Self { connection, queue, first, second, .. } = self;
        let subsystem = &connection.front.subsystem;
        match second {
            None => {
                let mut reply = Reply::default();
                subsystem
                    .execute(queue, &first.task, &first.command, &first.data_path(connection), tools, &mut reply)
                    .await;
                self.reply(first, &mut reply);
            }
            // Seldom, and larger than the other: it does not make its future larger.
            Some(second) => {
                let mut replies = [Reply::default(), Reply::default()];
                let (tasks, commands) = ([&first.task, &second.task], [&first.command, &second.command]);
                let data_paths = [&first.data_path(connection), &second.data_path(connection)];
                Box::pin(subsystem.execute_fused(queue, tasks, commands, data_paths, tools, &mut replies)).await;
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
        session.reply(half.key, reply.status, reply.result, &mut reply.tail);
        if self.is_fabrics {
            drop(session);
            self.connection.after_fabrics(&self.queue, half.command.sqe.fabrics_type(), reply.status);
        }
    }
}
