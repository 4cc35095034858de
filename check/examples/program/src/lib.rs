//! Lunar with the example fronts and back ends: a registry with one line for each.

use lunar::registry::{FRONTS, Program};
use lunar_block::backend::BlockBackend;
use lunar_control::Schema;
use lunar_engine::registry::Registry;
use lunar_file::backend::FileBackend;
use lunar_null::backend::NullBackend;
use lunar_pattern_store::PatternBackend;
use lunar_ram::backend::RamBackend;
use lunar_tape_drive::backend::TapeBackend;
use std::sync::LazyLock;

/// The registry of `lunar-examples`.
pub static REGISTRY: &Registry = &Registry {
    fronts: &[FRONTS[0], FRONTS[1], FRONTS[2], lunar_echo_front::ENTRY],
    backends: &[&FileBackend, &BlockBackend, &RamBackend, &NullBackend, &PatternBackend, &TapeBackend],
};

/// The schema of the configuration of `lunar-examples`.
pub static SCHEMA: LazyLock<Schema> = LazyLock::new(|| REGISTRY.schema());

/// The program `lunar-examples`.
pub static PROGRAM: Program = Program { registry: REGISTRY, schema: &SCHEMA };
