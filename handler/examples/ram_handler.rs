//! A handler in Rust that serves memory: `ram_handler SOCKET MEBIBYTES`.

use lunar_handler::serve::{Device, ServeError, Unit, serve};
use lunar_handler::wire::{Status, features};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

struct Memory(Vec<u8>);

impl Memory {
    fn part(&mut self, offset: u64, length: u64) -> Result<&mut [u8], Status> {
        let begin = usize::try_from(offset).map_err(|_| Status::FAILED)?;
        let end = usize::try_from(offset + length).map_err(|_| Status::FAILED)?;
        self.0.get_mut(begin..end).ok_or(Status::FAILED)
    }
}

impl Device for Memory {
    fn name(&self) -> &str {
        "ram_handler 1.0"
    }

    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn features(&self) -> u64 {
        features::ZERO
    }

    fn begin(&mut self, unit: &Unit) {
        println!("serving volume {}, {} bytes", unit.name, unit.size);
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), Status> {
        into.copy_from_slice(self.part(offset, into.len() as u64)?);
        Ok(())
    }

    fn write(&mut self, offset: u64, data: &[u8], _durable: bool) -> Result<(), Status> {
        self.part(offset, data.len() as u64)?.copy_from_slice(data);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Status> {
        Ok(())
    }

    fn zero(&mut self, offset: u64, length: u64, _release: bool) -> Result<(), Status> {
        self.part(offset, length)?.fill(0);
        Ok(())
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (Some(socket), Some(Ok(mebibytes))) = (arguments.first(), arguments.get(1).map(|text| text.parse::<usize>()))
    else {
        eprintln!("use: ram_handler SOCKET MEBIBYTES");
        return ExitCode::from(2);
    };
    let mut memory = Memory(vec![0; mebibytes << 20]);
    loop {
        match serve(Path::new(socket), &mut memory) {
            Ok(()) => {}
            Err(ServeError::Io(_)) => std::thread::sleep(Duration::from_millis(500)),
            Err(why) => {
                eprintln!("{why}");
                return ExitCode::FAILURE;
            }
        }
    }
}
