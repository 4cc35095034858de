use super::*;
use crate::request::Answer;
use crate::table::Code;
use crate::testing::{BLOCK, BLOCKS, Ended, GRAIN, GROUP, Rig, Setup, UNIT, at_once, client};
use crate::{Limits, limits};
use lunar_core::io::{Extent, Fault};
use lunar_core::medium::MediumKind;
use lunar_core::protection;
use lunar_core::tally::{Direction, Moved};
use lunar_core::unit::UnitId;
use lunar_unit::access::{AccessChange, AccessState};
use lunar_unit::removal::request::{Motion, Mover, RemovalChange};
use lunar_unit::reserve::ReservationType;
use lunar_unit::rewrite::request::{Rewrite, RewriteChange, RewriteKind};
use lunar_unit::{MediumState, UnitChange};
use proptest::prelude::*;
use std::future::{pending, ready};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

const CAPACITY: u64 = BLOCKS * BLOCK as u64;
const FORMAT: RewriteKind = RewriteKind::Format { protection: None };

fn range(offset: u64, len: u64) -> ByteRange {
    ByteRange { offset, len }
}

fn run(rig: &Rig, code: Code, ranges: &[ByteRange]) -> Ended {
    rig.run(&Request::new(code, ranges), &vec![0x5a; ranges.iter().map(|range| range.len).sum::<u64>() as usize])
}

fn result(rig: &Rig, code: Code, ranges: &[ByteRange]) -> Result<(), Error> {
    run(rig, code, ranges).result
}

/// A request of each command that is valid.
fn valid(rig: &Rig, code: Code) -> Result<(), Error> {
    match code {
        Code::Flush | Code::Identify => result(rig, code, &[]),
        _ => result(rig, code, &[range(GRAIN, 2 * GRAIN)]),
    }
}

/// The results of the valid requests that do not succeed, by command.
fn refused(rig: &Rig) -> Vec<(Code, Error)> {
    Code::ALL.iter().filter_map(|code| Some((*code, valid(rig, *code).err()?))).collect()
}

#[test]
fn written_data_is_read_at_once_or_later() {
    for is_slow in [false, true] {
        let rig = Rig::default();
        rig.memory.is_slow.set(is_slow);
        let data: Vec<u8> = (0..3 * BLOCK).map(|at| at as u8 ^ (at >> 8) as u8).collect();
        let bytes = [range(u64::from(BLOCK) * 5, data.len() as u64)];
        assert_eq!(rig.run(&Request::new(Code::Write, &bytes), &data).result, Ok(()));
        let read = rig.run(&Request::new(Code::Read, &bytes), &[]);
        assert_eq!((read.result, &read.data), (Ok(()), &data));
        assert_eq!(rig.memory.bytes()[5 * 512..8 * 512], data);
        // More than one piece.
        let all = [range(0, CAPACITY)];
        let read = rig.run(&Request::new(Code::Read, &all), &[]);
        assert!(read.result == Ok(()) && read.data == rig.memory.bytes());
        let data: Vec<u8> = (0..CAPACITY).map(|at| (at / 777) as u8).collect();
        assert_eq!(rig.run(&Request::new(Code::Write, &all), &data).result, Ok(()));
        assert!(rig.memory.bytes() == data);
    }
}

#[test]
fn durable_writes_flushes_and_a_write_cache_that_is_off_leave_nothing_cached() {
    for is_slow in [false, true] {
        let rig = Rig::default();
        rig.memory.is_slow.set(is_slow);
        let bytes = [range(0, GRAIN)];
        let change = |code, durable, unmap| {
            let request = Request { durable, unmap, ..Request::new(code, &bytes) };
            assert_eq!(rig.run(&request, &[1; GRAIN as usize]).result, Ok(()), "{code:?}");
            rig.memory.cached.get()
        };
        assert_eq!((change(Code::Write, false, false), result(&rig, Code::Flush, &[])), (GRAIN, Ok(())));
        assert_eq!(rig.memory.cached.get(), 0);
        assert_eq!(change(Code::Write, true, false), 0);
        assert!(change(Code::Discard, false, false) > 0 && change(Code::WriteZeroes, false, true) > 0);
        assert_eq!(change(Code::Discard, true, false), 0);
        assert!(change(Code::WriteZeroes, false, false) > 0 && change(Code::WriteZeroes, true, false) == 0);
        rig.client.set_write_cache(false);
        assert_eq!(change(Code::WriteZeroes, false, false), 0);
        assert_eq!((change(Code::Write, false, false), change(Code::Discard, false, false)), (0, 0));
    }
}

