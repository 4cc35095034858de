use crate::command::Status;
use crate::other_core::two_cores_of;
use crate::sbc::table::DISK;
use crate::sense::Asc;
use crate::testing::{Memory, Rig};
use lunar_core::io::Traits;
use lunar_core::metadata::{DurableMemory, MetadataStore, Saving};
use proptest::prelude::*;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

const CACHING: [u8; 20] = [0x08, 0x12, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
const CONTROL: [u8; 12] = [0x0a, 0x0a, 0x22, 0x10, 0, 0, 0, 0, 0, 0, 0, 0];
const EXCEPTIONS: [u8; 12] = [0x1c, 0x0a, 0x08, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// The codes and bytes of every page.
fn all_pages() -> Vec<(u8, u8, Vec<u8>)> {
    let zeroes = |front: &[u8], length: usize| {
        let mut page = front.to_vec();
        page.resize(length, 0);
        page
    };
    vec![
        (0x01, 0, zeroes(&[0x01, 0x0a, 0xc0], 12)),
        (0x02, 0, zeroes(&[0x02, 0x0e], 16)),
        (0x08, 0, CACHING.to_vec()),
        (0x0a, 0, CONTROL.to_vec()),
        (0x0a, 1, zeroes(&[0x4a, 1, 0, 0x1c, 0x07], 32)),
        (0x0a, 2, zeroes(&[0x4a, 2, 0, 0x0c], 16)),
        (0x18, 0, zeroes(&[0x18, 6, 5], 8)),
        (0x19, 0, zeroes(&[0x19, 6, 5], 8)),
        (0x1a, 0, zeroes(&[0x1a, 0x26], 40)),
        (0x1c, 0, EXCEPTIONS.to_vec()),
        (0x1c, 2, [&[0x5c, 2, 0, 0x1c], &[0; 12][..], &[0, 1, 0, 0, 0, 0, 0, 0], &[1, 2, 0, 0, 0, 0, 0, 0]].concat()),
    ]
}

/// The bytes of all pages for which `which` returns true.
fn pages(which: impl Fn(u8, u8) -> bool) -> Vec<u8> {
    all_pages()
        .into_iter()
        .filter(|(page, subpage, _)| which(*page, *subpage))
        .flat_map(|(_, _, bytes)| bytes)
        .collect()
}

fn sense6(rig: &Rig, flags: u8, page: u8, subpage: u8) -> Vec<u8> {
    let ended = rig.run(&[0x1a, flags, page, subpage, 255, 0], &[], 255);
    assert_eq!(ended.status, Status::GOOD, "{ended:?}");
    assert_eq!(usize::from(ended.data[0]), ended.data.len() - 1);
    ended.data
}

fn asc(sense: &[u8]) -> Asc {
    Asc(u16::from_be_bytes([sense[12], sense[13]]))
}

#[test]
fn mode_sense_6_returns_the_pages() {
    let rig = Rig::default();
    let header = |length: usize| vec![length as u8 + 11, 0, 0x10, 8, 0, 0, 8, 0, 0, 0, 2, 0];
    for (subpage, expected) in [(0, pages(|_, subpage| subpage == 0)), (0xff, pages(|_, _| true))] {
        assert_eq!(sense6(&rig, 0, 0x3f, subpage), [header(expected.len()), expected].concat());
    }
    for (page, subpage, bytes) in all_pages() {
        assert_eq!(sense6(&rig, 8, page, subpage)[4..], bytes, "{page:02x}/{subpage:02x}");
        assert_eq!(sense6(&rig, 8, page, 0xff)[4..], pages(|other, _| other == page));
    }
}

#[test]
fn a_fully_provisioned_disk_has_no_thresholds() {
    let rig = Rig::new(Traits { unmap_granularity: 0, ..Rig::traits() });
    assert_eq!(sense6(&rig, 8, 0x1c, 0xff)[4..], EXCEPTIONS);
    assert_eq!(rig.run(&[0x1a, 8, 0x1c, 2, 255, 0], &[], 255).sense[15..], [0xc0, 0, 3]);
}

#[test]
fn mode_sense_10_returns_the_pages_and_long_block_descriptors() {
    let rig = Rig::default();
    let ten = |flags: u8| rig.run(&[0x5a, flags, 0x1c, 0, 0, 0, 0, 1, 0, 0], &[], 256).data;
    assert_eq!(ten(8), [&[0, 18, 0, 0x10, 0, 0, 0, 0][..], &EXCEPTIONS].concat());
    let short = [0, 26, 0, 0x10, 0, 0, 0, 8, 0, 0, 8, 0, 0, 0, 2, 0];
    assert_eq!(ten(0), [&short[..], &EXCEPTIONS].concat());
    let long = [0, 34, 0, 0x10, 1, 0, 0, 16, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 2, 0];
    assert_eq!(ten(0x10), [&long[..], &EXCEPTIONS].concat());
}

#[test]
fn page_control_selects_the_values() {
    let rig = Rig::default();
    let values = |control: u8, page: u8| sense6(&rig, 8, control << 6 | page, 0)[4..].to_vec();
    assert_eq!(values(1, 0x08)[2], 4);
    assert_eq!(values(1, 0x0a)[2..5], [4, 0, 8]);
    assert_eq!(values(2, 0x0a), CONTROL);
    let saved = rig.run(&[0x1a, 8, 0xc0 | 0x08, 0, 255, 0], &[], 255);
    assert_eq!(asc(&saved.sense), Asc::SAVING_NOT_SUPPORTED, "the unit cannot save values");
    for (page, _, bytes) in
        all_pages().into_iter().filter(|(page, subpage, _)| *subpage == 0 && ![8, 10].contains(page))
    {
        let header = [&bytes[..2], &vec![0; bytes.len() - 2]].concat();
        assert_eq!(values(1, page), header, "{page:02x} is unchanged");
        assert_eq!(values(2, page), bytes);
    }
    let through = Rig::new(Traits { write_cache: false, ..Rig::traits() });
    assert_eq!(sense6(&through, 8, 0x48, 0)[6], 0);
    assert_eq!(sense6(&through, 8, 0x08, 0)[6], 0);
}

#[test]
fn unknown_pages_are_refused_with_a_field_pointer() {
    let rig = Rig::default();
    assert_eq!(rig.run(&[0x1a, 0, 0x03, 0, 255, 0], &[], 255).sense[15..], [0xcd, 0, 2]);
    for (page, subpage) in [(0x0a, 3), (0x01, 1), (0x3f, 1), (0x3f, 2)] {
        assert_eq!(rig.run(&[0x1a, 0, page, subpage, 255, 0], &[], 255).sense[15..], [0xc0, 0, 3]);
    }
}

#[test]
fn write_protection_sets_wp() {
    let rig = Rig::new(Traits { read_only: true, ..Rig::traits() });
    assert_eq!(sense6(&rig, 8, 0x0a, 0)[2], 0x90);
}

fn select6(rig: &Rig, pages: &[&[u8]]) -> crate::testing::Ended {
    let list = [&[0, 0, 0, 0][..], &pages.concat()].concat();
    rig.run(&[0x15, 0x10, 0, 0, u8::try_from(list.len()).expect("short"), 0], &list, 0)
}

#[test]
fn mode_select_sets_changeable_values() {
    let rig = Rig::default();
    let other = rig.target.nexus(Rig::name("b"));
    let itl = other.itl(0).expect("LUN exists");
    while itl.take_attention().is_some() {}
    let (mut caching, mut control) = (CACHING, CONTROL);
    (caching[2], control[2], control[4]) = (0, 0x26, 8);
    assert_eq!(select6(&rig, &[&caching, &control]).status, Status::GOOD);
    assert_eq!(itl.attention().map(|(asc, _)| asc), Some(Asc::MODE_PARAMETERS_CHANGED));
    assert_eq!(rig.nexus.itl(0).expect("LUN exists").attention(), None);
    // Switching the cache off flushes it.
    assert_eq!(rig.memory.asked.take(), [lunar_core::io::Op::Flush]);
    assert_eq!(sense6(&rig, 8, 0x08, 0)[4..], caching);
    assert_eq!(sense6(&rig, 8, 0x0a, 0)[2..][..4], [0x90, 0, 0x0a, 0x0a]);
    let refused = rig.run(&[0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[0; 512], 0);
    assert_eq!(refused.sense, [0x72, 7, 0x27, 0, 0, 0, 0, 0], "SWP, D_SENSE");
    assert_eq!(select6(&rig, &[&CONTROL]).status, Status::GOOD);
    let write = |flags: u8| rig.run(&[0x2a, flags, 0, 0, 0, 0, 0, 0, 1, 0], &[1; 512], 0).status;
    assert_eq!(write(0), Status::GOOD);
    assert_eq!(rig.memory.asked.take(), [lunar_core::io::Op::Write { durable: true }], "WCE is zero");
    assert_eq!(select6(&rig, &[&CACHING]).status, Status::GOOD);
    assert_eq!((write(0), write(8)), (Status::GOOD, Status::GOOD));
    let [plain, fua] = [false, true].map(|durable| lunar_core::io::Op::Write { durable });
    assert_eq!(rig.memory.asked.take(), [plain, fua]);
}

#[test]
fn an_invalid_list_is_refused_with_a_field_pointer_and_changes_nothing() {
    let rig = Rig::default();
    let mut control = CONTROL;
    control[2] |= 4;
    let mut caching = CACHING;
    caching[2] |= 1;
    let ended = select6(&rig, &[&control, &caching]);
    assert_eq!((asc(&ended.sense), &ended.sense[15..]), (Asc::INVALID_FIELD_IN_PARAMETER_LIST, &[0x88, 0, 18][..]));
    assert_eq!(sense6(&rig, 8, 0x0a, 0)[4..], CONTROL);
    // The list, the sense code and the field pointer.
    let refused: [(&[u8], [u8; 3]); 8] = [
        (&[0x0a, 0x09, 0, 0, 0, 0, 0, 0, 0, 0, 0], [0x80, 0, 5]),
        (&[0x4a, 0x01, 0, 0x1d], [0x80, 0, 6]),
        (&[0x03, 0x0a], [0x8d, 0, 4]),
        (&[0x48, 0x01, 0, 0x10], [0x80, 0, 5]),
        (&[0x4a, 0x00, 0, 0x0a], [0x80, 0, 5]),
        (&[0x43, 0x01, 0, 0x10], [0x8d, 0, 4]),
        (&[0x18, 6, 6, 0, 0, 0, 0, 0], [0x89, 0, 6]),
        (&[0x1a, 0x26, 1], [0; 3]),
    ];
    for (page, pointer) in refused {
        let ended = select6(&rig, &[page]);
        let cause =
            if pointer == [0; 3] { Asc::PARAMETER_LIST_LENGTH_ERROR } else { Asc::INVALID_FIELD_IN_PARAMETER_LIST };
        assert_eq!((asc(&ended.sense), &ended.sense[15..]), (cause, &pointer[..]), "{page:02x?}");
    }
    for cut in [&[0x0a, 0x0a, 0x22][..], &[0x0a], &[0x4a, 1, 0]] {
        assert_eq!(asc(&select6(&rig, &[cut]).sense), Asc::PARAMETER_LIST_LENGTH_ERROR);
    }
    let saved = rig.run(&[0x15, 0x11, 0, 0, 4, 0], &[0; 4], 0);
    assert_eq!(saved.sense[15..], [0xc8, 0, 1], "SP: the unit cannot save values");
    let medium = rig.run(&[0x15, 0x10, 0, 0, 4, 0], &[0, 7, 0, 0], 0);
    assert_eq!(medium.sense[15..], [0x80, 0, 1], "MEDIUM TYPE");
    let cut = rig.run(&[0x15, 0x10, 0, 0, 16, 0], &[0; 8], 0);
    assert_eq!(asc(&cut.sense), Asc::PARAMETER_LIST_LENGTH_ERROR);
}

#[test]
fn mode_select_accepts_the_pages_of_mode_sense() {
    for thick in [false, true] {
        let rig = Rig::new(Traits { unmap_granularity: if thick { 0 } else { 4096 }, ..Rig::traits() });
        let other = rig.target.nexus(Rig::name("b"));
        let itl = other.itl(0).expect("LUN exists");
        while itl.take_attention().is_some() {}
        let list = rig.run(&[0x5a, 0x10, 0x3f, 0xff, 0, 0, 0, 1, 0, 0], &[], 256).data;
        let length = u8::try_from(list.len()).expect("short");
        assert_eq!(rig.run(&[0x55, 0x10, 0, 0, 0, 0, 0, 0, length, 0], &list, 0).status, Status::GOOD);
        assert_eq!(itl.attention(), None, "no value changed");
    }
}

#[test]
fn every_unchangeable_bit_is_refused_with_a_field_pointer() {
    let rig = Rig::default();
    for (page, subpage, bytes) in all_pages() {
        let header = if subpage == 0 { 2 } else { 4 };
        let changeable = &sense6(&rig, 8, 0x40 | page, subpage)[4..];
        for (at, bit) in (header..bytes.len()).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
            let mut changed = bytes.clone();
            changed[at] ^= 1 << bit;
            let ended = select6(&rig, &[&changed]);
            if changeable[at] & 1 << bit != 0 {
                assert_eq!(ended.status, Status::GOOD, "{page:02x}/{subpage:02x} byte {at} bit {bit}");
                assert_eq!(select6(&rig, &[&bytes]).status, Status::GOOD);
            } else {
                assert_eq!(asc(&ended.sense), Asc::INVALID_FIELD_IN_PARAMETER_LIST);
                assert_eq!(ended.sense[15..], [0x88 | bit, 0, at as u8 + 4], "{page:02x}/{subpage:02x}");
            }
        }
    }
}

/// A rig whose disk has a durable metadata store.
fn lasting() -> Rig {
    Rig::keeping(Arc::new(DurableMemory::default()))
}

#[test]
fn saved_values_persist_through_resets_and_restarts() {
    let rig = lasting();
    // PS: the page can be saved.
    let (before, control_before) = ([&[0x88], &CACHING[1..]].concat(), [&[0x8a], &CONTROL[1..]].concat());
    let (mut caching, mut control) = (before.clone(), control_before.clone());
    (caching[2], control[4]) = (0, 8);
    let list = [&[0; 4][..], &caching].concat();
    assert_eq!(rig.run(&[0x15, 0x11, 0, 0, 24, 0], &list, 0).status, Status::GOOD);
    assert_eq!(select6(&rig, &[&control]).status, Status::GOOD, "SP is 0: not saved");
    let values = |control: u8, page: u8| sense6(&rig, 8, control << 6 | page, 0)[4..].to_vec();
    assert_eq!((values(3, 0x08), values(3, 0x0a)), (caching.clone(), control_before.clone()));
    assert_eq!((values(0, 0x0a), values(2, 0x08)), (control.clone(), before));
    let reset = rig.target.task_management(&rig.nexus, crate::TaskFunction::LOGICAL_UNIT_RESET, rig.lun.get(), 0);
    crate::testing::at_once(reset);
    rig.nexus.each(|itl| while itl.take_attention().is_some() {});
    assert_eq!((values(0, 0x08), values(0, 0x0a)), (caching, control_before));
    let unit = rig.nexus.itl(0).expect("LUN exists").lu.of_test().unit.clone();
    rig.target.add_unit(1, unit);
    let again = rig.nexus.itl(1).expect("LUN exists");
    assert!(!again.lu.of_test().mode().write_cache && again.lu.of_test().saved_mode().is_some());
    rig.target.remove_unit(1);
    rig.nexus.each(|itl| while itl.take_attention().is_some() {});
    // Unchanged values are saved as well, without unit attention.
    let other = rig.target.nexus(Rig::name("b"));
    let itl = other.itl(0).expect("LUN exists");
    while itl.take_attention().is_some() {}
    assert_eq!(select6(&rig, &[&control]).status, Status::GOOD);
    assert_eq!(itl.take_attention().map(|sense| sense.asc), Some(Asc::MODE_PARAMETERS_CHANGED));
    assert_eq!(rig.run(&[0x15, 0x11, 0, 0, 4, 0], &[0; 4], 0).status, Status::GOOD);
    assert_eq!((values(3, 0x0a), itl.attention()), (control, None));
}

#[test]
fn saved_pages_of_another_version_are_read_as_far_as_known() {
    let unit = Rig::unit(0, Rig::traits(), Default::default());
    let load = |bytes: &[u8]| {
        crate::testing::at_once(unit.metadata.save(super::KEPT_AS, bytes.to_vec())).expect("memory");
        super::load(DISK.mode, &unit).expect("kept")
    };
    let default = crate::change::ModeValues::default_of(&unit);
    let known = [&[0x0a, 0x0a, 0xff, 0xff, 0xff][..], &[0; 7]].concat();
    let all = crate::change::ModeValues { descriptor_sense: true, write_protect: true, ..default };
    assert_eq!(load(&known), all);
    for other in [&[0x3e, 2, 0xff, 0xff][..], &[0x08, 3, 0, 0, 0], &[0x4a, 9, 0, 1, 0xff]] {
        assert_eq!(load(&[other, &known].concat()), all, "{other:02x?}");
    }
    for broken in [&[][..], &[0x0a], &[0x0a, 0x0a, 0xff], &[0x4a, 0, 0xff, 0xff], &[0xff; 3]] {
        assert_eq!(load(broken), default, "{broken:02x?}");
    }
    assert_eq!(load(&super::to_keep(DISK.mode, all)), all);
}

#[test]
fn mode_select_takes_block_descriptors_that_change_nothing() {
    let rig = Rig::default();
    let ten = |header: [u8; 8], descriptor: &[u8]| {
        let list = [&header[..], descriptor, &CONTROL].concat();
        rig.run(&[0x55, 0x10, 0, 0, 0, 0, 0, 0, list.len() as u8, 0], &list, 0)
    };
    let (short, long) = ([0, 0, 0, 0, 0, 0, 0, 8], [0, 0, 0, 0, 1, 0, 0, 16]);
    assert_eq!(ten(short, &[0, 0, 8, 0, 0, 0, 2, 0]).status, Status::GOOD);
    assert_eq!(ten(short, &[0; 8]).status, Status::GOOD);
    assert_eq!(ten(short, &[0, 0, 8, 1, 0, 0, 2, 0]).sense[15..], [0x80, 0, 8]);
    assert_eq!(ten(short, &[0, 0, 8, 0, 0, 0, 16, 0]).sense[15..], [0x80, 0, 13]);
    assert_eq!(ten(long, &[0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 2, 0]).status, Status::GOOD);
    assert_eq!(ten(long, &[0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 4, 0]).sense[15..], [0x80, 0, 20]);
    assert_eq!(ten([0, 0, 0, 0, 0, 0, 0, 9], &[0; 9]).sense[15..], [0x80, 0, 7]);
}

proptest! {
    #[test]
    fn a_list_that_is_nearly_right_does_no_harm(
        at in 0usize..220, value in any::<u8>(), length in 0usize..220, save in any::<bool>(),
    ) {
        let rig = lasting();
        let mut list = rig.run(&[0x5a, 0, 0x3f, 0xff, 0, 0, 0, 1, 0, 0], &[], 256).data;
        if let Some(byte) = list.get_mut(at) {
            *byte = value;
        }
        list.truncate(length);
        let sent = u8::try_from(list.len()).expect("short");
        let before = rig.nexus.itl(0).expect("LUN exists").lu.of_test().mode();
        let ended = rig.run(&[0x55, 0x10 | u8::from(save), 0, 0, 0, 0, 0, 0, sent, 0], &list, 0);
        let lu = &rig.nexus.itl(0).expect("LUN exists").lu;
        if ended.status != Status::GOOD {
            prop_assert_eq!((lu.of_test().mode(), lu.of_test().saved_mode()), (before, None));
            let pointer = u16::from_be_bytes([ended.sense[16], ended.sense[17]]);
            prop_assert!(usize::from(pointer) < list.len().max(1));
        } else {
            prop_assert_eq!(lu.of_test().saved_mode(), (save && !list.is_empty()).then_some(lu.of_test().mode()));
        }
    }

    #[test]
    fn a_shorter_answer_is_the_front_of_the_whole(length in 0usize..300, page in 0u8..=0xff, inquiry in any::<bool>()) {
        let rig = Rig::default();
        let [high, low] = u16::try_from(length).expect("short").to_be_bytes();
        let run = |high: u8, low: u8| match inquiry {
            true => rig.run(&[0x12, 1, page, high, low, 0], &[], u32::MAX),
            false => rig.run(&[0x5a, 0, page, 0, 0, 0, 0, high, low, 0], &[], u32::MAX),
        };
        let (whole, part) = (run(0xff, 0xff), run(high, low));
        prop_assert_eq!(part.status, whole.status);
        prop_assert_eq!(&part.data[..], &whole.data[..length.min(whole.data.len())]);
        prop_assert_eq!(part.wanted, part.data.len() as u64);
    }
}

/// Saves one record late, if the test requests it.
#[derive(Default)]
struct Late {
    lasting: DurableMemory,
    late: AtomicBool,
}

impl MetadataStore for Late {
    fn load(&self, name: &str) -> Option<Vec<u8>> {
        self.lasting.load(name)
    }

    fn save(&self, name: &'static str, bytes: Vec<u8>) -> Saving {
        let kept = self.lasting.save(name, bytes);
        let mut waits = self.late.swap(false, Ordering::Relaxed);
        Box::pin(async move {
            poll_fn(|_| if std::mem::take(&mut waits) { Poll::Pending } else { Poll::Ready(()) }).await;
            kept.await
        })
    }

    fn is_durable(&self) -> bool {
        true
    }
}

#[test]
fn values_that_two_cores_save_at_once_are_stored_as_they_are_in_force() {
    let keep = Arc::<Late>::default();
    let (rigs, _) = two_cores_of(|way, shared| {
        let rig = Rig::sharing(Rig::traits(), way, shared);
        let mut unit = Rig::unit(7, Rig::traits(), Memory::zeroes(1 << 20));
        Rc::get_mut(&mut unit).expect("the unit is not shared yet").metadata = keep.clone();
        rig.target.add_unit(0, unit);
        rig.nexus.each(|itl| while itl.take_attention().is_some() {});
        rig
    });
    let select = |page: &[u8]| [&[0; 4][..], page].concat();
    let (mut caching, mut control) = (CACHING, CONTROL);
    (caching[2], control[4]) = (0, 8);
    // The values of the first core are on their way to the medium while the second core wants to save others.
    keep.late.store(true, Ordering::Relaxed);
    let list = select(&caching);
    let mut first = pin!(rigs[0].later(&[0x15, 0x11, 0, 0, 24, 0], &list));
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(first.as_mut().poll(&mut cx).is_pending());
    let list = select(&control);
    let mut second = pin!(rigs[1].later(&[0x15, 0x11, 0, 0, 16, 0], &list));
    assert!(second.as_mut().poll(&mut cx).is_pending(), "it waits for its turn");
    assert_eq!(first.as_mut().poll(&mut cx), Poll::Ready(Status::GOOD));
    assert_eq!(second.as_mut().poll(&mut cx), Poll::Ready(Status::GOOD));
    let values = rigs.each_ref().map(|rig| rig.nexus.itl(0).expect("LUN exists").lu.of_test().saved_mode());
    assert_eq!(values[0], values[1]);
    assert_eq!(super::load(DISK.mode, &rigs[0].nexus.itl(0).expect("LUN exists").lu.of_test().unit), values[0]);
}
