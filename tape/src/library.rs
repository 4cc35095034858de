//! A library: a folder with `library.toml`, `inventory.toml` and the files of the cartridges.

use crate::cartridge::{BARCODE_CHARACTERS_MAX, Cartridge, CartridgeError, NewCartridge};
use crate::changer::{Changer, DRIVES_MAX, InventoryError, PORTS_MAX, Refused, SLOTS_MAX};
use crate::drive::{DriveFacts, SharedDrive};
use crate::generation::Generation;
use lunar_durable::Access;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::{self, File, TryLockError};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// The file with the properties of the library. The process that uses the library has locked it.
const FILE: &str = "library.toml";
/// Most characters of a serial number.
const SERIAL_CHARACTERS_MAX: usize = 16;

/// The properties of a library, as `library.toml` states them.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Config {
    /// Number of the LTO generation of the drives: 5 to 9.
    pub generation: u8,
    /// Drives.
    pub drives: u16,
    /// Slots.
    pub slots: u16,
    /// Import/export elements.
    pub ports: u16,
    /// Beginning of all serial numbers.
    pub serial: String,
    /// Drives compress unless the initiator says otherwise.
    #[serde(default)]
    pub compression: bool,
    /// Bytes of a new cartridge; those of its generation if it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u64>,
}

/// An error of a library.
#[derive(Debug)]
pub enum LibraryError {
    /// A file or folder cannot be read or written.
    Io(PathBuf, io::Error),
    /// `library.toml` is malformed.
    Malformed(PathBuf, String),
    /// A value of the configuration is out of its range: the range.
    OutOfRange(&'static str),
    /// Another process uses the library.
    InUse,
    /// The inventory.
    Inventory(InventoryError),
    /// A cartridge.
    Cartridge(String, CartridgeError),
    /// The operator's request was refused.
    Refused(Refused),
}

impl fmt::Display for LibraryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(path, why) => write!(f, "{}: {why}", path.display()),
            Self::Malformed(path, why) => write!(f, "{}: {why}", path.display()),
            Self::OutOfRange(range) => f.write_str(range),
            Self::InUse => f.write_str("another process uses the library"),
            Self::Inventory(why) => why.fmt(f),
            Self::Cartridge(barcode, why) => write!(f, "{barcode}: {why}"),
            Self::Refused(why) => why.fmt(f),
        }
    }
}

impl std::error::Error for LibraryError {}

impl From<Refused> for LibraryError {
    fn from(why: Refused) -> Self {
        Self::Refused(why)
    }
}

impl Config {
    /// A serial number that no other library has.
    #[must_use]
    pub fn new_serial() -> String {
        let number = RandomState::new().build_hasher().finish();
        format!("LT{:08X}", number as u32)
    }

    fn check(&self) -> Result<Generation, LibraryError> {
        let serial = 1..=SERIAL_CHARACTERS_MAX;
        let is_serial = serial.contains(&self.serial.len()) && self.serial.bytes().all(|c| c.is_ascii_alphanumeric());
        let checks = [
            ((1..=DRIVES_MAX).contains(&self.drives), "drives: 1 to 32"),
            ((1..=SLOTS_MAX).contains(&self.slots), "slots: 1 to 2048"),
            (self.ports <= PORTS_MAX, "ports: 0 to 64"),
            (is_serial, "serial: 1 to 16 letters and digits"),
        ];
        match checks.into_iter().find(|(is_right, _)| !is_right) {
            Some((_, range)) => Err(LibraryError::OutOfRange(range)),
            None => Generation::of_number(self.generation).ok_or(LibraryError::OutOfRange("generation: 5 to 9")),
        }
    }
}

