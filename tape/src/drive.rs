//! A tape drive (SSC-3).
//!
//! It executes CDBs on a cartridge. Writes are in the file when the command is answered; they are on the medium
//! after a WRITE FILEMARKS without IMMED, as with a real drive in buffered mode.

mod log;
mod mode;
mod position;
mod read_write;
mod shared;
mod state;
mod table;
#[cfg(test)]
mod tests;

pub use shared::{LockedDrive, SharedDrive};

use crate::cartridge::{BLOCK_BYTES_MAX, Cartridge, CartridgeError};
use crate::generation::Generation;
use crate::scsi::{self, Answer, Asc, Cdb, Common, DataIn, DataOut, Device, Inquiry, Reply, Sense, SenseKey, put};
use state::{Counters, Mode};

/// PERIPHERAL DEVICE TYPE of sequential-access devices.
pub const DEVICE_TYPE: u8 = 0x01;
/// Version descriptor of SSC-3.
const SSC_3: u16 = 0x0400;

/// The cartridge in a drive.
#[derive(Debug, Default)]
enum Medium {
    /// None.
    #[default]
    Empty,
    /// A cartridge that is being opened.
    Loading,
    /// A cartridge that is not loaded: it can be moved, or loaded by LOAD UNLOAD.
    Unloaded(Box<Cartridge>),
    /// A loaded cartridge.
    Loaded(Box<Cartridge>),
    /// A cartridge that cannot be used, with the reason.
    Unusable(Asc),
}

/// The properties of a drive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DriveFacts {
    /// Serial number.
    pub serial: String,
    /// Generation.
    pub generation: Generation,
    /// Whether data is compressed unless the initiator says otherwise.
    pub compression: bool,
}

/// A tape drive.
#[derive(Debug)]
pub struct Drive {
    facts: DriveFacts,
    product: String,
    medium: Medium,
    mode: Mode,
    common: Common,
    counters: Counters,
    is_prevented: bool,
}

impl Drive {
    /// An empty drive.
    #[must_use]
    pub fn new(facts: DriveFacts) -> Self {
        let product = format!("VIRTUAL LTO-{}", facts.generation.number());
        let mode = Mode::new(facts.compression);
        let (medium, common, counters) = (Medium::default(), Common::default(), Counters::default());
        Self { facts, product, medium, mode, common, counters, is_prevented: false }
    }

    /// Executes a command.
    pub fn execute(&mut self, cdb: &[u8], data_out: &[u8], data_in: &mut [u8]) -> Reply {
        self.execute_in_place(cdb, data_out.into(), &mut data_in.into())
    }

    /// Executes a command whose data is in the memory of a handler.
    pub fn execute_in_place(&mut self, cdb: &[u8], data_out: DataOut<'_>, data_in: &mut DataIn<'_>) -> Reply {
        scsi::execute(self, cdb, data_out, data_in)
    }

    /// LOGICAL UNIT RESET: the medium may be removed, and the mode parameters are the defaults.
    pub fn reset(&mut self) {
        self.is_prevented = false;
        self.mode = Mode::new(self.facts.compression);
        self.common.descriptor_sense = false;
    }

    /// A cartridge is being opened, and will be inserted.
    pub fn begin_load(&mut self) {
        self.medium = Medium::Loading;
    }

    /// The changer puts a cartridge in: it is loaded.
    pub fn insert(&mut self, cartridge: Result<Cartridge, CartridgeError>) {
        self.medium = match cartridge {
            Ok(cartridge) if !self.facts.generation.accepts(cartridge.generation()) => {
                Medium::Unusable(Asc::INCOMPATIBLE_MEDIUM_INSTALLED)
            }
            Ok(mut cartridge) => {
                cartridge.count_load();
                Medium::Loaded(Box::new(cartridge))
            }
            Err(_) => Medium::Unusable(Asc::CANNOT_READ_MEDIUM_UNKNOWN_FORMAT),
        };
        self.counters = Counters::default();
        self.common.establish(Asc::MEDIUM_MAY_HAVE_CHANGED);
    }

    /// Whether an initiator prevents the removal of the cartridge.
    #[must_use]
    pub fn is_prevented(&self) -> bool {
        self.is_prevented && matches!(self.medium, Medium::Loaded(_))
    }

    /// Whether the cartridge is loaded: it was not unloaded by an initiator.
    #[must_use]
    pub fn is_loaded(&self) -> bool {
        matches!(self.medium, Medium::Loaded(_))
    }

    /// The changer takes the cartridge out. It is unloaded before.
    ///
    /// # Errors
    /// If an initiator prevents the removal, or the cartridge could not be synchronized: it remains in the drive, and
    /// is unusable until it is moved.
    pub fn remove(&mut self) -> Result<(), Sense> {
        if self.is_prevented() {
            return Err(Sense::illegal(Asc::MEDIUM_REMOVAL_PREVENTED));
        }
        match std::mem::take(&mut self.medium) {
            Medium::Empty | Medium::Unusable(_) => {}
            Medium::Loading => {
                self.medium = Medium::Loading;
                return Err(not_ready(&self.medium));
            }
            Medium::Loaded(cartridge) | Medium::Unloaded(cartridge) => {
                if cartridge.close().is_err() {
                    self.medium = Medium::Unusable(Asc::WRITE_ERROR);
                    return Err(Sense::new(SenseKey::MEDIUM_ERROR, Asc::WRITE_ERROR));
                }
            }
        }
        Ok(())
    }

