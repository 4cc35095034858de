use super::*;
use crate::cartridge::{CAPACITY_BYTES_MIN, NewCartridge, disk};
use crate::scsi::Status;
use crate::test_folder::TestFolder;
use std::path::PathBuf;

/// A drive, and memory for Data-In.
struct Bench {
    folder: TestFolder,
    drive: Drive,
    data: Vec<u8>,
}

/// Sense data of fixed format as a test states it: key, code, flags (byte 2), INFORMATION.
#[derive(PartialEq, Eq, Debug)]
struct Sensed {
    key: SenseKey,
    asc: Asc,
    flags: u8,
    information: Option<i32>,
}

const FILEMARK: u8 = 0x80;
const EOM: u8 = 0x40;
const ILI: u8 = 0x20;

fn sensed(key: SenseKey, asc: Asc, flags: u8, information: impl Into<Option<i32>>) -> Sensed {
    Sensed { key, asc, flags, information: information.into() }
}

fn parse(sense: &[u8]) -> Sensed {
    assert_eq!(sense[0] & 0x7f, 0x70);
    let information = i32::from_be_bytes(sense[3..7].try_into().unwrap());
    Sensed {
        key: SenseKey(sense[2] & 0x0f),
        asc: Asc(u16::from_be_bytes([sense[12], sense[13]])),
        flags: sense[2] & 0xe0,
        information: (sense[0] & 0x80 != 0).then_some(information),
    }
}

impl Bench {
    fn empty() -> Self {
        let facts = DriveFacts { serial: "LUNTEST0".into(), generation: Generation::Lto8, compression: false };
        Self { folder: TestFolder::new(), drive: Drive::new(facts), data: vec![0; 1 << 20] }
    }

    /// A drive with a blank cartridge; the unit attention condition of the load was reported.
    fn loaded() -> Self {
        let mut bench = Self::empty();
        bench.create(Generation::Lto8, false);
        bench.insert();
        assert_eq!(bench.sense(&[0; 6]).asc, Asc::MEDIUM_MAY_HAVE_CHANGED);
        bench
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("A.tape")
    }

    fn create(&self, generation: Generation, is_worm: bool) {
        let new = NewCartridge { barcode: "A".into(), generation, capacity: Some(CAPACITY_BYTES_MIN), is_worm };
        Cartridge::create(&self.path(), &new).unwrap();
    }

    fn insert(&mut self) {
        self.drive.insert(Cartridge::open(&self.path()));
    }

    fn run(&mut self, cdb: &[u8], out: &[u8]) -> Reply {
        self.drive.execute(cdb, out, &mut self.data)
    }

    fn good(&mut self, cdb: &[u8]) -> Vec<u8> {
        let reply = self.run(cdb, &[]);
        assert_eq!(reply.status, Status::GOOD, "{cdb:02x?}: {:02x?}", reply.sense);
        self.data[..reply.moved].to_vec()
    }

    fn put(&mut self, cdb: &[u8], out: &[u8]) {
        let reply = self.run(cdb, out);
        assert_eq!(reply.status, Status::GOOD, "{cdb:02x?}: {:02x?}", reply.sense);
    }

    fn fail(&mut self, cdb: &[u8], out: &[u8]) -> (Sensed, usize) {
        let reply = self.run(cdb, out);
        assert_eq!(reply.status, Status::CHECK_CONDITION, "{cdb:02x?}");
        (parse(&reply.sense), reply.moved)
    }

    fn sense(&mut self, cdb: &[u8]) -> Sensed {
        self.fail(cdb, &[]).0
    }

    fn write(&mut self, block: &[u8]) {
        let [_, length @ ..] = (block.len() as u32).to_be_bytes();
        self.put(&[0x0a, 0, length[0], length[1], length[2], 0], block);
    }

    fn filemarks(&mut self, count: u8) {
        self.good(&[0x10, 0, 0, 0, count, 0]);
    }

    fn rewind(&mut self) {
        self.good(&[0x01, 0, 0, 0, 0, 0]);
    }

    fn read(&mut self, length: u8) -> Vec<u8> {
        self.good(&[0x08, 0, 0, 0, length, 0])
    }

    fn select_block_length(&mut self, length: u8) {
        self.put(&[0x15, 0x10, 0, 0, 12, 0], &[0, 0, 0x10, 8, 0, 0, 0, 0, 0, 0, 0, length]);
    }

    fn position(&mut self) -> u64 {
        let bytes = self.good(&[0x34, 6, 0, 0, 0, 0, 0, 0, 0, 0]);
        u64::from_be_bytes(bytes[8..16].try_into().unwrap())
    }
}

