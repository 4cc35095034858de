//! Sense data (SPC-6 4.4): a [`Sense`] is the meaning, [`SenseData`] are the bytes for the initiator.

use lunar_core::codes;
use lunar_core::wire::Writer;
use std::fmt;
use std::ops::Deref;

codes! {
    /// Sense key (SPC-6 4.4.2.1).
    pub struct SenseKey(u8) {
        NO_SENSE = 0x0, RECOVERED_ERROR = 0x1, NOT_READY = 0x2, MEDIUM_ERROR = 0x3, HARDWARE_ERROR = 0x4,
        ILLEGAL_REQUEST = 0x5, UNIT_ATTENTION = 0x6, DATA_PROTECT = 0x7, BLANK_CHECK = 0x8, COPY_ABORTED = 0xa,
        ABORTED_COMMAND = 0xb, VOLUME_OVERFLOW = 0xd, MISCOMPARE = 0xe, COMPLETED = 0xf,
    }
}

/// Declares additional sense codes with their qualifiers and their text in the standard.
macro_rules! additional {
    ($($name:ident = $code:literal, $text:literal;)*) => {
        codes! {
            /// Additional sense code (high byte) and its qualifier (SPC-6 annex F).
            pub struct Asc(u16) { $($name = $code),* }
        }

        impl Asc {
            /// Its text in the standard.
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
    FILEMARK_DETECTED = 0x0001, "filemark detected";
    END_OF_MEDIUM_DETECTED = 0x0002, "end-of-partition/medium detected";
    BEGINNING_OF_MEDIUM_DETECTED = 0x0004, "beginning-of-partition/medium detected";
    END_OF_DATA_DETECTED = 0x0005, "end-of-data detected";
    OPERATION_IN_PROGRESS = 0x0016, "operation in progress";
    NOT_READY_STANDBY = 0x040b, "logical unit not accessible, target port in standby state";
    NOT_READY_UNAVAILABLE = 0x040c, "logical unit not accessible, target port in unavailable state";
    NOT_READY_TRANSITION = 0x040a, "logical unit not accessible, asymmetric access state transition";
    NOT_READY_CAUSE_NOT_REPORTABLE = 0x0400, "logical unit not ready, cause not reportable";
    NOT_READY_BECOMING_READY = 0x0401, "logical unit is in process of becoming ready";
    NOT_READY_START_REQUIRED = 0x0402, "logical unit not ready, initializing command required";
    NOT_READY_FORMAT_IN_PROGRESS = 0x0404, "logical unit not ready, format in progress";
    NOT_READY_SANITIZE_IN_PROGRESS = 0x041b, "logical unit not ready, sanitize in progress";
    NOT_READY_OFFLINE = 0x0412, "logical unit not ready, offline";
    NO_RESPONSE_TO_SELECTION = 0x0500, "logical unit does not respond to selection";
    UNREACHABLE_COPY_TARGET = 0x0804, "unreachable copy target";
    WRITE_ERROR = 0x0c00, "write error";
    THIRD_PARTY_DEVICE_FAILURE = 0x0d01, "third party device failure";
    COPY_TARGET_DEVICE_NOT_REACHABLE = 0x0d02, "copy target device not reachable";
    INCORRECT_COPY_TARGET_DEVICE_TYPE = 0x0d03, "incorrect copy target device type";
    COPY_TARGET_DEVICE_DATA_UNDERRUN = 0x0d04, "copy target device data underrun";
    INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT = 0x0e03, "invalid field in command information unit";
    GUARD_CHECK_FAILED = 0x1001, "logical block guard check failed";
    APPLICATION_TAG_CHECK_FAILED = 0x1002, "logical block application tag check failed";
    REFERENCE_TAG_CHECK_FAILED = 0x1003, "logical block reference tag check failed";
    UNRECOVERED_READ_ERROR = 0x1100, "unrecovered read error";
    LBA_MARKED_BAD = 0x1114, "read error - LBA marked bad by application client";
    PARAMETER_LIST_LENGTH_ERROR = 0x1a00, "parameter list length error";
    MISCOMPARE_DURING_VERIFY = 0x1d00, "miscompare during verify operation";
    INVALID_COMMAND_OPERATION_CODE = 0x2000, "invalid command operation code";
    LBA_OUT_OF_RANGE = 0x2100, "logical block address out of range";
    INVALID_ELEMENT_ADDRESS = 0x2101, "invalid element address";
    UNSUPPORTED_TOKEN_TYPE = 0x2301, "invalid token operation, unsupported token type";
    TOKEN_UNKNOWN = 0x2304, "invalid token operation, token unknown";
    TOKEN_CORRUPT = 0x2305, "invalid token operation, token corrupt";
    INVALID_TOKEN_LENGTH = 0x230a, "invalid token operation, invalid token length";
    INVALID_FIELD_IN_CDB = 0x2400, "invalid field in CDB";
    LOGICAL_UNIT_NOT_SUPPORTED = 0x2500, "logical unit not supported";
    INVALID_FIELD_IN_PARAMETER_LIST = 0x2600, "invalid field in parameter list";
    INVALID_RELEASE_OF_PERSISTENT_RESERVATION = 0x2604, "invalid release of persistent reservation";
    TOO_MANY_TARGET_DESCRIPTORS = 0x2606, "too many target descriptors";
    UNSUPPORTED_TARGET_DESCRIPTOR_TYPE_CODE = 0x2607, "unsupported target descriptor type code";
    TOO_MANY_SEGMENT_DESCRIPTORS = 0x2608, "too many segment descriptors";
    UNSUPPORTED_SEGMENT_DESCRIPTOR_TYPE_CODE = 0x2609, "unsupported segment descriptor type code";
    UNEXPECTED_INEXACT_SEGMENT = 0x260a, "unexpected inexact segment";
    INLINE_DATA_LENGTH_EXCEEDED = 0x260b, "inline data length exceeded";
    WRITE_PROTECTED = 0x2700, "write protected";
    SPACE_ALLOCATION_FAILED = 0x2707, "space allocation failed write protect";
    MEDIUM_MAY_HAVE_CHANGED = 0x2800, "not ready to ready change, medium may have changed";
    IMPORT_OR_EXPORT_ELEMENT_ACCESSED = 0x2801, "import or export element accessed";
    POWER_ON_OR_RESET = 0x2900, "power on, reset, or bus device reset occurred";
    BUS_DEVICE_RESET = 0x2903, "bus device reset function occurred";
    I_T_NEXUS_LOSS = 0x2907, "I_T nexus loss occurred";
    MODE_PARAMETERS_CHANGED = 0x2a01, "mode parameters changed";
    LOG_PARAMETERS_CHANGED = 0x2a02, "log parameters changed";
    RESERVATIONS_PREEMPTED = 0x2a03, "reservations preempted";
    RESERVATIONS_RELEASED = 0x2a04, "reservations released";
    REGISTRATIONS_PREEMPTED = 0x2a05, "registrations preempted";
    ASYMMETRIC_ACCESS_STATE_CHANGED = 0x2a06, "asymmetric access state changed";
    CAPACITY_DATA_CHANGED = 0x2a09, "capacity data has changed";
    TIMESTAMP_CHANGED = 0x2a10, "timestamp changed";
    COMMAND_SEQUENCE_ERROR = 0x2c00, "command sequence error";
    COMMANDS_CLEARED_BY_DEVICE_SERVER = 0x2f02, "commands cleared by device server";
    INCOMPATIBLE_MEDIUM_INSTALLED = 0x3000, "incompatible medium installed";
    CANNOT_READ_MEDIUM_UNKNOWN_FORMAT = 0x3001, "cannot read medium - unknown format";
    INCOMPATIBLE_FORMAT = 0x3002, "cannot read medium, incompatible format";
    WORM_MEDIUM_OVERWRITE_ATTEMPTED = 0x300c, "WORM medium - overwrite attempted";
    MEDIUM_FORMAT_CORRUPTED = 0x3100, "medium format corrupted";
    FORMAT_COMMAND_FAILED = 0x3101, "format command failed";
    SANITIZE_COMMAND_FAILED = 0x3103, "sanitize command failed";
    THIN_PROVISIONING_SOFT_THRESHOLD_REACHED = 0x3807, "thin provisioning soft threshold reached";
    SAVING_NOT_SUPPORTED = 0x3900, "saving parameters not supported";
    MEDIUM_NOT_PRESENT = 0x3a00, "medium not present";
    MEDIUM_NOT_PRESENT_TRAY_CLOSED = 0x3a01, "medium not present, tray closed";
    MEDIUM_NOT_PRESENT_TRAY_OPEN = 0x3a02, "medium not present, tray open";
    MEDIUM_DESTINATION_ELEMENT_FULL = 0x3b0d, "medium destination element full";
    MEDIUM_SOURCE_ELEMENT_EMPTY = 0x3b0e, "medium source element empty";
    LOGICAL_UNIT_FAILURE = 0x3e01, "logical unit failure";
    TIME_OUT_ON_LOGICAL_UNIT = 0x3e02, "timeout on logical unit";
    INQUIRY_DATA_CHANGED = 0x3f03, "inquiry data has changed";
    DEVICE_IDENTIFIER_CHANGED = 0x3f05, "device identifier changed";
    REPORTED_LUNS_DATA_CHANGED = 0x3f0e, "reported luns data has changed";
    INTERNAL_TARGET_FAILURE = 0x4400, "internal target failure";
    INVALID_MESSAGE_ERROR = 0x4900, "invalid message error";
    DATA_PHASE_ERROR = 0x4b00, "data phase error";
    WRITE_APPEND_ERROR = 0x5000, "write append error";
    MEDIUM_REMOVAL_PREVENTED = 0x5302, "medium removal prevented";
    INSUFFICIENT_RESOURCES = 0x5503, "insufficient resources";
    INSUFFICIENT_REGISTRATION_RESOURCES = 0x5504, "insufficient registration resources";
    ILLEGAL_MODE_FOR_THIS_TRACK = 0x6400, "illegal mode for this track";
}

/// The bytes that a field pointer refers to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Within {
    /// The CDB.
    Cdb,
    /// The parameter list.
    List,
    /// The segment descriptor number [`Sense::segment`], for COPY ABORTED (SPC-4 4.5.2.4.6).
    Segment,
}

/// A field pointer: the byte and bit in error (SPC-6 4.4.2.4.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pointer {
    /// The bytes that it refers to.
    pub within: Within,
    /// First byte of the field.
    pub byte: u16,
    /// Left-most bit of the field, if the field does not start at a byte.
    pub bit: Option<u8>,
}

