use crate::command::{Status, TaskAttribute};
use crate::context::Call;
use crate::device_types;
use crate::nexus::Addressee;
use crate::sbc::limits::TRANSFER_BYTES_MAX;
use crate::sense::{Asc, SenseKey};
use crate::testing::{BLOCKS, Ended, Rig};
use lunar_core::io::{Fault, Op};
use lunar_core::range::Span;

fn read10(lba: u32, count: u16) -> [u8; 10] {
    block10(0x28, 0, lba, count)
}

fn block10(op: u8, flags: u8, lba: u32, count: u16) -> [u8; 10] {
    let (lba, count) = (lba.to_be_bytes(), count.to_be_bytes());
    [op, flags, lba[0], lba[1], lba[2], lba[3], 0, count[0], count[1], 0]
}

fn block16(op: u8, lba: u64, count: u32) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[0] = op;
    cdb[2..10].copy_from_slice(&lba.to_be_bytes());
    cdb[10..14].copy_from_slice(&count.to_be_bytes());
    cdb
}

fn numbered(rig: &Rig) {
    rig.memory.bytes.borrow_mut().iter_mut().enumerate().for_each(|(at, byte)| *byte = (at / 512) as u8);
}

fn sense(ended: &Ended) -> (SenseKey, Asc) {
    assert_eq!((ended.status, ended.sense.len()), (Status::CHECK_CONDITION, 18), "{ended:?}");
    (SenseKey(ended.sense[2]), Asc(u16::from_be_bytes([ended.sense[12], ended.sense[13]])))
}

#[test]
fn read_commands_of_every_length_read() {
    let rig = Rig::default();
    numbered(&rig);
    let cdbs: [&[u8]; 4] =
        [&[0x08, 0, 0, 5, 2, 0], &read10(5, 2), &[0xa8, 0, 0, 0, 0, 5, 0, 0, 0, 2, 0, 0], &block16(0x88, 5, 2)];
    for cdb in cdbs {
        let ended = rig.run(cdb, &[], 1024);
        assert_eq!((ended.status, ended.wanted), (Status::GOOD, 1024));
        assert_eq!(ended.data, [[5; 512], [6; 512]].concat());
    }
    assert_eq!(rig.run(&[0x08, 0, 0, 0, 0, 0], &[], u32::MAX).data.len(), 256 * 512, "READ(6): 0 is 256");
    assert_eq!((rig.stats().read_commands.get(), rig.stats().read_bytes.get()), (5, 4 * 1024 + 256 * 512));
}

#[test]
fn write_commands_of_every_length_write() {
    let cdbs: [&[u8]; 7] = [
        &[0x0a, 0, 0, 5, 2, 0],
        &block10(0x2a, 0x18, 5, 2),
        &[0xaa, 0, 0, 0, 0, 5, 0, 0, 0, 2, 0, 0],
        &block16(0x8a, 5, 2),
        &block10(0x2e, 2, 5, 2),
        &[0xae, 0, 0, 0, 0, 5, 0, 0, 0, 2, 0, 0],
        &block16(0x8e, 5, 2),
    ];
    for cdb in cdbs {
        let rig = Rig::default();
        let ended = rig.run(cdb, &[9; 1024], 0);
        assert_eq!((ended.status, ended.wanted), (Status::GOOD, 1024));
        let bytes = rig.memory.bytes.borrow();
        assert_eq!((bytes[2559], &bytes[2560..3584], bytes[3584]), (0, &[9; 1024][..], 0));
        assert_eq!((rig.stats().write_commands.get(), rig.stats().write_bytes.get()), (1, 1024));
    }
}

#[test]
fn ranges_beyond_the_unit_or_the_limits_are_refused() {
    let rig = Rig::default();
    let blocks = u32::try_from(BLOCKS).expect("few");
    assert_eq!(rig.run(&read10(blocks, 0), &[], 0).status, Status::GOOD, "no blocks at the end of the unit");
    let beyond: [(&[u8], [u8; 4]); 4] = [
        (&read10(blocks - 1, 2), [0, 0, 8, 0]),
        (&read10(blocks + 1, 0), [0, 0, 8, 1]),
        (&block16(0x88, u64::from(blocks) + 7, 1), [0, 0, 8, 7]),
        (&block16(0x88, u64::MAX, u32::MAX), [0; 4]),
    ];
    for (cdb, information) in beyond {
        let ended = rig.run(cdb, &[], u32::MAX);
        assert_eq!(sense(&ended), (SenseKey::ILLEGAL_REQUEST, Asc::LBA_OUT_OF_RANGE));
        assert_eq!(ended.sense[3..7], information);
    }
    let large = Rig::new(lunar_core::io::Traits { size: 512 << 20, ..Rig::traits() });
    let most = u32::try_from(TRANSFER_BYTES_MAX / 512).expect("few");
    assert_eq!(large.run(&block16(0x88, 0, most), &[], 0).status, Status::GOOD);
    let ended = large.run(&block16(0x88, 0, most + 1), &[], 0);
    assert_eq!((sense(&ended).1, &ended.sense[15..]), (Asc::INVALID_FIELD_IN_CDB, &[0xc0, 0, 10][..]));
}

