//! The drive itself (MMC-6): features, events, mechanism.

use super::disc::{ASKS, Profile};
use crate::context::Context;
use crate::lu::Emulated;
use crate::medium::MediaEvent;
use crate::plan::Plan;
use crate::policy::{Admission, Alua, Code, Effect, Forwarding, Gate, OpCode, Persistent, Policy, Timeout};
use crate::row::{CommandType, Data};
use crate::sbc::block_range::within;
use crate::sense::Sense;
use lunar_core::codes;
use lunar_core::wire::{Writer, be};
use lunar_unit::TrayPosition;
use std::mem::offset_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Admission of commands about the drive, which need no disc.
const OF_DRIVE: Admission = Admission {
    needs: None,
    forwarded: Forwarding::Device,
    attention: Gate::Stops,
    spc2: Gate::Stops,
    persistent: Persistent::Passes,
    alua: Alua::Active,
    not_ready: Gate::Passes,
    write_protect: Gate::Passes,
    timeout: Timeout::Quick,
};
/// Admission of commands that report changes as data: they leave unit attentions to other commands (MMC-6 6.5, 6.6).
const OF_EVENTS: Admission = Admission {
    needs: None,
    forwarded: Forwarding::Device,
    attention: Gate::Passes,
    spc2: Gate::Stops,
    persistent: Persistent::Passes,
    alua: Alua::Active,
    not_ready: Gate::Passes,
    write_protect: Gate::Passes,
    timeout: Timeout::Quick,
};

codes! {
    /// Features (MMC-6 5.2).
    struct Feature(u16) {
        PROFILE_LIST = 0x0000, CORE = 0x0001, MORPHING = 0x0002, REMOVABLE_MEDIUM = 0x0003, RANDOM_READABLE = 0x0010,
        MULTI_READ = 0x001d, CD_READ = 0x001e, DVD_READ = 0x001f, POWER_MANAGEMENT = 0x0100, SERIAL_NUMBER = 0x0108,
    }
}

/// When a feature is current (MMC-6 5.2).
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    /// Always: the feature is persistent.
    Always,
    /// While a disc is loaded.
    Disc,
    /// While a CD is loaded.
    Cd,
    /// While a DVD is loaded.
    Dvd,
}

