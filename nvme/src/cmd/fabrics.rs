//! Fabrics commands: properties, Connect, Disconnect.

use crate::command::{Refusal, Sqe, Status};
use crate::context::Context;
use crate::plan::Plan;
use crate::policy::{Admission, Code, CommandScope, Effect, Gate, Persistent, Policy, Set, Transport};
use crate::row::{CommandType, Data};

/// The admission of Fabrics commands. A host sends them before the controller is enabled and before it authenticates.
pub(super) const GATES: Admission = Admission {
    scope: CommandScope::Controller,
    transport: Transport::Fabrics,
    discovery: Gate::Passes,
    unauthenticated: Gate::Passes,
    disabled: Gate::Passes,
    persistent: Persistent::Passes,
    inaccessible: Gate::Passes,
    rewrite: Gate::Passes,
    unformatted: Gate::Passes,
    write_protect: Gate::Passes,
};

pub(super) const fn policy(name: &'static str, clause: &'static str, op: u8) -> Policy {
    Policy { name, clause, code: Code { set: Set::Fabrics, op }, effect: Effect::None, admission: GATES }
}

/// The policy of property commands, which a host that must authenticate may send only after it has.
const fn property(name: &'static str, clause: &'static str, op: u8) -> Policy {
    Policy {
        name,
        clause,
        code: Code { set: Set::Fabrics, op },
        effect: Effect::None,
        admission: Admission {
            scope: CommandScope::Controller,
            transport: Transport::Fabrics,
            discovery: Gate::Passes,
            unauthenticated: Gate::Stops,
            disabled: Gate::Passes,
            persistent: Persistent::Passes,
            inaccessible: Gate::Passes,
            rewrite: Gate::Passes,
            unformatted: Gate::Passes,
            write_protect: Gate::Passes,
        },
    }
}

/// Dword 10: the size of the property; zero: four bytes.
const EIGHT_BYTES: u32 = 0x01;
const SIZE: u32 = 0x07;

/// Whether the property has eight bytes. Properties are the admin queue's.
fn is_wide(sqe: &Sqe, cx: &Context<'_>) -> Result<bool, Status> {
    match sqe.cdw(10) & SIZE {
        _ if cx.queue.id > 0 => Err(Status::INVALID_FIELD),
        0 => Ok(false),
        EIGHT_BYTES => Ok(true),
        _ => Err(Status::INVALID_FIELD),
    }
}

/// Property Set
#[derive(Clone, Copy, Debug)]
pub struct PropertySet;

impl CommandType for PropertySet {
    const POLICY: Policy = property("Property Set", "NVMe Base 2.0 6.6", 0x00);
    const DATA: Data = Data::None;

    fn run(sqe: &Sqe, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Refusal> {
        cx.subsystem.set_property(cx.controller(), sqe.cdw(11), is_wide(sqe, cx)?, sqe.cdw_pair(12))?;
        Ok(Plan::Done(0))
    }
}

/// Connect
#[derive(Clone, Copy, Debug)]
pub struct Connect;

impl CommandType for Connect {
    const POLICY: Policy = policy("Connect", "NVMe Base 2.0 6.3", 0x01);
    const DATA: Data = Data::None;

    /// [`Subsystem::connect`](crate::Subsystem::connect) executes the first Connect of a queue; a second one is an
    /// error.
    fn run(_sqe: &Sqe, _cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Refusal> {
        Err(Status::SEQUENCE_ERROR.into())
    }
}

/// Property Get
#[derive(Clone, Copy, Debug)]
pub struct PropertyGet;

impl CommandType for PropertyGet {
    const POLICY: Policy = property("Property Get", "NVMe Base 2.0 6.5", 0x04);
    const DATA: Data = Data::None;

    fn run(sqe: &Sqe, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Refusal> {
        let value = cx.controller().property(sqe.cdw(11), is_wide(sqe, cx)?);
        Ok(Plan::Done(value.ok_or(Status::INVALID_FIELD)?))
    }
}

/// Disconnect
#[derive(Clone, Copy, Debug)]
pub struct Disconnect;

impl CommandType for Disconnect {
    const POLICY: Policy = policy("Disconnect", "NVMe Base 2.0 6.4", 0x08);
    const DATA: Data = Data::None;

    /// The transport ends the queue after the completion.
    fn run(_sqe: &Sqe, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Refusal> {
        match cx.queue.id {
            0 => Err(Status::QUEUE_TYPE.into()),
            _ => Ok(Plan::Done(0)),
        }
    }
}
