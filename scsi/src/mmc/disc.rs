//! The disc in a drive (MMC-6): tables of contents, disc and track information, structures of DVDs.
//!
//! A disc has one finished session with one data track, which starts at block 0: an image of a file system has no more.

use crate::context::Context;
use crate::lu::Emulated;
use crate::plan::Plan;
use crate::policy::{Admission, Alua, Code, Effect, Forwarding, Gate, OpCode, Persistent, Policy, Timeout};
use crate::row::{CommandType, Data};
use crate::sense::{Asc, Sense};
use lunar_core::codes;
use lunar_core::wire::{Writer, be};
use std::mem::offset_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Most blocks of a CD: 80 minutes of 75 frames per second. A larger disc is a DVD.
const CD_BLOCKS_MAX: u64 = 80 * 60 * 75;
/// Frames before block 0 (MMC-6 4.2.3.8.3): two seconds.
const FRAMES_BEFORE: u64 = 150;

/// Whether the disc is too large for a CD.
pub(crate) fn is_dvd(lu: &Emulated) -> bool {
    lu.unit.geometry.blocks > CD_BLOCKS_MAX
}

/// Admission of commands about the disc.
pub(crate) const ASKS: Admission = Admission {
    needs: None,
    forwarded: Forwarding::Device,
    attention: Gate::Stops,
    spc2: Gate::Stops,
    persistent: Persistent::Passes,
    alua: Alua::Active,
    not_ready: Gate::Stops,
    write_protect: Gate::Passes,
    timeout: Timeout::Quick,
};

/// An address as minute, second and frame; the last possible one if the address is beyond it (MMC-6 6.25.3.2.1).
fn msf(lba: u64) -> [u8; 3] {
    let frames = lba + FRAMES_BEFORE;
    match u8::try_from(frames / (60 * 75)) {
        Ok(minute) => [minute, (frames / 75 % 60) as u8, (frames % 75) as u8],
        Err(_) => [u8::MAX, 59, 74],
    }
}

/// The block at an address of minute, second and frame; `None` for an invalid address.
pub(crate) fn lba([minute, second, frame]: [u8; 3]) -> Option<u64> {
    if second > 59 || frame > 74 {
        return None;
    }
    ((u64::from(minute) * 60 + u64::from(second)) * 75 + u64::from(frame)).checked_sub(FRAMES_BEFORE)
}

/// A number in 32 bits; FFFFFFFFh if it does not fit.
fn short(blocks: u64) -> be::U32 {
    u32::try_from(blocks).unwrap_or(u32::MAX).into()
}

/// READ TOC/PMA/ATIP
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ReadTocPmaAtip {
    opcode: u8,
    flags: u8,
    format: u8,
    reserved: [u8; 3],
    first: u8,
    allocation: be::U16,
    control: u8,
}

/// MSF: addresses as minute, second and frame.
const MSF: u8 = 0x02;
/// ADR 1 (the address is that of a track), CONTROL 0100b (a data track that must not be copied).
const DATA_TRACK: u8 = 0x14;
/// TRACK NUMBER of the lead-out.
const LEAD_OUT: u8 = 0xaa;

/// An entry of formats 0 and 1.
fn track(out: &mut Writer<'_>, number: u8, address: u64, as_msf: bool) {
    out.bytes(&[0, DATA_TRACK, number, 0]);
    if as_msf {
        out.bytes(&[0]).bytes(&msf(address));
    } else {
        out.put(&short(address));
    }
}

/// An entry of format 2, of the lead-in.
fn point(out: &mut Writer<'_>, point: u8, value: [u8; 3]) {
    // Session 1; the time in the lead-in is unknown.
    out.bytes(&[1, DATA_TRACK, 0, point, 0, 0, 0, 0]).bytes(&value);
}

