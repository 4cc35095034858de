use super::log_file::PADDED_BYTES;
use super::*;
use crate::test_folder::TestFolder;
use lunar_core::mem::Region;
use lunar_handler::data::DataIn;
use proptest::prelude::*;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

struct Fixture {
    folder: TestFolder,
}

impl Fixture {
    fn new() -> Self {
        Self::of(CAPACITY_BYTES_MIN, false)
    }

    fn of(capacity: u64, is_worm: bool) -> Self {
        let fixture = Self { folder: TestFolder::new() };
        let barcode = "LUN001L8".to_owned();
        let new = NewCartridge { barcode, generation: Generation::Lto8, capacity: Some(capacity), is_worm };
        Cartridge::create(&fixture.path(), &new).unwrap();
        fixture
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("LUN001L8.tape")
    }

    fn open(&self) -> Cartridge {
        Cartridge::open(&self.path()).unwrap()
    }

    fn length(&self) -> u64 {
        fs::metadata(self.path()).unwrap().len()
    }

    fn forget_index(&self) {
        fs::remove_file(self.path().with_extension("index")).unwrap();
    }
}

fn put(cartridge: &mut Cartridge, block: &[u8]) {
    let written = cartridge.write_blocks(block, block.len(), false);
    assert!(written.stopped.is_none() && written.blocks == 1, "{written:?}");
}

/// All objects from the beginning: `None` for a filemark.
fn content(cartridge: &mut Cartridge) -> Vec<Option<Vec<u8>>> {
    let mut all = Vec::new();
    let mut buffer = vec![0; 1 << 18];
    cartridge.rewind();
    loop {
        match cartridge.read(&mut buffer).unwrap() {
            Found::Block(length) => all.push(Some(buffer[..length].to_vec())),
            Found::Filemark => all.push(None),
            Found::EndOfData => return all,
        }
    }
}

#[test]
fn objects_are_read_back_after_a_close_with_and_without_the_saved_index() {
    let fixture = Fixture::new();
    let mut cartridge = fixture.open();
    put(&mut cartridge, b"one");
    cartridge.write_filemarks(2).unwrap();
    put(&mut cartridge, &vec![7; 200_000]);
    let all = content(&mut cartridge);
    assert_eq!(all, [Some(b"one".to_vec()), None, None, Some(vec![7; 200_000])]);
    cartridge.close().unwrap();
    let mut cartridge = fixture.open();
    assert_eq!(content(&mut cartridge), all);
    assert!(cartridge.file.saved_index().is_some());
    drop(cartridge);
    fixture.forget_index();
    assert_eq!(content(&mut fixture.open()), all);
}

#[test]
fn a_cartridge_is_open_once() {
    let fixture = Fixture::new();
    let first = fixture.open();
    assert!(matches!(Cartridge::open(&fixture.path()), Err(CartridgeError::InUse)));
    drop(first);
    fixture.open();
}

#[test]
fn many_blocks_of_one_call_are_single_records() {
    let fixture = Fixture::new();
    let mut cartridge = fixture.open();
    let data: Vec<u8> = (0..30_000_u32).map(|byte| byte as u8).collect();
    let written = cartridge.write_blocks(&data, 3, false);
    assert!(written.stopped.is_none() && written.blocks == 10_000);
    for object in [0_u64, 1, 4095, 4096, 9999] {
        assert!(cartridge.locate(object).unwrap());
        let mut buffer = [0; 3];
        assert_eq!(cartridge.read(&mut buffer).unwrap(), Found::Block(3));
        assert_eq!(buffer, data[object as usize * 3..][..3]);
    }
    assert!(!cartridge.locate(10_001).unwrap());
    assert_eq!(cartridge.position(), cartridge.end());
}

