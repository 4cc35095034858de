//! A medium changer (SMC-3): moves cartridges between slots, ports and drives.
//!
//! The place of each cartridge is written before a move is answered. A move from a drive unloads the cartridge; a
//! move into a drive loads it.

mod elements;
mod inventory;
mod status;
mod table;
#[cfg(test)]
mod tests;

pub use elements::{DRIVES_MAX, Kind, Layout, PORTS_MAX, SLOTS_MAX};
pub use inventory::InventoryError;

use crate::cartridge::{Cartridge, CartridgeError, is_barcode};
use crate::drive::SharedDrive;
use crate::scsi::{
    self, Answer, Asc, Cdb, Common, DataIn, DataOut, Device, Inquiry, Page, Reply, Row, Sense, SenseKey,
};
use inventory::{Inventory, Occupant, SaveError};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// PERIPHERAL DEVICE TYPE of medium changers.
pub const DEVICE_TYPE: u8 = 0x08;
/// Version descriptor of SMC-3.
const SMC_3: u16 = 0x0480;
/// PRODUCT IDENTIFICATION.
const PRODUCT: &str = "VIRTUAL LIBRARY";

/// Most nexuses with a search for volume tags: more than there are hosts of a library.
const SEARCHES_MAX: usize = 1024;

/// A refusal of the operator's request.
#[derive(Debug)]
pub enum Refused {
    /// No cartridge has this bar code.
    Unknown(String),
    /// The cartridge is in this element already.
    Inside(String),
    /// All import/export elements are full.
    PortsFull,
    /// The cartridge is not in an import/export element, but here.
    NotInPort(String),
    /// An initiator prevents it.
    Prevented,
    /// The inventory could not be written.
    Inventory(InventoryError),
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unknown(barcode) => write!(f, "no cartridge {barcode}: `lunar-tape add` creates one"),
            Self::Inside(place) => write!(f, "the cartridge is in the library: {place}"),
            Self::PortsFull => f.write_str("all ports are full: eject a cartridge, or move it to a slot with mtx"),
            Self::NotInPort(place) => write!(f, "the cartridge is in {place}: move it to a port first, with mtx"),
            Self::Prevented => f.write_str("an initiator prevents the removal of cartridges"),
            Self::Inventory(why) => why.fmt(f),
        }
    }
}

impl std::error::Error for Refused {}

/// A cartridge and its place, for the operator.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// Bar code.
    pub barcode: String,
    /// The element in words; `outside` if it is in none.
    pub element: String,
}

/// A medium changer.
#[derive(Debug)]
pub struct Changer {
    serial: String,
    layout: Layout,
    /// The folder of the files of the cartridges.
    cartridges: PathBuf,
    inventory: Inventory,
    drives: Vec<Arc<SharedDrive>>,
    common: Common,
    is_prevented: bool,
    /// The templates of SEND VOLUME TAG of each nexus, until REQUEST VOLUME ELEMENT ADDRESS asks for the elements.
    searches: BTreeMap<u64, Vec<u8>>,
    /// The nexus of the command that is executed.
    nexus: u64,
}

/// A cartridge that was in a drive when the process before this one ended.
#[derive(Debug)]
pub struct Load {
    drive: Arc<SharedDrive>,
    path: PathBuf,
}

impl Load {
    /// Opens the cartridge, which may take as long as the disk needs for the data that was not synchronized.
    pub fn run(&self) {
        load(&self.drive, &self.path);
    }
}

fn load(drive: &SharedDrive, path: &Path) {
    let cartridge = Cartridge::open(path);
    let trouble = match &cartridge {
        Ok(cartridge) if cartridge.is_writable() => None,
        Ok(_) => Some(&CartridgeError::Unwritable),
        Err(why) => Some(why),
    };
    if let Some(why) = trouble {
        eprintln!("lunar-tape: {}: {why}", path.display());
    }
    drive.lock().insert(cartridge);
}

/// Whether the file has an inventory that was saved.
fn is_in_place(saved: &Result<(), SaveError>) -> bool {
    saved.as_ref().err().is_none_or(|error| error.is_in_place)
}

