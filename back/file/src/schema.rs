//! The declaration of the file store for the configuration.

use lunar_control::schema::{Location, Serves, SizeRule, StoreSchema};

/// The declaration.
pub static STORE: StoreSchema = StoreSchema {
    word: "file",
    doc: "a file, created if it is missing and a size is given",
    noun: "file",
    location: Location::File,
    size: SizeRule::Optional,
    serves: Serves::Blocks,
    keys: None,
};