/// The reason of CHECK CONDITION.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sense {
    /// Sense key.
    pub key: SenseKey,
    /// Additional sense code and qualifier.
    pub asc: Asc,
    /// The field in error, for ILLEGAL REQUEST.
    pub pointer: Option<Pointer>,
    /// INFORMATION: the LBA in error, or the offset of a miscompare.
    pub information: Option<u64>,
    /// The number of the segment descriptor in error, for COPY ABORTED: the last two bytes of COMMAND-SPECIFIC
    /// INFORMATION.
    pub segment: Option<u16>,
    /// PROGRESS INDICATION in parts of 65,536, for NOT READY.
    pub progress: Option<u16>,
}

/// The sense data of a command that needs a started logical unit.
pub(crate) const NOT_STARTED: Sense = Sense::new(SenseKey::NOT_READY, Asc::NOT_READY_START_REQUIRED);

impl Sense {
    /// NO SENSE.
    pub const NONE: Self = Self::new(SenseKey::NO_SENSE, Asc::NO_ADDITIONAL_SENSE_INFORMATION);

    /// Sense data with a key and a code only.
    #[must_use]
    pub const fn new(key: SenseKey, asc: Asc) -> Self {
        Self { key, asc, pointer: None, information: None, segment: None, progress: None }
    }

