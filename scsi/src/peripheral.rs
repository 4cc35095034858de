//! Peripheral device types (SPC-4 6.6.2).

use lunar_core::codes;

codes! {
    /// PERIPHERAL DEVICE TYPE (SPC-4 6.6.2).
    pub struct PeripheralType(u8) {
        DISK = 0x00, TAPE = 0x01, CD_DVD = 0x05, OPTICAL_MEMORY = 0x07, CHANGER = 0x08, ZONED = 0x14,
        WELL_KNOWN = 0x1e, UNKNOWN = 0x1f,
    }
}

impl PeripheralType {
    /// The device types that there may be: the field has five bits.
    pub const COUNT: usize = 32;
}
