use super::*;
use lunar_nvme::Queue;
use lunar_nvme::fuzzing::Rig;
use std::rc::Rc;

/// A machine with 64 KiB of memory from address zero on, and who keeps its controller.
pub(super) fn machine() -> (NvmeRegisters, Rc<Queue>, Rig) {
    let rig = Rig::default();
    let admin = rig.subsystem.attach(&lunar_nvme::fuzzing::tenant(), lunar_core::time::Instant(0)).expect("room");
    let mut machine = NvmeRegisters::new(admin.controller.clone());
    machine.memory.map(0, 0x10000, Some(Region::zeroed(0x10000))).expect("free");
    (machine, admin, rig)
}

pub(super) fn enabled() -> (NvmeRegisters, Rc<Queue>, Rig) {
    let (mut machine, admin, rig) = machine();
    machine.write(0x24, &0x0007_0007_u32.to_le_bytes());
    machine.write(0x28, &0x1000_u64.to_le_bytes());
    machine.write(0x30, &0x2000_u32.to_le_bytes());
    machine.enable().expect("it can be");
    (machine, admin, rig)
}

fn read(machine: &NvmeRegisters, offset: u32) -> u64 {
    let mut bytes = [0; 8];
    machine.read(offset, &mut bytes);
    u64::from_le_bytes(bytes)
}

/// Command for a queue: identifier, what it completes to or its vector, page.
pub(super) fn about(id: u16, other: u16, page: u64) -> Sqe {
    let mut sqe = crate::pointer::entry(page, 0);
    sqe.cdw10[0] = (7 << 16 | u32::from(id)).into();
    sqe.cdw10[1] = (u32::from(other) << 16 | 3).into();
    sqe
}

#[test]
fn registers_are_read_and_written_in_words_of_both_sizes() {
    let (mut machine, ..) = machine();
    assert_eq!((read(&machine, 0), read(&machine, 8) & 0xffff_ffff), (0x0020_0f01_03ff, 0x1_0400));
    machine.write(0x28, &0x1122_3344_5566_7000_u64.to_le_bytes());
    machine.write(0x34, &0x99_u32.to_le_bytes());
    assert_eq!((read(&machine, 0x28), read(&machine, 0x30)), (0x1122_3344_5566_7000, 0x99_0000_0000));
    machine.write(0x0c, &1_u32.to_le_bytes());
    assert!(machine.is_masked() && read(&machine, 0x0c) & 1 == 1);
    machine.write(0x10, &1_u32.to_le_bytes());
    assert!(!machine.is_masked());
    assert_eq!(machine.write(0x14, &0x46_0001_u32.to_le_bytes()), Effect::Configure);
    assert_eq!((machine.wanted(), read(&machine, 0x10) >> 32), (0x46_0001, 0x46_0001));
    for (offset, len) in [(0x15, 4), (0x14, 2), (0x14, 1), (0x3ffe, 4), (0x4000, 4), (0x14, 16)] {
        assert_eq!(machine.write(offset, &vec![0xff; len]), Effect::None, "{offset:x} {len}");
    }
    machine.fail();
    assert_eq!(read(&machine, 0x18) >> 32, 2);
    assert_eq!((read(&machine, 0x1000), read(&machine, u32::MAX)), (0, 0));
}

#[test]
fn admin_queues_have_to_be_so() {
    let (mut machine, ..) = machine();
    assert!(machine.enable().is_err(), "one entry is no queue");
    machine.write(0x24, &0x0007_0007_u32.to_le_bytes());
    machine.write(0x28, &0x1004_u32.to_le_bytes());
    assert!(machine.enable().is_err(), "not on a page");
    machine.write(0x28, &0x77_0000_u32.to_le_bytes());
    assert!(machine.enable().is_ok());
    machine.write(0x1000, &1_u32.to_le_bytes());
    assert!(machine.fetch().is_none());
    assert_eq!(read(&machine, 0x18) >> 32 & 2, 2, "its memory is not there");
}

#[test]
fn commands_come_out_and_completions_go_in() {
    let (mut machine, ..) = enabled();
    assert!(machine.memory.write(0x1000 + 2, &[0x34, 0x12]));
    assert_eq!(machine.write(0x1000, &1_u32.to_le_bytes()), Effect::Rung);
    assert_eq!(machine.write(0x1000, &8_u32.to_le_bytes()), Effect::None, "there are eight entries");
    assert!(machine.is_ripe());
    let fetched = machine.fetch().expect("one");
    assert_eq!((fetched.queue, fetched.first.cid.get(), fetched.second.is_none()), (0, 0x1234, true));
    assert!(machine.fetch().is_none() && !machine.is_ripe() && machine.arm());
    machine.complete(0, 0x1234, Status::INVALID_OPCODE, 0x55);
    let mut entry = [0; 16];
    assert!(machine.memory.read(0x2000, &mut entry));
    assert_eq!(entry, [0x55, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0x34, 0x12, 0x03, 0x80]);
    assert_eq!((machine.take_raised(), machine.take_raised()), (vec![0], vec![]));
    machine.raise_unread();
    assert_eq!(machine.take_raised(), [0]);
    assert_eq!(machine.write(0x1004, &1_u32.to_le_bytes()), Effect::Rung);
    machine.raise_unread();
    assert!(!machine.has_raised());
}

