//! Tasks and task management functions.

use crate::lun::Lun;
use lunar_core::codes;

/// The tasks of one I_T nexus (TST = 001b), by tag and logical unit.
pub type TaskSet = lunar_core::task::TaskSet<(u64, Lun)>;

/// A task in its set.
pub type Task = lunar_core::task::Task<(u64, Lun)>;

codes! {
    /// Task management functions (SAM-6 7.1), numbered as iSCSI does (RFC 7143 11.5.1, RFC 7144 4.2).
    pub struct TaskFunction(u8) {
        ABORT_TASK = 1, ABORT_TASK_SET = 2, CLEAR_ACA = 3, CLEAR_TASK_SET = 4, LOGICAL_UNIT_RESET = 5,
        TARGET_WARM_RESET = 6, TARGET_COLD_RESET = 7, TASK_REASSIGN = 8, QUERY_TASK = 9, QUERY_TASK_SET = 10,
        I_T_NEXUS_RESET = 11, QUERY_ASYNC_EVENT = 12,
    }
}

/// The response to a task management function (SAM-6 7.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TaskResponse {
    /// FUNCTION COMPLETE: the function was executed, or the queried task does not exist.
    Complete,
    /// FUNCTION SUCCEEDED: the queried task exists. The bytes are the additional response information of QUERY
    /// ASYNCHRONOUS EVENT.
    Succeeded([u8; 3]),
    /// The task to abort does not exist. SAM-6 calls that FUNCTION COMPLETE; iSCSI has a response of its own.
    NoTask,
    /// INCORRECT LOGICAL UNIT NUMBER.
    IncorrectLun,
    /// FUNCTION REJECTED: not supported.
    Rejected,
}
