use super::*;
use crate::command::Status;
use crate::sense::SenseKey;
use crate::testing::{BLOCKS, Ended, Rig};
use lunar_core::protection::{INFO_BYTES, Info, guard};
use zerocopy::{FromBytes, IntoBytes};

const LBA: u8 = 9;

fn cdb16(op: u8, flags: u8, lba: u8, count: u8) -> [u8; 16] {
    [op, flags, 0, 0, 0, 0, 0, 0, 0, lba, 0, 0, 0, count, 0, 0]
}

/// A CDB of 32 bytes with tags.
fn cdb32(action: u8, flags: u8, lba: u8, tags: Tags, count: u8) -> Vec<u8> {
    [
        &[0x7f, 0, 0, 0, 0, 0, 0, 0x18, 0, action, flags, 0, 0, 0, 0, 0, 0, 0, 0, lba][..],
        &tags.first.to_be_bytes(),
        &tags.application.to_be_bytes(),
        &tags.mask.to_be_bytes(),
        &[0, 0, 0, count],
    ]
    .concat()
}

fn block(value: u8) -> Vec<u8> {
    (0..512).map(|at| value.wrapping_add(at as u8)).collect()
}

fn info(block: &[u8], application: u16, reference: u32) -> Info {
    Info { guard: guard(block).into(), application: application.into(), reference: reference.into() }
}

/// Blocks followed by their protection information, as they are transferred.
fn travelling(blocks: &[(Vec<u8>, Info)]) -> Vec<u8> {
    blocks.iter().flat_map(|(block, info)| [block, info.as_bytes()].concat()).collect()
}

/// The stored protection information of a block.
fn stored_info(rig: &Rig, lba: u8) -> Info {
    let at = usize::from(lba) * INFO_BYTES;
    Info::read_from_bytes(&rig.protection_store.bytes.borrow()[at..at + INFO_BYTES]).expect("eight").inverted()
}

fn put_info(rig: &Rig, lba: u8, info: Info) {
    let at = usize::from(lba) * INFO_BYTES;
    rig.protection_store.bytes.borrow_mut()[at..at + INFO_BYTES].copy_from_slice(info.inverted().as_bytes());
}

fn put_block(rig: &Rig, lba: u8, block: &[u8]) {
    let at = usize::from(lba) * 512;
    rig.memory.bytes.borrow_mut()[at..at + 512].copy_from_slice(block);
}

/// Sense key, additional sense code and INFORMATION.
fn sense(ended: &Ended) -> (SenseKey, Asc, u8) {
    assert_eq!(ended.status, Status::CHECK_CONDITION, "{ended:?}");
    let asc = Asc(u16::from_be_bytes([ended.sense[12], ended.sense[13]]));
    (SenseKey(ended.sense[2]), asc, ended.sense[6])
}

fn code(ended: &Ended) -> Option<Asc> {
    (ended.status != Status::GOOD).then(|| sense(ended).1)
}

/// Sets ATO: application tags are owned by the initiators.
fn own_tags(rig: &Rig) {
    let page = [0, 0, 0, 0, 0x0a, 0x0a, 0x22, 0x10, 0, 0x80, 0, 0, 0, 0, 0, 0];
    assert_eq!(rig.run(&[0x15, 0x10, 0, 0, 16, 0], &page, 0).status, Status::GOOD);
}

const TAGS_OF: Tags = Tags { first: 700, application: 0x1200, mask: 0xff00 };
const KINDS: [Kind; 3] = [Kind::One, Kind::Two, Kind::Three];

/// A READ or VERIFY of one block: a CDB of 32 bytes for protection type 2, else of 16 bytes.
fn of_kind(kind: Kind, (op, action): (u8, u8), flags: u8) -> Vec<u8> {
    match kind {
        Kind::Two => cdb32(action, flags, LBA, TAGS_OF, 1),
        _ => cdb16(op, flags, LBA, 1).to_vec(),
    }
}

/// The expected reference tag of a block.
fn reference(kind: Kind) -> u32 {
    if kind == Kind::Two { TAGS_OF.first } else { LBA.into() }
}