#[test]
fn only_discarded_and_zeroed_ranges_read_as_zeroes() {
    let rig = Rig::default();
    assert_eq!(result(&rig, Code::Write, &[range(0, CAPACITY)]), Ok(()));
    let discarded = [range(2 * GRAIN, GRAIN), range(512, 0), range(8 * GRAIN, 3 * GRAIN)];
    assert_eq!(result(&rig, Code::Discard, &discarded), Ok(()));
    assert_eq!(result(&rig, Code::WriteZeroes, &[range(20 * GRAIN + 512, 1024)]), Ok(()));
    let grain = [range(30 * GRAIN, GRAIN)];
    let unmap = Request { unmap: true, ..Request::new(Code::WriteZeroes, &grain) };
    assert_eq!(rig.run(&unmap, &[]).result, Ok(()));
    let zeroes =
        [2 * GRAIN..3 * GRAIN, 8 * GRAIN..11 * GRAIN, 20 * GRAIN + 512..20 * GRAIN + 1536, 30 * GRAIN..31 * GRAIN];
    for (at, byte) in (0..).zip(rig.memory.bytes()) {
        assert_eq!(byte == 0, zeroes.iter().any(|range| range.contains(&at)), "{at}");
    }
    let Answer::Extents(extents) = run(&rig, Code::Extents, &[range(GRAIN, 12 * GRAIN)]).answer else {
        panic!("extents")
    };
    let runs = [(1, true), (1, false), (5, true), (3, false), (2, true)];
    assert_eq!(extents, runs.map(|(grains, mapped)| Extent { len: grains * GRAIN, mapped }));
}

#[test]
fn zeroes_deallocate_only_if_the_client_allows_it() {
    let rig = Rig::default();
    let bytes = [range(0, 2 * GRAIN)];
    for (unmap, mapped) in [(false, true), (true, false)] {
        assert_eq!(result(&rig, Code::Write, &bytes), Ok(()));
        let zeroes = Request { unmap, ..Request::new(Code::WriteZeroes, &bytes) };
        assert_eq!(rig.run(&zeroes, &[]).result, Ok(()));
        let extents = Answer::Extents(vec![Extent { len: 2 * GRAIN, mapped }]);
        assert_eq!(run(&rig, Code::Extents, &bytes).answer, extents, "unmap: {unmap}");
    }
}

#[test]
fn extents_end_after_as_many_as_an_answer_has() {
    let rig = Rig::new(&Setup { blocks: 3 * 8 * EXTENTS_MAX as u64, ..Setup::default() });
    let capacity = rig.unit.geometry.bytes();
    for at in (0..capacity).step_by(2 * GRAIN as usize) {
        assert_eq!(result(&rig, Code::Write, &[range(at, 512)]), Ok(()));
    }
    let Answer::Extents(extents) = run(&rig, Code::Extents, &[range(0, capacity)]).answer else { panic!("extents") };
    assert_eq!(extents.len(), EXTENTS_MAX);
    assert!(extents.iter().all(|extent| extent.len == GRAIN));
    assert_eq!(run(&rig, Code::Extents, &[range(0, 0)]).answer, Answer::Extents(vec![]));
}

#[test]
fn a_client_learns_names_and_limits() {
    let rig = Rig::default();
    let Answer::Identity(identity) = run(&rig, Code::Identify, &[]).answer else { panic!("an identity") };
    assert_eq!(identity.serial.as_str(), "0123456789");
    let limits = rig.client.limits().expect("the unit exists");
    assert_eq!((limits.capacity, limits.block_size, limits.physical_block_size), (CAPACITY, BLOCK, 4096));
    assert_eq!((limits.discard_bytes_max, limits.discard_granularity), (limits::DISCARD_BYTES_MAX, 4096));
    assert!(!limits.read_only && limits.has_write_cache && limits.write_zeroes_may_unmap);
    let reader = rig.set.attach(UNIT, client(true)).expect("the unit exists");
    assert!(reader.limits().is_some_and(|limits| limits.read_only));
    let thick = Rig::new(&Setup { can_unmap: false, ..Setup::default() });
    let limits = thick.client.limits().expect("the unit exists");
    assert_eq!((limits.discard_bytes_max, limits.write_zeroes_may_unmap), (0, false));
    assert_eq!(refused(&thick), [(Code::Discard, Error::Unsupported)]);
}

