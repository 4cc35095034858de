//! Namespace Management and Namespace Attachment.

use super::admin;
use crate::admit::pass;
use crate::command::{Refusal, Sqe, Status};
use crate::context::Context;
use crate::identify::{IDENTIFY_LEN, IS_SHARED};
use crate::namespace::{ALL, Attached};
use crate::plan::Plan;
use crate::policy::{Admission, CommandScope, Effect, Gate, Persistent, Policy, Transport};
use crate::pool::{FORMATS, Name, NamespaceOperation, Pool};
use crate::row::{CommandType, Data};

/// Namespace Management
#[derive(Clone, Copy, Debug)]
pub struct NamespaceManagement;

/// Namespace Attachment
#[derive(Clone, Copy, Debug)]
pub struct NamespaceAttachment;

/// The admission of both commands. Their namespaces may be attached or not, so `run` checks them itself.
const GATES: Admission = Admission {
    scope: CommandScope::Controller,
    transport: Transport::Every,
    discovery: Gate::Stops,
    unauthenticated: Gate::Stops,
    disabled: Gate::Stops,
    persistent: Persistent::Conflict,
    inaccessible: Gate::Passes,
    rewrite: Gate::Stops,
    unformatted: Gate::Passes,
    write_protect: Gate::Passes,
};

/// Dword 10: the selected operation (SEL).
fn select(sqe: &Sqe) -> u32 {
    sqe.cdw(10) & 0x0f
}

const CREATE: u32 = 0;
const DELETE: u32 = 1;
const ATTACH: u32 = 0;
const DETACH: u32 = 1;

impl CommandType for NamespaceManagement {
    const POLICY: Policy = Policy {
        name: "Namespace Management",
        clause: "NVMe Base 2.0 5.23",
        code: admin(0x0d),
        effect: Effect::Inventory,
        admission: GATES,
    };
    const DATA: Data = Data::List(|sqe| if select(sqe) == CREATE { IDENTIFY_LEN as u32 } else { 0 });

    fn run(sqe: &Sqe, cx: &mut Context<'_>, list: &[u8]) -> Result<Plan, Refusal> {
        let pool = cx.pool().ok_or(Status::INVALID_OPCODE)?;
        let operation = match select(sqe) {
            CREATE => create(sqe, list, &pool)?,
            DELETE => NamespaceOperation::Delete(match sqe.nsid.get() {
                // Delete all removes the namespaces of hosts only; volumes of the operator stay.
                ALL => {
                    let all = cx.queue.all_allocated();
                    all.iter().filter(|one| one.sharing.is_some()).map(name).collect::<Result<_, _>>()?
                }
                id => vec![made(cx, id)?],
            }),
            _ => return Err(Status::INVALID_FIELD.into()),
        };
        Ok(Plan::Manage(Box::new(operation)))
    }
}

/// The attributes of a new namespace: fields of the Identify Namespace data structure (NVMe Base 2.0 5.23).
fn create(sqe: &Sqe, list: &[u8], pool: &Pool) -> Result<NamespaceOperation, Status> {
    let field = |at: usize, len: usize| -> u64 {
        let bytes = list.get(at..at + len).unwrap_or_default();
        bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
    };
    let (blocks, capacity) = (field(0, 8), field(8, 8));
    let (format, protection, sharing) = (field(26, 1) as usize, field(29, 1), field(30, 1) as u8);
    // Dword 11: the command set, of which there is one. Bytes 92 to 103: endurance groups and NVM sets, which are not
    // supported.
    if sqe.nsid.get() != 0 || sqe.cdw(11) >> 24 != 0 || field(92, 4) | field(100, 4) != 0 || sharing & !IS_SHARED != 0 {
        return Err(Status::INVALID_FIELD);
    }
    let block_size = *FORMATS.get(format).filter(|_| protection == 0).ok_or(Status::INVALID_FORMAT)?;
    if blocks == 0 || capacity > blocks {
        return Err(Status::INVALID_FIELD);
    }
    // The whole size is reserved, so the capacity equals the size.
    if capacity < blocks {
        return Err(Status::THIN_PROVISIONING);
    }
    let fits = blocks.checked_mul(block_size.into()).is_some_and(|bytes| bytes <= pool.left);
    if !fits {
        return Err(Status::INSUFFICIENT_CAPACITY);
    }
    Ok(NamespaceOperation::Create { blocks, block_size, private: sharing == 0 })
}

fn name(one: &Attached) -> Result<Name, Status> {
    pass(&GATES, one)?;
    Ok((one.id, one.namespace.unit.identity.uuid))
}

/// The namespace of this identifier, if a host has made it.
fn made(cx: &Context<'_>, id: u32) -> Result<Name, Status> {
    let found = cx.queue.allocated(id).ok_or(Status::INVALID_NAMESPACE)?;
    if found.sharing.is_none() {
        return Err(Status::OPERATION_DENIED);
    }
    name(&found)
}

impl CommandType for NamespaceAttachment {
    const POLICY: Policy = Policy {
        name: "Namespace Attachment",
        clause: "NVMe Base 2.0 5.22",
        code: admin(0x15),
        effect: Effect::Inventory,
        admission: GATES,
    };
    const DATA: Data = Data::List(|_| IDENTIFY_LEN as u32);

    fn run(sqe: &Sqe, cx: &mut Context<'_>, list: &[u8]) -> Result<Plan, Refusal> {
        cx.pool().ok_or(Status::INVALID_OPCODE)?;
        let attach = match select(sqe) {
            ATTACH => true,
            DETACH => false,
            _ => return Err(Status::INVALID_FIELD.into()),
        };
        if sqe.nsid.get() == ALL {
            return Err(Status::INVALID_FIELD.into());
        }
        let namespace = made(cx, sqe.nsid.get()).map_err(|why| match why {
            // Controllers are permanently attached to the namespaces of the operator.
            Status::OPERATION_DENIED if attach => Status::ALREADY_ATTACHED,
            why => why,
        })?;
        let controllers = controllers(list).ok_or(Status::CONTROLLER_LIST)?;
        Ok(Plan::Manage(Box::new(NamespaceOperation::Attach { namespace, controllers, attach })))
    }
}

/// A controller list (NVMe Base 2.0 4.4.1): each once.
fn controllers(list: &[u8]) -> Option<Vec<u16>> {
    let mut words = list.chunks_exact(2).map(|word| u16::from_le_bytes([word[0], word[1]]));
    let count = usize::from(words.next()?);
    let mut all: Vec<u16> = words.take(count).collect();
    all.sort_unstable();
    let is_right = (1..=all.len()).contains(&count) && all.windows(2).all(|two| two[0] != two[1]);
    is_right.then_some(all)
}

#[cfg(test)]
#[path = "namespace_management_tests.rs"]
mod tests;
