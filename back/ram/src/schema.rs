//! The declaration of the memory store for the configuration.

use lunar_control::schema::{Location, Serves, SizeRule, StoreSchema};

/// The declaration.
pub static STORE: StoreSchema = StoreSchema {
    word: "ram",
    doc: "memory; its contents are lost at the end",
    noun: "ram",
    location: Location::Nowhere,
    size: SizeRule::Required,
    serves: Serves::Blocks,
    keys: None,
};
