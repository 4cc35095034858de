use crate::command::Status;
use crate::copy::tokens::TOKENS_MAX;
use crate::sense::{Asc, SenseKey};
use crate::testing::{BLOCKS, Ended, Memory, Rig};
use lunar_core::io::{Fault, Op, Traits};
use lunar_unit::reserve::Held;
use std::cell::RefCell;
use std::rc::Rc;

const POPULATE: u8 = 0x10;
const WRITE: u8 = 0x11;

/// A rig with a second disk at LUN 1, and the memory of that disk.
fn two() -> (Rig, Rc<Memory>) {
    let rig = Rig::default();
    let bytes = RefCell::new(vec![0; Rig::traits().size as usize]);
    let memory = Rc::new(Memory { bytes, ..Memory::default() });
    rig.target.add_unit(1, Rig::unit(1, Rig::traits(), memory.clone()));
    rig.nexus.each(|itl| while itl.take_attention().is_some() {});
    (rig, memory)
}

fn fill(memory: &Memory) -> Vec<u8> {
    let mut bytes = memory.bytes.borrow_mut();
    (0..bytes.len()).for_each(|at| bytes[at] = (at / 512) as u8 ^ at as u8);
    bytes.clone()
}

fn ranges(ranges: &[(u64, u32)]) -> Vec<u8> {
    let each = |(lba, count): &(u64, u32)| [&lba.to_be_bytes()[..], &count.to_be_bytes(), &[0; 4]].concat();
    ranges.iter().flat_map(each).collect()
}

/// Sets the length fields of a list that ends with ranges; `at` is the offset of RANGE DESCRIPTORS LENGTH.
fn measured(mut list: Vec<u8>, at: usize) -> Vec<u8> {
    let (all, ranges) = ((list.len() - 2) as u16, (list.len() - at - 2) as u16);
    list[..2].copy_from_slice(&all.to_be_bytes());
    list[at..at + 2].copy_from_slice(&ranges.to_be_bytes());
    list
}

fn populate_list(of: &[(u64, u32)]) -> Vec<u8> {
    measured([vec![0; 16], ranges(of)].concat(), 14)
}

fn write_list(offset: u64, token: &[u8], to: &[(u64, u32)]) -> Vec<u8> {
    let head = [&[0; 8][..], &offset.to_be_bytes(), token, &[0; 8]].concat();
    measured([head, ranges(to)].concat(), 534)
}

fn run_at(rig: &Rig, lun: u16, action: u8, id: u32, list: &[u8]) -> Ended {
    rig.lun.set(crate::lun::Lun::from_number(lun));
    let mut cdb = [0; 16];
    (cdb[0], cdb[1]) = (0x83, action);
    cdb[6..10].copy_from_slice(&id.to_be_bytes());
    cdb[10..14].copy_from_slice(&(list.len() as u32).to_be_bytes());
    rig.run(&cdb, list, 0)
}

fn information(rig: &Rig, lun: u16, id: u32) -> Ended {
    rig.lun.set(crate::lun::Lun::from_number(lun));
    let mut cdb = [0x84, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0];
    cdb[2..6].copy_from_slice(&id.to_be_bytes());
    rig.run(&cdb, &[], 1024)
}

/// A token of blocks of LUN 0.
fn token(rig: &Rig, of: &[(u64, u32)]) -> Vec<u8> {
    assert_eq!(run_at(rig, 0, POPULATE, 1, &populate_list(of)).status, Status::GOOD);
    let told = information(rig, 0, 1).data;
    assert_eq!((told.len(), &told[32..38]), (550, &[0, 0, 2, 2, 0, 0][..]));
    told[38..].to_vec()
}

fn zero_token() -> Vec<u8> {
    let mut token = vec![0xff, 0xff, 0, 1, 0, 0, 1, 0xf8];
    token.resize(512, 0);
    token
}

/// Sense key, additional sense code and field pointer.
fn sense(ended: &Ended) -> (SenseKey, Asc, [u8; 3]) {
    assert_eq!((ended.status, ended.sense.len()), (Status::CHECK_CONDITION, 18), "{ended:?}");
    let asc = Asc(u16::from_be_bytes([ended.sense[12], ended.sense[13]]));
    (SenseKey(ended.sense[2]), asc, [ended.sense[15], ended.sense[16], ended.sense[17]])
}