#[test]
fn readiness_follows_the_medium() {
    let mut bench = Bench::empty();
    assert_eq!(bench.sense(&[0; 6]), sensed(SenseKey::NOT_READY, Asc::MEDIUM_NOT_PRESENT, 0, None));
    let sense = bench.good(&[0x03, 0, 0, 0, 18, 0]);
    assert_eq!(parse(&sense).asc, Asc::MEDIUM_NOT_PRESENT);
    bench.create(Generation::Lto8, false);
    bench.insert();
    // INQUIRY leaves the unit attention condition, and REQUEST SENSE reports it.
    bench.good(&[0x12, 0, 0, 0, 96, 0]);
    let sense = bench.good(&[0x03, 0, 0, 0, 18, 0]);
    assert_eq!(parse(&sense), sensed(SenseKey::UNIT_ATTENTION, Asc::MEDIUM_MAY_HAVE_CHANGED, 0, None));
    bench.good(&[0; 6]);
    bench.good(&[0x1b, 0, 0, 0, 0, 0]);
    assert_eq!(bench.sense(&[0; 6]).asc, Asc::NOT_READY_START_REQUIRED);
    bench.good(&[0x1b, 0, 0, 0, 1, 0]);
    assert_eq!(bench.sense(&[0; 6]).asc, Asc::MEDIUM_MAY_HAVE_CHANGED);
    bench.good(&[0; 6]);
    bench.drive.remove().unwrap();
    assert_eq!(bench.sense(&[0; 6]).asc, Asc::MEDIUM_NOT_PRESENT);
    assert_eq!(bench.sense(&[0x1b, 0, 0, 0, 1, 0]).asc, Asc::MEDIUM_NOT_PRESENT);
}

#[test]
fn other_media_are_not_ready() {
    for (generation, asc) in [
        (Generation::Lto6, Asc::INCOMPATIBLE_MEDIUM_INSTALLED),
        (Generation::Lto9, Asc::INCOMPATIBLE_MEDIUM_INSTALLED),
        (Generation::Lto7, Asc::MEDIUM_MAY_HAVE_CHANGED),
    ] {
        let mut bench = Bench::empty();
        bench.create(generation, false);
        bench.insert();
        bench.drive.common.take_attention();
        if asc == Asc::MEDIUM_MAY_HAVE_CHANGED {
            bench.good(&[0; 6]);
        } else {
            assert_eq!(bench.sense(&[0; 6]), sensed(SenseKey::NOT_READY, asc, 0, None));
        }
    }
    let mut bench = Bench::empty();
    std::fs::write(bench.path(), b"something else").unwrap();
    bench.insert();
    bench.drive.common.take_attention();
    assert_eq!(bench.sense(&[0; 6]).asc, Asc::CANNOT_READ_MEDIUM_UNKNOWN_FORMAT);
    bench.drive.remove().unwrap();
}

#[test]
fn variable_blocks_report_their_length_against_that_of_the_command() {
    let mut bench = Bench::loaded();
    bench.write(&[7; 100]);
    bench.rewind();
    assert_eq!(bench.read(100), [7; 100]);
    bench.rewind();
    let (sense, moved) = bench.fail(&[0x08, 0, 0, 0, 120, 0], &[]);
    assert_eq!(
        (sense, moved),
        (sensed(SenseKey::NO_SENSE, Asc::NO_ADDITIONAL_SENSE_INFORMATION, ILI, 20), 100),
        "short block"
    );
    bench.rewind();
    let (sense, moved) = bench.fail(&[0x08, 0, 0, 0, 90, 0], &[]);
    assert_eq!(
        (sense, moved),
        (sensed(SenseKey::NO_SENSE, Asc::NO_ADDITIONAL_SENSE_INFORMATION, ILI, -10), 90),
        "long block"
    );
    assert_eq!(bench.position(), 1, "the position is behind the block");
    // SILI hides both, as blocks have no fixed length.
    for (length, moved) in [(120, 100), (90, 90)] {
        bench.rewind();
        assert_eq!(bench.good(&[0x08, 2, 0, 0, length, 0]).len(), moved);
    }
    // With a fixed length, a long block is reported all the same.
    bench.select_block_length(50);
    bench.rewind();
    assert_eq!(bench.good(&[0x08, 2, 0, 0, 120, 0]).len(), 100);
    bench.rewind();
    assert_eq!(
        bench.fail(&[0x08, 2, 0, 0, 90, 0], &[]).0,
        sensed(SenseKey::NO_SENSE, Asc::NO_ADDITIONAL_SENSE_INFORMATION, ILI, -10)
    );
}

#[test]
fn a_read_ends_at_a_filemark_and_at_the_end_of_data() {
    let mut bench = Bench::loaded();
    bench.write(&[1; 10]);
    bench.filemarks(1);
    bench.rewind();
    bench.read(10);
    let filemark = sensed(SenseKey::NO_SENSE, Asc::FILEMARK_DETECTED, FILEMARK, 10);
    assert_eq!(bench.fail(&[0x08, 0, 0, 0, 10, 0], &[]), (filemark, 0));
    assert_eq!(bench.position(), 2, "behind the filemark");
    let end = sensed(SenseKey::BLANK_CHECK, Asc::END_OF_DATA_DETECTED, 0, 10);
    assert_eq!(bench.fail(&[0x08, 2, 0, 0, 10, 0], &[]), (end, 0), "SILI hides it not");
    assert_eq!(bench.position(), 2);
    bench.good(&[0x08, 0, 0, 0, 0, 0]);
}

