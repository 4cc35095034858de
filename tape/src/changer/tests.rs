use super::*;
use crate::cartridge::{CAPACITY_BYTES_MIN, NewCartridge};
use crate::drive::{DriveFacts, LockedDrive};
use crate::generation::Generation;
use crate::scsi::Status;
use crate::test_folder::TestFolder;
use lunar_durable::testing::let_folder_fail;

const DRIVE: u16 = 0x100;
const SLOT: u16 = 0x400;
const PORT: u16 = 0x10;

/// A library of two drives, four slots and two ports, with cartridges A1 and A2 in the first slots.
struct Bench {
    folder: TestFolder,
    changer: Changer,
    data: Vec<u8>,
}

/// The key and the code of sense data in fixed format.
fn meaning(sense: &[u8]) -> (SenseKey, Asc) {
    (SenseKey(sense[2]), Asc(u16::from_be_bytes([sense[12], sense[13]])))
}

fn open(folder: &TestFolder) -> Changer {
    let drives = (0..2).map(|number| {
        let facts = DriveFacts { serial: format!("DRIVE{number}"), generation: Generation::Lto8, compression: false };
        SharedDrive::new(facts)
    });
    let changer = Changer::open(folder.path(), "CHANGER", 4, 2, drives.collect()).unwrap();
    changer.begin_loads().iter().for_each(Load::run);
    changer
}

impl Bench {
    fn new() -> Self {
        let folder = TestFolder::new();
        std::fs::create_dir(folder.path().join("cartridges")).unwrap();
        let mut changer = open(&folder);
        for barcode in ["A1", "A2", "A3"] {
            let (capacity, generation) = (Some(CAPACITY_BYTES_MIN), Generation::Lto8);
            let new = NewCartridge { barcode: barcode.into(), generation, capacity, is_worm: false };
            Cartridge::create(&changer.file_of(barcode), &new).unwrap();
        }
        changer.fill(["A1", "A2"].into_iter().map(str::to_owned)).unwrap();
        Self { folder, changer, data: vec![0; 65_536] }
    }

    /// The library after the process ended without any preparation.
    fn reopened(self) -> Self {
        let Self { folder, changer, data } = self;
        drop(changer);
        Self { changer: open(&folder), folder, data }
    }

    fn run(&mut self, cdb: &[u8], out: &[u8]) -> Reply {
        self.run_of(1, cdb, out)
    }

    fn run_of(&mut self, nexus: u64, cdb: &[u8], out: &[u8]) -> Reply {
        self.changer.execute(nexus, cdb, out, &mut self.data)
    }

    fn good(&mut self, cdb: &[u8], out: &[u8]) -> Vec<u8> {
        let reply = self.run(cdb, out);
        assert_eq!(reply.status, Status::GOOD, "{cdb:02x?}: {:02x?}", reply.sense);
        self.data[..reply.moved].to_vec()
    }

    fn fail(&mut self, cdb: &[u8]) -> (SenseKey, Asc) {
        let reply = self.run(cdb, &[]);
        assert_eq!(reply.status, Status::CHECK_CONDITION, "{cdb:02x?}");
        meaning(&reply.sense)
    }

    fn at(&self, element: u16) -> Option<&str> {
        self.changer.inventory.at(element).map(|occupant| occupant.barcode.as_str())
    }

    fn drive(&self, number: usize) -> LockedDrive<'_> {
        self.changer.drives[number].lock()
    }
}

fn bytes(address: u16) -> [u8; 2] {
    address.to_be_bytes()
}

fn move_cdb(from: u16, to: u16) -> [u8; 12] {
    let (from, to) = (bytes(from), bytes(to));
    [0xa5, 0, 0, 0, from[0], from[1], to[0], to[1], 0, 0, 0, 0]
}

fn exchange_cdb(source: u16, first: u16, second: u16) -> [u8; 12] {
    let (source, first, second) = (bytes(source), bytes(first), bytes(second));
    [0xa6, 0, 0, 0, source[0], source[1], first[0], first[1], second[0], second[1], 0, 0]
}

