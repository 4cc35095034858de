//! Serves the changer and the drives of a library as handlers: one socket and one thread for each logical unit.

use crate::changer::{self, Changer};
use crate::drive::{self, SharedDrive};
use crate::library::Library;
use crate::scsi::Reply;
use lunar_handler::data::DataIn;
use lunar_handler::program::keep_serving;
use lunar_handler::scsi::{Outcome, ScsiCommand, ScsiDevice};
use lunar_handler::serve::serve_scsi;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

/// A device that its own thread and the rest of the library use.
trait Unit: Send + 'static {
    const DEVICE_TYPE: u8;
    const NAME: &'static str;
    fn execute(&self, command: &ScsiCommand<'_>, data_in: &mut DataIn<'_>) -> Reply;
    fn reset(&self);
    fn detach(&self, nexus: u64) {
        let _ = nexus;
    }
}

fn lock(changer: &Mutex<Changer>) -> MutexGuard<'_, Changer> {
    changer.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Unit for Arc<Mutex<Changer>> {
    const DEVICE_TYPE: u8 = changer::DEVICE_TYPE;
    const NAME: &'static str = concat!("lunar-tape changer ", env!("CARGO_PKG_VERSION"));

    fn execute(&self, command: &ScsiCommand<'_>, data_in: &mut DataIn<'_>) -> Reply {
        lock(self).execute_in_place(command.nexus, command.cdb, command.data_out, data_in)
    }

    fn reset(&self) {
        lock(self).reset();
    }

    fn detach(&self, nexus: u64) {
        lock(self).detach(nexus);
    }
}

impl Unit for Arc<SharedDrive> {
    const DEVICE_TYPE: u8 = drive::DEVICE_TYPE;
    const NAME: &'static str = concat!("lunar-tape drive ", env!("CARGO_PKG_VERSION"));

    fn execute(&self, command: &ScsiCommand<'_>, data_in: &mut DataIn<'_>) -> Reply {
        self.lock().execute_in_place(command.cdb, command.data_out, data_in)
    }

    fn reset(&self) {
        self.lock().reset();
    }
}

/// A device as a handler.
struct Served<U>(U);

impl<U: Unit> ScsiDevice for Served<U> {
    fn name(&self) -> &str {
        U::NAME
    }

    fn device_type(&self) -> u8 {
        U::DEVICE_TYPE
    }

    /// The handler of a new connection counts as switched on: Lunar tells that to all nexuses, and knows of no
    /// prevention.
    fn begin(&mut self, _: &lunar_handler::serve::Unit) {
        self.0.reset();
    }

    fn detach(&mut self, nexus: u64) {
        self.0.detach(nexus);
    }

    fn reset(&mut self) {
        self.0.reset();
    }

    fn execute(&mut self, command: &ScsiCommand<'_>, data_in: &mut DataIn<'_>) -> Outcome {
        let reply = self.0.execute(command, data_in);
        // Only one of the directions has data.
        let expected = command.data_out.len() + data_in.len();
        Outcome { status: reply.status.0, sense: reply.sense, residual: expected.saturating_sub(reply.moved) }
    }
}

/// The sockets of a library in a folder: that of the changer, then those of the drives.
pub fn sockets(folder: &Path, drives: usize) -> impl Iterator<Item = PathBuf> {
    let drives = (0..drives).map(|number| format!("drive{number}.sock"));
    std::iter::once("changer.sock".to_owned()).chain(drives).map(move |name| folder.join(name))
}

/// Serves a library at the sockets that Lunar makes in a folder, in threads of their own.
///
/// # Errors
/// If a thread cannot be started.
pub fn start(library: &Library, folder: &Path) -> io::Result<()> {
    // Initiators see which drives have cartridges, and that they become ready.
    let loads = library.changer().begin_loads();
    let mut sockets = sockets(folder, library.drives.len());
    let mut next = || sockets.next().unwrap_or_default();
    spawn(next(), Served(library.changer.clone()))?;
    library.drives.iter().try_for_each(|drive| spawn(next(), Served(drive.clone())))?;
    loads
        .into_iter()
        .try_for_each(|load| thread::Builder::new().name("load".into()).spawn(move || load.run()).map(drop))
}

fn spawn<U: Unit>(socket: PathBuf, mut device: Served<U>) -> io::Result<()> {
    let name = socket.file_stem().and_then(|name| name.to_str()).unwrap_or("device").to_owned();
    let serve = move || keep_serving("lunar-tape", &socket, |socket| serve_scsi(socket, &mut device));
    thread::Builder::new().name(name).spawn(serve).map(|_: thread::JoinHandle<()>| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drive::DriveFacts;
    use crate::generation::Generation;
    use lunar_handler::scsi::{CHECK_CONDITION, GOOD};
    use std::time::Duration;

    fn command<'a>(cdb: &'a [u8], data_out: &'a [u8]) -> ScsiCommand<'a> {
        ScsiCommand { nexus: 1, cdb, attribute: 0, data_out: data_out.into(), timeout: Duration::from_secs(1) }
    }

    #[test]
    fn residuals_count_the_bytes_that_were_not_moved() {
        let facts = DriveFacts { serial: "A".into(), generation: Generation::Lto8, compression: false };
        let mut drive = Served(SharedDrive::new(facts));
        let mut data = [0; 100];
        let outcome = drive.execute(&command(&[0x12, 0, 0, 0, 36, 0], &[]), &mut DataIn::from(&mut data[..]));
        assert_eq!((outcome.status, outcome.residual), (GOOD, 64));
        let outcome = drive.execute(&command(&[0x0a, 0, 0, 0, 10, 0], &[0; 10]), &mut DataIn::from(&mut [][..]));
        assert_eq!((outcome.status, outcome.residual), (CHECK_CONDITION, 10));
        assert_eq!(outcome.sense.len(), 18);
        assert_eq!(drive.device_type(), 1);
    }

    #[test]
    fn each_logical_unit_has_a_socket() {
        let all: Vec<PathBuf> = sockets(Path::new("/run"), 2).collect();
        assert_eq!(all, ["/run/changer.sock", "/run/drive0.sock", "/run/drive1.sock"].map(PathBuf::from));
    }
}
