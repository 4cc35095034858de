//! Entry points of the fuzz targets.

use crate::cartridge::{CAPACITY_BYTES_MIN, Cartridge, NewCartridge};
use crate::changer::Changer;
use crate::drive::{DriveFacts, SharedDrive};
use crate::generation::Generation;
use std::fs;
use std::path::{Path, PathBuf};

/// Bytes of memory for Data-In, and most of Data-Out.
const DATA_BYTES: usize = 4096;
/// Offset of the first record in a cartridge file.
const RECORDS: u64 = 8192;

/// A folder of this thread.
fn folder(name: &str) -> PathBuf {
    let base = Path::new("/dev/shm");
    let base = if base.is_dir() { base.to_owned() } else { std::env::temp_dir() };
    base.join(format!("lunar-tape-{name}-{}-{:?}", std::process::id(), std::thread::current().id()))
}

fn create(path: &Path) {
    let _ = fs::remove_file(path);
    let capacity = Some(CAPACITY_BYTES_MIN);
    let new = NewCartridge { barcode: "A".into(), generation: Generation::Lto8, capacity, is_worm: false };
    Cartridge::create(path, &new).expect("the folder of the test is writable");
}

/// Executes commands: a byte with the unit and the length of the CDB, a byte with the length of the data, the CDB, the
/// data, and so on.
///
/// # Panics
/// When a command moves more than there is.
pub fn commands(mut bytes: &[u8]) {
    let folder = folder("commands");
    fs::create_dir_all(folder.join("cartridges")).expect("a folder of the test");
    let _ = fs::remove_file(folder.join("inventory.toml"));
    create(&folder.join("cartridges/A.tape"));
    let facts = DriveFacts { serial: "FUZZ".into(), generation: Generation::Lto8, compression: false };
    let drive = SharedDrive::new(facts);
    let changer = Changer::open(&folder, "FUZZ", 3, 1, vec![drive.clone()]);
    let mut changer = changer.expect("an empty inventory");
    changer.fill(std::iter::once("A".to_owned())).expect("the folder is writable");
    // MOVE MEDIUM from the first slot to the drive.
    changer.execute(1, &[0xa5, 0, 0, 0, 4, 0, 1, 0, 0, 0, 0, 0], &[], &mut []);
    let mut data_in = [0; DATA_BYTES];
    while let [kind, length, rest @ ..] = bytes {
        let (cdb, rest) = rest.split_at(usize::from(kind >> 1 & 0x1f).min(rest.len()));
        let (data, rest) = rest.split_at(usize::from(*length).min(rest.len()));
        bytes = rest;
        let reply = if kind & 1 == 0 {
            drive.lock().execute(cdb, data, &mut data_in)
        } else {
            changer.execute(1, cdb, data, &mut data_in)
        };
        assert!(reply.moved <= data_in.len().max(data.len()), "no more than there is");
        assert_eq!(
            reply.status == crate::scsi::Status::GOOD,
            reply.sense.is_empty(),
            "sense data belongs to CHECK CONDITION"
        );
    }
    let _ = fs::remove_dir_all(&folder);
}

/// Opens a cartridge whose records, and whose index, are these bytes; then uses it.
///
/// # Panics
/// When an object is read that is not there.
pub fn cartridge(bytes: &[u8]) {
    let folder = folder("cartridge");
    fs::create_dir_all(&folder).expect("a folder of the test");
    let path = folder.join("A.tape");
    create(&path);
    let [kind, bytes @ ..] = bytes else { return };
    let mut whole = fs::read(&path).expect("the file was created");
    match kind % 3 {
        // Records behind a good header.
        0 => whole.extend(bytes),
        1 => whole = bytes.to_vec(),
        _ => {
            let mut cartridge = Cartridge::open(&path).expect("a new cartridge");
            cartridge.write_blocks(&[1; 600], 100, false);
            cartridge.close().expect("it is written");
            whole = fs::read(&path).expect("the file is there");
            // Each pair of bytes damages one of the records.
            for pair in bytes.chunks_exact(2) {
                let at = RECORDS as usize + usize::from(pair[0]) * 4;
                if let Some(byte) = whole.get_mut(at) {
                    *byte ^= pair[1];
                }
            }
        }
    }
    fs::write(&path, &whole).expect("the folder of the test is writable");
    fs::write(path.with_extension("index"), bytes).expect("the folder of the test is writable");
    if let Ok(mut cartridge) = Cartridge::open(&path) {
        let mut buffer = [0; 200];
        for _ in 0..20 {
            let before = cartridge.position().object;
            if cartridge.read(&mut buffer).is_ok() {
                assert!(cartridge.position().object <= cartridge.end().object.max(before), "before the end of data");
            }
        }
        let _ = (cartridge.space_blocks(-5), cartridge.space_filemarks(2), cartridge.locate(3));
        let _ = cartridge.write_blocks(&[2; 50], 50, true);
        let _ = cartridge.close();
    }
    let _ = fs::remove_dir_all(&folder);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

        #[test]
        fn nothing_panics(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            commands(&bytes);
            cartridge(&bytes);
        }

        /// Operation codes that exist, with arbitrary fields.
        #[test]
        fn no_command_panics(all in prop::collection::vec((0..50_usize, any::<[u8; 15]>(), any::<bool>()), 1..30)) {
            use crate::drive::Drive;
            use crate::scsi::Device;
            let mut bytes = Vec::new();
            for (row, fields, few) in all {
                let codes: Vec<(u8, u8)> = Drive::rows().iter().map(|row| (0, row.code))
                    .chain(Changer::rows().iter().map(|row| (1, row.code))).collect();
                let (unit, code) = codes[row % codes.len()];
                // Most reserved bits must be zero for a command to be executed.
                let fields = fields.map(|field| if few { field & 3 } else { field });
                bytes.extend([16 << 1 | unit, 8, code]);
                bytes.extend(fields);
                bytes.extend([0, 0, 0, 8, 0, 0, 0, 1]);
            }
            commands(&bytes);
        }
    }
}
