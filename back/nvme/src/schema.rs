//! The declaration of NVMe namespaces for the configuration.

use lunar_control::schema::{Location, Serves, SizeRule, StoreSchema};

/// The declaration.
pub static STORE: StoreSchema = StoreSchema {
    word: "nvme",
    doc: "an NVMe namespace of this machine, or a partition of it, by commands past the block layer",
    noun: "nvme namespace",
    location: Location::Device,
    size: SizeRule::Refused,
    serves: Serves::Blocks,
    keys: None,
};