#[test]
fn queues_are_made_and_deleted_in_their_order() {
    let (mut machine, ..) = enabled();
    assert_eq!(machine.create_submissions(&about(1, 1, 0x3000)), Err(Status::INVALID_COMPLETION_QUEUE));
    assert_eq!(machine.create_completions(&about(1, 200, 0x4000), 4), Err(Status::INVALID_VECTOR));
    assert_eq!(machine.create_completions(&about(5, 1, 0x4000), 4), Err(Status::INVALID_QUEUE));
    assert_eq!(machine.create_completions(&about(1, 1, 0x4008), 4), Err(Status::PRP_OFFSET));
    assert_eq!(machine.create_completions(&about(1, 1, 0x77_0000), 4), Err(Status::TRANSFER_ERROR));
    let mut scattered = about(1, 1, 0x4000);
    scattered.cdw10[1] = 0.into();
    assert_eq!(machine.create_completions(&scattered, 4), Err(Status::INVALID_FIELD));
    let mut large = about(1, 1, 0x4000);
    large.cdw10[0] = 0xffff_0001.into();
    assert_eq!(machine.create_completions(&large, 4), Err(Status::QUEUE_SIZE));
    assert_eq!(machine.create_completions(&about(1, 1, 0x4000), 4), Ok(()));
    assert_eq!(machine.create_completions(&about(1, 1, 0x4000), 4), Err(Status::INVALID_QUEUE));
    assert_eq!(machine.create_submissions(&about(2, 1, 0x77_0000)), Err(Status::TRANSFER_ERROR));
    assert_eq!(machine.create_submissions(&about(2, 1, 0x3000)), Ok((2, 8)));
    assert_eq!(machine.delete_completions(1), Err(Status::INVALID_DELETION));
    assert!(machine.has_submissions(2) && !machine.has_submissions(0));
    assert_eq!((machine.delete_submissions(0), machine.delete_submissions(2)), (Err(Status::INVALID_QUEUE), Ok(())));
    assert_eq!((machine.delete_completions(1), machine.delete_completions(0)), (Ok(()), Err(Status::INVALID_QUEUE)));
    machine.disable();
    assert!(!machine.has_submissions(2) && machine.fetch().is_none());
}

#[test]
fn what_is_written_is_remembered() {
    let (mut machine, ..) = enabled();
    let log = lunar_guest::dirty::DirtyPages::new(4096, &[]).expect("a page size");
    machine.memory.start_log(lunar_guest::dirty::DirtyLog::Pages(log));
    machine.create_completions(&about(1, 1, 0x4000), 4).expect("room");
    machine.create_submissions(&about(1, 1, 0x3000)).expect("room");
    let written = |machine: &NvmeRegisters| {
        let all = lunar_guest::Range { address: 0, len: 0x10000 };
        crate::feature::dirty_pages(&machine.memory, all, 4096).map(|bits| (bits[0], bits[1]))
    };
    assert_eq!(written(&machine), Ok((0, 0)));
    assert!(machine.memory.write(0x8fff, &[1, 2]));
    machine.write(0x1008, &1_u32.to_le_bytes());
    assert!(machine.fetch().is_some());
    assert_eq!(written(&machine), Ok((0, 3)), "reading is not writing");
    machine.complete(1, 0, Status::SUCCESS, 0);
    assert_eq!(written(&machine), Ok((0x10, 0)));
    machine.set_shadow(&crate::pointer::entry(0x5000, 0x6000)).expect("memory");
    assert_eq!(written(&machine), Ok((0x60, 0)));
    assert!(machine.arm());
    assert_eq!(written(&machine), Ok((0x40, 0)));
    assert!(machine.memory.stop_log().is_some());
    assert_eq!(written(&machine), Err(crate::wire::Errno::INVAL));
}

#[test]
fn a_host_that_reads_no_completions_does_not_have_them_pile_up() {
    let (mut machine, ..) = enabled();
    machine.create_completions(&about(1, 1, 0x4000), 4).expect("room");
    machine.create_submissions(&about(1, 1, 0x3000)).expect("room");
    let mut ended = 0;
    for round in 1..100_u32 {
        machine.write(0x1008, &(round % 8).to_le_bytes());
        while let Some(fetched) = machine.fetch() {
            machine.complete(fetched.queue, fetched.first.cid.get(), Status::SUCCESS, 0);
            ended += 1;
        }
    }
    assert!(ended <= 16 && !machine.is_ripe(), "{ended}");
    // When it has read them, what it has sent goes on.
    machine.write(0x100c, &7_u32.to_le_bytes());
    machine.flush();
    assert!(machine.fetch().is_some());
}

