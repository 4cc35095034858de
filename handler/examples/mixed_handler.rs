//! A handler in Rust that serves memory, and has a SCSI command of its own: `mixed_handler SOCKET MEBIBYTES`.
//!
//! The command C0h returns the number of writes, as 8 bytes with the highest first:
//! `sg_raw -r 8 /dev/sdX c0 00 00 00 00 00`.

use lunar_handler::data::DataIn;
use lunar_handler::scsi::{CHECK_CONDITION, MixedDevice, Outcome, ScsiCommand, ScsiDevice};
use lunar_handler::serve::{Device, ServeError, serve_mixed};
use lunar_handler::wire::Status;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

const NAME: &str = "mixed_handler 1.0";
/// The operation code of the command.
const COUNT_WRITES: u8 = 0xc0;

struct Memory {
    bytes: Vec<u8>,
    writes: u64,
}

impl Memory {
    fn part(&mut self, offset: u64, length: usize) -> Result<&mut [u8], Status> {
        let begin = usize::try_from(offset).map_err(|_| Status::FAILED)?;
        let end = begin.checked_add(length).ok_or(Status::FAILED)?;
        self.bytes.get_mut(begin..end).ok_or(Status::FAILED)
    }
}

impl Device for Memory {
    fn name(&self) -> &str {
        NAME
    }

    fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), Status> {
        into.copy_from_slice(self.part(offset, into.len())?);
        Ok(())
    }

    fn write(&mut self, offset: u64, data: &[u8], _durable: bool) -> Result<(), Status> {
        self.part(offset, data.len())?.copy_from_slice(data);
        self.writes += 1;
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Status> {
        Ok(())
    }
}

impl ScsiDevice for Memory {
    fn name(&self) -> &str {
        NAME
    }

    /// A direct-access device.
    fn device_type(&self) -> u8 {
        0x00
    }

    fn execute(&mut self, command: &ScsiCommand<'_>, data_in: &mut DataIn<'_>) -> Outcome {
        if command.cdb.first() != Some(&COUNT_WRITES) {
            // ILLEGAL REQUEST, INVALID COMMAND OPERATION CODE. Lunar sends no other commands.
            let sense = vec![0x70, 0, 0x05, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x20, 0, 0, 0, 0, 0];
            return Outcome { status: CHECK_CONDITION, sense, residual: data_in.len() };
        }
        let count = data_in.put(0, &self.writes.to_be_bytes());
        Outcome { residual: data_in.len() - count, ..Outcome::default() }
    }
}

impl MixedDevice for Memory {
    fn operation_codes(&self) -> &[u8] {
        &[COUNT_WRITES]
    }

    fn blocks(&mut self) -> &mut dyn Device {
        self
    }

    fn commands(&mut self) -> &mut dyn ScsiDevice {
        self
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (Some(socket), Some(Ok(mebibytes))) = (arguments.first(), arguments.get(1).map(|text| text.parse::<usize>()))
    else {
        eprintln!("use: mixed_handler SOCKET MEBIBYTES");
        return ExitCode::from(2);
    };
    let mut memory = Memory { bytes: vec![0; mebibytes << 20], writes: 0 };
    loop {
        match serve_mixed(Path::new(socket), &mut memory) {
            Ok(()) => {}
            Err(ServeError::Io(_)) => std::thread::sleep(Duration::from_millis(500)),
            Err(why) => {
                eprintln!("{why}");
                return ExitCode::FAILURE;
            }
        }
    }
}
