//! Devices of a machine in memory, from the back end to the commands of a core.

use crate::backend::open;
use crate::device::{Device, Machine};
use crate::resolve::Nodes;
use lunar_core::io::Fault;
use lunar_core::mem::Sg;
use lunar_engine::backend::{Condition, Mark, Opened, OpenedDevice, StoreRequest};
use lunar_engine::origin::{Arguments, Origin};
use lunar_reactor::scsi_generic::Node;
use lunar_reactor::scsi_generic::fake::{self, Answer, Received};
use lunar_reactor::{Choice, Config, Reactor};
use lunar_scsi::command::{Cdb, Status, TaskAttribute};
use lunar_scsi::device_server::{DeviceServer, ForwardedCommand, ForwardedData, ForwardedReply, PendingReply};
use lunar_scsi::peripheral::PeripheralType;
use lunar_scsi::sense::{Asc, SenseKey};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

static COMMAND_LINE: Origin = Origin::CommandLine(Arguments::none());

/// A machine with one device.
#[derive(Clone, Debug)]
struct FakeMachine {
    /// The number in the path of its node; zero: the device is unavailable.
    number: Arc<AtomicU8>,
    /// The last byte of its name.
    identity: Arc<AtomicU8>,
    device_type: u8,
    /// Whether the device answers commands other than INQUIRY.
    is_held: Arc<AtomicBool>,
    /// The commands of all nodes.
    received: Arc<Mutex<Vec<Received>>>,
}

impl FakeMachine {
    fn new(device_type: PeripheralType) -> Self {
        Self {
            number: Arc::new(AtomicU8::new(3)),
            identity: Arc::new(AtomicU8::new(1)),
            device_type: device_type.0,
            is_held: Arc::default(),
            received: Arc::default(),
        }
    }

    fn nodes(&self) -> io::Result<Nodes> {
        match self.number.load(Ordering::SeqCst) {
            0 => Err(io::ErrorKind::NotFound.into()),
            number => Ok(Nodes {
                generic: PathBuf::from(format!("/dev/sg{number}")),
                block: None,
                queue_depth: 20,
                adapter_depth: 1000,
            }),
        }
    }

    /// Executes a command; `None` once the device has vanished.
    fn execute(&self, number: u8, command: &Received) -> Option<Answer> {
        self.received.lock().expect("no thread has panicked").push(command.clone());
        while self.is_held.load(Ordering::SeqCst) && command.cdb[0] == 0x01 {
            std::thread::sleep(Duration::from_millis(1));
        }
        if self.number.load(Ordering::SeqCst) != number {
            return None;
        }
        Some(match command.cdb[..] {
            [0x12, 0, ..] => {
                let mut data = vec![self.device_type, 0x80, 6, 2, 31, 0, 0, 0];
                data.extend(b"VENDOR  PRODUCT         0001");
                Answer::good(&data)
            }
            [0x12, 1, 0, ..] => Answer::good(&[self.device_type, 0, 0, 2, 0, 0x83]),
            [0x12, 1, 0x83, ..] => {
                let mut page = vec![self.device_type, 0x83, 0, 12, 1, 3, 0, 8];
                page.extend([0x50, 0, 0, 0, 0, 0, 0, self.identity.load(Ordering::SeqCst)]);
                Answer::good(&page)
            }
            [0x08, ..] => Answer::good(b"block"),
            [0x0a, ..] => Answer { left: 2, ..Answer::default() },
            [0xa3, ..] | [0x12, 1, ..] => Answer::check(5, 0x2000),
            [0x1b, ..] => Answer { host_status: 8, ..Answer::default() },
            _ => Answer::default(),
        })
    }
}

impl Machine for FakeMachine {
    fn resolve(&self, _: &Path) -> io::Result<Nodes> {
        self.nodes().and_then(|nodes| match nodes.generic == Path::new("/dev/sg3") {
            true => Ok(nodes),
            false => Err(io::ErrorKind::NotFound.into()),
        })
    }

    fn alike(&self, vendor: &str, product: &str) -> Vec<Nodes> {
        assert_eq!((vendor, product), ("VENDOR", "PRODUCT"));
        self.nodes().into_iter().collect()
    }

    fn open(&self, _: &Path) -> io::Result<Node> {
        let (machine, number) = (self.clone(), self.number.load(Ordering::SeqCst));
        if number == 0 {
            return Err(io::ErrorKind::NotFound.into());
        }
        let (fd, _) = fake::device(move |command| machine.execute(number, command));
        Node::adopt(fd)
    }

    fn transfer_bytes_max(&self, _: &Node) -> io::Result<usize> {
        Ok(1 << 20)
    }
}