/// Invalid protection information, and the sense code that reports it.
fn wrongs(kind: Kind, right: Info) -> Vec<(Info, Option<Asc>)> {
    let guard = Info { guard: (right.guard.get() ^ 1).into(), ..right };
    let application = Info { application: 0x1300.into(), ..right };
    let reference = Info { reference: (right.reference.get() + 1).into(), ..right };
    vec![
        (right, None),
        (guard, Some(Asc::GUARD_CHECK_FAILED)),
        // Only CDBs of 32 bytes have an expected application tag.
        (application, (kind == Kind::Two).then_some(Asc::APPLICATION_TAG_CHECK_FAILED)),
        (reference, (kind != Kind::Three).then_some(Asc::REFERENCE_TAG_CHECK_FAILED)),
    ]
}

/// Whether a value of a PROTECT field checks this field (the tables of SBC-3 4.22.5).
fn is_checked(field: u8, asc: Asc) -> bool {
    let (guards, tags) = match field {
        0 | 1 | 5 => (true, true),
        2 => (false, true),
        3 => (false, false),
        _ => (true, false),
    };
    if asc == Asc::GUARD_CHECK_FAILED { guards } else { tags }
}

#[test]
fn reads_check_protection_information_by_rdprotect_and_type() {
    for kind in KINDS {
        let rig = Rig::protected(kind);
        own_tags(&rig);
        let data = block(3);
        put_block(&rig, LBA, &data);
        for (kept, wrong) in wrongs(kind, info(&data, 0x12ff, reference(kind))) {
            put_info(&rig, LBA, kept);
            for field in 0..8 {
                let ended = rig.run(&of_kind(kind, (0x88, 0x09), field << 5), &[], 1024);
                let why = format!("{kind:?} RDPROTECT {field} {kept:?}");
                if field > 5 {
                    assert_eq!(sense(&ended).1, Asc::INVALID_FIELD_IN_CDB, "{why}");
                    continue;
                }
                match wrong.filter(|asc| is_checked(field, *asc)) {
                    Some(asc) => assert_eq!(sense(&ended), (SenseKey::ABORTED_COMMAND, asc, LBA), "{why}"),
                    None if field == 0 => assert_eq!((ended.data, ended.wanted), (data.clone(), 512), "{why}"),
                    None => assert_eq!((ended.data, ended.wanted), (travelling(&[(data.clone(), kept)]), 520), "{why}"),
                }
                let verified = rig.run(&of_kind(kind, (0x8f, 0x0a), field << 5), &[], 0);
                let expected = wrong.filter(|asc| is_checked(field, *asc));
                assert_eq!(code(&verified), expected, "VERIFY {why}");
            }
        }
    }
}

