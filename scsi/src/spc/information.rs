//! REPORT IDENTIFYING INFORMATION and SET IDENTIFYING INFORMATION.

use crate::change::Change;
use crate::context::Context;
use crate::information::Kind;
use crate::plan::Plan;
use crate::policy::{Admission, Alua, Code, Effect, Forwarding, Gate, OpCode, Persistent, Policy, Timeout};
use crate::row::{CommandType, Data};
use crate::sense::{Asc, Sense};
use lunar_core::wire::be;
use lunar_unit::Record;
use std::mem::offset_of;
use std::sync::Arc;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The CDB of both commands.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Cdb {
    opcode: u8,
    action: u8,
    reserved: [u8; 4],
    length: be::U32,
    /// INFORMATION TYPE in the upper seven bits; the lowest bit is reserved.
    kind: u8,
    control: u8,
}

impl Cdb {
    const fn usage(opcode: OpCode, action: u8) -> Self {
        let length = be::U32::MAX_VALUE;
        Self { opcode: opcode.0, action, reserved: [0; 4], length, kind: KIND, control: 0 }
    }

    fn kind(&self) -> Option<Kind> {
        Kind::of(self.kind >> 1)
    }
}

/// INFORMATION TYPE.
const KIND: u8 = 0xfe;
/// INFORMATION TYPE: identifying information supported.
const SUPPORTED: u8 = 0x7f;
const UNKNOWN_KIND: Sense = Sense::bit_in_cdb(offset_of!(Cdb, kind), 7);

/// REPORT IDENTIFYING INFORMATION
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(transparent)]
pub struct ReportIdentifyingInformation(Cdb);

impl CommandType for ReportIdentifyingInformation {
    const POLICY: Policy = Policy {
        name: "REPORT IDENTIFYING INFORMATION",
        clause: "SPC-4 6.32",
        code: Code::with_action(OpCode::MAINTENANCE_IN, 0x05),
        effect: Effect::None,
        admission: Admission {
            needs: None,
            forwarded: Forwarding::Device,
            attention: Gate::Stops,
            spc2: Gate::Stops,
            persistent: Persistent::Passes,
            alua: Alua::Active,
            not_ready: Gate::Passes,
            write_protect: Gate::Passes,
            timeout: Timeout::Quick,
        },
    };
    const USAGE: Self = Self(Cdb::usage(OpCode::MAINTENANCE_IN, 0x05));
    const DATA: Data<Self> = Data::Answer(|Self(cdb)| cdb.length.get());

    fn run(&self, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Sense> {
        let lu = cx.emulated()?;
        cx.out.zeros(4);
        if self.0.kind >> 1 == SUPPORTED {
            for kind in Kind::ALL {
                // Identifying information has at most 256 bytes.
                cx.out.bytes(&[kind.code() << 1, 0]).bytes(&(kind.bytes_max() as u16).to_be_bytes());
            }
        } else {
            cx.out.bytes(&lu.information(self.0.kind().ok_or(UNKNOWN_KIND)?));
        }
        let length = (cx.out.written() - 4) as u16;
        cx.out.patch(2, &length.to_be_bytes());
        Ok(Plan::Answer)
    }
}

/// SET IDENTIFYING INFORMATION
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(transparent)]
pub struct SetIdentifyingInformation(Cdb);

impl SetIdentifyingInformation {
    /// Whether the list is not longer than its INFORMATION TYPE allows. A longer list is refused, so it is not pulled.
    fn fits(&self) -> bool {
        self.0.kind().is_some_and(|kind| self.0.length.get() as usize <= kind.bytes_max())
    }
}

impl CommandType for SetIdentifyingInformation {
    const POLICY: Policy = Policy {
        name: "SET IDENTIFYING INFORMATION",
        clause: "SPC-4 6.43",
        code: Code::with_action(OpCode::MAINTENANCE_OUT, 0x06),
        effect: Effect::None,
        admission: Admission {
            needs: None,
            forwarded: Forwarding::DeviceThenAttention(Asc::DEVICE_IDENTIFIER_CHANGED),
            attention: Gate::Stops,
            spc2: Gate::Stops,
            persistent: Persistent::Conflict,
            alua: Alua::Active,
            not_ready: Gate::Passes,
            write_protect: Gate::Passes,
            timeout: Timeout::Transfer,
        },
    };
    const USAGE: Self = Self(Cdb::usage(OpCode::MAINTENANCE_OUT, 0x06));
    const DATA: Data<Self> = Data::List(|cdb| if cdb.fits() { cdb.0.length.get() } else { 0 });

