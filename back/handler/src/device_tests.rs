//! SCSI devices that a handler serves.

use crate::life::Lifetime;
use crate::tests::{Folder, LIMIT, connected_by};
use crate::volume::HandlerUnit;
use lunar_core::io::Fault;
use lunar_core::mem::SgMut;
use lunar_core::port::NexusName;
use lunar_handler::data::DataIn;
use lunar_handler::scsi::{CHECK_CONDITION, Nexus, OWN_NEXUS, Outcome, ScsiCommand, ScsiDevice};
use lunar_handler::serve::{Connection, ServeError, serve_scsi};
use lunar_handler::wire::{Operation, Status, Submission};
use lunar_reactor::{Choice, Reactor};
use lunar_scsi::command::{Cdb, Status as ScsiStatus, TaskAttribute};
use lunar_scsi::device_server::{DeviceServer, ForwardedCommand, ForwardedData, ForwardedReply, PendingReply};
use lunar_scsi::forwarding::Terms;
use lunar_scsi::peripheral::PeripheralType;
use lunar_scsi::sense::{Asc, SenseKey};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Sender};
use std::time::{Duration, Instant};

const WRITE: [u8; 6] = [0x0a, 0, 0, 0, 8, 0];
const READ: [u8; 6] = [0x08, 0, 0, 0, 8, 0];
const INQUIRY: [u8; 6] = [0x12, 0, 0, 0, 36, 0];
const FAILING: [u8; 6] = [0xc0; 6];

/// A tape of one block, which tells what it hears.
struct Tape {
    block: Vec<u8>,
    heard: Sender<String>,
}

impl ScsiDevice for Tape {
    fn name(&self) -> &str {
        "tape"
    }

    fn device_type(&self) -> u8 {
        PeripheralType::TAPE.0
    }

    fn attach(&mut self, nexus: &Nexus) {
        assert_ne!(nexus.id, OWN_NEXUS);
        _ = self.heard.send(format!("attach {} at {}", nexus.initiator, nexus.target_port));
    }

    fn detach(&mut self, _: u64) {
        _ = self.heard.send("detach".into());
    }

    fn reset(&mut self) {
        _ = self.heard.send("reset".into());
    }

    fn execute(&mut self, command: &ScsiCommand<'_>, data_in: &mut DataIn<'_>) -> Outcome {
        let mut outcome = Outcome::default();
        match command.cdb {
            [0x0a, ..] => self.block = command.data_out.to_vec(),
            [0x08, ..] => {
                outcome.residual = data_in.len() - data_in.put(0, &self.block);
            }
            [0x12, ..] => _ = data_in.put(0, &[&[1, 0x80, 6, 2, 31, 0, 0, 0][..], &[b'T'; 28]].concat()),
            [0xc0, ..] => {
                outcome = Outcome { status: CHECK_CONDITION, sense: vec![0x70, 0, 3, 0, 0, 0, 0, 10], residual: 0 };
            }
            _ => outcome.status = 0x55,
        }
        outcome
    }
}

pub(crate) fn unit(folder: &Folder, edit: impl FnOnce(&mut crate::shared::Unit)) -> HandlerUnit {
    let mut unit = folder.unit();
    (unit.size, unit.device, unit.command_timeout) = (0, Some(PeripheralType::TAPE), None);
    edit(&mut unit);
    let life = Lifetime::begin(&unit).expect("the path is free");
    HandlerUnit { life, unit, device_type: PeripheralType::TAPE, terms: Terms::default() }
}

fn nexus(name: &str) -> Option<NexusName> {
    Some(NexusName { initiator: name.into(), target_port: 3 })
}

/// A device on a core, and the numbers of its commands.
pub(crate) struct Bench<'a> {
    pub(crate) reactor: &'a Reactor,
    pub(crate) device: std::rc::Rc<dyn DeviceServer>,
}

impl Bench<'_> {
    pub(crate) fn start(&self, id: u64, cdb: &[u8], data: ForwardedData) -> PendingReply {
        self.start_within(LIMIT, id, cdb, data)
    }

    fn start_within(&self, timeout: Duration, id: u64, cdb: &[u8], data: ForwardedData) -> PendingReply {
        let generation = self.device.generation();
        let pending = PendingReply::default();
        let cdb = Cdb::new(cdb).expect("short");
        let attribute = TaskAttribute::SIMPLE;
        let nexus = nexus("iqn.a,i,0x1");
        let command = ForwardedCommand { id, nexus, generation, cdb, attribute, data, timeout };
        self.device.submit(command, pending.duty());
        pending
    }

    fn out(&self, byte: u8) -> ForwardedData {
        let mut memory = self.memory(8);
        memory.fill_from(0, byte);
        ForwardedData::Out(memory.share())
    }

    pub(crate) fn memory(&self, len: usize) -> SgMut {
        self.reactor.arena().take_sg(len).expect("room")
    }

    async fn until(&self, is_so: impl Fn() -> bool) {
        let begun = Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < LIMIT, "it does not come to pass");
            self.reactor.sleep(Duration::from_millis(2)).await;
        }
    }

    /// Waits for a handler, and tells everybody of it.
    async fn until_connected(&self, after: u64) {
        self.until(|| self.device.generation() > after).await;
        assert_eq!(self.device.take_event(), Some(Asc::POWER_ON_OR_RESET));
        self.device.event_told(self.device.generation());
        assert_eq!(self.device.take_event(), None);
    }
}

