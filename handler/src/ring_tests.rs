use super::*;
use proptest::prelude::*;
use std::collections::{HashMap, VecDeque};

const DEPTH: u32 = 8;

fn ends(generation: u32) -> (TargetEnd, HandlerEnd, Region) {
    let memory = Region::zeroed(ring_bytes(DEPTH));
    let target = TargetEnd::new(memory.clone(), DEPTH, generation);
    (target, HandlerEnd::open(memory.clone()).expect("they were made"), memory)
}

fn read_at(offset: u64) -> Command {
    Command { operation: Operation::READ, flags: 0, offset, length: 512, data: 4096, timeout_milliseconds: 30_000 }
}

/// Submits a command, and shows it to the handler.
fn submit(target: &mut TargetEnd, command: &Command) -> Option<u16> {
    let slot = target.submit(command);
    target.publish();
    slot
}

#[test]
fn commands_are_published_together() {
    let (mut target, mut handler, memory) = ends(1);
    for number in 1..=PUBLISHED_AT_ONCE {
        assert_eq!(memory.load(at::SUBMITTED), Some(0), "before command {number}");
        assert!(handler.take().expect("sound").is_none() && target.submit(&read_at(0)).is_some());
    }
    assert_eq!(memory.load(at::SUBMITTED), Some(PUBLISHED_AT_ONCE), "the handler works while others are submitted");
    for _ in 0..PUBLISHED_AT_ONCE {
        let command = handler.take().expect("sound").expect("published");
        handler.complete(&command, Status::GOOD);
        assert!(target.take().expect("sound").is_some());
    }
    assert!(target.submit(&read_at(0)).is_some() && handler.may_sleep(), "it was not published");
    target.publish();
    assert!(target.must_wake() && !handler.may_sleep() && handler.take().expect("sound").is_some());
}

#[test]
fn a_command_is_laid_out_as_the_table_says() {
    let (mut target, _, memory) = ends(0x0102_0304);
    memory.write(at::SUBMISSIONS, &[0xa5; SUBMISSION_BYTES]).then_some(()).expect("within");
    let command = Command {
        operation: Operation::WRITE,
        flags: crate::wire::flags::DURABLE,
        offset: 0x1000,
        length: 0x200,
        data: 0x3000,
        timeout_milliseconds: 30_000,
    };
    assert_eq!(submit(&mut target, &command), Some(0));
    let mut bytes = [0; SUBMISSION_BYTES];
    assert!(memory.read(at::SUBMISSIONS, &mut bytes));
    let mut wanted = vec![0, 0, 2, 1, 4, 3, 2, 1, 1, 0, 0, 0, 0, 0, 0, 0];
    wanted.extend([0, 0x10, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0x30, 0, 0, 0, 0, 0, 0, 0x30, 0x75, 0, 0]);
    wanted.resize(SUBMISSION_BYTES, 0);
    assert_eq!(bytes.to_vec(), wanted);
    assert_eq!((memory.load(0), memory.load(8), memory.load(64)), (Some(MAGIC), Some(DEPTH), Some(1)));
}

#[test]
fn answers_come_in_any_order() {
    let (mut target, mut handler, _) = ends(1);
    let slots: Vec<u16> = (0..3).map(|at| submit(&mut target, &read_at(at * 512)).expect("a slot")).collect();
    let taken: Vec<Submission> = std::iter::from_fn(|| handler.take().expect("sound")).collect();
    assert_eq!(taken.iter().map(|command| command.offset.get()).collect::<Vec<_>>(), [0, 512, 1024]);
    handler.complete(&taken[2], Status::GOOD);
    handler.complete(&taken[0], Status::NO_SPACE);
    assert!(target.has_answers());
    let answers: Vec<Answer> = std::iter::from_fn(|| target.take().expect("sound")).collect();
    let wanted = [(slots[2], Status::GOOD), (slots[0], Status::NO_SPACE)];
    let plain = |(slot, status)| Answer { slot, status, scsi: ScsiEnd::default(), extent: Extent::default() };
    assert_eq!(answers, wanted.map(plain));
    assert_eq!(target.in_progress(), 1);
}