fn request(path: &Path) -> StoreRequest<'_> {
    StoreRequest::of_command_line("tape", &COMMAND_LINE, Some(path))
}

fn opened(machine: &FakeMachine) -> Opened {
    open(Box::new(machine.clone()), &request(Path::new("/dev/sg3")), None).expect("it opens")
}

fn device(opened: &Opened) -> &Device {
    opened.downcast().expect("a SCSI device")
}

fn on_both_drivers(test: impl Fn(&Reactor)) {
    for driver in [Choice::Epoll, Choice::Auto] {
        test(&Reactor::new(Config { driver, ..Config::default() }).expect("a driver"));
    }
}

/// Executes a command.
async fn execute(server: &Rc<dyn DeviceServer>, cdb: &[u8], data: ForwardedData) -> Result<ForwardedReply, Fault> {
    let pending = PendingReply::default();
    server.submit(command(0, cdb, data), pending.duty());
    pending.wait().await
}

fn command(id: u64, cdb: &[u8], data: ForwardedData) -> ForwardedCommand {
    let cdb = Cdb::new(cdb).expect("a CDB");
    let (attribute, timeout) = (TaskAttribute::SIMPLE, Duration::from_secs(900));
    ForwardedCommand { id, nexus: None, generation: 0, cdb, attribute, data, timeout }
}

#[test]
fn a_device_is_identified_when_it_is_opened() {
    let machine = FakeMachine::new(PeripheralType::TAPE);
    let opened = opened(&machine);
    let mark = Mark::Global { space: "scsi", name: "3 1 5000000000000001".into() };
    assert_eq!(opened.mark(), Some(mark));
    assert!(device(&opened).terms.exclusive, "one initiator at a time has a tape drive");
    let received = machine.received.lock().expect("no thread has panicked");
    assert!(received.iter().any(|command| command.cdb[0] == 0), "unit attention conditions were taken");
    drop(received);
    let disk = FakeMachine::new(PeripheralType::DISK);
    assert!(!device(&self::opened(&disk)).terms.exclusive);
}

#[test]
fn what_is_configured_wrong_is_refused() {
    let (machine, path) = (FakeMachine::new(PeripheralType::TAPE), Path::new("/dev/sg3"));
    let refused = |request: StoreRequest<'_>| {
        open(Box::new(machine.clone()), &request, None).expect_err("it is refused").to_string()
    };
    let sized = refused(StoreRequest { size: Some(1), ..request(path) });
    assert_eq!(sized, "/dev/sg3 is a device and has its size: leave the size out");
    assert!(refused(StoreRequest { direct: true, ..request(path) }).contains("leave out --direct"));
    machine.number.store(0, Ordering::SeqCst);
    assert!(refused(request(path)).contains("/dev/sg3 does not exist: `lsscsi -g`"));
}

#[test]
fn a_device_stays_open_when_its_keys_change() {
    let machine = FakeMachine::new(PeripheralType::TAPE);
    let before = opened(&machine);
    let again = open(Box::new(machine.clone()), &request(Path::new("/dev/sg3")), Some(&before)).expect("it opens");
    assert!(Arc::ptr_eq(&device(&before).shared, &device(&again).shared));
}

#[test]
fn commands_move_data_and_keep_their_time_outs() {
    on_both_drivers(|reactor| {
        let machine = FakeMachine::new(PeripheralType::TAPE);
        let server = opened(&machine);
        let server = device(&server).open(reactor).expect("it is there");
        assert_eq!((server.device_type(), server.transfer_bytes_max()), (PeripheralType::TAPE, 1 << 20));
        reactor.run(async {
            let memory = ForwardedData::In(reactor.arena().take_sg(100).expect("room"));
            let read = execute(&server, &[0x08, 0, 0, 0, 100, 0], memory).await.expect("a reply");
            assert_eq!((read.status, read.moved), (Status::GOOD, 5));
            let ForwardedData::In(memory) = read.data else { panic!("the memory comes back") };
            assert_eq!(memory.share().to_vec()[..5], *b"block");
            let out = Sg::from(reactor.arena().copy(b"a block").expect("room"));
            let written = execute(&server, &[0x0a, 0, 0, 0, 7, 0], ForwardedData::Out(out)).await.expect("a reply");
            assert_eq!((written.status, written.moved), (Status::GOOD, 5), "two bytes were left");
            let reset = execute(&server, &[0x1b, 0, 0, 0, 0, 0], ForwardedData::None).await.expect("a reply");
            let meaning = reset.sense.meaning();
            assert_eq!(meaning, Some((SenseKey::UNIT_ATTENTION, Asc::POWER_ON_OR_RESET)), "DID_RESET");
        });
        let received = machine.received.lock().expect("no thread has panicked");
        let written = received.iter().find(|command| command.cdb[0] == 0x0a).expect("it was sent");
        assert_eq!((&written.data_out[..], written.timeout_ms), (&b"a block"[..], 900_000));
    });
}

