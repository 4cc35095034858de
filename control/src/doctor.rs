//! The examination of a target and its machine.
//!
//! * [`table`]: the codes
//! * [`facts`]: the facts, which `lunar doctor` and the API gather
//! * [`checks`]: pure functions from facts to findings; [`finding`]: their results; [`examination`]:
//!   all of them

pub mod checks;
pub mod examination;
pub mod facts;
pub mod finding;
pub mod table;
