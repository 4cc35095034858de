//! Set Features, Get Features.

use super::{ADMIN, admin};
use crate::command::{Refusal, Sqe, Status};
use crate::context::Context;
use crate::controller::Granted;
use crate::features::{self, DISABLED, Row, find};
use crate::history::Happened;
use crate::limits::VECTORS;
use crate::namespace::ALL;
use crate::plan::Plan;
use crate::policy::{Effect, Policy};
use crate::row::{CommandType, Data};

/// Dword 10 of Set Features: the value persists through a reset (SV).
const SAVE: u32 = 1 << 31;

/// The feature that dword 10 names.
fn row(sqe: &Sqe) -> Option<&'static Row> {
    find((sqe.cdw(10) & 0xff) as u8)
}

/// The feature that dword 10 names, if the controller has it.
fn found(sqe: &Sqe, cx: &Context<'_>) -> Result<&'static Row, Status> {
    row(sqe).filter(|row| row.transport.has(cx.controller().path.memory)).ok_or(Status::INVALID_FIELD)
}

/// The namespace of a feature that each namespace has for itself, the vector of one that each vector has; zero for
/// others.
fn which(sqe: &Sqe, cx: &Context<'_>, row: &Row) -> Result<u32, Status> {
    let vector = sqe.cdw(11) & 0xffff;
    if row.id == features::VECTOR {
        return if vector < VECTORS.into() { Ok(vector) } else { Err(Status::INVALID_FIELD) };
    }
    match (row.per_namespace, sqe.nsid.get()) {
        (false, 0 | ALL) => Ok(0),
        // Some hosts set the namespace identifier in all commands.
        (false, id) if cx.queue.attached(id).is_some() => Ok(0),
        (false, _) => Err(Status::INVALID_NAMESPACE),
        (true, ALL) => Ok(ALL),
        (true, id) => cx.queue.attached(id).map(|_| id).ok_or(Status::INVALID_NAMESPACE),
    }
}

/// Set Features
#[derive(Clone, Copy, Debug)]
pub struct SetFeatures;

impl CommandType for SetFeatures {
    const POLICY: Policy = Policy {
        name: "Set Features",
        clause: "NVMe Base 2.0 5.27",
        code: admin(0x09),
        effect: Effect::None,
        admission: ADMIN,
    };
    const DATA: Data = Data::List(|sqe| row(sqe).filter(|row| row.changes).map_or(0, |row| row.data));

    fn run(sqe: &Sqe, cx: &mut Context<'_>, list: &[u8]) -> Result<Plan, Refusal> {
        let row = found(sqe, cx)?;
        if sqe.cdw(10) & SAVE != 0 {
            return Err(Status::NOT_SAVEABLE.into());
        }
        if !row.changes {
            return Err(Status::NOT_CHANGEABLE.into());
        }
        let which = which(sqe, cx, row)?;
        let (controller, value) = (cx.controller(), sqe.cdw(11));
        let mut plan = Plan::Done(0);
        match row.id {
            // There is one power state.
            features::POWER if value & 0x1f != 0 => return Err(Status::INVALID_FIELD.into()),
            features::QUEUES => return set_queues(cx, value),
            features::KEEP_ALIVE => controller.set_keep_alive(value),
            // Data that was acknowledged before must not stay volatile: the host sends no Flush any more.
            features::WRITE_CACHE if value & 1 == 0 => plan = Plan::DisableWriteCache,
            features::WRITE_CACHE => controller.set_write_cache(true),
            features::TIMESTAMP => {
                let bytes = list.first_chunk::<8>().ok_or(Status::SGL_LENGTH)?;
                let told = (u64::from_le_bytes(*bytes) & TIMESTAMP_BITS) as i64;
                let behind = told - ((cx.subsystem.config().clock)() & TIMESTAMP_BITS) as i64;
                let was = controller.values(|values| values.clock.replace(behind)).unwrap_or(0);
                let now = (cx.subsystem.config().clock)();
                let since = cx.subsystem.config().services.now().since(controller.since).as_millis() as u64;
                cx.note(Happened::Clock { before: now.wrapping_add_signed(was) & TIMESTAMP_BITS, since });
            }
            features::HOST_BEHAVIOR => {
                let bytes = <Box<[u8; 512]>>::try_from(Box::<[u8]>::from(list)).map_err(|_| Status::SGL_LENGTH)?;
                controller.set_behavior(Some(bytes));
            }
            features::RESERVATION_PERSISTENCE => plan = set_ptpl(cx, which, value & 1 != 0)?,
            features::COALESCING => controller.values(|values| values.set(row.id, 0, value & 0xffff)),
            features::VECTOR => controller.values(|values| values.set(row.id, which, value & (DISABLED | 0xffff))),
            features::RESERVATION_MASK if which == ALL => {
                for one in cx.queue.namespaces() {
                    controller.values(|values| values.set(row.id, one.id, value));
                }
            }
            _ => controller.values(|values| values.set(row.id, which, value)),
        }
        // A change that may still fail is logged when it is done.
        if !EVERY_HOST.contains(&row.id) && plan != Plan::DisableWriteCache {
            cx.note(Happened::Feature([sqe.cdw(10), value]));
        }
        Ok(plan)
    }
}

/// Whether reservations of one namespace, or of all, persist through power loss: what SCSI says with APTPL, and
/// Reservation Register with CPTPL.
fn set_ptpl(cx: &Context<'_>, id: u32, ptpl: bool) -> Result<Plan, Refusal> {
    let all = cx.queue.namespaces();
    let named: Vec<_> = all.iter().filter(|seen| [ALL, seen.id].contains(&id)).collect();
    if ptpl && named.iter().any(|seen| !seen.namespace.unit.metadata.is_durable()) {
        return Err(Status::INVALID_FIELD.into());
    }
    Ok(Plan::SetPtpl(named.iter().map(|seen| seen.id).collect(), ptpl))
}

/// Features without a Set Feature event in the log: those that hosts set in each connection, and the timestamp, which
/// has an event of its own.
const EVERY_HOST: [u8; 5] =
    [features::EVENTS, features::KEEP_ALIVE, features::TIMESTAMP, features::HOST_BEHAVIOR, features::RESERVATION_MASK];

/// A time in six bytes.
const TIMESTAMP_BITS: u64 = 0xffff_ffff_ffff;

/// Number of Queues: submission queues and completion queues; 0-based.
fn set_queues(cx: &Context<'_>, value: u32) -> Result<Plan, Refusal> {
    const NONSENSE: u16 = 0xffff;
    let [submission, completion] = [value as u16, (value >> 16) as u16];
    if submission == NONSENSE || completion == NONSENSE {
        return Err(Status::INVALID_FIELD.into());
    }
    let wanted = Granted { submission: submission + 1, completion: completion + 1 };
    Ok(Plan::Done(number_of_queues(cx.controller().grant(wanted)?).into()))
}

fn number_of_queues(granted: Granted) -> u32 {
    u32::from(granted.completion - 1) << 16 | u32::from(granted.submission - 1)
}

/// Get Features
#[derive(Clone, Copy, Debug)]
pub struct GetFeatures;

/// Dword 10 of Get Features: the selected value (SEL).
fn select(sqe: &Sqe) -> u32 {
    sqe.cdw(10) >> 8 & 0x07
}

/// Current, default, saved, and the capabilities of the feature.
const CURRENT: u32 = 0;
const CAPABILITIES: u32 = 3;

impl CommandType for GetFeatures {
    const POLICY: Policy = Policy {
        name: "Get Features",
        clause: "NVMe Base 2.0 5.15",
        code: admin(0x0a),
        effect: Effect::None,
        admission: ADMIN,
    };
    const DATA: Data = Data::Answer(|sqe| match select(sqe) {
        CAPABILITIES => 0,
        _ => row(sqe).map_or(0, |row| row.data.into()),
    });

    fn run(sqe: &Sqe, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Refusal> {
        let row = found(sqe, cx)?;
        let which = which(sqe, cx, row)?;
        let controller = cx.controller();
        let current = select(sqe) == CURRENT;
        match select(sqe) {
            CAPABILITIES => return Ok(Plan::Done(capabilities(row).into())),
            // No value is saved, so the saved value is the default.
            0..CAPABILITIES => {}
            _ => return Err(Status::INVALID_FIELD.into()),
        }
        let value = match row.id {
            features::QUEUES => number_of_queues(if current { controller.granted() } else { Granted::MOST }),
            // Whole milliseconds of a time that was set in 32 bits.
            features::KEEP_ALIVE if current => controller.keep_alive().as_millis() as u32,
            features::WRITE_CACHE if current => controller.caches_writes().into(),
            features::TIMESTAMP => {
                let behind = controller.values(|values| values.clock).filter(|_| current);
                timestamp(cx, behind);
                return Ok(Plan::Answer);
            }
            features::HOST_BEHAVIOR => {
                if let Some(bytes) = controller.values(|values| values.behavior.clone()).filter(|_| current) {
                    cx.out.extend_from_slice(&*bytes);
                }
                return Ok(Plan::Answer);
            }
            features::HOST_ID => {
                // NVMe over Fabrics has only the 128-bit host identifier.
                if sqe.cdw(11) & 1 == 0 {
                    return Err(Status::INVALID_FIELD.into());
                }
                cx.out.extend_from_slice(&controller.host.id);
                return Ok(Plan::Answer);
            }
            features::RESERVATION_PERSISTENCE if current => {
                let found = cx.queue.attached(which).ok_or(Status::INVALID_NAMESPACE)?;
                found.namespace.shared.reservations().ptpl().into()
            }
            // The value contains its vector.
            features::VECTOR if current => controller.values(|values| values.get(row.id, which)) | which,
            features::VECTOR => which,
            _ if current => controller.values(|values| values.get(row.id, which)),
            _ => row.default,
        };
        Ok(Plan::Done(value.into()))
    }
}

/// Capability bits of a feature: changeable; namespace specific.
fn capabilities(row: &Row) -> u32 {
    let changes = if row.changes { 0x04 } else { 0 };
    changes | if row.per_namespace { 0x02 } else { 0 }
}

/// The timestamp and its origin (NVMe Base 2.0 figure 326).
fn timestamp(cx: &mut Context<'_>, behind: Option<i64>) {
    const SET_BY_HOST: u8 = 0x02;
    let now = (cx.subsystem.config().clock)();
    let time = now.wrapping_add_signed(behind.unwrap_or(0)) & TIMESTAMP_BITS;
    cx.out.extend_from_slice(&time.to_le_bytes()[..6]);
    cx.out.extend_from_slice(&[if behind.is_some() { SET_BY_HOST } else { 0 }, 0]);
}