    fn run(&self, cx: &mut Context<'_>, list: &[u8]) -> Result<Plan, Sense> {
        let lu = cx.emulated()?;
        let kind = self.0.kind().ok_or(UNKNOWN_KIND)?;
        if !self.fits() {
            return Err(Sense::in_cdb(offset_of!(Cdb, length)));
        }
        if list.len() < self.0.length.get() as usize {
            return Err(Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR));
        }
        if let (Kind::Text, Err(byte)) = (kind, text(list)) {
            return Err(Sense::in_list(byte));
        }
        if *lu.information(kind) == *list {
            return Ok(Plan::Done);
        }
        let bytes: Arc<[u8]> = list.into();
        let record = Some(Box::new(Record::required(kind.name(), list.to_vec())));
        Ok(Plan::Change { flush: false, record, change: Change::Information(kind, bytes) })
    }
}

/// Checks that a list is empty, or UTF-8 terminated by its only zero. The error is the first invalid byte.
fn text(list: &[u8]) -> Result<(), usize> {
    let Some(last) = list.len().checked_sub(1) else { return Ok(()) };
    if let Err(why) = std::str::from_utf8(list) {
        return Err(why.valid_up_to());
    }
    match list.iter().position(|byte| *byte == 0) {
        Some(zero) if zero == last => Ok(()),
        Some(zero) => Err(zero + 1),
        None => Err(last),
    }
}

#[cfg(test)]
mod tests {
    use crate::command::Status;
    use crate::information::Kind;
    use crate::sense::Asc;
    use crate::testing::{Ended, Rig};

    fn report(rig: &Rig, kind: u8) -> Ended {
        rig.run(&[0xa3, 5, 0, 0, 0, 0, 0, 0, 2, 0, kind << 1, 0], &[], 512)
    }

    fn set(rig: &Rig, kind: u8, list: &[u8]) -> Ended {
        let [high, low] = u16::try_from(list.len()).expect("short").to_be_bytes();
        rig.run(&[0xa4, 6, 0, 0, 0, 0, 0, 0, high, low, kind << 1, 0], list, 0)
    }

    #[test]
    fn identifying_information_is_reported_as_it_was_set() {
        let rig = Rig::default();
        assert_eq!(report(&rig, 0x7f).data, [0, 0, 0, 8, 0, 0, 0, 64, 4, 0, 1, 0]);
        assert_eq!(report(&rig, 0).data, [0; 4]);
        assert_eq!(set(&rig, 0, &[1, 0, 2]).status, Status::GOOD);
        assert_eq!(set(&rig, 2, "Größe\0".as_bytes()).status, Status::GOOD);
        assert_eq!(report(&rig, 0).data, [0, 0, 0, 3, 1, 0, 2]);
        assert_eq!(report(&rig, 2).data[..6], [0, 0, 0, 8, b'G', b'r']);
        assert_eq!(set(&rig, 0, &[]).status, Status::GOOD);
        assert_eq!(report(&rig, 0).data, [0; 4]);
    }

    #[test]
    fn a_change_establishes_a_unit_attention_for_the_other_nexuses() {
        let rig = Rig::default();
        let nexus = rig.target.nexus(Rig::name("b"));
        let other = nexus.itl(0).expect("LUN exists");
        while other.take_attention().is_some() {}
        set(&rig, 0, &[1]);
        assert_eq!(other.take_attention().map(|sense| sense.asc), Some(Asc::DEVICE_IDENTIFIER_CHANGED));
        set(&rig, 0, &[1]);
        assert_eq!(other.attention(), None, "the value did not change");
    }

    #[test]
    fn identifying_information_persists_through_resets_and_restarts() {
        let rig = Rig::default();
        set(&rig, 0, &[7; 64]);
        set(&rig, 2, &[b'x', 0]);
        let unit = rig.nexus.itl(0).expect("LUN exists").lu.of_test().unit.clone();
        rig.target.add_unit(1, unit);
        let again = rig.nexus.itl(1).expect("LUN exists");
        assert_eq!(again.lu.of_test().information(Kind::Bytes)[..], [7; 64]);
        assert_eq!(again.lu.of_test().information(Kind::Text)[..], *b"x\0");
    }

    #[test]
    fn invalid_lists_are_refused_with_a_field_pointer() {
        let rig = Rig::default();
        assert_eq!(report(&rig, 1).sense[15..], [0xcf, 0, 10]);
        assert_eq!(set(&rig, 0x7f, &[]).sense[15..], [0xcf, 0, 10]);
        assert_eq!(set(&rig, 0, &[0; 65]).sense[15..], [0xc0, 0, 6]);
        assert_eq!(set(&rig, 2, &[0; 257]).sense[15..], [0xc0, 0, 6]);
        for (text, byte) in [(&b"ab"[..], 1), (b"a\0b\0", 2), (b"a\xff\0", 1), (b"\0\0", 1)] {
            let ended = set(&rig, 2, text);
            assert_eq!((ended.sense[12], &ended.sense[15..]), (0x26, &[0x80, 0, byte][..]), "{text:?}");
        }
        let ended = rig.run(&[0xa4, 6, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0], &[0; 8], 0);
        assert_eq!(ended.sense[12], 0x1a);
        assert_eq!(report(&rig, 0).data, [0; 4]);
    }
}
