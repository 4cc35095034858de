//! Peripheral device types (SPC-4 6.6.2).

use lunar_core::codes;

codes! {
    /// PERIPHERAL DEVICE TYPE (SPC-4 6.6.2).
    pub struct PeripheralType(u8) {
        DISK = 0x00, TAPE = 0x01, PRINTER = 0x02, PROCESSOR = 0x03, WRITE_ONCE = 0x04, CD_DVD = 0x05, SCANNER = 0x06,
        OPTICAL_MEMORY = 0x07, CHANGER = 0x08, COMMUNICATIONS = 0x09, STORAGE_ARRAY = 0x0c, ENCLOSURE = 0x0d,
        SIMPLE_DISK = 0x0e, CARD_READER = 0x0f, OBJECT_STORAGE = 0x11, AUTOMATION = 0x12, ZONED = 0x14,
        WELL_KNOWN = 0x1e, UNKNOWN = 0x1f,
    }
}

impl PeripheralType {
    /// The device types that there may be: the field has five bits.
    pub const COUNT: usize = 32;
}
