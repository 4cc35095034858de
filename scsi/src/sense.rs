//! Sense data (SPC-6 4.4): a [`Sense`] says why a command did not end well; [`SenseData`] is how initiators read it.

use lunar_core::codes;
use lunar_core::wire::Writer;
use std::fmt;
use std::ops::Deref;

codes! {
    /// SPC-6 4.4.2.1
    pub struct SenseKey(u8) {
        NO_SENSE = 0x0, RECOVERED_ERROR = 0x1, NOT_READY = 0x2, MEDIUM_ERROR = 0x3, HARDWARE_ERROR = 0x4,
        ILLEGAL_REQUEST = 0x5, UNIT_ATTENTION = 0x6, DATA_PROTECT = 0x7, BLANK_CHECK = 0x8, COPY_ABORTED = 0xa,
        ABORTED_COMMAND = 0xb, VOLUME_OVERFLOW = 0xd, MISCOMPARE = 0xe, COMPLETED = 0xf,
    }
}

/// Declares additional sense codes with their qualifiers and the text that the standard gives them.
macro_rules! additional {
    ($($name:ident = $code:literal, $text:literal;)*) => {
        codes! {
            /// Additional sense code (high byte) and its qualifier (SPC-6 annex F).
            pub struct Asc(u16) { $($name = $code),* }
        }

        impl Asc {
            /// What it means, in the words of the standard.
            #[must_use]
            pub fn text(self) -> &'static str {
                match self.0 {
                    $($code => $text,)*
                    _ => "unknown",
                }
            }
        }
    };
}

additional! {
    NO_ADDITIONAL_SENSE_INFORMATION = 0x0000, "no additional sense information";
    NOT_READY_STANDBY = 0x040b, "logical unit not accessible, target port in standby state";
    NOT_READY_UNAVAILABLE = 0x040c, "logical unit not accessible, target port in unavailable state";
    NOT_READY_TRANSITION = 0x040a, "logical unit not accessible, asymmetric access state transition";
    NOT_READY_START_REQUIRED = 0x0402, "logical unit not ready, initializing command required";
    NOT_READY_OFFLINE = 0x0412, "logical unit not ready, offline";
    WRITE_ERROR = 0x0c00, "write error";
    INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT = 0x0e03, "invalid field in command information unit";
    UNRECOVERED_READ_ERROR = 0x1100, "unrecovered read error";
    PARAMETER_LIST_LENGTH_ERROR = 0x1a00, "parameter list length error";
    MISCOMPARE_DURING_VERIFY = 0x1d00, "miscompare during verify operation";
    INVALID_COMMAND_OPERATION_CODE = 0x2000, "invalid command operation code";
    LBA_OUT_OF_RANGE = 0x2100, "logical block address out of range";
    INVALID_FIELD_IN_CDB = 0x2400, "invalid field in CDB";
    LOGICAL_UNIT_NOT_SUPPORTED = 0x2500, "logical unit not supported";
    INVALID_FIELD_IN_PARAMETER_LIST = 0x2600, "invalid field in parameter list";
    INVALID_RELEASE_OF_PERSISTENT_RESERVATION = 0x2604, "invalid release of persistent reservation";
    WRITE_PROTECTED = 0x2700, "write protected";
    SPACE_ALLOCATION_FAILED = 0x2707, "space allocation failed write protect";
    POWER_ON_OR_RESET = 0x2900, "power on, reset, or bus device reset occurred";
    BUS_DEVICE_RESET = 0x2903, "bus device reset function occurred";
    I_T_NEXUS_LOSS = 0x2907, "I_T nexus loss occurred";
    MODE_PARAMETERS_CHANGED = 0x2a01, "mode parameters changed";
    RESERVATIONS_PREEMPTED = 0x2a03, "reservations preempted";
    RESERVATIONS_RELEASED = 0x2a04, "reservations released";
    REGISTRATIONS_PREEMPTED = 0x2a05, "registrations preempted";
    ASYMMETRIC_ACCESS_STATE_CHANGED = 0x2a06, "asymmetric access state changed";
    CAPACITY_DATA_CHANGED = 0x2a09, "capacity data has changed";
    TIMESTAMP_CHANGED = 0x2a10, "timestamp changed";
    SAVING_NOT_SUPPORTED = 0x3900, "saving parameters not supported";
    LOGICAL_UNIT_FAILURE = 0x3e01, "logical unit failure";
    TIME_OUT_ON_LOGICAL_UNIT = 0x3e02, "timeout on logical unit";
    DEVICE_IDENTIFIER_CHANGED = 0x3f05, "device identifier changed";
    REPORTED_LUNS_DATA_CHANGED = 0x3f0e, "reported luns data has changed";
    INTERNAL_TARGET_FAILURE = 0x4400, "internal target failure";
    INVALID_MESSAGE_ERROR = 0x4900, "invalid message error";
    DATA_PHASE_ERROR = 0x4b00, "data phase error";
    INSUFFICIENT_REGISTRATION_RESOURCES = 0x5504, "insufficient registration resources";
}

