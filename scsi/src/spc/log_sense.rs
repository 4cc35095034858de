//! LOG SENSE and LOG SELECT; [`crate::pages::log`] writes the pages.

use crate::change::Change;
use crate::context::Context;
use crate::pages::log::{self, POINTER_AT};
use crate::pages::mode::can_save;
use crate::plan::{LogRequest, LogValues, Plan};
use crate::policy::{Admission, Alua, Code, Effect, Forwarding, Gate, OpCode, Persistent, Policy, Timeout};
use crate::row::{CommandType, Data};
use crate::sense::{Asc, Sense};
use crate::spc::log::client;
use lunar_core::wire::be;
use lunar_unit::Record;
use std::mem::offset_of;
use std::sync::Arc;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Admission of both commands.
const LOGS: Admission = Admission {
    needs: None,
    forwarded: Forwarding::Device,
    attention: Gate::Stops,
    spc2: Gate::Stops,
    persistent: Persistent::Conflict,
    alua: Alua::Standby,
    not_ready: Gate::Passes,
    write_protect: Gate::Passes,
    timeout: Timeout::Quick,
};

/// PAGE CODE; the two bits above it are PC.
const PAGE_CODE: u8 = 0x3f;
/// PC: cumulative values.
const CUMULATIVE: u8 = 1;
/// PC: default cumulative values.
const DEFAULT_CUMULATIVE: u8 = 3;
/// Byte 1 of LOG SELECT: parameter code reset.
const PCR: u8 = 0x02;
/// Byte 1 of LOG SELECT: the values are saved.
const SP: u8 = 0x01;

const _: () = assert!(offset_of!(LogSense, pointer) == POINTER_AT);

/// LOG SENSE. SP must be zero: values are saved only when they are set.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct LogSense {
    opcode: u8,
    flags: u8,
    page: u8,
    subpage: u8,
    reserved: u8,
    pointer: be::U16,
    allocation: be::U16,
    control: u8,
}

impl CommandType for LogSense {
    const POLICY: Policy = Policy {
        name: "LOG SENSE",
        clause: "SPC-4 6.8",
        code: Code::of(OpCode::LOG_SENSE),
        effect: Effect::None,
        admission: LOGS,
    };
    const USAGE: Self = Self {
        opcode: OpCode::LOG_SENSE.0,
        flags: 0,
        page: 0xff,
        subpage: 0xff,
        reserved: 0,
        pointer: be::U16::MAX_VALUE,
        allocation: be::U16::MAX_VALUE,
        control: 0,
    };
    const DATA: Data<Self> = Data::Answer(|cdb| cdb.allocation.get().into());

    fn run(&self, cx: &mut Context<'_>, _list: &[u8]) -> Result<Plan, Sense> {
        let lu = cx.emulated()?;
        let page = self.page & PAGE_CODE;
        let Some(row) = log::find(cx, lu, page, self.subpage) else {
            return Err(match log::find(cx, lu, page, 0) {
                Some(_) => Sense::in_cdb(offset_of!(Self, subpage)),
                None => Sense::bit_in_cdb(offset_of!(Self, page), 5),
            });
        };
        let values = match self.page >> 6 {
            CUMULATIVE => LogValues::Current,
            DEFAULT_CUMULATIVE => LogValues::Default,
            // The lists of pages are the same for every PC; no other page has thresholds.
            _ if page == 0 => LogValues::Current,
            _ => return Err(Sense::bit_in_cdb(offset_of!(Self, page), 7)),
        };
        let request = LogRequest { page, subpage: self.subpage, values, from: self.pointer.get() };
        if row.measures {
            return Ok(Plan::Log(request));
        }
        log::answer(cx, lu, &request)?;
        Ok(Plan::Answer)
    }
}

/// LOG SELECT: resets all counters and application client values, or sets application client values.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct LogSelect {
    opcode: u8,
    flags: u8,
    page: u8,
    subpage: u8,
    reserved: [u8; 3],
    length: be::U16,
    control: u8,
}

