use super::*;
use crate::feature::dirty_pages;
use crate::queue::submission::Found;
use crate::wire::Errno;
use lunar_guest::Range;
use lunar_guest::dirty::{DirtyLog, DirtyPages};
use lunar_nvme::Queue;
use lunar_nvme::fuzzing::{Rig, at_once, entry};
use std::rc::Rc;

/// Registers with 64 KiB of guest memory from address zero on, and everything that keeps their controller.
pub(super) fn registers() -> (NvmeRegisters, Rc<Queue>, Rig) {
    let rig = Rig::default();
    let admin =
        rig.subsystem.open_controller(&lunar_nvme::fuzzing::tenant(), lunar_core::time::Instant(0)).expect("room");
    let mut registers = NvmeRegisters::new(admin.controller.clone());
    registers.memory.map(0, 0x10000, Some(Region::zeroed(0x10000))).expect("free");
    (registers, admin, rig)
}

/// The same with admin queues of eight entries at 0x1000 and 0x2000.
pub(super) fn enabled() -> (NvmeRegisters, Rc<Queue>, Rig) {
    let (mut registers, admin, rig) = registers();
    registers.write(0x24, &0x0007_0007_u32.to_le_bytes());
    registers.write(0x28, &0x1000_u64.to_le_bytes());
    registers.write(0x30, &0x2000_u32.to_le_bytes());
    registers.enable().expect("valid admin queues");
    (registers, admin, rig)
}

/// Adds an I/O completion queue of eight entries.
fn create_completions(r: &mut NvmeRegisters, id: u16, address: u64, vector: Option<u16>) -> Result<(), Status> {
    r.change_queues(QueueChange::CreateCompletion { id, entries: 8, address, vector })
}

/// Adds an I/O submission queue of eight entries.
fn create_submissions(r: &mut NvmeRegisters, id: u16, address: u64, completion_queue: u16) -> Result<(), Status> {
    r.change_queues(QueueChange::CreateSubmission { id, entries: 8, address, completion_queue })
}

fn delete_completions(registers: &mut NvmeRegisters, id: u16) -> Result<(), Status> {
    registers.change_queues(QueueChange::DeleteCompletion { id })
}

fn delete_submissions(registers: &mut NvmeRegisters, id: u16) -> Result<(), Status> {
    registers.change_queues(QueueChange::DeleteSubmission { id })
}

/// Doorbell Buffer Config.
pub(super) fn set_doorbell_buffers(r: &mut NvmeRegisters, doorbells: u64, events: u64) -> Result<(), Status> {
    r.change_queues(QueueChange::SetDoorbellBuffers { doorbells, events })
}

/// Adds I/O queues of eight entries at 0x3000 (submissions) and 0x4000 (completions).
pub(super) fn create_queues(registers: &mut NvmeRegisters, id: u16, vector: Option<u16>) {
    create_completions(registers, id, 0x4000, vector).expect("room");
    create_submissions(registers, id, 0x3000, id).expect("room");
}

/// With I/O queues of identifier 1.
fn with_queues() -> (NvmeRegisters, Rc<Queue>, Rig) {
    let (mut registers, admin, rig) = enabled();
    create_queues(&mut registers, 1, Some(1));
    (registers, admin, rig)
}

fn read(registers: &NvmeRegisters, offset: u32) -> u64 {
    let mut bytes = [0xa5; 8];
    registers.read(offset, &mut bytes);
    u64::from_le_bytes(bytes)
}

/// Whether CSTS.CFS is set.
fn is_fatal(registers: &NvmeRegisters) -> bool {
    read(registers, 0x18) >> 32 & u64::from(FATAL) != 0
}