/// Which byte, and which bit of it, is in error (SPC-6 4.4.2.4.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pointer {
    /// Whether it points into the CDB or into the parameter list.
    pub in_cdb: bool,
    /// First byte of the field.
    pub byte: u16,
    /// Its left-most bit, where the field does not start with a byte.
    pub bit: Option<u8>,
}

/// Why a command did not end well.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sense {
    /// The kind.
    pub key: SenseKey,
    /// The cause.
    pub asc: Asc,
    /// The field in error, for ILLEGAL REQUEST.
    pub pointer: Option<Pointer>,
    /// INFORMATION: the first bad LBA, the offset of a miscompare.
    pub information: Option<u64>,
}

impl Sense {
    /// Nothing to tell.
    pub const NONE: Self = Self::new(SenseKey::NO_SENSE, Asc::NO_ADDITIONAL_SENSE_INFORMATION);

    /// A kind and a cause.
    #[must_use]
    pub const fn new(key: SenseKey, asc: Asc) -> Self {
        Self { key, asc, pointer: None, information: None }
    }

    /// ILLEGAL REQUEST, with this cause.
    #[must_use]
    pub const fn illegal(asc: Asc) -> Self {
        Self::new(SenseKey::ILLEGAL_REQUEST, asc)
    }

    /// INVALID FIELD IN CDB, for the field that begins with this byte.
    #[must_use]
    pub const fn in_cdb(byte: usize) -> Self {
        Self::illegal(Asc::INVALID_FIELD_IN_CDB).pointing(true, byte, None)
    }

    /// INVALID FIELD IN CDB, for the field whose left-most bit is this one.
    #[must_use]
    pub const fn bit_in_cdb(byte: usize, bit: u8) -> Self {
        Self::illegal(Asc::INVALID_FIELD_IN_CDB).pointing(true, byte, Some(bit))
    }

    /// INVALID FIELD IN PARAMETER LIST, for the field that begins with this byte.
    #[must_use]
    pub const fn in_list(byte: usize) -> Self {
        Self::illegal(Asc::INVALID_FIELD_IN_PARAMETER_LIST).pointing(false, byte, None)
    }

    /// INVALID FIELD IN PARAMETER LIST, for the field whose left-most bit is this one.
    #[must_use]
    pub const fn bit_in_list(byte: usize, bit: u8) -> Self {
        Self::illegal(Asc::INVALID_FIELD_IN_PARAMETER_LIST).pointing(false, byte, Some(bit))
    }

    /// With INFORMATION.
    #[must_use]
    pub const fn with_information(mut self, information: u64) -> Self {
        self.information = Some(information);
        self
    }

    const fn pointing(mut self, in_cdb: bool, byte: usize, bit: Option<u8>) -> Self {
        // Fields are the code's own offsets or below 64 KiB by the length fields that they are counted with.
        let byte = if byte > 0xffff { 0xffff } else { byte as u16 };
        self.pointer = Some(Pointer { in_cdb, byte, bit });
        self
    }

    /// Sense-key specific bytes (SPC-6 4.4.2.4).
    fn key_specific(&self) -> Option<[u8; 3]> {
        let Pointer { in_cdb, byte, bit } = self.pointer?;
        let bit = bit.map_or(0, |bit| 0x08 | bit & 7);
        let [high, low] = byte.to_be_bytes();
        Some([0x80 | u8::from(in_cdb) << 6 | bit, high, low])
    }