impl CommandType for LogSelect {
    const POLICY: Policy = Policy {
        name: "LOG SELECT",
        clause: "SPC-4 6.7",
        code: Code::of(OpCode::LOG_SELECT),
        effect: Effect::None,
        admission: Admission {
            needs: None,
            forwarded: Forwarding::DeviceThenAttention(Asc::LOG_PARAMETERS_CHANGED),
            attention: Gate::Stops,
            spc2: Gate::Stops,
            persistent: Persistent::Conflict,
            alua: Alua::Standby,
            not_ready: Gate::Passes,
            write_protect: Gate::Passes,
            timeout: Timeout::Quick,
        },
    };
    const USAGE: Self = Self {
        opcode: OpCode::LOG_SELECT.0,
        flags: PCR | SP,
        page: !PAGE_CODE,
        subpage: 0,
        reserved: [0; 3],
        length: be::U16::MAX_VALUE,
        control: 0,
    };
    const DATA: Data<Self> = Data::List(|cdb| cdb.length.get().into());

    fn run(&self, cx: &mut Context<'_>, list: &[u8]) -> Result<Plan, Sense> {
        let lu = cx.emulated()?;
        let (saves, resets) = (self.flags & SP != 0, self.flags & PCR != 0);
        if saves && !can_save(&lu.unit) {
            return Err(Sense::bit_in_cdb(offset_of!(Self, flags), 0));
        }
        let record =
            |saves: bool, bytes: &[u8]| saves.then(|| Box::new(Record::required(client::KEPT_AS, bytes.to_vec())));
        if self.length.get() == 0 {
            return Ok(match resets || self.page >> 6 == DEFAULT_CUMULATIVE {
                true => Plan::Change { flush: false, record: record(saves, &[]), change: Change::LogReset },
                // The current values are saved.
                false if saves => self.set(record(true, &lu.client_log()), lu.client_log()),
                false => Plan::Done,
            });
        }
        if resets {
            return Err(Sense::bit_in_cdb(offset_of!(Self, flags), 1));
        }
        // List parameters have neither thresholds nor default values: other values of PC are refused (SPC-4 6.7).
        if self.page >> 6 > CUMULATIVE {
            return Err(Sense::bit_in_cdb(offset_of!(Self, page), 7));
        }
        if list.len() < usize::from(self.length.get()) {
            return Err(Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR));
        }
        let selected = client::select(lu, list)?;
        Ok(self.set(record(saves && selected.saves, &selected.values), selected.values))
    }
}

impl LogSelect {
    fn set(&self, record: Option<Box<Record>>, values: Arc<[u8]>) -> Plan {
        Plan::Change { flush: false, record, change: Change::ClientLog(values) }
    }
}

#[cfg(test)]
mod tests {
    use crate::command::Status;
    use crate::sbc::table::DISK;
    use crate::sense::Asc;
    use crate::testing::{Ended, Rig};
    use lunar_core::io::Fault;

    fn sense(rig: &Rig, page: u8, subpage: u8, pointer: u8) -> Ended {
        rig.run(&[0x4d, 0, page, subpage, 0, 0, pointer, 0x41, 0, 0], &[], 0x4100)
    }

    fn select(rig: &Rig, flags: u8, page: u8) -> Ended {
        rig.run(&[0x4c, flags, page, 0, 0, 0, 0, 0, 0, 0], &[], 0)
    }

    fn counter(code: u8, value: u64) -> Vec<u8> {
        [&[0, code, 0x22, 8], &value.to_be_bytes()[..]].concat()
    }

    #[test]
    fn the_lists_of_pages_name_every_page() {
        let rig = Rig::default();
        for control in [0, 0x40, 0x80, 0xc0] {
            let pages = [0, 0, 0, 9, 0x00, 0x02, 0x03, 0x05, 0x0c, 0x0d, 0x0f, 0x19, 0x2f];
            assert_eq!(sense(&rig, control, 0, 0).data, pages);
        }
        let subpages = [0, 0, 0, 0xff, 2, 0, 3, 0, 5, 0, 0x0c, 0, 0x0d, 0, 0x0f, 0, 0x19, 0, 0x2f, 0];
        assert_eq!(sense(&rig, 0, 0xff, 0).data, [&[0x40, 0xff, 0, 20], &subpages[..]].concat());
        for row in DISK.log {
            let data = sense(&rig, 0x40 | row.page, row.subpage, 0).data;
            assert_eq!((data[0] & 0x3f, data[1]), (row.page, row.subpage));
            assert_eq!(data.len(), 4 + usize::from(u16::from_be_bytes([data[2], data[3]])), "{}", row.name);
            let cut = rig.run(&[0x4d, 0, 0x40 | row.page, row.subpage, 0, 0, 0, 0, 5, 0], &[], 256).data;
            assert_eq!(cut, data[..5], "a truncated page reports its whole length");
        }
    }

