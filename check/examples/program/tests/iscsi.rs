//! The example back ends, served by the program and used over iSCSI by our initiator.

use lunar_core::outgoing::Data;
use lunar_iscsi_initiator::cdb::{self, Key, Sense};
use lunar_iscsi_initiator::config::Offer;
use lunar_iscsi_initiator::session::{Command, Event, Moves, Session};
use lunar_pattern_store::pattern;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

/// No answer takes as long.
const PATIENCE: Duration = Duration::from_secs(20);
const TARGET: &str = "iqn.2026-01.io.lunar:examples";
/// Status CHECK CONDITION.
const CHECK_CONDITION: u8 = 0x02;

/// The program, which ends with the test.
struct Program {
    child: Child,
    port: u16,
    state: std::path::PathBuf,
}

impl Program {
    /// Serves these volumes at a free port of the loopback.
    fn serve(name: &str, volumes: &[&str]) -> Self {
        let state = std::env::temp_dir().join(format!("lunar-examples-{name}-{}", std::process::id()));
        let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_lunar-examples"))
            .args(["serve", "--listen", "127.0.0.1:0", "--name", TARGET, "--cores", "2", "--memory", "16"])
            .args(volumes)
            .env("STATE_DIRECTORY", &state)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let port = lines.map_while(Result::ok).find_map(|line| port_of(&line)).expect("the program says its port");
        Self { child, port, state }
    }

    /// Logs in to a LUN.
    fn log_in(&self, lun: u16) -> Client {
        /// Each session is a nexus of its own.
        static COUNT: AtomicU8 = AtomicU8::new(0);
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("the program listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
        let isid = [0x80, 0, 0, 0, 0, COUNT.fetch_add(1, Ordering::Relaxed)];
        let session = Session::new(Offer { target: Some(TARGET.to_owned()), isid, ..Offer::default() });
        let mut client = Client { stream, session, lun: cdb::lun(lun) };
        client.until(|event| matches!(event, Event::LoggedIn));
        client
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.state);
    }
}

