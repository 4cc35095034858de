//! The vocabulary of Lunar's data path. Pure: no socket, no file, no clock, no thread.
//!
//! * [`access`]: who may come in, and what he sees
//! * [`unit`]: a unit as the data path sees it
//! * [`io`]: the back-end contract: [`io::Io`], [`io::Done`], [`io::Store`]
//! * [`metadata`]: what a unit keeps across restarts besides its data
//! * [`mem`]: memory behind handles: [`mem::Arena`], [`mem::Buf`], [`mem::Slice`], [`mem::Sg`]
//! * [`outgoing`]: what an initiator has to send
//! * [`pace`]: how often hosts may knock
//! * [`port`]: the front-end contract: [`port::Transfer`]; names of ports and nexuses
//! * [`protection`]: what is kept beside each block so that it can be checked
//! * [`step`]: what a command asks for, and the one place that carries it out
//! * [`range`]: range locks of a unit
//! * [`task`]: the commands of a nexus or a queue that are under way
//! * [`uncorrectable`]: blocks that were marked as unreadable
//! * [`stats`]: the table of statistics, counted per core
//! * [`wire`]: integer newtypes for protocol codes, cursor, bounded writer
//! * [`time`]: instants as numbers, so that time can be an argument

pub mod access;
pub mod io;
pub mod medium;
pub mod mem;
pub mod metadata;
pub mod outgoing;
pub mod pace;
pub mod port;
pub mod protection;
pub mod range;
pub mod stats;
pub mod step;
pub mod tally;
pub mod task;
pub mod time;
pub mod uncorrectable;
pub mod unit;
pub mod wire;
