//! The back ends of Lunar.

use lunar_block::backend::BlockBackend;
use lunar_engine::backend::Backend;
use lunar_file::backend::FileBackend;
use lunar_null::backend::NullBackend;
use lunar_ram::backend::RamBackend;

/// In the order of the registry of `lunar`.
pub(crate) const BACKENDS: &[&'static dyn Backend] = &[&FileBackend, &BlockBackend, &RamBackend, &NullBackend];
