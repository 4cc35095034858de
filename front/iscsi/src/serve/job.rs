//! A command in a slot, and its reply.

use super::connection::Connection;
use crate::session::TaskKey;
use lunar_core::shares::Share;
use lunar_core::step::SlotContext;
use lunar_core::time::Instant;
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
    /// When it arrived, if it has waited for its slot.
    pub(super) arrived: Option<Instant>,
    /// Its share of the slots.
    #[expect(dead_code, reason = "dropping it with the job gives it back")]
    pub(super) share: Share,
}

impl Job {
    /// Carries the command out and queues its reply.
    pub(super) async fn run(&self, slot: &mut SlotContext) {
        let Self { connection, nexus, key, task, command, arrived, share: _ } = self;
        arrived.iter().for_each(|arrived| slot.watch.waited_since(*arrived));
        let data_path = DataPath::new(&connection.stream, *key, task, command.data_out);
        let mut reply = Reply::default();
        connection.front.target.execute(nexus, command, &data_path, slot, &mut reply).await;
        if task.aborted() {
            connection.drop_task(*key);
        } else {
            connection.reply(*key, &mut reply);
        }
    }
}