/// A feature and its data.
struct FeatureRow {
    feature: Feature,
    version: u8,
    when: When,
    /// The bytes after its header, a multiple of four.
    write: fn(&Emulated, &mut Writer<'_>),
}

const fn feature(feature: Feature, version: u8, when: When, write: fn(&Emulated, &mut Writer<'_>)) -> FeatureRow {
    FeatureRow { feature, version, when, write }
}

/// PHYSICAL INTERFACE STANDARD: the SCSI family.
const SCSI: u32 = 1;
/// DBE: device busy events are reported.
const DEVICE_BUSY: u8 = 0x01;
/// LOADING MECHANISM TYPE 1 (tray), LOAD, EJECT, LOCK.
const TRAY: u8 = 0x20 | 0x10 | 0x08 | 0x01;
/// PP: the drive has the error recovery mode page.
const RECOVERY_PAGE: u8 = 0x01;

/// All features in ascending order.
static FEATURES: &[FeatureRow] = &[
    feature(Feature::PROFILE_LIST, 0, When::Always, |lu, out| {
        for profile in [Profile::DVD_ROM, Profile::CD_ROM] {
            out.bytes(&profile.0.to_be_bytes()).bytes(&[u8::from(profile == Profile::of(lu)), 0]);
        }
    }),
    feature(Feature::CORE, 2, When::Always, |_, out| {
        out.bytes(&SCSI.to_be_bytes()).bytes(&[DEVICE_BUSY, 0, 0, 0]);
    }),
    // Events are polled; operational changes do not happen.
    feature(Feature::MORPHING, 1, When::Always, |_, out| {
        out.zeros(4);
    }),
    feature(Feature::REMOVABLE_MEDIUM, 1, When::Always, |_, out| {
        out.bytes(&[TRAY, 0, 0, 0]);
    }),
    feature(Feature::RANDOM_READABLE, 0, When::Disc, |lu, out| {
        // Blocking is 1: any number of blocks may be read.
        out.bytes(&lu.block_size().to_be_bytes()).bytes(&[0, 1, RECOVERY_PAGE, 0]);
    }),
    feature(Feature::MULTI_READ, 0, When::Cd, |_, _| {}),
    // No digital audio play, no C2 error pointers, no CD-TEXT.
    feature(Feature::CD_READ, 2, When::Cd, |_, out| {
        out.zeros(4);
    }),
    feature(Feature::DVD_READ, 1, When::Dvd, |_, out| {
        out.zeros(4);
    }),
    feature(Feature::POWER_MANAGEMENT, 0, When::Always, |_, _| {}),
    feature(Feature::SERIAL_NUMBER, 0, When::Always, |lu, out| {
        let serial = lu.unit.identity.serial.as_bytes();
        out.bytes(serial).zeros(serial.len().next_multiple_of(4) - serial.len());
    }),
];

impl FeatureRow {
    fn is_current(&self, profile: Profile) -> bool {
        match self.when {
            When::Always => true,
            When::Disc => profile != Profile::NONE,
            When::Cd => profile == Profile::CD_ROM,
            When::Dvd => profile == Profile::DVD_ROM,
        }
    }

    fn put(&self, lu: &Emulated, out: &mut Writer<'_>) {
        let persistent = u8::from(self.when == When::Always) << 1;
        let flags = self.version << 2 | persistent | u8::from(self.is_current(Profile::of(lu)));
        let at = out.written();
        out.bytes(&self.feature.0.to_be_bytes()).bytes(&[flags, 0]);
        (self.write)(lu, out);
        // All features together have a few dozen bytes.
        let length = (out.written() - at - 4) as u8;
        out.patch(at + 3, &[length]);
    }
}

/// GET CONFIGURATION
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct GetConfiguration {
    opcode: u8,
    which: u8,
    first: be::U16,
    reserved: [u8; 3],
    allocation: be::U16,
    control: u8,
}

/// RT: the features that are requested, from STARTING FEATURE NUMBER on.
const WHICH: u8 = 0x03;

impl CommandType for GetConfiguration {
    const POLICY: Policy = Policy {
        name: "GET CONFIGURATION",
        clause: "MMC-6 6.5",
        code: Code::of(OpCode::GET_CONFIGURATION),
        effect: Effect::None,
        admission: OF_EVENTS,
    };
    const USAGE: Self = Self {
        opcode: OpCode::GET_CONFIGURATION.0,
        which: WHICH,
        first: be::U16::MAX_VALUE,
        reserved: [0; 3],
        allocation: be::U16::MAX_VALUE,
        control: 0,
    };
    const DATA: Data<Self> = Data::Answer(|cdb| cdb.allocation.get().into());

    fn run(&self, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Sense> {
        let lu = cx.emulated()?;
        let (profile, first) = (Profile::of(lu), Feature(self.first.get()));
        let is_asked: &dyn Fn(&FeatureRow) -> bool = match self.which {
            0 => &|row| row.feature >= first,
            1 => &|row| row.feature >= first && row.is_current(profile),
            2 => &|row| row.feature == first,
            _ => return Err(Sense::bit_in_cdb(offset_of!(Self, which), 1)),
        };
        cx.out.zeros(6).bytes(&profile.0.to_be_bytes());
        FEATURES.iter().filter(|row| is_asked(row)).for_each(|row| row.put(lu, &mut cx.out));
        let length = (cx.out.written() - 4) as u32;
        cx.out.patch(0, &length.to_be_bytes());
        Ok(Plan::Answer)
    }
}

/// GET EVENT STATUS NOTIFICATION
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct GetEventStatusNotification {
    opcode: u8,
    polled: u8,
    reserved: [u8; 2],
    classes: u8,
    reserved2: [u8; 2],
    allocation: be::U16,
    control: u8,
}

/// IMMED: the event is polled. Asynchronous notification is not supported: without IMMED the command is refused
/// (MMC-6 6.6.2.2).
const POLLED: u8 = 0x01;
/// NEA: none of the requested classes is supported.
const NO_EVENT_AVAILABLE: u8 = 0x80;
/// SUPPORTED EVENT CLASSES, a bit each: operational change, power management, media, device busy.
const CLASSES: u8 = 1 << OPERATIONAL | 1 << POWER | 1 << MEDIA | 1 << BUSY;
/// Operational change class.
const OPERATIONAL: u8 = 1;
/// Power management class.
const POWER: u8 = 2;
/// Media class.
const MEDIA: u8 = 4;
/// Device busy class.
const BUSY: u8 = 6;
/// POWER STATUS: active.
const ACTIVE: u8 = 1;
/// MEDIA STATUS: door or tray open.
const IS_OPEN: u8 = 0x01;
/// MEDIA STATUS: medium present.
const IS_PRESENT: u8 = 0x02;

impl CommandType for GetEventStatusNotification {
    const POLICY: Policy = Policy {
        name: "GET EVENT STATUS NOTIFICATION",
        clause: "MMC-6 6.6",
        code: Code::of(OpCode::GET_EVENT_STATUS_NOTIFICATION),
        effect: Effect::None,
        admission: OF_EVENTS,
    };
    const USAGE: Self = Self {
        opcode: OpCode::GET_EVENT_STATUS_NOTIFICATION.0,
        polled: POLLED,
        reserved: [0; 2],
        classes: 0xff,
        reserved2: [0; 2],
        allocation: be::U16::MAX_VALUE,
        control: 0,
    };
    const DATA: Data<Self> = Data::Answer(|cdb| cdb.allocation.get().into());

    fn run(&self, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Sense> {
        if self.polled & POLLED == 0 {
            return Err(Sense::bit_in_cdb(offset_of!(Self, polled), 0));
        }
        let itl = cx.itl()?;
        let asked = self.classes & CLASSES;
        if asked == 0 {
            cx.out.bytes(&[0, 2, NO_EVENT_AVAILABLE, CLASSES]);
            return Ok(Plan::Answer);
        }
        // A class with a pending event is reported before others. Only the media class has events.
        let has_happened = asked & 1 << MEDIA != 0 && itl.event.get() != MediaEvent::None;
        let class = if has_happened { MEDIA } else { asked.trailing_zeros() as u8 };
        let event = match class {
            POWER => [0, ACTIVE, 0, 0],
            MEDIA => {
                // The event is taken only if the allocation length has room for it after the header.
                let event = if self.allocation.get() > 4 { itl.event.take() } else { itl.event.get() };
                [event as u8, media_status(itl.emulated()?.tray()), 0, 0]
            }
            _ => [0; 4],
        };
        cx.out.bytes(&[0, 6, class, CLASSES]).bytes(&event);
        Ok(Plan::Answer)
    }
}

fn media_status(tray: TrayPosition) -> u8 {
    let present = if tray.is_loaded() { IS_PRESENT } else { 0 };
    let open = if tray.is_open() { IS_OPEN } else { 0 };
    present | open
}

/// MECHANISM STATUS
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct MechanismStatus {
    opcode: u8,
    reserved: [u8; 7],
    allocation: be::U16,
    reserved2: u8,
    control: u8,
}

/// DOOR OPEN.
const DOOR_OPEN: u8 = 0x10;

impl CommandType for MechanismStatus {
    const POLICY: Policy = Policy {
        name: "MECHANISM STATUS",
        clause: "MMC-6 6.10",
        code: Code::of(OpCode::MECHANISM_STATUS),
        effect: Effect::None,
        admission: OF_DRIVE,
    };
    const USAGE: Self = Self {
        opcode: OpCode::MECHANISM_STATUS.0,
        reserved: [0; 7],
        allocation: be::U16::MAX_VALUE,
        reserved2: 0,
        control: 0,
    };
    const DATA: Data<Self> = Data::Answer(|cdb| cdb.allocation.get().into());

    fn run(&self, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Sense> {
        // Idle, without a current address and without changer slots.
        cx.out.bytes(&[0, if cx.emulated()?.tray().is_open() { DOOR_OPEN } else { 0 }]).zeros(6);
        Ok(Plan::Answer)
    }
}

/// SEEK(10): checks the address and does nothing else.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Seek10 {
    opcode: u8,
    reserved: u8,
    lba: be::U32,
    reserved2: [u8; 3],
    control: u8,
}

impl CommandType for Seek10 {
    const POLICY: Policy = Policy {
        name: "SEEK(10)",
        clause: "MMC-6 6",
        code: Code::of(OpCode::SEEK_10),
        effect: Effect::None,
        admission: ASKS,
    };
    const USAGE: Self =
        Self { opcode: OpCode::SEEK_10.0, reserved: 0, lba: be::U32::MAX_VALUE, reserved2: [0; 3], control: 0 };
    const DATA: Data<Self> = Data::None;

    fn run(&self, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Sense> {
        within(cx.emulated()?, self.lba.get().into(), 1)?;
        Ok(Plan::Done)
    }
}

#[cfg(test)]
#[path = "drive_tests.rs"]
mod tests;