/// The port in a line that names the portal.
fn port_of(line: &str) -> Option<u16> {
    let (_, rest) = line.split_once("127.0.0.1:")?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// A session to one LUN.
struct Client {
    stream: TcpStream,
    session: Session,
    lun: [u8; 8],
}

/// The result of a command.
#[derive(PartialEq, Eq, Debug)]
struct Answer {
    status: u8,
    key: Option<Key>,
    data: Vec<u8>,
}

impl Client {
    /// Sends and receives until `is_done` returns true.
    fn until(&mut self, mut is_done: impl FnMut(Event<'_>) -> bool) {
        let (mut done, mut buffer) = (false, vec![0; 64 << 10]);
        while !done {
            let output = self.session.output().to_vec();
            self.stream.write_all(&output).expect("the target reads");
            self.session.sent(output.len());
            let count = self.stream.read(&mut buffer).expect("the target answers");
            assert_ne!(count, 0, "the target closed the connection");
            self.session.receive(&buffer[..count], &mut |event| done |= is_done(event)).expect("the protocol is kept");
        }
    }

    fn call(&mut self, cdb: &[u8], moves: Moves) -> Answer {
        let command = Command { cookie: 7, lun: self.lun, cdb, moves };
        self.session.submit(command).expect("the command window is open");
        let mut answer = Answer { status: 0xff, key: None, data: Vec::new() };
        self.until(|event| match event {
            Event::Data { bytes, .. } => {
                answer.data.extend_from_slice(bytes);
                false
            }
            Event::Done { status, sense, .. } => {
                answer.status = status;
                answer.key = Sense::parse(sense).map(|sense| sense.key);
                true
            }
            _ => false,
        });
        answer
    }

    /// A command that ends with GOOD; returns its data.
    fn good(&mut self, cdb: &[u8], moves: Moves) -> Vec<u8> {
        let answer = self.call(cdb, moves);
        assert_eq!((answer.status, answer.key), (0, None), "{cdb:02x?}");
        answer.data
    }

    /// Takes the unit attention of a new nexus.
    fn take_attention(&mut self) {
        let answer = self.call(&[0; 6], Moves::Nothing);
        assert_eq!((answer.status, answer.key), (CHECK_CONDITION, Some(Key::UNIT_ATTENTION)));
    }
}

fn out(bytes: &[u8]) -> Moves {
    Moves::Out(Data::new(bytes.into()))
}

/// READ(6) or WRITE(6) of one variable block.
fn block(operation: u8, len: usize) -> [u8; 6] {
    let [_, high, middle, low] = (len as u32).to_be_bytes();
    [operation, 0, high, middle, low, 0]
}

const READ: u8 = 0x08;
const WRITE: u8 = 0x0a;
const REWIND: [u8; 6] = [0x01, 0, 0, 0, 0, 0];

#[test]
fn a_tape_drive_is_a_forwarded_logical_unit() {
    let program = Program::serve("tape", &["tape:", "ram:1M"]);
    let mut tape = program.log_in(0);
    let inquiry = tape.good(&[0x12, 0, 0, 0, 96, 0], Moves::In(96));
    assert_eq!((inquiry[0], &inquiry[8..24]), (0x01, &b"EXAMPLE TAPE DRI"[..]), "the data of the device");
    tape.take_attention();
    tape.good(&[0; 6], Moves::Nothing);
    // The identity is Lunar's, as of any other volume, so Lunar adds its pages to the list of the device.
    let pages = tape.good(&[0x12, 1, 0x00, 0, 252, 0], Moves::In(252));
    assert!(pages[4] == 0x00 && pages[4..].contains(&0x83), "{pages:02x?}");
    let page = tape.good(&[0x12, 1, 0x83, 0, 252, 0], Moves::In(252));
    assert_eq!((page[0], page[1]), (0x01, 0x83));
    let limits = tape.good(&[0x05, 0, 0, 0, 0, 0], Moves::In(6));
    assert_eq!(limits, [0, 0x04, 0, 0, 0, 1]);
    assert_eq!(tape.good(&[0x1a, 0, 0, 0, 12, 0], Moves::In(12)).len(), 12);

    let blocks: Vec<Vec<u8>> = [1, 512, 100_003, lunar_tape_drive::BLOCK_BYTES_MAX]
        .into_iter()
        .map(|len| (0..len).map(|at| (at * 7 + len) as u8).collect())
        .collect();
    for bytes in &blocks {
        tape.good(&block(WRITE, bytes.len()), out(bytes));
    }
    tape.good(&REWIND, Moves::Nothing);
    for bytes in &blocks {
        assert!(tape.good(&block(READ, bytes.len()), Moves::In(bytes.len() as u32)) == *bytes, "{} bytes", bytes.len());
    }
    let end = tape.call(&block(READ, 512), Moves::In(512));
    assert_eq!((end.status, end.key), (CHECK_CONDITION, Some(Key::BLANK_CHECK)), "the end of data");
    let unknown = tape.call(&[0xd5, 0, 0, 0, 0, 0], Moves::Nothing);
    assert_eq!((unknown.status, unknown.key), (CHECK_CONDITION, Some(Key::ILLEGAL_REQUEST)));

    // REPORT LUNS is answered by Lunar and lists the device and the disk.
    let luns = tape.good(&[0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0], Moves::In(64));
    assert_eq!(luns[..4], 16_u32.to_be_bytes());
    let mut disk = program.log_in(1);
    assert_eq!(disk.good(&[0x12, 0, 0, 0, 36, 0], Moves::In(36))[0], 0x00);
}

#[test]
fn a_tape_is_the_same_in_all_sessions() {
    let program = Program::serve("shared", &["tape:"]);
    // The cores take connections in turns.
    let mut clients: Vec<Client> = (0..4).map(|_| program.log_in(0)).collect();
    clients.iter_mut().for_each(Client::take_attention);
    for (at, client) in clients.iter_mut().enumerate() {
        client.good(&block(WRITE, 8), out(&[at as u8; 8]));
    }
    clients[0].good(&REWIND, Moves::Nothing);
    for (at, client) in clients.iter_mut().rev().enumerate() {
        assert_eq!(client.good(&block(READ, 8), Moves::In(8)), [at as u8; 8]);
    }
}

#[test]
fn a_store_is_one_folder_and_one_line_in_the_registry() {
    let program = Program::serve("pattern", &["pattern:1M"]);
    let mut disk = program.log_in(0);
    disk.take_attention();
    let read = cdb::read(2045, 3, false);
    assert!(disk.good(&read, Moves::In(3 * 512)) == pattern(2045 * 512, 3 * 512));
    let answer = disk.call(&cdb::write(0, 1, false), out(&[0; 512]));
    assert_eq!((answer.status, answer.key), (CHECK_CONDITION, Some(Key::DATA_PROTECT)));
}
