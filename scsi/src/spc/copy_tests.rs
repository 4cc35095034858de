use super::*;
use crate::command::{Reply, Status};
use crate::copy::list::{CSCDS_MAX, DESCRIPTORS_BYTES_MAX, SEGMENTS_MAX};
use crate::copy::results::COPIES_MAX;
use crate::sense::SenseKey;
use crate::testing::{BLOCKS, Ended, Memory, Rig};
use lunar_core::io::{Fault, Op, Traits};
use lunar_core::mem::{Arena, Sg};
use lunar_core::port::Transfer;
use lunar_core::range::Span;
use lunar_core::step::SlotContext;
use lunar_unit::AccessState;
use lunar_unit::reserve::Held;
use std::cell::RefCell;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Poll, Waker};

/// A rig with a second disk at LUN 1, and the memory of that disk.
fn two(traits: Traits) -> (Rig, Rc<Memory>) {
    let rig = Rig::default();
    let bytes = RefCell::new(vec![0; traits.size as usize]);
    let memory = Rc::new(Memory { bytes, ..Memory::default() });
    rig.target.add_unit(1, Rig::unit(1, traits, memory.clone()));
    rig.nexus.each(|itl| while itl.take_attention().is_some() {});
    (rig, memory)
}

/// The NAA CSCD descriptor of a disk of the rig.
fn cscd(unit: u8) -> Vec<u8> {
    let mut cscd = vec![0xe4, 0, 0, 0, 0x01, 0x03, 0, 8, 0x30, 1, 2, 3, 4, 5, 6, 7 + unit];
    cscd.resize(32, 0);
    cscd[30] = 2;
    cscd
}

fn segment(source: u8, destination: u8, count: u16, from: u64, to: u64) -> Vec<u8> {
    let mut segment = vec![0x02, 0, 0, 0x18, 0, source, 0, destination, 0, 0];
    segment.extend(count.to_be_bytes());
    segment.extend(from.to_be_bytes());
    segment.extend(to.to_be_bytes());
    segment
}

fn bytes_segment(count: u32, from: (u64, u16), to: (u64, u16)) -> Vec<u8> {
    let mut segment = vec![0x0a, 0, 0, 0x1c, 0, 0, 0, 0];
    segment.extend(count.to_be_bytes());
    segment.extend(from.0.to_be_bytes().into_iter().chain(to.0.to_be_bytes()));
    segment.extend(from.1.to_be_bytes().into_iter().chain(to.1.to_be_bytes()));
    segment
}

fn lid1(id: u8, flags: u8, cscds: &[Vec<u8>], segments: &[Vec<u8>]) -> Vec<u8> {
    let (cscds, segments) = (cscds.concat(), segments.concat());
    let mut list = vec![id, flags];
    list.extend((cscds.len() as u16).to_be_bytes());
    list.extend([0; 4]);
    list.extend((segments.len() as u32).to_be_bytes());
    list.extend([0; 4]);
    [list, cscds, segments].concat()
}

fn lid4(id: u32, flags: u8, cscds: &[Vec<u8>], segments: &[Vec<u8>]) -> Vec<u8> {
    let (cscds, segments) = (cscds.concat(), segments.concat());
    let mut list = vec![1, flags, 0, 0x20];
    list.resize(16, 0);
    list.extend([0xff, 0, 0, 0]);
    list.extend(id.to_be_bytes());
    list.resize(42, 0);
    list.extend((cscds.len() as u16).to_be_bytes());
    list.extend((segments.len() as u16).to_be_bytes());
    list.extend([0; 2]);
    [list, cscds, segments].concat()
}