fn status_cdb(flags: u8, start: u16, dvcid: u8) -> [u8; 12] {
    let start = bytes(start);
    [0xb8, flags, start[0], start[1], 0xff, 0xff, dvcid, 0, 0xff, 0xff, 0, 0]
}

#[test]
fn a_move_loads_and_unloads_cartridges_and_survives_the_process() {
    let mut bench = Bench::new();
    bench.good(&move_cdb(SLOT, DRIVE), &[]);
    assert_eq!((bench.at(SLOT), bench.at(DRIVE)), (None, Some("A1")));
    assert!(bench.drive(0).is_loaded());
    let reply = bench.drive(0).execute(&[0; 6], &[], &mut []);
    assert_eq!(reply.sense[2], SenseKey::UNIT_ATTENTION.0);
    bench.drive(0).execute(&[0x0a, 0, 0, 0, 4, 0], b"data", &mut []);
    let mut bench = bench.reopened();
    assert_eq!(bench.at(DRIVE), Some("A1"));
    assert!(bench.drive(0).is_loaded());
    bench.good(&move_cdb(DRIVE, SLOT + 3), &[]);
    assert!(!bench.drive(0).is_loaded());
    bench.good(&move_cdb(SLOT + 3, DRIVE + 1), &[]);
    bench.drive(1).execute(&[0; 6], &[], &mut []);
    let mut data = [0; 4];
    assert_eq!(bench.drive(1).execute(&[0x08, 0, 0, 0, 4, 0], &[], &mut data).status, Status::GOOD);
    assert_eq!(&data, b"data");
    assert_eq!(bench.reopened().at(DRIVE + 1), Some("A1"));
}

#[test]
fn impossible_moves_are_refused() {
    let mut bench = Bench::new();
    let illegal = |asc| (SenseKey::ILLEGAL_REQUEST, asc);
    assert_eq!(bench.fail(&move_cdb(SLOT + 2, DRIVE)), illegal(Asc::MEDIUM_SOURCE_ELEMENT_EMPTY));
    assert_eq!(bench.fail(&move_cdb(SLOT, SLOT + 1)), illegal(Asc::MEDIUM_DESTINATION_ELEMENT_FULL));
    assert_eq!(bench.fail(&move_cdb(SLOT, SLOT)), illegal(Asc::MEDIUM_DESTINATION_ELEMENT_FULL));
    for (from, to) in [(SLOT, DRIVE + 2), (SLOT, 0), (0, DRIVE), (SLOT + 4, DRIVE), (0xffff, DRIVE)] {
        assert_eq!(bench.fail(&move_cdb(from, to)), illegal(Asc::INVALID_ELEMENT_ADDRESS));
    }
    let mut inverted = move_cdb(SLOT, DRIVE);
    inverted[10] = 1;
    assert_eq!(bench.fail(&inverted), illegal(Asc::INVALID_FIELD_IN_CDB));
    let mut transport = move_cdb(SLOT, DRIVE);
    transport[3] = 1;
    assert_eq!(bench.fail(&transport), illegal(Asc::INVALID_ELEMENT_ADDRESS));
    assert_eq!(bench.at(SLOT), Some("A1"));
    bench.good(&move_cdb(SLOT, DRIVE), &[]);
    bench.drive(0).execute(&[0; 6], &[], &mut []);
    bench.drive(0).execute(&[0x1e, 0, 0, 0, 1, 0], &[], &mut []);
    assert_eq!(bench.fail(&move_cdb(DRIVE, SLOT)), illegal(Asc::MEDIUM_REMOVAL_PREVENTED));
    assert_eq!(bench.at(DRIVE), Some("A1"));
}

#[test]
fn a_move_whose_place_cannot_be_written_does_not_happen() {
    let mut bench = Bench::new();
    bench.good(&move_cdb(SLOT, DRIVE), &[]);
    let blocker = bench.folder.path().join("inventory.toml.new");
    std::fs::create_dir(&blocker).unwrap();
    let error = (SenseKey::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE);
    assert_eq!(bench.fail(&move_cdb(DRIVE, SLOT)), error);
    assert_eq!(bench.at(DRIVE), Some("A1"));
    assert!(bench.drive(0).is_loaded(), "the cartridge is in the drive again");
    std::fs::remove_dir(&blocker).unwrap();
    bench.good(&move_cdb(DRIVE, SLOT), &[]);
}

