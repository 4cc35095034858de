//! A handler in Rust that stores nothing: writes are dropped, and reads return zeroes. It shows what a handler costs.
//! `null_handler SOCKET`.

use lunar_handler::serve::{Device, ServeError, serve};
use lunar_handler::wire::Status;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

struct Null;

impl Device for Null {
    fn name(&self) -> &str {
        "null_handler 1.0"
    }

    /// Enough for every volume of a test.
    fn size(&self) -> u64 {
        1 << 50
    }

    fn read(&mut self, _offset: u64, into: &mut [u8]) -> Result<(), Status> {
        into.fill(0);
        Ok(())
    }

    fn write(&mut self, _offset: u64, _data: &[u8], _durable: bool) -> Result<(), Status> {
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Status> {
        Ok(())
    }
}

fn main() -> ExitCode {
    let Some(socket) = std::env::args().nth(1) else {
        eprintln!("use: null_handler SOCKET");
        return ExitCode::from(2);
    };
    loop {
        match serve(Path::new(&socket), &mut Null) {
            Ok(()) => {}
            Err(ServeError::Io(_)) => std::thread::sleep(Duration::from_millis(100)),
            Err(why) => {
                eprintln!("{why}");
                return ExitCode::FAILURE;
            }
        }
    }
}
