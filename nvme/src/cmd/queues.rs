//! Queues in the host's memory (NVMe Base 2.0 5.4 to 5.8). Over fabrics queues are made by Connect, and these commands
//! do not exist.
//!
//! The rows check the fields of the command. The transport, which has the memory and the queues, carries out the
//! [`QueueChange`].

use super::admin;
use crate::command::{Refusal, Sqe, Status};
use crate::context::Context;
use crate::limits::{QUEUE_ENTRIES_MAX, VECTORS};
use crate::plan::{Plan, QueueChange};
use crate::policy::{Admission, Code, CommandScope, Effect, Gate, Persistent, Policy, Transport};
use crate::row::{CommandType, Data};

/// Bytes of a memory page: the only supported size (CAP.MPSMIN and CAP.MPSMAX).
const PAGE: u64 = 4096;
/// Dword 11 of both Create commands: the queue is physically contiguous (PC).
const CONTIGUOUS: u32 = 0x01;
/// Dword 11 of Create I/O Completion Queue: interrupts are enabled (IEN).
const INTERRUPTS: u32 = 0x02;

const fn policy(name: &'static str, clause: &'static str, code: Code) -> Policy {
    Policy {
        name,
        clause,
        code,
        effect: Effect::None,
        admission: Admission {
            scope: CommandScope::Controller,
            transport: Transport::Memory,
            discovery: Gate::Stops,
            unauthenticated: Gate::Stops,
            disabled: Gate::Stops,
            persistent: Persistent::Passes,
            inaccessible: Gate::Passes,
            rewrite: Gate::Passes,
            unformatted: Gate::Passes,
            write_protect: Gate::Passes,
        },
    }
}

/// The identifier in dword 10, which is that of an I/O queue.
fn named(sqe: &Sqe) -> Result<u16, Status> {
    match sqe.cdw(10) as u16 {
        0 => Err(Status::INVALID_QUEUE),
        id => Ok(id),
    }
}

/// Identifier, entries and address of a queue that is to be created; `granted` queues of the type may exist.
fn created(sqe: &Sqe, granted: u16) -> Result<(u16, u16, u64), Status> {
    let [address, _] = sqe.prp();
    if sqe.cdw(11) & CONTIGUOUS == 0 {
        return Err(Status::INVALID_FIELD);
    }
    if !address.is_multiple_of(PAGE) {
        return Err(Status::PRP_OFFSET);
    }
    let entries = u16::try_from((sqe.cdw(10) >> 16) + 1).ok();
    let entries = entries.filter(|entries| (2..=QUEUE_ENTRIES_MAX).contains(entries)).ok_or(Status::QUEUE_SIZE)?;
    let id = named(sqe)?;
    if id > granted {
        return Err(Status::INVALID_QUEUE);
    }
    Ok((id, entries, address))
}

/// Delete I/O Submission Queue
#[derive(Clone, Copy, Debug)]
pub struct DeleteSubmissionQueue;

impl CommandType for DeleteSubmissionQueue {
    const POLICY: Policy = policy("Delete I/O Submission Queue", "NVMe Base 2.0 5.7", admin(0x00));
    const DATA: Data = Data::Queues;

    fn run(sqe: &Sqe, _cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Refusal> {
        Ok(Plan::Queues(QueueChange::DeleteSubmission { id: named(sqe)? }))
    }
}

/// Create I/O Submission Queue
#[derive(Clone, Copy, Debug)]
pub struct CreateSubmissionQueue;

impl CommandType for CreateSubmissionQueue {
    const POLICY: Policy = policy("Create I/O Submission Queue", "NVMe Base 2.0 5.5", admin(0x01));
    const DATA: Data = Data::Queues;

