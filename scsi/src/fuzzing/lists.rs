//! Parameter lists: several commands of several nexuses on one device, each with a CDB that fits its list.
//!
//! An input is a row of steps: operation code, service action, flags, two bytes of how long the list is, fifteen bytes
//! for the rest of the CDB, the list.

use super::{Ended, Rig};
use crate::lun::Lun;
use crate::nexus::Nexus;
use crate::table::{Flow, Row, TABLE};
use lunar_core::mem::{Arena, Buf, PAGE};
use lunar_core::port::NexusName;
use lunar_core::wire::Writer;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// Who sends the command: two bits.
const WHO: u8 = 0x03;
/// The command goes to the second disk.
const SECOND: u8 = 0x04;
/// The CDB's own length is left as it is: it may say more or less than the list has.
const OWN_LENGTH: u8 = 0x08;
/// The token that was made last is put into the list.
const TOKEN: u8 = 0x10;
/// Bytes of a step before its list.
const HEAD: usize = 5 + CDB_REST;
/// Bytes of a CDB after its operation code that an input gives.
const CDB_REST: usize = 15;
/// More steps say nothing new.
const STEPS_MAX: usize = 24;
/// Blocks of each disk: what works on all of a medium shall not take long.
const BLOCKS: u64 = 256;
/// What memory that is not in use is full of; no input has it.
const POISON: u8 = 0xdb;
/// So many of these in a row are no accident.
const POISON_RUN: usize = 4;
/// Where WRITE USING TOKEN has its token (SBC-3 5.46), and where RECEIVE ROD TOKEN INFORMATION tells it (SPC-4 6.29).
const TOKEN_IN_LIST: usize = 16;
const TOKEN_IN_ANSWER: usize = 38;
const TOKEN_BYTES: usize = 512;

/// A nexus with a name that a TransportID can have.
const NODE: &str = "iqn.2026-01.io.lunar:c,i,0x000000000001";

/// One command.
struct Step {
    row: &'static Row,
    flags: u8,
    cdb: Vec<u8>,
    list: Vec<u8>,
}

/// Runs the commands of an input. None panics, keeps memory, answers more than its allocation length, or shows what
/// was in memory before.
///
/// # Panics
/// When one does.
pub fn lists(data: &[u8]) {
    run(data);
}

/// [`lists`]; how each command ended.
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

/// The row of a code; for those that nobody has, any.
fn row(opcode: u8, action: u8) -> &'static Row {
    let rows = || TABLE.iter().filter(|row| matches!(row.flow, Flow::List | Flow::Answer | Flow::None));
    let is = |row: &&Row| {
        row.policy.code.op.0 == opcode && row.policy.code.action.is_none_or(|its| its == u16::from(action))
    };
    let any = || rows().nth((usize::from(opcode) << 8 | usize::from(action)) % rows().count());
    rows().find(is).or_else(any).expect("the table has rows with lists")
}

/// A CDB of the row with these bytes where it evaluates any, for a list of so many bytes.
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

/// Where the list's length is: its high and its low byte, as the row itself reads them.
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

/// Two disks, of which the second keeps what outlives a process, four nexuses, and what they share.
struct Device {
    rig: Rig,
    nexuses: [Rc<Nexus>; 4],
    token: RefCell<Vec<u8>>,
}

impl Device {
    fn new() -> Self {
        let traits = lunar_core::io::Traits { size: BLOCKS * u64::from(super::BLOCK), ..Rig::traits() };
        let mut rig = Rig::new(traits.clone());
        rig.arena = Arena::new(4 << 20);
        poison(&rig.arena, |_| usize::MAX);
        let mut second = Rig::unit(1, traits.clone(), super::Memory::zeroes(traits.size));
        Rc::get_mut(&mut second).expect("nobody else has it").keep = Arc::new(lunar_core::keep::Lasting::default());
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
        // Blocks that were given back last are lent first.
        poison(&self.rig.arena, |bytes| if bytes <= 16 * PAGE { 4 } else { 0 });
        let used = self.rig.arena.used();
        let ended = self.rig.run_as(&self.nexuses[usize::from(flags & WHO)], &cdb, &list, u32::MAX);
        let name = row.policy.name;
        let kept = self.rig.arena.used() - used;
        // The zeroes that an arena lends stay with it once somebody has asked for them.
        assert!(kept == 0 || kept == lunar_core::mem::ZEROES, "{name} keeps {kept} bytes");
        if row.flow == Flow::Answer {
            let allocation = row.amount(&cdb).map_or(0, |length| length as usize);
            assert!(ended.data.len() <= allocation, "{name} answers {} bytes", ended.data.len());
        }
        for shown in [&ended.data, &ended.sense] {
            let stale = shown.windows(POISON_RUN).any(|bytes| bytes.iter().all(|byte| *byte == POISON));
            assert!(!stale, "{name} shows what was in memory before: {shown:02x?}");
        }
        if let Some(token) = ended.data.get(TOKEN_IN_ANSWER..TOKEN_IN_ANSWER + TOKEN_BYTES) {
            self.token.replace(token.to_vec());
        }
        ended
    }
}

/// Fills memory that is free, `count` blocks of each size.
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