#[test]
fn a_read_is_cut_to_the_expected_length() {
    let rig = Rig::default();
    for (expects, moved) in [(0, 0), (200, 512), (512, 512), (513, 1024), (9999, 1024)] {
        let ended = rig.run(&read10(0, 2), &[], expects);
        assert_eq!((ended.status, ended.data.len(), ended.wanted), (Status::GOOD, moved, 1024));
    }
}

#[test]
fn a_write_is_truncated_to_the_whole_blocks_that_were_sent() {
    for (sends, written) in [(0, 0), (512, 1), (1024, 2), (1536, 2)] {
        let rig = Rig::default();
        let ended = rig.run(&block10(0x2a, 0, 0, 2), &vec![1; sends], 0);
        assert_eq!((ended.status, ended.wanted), (Status::GOOD, 1024));
        let count = rig.memory.bytes.borrow().iter().filter(|byte| **byte == 1).count();
        assert_eq!(count, written * 512);
    }
    let rig = Rig::default();
    let ended = rig.run(&block10(0x2a, 0, 0, 1), &[1; 200], 0);
    assert_eq!(sense(&ended), (SenseKey::ILLEGAL_REQUEST, Asc::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT));
    assert_eq!(ended.wanted, 512, "the residual count is reported");
    assert!(rig.memory.bytes.borrow().iter().all(|byte| *byte == 0));
}

#[test]
fn verify_reads_or_compares_by_bytchk() {
    let rig = Rig::default();
    numbered(&rig);
    let verify = |flags: u8, out: &[u8]| rig.run(&block10(0x2f, flags, 3, 2), out, 0);
    assert_eq!(verify(0, &[]).status, Status::GOOD);
    let mut data = [[3; 512], [4; 512]].concat();
    assert_eq!(verify(2, &data).status, Status::GOOD);
    data[600] = 0xff;
    let ended = verify(2, &data);
    assert_eq!(sense(&ended), (SenseKey::MISCOMPARE, Asc::MISCOMPARE_DURING_VERIFY));
    assert_eq!((ended.sense[0], &ended.sense[3..7]), (0xf0, &[0, 0, 2, 0x58][..]));
    assert_eq!(sense(&verify(6, &[3; 512])).0, SenseKey::MISCOMPARE);
    rig.memory.bytes.borrow_mut().fill(3);
    assert_eq!(verify(6, &[3; 512]).status, Status::GOOD);
    assert_eq!(verify(6, &[3; 100]).wanted, 512);
    assert_eq!(verify(4, &[]).sense[15..], [0xca, 0, 1], "BYTCHK 10b");
}

#[test]
fn compare_and_write_reports_the_first_difference() {
    let rig = Rig::default();
    numbered(&rig);
    let swap = |count: u8, out: &[u8]| rig.run(&[0x89, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, count, 0, 0], out, 0);
    assert_eq!(swap(1, &[[4; 512], [0xee; 512]].concat()).status, Status::GOOD);
    assert_eq!(rig.memory.bytes.borrow()[2048..2560], [0xee; 512]);
    let ended = swap(1, &[[4; 512], [0; 512]].concat());
    assert_eq!((sense(&ended).0, &ended.sense[3..7]), (SenseKey::MISCOMPARE, &[0; 4][..]));
    assert_eq!(ended.sense[0], 0xf0, "VALID");
    for (count, sends) in [(1, 2048), (3, 2048), (1, 512), (1, 0)] {
        assert_eq!(sense(&swap(count, &vec![0; sends])).1, Asc::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT);
    }
    assert_eq!(swap(0, &[]).status, Status::GOOD);
    rig.memory.bytes.borrow_mut().fill(0);
    assert_eq!(swap(255, &vec![0; 255 * 1024]).status, Status::GOOD);
}