    fn run(sqe: &Sqe, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Refusal> {
        let (id, entries, address) = created(sqe, cx.controller().granted().submission)?;
        let completion_queue = (sqe.cdw(11) >> 16) as u16;
        // The admin completion queue, or more than there can be. The transport checks whether the queue exists.
        if completion_queue == 0 || completion_queue > cx.controller().granted().completion {
            return Err(Status::INVALID_QUEUE.into());
        }
        Ok(Plan::Queues(QueueChange::CreateSubmission { id, entries, address, completion_queue }))
    }
}

/// Delete I/O Completion Queue
#[derive(Clone, Copy, Debug)]
pub struct DeleteCompletionQueue;

impl CommandType for DeleteCompletionQueue {
    const POLICY: Policy = policy("Delete I/O Completion Queue", "NVMe Base 2.0 5.6", admin(0x04));
    const DATA: Data = Data::Queues;

    fn run(sqe: &Sqe, _cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Refusal> {
        Ok(Plan::Queues(QueueChange::DeleteCompletion { id: named(sqe)? }))
    }
}

/// Create I/O Completion Queue
#[derive(Clone, Copy, Debug)]
pub struct CreateCompletionQueue;

impl CommandType for CreateCompletionQueue {
    const POLICY: Policy = policy("Create I/O Completion Queue", "NVMe Base 2.0 5.4", admin(0x05));
    const DATA: Data = Data::Queues;

    fn run(sqe: &Sqe, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Refusal> {
        let (id, entries, address) = created(sqe, cx.controller().granted().completion)?;
        let vector = (sqe.cdw(11) & INTERRUPTS != 0).then_some((sqe.cdw(11) >> 16) as u16);
        if vector.is_some_and(|vector| vector >= VECTORS) {
            return Err(Status::INVALID_VECTOR.into());
        }
        Ok(Plan::Queues(QueueChange::CreateCompletion { id, entries, address, vector }))
    }
}

/// Doorbell Buffer Config
#[derive(Clone, Copy, Debug)]
pub struct DoorbellBufferConfig;

impl CommandType for DoorbellBufferConfig {
    const POLICY: Policy = policy("Doorbell Buffer Config", "NVMe Base 2.0 5.8", admin(0x7c));
    const DATA: Data = Data::Queues;