#[test]
fn every_request_of_a_valid_client_succeeds() {
    assert_eq!(refused(&Rig::default()), []);
    let rig = Rig::default();
    for code in [Code::Read, Code::Write, Code::Discard, Code::WriteZeroes] {
        assert_eq!(result(&rig, code, &[range(CAPACITY, 0)]), Ok(()), "{code:?} of no bytes");
        assert_eq!(result(&rig, code, &[range(0, CAPACITY)]), Ok(()), "{code:?} of all bytes");
    }
}

#[test]
fn malformed_ranges_are_refused() {
    let rig = Rig::default();
    for code in [Code::Read, Code::Verify, Code::Write, Code::Discard, Code::WriteZeroes, Code::Extents] {
        for (offset, len) in [
            (1, 512),
            (512, 511),
            (CAPACITY, 512),
            (CAPACITY - 512, 1024),
            (u64::MAX - 511, 512),
            (u64::MAX, u64::MAX),
            (0, CAPACITY + 512),
        ] {
            let ended = rig.run(&Request::new(code, &[range(offset, len)]), &[]);
            assert_eq!(ended.result, Err(Error::Invalid), "{code:?} {offset} {len}");
        }
        assert_eq!(result(&rig, code, &[]), Err(Error::Invalid), "{code:?} needs a range");
    }
    for code in [Code::Read, Code::Verify, Code::Write, Code::WriteZeroes, Code::Extents] {
        assert_eq!(result(&rig, code, &[range(0, 512); 2]), Err(Error::Invalid), "{code:?} has one range");
    }
    for code in [Code::Flush, Code::Identify] {
        assert_eq!(result(&rig, code, &[range(0, 512)]), Err(Error::Invalid), "{code:?} has no range");
    }
    let many = [range(0, 512); limits::DISCARD_RANGES_MAX + 1];
    assert_eq!(result(&rig, Code::Discard, &many), Err(Error::Invalid));
    assert_eq!(result(&rig, Code::Discard, &many[1..]), Ok(()));
    assert!(rig.memory.bytes().iter().all(|byte| *byte == 0), "nothing was written");
}

#[test]
fn ranges_that_are_too_long_are_refused() {
    let large = Rig::new(&Setup { blocks: (limits::TRANSFER_BYTES_MAX + 4096) / 512, ..Setup::default() });
    let of = |len| large.run(&Request::new(Code::Read, &[range(0, len)]), &[]).result;
    assert_eq!((of(limits::TRANSFER_BYTES_MAX), of(limits::TRANSFER_BYTES_MAX + 512)), (Ok(()), Err(Error::Invalid)));
}

#[test]
fn a_client_that_may_only_read_changes_nothing() {
    let changes = [Code::Write, Code::Discard, Code::WriteZeroes].map(|code| (code, Error::ReadOnly));
    let rig = Rig::default();
    let reader = rig.set.attach(UNIT, client(true)).expect("the unit exists");
    for code in Code::ALL {
        let bytes = [range(0, 512)];
        let ranges = if find(*code).policy.ranges.contains(&1) { &bytes[..] } else { &[] };
        let ended = rig.run_for(&reader, &Request::new(*code, ranges), &[1; 512]).result;
        let wanted = changes.iter().find(|(change, _)| change == code).map_or(Ok(()), |(_, error)| Err(*error));
        assert_eq!(ended, wanted, "{code:?}");
    }
    let unit = Rig::new(&Setup { read_only: true, ..Setup::default() });
    assert_eq!(refused(&unit), changes);
    assert!(unit.client.limits().is_some_and(|limits| limits.read_only));
}

