//! Reservations: Register, Report, Acquire, Release (NVMe Base 2.0 7.2 to 7.5).

use super::io;
use crate::command::{Refusal, Sqe, Status};
use crate::context::Context;
use crate::host::Host;
use crate::plan::Plan;
use crate::policy::{Admission, CommandScope, Effect, Gate, Persistent, Policy, Transport};
use crate::row::{CommandType, Data};
use lunar_core::wire::le;
use lunar_unit::reserve::{Action, PersistentRequest, Request, ReservationType};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The admission of reservation commands. The reservation keys are compared later, when the state of the unit is known.
const GATES: Admission = Admission {
    scope: CommandScope::Namespace,
    transport: Transport::Every,
    discovery: Gate::Stops,
    unauthenticated: Gate::Stops,
    disabled: Gate::Stops,
    persistent: Persistent::Passes,
    inaccessible: Gate::Stops,
    rewrite: Gate::Passes,
    unformatted: Gate::Passes,
    write_protect: Gate::Passes,
};

/// Types of reservations: NVMe's number, and the one of the state.
const KINDS: [(u8, ReservationType); 6] = [
    (1, ReservationType::WRITE_EXCLUSIVE),
    (2, ReservationType::EXCLUSIVE_ACCESS),
    (3, ReservationType::WRITE_EXCLUSIVE_REGISTRANTS_ONLY),
    (4, ReservationType::EXCLUSIVE_ACCESS_REGISTRANTS_ONLY),
    (5, ReservationType::WRITE_EXCLUSIVE_ALL_REGISTRANTS),
    (6, ReservationType::EXCLUSIVE_ACCESS_ALL_REGISTRANTS),
];

/// Dword 10: action, IEKEY, type.
struct Asked {
    action: u32,
    ignores_key: bool,
    kind: u8,
}

impl Asked {
    fn of(sqe: &Sqe) -> Self {
        let dword = sqe.cdw(10);
        Self { action: dword & 0x07, ignores_key: dword & 0x08 != 0, kind: (dword >> 8 & 0xff) as u8 }
    }

    fn kind(&self) -> Result<ReservationType, Status> {
        KINDS.iter().find(|(number, _)| *number == self.kind).map(|(_, kind)| *kind).ok_or(Status::INVALID_FIELD)
    }
}

/// Two keys (NVMe Base 2.0 7.2, 7.3, 7.4): the current one, and the one that is new or preempted.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Keys {
    current: le::U64,
    other: le::U64,
}

fn keys(list: &[u8]) -> Result<Keys, Status> {
    Keys::read_from_bytes(list).map_err(|_| Status::SGL_LENGTH)
}

/// The key that a host has registered.
fn registered(cx: &Context<'_>) -> Result<Option<u64>, Status> {
    Ok(cx.namespace()?.shared.reservations().key_of(cx.queue.name()))
}

fn plan(action: Action, kind: u8, key: u64, action_key: u64) -> Plan {
    Plan::Reserve(Box::new(Request::Persistent(PersistentRequest { action, scope_and_type: kind, key, action_key })))
}

/// Reservation Register
#[derive(Clone, Copy, Debug)]
pub struct Register;

/// RREGA.
mod register {
    pub(super) const REGISTER: u32 = 0;
    pub(super) const UNREGISTER: u32 = 1;
    pub(super) const REPLACE: u32 = 2;
}

/// CPTPL: whether reservations persist through power loss; `None` leaves that as it is.
fn ptpl(cx: &Context<'_>, change: u32) -> Result<Option<bool>, Status> {
    match change {
        0 => Ok(None),
        2 => Ok(Some(false)),
        3 if cx.namespace()?.unit.metadata.is_durable() => Ok(Some(true)),
        _ => Err(Status::INVALID_FIELD),
    }
}

impl CommandType for Register {
    const POLICY: Policy = Policy {
        name: "Reservation Register",
        clause: "NVMe Base 2.0 7.3",
        code: io(0x0d),
        effect: Effect::None,
        admission: GATES,
    };
    const DATA: Data = Data::List(|_| size_of::<Keys>() as u32);

    fn run(sqe: &Sqe, cx: &mut Context<'_>, list: &[u8]) -> Result<Plan, Refusal> {
        let (asked, keys) = (Asked::of(sqe), keys(list)?);
        let now = registered(cx)?;
        let ptpl = ptpl(cx, sqe.cdw(10) >> 30)?;
        let new = keys.other.get();
        let (key, new) = match (asked.action, now) {
            // Registering the same key again changes nothing; another key requires the action Replace.
            (register::REGISTER, Some(key)) if key == new => (key, new),
            (register::REGISTER, Some(_)) => return Err(Status::RESERVATION_CONFLICT.into()),
            (register::REGISTER | register::REPLACE, _) if new == 0 => return Err(Status::INVALID_FIELD.into()),
            (register::REGISTER, None) => (0, new),
            (register::UNREGISTER, None) => return Err(Status::RESERVATION_CONFLICT.into()),
            (register::UNREGISTER, Some(_)) => (keys.current.get(), 0),
            (register::REPLACE, None) if !asked.ignores_key => return Err(Status::RESERVATION_CONFLICT.into()),
            (register::REPLACE, _) => (keys.current.get(), new),
            _ => return Err(Status::INVALID_FIELD.into()),
        };
        let ports = vec![cx.queue.name().target_port];
        let action = Action::Register { ignore_key: asked.ignores_key, ptpl, ports, initiators: Vec::new() };
        Ok(plan(action, 0, key, new))
    }
}