#[test]
fn registers_are_read_and_written_in_words_of_four_and_eight_bytes() {
    let (mut registers, ..) = registers();
    assert_eq!((read(&registers, 0), read(&registers, 8) & 0xffff_ffff), (0x0020_0f01_03ff, 0x1_0400));
    registers.write(0x28, &0x1122_3344_5566_7000_u64.to_le_bytes());
    registers.write(0x34, &0x99_u32.to_le_bytes());
    assert_eq!((read(&registers, 0x28), read(&registers, 0x30)), (0x1122_3344_5566_7000, 0x99_0000_0000));
    registers.write(0x0c, &1_u32.to_le_bytes());
    assert!(registers.masks_intx() && read(&registers, 0x0c) & 1 == 1);
    registers.write(0x10, &1_u32.to_le_bytes());
    assert!(!registers.masks_intx());
    assert_eq!(registers.write(0x14, &0x46_0001_u32.to_le_bytes()), Effect::Configure);
    assert_eq!((registers.configuration(), read(&registers, 0x10) >> 32), (0x46_0001, 0x46_0001));
    for (offset, len) in [(0x15, 4), (0x14, 2), (0x14, 1), (0x3ffe, 4), (0x4000, 4), (0x14, 16), (0xffc, 8)] {
        assert_eq!(registers.write(offset, &vec![0xff; len]), Effect::None, "{offset:x} {len}");
    }
    assert!(!is_fatal(&registers));
    registers.fail();
    assert!(is_fatal(&registers));
    assert_eq!((read(&registers, 0x1000), read(&registers, u32::MAX), read(&registers, 0x36)), (0, 0, 0));
    registers.reset();
    assert!(!is_fatal(&registers) && registers.configuration() == 0 && read(&registers, 0x28) == 0);
}

#[test]
fn a_controller_with_impossible_admin_queues_is_not_enabled() {
    let (mut registers, ..) = registers();
    assert!(registers.enable().is_err(), "one entry is no queue");
    registers.write(0x24, &0x0007_0007_u32.to_le_bytes());
    registers.write(0x28, &0x1004_u32.to_le_bytes());
    assert!(registers.enable().is_err(), "not on a page");
    registers.write(0x28, &0x77_0000_u32.to_le_bytes());
    assert!(registers.enable().is_ok());
    registers.write(0x1000, &1_u32.to_le_bytes());
    assert!(registers.fetch().is_none());
    assert!(is_fatal(&registers), "its memory is not there");
}

#[test]
fn a_completion_queue_may_extend_beyond_all_addresses() {
    let (mut registers, ..) = registers();
    registers.write(0x24, &0x0fff_0007_u32.to_le_bytes());
    registers.write(0x28, &0x1000_u64.to_le_bytes());
    registers.write(0x30, &0xffff_ffff_ffff_f000_u64.to_le_bytes());
    registers.enable().expect("its memory may come later");
    registers.memory.start_log(DirtyLog::Pages(DirtyPages::new(4096, &[]).expect("a page size")));
    (0..600).for_each(|cid| registers.complete(0, cid, Status::SUCCESS, 0));
    let asked = Range { address: 0, len: 0x10000 };
    assert_eq!(dirty_pages(&registers.memory, asked, 4096), Ok(vec![0; 8]));
}

