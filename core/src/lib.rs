//! The vocabulary of Lunar's data path. Pure: no socket, no file, no clock, no thread.
//!
//! * [`access`]: which hosts may connect, and which units they see
//! * [`unit`]: a unit as the data path sees it; [`ascii`]: short texts in its identity
//! * [`digest`]: digests of names
//! * [`io`]: the back-end contract: [`io::Io`], [`io::Done`], [`io::Store`]
//! * [`metadata`]: what a unit keeps across restarts besides its data
//! * [`mem`]: memory with handles: [`mem::Arena`], [`mem::Buf`], [`mem::Slice`], [`mem::Sg`]
//! * [`outgoing`]: the bytes that an initiator waits to send
//! * [`pace`]: how often hosts may connect
//! * [`port`]: the front-end contract: [`port::Transfer`]; names of ports and nexuses
//! * [`protection`]: protection information of blocks
//! * [`step`]: the operations that a command consists of, and the code that executes them
//! * [`range`]: range locks of a unit
//! * [`shares`]: a bounded resource that hosts and their sessions share
//! * [`task`]: the commands of a nexus or a queue that are in progress
//! * [`uncorrectable`]: blocks that were marked as unreadable
//! * [`stats`]: the table of statistics, counted per core; [`count`]: a number in it
//! * [`tally`], [`hosts`]: counters of the commands of each volume and of each host; [`traffic`]: their common part;
//!   [`counters`]: where a command is counted
//! * [`slow`]: slow commands, one by one; [`stages`]: where the time of all commands goes
//! * [`wire`]: integer newtypes for protocol codes, cursor, bounded writer
//! * [`time`]: instants as numbers, so that time can be an argument

pub mod access;
pub mod ascii;
pub mod count;
pub mod counters;
pub mod digest;
pub mod hosts;
pub mod io;
pub mod medium;
pub mod mem;
pub mod metadata;
pub mod outgoing;
pub mod pace;
pub mod port;
pub mod protection;
pub mod range;
pub mod shares;
pub mod slow;
pub mod stages;
pub mod stats;
pub mod step;
pub mod tally;
pub mod task;
pub mod time;
pub mod traffic;
pub mod turn;
pub mod uncorrectable;
pub mod unit;
pub mod wire;
