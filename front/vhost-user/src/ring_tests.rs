use super::*;
use crate::config::CHAIN_MAX;
use crate::ring::chain::{DESCRIPTOR_LEN, INDIRECT, NEXT, WRITE};
use crate::session::RingIndex;
use crate::testing::{DriverRing, Piece, started};
use crate::virtio::VirtioDevice;
use lunar_guest::Range;
use proptest::prelude::*;

const SPLIT: u64 = feature::INDIRECT_DESC;
const SPLIT_EVENTS: u64 = SPLIT | feature::EVENT_IDX;
const PACKED: u64 = SPLIT | feature::RING_PACKED;
const ALL: [u64; 5] = [SPLIT, SPLIT_EVENTS, PACKED, PACKED | feature::EVENT_IDX, SPLIT | feature::IN_ORDER];

fn ring() -> RingIndex {
    RingIndex::from(0)
}

fn take(device: &mut VirtioDevice) -> Result<Option<Chain>, Broken> {
    device.take(ring())
}

fn put_back(device: &mut VirtioDevice, chain: &Chain, len: u32) {
    device.put_back(ring(), (chain.id, chain.entries), len);
}

fn range(address: u64, len: u64) -> Range {
    Range { address, len }
}

#[test]
fn a_request_is_taken_and_returned_by_every_kind_of_ring() {
    let pieces: [Piece; 3] = [(0x4000, 16, false), (0x5000, 512, true), (0x6000, 1, true)];
    for (features, is_indirect) in ALL.into_iter().flat_map(|features| [(features, false), (features, true)]) {
        let (mut device, mut driver) = started(features, 8);
        // Several times around the ring.
        for turn in 0..30 {
            assert!(!device.has_work());
            let id = driver.offer(&pieces, is_indirect).expect("there is room");
            assert!(device.has_work());
            let chain = take(&mut device).expect("a good chain").expect("one");
            assert_eq!(chain.id, id);
            assert_eq!((&chain.readable[..], chain.readable_len), (&[range(0x4000, 16)][..], 16));
            assert_eq!((&chain.writable[..], chain.writable_len), (&[range(0x5000, 512), range(0x6000, 1)][..], 513));
            assert_eq!((take(&mut device), device.in_progress(ring())), (Ok(None), 1));
            assert_eq!(driver.returned(), None);
            put_back(&mut device, &chain, 513);
            assert_eq!((driver.returned(), driver.returned()), (Some((id, 513)), None), "{features:x} {turn}");
        }
    }
}

#[test]
fn a_loop_ends_its_ring() {
    let (mut device, mut driver) = started(SPLIT, 8);
    driver.raw_descriptor(0, (0x4000, 16, false), NEXT, 1);
    driver.raw_descriptor(1, (0x4000, 16, false), NEXT, 0);
    driver.raw_offer(0);
    assert_eq!(take(&mut device), Err(Broken::Long));
    assert!(!device.has_work());
    assert_eq!(take(&mut device), Ok(None));
    // A table whose descriptors refer to each other.
    let (mut device, mut driver) = started(SPLIT, 8);
    let (first, second) = (0x9000, 0x9010);
    for (at, next) in [(first, 1_u16), (second, 0)] {
        let mut bytes = vec![0; DESCRIPTOR_LEN];
        bytes[12..14].copy_from_slice(&NEXT.to_le_bytes());
        bytes[14..].copy_from_slice(&next.to_le_bytes());
        driver.write(at, &bytes);
    }
    driver.raw_descriptor(0, (first, 32, false), INDIRECT, 0);
    driver.raw_offer(0);
    assert_eq!(take(&mut device), Err(Broken::Long));
}

#[test]
fn chains_that_the_specification_forbids_end_their_ring() {
    type Make = fn(&mut DriverRing);
    let cases: [(Broken, Make); 8] = [
        (Broken::Index, |driver| driver.set_available(9)),
        (Broken::Descriptor, |driver| driver.raw_offer(8)),
        (Broken::Descriptor, |driver| {
            driver.raw_descriptor(0, (0, 16, false), NEXT, 200);
            driver.raw_offer(0);
        }),
        (Broken::Order, |driver| {
            driver.raw_descriptor(0, (0, 16, true), WRITE | NEXT, 1);
            driver.raw_descriptor(1, (0, 16, false), 0, 0);
            driver.raw_offer(0);
        }),
        (Broken::Table, |driver| {
            driver.raw_descriptor(0, (0x9000, 16, false), INDIRECT | NEXT, 1);
            driver.raw_offer(0);
        }),
        (Broken::Table, |driver| {
            driver.raw_descriptor(0, (0x9000, 17, false), INDIRECT, 0);
            driver.raw_offer(0);
        }),
        (Broken::Table, |driver| {
            driver.raw_descriptor(0, (1 << 40, 16, false), INDIRECT, 0);
            driver.raw_offer(0);
        }),
        (Broken::Table, |driver| {
            driver.write(0x900c, &INDIRECT.to_le_bytes());
            driver.raw_descriptor(0, (0x9000, 16, false), INDIRECT, 0);
            driver.raw_offer(0);
        }),
    ];
    for (why, make) in cases {
        let (mut device, mut driver) = started(SPLIT, 8);
        make(&mut driver);
        assert_eq!(take(&mut device), Err(why));
        assert!(!device.has_work() && device.in_progress(ring()) == 0);
    }
}