#[test]
fn fixed_blocks_are_counted() {
    let mut bench = Bench::loaded();
    assert_eq!(
        bench.sense(&[0x08, 1, 0, 0, 1, 0]),
        sensed(SenseKey::ILLEGAL_REQUEST, Asc::INVALID_FIELD_IN_CDB, 0, None)
    );
    bench.select_block_length(4);
    bench.put(&[0x0a, 1, 0, 0, 3, 0], b"aaaabbbbcccc");
    bench.filemarks(1);
    bench.write(b"long block");
    bench.rewind();
    assert_eq!(bench.good(&[0x08, 1, 0, 0, 2, 0]), b"aaaabbbb");
    let (sense, moved) = bench.fail(&[0x08, 1, 0, 0, 5, 0], &[]);
    assert_eq!((sense, moved), (sensed(SenseKey::NO_SENSE, Asc::FILEMARK_DETECTED, FILEMARK, 4), 4));
    let (sense, moved) = bench.fail(&[0x08, 1, 0, 0, 2, 0], &[]);
    assert_eq!((sense, moved), (sensed(SenseKey::NO_SENSE, Asc::NO_ADDITIONAL_SENSE_INFORMATION, ILI, 2), 0));
    let (sense, moved) = bench.fail(&[0x08, 1, 0, 0, 2, 0], &[]);
    assert_eq!((sense, moved), (sensed(SenseKey::BLANK_CHECK, Asc::END_OF_DATA_DETECTED, 0, 2), 0));
    assert_eq!(bench.sense(&[0x08, 3, 0, 0, 2, 0]).asc, Asc::INVALID_FIELD_IN_CDB, "SILI and FIXED");
}

#[test]
fn a_write_without_its_data_is_aborted() {
    let mut bench = Bench::loaded();
    let (sense, _) = bench.fail(&[0x0a, 0, 0, 0, 10, 0], &[1; 9]);
    assert_eq!(sense, sensed(SenseKey::ABORTED_COMMAND, Asc::DATA_PHASE_ERROR, 0, None));
    assert_eq!(bench.position(), 0);
    assert_eq!(bench.sense(&[0x0a, 0, 0x80, 0, 1, 0]).asc, Asc::INVALID_FIELD_IN_CDB, "longer than the limit");
}

#[test]
fn the_end_of_the_medium_is_announced_and_then_reported() {
    let mut bench = Bench::loaded();
    let block = vec![5; 1 << 20];
    let cdb = [0x0a, 0, 0x10, 0, 0, 0];
    let mut warned = 0;
    let (sense, moved) = loop {
        let reply = bench.run(&cdb, &block);
        if reply.status == Status::GOOD {
            continue;
        }
        let sense = parse(&reply.sense);
        if sense.key != SenseKey::NO_SENSE {
            break (sense, reply.moved);
        }
        assert_eq!(sense, sensed(SenseKey::NO_SENSE, Asc::END_OF_MEDIUM_DETECTED, EOM, 0));
        assert_eq!(reply.moved, block.len());
        warned += 1;
    };
    assert!(warned > 0);
    let overflow = sensed(SenseKey::VOLUME_OVERFLOW, Asc::END_OF_MEDIUM_DETECTED, EOM, 1 << 20);
    assert_eq!((sense, moved), (overflow, 0));
    let filemarks = sensed(SenseKey::NO_SENSE, Asc::END_OF_MEDIUM_DETECTED, EOM, 0);
    assert_eq!(bench.sense(&[0x10, 0, 0, 0, 1, 0]), filemarks);
    // Fixed blocks: as many as fit.
    bench.put(&[0x15, 0x10, 0, 0, 12, 0], &[0, 0, 0x10, 8, 0, 0, 0, 0, 0, 0, 4, 0]);
    let (sense, moved) = bench.fail(&[0x0a, 1, 0, 4, 0, 0], &block);
    let rest = 1024 - moved as i32 / 1024;
    assert!(moved > 0 && rest > 0);
    assert_eq!(sense, sensed(SenseKey::VOLUME_OVERFLOW, Asc::END_OF_MEDIUM_DETECTED, EOM, rest));
}

