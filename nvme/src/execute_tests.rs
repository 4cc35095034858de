use super::*;
use crate::fuzzing::{BLOCK, BLOCKS, Ended, NOW, Rig, at_once, caller, connect_data, connect_sqe, entry};
use crate::namespace::{AnaState, NAMESPACES_MAX};
use lunar_core::io::{Done, Io, Outcome, Store, Traits};
use lunar_core::mem::Arena;
use lunar_core::metadata::DurableMemory;
use lunar_core::protection::{INFO_BYTES, Info, guard};
use lunar_core::time::Instant;
use lunar_core::unit::{Unit, UnitId};
use lunar_unit::rewrite::request::{Rewrite, RewriteChange, RewriteKind};
use lunar_unit::{AccessState, UnitChange};
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

const WRITE: u8 = 0x01;
const READ: u8 = 0x02;
const UNCORRECTABLE: u8 = 0x04;
const COMPARE: u8 = 0x05;

/// A command for blocks of namespace 1.
fn blocks(opcode: u8, first: u32, count: u32) -> Sqe {
    entry(opcode, 1, &[first, 0, count - 1])
}

fn io(rig: &Rig, sqe: &Sqe, out: &[u8]) -> Ended {
    rig.run(&rig.io, sqe, out)
}

/// Has the rig's host say that it uses copies of formats 2 and 3.
fn copies_across(rig: &Rig) {
    let mut behavior = [0; 512];
    behavior[4] = 0x0c;
    assert_eq!(rig.run(&rig.admin, &entry(0x09, 0, &[0x16]), &behavior).status, Status::SUCCESS);
}

fn admin(rig: &Rig, opcode: u8, namespace: u32, dwords: &[u32]) -> Ended {
    rig.run(&rig.admin, &entry(opcode, namespace, dwords), &[])
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*bytes[at..].first_chunk().expect("four bytes"))
}

#[test]
fn written_data_is_read() {
    let rig = Rig::default();
    let data: Vec<u8> = (0..4 * BLOCK).map(|at| at as u8 ^ (at >> 8) as u8).collect();
    assert_eq!(io(&rig, &blocks(WRITE, 3, 4), &data).status, Status::SUCCESS);
    assert_eq!(io(&rig, &blocks(READ, 3, 4), &[]).data, data);
    assert_eq!(io(&rig, &blocks(COMPARE, 3, 4), &data).status, Status::SUCCESS);
    assert_eq!(io(&rig, &blocks(COMPARE, 4, 4), &data).status, Status::COMPARE_FAILURE);
    assert_eq!(io(&rig, &blocks(0x08, 4, 2), &[]).status, Status::SUCCESS);
    let after = io(&rig, &blocks(READ, 3, 4), &[]).data;
    assert_eq!((&after[..512], &after[512..1536], &after[1536..]), (&data[..512], &[0; 1024][..], &data[1536..]));
    assert_eq!(io(&rig, &entry(READ, 2, &[3, 0, 3]), &[]).data, [0; 2048], "the other namespace");
    for sqe in [blocks(0x0c, 0, 2048), entry(0x00, 1, &[]), entry(0x00, 0xffff_ffff, &[])] {
        assert_eq!(io(&rig, &sqe, &[]).status, Status::SUCCESS, "verify and flush");
    }
}

#[test]
fn invalid_fields_are_refused() {
    let rig = Rig::default();
    let last = BLOCKS as u32;
    for (sqe, out, status) in [
        (blocks(READ, last, 1), 0, Status::LBA_RANGE),
        (blocks(READ, last - 1, 2), 0, Status::LBA_RANGE),
        (entry(READ, 1, &[0xffff_ffff, 0xffff_ffff, 0]), 0, Status::LBA_RANGE),
        (entry(READ, 3, &[0, 0, 0]), 0, Status::INVALID_NAMESPACE),
        (entry(READ, 0, &[0, 0, 0]), 0, Status::INVALID_NAMESPACE),
        (entry(READ, 0xffff_ffff, &[0, 0, 0]), 0, Status::INVALID_NAMESPACE),
        (entry(0x7e, 1, &[]), 0, Status::INVALID_OPCODE),
        (blocks(UNCORRECTABLE, last - 1, 2), 0, Status::LBA_RANGE),
        (blocks(WRITE, 0, 2), 512, Status::SGL_LENGTH),
        (entry(READ, 1, &[0, 0, 1 << 29]), 0, Status::INVALID_FIELD),
        (entry(0x7f, 1, &[0, 0]), 0, Status::SEQUENCE_ERROR),
    ] {
        assert_eq!(io(&rig, &sqe, &vec![0; out]).status, status, "{sqe:?}");
    }
    let mut short = blocks(READ, 0, 2);
    short.sgl.length = 1023.into();
    assert_eq!(io(&rig, &short, &[]).status, Status::SGL_LENGTH);
    // Queues in memory are not there, over whatever transport messages come.
    assert_eq!(admin(&rig, 0x01, 0, &[]).status, Status::INVALID_OPCODE);
}

#[test]
fn faults_of_the_store_have_their_status() {
    let rig = Rig::default();
    for (sqe, fault, status) in [
        (blocks(READ, 0, 1), Fault::Medium, Status::READ_ERROR),
        (blocks(WRITE, 0, 1), Fault::Medium, Status::WRITE_FAULT),
        (blocks(WRITE, 0, 1), Fault::NoSpace, Status::CAPACITY),
        (blocks(READ, 0, 1), Fault::Gone, Status::INACCESSIBLE),
    ] {
        rig.memories[0].fault.set(Some(fault));
        assert_eq!(io(&rig, &sqe, &[0; 512]).status, status);
    }
}

#[test]
fn uncorrectable_blocks_are_readable_again_after_a_write() {
    let rig = Rig::default();
    copies_across(&rig);
    let of = |opcode, namespace: u32, first, count: u32| entry(opcode, namespace, &[first, 0, count - 1]);
    let status = |sqe: Sqe, out: &[u8]| io(&rig, &sqe, out).status;
    // The second one's blocks are protected.
    for id in [1, 2] {
        assert_eq!(status(of(WRITE, id, 0, 8), &[7; 4096]), Status::SUCCESS);
        assert_eq!(status(of(UNCORRECTABLE, id, 3, 2), &[]), Status::SUCCESS);
        for (opcode, out) in [(READ, 0), (COMPARE, 4096), (0x0c, 0)] {
            assert_eq!(status(of(opcode, id, 0, 8), &vec![7; out]), Status::READ_ERROR, "{opcode:#x}");
            assert_eq!(status(of(opcode, id, 0, 3), &vec![7; out]), Status::SUCCESS, "{opcode:#x}");
        }
        let mut source = [0; 32];
        (source[0], source[8], source[16]) = (id as u8, 2, 1);
        for to in [1, 2] {
            assert_eq!(status(entry(0x19, to, &[100, 0, 2 << 8]), &source), Status::READ_ERROR, "{id} to {to}");
        }
        let (mut first, mut second) = (of(COMPARE, id, 3, 1), of(WRITE, id, 3, 1));
        (first.flags, second.flags) = (1, 2);
        let fused = rig.run_fused([&first, &second], [&[7; 512], &[8; 512]]).map(|half| half.status);
        assert_eq!(fused, [Status::READ_ERROR, Status::FUSED_FAILED]);
        // One is written, one is copied to, and the neighbours never were marked.
        assert_eq!(status(of(WRITE, id, 3, 1), &[9; 512]), Status::SUCCESS);
        (source[8], source[16]) = (0, 0);
        assert_eq!(status(entry(0x19, id, &[4, 0, 2 << 8]), &source), Status::SUCCESS);
        assert_eq!(io(&rig, &of(READ, id, 2, 3), &[]).data, [[7; 512], [9; 512], [7; 512]].concat());
        // Zeroes, deallocation, and a format.
        let mut range = [0; 16];
        (range[4], range[8]) = (2, 3);
        for (sqe, out) in [(of(0x08, id, 3, 2), &[][..]), (entry(0x09, id, &[0, 4]), &range)] {
            assert_eq!(status(of(UNCORRECTABLE, id, 3, 2), &[]), Status::SUCCESS);
            assert_eq!(status(sqe, out), Status::SUCCESS);
            assert_eq!(io(&rig, &of(READ, id, 3, 2), &[]).data, [0; 1024], "{sqe:?}");
        }
        assert_eq!(status(of(UNCORRECTABLE, id, 0, BLOCKS as u32), &[]), Status::SUCCESS);
        assert_eq!(status(of(READ, id, 5, 1), &[]), Status::READ_ERROR);
        assert_eq!(admin(&rig, 0x80, id, &[0]).status, Status::SUCCESS);
        assert_eq!(status(of(0x0c, id, 0, BLOCKS as u32), &[]), Status::SUCCESS);
    }
    let health = admin(&rig, 0x02, 0xffff_ffff, &[0x02 | 127 << 16]).data;
    assert_eq!(health[160..176], [0; 16], "no medium is worn");
    assert_eq!(status(entry(UNCORRECTABLE, 9, &[0, 0, 0]), &[]), Status::INVALID_NAMESPACE);
}