/// NVMe Base 2.0 figure 146: Write to Invalid Doorbell Register, Invalid Doorbell Write Value.
#[test]
fn doorbells_that_are_trapped_and_make_no_sense_are_events_and_errors() {
    let told = |admin: &Rc<Queue>, rig: &Rig| {
        admin.controller.set_property(property::CC, false, 0x46_0001).expect("it can be");
        assert!(rig.run(admin, &entry(0x0c, 0, &[]), &[]).parked, "Asynchronous Event Request");
        let (_, status, result) = at_once(admin.controller.event());
        let page = rig.run(admin, &entry(0x02, 0, &[0x0f_0001]), &[]);
        assert_eq!((status, page.status), (Status::SUCCESS, Status::SUCCESS), "the log page is read");
        result.to_le_bytes()
    };
    for (at, value) in [(0x1000, 8_u32), (0x1000, 0x1_0001), (0x1004, 8), (0x1008, u32::MAX), (0x100c, 0xffff)] {
        let (mut registers, admin, rig) = with_queues();
        assert_eq!(registers.write(at, &value.to_le_bytes()), Effect::None);
        assert!(is_fatal(&registers), "{at:x} {value:x}");
        assert_eq!(told(&admin, &rig), [0, 1, 1, 0]);
        registers.write(0x1000, &1_u32.to_le_bytes());
        assert!(registers.fetch().is_none(), "nothing is fetched until a reset");
        registers.disable();
        registers.enable().expect("valid admin queues");
        assert!(!is_fatal(&registers));
    }
    let (mut registers, admin, rig) = with_queues();
    for at in [0x1010, 0x1014, 0x1008 + 8 * 127] {
        assert_eq!(registers.write(at, &1_u32.to_le_bytes()), Effect::None);
        assert_eq!((is_fatal(&registers), told(&admin, &rig)), (false, [0, 0, 1, 0]), "{at:x}");
    }
    registers.disable();
    registers.write(0x1000, &9_u32.to_le_bytes());
    assert!(!is_fatal(&registers), "a disabled controller has no queues");
}

#[test]
fn commands_come_out_and_completions_go_in() {
    let (mut registers, ..) = enabled();
    assert!(registers.memory.write(0x1000 + 2, &[0x34, 0x12]));
    assert_eq!(registers.write(0x1000, &1_u32.to_le_bytes()), Effect::Notified);
    assert!(registers.has_work());
    let fetched = registers.fetch().expect("one");
    assert_eq!((fetched.queue, fetched.first.cid.get(), fetched.second.is_none()), (0, 0x1234, true));
    assert!(registers.fetch().is_none() && !registers.has_work() && registers.arm());
    registers.complete(0, 0x1234, Status::INVALID_OPCODE, 0x55);
    let mut entry = [0; 16];
    assert!(registers.memory.read(0x2000, &mut entry));
    assert_eq!(entry, [0x55, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0x34, 0x12, 0x03, 0x80]);
    assert_eq!((registers.take_raised(), registers.take_raised()), (vec![0], vec![]));
    registers.raise_unread();
    assert_eq!(registers.take_raised(), [0]);
    assert_eq!(registers.write(0x1004, &1_u32.to_le_bytes()), Effect::Notified);
    registers.raise_unread();
    assert!(registers.take_raised().is_empty());
}

#[test]
fn a_failed_controller_fetches_nothing_and_still_completes() {
    let (mut registers, ..) = enabled();
    registers.write(0x1000, &2_u32.to_le_bytes());
    let fetched = registers.fetch().expect("two");
    registers.fail();
    assert!(!registers.has_work() && registers.fetch().is_none() && registers.arm());
    registers.complete(0, fetched.first.cid.get(), Status::SUCCESS, 0);
    assert_eq!(registers.take_raised(), [0]);
    registers.disable();
    assert!(!is_fatal(&registers), "a reset ends it");
}