/// A library in use.
#[derive(Debug)]
pub struct Library {
    /// The changer.
    pub changer: Arc<Mutex<Changer>>,
    /// The drives.
    pub drives: Vec<Arc<SharedDrive>>,
    config: Config,
    generation: Generation,
    /// The lock ends with the process.
    _lock: File,
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> LibraryError {
    let path = path.to_owned();
    move |why| LibraryError::Io(path, why)
}

impl Library {
    /// Creates the folder of a library with new cartridges in its first slots.
    ///
    /// # Errors
    /// If the folder is a library, a value is out of its range, or a file cannot be written.
    pub fn create(folder: &Path, config: &Config, cartridges: u16, prefix: &str) -> Result<(), LibraryError> {
        config.check()?;
        if cartridges > config.slots {
            return Err(LibraryError::OutOfRange("cartridges: at most one for each slot"));
        }
        let inner = folder.join("cartridges");
        fs::create_dir_all(&inner).map_err(io_error(&inner))?;
        let path = folder.join(FILE);
        let text = toml::to_string(config).map_err(|why| LibraryError::Malformed(path.clone(), why.to_string()))?;
        let fill = |file: &mut File| io::Write::write_all(file, text.as_bytes());
        lunar_durable::create(&path, Access::AtMost(0o666), fill).map_err(io_error(&path))?;
        let library = Self::open(folder)?;
        let names = (1..=cartridges).map(|number| barcode(prefix, number.into(), config.generation));
        let names: Vec<String> = names.collect();
        names.iter().try_for_each(|name| library.add(name, false, None))?;
        library.changer().fill(names.into_iter()).map_err(LibraryError::Inventory)
    }