    /// ILLEGAL REQUEST with this code.
    #[must_use]
    pub const fn illegal(asc: Asc) -> Self {
        Self::new(SenseKey::ILLEGAL_REQUEST, asc)
    }

    /// INVALID FIELD IN CDB for the field that starts at this byte.
    #[must_use]
    pub const fn in_cdb(byte: usize) -> Self {
        Self::illegal(Asc::INVALID_FIELD_IN_CDB).pointing(Within::Cdb, byte, None)
    }

    /// INVALID FIELD IN CDB for the field with this left-most bit.
    #[must_use]
    pub const fn bit_in_cdb(byte: usize, bit: u8) -> Self {
        Self::illegal(Asc::INVALID_FIELD_IN_CDB).pointing(Within::Cdb, byte, Some(bit))
    }

    /// INVALID FIELD IN PARAMETER LIST for the field that starts at this byte.
    #[must_use]
    pub const fn in_list(byte: usize) -> Self {
        Self::illegal(Asc::INVALID_FIELD_IN_PARAMETER_LIST).pointing(Within::List, byte, None)
    }

    /// INVALID FIELD IN PARAMETER LIST for the field with this left-most bit.
    #[must_use]
    pub const fn bit_in_list(byte: usize, bit: u8) -> Self {
        Self::illegal(Asc::INVALID_FIELD_IN_PARAMETER_LIST).pointing(Within::List, byte, Some(bit))
    }