#[test]
fn writes_check_protection_information_by_wrprotect_and_type() {
    for kind in KINDS {
        for (op, action) in [(0x8a, 0x0b), (0x8e, 0x0c)] {
            let data = block(5);
            for (sent, wrong) in wrongs(kind, info(&data, 0x12ff, reference(kind))) {
                for field in 1..6 {
                    let rig = Rig::protected(kind);
                    own_tags(&rig);
                    let travels = travelling(&[(data.clone(), sent)]);
                    let ended = rig.run(&of_kind(kind, (op, action), field << 5), &travels, 0);
                    let why = format!("{kind:?} WRPROTECT {field} {sent:?}");
                    match wrong.filter(|asc| is_checked(field, *asc)) {
                        Some(asc) => {
                            assert_eq!(sense(&ended), (SenseKey::ABORTED_COMMAND, asc, LBA), "{why}");
                            assert_eq!(stored_info(&rig, LBA), Info::BLANK, "{why}");
                        }
                        None => {
                            assert_eq!((code(&ended), ended.wanted), (None, 520), "{why}");
                            assert_eq!(stored_info(&rig, LBA), sent, "{why}");
                            assert_eq!(rig.memory.bytes.borrow()[9 * 512..10 * 512], data, "{why}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn writes_without_wrprotect_store_generated_protection_information() {
    for kind in KINDS {
        let rig = Rig::protected(kind);
        let data = [block(1), block(2)].concat();
        assert_eq!(rig.run(&[0x2a, 0, 0, 0, 0, LBA, 0, 0, 2, 0], &data, 0).status, Status::GOOD);
        let tag = |lba: u32| if kind == Kind::One { lba } else { u32::MAX };
        assert_eq!(stored_info(&rig, LBA), info(&block(1), 0, tag(9)), "{kind:?}");
        assert_eq!(stored_info(&rig, LBA + 1), info(&block(2), 0, tag(10)), "{kind:?}");
        assert_eq!(rig.run(&[0x28, 0, 0, 0, 0, LBA, 0, 0, 2, 0], &[], 1024).data, data);
        rig.memory.bytes.borrow_mut()[10 * 512] ^= 1;
        let ended = rig.run(&[0x28, 0, 0, 0, 0, LBA, 0, 0, 2, 0], &[], 1024);
        assert_eq!(sense(&ended), (SenseKey::ABORTED_COMMAND, Asc::GUARD_CHECK_FAILED, 10), "{kind:?}");
        // With ATO the unit writes an application tag that disables checks.
        own_tags(&rig);
        assert_eq!(rig.run(&[0x2a, 0, 0, 0, 0, LBA, 0, 0, 2, 0], &data, 0).status, Status::GOOD);
        assert_eq!(stored_info(&rig, LBA), info(&block(1), 0xffff, tag(9)), "{kind:?}");
    }
}

#[test]
fn many_blocks_are_transferred_in_pieces() {
    let rig = Rig::protected(Kind::One);
    let blocks: Vec<_> = (0..=255_u8).map(|lba| (block(lba), info(&block(lba), 7, lba.into()))).collect();
    let travels = travelling(&blocks);
    assert_eq!(rig.run(&[0x2a, 0x20, 0, 0, 0, 0, 0, 1, 0, 0], &travels, 0).status, Status::GOOD);
    let ended = rig.run(&[0x28, 0x20, 0, 0, 0, 0, 0, 1, 0, 0], &[], 256 * 520);
    assert_eq!((ended.status, ended.wanted), (Status::GOOD, 256 * 520));
    assert!(ended.data == travels);
    // A shorter expected length cuts to whole blocks with their protection information.
    let short = rig.run(&[0x28, 0x20, 0, 0, 0, 0, 0, 1, 0, 0], &[], 600);
    assert!(short.data == travels[..1040] && short.wanted == 256 * 520);
    let cut = rig.run(&[0x2a, 0x20, 0, 0, 0, 0, 0, 1, 0, 0], &travels[..1040], 0);
    assert_eq!((cut.status, cut.wanted), (Status::GOOD, 256 * 520));
    let torn = rig.run(&[0x2a, 0x20, 0, 0, 0, 0, 0, 1, 0, 0], &travels[..1024], 0);
    assert_eq!(sense(&torn).1, Asc::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT);
}

#[test]
fn a_unit_without_protection_refuses_protect_fields() {
    for rig in [Rig::default(), Rig::protected(Kind::None)] {
        for field in 1..8 {
            let ended = rig.run(&cdb16(0x88, field << 5, 0, 1), &[], 520);
            assert_eq!((sense(&ended).1, &ended.sense[15..]), (Asc::INVALID_FIELD_IN_CDB, &[0xcf, 0, 1][..]));
        }
        let ended = rig.run(&cdb32(0x09, 0, 0, TAGS_OF, 1), &[], 520);
        assert_eq!(sense(&ended).1, Asc::INVALID_COMMAND_OPERATION_CODE);
    }
    for kind in KINDS {
        let rig = Rig::protected(kind);
        let long = rig.run(&cdb32(0x09, 0, 0, TAGS_OF, 1), &[], 520);
        let short = rig.run(&cdb16(0x88, 0x20, 0, 1), &[], 520);
        let other = if kind == Kind::Two { &short } else { &long };
        assert_eq!(sense(other).1, Asc::INVALID_COMMAND_OPERATION_CODE, "{kind:?}");
        assert_eq!((long.status, short.status).0 == Status::GOOD, kind == Kind::Two);
    }
}

#[test]
fn verify_compares_fields_that_it_does_not_check() {
    let rig = Rig::protected(Kind::One);
    own_tags(&rig);
    let data = block(5);
    let right = info(&data, 7, 9);
    put_block(&rig, LBA, &data);
    put_info(&rig, LBA, right);
    let verify = |field: u8, data: &[u8], info: Info| {
        rig.run(&cdb16(0x8f, field << 5 | 0x02, LBA, 1), &travelling(&[(data.to_vec(), info)]), 0)
    };
    for field in 1..6 {
        assert_eq!(code(&verify(field, &data, right)), None, "{field}");
        let other = verify(field, &data, Info { application: 8.into(), ..right });
        let expected = (SenseKey::MISCOMPARE, Asc::APPLICATION_TAG_CHECK_FAILED, LBA);
        if field == 4 { assert_eq!(code(&other), None) } else { assert_eq!(sense(&other), expected, "{field}") }
    }
    let unchecked = verify(3, &data, Info { reference: 99.into(), ..right });
    assert_eq!(sense(&unchecked), (SenseKey::MISCOMPARE, Asc::REFERENCE_TAG_CHECK_FAILED, LBA));
    let mut wrong = data.clone();
    wrong[5] ^= 1;
    let ended = verify(1, &wrong, info(&wrong, 7, 9));
    assert_eq!(sense(&ended), (SenseKey::MISCOMPARE, Asc::MISCOMPARE_DURING_VERIFY, 5));
    // BYTCHK 11b: the reference tag increases with each block.
    put_block(&rig, LBA + 1, &data);
    put_info(&rig, LBA + 1, info(&data, 7, 10));
    let each = |info: Info| rig.run(&cdb16(0x8f, 0x26, LBA, 2), &travelling(&[(data.clone(), info)]), 0);
    assert_eq!(code(&each(right)), None);
    assert_eq!(sense(&each(Info { application: 8.into(), ..right })).1, Asc::APPLICATION_TAG_CHECK_FAILED);
}

#[test]
fn compare_and_write_and_orwrite_check_protection_information() {
    let rig = Rig::protected(Kind::One);
    let (old, new) = (block(5), block(6));
    let of = |block: &[u8]| travelling(&[(block.to_vec(), info(block, 7, 9))]);
    assert_eq!(code(&rig.run(&cdb16(0x8a, 0x20, LBA, 1), &of(&old), 0)), None);
    let both = [of(&old), of(&new)].concat();
    assert_eq!(code(&rig.run(&cdb16(0x89, 0x20, LBA, 1), &both, 0)), None);
    assert_eq!(stored_info(&rig, LBA), info(&new, 7, 9));
    let again = rig.run(&cdb16(0x89, 0x20, LBA, 1), &both, 0);
    assert_eq!(sense(&again).1, Asc::MISCOMPARE_DURING_VERIFY);
    let ones = vec![0xff; 512];
    assert_eq!(code(&rig.run(&cdb16(0x8b, 0x20, LBA, 1), &of(&ones), 0)), None);
    assert_eq!((stored_info(&rig, LBA), rig.memory.bytes.borrow()[9 * 512]), (info(&ones, 7, 9), 0xff));
    assert_eq!(code(&rig.run(&[0x9c, 0x20, 0, 0, 0, 0, 0, 0, 0, LBA, 0, 0, 0, 1, 0, 0], &of(&old), 0)), None);
    assert_eq!(stored_info(&rig, LBA), info(&old, 7, 9));
    // The stored protection information is checked before the blocks are used.
    put_info(&rig, LBA, info(&new, 7, 9));
    assert_eq!(sense(&rig.run(&cdb16(0x8b, 0, LBA, 1), &ones, 0)).1, Asc::GUARD_CHECK_FAILED);
}

#[test]
fn write_same_protects_blocks_and_unmap_disables_checks() {
    for kind in KINDS {
        let rig = Rig::protected(kind);
        let data = block(5);
        let first = reference(kind);
        let same = |flags: u8, out: &[u8]| {
            let mut cdb = of_kind(kind, (0x93, 0x0d), flags);
            *cdb.iter_mut().rev().nth(if kind == Kind::Two { 0 } else { 2 }).expect("a length") = 3;
            rig.run(&cdb, out, 0)
        };
        assert_eq!(code(&same(0x20, &travelling(&[(data.clone(), info(&data, 0x1207, first))]))), None, "{kind:?}");
        for (at, lba) in (LBA..LBA + 3).enumerate() {
            let counted = if kind == Kind::Three { first } else { first + at as u32 };
            assert_eq!(stored_info(&rig, lba), info(&data, 0x1207, counted), "{kind:?} {lba}");
        }
        assert_eq!(code(&same(0, &[0; 512])), None, "{kind:?}");
        assert_eq!(stored_info(&rig, LBA).guard.get(), 0, "{kind:?}: zeroes are protected as well");
        assert_ne!(stored_info(&rig, LBA), Info::BLANK, "{kind:?}");
        assert_eq!(code(&same(0x08, &[0; 512])), None, "{kind:?}: UNMAP");
        assert_eq!((stored_info(&rig, LBA), stored_info(&rig, LBA + 2)), (Info::BLANK, Info::BLANK), "{kind:?}");
        assert_eq!(rig.run(&[0x2a, 0, 0, 0, 0, LBA, 0, 0, 1, 0], &data, 0).status, Status::GOOD);
        let list = [&[0, 22, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, LBA, 0, 0, 0, 1][..], &[0; 4]].concat();
        assert_eq!(code(&rig.run(&[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], &list, 0)), None);
        assert_eq!(stored_info(&rig, LBA), Info::BLANK, "{kind:?}");
        let wrong = travelling(&[(data.clone(), Info { guard: 1.into(), ..info(&data, 0, first) })]);
        assert_eq!(sense(&same(0x20, &wrong)).1, Asc::GUARD_CHECK_FAILED, "{kind:?}");
        assert_eq!(sense(&same(0x20, &data)).1, Asc::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT, "{kind:?}");
    }
}

/// SBC-3 table 39
#[test]
fn format_unit_sets_the_protection_type() {
    let capacity = [0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0];
    let cases = [(0x00, 0, 0, 0), (0x80, 0, 1, 0x01), (0xc0, 0, 2, 0x03), (0xc0, 1, 3, 0x05)];
    let rig = Rig::protected(Kind::One);
    let other = rig.target.nexus(Rig::name("b"));
    for (information, usage, number, told) in cases.into_iter().rev() {
        other.each(|itl| while itl.take_attention().is_some() {});
        assert_eq!(rig.run(&[0x0a, 0, 0, LBA, 1, 0], &block(1), 0).status, Status::GOOD);
        let ended = rig.run(&[0x04, information | 0x10, 0, 0, 0, 0], &[usage, 0, 0, 0], 0);
        assert_eq!(code(&ended), None, "{information:02x}/{usage}");
        assert_eq!(rig.run(&capacity, &[], 32).data[12], told);
        assert!(rig.protection_store.bytes.borrow().iter().all(|byte| *byte == 0), "blank");
        assert_eq!(kept(&*rig.target.unit(0).expect("LUN exists").of_test().unit.metadata), Ok(Kind::of(number)));
        let attention = other.itl(0).expect("LUN exists").attention().map(|(asc, _)| asc);
        assert_eq!(attention, Some(Asc::CAPACITY_DATA_CHANGED));
        assert_eq!(rig.nexus.itl(0).expect("LUN exists").attention(), None);
    }
    let refused = |rig: &Rig, information: u8, usage: u8| {
        let ended = rig.run(&[0x04, information | 0x10, 0, 0, 0, 0], &[usage, 0, 0, 0], 0);
        (sense(&ended).1, [ended.sense[15], ended.sense[17]])
    };
    let (cdb, list) = (Asc::INVALID_FIELD_IN_CDB, Asc::INVALID_FIELD_IN_PARAMETER_LIST);
    assert_eq!(refused(&rig, 0x40, 0), (cdb, [0xcf, 1]));
    for (information, usage) in [(0x00, 1), (0x80, 1), (0xc0, 2), (0xc0, 7)] {
        assert_eq!(refused(&rig, information, usage), (list, [0x8a, 0]), "{information:02x}/{usage}");
    }
    assert_eq!(refused(&Rig::default(), 0x80, 0), (cdb, [0xcf, 1]));
    assert_eq!(refused(&Rig::default(), 0x00, 1), (list, [0x8a, 0]));
}

#[test]
fn no_block_fails_a_check_after_sanitize() {
    let rig = Rig::protected(Kind::One);
    assert_eq!(rig.run(&[0x0a, 0, 0, LBA, 1, 0], &block(1), 0).status, Status::GOOD);
    let pattern = [1, 0, 0, 4, 1, 2, 3, 4];
    assert_eq!(rig.run(&[0x48, 0x01, 0, 0, 0, 0, 0, 0, 8, 0], &pattern, 0).status, Status::GOOD);
    assert_eq!((stored_info(&rig, LBA), rig.memory.bytes.borrow()[512 * 9]), (Info::BLANK, 1));
    assert_eq!(rig.run(&[0x08, 0, 0, LBA, 1, 0], &[], 512).status, Status::GOOD);
}

#[test]
fn a_unit_with_protection_reports_its_capabilities() {
    for (rig, protect, extended) in
        [(Rig::default(), 0, 0), (Rig::protected(Kind::None), 1, 0x3f), (Rig::protected(Kind::Three), 1, 0x3f)]
    {
        assert_eq!(rig.run(&[0x12, 0, 0, 0, 96, 0], &[], 96).data[5] & 1, protect);
        assert_eq!(rig.run(&[0x12, 1, 0x86, 0, 64, 0], &[], 64).data[4], extended);
        let control = rig.run(&[0x1a, 8, 0x4a, 0, 255, 0], &[], 255).data;
        assert_eq!(control[4 + 5], protect << 7, "ATO is changeable");
    }
}

#[test]
fn a_flush_reaches_the_store_and_the_protection_store() {
    use lunar_core::io::Op;
    let rig = Rig::protected(Kind::One);
    assert_eq!(rig.run(&[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[], 0).status, Status::GOOD);
    assert_eq!((rig.memory.asked.take(), rig.protection_store.asked.take()), (vec![Op::Flush], vec![Op::Flush]));
    assert_eq!(rig.run(&[0x2a, 0x08, 0, 0, 0, 0, 0, 0, 1, 0], &[0; 512], 0).status, Status::GOOD);
    let durable = vec![Op::Write { durable: true }];
    assert_eq!((rig.memory.asked.take(), rig.protection_store.asked.take()), (durable.clone(), durable));
}

#[test]
fn a_fault_of_the_protection_store_fails_the_command() {
    use lunar_core::io::Fault;
    let rig = Rig::protected(Kind::One);
    rig.protection_store.fault.set(Some(Fault::Medium));
    let ended = rig.run(&cdb16(0x88, 0, LBA, 1), &[], 512);
    assert_eq!(sense(&ended), (SenseKey::MEDIUM_ERROR, Asc::UNRECOVERED_READ_ERROR, LBA));
    rig.protection_store.fault.set(Some(Fault::NoSpace));
    let ended = rig.run(&cdb16(0x8a, 0, LBA, 1), &[0; 512], 0);
    assert_eq!(sense(&ended).1, Asc::SPACE_ALLOCATION_FAILED);
    let past = rig.run(&[0x88, 0x20, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 1, 0, 0], &[], 520);
    assert_eq!((sense(&past).1, BLOCKS), (Asc::LBA_OUT_OF_RANGE, 0x800));
}