#[test]
fn reservations_of_other_clients_exclude_this_one() {
    let conflicts = |codes: &[Code]| codes.iter().map(|code| (*code, Error::Conflict)).collect::<Vec<_>>();
    let writes = [Code::Write, Code::Flush, Code::Discard, Code::WriteZeroes];
    let all = [Code::Read, Code::Write, Code::Verify, Code::Flush, Code::Discard, Code::WriteZeroes, Code::Extents];
    for (kind, refuses) in [
        (None, &all[..]),
        (Some(ReservationType::WRITE_EXCLUSIVE), &writes),
        (Some(ReservationType::EXCLUSIVE_ACCESS), &all),
        (Some(ReservationType::WRITE_EXCLUSIVE_REGISTRANTS_ONLY), &writes),
        (Some(ReservationType::EXCLUSIVE_ACCESS_REGISTRANTS_ONLY), &all),
        (Some(ReservationType::WRITE_EXCLUSIVE_ALL_REGISTRANTS), &writes),
        (Some(ReservationType::EXCLUSIVE_ACCESS_ALL_REGISTRANTS), &all),
    ] {
        let rig = Rig::default();
        rig.reserve(kind);
        assert_eq!(refused(&rig), conflicts(refuses), "{kind:?}");
        // A view that replaces the old one has the same reservations.
        rig.set.add_unit(rig.unit.clone());
        assert_eq!(refused(&rig), conflicts(refuses), "{kind:?}");
        rig.release(kind);
        assert_eq!(refused(&rig), [], "{kind:?}");
    }
}

#[test]
fn a_path_that_is_not_active_admits_only_identify() {
    let rig = Rig::default();
    let local = rig.set.attach(UNIT, crate::Client { group: 0, ..client(false) }).expect("the unit exists");
    let all: Vec<_> = Code::ALL.iter().filter(|code| **code != Code::Identify).collect();
    let change = |group, state| rig.change(UnitChange::Access(vec![AccessChange::explicit(group, state)]));
    change(GROUP, AccessState::Standby);
    assert_eq!(refused(&rig), all.iter().map(|code| (**code, Error::NotReady)).collect::<Vec<_>>());
    // A view that replaces the old one is reached through the same paths.
    rig.set.add_unit(rig.unit.clone());
    let later = rig.set.attach(UNIT, client(false)).expect("the unit exists");
    assert!(!later.is_active() && !rig.client.is_active(), "a client that attaches later has the same path");
    change(0, AccessState::Offline);
    assert!(local.is_active(), "a client without a portal group has no path that could fail");
    change(GROUP + 1, AccessState::Offline);
    for state in AccessState::ALL {
        change(GROUP, state);
        assert_eq!(refused(&rig).is_empty(), state.is_active(), "{state:?}");
    }
    change(GROUP, AccessState::ActiveNonOptimized);
    let (other, ..) = Setup { id: UnitId(99), ..Setup::default() }.unit();
    rig.core_units.add(&other);
    let offline = UnitChange::Access(vec![AccessChange::explicit(GROUP, AccessState::Offline)]);
    at_once(rig.core_units.propose(&other, None, offline)).expect("the change is allowed");
    assert_eq!(refused(&rig), [], "another unit has changed");
}

#[test]
fn a_medium_that_is_not_ready_admits_only_identify() {
    let not_ready: Vec<_> =
        Code::ALL.iter().filter(|code| **code != Code::Identify).map(|code| (*code, Error::NotReady)).collect();
    let rig = Rig::default();
    let steps = [
        (FORMAT, Some(MediumState::FormatFailed)),
        (RewriteKind::Sanitize { can_exit: true }, Some(MediumState::SanitizeFailed { can_exit: true })),
        (RewriteKind::Sanitize { can_exit: false }, None),
    ];
    for (kind, failed) in steps {
        rig.change(UnitChange::Rewrite(RewriteChange::Begin(Rewrite { kind, passes: Vec::new() })));
        assert_eq!(refused(&rig), not_ready, "{kind:?}");
        rig.change(UnitChange::Rewrite(if failed.is_some() { RewriteChange::Failed } else { RewriteChange::Done }));
        let wanted = if failed.is_some() { &not_ready[..] } else { &[] };
        assert_eq!(refused(&rig), wanted, "{failed:?}");
        let medium = rig.client.unit().expect("the unit exists").medium();
        assert_eq!(medium, failed.unwrap_or_default());
    }
    let removable = Rig::new(&Setup { medium: MediumKind::Removable, ..Setup::default() });
    for (motion, wanted) in [(Motion::Eject, &not_ready[..]), (Motion::Load, &[])] {
        removable.change(UnitChange::Removal(RemovalChange::Move(motion, Mover::Operator { forced: true })));
        assert_eq!(refused(&removable), wanted, "{motion:?}");
    }
}