fn cdb(op: u8, action: u8, id: [u8; 4], length: u32) -> [u8; 16] {
    let mut cdb = [op, action, id[0], id[1], id[2], id[3], 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    cdb[10..14].copy_from_slice(&length.to_be_bytes());
    cdb
}

fn copy(rig: &Rig, list: &[u8]) -> Ended {
    rig.run(&cdb(0x83, 0, [0; 4], list.len() as u32), list, 0)
}

/// One segment from LUN 0 to LUN 1.
fn across(rig: &Rig) -> Ended {
    copy(rig, &lid1(1, 0, &[cscd(0), cscd(1)], &[segment(0, 1, 4, 0, 0)]))
}

/// Sense key, additional sense code, segment and field pointer bytes of fixed format sense data.
fn sense(ended: &Ended) -> (SenseKey, Asc, u8, [u8; 3]) {
    assert_eq!((ended.status, ended.sense.len()), (Status::CHECK_CONDITION, 18), "{ended:?}");
    let asc = Asc(u16::from_be_bytes([ended.sense[12], ended.sense[13]]));
    (SenseKey(ended.sense[2]), asc, ended.sense[11], [ended.sense[15], ended.sense[16], ended.sense[17]])
}

fn fill(memory: &Memory) -> Vec<u8> {
    let mut bytes = memory.bytes.borrow_mut();
    (0..bytes.len()).for_each(|at| bytes[at] = (at / 512) as u8 ^ at as u8);
    bytes.clone()
}

#[test]
fn blocks_are_copied_between_disks_and_within_a_disk() {
    let (rig, other) = two(Rig::traits());
    let source = fill(&rig.memory);
    let segments = [segment(0, 1, 8, 1, 100), segment(1, 1, 4, 100, 200), segment(1, 0, 2, 201, BLOCKS - 2)];
    let ended = copy(&rig, &lid1(7, 0x27, &[cscd(0), cscd(1)], &segments));
    assert_eq!((ended.status, ended.wanted), (Status::GOOD, 16 + 64 + 84));
    let copied = other.bytes.borrow();
    assert!(copied[100 * 512..108 * 512] == source[512..9 * 512]);
    assert!(copied[200 * 512..204 * 512] == source[512..5 * 512]);
    assert!(rig.memory.bytes.borrow()[(BLOCKS as usize - 2) * 512..] == source[2 * 512..4 * 512]);
    assert_eq!(copied.iter().filter(|byte| **byte != 0).count(), {
        let count = |range: std::ops::Range<usize>| source[range].iter().filter(|byte| **byte != 0).count();
        count(512..9 * 512) + count(512..5 * 512)
    });
    let status = rig.run(&cdb(0x84, 0, [7, 0, 0, 0], 255), &[], 255).data;
    assert_eq!(status, [0, 0, 0, 8, 1, 0, 3, 0, 0, 0, 14 * 2, 0]);
    let status = rig.run(&cdb(0x84, 5, [0, 0, 0, 7], 255), &[], 255).data;
    let mut expected = vec![0, 0, 0, 28, 0, 1, 0, 0, 0xff, 0xff, 0xff, 0xfe, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 28, 0, 0, 3];
    expected.resize(32, 0);
    assert_eq!(status, expected);
}

#[test]
fn lid4_lists_and_byte_segments_copy_as_well() {
    let (rig, other) = two(Rig::traits());
    let source = fill(&rig.memory);
    let mut by_uuid = vec![0xe4, 0xc0, 0xff, 0xff, 0x01, 0x0a, 0, 18, 0x10, 0];
    by_uuid.extend([0xa0, 1, 2, 3, 4, 5, 0x46, 7, 0x88, 9, 10, 11, 12, 13, 14, 16, 0, 0, 0, 0, 2, 0]);
    let bytes = bytes_segment(1024, (2, 0), (4, 512));
    let list = lid4(0x0102_0304, 0, &[cscd(0), by_uuid], &[segment(0, 1, 1, 1, 9), bytes]);
    let ended = rig.run(&cdb(0x83, 1, [0; 4], list.len() as u32), &list, 0);
    assert_eq!(ended.status, Status::GOOD, "{ended:?}");
    assert!(other.bytes.borrow()[9 * 512..10 * 512] == source[512..1024]);
    assert!(rig.memory.bytes.borrow()[5 * 512..7 * 512] == source[1024..2048]);
    let status = rig.run(&cdb(0x84, 5, [1, 2, 3, 4], 255), &[], 255).data;
    assert_eq!((status[4], status[5], &status[22..26]), (1, 1, &[6, 0, 0, 2][..]));
}

#[test]
fn an_empty_list_copies_nothing() {
    let rig = Rig::default();
    assert_eq!(copy(&rig, &[]).status, Status::GOOD);
    assert_eq!(copy(&rig, &lid1(0, 0, &[], &[])).status, Status::GOOD);
    assert_eq!(copy(&rig, &lid1(0, 0x18, &[cscd(0)], &[segment(0, 0, 0, 0, 0)])).status, Status::GOOD);
    assert!(rig.memory.asked.take().is_empty());
}

#[test]
fn invalid_lists_are_refused_with_a_field_pointer() {
    use SenseKey as Key;
    let rig = Rig::default();
    let good = lid1(1, 0, &[cscd(0)], &[segment(0, 0, 1, 0, 9)]);
    let with = |at: usize, byte: u8| {
        let mut list = good.clone();
        list[at] = byte;
        list
    };
    let many =
        |cscds: usize, segments: usize| lid1(1, 0, &vec![cscd(0); cscds], &vec![segment(0, 0, 1, 0, 9); segments]);
    let long = bytes_segment((256 << 20) + 512, (0, 0), (0, 0));
    const FIELD: Asc = Asc::INVALID_FIELD_IN_PARAMETER_LIST;
    const LENGTH: Asc = Asc::PARAMETER_LIST_LENGTH_ERROR;
    let refusals = [
        ("a reserved LIST ID USAGE", with(1, 0x08), FIELD, [0x8c, 0, 1]),
        ("a reserved bit", with(1, 0x40), FIELD, [0x8f, 0, 1]),
        ("a list identifier that is not used", with(1, 0x18), FIELD, [0x80, 0, 0]),
        ("an incomplete CSCD descriptor", with(3, 31), FIELD, [0x80, 0, 2]),
        ("inline data", with(15, 1), Asc::INLINE_DATA_LENGTH_EXCEEDED, [0x80, 0, 12]),
        ("an unsupported CSCD descriptor", with(16, 0xe0), Asc::UNSUPPORTED_TARGET_DESCRIPTOR_TYPE_CODE, [0x80, 0, 16]),
        ("a designator longer than its field", with(23, 21), FIELD, [0x80, 0, 23]),
        (
            "an unsupported segment descriptor",
            with(48, 0x03),
            Asc::UNSUPPORTED_SEGMENT_DESCRIPTOR_TYPE_CODE,
            [0x80, 0, 48],
        ),
        ("a segment descriptor of a wrong length", with(51, 0x17), FIELD, [0x80, 0, 50]),
        ("an incomplete segment descriptor", with(11, 27), LENGTH, [0; 3]),
        ("SEGMENT DESCRIPTOR LIST LENGTH beyond the list", with(11, 56), LENGTH, [0; 3]),
        ("CSCD DESCRIPTOR LIST LENGTH beyond the list", with(2, 1), LENGTH, [0; 3]),
        ("a header without descriptors", good[..16].to_vec(), LENGTH, [0; 3]),
        ("an incomplete header", good[..15].to_vec(), LENGTH, [0; 3]),
        ("too many CSCDs", many(CSCDS_MAX + 1, 1), Asc::TOO_MANY_TARGET_DESCRIPTORS, [0x80, 0, 2]),
        ("too many segments", many(1, SEGMENTS_MAX + 1), Asc::TOO_MANY_SEGMENT_DESCRIPTORS, [0x80, 0, 8]),
        ("too many descriptors in all", many(CSCDS_MAX, SEGMENTS_MAX + 20), LENGTH, [0; 3]),
        ("a segment that is too long", lid1(1, 0, &[cscd(0)], &[long]), FIELD, [0x80, 0, 56]),
    ];
    for (what, list, asc, pointer) in refusals {
        assert_eq!(sense(&copy(&rig, &list)), (Key::ILLEGAL_REQUEST, asc, 0, pointer), "{what}");
    }
    let longest = cdb(0x83, 0, [0; 4], u32::MAX);
    assert_eq!(sense(&rig.run(&longest, &[0; 2 * DESCRIPTORS_BYTES_MAX], 0)).1, LENGTH);
    assert_eq!(
        sense(&rig.run(&cdb(0x83, 0, [0; 4], 76), &good[..40], 0)).1,
        LENGTH,
        "the initiator sends less than the list length"
    );
    assert!(rig.memory.asked.take().is_empty(), "no block was copied");
    assert_eq!(copy(&rig, &many(CSCDS_MAX, SEGMENTS_MAX)).status, Status::GOOD, "the longest valid list");
}

#[test]
fn the_fixed_fields_of_a_lid4_header_are_checked() {
    let rig = Rig::default();
    let good = lid4(1, 0, &[cscd(0)], &[segment(0, 0, 1, 0, 9)]);
    let run = |list: &[u8]| rig.run(&cdb(0x83, 1, [0; 4], list.len() as u32), list, 0);
    assert_eq!(run(&good).status, Status::GOOD);
    for (at, byte, pointed) in [(0, 2, 0), (3, 0x21, 2), (15, 1, 15), (15, 2, 15), (16, 0xfe, 16), (1, 0x18, 20)] {
        let mut list = good.clone();
        list[at] = byte;
        let expected = (SenseKey::ILLEGAL_REQUEST, Asc::INVALID_FIELD_IN_PARAMETER_LIST, 0, [0x80, 0, pointed]);
        assert_eq!(sense(&run(&list)), expected, "byte {at}");
    }
    assert_eq!(sense(&run(&good[..47])).1, Asc::PARAMETER_LIST_LENGTH_ERROR);
}

#[test]
fn a_list_with_an_invalid_segment_copies_nothing() {
    let rig = Rig::default();
    let good = segment(0, 0, 1, 0, 9);
    let run = |cscd: Vec<u8>, bad: Vec<u8>| {
        let ended = copy(&rig, &lid1(1, 0, &[cscd], &[good.clone(), bad]));
        assert!(rig.memory.asked.take().is_empty(), "the first segment must not be copied");
        sense(&ended)
    };
    let with = |at: usize, byte: u8| {
        let mut cscd = cscd(0);
        cscd[at] = byte;
        run(cscd, good.clone())
    };
    let aborted = |asc, segment, pointer| (SenseKey::COPY_ABORTED, asc, segment, pointer);
    let unreachable = aborted(Asc::COPY_TARGET_DEVICE_NOT_REACHABLE, 0, [0x80, 0, 20]);
    for (at, byte) in [(4, 0x02), (5, 0x13), (5, 0x02), (7, 7), (15, 8), (15, 6)] {
        assert_eq!(with(at, byte), unreachable, "byte {at}");
    }
    let wrong = |byte| aborted(Asc::INCORRECT_COPY_TARGET_DEVICE_TYPE, 0, [0x80, 0, byte]);
    assert_eq!(with(1, 0x01), wrong(17), "a tape");
    assert_eq!(with(30, 0x10), wrong(45), "another block length");
    let index = |byte| aborted(Asc::UNREACHABLE_COPY_TARGET, 1, [0xa0, 0, byte]);
    assert_eq!(run(cscd(0), segment(1, 0, 1, 0, 9)), index(4));
    assert_eq!(run(cscd(0), segment(0, 1, 1, 0, 9)), index(6));
    let outside = |byte| aborted(Asc::NO_ADDITIONAL_SENSE_INFORMATION, 1, [0xa0, 0, byte]);
    assert_eq!(run(cscd(0), segment(0, 0, 2, BLOCKS - 1, 0)), outside(12));
    assert_eq!(run(cscd(0), segment(0, 0, 2, u64::MAX, 0)), outside(12));
    assert_eq!(run(cscd(0), segment(0, 0, 2, 0, BLOCKS - 1)), outside(20));
    let inexact = aborted(Asc::UNEXPECTED_INEXACT_SEGMENT, 1, [0xa0, 0, 8]);
    for bad in
        [bytes_segment(100, (0, 0), (9, 0)), bytes_segment(512, (0, 100), (9, 0)), bytes_segment(512, (0, 0), (9, 100))]
    {
        assert_eq!(run(cscd(0), bad), inexact);
    }
}

#[test]
fn sources_must_be_readable_and_destinations_writable() {
    let aborted = |asc| (SenseKey::COPY_ABORTED, asc, 0, [0; 3]);
    let (rig, other) = two(Rig::traits());
    let itl = rig.nexus.itl(1).expect("LUN exists");
    let back = |rig: &Rig| copy(rig, &lid1(1, 0, &[cscd(0), cscd(1)], &[segment(1, 0, 4, 0, 0)]));
    for held in [Held::Spc2, Held::WriteExclusive, Held::ExclusiveAccess] {
        itl.set_held(held);
        assert_eq!(sense(&across(&rig)), aborted(Asc::THIRD_PARTY_DEVICE_FAILURE), "{held:?}");
        let reads = back(&rig);
        if held == Held::WriteExclusive {
            assert_eq!(reads.status, Status::GOOD, "Write Exclusive allows reads of other nexuses");
        } else {
            assert_eq!(sense(&reads), aborted(Asc::THIRD_PARTY_DEVICE_FAILURE), "{held:?}");
        }
    }
    itl.set_held(Held::None);
    itl.set_access(AccessState::Standby);
    assert_eq!(sense(&across(&rig)), aborted(Asc::NOT_READY_STANDBY));
    assert_eq!(sense(&back(&rig)), aborted(Asc::NOT_READY_STANDBY));
    itl.set_access(AccessState::ActiveOptimized);
    rig.target.remove_unit(1);
    rig.nexus.each(|itl| while itl.take_attention().is_some() {});
    let gone = (SenseKey::COPY_ABORTED, Asc::COPY_TARGET_DEVICE_NOT_REACHABLE, 0, [0x80, 0, 52]);
    assert_eq!(sense(&across(&rig)), gone);
    assert_eq!(sense(&back(&rig)), gone);
    assert!(other.asked.take().iter().all(|op| *op == Op::Read));
    let (rig, _) = two(Traits { read_only: true, ..Rig::traits() });
    assert_eq!(sense(&across(&rig)), aborted(Asc::WRITE_PROTECTED));
    assert_eq!(back(&rig).status, Status::GOOD);
}

#[test]
fn a_copy_does_not_report_unit_attentions_of_its_disks() {
    let (rig, _) = two(Rig::traits());
    let itl = rig.nexus.itl(1).expect("LUN exists");
    itl.establish_unit_attention(Asc::CAPACITY_DATA_CHANGED);
    assert_eq!(across(&rig).status, Status::GOOD);
    assert_eq!(itl.attention(), Some((Asc::CAPACITY_DATA_CHANGED, 1)));
}

#[test]
fn a_copy_to_a_disk_without_cache_is_flushed() {
    let (rig, other) = two(Traits { write_cache: false, ..Rig::traits() });
    assert_eq!(across(&rig).status, Status::GOOD);
    assert_eq!(other.asked.take(), [Op::Write { durable: false }, Op::Flush]);
    assert_eq!(rig.memory.asked.take(), [Op::Read]);
}

#[test]
fn failure_details_report_how_a_copy_failed() {
    let (rig, other) = two(Rig::traits());
    rig.memory.fault.set(Some(Fault::Medium));
    assert_eq!(sense(&across(&rig)), (SenseKey::COPY_ABORTED, Asc::UNRECOVERED_READ_ERROR, 0, [0; 3]));
    let unit = rig.nexus.itl(0).expect("LUN exists").lu.of_test().unit.clone();
    let whole = Span { start: 0, end: unit.geometry.bytes() };
    drop(unit.medium.uncorrectable().mark(whole, 512, &*unit.metadata).expect("room"));
    assert_eq!(sense(&across(&rig)).1, Asc::LBA_MARKED_BAD);
    unit.medium.uncorrectable().unmarked(whole);
    rig.memory.fault.set(Some(Fault::Medium));
    assert_eq!(sense(&across(&rig)).1, Asc::UNRECOVERED_READ_ERROR);
    let details = rig.run(&cdb(0x84, 4, [1, 0, 0, 0], 255), &[], 255).data;
    assert_eq!(
        (details.len(), &details[..4], &details[56..63]),
        (78, &[0, 0, 0, 74][..], &[2, 0, 0, 18, 0x70, 0, 0xa][..])
    );
    assert_eq!(rig.run(&cdb(0x84, 0, [1, 0, 0, 0], 255), &[], 255).data[4], 2);
    let status = rig.run(&cdb(0x84, 5, [0, 0, 0, 1], 255), &[], 255).data;
    assert_eq!((status.len(), &status[5..6], &status[12..15]), (50, &[2][..], &[2, 18, 18][..]));
    other.fault.set(Some(Fault::NoSpace));
    assert_eq!(sense(&across(&rig)).1, Asc::SPACE_ALLOCATION_FAILED);
    other.fault.set(Some(Fault::NoMemory));
    assert_eq!(across(&rig).status, Status::BUSY);
    assert_eq!(across(&rig).status, Status::GOOD);
    assert_eq!(sense(&rig.run(&cdb(0x84, 4, [1, 0, 0, 0], 255), &[], 255)).3, [0xc0, 0, 2], "the copy was successful");
}

#[test]
fn results_are_kept_by_list_id_usage_until_a_reset() {
    let (rig, _) = two(Rig::traits());
    let status = |id: u8| rig.run(&cdb(0x84, 0, [id, 0, 0, 0], 255), &[], 255).status;
    let run = |id: u8, flags: u8| copy(&rig, &lid1(id, flags, &[cscd(0)], &[segment(0, 0, 1, 0, 9)])).status;
    assert_eq!((status(1), run(1, 0), status(1)), (Status::CHECK_CONDITION, Status::GOOD, Status::GOOD));
    assert_eq!((run(2, 0x10), status(2)), (Status::GOOD, Status::CHECK_CONDITION), "NRCR");
    assert_eq!((run(0, 0x18), status(0)), (Status::GOOD, Status::CHECK_CONDITION), "without list identifier");
    let other = rig.target.nexus(Rig::name("b"));
    other.each(|itl| while itl.take_attention().is_some() {});
    assert_eq!(rig.run_as(&other, &cdb(0x84, 0, [1, 0, 0, 0], 255), &[], 255).status, Status::CHECK_CONDITION);
    rig.lun.set(crate::lun::Lun::from_number(1));
    assert_eq!(status(1), Status::CHECK_CONDITION, "the copy manager of another logical unit");
    rig.lun.set(crate::lun::Lun::from_number(0));
    let last = 1 + COPIES_MAX as u8;
    (2..=last).for_each(|id| assert_eq!(run(id, 0), Status::GOOD));
    assert_eq!((status(1), status(2), status(last)), (Status::CHECK_CONDITION, Status::GOOD, Status::GOOD));
    rig.nexus.copies.forget(0);
    assert_eq!(status(last), Status::CHECK_CONDITION, "a reset");
}

#[test]
fn operating_parameters_report_the_limits() {
    let rig = Rig::default();
    let mut expected = vec![0, 0, 0, 43, 1, 0, 0, 0, 0, 64, 0, 64, 0, 0, 0x10, 0, 0x10, 0, 0, 0];
    expected.resize(34, 0);
    expected.extend([0, 128, 128, 9, 0, 0, 0, 0, 0, 3, 0x02, 0x0a, 0xe4]);
    assert_eq!(rig.run(&cdb(0x84, 3, [0; 4], 255), &[], 255).data, expected);
    assert_eq!(rig.run(&cdb(0x84, 3, [0; 4], 20), &[], 255).data, expected[..20]);
}

/// A transfer of a parameter list without other data.
struct Wire<'a>(&'a [u8], &'a Arena);

impl Transfer for Wire<'_> {
    async fn room(&self) -> Result<(), Fault> {
        Ok(())
    }

    async fn pull(&self, offset: usize, len: usize) -> Result<Sg, Fault> {
        Ok(self.1.copy(&self.0[offset..offset + len]).ok_or(Fault::NoMemory)?.into())
    }

    fn push(&self, _offset: usize, _data: Sg) -> Result<(), Fault> {
        Err(Fault::Protocol)
    }

    fn aborted(&self) -> bool {
        false
    }
}