#[test]
fn protected_and_worm_media_refuse_writes() {
    let mut bench = Bench::empty();
    bench.create(Generation::Lto8, true);
    bench.insert();
    bench.drive.common.take_attention();
    bench.write(b"kept");
    bench.rewind();
    let worm = sensed(SenseKey::DATA_PROTECT, Asc::WORM_MEDIUM_OVERWRITE_ATTEMPTED, 0, 1);
    assert_eq!(bench.fail(&[0x0a, 0, 0, 0, 1, 0], b"x").0, worm);
    assert_eq!(bench.sense(&[0x19, 1, 0, 0, 0, 0]).asc, Asc::WORM_MEDIUM_OVERWRITE_ATTEMPTED);
    bench.drive.remove().unwrap();
    let mut cartridge = Cartridge::open(&bench.path()).unwrap();
    cartridge.set_protected(true).unwrap();
    cartridge.close().unwrap();
    bench.insert();
    bench.drive.common.take_attention();
    assert_eq!(bench.sense(&[0x10, 0, 0, 0, 1, 0]), sensed(SenseKey::DATA_PROTECT, Asc::WRITE_PROTECTED, 0, 1));
    assert_eq!(bench.good(&[0x1a, 0, 0x3f, 0, 255, 0])[2] & 0x80, 0x80, "WP");
    assert_eq!(bench.read(4), b"kept");
}

/// A tape with a, b, filemark, c, filemark, filemark, d.
fn with_files() -> Bench {
    let mut bench = Bench::loaded();
    bench.write(b"a");
    bench.write(b"b");
    bench.filemarks(1);
    bench.write(b"c");
    bench.filemarks(2);
    bench.write(b"d");
    bench
}

#[test]
fn space_counts_blocks_and_filemarks_in_both_directions() {
    let mut bench = with_files();
    bench.rewind();
    bench.good(&[0x11, 0, 0, 0, 1, 0]);
    assert_eq!(bench.position(), 1);
    let filemark = |rest| sensed(SenseKey::NO_SENSE, Asc::FILEMARK_DETECTED, FILEMARK, rest);
    assert_eq!(bench.sense(&[0x11, 0, 0, 0, 5, 0]), filemark(4));
    assert_eq!(bench.position(), 3);
    bench.good(&[0x11, 1, 0, 0, 2, 0]);
    assert_eq!(bench.position(), 6);
    let end = |rest| sensed(SenseKey::BLANK_CHECK, Asc::END_OF_DATA_DETECTED, 0, rest);
    assert_eq!(bench.sense(&[0x11, 0, 0, 0, 3, 0]), end(2));
    assert_eq!(bench.position(), 7);
    bench.good(&[0x11, 1, 0xff, 0xff, 0xff, 0]);
    assert_eq!(bench.position(), 5, "before the filemark");
    assert_eq!(bench.sense(&[0x11, 0, 0xff, 0xff, 0xfe, 0]), filemark(2));
    assert_eq!(bench.position(), 4);
    assert_eq!(bench.sense(&[0x11, 0, 0xff, 0xff, 0xf0, 0]), filemark(15));
    assert_eq!(bench.position(), 2);
    let beginning = |rest| sensed(SenseKey::NO_SENSE, Asc::BEGINNING_OF_MEDIUM_DETECTED, EOM, rest);
    assert_eq!(bench.sense(&[0x11, 0, 0xff, 0xff, 0xfc, 0]), beginning(2));
    assert_eq!(bench.position(), 0);
    assert_eq!(bench.sense(&[0x11, 1, 0, 0, 9, 0]), end(6));
    assert_eq!(bench.sense(&[0x11, 1, 0xff, 0xff, 0xf0, 0]), beginning(13));
    bench.good(&[0x11, 3, 0, 0, 0, 0]);
    assert_eq!(bench.position(), 7);
    assert_eq!(bench.sense(&[0x11, 4, 0, 0, 1, 0]).asc, Asc::INVALID_FIELD_IN_CDB, "setmarks");
    let mut long = [0; 16];
    (long[0], long[1], long[11]) = (0x91, 1, 2);
    bench.rewind();
    bench.good(&long);
    assert_eq!(bench.position(), 5);
}

#[test]
fn locate_goes_to_objects_files_and_the_end() {
    let mut bench = with_files();
    bench.good(&[0x2b, 0, 0, 0, 0, 0, 3, 0, 0, 0]);
    assert_eq!(bench.read(1), b"c");
    bench.good(&[0x2b, 4, 0, 0, 0, 0, 1, 0, 0, 0]);
    assert_eq!(bench.read(1), b"b");
    let end = sensed(SenseKey::BLANK_CHECK, Asc::END_OF_DATA_DETECTED, 0, None);
    assert_eq!(bench.sense(&[0x2b, 0, 0, 0, 0, 1, 0, 0, 0, 0]), end);
    assert_eq!(bench.sense(&[0x2b, 2, 0, 0, 0, 0, 0, 0, 1, 0]).asc, Asc::INVALID_FIELD_IN_CDB, "partition 1");
    let long = |kind: u8, to: u8| [0x92, kind << 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, to, 0, 0, 0, 0];
    bench.good(&long(0, 1));
    assert_eq!(bench.position(), 1);
    bench.good(&long(1, 3));
    assert_eq!(bench.read(1), b"d");
    bench.good(&long(1, 0));
    assert_eq!(bench.position(), 0);
    assert_eq!(bench.sense(&long(1, 4)).asc, Asc::END_OF_DATA_DETECTED);
    bench.good(&long(3, 0));
    assert_eq!(bench.position(), 7);
    assert_eq!(bench.sense(&long(2, 0)).asc, Asc::INVALID_FIELD_IN_CDB);
}

