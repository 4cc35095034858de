//! Sanitize, Device Self-test: all of a subsystem's media.

use super::admin;
use crate::admit;
use crate::command::{Refusal, Sqe, Status};
use crate::context::Context;
use crate::fault;
use crate::namespace::{ALL, Namespace};
use crate::plan::{Plan, SanitizeAction, Test};
use crate::policy::{Admission, CommandScope, Effect, Gate, Persistent, Policy, Transport};
use crate::row::{CommandType, Data};
use lunar_unit::rewrite::request::{Pass, Rewrite, RewriteKind};

/// Sanitize
#[derive(Clone, Copy, Debug)]
pub struct Sanitize;

/// Dword 10: the sanitize action.
mod action {
    pub(super) const EXIT_FAILURE_MODE: u32 = 1;
    pub(super) const BLOCK_ERASE: u32 = 2;
    pub(super) const OVERWRITE: u32 = 3;
}

/// Dword 10: the state after a failure may be left without another Sanitize.
const UNRESTRICTED_EXIT: u32 = 0x08;
/// Dword 10: every second pass is the complement.
const INVERTS: u32 = 0x100;
/// Dword 10: blocks are not to be deallocated.
const KEEPS_BLOCKS: u32 = 0x200;

/// Sanitize is stopped by reservations, asymmetric access states and write protection. An incomplete format does not
/// stop it, because Sanitize repairs it.
const GATES: Admission = Admission {
    scope: CommandScope::Controller,
    transport: Transport::Every,
    discovery: Gate::Stops,
    unauthenticated: Gate::Stops,
    disabled: Gate::Stops,
    persistent: Persistent::Conflict,
    inaccessible: Gate::Stops,
    rewrite: Gate::Passes,
    unformatted: Gate::Passes,
    write_protect: Gate::Stops,
};

fn passes(sqe: &Sqe, namespace: &Namespace) -> Result<Vec<Pass>, Status> {
    /// Zero means the largest number of passes, 16.
    const PASSES_MAX: u32 = 16;
    let dword = sqe.cdw(10);
    match dword & 0x07 {
        action::BLOCK_ERASE => {
            let unmap = namespace.deallocates() && dword & KEEPS_BLOCKS == 0;
            Ok(vec![Pass { pattern: Vec::new(), unmap }])
        }
        action::OVERWRITE => {
            let count = if dword >> 4 & 0x0f == 0 { PASSES_MAX } else { dword >> 4 & 0x0f };
            let of = |pass| {
                let word = if dword & INVERTS != 0 && pass % 2 == 1 { !sqe.cdw(11) } else { sqe.cdw(11) };
                Pass { pattern: word.to_le_bytes().repeat(namespace.block_size() as usize / 4), unmap: false }
            };
            Ok((0..count).map(of).collect())
        }
        _ => Err(Status::INVALID_FIELD),
    }
}

impl CommandType for Sanitize {
    const POLICY: Policy = Policy {
        name: "Sanitize",
        clause: "NVMe Base 2.0 5.24",
        code: admin(0x84),
        effect: Effect::Rewrite,
        admission: GATES,
    };
    const DATA: Data = Data::None;

    fn run(sqe: &Sqe, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Refusal> {
        let can_exit = sqe.cdw(10) & UNRESTRICTED_EXIT != 0;
        let mut all = Vec::new();
        // All of them or none.
        for seen in cx.queue.namespaces() {
            let (id, namespace) = (seen.id, &seen.namespace);
            let attached = cx.queue.attached(id).ok_or(Status::INVALID_NAMESPACE)?;
            admit::pass(&Self::POLICY.admission, &attached)?;
            let medium = namespace.medium();
            if medium.is_rewriting() {
                return Err(fault::rewrite_status(medium).into());
            }
            let action = match sqe.cdw(10) & 0x07 {
                action::EXIT_FAILURE_MODE => SanitizeAction::ExitFailureMode,
                _ => {
                    let kind = RewriteKind::Sanitize { can_exit };
                    SanitizeAction::Begin(Rewrite { kind, passes: passes(sqe, namespace)? })
                }
            };
            all.push((id, action));
        }
        Ok(Plan::Sanitize(all, [sqe.cdw(10), sqe.cdw(11)]))
    }
}

/// Device Self-test
#[derive(Clone, Copy, Debug)]
pub struct DeviceSelfTest;

impl CommandType for DeviceSelfTest {
    const POLICY: Policy = Policy {
        name: "Device Self-test",
        clause: "NVMe Base 2.0 5.9",
        code: admin(0x14),
        effect: Effect::None,
        admission: Admission {
            scope: CommandScope::Controller,
            transport: Transport::Every,
            discovery: Gate::Stops,
            unauthenticated: Gate::Stops,
            disabled: Gate::Stops,
            persistent: Persistent::Passes,
            inaccessible: Gate::Passes,
            rewrite: Gate::Passes,
            unformatted: Gate::Passes,
            write_protect: Gate::Passes,
        },
    };
    const DATA: Data = Data::None;

    /// The self-test reads the media and ends before its completion, so there is no test to abort.
    fn run(sqe: &Sqe, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Refusal> {
        const SHORT: u32 = 1;
        const EXTENDED: u32 = 2;
        const ABORT: u32 = 0x0f;
        let namespaces = match sqe.nsid.get() {
            0 => Vec::new(),
            ALL => cx.queue.namespaces().iter().map(|seen| seen.id).collect(),
            id => vec![cx.queue.attached(id).map(|_| id).ok_or(Status::INVALID_NAMESPACE)?],
        };
        match sqe.cdw(10) & 0x0f {
            // Four bits.
            code @ (SHORT | EXTENDED) => Ok(Plan::Test(Test { code: code as u8, named: sqe.nsid.get(), namespaces })),
            ABORT => Ok(Plan::Done(0)),
            _ => Err(Status::INVALID_FIELD.into()),
        }
    }
}
