use super::*;
use crate::testing::{MEMORY_LEN, USER, region, started};
use zerocopy::IntoBytes;

const RING: u8 = 0;

fn ring() -> RingIndex {
    RING.into()
}

fn region_at(guest: u64, user: u64, size: u64) -> MemoryRegion {
    MemoryRegion { guest: guest.into(), size: size.into(), user: user.into(), offset: 0.into() }
}

#[test]
fn features_that_were_not_offered_are_ignored() {
    let mut device = VirtioDevice::new(1 << 9, 1);
    device.set_features(u64::MAX).expect("the layout of the rings stays");
    assert_eq!(device.features(), FEATURES | 1 << 9);
    device.set_protocol(u64::MAX);
    assert!(device.uses(protocol::REPLY_ACK) && !device.uses(1 << 8));
}

#[test]
fn rings_are_enabled_by_a_message_if_the_protocol_has_features() {
    let (mut device, mut driver) = started(0, 8);
    driver.offer(&[(0x4000, 16, false)], false).expect("there is room");
    assert!(device.has_work());
    device.enable(ring(), false).expect("it exists");
    assert!(!device.has_work() && device.is_started(ring()));
    device.set_features(feature::VERSION_1).expect("the layout of the rings stays");
    assert!(device.has_work(), "an old front-end enables no rings");
    assert_eq!(device.enable(1.into(), true), Err(Refused::Ring));
    assert_eq!(device.stop(200.into()), Err(Refused::Ring));
}

#[test]
fn a_ring_that_is_about_to_stop_takes_nothing_whatever_happens_meanwhile() {
    let (mut device, mut driver) = started(0, 8);
    driver.offer(&[(0x4000, 16, false)], false).expect("there is room");
    device.pause(ring());
    device.need_reserve(true);
    device.set_features(device.features()).expect("the layout of the rings stays");
    assert!(!device.has_work() && !device.is_running(ring()) && device.is_started(ring()));
    assert_eq!(device.stop(ring()), Ok(0));
    device.start(ring()).expect("its parts are in memory");
    assert!(device.has_work());
    device.pause_all();
    assert!(!device.has_work());
}

#[test]
fn the_ring_of_events_is_looked_at_only_when_there_are_some() {
    let memory = Region::zeroed(MEMORY_LEN);
    let mut device = VirtioDevice::new(0, 1).with_reserve(ring());
    device.set_features(feature::VERSION_1 | feature::PROTOCOL_FEATURES).expect("the layout of the rings stays");
    device.set_memory(vec![(region(), memory.clone())]).expect("one region");
    let mut driver = crate::testing::DriverRing::new(&memory, feature::VERSION_1, 8, 0x1000);
    device.set_size(ring(), 8).expect("it exists");
    device.set_address(ring(), driver.address(0)).expect("it exists");
    device.start(ring()).expect("its parts are in memory");
    device.enable(ring(), true).expect("it exists");
    driver.offer(&[(0x4000, 16, true)], false).expect("there is room");
    assert!(!device.has_work() && device.arm() && device.is_running(ring()));
    device.need_reserve(true);
    assert!(device.has_work() && device.take(ring()).is_ok_and(|chain| chain.is_some()));
}

#[test]
fn memory_is_replaced_while_a_ring_runs() {
    let (mut device, mut driver) = started(0, 8);
    driver.offer(&[(0x4000, 16, false)], false).expect("there is room");
    let chain = device.take(ring()).expect("good").expect("one");
    let memory = driver.memory.clone();
    let old = device.set_memory(vec![(region(), memory.clone())]).expect("one region");
    assert_eq!(old.len(), 1);
    device.put_back(ring(), (chain.id, chain.entries), 0);
    assert!(driver.returned().is_some());
    // Nothing keeps the memory before in use.
    let other = Region::zeroed(MEMORY_LEN);
    device.set_memory(vec![(region(), other)]).expect("one region");
    drop((old, driver));
    assert!(!memory.is_in_use());
}

