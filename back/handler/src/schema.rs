//! The declaration of handlers for the configuration.

use lunar_control::schema::{KeySet, Location, Serves, SizeRule, StoreSchema};
use lunar_control::section::{optional, or};
use lunar_control::value::{Mode, Period};
use lunar_control::{choices, sections};
use lunar_scsi::peripheral::PeripheralType;
use std::time::Duration;

/// The time for a command, for an operation that a handler answers from memory, and for a restart: a client waits for
/// about a minute before it resets.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// Only processes of the user of Lunar.
pub(crate) const SOCKET_MODE: u32 = 0o600;

choices! {
    /// The peripheral device type of a SCSI device.
    DeviceType {
        /// a direct-access device
        Disk = "disk",
        /// a sequential-access device: a tape drive
        Tape = "tape",
        /// a printer
        Printer = "printer",
        /// a processor
        Processor = "processor",
        /// a write-once device
        WriteOnce = "write-once",
        /// a CD or DVD drive
        Cd = "cd",
        /// a scanner
        Scanner = "scanner",
        /// an optical memory device
        Optical = "optical",
        /// a medium changer
        Changer = "changer",
        /// a communications device
        Communications = "communications",
        /// a storage array controller
        Array = "array",
        /// an enclosure
        Enclosure = "enclosure",
        /// a simplified direct-access device
        SimpleDisk = "simple-disk",
        /// an optical card reader
        CardReader = "card-reader",
        /// an object-based storage device
        Object = "object",
        /// an automation/drive interface
        Automation = "automation",
        /// a host-managed zoned disk
        Zoned = "zoned",
    }
}

/// The words for device types, with what they say.
pub(crate) static DEVICE_TYPES: &[(&str, &str)] = DeviceType::WORDS;

impl DeviceType {
    /// Every type, with its code.
    const ALL: &'static [(Self, PeripheralType)] = &[
        (Self::Disk, PeripheralType::DISK),
        (Self::Tape, PeripheralType::TAPE),
        (Self::Printer, PeripheralType::PRINTER),
        (Self::Processor, PeripheralType::PROCESSOR),
        (Self::WriteOnce, PeripheralType::WRITE_ONCE),
        (Self::Cd, PeripheralType::CD_DVD),
        (Self::Scanner, PeripheralType::SCANNER),
        (Self::Optical, PeripheralType::OPTICAL_MEMORY),
        (Self::Changer, PeripheralType::CHANGER),
        (Self::Communications, PeripheralType::COMMUNICATIONS),
        (Self::Array, PeripheralType::STORAGE_ARRAY),
        (Self::Enclosure, PeripheralType::ENCLOSURE),
        (Self::SimpleDisk, PeripheralType::SIMPLE_DISK),
        (Self::CardReader, PeripheralType::CARD_READER),
        (Self::Object, PeripheralType::OBJECT_STORAGE),
        (Self::Automation, PeripheralType::AUTOMATION),
        (Self::Zoned, PeripheralType::ZONED),
    ];

    /// Its code in INQUIRY data.
    pub(crate) fn code(self) -> PeripheralType {
        let found = Self::ALL.iter().find(|(word, _)| *word == self);
        found.map_or(PeripheralType::UNKNOWN, |(_, code)| *code)
    }

    /// The word for a code.
    pub(crate) fn word_of(code: PeripheralType) -> &'static str {
        Self::ALL.iter().find(|(_, known)| *known == code).map_or("unknown", |(word, _)| word.word())
    }
}

sections! {
    /// The keys of a volume with a handler.
    HandlerKeys (made: Live, removed: Live) {
        /// The type of the SCSI device that the handler is, for `kind = "handler"`: it gets SCSI commands, and the
        /// device has no size. Without this key, the handler serves blocks.
        device_type: Option<DeviceType> = optional() => EndsSessions;
        /// Time after which a command that the handler does not answer fails, for `kind = "handler"`. The handler gets
        /// no new commands until it has answered, or has ended. Without this key: 30 s; for a SCSI device, as long as a
        /// device of its type may take for the command. The time of a command of a SCSI device begins when no older one
        /// is in progress.
        command_timeout: Option<Period> = optional() => Live;
        /// How long commands wait for a handler that has ended, for `kind = "handler"`; afterwards they fail with NOT
        /// READY.
        restart_time: Period = or(Period(PATIENCE)) => Live;
        /// Whether the volume is thinly provisioned, so that the handler gets UNMAP, for `kind = "handler"`.
        discard: bool = or(false) => EndsSessions;
        /// The permissions of the socket, for `kind = "handler"`. A process that may open it may become the handler
        /// when there is none.
        socket_mode: Mode = or(Mode(SOCKET_MODE)) => EndsSessions;
    }
}

impl HandlerKeys {
    fn brief(&self) -> String {
        match self.device_type {
            Some(device) => device.word().into(),
            None if self.discard => "thin".into(),
            None => String::new(),
        }
    }
}

/// The declaration.
pub static STORE: StoreSchema = StoreSchema {
    word: "handler",
    doc: "a process of this machine that connects to the socket at the path, and serves the data, or is a SCSI device",
    noun: "handler",
    location: Location::Socket,
    size: SizeRule::RequiredWithout("device_type"),
    serves: Serves::DeviceWith("device_type"),
    keys: Some(KeySet::of::<HandlerKeys>()),
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_device_type_has_a_code_and_a_word() {
        assert_eq!(DeviceType::ALL.len(), DeviceType::WORDS.len());
        for (device, code) in DeviceType::ALL {
            assert_eq!((device.code(), DeviceType::word_of(*code)), (*code, device.word()));
        }
    }
}
