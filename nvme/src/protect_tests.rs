use super::*;
use crate::fuzzing::{BLOCK, Ended, Rig, entry};
use lunar_core::protection::{Field, Info, guard};
use lunar_core::step::{Failure, Protected, Step};
use zerocopy::{FromBytes, IntoBytes};

const WRITE: u8 = 0x01;
const READ: u8 = 0x02;
const COMPARE: u8 = 0x05;
const ZEROES: u8 = 0x08;
const VERIFY: u8 = 0x0c;
const COPY: u8 = 0x19;

/// PRINFO.
const ACT: u32 = 8;
const GUARD: u32 = 4;
const APPLICATION: u32 = 2;
const REFERENCE: u32 = 1;
const ALL: u32 = 7;

const TYPES: [Kind; 3] = [Kind::One, Kind::Two, Kind::Three];
const BYTES: usize = BLOCK as usize;

fn rig(kind: Kind) -> Rig {
    let rig = Rig::default();
    rig.protect(kind, true);
    rig.enable_copies();
    rig
}

/// A command for blocks of the second namespace: PRINFO, reference tag, application tag and its mask.
fn sqe(opcode: u8, (first, count): (u32, u32), prinfo: u32, tags: (u32, u16, u16)) -> Sqe {
    let (reference, application, mask) = tags;
    let tags = u32::from(mask) << 16 | u32::from(application);
    entry(opcode, 2, &[first, 0, (count - 1) | prinfo << 26, 0, reference, tags])
}

fn run(rig: &Rig, sqe: Sqe, out: &[u8]) -> Ended {
    rig.run(&rig.io, &sqe, out)
}

fn status(rig: &Rig, sqe: Sqe, out: &[u8]) -> Status {
    run(rig, sqe, out).status
}

fn block(seed: u8) -> Vec<u8> {
    (0..BYTES).map(|at| (at / 3) as u8 ^ seed).collect()
}

fn info(data: &[u8], application: u16, reference: u32) -> Info {
    Info { guard: guard(data).into(), application: application.into(), reference: reference.into() }
}

/// A block with what protects it behind it.
fn extended(data: &[u8], info: Info) -> Vec<u8> {
    [data, info.as_bytes()].concat()
}

fn info_of(extended: &[u8]) -> Info {
    Info::read_from_bytes(&extended[BYTES..BYTES + INFO_BYTES]).expect("eight bytes")
}

/// The reference tag that the block at 5 has, written as the second of a command whose first has 4.
fn second(kind: Kind) -> u32 {
    if kind == Kind::Three { 4 } else { 5 }
}

#[test]
fn a_namespace_says_that_it_has_metadata_where_it_is_shown_so() {
    let page = |rig: &Rig| rig.run(&rig.admin, &entry(0x06, 2, &[0]), &[]).data;
    for (kind, types) in [(Kind::One, 0x11), (Kind::Two, 0x12), (Kind::Three, 0x14)] {
        let shown = page(&rig(kind));
        assert_eq!((&shown[25..30], &shown[128..132]), (&[0, 0x10, 1, types, kind as u8][..], &[8, 0, 9, 0][..]));
    }
    let [without, none] = [(Kind::One, false), (Kind::None, true)].map(|(kind, metadata)| {
        let rig = Rig::default();
        rig.protect(kind, metadata);
        page(&rig)
    });
    assert_eq!((&without[25..30], &without[128..132]), (&[0; 5][..], &[0, 0, 9, 0][..]));
    assert_eq!(without, none, "an unprotected namespace, or one shown without metadata, does not change");
    let rig = rig(Kind::One);
    let special = rig.run(&rig.admin, &entry(0x06, 2, &[5]), &[]);
    assert_eq!((special.status, special.data), (Status::SUCCESS, vec![0; 4096]), "guards of 16 bits, no storage tag");
}

