use super::*;
use crate::blk::{DiskLane, DiskRequest};
use crate::layout::STRIDE_MAX;
use crate::testing::BackEnd;
use lunar_blk::{Code, Error};
use lunar_vhost_user::blk::{BlockRequest, HEADER_LEN, Parsed, Status, parse};
use lunar_vhost_user::bytes;
use proptest::prelude::*;
use std::collections::BTreeSet;

const SLOTS: u16 = 6;
const BUFFER: usize = 16384;
const PATIENCE: Duration = Duration::from_secs(20);

impl BackEnd {
    /// Takes all that is available; returns the requests.
    fn take(&mut self) -> Vec<BlockRequest> {
        self.take_with(|memory, chain| match parse(memory, chain).expect("a good driver") {
            Parsed::Block(request) => request,
            Parsed::Refused(status) => panic!("{status:?}"),
        })
    }

    /// Answers one of the requests that were taken.
    fn answer(&mut self, at: usize, status: Status) {
        let written = self.taken[at].writable_len - 1;
        self.put_back(at, written, &[status.0]);
    }
}

fn lane() -> (DiskLane, Layout, BackEnd) {
    let layout = Layout::new(1, SLOTS, BUFFER).expect("a small one");
    let memory = Region::zeroed(layout.len());
    let lane = DiskLane::new(&memory, &layout, 0, 4096).expect("it fits");
    let back_end = BackEnd::new(&memory, &layout);
    (lane, layout, back_end)
}

fn request(code: Code, offset: u64, len: u64) -> DiskRequest {
    DiskRequest { code, offset, len, unmap: false }
}

fn collected(lane: &mut DiskLane) -> Vec<u16> {
    let mut slots = Vec::new();
    lane.collect(|slot| slots.push(slot)).expect("a good back-end");
    slots
}

#[test]
fn each_kind_of_request_arrives_and_is_answered() {
    let (mut lane, layout, mut back_end) = lane();
    let unmap = DiskRequest { unmap: true, ..request(Code::WriteZeroes, 8192, 1 << 20) };
    let all = [
        request(Code::Read, 4096, 12288),
        request(Code::Write, 512, 512),
        request(Code::Flush, 0, 0),
        request(Code::Discard, 1 << 40, 1 << 30),
        unmap,
    ];
    for (slot, request) in (0..).zip(&all) {
        assert!(lane.begin(slot, request, Instant(1)) && !lane.begin(slot, request, Instant(1)));
    }
    assert!(lane.begin(layout.last(), &request(Code::Identify, 0, 0), Instant(1)));
    assert!(back_end.take().is_empty(), "nothing was sent yet");
    assert!(lane.send(), "a new back-end wants to be notified");
    let arrived = back_end.take();
    let found: Vec<_> = arrived.iter().map(|request| (request.code, request.ranges.first().copied())).collect();
    for (wanted, (code, range)) in all.iter().zip(&found) {
        assert_eq!(wanted.code, *code);
        assert!(wanted.code == Code::Flush || range.is_some_and(|range| range.offset == wanted.offset));
        assert!(wanted.code == Code::Flush || range.is_some_and(|range| range.len == wanted.len));
    }
    assert!(arrived[4].unmap && !arrived[3].unmap && arrived[5].code == Code::Identify);
    // In another order than they were sent.
    for (at, status) in [(5, Status::OK), (1, Status::IOERR), (0, Status::OK), (2, Status::UNSUPP), (0, Status(77))] {
        back_end.answer(at, status);
    }
    assert_eq!(collected(&mut lane), [5, 1, 0, 4, 2].map(|at| if at == 5 { layout.last() } else { at }));
    assert_eq!(lane.take(1), Some(Answer::Ended(Err(Error::IoError))));
    assert_eq!(lane.take(1), None);
    assert_eq!(lane.take(0), Some(Answer::Ended(Ok(()))));
    assert_eq!(lane.take(4), Some(Answer::Ended(Err(Error::Unsupported))));
    assert_eq!(lane.take(2), Some(Answer::Ended(Err(Error::IoError))));
    assert_eq!((lane.unanswered(), lane.is_free(3), lane.is_free(0)), (1, false, true));
}