/// Runs `work` with the device on a core, and `script` beside it.
fn play<T: Send + 'static>(
    folder: &Folder,
    unit: &HandlerUnit,
    script: impl FnOnce(PathBuf) -> T + Send + 'static,
    work: impl AsyncFnOnce(&Bench<'_>),
) -> T {
    let reactor = lunar_suite::bench::reactor(Choice::Epoll).expect("a driver");
    let bench = Bench { reactor: &reactor, device: unit.open(&reactor) };
    let socket = folder.socket();
    let handler = std::thread::spawn(move || script(socket));
    reactor.run(work(&bench));
    drop(bench);
    handler.join().expect("the script does not panic")
}

pub(crate) fn moved(reply: &ForwardedReply) -> Vec<u8> {
    let ForwardedData::In(memory) = &reply.data else { return Vec::new() };
    let mut bytes = vec![0; reply.moved];
    memory.copy_to(0, &mut bytes);
    bytes
}

/// Connects as a tape drive, and waits for the queue.
fn connected(socket: &Path) -> Connection {
    connected_by(|| Connection::open_scsi(socket, "script", PeripheralType::TAPE.0))
}

/// The next command; an ATTACH is answered.
fn next(connection: &mut Connection) -> Submission {
    let begun = Instant::now();
    loop {
        match connection.queues[0].ring.take().expect("the rings are sound") {
            Some(command) if Operation(command.operation) == Operation::ATTACH => answer(connection, &command),
            Some(command) => return command,
            None => std::thread::yield_now(),
        }
        assert!(begun.elapsed() < LIMIT, "no command arrives");
    }
}

fn answer(connection: &mut Connection, command: &Submission) {
    connection.queues[0].ring.complete(command, Status::GOOD);
    connection.queues[0].wake_lunar().expect("the eventfd is there");
}

#[test]
fn commands_reach_the_handler_with_their_nexus_and_come_back_with_data_and_sense_data() {
    let folder = Folder::new("scsi");
    let unit = unit(&folder, |_| {});
    let (heard, told) = mpsc::channel();
    // The loop ends with the connection.
    let script = move |socket: PathBuf| serve_scsi(&socket, &mut Tape { block: Vec::new(), heard });
    let weak = unit.life.clone();
    let ended = play(&folder, &unit, script, async |bench| {
        bench.until_connected(0).await;
        let reply = bench.start(1, &WRITE, bench.out(7)).wait().await.expect("executed");
        assert_eq!((reply.status, reply.moved), (ScsiStatus::GOOD, 8));
        let reply = bench.start(2, &READ, ForwardedData::In(bench.memory(20))).wait().await.expect("executed");
        assert_eq!((reply.status, moved(&reply)), (ScsiStatus::GOOD, vec![7; 8]));
        let reply = bench.start(3, &FAILING, ForwardedData::None).wait().await.expect("executed");
        assert_eq!((reply.status, reply.sense[2]), (ScsiStatus::CHECK_CONDITION, 3));
        let fault = bench.start(4, &[0xc1; 6], ForwardedData::None).wait().await.map(|reply| reply.status);
        assert!(matches!(fault, Err(Fault::Os(_))), "no status: {fault:?}");
        assert_eq!(bench.device.reset().await, Ok(()));
        bench.device.lose_nexus(&nexus("iqn.a,i,0x1").expect("a name"));
        bench.device.lose_nexus(&nexus("iqn.b,i,0x1").expect("a name"));
        let reply = bench.start(5, &INQUIRY, ForwardedData::In(bench.memory(36))).wait().await.expect("executed");
        assert_eq!((reply.status, reply.moved), (ScsiStatus::GOOD, 36));
        // The handler loses its connection.
        weak.shared().fail(1, "the test is over".into());
        bench.until(|| weak.shared().state().connected.is_none()).await;
        let reply = loop {
            let reply = bench.start(6, &INQUIRY, ForwardedData::In(bench.memory(36))).wait().await.expect("known");
            // The core hears of the loss a moment later.
            if reply.status == ScsiStatus::GOOD {
                break reply;
            }
        };
        assert_eq!((reply.moved, moved(&reply)[..2].to_vec()), (36, vec![1, 0x80]));
        let missing = bench.start(7, &[0x12, 1, 0x80, 0, 36, 0], ForwardedData::In(bench.memory(36))).wait().await;
        assert_eq!(missing.map(|reply| reply.status), Err(Fault::Gone));
    });
    assert!(matches!(ended, Err(ServeError::Fault(why)) if why.contains("over")));
    let heard: Vec<String> = told.iter().collect();
    let attach = "attach iqn.a,i,0x1 at 3";
    assert_eq!(heard, [attach, "reset", "detach", attach, "detach"]);
}