#[test]
fn a_format_that_fits_is_done_and_no_other() {
    for kind in TYPES {
        let rig = rig(kind);
        let format = |id, dword| rig.run(&rig.admin, &entry(0x80, id, &[dword]), &[]).status;
        let fits = 0x10 | (kind as u32) << 5;
        assert_eq!(status(&rig, sqe(WRITE, (4, 1), ACT, (4, 0, 0)), &block(1)), Status::SUCCESS);
        for dword in [0, 0x10, fits ^ 0x60, fits & !0x10, fits | 0x100, fits | 1] {
            assert_eq!(format(2, dword), Status::INVALID_FORMAT, "{kind:?} {dword:#x}");
        }
        assert_eq!((format(1, fits), format(u32::MAX, fits)), (Status::INVALID_FIELD, Status::INVALID_FIELD));
        assert_eq!(format(2, fits), Status::SUCCESS);
        assert_eq!(run(&rig, sqe(READ, (4, 1), 0, (0, 0, 0)), &[]).data, extended(&[0; BYTES], Info::BLANK));
    }
}

#[test]
fn protection_information_is_inserted_stripped_or_transferred() {
    for kind in TYPES {
        let (rig, data) = (rig(kind), [block(1), block(2)]);
        assert_eq!(status(&rig, sqe(WRITE, (4, 2), ACT | ALL, (4, 0x1234, 0)), &data.concat()), Status::SUCCESS);
        let inserted =
            [extended(&data[0], info(&data[0], 0x1234, 4)), extended(&data[1], info(&data[1], 0x1234, second(kind)))];
        let tags = (4, 0x1200, 0xff00);
        let travelled = run(&rig, sqe(READ, (4, 2), ALL, tags), &[]);
        assert_eq!((travelled.status, travelled.data), (Status::SUCCESS, inserted.concat()), "{kind:?}");
        let stripped = run(&rig, sqe(READ, (4, 2), ACT | ALL, tags), &[]);
        assert_eq!((stripped.status, stripped.data), (Status::SUCCESS, data.concat()), "{kind:?}");
        // The same by hand, one block further.
        let moved = [info(&data[0], 0x1234, 5), info(&data[1], 0x1234, second(kind) + 1)];
        let sent = [extended(&data[0], moved[0]), extended(&data[1], moved[1])].concat();
        assert_eq!(status(&rig, sqe(WRITE, (5, 2), ALL, (5, 0x1234, 0xffff)), &sent), Status::SUCCESS);
        assert_eq!(run(&rig, sqe(READ, (5, 2), 0, (0, 0, 0)), &[]).data, sent, "{kind:?}");
        // Two blocks are not two blocks with what is behind them.
        assert_eq!(status(&rig, sqe(WRITE, (4, 2), 0, (4, 0, 0)), &data.concat()), Status::SGL_LENGTH);
        let mut short = sqe(READ, (4, 2), 0, (0, 0, 0));
        short.sgl.length = (2 * BLOCK).into();
        assert_eq!(status(&rig, short, &[]), Status::SGL_LENGTH);
    }
}

#[test]
fn protection_information_of_the_host_is_checked_by_field() {
    let data = block(7);
    let crc = guard(&data);
    for kind in TYPES {
        let rig = rig(kind);
        let write = |checks, guard: u16, application: u16, reference: u32| {
            let info = Info { guard: guard.into(), application: application.into(), reference: reference.into() };
            status(&rig, sqe(WRITE, (4, 1), checks, (4, 0x1200, 0xff00)), &extended(&data, info))
        };
        assert_eq!(write(ALL, crc ^ 1, 0x1334, 5), Status::GUARD_CHECK, "{kind:?}");
        assert_eq!(write(APPLICATION | REFERENCE, crc ^ 1, 0x1334, 5), Status::APPLICATION_CHECK, "{kind:?}");
        let expected = if kind == Kind::Three { Status::SUCCESS } else { Status::REFERENCE_CHECK };
        assert_eq!(write(REFERENCE, crc ^ 1, 0x1334, 5), expected, "{kind:?}");
        assert_eq!(write(0, crc ^ 1, 0x1334, 5), Status::SUCCESS, "{kind:?}: nothing is asked for");
        assert_eq!(write(ALL, crc, 0x1234, 4), Status::SUCCESS, "{kind:?}: masked bits of the application tag");
        // Protection information with the escape value is not checked.
        let open = if kind == Kind::Three { Status::GUARD_CHECK } else { Status::SUCCESS };
        assert_eq!((write(ALL, 0, 0xffff, 5), write(ALL, 0, 0xffff, u32::MAX)), (open, Status::SUCCESS), "{kind:?}");
    }
}

