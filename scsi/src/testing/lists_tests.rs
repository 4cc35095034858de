use super::*;
use crate::command::Status;
use std::path::{Path, PathBuf};

/// A step of a seed: operation code, service action, flags, the CDB from its second byte on, the list.
type Sown<'a> = (u8, u8, u8, &'a [u8], Vec<u8>);

fn bytes(steps: &[Sown<'_>]) -> Vec<u8> {
    let mut data = Vec::new();
    for (opcode, action, flags, cdb, list) in steps {
        let mut rest = [0; CDB_REST];
        rest[..cdb.len()].copy_from_slice(cdb);
        data.extend([*opcode, *action, *flags]);
        data.extend((list.len() as u16).to_be_bytes());
        data.extend(rest);
        data.extend(list);
    }
    data
}

fn reserve(key: u64, action_key: u64) -> Vec<u8> {
    [&key.to_be_bytes()[..], &action_key.to_be_bytes(), &[0; 8]].concat()
}

/// CDB bytes 1 to 9 with an allocation length in bytes 7 and 8.
const ALL: [u8; 9] = [0, 0, 0, 0, 0, 0, 0x10, 0, 0];

fn persistent() -> Vec<u8> {
    let mut moved = [&1_u64.to_be_bytes()[..], &9_u64.to_be_bytes(), &[0, 0, 0, 2, 0, 0, 0, 48]].concat();

    moved.extend([0x45, 0, 0, 44]);
    moved.extend(NODE.as_bytes());
    moved.resize(24 + 48, 0);
    bytes(&[
        (0x5f, 6, 0, &[], reserve(0, 1)),
        (0x5f, 0, 1, &[], reserve(0, 2)),
        (0x5f, 1, 0, &[0, 5], reserve(1, 0)),
        (0x5f, 5, 1, &[0, 5], reserve(2, 1)),
        (0x5e, 3, 1, &ALL, Vec::new()),
        (0x03, 0, 0, &[0, 0, 0, 252], Vec::new()),
        (0x5f, 6, 0, &[], reserve(0, 1)),
        (0x5f, 4, 0, &[0, 3], reserve(1, 2)),
        (0x5f, 7, 0, &[], moved),
        (0x5e, 1, 3, &ALL, Vec::new()),
        (0x5e, 0, 3, &ALL, Vec::new()),
        (0x5f, 2, 3, &[0, 3], reserve(9, 0)),
        (0x5f, 3, 3, &[], reserve(9, 0)),
        (0x5f, 6, SECOND, &[], [&reserve(0, 1)[..20], &[1, 0, 0, 0]].concat()),
    ])
}

fn mode() -> Vec<u8> {
    let caching = [&[0; 8][..], &[0x08, 0x12, 4], &[0; 17]].concat();
    let control = [&[0; 4][..], &[0x0a, 0x0a, 0x26, 0x10, 0, 0, 0, 0, 0, 0, 0, 0]].concat();
    bytes(&[
        (0x55, 0, 0, &[0x10], caching.clone()),
        (0x55, 0, SECOND, &[0x11], caching),
        (0x5a, 0, 0, &[0, 0x3f, 0xff, 0, 0, 0, 0x10, 0], Vec::new()),
        (0x15, 0, 0, &[0x10], control),
        (0x1a, 0, 0, &[0, 0x0a, 0, 0xff], Vec::new()),
    ])
}

fn ranges(of: &[(u64, u32)]) -> Vec<u8> {
    of.iter().flat_map(|(lba, count)| [&lba.to_be_bytes()[..], &count.to_be_bytes(), &[0; 4]].concat()).collect()
}

fn token() -> Vec<u8> {
    let populate = [&[0, 46, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32][..], &ranges(&[(0, 8), (16, 8)])].concat();
    let mut write = vec![0; 536];
    (write[0], write[1], write[535]) = (2, 38, 16);
    write.extend(ranges(&[(32, 16)]));
    let id = [0, 0, 0, 0, 0, 0, 0, 0, 7];
    let ask = [0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 4];
    bytes(&[
        (0x83, 0x10, 0, &id, populate),
        (0x84, 0x07, 0, &ask, Vec::new()),
        (0x83, 0x11, SECOND | TOKEN, &id, write),
        (0x84, 0x07, SECOND, &ask, Vec::new()),
        (0x84, 0x08, 0, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4], Vec::new()),
    ])
}

