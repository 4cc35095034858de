//! A handler that is a SCSI device of two initiators: it ends in the middle of a command, and comes back.

use std::path::Path;
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail, ensure};
use lunar_handler::data::DataIn;
use lunar_handler::scsi::{Nexus, Outcome, ScsiCommand, ScsiDevice};
use lunar_handler::serve::{Connection, ServeError, serve_scsi};
use lunar_handler::wire::{Operation, Status};

use super::daemon::Daemon;
use super::{DEVICE, LIMIT};
use crate::session::{CHECK_CONDITION, Data, GOOD, Session};

/// PERIPHERAL DEVICE TYPE of the device: a processor.
const PROCESSOR: u8 = 0x03;
const TEST_UNIT_READY: [u8; 6] = [0; 6];
const INQUIRY: [u8; 6] = [0x12, 0, 0, 0, 96, 0];
/// Vendor specific commands of the device: it keeps data, returns them, and counts.
const KEEP: [u8; 6] = [0xc5, 0, 0, 0, 0, 0];
const RETURN: [u8; 6] = [0xc6, 0, 0, 0, 0, 0];
const POWER_ON: (u8, u8, u8) = (0x06, 0x29, 0x00);
const BUS_DEVICE_RESET: (u8, u8, u8) = (0x06, 0x29, 0x03);
const CLEARED: (u8, u8, u8) = (0x0b, 0x2f, 0x02);
const RESERVATION_CONFLICT: u8 = 0x18;

/// A processor with a memory of one value.
struct Processor {
    kept: Vec<u8>,
    keeps: u32,
    heard: Mutex<Sender<String>>,
}

impl Processor {
    fn say(&self, what: String) {
        let heard = self.heard.lock();
        _ = heard.map(|heard| heard.send(what));
    }
}

impl ScsiDevice for Processor {
    fn name(&self) -> &str {
        "processor"
    }

    fn device_type(&self) -> u8 {
        PROCESSOR
    }

    fn attach(&mut self, nexus: &Nexus) {
        self.say(nexus.initiator.clone());
    }

    fn detach(&mut self, _: u64) {
        self.say("detach".into());
    }

    fn reset(&mut self) {
        self.say("reset".into());
    }

    fn execute(&mut self, command: &ScsiCommand<'_>, data_in: &mut DataIn<'_>) -> Outcome {
        let known = match command.cdb[0] {
            0x00 => Vec::new(),
            0x12 if command.cdb[1] == 0 => {
                [&[PROCESSOR, 0, 6, 2, 31, 0, 0, 0][..], b"LUNAR   PROCESSOR       1   "].concat()
            }
            0xc5 => {
                self.kept = command.data_out.to_vec();
                self.keeps += 1;
                Vec::new()
            }
            0xc6 => [&self.keeps.to_be_bytes()[..], &self.kept].concat(),
            _ => {
                // ILLEGAL REQUEST, INVALID COMMAND OPERATION CODE
                let sense = vec![0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x20, 0, 0, 0, 0, 0];
                return Outcome { status: CHECK_CONDITION, sense, residual: data_in.len() };
            }
        };
        let count = data_in.put(0, &known);
        Outcome { residual: data_in.len() - count, ..Outcome::default() }
    }
}

/// A command that may meet a unit attention condition of the past.
fn settled(session: &mut Session) -> Result<()> {
    let end = Instant::now() + LIMIT;
    while session.run(&TEST_UNIT_READY, Data::None)?.status != GOOD {
        ensure!(Instant::now() < end, "the device does not become ready");
    }
    Ok(())
}