    /// Opens a library, and locks it.
    ///
    /// # Errors
    /// If another process has it, or its files are malformed.
    pub fn open(folder: &Path) -> Result<Self, LibraryError> {
        let path = folder.join(FILE);
        let lock = File::open(&path).map_err(io_error(&path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(LibraryError::InUse),
            Err(TryLockError::Error(why)) => return Err(LibraryError::Io(path, why)),
        }
        let text = fs::read_to_string(&path).map_err(io_error(&path))?;
        let config: Config = toml::from_str(&text).map_err(|why| LibraryError::Malformed(path, why.to_string()))?;
        let generation = config.check()?;
        let drives = (0..config.drives).map(|number| {
            let serial = format!("{}D{number}", config.serial);
            SharedDrive::new(DriveFacts { serial, generation, compression: config.compression })
        });
        let drives: Vec<Arc<SharedDrive>> = drives.collect();
        let changer = Changer::open(folder, &config.serial, config.slots, config.ports, drives.clone());
        let changer = changer.map_err(LibraryError::Inventory)?;
        Ok(Self { changer: Arc::new(Mutex::new(changer)), drives, config, generation, _lock: lock })
    }

    /// The changer, locked.
    pub fn changer(&self) -> std::sync::MutexGuard<'_, Changer> {
        self.changer.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Synchronizes all cartridges before the process ends. The devices stay locked: no command is executed afterwards.
    ///
    /// # Errors
    /// If a cartridge could not be synchronized.
    pub fn shut_down(&self) -> Result<(), LibraryError> {
        let changer = self.changer();
        let mut result = Ok(());
        for drive in &self.drives {
            let mut locked = drive.lock();
            if let Err(why) = locked.shut_down() {
                result = Err(LibraryError::Cartridge(format!("the cartridge in drive {}", locked.serial()), why));
            }
            std::mem::forget(locked);
        }
        std::mem::forget(changer);
        result
    }

    /// Creates a blank cartridge outside of the elements.
    ///
    /// # Errors
    /// If there is one with this bar code, or the file cannot be written.
    pub fn add(&self, barcode: &str, is_worm: bool, capacity: Option<u64>) -> Result<(), LibraryError> {
        let capacity = capacity.or(self.config.capacity);
        let new = NewCartridge { barcode: barcode.to_owned(), generation: self.generation, capacity, is_worm };
        let of = |why| LibraryError::Cartridge(barcode.to_owned(), why);
        if !crate::cartridge::is_barcode(barcode) {
            return Err(of(CartridgeError::BadBarcode));
        }
        Cartridge::create(&self.changer().file_of(barcode), &new).map_err(of)
    }

    /// Sets or removes the write protection of a cartridge that is in no drive.
    ///
    /// # Errors
    /// If there is no such cartridge, or it is in a drive.
    pub fn protect(&self, barcode: &str, is_protected: bool) -> Result<(), LibraryError> {
        let of = |why| LibraryError::Cartridge(barcode.to_owned(), why);
        let changer = self.changer();
        if !crate::cartridge::is_barcode(barcode) {
            return Err(of(CartridgeError::BadBarcode));
        }
        if changer.is_in_drive(barcode) {
            return Err(of(CartridgeError::InUse));
        }
        let mut cartridge = Cartridge::open(&changer.file_of(barcode)).map_err(of)?;
        cartridge.set_protected(is_protected).map_err(of)
    }
}

/// The bar code of a new cartridge: `LUN001L8`.
fn barcode(prefix: &str, number: u32, generation: u8) -> String {
    let mut text = format!("{prefix}{number:03}L{generation}");
    text.truncate(BARCODE_CHARACTERS_MAX);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_folder::TestFolder;

    fn config() -> Config {
        Config {
            generation: 8,
            drives: 2,
            slots: 5,
            ports: 1,
            serial: Config::new_serial(),
            compression: false,
            capacity: Some(1 << 30),
        }
    }

    #[test]
    fn a_library_is_created_once_and_open_once() {
        let folder = TestFolder::new();
        Library::create(folder.path(), &config(), 3, "LUN").unwrap();
        assert!(matches!(Library::create(folder.path(), &config(), 3, "LUN"), Err(LibraryError::Io(..))));
        let library = Library::open(folder.path()).unwrap();
        assert!(matches!(Library::open(folder.path()), Err(LibraryError::InUse)));
        let places = library.changer().places().unwrap();
        let names: Vec<&str> = places.iter().map(|place| place.barcode.as_str()).collect();
        assert_eq!(names, ["LUN001L8", "LUN002L8", "LUN003L8"]);
        assert_eq!((places[2].element.as_str(), library.drives.len()), ("slot 3", 2));
    }

    #[test]
    fn cartridges_are_added_and_protected() {
        let folder = TestFolder::new();
        Library::create(folder.path(), &config(), 0, "LUN").unwrap();
        let library = Library::open(folder.path()).unwrap();
        library.add("NEW", true, None).unwrap();
        assert!(matches!(library.add("NEW", true, None), Err(LibraryError::Cartridge(..))));
        assert!(matches!(library.add("../NEW", true, None), Err(LibraryError::Cartridge(..))));
        assert!(matches!(library.add("SMALL", true, Some(1)), Err(LibraryError::Cartridge(..))));
        library.protect("NEW", true).unwrap();
        assert!(library.protect("OTHER", true).is_err() && library.protect("../NEW", true).is_err());
        let path = library.changer().file_of("NEW");
        let cartridge = Cartridge::open(&path).unwrap();
        assert!(cartridge.is_protected() && cartridge.is_worm());
        assert_eq!(cartridge.capacity(), 1 << 30);
    }

    #[test]
    fn values_out_of_their_ranges_are_refused() {
        let folder = TestFolder::new();
        let wrong = [
            Config { drives: 0, ..config() },
            Config { drives: 33, ..config() },
            Config { slots: 2049, ..config() },
            Config { ports: 65, ..config() },
            Config { generation: 4, ..config() },
            Config { serial: "a b".into(), ..config() },
        ];
        for config in wrong {
            let result = Library::create(folder.path(), &config, 0, "LUN");
            assert!(matches!(result, Err(LibraryError::OutOfRange(_))), "{config:?}");
        }
        assert!(Library::create(folder.path(), &config(), 6, "LUN").is_err());
    }
}
