//! A virtual tape library: cartridges in files, tape drives (SSC-3) and a medium changer (SMC-3).
//!
//! * [`cartridge`]: a cartridge as a log of blocks and filemarks in a file
//! * [`generation`]: the generations of LTO
//! * [`scsi`]: SCSI commands as values
//! * [`drive`]: a tape drive

pub mod cartridge;
pub mod drive;
pub mod generation;
pub mod scsi;
#[cfg(test)]
mod test_folder;