#[test]
fn data_has_its_place_in_the_slot() {
    let (mut lane, layout, mut back_end) = lane();
    let data: Vec<u8> = (0..10240).map(|at| (at % 251) as u8).collect();
    assert!(back_end.memory.write(layout.place(0, 2).data, &data));
    assert!(lane.begin(2, &request(Code::Write, 0, 10240), Instant(0)));
    lane.send();
    back_end.take();
    let mut arrived = vec![0; 10240];
    let chain = &back_end.taken[0];
    assert!(bytes::read(&back_end.device.memory, &chain.readable, HEADER_LEN as u64, &mut arrived));
    assert!(arrived == data && chain.readable_len == HEADER_LEN as u64 + 10240);
    assert!(!lane.begin(3, &request(Code::Write, 0, BUFFER as u64 + 512), Instant(0)), "longer than its memory");
    assert!(!lane.begin(layout.last(), &request(Code::Read, 0, 512), Instant(0)), "it has no memory");
    assert!(!lane.begin(SLOTS + 1, &request(Code::Flush, 0, 0), Instant(0)), "there is no such slot");
}

#[test]
fn requests_are_sent_again_to_the_next_back_end() {
    let (mut lane, layout, mut back_end) = lane();
    for slot in 0..3 {
        lane.begin(slot, &request(Code::Write, u64::from(slot) * 512, 512), Instant(0));
    }
    lane.send();
    back_end.take();
    back_end.answer(1, Status::OK);
    assert_eq!(collected(&mut lane), [1]);
    lane.lose();
    lane.begin(3, &request(Code::Flush, 0, 0), Instant(0));
    lane.restart();
    let mut next = BackEnd::new(&back_end.memory, &layout);
    lane.send();
    let again: Vec<_> = next.take().iter().map(|request| request.code).collect();
    assert_eq!(again, [Code::Write, Code::Write, Code::Flush]);
    while !next.taken.is_empty() {
        next.answer(0, Status::OK);
    }
    assert_eq!(collected(&mut lane), [0, 2, 3]);
    assert_eq!(lane.unanswered(), 0);
}

#[test]
fn an_expired_request_keeps_its_slot_until_it_is_answered() {
    let (mut lane, layout, mut back_end) = lane();
    lane.begin(0, &request(Code::Write, 0, 512), Instant(0));
    lane.send();
    back_end.take();
    lane.begin(1, &request(Code::Read, 0, 512), Instant(0));
    let late = Instant(0) + PATIENCE;
    assert_eq!(lane.expire(Instant(1), PATIENCE, |_| panic!("too early")), 0);
    assert_eq!(lane.expire(late, PATIENCE, |_| {}), 2);
    assert_eq!((lane.take(0), lane.take(1)), (Some(Answer::Expired), Some(Answer::Expired)));
    assert_eq!((lane.is_free(0), lane.is_free(1), lane.abandoned()), (false, true, 1));
    back_end.answer(0, Status::OK);
    assert_eq!((collected(&mut lane), lane.take(0)), (vec![], None));
    assert_eq!((lane.is_free(0), lane.abandoned()), (true, 0));
    // Without an answer, the next back-end frees the slot.
    lane.begin(0, &request(Code::Write, 0, 512), late);
    lane.send();
    lane.lose();
    assert_eq!(lane.expire(late + PATIENCE, PATIENCE, |_| {}), 1);
    assert_eq!((lane.is_free(0), lane.has_waiting()), (false, false), "the back-end may still have it");
    lane.restart();
    assert!(lane.is_free(0));
    // A request that no back-end has had since then is not abandoned.
    lane.begin(0, &request(Code::Write, 0, 512), late);
    lane.send();
    lane.restart();
    lane.expire(late + PATIENCE, PATIENCE, |_| {});
    assert_eq!((lane.is_free(0), lane.abandoned()), (true, 0));
    let _ = BackEnd::new(&back_end.memory, &layout);
}

