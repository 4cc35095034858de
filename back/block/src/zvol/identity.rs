//! The identity of a zvol: the number that ZFS has given its dataset (property `guid`). A dataset keeps it under
//! another name, in an imported pool, and after a rollback. A clone and a received copy have others.
//!
//! The statistics of the kernel module have such numbers as well, without a program, but keep the old name of a dataset
//! that was renamed (seen with OpenZFS 2.3).

use super::program::{Call, call};
use super::schema::Dataset;
use std::time::Duration;

/// How long ZFS may take to tell it. Without it, an operator decides whether a zvol is the one before.
const ANSWER_TIME: Duration = Duration::from_secs(5);

/// The number of a zvol or snapshot; `None` if there is none of this name, or ZFS does not answer.
pub(super) fn of(dataset: &Dataset) -> Option<String> {
    let told = call(&Call::Identity(dataset.clone()), ANSWER_TIME).ok()?;
    told.trim().parse::<u64>().ok().map(|number| number.to_string())
}