/// SBC-3 5.2: Data-Out of COMPARE AND WRITE is twice NUMBER OF LOGICAL BLOCKS.
#[test]
fn compare_and_write_checks_the_length_of_data_out_before_it_reads_the_medium() {
    let rig = Rig::default();
    for content in [0, 0xa6] {
        rig.memory.bytes.borrow_mut().fill(content);
        for (count, sends) in [(1, 2048), (3, 2048), (1, 1023), (1, 1025), (2, 1024), (255, 2048), (1, 0), (0, 1024)] {
            let cdb = [0x89, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, count, 0, 0];
            let ended = rig.run(&cdb, &vec![0xa6; sends], 0);
            assert_eq!(
                sense(&ended).0,
                SenseKey::ILLEGAL_REQUEST,
                "{count} blocks, {sends} bytes, medium {content:#x}"
            );
            assert_eq!(rig.memory.asked.take(), vec![], "{count} blocks, {sends} bytes, medium {content:#x}");
        }
    }
}

#[test]
fn synchronize_cache_flushes_and_pre_fetch_does_not_read() {
    let rig = Rig::default();
    for (cdb, asked) in [
        (&block10(0x35, 2, 0, 0)[..], vec![Op::Flush]),
        (&block16(0x91, 5, 2), vec![Op::Flush]),
        (&block10(0x34, 2, 0, 1), vec![]),
        (&block16(0x90, 5, 2), vec![]),
    ] {
        assert_eq!(rig.run(cdb, &[], 0).status, Status::GOOD);
        assert_eq!(rig.memory.asked.take(), asked);
    }
    assert_eq!(sense(&rig.run(&block16(0x91, BLOCKS, 1), &[], 0)).1, Asc::LBA_OUT_OF_RANGE);
}

#[test]
fn faults_of_the_store_become_sense_data() {
    let rig = Rig::default();
    rig.memory.fault.set(Some(Fault::Medium));
    let ended = rig.run(&read10(3, 2), &[], 1024);
    assert_eq!(sense(&ended), (SenseKey::MEDIUM_ERROR, Asc::UNRECOVERED_READ_ERROR));
    assert_eq!((ended.sense[0], &ended.sense[3..7], ended.wanted), (0xf0, &[0, 0, 0, 3][..], 1024));
    rig.memory.fault.set(Some(Fault::NoSpace));
    let ended = rig.run(&block10(0x2a, 0, 3, 1), &[0; 512], 0);
    assert_eq!(sense(&ended), (SenseKey::DATA_PROTECT, Asc::SPACE_ALLOCATION_FAILED));
    rig.memory.fault.set(Some(Fault::NoMemory));
    let ended = rig.run(&read10(3, 2), &[], 1024);
    assert_eq!((ended.status, ended.sense.len()), (Status::BUSY, 0));
    assert_eq!((rig.stats().check_conditions.get(), rig.stats().busy_refused.get()), (2, 1));
    assert_eq!(rig.stats().commands.get(), 3);
}

#[test]
fn blocks_marked_as_unreadable_fail_until_they_are_written() {
    let rig = Rig::default();
    numbered(&rig);
    let unit = rig.nexus.itl(0).expect("LUN exists").lu.of_test().unit.clone();
    let mark = |first: u64, end: u64| {
        let span = Span { start: first * 512, end: end * 512 };
        drop(unit.medium.uncorrectable().mark(span, 512, &*unit.metadata).expect("room"));
    };
    let told = |cdb: &[u8], out: &[u8]| {
        let ended = rig.run(cdb, out, 8 * 512);
        assert_eq!(sense(&ended), (SenseKey::MEDIUM_ERROR, Asc::LBA_MARKED_BAD), "{cdb:02x?}");
        (ended.sense[0], ended.sense[6])
    };
    mark(5, 7);
    let swap = [0x89, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 1, 0, 0];
    for (cdb, out) in [
        (&read10(3, 8)[..], &[][..]),
        (&block16(0x88, 3, 8), &[]),
        (&block10(0x2f, 0, 3, 8), &[]),
        (&block10(0x2f, 2, 3, 8), &[0; 8 * 512]),
        (&swap, &[0; 1024]),
    ] {
        assert_eq!(told(cdb, out), (0xf0, 5), "{cdb:02x?}");
    }
    assert_eq!(rig.run(&read10(3, 2), &[], 1024).status, Status::GOOD);
    // WRITE SAME, and WRITE.
    assert_eq!(rig.run(&block10(0x41, 0, 5, 1), &[9; 512], 0).status, Status::GOOD);
    assert_eq!(told(&read10(3, 8), &[]), (0xf0, 6));
    assert_eq!(rig.run(&block10(0x2a, 0, 6, 1), &[8; 512], 0).status, Status::GOOD);
    assert_eq!(rig.run(&read10(5, 2), &[], 1024).data, [[9; 512], [8; 512]].concat());
}