    /// The same with INFORMATION.
    #[must_use]
    pub const fn with_information(mut self, information: u64) -> Self {
        self.information = Some(information);
        self
    }

    /// The same with PROGRESS INDICATION.
    #[must_use]
    pub const fn with_progress(mut self, progress: u16) -> Self {
        self.progress = Some(progress);
        self
    }

    /// The same with a pointer to the field that starts at this byte.
    #[must_use]
    pub const fn at(self, within: Within, byte: usize) -> Self {
        self.pointing(within, byte, None)
    }

    const fn pointing(mut self, within: Within, byte: usize, bit: Option<u8>) -> Self {
        // Field offsets are below 64 KiB, because lists have length fields of 16 bits; larger ones are truncated.
        let byte = if byte > 0xffff { 0xffff } else { byte as u16 };
        self.pointer = Some(Pointer { within, byte, bit });
        self
    }

    /// Sense-key specific bytes (SPC-6 4.4.2.4).
    fn key_specific(&self) -> Option<[u8; 3]> {
        if let Some(progress) = self.progress {
            let [high, low] = progress.to_be_bytes();
            return Some([0x80, high, low]);
        }
        let Pointer { within, byte, bit } = self.pointer?;
        let within = match within {
            Within::Cdb => 0x40,
            Within::List => 0,
            Within::Segment => 0x20,
        };
        let bit = bit.map_or(0, |bit| 0x08 | bit & 7);
        let [high, low] = byte.to_be_bytes();
        Some([0x80 | within | bit, high, low])
    }

    /// The bytes: descriptor format if `descriptor` is set (D_SENSE, DESC), else fixed format.
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

    /// Fixed format (SPC-6 4.4.3). INFORMATION has 32 bits: VALID is zero if the value does not fit.
    fn write_fixed(&self, out: &mut Writer<'_>) {
        let information = self.information.and_then(|value| u32::try_from(value).ok());
        let valid = if information.is_some() { 0x80 } else { 0 };
        out.bytes(&[0x70 | valid, 0, self.key.0]).bytes(&information.unwrap_or(0).to_be_bytes());
        out.bytes(&[10, 0, 0])
            .bytes(&self.segment.unwrap_or(0).to_be_bytes())
            .bytes(&self.asc.0.to_be_bytes())
            .bytes(&[0]);
        out.bytes(&self.key_specific().unwrap_or_default());
    }