impl CommandType for ReadTocPmaAtip {
    const POLICY: Policy = Policy {
        name: "READ TOC/PMA/ATIP",
        clause: "MMC-6 6.25",
        code: Code::of(OpCode::READ_TOC_PMA_ATIP),
        effect: Effect::None,
        admission: ASKS,
    };
    const USAGE: Self = Self {
        opcode: OpCode::READ_TOC_PMA_ATIP.0,
        flags: MSF,
        format: 0x0f,
        reserved: [0; 3],
        first: 0xff,
        allocation: be::U16::MAX_VALUE,
        control: 0,
    };
    const DATA: Data<Self> = Data::Answer(|cdb| cdb.allocation.get().into());

    fn run(&self, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Sense> {
        let blocks = cx.emulated()?.unit.geometry.blocks;
        let as_msf = self.flags & MSF != 0;
        let wrong_first = || Err(Sense::in_cdb(offset_of!(Self, first)));
        let out = &mut cx.out;
        // First and last track or session.
        out.bytes(&[0, 0, 1, 1]);
        match (self.format, self.first) {
            // From a track on: the only track, then the lead-out.
            (0, first) if first > 1 && first != LEAD_OUT => return wrong_first(),
            (0, first) => {
                if first <= 1 {
                    track(out, 1, 0, as_msf);
                }
                track(out, LEAD_OUT, blocks, as_msf);
            }
            (1, _) => track(out, 1, 0, as_msf),
            (2, 2..) => return wrong_first(),
            (2, _) => {
                point(out, 0xa0, [1, 0, 0]);
                point(out, 0xa1, [1, 0, 0]);
                point(out, 0xa2, msf(blocks));
                point(out, 1, msf(0));
            }
            // PMA, ATIP and CD-TEXT: only recordable discs and discs with text have them.
            _ => return Err(Sense::bit_in_cdb(offset_of!(Self, format), 3)),
        }
        let length = (out.written() - 2) as u16;
        out.patch(0, &length.to_be_bytes());
        Ok(Plan::Answer)
    }
}

/// READ DISC INFORMATION
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ReadDiscInformation {
    opcode: u8,
    kind: u8,
    reserved: [u8; 5],
    allocation: be::U16,
    control: u8,
}

/// Standard disc information (MMC-6 6.21.3.1).
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
struct DiscInformation {
    length: be::U16,
    /// DISC INFORMATION DATA TYPE, ERASABLE, STATE OF LAST SESSION, DISC STATUS.
    status: u8,
    first_track: u8,
    sessions: u8,
    first_track_of_last_session: u8,
    last_track_of_last_session: u8,
    /// DID_V, DBC_V, URU.
    flags: u8,
    disc_type: u8,
    /// The most significant bytes of the three numbers above.
    high: [u8; 3],
    identification: be::U32,
    last_session_lead_in: be::U32,
    last_possible_lead_out: be::U32,
    bar_code: [u8; 8],
    application: u8,
    opc_tables: u8,
}

/// STATE OF LAST SESSION: complete; DISC STATUS: finalized.
const FINISHED: u8 = 0x0c | 0x02;
/// URU: unrestricted use of the disc.
const UNRESTRICTED: u8 = 0x20;

impl CommandType for ReadDiscInformation {
    const POLICY: Policy = Policy {
        name: "READ DISC INFORMATION",
        clause: "MMC-6 6.21",
        code: Code::of(OpCode::READ_DISC_INFORMATION),
        effect: Effect::None,
        admission: ASKS,
    };
    const USAGE: Self = Self {
        opcode: OpCode::READ_DISC_INFORMATION.0,
        kind: 0x07,
        reserved: [0; 5],
        allocation: be::U16::MAX_VALUE,
        control: 0,
    };
    const DATA: Data<Self> = Data::Answer(|cdb| cdb.allocation.get().into());

