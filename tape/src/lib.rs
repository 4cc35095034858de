//! A virtual tape library: cartridges in files, tape drives (SSC-3) and a medium changer (SMC-3).
//!
//! * [`cartridge`]: a cartridge as a log of blocks and filemarks in a file
//! * [`generation`]: the generations of LTO
//! * [`scsi`]: SCSI commands as values
//! * [`drive`]: a tape drive
//! * [`changer`]: a medium changer
//! * [`library`]: a folder with cartridges, and its configuration; [`control`]: requests of the operator
//! * [`serve`]: the devices as handlers of Lunar
//! * [`docs`]: the table of commands of the documentation

pub mod cartridge;
pub mod changer;
pub mod control;
pub mod docs;
pub mod drive;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
pub mod generation;
pub mod library;
pub mod scsi;
pub mod serve;
#[cfg(test)]
mod test_folder;