#[test]
fn a_back_end_that_breaks_the_rules_is_left() {
    let (mut lane, layout, back_end) = lane();
    let used = layout.ring(0)[2];
    lane.begin(0, &request(Code::Flush, 0, 0), Instant(0));
    lane.send();
    for (index, id) in [(2_u16, 0_u32), (1, 1), (1, u32::from(STRIDE_MAX)), (1, 1 << 20)] {
        assert!(back_end.memory.write(used + 4, &id.to_le_bytes()));
        assert!(back_end.memory.store_u16(used + 2, index));
        assert_eq!(lane.collect(|_| panic!("no answer")), Err(Defect::Ring), "{index} {id}");
        lane.restart();
        lane.send();
    }
    assert_eq!(lane.unanswered(), 1, "it goes to the next one");
}

#[test]
fn notifications_are_asked_for_without_a_gap() {
    let (mut lane, _, mut back_end) = lane();
    lane.begin(0, &request(Code::Flush, 0, 0), Instant(0));
    assert!(lane.send());
    back_end.device.disarm();
    back_end.take();
    lane.begin(1, &request(Code::Flush, 0, 0), Instant(0));
    assert!(!lane.send(), "a back-end that polls is not notified");
    assert!(lane.ask_to_notify(true));
    back_end.answer(0, Status::OK);
    assert!(!lane.ask_to_notify(true), "an answer came before");
    assert!(back_end.device.signal(|_| true));
}

proptest! {
    /// For every order of starts, answers, lost connections and time, each request has one answer, and no slot is lost.
    #[test]
    fn each_request_is_answered_once(steps in prop::collection::vec((0_u8..7, 0..SLOTS, any::<u8>()), 1..200)) {
        let (mut lane, layout, mut back_end) = lane();
        let (mut open, mut now) = (BTreeSet::new(), Instant(0));
        for (what, slot, more) in steps {
            match what {
                0 | 1 => {
                    let asked = request(Code::Write, u64::from(more) * 512, 512);
                    let was_free = lane.is_free(slot);
                    prop_assert_eq!(was_free, lane.begin(slot, &asked, now));
                    prop_assert!(!was_free || open.insert(slot));
                }
                2 if lane.abandoned() == 0 => _ = lane.send(),
                2 | 3 => {
                    back_end.take();
                    if !back_end.taken.is_empty() {
                        back_end.answer(usize::from(more) % back_end.taken.len(), Status::OK);
                    }
                }
                4 => {
                    lane.lose();
                    lane.restart();
                    back_end = BackEnd::new(&back_end.memory.clone(), &layout);
                }
                5 => now = now + Duration::from_secs(u64::from(more) % 16),
                _ => _ = lane.expire(now, PATIENCE, |_| {}),
            }
            lane.collect(|_| {}).expect("a good back-end");
            for slot in 0..SLOTS {
                if lane.take(slot).is_some() {
                    prop_assert!(open.remove(&slot));
                }
            }
            prop_assert_eq!(lane.unanswered(), open.len());
        }
        lane.restart();
        let mut last = BackEnd::new(&back_end.memory.clone(), &layout);
        lane.send();
        last.take();
        while !last.taken.is_empty() {
            last.answer(0, Status::OK);
        }
        lane.collect(|_| {}).expect("a good back-end");
        prop_assert!((0..=layout.last()).all(|slot| lane.is_free(slot)));
        prop_assert_eq!(lane.unanswered(), 0);
    }

    /// For every back-end.
    #[test]
    fn no_back_end_causes_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        crate::fuzzing::back_end(&bytes);
    }
}

#[test]
fn the_volume_is_known_by_its_uuid_which_an_older_back_end_does_not_tell() {
    let (mut lane, layout, mut back_end) = lane();
    for (returned, known) in [(36, Some([9; 16])), (20, None)] {
        assert!(lane.begin(layout.last(), &request(Code::Identify, 0, 0), Instant(1)));
        lane.send();
        assert_eq!(back_end.take().first().map(|request| request.returned), Some(36));
        assert!(bytes::write(&back_end.device.memory, &back_end.taken[0].writable, 0, &vec![9; returned]));
        back_end.answer(0, Status::OK);
        assert_eq!(collected(&mut lane), [layout.last()]);
        assert_eq!(lane.take(layout.last()), Some(Answer::Ended(Ok(()))));
        assert_eq!(lane.uuid(layout.last()), known);
    }
}