#[test]
fn protection_information_on_the_medium_is_checked_by_field() {
    let data = block(9);
    for kind in TYPES {
        let rig = rig(kind);
        let keep = |info| {
            let sent = extended(&data, info);
            assert_eq!(status(&rig, sqe(WRITE, (4, 1), 0, (0, 0, 0)), &sent), Status::SUCCESS);
        };
        let all = |checks, reference| {
            let tags = (reference, 0x1200, 0xff00);
            let read = [checks, ACT | checks].map(|prinfo| status(&rig, sqe(READ, (4, 1), prinfo, tags), &[]));
            assert_eq!(read[0], read[1], "whether it travels or not");
            assert_eq!(read[0], status(&rig, sqe(VERIFY, (4, 1), checks, tags), &[]));
            read[0]
        };
        keep(info(&data, 0x1234, 4));
        assert_eq!(all(ALL, 4), Status::SUCCESS, "{kind:?}");
        keep(info(&[1], 0x1334, 5));
        assert_eq!((all(0, 4), all(GUARD, 4)), (Status::SUCCESS, Status::GUARD_CHECK), "{kind:?}");
        assert_eq!(all(APPLICATION | REFERENCE, 4), Status::APPLICATION_CHECK, "{kind:?}");
        let expected = if kind == Kind::Three { Status::SUCCESS } else { Status::REFERENCE_CHECK };
        assert_eq!(all(REFERENCE, 4), expected, "{kind:?}");
        keep(info(&[1], 0xffff, u32::MAX));
        assert_eq!(all(ALL, 4), Status::SUCCESS, "{kind:?}: it says that it is not checked");
        keep(info(&data, 0x1234, 4));
        rig.memories[1].with(|bytes| bytes[4 * BYTES] ^= 1);
        assert_eq!(all(ALL, 4), Status::GUARD_CHECK, "{kind:?}: the medium is damaged");
        // Nothing was ever written there.
        assert_eq!(run(&rig, sqe(READ, (9, 1), ALL, (9, 1, 0xffff)), &[]).data, extended(&[0; BYTES], Info::BLANK));
    }
}

