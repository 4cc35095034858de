//! The declaration of the block device store for the configuration.

use lunar_control::schema::{Location, Serves, SizeRule, StoreSchema};

/// The declaration.
pub static STORE: StoreSchema = StoreSchema {
    word: "block",
    doc: "a block device",
    noun: "block device",
    location: Location::Device,
    size: SizeRule::Refused,
    serves: Serves::Blocks,
    keys: None,
};