#[test]
fn queues_are_created_and_deleted_in_their_order() {
    const NO_MEMORY: u64 = 0x77_0000;
    let (mut registers, ..) = enabled();
    assert_eq!(create_submissions(&mut registers, 1, 0x3000, 1), Err(Status::INVALID_COMPLETION_QUEUE));
    assert_eq!(create_completions(&mut registers, 1, NO_MEMORY, None), Err(Status::TRANSFER_ERROR));
    assert_eq!(create_completions(&mut registers, 1, 0x4000, Some(1)), Ok(()));
    assert_eq!(create_completions(&mut registers, 1, 0x4000, Some(1)), Err(Status::INVALID_QUEUE));
    assert_eq!(create_submissions(&mut registers, 2, NO_MEMORY, 1), Err(Status::TRANSFER_ERROR));
    assert_eq!(create_submissions(&mut registers, 2, 0x3000, 1), Ok(()));
    assert_eq!(create_submissions(&mut registers, 2, 0x3000, 1), Err(Status::INVALID_QUEUE));
    assert_eq!(delete_completions(&mut registers, 1), Err(Status::INVALID_DELETION));
    assert_eq!([0, 2].map(|id| delete_submissions(&mut registers, id)), [Err(Status::INVALID_QUEUE), Ok(())]);
    assert_eq!(delete_submissions(&mut registers, 2), Err(Status::INVALID_QUEUE));
    assert_eq!([1, 0].map(|id| delete_completions(&mut registers, id)), [Ok(()), Err(Status::INVALID_QUEUE)]);
    create_queues(&mut registers, 3, None);
    registers.disable();
    assert!(registers.fetch().is_none() && !registers.save().has_queues());
    assert_eq!(create_completions(&mut registers, 1, 0x4000, None), Err(Status::SEQUENCE_ERROR));
}

#[test]
fn pages_that_the_controller_writes_are_logged() {
    let (mut registers, ..) = enabled();
    registers.memory.start_log(DirtyLog::Pages(DirtyPages::new(4096, &[]).expect("a page size")));
    create_queues(&mut registers, 1, Some(1));
    let written = |registers: &NvmeRegisters| {
        let all = Range { address: 0, len: 0x10000 };
        dirty_pages(&registers.memory, all, 4096).map(|bits| (bits[0], bits[1]))
    };
    assert_eq!(written(&registers), Ok((0, 0)));
    assert!(registers.memory.write(0x8fff, &[1, 2]));
    registers.write(0x1008, &1_u32.to_le_bytes());
    assert!(registers.fetch().is_some());
    assert_eq!(written(&registers), Ok((0, 3)), "a fetch only reads");
    registers.complete(1, 0, Status::SUCCESS, 0);
    assert_eq!(written(&registers), Ok((0x10, 0)));
    set_doorbell_buffers(&mut registers, 0x5000, 0x6000).expect("memory");
    assert_eq!(written(&registers), Ok((0x60, 0)));
    assert!(registers.arm());
    assert_eq!(written(&registers), Ok((0x40, 0)));
    assert!(registers.memory.stop_log().is_some());
    assert_eq!(written(&registers), Err(Errno::INVAL));
}

#[test]
fn completions_do_not_pile_up_for_a_host_that_reads_none() {
    let (mut registers, ..) = with_queues();
    let mut completed = 0;
    for round in 1..100_u32 {
        registers.write(0x1008, &(round % 8).to_le_bytes());
        while let Some(fetched) = registers.fetch() {
            registers.complete(fetched.queue, fetched.first.cid.get(), Status::SUCCESS, 0);
            completed += 1;
        }
    }
    assert!(completed <= 16 && !registers.has_work(), "{completed}");
    // When the host has read them, its other commands begin.
    registers.write(0x100c, &7_u32.to_le_bytes());
    registers.flush();
    assert!(registers.fetch().is_some());
}

#[test]
fn halves_of_a_fused_operation_wait_for_each_other_without_polling() {
    let (mut registers, ..) = with_queues();
    let flags = |registers: &NvmeRegisters, at: u64, flags: u8| {
        assert!(registers.memory.write(0x3000 + at * 64 + 1, &[flags]));
    };
    flags(&registers, 0, 1);
    flags(&registers, 1, 2);
    registers.write(0x1008, &1_u32.to_le_bytes());
    assert!(registers.has_work() && registers.fetch().is_none() && !registers.has_work() && registers.arm());
    registers.write(0x1008, &2_u32.to_le_bytes());
    assert!(registers.has_work() && registers.fetch().is_some_and(|fetched| fetched.second.is_some()));
    flags(&registers, 2, 1);
    registers.write(0x1008, &4_u32.to_le_bytes());
    assert!(registers.fetch().is_some_and(|fetched| fetched.second.is_none()), "the next command is no second half");
}

