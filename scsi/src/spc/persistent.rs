//! PERSISTENT RESERVE IN and PERSISTENT RESERVE OUT.

use crate::context::Context;
use crate::lu::LogicalUnit;
use crate::plan::Plan;
use crate::policy::{Admission, Alua, Code, Effect, Forwarding, Gate, OpCode, Persistent, Policy, Timeout};
use crate::reserve::transport_id;
use crate::row::{CommandType, Data};
use crate::sense::{Asc, Sense};
use lunar_core::port::NexusName;
use lunar_core::wire::{Cursor, Writer, be};
use lunar_unit::UnitChange;
use lunar_unit::reserve::{Action, PersistentRequest, Request, ReservationType, Reservations};
use std::mem::offset_of;
use std::sync::Arc;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The admission of both. Keys decide further, when the reservations to compare them with are known.
const GATES: Admission = Admission {
    needs: None,
    forwarded: Forwarding::Lunar,
    attention: Gate::Stops,
    spc2: Gate::Stops,
    persistent: Persistent::Passes,
    alua: Alua::Standby,
    not_ready: Gate::Passes,
    write_protect: Gate::Passes,
    timeout: Timeout::Quick,
};

/// Longest parameter list: hundreds of TransportIDs.
const LIST_BYTES_MAX: u32 = 64 << 10;

/// PERSISTENT RESERVE IN with one service action.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct In<const ACTION: u8> {
    opcode: u8,
    action: u8,
    reserved: [u8; 5],
    allocation: be::U16,
    control: u8,
}

/// READ KEYS
pub type ReadKeys = In<0>;
/// READ RESERVATION
pub type ReadReservation = In<1>;
/// REPORT CAPABILITIES
pub type ReportCapabilities = In<2>;
/// READ FULL STATUS
pub type ReadFullStatus = In<3>;

/// PERSISTENT RESERVE IN with one service action, and the function that writes its data.
macro_rules! inward {
    ($command:ty, $action:literal, $name:literal, $clause:literal, $write:path) => {
        impl CommandType for $command {
            const POLICY: Policy = Policy {
                name: concat!("PERSISTENT RESERVE IN, ", $name),
                clause: $clause,
                code: Code::with_action(OpCode::PERSISTENT_RESERVE_IN, $action),
                effect: Effect::None,
                admission: GATES,
            };
            const USAGE: Self = Self {
                opcode: OpCode::PERSISTENT_RESERVE_IN.0,
                action: $action,
                reserved: [0; 5],
                allocation: be::U16::MAX_VALUE,
                control: 0,
            };
            const DATA: Data<Self> = Data::Answer(|cdb| cdb.allocation.get().into());

            fn run(&self, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Sense> {
                let lu = cx.lu()?;
                let reservations = lu.shared.reservations();
                if reservations.spc2().is_some() {
                    return Ok(Plan::Conflict);
                }
                $write(&reservations, lu, &mut cx.out);
                Ok(Plan::Answer)
            }
        }
    };
}

inward!(ReadKeys, 0, "READ KEYS", "SPC-4 6.15.2", read_keys);
inward!(ReadReservation, 1, "READ RESERVATION", "SPC-4 6.15.3", read_reservation);
inward!(ReportCapabilities, 2, "REPORT CAPABILITIES", "SPC-4 6.15.4", report_capabilities);
inward!(ReadFullStatus, 3, "READ FULL STATUS", "SPC-4 6.15.5", read_full_status);

/// Writes PRGENERATION, ADDITIONAL LENGTH and the following data.
fn listed(reservations: &Reservations, out: &mut Writer<'_>, list: impl FnOnce(&mut Writer<'_>)) {
    out.bytes(&reservations.generation().to_be_bytes()).zeros(4);
    list(out);
    // The length of thousands of registrants fits into 32 bits.
    let length = (out.written() - 8) as u32;
    out.patch(4, &length.to_be_bytes());
}

