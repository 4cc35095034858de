//! Format NVM.

use super::admin;
use crate::admit;
use crate::command::{Refusal, Sqe, Status};
use crate::context::Context;
use crate::namespace::{ALL, Attached};
use crate::plan::Plan;
use crate::policy::{Admission, CommandScope, Effect, Gate, Persistent, Policy, Transport};
use crate::row::{CommandType, Data};

/// Format NVM
#[derive(Clone, Copy, Debug)]
pub struct FormatNvm;

/// Dword 10: the LBA format in two parts; only format 0 exists.
const FORMAT: u32 = 0x0f | 0x3000;
/// Dword 10: metadata and protection information (MSET, PI, PIL).
const PROTECTION: u32 = 0x1f0;

/// Whether the command asks for the metadata that the namespace has. The volume sets the protection type; a format
/// cannot change it.
fn check_protection(dword: u32, attached: &Attached) -> Result<(), Status> {
    /// MSET: metadata follows each block.
    const EXTENDED: u32 = 0x10;
    match attached.shown() {
        None if dword & PROTECTION != 0 => Err(Status::INVALID_FIELD),
        Some(kind) if dword & PROTECTION != EXTENDED | (kind as u32) << 5 => Err(Status::INVALID_FORMAT),
        _ => Ok(()),
    }
}

/// Secure Erase Settings: none, and user data erase, which every format does. Cryptographic erase is not supported.
fn erases(dword: u32) -> bool {
    dword >> 9 & 0x07 <= 1
}

impl CommandType for FormatNvm {
    const POLICY: Policy = Policy {
        name: "Format NVM",
        clause: "NVMe Base 2.0 5.14",
        code: admin(0x80),
        effect: Effect::Rewrite,
        admission: Admission {
            scope: CommandScope::Namespaces,
            transport: Transport::Every,
            discovery: Gate::Stops,
            unauthenticated: Gate::Stops,
            disabled: Gate::Stops,
            persistent: Persistent::Conflict,
            inaccessible: Gate::Stops,
            rewrite: Gate::Stops,
            unformatted: Gate::Passes,
            write_protect: Gate::Stops,
        },
    };
    const DATA: Data = Data::None;

    fn run(sqe: &Sqe, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Refusal> {
        let dword = sqe.cdw(10);
        if dword & FORMAT != 0 {
            return Err(Status::INVALID_FORMAT.into());
        }
        if !erases(dword) {
            return Err(Status::INVALID_FIELD.into());
        }
        let named = match sqe.nsid.get() {
            ALL => cx.queue.namespaces().iter().map(|seen| seen.id).collect(),
            id => vec![id],
        };
        // All of them or none.
        for id in &named {
            let attached = cx.queue.attached(*id).ok_or(Status::INVALID_NAMESPACE)?;
            admit::pass(&Self::POLICY.admission, &attached)?;
            check_protection(dword, &attached)?;
        }
        Ok(Plan::Format(named, dword))
    }
}