#[test]
fn halves_wait_for_each_other_without_a_look_too_many() {
    let (mut machine, ..) = enabled();
    machine.create_completions(&about(1, 1, 0x4000), 4).expect("room");
    machine.create_submissions(&about(1, 1, 0x3000)).expect("room");
    let flags =
        |machine: &NvmeRegisters, at: u64, flags: u8| assert!(machine.memory.write(0x3000 + at * 64 + 1, &[flags]));
    flags(&machine, 0, 1);
    flags(&machine, 1, 2);
    machine.write(0x1008, &1_u32.to_le_bytes());
    assert!(machine.is_ripe() && machine.fetch().is_none() && !machine.is_ripe() && machine.arm());
    machine.write(0x1008, &2_u32.to_le_bytes());
    assert!(machine.is_ripe() && machine.fetch().is_some_and(|fetched| fetched.second.is_some()));
    flags(&machine, 2, 1);
    machine.write(0x1008, &4_u32.to_le_bytes());
    assert!(machine.fetch().is_some_and(|fetched| fetched.second.is_none()), "its other half is none");
}

#[test]
fn a_half_that_comes_while_it_is_looked_for_is_seen() {
    let (mut machine, ..) = enabled();
    machine.create_completions(&about(1, 1, 0x4000), 4).expect("room");
    machine.create_submissions(&about(1, 1, 0x3000)).expect("room");
    machine.set_shadow(&crate::pointer::entry(0x5000, 0x6000)).expect("it has room");
    assert!(machine.memory.write(0x3001, &[1]) && machine.memory.write(0x3041, &[2]));
    assert!(machine.memory.write(0x5008, &1_u32.to_le_bytes()));
    let queue = machine.submissions[1].as_mut().expect("made");
    assert!(queue.is_ripe() && matches!(queue.first(), Found::Command(_)) && matches!(queue.second(), Found::Nothing));
    assert!(machine.memory.write(0x5008, &2_u32.to_le_bytes()));
    queue.wait();
    assert!(machine.is_ripe() && machine.fetch().is_some_and(|fetched| fetched.second.is_some()));
}

#[test]
fn who_takes_the_mask_away_hears_what_was_masked() {
    let (mut machine, ..) = enabled();
    let ring = |machine: &mut NvmeRegisters| machine.write(0x1000, &1_u32.to_le_bytes());
    assert_eq!((machine.write(0x0c, &[1, 0, 0, 0]), ring(&mut machine)), (Effect::None, Effect::Rung));
    let fetched = machine.fetch().expect("there is one");
    machine.complete(0, fetched.first.cid.get(), Status::SUCCESS, 0);
    assert!(machine.is_masked() && machine.take_raised() == [0], "which nobody heard");
    assert_eq!(machine.write(0x10, &[1, 0, 0, 0]), Effect::Rung);
    assert!(!machine.is_masked() && machine.take_raised() == [0]);
}

#[test]
fn shadows_are_looked_at_and_memory_that_goes_is_let_go() {
    let (mut machine, ..) = enabled();
    machine.create_completions(&about(1, 1, 0x4000), 4).expect("room");
    machine.create_submissions(&about(1, 1, 0x3000)).expect("room");
    let shadow = |first, second| crate::pointer::entry(first, second);
    assert_eq!(machine.set_shadow(&shadow(0x5000, 0x6008)), Err(Status::PRP_OFFSET));
    assert_eq!(machine.set_shadow(&shadow(0x5000, 0x77_0000)), Err(Status::TRANSFER_ERROR));
    assert_eq!(machine.set_shadow(&shadow(0x5000, 0x6000)), Ok(()));
    assert!(machine.arm());
    assert!(machine.memory.write(0x5008, &1_u32.to_le_bytes()));
    assert!(machine.is_ripe() && !machine.arm() && machine.fetch().is_some());
    // Admin doorbells are always rung.
    assert!(machine.memory.write(0x5000, &1_u32.to_le_bytes()) && machine.fetch().is_none());
    let regions = machine.forget_memory();
    assert!(regions.len() == 1 && !regions[0].is_in_use());
    // What was shown holds, or commands of long ago would come again.
    assert!(!machine.is_ripe() && machine.fetch().is_none());
    assert_eq!(read(&machine, register::STATUS) >> 32 & u64::from(FATAL), 0);
}

