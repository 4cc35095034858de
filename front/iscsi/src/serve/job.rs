//! A command in a slot, and its reply.

use super::connection::Connection;
use crate::session::TaskKey;
use lunar_core::step::Tools;
use lunar_scsi::{Command, Nexus, Reply, Task};
use lunar_stream::serve::Way;
use std::rc::Rc;

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
        let way = Way::new(&connection.line, *key, task, command.data_out);
        let mut reply = Reply::default();
        connection.front.target.execute(nexus, command, &way, tools, &mut reply).await;
        if task.aborted() {
            connection.line.session().drop_task(*key);
            connection.line.kick();
        } else {
            connection.reply(*key, &mut reply);
        }
    }
}