#[test]
fn commands_of_a_handler_that_dies_are_not_repeated_and_others_learn_of_it_first() {
    let folder = Folder::new("scsi-dies");
    let unit = unit(&folder, |_| {});
    let (tell, told) = mpsc::channel();
    let script = move |socket: PathBuf| {
        told.recv_timeout(LIMIT).expect("a command waits");
        let mut first = connected(&socket);
        next(&mut first);
        next(&mut first);
        drop(first);
        let mut second = connected(&socket);
        let command = next(&mut second);
        answer(&mut second, &command);
        (command.sequence.get(), Operation(command.operation))
    };
    let life = unit.life.clone();
    let seen = play(&folder, &unit, script, async |bench| {
        // It was admitted before there was a handler.
        let early = bench.start(1, &WRITE, bench.out(1));
        tell.send(()).expect("the script waits");
        assert_eq!(early.wait().await.map(|reply| reply.status), Ok(ScsiStatus::BUSY));
        bench.until_connected(0).await;
        let writes = [2, 3].map(|id| bench.start(id, &WRITE, bench.out(2)));
        for write in writes {
            let reply = write.wait().await.expect("an answer");
            let meaning = Some((SenseKey::ABORTED_COMMAND, Asc::COMMANDS_CLEARED_BY_DEVICE_SERVER));
            assert_eq!((reply.status, reply.sense.meaning()), (ScsiStatus::CHECK_CONDITION, meaning));
        }
        bench.until_connected(1).await;
        let reply = bench.start(4, &WRITE, bench.out(3)).wait().await.expect("an answer");
        assert_eq!(reply.status, ScsiStatus::GOOD);
    });
    // After the ATTACH of the second connection, its first command is the new one.
    assert_eq!(seen, (2, Operation::SCSI));
    let view = life.view(&unit.unit);
    assert_eq!((view.connections, view.replayed, view.faults), (2, 0, 0));
}

#[test]
fn an_aborted_command_that_the_handler_does_not_end_fails_and_a_reset_passes_it() {
    let folder = Folder::new("scsi-late");
    let unit = unit(&folder, |unit| unit.command_timeout = Some(Duration::from_millis(300)));
    let (tell, told) = mpsc::channel();
    let script = move |socket: PathBuf| {
        let mut handler = connected(&socket);
        let first = next(&mut handler);
        answer(&mut handler, &first);
        let late = next(&mut handler);
        let abort = next(&mut handler);
        assert_eq!((Operation(abort.operation), abort.offset.get()), (Operation::ABORT, late.sequence.get()));
        answer(&mut handler, &abort);
        told.recv_timeout(LIMIT).expect("the command has failed");
        let reset = next(&mut handler);
        assert_eq!(Operation(reset.operation), Operation::RESET, "a late handler gets no command");
        answer(&mut handler, &late);
        answer(&mut handler, &reset);
        let after = next(&mut handler);
        answer(&mut handler, &after);
        told.recv_timeout(LIMIT).expect("its state was looked at");
    };
    let life = unit.life.clone();
    play(&folder, &unit, script, async |bench| {
        bench.until_connected(0).await;
        assert!(bench.start(8, &WRITE, bench.out(1)).wait().await.is_ok());
        let late = bench.start(9, &WRITE, bench.out(1));
        bench.device.abort(9);
        assert_eq!(late.wait().await.map(|reply| reply.status), Err(Fault::Timeout));
        assert_eq!(life.view(&unit.unit).state, "late");
        // It waits, because the late command may still move the medium.
        let after = bench.start(10, &READ, ForwardedData::In(bench.memory(8)));
        tell.send(()).expect("the script waits");
        assert_eq!(bench.device.reset().await, Ok(()));
        assert_eq!(after.wait().await.map(|reply| (reply.status, reply.moved)), Ok((ScsiStatus::GOOD, 0)));
        assert_eq!(life.view(&unit.unit).state, "connected");
        tell.send(()).expect("the script waits");
    });
}