/// Connects as the device, and waits for the queues of both cores.
fn connected(socket: &Path) -> Result<Connection> {
    let end = Instant::now() + LIMIT;
    while Instant::now() < end {
        let mut connection = Connection::open_scsi(socket, "script", PROCESSOR)?;
        while connection.queues.len() < 2 {
            match connection.receive() {
                Ok(Some(_)) => {}
                Ok(None) | Err(ServeError::Refused(_)) => break,
                Err(why) => bail!("{why}"),
            }
        }
        if connection.queues.len() == 2 {
            return Ok(connection);
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    bail!("no queues arrive")
}

/// Answers everything until a KEEP arrives, and ends without an answer to it.
fn die_in_a_command(socket: &Path) -> Result<()> {
    let mut connection = connected(socket)?;
    let end = Instant::now() + LIMIT;
    loop {
        for queue in &mut connection.queues {
            while let Some(command) = queue.ring.take().map_err(|why| anyhow!("{why}"))? {
                let mut cdb = [0];
                ensure!(queue.data.read(usize::try_from(command.data.get())?, &mut cdb), "the place is outside");
                if Operation(command.operation) == Operation::SCSI && cdb[0] == KEEP[0] {
                    return Ok(());
                }
                queue.ring.complete(&command, Status::GOOD);
                queue.wake_lunar().map_err(|why| anyhow!("{why}"))?;
            }
        }
        ensure!(Instant::now() < end, "the command does not arrive");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// A status, or the sense of CHECK CONDITION.
fn expect(session: &mut Session, cdb: &[u8], data: Data, wanted: (u8, u8, u8)) -> Result<()> {
    session.run(cdb, data)?.expect_sense(wanted.0, wanted.1, wanted.2)
}

pub(super) fn shared(daemon: &Daemon) -> Result<()> {
    let socket = daemon.socket(DEVICE);
    let other = Connection::open(&socket, "blocks", 1 << 30, 0).map(|mut connection| connection.receive());
    ensure!(matches!(other, Ok(Err(ServeError::Refused(_)))), "a handler of blocks is accepted");
    // It ends in the middle of a command, and comes back in this process.
    let (say, heard) = channel();
    let mut processor = Processor { kept: Vec::new(), keeps: 0, heard: Mutex::new(say) };
    let handler = std::thread::spawn(move || -> Result<()> {
        die_in_a_command(&socket)?;
        loop {
            match serve_scsi(&socket, &mut processor) {
                Err(ServeError::Refused(_)) => std::thread::sleep(std::time::Duration::from_millis(50)),
                Err(ServeError::Io(_)) | Ok(()) => return Ok(()),
                Err(why) => bail!("{why}"),
            }
        }
    });
    let mut first = daemon.plain_session(DEVICE, "one")?;
    let mut second = daemon.plain_session(DEVICE, "two")?;
    daemon.until_state(DEVICE, "connected")?;
    settled(&mut first)?;
    settled(&mut second)?;
    let lost = first.run(&KEEP, Data::Out(b"lost".to_vec()))?;
    ensure!(lost.status == CHECK_CONDITION && lost.sense() == CLEARED, "{:02x} {:02x?}", lost.status, lost.sense());
    let begun = Instant::now();
    while daemon.listed(DEVICE)?["connections"].as_u64() < Some(2) {
        ensure!(begun.elapsed() < LIMIT && !handler.is_finished(), "the handler does not come back");
    }
    for session in [&mut first, &mut second] {
        expect(session, &TEST_UNIT_READY, Data::None, POWER_ON).context("after the handler came back")?;
    }
    let count = second.run(&RETURN, Data::In(4))?.good()?.data;
    ensure!(count == [0; 4], "a command of the dead handler was repeated: {count:02x?}");
    first.run(&KEEP, Data::Out(b"kept".to_vec()))?.good()?;
    let back = second.run(&RETURN, Data::In(8))?.good()?.data;
    ensure!(back == b"\0\0\0\x01kept", "{back:02x?}");
    let inquiry = first.run(&INQUIRY, Data::In(96))?.good()?.data;
    ensure!(inquiry.first() == Some(&PROCESSOR) && inquiry[8..].starts_with(b"LUNAR   PROCESSOR"), "{inquiry:02x?}");
    expect(&mut first, &[0xc9; 6], Data::None, (0x05, 0x20, 0x00))?;
    // RESERVE(6), RELEASE(6): of the target.
    first.run(&[0x16, 0, 0, 0, 0, 0], Data::None)?.good()?;
    let refused = second.run(&KEEP, Data::Out(vec![1]))?.status;
    ensure!(refused == RESERVATION_CONFLICT, "status is {refused:02x}h");
    first.run(&[0x17, 0, 0, 0, 0, 0], Data::None)?.good()?;
    first.reset_unit()?;
    for session in [&mut first, &mut second] {
        expect(session, &TEST_UNIT_READY, Data::None, BUS_DEVICE_RESET).context("after LOGICAL UNIT RESET")?;
    }
    second.logout()?;
    let end = Instant::now() + LIMIT;
    let mut all = Vec::new();
    while !(all.iter().any(|what| what == "reset") && all.iter().any(|what| what == "detach")) {
        let wait = end.saturating_duration_since(Instant::now());
        all.push(heard.recv_timeout(wait).with_context(|| format!("the device hears {all:?} only"))?);
    }
    let begun = |name: &str| all.iter().any(|what: &String| what.contains(name));
    ensure!(begun(":one,i,0x") && begun(":two,i,0x"), "{all:?}");
    first.logout()
}