#[test]
fn invalid_protection_fields_are_refused() {
    let cases = [
        // With type 1 the host has to say what it is.
        (Kind::One, READ, REFERENCE, 5, Status::INVALID_PROTECTION),
        (Kind::One, VERIFY, REFERENCE, 5, Status::INVALID_PROTECTION),
        (Kind::One, WRITE, ACT, 5, Status::INVALID_PROTECTION),
        (Kind::One, ZEROES, ACT, 5, Status::INVALID_PROTECTION),
        (Kind::One, READ, GUARD, 5, Status::SUCCESS),
        (Kind::Two, READ, REFERENCE, 5, Status::SUCCESS),
        (Kind::Three, READ, REFERENCE, 5, Status::SUCCESS),
        (Kind::One, COMPARE, ACT, 4, Status::INVALID_PROTECTION),
        (Kind::One, VERIFY, ACT, 4, Status::INVALID_FIELD),
        (Kind::Two, ZEROES, GUARD, 4, Status::INVALID_PROTECTION),
    ];
    for (kind, opcode, prinfo, reference, expected) in cases {
        let out: &[u8] = if matches!(opcode, WRITE | COMPARE) { &[0; BYTES] } else { &[] };
        let ended = status(&rig(kind), sqe(opcode, (4, 1), prinfo, (reference, 0, 0)), out);
        assert_eq!(ended, expected, "{kind:?} {opcode:#x} {prinfo}");
    }
    let plain = Rig::default();
    assert_eq!(status(&plain, sqe(READ, (4, 1), ACT, (4, 0, 0)), &[]), Status::INVALID_FIELD, "it is not shown");
    // The protection information after the blocks counts towards the maximum data transfer size.
    let rig = rig(Kind::One);
    assert_eq!(status(&rig, sqe(READ, (0, 2048), 0, (0, 0, 0)), &[]), Status::INVALID_FIELD);
    assert_eq!(run(&rig, sqe(READ, (0, 2048), ACT | ALL, (0, 0, 0)), &[]).data.len(), 1 << 20);
    for (prinfo, expected) in [(0, 4 * 520), (ACT, 4 * 512)] {
        let mut read = sqe(READ, (0, 4), prinfo, (0, 0, 0));
        assert_eq!(rig.io.transfer_bytes(&read), expected);
        read.nsid.set(1);
        assert_eq!(rig.io.transfer_bytes(&read), 4 * 512, "the other has no metadata");
    }
}

#[test]
fn compare_checks_protection_information() {
    let (data, other) = (block(3), block(4));
    for kind in TYPES {
        let rig = rig(kind);
        assert_eq!(status(&rig, sqe(WRITE, (4, 1), ACT, (4, 0x77, 0)), &data), Status::SUCCESS);
        let compare = |checks, data: &[u8], info| {
            status(&rig, sqe(COMPARE, (4, 1), checks, (4, 0x77, 0xffff)), &extended(data, info))
        };
        assert_eq!(compare(ALL, &data, info(&data, 0x77, 4)), Status::SUCCESS, "{kind:?}");
        assert_eq!(compare(0, &data, info(&[1], 0x78, 5)), Status::SUCCESS, "{kind:?}: tags are not compared");
        assert_eq!(compare(ALL, &other, info(&other, 0x77, 4)), Status::COMPARE_FAILURE, "{kind:?}");
        assert_eq!(compare(ALL, &data, info(&other, 0x77, 4)), Status::GUARD_CHECK, "{kind:?}: guard of the host");
        rig.memories[1].with(|bytes| bytes[4 * BYTES] ^= 1);
        assert_eq!(compare(GUARD, &data, info(&data, 0x77, 4)), Status::GUARD_CHECK, "{kind:?}: guard of the medium");
    }
}

#[test]
fn zeroes_are_protected_on_request() {
    const DEALLOCATE: u32 = 1 << 25;
    for kind in TYPES {
        let rig = rig(kind);
        let zero = |more: u32, tags| {
            let mut zeroes = sqe(ZEROES, (4, 2), 0, tags);
            zeroes.cdw10[2] = (1 | more).into();
            assert_eq!(status(&rig, sqe(WRITE, (4, 2), ACT, (4, 0, 0)), &[7; 2 * BYTES]), Status::SUCCESS);
            assert_eq!(status(&rig, zeroes, &[]), Status::SUCCESS);
            let read = run(&rig, sqe(READ, (4, 2), 0, (0, 0, 0)), &[]).data;
            assert_eq!((&read[..BYTES], &read[BYTES + 8..2 * BYTES + 8]), (&[0; BYTES][..], &[0; BYTES][..]));
            (info_of(&read), info_of(&read[BYTES + INFO_BYTES..]))
        };
        let made = (info(&[0; BYTES], 0x55, 4), info(&[0; BYTES], 0x55, second(kind)));
        assert_eq!(zero(ACT << 26, (4, 0x55, 0)), made, "{kind:?}");
        for more in [0, DEALLOCATE, DEALLOCATE | ACT << 26] {
            assert_eq!(zero(more, (4, 0x55, 0)), (Info::BLANK, Info::BLANK), "{kind:?} {more:#x}");
        }
        let range = [[0; 4], 2_u32.to_le_bytes(), 4_u32.to_le_bytes(), [0; 4]].concat();
        assert_eq!(status(&rig, sqe(WRITE, (4, 2), ACT, (4, 0, 0)), &[7; 2 * BYTES]), Status::SUCCESS);
        assert_eq!(status(&rig, entry(0x09, 2, &[0, 4]), &range), Status::SUCCESS);
        let read = run(&rig, sqe(READ, (4, 1), ALL, (4, 9, 0xffff)), &[]);
        assert_eq!((read.status, info_of(&read.data)), (Status::SUCCESS, Info::BLANK), "{kind:?}: deallocated");
    }
}