#[test]
fn a_second_half_that_comes_during_the_look_is_seen() {
    let (mut registers, ..) = with_queues();
    set_doorbell_buffers(&mut registers, 0x5000, 0x6000).expect("memory");
    assert!(registers.memory.write(0x3001, &[1]) && registers.memory.write(0x3041, &[2]));
    assert!(registers.memory.write(0x5008, &1_u32.to_le_bytes()));
    let queue = registers.queues_mut().and_then(|queues| queues.submission(1)).expect("created");
    assert!(queue.has_work() && matches!(queue.first(), Found::Command(_)) && matches!(queue.second(), Found::Nothing));
    assert!(registers.memory.write(0x5008, &2_u32.to_le_bytes()));
    registers.queues_mut().and_then(|queues| queues.submission(1)).expect("created").await_second();
    assert!(registers.has_work() && registers.fetch().is_some_and(|fetched| fetched.second.is_some()));
}

#[test]
fn interrupts_that_were_masked_are_raised_when_the_mask_is_cleared() {
    let (mut registers, ..) = enabled();
    assert_eq!(registers.write(0x0c, &[1, 0, 0, 0]), Effect::None);
    assert_eq!(registers.write(0x1000, &1_u32.to_le_bytes()), Effect::Notified);
    let fetched = registers.fetch().expect("one");
    registers.complete(0, fetched.first.cid.get(), Status::SUCCESS, 0);
    assert!(registers.masks_intx() && registers.take_raised() == [0], "lost to the mask");
    assert_eq!(registers.write(0x10, &[1, 0, 0, 0]), Effect::Notified);
    assert!(!registers.masks_intx() && registers.take_raised() == [0]);
}

#[test]
fn shadow_doorbells_are_polled_and_guest_memory_is_let_go() {
    let (mut registers, ..) = with_queues();
    assert_eq!(set_doorbell_buffers(&mut registers, 0x5000, 0x77_0000), Err(Status::TRANSFER_ERROR));
    assert_eq!(set_doorbell_buffers(&mut registers, 0x5000, 0x6000), Ok(()));
    assert!(registers.arm());
    assert!(registers.memory.write(0x5008, &1_u32.to_le_bytes()));
    assert!(registers.has_work() && !registers.arm() && registers.fetch().is_some());
    // The admin queues have no shadow doorbells.
    assert!(registers.memory.write(0x5000, &1_u32.to_le_bytes()) && registers.fetch().is_none());
    let regions = registers.forget_memory();
    assert!(regions.len() == 1 && !regions[0].is_in_use());
    // The last doorbell values hold. Otherwise old commands would be fetched again.
    assert!(!registers.has_work() && registers.fetch().is_none() && !is_fatal(&registers));
}

#[test]
fn mapped_doorbells_are_polled() {
    let (mut registers, ..) = enabled();
    let page = Region::zeroed(0x2000);
    registers.map_doorbells(&page, 0x1000);
    assert_eq!(set_doorbell_buffers(&mut registers, 0x5000, 0x6000), Err(Status::INVALID_OPCODE));
    assert!(!registers.has_work() && page.store(0x1000, 2) && registers.has_work());
    assert!(registers.fetch().is_some() && registers.fetch().is_some() && registers.fetch().is_none());
    registers.write(0x1000, &3_u32.to_le_bytes());
    assert_eq!(page.load(0x1000), Some(3));
    registers.disable();
    assert_eq!(page.load(0x1000), Some(0));
}

#[test]
fn doorbells_keep_their_values_when_they_are_mapped() {
    let (mut registers, ..) = with_queues();
    registers.write(0x1008, &2_u32.to_le_bytes());
    assert!(registers.fetch().is_some());
    let page = Region::zeroed(0x2000);
    assert!(page.store(0x1100, 9));
    registers.map_doorbells(&page, 0x1000);
    assert_eq!((page.load(0x1008), page.load(0x1100)), (Some(2), Some(0)));
    assert!(registers.fetch().is_some() && registers.fetch().is_none(), "two in all");
}