/// A flag of a packed descriptor: available in the first lap, and in the second one.
const FIRST: u16 = 1 << 7;
const SECOND: u16 = 1 << 15;

#[test]
fn chains_of_packed_rings_that_the_specification_forbids_end_their_ring() {
    type Make = fn(&DriverRing);
    let cases: [(Broken, Make); 9] = [
        // Through all entries, back to the first.
        (Broken::Long, |driver| {
            (0..8).for_each(|at| driver.raw_descriptor(at, (0, 16, false), at, NEXT | FIRST));
        }),
        (Broken::Order, |driver| {
            driver.raw_descriptor(1, (0, 16, false), 0, FIRST);
            driver.raw_descriptor(0, (0, 16, true), 0, WRITE | NEXT | FIRST);
        }),
        (Broken::Table, |driver| driver.raw_descriptor(0, (0x9000, 16, false), 0, INDIRECT | NEXT | FIRST)),
        (Broken::Table, |driver| driver.raw_descriptor(0, (0x9000, 17, false), 0, INDIRECT | FIRST)),
        (Broken::Table, |driver| driver.raw_descriptor(0, (0x9000, 0, false), 0, INDIRECT | FIRST)),
        (Broken::Table, |driver| driver.raw_descriptor(0, (1 << 40, 16, false), 0, INDIRECT | FIRST)),
        // Its second descriptor is beyond the last address.
        (Broken::Table, |driver| driver.raw_descriptor(0, (u64::MAX - 15, 32, false), 0, INDIRECT | FIRST)),
        (Broken::Table, |driver| {
            driver.write(0x900e, &INDIRECT.to_le_bytes());
            driver.raw_descriptor(0, (0x9000, 16, false), 0, INDIRECT | FIRST);
        }),
        // A table behind a descriptor of the ring.
        (Broken::Table, |driver| {
            driver.raw_descriptor(1, (0x9000, 16, false), 0, INDIRECT | FIRST);
            driver.raw_descriptor(0, (0, 16, false), 0, NEXT | FIRST);
        }),
    ];
    for (number, (why, make)) in cases.into_iter().enumerate() {
        let (mut device, driver) = started(PACKED, 8);
        make(&driver);
        assert_eq!(take(&mut device), Err(why), "{number}");
        assert!(!device.has_work() && device.in_progress(ring()) == 0);
    }
}

#[test]
fn entries_of_a_packed_ring_with_wrong_wrap_counters_are_not_available() {
    let (mut device, mut driver) = started(PACKED, 8);
    for flags in [0, SECOND, FIRST | SECOND] {
        (0..8).for_each(|at| driver.raw_descriptor(at, (0x4000, 16, false), at, flags));
        assert_eq!((device.has_work(), take(&mut device)), (false, Ok(None)), "{flags:x}");
    }
    // In the next lap the same flags are those of the lap before.
    for _ in 0..8 {
        run(&mut device, &mut driver);
    }
    (0..8).for_each(|at| driver.raw_descriptor(at, (0x4000, 16, false), at, FIRST));
    assert_eq!((device.has_work(), take(&mut device)), (false, Ok(None)));
    run(&mut device, &mut driver);
}

#[test]
fn no_more_than_the_entries_of_a_ring_are_in_progress() {
    for order in [0, feature::IN_ORDER] {
        let (mut device, mut driver) = started(SPLIT | order, 8);
        driver.raw_descriptor(0, (0x4000, 16, false), 0, 0);
        let mut offer_and_take = || {
            driver.raw_offer(0);
            take(&mut device)
        };
        (0..8).for_each(|_| assert!(offer_and_take().is_ok_and(|chain| chain.is_some())));
        assert_eq!(offer_and_take(), Err(Broken::Index));
        assert!(!device.has_work());

        // Chains of three entries: two are in progress, and the third would need nine.
        let (mut device, driver) = started(PACKED | order, 8);
        let offer = |place: u16, lap: u16| {
            let flags = if place % 3 == 2 { 0 } else { NEXT };
            driver.raw_descriptor(place % 8, (0x4000, 16, false), place, lap | flags);
        };
        (0..8).for_each(|place| offer(place, FIRST));
        (0..2).for_each(|_| assert!(take(&mut device).is_ok_and(|chain| chain.is_some())));
        offer(8, SECOND);
        assert_eq!(take(&mut device), Err(Broken::Index));
        assert!(!device.has_work());
    }
}