#[test]
fn ranges_are_deallocated_and_copied() {
    let rig = Rig::default();
    copies_across(&rig);
    assert_eq!(io(&rig, &blocks(WRITE, 0, 8), &[7; 4096]).status, Status::SUCCESS);
    let mut range = [0; 16];
    (range[4], range[8]) = (2, 1);
    assert_eq!(io(&rig, &entry(0x09, 1, &[0, 4]), &range).status, Status::SUCCESS);
    let read = io(&rig, &blocks(READ, 0, 4), &[]).data;
    assert_eq!((read[511], read[512], read[1535], read[1536]), (7, 0, 0, 7));
    range[9] = 0xff;
    assert_eq!(io(&rig, &entry(0x09, 1, &[0, 4]), &range).status, Status::LBA_RANGE);
    // Copy: two blocks from block 3 to block 100, in format 0; then from namespace 1 to namespace 2, in format 2.
    let mut source = [0; 32];
    (source[8], source[16]) = (3, 1);
    assert_eq!(io(&rig, &entry(0x19, 1, &[100, 0, 0]), &source).status, Status::SUCCESS);
    assert_eq!(io(&rig, &blocks(READ, 100, 2), &[]).data, [7; 1024]);
    source[0] = 1;
    assert_eq!(io(&rig, &entry(0x19, 2, &[50, 0, 2 << 8]), &source).status, Status::SUCCESS);
    assert_eq!(io(&rig, &entry(READ, 2, &[50, 0, 1]), &[]).data, [7; 1024]);
    source[0] = 9;
    assert_eq!(io(&rig, &entry(0x19, 2, &[50, 0, 2 << 8]), &source).status, Status::INVALID_NAMESPACE);
    assert_eq!(io(&rig, &entry(0x19, 2, &[50, 0, 5 << 8]), &source).status, Status::INVALID_FIELD);
}

#[test]
fn compare_and_write_are_one() {
    let rig = Rig::default();
    let fused = |compared: u8, written: u8| {
        let (mut first, mut second) = (blocks(COMPARE, 5, 1), blocks(WRITE, 5, 1));
        (first.flags, second.flags) = (1, 2);
        let ended = rig.run_fused([&first, &second], [&[compared; 512], &[written; 512]]);
        ended.map(|half| half.status)
    };
    assert_eq!(fused(0, 7), [Status::SUCCESS; 2]);
    assert_eq!(fused(0, 8), [Status::COMPARE_FAILURE, Status::FUSED_FAILED]);
    assert_eq!(io(&rig, &blocks(READ, 5, 1), &[]).data, [7; 512]);
    let mut alone = blocks(COMPARE, 5, 1);
    alone.flags = 1;
    assert_eq!(io(&rig, &alone, &[7; 512]).status, Status::FUSED_MISSING);
    let (first, second) = (blocks(COMPARE, 5, 1), blocks(WRITE, 6, 1));
    let ended = rig.run_fused([&first, &second], [&[7; 512], &[7; 512]]).map(|half| half.status);
    assert_eq!(ended, [Status::FUSED_FAILED, Status::INVALID_FIELD], "other blocks");
    let swapped = rig.run_fused([&second, &first], [&[7; 512], &[7; 512]]).map(|half| half.status);
    assert_eq!(swapped, [Status::INVALID_FIELD, Status::FUSED_FAILED]);
}

/// The data of half of a fused operation: one block of zeroes, or a failure of the transfer.
struct HalfData {
    arena: Arena,
    is_there: bool,
}

impl Transfer for HalfData {
    async fn room(&self) -> Result<(), Fault> {
        Ok(())
    }

    async fn pull(&self, _offset: usize, len: usize) -> Result<Sg, Fault> {
        let memory = self.arena.take_sg(len).filter(|_| self.is_there);
        Ok(memory.ok_or(Fault::Protocol)?.share())
    }

    async fn pull_more(&self, offset: usize, len: usize) -> Result<Sg, Fault> {
        self.pull(offset, len).await
    }

    fn push(&self, _offset: usize, _data: Sg) -> Result<(), Fault> {
        Err(Fault::Protocol)
    }

    fn aborted(&self) -> bool {
        false
    }
}

#[test]
fn the_half_of_a_fused_operation_whose_data_does_not_arrive_fails_and_the_other_is_aborted() {
    let rig = Rig::default();
    let arena = Arena::new(1 << 20);
    let fused = |is_there: [bool; 2]| {
        let (mut first, mut second) = (blocks(COMPARE, 5, 1), blocks(WRITE, 5, 1));
        (first.flags, second.flags) = (1, 2);
        let commands = [first, second].map(|sqe| Command { sqe, sent: 512, room: 0 });
        let tasks = [1, 2].map(|cid| rig.io.tasks.enter((cid, 1)));
        let halves = is_there.map(|is_there| HalfData { arena: arena.clone(), is_there });
        let mut slot = SlotContext::new(arena.clone());
        let mut replies = [Reply::default(), Reply::default()];
        at_once(rig.subsystem.execute_fused(
            &rig.io,
            tasks.each_ref(),
            commands.each_ref(),
            halves.each_ref(),
            &mut slot,
            &mut replies,
        ));
        replies.map(|reply| reply.status.code())
    };
    assert_eq!(fused([true, true]), [Status::SUCCESS; 2]);
    assert_eq!(fused([false, true]), [Status::TRANSPORT_ERROR, Status::FUSED_FAILED]);
    assert_eq!(fused([true, false]), [Status::FUSED_FAILED, Status::TRANSPORT_ERROR]);
}

#[test]
fn fuzzing_reaches_compare_and_write() {
    let rig = Rig::default();
    let mut sqe = entry(COMPARE, 0, &[3, 0, 1]);
    sqe.cdw10[5] = u32::from_le_bytes([0, 1, 0, 0]).into();
    crate::fuzzing::fuse(&rig, &sqe, &[]);
    assert_eq!(rig.memories[0].with(|bytes| bytes[3 * 512..5 * 512].to_vec()), [1; 1024]);
}