#[test]
fn a_move_that_is_not_known_to_be_durable_fails_and_all_say_where_the_cartridge_is() {
    let mut bench = Bench::new();
    let_folder_fail();
    let error = (SenseKey::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE);
    assert_eq!(bench.fail(&move_cdb(SLOT, DRIVE)), error);
    assert_eq!((bench.at(SLOT), bench.at(DRIVE)), (None, Some("A1")));
    assert!(bench.drive(0).is_loaded());
    let_folder_fail();
    assert!(matches!(bench.changer.insert("A3"), Err(Refused::Inventory(_))));
    let bench = bench.reopened();
    assert_eq!((bench.at(SLOT), bench.at(DRIVE), bench.at(PORT)), (None, Some("A1"), Some("A3")));
}

#[test]
fn an_exchange_moves_two_cartridges() {
    let mut bench = Bench::new();
    bench.good(&move_cdb(SLOT, DRIVE), &[]);
    bench.good(&exchange_cdb(SLOT + 1, DRIVE, SLOT + 1), &[]);
    assert_eq!((bench.at(DRIVE), bench.at(SLOT + 1)), (Some("A2"), Some("A1")));
    bench.good(&exchange_cdb(SLOT + 1, DRIVE, DRIVE + 1), &[]);
    assert_eq!((bench.at(DRIVE), bench.at(DRIVE + 1), bench.at(SLOT + 1)), (Some("A1"), Some("A2"), None));
    assert!(bench.drive(0).is_loaded() && bench.drive(1).is_loaded());
    let illegal = |asc| (SenseKey::ILLEGAL_REQUEST, asc);
    assert_eq!(bench.fail(&exchange_cdb(DRIVE, DRIVE + 1, SLOT + 9)), illegal(Asc::INVALID_ELEMENT_ADDRESS));
    assert_eq!(bench.fail(&exchange_cdb(DRIVE, SLOT, SLOT + 1)), illegal(Asc::MEDIUM_SOURCE_ELEMENT_EMPTY));
    assert_eq!(bench.fail(&exchange_cdb(DRIVE, DRIVE, DRIVE)), illegal(Asc::INVALID_FIELD_IN_CDB));
}

#[test]
fn element_status_has_volume_tags_and_names_of_drives() {
    let mut bench = Bench::new();
    bench.good(&move_cdb(SLOT, DRIVE), &[]);
    let status = bench.good(&status_cdb(0x10 | 4, 0, 1), &[]);
    let name = bench.drive(0).designator();
    let length = 12 + 36 + 4 + name.len();
    assert_eq!(status[..8], [1, 0, 0, 2, 0, 0, 0, 8 + 2 * length as u8]);
    assert_eq!(status[8..16], [4, 0x80, 0, length as u8, 0, 0, 0, 2 * length as u8]);
    let one = &status[16..16 + length];
    assert_eq!(one[..3], [1, 0, FULL_AND_ACCESS]);
    assert_eq!(one[9..12], [0x80, 4, 0], "the slot from which it came");
    assert_eq!(&one[12..44], format!("{:32}", "A1").as_bytes());
    assert_eq!(one[48..52], [2, 1, 0, name.len() as u8]);
    assert_eq!(one[52..], name);
    assert_eq!(status[16 + length + 2], 0x08, "the second drive is empty");
    // Without tags and names.
    let status = bench.good(&status_cdb(2, SLOT + 1, 0), &[]);
    assert_eq!(status[..8], [4, 1, 0, 3, 0, 0, 0, 8 + 3 * 16]);
    assert_eq!(status[16..19], [4, 1, FULL_AND_ACCESS]);
    // All types, in the order of addresses; a limit on their number.
    let all = bench.good(&status_cdb(0, 0, 0), &[]);
    assert_eq!(all[..4], [0, 0, 0, 1 + 2 + 2 + 4]);
    let mut few = status_cdb(0, 0, 0);
    (few[4], few[5]) = (0, 4);
    assert_eq!(bench.good(&few, &[])[..4], [0, 0, 0, 4]);
    let mut header = status_cdb(0, 0, 0);
    (header[8], header[9]) = (0, 8);
    assert_eq!(bench.good(&header, &[]), all[..8]);
    assert_eq!(bench.fail(&status_cdb(5, 0, 0)), (SenseKey::ILLEGAL_REQUEST, Asc::INVALID_FIELD_IN_CDB));
}