#[test]
fn blocks_in_the_memory_of_a_handler_are_written_and_read_in_place() {
    let fixture = Fixture::new();
    let mut cartridge = fixture.open();
    let data: Vec<u8> = (0..500_000_u32).map(|at| (at % 251) as u8).collect();
    let region = Region::zeroed(data.len() + 10);
    assert!(region.write(10, &data));
    let out = DataOut::shared(&region, 10, data.len()).unwrap();
    for (block, compress) in [(200_000, false), (200_000, true), (30_000, false), (30_000, true), (500_000, false)] {
        let written = cartridge.write_data(out, block, compress);
        assert!(written.stopped.is_none() && written.blocks == data.len().div_ceil(block), "{written:?}");
    }
    let wanted = [200_000, 200_000, 30_000, 30_000, 500_000];
    let wanted: Vec<_> = wanted.iter().flat_map(|block| data.chunks(*block)).collect();
    cartridge.rewind();
    let memory = Region::zeroed(600_000);
    for block in &wanted {
        let mut into = DataIn::shared(&memory, 0, 600_000).unwrap();
        assert_eq!(cartridge.read_into(&mut into, 7..600_000).unwrap(), Found::Block(block.len()));
        let mut found = vec![0; block.len()];
        assert!(memory.read(7, &mut found) && found == *block);
    }
    cartridge.rewind();
    let mut short = [0; 9];
    assert_eq!(cartridge.read(&mut short).unwrap(), Found::Block(200_000));
    assert_eq!(short, data[..9]);
    cartridge.close().unwrap();
    fixture.forget_index();
    assert_eq!(fixture.open().end().object, wanted.len() as u64);
}

#[test]
fn compressed_blocks_take_less_room_and_random_ones_are_stored() {
    let fixture = Fixture::new();
    let mut cartridge = fixture.open();
    let plain = vec![5; 100_000];
    assert!(cartridge.write_blocks(&plain, plain.len(), true).stopped.is_none());
    assert!(cartridge.used() < 2000);
    let mut state = 1_u64;
    let random = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    });
    let random: Vec<u8> = random.take(70_000).collect();
    assert!(cartridge.write_blocks(&random, random.len(), true).stopped.is_none());
    assert_eq!(content(&mut cartridge), [Some(plain.clone()), Some(random)]);
    cartridge.rewind();
    let mut short = [0; 10];
    assert_eq!(cartridge.read(&mut short).unwrap(), Found::Block(100_000));
    assert_eq!(short, plain[..10]);
}

#[test]
fn a_write_before_the_end_of_data_cuts_the_log() {
    let fixture = Fixture::new();
    let mut cartridge = fixture.open();
    (0..10_u8).for_each(|number| put(&mut cartridge, &[number; 100]));
    assert!(cartridge.locate(4).unwrap());
    put(&mut cartridge, b"new");
    assert_eq!(cartridge.end().object, 5);
    assert_eq!(content(&mut cartridge)[4], Some(b"new".to_vec()));
    cartridge.rewind();
    cartridge.erase().unwrap();
    assert_eq!((cartridge.used(), fixture.length()), (0, FIRST_RECORD));
}

/// After a power cut, the file system may show old records behind new ones.
#[test]
fn records_of_the_log_before_a_cut_do_not_continue_the_new_one() {
    let fixture = Fixture::new();
    let mut cartridge = fixture.open();
    (0..4_u8).for_each(|number| put(&mut cartridge, &[number; 100]));
    cartridge.synchronize().unwrap();
    let old = fs::read(fixture.path()).unwrap();
    assert!(cartridge.locate(1).unwrap());
    put(&mut cartridge, &[9; 100]);
    let end = usize::try_from(cartridge.end().offset).unwrap();
    drop(cartridge);
    let file = OpenOptions::new().write(true).open(fixture.path()).unwrap();
    file.write_all_at(&old[end..], end as u64).unwrap();
    let mut cartridge = fixture.open();
    assert_eq!(content(&mut cartridge), [Some(vec![0; 100]), Some(vec![9; 100])]);
    assert_eq!(fixture.length(), end as u64);
}