#[test]
fn a_ring_without_its_memory_stops() {
    let (mut device, driver) = started(0, 8);
    let old = device.set_memory(vec![(region_at(0x10_0000, USER + 0x10_0000, 4096), Region::zeroed(4096))]);
    assert_eq!(old.map(|old| old.len()), Ok(1));
    assert!(!device.is_started(ring()) && device.active().is_empty());
    drop(driver);
    let overlap = vec![(region(), Region::zeroed(MEMORY_LEN)), (region(), Region::zeroed(MEMORY_LEN))];
    assert_eq!(device.set_memory(overlap).err(), Some(Refused::Memory(MapError::Overlap)));
    assert!(device.memory.window(0x10_0000, 1).is_some(), "nothing has changed");
}

#[test]
fn regions_are_added_and_removed_one_by_one() {
    let mut device = VirtioDevice::new(0, 1);
    let two = [region_at(0, USER, 4096), region_at(0x1_0000, USER + 4096, 4096)];
    for region in &two {
        device.add_memory(region, Region::zeroed(4096)).expect("free");
    }
    assert_eq!(device.add_memory(&two[0], Region::zeroed(4096)), Err(Refused::Memory(MapError::Overlap)));
    let elsewhere = region_at(0x2_0000, USER, 4096);
    assert_eq!(device.add_memory(&elsewhere, Region::zeroed(4096)), Err(Refused::Memory(MapError::Overlap)));
    assert!(device.memory.window(0x2_0000, 1).is_none(), "it was taken back");
    // Its first part, with another guest address, and one in the midst of it.
    for other in [elsewhere, region_at(0, USER, 2048), region_at(0, USER + 1024, 4096)] {
        assert_eq!(device.remove_memory(&other).err(), Some(Refused::Memory(MapError::Missing)));
        assert!(device.memory.window(0, 4096).is_some(), "nothing has changed");
    }
    assert!(device.remove_memory(&two[0]).is_ok_and(|region| region.is_some()));
    assert!(device.memory.window(0, 1).is_none() && device.memory.window(0x1_0000, 1).is_some());
    for at in 1..SLOTS_MAX {
        let (guest, user) = (0x10_0000 + at * 4096, USER + 0x10_0000 + at * 4096);
        device.add_memory(&region_at(guest, user, 4096), Region::zeroed(4096)).expect("free");
    }
    assert_eq!(
        device.add_memory(&region_at(0, USER, 4096), Region::zeroed(4096)),
        Err(Refused::Memory(MapError::TooMany))
    );
}

#[test]
fn a_reset_can_be_repeated_and_keeps_memory() {
    let (mut device, mut driver) = started(0, 8);
    device.set_status(15);
    for _ in 0..3 {
        device.reset();
    }
    assert_eq!((device.features(), device.status(), device.is_started(ring())), (0, 0, false));
    assert!(device.memory.window(0, MEMORY_LEN).is_some());
    device.set_size(ring(), 8).expect("it exists");
    device.set_address(ring(), driver.address(0)).expect("it exists");
    device.start(ring()).expect("its parts are in memory");
    device.enable(ring(), true).expect("it exists");
    driver.offer(&[(0x4000, 16, false)], false).expect("there is room");
    assert!(device.has_work());
}

#[test]
fn writes_are_logged_while_the_features_say_so() {
    let (mut device, mut driver) = started(0, 8);
    let log = Region::zeroed(4096);
    device.set_log(&log);
    let mut bits = [0; 8];
    let mut run = |device: &mut VirtioDevice| {
        driver.offer(&[(0x4000, 16, true)], false).expect("there is room");
        let chain = device.take(ring()).expect("good").expect("one");
        assert!(device.memory.write(0x4000, b"data"));
        device.put_back(ring(), (chain.id, chain.entries), 4);
        assert!(driver.returned().is_some());
    };
    run(&mut device);
    assert!(log.read(0, &mut bits) && bits == [0; 8]);
    device.set_features(device.features() | feature::LOG_ALL).expect("the layout of the rings stays");
    run(&mut device);
    // The page of the ring, and that of the data.
    assert!(log.read(0, &mut bits) && bits == [0x12, 0, 0, 0, 0, 0, 0, 0], "{bits:x?}");
    device.set_features(feature::VERSION_1 | feature::PROTOCOL_FEATURES).expect("the layout of the rings stays");
    assert!(log.write(0, &[0; 8]));
    run(&mut device);
    assert!(log.read(0, &mut bits) && bits == [0; 8]);
}