#[test]
fn commands_beyond_the_depth_wait_and_can_be_aborted() {
    on_both_drivers(|reactor| {
        let machine = FakeMachine::new(PeripheralType::TAPE);
        let opened = opened(&machine);
        let server = device(&opened).open(reactor).expect("it is there");
        machine.is_held.store(true, Ordering::SeqCst);
        let replies: Vec<PendingReply> = (0..25)
            .map(|id| {
                let pending = PendingReply::default();
                server.submit(command(id, &[0x01, 0, 0, 0, 0, 0], ForwardedData::None), pending.duty());
                pending
            })
            .collect();
        reactor.run(async {
            server.abort(24);
            assert_eq!(replies[24].wait().await.map(|reply| reply.status), Err(Fault::Aborted), "it has waited");
            server.abort(0);
            machine.is_held.store(false, Ordering::SeqCst);
            for reply in &replies[..24] {
                assert_eq!(reply.wait().await.map(|reply| reply.status), Ok(Status::GOOD));
            }
        });
    });
}

#[test]
fn a_device_that_vanishes_is_not_ready_and_comes_back_with_another_number() {
    on_both_drivers(|reactor| {
        let machine = FakeMachine::new(PeripheralType::TAPE);
        let opened = opened(&machine);
        let servers = [(); 2].map(|()| device(&opened).open(reactor).expect("it is there"));
        let ready = |server| execute(server, &[0; 6], ForwardedData::None);
        reactor.run(async {
            assert_eq!(ready(&servers[0]).await.map(|reply| reply.status), Ok(Status::GOOD));
            machine.number.store(0, Ordering::SeqCst);
            for server in &servers {
                let lost = execute(server, &[0x01, 0, 0, 0, 0, 0], ForwardedData::None);
                // The fake device does not return it: the command ends with the lane.
                let patience = reactor.sleep(Duration::from_millis(50));
                until_either(lost, patience).await;
                assert_eq!(ready(server).await.map(|reply| reply.status), Err(Fault::Gone));
                let memory = ForwardedData::In(reactor.arena().take_sg(36).expect("room"));
                let inquiry = execute(server, &[0x12, 0, 0, 0, 36, 0], memory).await.expect("it is known");
                assert_eq!((inquiry.status, inquiry.moved), (Status::GOOD, 36));
                assert_eq!(server.take_event(), None);
            }
            let troubles = device(&opened).examine();
            assert_eq!(troubles.iter().map(|trouble| trouble.condition).collect::<Vec<_>>(), [Condition::Gone]);
            // Another device of the same make is not this one.
            machine.identity.store(2, Ordering::SeqCst);
            machine.number.store(4, Ordering::SeqCst);
            reactor.sleep(Duration::from_millis(1500)).await;
            assert_eq!(ready(&servers[0]).await.map(|reply| reply.status), Err(Fault::Gone));
            machine.identity.store(1, Ordering::SeqCst);
            for server in &servers {
                while ready(server).await.is_err() {
                    reactor.sleep(Duration::from_millis(20)).await;
                }
            }
            let events = servers.each_ref().map(|server| server.take_event());
            assert_eq!(events, [Some(Asc::POWER_ON_OR_RESET), None], "one core gets the event, once");
            assert!(device(&opened).examine().is_empty());
        });
    });
}

#[test]
fn a_reset_that_fails_is_reported_unless_the_device_is_away() {
    on_both_drivers(|reactor| {
        let machine = FakeMachine::new(PeripheralType::DISK);
        let opened = opened(&machine);
        let server = device(&opened).open(reactor).expect("it is there");
        // A socket knows no such function, so the reset fails.
        assert!(reactor.run(server.reset()).is_err());
        machine.number.store(0, Ordering::SeqCst);
        device(&opened).shared.lose(0);
        assert_eq!(reactor.run(server.reset()), Ok(()), "nothing is left to be reset");
    });
}

/// Waits until the first of both is ready.
async fn until_either<T>(one: impl Future<Output = T>, other: impl Future<Output = ()>) {
    let (mut one, mut other) = (std::pin::pin!(one), std::pin::pin!(other));
    std::future::poll_fn(|cx| match one.as_mut().poll(cx).is_ready() {
        true => std::task::Poll::Ready(()),
        false => other.as_mut().poll(cx),
    })
    .await;
}
