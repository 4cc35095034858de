//! The declaration of the null store for the configuration.

use lunar_control::schema::{Location, Serves, SizeRule, StoreSchema};

/// The declaration.
pub static STORE: StoreSchema = StoreSchema {
    word: "null",
    doc: "no data: reads return zeroes, writes are discarded",
    noun: "null",
    location: Location::Nowhere,
    size: SizeRule::Required,
    serves: Serves::Blocks,
    keys: None,
};