#[test]
fn a_command_behind_a_long_one_does_not_make_the_handler_late() {
    let folder = Folder::new("scsi-long");
    let unit = unit(&folder, |_| {});
    let short = Duration::from_millis(300);
    let (tell, told) = mpsc::channel();
    let script = move |socket: PathBuf| {
        let mut handler = connected(&socket);
        let long = next(&mut handler);
        told.recv_timeout(LIMIT).expect("the time of the short command would be over");
        answer(&mut handler, &long);
        let behind = next(&mut handler);
        answer(&mut handler, &behind);
        let unanswered = next(&mut handler);
        told.recv_timeout(LIMIT).expect("it has failed");
        answer(&mut handler, &unanswered);
    };
    let life = unit.life.clone();
    play(&folder, &unit, script, async |bench| {
        bench.until_connected(0).await;
        let long = bench.start(1, &WRITE, bench.out(1));
        let behind = bench.start_within(short, 2, &READ, ForwardedData::In(bench.memory(8)));
        bench.reactor.sleep(4 * short).await;
        let view = life.view(&unit.unit);
        assert_eq!((view.state, view.serves), ("connected", Some("SCSI commands")));
        tell.send(()).expect("the script waits");
        assert!(long.wait().await.is_ok());
        // It may be late on a busy machine, but not because of the long one.
        assert!(matches!(behind.wait().await.map(|reply| reply.status), Ok(ScsiStatus::GOOD) | Err(Fault::Timeout)));
        bench.until(|| life.view(&unit.unit).state == "connected").await;
        let unanswered = bench.start_within(short, 3, &READ, ForwardedData::In(bench.memory(8)));
        assert_eq!(unanswered.wait().await.map(|reply| reply.status), Err(Fault::Timeout));
        tell.send(()).expect("the script waits");
    });
}

#[test]
fn commands_of_one_turn_do_not_wait_for_each_other_without_end() {
    let folder = Folder::new("scsi-turn");
    let unit = unit(&folder, |_| {});
    let (tell, told) = mpsc::channel();
    let script = move |socket: PathBuf| {
        let mut handler = connected(&socket);
        let both = [next(&mut handler), next(&mut handler)];
        told.recv_timeout(LIMIT).expect("they have failed");
        both.iter().for_each(|command| answer(&mut handler, command));
    };
    play(&folder, &unit, script, async |bench| {
        bench.until_connected(0).await;
        let start = |(id, time)| bench.start_within(Duration::from_millis(time), id, &WRITE, bench.out(1));
        let both = [(1, 500), (2, 800)].map(start);
        let begun = Instant::now();
        for command in both {
            assert_eq!(command.wait().await.map(|reply| reply.status), Err(Fault::Timeout));
        }
        assert!(begun.elapsed() < LIMIT / 2, "they were extended again and again");
        tell.send(()).expect("the script waits");
    });
}

#[test]
fn without_a_handler_commands_wait_and_then_fail() {
    let folder = Folder::new("scsi-missing");
    let unit = unit(&folder, |unit| unit.restart_time = Duration::from_millis(200));
    play(&folder, &unit, drop, async |bench| {
        let begun = Instant::now();
        let reply = bench.start(1, &READ, ForwardedData::In(bench.memory(8))).wait().await;
        assert_eq!(reply.map(|reply| reply.status), Err(Fault::NotReady));
        assert!(begun.elapsed() >= Duration::from_millis(200));
        assert_eq!(bench.device.reset().await, Ok(()));
        let waiting = bench.start(2, &READ, ForwardedData::In(bench.memory(8)));
        bench.device.abort(2);
        assert_eq!(waiting.wait().await.map(|reply| reply.status), Err(Fault::Aborted));
    });
}

#[test]
fn handlers_of_another_level_or_type_are_refused() {
    let folder = Folder::new("scsi-refused");
    let unit = unit(&folder, |_| {});
    let socket = folder.socket();
    let refusal = |connection: Result<Connection, ServeError>| match connection.expect("Lunar listens").receive() {
        Err(ServeError::Refused(why)) => why,
        other => panic!("{other:?}"),
    };
    let why = refusal(Connection::open(&socket, "blocks", 1 << 20, 0));
    assert!(why.contains("serves blocks") && why.contains("has a `device-type`"), "{why}");
    let why = refusal(Connection::open_scsi(&socket, "changer", 8));
    assert!(why.contains("0x08 (changer)") && why.contains("0x01 (tape)"), "{why}");
    drop(unit);
    let volume = folder.volume(|_| {});
    let why = refusal(Connection::open_scsi(&socket, "tape", 1));
    assert!(why.contains("has no `device-type`"), "{why}");
    drop(volume);
}
