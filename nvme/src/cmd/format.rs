//! Format NVM.

use super::{WRITES, admin};
use crate::admit;
use crate::command::{Refusal, Sqe, Status};
use crate::context::Context;
use crate::namespace::{ALL, Attached};
use crate::plan::Plan;
use crate::policy::{Admission, CommandScope, Effect, Gate, Policy};
use crate::row::{CommandType, Data};

/// Format NVM
#[derive(Clone, Copy, Debug)]
pub struct FormatNvm;

/// Dword 10: the format, of which there is one, in two parts.
const FORMAT: u32 = 0x0f | 0x3000;
/// Dword 10: metadata and protection information (MSET, PI, PIL).
const PROTECTION: u32 = 0x1f0;

/// Whether it asks for the metadata that the namespace has, for which there is one form: the type is its volume's.
fn check_protection(dword: u32, attached: &Attached) -> Result<(), Status> {
    /// MSET: behind each block.
    const EXTENDED: u32 = 0x10;
    match attached.shown() {
        None if dword & PROTECTION != 0 => Err(Status::INVALID_FIELD),
        Some(kind) if dword & PROTECTION != EXTENDED | (kind as u32) << 5 => Err(Status::INVALID_FORMAT),
        _ => Ok(()),
    }
}

/// Secure Erase Settings: none, and of user data, which is what every format does. There is no key to be thrown away.
fn erases(dword: u32) -> bool {
    dword >> 9 & 0x07 <= 1
}

impl CommandType for FormatNvm {
    const POLICY: Policy = Policy {
        name: "Format NVM",
        clause: "NVMe Base 2.0 5.14",
        code: admin(0x80),
        effect: Effect::Rewrite,
        admission: Admission { scope: CommandScope::Namespaces, unformatted: Gate::Passes, ..WRITES },
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
