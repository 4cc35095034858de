//! RESERVE and RELEASE, as SPC-2 has them: the whole unit for one nexus. Third parties and extents are refused.

use crate::context::Context;
use crate::plan::Plan;
use crate::policy::{Admission, Alua, Code, Effect, Forwarding, Gate, OpCode, Persistent, Policy, Timeout};
use crate::row::{CommandType, Data};
use crate::sense::Sense;
use lunar_unit::UnitChange;
use lunar_unit::reserve::Request;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The admission of RESERVE.
const RESERVES: Admission = Admission {
    needs: None,
    forwarded: Forwarding::Lunar,
    attention: Gate::Stops,
    spc2: Gate::Stops,
    persistent: Persistent::Conflict,
    alua: Alua::Active,
    not_ready: Gate::Passes,
    write_protect: Gate::Passes,
    timeout: Timeout::Quick,
};

/// The admission of RELEASE: a nexus that does not hold the reservation releases nothing, and gets no error.
const RELEASES: Admission = Admission {
    needs: None,
    forwarded: Forwarding::Lunar,
    attention: Gate::Stops,
    spc2: Gate::Passes,
    persistent: Persistent::Conflict,
    alua: Alua::Active,
    not_ready: Gate::Passes,
    write_protect: Gate::Passes,
    timeout: Timeout::Quick,
};

/// RESERVE(6), RELEASE(6)
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Short<const OP: u8> {
    opcode: u8,
    reserved: [u8; 4],
    control: u8,
}

/// RESERVE(10), RELEASE(10)
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Long<const OP: u8> {
    opcode: u8,
    reserved: [u8; 8],
    control: u8,
}

/// RESERVE(6)
pub type Reserve6 = Short<{ OpCode::RESERVE_6.0 }>;
/// RELEASE(6)
pub type Release6 = Short<{ OpCode::RELEASE_6.0 }>;
/// RESERVE(10)
pub type Reserve10 = Long<{ OpCode::RESERVE_10.0 }>;
/// RELEASE(10)
pub type Release10 = Long<{ OpCode::RELEASE_10.0 }>;

/// A command of one layout.
macro_rules! command {
    ($command:ty, $code:ident, $name:literal, $clause:literal, $admission:ident, $request:ident, $reserved:literal) => {
        impl CommandType for $command {
            const POLICY: Policy = Policy {
                name: $name,
                clause: $clause,
                code: Code::of(OpCode::$code),
                effect: Effect::None,
                admission: $admission,
            };
            const USAGE: Self = Self { opcode: OpCode::$code.0, reserved: [0; $reserved], control: 0 };
            const DATA: Data<Self> = Data::None;

            fn run(&self, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Sense> {
                let nexus = cx.nexus.name.clone();
                Ok(Plan::Propose(Box::new(UnitChange::Reservations { nexus, request: Request::$request })))
            }
        }
    };
}

command!(Reserve6, RESERVE_6, "RESERVE(6)", "SPC-2 7.21", RESERVES, Reserve, 4);
command!(Release6, RELEASE_6, "RELEASE(6)", "SPC-2 7.17", RELEASES, Release, 4);
command!(Reserve10, RESERVE_10, "RESERVE(10)", "SPC-2 7.22", RESERVES, Reserve, 8);
command!(Release10, RELEASE_10, "RELEASE(10)", "SPC-2 7.18", RELEASES, Release, 8);
