//! The vocabulary of Lunar's data path. Pure: no socket, no file, no clock, no thread.
//!
//! * [`access`]: who may come in, and what he sees
//! * [`unit`]: what SCSI calls a logical unit and NVMe a namespace, as both see it
//! * [`io`]: the back-end contract: [`io::Io`], [`io::Done`], [`io::Store`]
//! * [`keep`]: what a unit keeps across restarts besides its data
//! * [`mem`]: memory behind handles: [`mem::Arena`], [`mem::Buf`], [`mem::Slice`], [`mem::Sg`]
//! * [`outgoing`]: what an initiator has to send
//! * [`pace`]: how often hosts may knock
//! * [`port`]: the front-end contract: [`port::Transfer`]; names of ports and nexuses
//! * [`protection`]: what is kept beside each block so that it can be checked
//! * [`step`]: what a command asks for, and the one place that carries it out
//! * [`reserve`]: who may use a unit while others may not
//! * [`range`]: ranges of a unit that are held while an atomic command runs
//! * [`task`]: the commands of a nexus or a queue that are under way
//! * [`uncorrectable`]: blocks that were marked as unreadable
//! * [`stats`]: the table of statistics, counted per core
//! * [`wire`]: integer newtypes for protocol codes, cursor, bounded writer
//! * [`time`]: instants as numbers, so that time can be an argument

pub mod access;
pub mod io;
pub mod keep;
pub mod medium;
pub mod mem;
pub mod outgoing;
pub mod pace;
pub mod port;
pub mod protection;
pub mod range;
pub mod reserve;
pub mod stats;
pub mod step;
pub mod tally;
pub mod task;
pub mod time;
pub mod uncorrectable;
pub mod unit;
pub mod wire;
