//! The fronts and back ends of this program: one line for each.

use crate::schema::SCHEMA;
use lunar_block::backend::BlockBackend;
use lunar_block::zvol::backend::ZvolBackend;
use lunar_control::Schema;
use lunar_engine::backend::Backend;
use lunar_engine::registry::{FrontEntry, Registry};
use lunar_file::backend::FileBackend;
use lunar_handler_store::backend::HandlerBackend;
use lunar_handler_store::rbd::backend::RbdBackend;
use lunar_null::backend::NullBackend;
use lunar_nvme_device::backend::NvmeBackend;
use lunar_ram::backend::RamBackend;
use lunar_scsi_device::backend::ScsiBackend;
use lunar_sst_store::backend::SstBackend;
use std::sync::LazyLock;

/// The registry of `lunar`.
pub static REGISTRY: &Registry = &Registry { fronts: FRONTS, backends: BACKENDS };

/// The back ends, in the order in which they are shown.
const BACKENDS: &[&dyn Backend] = &[
    &FileBackend,
    &BlockBackend,
    &ZvolBackend,
    &NvmeBackend,
    &RamBackend,
    &NullBackend,
    &ScsiBackend,
    &HandlerBackend,
    &RbdBackend,
    &SstBackend,
];

/// The fronts, in the order in which they are shown.
pub const FRONTS: &[FrontEntry] = &[
    lunar_iscsi::front::ENTRY,
    lunar_nvme_tcp::front::ENTRY,
    lunar_vfio_user::front::ENTRY,
    lunar_vhost_user::front::ENTRY,
    lunar_aoe::front::ENTRY,
    lunar_ublk::front::ENTRY,
    lunar_fcoe::front::ENTRY,
    lunar_sst::front::ENTRY,
    lunar_srp::front::ENTRY,
    lunar_nvme_rdma::front::ENTRY,
    lunar_iscsi::iser::front::ENTRY,
];

/// A program: its fronts and back ends, and the schema of its configuration, derived from their declarations.
pub struct Program {
    /// Its registry.
    pub registry: &'static Registry,
    /// Its schema.
    pub schema: &'static LazyLock<Schema>,
}

/// The program `lunar`.
pub static PROGRAM: Program = Program { registry: REGISTRY, schema: &SCHEMA };

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_engine::backend;

    #[test]
    fn the_back_ends_are_those_of_the_configuration() {
        assert_eq!(backend::verify(REGISTRY.backends), Ok(()));
        let backends: Vec<&str> = REGISTRY.backends.iter().map(|backend| backend.name()).collect();
        assert_eq!(backends, SCHEMA.stores.iter().map(|store| store.word).collect::<Vec<_>>());
    }
}