#[test]
fn the_end_of_a_scsi_command_arrives_whole() {
    let (mut target, mut handler, memory) = ends(1);
    let slot = submit(&mut target, &Command { operation: Operation::SCSI, ..read_at(7) }).expect("a slot");
    let command = handler.take().expect("sound").expect("a command");
    assert_eq!((command.operation, target.number_in(slot), target.number_in(slot + 1)), (6, Some(1), None));
    let end = ScsiEnd { status: 2, moved: 0x0102_0304, sense_length: 18 };
    handler.complete_scsi(&command, Status::GOOD, end);
    let mut bytes = [0; COMPLETION_BYTES];
    assert!(memory.read(at::SUBMISSIONS + DEPTH as usize * SUBMISSION_BYTES, &mut bytes));
    let mut wanted = vec![0, 0, 0, 2, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 4, 3, 2, 1, 18, 0];
    wanted.resize(COMPLETION_BYTES, 0);
    assert_eq!(bytes.to_vec(), wanted);
    let extent = Extent::default();
    assert_eq!(target.take(), Ok(Some(Answer { slot, status: Status::GOOD, scsi: end, extent })));
    assert_eq!(target.number_in(slot), None);
}

#[test]
fn an_extent_arrives_whole() {
    let (mut target, mut handler, memory) = ends(1);
    let slot = submit(&mut target, &Command { operation: Operation::EXTENT, ..read_at(512) }).expect("a slot");
    let command = handler.take().expect("sound").expect("a command");
    assert_eq!((command.operation, command.offset.get(), command.length.get()), (11, 512, 512));
    let extent = Extent { len: 0x0807_0605_0403_0201, mapped: true };
    let place = at::SUBMISSIONS + DEPTH as usize * SUBMISSION_BYTES;
    assert!(memory.write(place, &[0xa5; COMPLETION_BYTES]));
    handler.complete_extent(&command, extent);
    let mut bytes = [0; COMPLETION_BYTES];
    assert!(memory.read(place, &mut bytes));
    let wanted = [0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    assert_eq!(bytes, wanted);
    let scsi = ScsiEnd::default();
    assert_eq!(target.take(), Ok(Some(Answer { slot, status: Status::GOOD, scsi, extent })));
}

#[test]
fn a_full_queue_takes_no_command_until_an_answer_is_taken() {
    let (mut target, mut handler, _) = ends(1);
    (0..DEPTH).for_each(|at| assert!(submit(&mut target, &read_at(u64::from(at))).is_some()));
    assert!(!target.has_room() && submit(&mut target, &read_at(0)).is_none());
    let command = handler.take().expect("sound").expect("a command");
    handler.complete(&command, Status::GOOD);
    assert!(submit(&mut target, &read_at(0)).is_none(), "the answer was not taken yet");
    assert!(target.take().expect("sound").is_some() && submit(&mut target, &read_at(0)).is_some());
}

#[test]
fn a_sleeper_is_woken_once() {
    let (mut target, mut handler, _) = ends(1);
    assert!(handler.may_sleep() && target.must_wake(), "the first look wakes");
    assert!(!target.must_wake(), "it was woken");
    submit(&mut target, &read_at(0)).expect("a slot");
    assert!(!handler.may_sleep(), "a command waits");
    assert!(!target.must_wake(), "it does not sleep");
    let command = handler.take().expect("sound").expect("a command");
    assert!(target.may_sleep());
    handler.complete(&command, Status::GOOD);
    assert!(handler.must_wake() && !handler.must_wake());
    assert!(!target.may_sleep(), "an answer waits");
}

/// Writes an answer of a hostile handler.
fn forge(memory: &Region, index: u32, entry: &Completion) {
    let first = at::SUBMISSIONS + DEPTH as usize * SUBMISSION_BYTES;
    assert!(memory.write(first + (index % DEPTH) as usize * COMPLETION_BYTES, entry.as_bytes()));
    assert!(memory.store(at::COMPLETED, index + 1));
}

fn answer(slot: u16, generation: u32, sequence: u64) -> Completion {
    Completion {
        slot: slot.into(),
        status: 0,
        scsi_status: 0,
        generation: generation.into(),
        sequence: sequence.into(),
        moved: 0.into(),
        sense_length: 0.into(),
        extent_mapped: 0,
        reserved: 0,
        extent_length: 0.into(),
    }
}

#[test]
fn breaches_are_noticed() {
    type Forgery = fn(&Region);
    let cases: [(Forgery, Violation); 6] = [
        (|memory| assert!(memory.store(at::COMPLETED, 3)), Violation::TooMany(3)),
        (|memory| assert!(memory.store(at::COMPLETED, u32::MAX)), Violation::TooMany(u32::MAX)),
        (|memory| forge(memory, 0, &answer(DEPTH as u16, 5, 1)), Violation::NoSlot(DEPTH as u16)),
        (|memory| forge(memory, 0, &answer(7, 5, 1)), Violation::FreeSlot(7)),
        (|memory| forge(memory, 0, &answer(0, 4, 1)), Violation::OtherCommand(0)),
        (|memory| forge(memory, 0, &answer(0, 5, 2)), Violation::OtherCommand(0)),
    ];
    for (forgery, wanted) in cases {
        let (mut target, _, memory) = ends(5);
        submit(&mut target, &read_at(0)).expect("a slot");
        submit(&mut target, &read_at(0)).expect("a slot");
        forgery(&memory);
        assert_eq!(target.take(), Err(wanted));
    }
}

#[test]
fn a_slot_that_is_answered_twice_is_a_breach() {
    let (mut target, _, memory) = ends(5);
    submit(&mut target, &read_at(0)).expect("a slot");
    submit(&mut target, &read_at(0)).expect("a slot");
    forge(&memory, 0, &answer(0, 5, 1));
    assert!(matches!(target.take(), Ok(Some(_))));
    forge(&memory, 1, &answer(0, 5, 1));
    assert_eq!(target.take(), Err(Violation::FreeSlot(0)));
}

#[test]
fn a_handler_refuses_other_layouts() {
    for (at, value) in [(at::MAGIC, 1), (at::VERSION, 2), (at::DEPTH, 3), (at::DEPTH, 4096), (at::DEPTH, 0)] {
        let (_, _, memory) = ends(1);
        assert!(memory.store(at, value));
        assert_eq!(HandlerEnd::open(memory).err(), Some(Unusable));
    }
    let (_, mut handler, memory) = ends(1);
    assert!(memory.store(at::SUBMITTED, DEPTH + 1));
    assert_eq!(handler.take(), Err(Unusable));
}

proptest! {
    /// Every command is answered once, with its own status, whatever the order of steps; counters may wrap.
    #[test]
    fn rings_agree_with_a_model(steps in proptest::collection::vec((0..4_u8, any::<u16>()), 1..400)) {
        let (mut target, mut handler, _) = ends(1);
        // Counters near their end.
        let of_target = [&mut target.submitted, &mut target.published, &mut target.completed, &mut target.answered];
        let of_handler = [&mut handler.taken, &mut handler.published, &mut handler.completed];
        of_target.into_iter().chain(of_handler).for_each(|counter| *counter = u32::MAX - 3);
        target.rings.store(at::SUBMITTED, u32::MAX - 3);
        target.rings.store(at::COMPLETED, u32::MAX - 3);
        let (mut submitted, mut held, mut expected) = (VecDeque::new(), Vec::new(), HashMap::new());
        for (number, (step, choice)) in (0_u64..).zip(steps) {
            match step {
                0 => if let Some(slot) = submit(&mut target, &read_at(number)) {
                    prop_assert!(expected.insert(slot, None).is_none(), "the slot was free");
                    submitted.push_back((slot, number));
                } else {
                    prop_assert_eq!(expected.len(), DEPTH as usize);
                },
                1 => match (handler.take().expect("sound"), submitted.pop_front()) {
                    (Some(command), Some((slot, number))) => {
                        prop_assert_eq!((command.slot.get(), command.offset.get()), (slot, number));
                        held.push(command);
                    }
                    (None, None) => {}
                    other => prop_assert!(false, "{:?}", other),
                },
                2 if !held.is_empty() => {
                    let command = held.swap_remove(usize::from(choice) % held.len());
                    let status = Status((choice % 6) as u8);
                    handler.complete(&command, status);
                    expected.insert(command.slot.get(), Some(status));
                }
                _ => if let Some(answer) = target.take().expect("sound") {
                    prop_assert_eq!(expected.remove(&answer.slot), Some(Some(answer.status)));
                },
            }
            prop_assert_eq!(target.in_progress(), expected.len());
        }
    }

    /// A hostile handler changes anything at any time: no slot is answered twice, and nothing panics.
    #[test]
    fn hostile_memory_answers_no_command_twice(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        crate::fuzzing::target_end(&bytes);
    }
}
