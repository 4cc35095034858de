//! A command in a slot, and its reply.

use super::connection::Connection;
use crate::session::TaskKey;
use lunar_core::step::Tools;
use lunar_scsi::{Command, Nexus, Reply, Task};
use lunar_stream::serve::DataPath;
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
        let data_path = DataPath::new(&connection.stream, *key, task, command.data_out);
        let mut reply = Reply::default();
        connection.front.target.execute(nexus, command, &data_path, tools, &mut reply).await;
        if task.aborted() {
            connection.stream.session().drop_task(*key);
            connection.stream.schedule_send();
        } else {
            connection.reply(*key, &mut reply);
        }
    }
}