impl Changer {
    /// A changer of the library in `folder`. [`Changer::begin_loads`] loads the cartridges in drives.
    ///
    /// # Errors
    /// If the inventory cannot be read, or contradicts the number of elements.
    pub fn open(
        folder: &Path,
        serial: &str,
        slots: u16,
        ports: u16,
        drives: Vec<Arc<SharedDrive>>,
    ) -> Result<Self, InventoryError> {
        let layout = Layout { drives: u16::try_from(drives.len()).unwrap_or(DRIVES_MAX), slots, ports };
        let inventory = Inventory::load(&folder.join("inventory.toml"), &layout)?;
        Ok(Self {
            serial: serial.to_owned(),
            layout,
            cartridges: folder.join("cartridges"),
            inventory,
            drives,
            common: Common::default(),
            is_prevented: false,
            searches: BTreeMap::new(),
            nexus: 0,
        })
    }

    /// The cartridges that were in drives, which become ready when they are loaded.
    #[must_use]
    pub fn begin_loads(&self) -> Vec<Load> {
        let drives = self.layout.addresses(Kind::Drive).zip(&self.drives);
        let loads = drives.filter_map(|(address, drive)| {
            let path = self.file_of(&self.inventory.at(address)?.barcode);
            drive.lock().begin_load();
            Some(Load { drive: drive.clone(), path })
        });
        loads.collect()
    }

    /// Executes a command of a nexus.
    pub fn execute(&mut self, nexus: u64, cdb: &[u8], data_out: &[u8], data_in: &mut [u8]) -> Reply {
        self.execute_in_place(nexus, cdb, data_out.into(), &mut data_in.into())
    }

    /// Executes a command of a nexus whose data is in the memory of a handler.
    pub fn execute_in_place(
        &mut self,
        nexus: u64,
        cdb: &[u8],
        data_out: DataOut<'_>,
        data_in: &mut DataIn<'_>,
    ) -> Reply {
        self.nexus = nexus;
        scsi::execute(self, cdb, data_out, data_in)
    }

    /// LOGICAL UNIT RESET.
    pub fn reset(&mut self) {
        self.is_prevented = false;
        self.searches.clear();
    }

    /// A nexus has ended.
    pub fn detach(&mut self, nexus: u64) {
        self.searches.remove(&nexus);
    }

    /// The file of a cartridge.
    #[must_use]
    pub fn file_of(&self, barcode: &str) -> PathBuf {
        self.cartridges.join(format!("{barcode}.tape"))
    }