#[test]
fn a_fused_pair_has_terms_for_each_half() {
    let [old, new] = [block(1), block(2)];
    for kind in TYPES {
        let rig = rig(kind);
        let fused = |compared: (u32, &[u8]), written: (u32, &[u8])| {
            let tags = (4, 0x1234, 0xffff);
            let (mut first, mut second) = (sqe(COMPARE, (4, 1), compared.0, tags), sqe(WRITE, (4, 1), written.0, tags));
            (first.flags, second.flags) = (1, 2);
            rig.run_fused([&first, &second], [compared.1, written.1]).map(|ended| ended.status)
        };
        let with = |data: &[u8]| extended(data, info(data, 0x1234, 4));
        assert_eq!(status(&rig, sqe(WRITE, (4, 1), ACT, (4, 0x1234, 0)), &old), Status::SUCCESS);
        let bad = extended(&new, info(&old, 0x1234, 4));
        let failed = [Status::GUARD_CHECK, Status::FUSED_FAILED];
        assert_eq!(fused((ALL, &with(&old)), (ALL, &bad)), failed, "{kind:?}");
        assert_eq!(fused((ALL, &bad), (ACT, &new)), failed, "{kind:?}");
        let differs = [Status::COMPARE_FAILURE, Status::FUSED_FAILED];
        assert_eq!(fused((ALL, &with(&new)), (ACT, &new)), differs, "{kind:?}");
        assert_eq!(run(&rig, sqe(READ, (4, 1), ACT, (4, 0, 0)), &[]).data, old, "{kind:?}: nothing was written");
        assert_eq!(fused((ALL, &with(&old)), (ALL, &with(&new))), [Status::SUCCESS; 2], "{kind:?}");
        assert_eq!(fused((ALL, &with(&new)), (ACT, &old)), [Status::SUCCESS; 2], "{kind:?}: PRACT of the write");
        assert_eq!(run(&rig, sqe(READ, (4, 1), ALL, (4, 0x1234, 0xffff)), &[]).data, with(&old), "{kind:?}");
        assert_eq!(fused((ACT, &old), (ACT, &new))[0], Status::INVALID_PROTECTION, "{kind:?}");
    }
}

/// A source range of format 2.
fn source(namespace: u32, first: u32, blocks: u16, tags: (u32, u16, u16)) -> Vec<u8> {
    let mut range = vec![0; 32];
    range[..4].copy_from_slice(&namespace.to_le_bytes());
    range[8..12].copy_from_slice(&first.to_le_bytes());
    range[16..18].copy_from_slice(&(blocks - 1).to_le_bytes());
    range[24..28].copy_from_slice(&tags.0.to_le_bytes());
    range[28..30].copy_from_slice(&tags.1.to_le_bytes());
    range[30..].copy_from_slice(&tags.2.to_le_bytes());
    range
}