#[test]
fn a_log_that_ends_at_any_byte_keeps_all_whole_records() {
    let fixture = Fixture::new();
    let mut cartridge = fixture.open();
    put(&mut cartridge, b"durable");
    cartridge.write_filemarks(1).unwrap();
    cartridge.synchronize().unwrap();
    let mut ends = vec![cartridge.end().offset];
    for number in 0..3_u8 {
        put(&mut cartridge, &vec![number; 20 + usize::from(number)]);
        ends.push(cartridge.end().offset);
    }
    drop(cartridge);
    let whole = fs::read(fixture.path()).unwrap();
    for end in ends[0]..=whole.len() as u64 {
        fs::write(fixture.path(), &whole[..end as usize]).unwrap();
        let records = ends.iter().filter(|record| **record <= end).count() + 1;
        let mut cartridge = fixture.open();
        assert_eq!(content(&mut cartridge).len(), records, "{end} bytes");
        assert_eq!(fixture.length(), ends[records - 2], "the rest of a torn record is removed");
        put(&mut cartridge, b"after");
        drop(cartridge);
        assert_eq!(content(&mut fixture.open()).last().unwrap(), &Some(b"after".to_vec()));
    }
}

#[test]
fn a_record_that_was_not_synchronized_is_cut_if_any_byte_of_it_is_damaged() {
    let fixture = Fixture::new();
    let mut cartridge = fixture.open();
    put(&mut cartridge, b"durable");
    cartridge.synchronize().unwrap();
    let start = cartridge.end().offset;
    put(&mut cartridge, b"torn");
    drop(cartridge);
    let whole = fs::read(fixture.path()).unwrap();
    for at in start as usize..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        fs::write(fixture.path(), &damaged).unwrap();
        assert_eq!(content(&mut fixture.open()), [Some(b"durable".to_vec())], "byte {at}");
    }
}

#[test]
fn a_damaged_synchronized_record_is_reported_and_those_behind_it_are_kept() {
    let fixture = Fixture::new();
    let mut cartridge = fixture.open();
    put(&mut cartridge, b"one");
    let second = cartridge.end().offset;
    put(&mut cartridge, b"two");
    put(&mut cartridge, b"three");
    cartridge.close().unwrap();
    fixture.forget_index();
    let whole = fs::read(fixture.path()).unwrap();
    // The data: that block is an error, and the next one is read.
    let mut damaged = whole.clone();
    damaged[second as usize + RECORD_BYTES] ^= 1;
    fs::write(fixture.path(), &damaged).unwrap();
    let mut cartridge = fixture.open();
    let mut buffer = [0; 10];
    assert_eq!(cartridge.read(&mut buffer).unwrap(), Found::Block(3));
    assert!(matches!(cartridge.read(&mut buffer), Err(CartridgeError::Damaged(1))));
    assert_eq!(cartridge.read(&mut buffer).unwrap(), Found::Block(5));
    drop(cartridge);
    // The header: the records behind it cannot be found, and are not overwritten by an append.
    damaged[second as usize] ^= 1;
    fs::write(fixture.path(), &damaged).unwrap();
    let mut cartridge = fixture.open();
    assert!(matches!(cartridge.space_to_end(), Err(CartridgeError::Damaged(1))));
    assert!(matches!(cartridge.read(&mut buffer), Err(CartridgeError::Damaged(1))));
    let written = cartridge.write_blocks(b"x", 1, false);
    assert!(matches!(written.stopped, Some(CartridgeError::Damaged(1))));
    assert_eq!(fixture.length(), whole.len() as u64);
    // The end of a use and the next one leave it as it is.
    cartridge.synchronize().unwrap();
    cartridge.close().unwrap();
    let mut cartridge = fixture.open();
    assert_eq!(fixture.length(), whole.len() as u64);
    assert!(matches!(cartridge.space_to_end(), Err(CartridgeError::Damaged(1))));
    cartridge.rewind();
    put(&mut cartridge, b"new");
    assert_eq!(content(&mut cartridge), [Some(b"new".to_vec())]);
}