    /// All cartridges of the folder, in the order of the elements, then those outside.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn places(&self) -> std::io::Result<Vec<Place>> {
        let place = |barcode: &str, element: String| Place { barcode: barcode.to_owned(), element };
        let mut all: Vec<Place> =
            self.inventory.all().map(|one| place(&one.barcode, self.layout.name(one.element))).collect();
        let mut outside = Vec::new();
        for entry in std::fs::read_dir(&self.cartridges)? {
            let name = entry?.file_name();
            let barcode = name.to_str().and_then(|name| name.strip_suffix(".tape")).filter(|name| is_barcode(name));
            if let Some(barcode) = barcode.filter(|barcode| self.inventory.find(barcode).is_none()) {
                outside.push(place(barcode, "outside".to_owned()));
            }
        }
        outside.sort_by(|one, other| one.barcode.cmp(&other.barcode));
        all.append(&mut outside);
        Ok(all)
    }

    /// Puts new cartridges into free slots, when a library is created.
    ///
    /// # Errors
    /// If the inventory cannot be written.
    pub fn fill(&mut self, barcodes: impl Iterator<Item = String>) -> Result<(), InventoryError> {
        let free = self.layout.addresses(Kind::Slot).filter(|slot| self.inventory.at(*slot).is_none());
        let new: Vec<Occupant> =
            free.zip(barcodes).map(|(element, barcode)| Occupant { element, barcode, source: None }).collect();
        new.into_iter().for_each(|occupant| self.inventory.put(occupant));
        self.inventory.save().map_err(|error| error.why)
    }

    /// The operator puts a cartridge into a free port.
    ///
    /// # Errors
    /// If there is no such cartridge outside, or no free port.
    pub fn insert(&mut self, barcode: &str) -> Result<Place, Refused> {
        if let Some(element) = self.inventory.find(barcode) {
            return Err(Refused::Inside(self.layout.name(element)));
        }
        if !is_barcode(barcode) || !self.file_of(barcode).is_file() {
            return Err(Refused::Unknown(barcode.to_owned()));
        }
        let mut ports = self.layout.addresses(Kind::Port);
        let free = ports.find(|port| self.inventory.at(*port).is_none()).ok_or(Refused::PortsFull)?;
        let mut new = self.inventory.clone();
        new.put(Occupant { element: free, barcode: barcode.to_owned(), source: None });
        self.replace_inventory(new)?;
        Ok(Place { barcode: barcode.to_owned(), element: self.layout.name(free) })
    }

    /// The operator takes a cartridge out of a port. Its file stays in the folder.
    ///
    /// # Errors
    /// If the cartridge is not in a port, or an initiator prevents it.
    pub fn eject(&mut self, barcode: &str) -> Result<(), Refused> {
        let element = self.inventory.find(barcode).ok_or_else(|| Refused::Unknown(barcode.to_owned()))?;
        if !self.layout.addresses(Kind::Port).contains(&element) {
            return Err(Refused::NotInPort(self.layout.name(element)));
        }
        if self.is_prevented {
            return Err(Refused::Prevented);
        }
        let mut new = self.inventory.clone();
        new.take(element);
        self.replace_inventory(new)
    }

    /// Whether a cartridge is in a drive.
    #[must_use]
    pub fn is_in_drive(&self, barcode: &str) -> bool {
        self.inventory.find(barcode).is_some_and(|element| self.layout.addresses(Kind::Drive).contains(&element))
    }

    fn replace_inventory(&mut self, new: Inventory) -> Result<(), Refused> {
        self.save(new).map_err(|error| Refused::Inventory(error.why))?;
        self.common.establish(Asc::IMPORT_OR_EXPORT_ELEMENT_ACCESSED);
        Ok(())
    }

    /// Saves a new inventory. It is in force if the file has it, even if that is not known to survive a power cut.
    fn save(&mut self, new: Inventory) -> Result<(), SaveError> {
        let result = new.save();
        if is_in_place(&result) {
            self.inventory = new;
        }
        result
    }

    fn drive(&self, element: u16) -> Option<&SharedDrive> {
        match self.layout.element(element)? {
            (Kind::Drive, number) => self.drives.get(usize::from(number)).map(Arc::as_ref),
            _ => None,
        }
    }

    /// Puts the cartridge of a drive element into the drive.
    fn load(&self, element: u16) {
        if let (Some(drive), Some(occupant)) = (self.drive(element), self.inventory.at(element)) {
            load(drive, &self.file_of(&occupant.barcode));
        }
    }

    /// Moves cartridges at once: all or none.
    fn transfer(&mut self, moves: &[(u16, u16)]) -> Result<(), Sense> {
        for (done, (from, _)) in moves.iter().enumerate() {
            let Some(drive) = self.drive(*from) else { continue };
            let removed = drive.lock().remove();
            if let Err(why) = removed {
                moves[..done].iter().for_each(|(from, _)| self.load(*from));
                return Err(why);
            }
        }
        let mut new = self.inventory.clone();
        let taken: Vec<Option<Occupant>> = moves.iter().map(|(from, _)| new.take(*from)).collect();
        for ((from, to), occupant) in moves.iter().zip(taken) {
            let is_slot = matches!(self.layout.element(*from), Some((Kind::Slot | Kind::Port, _)));
            if let Some(occupant) = occupant {
                let source = if is_slot { Some(*from) } else { occupant.source };
                new.put(Occupant { element: *to, source, ..occupant });
            }
        }
        let saved = self.save(new);
        // The cartridges are where the file says, whether the move has failed or not.
        let is_moved = is_in_place(&saved);
        moves.iter().for_each(|(from, to)| self.load(if is_moved { *to } else { *from }));
        saved.map_err(|_| Sense::new(SenseKey::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE))
    }

    /// Checks the address of an element that can hold a cartridge, at byte `at` of the CDB.
    fn holder(&self, cdb: &Cdb<'_>, at: usize) -> Result<u16, Sense> {
        let address = cdb.number(at, 2) as u16;
        match self.layout.element(address) {
            Some((kind, _)) if kind != Kind::Transport => Ok(address),
            _ => Err(Sense::illegal(Asc::INVALID_ELEMENT_ADDRESS)),
        }
    }

    fn full(&self, element: u16) -> Result<(), Sense> {
        self.inventory.at(element).map(|_| ()).ok_or(Sense::illegal(Asc::MEDIUM_SOURCE_ELEMENT_EMPTY))
    }

    fn empty(&self, element: u16) -> Result<(), Sense> {
        match self.inventory.at(element) {
            None => Ok(()),
            Some(_) => Err(Sense::illegal(Asc::MEDIUM_DESTINATION_ELEMENT_FULL)),
        }
    }
}