fn start<'a>(
    rig: &'a Rig,
    arena: &'a Arena,
    cdb: [u8; 16],
    list: &'a [u8],
) -> Pin<Box<dyn Future<Output = Reply> + 'a>> {
    Box::pin(async move {
        let command = rig.command(&cdb, list.len(), 0);
        let mut slot = SlotContext::new(arena.clone());
        let mut reply = Reply::default();
        rig.target.execute(&rig.nexus, &command, &Wire(list, arena), &mut slot, &mut reply).await;
        reply
    })
}

fn poll<F: Future + ?Sized>(future: &mut Pin<Box<F>>) -> Option<F::Output> {
    match future.as_mut().poll(&mut std::task::Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

#[test]
fn a_copy_in_progress_is_reported_and_can_be_aborted() {
    let (rig, arena) = (Rig::default(), Arena::new(4 << 20));
    let list = lid1(5, 0, &[cscd(0)], &[segment(0, 0, 1, 0, 9), segment(0, 0, 1, 0, 10)]);
    let extended = cdb(0x83, 0, [0; 4], list.len() as u32);
    let unit = rig.nexus.itl(0).expect("LUN exists").lu.of_test().unit.clone();
    let Poll::Ready(held) = pin!(unit.ranges.lock_exclusive(Span { start: 0, end: 1 }))
        .poll(&mut std::task::Context::from_waker(Waker::noop()))
    else {
        panic!("free")
    };
    let mut copying = start(&rig, &arena, extended, &list);
    assert!(poll(&mut copying).is_none());
    assert_eq!(rig.run(&cdb(0x84, 0, [5, 0, 0, 0], 255), &[], 255).data[4..7], [0, 0, 0]);
    assert_eq!(rig.run(&cdb(0x84, 5, [0, 0, 0, 5], 255), &[], 255).data[5], 0x11);
    let busy = (SenseKey::ILLEGAL_REQUEST, Asc::OPERATION_IN_PROGRESS, 0, [0; 3]);
    assert_eq!(sense(&copy(&rig, &list)), busy);
    let unknown = cdb(0x83, 0x1c, [0, 0, 0, 6], 0);
    assert_eq!(sense(&rig.run(&unknown, &[], 0)).3, [0xc0, 0, 2]);
    let mut stopping = start(&rig, &arena, cdb(0x83, 0x1c, [0, 0, 0, 5], 0), &[]);
    assert!(poll(&mut stopping).is_none(), "COPY OPERATION ABORT waits until the copy has ended");
    drop(held);
    let reply = poll(&mut copying).expect("ended");
    assert_eq!((reply.status, reply.sense[2], reply.sense[11]), (Status::CHECK_CONDITION, SenseKey::COPY_ABORTED.0, 0));
    assert_eq!(poll(&mut stopping).map(|reply| reply.status), Some(Status::GOOD));
    assert_eq!(rig.run(&cdb(0x84, 0, [5, 0, 0, 0], 255), &[], 255).data[4], 2);
    assert_eq!(copy(&rig, &list).status, Status::GOOD, "the list identifier is free again");
}

#[test]
fn list_identifiers_without_results_may_be_used_by_several_copies() {
    let (rig, arena) = (Rig::default(), Arena::new(4 << 20));
    let unit = rig.nexus.itl(0).expect("LUN exists").lu.of_test().unit.clone();
    let Poll::Ready(held) = pin!(unit.ranges.lock_exclusive(Span { start: 0, end: 1 }))
        .poll(&mut std::task::Context::from_waker(Waker::noop()))
    else {
        panic!("free")
    };
    let list = |flags: u8, from: u64| lid1(1, flags, &[cscd(0)], &[segment(0, 0, 1, from, 9)]);
    let (first, second, third) = (list(0x10, 0), list(0x10, 0), list(0, 1));
    let run = |list| start(&rig, &arena, cdb(0x83, 0, [0; 4], 76), list);
    let mut copies = [run(&first), run(&second)];
    assert!(copies.iter_mut().all(|copy| poll(copy).is_none()));
    assert_eq!(sense(&copy(&rig, &third)).1, Asc::OPERATION_IN_PROGRESS, "a copy whose result is kept");
    assert_eq!(copy(&rig, &list(0x10, 1)).status, Status::GOOD);
    let mut stopping = start(&rig, &arena, cdb(0x83, 0x1c, [0, 0, 0, 1], 0), &[]);
    assert!(poll(&mut stopping).is_none());
    drop(held);
    let ended = copies.each_mut().map(|copy| poll(copy).map(|reply| reply.status));
    assert_eq!(ended, [Some(Status::CHECK_CONDITION); 2], "both copies are aborted");
    assert_eq!(poll(&mut stopping).map(|reply| reply.status), Some(Status::GOOD));
    assert_eq!(rig.stats().copied_bytes.get(), 512);
}

#[test]
fn a_dropped_copy_leaves_no_record() {
    let (rig, arena) = (Rig::default(), Arena::new(4 << 20));
    let unit = rig.nexus.itl(0).expect("LUN exists").lu.of_test().unit.clone();
    let Poll::Ready(_held) = pin!(unit.ranges.lock_exclusive(Span { start: 0, end: 1 }))
        .poll(&mut std::task::Context::from_waker(Waker::noop()))
    else {
        panic!("free")
    };
    let lists: Vec<_> = (0..=COPIES_MAX as u8).map(|id| lid1(id, 0, &[cscd(0)], &[segment(0, 0, 1, 0, 9)])).collect();
    let mut copies: Vec<_> =
        lists.iter().map(|list| start(&rig, &arena, cdb(0x83, 0, [0; 4], list.len() as u32), list)).collect();
    let ended: Vec<_> = copies.iter_mut().filter_map(poll).map(|reply| reply.status).collect();
    assert_eq!(ended, [Status::BUSY], "one copy more than the limit");
    drop(copies);
    let status = |id: u8| rig.run(&cdb(0x84, 0, [id, 0, 0, 0], 255), &[], 255).status;
    assert_eq!((status(0), status(15)), (Status::CHECK_CONDITION, Status::CHECK_CONDITION));
}

proptest::proptest! {
    /// Valid lists with a few changed bytes: blocks that the list does not name stay unchanged.
    #[test]
    fn any_nearly_right_list_does_no_harm(
        changes in proptest::collection::vec((0usize..200, 0u8..=255), 0..6),
        long in proptest::bool::ANY,
    ) {
        let (rig, other) = two(Rig::traits());
        let before = fill(&other);
        let segments = [segment(0, 0, 4, 0, 100), bytes_segment(1024, (2, 0), (200, 512))];
        let mut list = match long {
            true => lid4(1, 0, &[cscd(0)], &segments),
            false => lid1(1, 0, &[cscd(0)], &segments),
        };
        for (at, byte) in changes {
            let at = at % list.len();
            list[at] = byte;
        }
        let ended = rig.run(&cdb(0x83, long.into(), [0; 4], list.len() as u32), &list, 0);
        // The designator of the other disk differs in one byte.
        if ended.status != Status::GOOD {
            assert!(!ended.sense.is_empty());
        }
        assert!(*other.bytes.borrow() == before || list.windows(8).any(|name| name == [0x30, 1, 2, 3, 4, 5, 6, 8]));
    }
}

/// A copy may write to another logical unit than the one that received the command.
#[test]
fn a_reset_of_the_destination_aborts_a_copy() {
    let ((rig, memory), arena) = (two(Rig::traits()), Arena::new(4 << 20));
    rig.memory.bytes.borrow_mut().fill(7);
    let list = lid1(5, 0, &[cscd(0), cscd(1)], &[segment(0, 1, 1, 0, 9)]);
    let source = rig.nexus.itl(0).expect("LUN exists").lu.of_test().unit.clone();
    let held = pin!(source.ranges.lock_exclusive(Span { start: 0, end: 1 }))
        .poll(&mut std::task::Context::from_waker(Waker::noop()));
    let mut copying = start(&rig, &arena, cdb(0x83, 0, [0; 4], list.len() as u32), &list);
    assert!(poll(&mut copying).is_none());
    let reset = |lun| {
        let lun = crate::lun::Lun::from_number(lun);
        Box::pin(rig.target.task_management(&rig.nexus, crate::TaskFunction::LOGICAL_UNIT_RESET, lun, 0))
    };
    let mut resetting = reset(1);
    assert!(poll(&mut resetting).is_none(), "the reset waits until the copy has stopped writing");
    drop(held);
    assert_eq!(poll(&mut copying).map(|reply| reply.status), Some(Status::CHECK_CONDITION));
    assert!(poll(&mut resetting).is_some());
    assert!(memory.bytes.borrow().iter().all(|byte| *byte == 0));
}