#[test]
fn a_full_cartridge_takes_the_blocks_that_fit_and_warns_before() {
    let fixture = Fixture::new();
    let mut cartridge = fixture.open();
    let block = vec![0; 1 << 20];
    let mut warned = 0;
    let stopped = loop {
        let written = cartridge.write_blocks(&block, block.len(), false);
        if let Some(why) = written.stopped {
            break why;
        }
        warned += usize::from(cartridge.is_early_warning());
    };
    assert!(matches!(stopped, CartridgeError::Full));
    assert!((1..4).contains(&warned), "{warned}");
    assert_eq!(cartridge.end().object, 31);
    let written = cartridge.write_blocks(&block, 1000, false);
    assert!(written.blocks > 100 && matches!(written.stopped, Some(CartridgeError::Full)), "{written:?}");
    assert!(cartridge.used() <= cartridge.capacity());
}

#[test]
fn protected_and_worm_cartridges_keep_their_data() {
    let fixture = Fixture::of(CAPACITY_BYTES_MIN, true);
    let mut cartridge = fixture.open();
    put(&mut cartridge, b"one");
    put(&mut cartridge, b"two");
    cartridge.rewind();
    assert!(matches!(cartridge.write_blocks(b"x", 1, false).stopped, Some(CartridgeError::Worm)));
    assert!(matches!(cartridge.erase(), Err(CartridgeError::Worm)));
    cartridge.space_to_end().unwrap();
    cartridge.set_protected(true).unwrap();
    assert!(matches!(cartridge.write_filemarks(1), Err(CartridgeError::WriteProtected)));
    drop(cartridge);
    let mut cartridge = fixture.open();
    assert!(cartridge.is_protected());
    assert_eq!(content(&mut cartridge).len(), 2);
}

#[test]
fn a_failed_synchronization_ends_all_writes() {
    let fixture = Fixture::new();
    let mut cartridge = fixture.open();
    put(&mut cartridge, b"one");
    disk::begin(&fixture.path());
    disk::fail(true);
    assert!(matches!(cartridge.synchronize(), Err(CartridgeError::Io(_))));
    disk::fail(false);
    assert!(matches!(cartridge.synchronize(), Err(CartridgeError::Failed)));
    assert!(matches!(cartridge.write_blocks(b"x", 1, false).stopped, Some(CartridgeError::Failed)));
    assert!(matches!(cartridge.write_filemarks(1), Err(CartridgeError::Failed)));
    assert!(matches!(cartridge.set_protected(true), Err(CartridgeError::Failed)));
    assert_eq!(content(&mut cartridge), [Some(b"one".to_vec())]);
}

#[test]
fn data_that_a_failed_synchronization_lost_is_on_the_medium_after_the_next_load() {
    for is_torn in [false, true] {
        let fixture = Fixture::new();
        disk::begin(&fixture.path());
        let mut cartridge = fixture.open();
        put(&mut cartridge, b"durable");
        cartridge.synchronize().unwrap();
        put(&mut cartridge, b"lost");
        put(&mut cartridge, &vec![7; BATCH_BYTES]);
        put(&mut cartridge, b"lost, too");
        disk::fail(true);
        assert!(cartridge.synchronize().is_err());
        disk::fail(false);
        drop(cartridge);
        if is_torn {
            let file = OpenOptions::new().write(true).open(fixture.path()).unwrap();
            file.write_all_at(b"rest of a record", fixture.length()).unwrap();
        }
        // The page cache has the data, and the kernel reports no failure for it any more.
        let mut cartridge = fixture.open();
        cartridge.space_to_end().unwrap();
        put(&mut cartridge, b"new");
        cartridge.synchronize().unwrap();
        drop(cartridge);
        disk::cut_power(&fixture.path());
        let long = vec![7; BATCH_BYTES];
        let all: [&[u8]; 5] = [b"durable", b"lost", &long, b"lost, too", b"new"];
        let mut cartridge = fixture.open();
        let mut buffer = vec![0; BATCH_BYTES];
        for block in all {
            assert_eq!(cartridge.read(&mut buffer).unwrap(), Found::Block(block.len()), "{is_torn}");
            assert_eq!(&buffer[..block.len()], block);
        }
        assert_eq!(cartridge.read(&mut buffer).unwrap(), Found::EndOfData);
    }
}