fn read_keys(reservations: &Reservations, _lu: &LogicalUnit, out: &mut Writer<'_>) {
    listed(reservations, out, |out| {
        for (_, key) in reservations.registrants() {
            out.bytes(&key.to_be_bytes());
        }
    });
}

fn read_reservation(reservations: &Reservations, _lu: &LogicalUnit, out: &mut Writer<'_>) {
    listed(reservations, out, |out| {
        if let Some((reservation, key)) = reservations.reservation() {
            out.bytes(&key.to_be_bytes()).zeros(5).bytes(&[reservation.kind.0]).zeros(2);
        }
    });
}

/// CRH, SIP_C, ATP_C.
const CAPABILITIES: u8 = 0x10 | 0x08 | 0x04;
/// PTPL_C: reservations may persist through power loss.
const MAY_OUTLIVE: u8 = 0x01;
/// TMV; ALLOW COMMANDS 001b: TEST UNIT READY is allowed under every type; other commands are not described.
const ALLOWS: u8 = 0x80 | 0x10;
/// PTPL_A.
const OUTLIVES: u8 = 0x01;
/// PERSISTENT RESERVATION TYPE MASK: all six.
const KINDS: [u8; 2] = [0x80 | 0x40 | 0x20 | 0x08 | 0x02, 0x01];

fn report_capabilities(reservations: &Reservations, lu: &LogicalUnit, out: &mut Writer<'_>) {
    let may_outlive = if lu.has_durable_metadata() { MAY_OUTLIVE } else { 0 };
    let outlives = if reservations.ptpl() { OUTLIVES } else { 0 };
    out.bytes(&[0, 8, CAPABILITIES | may_outlive, ALLOWS | outlives]).bytes(&KINDS).zeros(2);
}

/// Byte 12 of a full status descriptor: the nexus holds the reservation.
const R_HOLDER: u8 = 0x01;

fn read_full_status(reservations: &Reservations, _lu: &LogicalUnit, out: &mut Writer<'_>) {
    let kind = reservations.reservation().map_or(ReservationType(0), |(reservation, _)| reservation.kind);
    listed(reservations, out, |out| {
        for (name, key) in reservations.registrants() {
            let holds = if reservations.is_holder(name) { [R_HOLDER, kind.0] } else { [0, 0] };
            // The length of a name fits into 32 bits.
            let length = transport_id::length(&name.initiator) as u32;
            out.bytes(&key.to_be_bytes()).zeros(4).bytes(&holds).zeros(4);
            out.bytes(&name.target_port.to_be_bytes()).bytes(&length.to_be_bytes());
            transport_id::write(&name.initiator, out);
        }
    });
}

/// PERSISTENT RESERVE OUT with one service action.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Out<const ACTION: u8> {
    opcode: u8,
    action: u8,
    scope_and_kind: u8,
    reserved: [u8; 2],
    length: be::U32,
    control: u8,
}

/// REGISTER
pub type Register = Out<0>;
/// RESERVE
pub type Reserve = Out<1>;
/// RELEASE
pub type Release = Out<2>;
/// CLEAR
pub type Clear = Out<3>;
/// PREEMPT
pub type Preempt = Out<4>;
/// PREEMPT AND ABORT
pub type PreemptAndAbort = Out<5>;
/// REGISTER AND IGNORE EXISTING KEY
pub type RegisterAndIgnoreExistingKey = Out<6>;
/// REGISTER AND MOVE
pub type RegisterAndMove = Out<7>;

/// SPC-4 6.16.3
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct BasicList {
    key: be::U64,
    action_key: be::U64,
    obsolete: [u8; 4],
    flags: u8,
    reserved: u8,
    obsolete2: [u8; 2],
}

/// SPC-4 6.16.4
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct MoveList {
    key: be::U64,
    action_key: be::U64,
    reserved: u8,
    flags: u8,
    port: be::U16,
    length: be::U32,
}