    /// Synchronizes the cartridge before the process ends.
    ///
    /// # Errors
    /// If that failed.
    pub fn shut_down(&mut self) -> Result<(), CartridgeError> {
        match std::mem::take(&mut self.medium) {
            Medium::Empty | Medium::Loading | Medium::Unusable(_) => Ok(()),
            Medium::Loaded(cartridge) | Medium::Unloaded(cartridge) => cartridge.close(),
        }
    }

    /// The serial number.
    #[must_use]
    pub fn serial(&self) -> &str {
        &self.facts.serial
    }

    /// The designator that names the drive in element status.
    #[must_use]
    pub fn designator(&self) -> Vec<u8> {
        self.inquiry(&[]).designator()
    }

    fn inquiry<'a>(&'a self, pages: &'a [(u8, &'a [u8])]) -> Inquiry<'a> {
        let serial = &self.facts.serial;
        Inquiry { device_type: DEVICE_TYPE, product: &self.product, serial, standard: SSC_3, pages }
    }

    /// The loaded cartridge.
    fn loaded(&mut self) -> Result<&mut Cartridge, Sense> {
        match &mut self.medium {
            Medium::Loaded(cartridge) => Ok(cartridge),
            other => Err(not_ready(other)),
        }
    }

    /// The loaded cartridge before a movement: what was written is on the medium (SSC-3, buffered mode). A
    /// movement that succeeds says that.
    fn settled(&mut self) -> Result<&mut Cartridge, Sense> {
        let cartridge = self.loaded()?;
        cartridge.synchronize().map_err(|why| write_error(&why))?;
        Ok(cartridge)
    }

    /// The cartridge, loaded or not.
    fn cartridge(&self) -> Option<&Cartridge> {
        match &self.medium {
            Medium::Loaded(cartridge) | Medium::Unloaded(cartridge) => Some(cartridge),
            Medium::Empty | Medium::Loading | Medium::Unusable(_) => None,
        }
    }
}

fn not_ready(medium: &Medium) -> Sense {
    let asc = match medium {
        Medium::Empty => Asc::MEDIUM_NOT_PRESENT,
        Medium::Loading => Asc::NOT_READY_BECOMING_READY,
        Medium::Unloaded(_) | Medium::Loaded(_) => Asc::NOT_READY_START_REQUIRED,
        Medium::Unusable(asc) => *asc,
    };
    Sense::new(SenseKey::NOT_READY, asc)
}

/// The sense data of a failed read, or of a failed movement.
fn read_error(why: &CartridgeError) -> Sense {
    match why {
        CartridgeError::Io(_) | CartridgeError::Damaged(_) => {
            Sense::new(SenseKey::MEDIUM_ERROR, Asc::UNRECOVERED_READ_ERROR)
        }
        _ => write_error(why),
    }
}

/// The sense data of a failed write.
fn write_error(why: &CartridgeError) -> Sense {
    match why {
        CartridgeError::Full | CartridgeError::NoSpace(_) => {
            Sense { eom: true, ..Sense::new(SenseKey::VOLUME_OVERFLOW, Asc::END_OF_MEDIUM_DETECTED) }
        }
        CartridgeError::WriteProtected | CartridgeError::Unwritable => {
            Sense::new(SenseKey::DATA_PROTECT, Asc::WRITE_PROTECTED)
        }
        CartridgeError::Worm => Sense::new(SenseKey::DATA_PROTECT, Asc::WORM_MEDIUM_OVERWRITE_ATTEMPTED),
        CartridgeError::Damaged(_) => Sense::new(SenseKey::MEDIUM_ERROR, Asc::WRITE_APPEND_ERROR),
        _ => Sense::new(SenseKey::MEDIUM_ERROR, Asc::WRITE_ERROR),
    }
}

/// Commands without positions and data.
impl Drive {
    fn test_unit_ready(&mut self, _: &Cdb<'_>, _: DataOut<'_>, _: &mut DataIn<'_>) -> Answer {
        Ok(0)
    }

    fn request_sense(&mut self, cdb: &Cdb<'_>, _: DataOut<'_>, into: &mut DataIn<'_>) -> Answer {
        let otherwise = self.medium().err();
        scsi::request_sense(self, cdb, otherwise, into)
    }

    /// INQUIRY, with the Sequential-Access Device Capabilities VPD page (SSC-3 8.5.2).
    fn inquire(&mut self, cdb: &Cdb<'_>, _: DataOut<'_>, into: &mut DataIn<'_>) -> Answer {
        // WORM: the drive writes WORM cartridges.
        self.inquiry(&[(0xb0, &[0x01, 0])]).answer(cdb, into)
    }