#[test]
fn the_data_of_a_token_is_written() {
    let (rig, other) = two();
    let source = fill(&rig.memory);
    let token = token(&rig, &[(10, 4), (100, 6)]);
    assert_eq!(token[..8], [0, 1, 0, 0, 0, 0, 1, 0xf8]);
    assert_eq!(token[16..32], [0xe4, 0, 0, 0, 1, 3, 0, 8, 0x30, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!((&token[44..48], &token[62..64]), (&[0, 0, 2, 0][..], &[0x14, 0][..]));
    assert_eq!(run_at(&rig, 1, WRITE, 9, &write_list(2, &token, &[(50, 3), (0, 1), (200, 4)])).status, Status::GOOD);
    let copied = other.bytes.borrow();
    let wanted = [&source[12 * 512..14 * 512], &source[100 * 512..106 * 512]].concat();
    let found = [&copied[50 * 512..53 * 512], &copied[..512], &copied[200 * 512..204 * 512]].concat();
    assert!(found == wanted);
    let told = information(&rig, 1, 9).data;
    let head = [0, 0, 0, 32, WRITE, 1, 0, 0, 0xff, 0xff, 0xff, 0xfe, 0, 0, 0, 0xf1, 0, 0, 0, 0, 0, 0, 0, 8];
    assert_eq!((told.len(), &told[..24], &told[32..]), (36, &head[..], &[0; 4][..]));
    assert_eq!(information(&rig, 0, 9).status, Status::CHECK_CONDITION, "the copy manager of another logical unit");
}

#[test]
fn a_token_represents_blocks_and_not_their_former_content() {
    let (rig, other) = two();
    let token = token(&rig, &[(0, 1)]);
    rig.memory.bytes.borrow_mut()[..512].fill(7);
    assert_eq!(run_at(&rig, 1, WRITE, 1, &write_list(0, &token, &[(0, 1)])).status, Status::GOOD);
    assert_eq!(other.bytes.borrow()[..512], [7; 512]);
}

#[test]
fn the_token_of_zeroes_needs_no_populate_token() {
    let (rig, other) = two();
    fill(&other);
    assert_eq!(run_at(&rig, 1, WRITE, 1, &write_list(0, &zero_token(), &[(1, 2), (9, 1)])).status, Status::GOOD);
    let zero = |len| Op::Zero { len, unmap: true };
    assert_eq!(other.asked.take(), [zero(1024), zero(512)]);
}

#[test]
fn del_tkn_deletes_the_token() {
    let (rig, _) = two();
    let token = token(&rig, &[(0, 1)]);
    let mut list = write_list(0, &token, &[(0, 1)]);
    list[2] = 2;
    let all = |rig: &Rig| {
        rig.lun.set(crate::lun::Lun::from_number(0));
        rig.run(&[0x84, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0], &[], 256).data
    };
    let listed = all(&rig);
    assert_eq!((listed.len(), &listed[..8], &listed[8..]), (104, &[0, 0, 0, 100, 0, 0, 0, 0][..], &token[..96]));
    assert_eq!(run_at(&rig, 1, WRITE, 1, &list).status, Status::GOOD);
    assert_eq!(all(&rig), [0, 0, 0, 4, 0, 0, 0, 0]);
    let unknown = (SenseKey::ILLEGAL_REQUEST, Asc::TOKEN_UNKNOWN, [0x80, 0, 16]);
    assert_eq!(sense(&run_at(&rig, 1, WRITE, 1, &list)), unknown);
}

#[test]
fn unknown_and_changed_tokens_are_refused() {
    let (rig, other) = two();
    let good = token(&rig, &[(0, 4)]);
    let with = |at: usize, byte: u8| {
        let mut token = good.clone();
        token[at] = byte;
        sense(&run_at(&rig, 1, WRITE, 1, &write_list(0, &token, &[(0, 1)])))
    };
    let refused = |asc| (SenseKey::ILLEGAL_REQUEST, asc, [0x80, 0, 16]);
    assert_eq!(with(1, 0x80), refused(Asc::UNSUPPORTED_TOKEN_TYPE));
    assert_eq!(with(7, 0), refused(Asc::INVALID_TOKEN_LENGTH));
    assert_eq!(with(8, 0xff), refused(Asc::TOKEN_UNKNOWN));
    assert_eq!(with(511, 0xff), refused(Asc::TOKEN_CORRUPT));
    let write = |offset, to: &[(u64, u32)]| run_at(&rig, 1, WRITE, 1, &write_list(offset, &good, to));
    let offset = (SenseKey::ILLEGAL_REQUEST, Asc::INVALID_FIELD_IN_PARAMETER_LIST, [0x80, 0, 8]);
    assert_eq!(sense(&write(4, &[(0, 1)])), offset);
    assert_eq!(sense(&write(u64::MAX, &[(0, 1)])), offset);
    let short = (SenseKey::COPY_ABORTED, Asc::COPY_TARGET_DEVICE_DATA_UNDERRUN, [0; 3]);
    assert_eq!(sense(&write(2, &[(0, 2), (9, 1)])), short);
    assert!(other.asked.take().is_empty());
    (0..TOKENS_MAX).for_each(|_| drop(token(&rig, &[(0, 1)])));
    assert_eq!(sense(&write(0, &[(0, 1)])), refused(Asc::TOKEN_UNKNOWN), "the oldest token was replaced");
}

#[test]
fn a_token_gives_no_access_to_a_unit_that_the_nexus_cannot_read() {
    let (rig, other) = two();
    let token = token(&rig, &[(0, 4)]);
    let list = write_list(0, &token, &[(0, 4)]);
    let source = rig.nexus.itl(0).expect("LUN exists");
    source.set_held(Held::ExclusiveAccess);
    let ended = run_at(&rig, 1, WRITE, 1, &list);
    assert_eq!(sense(&ended), (SenseKey::COPY_ABORTED, Asc::THIRD_PARTY_DEVICE_FAILURE, [0; 3]));
    let told = information(&rig, 1, 1).data;
    assert_eq!((told.len(), &told[5..6], &told[12..15]), (54, &[2][..], &[2, 18, 18][..]));
    source.set_held(Held::None);
    source.establish_unit_attention(Asc::CAPACITY_DATA_CHANGED);
    assert_eq!(run_at(&rig, 1, WRITE, 1, &list).status, Status::GOOD);
    assert!(source.take_attention().is_some());
    rig.memory.fault.set(Some(Fault::Medium));
    assert_eq!(sense(&run_at(&rig, 1, WRITE, 1, &list)).1, Asc::UNRECOVERED_READ_ERROR);
    rig.target.remove_unit(0);
    rig.nexus.each(|itl| while itl.take_attention().is_some() {});
    assert_eq!(sense(&run_at(&rig, 1, WRITE, 1, &list)).1, Asc::TOKEN_UNKNOWN);
    assert_eq!(other.asked.take().len(), 1, "one copy only was admitted");
}

#[test]
fn invalid_lists_are_refused_with_a_field_pointer() {
    let rig = Rig::default();
    let zeroes = zero_token();
    for (action, good, ranges_at) in
        [(POPULATE, populate_list(&[(0, 1)]), 14), (WRITE, write_list(0, &zeroes, &[(0, 1)]), 534)]
    {
        let refused = |what: &str, list: &[u8]| {
            let ended = run_at(&rig, 0, action, 1, list);
            let (key, asc, pointer) = sense(&ended);
            assert_eq!(key, SenseKey::ILLEGAL_REQUEST, "{what}");
            (asc, u16::from_be_bytes([pointer[1], pointer[2]]))
        };
        let with = |at: usize, byte: u8| {
            let mut list = good.clone();
            list[at] = byte;
            list
        };
        let rebuilt =
            |of: &[(u64, u32)]| if action == POPULATE { populate_list(of) } else { write_list(0, &zeroes, of) };
        let field = |at| (Asc::INVALID_FIELD_IN_PARAMETER_LIST, at);
        let length = (Asc::PARAMETER_LIST_LENGTH_ERROR, 0);
        assert_eq!(refused("a flag", &with(2, 4)), field(2));
        assert_eq!(refused("a list shorter than its length", &with(1, good[1] + 1)), length);
        assert_eq!(refused("an incomplete header", &good[..good.len() - 17]), length);
        assert_eq!(refused("an incomplete range", &with(usize::from(ranges_at) + 1, 8)), field(ranges_at));
        assert_eq!(refused("no range", &with(usize::from(ranges_at) + 1, 0)), field(ranges_at));
        assert_eq!(refused("RANGE DESCRIPTORS LENGTH beyond the list", &with(usize::from(ranges_at) + 1, 32)), length);
        assert_eq!(refused("past the end", &rebuilt(&[(BLOCKS, 1)])).0, Asc::LBA_OUT_OF_RANGE);
        assert_eq!(refused("twice", &rebuilt(&[(0, 4), (9, 1), (3, 1)])), field(ranges_at + 2 + 32));
        let many: Vec<_> = (0..65).map(|lba| (lba, 1)).collect();
        assert_eq!(refused("too many ranges", &rebuilt(&many)), (Asc::TOO_MANY_SEGMENT_DESCRIPTORS, ranges_at));
        assert_eq!(run_at(&rig, 0, action, 1, &rebuilt(&many[..64])).status, Status::GOOD, "the limit of ranges");
        assert_eq!(run_at(&rig, 0, action, 1, &[]).status, Status::GOOD, "an empty list");
    }
    let mut list = populate_list(&[(0, 1)]);
    list[6] = 3;
    assert_eq!(sense(&run_at(&rig, 0, POPULATE, 1, &list)).2, [0x80, 0, 4], "INACTIVITY TIMEOUT above the maximum");
    list[6] = 0;
    (list[2], list[9]) = (3, 0x80);
    let kind = (SenseKey::ILLEGAL_REQUEST, Asc::UNSUPPORTED_TOKEN_TYPE, [0x80, 0, 8]);
    assert_eq!(sense(&run_at(&rig, 0, POPULATE, 1, &list)), kind);
    list[9] = 1;
    assert_eq!(run_at(&rig, 0, POPULATE, 1, &list).status, Status::GOOD);
}

#[test]
fn a_command_moves_at_most_the_maximum_token_transfer_size() {
    let rig = Rig::new(Traits { size: (64 << 20) + 4096, ..Rig::traits() });
    let most = (64 << 20) / 512;
    let populate = |of: &[(u64, u32)]| run_at(&rig, 0, POPULATE, 1, &populate_list(of));
    assert_eq!(populate(&[(0, most)]).status, Status::GOOD);
    assert_eq!(sense(&populate(&[(0, most), (u64::from(most), 1)])).2, [0x80, 0, 16 + 16 + 8]);
}