    /// Descriptor format (SPC-6 4.4.2).
    fn write_descriptors(&self, out: &mut Writer<'_>) {
        let [asc, ascq] = self.asc.0.to_be_bytes();
        out.bytes(&[0x72, self.key.0, asc, ascq, 0, 0, 0, 0]);
        if let Some(information) = self.information {
            out.bytes(&[0x00, 0x0a, 0x80, 0]).bytes(&information.to_be_bytes());
        }
        if let Some(segment) = self.segment {
            out.bytes(&[0x01, 0x0a, 0, 0]).zeros(6).bytes(&segment.to_be_bytes());
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

/// Bytes of the longest sense data that Lunar creates: descriptor format with INFORMATION, COMMAND-SPECIFIC INFORMATION
/// and a field pointer.
pub const SENSE_BYTES_MAX: usize = 8 + 12 + 12 + 8;

/// Sense data as bytes; empty if there is none. Boxed: every reply is moved, and few have sense data.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct SenseData(Option<Box<[u8]>>);

/// Response codes of current errors (SPC-4 4.5.1).
const FIXED: u8 = 0x70;
const DESCRIPTOR: u8 = 0x72;

/// Bytes of the longest sense data that a device may return (SPC-4 4.5.1).
const DEVICE_SENSE_BYTES_MAX: usize = 252;

impl SenseData {
    /// Sense data of a device, truncated to the longest valid length.
    #[must_use]
    pub fn of_device(bytes: &[u8]) -> Self {
        let bytes = &bytes[..bytes.len().min(DEVICE_SENSE_BYTES_MAX)];
        Self((!bytes.is_empty()).then(|| bytes.into()))
    }

    /// Sense key and additional sense code, of fixed or descriptor format. `None` for deferred errors, which concern an
    /// earlier command, and for bytes that are no sense data.
    #[must_use]
    pub fn meaning(&self) -> Option<(SenseKey, Asc)> {
        let (key, asc, ascq) = match self.first()? & 0x7f {
            FIXED => (self.get(2)?, self.get(12).unwrap_or(&0), self.get(13).unwrap_or(&0)),
            DESCRIPTOR => (self.get(1)?, self.get(2)?, self.get(3)?),
            _ => return None,
        };
        Some((SenseKey(key & 0x0f), Asc(u16::from_be_bytes([*asc, *ascq]))))
    }

    /// The same, with the field pointer, INFORMATION and PROGRESS INDICATION.
    #[must_use]
    pub fn read(&self) -> Option<Sense> {
        let (key, asc) = self.meaning()?;
        let (mut sense, mut specific): (_, Option<[u8; 3]>) = (Sense::new(key, asc), None);
        if self[0] & 0x7f == FIXED {
            if self[0] & 0x80 != 0 {
                sense.information = self.get(3..7).map(|value| u32::from_be_bytes(array(value)).into());
            }
            specific = self.get(15..18).map(array);
        } else {
            let mut rest = self.get(8..).unwrap_or_default();
            while let [kind, length, ..] = *rest {
                let (descriptor, next) = rest.split_at(rest.len().min(2 + usize::from(length)));
                match kind {
                    0x00 if descriptor.get(2).is_some_and(|flags| flags & 0x80 != 0) => {
                        sense.information = descriptor.get(4..12).map(|value| u64::from_be_bytes(array(value)));
                    }
                    0x02 => specific = descriptor.get(4..7).map(array),
                    _ => {}
                }
                rest = next;
            }
        }
        // SKSV: the bytes are valid.
        if let Some([flags, high, low]) = specific.filter(|[flags, ..]| flags & 0x80 != 0) {
            let value = u16::from_be_bytes([high, low]);
            match key {
                SenseKey::ILLEGAL_REQUEST => {
                    let within = if flags & 0x40 != 0 { Within::Cdb } else { Within::List };
                    let bit = (flags & 0x08 != 0).then_some(flags & 7);
                    sense.pointer = Some(Pointer { within, byte: value, bit });
                }
                SenseKey::NOT_READY | SenseKey::NO_SENSE => sense.progress = Some(value),
                _ => {}
            }
        }
        Some(sense)
    }
}

/// The bytes of a part whose length was checked.
fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut all = [0; N];
    all.copy_from_slice(bytes);
    all
}

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
    fn fixed_format_has_the_layout_of_the_standard() {
        let sense = Sense::bit_in_cdb(1, 4);
        let bytes = [0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x24, 0, 0, 0xcc, 0, 1];
        assert_eq!(sense.data(false)[..], bytes);
        let sense = Sense::new(SenseKey::MISCOMPARE, Asc::MISCOMPARE_DURING_VERIFY).with_information(0x1234);
        let bytes = [0xf0, 0, 0xe, 0, 0, 0x12, 0x34, 10, 0, 0, 0, 0, 0x1d, 0, 0, 0, 0, 0];
        assert_eq!(sense.data(false)[..], bytes);
    }

    #[test]
    fn information_beyond_32_bits_is_left_out_of_fixed_format() {
        let sense = Sense::illegal(Asc::LBA_OUT_OF_RANGE).with_information(1 << 32);
        assert_eq!(sense.data(false)[..7], [0x70, 0, 5, 0, 0, 0, 0]);
        assert_eq!(sense.data(true)[8..20], [0, 0x0a, 0x80, 0, 0, 0, 0, 1, 0, 0, 0, 0]);
    }

    #[test]
    fn descriptor_format_has_the_layout_of_the_standard() {
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
    fn both_formats_contain_the_progress_indication() {
        let sense = Sense::new(SenseKey::NOT_READY, Asc::NOT_READY_SANITIZE_IN_PROGRESS).with_progress(0x1234);
        assert_eq!(sense.data(false)[12..], [0x04, 0x1b, 0, 0x80, 0x12, 0x34]);
        assert_eq!(sense.data(true)[8..], [0x02, 0x06, 0, 0, 0x80, 0x12, 0x34, 0]);
    }

    #[test]
    fn both_formats_contain_the_segment_number() {
        let sense = Sense::new(SenseKey::COPY_ABORTED, Asc::UNREACHABLE_COPY_TARGET).at(Within::Segment, 6);
        let sense = Sense { segment: Some(0x102), ..sense };
        let bytes = [0x70, 0, 0xa, 0, 0, 0, 0, 10, 0, 0, 1, 2, 0x08, 4, 0, 0xa0, 0, 6];
        assert_eq!(sense.data(false)[..], bytes);
        let bytes = [
            0x72, 0xa, 0x08, 4, 0, 0, 0, 20, // header
            0x01, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, // COMMAND-SPECIFIC INFORMATION
            0x02, 0x06, 0, 0, 0xa0, 0, 6, 0, // sense-key specific
        ];
        assert_eq!(sense.data(true)[..], bytes);
    }

    #[test]
    fn the_meaning_of_sense_data_is_read_from_both_formats() {
        let sense = Sense::new(SenseKey::UNIT_ATTENTION, Asc::MODE_PARAMETERS_CHANGED);
        for descriptor in [false, true] {
            let data = SenseData::of_device(&sense.data(descriptor));
            assert_eq!(data.meaning(), Some((sense.key, sense.asc)));
        }
        assert_eq!(
            SenseData::of_device(&[0xf0, 0, 0x83]).meaning(),
            Some((SenseKey::MEDIUM_ERROR, Asc(0))),
            "filemark"
        );
        for other in [&[][..], &[0x70, 0], &[0x71, 0, 6, 0], &[0x72, 6, 0x29], &[0x73, 6, 0x29, 0], &[0x0b; 18]] {
            assert_eq!(SenseData::of_device(other).meaning(), None, "{other:02x?}");
        }
        assert_eq!(SenseData::of_device(&[0x72; 300]).len(), DEVICE_SENSE_BYTES_MAX);
    }

    #[test]
    fn all_fields_are_read_from_both_formats() {
        let write_error = Sense::new(SenseKey::MEDIUM_ERROR, Asc::WRITE_ERROR).with_information(7);
        let busy = Sense::new(SenseKey::NOT_READY, Asc::NOT_READY_FORMAT_IN_PROGRESS).with_progress(0x1234);
        for sense in
            [Sense::NONE, Sense::bit_in_cdb(1, 4), Sense::in_list(0x102).with_information(9), write_error, busy]
        {
            for descriptor in [false, true] {
                assert_eq!(SenseData::of_device(&sense.data(descriptor)).read(), Some(sense));
            }
        }
        for length in 0..28 {
            // Cut anywhere, it is read without a panic.
            let _ = SenseData::of_device(&Sense::in_list(1).with_information(9).data(true)[..length]).read();
            let _ = SenseData::of_device(&Sense::bit_in_cdb(1, 4).data(false)[..length.min(18)]).read();
        }
    }

    #[test]
    fn sense_is_printed_with_text_and_field() {
        let text = "ILLEGAL_REQUEST: invalid field in CDB at byte 1 bit 4";
        assert_eq!(Sense::bit_in_cdb(1, 4).to_string(), text);
        assert_eq!(Asc(0xffff).text(), "unknown");
    }
}