const FULL_AND_ACCESS: u8 = 0x09;

#[test]
fn the_operator_inserts_and_ejects_through_ports() {
    let mut bench = Bench::new();
    assert!(matches!(bench.changer.insert("A1"), Err(Refused::Inside(_))));
    assert!(matches!(bench.changer.insert("A9"), Err(Refused::Unknown(_))));
    assert!(matches!(bench.changer.insert("../A1"), Err(Refused::Unknown(_))));
    assert_eq!(bench.changer.insert("A3").unwrap().element, "port 1");
    assert_eq!(bench.fail(&[0; 6]), (SenseKey::UNIT_ATTENTION, Asc::IMPORT_OR_EXPORT_ELEMENT_ACCESSED));
    bench.good(&[0; 6], &[]);
    let status = bench.good(&status_cdb(3, 0, 0), &[]);
    assert_eq!((status[18], status[18 + 16]), (0x3b, 0x38), "put in by the operator; empty");
    assert!(matches!(bench.changer.eject("A1"), Err(Refused::NotInPort(_))));
    bench.good(&move_cdb(SLOT, PORT + 1), &[]);
    assert_eq!(bench.good(&status_cdb(3, PORT + 1, 0), &[])[18], 0x39, "put in by the changer");
    bench.good(&[0x1e, 0, 0, 0, 1, 0], &[]);
    assert!(matches!(bench.changer.eject("A1"), Err(Refused::Prevented)));
    bench.good(&[0x1e, 0, 0, 0, 0, 0], &[]);
    bench.changer.eject("A1").unwrap();
    let places = bench.changer.places().unwrap();
    assert_eq!(places.last().unwrap(), &Place { barcode: "A1".into(), element: "outside".into() });
    let mut bench = bench.reopened();
    bench.changer.insert("A1").unwrap();
    assert!(matches!(bench.changer.insert("A1"), Err(Refused::Inside(_))));
}

#[test]
fn element_status_does_not_wait_for_a_drive() {
    let mut bench = Bench::new();
    bench.good(&move_cdb(SLOT, DRIVE), &[]);
    bench.drive(0).execute(&[0; 6], &[], &mut []);
    bench.drive(0).execute(&[0x1e, 0, 0, 0, 1, 0], &[], &mut []);
    // The drive executes a command, for example synchronizes.
    let drive = bench.changer.drives[0].clone();
    let _busy = drive.lock();
    let status = bench.good(&status_cdb(0x10 | 4, 0, 1), &[]);
    assert_eq!((status[18], &status[16 + 52..][..5]), (0x01, &b"LUNAR"[..]), "full, and not accessible");
    bench.good(&move_cdb(SLOT + 1, DRIVE + 1), &[]);
}

#[test]
fn a_drive_is_not_ready_while_its_cartridge_is_opened() {
    let mut bench = Bench::new();
    bench.good(&move_cdb(SLOT, DRIVE), &[]);
    bench.changer.drives[0].lock().shut_down().unwrap();
    let loads = bench.changer.begin_loads();
    let becoming = (SenseKey::NOT_READY, Asc::NOT_READY_BECOMING_READY);
    assert_eq!(bench.fail(&move_cdb(DRIVE, SLOT)), becoming);
    assert_eq!(bench.at(DRIVE), Some("A1"));
    bench.drive(0).execute(&[0; 6], &[], &mut []);
    for cdb in [[0; 6], [0x1b, 0, 0, 0, 0, 0], [0x1b, 0, 0, 0, 1, 0]] {
        let reply = bench.drive(0).execute(&cdb, &[], &mut []);
        assert_eq!(meaning(&reply.sense), becoming, "{cdb:?}");
    }
    loads.iter().for_each(Load::run);
    bench.drive(0).execute(&[0; 6], &[], &mut []);
    assert_eq!(bench.drive(0).execute(&[0; 6], &[], &mut []).status, Status::GOOD);
    bench.good(&move_cdb(DRIVE, SLOT), &[]);
}

