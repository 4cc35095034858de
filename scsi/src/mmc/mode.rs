//! Mode pages of CD and DVD drives.

use crate::context::Context;
use crate::page::{ModePage, Number, Parameter};
use crate::policy::Capability;
use lunar_core::wire::be;
use zerocopy::{Immutable, IntoBytes};

/// Read-write error recovery.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct ErrorRecovery {
    /// AWRE, ARRE, TB, RC, EER, PER, DTE, DCR.
    flags: u8,
    read_retries: u8,
    obsolete: [u8; 3],
    /// LBPERE.
    provisioning: u8,
    write_retries: u8,
    reserved: u8,
    time_limit: be::U16,
}

impl ModePage for ErrorRecovery {
    const PAGE: u8 = 0x01;
    const SUBPAGE: u8 = 0;
    const NAME: &'static str = "Read-Write Error Recovery";
    const CLAUSE: &'static str = "SBC-4 6.5.10";
    const NEEDS: Option<&'static Capability> = None;
    const PARAMETERS: &'static [Parameter] = &[];
    const NUMBERS: &'static [Number] = &[];

    fn fixed(_cx: &Context<'_>) -> Self {
        Self {
            flags: 0,
            read_retries: 0,
            obsolete: [0; 3],
            provisioning: 0,
            write_retries: 0,
            reserved: 0,
            time_limit: 0.into(),
        }
    }
}

/// MM capabilities and mechanical status. Features replace it, but many initiators still read this page.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct Capabilities {
    /// Kinds of media that the drive reads.
    reads: u8,
    /// Kinds of media that the drive writes: none.
    writes: u8,
    /// Multi-session, mode 2, audio play: not supported.
    flags: u8,
    /// Audio commands: not supported.
    audio: u8,
    /// LOADING MECHANISM TYPE, EJECT, PREVENT JUMPER, LOCK STATE, LOCK.
    tray: u8,
    /// Volume levels, changer: not supported.
    volume: u8,
    read_speed_max: be::U16,
    volume_levels: be::U16,
    /// In units of 1,024 bytes.
    buffer: be::U16,
    read_speed: be::U16,
    reserved: [u8; 6],
}

/// DVD-ROM.
const DVD_ROM: u8 = 0x08;
/// LOADING MECHANISM TYPE 1 (tray), EJECT, LOCK.
const TRAY: u8 = 0x20 | 0x08 | 0x01;
/// LOCK STATE: an initiator prevents the removal of the disc.
const LOCKED: u8 = 0x02;
/// Speed in units of 1,000 bytes per second: the maximum, for no disc rotates.
const SPEED: u16 = u16::MAX;
/// BUFFER SIZE SUPPORTED: the bytes that a step moves at once.
const BUFFER: u16 = (lunar_core::step::PIECE_BYTES >> 10) as u16;

impl ModePage for Capabilities {
    const PAGE: u8 = 0x2a;
    const SUBPAGE: u8 = 0;
    const NAME: &'static str = "MM Capabilities and Mechanical Status";
    const CLAUSE: &'static str = "MMC-3 6.3.11";
    const NEEDS: Option<&'static Capability> = None;
    const PARAMETERS: &'static [Parameter] = &[];
    const NUMBERS: &'static [Number] = &[];

    fn fixed(cx: &Context<'_>) -> Self {
        let is_locked = cx.emulated().is_ok_and(|lu| lu.shared.state().is_removal_prevented());
        Self {
            reads: DVD_ROM,
            writes: 0,
            flags: 0,
            audio: 0,
            tray: if is_locked { TRAY | LOCKED } else { TRAY },
            volume: 0,
            read_speed_max: SPEED.into(),
            volume_levels: 0.into(),
            buffer: BUFFER.into(),
            read_speed: SPEED.into(),
            reserved: [0; 6],
        }
    }
}