/// SPEC_I_PT.
const SPEC_I_PT: u8 = 0x08;
/// ALL_TG_PT.
const ALL_TG_PT: u8 = 0x04;
/// UNREG.
const UNREG: u8 = 0x02;
/// APTPL.
const APTPL: u8 = 0x01;

const LENGTH_ERROR: Sense = Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR);

/// The list of a CDB with its length: complete, and not too long.
fn whole(list: &[u8], length: u32) -> Result<&[u8], Sense> {
    if length > LIST_BYTES_MAX {
        return Err(LENGTH_ERROR);
    }
    list.get(..length as usize).ok_or(LENGTH_ERROR)
}

/// The request of a list without TransportIDs.
fn basic(list: &[u8], scope_and_kind: u8, action: Action) -> Result<PersistentRequest, Sense> {
    let order = BasicList::ref_from_bytes(list).map_err(|_| LENGTH_ERROR)?;
    if order.flags & SPEC_I_PT != 0 {
        return Err(Sense::bit_in_list(offset_of!(BasicList, flags), 3));
    }
    Ok(PersistentRequest {
        action,
        scope_and_type: scope_and_kind,
        key: order.key.get(),
        action_key: order.action_key.get(),
    })
}

/// Whether the reservations persist through power loss (APTPL): refused where they cannot.
fn ptpl(cx: &Context<'_>, flags: u8, at: usize) -> Result<bool, Sense> {
    match flags & APTPL != 0 {
        true if !cx.lu()?.has_durable_metadata() => Err(Sense::bit_in_list(at, 0)),
        ptpl => Ok(ptpl),
    }
}

/// The request of REGISTER, and of REGISTER AND IGNORE EXISTING KEY if `ignore`.
fn register(cx: &Context<'_>, list: &[u8], scope_and_kind: u8, ignore: bool) -> Result<PersistentRequest, Sense> {
    let (basic, rest) = BasicList::ref_from_prefix(list).map_err(|_| LENGTH_ERROR)?;
    let specified = basic.flags & SPEC_I_PT != 0;
    if specified && ignore {
        return Err(Sense::bit_in_list(offset_of!(BasicList, flags), 3));
    }
    let initiators = match (specified, rest) {
        (true, _) => initiators(rest)?,
        (false, []) => Vec::new(),
        (false, _) => return Err(LENGTH_ERROR),
    };
    let ports = match basic.flags & ALL_TG_PT {
        0 => vec![cx.nexus.name.target_port],
        _ => cx.target.ports_of_same_device(cx.nexus.name.target_port).iter().map(|port| port.relative).collect(),
    };
    let ptpl = ptpl(cx, basic.flags, offset_of!(BasicList, flags))?;
    let action = Action::Register { ignore_key: ignore, ptpl: Some(ptpl), ports, initiators };
    Ok(PersistentRequest {
        action,
        scope_and_type: scope_and_kind,
        key: basic.key.get(),
        action_key: basic.action_key.get(),
    })
}

/// TransportIDs behind their length.
fn initiators(list: &[u8]) -> Result<Vec<Arc<str>>, Sense> {
    let mut cursor = Cursor::new(list);
    let length = cursor.take::<be::U32>().map_err(|_| LENGTH_ERROR)?.get() as usize;
    if length != cursor.rest().len() {
        return Err(LENGTH_ERROR);
    }
    let (mut rest, mut initiators) = (cursor.rest(), Vec::new());
    while !rest.is_empty() {
        let at = size_of::<BasicList>() + list.len() - rest.len();
        let (initiator, behind) = transport_id::parse(rest).ok_or_else(|| Sense::in_list(at))?;
        initiators.push(initiator);
        rest = behind;
    }
    Ok(initiators)
}