/// Copies to a namespace, from block 20 on: format, PRINFOR, PRINFOW.
fn copy(rig: &Rig, to: u32, (format, reads, writes): (u32, u32, u32), ranges: &[Vec<u8>]) -> Status {
    let dword = (ranges.len() as u32 - 1) | format << 8 | reads << 12 | writes << 26;
    status(rig, entry(COPY, to, &[20, 0, dword, 0, 20, 0x66 | 0xffff << 16]), &ranges.concat())
}

#[test]
fn copies_keep_or_regenerate_protection_information() {
    let data = [block(1), block(2), block(3)];
    for kind in TYPES {
        let rig = rig(kind);
        assert_eq!(status(&rig, sqe(WRITE, (4, 3), ACT, (4, 0x77, 0)), &data.concat()), Status::SUCCESS);
        let read = |at: u32| run(&rig, sqe(READ, (at, 1), 0, (0, 0, 0)), &[]).data;
        let behind = |first: u32, by: u32| if kind == Kind::Three { first } else { first + by };
        let ranges = [source(2, 4, 1, (4, 0x77, 0xffff)), source(2, 5, 2, (behind(4, 1), 0x77, 0xffff))];
        // Made anew: what is read is checked, and what is written has tags of its own.
        for format in [0, 2] {
            assert_eq!(copy(&rig, 2, (format, ACT | ALL, ACT), &ranges), Status::SUCCESS, "{kind:?} {format}");
        }
        for (at, data) in (0..).zip(&data) {
            let made = info(data, 0x66, behind(20, at));
            assert_eq!(read(20 + at), extended(data, made), "{kind:?} {at}");
        }
        let bad = source(2, 4, 1, (4, 0x78, 0xffff));
        assert_eq!(copy(&rig, 2, (2, ACT | ALL, ACT), &[bad]), Status::APPLICATION_CHECK, "{kind:?}");
        // Taken along: what is written is checked as if it had been sent.
        assert_eq!(copy(&rig, 2, (2, ALL, 0), &ranges), Status::SUCCESS, "{kind:?}");
        assert_eq!((read(20), read(22)), (read(4), read(6)), "{kind:?}");
        assert_eq!(copy(&rig, 2, (2, 0, APPLICATION), &ranges), Status::APPLICATION_CHECK, "{kind:?}");
        let expected = if kind == Kind::Three { Status::SUCCESS } else { Status::REFERENCE_CHECK };
        assert_eq!(copy(&rig, 2, (2, 0, REFERENCE), &ranges), expected, "{kind:?}");
        assert_eq!(copy(&rig, 2, (2, ACT, 0), &ranges), Status::INVALID_FIELD, "{kind:?}: both or none");
        rig.memories[1].with(|bytes| bytes[4 * BYTES] ^= 1);
        assert_eq!(copy(&rig, 2, (2, GUARD, 0), &ranges), Status::GUARD_CHECK, "{kind:?}: the medium is damaged");
    }
}