#[test]
fn a_cartridge_whose_durable_end_stays_unknown_is_write_protected_and_read() {
    let fixture = Fixture::new();
    let mut cartridge = fixture.open();
    put(&mut cartridge, b"one");
    drop(cartridge);
    disk::begin(&fixture.path());
    disk::fail(true);
    let mut cartridge = fixture.open();
    cartridge.count_load();
    assert!(cartridge.is_protected());
    assert_eq!(content(&mut cartridge), [Some(b"one".to_vec())]);
    assert!(matches!(cartridge.write_filemarks(1), Err(CartridgeError::Unwritable)));
    disk::fail(false);
    cartridge.close().unwrap();
    let mut cartridge = fixture.open();
    assert!(!cartridge.is_protected());
    put(&mut cartridge, b"two");
}

#[test]
fn a_cartridge_whose_file_can_only_be_read_is_write_protected() {
    let fixture = Fixture::new();
    let mut cartridge = fixture.open();
    put(&mut cartridge, b"one");
    put(&mut cartridge, b"torn");
    drop(cartridge);
    let torn = fixture.length() - 1;
    OpenOptions::new().write(true).open(fixture.path()).unwrap().set_len(torn).unwrap();
    disk::begin(&fixture.path());
    disk::make_read_only();
    let mut cartridge = fixture.open();
    cartridge.count_load();
    assert!(cartridge.is_protected());
    assert_eq!(content(&mut cartridge), [Some(b"one".to_vec())]);
    assert!(matches!(cartridge.write_blocks(b"x", 1, false).stopped, Some(CartridgeError::Unwritable)));
    assert!(matches!(cartridge.erase(), Err(CartridgeError::Unwritable)));
    assert!(matches!(cartridge.set_protected(false), Err(CartridgeError::Unwritable)));
    cartridge.synchronize().unwrap();
    cartridge.close().unwrap();
    assert_eq!((fixture.length(), fixture.path().with_extension("index").exists()), (torn, false));
}

#[test]
fn a_long_write_is_synchronized_in_between() {
    let fixture = Fixture::new();
    let mut cartridge = fixture.open();
    disk::begin(&fixture.path());
    let data = vec![1; 5 << 20];
    let written = cartridge.write_blocks(&data, 1 << 20, false);
    assert_eq!((written.blocks, written.stopped.is_none()), (5, true));
    drop(cartridge);
    disk::cut_power(&fixture.path());
    assert_eq!(fixture.open().end().object, 4);
    let mut cartridge = fixture.open();
    cartridge.space_to_end().unwrap();
    disk::begin(&fixture.path());
    disk::fail(true);
    let written = cartridge.write_blocks(&data, 1 << 20, false);
    assert!(matches!(written.stopped, Some(CartridgeError::Io(_))));
}

#[test]
fn the_padding_of_a_process_that_was_killed_is_no_torn_record() {
    let fixture = Fixture::new();
    let mut cartridge = fixture.open();
    put(&mut cartridge, b"one");
    cartridge.synchronize().unwrap();
    put(&mut cartridge, &[7; 5000]);
    let (end, cuts) = (cartridge.end(), cartridge.header.cuts);
    let killed = fs::read(fixture.path()).unwrap();
    assert_eq!(killed.len() as u64, PADDED_BYTES);
    drop(cartridge);
    assert_eq!(fixture.length(), end.offset, "a process that ends by itself removes the padding");
    fs::write(fixture.path(), &killed).unwrap();
    let mut cartridge = fixture.open();
    assert_eq!((cartridge.end(), cartridge.header.cuts, cartridge.file.len()), (end, cuts, end.offset));
    cartridge.space_to_end().unwrap();
    put(&mut cartridge, b"two");
    assert_eq!(content(&mut cartridge), [Some(b"one".to_vec()), Some(vec![7; 5000]), Some(b"two".to_vec())]);
    drop(cartridge);
    // Zeroes, and behind them a part of a record whose header was lost.
    let mut torn = killed;
    *torn.last_mut().unwrap() = 1;
    fs::write(fixture.path(), &torn).unwrap();
    let cartridge = fixture.open();
    assert_eq!((cartridge.end(), cartridge.header.cuts, fixture.length()), (end, cuts + 1, end.offset));
}