/// The request of REGISTER AND MOVE.
fn hand_over(cx: &Context<'_>, list: &[u8], scope_and_kind: u8) -> Result<PersistentRequest, Sense> {
    let (head, rest) = MoveList::ref_from_prefix(list).map_err(|_| LENGTH_ERROR)?;
    if head.length.get() as usize != rest.len() {
        return Err(LENGTH_ERROR);
    }
    let ports = cx.target.ports_of_same_device(cx.nexus.name.target_port);
    if !ports.iter().any(|port| port.relative == head.port.get()) {
        return Err(Sense::in_list(offset_of!(MoveList, port)));
    }
    let Some((initiator, [])) = transport_id::parse(rest) else {
        return Err(Sense::in_list(size_of::<MoveList>()));
    };
    let to = NexusName { initiator, target_port: head.port.get() };
    let ptpl = ptpl(cx, head.flags, offset_of!(MoveList, flags))?;
    let action = Action::Move { to, unregister: head.flags & UNREG != 0, ptpl };
    Ok(PersistentRequest {
        action,
        scope_and_type: scope_and_kind,
        key: head.key.get(),
        action_key: head.action_key.get(),
    })
}

/// PERSISTENT RESERVE OUT with one service action, and its request: a function of the context, the list, and SCOPE and
/// TYPE.
macro_rules! outward {
    ($command:ty, $action:literal, $name:literal, $clause:literal, $order:expr) => {
        impl CommandType for $command {
            const POLICY: Policy = Policy {
                name: concat!("PERSISTENT RESERVE OUT, ", $name),
                clause: $clause,
                code: Code::with_action(OpCode::PERSISTENT_RESERVE_OUT, $action),
                effect: Effect::None,
                admission: GATES,
            };
            const USAGE: Self = Self {
                opcode: OpCode::PERSISTENT_RESERVE_OUT.0,
                action: $action,
                scope_and_kind: 0xff,
                reserved: [0; 2],
                length: be::U32::MAX_VALUE,
                control: 0,
            };
            // A list that is too long is refused, not pulled.
            const DATA: Data<Self> = Data::List(|cdb| match cdb.length.get() {
                length if length > LIST_BYTES_MAX => 0,
                length => length,
            });

            fn run(&self, cx: &mut Context<'_>, list: &[u8]) -> Result<Plan, Sense> {
                let list = whole(list, self.length.get())?;
                let order: fn(&Context<'_>, &[u8], u8) -> Result<PersistentRequest, Sense> = $order;
                let request = Request::Persistent(order(cx, list, self.scope_and_kind)?);
                let nexus = cx.nexus.name.clone();
                Ok(Plan::Propose(Box::new(UnitChange::Reservations { nexus, request })))
            }
        }
    };
}

outward!(Register, 0, "REGISTER", "SPC-4 6.16", |cx, list, kind| register(cx, list, kind, false));
outward!(Reserve, 1, "RESERVE", "SPC-4 6.16", |_, list, kind| basic(list, kind, Action::Reserve));
outward!(Release, 2, "RELEASE", "SPC-4 6.16", |_, list, kind| basic(list, kind, Action::Release));
outward!(Clear, 3, "CLEAR", "SPC-4 6.16", |_, list, kind| basic(list, kind, Action::Clear));
outward!(Preempt, 4, "PREEMPT", "SPC-4 6.16", |_, list, kind| basic(list, kind, Action::Preempt { abort: false }));
outward!(PreemptAndAbort, 5, "PREEMPT AND ABORT", "SPC-4 6.16", |_, list, kind| {
    basic(list, kind, Action::Preempt { abort: true })
});
outward!(RegisterAndIgnoreExistingKey, 6, "REGISTER AND IGNORE EXISTING KEY", "SPC-4 6.16", |cx, list, kind| {
    register(cx, list, kind, true)
});
outward!(RegisterAndMove, 7, "REGISTER AND MOVE", "SPC-4 6.16", |cx, list, kind| hand_over(cx, list, kind));

#[cfg(test)]
#[path = "persistent_tests.rs"]
mod tests;