#[test]
fn copies_insert_and_strip_protection_information() {
    let data = block(5);
    for kind in TYPES {
        let rig = rig(kind);
        assert_eq!(status(&rig, sqe(WRITE, (4, 1), ACT, (4, 0x77, 0)), &data), Status::SUCCESS);
        let range = [source(2, 4, 1, (4, 0x77, 0xffff))];
        assert_eq!(copy(&rig, 1, (2, ACT | ALL, 0), &range), Status::SUCCESS, "{kind:?}: stripped");
        assert_eq!(rig.run(&rig.io, &entry(READ, 1, &[20, 0, 0]), &[]).data, data, "{kind:?}");
        assert_eq!(copy(&rig, 1, (2, ALL, 0), &range), Status::INCOMPATIBLE, "{kind:?}");
        let wrong = [source(2, 4, 1, (4, 0x78, 0xffff))];
        assert_eq!(copy(&rig, 1, (2, ACT | ALL, 0), &wrong), Status::APPLICATION_CHECK, "{kind:?}");
        let plain = [source(1, 20, 1, (0, 0, 0))];
        assert_eq!(copy(&rig, 2, (2, 0, ACT), &plain), Status::SUCCESS, "{kind:?}: inserted");
        let read = run(&rig, sqe(READ, (20, 1), 0, (0, 0, 0)), &[]).data;
        assert_eq!(read, extended(&data, info(&data, 0x66, 20)), "{kind:?}");
        assert_eq!(copy(&rig, 2, (2, 0, 0), &plain), Status::INCOMPATIBLE, "{kind:?}");
        let both = [source(1, 20, 1, (0, 0, 0)), source(2, 4, 1, (4, 0x77, 0xffff))];
        assert_eq!(copy(&rig, 2, (2, ACT, ACT), &both), Status::INCOMPATIBLE, "{kind:?}: they differ");
        // Formats with longer tags are of longer guards.
        let long = [[range[0].clone(), vec![0; 8]].concat()];
        assert_eq!(copy(&rig, 2, (3, ACT, ACT), &long), Status::INVALID_NAMESPACE, "{kind:?}");
        assert_eq!(copy(&rig, 2, (4, ACT, ACT), &long), Status::INVALID_FIELD, "{kind:?}");
    }
}

#[test]
fn scsi_and_nvme_see_one_protection_information() {
    let data = block(6);
    for kind in TYPES {
        let rig = rig(kind);
        let scsi = |step, first| {
            let terms = Terms {
                carried: true,
                sent: Checks::ALL,
                kept: Checks::ALL,
                first: Some(first),
                application: 0,
                mask: 0,
                ..Terms::PLAIN
            };
            Step::Protected(Box::new(Protected { step, terms, other: terms }))
        };
        let at = |lba: u64| lba * u64::from(BLOCK);
        let sent = extended(&data, info(&data, 0x4321, 4));
        let write = scsi(Step::Write { offset: at(4), len: at(1), durable: false }, 4);
        assert_eq!(rig.carry(&write, &sent).0, Ok(()), "{kind:?}");
        let read = run(&rig, sqe(READ, (4, 1), ALL, (4, 0x4321, 0xffff)), &[]);
        assert_eq!((read.status, read.data), (Status::SUCCESS, sent), "{kind:?}");
        let wrong = run(&rig, sqe(READ, (4, 1), ALL, (4, 0x4322, 0xffff)), &[]);
        assert_eq!(wrong.status, Status::APPLICATION_CHECK, "{kind:?}");
        // And back.
        assert_eq!(status(&rig, sqe(WRITE, (9, 1), ACT, (9, 0x8765, 0)), &data), Status::SUCCESS);
        let read = |first| rig.carry(&scsi(Step::Read { offset: at(9), len: at(1) }, first), &[]);
        assert_eq!(read(9), (Ok(()), extended(&data, info(&data, 0x8765, 9))), "{kind:?}");
        let failure = Failure::Protection { field: Field::Reference, at: 0, compared: false };
        let expected = if kind == Kind::Two { Err(failure) } else { Ok(()) };
        assert_eq!(read(8).0, expected, "{kind:?}: type 2 uses the reference tag of the command");
        // Commands that transfer no protection information: it is generated on writes and checked on reads.
        let plain = Step::Write { offset: at(12), len: at(1), durable: false };
        assert_eq!(rig.carry(&plain, &data).0, Ok(()));
        let read = run(&rig, sqe(READ, (12, 1), ACT | GUARD, (12, 0, 0)), &[]);
        assert_eq!((read.status, read.data), (Status::SUCCESS, data.clone()), "{kind:?}");
        rig.memories[1].with(|bytes| bytes[9 * BYTES] ^= 1);
        let failed = Failure::Protection { field: Field::Guard, at: 0, compared: false };
        assert_eq!(rig.carry(&Step::Read { offset: at(9), len: at(1) }, &[]).0, Err(failed), "{kind:?}");
    }
}