#[test]
fn read_position_has_three_forms() {
    let mut bench = with_files();
    let short = bench.good(&[0x34, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!((short.len(), short[0], &short[4..12]), (20, 0, &[0, 0, 0, 7, 0, 0, 0, 7][..]));
    let long = bench.good(&[0x34, 6, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!((long.len(), long[15], long[23]), (32, 7, 3));
    let extended = bench.good(&[0x34, 8, 0, 0, 0, 0, 0, 0, 32, 0]);
    assert_eq!((extended.len(), extended[3], extended[15], extended[23]), (32, 28, 7, 7));
    bench.rewind();
    assert_eq!(bench.good(&[0x34, 1, 0, 0, 0, 0, 0, 0, 0, 0])[0], 0x80, "BOP");
    assert_eq!(bench.sense(&[0x34, 2, 0, 0, 0, 0, 0, 0, 0, 0]).asc, Asc::INVALID_FIELD_IN_CDB);
    assert_eq!(bench.sense(&[0x34, 0, 0, 0, 0, 0, 0, 0, 20, 0]).asc, Asc::INVALID_FIELD_IN_CDB);
}

#[test]
fn commands_with_an_object_move_there_first() {
    let mut bench = with_files();
    let read = |object: u8| [0x88, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, object, 0, 0, 1, 0];
    assert_eq!(bench.good(&read(3)), b"c");
    assert_eq!(bench.good(&read(0)), b"a");
    assert_eq!(bench.sense(&read(99)).key, SenseKey::BLANK_CHECK);
    let mut write = read(1);
    write[0] = 0x8a;
    bench.put(&write, b"B");
    assert_eq!(bench.position(), 2);
    assert_eq!(bench.sense(&[0x08, 0, 0, 0, 1, 0]).key, SenseKey::BLANK_CHECK, "the rest was overwritten");
    bench.good(&[0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 2, 0]);
    assert_eq!(bench.position(), 4);
    bench.good(&[0x93, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0]);
    bench.good(&[0x11, 3, 0, 0, 0, 0]);
    assert_eq!(bench.position(), 3);
    let mut partition = read(0);
    partition[3] = 1;
    assert_eq!(bench.sense(&partition).asc, Asc::INVALID_FIELD_IN_CDB);
}

#[test]
fn erase_makes_the_rest_unreadable() {
    let mut bench = with_files();
    bench.good(&[0x2b, 0, 0, 0, 0, 0, 2, 0, 0, 0]);
    bench.good(&[0x19, 0, 0, 0, 0, 0]);
    assert_eq!(bench.sense(&[0x08, 0, 0, 0, 1, 0]).key, SenseKey::BLANK_CHECK);
    bench.rewind();
    bench.good(&[0x19, 1, 0, 0, 0, 0]);
    assert_eq!(bench.sense(&[0x08, 0, 0, 0, 1, 0]).key, SenseKey::BLANK_CHECK);
}

#[test]
fn damaged_data_is_a_medium_error_and_is_not_returned() {
    let mut bench = Bench::loaded();
    bench.write(&[7; 100]);
    bench.write(b"next");
    bench.drive.remove().unwrap();
    let mut bytes = std::fs::read(bench.path()).unwrap();
    bytes[8192 + 60] ^= 1;
    std::fs::write(bench.path(), bytes).unwrap();
    bench.insert();
    bench.drive.common.take_attention();
    let error = sensed(SenseKey::MEDIUM_ERROR, Asc::UNRECOVERED_READ_ERROR, 0, 100);
    assert_eq!(bench.fail(&[0x08, 0, 0, 0, 100, 0], &[]), (error, 0));
    assert_eq!(bench.read(4), b"next");
    let alerts = bench.good(&[0x4d, 0, 0x6e, 0, 0, 0, 0, 4, 0, 0]);
    assert_eq!(alerts[4 + 4 * 5 + 4], 1, "read failure");
}

#[test]
fn inquiry_has_identity_and_pages() {
    let mut bench = Bench::empty();
    let standard = bench.good(&[0x12, 0, 0, 0, 96, 0]);
    assert_eq!((standard[0], standard[1], standard[4]), (1, 0x80, 91));
    assert_eq!(&standard[8..32], b"LUNAR   VIRTUAL LTO-8   ");
    assert_eq!(bench.good(&[0x12, 1, 0, 0, 96, 0]), [1, 0, 0, 4, 0, 0x80, 0x83, 0xb0]);
    assert_eq!(&bench.good(&[0x12, 1, 0x80, 0, 96, 0])[4..], b"LUNTEST0");
    let identification = bench.good(&[0x12, 1, 0x83, 0, 96, 0]);
    assert_eq!(identification[8..], bench.drive.designator());
    assert_eq!(bench.good(&[0x12, 1, 0xb0, 0, 96, 0]), [1, 0xb0, 0, 2, 1, 0]);
    assert_eq!(bench.sense(&[0x12, 1, 0xb1, 0, 96, 0]).asc, Asc::INVALID_FIELD_IN_CDB);
    assert_eq!(bench.good(&[0x12, 0, 0, 0, 5, 0]).len(), 5, "allocation length");
}

#[test]
fn mode_parameters_are_reported_and_changed() {
    let mut bench = Bench::loaded();
    let all = bench.good(&[0x1a, 0, 0x3f, 0, 255, 0]);
    assert_eq!((usize::from(all[0]) + 1, all[1], all[2], all[3]), (all.len(), 0x88, 0x10, 8));
    assert_eq!(&all[4..12], [0x5e, 0, 0, 0, 0, 0, 0, 0]);
    bench.select_block_length(200);
    assert_eq!(bench.good(&[0x1a, 0, 0, 0, 255, 0])[9..], [0, 0, 200]);
    let long = bench.good(&[0x5a, 0, 0x0f, 0, 0, 0, 0, 0, 255, 0]);
    assert_eq!((long[7], long[15], &long[16..19]), (8, 200, &[0x0f, 14, 0x40][..]));
    assert_eq!(bench.good(&[0x5a, 0x08, 0x0f, 0, 0, 0, 0, 0, 255, 0])[7], 0, "DBD");
    // Compression on, by the page that was read.
    let mut list = bench.good(&[0x1a, 0x08, 0x0f, 0, 255, 0]);
    (list[0], list[1], list[6]) = (0, 0, 0xc0);
    bench.put(&[0x15, 0x10, 0, 0, list.len() as u8, 0], &list);
    assert_eq!(bench.good(&[0x1a, 8, 0x0f, 0, 255, 0])[6], 0xc0);
    assert_eq!(bench.good(&[0x1a, 8, 0x4f, 0, 255, 0])[6], 0x80, "changeable");
    assert_eq!(bench.good(&[0x1a, 8, 0x8f, 0, 255, 0])[6], 0x40, "default");
    assert_eq!(bench.sense(&[0x1a, 8, 0xcf, 0, 255, 0]).asc, Asc::SAVING_NOT_SUPPORTED);
    assert_eq!(bench.sense(&[0x1a, 0, 0x05, 0, 255, 0]).asc, Asc::INVALID_FIELD_IN_CDB);
    bench.write(&[0; 10_000]);
    assert!(bench.drive.cartridge().unwrap().used() < 1000);
    bench.rewind();
    let back = bench.good(&[0x08, 0, 0, 0x27, 0x10, 0]);
    assert_eq!(back, [0; 10_000]);
}

#[test]
fn wrong_mode_parameters_change_nothing() {
    let mut bench = Bench::loaded();
    let wrong: [(&[u8], Asc); 8] = [
        (&[0, 0, 0x20, 0], Asc::INVALID_FIELD_IN_PARAMETER_LIST),
        (&[0, 0, 0x10, 8, 0x77, 0, 0, 0, 0, 0, 0, 1], Asc::INVALID_FIELD_IN_PARAMETER_LIST),
        (&[0, 0, 0x10, 8, 0, 0, 0, 0, 0, 0xff, 0, 1], Asc::INVALID_FIELD_IN_PARAMETER_LIST),
        (&[0, 0, 0x10, 4, 0, 0, 0, 0], Asc::INVALID_FIELD_IN_PARAMETER_LIST),
        (&[0, 0, 0x10, 8, 0, 0], Asc::PARAMETER_LIST_LENGTH_ERROR),
        (&[0, 0, 0x10, 0, 0x05, 2, 0, 0], Asc::INVALID_FIELD_IN_PARAMETER_LIST),
        (&[0, 0, 0x10, 0, 0x0f, 14, 0xc0], Asc::PARAMETER_LIST_LENGTH_ERROR),
        (&[0, 0, 0x10, 0, 0x01, 10, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0], Asc::INVALID_FIELD_IN_PARAMETER_LIST),
    ];
    for (list, asc) in wrong {
        let before = bench.drive.mode;
        let (sense, _) = bench.fail(&[0x15, 0x10, 0, 0, list.len() as u8, 0], list);
        assert_eq!((sense.key, sense.asc), (SenseKey::ILLEGAL_REQUEST, asc), "{list:02x?}");
        assert_eq!(bench.drive.mode, before);
    }
    let (sense, _) = bench.fail(&[0x15, 0x11, 0, 0, 4, 0], &[0, 0, 0x10, 0]);
    assert_eq!(sense.asc, Asc::INVALID_FIELD_IN_CDB, "saved pages");
}

#[test]
fn unbuffered_writes_are_synchronized() {
    let mut bench = Bench::loaded();
    bench.put(&[0x15, 0x10, 0, 0, 4, 0], &[0, 0, 0, 0]);
    assert_eq!(bench.good(&[0x1a, 8, 0, 0, 4, 0])[2], 0);
    bench.write(b"one");
    let file = std::fs::read(bench.path()).unwrap();
    let newest = [&file[..128], &file[4096..4224]].into_iter().map(|copy| {
        let number = |at: usize| u64::from_le_bytes(copy[at..at + 8].try_into().unwrap());
        (number(24), number(48))
    });
    let end = file.iter().rposition(|byte| *byte != 0).unwrap() as u64 + 1;
    assert_eq!(newest.max().unwrap().1, end, "all of it is durable");
}

#[test]
fn descriptor_sense_is_a_mode_parameter() {
    let mut bench = Bench::loaded();
    let mut list = vec![0, 0, 0x10, 0, 0x0a, 10, 0x24];
    list.resize(16, 0);
    assert_eq!(bench.good(&[0x1a, 8, 0x0a, 0, 255, 0])[4..7], [0x0a, 10, 0x20], "a task set for each nexus");
    bench.put(&[0x15, 0x10, 0, 0, 16, 0], &list);
    let reply = bench.run(&[0x08, 0, 0, 0, 1, 0], &[]);
    assert_eq!((reply.sense[0], reply.sense[1]), (0x72, 8));
    bench.drive.reset();
    assert_eq!(bench.sense(&[0x08, 0, 0, 0, 1, 0]).key, SenseKey::BLANK_CHECK);
}

#[test]
fn prevented_removal_is_refused_until_it_is_allowed() {
    let mut bench = Bench::loaded();
    bench.good(&[0x1e, 0, 0, 0, 1, 0]);
    assert_eq!(bench.sense(&[0x1b, 0, 0, 0, 0, 0]).asc, Asc::MEDIUM_REMOVAL_PREVENTED);
    assert_eq!(bench.drive.remove().unwrap_err().asc, Asc::MEDIUM_REMOVAL_PREVENTED);
    bench.good(&[0x1e, 0, 0, 0, 0, 0]);
    bench.drive.remove().unwrap();
}

#[test]
fn encryption_is_refused() {
    let mut bench = Bench::loaded();
    assert_eq!(bench.good(&[0xa2, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0]), [0, 0, 0, 0, 0, 0, 0, 1, 0]);
    let refused = sensed(SenseKey::ILLEGAL_REQUEST, Asc::INVALID_FIELD_IN_CDB, 0, None);
    assert_eq!(bench.sense(&[0xa2, 0x20, 0, 0x10, 0, 0, 0, 0, 0, 9, 0, 0]), refused);
    assert_eq!(bench.sense(&[0xb5, 0x20, 0, 0x10, 0, 0, 0, 0, 0, 9, 0, 0]), refused);
}

#[test]
fn logs_attributes_and_densities_describe_the_medium() {
    let mut bench = Bench::loaded();
    bench.write(&[3; 5000]);
    assert_eq!(bench.good(&[0x4d, 0, 0x40, 0, 0, 0, 0, 0, 255, 0])[4..], [0, 2, 3, 0x0c, 0x2e, 0x31]);
    let log = bench.good(&[0x4d, 0, 0x4c, 0, 0, 0, 0, 0, 255, 0]);
    assert_eq!(log[8..16], 5000_u64.to_be_bytes());
    let capacity = bench.good(&[0x4d, 0, 0x71, 0, 0, 0, 0, 0, 255, 0]);
    assert_eq!((&capacity[8..12], &capacity[24..28]), (&[0, 0, 0, 31][..], &[0, 0, 0, 32][..]));
    assert_eq!(bench.sense(&[0x4d, 0, 0x55, 0, 0, 0, 0, 0, 255, 0]).asc, Asc::INVALID_FIELD_IN_CDB);
    let values = bench.good(&[0x8c, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0]);
    assert_eq!(values[4..17], [0, 1, 0x80, 0, 8, 0, 0, 0, 0, 0, 0, 0, 32]);
    let list = bench.good(&[0x8c, 1, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0]);
    assert_eq!(list, [0, 0, 0, 8, 4, 0, 4, 1, 4, 5, 8, 6]);
    let densities = bench.good(&[0x44, 0, 0, 0, 0, 0, 0, 1, 0, 0]);
    assert_eq!((densities.len(), densities[4], densities[56]), (4 + 2 * 52, 0x5c, 0x5e));
    assert_eq!(bench.good(&[0x44, 1, 0, 0, 0, 0, 0, 1, 0, 0]).len(), 56);
    assert_eq!(bench.good(&[0x05, 0, 0, 0, 0, 0]), [0, 0x80, 0, 0, 0, 1]);
}

#[test]
fn supported_operation_codes_are_those_of_the_table() {
    let mut bench = Bench::loaded();
    let all = bench.good(&[0xa3, 0x0c, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]);
    assert_eq!(all.len(), 4 + 8 * Drive::rows().len());
    let one = bench.good(&[0xa3, 0x0c, 1, 0x0a, 0, 0, 0, 0, 1, 0, 0, 0]);
    assert_eq!(one, [0, 3, 0, 6, 0x0a, 1, 0xff, 0xff, 0xff, 0]);
    assert_eq!(bench.good(&[0xa3, 0x0c, 1, 0x28, 0, 0, 0, 0, 1, 0, 0, 0]), [0, 1, 0, 0]);
    assert_eq!(bench.sense(&[0xa3, 0x0c, 1, 0x8c, 0, 0, 0, 0, 1, 0, 0, 0]).asc, Asc::INVALID_FIELD_IN_CDB);
}

#[test]
fn unknown_commands_reserved_bits_and_short_cdbs_are_refused() {
    let mut bench = Bench::loaded();
    let unknown = sensed(SenseKey::ILLEGAL_REQUEST, Asc::INVALID_COMMAND_OPERATION_CODE, 0, None);
    for code in [0x28, 0x2a, 0xff, 0x16] {
        assert_eq!(bench.sense(&[code, 0, 0, 0, 0, 0, 0, 0, 0, 0]), unknown);
    }
    for row in Drive::rows() {
        let mut cdb = vec![0; row.cdb_bytes()];
        (cdb[0], cdb[1]) = (row.code, row.action.unwrap_or(0));
        let reply = bench.run(&cdb[..row.cdb_bytes() - 1], &[]);
        assert_eq!(parse(&reply.sense).asc, Asc::INVALID_FIELD_IN_CDB, "{} without its last byte", row.name);
        for (at, used) in (1..).zip(row.usage) {
            let reserved = !(used | if at == 1 { 0xe0 } else { 0 });
            if reserved != 0 && row.action.is_none() {
                let mut cdb = cdb.clone();
                cdb[at] = reserved;
                let reply = bench.run(&cdb, &[]);
                assert_eq!(parse(&reply.sense).asc, Asc::INVALID_FIELD_IN_CDB, "{}, byte {at}", row.name);
                assert_eq!(reply.sense[17], at as u8, "{}", row.name);
            }
        }
    }
}

#[test]
fn a_movement_brings_buffered_data_to_the_medium() {
    let space = |code, count: i8| vec![0x11, code, count as u8, count as u8, count as u8, 0];
    let with = |code: u8, first: u8, object: u8| {
        let mut cdb = vec![code, first, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        cdb[11] = object;
        cdb
    };
    let movements: [(&str, Vec<u8>); 12] = [
        ("REWIND", vec![1, 0, 0, 0, 0, 0]),
        ("SPACE of blocks", space(0, -1)),
        ("SPACE of filemarks", space(1, -1)),
        ("SPACE to the end of data", space(3, 0)),
        ("SPACE(16)", with(0x91, 3, 0)),
        ("LOCATE(10)", vec![0x2b, 0, 0, 0, 0, 0, 1, 0, 0, 0]),
        ("LOCATE(16) of an object", with(0x92, 0, 1)),
        ("LOCATE(16) of a file", with(0x92, 1 << 3, 1)),
        ("LOCATE(16) to the end of data", with(0x92, 3 << 3, 0)),
        ("READ(16) of another object", with(0x88, 0, 1)),
        ("LOAD UNLOAD, unload", vec![0x1b, 0, 0, 0, 0, 0]),
        ("LOAD UNLOAD, load", vec![0x1b, 0, 0, 0, 1, 0]),
    ];
    for (name, cdb) in movements {
        for is_failing in [false, true] {
            let mut bench = Bench::loaded();
            disk::begin(&bench.path());
            bench.put(&[0x10, 1, 0, 0, 1, 0], &[]);
            bench.write(b"data");
            disk::fail(is_failing);
            let reply = bench.run(&cdb, &[]);
            if is_failing {
                let sense = parse(&reply.sense);
                assert_eq!((sense.key, sense.asc), (SenseKey::MEDIUM_ERROR, Asc::WRITE_ERROR), "{name}");
                disk::fail(false);
            }
            bench.drive.medium = Medium::Empty;
            disk::cut_power(&bench.path());
            let objects = if is_failing { 0 } else { 2 };
            assert_eq!(Cartridge::open(&bench.path()).unwrap().end().object, objects, "{name}");
        }
    }
}