#[test]
fn every_task_attribute_but_aca_is_executed() {
    let rig = Rig::default();
    for attribute in [TaskAttribute::SIMPLE, TaskAttribute::ORDERED, TaskAttribute::HEAD_OF_QUEUE] {
        rig.attribute.set(attribute);
        assert_eq!(rig.run(&read10(0, 1), &[], 512).status, Status::GOOD);
    }
    rig.attribute.set(TaskAttribute::ACA);
    let ended = rig.run(&read10(0, 1), &[], 512);
    assert_eq!(sense(&ended), (SenseKey::ILLEGAL_REQUEST, Asc::INVALID_MESSAGE_ERROR));
}

#[test]
fn naca_is_refused_with_a_field_pointer() {
    let mut read = read10(0, 1);
    read[9] = 0x04;
    let ended = Rig::default().run(&read, &[], 512);
    assert_eq!((sense(&ended).1, &ended.sense[15..]), (Asc::INVALID_FIELD_IN_CDB, &[0xca, 0, 9][..]));
}

/// Prints the time to find, check, admit and plan a READ(16). Run it by name in a release build.
#[test]
#[ignore = "a measurement"]
fn cost_of_a_plan() {
    let rig = Rig::default();
    let command = rig.command(&block16(0x88, 5, 8), 0, 4096);
    let rounds = 20_000_000u32;
    let start = std::time::Instant::now();
    for _ in 0..rounds {
        let command = std::hint::black_box(&command);
        let addressee = rig.nexus.addressee(command.lun);
        let device = device_types::of(&addressee);
        let call = Call { nexus: &rig.nexus, addressee: &addressee, device, command };
        let (row, amount) = rig.target.admitted(call).expect("admitted");
        let plan = rig.target.plan(call, row, amount, &[]);
        std::hint::black_box(plan).expect("planned");
    }
    println!("{:.1} ns", start.elapsed().as_secs_f64() * 1e9 / f64::from(rounds));
}

#[test]
fn both_execution_paths_give_the_same_result() {
    let rigs = [Rig::default(), Rig::default()];
    rigs[1].memory.is_slow.set(true);
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    for _ in 0..2000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let [op, lba, count, sent, fault, ..] = random.rotate_left(24).to_le_bytes();
        let (op, lba) = ([0x28, 0x2a, 0x2e, 0x2f, 0x89, 0x41][usize::from(op % 6)], u32::from(lba) + 1800);
        let data = vec![fault; usize::from(sent % 6) * 256];
        let fault = (fault < 16).then_some(Fault::Medium);
        let ended = rigs.each_ref().map(|rig| {
            rig.memory.fault.set(fault);
            let ended = rig.run(&block10(op, 0, lba, u16::from(count % 5)), &data, u32::from(sent) * 16);
            rig.memory.fault.set(None);
            ended
        });
        assert_eq!(ended[0], ended[1], "{op:#x} {lba} {count} {sent} {fault:?}");
    }
    let [quick, slow] = rigs.each_ref().map(|rig| (rig.memory.bytes.borrow().clone(), rig.memory.asked.take()));
    assert_eq!(quick, slow);
    let counts = rigs.each_ref().map(|rig| {
        let stats = rig.stats();
        [&stats.commands, &stats.read_commands, &stats.read_bytes, &stats.write_bytes, &stats.check_conditions]
            .map(|count| count.get())
    });
    assert_eq!(counts[0], counts[1]);
    assert!(counts[0].iter().all(|count| *count > 0));
}

#[test]
fn conditions_are_reported_once_and_only_by_execute() {
    let rig = Rig::default();
    rig.attribute.set(TaskAttribute::ORDERED);
    assert_eq!(rig.run(&read10(0, 1), &[], 512).status, Status::GOOD);
    rig.attribute.set(TaskAttribute::ACA);
    assert_eq!(sense(&rig.run(&read10(0, 1), &[], 512)).1, Asc::INVALID_MESSAGE_ERROR);
    rig.attribute.set(TaskAttribute::SIMPLE);
    let Addressee::Unit(itl) = rig.nexus.addressee(rig.lun.get()) else { panic!("there is a disk") };
    itl.establish_unit_attention(Asc::POWER_ON_OR_RESET);
    assert_eq!(sense(&rig.run(&read10(0, 1), &[], 512)), (SenseKey::UNIT_ATTENTION, Asc::POWER_ON_OR_RESET));
    assert_eq!(rig.run(&read10(0, 1), &[], 512).status, Status::GOOD);
}