/// Whether the transport element of a CDB, in bytes 2 and 3, exists.
fn check_transport(cdb: &Cdb<'_>) -> Result<(), Sense> {
    if cdb.number(2, 2) == u64::from(elements::TRANSPORT) {
        Ok(())
    } else {
        Err(Sense::illegal(Asc::INVALID_ELEMENT_ADDRESS))
    }
}

impl Device for Changer {
    fn rows() -> &'static [Row<Self>] {
        table::ROWS
    }

    fn common(&mut self) -> &mut Common {
        &mut self.common
    }

    fn medium(&self) -> Result<(), Sense> {
        Ok(())
    }
}

impl Changer {
    /// Commands that only check their CDB: nothing moves without a medium, and the inventory is always known.
    fn nothing(&mut self, _: &Cdb<'_>, _: DataOut<'_>, _: &mut DataIn<'_>) -> Answer {
        Ok(0)
    }

    fn request_sense(&mut self, cdb: &Cdb<'_>, _: DataOut<'_>, into: &mut DataIn<'_>) -> Answer {
        scsi::request_sense(self, cdb, None, into)
    }

    fn inquire(&mut self, cdb: &Cdb<'_>, _: DataOut<'_>, into: &mut DataIn<'_>) -> Answer {
        let serial = &self.serial;
        Inquiry { device_type: DEVICE_TYPE, product: PRODUCT, serial, standard: SMC_3, pages: &[] }.answer(cdb, into)
    }

    fn prevent_allow(&mut self, cdb: &Cdb<'_>, _: DataOut<'_>, _: &mut DataIn<'_>) -> Answer {
        self.is_prevented = cdb.bit(4, 0);
        Ok(0)
    }

    fn position_to_element(&mut self, cdb: &Cdb<'_>, _: DataOut<'_>, _: &mut DataIn<'_>) -> Answer {
        check_transport(cdb)?;
        self.holder(cdb, 4)?;
        Ok(0)
    }

    fn move_medium(&mut self, cdb: &Cdb<'_>, _: DataOut<'_>, _: &mut DataIn<'_>) -> Answer {
        check_transport(cdb)?;
        let (from, to) = (self.holder(cdb, 4)?, self.holder(cdb, 6)?);
        self.full(from)?;
        self.empty(to)?;
        self.transfer(&[(from, to)])?;
        Ok(0)
    }

    /// EXCHANGE MEDIUM: the cartridge of the first destination goes to the second one, which may be the source.
    fn exchange_medium(&mut self, cdb: &Cdb<'_>, _: DataOut<'_>, _: &mut DataIn<'_>) -> Answer {
        check_transport(cdb)?;
        let (source, first, second) = (self.holder(cdb, 4)?, self.holder(cdb, 6)?, self.holder(cdb, 8)?);
        self.full(source)?;
        self.full(first)?;
        if source == first {
            return Err(Sense::cdb(6).into());
        }
        if second != source {
            self.empty(second)?;
        }
        self.transfer(&[(source, first), (first, second)])?;
        Ok(0)
    }

    fn report_codes(&mut self, cdb: &Cdb<'_>, _: DataOut<'_>, into: &mut DataIn<'_>) -> Answer {
        scsi::report_codes::<Self>(cdb, into)
    }

    /// MODE SENSE: Element Address Assignment, Transport Geometry, and Device Capabilities (SMC-3 7.3). None of the
    /// parameters can be changed.
    fn mode_sense(&mut self, cdb: &Cdb<'_>, _: DataOut<'_>, into: &mut DataIn<'_>) -> Answer {
        let mut assignment = Vec::new();
        for kind in [Kind::Transport, Kind::Slot, Kind::Port, Kind::Drive] {
            let addresses = self.layout.addresses(kind);
            assignment.extend(addresses.start.to_be_bytes());
            assignment.extend((addresses.len() as u16).to_be_bytes());
        }
        assignment.extend([0; 2]);
        let mut capabilities = vec![0; 18];
        // Slots, ports and drives hold media. Media move and are exchanged between all of them.
        let from_holders = 0x0e;
        capabilities[0] = from_holders;
        capabilities[3..6].fill(from_holders);
        capabilities[11..14].fill(from_holders);
        let pages: [Page; 3] = [(0x1d, assignment), (0x1e, vec![0, 0]), (0x1f, capabilities)];
        let values = |is_mask| match is_mask {
            true => pages.iter().map(|(code, content)| (*code, vec![0; content.len()])).collect(),
            false => pages.to_vec(),
        };
        scsi::mode_sense(cdb, (0, 0), &[], values, into)
    }
}