#[test]
fn volume_tags_are_found() {
    let mut bench = Bench::new();
    let mut template = [b' '; 40];
    template[..2].copy_from_slice(b"A?");
    let mut send = [0xb6, 0, 0, 0, 0, 0x05, 0, 0, 0, 40, 0, 0];
    bench.good(&send, &template);
    let request = [0xb5, 0x10, 0, 0, 0xff, 0xff, 0, 0, 0xff, 0xff, 0, 0];
    let found = bench.good(&request, &[]);
    assert_eq!(found[..5], [4, 0, 0, 2, 5]);
    assert_eq!(&found[16 + 12..16 + 14], b"A1");
    assert_eq!(bench.good(&request, &[])[..4], [0; 4], "the search has ended");
    // Each nexus has a search of its own.
    bench.good(&send, &template);
    template[..2].copy_from_slice(b"B?");
    assert_eq!(bench.run_of(2, &send, &template).status, Status::GOOD);
    assert_eq!(bench.good(&request, &[])[..4], [4, 0, 0, 2]);
    bench.good(&send, &template);
    bench.changer.detach(1);
    assert_eq!(bench.good(&request, &[])[..4], [0; 4], "the nexus has ended");
    for nexus in 2..2 + SEARCHES_MAX as u64 {
        assert_eq!(bench.run_of(nexus, &send, &template).status, Status::GOOD);
    }
    let refused = bench.run(&send, &template);
    assert_eq!(meaning(&refused.sense), (SenseKey::ILLEGAL_REQUEST, Asc::INSUFFICIENT_RESOURCES));
    assert_eq!(bench.run_of(2, &send, &template).status, Status::GOOD, "it has a search already");
    send[5] = 0x08;
    assert_eq!(bench.fail(&send), (SenseKey::ILLEGAL_REQUEST, Asc::INVALID_FIELD_IN_CDB));
    send[5] = 0x05;
    assert_eq!(bench.fail(&send), (SenseKey::ABORTED_COMMAND, Asc::DATA_PHASE_ERROR));
}

#[test]
fn mode_pages_describe_the_elements() {
    let mut bench = Bench::new();
    let page = bench.good(&[0x1a, 8, 0x1d, 0, 255, 0], &[]);
    assert_eq!(page[4..], [0x1d, 18, 0, 0, 0, 1, 4, 0, 0, 4, 0, 16, 0, 2, 1, 0, 0, 2, 0, 0]);
    let all = bench.good(&[0x5a, 0, 0x3f, 0, 0, 0, 0, 0, 255, 0], &[]);
    assert_eq!(usize::from(all[1]) + 2, all.len());
    assert_eq!(bench.good(&[0x1a, 8, 0x1f, 0, 255, 0], &[])[6..12], [0x0e, 0, 0, 0x0e, 0x0e, 0x0e]);
    assert_eq!(bench.fail(&[0x1a, 8, 0x0f, 0, 255, 0]).1, Asc::INVALID_FIELD_IN_CDB);
}

#[test]
fn other_commands_check_their_fields() {
    let mut bench = Bench::new();
    bench.good(&[0x07, 0, 0, 0, 0, 0], &[]);
    bench.good(&[0x37, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[]);
    bench.good(&[0x2b, 0, 0, 0, 4, 0, 0, 0, 0, 0], &[]);
    assert_eq!(bench.fail(&[0x2b, 0, 0, 0, 0xff, 0, 0, 0, 0, 0]).1, Asc::INVALID_ELEMENT_ADDRESS);
    assert_eq!(bench.fail(&[0xa0; 12]).1, Asc::INVALID_COMMAND_OPERATION_CODE);
    let inquiry = bench.good(&[0x12, 0, 0, 0, 96, 0], &[]);
    assert_eq!((inquiry[0], &inquiry[8..31]), (8, &b"LUNAR   VIRTUAL LIBRARY"[..]));
    let codes = bench.good(&[0xa3, 0x0c, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0], &[]);
    assert_eq!(codes.len(), 4 + 8 * Changer::rows().len());
}