fn copy() -> Vec<u8> {
    let cscd =
        |unit: u8| [&[0xe4, 0, 0, 0, 1, 3, 0, 8, 0x30, 1, 2, 3, 4, 5, 6, 7 + unit][..], &[0; 14], &[2, 0]].concat();
    let segment = [&[2, 0, 0, 0x18, 0, 0, 0, 1, 0, 0, 0, 8][..], &4_u64.to_be_bytes(), &64_u64.to_be_bytes()].concat();
    let mut lid1 = vec![1, 0, 0, 64, 0, 0, 0, 0, 0, 0, 0, 28, 0, 0, 0, 0];
    lid1.extend([cscd(0), cscd(1), segment.clone()].concat());
    let mut lid4 = vec![1, 0, 0, 0x20];
    lid4.resize(16, 0);
    lid4.extend([0xff, 0, 0, 0, 0, 0, 0, 5]);
    lid4.resize(42, 0);
    lid4.extend([0, 64, 0, 28, 0, 0]);
    lid4.extend([cscd(0), cscd(1), segment].concat());
    bytes(&[
        (0x83, 0, 0, &[], lid1),
        (0x84, 0, 0, &[0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4], Vec::new()),
        (0x83, 1, 0, &[], lid4),
        (0x84, 5, 0, &[0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 4], Vec::new()),
        (0x84, 3, 0, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4], Vec::new()),
    ])
}

fn medium() -> Vec<u8> {
    let unmap = [&[0, 38, 0, 32, 0, 0, 0, 0][..], &ranges(&[(8, 16), (100, 1)])].concat();
    bytes(&[
        (0x42, 0, 0, &[], unmap),
        (0x04, 0, 0, &[0x10], vec![0; 4]),
        (0x48, 1, 0, &[0], [&[1, 0, 0, 4][..], b"wipe"].concat()),
        (0x04, 0, 0, &[0x30], vec![0; 8]),
    ])
}

fn other() -> Vec<u8> {
    bytes(&[
        (0x3b, 0, 0, &[0x0a], b"echo".to_vec()),
        (0x3c, 0, 0, &[0x0a, 0, 0, 0, 0, 0, 16], Vec::new()),
        (0x3b, 0, 0, &[2, 0, 0, 0, 3], b"buffer".to_vec()),
        (0x3c, 0, 0, &[2, 0, 0, 0, 0, 0, 16], Vec::new()),
        (0xa4, 0x0a, 0, &[], vec![0, 0, 0, 0, 1, 0, 0, 1]),
        (0xa3, 0x0a, 0, &[0x20, 0, 0, 0, 0, 0, 0, 1], Vec::new()),
        (0xa4, 0x0f, 0, &[], vec![0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 0, 0]),
        (0xa4, 0x06, 0, &[], b"shelf".to_vec()),
        (0xa3, 0x05, 0, &[0, 0, 0, 0, 0, 0, 0, 1], Vec::new()),
        (0x4c, 0, 0, &[2, 0xc0], Vec::new()),
        (0x4d, 0, 0, &[0, 0x40, 0, 0, 0, 0, 0x10], Vec::new()),
    ])
}

/// The seeds of the fuzz target with their file names.
fn seeds() -> [(&'static str, Vec<u8>); 6] {
    [
        ("persistent", persistent()),
        ("mode", mode()),
        ("token", token()),
        ("copy", copy()),
        ("medium", medium()),
        ("other", other()),
    ]
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../check/fuzz/seeds/lists")
}

/// The parser of every list is reached to its end: each command of a seed ends with GOOD.
#[test]
fn every_command_of_a_seed_ends_with_good() {
    let mut seen = std::collections::BTreeSet::new();
    for (name, seed) in seeds() {
        for (number, (command, ended)) in run(&seed).into_iter().enumerate() {
            assert_eq!(ended.status, Status::GOOD, "{name}, step {number}: {command}: {:02x?}", ended.sense);
            seen.insert(command);
        }
    }
    for row in DISK.commands.rows().iter().filter(|row| row.flow == Flow::List) {
        assert!(seen.contains(row.policy.name), "no seed has {}", row.policy.name);
    }
}

#[test]
fn the_seed_files_are_up_to_date() {
    for (name, seed) in seeds() {
        let path = folder().join(name);
        if std::env::var_os("LUNAR_REGENERATE").is_some() {
            std::fs::create_dir_all(folder()).expect("the folder of seeds");
            std::fs::write(&path, &seed).expect("a seed");
        }
        let kept = std::fs::read(&path).unwrap_or_default();
        assert!(kept == seed, "{name} is out of date: run LUNAR_REGENERATE=1 cargo test -p lunar-scsi lists");
    }
}

#[test]
#[should_panic(expected = "returns bytes of free memory")]
fn bytes_of_free_memory_in_an_answer_are_detected() {
    let device = Device::new();
    // The disk contains the answer of a command that does not fill its buffer.
    device.rig.memory.bytes.borrow_mut()[..512].fill(POISON);
    let read = DISK.commands.rows().iter().find(|row| row.policy.name == "READ(10)").expect("READ(10) exists");
    device.run(Step { row: read, flags: 0, cdb: vec![0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], list: Vec::new() });
}