#[test]
fn a_chain_has_a_bounded_number_of_descriptors() {
    for features in [SPLIT, PACKED] {
        let (mut device, mut driver) = started(features, 8);
        let count = CHAIN_MAX as u32 + 1;
        for at in 0..count {
            let mut bytes = vec![0; DESCRIPTOR_LEN];
            if features == SPLIT {
                bytes[12..14].copy_from_slice(&NEXT.to_le_bytes());
                bytes[14..].copy_from_slice(&(at as u16 + 1).to_le_bytes());
            }
            driver.write(0x2_0000 + u64::from(at) * DESCRIPTOR_LEN as u64, &bytes);
        }
        if features == SPLIT {
            driver.raw_descriptor(0, (0x2_0000, count * DESCRIPTOR_LEN as u32, false), INDIRECT, 0);
            driver.raw_offer(0);
        } else {
            // Descriptor 0 of the packed ring: the flags are in the last field.
            driver.raw_descriptor(0, (0x2_0000, count * DESCRIPTOR_LEN as u32, false), 0, INDIRECT | 1 << 7);
        }
        assert_eq!(take(&mut device), Err(Broken::Long));
    }
}

#[test]
fn a_split_ring_asks_for_notifications_by_flags_or_by_index() {
    let (mut device, mut driver) = started(SPLIT, 8);
    device.disarm();
    assert_eq!(driver.wishes().0, 1);
    assert!(device.arm());
    assert_eq!(driver.wishes().0, 0);
    driver.offer(&[(0x4000, 16, false)], false).expect("there is room");
    assert!(!device.arm(), "there is work");
    let chain = take(&mut device).expect("good").expect("one");
    assert!(device.arm());
    put_back(&mut device, &chain, 0);

    let (mut device, mut driver) = started(SPLIT_EVENTS, 8);
    for _ in 0..3 {
        driver.offer(&[(0x4000, 16, false)], false).expect("there is room");
        take(&mut device).expect("good").expect("one");
    }
    device.disarm();
    assert!(device.arm());
    assert_eq!(driver.wishes(), (0, 3));
}

/// Whether the driver is notified now.
fn is_signalled(device: &mut VirtioDevice) -> bool {
    let mut count = 0;
    assert!(device.signal(|_| {
        count += 1;
        true
    }));
    count > 0
}

fn run(device: &mut VirtioDevice, driver: &mut DriverRing) {
    driver.offer(&[(0x4000, 16, false)], false).expect("there is room");
    let chain = take(device).expect("good").expect("one");
    put_back(device, &chain, 0);
    assert!(driver.returned().is_some());
}

#[test]
fn a_driver_is_notified_where_it_wants_to_be() {
    // Flags.
    let (mut device, mut driver) = started(SPLIT, 8);
    assert!(is_signalled(&mut device), "a ring that starts");
    assert!(!is_signalled(&mut device), "nothing was returned");
    run(&mut device, &mut driver);
    assert!(is_signalled(&mut device));
    driver.write(0x1080, &1_u16.to_le_bytes());
    run(&mut device, &mut driver);
    assert!(!is_signalled(&mut device), "the driver polls");
    // Indices.
    let (mut device, mut driver) = started(SPLIT_EVENTS, 8);
    assert!(is_signalled(&mut device));
    driver.set_used_event(1);
    run(&mut device, &mut driver);
    assert!(!is_signalled(&mut device));
    run(&mut device, &mut driver);
    assert!(is_signalled(&mut device));
    run(&mut device, &mut driver);
    assert!(!is_signalled(&mut device), "the index lies behind");
    // A notification that failed is repeated, wherever the index is.
    driver.set_used_event(driver.seen());
    run(&mut device, &mut driver);
    assert!(!device.signal(|_| false));
    driver.set_used_event(driver.seen().wrapping_add(100));
    assert!(is_signalled(&mut device));
}

#[test]
fn the_driver_of_a_packed_ring_is_notified_at_its_descriptor() {
    let (mut device, mut driver) = started(PACKED | feature::EVENT_IDX, 4);
    assert!(is_signalled(&mut device));
    // In the first round the wrap counter is one.
    let mut returned = 0;
    for (event, wanted) in [(0x8001, 2), (0x8003, 4), (0x0001, 6), (0x8001, 10)] {
        driver.set_driver_event(event, 2);
        while returned < wanted {
            run(&mut device, &mut driver);
            returned += 1;
            assert_eq!(is_signalled(&mut device), returned == wanted, "{returned} returned, event {event:x}");
        }
    }
    driver.set_driver_event(0, 1);
    run(&mut device, &mut driver);
    assert!(!is_signalled(&mut device));
    driver.set_driver_event(0, 0);
    run(&mut device, &mut driver);
    assert!(is_signalled(&mut device));
    assert!(device.arm());
    assert_eq!(driver.device_event().1, 2);
    device.disarm();
    assert_eq!(driver.device_event().1, 1);
}

