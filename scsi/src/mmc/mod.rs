//! Multi-Media Commands (MMC-6): commands and pages of CD and DVD drives.

pub mod disc;
pub mod drive;
pub(crate) mod mode;
pub mod read_cd;
pub mod table;