#[test]
fn a_verification_reads_and_moves_no_data() {
    use lunar_core::tally::Event;
    let rig = Rig::default();
    let bytes = [range(0, 8 * u64::from(BLOCK))];
    let ended = rig.run(&Request::new(Code::Verify, &bytes), &[]);
    assert_eq!((ended.result, ended.data.len(), rig.set.stats.read_bytes.get()), (Ok(()), 0, 0));
    rig.memory.fault.set(Some(Fault::Medium));
    assert_eq!(result(&rig, Code::Verify, &bytes), Err(Error::IoError), "it was read");
    let total = |event| rig.unit.tally.total(event);
    assert_eq!((total(Event::VerifyError), total(Event::ReadError), total(Event::WriteError)), (1, 0, 0));
    let attachment = rig.set.attach(UNIT, client(false)).expect("the unit exists");
    attachment.revoke();
    assert_eq!(rig.run_for(&attachment, &Request::new(Code::Verify, &bytes), &[]).result, Err(Error::NotReady));
}

#[test]
fn a_request_that_was_admitted_before_a_rewrite_writes_nothing_after_it() {
    let rig = Rig::default();
    rig.memory.is_slow.set(true);
    let bytes = [range(0, 512 << 10)];
    let (request, data) = (Request::new(Code::Write, &bytes), vec![7; 512 << 10]);
    let (wire, mut slot, mut reply) = (rig.wire(&data), rig.slot(), Reply::default());
    // The first piece is in the store when the rewrite begins.
    rig.memory.holds.set(true);
    {
        let mut running = pin!(rig.set.execute(&rig.client, &request, &wire, &mut slot, &mut reply));
        assert!(running.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        let format = Rewrite { kind: FORMAT, passes: Vec::new() };
        rig.change(UnitChange::Rewrite(RewriteChange::Begin(format)));
        rig.memory.holds.set(false);
        rig.memory.release();
        assert!(running.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
    }
    assert_eq!(reply.result, Err(Error::IoError));
    assert!(rig.memory.bytes()[256 << 10..].iter().all(|byte| *byte == 0), "the second piece");
}

#[test]
fn faults_of_the_store_become_errors_and_are_counted() {
    use lunar_core::tally::Event;
    for (fault, error, reads, writes) in [
        (Fault::Medium, Error::IoError, 1, 1),
        (Fault::Marked, Error::IoError, 0, 0),
        (Fault::NoSpace, Error::NoSpace, 0, 0),
        (Fault::Gone, Error::IoError, 0, 0),
        (Fault::NoMemory, Error::NotReady, 0, 0),
        (Fault::Timeout, Error::IoError, 0, 0),
        (Fault::Os(1), Error::IoError, 0, 0),
    ] {
        for is_slow in [false, true] {
            let rig = Rig::default();
            rig.memory.is_slow.set(is_slow);
            for code in [Code::Read, Code::Write] {
                rig.memory.fault.set(Some(fault));
                assert_eq!(result(&rig, code, &[range(0, 512)]), Err(error), "{fault:?} {code:?}");
            }
            let tally = &rig.unit.tally;
            assert_eq!((tally.total(Event::ReadError), tally.total(Event::WriteError)), (reads, writes), "{fault:?}");
            assert_eq!((tally.moved(Direction::Read), tally.moved(Direction::Write)), Default::default());
            assert_eq!((rig.set.stats.commands.get(), rig.set.stats.check_conditions.get()), (2, 2));
        }
    }
    // A store that cannot tell counts everything as allocated.
    let rig = Rig::default();
    rig.memory.fault.set(Some(Fault::Unsupported));
    let whole = Answer::Extents(vec![Extent { len: GRAIN, mapped: true }]);
    assert_eq!(run(&rig, Code::Extents, &[range(0, GRAIN)]).answer, whole);
    rig.memory.fault.set(Some(Fault::Medium));
    assert_eq!(result(&rig, Code::Flush, &[]), Err(Error::IoError));
}

#[test]
fn an_aborted_request_fails() {
    let rig = Rig::default();
    rig.memory.is_slow.set(true);
    let wire = rig.wire(&[0; 512]);
    wire.is_aborted.set(true);
    let (mut slot, mut reply) = (rig.slot(), Reply::default());
    let bytes = [range(0, 512)];
    at_once(rig.set.execute(&rig.client, &Request::new(Code::Discard, &bytes), &wire, &mut slot, &mut reply));
    assert_eq!(reply.result, Err(Error::IoError));
}

#[test]
fn units_with_protection_information_are_read_and_written_as_plain_ones() {
    for kind in [protection::Kind::One, protection::Kind::Two, protection::Kind::Three] {
        let rig = Rig::new(&Setup { protection: kind, ..Setup::default() });
        assert_eq!(refused(&rig), [], "{kind:?}");
        let data: Vec<u8> = (0..4 * BLOCK).map(|at| (at % 251) as u8).collect();
        let bytes = [range(u64::from(BLOCK) * 8, data.len() as u64)];
        assert_eq!(rig.run(&Request::new(Code::Write, &bytes), &data).result, Ok(()));
        assert_eq!(rig.run(&Request::new(Code::Read, &bytes), &[]).data, data);
        let guard = protection::guard(&data[..BLOCK as usize]).to_be_bytes();
        assert_eq!(rig.info.bytes()[64..66], guard.map(|byte| !byte), "the guard is stored inverted");
        // Blocks that were discarded have none.
        assert_eq!(result(&rig, Code::Discard, &[range(GRAIN, GRAIN)]), Ok(()));
        assert_eq!(rig.info.bytes()[64..72], [0; 8]);
        // A damaged block is found.
        assert_eq!(rig.run(&Request::new(Code::Write, &bytes), &data).result, Ok(()));
        rig.memory.damage(9 * BLOCK as usize + 3);
        assert_eq!(rig.run(&Request::new(Code::Read, &bytes), &[]).result, Err(Error::IoError), "{kind:?}");
        assert_eq!(rig.unit.tally.total(Event::ReadError), 1);
    }
}

#[test]
fn a_unit_that_changes_its_size_is_announced_and_one_that_is_removed_is_refused() {
    let mut rig = Rig::default();
    let client = rig.client.clone();
    let mut cx = Context::from_waker(Waker::noop());
    let mut changed = pin!(client.until_changed(client.changes()));
    assert!(changed.as_mut().poll(&mut cx).is_pending());
    rig.replace_unit(&Setup { blocks: 2 * BLOCKS, ..Setup::default() });
    assert!(changed.poll(&mut cx).is_ready());
    assert_eq!(rig.client.limits().map(|limits: Limits| limits.capacity), Some(2 * CAPACITY));
    assert_eq!(result(&rig, Code::Write, &[range(CAPACITY, 512)]), Ok(()));
    at_once(rig.set.remove_unit(UNIT, pending()));
    let all: Vec<_> = Code::ALL.iter().map(|code| (*code, Error::NotReady)).collect();
    assert_eq!(refused(&rig), all);
    assert!(rig.client.limits().is_none() && rig.set.attach(UNIT, crate::testing::client(false)).is_none());
}

#[test]
fn a_unit_is_removed_when_its_requests_have_ended_or_are_aborted() {
    let mut cx = Context::from_waker(Waker::noop());
    let rig = Rig::default();
    let task = rig.client.tasks.enter(1);
    let mut removal = pin!(rig.set.remove_unit(UNIT, pending()));
    assert!(removal.as_mut().poll(&mut cx).is_pending() && !task.aborted());
    let later = rig.client.tasks.enter(2);
    drop(task);
    assert!(removal.poll(&mut cx).is_ready(), "a later request is refused, and is not waited for");
    drop(later);
    let rig = Rig::default();
    let task = rig.client.tasks.enter(1);
    let mut removal = pin!(rig.set.remove_unit(UNIT, ready(())));
    assert!(removal.as_mut().poll(&mut cx).is_pending() && task.aborted());
    drop(task);
    assert_eq!(removal.poll(&mut cx), Poll::Ready(()));
    assert_eq!(rig.set.stats.tasks_aborted.get(), 1);
}

#[test]
fn clients_that_are_gone_are_forgotten() {
    let rig = Rig::default();
    let others: Vec<_> = (0..3).map(|_| rig.set.attach(UNIT, client(false)).expect("the unit exists")).collect();
    assert_eq!(rig.set.attachments().len(), 4);
    drop(others);
    assert!(rig.set.attachments().iter().all(|left| Rc::ptr_eq(left, &rig.client)));
}

/// Offsets and lengths around the ends of blocks and of the unit.
fn bytes() -> impl Strategy<Value = ByteRange> {
    let near = |at: u64| (0..3_u64, 0..3_u64).prop_map(move |(up, down)| (at + up).saturating_sub(down));
    let block = u64::from(BLOCK);
    let place = prop_oneof![
        (0..=BLOCKS).prop_map(move |at| at * block),
        (BLOCKS - 2..=BLOCKS + 1).prop_map(move |at| at * block),
        (0..=BLOCKS + 1).prop_flat_map(move |at| near(at * block)),
        Just(u64::MAX),
        Just(u64::MAX - 511),
    ];
    let len = prop_oneof![
        (0..64_u64).prop_map(move |blocks| blocks * block),
        (0..5_u64).prop_flat_map(move |at| near(at * block)),
        Just(CAPACITY),
        Just(u64::MAX),
    ];
    (place, len).prop_map(|(offset, len)| ByteRange { offset, len })
}

proptest! {
    /// The store of the rig panics when a request beyond its end reaches it.
    #[test]
    fn valid_ranges_are_done_exactly_and_all_others_change_nothing(
        requests in proptest::collection::vec((0..Code::ALL.len(), bytes(), any::<u8>(), any::<bool>()), 1..24),
        is_slow in any::<bool>(),
    ) {
        let rig = Rig::default();
        rig.memory.is_slow.set(is_slow);
        let mut model = vec![0_u8; CAPACITY as usize];
        let (mut read, mut written, mut commands) = ((0, 0), (0, 0), 0);
        for (code, bytes, value, unmap) in requests {
            let code = Code::ALL[code];
            let is_ranged = find(code).policy.ranges.contains(&1);
            let ranges = if is_ranged { &[bytes][..] } else { &[] };
            let end = u128::from(bytes.offset) + u128::from(bytes.len);
            let block = u64::from(BLOCK);
            let is_valid = !is_ranged
                || end <= u128::from(CAPACITY) && bytes.offset % block == 0 && bytes.len % block == 0;
            let data = vec![value; if is_valid && is_ranged { bytes.len as usize } else { 512 }];
            let ended = rig.run(&Request { unmap, ..Request::new(code, ranges) }, &data);
            commands += 1;
            prop_assert_eq!(ended.result, if is_valid { Ok(()) } else { Err(Error::Invalid) });
            if !is_valid || !is_ranged {
                prop_assert!(ended.data.is_empty());
                continue;
            }
            let place = bytes.offset as usize..(bytes.offset + bytes.len) as usize;
            match code {
                Code::Read => {
                    prop_assert!(ended.data == model[place]);
                    read = (read.0 + u64::from(bytes.len > 0), read.1 + bytes.len);
                }
                Code::Write => {
                    model[place].fill(value);
                    written = (written.0 + u64::from(bytes.len > 0), written.1 + bytes.len);
                }
                Code::Discard | Code::WriteZeroes => model[place].fill(0),
                Code::Extents => {
                    let Answer::Extents(extents) = ended.answer else { panic!("extents") };
                    prop_assert_eq!(extents.iter().map(|extent| extent.len).sum::<u64>(), bytes.len);
                }
                Code::Verify => prop_assert!(ended.data.is_empty()),
                Code::Flush | Code::Identify => {}
            }
        }
        prop_assert!(rig.memory.bytes() == model);
        // The accounts of the unit and of the core agree with what was moved, to the byte.
        let stats = &rig.set.stats;
        let moved = |direction| {
            let Moved { commands, bytes } = rig.unit.tally.moved(direction);
            (commands, bytes)
        };
        prop_assert_eq!(moved(Direction::Read), read);
        prop_assert_eq!(moved(Direction::Write), written);
        prop_assert_eq!((stats.read_commands.get(), stats.read_bytes.get()), read);
        prop_assert_eq!((stats.write_commands.get(), stats.write_bytes.get()), written);
        prop_assert_eq!(stats.commands.get(), commands);
    }
}
