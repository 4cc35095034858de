//! ATA over Ethernet (AoE r11), target side: disks for the stations of an Ethernet, without IP.
//!
//! From the wire upwards:
//!
//! * [`wire`]: the formats of the frames; [`identify`]: the data of IDENTIFY DEVICE
//! * [`target`]: a request and the state of a slot in, a verdict out
//! * [`slot`]: the state that stations set, and its metadata record
//! * [`order`]: the order of writes, and copies of requests that arrive again
//! * [`limits`]: limits that no station exceeds
//! * [`schema`], [`links`], [`command_line`]: the section of the configuration, its links, and the options of
//!   `lunar serve`
//! * [`directory`]: which stations see which volumes
//! * [`front`]: the front of the engine: shelves of a configuration, and their links
//! * [`serve`]: the glue to the reactor and the block command set, and the only module with I/O

pub mod command_line;
pub mod directory;
pub mod front;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
pub mod identify;
pub mod limits;
pub mod links;
pub mod order;
pub mod schema;
pub mod serve;
pub mod slot;
pub mod target;
pub mod wire;