#[test]
fn a_write_that_has_no_bit_in_the_log_shows() {
    for (data, is_short) in [(0x4000, false), (0x9000, true)] {
        let (mut device, mut driver) = started(0, 8);
        // The bits of eight pages.
        device.set_log(&Region::zeroed(1));
        device.set_features(device.features() | feature::LOG_ALL).expect("the layout of the rings stays");
        driver.offer(&[(data, 16, true)], false).expect("there is room");
        let chain = device.take(ring()).expect("good").expect("one");
        assert!(device.memory.write(data, b"data"));
        device.put_back(ring(), (chain.id, chain.entries), 4);
        assert_eq!(device.memory.is_log_short(), is_short);
        device.set_log(&Region::zeroed(4096));
        assert!(!device.memory.is_log_short(), "another log");
    }
}

#[test]
fn a_ring_that_is_held_back_is_no_work() {
    let (mut device, mut driver) = started(0, 8);
    driver.offer(&[(0x4000, 16, false)], false).expect("there is room");
    device.hold_back(Some(ring()));
    assert!(!device.has_work() && device.is_running(ring()) && device.arm(), "the core may sleep");
    device.set_features(device.features()).expect("the layout of the rings stays");
    assert!(!device.has_work());
    device.hold_back(None);
    assert!(device.has_work());
}

#[test]
fn requests_that_a_process_did_not_answer_are_repeated_by_the_next_one() {
    for kind in [0, feature::RING_PACKED] {
        let (mut device, mut driver) = started(kind, 8);
        let record = Region::zeroed(VirtioDevice::inflight_len(1, 8));
        device.stop(ring()).expect("it exists");
        device.set_inflight(record.clone(), 1).expect("a queue");
        device.set_base(ring(), driver.base()).expect("it exists");
        device.start(ring()).expect("its parts are in memory");
        let ids: Vec<u16> = (0..4).filter_map(|_| driver.offer(&[(0x4000, 16, false)], false)).collect();
        let taken: Vec<Chain> = (0..3).filter_map(|_| device.take(ring()).expect("good")).collect();
        assert!(taken.iter().all(|chain| !chain.is_repeated));
        device.put_back(ring(), (taken[1].id, taken[1].entries), 0);
        drop(device);
        // The next process is told the used index of a split ring, and an old base of a packed one.
        let mut device = VirtioDevice::new(0, 1);
        device
            .set_features(kind | feature::VERSION_1 | feature::PROTOCOL_FEATURES)
            .expect("the layout of the rings stays");
        device.set_memory(vec![(region(), driver.memory.clone())]).expect("one region");
        device.set_inflight(record, 1).expect("a queue");
        device.set_size(ring(), 8).expect("it exists");
        device.set_address(ring(), driver.address(0)).expect("it exists");
        device.set_base(ring(), if kind == 0 { 1 } else { driver.base() }).expect("it exists");
        device.start(ring()).expect("its parts are in memory");
        device.enable(ring(), true).expect("it exists");
        assert!(device.has_work());
        let again: Vec<Chain> = std::iter::from_fn(|| device.take(ring()).expect("good")).collect();
        let seen: Vec<(u16, bool)> = again.iter().map(|chain| (chain.id, chain.is_repeated)).collect();
        assert_eq!(seen, [(ids[0], true), (ids[2], true), (ids[3], false)]);
        assert!(again.iter().all(|chain| chain.readable_len == 16));
        again.iter().for_each(|chain| device.put_back(ring(), (chain.id, chain.entries), 0));
        let returned: Vec<u16> = std::iter::from_fn(|| driver.returned().map(|(id, _)| id)).collect();
        assert_eq!(returned, [ids[1], ids[0], ids[2], ids[3]]);
        assert_eq!(device.stop(ring()), Ok(if kind == 0 { 4 } else { 0x8004_8004 }));
    }
}