    #[test]
    fn reads_writes_and_errors_are_counted() {
        let rig = Rig::default();
        assert_eq!(rig.run(&[0x2a, 0, 0, 0, 0, 0, 0, 0, 3, 0], &[1; 1536], 0).status, Status::GOOD);
        for _ in 0..2 {
            assert_eq!(rig.run(&[0x28, 0, 0, 0, 0, 0, 0, 0, 5, 0], &[], 2560).status, Status::GOOD);
        }
        for (cdb, out) in [([0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0], 512), ([0x2f, 0, 0, 0, 0, 0, 0, 0, 1, 0], 0)] {
            rig.memory.fault.set(Some(Fault::Medium));
            assert_eq!(rig.run(&cdb, &[0; 512][..out], 0).status, Status::CHECK_CONDITION);
        }
        let page = |page: u8| sense(&rig, 0x40 | page, 0, 0).data;
        assert_eq!(page(2), [vec![0x82, 0, 0, 24], counter(5, 1536), counter(6, 1)].concat());
        assert_eq!(page(3), [vec![0x83, 0, 0, 24], counter(5, 5120), counter(6, 0)].concat());
        assert_eq!(page(5), [vec![0x85, 0, 0, 12], counter(6, 1)].concat());
        let access: Vec<u8> = [2, 1, 3, 10, 0, 0, 0, 0u64].iter().flat_map(|value| value.to_be_bytes()).collect();
        assert_eq!(page(0x19)[..8], [0x99, 0, 0, 92, 0, 1, 0x23, 64]);
        assert_eq!(page(0x19)[8..72], access);
        assert_eq!(page(0x19)[72..], [&[0, 2, 0x23, 8], &[0; 8][..], &[0, 3, 0x23, 8], &[0; 8]].concat());
        assert_eq!(sense(&rig, 0xc2, 0, 6).data, [vec![0x82, 0, 0, 12], counter(6, 0)].concat(), "default values");
        assert_eq!(sense(&rig, 0x42, 0, 6).data, [vec![0x82, 0, 0, 12], counter(6, 1)].concat());
    }

    #[test]
    fn temperature_and_exceptions_report_no_values() {
        let rig = Rig::default();
        let temperature = [0x8d, 0, 0, 12, 0, 0, 0x23, 2, 0, 0xff, 0, 1, 0x23, 2, 0, 0xff];
        assert_eq!(sense(&rig, 0x4d, 0, 0).data, temperature);
        assert_eq!(sense(&rig, 0x6f, 0, 0).data, [0xaf, 0, 0, 8, 0, 0, 0x23, 4, 0, 0, 0xff, 0]);
    }

    #[test]
    fn a_reset_of_counters_establishes_a_unit_attention_for_other_nexuses() {
        let rig = Rig::default();
        let other = rig.target.nexus(Rig::name("b"));
        other.each(|itl| while itl.take_attention().is_some() {});
        for (flags, page) in [(2, 0), (0, 0xc0)] {
            rig.run(&[0x28, 0, 0, 0, 0, 0, 0, 0, 5, 0], &[], 2560);
            assert_eq!(select(&rig, 0, 0x40).status, Status::GOOD);
            assert_eq!(sense(&rig, 0x43, 0, 0).data[4..16], counter(5, 2560));
            assert_eq!(select(&rig, flags, page).status, Status::GOOD);
            assert_eq!(sense(&rig, 0x43, 0, 0).data[4..16], counter(5, 0));
            let told = other.itl(0).expect("LUN exists").take_attention().map(|sense| sense.asc);
            assert_eq!(told, Some(Asc::LOG_PARAMETERS_CHANGED));
        }
    }

    #[test]
    fn unknown_pages_and_parameters_are_refused_with_a_field_pointer() {
        let rig = Rig::default();
        let place = |ended: Ended| (ended.sense[12], ended.sense[15], ended.sense[17]);
        assert_eq!(place(sense(&rig, 0x41, 0, 0)), (0x24, 0xcd, 2));
        assert_eq!(place(sense(&rig, 0x42, 1, 0)), (0x24, 0xc0, 3));
        assert_eq!(place(sense(&rig, 0x02, 0, 0)), (0x24, 0xcf, 2), "threshold values");
        assert_eq!(place(sense(&rig, 0x42, 0, 7)), (0x24, 0xc0, 5), "PARAMETER POINTER after the last parameter");
        let list = rig.run(&[0x4c, 0, 0, 0, 0, 0, 0, 0, 4, 0], &[0; 4], 0);
        assert_eq!(place(list), (0x26, 0x8d, 0), "a page without changeable values");
    }
}
