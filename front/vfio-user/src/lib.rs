//! NVMe controllers for virtual machines, over vfio-user: the guest's own NVMe driver, its queues and its data in its
//! own memory.
//!
//! From the wire upwards:
//!
//! * [`wire`]: the messages
//! * [`session`]: what a message asks for, and what the device says of itself
//! * [`pci`]: the configuration space
//! * [`pointer`]: lists of pages and segments, read once and checked
//! * [`queue`]: submission and completion queues in that memory
//! * [`registers`]: registers, doorbells, queues: the controller as its guest sees it
//! * [`feature`]: what moves a guest to another machine: questions and answers
//! * [`record`]: what a controller is, as bytes, on its way to another process
//! * [`config`]: what is too much
//! * [`testing`]: what fuzzers call
//! * [`serve`]: the glue to the reactor and the controller: the one module with I/O

mod coalescing;
pub mod config;
pub mod feature;
pub mod pci;
pub mod pointer;
pub mod queue;
pub mod record;
pub mod registers;
pub mod serve;
pub mod session;
pub mod testing;
pub mod wire;
