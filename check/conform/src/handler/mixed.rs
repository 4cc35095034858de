//! A handler of the mixed level: blocks, and a SCSI command of its own.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use lunar_handler::data::DataIn;
use lunar_handler::scsi::{MixedDevice, Outcome, ScsiCommand, ScsiDevice};
use lunar_handler::serve::{Connection, Device, ServeError, serve_mixed};

use super::daemon::Daemon;
use super::{BLOCK, MIXED, Memory, SIZE, TARGET};
use crate::session::{Data, Login, Session};
use crate::test_data::pattern;

/// The commands of the handler: one keeps data, and the other returns them.
const KEEP: [u8; 6] = [0xc0, 0, 0, 0, 0, 0];
const RETURN: [u8; 6] = [0xc1, 0, 0, 0, 0, 0];
const UNKNOWN: (u8, u8, u8) = (0x05, 0x20, 0x00);
const RESERVATION_CONFLICT: u8 = 0x18;

struct Mixed {
    memory: Memory,
    kept: Kept,
}

struct Kept(Vec<u8>);

impl ScsiDevice for Kept {
    fn name(&self) -> &str {
        "kept"
    }

    fn device_type(&self) -> u8 {
        0x00
    }

    fn execute(&mut self, command: &ScsiCommand<'_>, data_in: &mut DataIn<'_>) -> Outcome {
        if command.cdb[0] == KEEP[0] {
            self.0 = command.data_out.to_vec();
            return Outcome::default();
        }
        let count = data_in.put(0, &self.0);
        Outcome { residual: data_in.len() - count, ..Outcome::default() }
    }
}

impl MixedDevice for Mixed {
    fn operation_codes(&self) -> &[u8] {
        &[KEEP[0], RETURN[0]]
    }

    fn blocks(&mut self) -> &mut dyn Device {
        &mut self.memory
    }

    fn commands(&mut self) -> &mut dyn ScsiDevice {
        &mut self.kept
    }
}

pub(super) fn own_commands(daemon: &Daemon) -> Result<()> {
    let socket = daemon.socket(MIXED);
    // INQUIRY is a command of Lunar.
    let greedy = Connection::open_mixed(&socket, "greedy", (SIZE, 0), [0x12].into_iter().collect());
    let refused = greedy.map(|mut connection| connection.receive());
    ensure!(
        matches!(&refused, Ok(Err(ServeError::Refused(why))) if why.contains("INQUIRY")),
        "a handler that has INQUIRY is not refused: {refused:?}"
    );
    let mut mixed = Mixed { memory: Memory(vec![0; usize::try_from(SIZE)?]), kept: Kept(Vec::new()) };
    let handler = std::thread::spawn(move || -> Result<()> {
        loop {
            match serve_mixed(&socket, &mut mixed) {
                Err(ServeError::Refused(_)) => std::thread::sleep(Duration::from_millis(50)),
                Err(ServeError::Io(_)) | Ok(()) => return Ok(()),
                Err(why) => bail!("{why}"),
            }
        }
    });
    daemon.until_state(MIXED, "connected")?;
    let mut first = daemon.session(MIXED)?;
    let mut second = Session::ready(daemon.portal, &Login::to(TARGET, "two"), MIXED)?;
    let data = pattern(0, 1, 16 * BLOCK);
    first.write(0, data.clone(), BLOCK)?;
    first.run(&KEEP, Data::Out(b"kept".to_vec()))?.good()?;
    let back = second.run(&RETURN, Data::In(4))?.good()?.data;
    ensure!(back == b"kept", "{back:02x?}");
    ensure!(second.read(0, 16, BLOCK)? == data, "the blocks have changed");
    second.run(&[0xc2, 0, 0, 0, 0, 0], Data::None)?.expect_sense(UNKNOWN.0, UNKNOWN.1, UNKNOWN.2)?;
    // RESERVE(6), RELEASE(6)
    first.run(&[0x16, 0, 0, 0, 0, 0], Data::None)?.good()?;
    let refused = second.run(&RETURN, Data::In(64))?.status;
    ensure!(refused == RESERVATION_CONFLICT, "status is {refused:02x}h");
    first.run(&[0x17, 0, 0, 0, 0, 0], Data::None)?.good()?;
    ensure!(!handler.is_finished(), "the handler has ended: {:?}", handler.join());
    second.logout()?;
    first.logout().context("after the commands of the handler")
}
