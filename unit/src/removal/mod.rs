//! Removable media: eject, load, and the prevention of removal.
//!
//! A client ejects and loads by START STOP UNIT. A medium that it ejects lies in the open tray, so it can load it
//! again. A medium that the operator ejects is removed: clients cannot load it, and it may be replaced by another one
//! before the operator loads it.
//!
//! * [`request`]: the requests as values; `change`: the state after each of them
//! * [`motion`]: the motion of a medium, which waits for commands in progress and flushes

mod change;
pub mod motion;
pub mod request;

pub(crate) use change::apply;