    fn run(&self, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Sense> {
        if self.kind != 0 {
            return Err(Sense::bit_in_cdb(offset_of!(Self, kind), 2));
        }
        cx.out.put(&DiscInformation {
            length: ((size_of::<DiscInformation>() - 2) as u16).into(),
            status: FINISHED,
            first_track: 1,
            sessions: 1,
            first_track_of_last_session: 1,
            last_track_of_last_session: 1,
            flags: UNRESTRICTED,
            disc_type: 0,
            high: [0; 3],
            identification: 0.into(),
            // FFh: the disc is not writable.
            last_session_lead_in: be::U32::MAX_VALUE,
            last_possible_lead_out: be::U32::MAX_VALUE,
            bar_code: [0; 8],
            application: 0,
            opc_tables: 0,
        });
        Ok(Plan::Answer)
    }
}

/// READ TRACK INFORMATION
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ReadTrackInformation {
    opcode: u8,
    kind: u8,
    address: be::U32,
    reserved: u8,
    allocation: be::U16,
    control: u8,
}

/// Track information (MMC-6 6.26.3).
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
struct TrackInformation {
    length: be::U16,
    track: u8,
    session: u8,
    reserved: u8,
    /// Damage, copy, TRACK MODE.
    track_mode: u8,
    /// RT, blank, packet, FP, DATA MODE.
    data_mode: u8,
    /// LRA_V, NWA_V.
    valid: u8,
    start: be::U32,
    next_writable: be::U32,
    free: be::U32,
    packet: be::U32,
    size: be::U32,
    last_recorded: be::U32,
    /// The most significant bytes of track and session number.
    high: [u8; 2],
    reserved2: [u8; 2],
    compatibility: be::U32,
    /// LAYER JUMP ADDRESS of recordable DVDs.
    jump: [be::U32; 2],
}

impl CommandType for ReadTrackInformation {
    const POLICY: Policy = Policy {
        name: "READ TRACK INFORMATION",
        clause: "MMC-6 6.26",
        code: Code::of(OpCode::READ_TRACK_INFORMATION),
        effect: Effect::None,
        admission: ASKS,
    };
    const USAGE: Self = Self {
        opcode: OpCode::READ_TRACK_INFORMATION.0,
        kind: 0x03,
        address: be::U32::MAX_VALUE,
        reserved: 0,
        allocation: be::U16::MAX_VALUE,
        control: 0,
    };
    const DATA: Data<Self> = Data::Answer(|cdb| cdb.allocation.get().into());

    fn run(&self, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Sense> {
        let blocks = cx.emulated()?.unit.geometry.blocks;
        let address = self.address.get();
        match self.kind {
            // By LBA, by track number, by session number.
            0 if u64::from(address) >= blocks => {
                return Err(Sense::illegal(Asc::LBA_OUT_OF_RANGE).with_information(address.into()));
            }
            0 => {}
            1 | 2 if address == 1 => {}
            1 | 2 => return Err(Sense::in_cdb(offset_of!(Self, address))),
            _ => return Err(Sense::bit_in_cdb(offset_of!(Self, kind), 1)),
        }
        cx.out.put(&TrackInformation {
            length: ((size_of::<TrackInformation>() - 2) as u16).into(),
            track: 1,
            session: 1,
            reserved: 0,
            track_mode: DATA_TRACK & 0x0f,
            // DATA MODE 1.
            data_mode: 1,
            valid: 0,
            start: 0.into(),
            next_writable: 0.into(),
            free: 0.into(),
            packet: 0.into(),
            size: short(blocks),
            last_recorded: short(blocks - 1),
            high: [0; 2],
            reserved2: [0; 2],
            compatibility: 0.into(),
            jump: Default::default(),
        });
        Ok(Plan::Answer)
    }
}

/// READ DISC STRUCTURE, formerly READ DVD STRUCTURE
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ReadDiscStructure {
    opcode: u8,
    medium: u8,
    address: be::U32,
    layer: u8,
    format: u8,
    allocation: be::U16,
    grant: u8,
    control: u8,
}

/// FORMAT CODE: physical format information.
const PHYSICAL: u8 = 0x00;
/// FORMAT CODE: copyright information.
const COPYRIGHT: u8 = 0x01;
/// FORMAT CODE: manufacturing information.
const MANUFACTURING: u8 = 0x04;
/// FORMAT CODE: list of structures.
const LIST: u8 = 0xff;
/// Structures and their lengths in bytes. Physical format and manufacturing information have the length of a sector.
const STRUCTURES: [(u8, usize); 3] = [(PHYSICAL, 2048), (COPYRIGHT, 4), (MANUFACTURING, 2048)];
/// RDS: the structure can be read.
const READABLE: u8 = 0x40;
/// The physical sector of block 0.
const FIRST_SECTOR: u32 = 0x03_0000;

/// Physical format information without its trailing zeroes (MMC-6 6.22.3.2.1).
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
struct PhysicalFormat {
    /// DISK CATEGORY 0 (DVD-ROM), PART VERSION 1.
    category: u8,
    /// DISC SIZE 0 (120 mm), MAXIMUM RATE 15 (not specified).
    size: u8,
    /// One embossed layer.
    layers: u8,
    density: u8,
    first_sector: be::U32,
    last_sector: be::U32,
    last_sector_of_layer: be::U32,
}

impl CommandType for ReadDiscStructure {
    const POLICY: Policy = Policy {
        name: "READ DISC STRUCTURE",
        clause: "MMC-6 6.22",
        code: Code::of(OpCode::READ_DISC_STRUCTURE),
        effect: Effect::None,
        admission: ASKS,
    };
    const USAGE: Self = Self {
        opcode: OpCode::READ_DISC_STRUCTURE.0,
        medium: 0x0f,
        address: be::U32::MAX_VALUE,
        layer: 0xff,
        format: 0xff,
        allocation: be::U16::MAX_VALUE,
        grant: 0xc0,
        control: 0,
    };
    const DATA: Data<Self> = Data::Answer(|cdb| cdb.allocation.get().into());