    fn run(sqe: &Sqe, _cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Refusal> {
        let [doorbells, events] = sqe.prp();
        if !doorbells.is_multiple_of(PAGE) || !events.is_multiple_of(PAGE) {
            return Err(Status::PRP_OFFSET.into());
        }
        Ok(Plan::Queues(QueueChange::SetDoorbellBuffers { doorbells, events }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::{Granted, property};
    use crate::fuzzing::{Rig, entry, tenant};
    use crate::queue::Queue;
    use lunar_core::time::Instant;
    use std::rc::Rc;
    use zerocopy::{FromBytes, IntoBytes};

    fn attached() -> (Rig, Rc<Queue>) {
        let rig = Rig::default();
        let admin = rig.subsystem.open_controller(&tenant(), Instant(0)).expect("room");
        admin.controller.set_property(property::CC, false, 0x46_0001).expect("a valid configuration");
        admin.controller.grant(Granted { submission: 4, completion: 4 }).expect("no I/O queues yet");
        (rig, admin)
    }

    /// A command with these PRP entries, dword 10 and dword 11.
    fn command(opcode: u8, prp: [u64; 2], dwords: [u32; 2]) -> Sqe {
        let mut sqe = entry(opcode, 0, &dwords);
        sqe.sgl = FromBytes::read_from_bytes(prp.map(u64::to_le_bytes).as_bytes()).expect("16 bytes");
        sqe
    }

    #[test]
    fn queue_commands_become_changes_of_queues() {
        let (rig, admin) = attached();
        let plan = |opcode, prp, dwords| rig.subsystem.plan_queue_change(&admin, &command(opcode, prp, dwords));
        let (id, entries, address) = (3, 16, 0x5000);
        for (opcode, prp, dwords, change) in [
            (
                5,
                [address, 0],
                [0xf_0003, 0x7_0003],
                QueueChange::CreateCompletion { id, entries, address, vector: Some(7) },
            ),
            (
                5,
                [address, 0],
                [0xf_0003, 0x7_0001],
                QueueChange::CreateCompletion { id, entries, address, vector: None },
            ),
            (
                1,
                [address, 0],
                [0xf_0003, 0x2_0001],
                QueueChange::CreateSubmission { id, entries, address, completion_queue: 2 },
            ),
            (4, [1, 1], [3, 0], QueueChange::DeleteCompletion { id }),
            (0, [1, 1], [3, 0], QueueChange::DeleteSubmission { id }),
            (0x7c, [address, 0x6000], [0, 0], QueueChange::SetDoorbellBuffers { doorbells: address, events: 0x6000 }),
        ] {
            assert_eq!(plan(opcode, prp, dwords), Some(Ok(change)), "{opcode:02x}");
        }
        assert_eq!(plan(6, [0; 2], [1, 0]), None, "Identify is about no queue");
        assert_eq!((admin.controller.errors().0, rig.subsystem.config().stats.commands.get()), (0, 6));
    }

    #[test]
    fn a_queue_command_with_an_invalid_field_is_refused_and_logged() {
        const GOOD: u32 = 0xf_0003;
        let (rig, admin) = attached();
        let refused = |opcode, prp, dwords| {
            let planned = rig.subsystem.plan_queue_change(&admin, &command(opcode, prp, dwords));
            planned.and_then(Result::err).expect("it is refused").code()
        };
        for opcode in [1, 5] {
            for (address, dwords, status) in [
                (0x5000, [GOOD, 0x1_0000], Status::INVALID_FIELD),
                (0x5004, [GOOD, 0x1_0001], Status::PRP_OFFSET),
                (0x5000, [0x0000_0003, 0x1_0001], Status::QUEUE_SIZE),
                (0x5000, [0x0400_0003, 0x1_0001], Status::QUEUE_SIZE),
                (0x5000, [0xffff_0003, 0x1_0001], Status::QUEUE_SIZE),
                (0x5000, [0x000f_0000, 0x1_0001], Status::INVALID_QUEUE),
                (0x5000, [0x000f_0005, 0x1_0001], Status::INVALID_QUEUE),
            ] {
                assert_eq!(refused(opcode, [address, 0], dwords), status, "{opcode:02x} {address:x} {dwords:x?}");
            }
        }
        for completion_queue in [0, 5, 0xffff] {
            let dword = completion_queue << 16 | 1;
            assert_eq!(refused(1, [0x5000, 0], [GOOD, dword]), Status::INVALID_QUEUE, "CQID {completion_queue}");
        }
        assert_eq!(refused(5, [0x5000, 0], [GOOD, u32::from(VECTORS) << 16 | 3]), Status::INVALID_VECTOR);
        assert_eq!([0, 4].map(|opcode| refused(opcode, [0; 2], [0x1_0000, 0])), [Status::INVALID_QUEUE; 2]);
        assert_eq!(refused(0x7c, [0x5000, 0x6008], [0, 0]), Status::PRP_OFFSET);
        assert_eq!(refused(0x7c, [0x5008, 0x6000], [0, 0]), Status::PRP_OFFSET);
        assert_eq!(admin.controller.errors().0, 22, "each is in the log");
    }

    #[test]
    fn queue_commands_pass_the_same_admission_as_all_others() {
        let (rig, admin) = attached();
        let plan = |queue: &Rc<Queue>, flags| {
            let mut sqe = command(0x04, [0; 2], [1, 0]);
            sqe.flags = flags;
            rig.subsystem.plan_queue_change(queue, &sqe).map(|planned| planned.map_err(Status::code))
        };
        assert!(plan(&admin, 0).is_some_and(|planned| planned.is_ok()));
        assert_eq!(plan(&admin, 1), Some(Err(Status::FUSED_MISSING)));
        admin.controller.set_property(property::CC, false, 0x46_0000).expect("a reset");
        assert_eq!(plan(&admin, 0), Some(Err(Status::SEQUENCE_ERROR)), "the controller is disabled");
        assert_eq!(plan(&rig.admin, 0), Some(Err(Status::INVALID_OPCODE)), "a controller over fabrics");
        assert_eq!(rig.run(&rig.admin, &command(0x04, [0; 2], [1, 0]), &[]).status.code(), Status::INVALID_OPCODE);
    }
}