#[test]
fn requests_that_were_returned_are_not_taken_again_at_an_old_base() {
    for has_record in [false, true] {
        let (mut device, mut driver) = started(0, 8);
        device.stop(ring()).expect("it exists");
        if has_record {
            device.set_inflight(Region::zeroed(VirtioDevice::inflight_len(1, 8)), 1).expect("a queue");
        }
        device.start(ring()).expect("its parts are in memory");
        // Once within a turn of the ring, and once after several.
        for turns in [1, 5] {
            for _ in 0..turns {
                (0..4).for_each(|_| _ = driver.offer(&[(0x4000, 16, false)], false).expect("there is room"));
                let taken: Vec<Chain> = std::iter::from_fn(|| device.take(ring()).expect("good")).collect();
                taken.iter().for_each(|chain| device.put_back(ring(), (chain.id, chain.entries), 0));
                assert_eq!(std::iter::from_fn(|| driver.returned()).count(), 4);
            }
            device.stop(ring()).expect("it exists");
            device.set_base(ring(), 0).expect("it exists");
            device.start(ring()).expect("its parts are in memory");
            assert!(!device.has_work());
            assert_eq!(device.take(ring()), Ok(None));
            let id = driver.offer(&[(0x4000, 16, false)], false).expect("there is room");
            let next = device.take(ring()).expect("good").expect("one");
            assert_eq!((next.id, device.take(ring())), (id, Ok(None)));
            device.put_back(ring(), (next.id, next.entries), 0);
            assert_eq!(driver.returned(), Some((id, 0)));
        }
    }
}

#[test]
fn the_record_of_each_ring_has_a_part_of_its_own() {
    assert!(VirtioDevice::inflight_len(2, 128) >= 2 * (32 + 128 * 32));
    let mut device = VirtioDevice::new(0, 2);
    assert_eq!(device.set_inflight(Region::zeroed(4096), 0), Err(Refused::Unsupported));
    device.set_inflight(Region::zeroed(8192), 2).expect("two queues");
    let windows: Vec<usize> = (0..3).filter_map(|at| device.record(at.into())).map(|window| window.len()).collect();
    assert_eq!(windows, [4096, 4096]);
    assert_eq!(region().as_bytes().len(), 32);
}

#[test]
fn a_device_has_a_bounded_amount_of_memory() {
    let mut device = VirtioDevice::new(0, 1);
    let half = |at: u64| region_at(at * MEMORY_MAX, USER + at * MEMORY_MAX, MEMORY_MAX / 2);
    assert_eq!(VirtioDevice::may_have(&[half(0), half(1)]), Ok(()));
    let too_much = Err(Refused::Memory(MapError::TooMany));
    assert_eq!(VirtioDevice::may_have(&[half(0), half(1), region()]), too_much);
    assert_eq!(VirtioDevice::may_have(&[half(0), region_at(0, 0, u64::MAX)]), too_much, "the sum has no overflow");
    // The state believes what it was told: the length of the memory does not count.
    device.bytes = MEMORY_MAX - MEMORY_LEN as u64 + 1;
    assert_eq!(device.add_memory(&region(), Region::zeroed(MEMORY_LEN)), too_much);
    device.bytes -= 1;
    device.add_memory(&region(), Region::zeroed(MEMORY_LEN)).expect("there is room");
    assert_eq!(device.may_add(&region_at(1 << 30, USER + (1 << 30), 1)), too_much);
    assert!(device.remove_memory(&region()).is_ok() && device.may_add(&region()).is_ok());
    let table = vec![(half(0), Region::zeroed(1)), (half(1), Region::zeroed(1)), (region(), Region::zeroed(1))];
    assert_eq!(device.set_memory(table).map(|_| ()), too_much);
}

#[test]
fn the_layout_of_a_ring_stays_while_it_is_started() {
    let (mut device, mut driver) = started(0, 8);
    driver.offer(&[(0x4000, 16, false)], false).expect("there is room");
    let chain = device.take(ring()).expect("good").expect("one");
    assert_eq!(device.set_size(ring(), 16), Err(Refused::Busy));
    let features = device.features();
    for other in [feature::RING_PACKED, feature::EVENT_IDX] {
        assert_eq!(device.set_features(features | other), Err(Refused::Busy));
        assert_eq!(device.features(), features);
    }
    assert_eq!(device.set_features(features | feature::LOG_ALL), Ok(()), "it changes with migration");
    // A ring that has lost its memory waits for its requests.
    device.stop(ring()).expect("it exists");
    assert_eq!((device.start(ring()), device.is_started(ring())), (Err(Refused::Busy), false));
    device.put_back(ring(), (chain.id, chain.entries), 0);
    assert_eq!((device.set_size(ring(), 8), device.start(ring())), (Ok(()), Ok(())));
}
