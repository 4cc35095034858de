//! The page of what only CD and DVD drives have.

use super::{ModePage, Parameter};
use crate::context::Context;
use crate::table::{Needs, Reach};
use lunar_core::wire::be;
use zerocopy::{Immutable, IntoBytes};

/// MM capabilities and mechanical status: features tell more, but many initiators look here.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct Capabilities {
    /// Kinds of media that are read.
    reads: u8,
    /// Kinds of media that are written.
    writes: u8,
    /// Multi-session, mode 2, audio play: none.
    flags: u8,
    /// Audio commands: none.
    audio: u8,
    /// LOADING MECHANISM TYPE, EJECT, PREVENT JUMPER, LOCK STATE, LOCK.
    tray: u8,
    /// Volume, changer: none.
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
/// LOCK STATE: an initiator prevents that the disc is taken out.
const LOCKED: u8 = 0x02;
/// Units of 1,000 bytes a second: the highest that there is, for nothing turns.
const SPEED: u16 = u16::MAX;
/// What is moved at once.
const BUFFER: u16 = (lunar_core::step::PIECE_BYTES >> 10) as u16;

impl ModePage for Capabilities {
    const PAGE: u8 = 0x2a;
    const SUBPAGE: u8 = 0;
    const NAME: &'static str = "MM Capabilities and Mechanical Status";
    const CLAUSE: &'static str = "MMC-3 6.3.11";
    const REACH: Reach = Reach::Optical;
    const NEEDS: Needs = Needs::Nothing;
    const PARAMETERS: &'static [Parameter] = &[];

    fn fixed(cx: &Context<'_>) -> Self {
        let is_locked = cx.disk().is_ok_and(|lu| lu.shared.is_prevented());
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