    fn run(&self, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Sense> {
        let lu = cx.emulated()?;
        if !is_dvd(lu) {
            return Err(Sense::illegal(Asc::INCOMPATIBLE_FORMAT));
        }
        if self.medium != 0 {
            return Err(Sense::bit_in_cdb(offset_of!(Self, medium), 3));
        }
        if self.format == LIST {
            cx.out.bytes(&[0, (2 + 4 * STRUCTURES.len()) as u8, 0, 0]);
            for (format, bytes) in STRUCTURES {
                // The length includes the header of the structure.
                cx.out.bytes(&[format, READABLE]).bytes(&((bytes + 4) as u16).to_be_bytes());
            }
            return Ok(Plan::Answer);
        }
        let Some((_, bytes)) = STRUCTURES.iter().find(|(format, _)| *format == self.format) else {
            return Err(Sense::in_cdb(offset_of!(Self, format)));
        };
        if self.layer != 0 {
            return Err(Sense::in_cdb(offset_of!(Self, layer)));
        }
        cx.out.bytes(&((bytes + 2) as u16).to_be_bytes()).zeros(2 + bytes);
        if self.format == PHYSICAL {
            // Sector numbers are 24 bits long.
            let last = (u64::from(FIRST_SECTOR) + lu.unit.geometry.blocks - 1).min(0x00ff_ffff) as u32;
            let format = PhysicalFormat {
                category: 0x01,
                size: 0x0f,
                layers: 0x01,
                density: 0,
                first_sector: FIRST_SECTOR.into(),
                last_sector: last.into(),
                last_sector_of_layer: 0.into(),
            };
            cx.out.patch(4, format.as_bytes());
        }
        Ok(Plan::Answer)
    }
}

codes! {
    /// Profiles (MMC-6 5.3.1).
    pub(crate) struct Profile(u16) { NONE = 0x0000, CD_ROM = 0x0008, DVD_ROM = 0x0010 }
}

impl Profile {
    /// The profile of the disc in a drive.
    pub(crate) fn of(lu: &Emulated) -> Self {
        match lu.tray_sense() {
            Some(_) => Self::NONE,
            None if is_dvd(lu) => Self::DVD_ROM,
            None => Self::CD_ROM,
        }
    }
}

#[cfg(test)]
#[path = "disc_tests.rs"]
mod tests;
