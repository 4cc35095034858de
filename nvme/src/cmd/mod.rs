//! The commands, by family.

pub mod admin;
pub mod auth;
pub mod fabrics;
pub mod features;
pub mod format;
pub mod identify;
pub mod io;
pub mod log;
pub mod manage;
pub mod queues;
pub mod ranges;
pub mod reserve;
pub mod sanitize;

use crate::table::{Code, Gate, Gates, Persistent, Reach, Set, Transport};

/// A command of the admin queue.
const fn admin(op: u8) -> Code {
    Code { set: Set::Admin, op }
}

/// A command of I/O queues.
const fn io(op: u8) -> Code {
    Code { set: Set::Io, op }
}

/// What stops commands that ask or set what is not on the medium.
const ADMIN: Gates = Gates {
    reach: Reach::Controller,
    transport: Transport::Every,
    discovery: Gate::Passes,
    unproven: Gate::Stops,
    disabled: Gate::Stops,
    persistent: Persistent::Passes,
    inaccessible: Gate::Passes,
    renewal: Gate::Passes,
    unformatted: Gate::Passes,
    write_protect: Gate::Passes,
};

/// What stops commands that read the medium.
const READS: Gates = Gates {
    reach: Reach::Namespace,
    transport: Transport::Every,
    discovery: Gate::Stops,
    unproven: Gate::Stops,
    disabled: Gate::Stops,
    persistent: Persistent::WriteExclusivePasses,
    inaccessible: Gate::Stops,
    renewal: Gate::Stops,
    unformatted: Gate::Stops,
    write_protect: Gate::Passes,
};

/// What stops commands that change the medium.
const WRITES: Gates = Gates {
    reach: Reach::Namespace,
    transport: Transport::Every,
    discovery: Gate::Stops,
    unproven: Gate::Stops,
    disabled: Gate::Stops,
    persistent: Persistent::Conflict,
    inaccessible: Gate::Stops,
    renewal: Gate::Stops,
    unformatted: Gate::Stops,
    write_protect: Gate::Stops,
};
