//! Handlers of the mixed level: blocks, and SCSI commands that Lunar does not have.

use crate::device_tests::{Bench, moved, unit};
use crate::tests::{Folder, LIMIT, Memory, SIZE};
use lunar_core::io::{Completion, Data, Io, Op};
use lunar_handler::data::DataIn;
use lunar_handler::scsi::{MixedDevice, Nexus, Outcome, ScsiCommand, ScsiDevice};
use lunar_handler::serve::{Connection, Device, ServeError, serve_mixed};
use lunar_handler::wire::{Message, OperationCodes};
use lunar_reactor::Choice;
use lunar_scsi::command::Status;
use lunar_scsi::device_server::ForwardedData;
use lunar_scsi::peripheral::PeripheralType;
use lunar_scsi::policy::OpCode;
use lunar_suite::Want;
use std::path::Path;
use std::time::Instant;

/// The command of the handler: it returns what it has heard.
const TELL: [u8; 6] = [0xc0, 0, 0, 0, 0, 0];

/// Memory with a command.
struct Mixed {
    memory: Memory,
    heard: Commands,
}

#[derive(Default)]
struct Commands(Vec<u8>);

impl ScsiDevice for Commands {
    fn name(&self) -> &str {
        "not asked"
    }

    fn device_type(&self) -> u8 {
        unreachable!("it is not asked")
    }

    fn attach(&mut self, _: &Nexus) {
        self.0.push(b'A');
    }

    fn detach(&mut self, _: u64) {
        self.0.push(b'D');
    }

    fn reset(&mut self) {
        self.0.push(b'R');
    }

    fn execute(&mut self, command: &ScsiCommand<'_>, data_in: &mut DataIn<'_>) -> Outcome {
        self.0.push(command.cdb[0]);
        let count = data_in.put(0, &self.0);
        Outcome { residual: data_in.len() - count, ..Outcome::default() }
    }
}

impl MixedDevice for Mixed {
    fn operation_codes(&self) -> &[u8] {
        &[TELL[0], 0xff]
    }

    fn blocks(&mut self) -> &mut dyn Device {
        &mut self.memory
    }

    fn commands(&mut self) -> &mut dyn ScsiDevice {
        &mut self.heard
    }
}

#[test]
fn a_mixed_handler_keeps_the_contract_of_blocks_and_executes_its_commands() {
    let folder = Folder::new("mixed");
    let volume = folder.volume(|_| {});
    let socket = folder.socket();
    let mut mixed = Mixed { memory: Memory(vec![0; SIZE as usize]), heard: Commands::default() };
    let handler = std::thread::spawn(move || {
        let ended = serve_mixed(&socket, &mut mixed);
        (ended, mixed.heard.0)
    });
    lunar_suite::conforms(&|reactor| volume.open(reactor), &Want::default());
    let reactor = lunar_suite::bench::reactor(Choice::Epoll).expect("a driver");
    let store = volume.open(&reactor).expect("it opens");
    let bench = Bench { reactor: &reactor, device: volume.open_commands(&reactor) };
    let has = |code| bench.device.has_command(OpCode(code));
    assert_eq!((has(0xc0), has(0xff), has(0xc1), has(0x28)), (true, true, false, false));
    reactor.run(async {
        let flush = || async {
            let mut completion = Completion::new();
            store.submit(Io { op: Op::Flush, offset: 0, data: Data::None }, completion.token());
            assert_eq!(completion.wait().await.result, Ok(0));
        };
        flush().await;
        assert!(volume.life().shared().is_flushed());
        let reply = bench.start(1, &TELL, ForwardedData::In(bench.memory(8))).wait().await.expect("executed");
        assert_eq!((reply.status, moved(&reply)), (Status::GOOD, vec![b'A', TELL[0]]));
        assert!(!volume.life().shared().is_flushed(), "the command may have changed blocks");
        flush().await;
        assert_eq!(bench.device.reset().await, Ok(()));
    });
    drop((bench, store, volume));
    let (ended, heard) = handler.join().expect("it does not panic");
    assert!(matches!(ended, Ok(())), "{ended:?}");
    assert_eq!(heard, [b'A', TELL[0], b'R', b'D']);
}

/// The reason of the refusal of a handler with these codes.
fn refusal(socket: &Path, codes: OperationCodes) -> Option<String> {
    let begun = Instant::now();
    loop {
        assert!(begun.elapsed() < LIMIT, "no answer arrives");
        let Ok(mut connection) = Connection::open_mixed(socket, "script", (SIZE, 0), codes) else { continue };
        match connection.receive() {
            Err(ServeError::Refused(why)) => return Some(why),
            Ok(Some(Message::Welcome(_))) => return None,
            other => drop(other),
        }
    }
}

#[test]
fn a_handler_has_no_command_of_lunar_and_no_blocks_of_a_device() {
    let folder = Folder::new("mixed-refused");
    let volume = folder.volume(|_| {});
    for (code, name) in [(0x28, "READ(10)"), (0x12, "INQUIRY"), (0xa3, "REPORT"), (0x43, "READ TOC")] {
        let why = refusal(&folder.socket(), OperationCodes::from_iter([0xc0, code])).expect("it is refused");
        assert!(why.contains(name) && why.contains("C0h to FFh"), "{why}");
    }
    assert_eq!(refusal(&folder.socket(), OperationCodes::from_iter([0x85, 0xc0])), None);
    drop(volume);
    let folder = Folder::new("mixed-device");
    let _device = unit(&folder, |unit| unit.device = Some(PeripheralType::DISK));
    let why = refusal(&folder.socket(), OperationCodes::default()).expect("it is refused");
    assert!(why.contains("it serves blocks and SCSI commands (level 3)"), "{why}");
}
