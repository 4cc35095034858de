//! The fuzz target of parameter lists: several commands of several nexuses on one device, each with a CDB that fits its
//! list.
//!
//! An input is a sequence of steps: operation code, service action, flags, length of the list in two bytes, fifteen
//! bytes for the rest of the CDB, and the list.

use super::rig::{BLOCK, Ended, Memory, Rig};
use crate::lun::Lun;
use crate::nexus::Nexus;
use crate::row::{Flow, Row};
use crate::sbc::table::DISK;
use lunar_core::mem::{Arena, Buf, PAGE};
use lunar_core::port::NexusName;
use lunar_core::wire::Writer;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// Number of the nexus that sends the command: two bits.
const WHO: u8 = 0x03;
/// The command is sent to the second disk.
const SECOND: u8 = 0x04;
/// The length in the CDB is left as it is: it may differ from the length of the list.
const OWN_LENGTH: u8 = 0x08;
/// The latest token is written into the list.
const TOKEN: u8 = 0x10;
/// Bytes of a step before its list.
const HEAD: usize = 5 + CDB_REST;
/// Bytes of a CDB in an input, after the operation code.
const CDB_REST: usize = 15;
/// Most steps of an input: more find nothing new.
const STEPS_MAX: usize = 24;
/// Blocks of each disk: few, so that commands on the whole medium are short.
const BLOCKS: u64 = 256;
/// The byte that free memory is filled with. No input contains it.
const POISON: u8 = 0xdb;
/// A run of this many poison bytes in an answer is a leak.
const POISON_RUN: usize = 4;
/// Offsets of the token in the list of WRITE USING TOKEN (SBC-3 5.46) and in the data of RECEIVE ROD TOKEN INFORMATION
/// (SPC-4 6.29).
const TOKEN_IN_LIST: usize = 16;
const TOKEN_IN_ANSWER: usize = 38;
const TOKEN_BYTES: usize = 512;

/// An initiator port name that a TransportID can express.
const NODE: &str = "iqn.2026-01.io.lunar:c,i,0x000000000001";

/// One command.
struct Step {
    row: &'static Row,
    flags: u8,
    cdb: Vec<u8>,
    list: Vec<u8>,
}

/// Executes the commands of an input. No command may panic, keep memory, return more than its allocation length, or
/// return bytes of free memory.
///
/// # Panics
/// When a command does so.
pub fn lists(data: &[u8]) {
    run(data);
}

/// As [`lists`]; returns the names and results of the commands.
pub(super) fn run(data: &[u8]) -> Vec<(&'static str, Ended)> {
    let clean: Vec<u8> = data.iter().map(|byte| if *byte == POISON { !POISON } else { *byte }).collect();
    let device = Device::new();
    let mut rest = &clean[..];
    let mut ended = Vec::new();
    while ended.len() < STEPS_MAX
        && let Some((head, after)) = rest.split_first_chunk()
    {
        let (step, after) = Step::of(head, after);
        rest = after;
        ended.push((step.row.policy.name, device.run(step)));
    }
    ended
}

impl Step {
    fn of<'a>(head: &[u8; HEAD], rest: &'a [u8]) -> (Self, &'a [u8]) {
        let [opcode, action, flags, high, low, cdb @ ..] = head;
        let (list, rest) = rest.split_at(usize::from(u16::from_be_bytes([*high, *low])).min(rest.len()));
        let row = row(*opcode, *action);
        let cdb = whole(row, cdb, (flags & OWN_LENGTH == 0).then_some(list.len()));
        (Self { row, flags: *flags, cdb, list: list.to_vec() }, rest)
    }
}

/// The row of a code; an arbitrary row for an unknown code.
fn row(opcode: u8, action: u8) -> &'static Row {
    let rows = || DISK.commands.rows().iter().filter(|row| matches!(row.flow, Flow::List | Flow::Answer | Flow::None));
    let is = |row: &&Row| {
        row.policy.code.op.0 == opcode && row.policy.code.action.is_none_or(|its| its == u16::from(action))
    };
    let any = || rows().nth((usize::from(opcode) << 8 | usize::from(action)) % rows().count());
    rows().find(is).or_else(any).expect("some rows have lists")
}

/// A CDB of the row with these bytes, masked by its usage mask, for a list of this length.
fn whole(row: &Row, bytes: &[u8], length: Option<usize>) -> Vec<u8> {
    let mut cdb = vec![0; row.length];
    row.usage(&mut Writer::new(&mut cdb));
    let given = bytes.iter().copied().chain(std::iter::repeat(0));
    cdb.iter_mut().skip(1).zip(given).for_each(|(mask, byte)| *mask &= byte);
    row.name(&mut cdb);
    if let (Flow::List, Some(length)) = (row.flow, length) {
        let places = length_bytes(row, &cdb);
        for (place, byte) in places.into_iter().zip((length as u16).to_be_bytes()) {
            place.into_iter().for_each(|at| cdb[at] = byte);
        }
    }
    cdb
}

