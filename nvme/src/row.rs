//! The types of the rows of the table of commands.

use crate::command::{Refusal, Sqe};
use crate::context::Context;
use crate::plan::Plan;
use crate::policy::Policy;
use lunar_core::traffic::Class;

/// The data of a command.
#[derive(Clone, Copy)]
pub enum Data {
    /// None.
    None,
    /// Data for the host, which `run` writes. The function returns the length in bytes.
    Answer(fn(&Sqe) -> u64),
    /// Data from the host, which is pulled before `run`. The function returns the length in bytes.
    List(fn(&Sqe) -> u32),
    /// Data that the planned step moves.
    Step,
    /// None. The command changes queues in the host's memory: [`Subsystem::plan_queue_change`] plans it, and the
    /// transport carries it out.
    ///
    /// [`Subsystem::plan_queue_change`]: crate::subsystem::Subsystem::plan_queue_change
    Queues,
}

/// A command of the table.
pub trait CommandType {
    /// The facts about the command.
    const POLICY: Policy;
    /// The data of the command.
    const DATA: Data;

    /// Plans the command. `list` is what was pulled, with the length of [`Data::List`].
    ///
    /// # Errors
    /// The status of a command that is refused.
    fn run(sqe: &Sqe, cx: &mut Context<'_>, list: &[u8]) -> Result<Plan, Refusal>;
}

/// Plans a command: its entry, its context, and the data that was pulled.
type Run = fn(&Sqe, &mut Context<'_>, &[u8]) -> Result<Plan, Refusal>;

/// A row of the table.
#[derive(Clone, Copy)]
pub struct Row {
    /// The facts about the command.
    pub policy: Policy,
    /// The data of the command.
    pub data: Data,
    /// Its class in metrics.
    pub class: Class,
    /// Plans the command.
    pub run: Run,
}
