//! The metadata record of the protection type of a unit.

use crate::change::Record;
use lunar_core::metadata::{MetadataStore, Saving};
use lunar_core::protection::Kind;
use std::fmt;

/// Name of the record.
pub const NAME: &str = "protection";

/// The record is not a protection type that this version knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnknownProtectionType;

impl fmt::Display for UnknownProtectionType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the stored protection type is not known")
    }
}

impl std::error::Error for UnknownProtectionType {}

/// The protection type that a unit has stored; `None` if it has never had protection information.
///
/// # Errors
/// [`UnknownProtectionType`]: a later version stored it.
pub fn stored(metadata: &dyn MetadataStore) -> Result<Option<Kind>, UnknownProtectionType> {
    match metadata.load(NAME).as_deref() {
        None => Ok(None),
        Some([number]) => Kind::of(*number).map(Some).ok_or(UnknownProtectionType),
        Some(_) => Err(UnknownProtectionType),
    }
}

/// Stores the protection type of a new unit.
pub fn save(metadata: &dyn MetadataStore, kind: Kind) -> Saving {
    let Record { name, bytes, .. } = record(kind);
    metadata.save(name, bytes)
}

/// The record of a protection type.
pub(crate) fn record(kind: Kind) -> Record {
    Record::required(NAME, vec![kind as u8])
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_core::metadata::VolatileMemory;

    #[test]
    fn the_record_is_the_number_of_the_type() {
        let metadata = VolatileMemory::default();
        assert_eq!(stored(&metadata), Ok(None));
        for (number, kind) in (0..).zip(Kind::ALL) {
            drop(save(&metadata, kind));
            assert_eq!((metadata.load("protection"), stored(&metadata)), (Some(vec![number]), Ok(Some(kind))));
        }
        for unknown in [vec![4], vec![], vec![1, 0]] {
            drop(metadata.save("protection", unknown));
            assert_eq!(stored(&metadata), Err(UnknownProtectionType));
        }
    }
}