/// A host that has mapped its doorbells creates a queue again without a write to its doorbell.
#[test]
fn a_queue_that_is_created_again_begins_at_its_start() {
    let (mut registers, ..) = enabled();
    let page = Region::zeroed(0x2000);
    registers.map_doorbells(&page, 0x1000);
    create_queues(&mut registers, 1, Some(1));
    assert!(page.store(0x1008, 5) && page.store(0x100c, 3));
    assert!(registers.fetch().is_some());
    assert_eq!(delete_submissions(&mut registers, 1), Ok(()));
    assert_eq!(delete_completions(&mut registers, 1), Ok(()));
    create_queues(&mut registers, 1, Some(1));
    assert_eq!((page.load(0x1008), page.load(0x100c)), (Some(0), Some(0)));
    assert!(!registers.has_work() && registers.fetch().is_none(), "nothing was submitted");
}

#[test]
fn fuzz_targets_end_on_random_bytes() {
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
fn interrupts_of_io_queues_are_coalesced_as_the_features_say() {
    let (mut registers, admin, rig) = enabled();
    admin.controller.set_property(property::CC, false, 0x46_0001).expect("a valid configuration");
    for id in [1, 2] {
        create_completions(&mut registers, id, 0x3000 + u64::from(id) * 0x1000, Some(id)).expect("room");
        create_submissions(&mut registers, id, 0x6000 + u64::from(id) * 0x1000, id).expect("room");
    }
    let set = |registers: &mut NvmeRegisters, feature: u32, value: u32| {
        let sqe = entry(0x09, 0, &[feature, value]);
        assert_eq!(rig.run(&admin, &sqe, &[]).status, Status::SUCCESS);
        registers.complete(0, 1, Status::SUCCESS, 0);
        assert_eq!(registers.take_raised().first(), Some(&0), "the admin queue's interrupts never wait");
    };
    let complete = |registers: &mut NvmeRegisters, queue: u16| {
        registers.complete(queue, 7, Status::SUCCESS, 0);
        registers.take_raised()
    };
    assert_eq!((complete(&mut registers, 1), registers.coalescing_time()), (vec![1], None));
    // Three completions, or 500 microseconds; the second vector does not wait.
    set(&mut registers, 0x08, 0x0502);
    set(&mut registers, 0x09, 0x1_0002);
    assert_eq!((complete(&mut registers, 1), complete(&mut registers, 2)), (vec![], vec![2]));
    assert_eq!(registers.coalescing_time(), Some(Duration::from_micros(500)));
    assert_eq!((complete(&mut registers, 1), complete(&mut registers, 1)), (vec![], vec![1]));
    assert_eq!((registers.coalescing_time(), complete(&mut registers, 1)), (None, vec![]));
    registers.raise_deferred();
    assert_eq!((registers.take_raised(), registers.coalescing_time()), (vec![1], None), "its time is over");
    // Completions that the host has read by itself need no interrupt.
    assert!(complete(&mut registers, 1).is_empty());
    assert_eq!(registers.write(0x100c, &6_u32.to_le_bytes()), Effect::Notified);
    registers.raise_deferred();
    assert_eq!((registers.take_raised(), registers.coalescing_time()), (vec![], None));
    // An interrupt that waited under other terms is raised when the terms change.
    assert!(complete(&mut registers, 1).is_empty());
    let sqe = entry(0x09, 0, &[0x08, 0]);
    assert_eq!(rig.run(&admin, &sqe, &[]).status, Status::SUCCESS);
    registers.complete(0, 1, Status::SUCCESS, 0);
    let (raised, time) = (registers.take_raised(), registers.coalescing_time());
    assert_eq!((raised, time, complete(&mut registers, 1)), (vec![0, 1], None, vec![1]));
}
