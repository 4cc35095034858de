//! Mode pages of transports. Nothing is changeable: iSCSI negotiates its parameters at login (RFC 7143 13).

use crate::context::Context;
use crate::page::{ModePage, Number, Parameter};
use crate::policy::Capability;
use lunar_core::wire::be;
use zerocopy::{Immutable, IntoBytes};

/// Disconnect-reconnect. All values are zero: no limit.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct DisconnectReconnect {
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
    const NEEDS: Option<&'static Capability> = None;
    const PARAMETERS: &'static [Parameter] = &[];
    const NUMBERS: &'static [Number] = &[];

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

/// PROTOCOL IDENTIFIER of the target port of the nexus.
fn protocol(cx: &Context<'_>) -> u8 {
    /// No specific protocol (SPC-4 7.6.1).
    const NONE: u8 = 0x0f;
    cx.target.port(cx.nexus.name.target_port).map_or(NONE, |port| port.protocol)
}

/// Protocol-specific logical unit.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct ProtocolSpecificLogicalUnit {
    protocol: u8,
    specific: [u8; 5],
}

impl ModePage for ProtocolSpecificLogicalUnit {
    const PAGE: u8 = 0x18;
    const SUBPAGE: u8 = 0;
    const NAME: &'static str = "Protocol-Specific Logical Unit";
    const CLAUSE: &'static str = "SPC-4 7.5.16";
    const NEEDS: Option<&'static Capability> = None;
    const PARAMETERS: &'static [Parameter] = &[];
    const NUMBERS: &'static [Number] = &[];

    fn fixed(cx: &Context<'_>) -> Self {
        Self { protocol: protocol(cx), specific: [0; 5] }
    }
}

/// Protocol-specific port.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct ProtocolSpecificPort {
    protocol: u8,
    specific: [u8; 5],
}

impl ModePage for ProtocolSpecificPort {
    const PAGE: u8 = 0x19;
    const SUBPAGE: u8 = 0;
    const NAME: &'static str = "Protocol-Specific Port";
    const CLAUSE: &'static str = "SPC-4 7.5.17";
    const NEEDS: Option<&'static Capability> = None;
    const PARAMETERS: &'static [Parameter] = &[];
    const NUMBERS: &'static [Number] = &[];

    fn fixed(cx: &Context<'_>) -> Self {
        Self { protocol: protocol(cx), specific: [0; 5] }
    }
}
