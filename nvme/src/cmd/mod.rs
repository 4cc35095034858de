//! The commands, grouped by what they act on.

pub mod admin;
pub mod auth;
pub mod fabrics;
pub mod features;
pub mod format;
pub mod identify;
pub mod io;
pub mod log;
pub mod namespace_management;
pub mod queues;
pub mod ranges;
pub mod reserve;
pub mod sanitize;

use crate::policy::{Admission, Code, CommandScope, Gate, Persistent, Set, Transport};

/// The code of a command of the admin queue.
const fn admin(op: u8) -> Code {
    Code { set: Set::Admin, op }
}

/// The code of a command of I/O queues.
const fn io(op: u8) -> Code {
    Code { set: Set::Io, op }
}

/// The admission of commands that read or set state other than the medium.
const ADMIN: Admission = Admission {
    scope: CommandScope::Controller,
    transport: Transport::Every,
    discovery: Gate::Passes,
    unauthenticated: Gate::Stops,
    disabled: Gate::Stops,
    persistent: Persistent::Passes,
    inaccessible: Gate::Passes,
    rewrite: Gate::Passes,
    unformatted: Gate::Passes,
    write_protect: Gate::Passes,
};

/// The admission of commands that read the medium.
const READS: Admission = Admission {
    scope: CommandScope::Namespace,
    transport: Transport::Every,
    discovery: Gate::Stops,
    unauthenticated: Gate::Stops,
    disabled: Gate::Stops,
    persistent: Persistent::WriteExclusivePasses,
    inaccessible: Gate::Stops,
    rewrite: Gate::Stops,
    unformatted: Gate::Stops,
    write_protect: Gate::Passes,
};

/// The admission of commands that change the medium.
const WRITES: Admission = Admission {
    scope: CommandScope::Namespace,
    transport: Transport::Every,
    discovery: Gate::Stops,
    unauthenticated: Gate::Stops,
    disabled: Gate::Stops,
    persistent: Persistent::Conflict,
    inaccessible: Gate::Stops,
    rewrite: Gate::Stops,
    unformatted: Gate::Stops,
    write_protect: Gate::Stops,
};
