//! Scheduled Transfer: the receiver has memory before data moves, packets say where their bytes belong, and a program
//! is woken once per message. **The wire layout is private (version 2) and does not interoperate with ANSI NCITS
//! 337-2000**; docs/scheduled-transfer.md describes it.
//!
//! * [`wire`]: the Schedule Header, and the only file that knows its layout; [`tiling`]: how bytes are cut into packets
//! * [`host`]: the library for programs; [`port`]: an engine on its links, and the only module with I/O
//! * [`engine`]: Virtual Connections, Transfers, memory regions, repetition, paths; without I/O; [`path`], [`event`]:
//!   its values; [`limits`]: its limits and times

pub mod engine;
pub mod event;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
pub mod host;
pub mod limits;
mod memory;
pub mod path;
pub mod port;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod tiling;
mod window;
pub mod wire;

pub use engine::{Counters, Engine, FetchRequest, PutRequest, Settings, Ulp};
pub use event::{Access, Event, Id, Memory, Outgoing, Payload, Place, Refused, VcId, Wake};
pub use memory::Chunk;
pub use path::{Path, Peer};
pub use wire::{ETHER_TYPE, FetchCode, Reason};