/// Offsets of the high and the low byte of the list length in the CDB, as [`Row::amount`] reads them.
fn length_bytes(row: &Row, cdb: &[u8]) -> [Option<usize>; 2] {
    let mut probe = vec![0; cdb.len()];
    probe[..2].copy_from_slice(&cdb[..2]);
    [256, 1].map(|weight| {
        (2..probe.len()).find(|&at| {
            probe[at] = 1;
            let amount = row.amount(&probe).unwrap_or(0);
            probe[at] = 0;
            amount == weight
        })
    })
}

/// Two disks, of which the second has a durable metadata store, and four nexuses.
struct Device {
    rig: Rig,
    nexuses: [Rc<Nexus>; 4],
    token: RefCell<Vec<u8>>,
}

impl Device {
    fn new() -> Self {
        let traits = lunar_core::io::Traits { size: BLOCKS * u64::from(BLOCK), ..Rig::traits() };
        let mut rig = Rig::new(traits.clone());
        rig.arena = Arena::new(4 << 20);
        poison(&rig.arena, |_| usize::MAX);
        let mut second = Rig::unit(1, traits.clone(), Memory::zeroes(traits.size));
        Rc::get_mut(&mut second).expect("the unit is not shared yet").metadata =
            Arc::new(lunar_core::metadata::DurableMemory::default());
        rig.target.add_unit(1, second);
        let nexus =
            |initiator: &str, port| rig.target.nexus(NexusName { initiator: initiator.into(), target_port: port });
        let nexuses = [rig.nexus.clone(), nexus("b", 1), nexus("b", 2), nexus(NODE, 2)];
        nexuses.iter().for_each(|nexus| nexus.each(|itl| while itl.take_attention().is_some() {}));
        Self { rig, nexuses, token: RefCell::default() }
    }

    fn run(&self, step: Step) -> Ended {
        let Step { row, flags, cdb, mut list } = step;
        if flags & TOKEN != 0 && list.len() >= TOKEN_IN_LIST + TOKEN_BYTES {
            let token = self.token.borrow();
            list[TOKEN_IN_LIST..TOKEN_IN_LIST + token.len()].copy_from_slice(&token);
        }
        self.rig.lun.set(Lun::from_number(u16::from(flags & SECOND != 0)));
        self.rig.target.scratch.borrow_mut().fill(POISON);
        // The arena lends the most recently returned blocks first.
        poison(&self.rig.arena, |bytes| if bytes <= 16 * PAGE { 4 } else { 0 });
        let used = self.rig.arena.used();
        let ended = self.rig.run_as(&self.nexuses[usize::from(flags & WHO)], &cdb, &list, u32::MAX);
        let name = row.policy.name;
        let kept = self.rig.arena.used() - used;
        // An arena keeps its block of zeroes after the first use.
        assert!(kept == 0 || kept == lunar_core::mem::ZEROES, "{name} keeps {kept} bytes");
        if row.flow == Flow::Answer {
            let allocation = row.amount(&cdb).map_or(0, |length| length as usize);
            assert!(ended.data.len() <= allocation, "{name} answers {} bytes", ended.data.len());
        }
        for shown in [&ended.data, &ended.sense] {
            let stale = shown.windows(POISON_RUN).any(|bytes| bytes.iter().all(|byte| *byte == POISON));
            assert!(!stale, "{name} returns bytes of free memory: {shown:02x?}");
        }
        if let Some(token) = ended.data.get(TOKEN_IN_ANSWER..TOKEN_IN_ANSWER + TOKEN_BYTES) {
            self.token.replace(token.to_vec());
        }
        ended
    }
}

/// Poisons free memory: `count` blocks of each size.
fn poison(arena: &Arena, count: impl Fn(usize) -> usize) {
    let mut held: Vec<Buf> = Vec::new();
    let sizes = std::iter::successors(Some(lunar_core::mem::BLOCK_MAX), |size| (*size > PAGE).then_some(size / 2));
    for size in sizes {
        held.extend((0..count(size)).map_while(|_| arena.take_reserved(size)));
    }
    held.iter_mut().for_each(|block| block.fill(POISON));
}

#[cfg(test)]
#[path = "lists_tests.rs"]
mod tests;