/// Reservation Acquire
#[derive(Clone, Copy, Debug)]
pub struct Acquire;

impl CommandType for Acquire {
    const POLICY: Policy = Policy {
        name: "Reservation Acquire",
        clause: "NVMe Base 2.0 7.2",
        code: io(0x11),
        effect: Effect::None,
        admission: GATES,
    };
    const DATA: Data = Data::List(|_| size_of::<Keys>() as u32);

    fn run(sqe: &Sqe, cx: &mut Context<'_>, list: &[u8]) -> Result<Plan, Refusal> {
        let (asked, keys) = (Asked::of(sqe), keys(list)?);
        let key = key(&asked, &keys.current, cx)?;
        let action = match asked.action {
            0 => Action::Reserve,
            1 => Action::Preempt { abort: false },
            2 => Action::Preempt { abort: true },
            _ => return Err(Status::INVALID_FIELD.into()),
        };
        Ok(plan(action, asked.kind()?.0, key, keys.other.get()))
    }
}

/// The key to compare with the registered one: the registered key itself if IEKEY disables the comparison.
fn key(asked: &Asked, given: &le::U64, cx: &Context<'_>) -> Result<u64, Refusal> {
    match asked.ignores_key {
        true => Ok(registered(cx)?.ok_or(Status::RESERVATION_CONFLICT)?),
        false => Ok(given.get()),
    }
}

/// Reservation Release
#[derive(Clone, Copy, Debug)]
pub struct Release;

impl CommandType for Release {
    const POLICY: Policy = Policy {
        name: "Reservation Release",
        clause: "NVMe Base 2.0 7.4",
        code: io(0x15),
        effect: Effect::None,
        admission: GATES,
    };
    const DATA: Data = Data::List(|_| size_of::<le::U64>() as u32);

    fn run(sqe: &Sqe, cx: &mut Context<'_>, list: &[u8]) -> Result<Plan, Refusal> {
        let asked = Asked::of(sqe);
        let given = le::U64::read_from_bytes(list).map_err(|_| Status::SGL_LENGTH)?;
        let key = key(&asked, &given, cx)?;
        match asked.action {
            0 => Ok(plan(Action::Release, asked.kind()?.0, key, 0)),
            1 => Ok(plan(Action::Clear, 0, key, 0)),
            _ => Err(Status::INVALID_FIELD.into()),
        }
    }
}

/// Reservation Report
#[derive(Clone, Copy, Debug)]
pub struct Report;

/// The head of Reservation Status (NVMe Base 2.0 7.5).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ReportHead {
    generation: le::U32,
    kind: u8,
    registrants: le::U16,
    reserved: [u8; 2],
    ptpl: u8,
    reserved2: [u8; 14],
}

/// A registrant, with the host identifier of sixteen bytes (NVMe Base 2.0 7.5).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Registrant {
    controller: le::U16,
    holds: u8,
    reserved: [u8; 5],
    key: le::U64,
    host: [u8; 16],
    reserved2: [u8; 32],
}

/// A registrant that is associated with no controller, or with one of another command set.
const NO_CONTROLLER: u16 = 0xffff;
/// Dword 11: the extended data structure, which is the one of hosts with identifiers of sixteen bytes.
const EXTENDED: u32 = 0x01;

impl CommandType for Report {
    const POLICY: Policy = Policy {
        name: "Reservation Report",
        clause: "NVMe Base 2.0 7.5",
        code: io(0x0e),
        effect: Effect::None,
        admission: GATES,
    };
    const DATA: Data = Data::Answer(|sqe| (u64::from(sqe.cdw(10)) + 1) * 4);

    fn run(sqe: &Sqe, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Refusal> {
        // NVMe over Fabrics requires 128-bit host identifiers and the extended data structure (NVMe Base 2.0 7.5).
        if sqe.cdw(11) & EXTENDED == 0 {
            return Err(Status::HOST_INCONSISTENT.into());
        }
        let reservations = cx.namespace()?.shared.reservations();
        let kind = reservations.reservation().map_or(ReservationType(0), |(reservation, _)| reservation.kind);
        let number = KINDS.iter().find(|(_, known)| *known == kind).map_or(0, |(number, _)| *number);
        let head = ReportHead {
            generation: reservations.generation().into(),
            kind: number,
            registrants: (reservations.registrants().count() as u16).into(),
            reserved: [0; 2],
            ptpl: reservations.ptpl().into(),
            reserved2: [0; 14],
        };
        cx.out.extend_from_slice(head.as_bytes());
        cx.out.extend_from_slice(&[0; 40]);
        let controllers = cx.controllers();
        for (name, key) in reservations.registrants() {
            let host = Host::id_of(name);
            let controller = controllers.iter().find(|controller| controller.host.id == host);
            let registrant = Registrant {
                controller: controller.map_or(NO_CONTROLLER, |controller| controller.id).into(),
                holds: reservations.is_holder(name).into(),
                reserved: [0; 5],
                key: key.into(),
                host,
                reserved2: [0; 32],
            };
            cx.out.extend_from_slice(registrant.as_bytes());
        }
        Ok(Plan::Answer)
    }
}
