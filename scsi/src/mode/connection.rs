//! Pages of what transports have to set: nothing, for iSCSI negotiates it at login (RFC 7143 13).

use super::{ModePage, Parameter};
use crate::context::Context;
use crate::table::{Needs, Reach};
use lunar_core::wire::be;
use zerocopy::{Immutable, IntoBytes};

/// Disconnect-reconnect. Zeroes: no limit is set by it.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct DisconnectReconnect {
    buffer_ratios: [u8; 2],
    /// Bus inactivity, disconnect and connect time limits.
    limits: [be::U16; 3],
    maximum_burst: be::U16,
    /// EMDP, FAIR ARBITRATION, DIMM, DTDC.
    flags: u8,
    reserved: u8,
    first_burst: be::U16,
}

impl ModePage for DisconnectReconnect {
    const PAGE: u8 = 0x02;
    const SUBPAGE: u8 = 0;
    const NAME: &'static str = "Disconnect-Reconnect";
    const CLAUSE: &'static str = "SPC-4 7.5.10";
    const REACH: Reach = Reach::Disk;
    const NEEDS: Needs = Needs::Nothing;
    const PARAMETERS: &'static [Parameter] = &[];

    fn fixed(_cx: &Context<'_>) -> Self {
        Self {
            buffer_ratios: [0; 2],
            limits: Default::default(),
            maximum_burst: 0.into(),
            flags: 0,
            reserved: 0,
            first_burst: 0.into(),
        }
    }
}

/// PROTOCOL IDENTIFIER of the port that a nexus comes through.
fn protocol(cx: &Context<'_>) -> u8 {
    /// No specific protocol (SPC-4 7.6.1).
    const NONE: u8 = 0x0f;
    cx.target.port(cx.nexus.name.target_port).map_or(NONE, |port| port.protocol)
}

/// Protocol-specific logical unit.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct ProtocolSpecificLogicalUnit {
    protocol: u8,
    specific: [u8; 5],
}

impl ModePage for ProtocolSpecificLogicalUnit {
    const PAGE: u8 = 0x18;
    const SUBPAGE: u8 = 0;
    const NAME: &'static str = "Protocol-Specific Logical Unit";
    const CLAUSE: &'static str = "SPC-4 7.5.16";
    const REACH: Reach = Reach::Disk;
    const NEEDS: Needs = Needs::Nothing;
    const PARAMETERS: &'static [Parameter] = &[];

    fn fixed(cx: &Context<'_>) -> Self {
        Self { protocol: protocol(cx), specific: [0; 5] }
    }
}

/// Protocol-specific port.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct ProtocolSpecificPort {
    protocol: u8,
    specific: [u8; 5],
}

impl ModePage for ProtocolSpecificPort {
    const PAGE: u8 = 0x19;
    const SUBPAGE: u8 = 0;
    const NAME: &'static str = "Protocol-Specific Port";
    const CLAUSE: &'static str = "SPC-4 7.5.17";
    const REACH: Reach = Reach::Disk;
    const NEEDS: Needs = Needs::Nothing;
    const PARAMETERS: &'static [Parameter] = &[];

    fn fixed(cx: &Context<'_>) -> Self {
        Self { protocol: protocol(cx), specific: [0; 5] }
    }
}