#[test]
fn requests_are_returned_in_order_if_the_driver_wants_that() {
    for features in [SPLIT | feature::IN_ORDER, PACKED | feature::IN_ORDER] {
        let (mut device, mut driver) = started(features, 8);
        let mut chains = Vec::new();
        let mut ids = Vec::new();
        for _ in 0..3 {
            ids.push(driver.offer(&[(0x4000, 16, false), (0x5000, 4, true)], false).expect("there is room"));
            chains.push(take(&mut device).expect("good").expect("one"));
            if chains.len() == 3 {
                break;
            }
        }
        put_back(&mut device, &chains[2], 3);
        put_back(&mut device, &chains[1], 2);
        assert_eq!(driver.returned(), None);
        put_back(&mut device, &chains[0], 1);
        let returned: Vec<_> = std::iter::from_fn(|| driver.returned()).collect();
        assert_eq!(returned, [(ids[0], 1), (ids[1], 2), (ids[2], 3)]);
    }
}

#[test]
fn a_ring_continues_where_it_was_stopped() {
    for features in ALL {
        let (mut device, mut driver) = started(features, 4);
        (0..7).for_each(|_| run(&mut device, &mut driver));
        let base = device.stop(ring()).expect("it exists");
        assert!(!device.is_started(ring()));
        device.set_base(ring(), base).expect("it exists");
        device.start(ring()).expect("its parts are in memory");
        (0..7).for_each(|_| run(&mut device, &mut driver));
    }
}

#[test]
fn rings_of_bad_sizes_and_places_do_not_start() {
    let (mut device, driver) = started(SPLIT, 8);
    device.stop(ring()).expect("it exists");
    device.set_size(ring(), 6).expect("it exists");
    assert_eq!(device.start(ring()), Err(crate::virtio::Refused::Start(Broken::Size)));
    device.set_size(ring(), 8).expect("it exists");
    let mut address = driver.address(0);
    for used in [1, address.used.get() + 1, address.used.get() + (1 << 40)] {
        address.used = used.into();
        device.set_address(ring(), address).expect("it exists");
        assert_eq!(device.start(ring()), Err(crate::virtio::Refused::Start(Broken::Unreachable)));
    }
}

proptest! {
    #[test]
    fn every_request_is_returned_once(
        features in proptest::sample::select(&ALL[..]),
        steps in proptest::collection::vec((any::<u8>(), 1..4_usize, any::<bool>()), 0..300),
    ) {
        let (mut device, mut driver) = started(features, 16);
        let mut taken: Vec<Chain> = Vec::new();
        for (what, count, is_indirect) in steps {
            match what % 3 {
                0 => {
                    let pieces: Vec<Piece> = (0..count as u64).map(|at| (0x4000 + at * 0x100, 16, at > 0)).collect();
                    let _ = driver.offer(&pieces, is_indirect);
                }
                1 => taken.extend(take(&mut device).expect("good")),
                _ if taken.is_empty() => {}
                _ => {
                    let chain = taken.remove(usize::from(what) % taken.len());
                    put_back(&mut device, &chain, 5);
                    while driver.returned().is_some() {}
                }
            }
        }
        while let Some(chain) = take(&mut device).expect("good") {
            taken.push(chain);
        }
        taken.iter().for_each(|chain| put_back(&mut device, chain, 0));
        while driver.returned().is_some() {}
        prop_assert_eq!((driver.in_progress(), device.in_progress(ring())), (0, 0));
    }

    #[test]
    fn no_memory_of_a_guest_causes_a_panic(
        features in proptest::sample::select(&ALL[..]),
        writes in proptest::collection::vec((0..0x400_u64, any::<[u8; 4]>()), 0..200),
    ) {
        let (mut device, driver) = started(features, 8);
        for (at, bytes) in writes {
            driver.write(0x1000 + at, &bytes);
            if let Ok(Some(chain)) = take(&mut device) {
                put_back(&mut device, &chain, 1);
            }
            let _ = device.arm();
            device.disarm();
            device.signal(|_| true);
        }
    }

    #[test]
    fn the_targets_of_the_fuzzer_hold(
        data in proptest::collection::vec(any::<u8>(), 0..800),
        is_packed in any::<bool>(),
    ) {
        crate::testing::messages(&data);
        crate::testing::ring(&data, is_packed);
    }
}