#[test]
fn records_are_written_without_padding_if_there_is_space_for_them_alone() {
    let fixture = Fixture::new();
    let mut cartridge = fixture.open();
    disk::begin(&fixture.path());
    disk::limit_space(FIRST_RECORD + 2 * (RECORD_BYTES as u64 + 100));
    put(&mut cartridge, &[1; 100]);
    put(&mut cartridge, &[2; 100]);
    let written = cartridge.write_blocks(&[3; 100], 100, false);
    assert!(matches!(written.stopped, Some(CartridgeError::NoSpace(_))));
    cartridge.synchronize().unwrap();
    drop(cartridge);
    disk::cut_power(&fixture.path());
    assert_eq!(content(&mut fixture.open()), [Some(vec![1; 100]), Some(vec![2; 100])]);
}

#[test]
fn files_that_are_no_cartridges_are_refused() {
    let fixture = Fixture::new();
    for content in [&b""[..], &[0; 10_000], b"LUNARTAP"] {
        fs::write(fixture.path(), content).unwrap();
        assert!(matches!(Cartridge::open(&fixture.path()), Err(CartridgeError::NotACartridge)));
    }
    let new = NewCartridge { barcode: "a".into(), generation: Generation::Lto8, capacity: None, is_worm: false };
    let other = fixture.folder.path().join("other");
    assert!(matches!(Cartridge::create(&other, &new), Err(CartridgeError::BadBarcode)));
}

/// A step of the comparison with the model.
#[derive(Clone, Debug)]
enum Step {
    Blocks(usize, usize, bool),
    Filemarks(u64),
    Read,
    SpaceBlocks(i64),
    SpaceFilemarks(i64),
    Locate(u64),
    Rewind,
    End,
    Erase,
    Synchronize,
    Reopen(bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (1..4_usize, 1..3000_usize, any::<bool>()).prop_map(|(count, length, c)| Step::Blocks(count, length, c)),
        2 => (0..3_u64).prop_map(Step::Filemarks),
        3 => Just(Step::Read),
        2 => (-6..6_i64).prop_map(Step::SpaceBlocks),
        2 => (-4..4_i64).prop_map(Step::SpaceFilemarks),
        1 => (0..20_u64).prop_map(Step::Locate),
        1 => Just(Step::Rewind),
        2 => Just(Step::End),
        1 => Just(Step::Erase),
        1 => Just(Step::Synchronize),
        1 => any::<bool>().prop_map(Step::Reopen),
    ];
    prop::collection::vec(step, 1..60)
}

/// A tape as the standard describes it.
#[derive(Default)]
struct Model {
    objects: Vec<Option<Vec<u8>>>,
    at: usize,
}

impl Model {
    fn write(&mut self, object: Option<Vec<u8>>) {
        self.objects.truncate(self.at);
        self.objects.push(object);
        self.at += 1;
    }

    /// Moves object by object: `wants_filemarks` counts filemarks, otherwise blocks.
    fn space(&mut self, count: i64, wants_filemarks: bool) -> Moved {
        let mut moved = 0;
        while moved < count.unsigned_abs() {
            let next =
                if count < 0 { self.at.checked_sub(1) } else { Some(self.at).filter(|at| *at < self.objects.len()) };
            let Some(next) = next else {
                let stop = if count < 0 { Stop::Beginning } else { Stop::EndOfData };
                return Moved { count: moved, stop: Some(stop) };
            };
            self.at = if count < 0 { next } else { next + 1 };
            let is_filemark = self.objects[next].is_none();
            if is_filemark && !wants_filemarks {
                return Moved { count: moved, stop: Some(Stop::Filemark) };
            }
            moved += u64::from(is_filemark == wants_filemarks);
        }
        Moved { count: moved, stop: None }
    }
}

