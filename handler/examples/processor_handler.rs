//! A handler in Rust that is a SCSI device: a processor (SPC-2 clause 9) that keeps what SEND brings, and returns it to
//! RECEIVE. `processor_handler SOCKET`.

use lunar_handler::data::DataIn;
use lunar_handler::scsi::{CHECK_CONDITION, Nexus, Outcome, ScsiCommand, ScsiDevice};
use lunar_handler::serve::{ServeError, serve_scsi};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// PERIPHERAL DEVICE TYPE.
const PROCESSOR: u8 = 0x03;

#[derive(Default)]
struct Processor {
    message: Vec<u8>,
}

/// CHECK CONDITION: ILLEGAL REQUEST with this additional sense code.
fn illegal(code: u8, data_in: &DataIn<'_>) -> Outcome {
    let sense = vec![0x70, 0, 0x05, 0, 0, 0, 0, 10, 0, 0, 0, 0, code, 0, 0, 0, 0, 0];
    Outcome { status: CHECK_CONDITION, sense, residual: data_in.len() }
}

/// GOOD with this data, as far as the initiator expects it.
fn answer(bytes: &[u8], data_in: &mut DataIn<'_>) -> Outcome {
    let count = data_in.put(0, bytes);
    Outcome { residual: data_in.len() - count, ..Outcome::default() }
}

impl ScsiDevice for Processor {
    fn name(&self) -> &str {
        "processor_handler 1.0"
    }

    fn device_type(&self) -> u8 {
        PROCESSOR
    }

    fn attach(&mut self, nexus: &Nexus) {
        println!("nexus {} begins: {}", nexus.id, nexus.initiator);
    }

    fn reset(&mut self) {
        self.message.clear();
    }

    fn execute(&mut self, command: &ScsiCommand<'_>, data_in: &mut DataIn<'_>) -> Outcome {
        match command.cdb {
            // TEST UNIT READY
            [0x00, ..] => Outcome::default(),
            // INQUIRY: standard data only
            [0x12, 0, 0, high, low, _] => {
                let data = [&[PROCESSOR, 0, 6, 2, 31, 0, 0, 0][..], b"EXAMPLE PROCESSOR       1   "].concat();
                let allocation = usize::from(u16::from_be_bytes([*high, *low]));
                answer(&data[..data.len().min(allocation)], data_in)
            }
            // SEND and RECEIVE
            [0x0a, ..] => {
                self.message = command.data_out.to_vec();
                Outcome::default()
            }
            [0x08, ..] => answer(&self.message, data_in),
            // INVALID FIELD IN CDB, INVALID COMMAND OPERATION CODE
            [0x12, ..] => illegal(0x24, data_in),
            _ => illegal(0x20, data_in),
        }
    }
}

fn main() -> ExitCode {
    let Some(socket) = std::env::args().nth(1) else {
        eprintln!("use: processor_handler SOCKET");
        return ExitCode::from(2);
    };
    let mut processor = Processor::default();
    loop {
        match serve_scsi(Path::new(&socket), &mut processor) {
            Ok(()) => {}
            Err(ServeError::Io(_)) => std::thread::sleep(Duration::from_millis(500)),
            Err(why) => {
                eprintln!("{why}");
                return ExitCode::FAILURE;
            }
        }
    }
}