#[test]
fn identify_data_of_a_controller_and_a_namespace() {
    let rig = Rig::default();
    let identify = |what: u32, namespace| admin(&rig, 0x06, namespace, &[what]);
    let page = identify(0x01, 0).data;
    assert_eq!((&page[4..14], &page[24..36], &page[64..67]), (&b"0123456789"[..], &b"LUNAR VOLUME"[..], &b"0.1"[..]));
    assert_eq!((page[77], u16_at(&page, 78), u32_at(&page, 80), page[111]), (8, 1, 0x1_0400, 1));
    assert_eq!((u16_at(&page, 320), page[512], page[513], u32_at(&page, 516)), (10, 0x66, 0x44, 32));
    assert_eq!((u16_at(&page, 520), u16_at(&page, 522), page[525]), (0x1ff, 1, 7));
    assert_eq!((&page[768..793], u32_at(&page, 1792), u32_at(&page, 1796)), (&b"nqn.2026-01.io.lunar:rig\0"[..], 4, 1));
    let page = identify(0x00, 1).data;
    assert_eq!((u32_at(&page, 0), page[24], page[30], page[31], page[33]), (2048, 0x13, 1, 0xfe, 9));
    assert_eq!((page[130], u32_at(&page, 92), &page[104..108]), (9, 1, &[0xa0, 1, 2, 3][..]));
    assert_eq!(identify(0x00, 5).data, [0; 4096], "it might be there");
    assert_eq!(identify(0x00, 33).status, Status::INVALID_NAMESPACE);
    assert_eq!(identify(0x02, 0).data[..12], [1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(identify(0x02, 1).data[..8], [2, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(identify(0x02, 0xffff_ffff).status, Status::INVALID_NAMESPACE);
    let page = identify(0x03, 2).data;
    // Locally administered, and what no other namespace has.
    let eui = [2, 1, 2, 3, 4, 5, 6, 1];
    assert_eq!((&page[..4], &page[4..12]), (&[1, 8, 0, 0][..], &eui[..]));
    assert_eq!(
        (&page[12..17], &page[32..34], page[51], &page[52..58]),
        (&[2, 16, 0, 0, 0xa0][..], &[3, 16][..], 1, &[4, 1, 0, 0, 0, 0][..])
    );
    assert_eq!((&identify(0x00, 2).data[104..120], &identify(0x00, 2).data[120..128]), (&page[16..32], &eui[..]));
    assert_eq!(identify(0x13, 0).data[..4], [1, 0, 1, 0]);
    assert_eq!(identify(0x1c, 0).data[0], 1);
    assert_eq!(identify(0x14, 1).status, Status::INVALID_FIELD);
}

#[test]
fn identify_data_of_the_nvm_command_set() {
    let rig = Rig::default();
    let identify = |what: u32, namespace| admin(&rig, 0x06, namespace, &[what]);
    let with = |page: &[(usize, &[u8])]| {
        let mut bytes = vec![0; 4096];
        page.iter().for_each(|(at, field)| bytes[*at..at + field.len()].copy_from_slice(field));
        bytes
    };
    let nobody = Status::INVALID_NAMESPACE;
    // No protection information, no other format.
    assert_eq!((identify(0x05, 1).data, identify(0x05, 9).status), (vec![0; 4096], nobody));
    // Write Uncorrectable is limited, to 8 MiB; nothing else is.
    assert_eq!(identify(0x06, 0).data, with(&[(2, &[11])]));
    for what in [0x05, 0x06, 0x07] {
        assert_eq!(admin(&rig, 0x06, 1, &[what, 2 << 24]).status, Status::INVALID_FIELD, "no zones");
    }
    for what in [0x02, 0x07, 0x10] {
        assert_eq!(identify(what, 0).data, with(&[(0, &[1]), (4, &[2])]), "{what:02x}");
        assert_eq!(identify(what, 1).data, with(&[(0, &[2])]), "{what:02x}");
        assert_eq!(identify(what, 0xffff_fffe).status, nobody, "{what:02x}");
    }
    // Thin, shared, all reservations, nothing to be formatted, its group, and ready.
    let fields: [(usize, &[u8]); 3] = [(0, &[1, 1, 0xfe, 0x80]), (4, &[2]), (14, &[1])];
    assert_eq!((identify(0x08, 2).data, identify(0x08, 9).status), (with(&fields), nobody));
    for id in [1, 2, 9] {
        assert_eq!(identify(0x11, id), identify(0x00, id));
    }
    assert_eq!((identify(0x11, 9).data, identify(0x11, 33).status), (vec![0; 4096], nobody));
    let [other, _] = rig.host(8);
    let id = other.controller.id.to_le_bytes();
    let both: [(usize, &[u8]); 3] = [(0, &[2]), (2, &[1]), (4, &id)];
    for what in [0x12, 0x13] {
        assert_eq!(identify(what, 1).data, with(&both), "{what:02x}");
        assert_eq!(identify(what | 2 << 16, 1).data, with(&[(0, &[1]), (2, &id)]), "from the second one on");
    }
    assert_eq!(identify(0x12, 9).status, nobody);
}

#[test]
fn atomicity_fields_of_identify() {
    let rig = Rig::default();
    let identify = |what: u32, namespace| admin(&rig, 0x06, namespace, &[what]).data;
    // A Write: one block, for others may read while it is written. Compare and Write: as much as is moved at once.
    let page = identify(0x00, 1);
    assert_eq!((page[24] & 2, u16_at(&page, 34), u16_at(&page, 36)), (2, 0, 0));
    assert_eq!(u16_at(&page, 38), (PIECE_BYTES / 512 - 1) as u16);
    // No boundaries.
    assert_eq!(page[40..46], [0; 6]);
    // The controller: what namespaces with blocks of any size have.
    let page = identify(0x01, 0);
    assert_eq!((u16_at(&page, 526), u16_at(&page, 528)), (0, 0));
    assert_eq!(u16_at(&page, 532), (PIECE_BYTES / 4096 - 1) as u16);
}

#[test]
fn copies_are_of_formats_that_the_host_has_enabled() {
    let rig = Rig::default();
    assert_eq!(
        io(&rig, &blocks(WRITE, 0, 4), &[[7; 512], [8; 512], [9; 512], [6; 512]].concat()).status,
        Status::SUCCESS
    );
    assert_eq!(u16_at(&admin(&rig, 0x06, 0, &[0x01]).data, 534), 0x0f);
    let enable = |formats: u16| {
        let mut behavior = vec![0; 512];
        behavior[4..6].copy_from_slice(&formats.to_le_bytes());
        assert_eq!(rig.run(&rig.admin, &entry(0x09, 0, &[0x16]), &behavior).status, Status::SUCCESS);
        assert_eq!(admin(&rig, 0x0a, 0, &[0x16]).data, behavior);
    };
    // Two ranges of format `format`: blocks 2 and 3, and block 0.
    let copy = |format: u32, to: u32| {
        let list: Vec<u8> = [(2_u8, 1_u8), (0, 0)]
            .into_iter()
            .flat_map(|(first, blocks)| {
                let mut range = vec![0; if format.is_multiple_of(2) { 32 } else { 40 }];
                (range[0], range[8], range[16]) = (if format >= 2 { 1 } else { 0 }, first, blocks);
                range
            })
            .collect();
        io(&rig, &entry(0x19, to, &[100, 0, 1 | format << 8]), &list).status
    };
    let copied = |id: u32| io(&rig, &entry(READ, id, &[100, 0, 2]), &[]).data;
    let zero = |id: u32| assert_eq!(io(&rig, &entry(0x08, id, &[100, 0, 2]), &[]).status, Status::SUCCESS);
    let wanted = [[9; 512], [6; 512], [7; 512]].concat();
    for format in [0, 1] {
        assert_eq!((copy(format, 1), copied(1)), (Status::SUCCESS, wanted.clone()), "format {format}");
        zero(1);
    }
    for (formats, taken) in [(0, [false, false]), (4, [true, false]), (8, [false, true]), (12, [true, true])] {
        enable(formats);
        for (format, taken) in [2, 3].into_iter().zip(taken) {
            let status = if taken { Status::SUCCESS } else { Status::INVALID_FIELD };
            assert_eq!(copy(format, 2), status, "format {format} of {formats:#x}");
            assert_eq!(copied(2) == wanted, taken, "format {format} of {formats:#x}");
            zero(2);
        }
    }
    assert_eq!(copy(4, 1), Status::INVALID_FIELD, "there is no such one");
    for value in [0x46_0000, 0x46_0001] {
        rig.subsystem.set_property(&rig.admin.controller, 0x14, false, value).expect("a reset");
    }
    assert!(!rig.admin.controller.takes_copies_of(2), "nothing is kept");
}

/// A store that has what it was given on the medium at once.
struct Durable(Traits);

impl Store for Durable {
    fn traits(&self) -> &Traits {
        &self.0
    }

    fn submit(&self, io: Io, done: Done) {
        done.complete(Outcome::with(Ok(0), io.data));
    }
}

#[test]
fn identify_reports_volatile_write_caches() {
    const NO_CACHE: u8 = 0x20;
    let rig = Rig::default();
    let told = || {
        let of = |namespace| admin(&rig, 0x06, namespace, &[0x08]).data[0] & NO_CACHE;
        (of(1), of(2), admin(&rig, 0x06, 0, &[0x01]).data[525])
    };
    assert_eq!(told(), (0, 0, 7));
    for id in [0, 1] {
        let before = rig.subsystem.unit(UnitId(id)).expect("it is there").unit.clone();
        let traits = Traits { write_cache: false, ..before.traits().clone() };
        rig.subsystem.add_unit(Rc::new(Unit {
            id: before.id,
            identity: before.identity.clone(),
            geometry: before.geometry,
            read_only: false,
            store: Box::new(Durable(traits)),
            protection: None,
            ranges: before.ranges.clone(),
            medium: before.medium.clone(),
            tally: before.tally.clone(),
            exclusive: before.exclusive.clone(),
            metadata: before.metadata.clone(),
        }));
        let others = if id == 0 { 0 } else { NO_CACHE };
        assert_eq!(told(), (NO_CACHE, others, 7), "one with a cache may come at any time");
    }
}

#[test]
fn features_are_set_and_asked_for() {
    let rig = Rig::default();
    let get = |id: u32, select: u32| admin(&rig, 0x0a, 0, &[id | select << 8]);
    let set = |id: u32, value: u32| admin(&rig, 0x09, 0, &[id, value]).status;
    assert_eq!((set(0x04, 400), get(0x04, 0).result, get(0x04, 1).result), (Status::SUCCESS, 400, 0xffff));
    assert_eq!(get(0x04, 3).result, 4);
    assert_eq!((set(0x06, 0), get(0x06, 0).result, rig.admin.controller.caches_writes()), (Status::SUCCESS, 0, false));
    assert_eq!(set(0x07, 0x3_0003), Status::SEQUENCE_ERROR, "there is an I/O queue");
    assert_eq!((set(0x0f, 5001), get(0x0f, 0).result), (Status::SUCCESS, 6000));
    assert_eq!(set(0x81, 0), Status::NOT_CHANGEABLE);
    assert_eq!((set(0x7e, 0), get(0x7e, 0).status), (Status::INVALID_FIELD, Status::INVALID_FIELD));
    assert_eq!(admin(&rig, 0x09, 0, &[0x04 | 1 << 31, 1]).status, Status::NOT_SAVEABLE);
    assert_eq!(admin(&rig, 0x0a, 0, &[0x81, 1]).data, [7; 16]);
    assert_eq!(get(0x0e, 0).data, [&NOW.to_le_bytes()[..6], &[0, 0]].concat());
    let stamp = [0x10, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(rig.run(&rig.admin, &entry(0x09, 0, &[0x0e]), &stamp).status, Status::SUCCESS);
    assert_eq!(get(0x0e, 0).data, [0x10, 0, 0, 0, 0, 0, 2, 0]);
    assert_eq!(admin(&rig, 0x09, 1, &[0x82, 6]).status, Status::SUCCESS);
    let masks = [1, 2].map(|namespace| admin(&rig, 0x0a, namespace, &[0x82]).result);
    assert_eq!(masks, [6, 0]);
    rig.admin.controller.set_property(0x14, false, 0x46_0000).expect("a reset");
    assert_eq!(get(0x04, 0).status, Status::SEQUENCE_ERROR);
    rig.admin.controller.set_property(0x14, false, 0x46_0001).expect("enabled");
    assert_eq!((get(0x04, 0).result, get(0x06, 0).result), (0xffff, 1), "nothing is kept");
}

/// NVMe Base 2.0 6.4: Invalid Queue Type.
#[test]
fn disconnect_is_for_io_queues() {
    let rig = Rig::default();
    assert_eq!(rig.run(&rig.admin, &entry(0x7f, 0x08, &[0]), &[]).status, Status::QUEUE_TYPE);
    assert_eq!(Status::QUEUE_TYPE.field(), 0x830a, "1/85h, Do Not Retry");
    assert_eq!(rig.run(&rig.io, &entry(0x7f, 0x08, &[0]), &[]).status, Status::SUCCESS);
}

/// NVMe Base 2.0 5.27.1.5: a controller in memory has as many queues of each type as its host asks for.
#[test]
fn number_of_queues_grants_submission_and_completion_queues_apart() {
    let rig = Rig::default();
    let admin = rig.subsystem.open_controller(&crate::fuzzing::tenant(), Instant(0)).expect("room");
    admin.controller.set_property(0x14, false, 0x46_0001).expect("enabled");
    let set = |value: u32| rig.run(&admin, &entry(0x09, 0, &[0x07, value]), &[]);
    for (asked, granted) in [(0x0003_0007, 0x0003_0007), (0x0007_0003, 0x0007_0003), (0x0000_fffe, 127)] {
        assert_eq!((set(asked).status, set(asked).result), (Status::SUCCESS, granted), "{asked:#x}");
        assert_eq!(rig.run(&admin, &entry(0x0a, 0, &[0x07]), &[]).result, granted);
    }
    assert_eq!(set(0xffff_0001).status, Status::INVALID_FIELD);
    assert_eq!(set(0x0001_0003).status, Status::SUCCESS);
    let opened: Vec<_> = (1..=5).map(|id| rig.subsystem.open_queue(&admin.controller, id, 2)).collect();
    assert!(opened[..4].iter().all(Result::is_ok) && opened[4].is_err(), "four submission queues");
}

/// NVMe Base 2.0 5.27.1.4: a host that disables the cache sends no Flush, and trusts that nothing is volatile.
#[test]
fn disabling_the_volatile_write_cache_flushes_first_and_fails_with_the_flush() {
    let rig = Rig::default();
    let get = || admin(&rig, 0x0a, 0, &[0x06]).result;
    let set = |value: u32| admin(&rig, 0x09, 0, &[0x06, value]).status;
    for memory in &rig.memories {
        memory.fault.set(Some(Fault::Medium));
        assert_eq!((set(0), get()), (Status::WRITE_FAULT, 1), "every namespace is flushed, and the cache stays");
        assert!(memory.fault.take().is_none());
    }
    assert_eq!((set(0), get()), (Status::SUCCESS, 0));
    rig.memories[1].fault.set(Some(Fault::NoSpace));
    assert_eq!((set(0), get()), (Status::CAPACITY, 0), "it was disabled before");
    rig.memories[1].fault.set(Some(Fault::Gone));
    assert_eq!((set(1), get()), (Status::SUCCESS, 1), "enabling flushes nothing");
}

/// A write that is durable by the setting of the cache when it ends, not when it begins.
#[test]
fn both_halves_of_a_fused_write_use_the_cache_setting_at_their_end() {
    let rig = Rig::default();
    rig.admin.controller.set_write_cache(true);
    let (mut first, mut second) = (blocks(COMPARE, 3, 1), blocks(WRITE, 3, 1));
    (first.flags, second.flags) = (1, 2);
    let controller = rig.admin.controller.clone();
    // The first request of the store is the read that compares.
    rig.memories[0].on_request(move || controller.set_write_cache(false));
    let fused = rig.run_fused([&first, &second], [&[0; 512], &[8; 512]]).map(|half| half.status);
    assert_eq!((fused, rig.memories[0].flushes.get()), ([Status::SUCCESS; 2], 1));
}

#[test]
fn feature_values_are_read_as_they_were_set() {
    let rig = Rig::default();
    let get = |id: u32, select: u32| admin(&rig, 0x0a, 0, &[id | select << 8]);
    let set = |id: u32, value: u32| admin(&rig, 0x09, 0, &[id, value]).status;
    for (id, value, default) in [(0x01, 0x0102_0303, 7), (0x05, 0x1_0007, 0), (0x0a, 1, 0)] {
        assert_eq!((set(id, value), get(id, 0).result), (Status::SUCCESS, value.into()), "{id:#x}");
        assert_eq!((get(id, 1).result, get(id, 2).result, get(id, 3).result), (default, default, 4), "{id:#x}");
    }
    assert_eq!((set(0x02, 0), get(0x02, 0).result, set(0x02, 1)), (Status::SUCCESS, 0, Status::INVALID_FIELD));
    let behavior: Vec<u8> = (0..512).map(|at| at as u8).collect();
    assert_eq!(rig.run(&rig.admin, &entry(0x09, 0, &[0x16]), &behavior).status, Status::SUCCESS);
    assert_eq!((get(0x16, 0).data, get(0x16, 1).data), (behavior, vec![0; 512]));
    // Over fabrics there are no interrupts.
    for id in [0x08, 0x09] {
        assert_eq!((set(id, 0), get(id, 0).status), (Status::INVALID_FIELD, Status::INVALID_FIELD));
    }
}

#[test]
fn a_controller_in_memory_says_how_its_interrupts_wait() {
    let rig = Rig::default();
    let queue = rig.subsystem.open_controller(&crate::fuzzing::tenant(), Instant(0)).expect("room");
    queue.controller.set_property(0x14, false, 0x46_0001).expect("enabled");
    let run = |opcode, dwords: &[u32]| {
        let ended = rig.run(&queue, &entry(opcode, 0, dwords), &[]);
        (ended.status, ended.result)
    };
    assert_eq!((run(0x0a, &[0x08]), run(0x0a, &[0x09, 5])), ((Status::SUCCESS, 0), (Status::SUCCESS, 5)));
    assert_eq!((run(0x09, &[0x08, 0x0a07]).0, run(0x0a, &[0x08])), (Status::SUCCESS, (Status::SUCCESS, 0x0a07)));
    assert_eq!((run(0x09, &[0x09, 0x1_0005]).0, run(0x0a, &[0x09, 5]).1), (Status::SUCCESS, 0x1_0005));
    assert_eq!((run(0x0a, &[0x09, 4]).1, run(0x0a, &[0x109, 5]).1), (4, 5), "of each vector");
    let waits = queue.controller.values(|values| values.coalescing());
    assert_eq!((waits.entries, waits.time.as_micros(), waits.exempt), (8, 1000, vec![5]));
    let beyond = u32::from(crate::controller::VECTORS);
    assert_eq!(
        (run(0x09, &[0x09, beyond]).0, run(0x0a, &[0x09, beyond]).0),
        (Status::INVALID_FIELD, Status::INVALID_FIELD)
    );
    assert_eq!(run(0x09, &[0x08 | 1 << 31, 1]).0, Status::NOT_SAVEABLE);
}

#[test]
fn reservations_outlive_a_restart_if_a_feature_says_so() {
    let rig = Rig::default();
    let set = |namespace: u32, value: u32| admin(&rig, 0x09, namespace, &[0x83, value]).status;
    let get = |namespace: u32| admin(&rig, 0x0a, namespace, &[0x83]).result;
    assert_eq!((get(1), set(1, 1), get(1)), (0, Status::INVALID_FIELD, 0), "nothing of the rig's outlives it");
    for id in [1, 2] {
        let before = rig.io.attached(id).expect("it is there").namespace.unit.clone();
        rig.subsystem.add_unit(Rc::new(Unit {
            id: before.id,
            identity: before.identity.clone(),
            geometry: before.geometry,
            read_only: false,
            store: Box::new(Durable(before.traits().clone())),
            protection: None,
            ranges: before.ranges.clone(),
            medium: before.medium.clone(),
            tally: before.tally.clone(),
            exclusive: before.exclusive.clone(),
            metadata: Arc::new(DurableMemory::default()),
        }));
    }
    assert_eq!((set(1, 1), get(1), get(2)), (Status::SUCCESS, 1, 0));
    // The same state as that of Reservation Register, and of SCSI.
    let attached = rig.io.attached(1).expect("it is there");
    assert!(attached.namespace.shared.reservations().ptpl());
    assert_eq!(reserve(&rig, &rig.io, REGISTER, 2 << 30, [0, 5]), Status::SUCCESS);
    assert_eq!((get(1), set(u32::MAX, 1), get(1), get(2)), (0, Status::SUCCESS, 1, 1));
    assert_eq!((set(u32::MAX, 0), get(1), get(2), set(7, 0)), (Status::SUCCESS, 0, 0, Status::INVALID_NAMESPACE));
}

#[test]
fn the_persistent_event_log_is_read_as_it_was_when_that_began() {
    const READ: u32 = 0;
    const BEGIN: u32 = 1;
    const RELEASE: u32 = 2;
    let rig = Rig::default();
    let log = |action: u32, dwords: u32, offset: u32| {
        admin(&rig, 0x02, 0, &[0x0d | action << 8 | (dwords - 1) << 16, 0, offset])
    };
    let set = |id: u32, value: u32| admin(&rig, 0x09, 0, &[id, value]).status;
    assert_eq!(log(READ, 128, 0).status, Status::SEQUENCE_ERROR);
    assert_eq!(set(0x04, 400), Status::SUCCESS);
    let head = log(BEGIN, 128, 0);
    assert_eq!((head.status, head.data[0]), (Status::SUCCESS, 0x0d));
    let (count, length) = (u32_at(&head.data, 4), u32_at(&head.data, 8));
    assert_eq!(log(BEGIN, 128, 0).status, Status::SEQUENCE_ERROR);
    assert_eq!(set(0x04, 401), Status::SUCCESS);
    let all = log(READ, length / 4, 0).data;
    assert_eq!((u32_at(&all, 4), &all[..512]), (count, &head.data[..]), "later events are not in it");
    // The health was looked at first of all; the feature came before.
    assert_eq!((all[512], all[512 + 24 + 512], count), (0x01, 0x0b, 3));
    assert_eq!(log(READ, 4, 512).data, all[512..528]);
    assert_eq!((log(RELEASE, 128, 0).status, log(READ, 128, 0).status), (Status::SUCCESS, Status::SEQUENCE_ERROR));
    assert_eq!(log(3, 128, 0).status, Status::INVALID_FIELD);
    let count_now = || {
        let count = u32_at(&log(BEGIN, 128, 0).data, 4);
        assert_eq!(log(RELEASE, 128, 0).status, Status::SUCCESS);
        count
    };
    assert_eq!(count_now(), count + 1);
    assert_eq!(admin(&rig, 0x80, 1, &[0]).status, Status::SUCCESS);
    assert_eq!(count_now(), count + 3, "a format begins and ends");
    // A reset is an event, and ends the reporting context.
    assert_eq!(log(BEGIN, 128, 0).status, Status::SUCCESS);
    for value in [0x46_0000, 0x46_0001] {
        rig.subsystem.set_property(&rig.admin.controller, 0x14, false, value).expect("a reset");
    }
    assert_eq!((log(READ, 128, 0).status, count_now()), (Status::SEQUENCE_ERROR, count + 4));
}

#[test]
fn each_subsystem_has_its_own_history() {
    let rig = Rig::default();
    assert_eq!(admin(&rig, 0x14, 1, &[1]).status, Status::SUCCESS);
    let tests = || admin(&rig, 0x02, 0, &[0x06 | 8 << 16]).data;
    assert_eq!((tests()[4], tests()[32]), (0x10, 0x0f), "one of them");
    let own = rig.subsystems.directory().subsystem(&rig.admin.controller.access_grant.subsystem.nqn).cloned();
    let own = own.expect("it is there");
    assert_eq!((own.history.tests().len(), rig.subsystems.directory().discovery().history.tests().len()), (1, 0));
}

#[test]
fn logs_are_read_in_parts() {
    let rig = Rig::default();
    let log = |id: u32, dwords: u32, offset: u32| admin(&rig, 0x02, 0xffff_ffff, &[id | (dwords - 1) << 16, 0, offset]);
    let supported = log(0x00, 256, 0).data;
    let there: Vec<usize> = (0..256).filter(|id| supported[id * 4] == 1).collect();
    assert_eq!(there, [0, 1, 2, 3, 4, 5, 6, 0x0c, 0x0d, 0x80, 0x81]);
    io(&rig, &blocks(READ, 0, 1), &[]);
    let health = log(0x02, 128, 0).data;
    assert_eq!((health.len(), u16_at(&health, 1), health[32], health[64]), (512, 300, 1, 1));
    let effects = log(0x05, 1024, 0).data;
    assert_eq!((u32_at(&effects, 0), u32_at(&effects, 0x06 * 4), u32_at(&effects, 1024 + 4)), (0, 1, 3));
    let access = log(0x0c, 26, 0).data;
    assert_eq!((access[0], access[8], access[16], access[20], access[32], access[48]), (1, 2, 1, 1, 1, 1));
    assert_eq!(log(0x0c, 2, 8).data, access[8..16]);
    let behind = log(0x0c, 16, 1024);
    assert_eq!((behind.status, behind.data), (Status::SUCCESS, vec![0; 64]), "hosts read the announced size in pieces");
    assert_eq!(log(0x02, 1, 516).status, Status::INVALID_FIELD);
    assert_eq!(log(0x02, 1, 2).status, Status::INVALID_FIELD);
    assert_eq!(log(0x70, 1, 0).status, Status::INVALID_LOG_PAGE, "this is no discovery service");
    assert_eq!(log(0x0c, 0x1_0000, 0).data.len(), 256 << 10);
    assert_eq!(admin(&rig, 0x02, 0, &[0xffff_0002, 0x00ff]).status, Status::INVALID_FIELD, "more than can be moved");
}

#[test]
fn discovery_tells_where_the_subsystem_is() {
    let rig = Rig::default();
    let path = crate::Path {
        transport: 3,
        family: 1,
        address: "192.0.2.1".into(),
        service: "4420".into(),
        in_capsule: 0,
        digests: (false, false),
        memory: false,
        portal_ref: crate::directory::PortalRef { portal: 1, group: 1, is_secure: false },
    };
    let command = Command { sqe: connect_sqe(0, 31), sent: 1024, room: 0 };
    let data = connect_data(9, 0xffff, crate::path::DISCOVERY_NQN);
    let (queue, _) = rig.subsystem.connect(&command, data.as_bytes(), path, caller(), Instant(0)).expect("admitted");
    queue.controller.set_property(0x14, false, 1).expect("enabled");
    let log = rig.run(&queue, &entry(0x02, 0, &[0x70 | 1023 << 16]), &[]).data;
    assert_eq!((log[8], &log[1024..1028], &log[1056..1061]), (3, &[3, 1, 2, 4][..], &b"4420\0"[..]));
    assert_eq!((&log[1280..1304], &log[1536..1546]), (&b"nqn.2026-01.io.lunar:rig"[..], &b"192.0.2.1\0"[..]));
    assert_eq!((log[2050], &log[2304..2340]), (3, crate::path::DISCOVERY_NQN.as_bytes()));
    assert_eq!((&log[3072..3075], &log[3104..3109], &log[3584..3588]), (&[3, 2, 1][..], &b"8009\0"[..], &b"::1\0"[..]));
    let identified = rig.run(&queue, &entry(0x06, 0, &[1]), &[]).data;
    assert_eq!((identified[111], u32_at(&identified, 92)), (2, 0x8000_0000));
    // Hosts that enabled the event are notified of changes, and other hosts are not.
    assert_eq!(rig.run(&queue, &entry(0x09, 0, &[0x0b, 0x8000_0000]), &[]).status, Status::SUCCESS);
    assert!(rig.run(&queue, &entry(0x0c, 0, &[]), &[]).parked);
    assert!(admin(&rig, 0x0c, 0, &[]).parked);
    queue.controller.raise(crate::event::Event::DISCOVERY);
    assert_eq!(at_once(queue.controller.event()), (0, Status::SUCCESS, 0x70_f002));
    assert_eq!(rig.run(&queue, &entry(0x06, 1, &[0]), &[]).status, Status::INVALID_FIELD);
}

#[test]
fn discovery_tells_of_ports_of_both_transports() {
    use crate::path::{RDMA, TCP};
    let rig = Rig::default();
    let portal = |id, transport, last, is_secure| {
        let address = Some(([192, 0, 2, last], 4420).into());
        crate::directory::Portal { id, group: 1, transport, address, is_secure }
    };
    let mut directory = (*rig.subsystems.directory()).clone();
    directory.portals = Some(vec![portal(1, TCP, 1, false), portal(2, RDMA, 2, false), portal(3, RDMA, 3, true)]);
    directory.referrals.clear();
    rig.subsystems.set(directory);
    let portal_ref = crate::directory::PortalRef { portal: 2, group: 1, is_secure: false };
    let path = crate::Path { portal_ref, ..crate::Path::rdma(([192, 0, 2, 2], 4420).into(), 4096) };
    let command = Command { sqe: connect_sqe(0, 31), sent: 1024, room: 0 };
    let data = connect_data(9, 0xffff, crate::path::DISCOVERY_NQN);
    let (queue, _) = rig.subsystem.connect(&command, data.as_bytes(), path, caller(), Instant(0)).expect("admitted");
    queue.controller.set_property(0x14, false, 1).expect("enabled");
    let log = rig.run(&queue, &entry(0x02, 0, &[0x70 | 1023 << 16]), &[]).data;
    // RDMA has no TLS, so the third one is left out. The last record is this service.
    assert_eq!(log[8], 3);
    let records: Vec<_> =
        log[1024..4096].chunks(1024).map(|record| (record[0], record[520], &record[768..771])).collect();
    assert_eq!(records, [(3, b'1', &[0, 0, 0][..]), (1, b'2', &[1, 4, 1]), (1, b'2', &[1, 4, 1])]);
    let identified = rig.run(&queue, &entry(0x06, 0, &[1]), &[]).data;
    assert_eq!((u32_at(&identified, 536), u32_at(&identified, 1792)), (0x10_0005, 260));
    assert_eq!(queue.controller.path.word(), "nvme-rdma");
}

/// Registers, reserves: a command with two keys.
fn reserve(rig: &Rig, queue: &Rc<Queue>, opcode: u8, dword: u32, keys: [u64; 2]) -> Status {
    let list = if opcode == 0x15 { keys[0].to_le_bytes().to_vec() } else { keys.map(u64::to_le_bytes).concat() };
    rig.run(queue, &entry(opcode, 1, &[dword]), &list).status
}

const REGISTER: u8 = 0x0d;
const ACQUIRE: u8 = 0x11;
const RELEASE: u8 = 0x15;

#[test]
fn reservations_keep_other_hosts_out() {
    let rig = Rig::default();
    let [other_admin, other] = rig.host(8);
    let conflict = Status::RESERVATION_CONFLICT;
    assert_eq!(reserve(&rig, &rig.io, ACQUIRE, 1 << 8, [5, 0]), conflict, "not registered");
    assert_eq!(reserve(&rig, &rig.io, REGISTER, 0, [0, 5]), Status::SUCCESS);
    assert_eq!(reserve(&rig, &rig.io, REGISTER, 0, [0, 5]), Status::SUCCESS, "the same key again");
    assert_eq!(reserve(&rig, &rig.io, REGISTER, 0, [0, 6]), conflict, "another key");
    assert_eq!(reserve(&rig, &rig.io, REGISTER, 2, [5, 6]), Status::SUCCESS, "replaced");
    assert_eq!(reserve(&rig, &rig.io, REGISTER, 2 | 8, [0, 5]), Status::SUCCESS, "replaced without the old one");
    assert_eq!(reserve(&rig, &rig.io, ACQUIRE, 1 << 8, [5, 0]), Status::SUCCESS);
    for (kind, write, read) in [(1, conflict, Status::SUCCESS), (2, conflict, conflict), (4, conflict, conflict)] {
        assert_eq!(
            reserve(&rig, &rig.io, RELEASE, if kind == 1 { 1 << 8 } else { 0 } | 8, [0, 0]),
            match kind {
                1 => Status::SUCCESS,
                _ => Status::INVALID_FIELD,
            }
        );
        assert_eq!(reserve(&rig, &rig.io, ACQUIRE, kind << 8 | 8, [0, 0]), Status::SUCCESS, "type {kind}");
        assert_eq!(rig.run(&other, &blocks(WRITE, 0, 1), &[0; 512]).status, write, "type {kind}");
        assert_eq!(rig.run(&other, &blocks(READ, 0, 1), &[]).status, read, "type {kind}");
        assert_eq!(io(&rig, &blocks(WRITE, 0, 1), &[0; 512]).status, Status::SUCCESS);
        assert_eq!(reserve(&rig, &rig.io, RELEASE, kind << 8 | 8, [0, 0]), Status::SUCCESS);
    }
    assert_eq!(reserve(&rig, &rig.io, ACQUIRE, 3 << 8, [5, 0]), Status::SUCCESS);
    assert_eq!(reserve(&rig, &other, REGISTER, 0, [0, 9]), Status::SUCCESS);
    assert_eq!(rig.run(&other, &blocks(WRITE, 0, 1), &[0; 512]).status, Status::SUCCESS, "registrants only");
    let report = rig.run(&other, &entry(0x0e, 1, &[63, 1]), &[]);
    let data = &report.data;
    assert_eq!((data[4], data[5], data[64 + 2], data[64 + 8], data[64 + 16]), (3, 2, 1, 5, 7));
    assert_eq!((data[128 + 2], data[128 + 8], data[128 + 16]), (0, 9, 8));
    assert_eq!(rig.run(&other, &entry(0x0e, 1, &[15, 0]), &[]).status, Status::HOST_INCONSISTENT);
    // Preempted: it is told, by an event and a log page.
    assert!(rig.run(&other_admin, &entry(0x0c, 0, &[]), &[]).parked);
    assert_eq!(reserve(&rig, &rig.io, ACQUIRE, 1 | 3 << 8, [5, 9]), Status::SUCCESS);
    assert_eq!(at_once(other_admin.controller.event()), (0, Status::SUCCESS, 0x80_0006));
    let notice = rig.run(&other_admin, &entry(0x02, 0, &[0x80 | 15 << 16]), &[]).data;
    assert_eq!((notice[0], notice[8], notice[12]), (1, 1, 1));
    assert_eq!(rig.run(&other, &blocks(WRITE, 0, 1), &[0; 512]).status, conflict);
}

/// Another command set rewrites the medium of the first namespace.
fn rewritten(rig: &Rig, change: RewriteChange) {
    let unit = rig.units.unit(UnitId(0)).expect("it is there");
    at_once(rig.units.propose(&unit, None, UnitChange::Rewrite(change))).expect("it is allowed");
}

fn format() -> Rewrite {
    Rewrite { kind: RewriteKind::Format { protection: None }, passes: Vec::new() }
}

#[test]
fn access_states_stop_commands_that_use_the_medium() {
    let rig = Rig::default();
    assert_eq!(admin(&rig, 0x09, 0, &[0x0b, 1 << 11]).status, Status::SUCCESS);
    assert!(admin(&rig, 0x0c, 0, &[]).parked);
    for (access, status) in [
        (AnaState::INACCESSIBLE, Status::INACCESSIBLE),
        (AnaState::PERSISTENT_LOSS, Status::PERSISTENT_LOSS),
        (AnaState::CHANGE, Status::TRANSITION),
        (AnaState::NON_OPTIMIZED, Status::SUCCESS),
    ] {
        rig.io.attached(1).expect("it is there").set_access(access);
        assert_eq!(io(&rig, &blocks(READ, 0, 1), &[]).status, status);
    }
    for (state, status) in [
        (AccessState::Standby, Status::INACCESSIBLE),
        (AccessState::Transitioning, Status::TRANSITION),
        (AccessState::ActiveNonOptimized, Status::SUCCESS),
    ] {
        at_once(rig.units.set_access(UnitId(0), 0, state, false));
        assert_eq!(io(&rig, &blocks(READ, 0, 1), &[]).status, status);
    }
    assert_eq!(at_once(rig.admin.controller.event()), (0, Status::SUCCESS, 0x0c_0302));
    rewritten(&rig, RewriteChange::Begin(format()));
    assert_eq!(io(&rig, &blocks(READ, 0, 1), &[]).status, Status::FORMATTING);
    rewritten(&rig, RewriteChange::Done);
    assert_eq!(io(&rig, &blocks(READ, 0, 1), &[]).status, Status::SUCCESS);
}

#[test]
fn a_formatted_namespace_is_empty() {
    let rig = Rig::default();
    let format = |namespace, dword| admin(&rig, 0x80, namespace, &[dword]).status;
    let write = |namespace| io(&rig, &entry(WRITE, namespace, &[5, 0, 0]), &[7; 512]).status;
    let read = |namespace| io(&rig, &entry(READ, namespace, &[5, 0, 0]), &[]).data;
    assert_eq!([write(1), write(2)], [Status::SUCCESS; 2]);
    assert_eq!(format(1, 0), Status::SUCCESS);
    assert_eq!((read(1), read(2)), (vec![0; 512], vec![7; 512]));
    assert_eq!((write(1), format(0xffff_ffff, 1 << 9)), (Status::SUCCESS, Status::SUCCESS));
    assert_eq!((read(1), read(2)), (vec![0; 512], vec![0; 512]));
    assert_eq!((format(1, 1), format(1, 2 << 9)), (Status::INVALID_FORMAT, Status::INVALID_FIELD));
    assert_eq!((format(1, 0x20), format(9, 0)), (Status::INVALID_FIELD, Status::INVALID_NAMESPACE));
    rig.memories[0].fault.set(Some(Fault::Medium));
    assert_eq!(format(1, 0), Status::WRITE_FAULT);
    assert_eq!((write(1), io(&rig, &blocks(READ, 0, 1), &[]).status), (Status::NOT_READY, Status::NOT_READY));
    assert_eq!((format(1, 0), write(1)), (Status::SUCCESS, Status::SUCCESS), "only that helps");
    let sanitize = || Rewrite { kind: RewriteKind::Sanitize { can_exit: true }, passes: Vec::new() };
    rewritten(&rig, RewriteChange::Begin(sanitize()));
    rewritten(&rig, RewriteChange::Failed);
    assert_eq!((format(1, 0), write(1)), (Status::SANITIZE_FAILED, Status::SANITIZE_FAILED), "nor that");
    rewritten(&rig, RewriteChange::ExitFailureMode);
    let [_admin, other] = rig.host(8);
    assert_eq!(reserve(&rig, &other, REGISTER, 0, [0, 9]), Status::SUCCESS);
    assert_eq!(reserve(&rig, &other, ACQUIRE, 1 << 8, [9, 0]), Status::SUCCESS);
    assert_eq!((format(1, 0), format(0xffff_ffff, 0)), (Status::RESERVATION_CONFLICT, Status::RESERVATION_CONFLICT));
}

#[test]
fn asynchronous_event_requests_can_be_aborted() {
    let rig = Rig::default();
    let mut request = entry(0x0c, 0, &[]);
    for cid in 0..4 {
        request.cid = cid.into();
        assert!(rig.run(&rig.admin, &request, &[]).parked);
    }
    assert_eq!(rig.run(&rig.admin, &request, &[]).status, Status::EVENT_LIMIT);
    assert_eq!(admin(&rig, 0x08, 0, &[2 << 16]).result, 0);
    assert_eq!(at_once(rig.admin.controller.event()), (2, Status::ABORTED, 0));
    assert_eq!(admin(&rig, 0x08, 0, &[9 << 16 | 1]).result, 1, "not found is not aborted");
}

proptest::proptest! {
    #[test]
    fn no_command_does_harm(data in proptest::collection::vec(proptest::num::u8::ANY, 0..600)) {
        crate::fuzzing::commands(&data);
    }

    #[test]
    fn no_connect_does_harm(data in proptest::collection::vec(proptest::num::u8::ANY, 0..400)) {
        crate::fuzzing::connects(&data);
    }

    #[test]
    fn no_fused_operation_does_half(blocks in proptest::collection::vec(proptest::array::uniform6(0_u8..4), 1..20)) {
        let step = |[first, count, fuse, same, other, wrong]: [u8; 6]| {
            let mut sqe = entry(COMPARE, 1, &[first.into(), 0, count.into(), 0, 0]);
            let wrong = [0, 0, 0xf0, 0xff][usize::from(wrong)];
            (sqe.flags, sqe.cdw10[5]) = (1 + fuse % 2, u32::from_le_bytes([same, other, wrong, 0]).into());
            [&[1][..], sqe.as_bytes(), &[0; 16]].concat()
        };
        crate::fuzzing::commands(&blocks.into_iter().flat_map(step).collect::<Vec<_>>());
    }
}

#[test]
fn blocks_that_scsi_protects_are_protected_here_too() {
    let rig = Rig::default();
    let of = |opcode, first, count: u32| entry(opcode, 2, &[first, 0, count - 1]);
    let data: Vec<u8> = (0..2 * BLOCK).map(|at| (at / 7) as u8).collect();
    let stored_info = |block: usize| {
        let at = block * INFO_BYTES;
        rig.protection_store
            .with(|bytes| Info::read_from_bytes(&bytes[at..at + INFO_BYTES]).expect("all of it").inverted())
    };
    let made = |block: usize, data: &[u8]| Info {
        guard: guard(data).into(),
        application: stored_info(block).application,
        reference: (block as u32).into(),
    };
    assert_eq!(io(&rig, &of(WRITE, 3, 2), &data).status, Status::SUCCESS);
    let (first, second) = data.split_at(BLOCK as usize);
    assert_eq!((stored_info(3), stored_info(4), stored_info(5)), (made(3, first), made(4, second), Info::BLANK));
    assert_eq!(io(&rig, &of(READ, 2, 4), &[]).data[512..1536], data);
    assert_eq!(io(&rig, &of(COMPARE, 3, 2), &data).status, Status::SUCCESS);
    // Zeroes, and what is deallocated, are not checked.
    assert_eq!(io(&rig, &of(0x08, 4, 1), &[]).status, Status::SUCCESS);
    assert_eq!((stored_info(3), stored_info(4)), (made(3, first), Info::BLANK));
    rig.memories[1].with(|bytes| bytes[3 * BLOCK as usize] ^= 1);
    for opcode in [READ, COMPARE, 0x0c] {
        assert_eq!(io(&rig, &of(opcode, 3, 1), first).status, Status::READ_ERROR, "{opcode:#x}");
    }
    assert_eq!(io(&rig, &of(READ, 4, 1), &[]).data, [0; BLOCK as usize]);
    assert_eq!(admin(&rig, 0x80, 2, &[0]).status, Status::SUCCESS);
    assert_eq!((stored_info(3), io(&rig, &of(READ, 3, 1), &[]).status), (Info::BLANK, Status::SUCCESS));
}

#[test]
fn self_tests_are_logged() {
    let rig = Rig::default();
    let test = |namespace, code| admin(&rig, 0x14, namespace, &[code]).status;
    let log = || admin(&rig, 0x02, 0, &[6 | 140 << 16]).data;
    assert_eq!((log().len(), log()[4]), (564, 0x0f));
    assert_eq!((test(0, 1), test(0xffff_ffff, 1), test(1, 0x0f)), (Status::SUCCESS, Status::SUCCESS, Status::SUCCESS));
    rig.memories[0].fault.set(Some(Fault::Medium));
    assert_eq!(test(1, 2), Status::SUCCESS);
    let page = log();
    assert_eq!((page[4], page[5], page[6], u32_at(&page, 16)), (0x27, 1, 3, 1));
    assert_eq!((page[32], u32_at(&page, 44), page[60], u32_at(&page, 72)), (0x10, 0xffff_ffff, 0x10, 0));
    assert_eq!((test(1, 3), test(9, 1)), (Status::INVALID_FIELD, Status::INVALID_NAMESPACE));
}

#[test]
fn both_ways_end_alike() {
    let rigs = [Rig::default(), Rig::default()];
    rigs[1].memories[0].is_slow.set(true);
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    for _ in 0..2000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let [op, first, count, sent, fault, ..] = random.rotate_left(24).to_le_bytes();
        let (op, first) = ([WRITE, READ, COMPARE, 0x08, 0x7e][usize::from(op % 5)], u32::from(first) + 1800);
        let mut sqe = blocks(op, first, u32::from(count % 4) + 1);
        sqe.sgl.length = (u32::from(sent) * 32).into();
        let data = vec![fault; usize::from(sent % 6) * 512];
        let fault = (fault < 16).then_some(Fault::Medium);
        let ended = rigs.each_ref().map(|rig| {
            rig.memories[0].fault.set(fault);
            let ended = io(rig, &sqe, &data);
            rig.memories[0].fault.set(None);
            ended
        });
        assert_eq!(ended[0], ended[1], "{op:#x} {first} {count} {sent} {fault:?}");
    }
    let [quick, slow] = rigs.each_ref().map(|rig| rig.memories[0].with(|bytes| bytes.to_vec()));
    assert_eq!(quick, slow);
    let counts = rigs.each_ref().map(|rig| {
        let stats = &rig.subsystem.config().stats;
        [&stats.commands, &stats.read_bytes, &stats.write_commands, &stats.write_bytes, &stats.check_conditions]
            .map(|count| count.get())
    });
    assert_eq!(counts[0], counts[1]);
    assert!(counts[0].iter().all(|count| *count > 0));
}

/// A half of a fused operation whose data has to be asked for.
struct Half(Arena);

impl Transfer for Half {
    async fn room(&self) -> Result<(), Fault> {
        Ok(())
    }

    async fn pull(&self, _offset: usize, len: usize) -> Result<Sg, Fault> {
        Ok(self.0.wait_sg(len).await.share())
    }

    async fn pull_more(&self, _offset: usize, len: usize) -> Result<Sg, Fault> {
        Ok(self.0.take_sg(len).ok_or(Fault::NoMemory)?.share())
    }

    fn push(&self, _offset: usize, _data: Sg) -> Result<(), Fault> {
        Err(Fault::Protocol)
    }

    fn aborted(&self) -> bool {
        false
    }
}

#[test]
fn a_fused_operation_does_not_hold_memory_while_it_waits_for_more() {
    const LEN: usize = 64 << 10;
    let arena = Arena::new(1 << 20);
    let half = Half(arena.clone());
    let both = Both { halves: [&half, &half], first: LEN, failed: Cell::new(None) };
    assert_eq!(at_once(both.pull(0, 2 * LEN)).map(|data| data.len()), Ok(2 * LEN));
    // In pieces that are larger than a half, or reach from one into the other.
    let pieces = [both.pull(0, LEN + 512)].map(at_once).into_iter().chain([at_once(both.pull_more(LEN + 512, 512))]);
    assert_eq!(pieces.map(|data| data.map(|data| data.len())).collect::<Vec<_>>(), [Ok(LEN + 512), Ok(512)]);
    assert_eq!(at_once(both.pull_more(LEN - 512, 1024)).map(|data| data.len()), Ok(1024));
    // Room for one half.
    let first = arena.take_sg(LEN).expect("room");
    let rest: Vec<_> = std::iter::from_fn(|| arena.take_sg(lunar_core::mem::PAGE)).collect();
    drop(first);
    assert_eq!(at_once(both.pull(0, 2 * LEN)).map(|data| data.len()), Err(Fault::NoMemory));
    // The same where each half is pulled by itself.
    let first = at_once(both.pull(0, LEN)).expect("it was given back");
    assert_eq!(at_once(both.pull(LEN, LEN)).map(|data| data.len()), Err(Fault::NoMemory));
    drop(first);
    drop(rest);
}

#[test]
fn as_many_namespaces_as_there_may_be() {
    let rig = Rig::default();
    for id in 3..=NAMESPACES_MAX {
        rig.subsystem.add_namespace(id, crate::fuzzing::unit(id - 1).0);
    }
    let active = |behind: u32| -> Vec<u32> {
        let page = admin(&rig, 0x06, behind, &[0x02]).data;
        assert_eq!(page.len(), 4096);
        page.chunks(4).map(|id| u32_at(id, 0)).take_while(|id| *id != 0).collect()
    };
    let all: Vec<u32> = (1..=NAMESPACES_MAX).collect();
    assert_eq!((active(0), active(1000), active(1023)), (all.clone(), all[1000..].to_vec(), vec![1024]));
    assert_eq!(active(1024), []);
    let controller = admin(&rig, 0x06, 0, &[0x01]).data;
    assert_eq!(u32_at(&controller, 516), NAMESPACES_MAX, "NN");
    for id in [3, 1000, NAMESPACES_MAX] {
        assert_eq!(u32_at(&admin(&rig, 0x06, id, &[0x00]).data, 0), BLOCKS as u32, "{id}");
        let data = [id as u8; BLOCK as usize];
        assert_eq!(io(&rig, &entry(WRITE, id, &[5, 0, 0]), &data).status, Status::SUCCESS, "{id}");
        assert_eq!(io(&rig, &entry(READ, id, &[5, 0, 0]), &[]).data, data, "{id}");
    }
    let beyond = entry(READ, NAMESPACES_MAX + 1, &[0, 0, 0]);
    assert_eq!(io(&rig, &beyond, &[]).status, Status::INVALID_NAMESPACE);
    // One page of asymmetric access tells of all of them.
    let access = admin(&rig, 0x02, 0xffff_ffff, &[0x0c | ((16 + 36 * NAMESPACES_MAX) / 4 - 1) << 16]).data;
    let told: Vec<u32> = access[16..].chunks(36).map(|group| u32_at(group, 32)).collect();
    assert_eq!((u16_at(&access, 8), told), (1024, all));
    // A host that connects later sees them, too.
    let [late, _] = rig.host(9);
    assert_eq!(rig.run(&late, &entry(0x06, 0, &[0x02]), &[]).data[4092..], NAMESPACES_MAX.to_le_bytes());
}