    fn read_block_limits(&mut self, _: &Cdb<'_>, _: DataOut<'_>, into: &mut DataIn<'_>) -> Answer {
        let [_, limit @ ..] = (BLOCK_BYTES_MAX as u32).to_be_bytes();
        put(&[0, limit[0], limit[1], limit[2], 0, 1], 6, into)
    }

    /// LOAD UNLOAD (SSC-3 7.2): an unloaded cartridge can be moved by the changer, or loaded again.
    fn load_unload(&mut self, cdb: &Cdb<'_>, _: DataOut<'_>, _: &mut DataIn<'_>) -> Answer {
        let (load, end_of_tape) = (cdb.bit(4, 0), cdb.bit(4, 2));
        if load && end_of_tape {
            return Err(Sense::cdb(4).into());
        }
        if !load && self.is_prevented() {
            return Err(Sense::illegal(Asc::MEDIUM_REMOVAL_PREVENTED).into());
        }
        match std::mem::take(&mut self.medium) {
            Medium::Loaded(mut cartridge) => {
                let result = cartridge.synchronize();
                cartridge.rewind();
                self.medium =
                    if load || result.is_err() { Medium::Loaded(cartridge) } else { Medium::Unloaded(cartridge) };
                result.map_err(|why| write_error(&why))?;
            }
            Medium::Unloaded(cartridge) if load => {
                self.medium = Medium::Loaded(cartridge);
                self.common.establish(Asc::MEDIUM_MAY_HAVE_CHANGED);
            }
            other => {
                self.medium = other;
                if load || matches!(self.medium, Medium::Loading) {
                    return Err(not_ready(&self.medium).into());
                }
            }
        }
        Ok(0)
    }

    fn prevent_allow(&mut self, cdb: &Cdb<'_>, _: DataOut<'_>, _: &mut DataIn<'_>) -> Answer {
        self.is_prevented = cdb.bit(4, 0);
        Ok(0)
    }

    /// SEND DIAGNOSTIC: only the self-test that the standard prescribes.
    fn send_diagnostic(&mut self, cdb: &Cdb<'_>, _: DataOut<'_>, _: &mut DataIn<'_>) -> Answer {
        if cdb.bit(1, 2) && cdb.number(3, 2) == 0 { Ok(0) } else { Err(Sense::cdb(1).into()) }
    }

    fn report_codes(&mut self, cdb: &Cdb<'_>, _: DataOut<'_>, into: &mut DataIn<'_>) -> Answer {
        scsi::report_codes::<Self>(cdb, into)
    }

    /// REPORT DENSITY SUPPORT (SSC-3 7.9): the densities of the drive, or that of the loaded medium.
    fn report_density(&mut self, cdb: &Cdb<'_>, _: DataOut<'_>, into: &mut DataIn<'_>) -> Answer {
        const WRITE_OK: u8 = 0x80;
        const DEFAULT: u8 = 0x20;
        if cdb.bit(1, 1) {
            return Err(Sense::cdb(1).into());
        }
        let own = self.facts.generation;
        let of_medium = if cdb.bit(1, 0) { Some(self.loaded()?.generation()) } else { None };
        let is_listed = |one: &Generation| of_medium.map_or_else(|| own.accepts(*one), |medium| medium == *one);
        let mut bytes = vec![0; 4];
        for one in Generation::ALL.into_iter().filter(is_listed) {
            let default = if one == own { DEFAULT } else { 0 };
            bytes.extend([one.density(), one.density(), WRITE_OK | default, 0, 0, 0, 0, 0]);
            // Width of the medium in tenths of a millimetre, tracks, and capacity in megabytes.
            bytes.extend([0, 127, 0, 1]);
            bytes.extend(u32::try_from(one.capacity() / 1_000_000).unwrap_or(u32::MAX).to_be_bytes());
            scsi::push_text(&mut bytes, "LTO-CVE", 8);
            scsi::push_text(&mut bytes, &format!("U-{}", one.number()), 8);
            scsi::push_text(&mut bytes, &format!("Ultrium {}", one.number()), 20);
        }
        let length = (bytes.len() - 2) as u16;
        bytes[..2].copy_from_slice(&length.to_be_bytes());
        put(&bytes, cdb.length(7, 2), into)
    }

    /// SECURITY PROTOCOL IN (SPC-4 6.40): only the list of protocols, which has itself alone. The drive does not
    /// encrypt: no initiator may believe that it does.
    fn security_in(&mut self, cdb: &Cdb<'_>, _: DataOut<'_>, into: &mut DataIn<'_>) -> Answer {
        if cdb.byte(1) != 0 {
            return Err(Sense::cdb(1).into());
        }
        match cdb.number(2, 2) {
            0 => put(&[0, 0, 0, 0, 0, 0, 0, 1, 0], cdb.length(6, 4), into),
            _ => Err(Sense::cdb(2).into()),
        }
    }

    fn security_out(&mut self, _: &Cdb<'_>, _: DataOut<'_>, _: &mut DataIn<'_>) -> Answer {
        Err(Sense::cdb(1).into())
    }
}