    /// The bytes, in descriptor format if `descriptor` (D_SENSE, DESC), else in fixed format.
    #[must_use]
    pub fn data(&self, descriptor: bool) -> SenseData {
        let mut bytes = [0; SENSE_BYTES_MAX];
        let mut writer = Writer::new(&mut bytes);
        if descriptor {
            self.write_descriptors(&mut writer)
        } else {
            self.write_fixed(&mut writer)
        }
        let len = writer.kept();
        SenseData(Some(bytes[..len].into()))
    }

    /// SPC-6 4.4.3. INFORMATION has 32 bits only: where it does not fit, VALID stays zero.
    fn write_fixed(&self, out: &mut Writer<'_>) {
        let information = self.information.and_then(|value| u32::try_from(value).ok());
        let valid = if information.is_some() { 0x80 } else { 0 };
        out.bytes(&[0x70 | valid, 0, self.key.0]).bytes(&information.unwrap_or(0).to_be_bytes());
        out.bytes(&[10, 0, 0, 0, 0]).bytes(&self.asc.0.to_be_bytes()).bytes(&[0]);
        out.bytes(&self.key_specific().unwrap_or_default());
    }

    /// SPC-6 4.4.2
    fn write_descriptors(&self, out: &mut Writer<'_>) {
        let [asc, ascq] = self.asc.0.to_be_bytes();
        out.bytes(&[0x72, self.key.0, asc, ascq, 0, 0, 0, 0]);
        if let Some(information) = self.information {
            out.bytes(&[0x00, 0x0a, 0x80, 0]).bytes(&information.to_be_bytes());
        }
        if let Some(specific) = self.key_specific() {
            out.bytes(&[0x02, 0x06, 0, 0]).bytes(&specific).bytes(&[0]);
        }
        let additional = out.kept() - 8;
        out.patch(7, &[additional as u8]);
    }
}

impl fmt::Display for Sense {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.key, self.asc.text())?;
        if let Some(Pointer { byte, bit, .. }) = self.pointer {
            write!(f, " at byte {byte}")?;
            if let Some(bit) = bit {
                write!(f, " bit {bit}")?;
            }
        }
        Ok(())
    }
}

/// The longest sense data that is made: descriptor format with INFORMATION and a field pointer.
pub const SENSE_BYTES_MAX: usize = 8 + 12 + 8;

/// Sense data as bytes; empty when there is none. Behind a pointer: every reply is moved, and few have any.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct SenseData(Option<Box<[u8]>>);

impl Deref for SenseData {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.0.as_deref().unwrap_or_default()
    }
}

impl fmt::Debug for SenseData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x?}", &self[..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_fixed() {
        let sense = Sense::bit_in_cdb(1, 4);
        let bytes = [0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x24, 0, 0, 0xcc, 0, 1];
        assert_eq!(sense.data(false)[..], bytes);
        let sense = Sense::new(SenseKey::MISCOMPARE, Asc::MISCOMPARE_DURING_VERIFY).with_information(0x1234);
        let bytes = [0xf0, 0, 0xe, 0, 0, 0x12, 0x34, 10, 0, 0, 0, 0, 0x1d, 0, 0, 0, 0, 0];
        assert_eq!(sense.data(false)[..], bytes);
    }

    #[test]
    fn information_that_does_not_fit_is_left_out() {
        let sense = Sense::illegal(Asc::LBA_OUT_OF_RANGE).with_information(1 << 32);
        assert_eq!(sense.data(false)[..7], [0x70, 0, 5, 0, 0, 0, 0]);
        assert_eq!(sense.data(true)[8..20], [0, 0x0a, 0x80, 0, 0, 0, 0, 1, 0, 0, 0, 0]);
    }

    #[test]
    fn golden_descriptor() {
        let sense = Sense::in_list(0x102).with_information(7);
        let bytes = [
            0x72, 5, 0x26, 0, 0, 0, 0, 20, // header
            0x00, 0x0a, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 7, // INFORMATION
            0x02, 0x06, 0, 0, 0x80, 1, 2, 0, // sense-key specific
        ];
        assert_eq!(sense.data(true)[..], bytes);
        assert_eq!(Sense::NONE.data(true)[..], [0x72, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn it_reads_well() {
        let text = "ILLEGAL_REQUEST: invalid field in CDB at byte 1 bit 4";
        assert_eq!(Sense::bit_in_cdb(1, 4).to_string(), text);
        assert_eq!(Asc(0xffff).text(), "unknown");
    }
}