#[test]
fn mapped_doorbells_are_looked_at() {
    let (mut machine, ..) = enabled();
    let page = Region::zeroed(0x2000);
    machine.map_doorbells(&page, 0x1000);
    assert_eq!(machine.set_shadow(&crate::pointer::entry(0x5000, 0x6000)), Err(Status::INVALID_OPCODE));
    assert!(!machine.is_ripe() && page.store(0x1000, 2) && machine.is_ripe());
    assert!(machine.fetch().is_some() && machine.fetch().is_some() && machine.fetch().is_none());
    machine.write(0x1000, &3_u32.to_le_bytes());
    assert_eq!(page.load(0x1000), Some(3));
    machine.disable();
    assert_eq!(page.load(0x1000), Some(0));
}

/// A host that has mapped its doorbells makes a queue again without a word about where it begins.
#[test]
fn a_queue_that_is_made_again_begins_at_its_start() {
    let (mut machine, ..) = enabled();
    let page = Region::zeroed(0x2000);
    machine.map_doorbells(&page, 0x1000);
    let make = |machine: &mut NvmeRegisters| {
        assert_eq!(machine.create_completions(&about(1, 1, 0x4000), 4), Ok(()));
        assert_eq!(machine.create_submissions(&about(1, 1, 0x3000)), Ok((1, 8)));
    };
    make(&mut machine);
    assert!(page.store(0x1008, 5) && page.store(0x100c, 3));
    assert!(machine.fetch().is_some());
    assert_eq!(machine.delete_submissions(1), Ok(()));
    assert_eq!(machine.delete_completions(1), Ok(()));
    make(&mut machine);
    assert_eq!((page.load(0x1008), page.load(0x100c)), (Some(0), Some(0)));
    assert!(!machine.is_ripe() && machine.fetch().is_none(), "nobody has submitted anything");
}

#[test]
fn what_fuzzers_call_ends() {
    let mut seed = 1_u64;
    let mut random = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 56) as u8
    };
    for _ in 0..50 {
        let bytes: Vec<u8> = (0..2400).map(|_| random()).collect();
        crate::testing::registers(&bytes);
        crate::testing::pointers(&bytes);
        crate::testing::messages(&bytes);
    }
}

#[test]
fn interrupts_of_io_queues_wait_for_more_completions_and_no_longer_than_they_may() {
    let (mut machine, admin, rig) = enabled();
    admin.controller.set_property(property::CC, false, 0x46_0001).expect("it can be");
    for id in [1, 2] {
        machine.create_completions(&about(id, id, 0x3000 + u64::from(id) * 0x1000), 4).expect("room");
        machine.create_submissions(&about(id, id, 0x6000 + u64::from(id) * 0x1000)).expect("room");
    }
    let set = |machine: &mut NvmeRegisters, feature: u32, value: u32| {
        let sqe = lunar_nvme::fuzzing::entry(0x09, 0, &[feature, value]);
        assert_eq!(rig.run(&admin, &sqe, &[]).status, Status::SUCCESS);
        machine.complete(0, 1, Status::SUCCESS, 0);
        assert_eq!(machine.take_raised().first(), Some(&0), "the admin queue's never wait");
    };
    let complete = |machine: &mut NvmeRegisters, queue: u16| {
        machine.complete(queue, 7, Status::SUCCESS, 0);
        machine.take_raised()
    };
    assert_eq!((complete(&mut machine, 1), machine.patience()), (vec![1], None));
    // Three completions, or 500 microseconds; the second vector does not wait.
    set(&mut machine, 0x08, 0x0502);
    set(&mut machine, 0x09, 0x1_0002);
    assert_eq!((complete(&mut machine, 1), complete(&mut machine, 2)), (vec![], vec![2]));
    assert_eq!(machine.patience(), Some(Duration::from_micros(500)));
    assert_eq!((complete(&mut machine, 1), complete(&mut machine, 1)), (vec![], vec![1]));
    assert_eq!((machine.patience(), complete(&mut machine, 1)), (None, vec![]));
    machine.raise_waiting();
    assert_eq!((machine.take_raised(), machine.patience()), (vec![1], None), "its time is up");
    // What the host has read by itself needs no interrupt.
    assert!(complete(&mut machine, 1).is_empty());
    assert_eq!(machine.write(0x100c, &6_u32.to_le_bytes()), Effect::Rung);
    machine.raise_waiting();
    assert_eq!((machine.take_raised(), machine.patience()), (vec![], None));
    // On other terms nothing of before waits.
    assert!(complete(&mut machine, 1).is_empty());
    let sqe = lunar_nvme::fuzzing::entry(0x09, 0, &[0x08, 0]);
    assert_eq!(rig.run(&admin, &sqe, &[]).status, Status::SUCCESS);
    machine.complete(0, 1, Status::SUCCESS, 0);
    assert_eq!((machine.take_raised(), machine.patience(), complete(&mut machine, 1)), (vec![0, 1], None, vec![1]));
}
