//! The place of each cartridge, in a file that is replaced as a whole with each change.

use super::elements::{Kind, Layout};
use lunar_durable::Access;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Most bytes of the file: enough for the largest library, and for as many cartridges outside of it.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The cartridge in an element.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub(crate) struct Occupant {
    /// Address of the element.
    pub(crate) element: u16,
    /// Bar code.
    pub(crate) barcode: String,
    /// Address of the storage element from which it came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) source: Option<u16>,
}

/// The content of the file.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default)]
    cartridge: Vec<Occupant>,
}

/// An error of the inventory.
#[derive(Debug)]
pub enum InventoryError {
    /// The file cannot be read or written.
    Io(PathBuf, io::Error),
    /// The file is not TOML of this form.
    Malformed(PathBuf, String),
    /// Two cartridges in an element, or one in two elements, or an element that the library does not have.
    Impossible(PathBuf, String),
}

impl fmt::Display for InventoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(path, why) => write!(f, "{}: {why}", path.display()),
            Self::Malformed(path, why) => write!(f, "{}: {why}", path.display()),
            Self::Impossible(path, barcode) => {
                let path = path.display();
                write!(f, "{path}: the place of {barcode} is impossible: remove its entry, then insert it again")
            }
        }
    }
}

impl std::error::Error for InventoryError {}

/// Why the inventory was not saved.
#[derive(Debug)]
pub(crate) struct SaveError {
    pub(crate) why: InventoryError,
    /// The file has the new places, and a power cut may bring the old ones back.
    pub(crate) is_in_place: bool,
}

/// The cartridges by the addresses of their elements.
#[derive(Clone, Debug)]
pub(crate) struct Inventory {
    path: PathBuf,
    occupants: BTreeMap<u16, Occupant>,
}

impl Inventory {
    /// Reads the inventory; it is empty if there is no file.
    pub(crate) fn load(path: &Path, layout: &Layout) -> Result<Self, InventoryError> {
        let read = || match fs::metadata(path) {
            Ok(facts) if facts.len() > FILE_BYTES_MAX => Err(io::Error::from(io::ErrorKind::FileTooLarge)),
            Ok(_) => fs::read_to_string(path),
            Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(String::new()),
            Err(why) => Err(why),
        };
        let text = read().map_err(|why| InventoryError::Io(path.to_owned(), why))?;
        let malformed = |why: toml::de::Error| InventoryError::Malformed(path.to_owned(), why.to_string());
        let written: Written = toml::from_str(&text).map_err(malformed)?;
        let mut inventory = Self { path: path.to_owned(), occupants: BTreeMap::new() };
        for occupant in written.cartridge {
            let is_possible = matches!(layout.element(occupant.element), Some((kind, _)) if kind != Kind::Transport)
                && crate::cartridge::is_barcode(&occupant.barcode)
                && inventory.find(&occupant.barcode).is_none()
                && inventory.at(occupant.element).is_none();
            if !is_possible {
                return Err(InventoryError::Impossible(path.to_owned(), occupant.barcode));
            }
            inventory.occupants.insert(occupant.element, occupant);
        }
        Ok(inventory)
    }

    /// The cartridge in an element.
    pub(crate) fn at(&self, element: u16) -> Option<&Occupant> {
        self.occupants.get(&element)
    }

    /// The address of the element with a cartridge.
    pub(crate) fn find(&self, barcode: &str) -> Option<u16> {
        self.occupants.values().find(|occupant| occupant.barcode == barcode).map(|occupant| occupant.element)
    }

    /// All cartridges in elements, by address.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Occupant> {
        self.occupants.values()
    }

    /// Puts a cartridge into an empty element.
    pub(crate) fn put(&mut self, occupant: Occupant) {
        self.occupants.insert(occupant.element, occupant);
    }

    /// Takes the cartridge out of an element.
    pub(crate) fn take(&mut self, element: u16) -> Option<Occupant> {
        self.occupants.remove(&element)
    }

    /// Writes the file: either the old or the new one survives a power cut.
    pub(crate) fn save(&self) -> Result<(), SaveError> {
        let failed = |why, is_in_place| SaveError { why: InventoryError::Io(self.path.clone(), why), is_in_place };
        let written = Written { cartridge: self.occupants.values().cloned().collect() };
        let text = toml::to_string(&written).map_err(|why| failed(io::Error::other(why.to_string()), false))?;
        lunar_durable::replace(&self.path, Access::AtMost(0o666), text.as_bytes())
            .map_err(|error| failed(error.why, error.is_in_place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_folder::TestFolder;

    const LAYOUT: Layout = Layout { drives: 1, slots: 4, ports: 1 };

    #[test]
    fn places_are_read_back() {
        let folder = TestFolder::new();
        let path = folder.path().join("inventory.toml");
        let mut inventory = Inventory::load(&path, &LAYOUT).unwrap();
        inventory.put(Occupant { element: 0x401, barcode: "A1".into(), source: None });
        inventory.put(Occupant { element: 0x100, barcode: "A2".into(), source: Some(0x402) });
        inventory.save().unwrap();
        let inventory = Inventory::load(&path, &LAYOUT).unwrap();
        assert_eq!(inventory.at(0x100).unwrap().source, Some(0x402));
        assert_eq!((inventory.find("A1"), inventory.find("A3")), (Some(0x401), None));
    }

    #[test]
    fn an_impossible_inventory_is_refused() {
        let folder = TestFolder::new();
        let path = folder.path().join("inventory.toml");
        for text in [
            "[[cartridge]]\nelement = 1024\nbarcode = 'A'\n[[cartridge]]\nelement = 1024\nbarcode = 'B'",
            "[[cartridge]]\nelement = 1024\nbarcode = 'A'\n[[cartridge]]\nelement = 1025\nbarcode = 'A'",
            "[[cartridge]]\nelement = 1028\nbarcode = 'A'",
            "[[cartridge]]\nelement = 0\nbarcode = 'A'",
            "[[cartridge]]\nelement = 1024\nbarcode = '../A'",
            "[[cartridge]]\nelement = 1024",
            "[",
        ] {
            fs::write(&path, text).unwrap();
            assert!(Inventory::load(&path, &LAYOUT).is_err(), "{text}");
        }
    }
}