fn compare(steps: Vec<Step>) {
    let fixture = Fixture::new();
    let (mut cartridge, mut model) = (fixture.open(), Model::default());
    for (number, step) in steps.into_iter().enumerate() {
        match step {
            Step::Blocks(count, length, compress) => {
                let data: Vec<u8> = (0..count * length).map(|at| (at / 50 + number) as u8).collect();
                let written = cartridge.write_blocks(&data, length, compress);
                assert!(written.stopped.is_none() && written.blocks == count);
                data.chunks(length).for_each(|block| model.write(Some(block.to_vec())));
            }
            Step::Filemarks(count) => {
                cartridge.write_filemarks(count).unwrap();
                (0..count).for_each(|_| model.write(None));
            }
            Step::Read => {
                let mut buffer = [0; 4000];
                let found = cartridge.read(&mut buffer).unwrap();
                match model.objects.get(model.at) {
                    None => assert_eq!(found, Found::EndOfData),
                    Some(None) => assert_eq!(found, Found::Filemark),
                    Some(Some(block)) => {
                        assert_eq!(found, Found::Block(block.len()));
                        assert_eq!(buffer[..block.len()], block[..]);
                    }
                }
                model.at = (model.at + 1).min(model.objects.len());
            }
            Step::SpaceBlocks(count) => {
                assert_eq!(cartridge.space_blocks(count).unwrap(), model.space(count, false), "{count} blocks");
            }
            Step::SpaceFilemarks(count) => {
                assert_eq!(cartridge.space_filemarks(count).unwrap(), model.space(count, true), "{count} filemarks");
            }
            Step::Locate(object) => {
                let is_there = object as usize <= model.objects.len();
                assert_eq!(cartridge.locate(object).unwrap(), is_there);
                model.at = (object as usize).min(model.objects.len());
            }
            Step::Rewind => {
                cartridge.rewind();
                model.at = 0;
            }
            Step::End => {
                cartridge.space_to_end().unwrap();
                model.at = model.objects.len();
            }
            Step::Erase => {
                cartridge.erase().unwrap();
                model.objects.truncate(model.at);
            }
            Step::Synchronize => cartridge.synchronize().unwrap(),
            Step::Reopen(is_closed) => {
                if is_closed {
                    cartridge.close().unwrap();
                } else {
                    drop(cartridge);
                }
                cartridge = fixture.open();
                model.at = 0;
            }
        }
        let files = model.objects[..model.at].iter().filter(|object| object.is_none()).count();
        let position = cartridge.position();
        assert_eq!((position.object, position.file), (model.at as u64, files as u64));
        assert_eq!(cartridge.end().object, model.objects.len() as u64);
    }
    assert_eq!(content(&mut cartridge), model.objects);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn a_cartridge_behaves_as_the_model(steps in steps()) {
        compare(steps);
    }

    #[test]
    fn a_damaged_file_never_panics(damage in prop::collection::vec((0..13_000_usize, any::<u8>()), 1..20)) {
        let fixture = Fixture::new();
        let mut cartridge = fixture.open();
        for number in 0..20_u8 {
            assert!(cartridge.write_blocks(&[number; 100], 100, number % 2 == 0).stopped.is_none());
            cartridge.write_filemarks(1).unwrap();
        }
        cartridge.close().unwrap();
        for (suffix, shift) in [("tape", 0), ("index", 12_000)] {
            let path = fixture.path().with_extension(suffix);
            let mut bytes = fs::read(&path).unwrap();
            for (at, byte) in &damage {
                if let Some(place) = at.checked_sub(shift).and_then(|at| bytes.get_mut(at)) {
                    *place = *byte;
                }
            }
            fs::write(&path, bytes).unwrap();
        }
        if let Ok(mut cartridge) = Cartridge::open(&fixture.path()) {
            let mut buffer = [0; 200];
            for _ in 0..50 {
                let _ = cartridge.read(&mut buffer);
            }
            let _ = (cartridge.space_blocks(-100), cartridge.space_filemarks(-3), cartridge.locate(30));
            let _ = cartridge.write_blocks(&[1; 50], 50, false);
            let _ = cartridge.close();
        }
    }
}
