use crate::life::until_all_ended;
use crate::shared::{Shared, Unit};
use crate::volume::HandlerVolume;
use lunar_control::api::HandlerView;
use lunar_core::io::{Completion, Data, Extent, Fault, Io, Op, Outcome, Store};
use lunar_core::mem::Arena;
use lunar_handler::ring::at;
use lunar_handler::serve::{Connection, Device, ServeError, serve};
use lunar_handler::wire::{Code, Message, Operation, PROTOCOL, Status, Submission, features};
use lunar_reactor::unix::send_waiting;
use lunar_reactor::{Choice, Reactor};
use lunar_suite::Want;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::set_socket_linger;
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, socket_with};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

pub(crate) const SIZE: u64 = 16 << 20;
/// How long a step of a test may take on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// A folder for the sockets and files of one test.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("lunar-handler-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder for temporary files");
        Self(path)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.0.join("volume.sock")
    }

    pub(crate) fn unit(&self) -> Unit {
        Unit {
            name: "disk".into(),
            path: self.socket(),
            size: SIZE,
            block_size: 512,
            read_only: false,
            discard: false,
            device: None,
            mode: 0o600,
            command_timeout: Some(LIMIT),
            restart_time: LIMIT,
            image: None,
        }
    }

    pub(crate) fn volume(&self, edit: impl FnOnce(&mut Unit)) -> HandlerVolume {
        let mut unit = self.unit();
        edit(&mut unit);
        HandlerVolume::new(unit, false).expect("the path is free")
    }
}

fn view(volume: &HandlerVolume) -> HandlerView {
    volume.life().view(volume.unit())
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(crate) struct Memory(pub(crate) Vec<u8>);

impl Memory {
    fn part(&mut self, offset: u64, length: u64) -> &mut [u8] {
        &mut self.0[offset as usize..(offset + length) as usize]
    }
}

impl Device for Memory {
    fn name(&self) -> &str {
        "memory"
    }

    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn features(&self) -> u64 {
        features::ALL
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), Status> {
        into.copy_from_slice(self.part(offset, into.len() as u64));
        Ok(())
    }

    fn write(&mut self, offset: u64, data: &[u8], _: bool) -> Result<(), Status> {
        self.part(offset, data.len() as u64).copy_from_slice(data);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Status> {
        Ok(())
    }

    fn unmap(&mut self, offset: u64, length: u64) -> Result<(), Status> {
        self.zero(offset, length, true)
    }

    fn zero(&mut self, offset: u64, length: u64, _: bool) -> Result<(), Status> {
        self.part(offset, length).fill(0);
        Ok(())
    }

    /// Zeroes are unmapped, a page at a time.
    fn extent(&mut self, offset: u64, length: u64) -> Result<Extent, Status> {
        let mut pages = self.part(offset, length).chunks(4096);
        let is_mapped = |page: &[u8]| page.iter().any(|byte| *byte != 0);
        let first = pages.next().expect("an extent has bytes");
        let more = pages.take_while(|page| is_mapped(page) == is_mapped(first));
        let len = (first.len() + more.map(<[u8]>::len).sum::<usize>()) as u64;
        Ok(Extent { len, mapped: is_mapped(first) })
    }
}

#[test]
fn a_handler_in_rust_keeps_the_contract() {
    for discard in [false, true] {
        let folder = Folder::new(if discard { "rust-thin" } else { "rust" });
        let volume = folder.volume(|unit| unit.discard = discard);
        let socket = folder.socket();
        let handler = std::thread::spawn(move || serve(&socket, &mut Memory(vec![0; SIZE as usize])));
        lunar_suite::conforms(&|reactor| volume.open(reactor), &Want::default());
        drop(volume);
        let ended = handler.join().expect("it does not panic");
        assert!(matches!(ended, Ok(())), "{ended:?}");
    }
}

/// A process that is ended with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_example_in_c_keeps_the_contract_under_a_sanitizer() {
    let folder = Folder::new("c");
    let (program, file) = (folder.0.join("file_handler"), folder.0.join("disk.img"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../handler");
    let mut compile = Command::new("cc");
    compile.args(["-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined"]);
    compile.arg("-I").arg(source.join("include")).arg("-o").arg(&program).arg(source.join("examples/file_handler.c"));
    match compile.output() {
        Err(why) => return eprintln!("skipped: there is no C compiler: {why}"),
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
    }
    std::fs::File::create(&file).and_then(|file| file.set_len(SIZE)).expect("a file");
    let volume = folder.volume(|unit| unit.discard = true);
    let said = std::fs::File::create(folder.0.join("said")).expect("a file");
    let mut command = Command::new(&program);
    command.arg(folder.socket()).arg(&file).stdout(Stdio::null()).stderr(said);
    let mut process = Process(command.spawn().expect("it was compiled"));
    lunar_suite::conforms(&|reactor| volume.open(reactor), &Want::default());
    assert!(process.0.try_wait().expect("ours").is_none(), "it has ended");
    drop(process);
    let said = std::fs::read_to_string(folder.0.join("said")).expect("it was made");
    assert!(!said.contains("Sanitizer") && !said.contains("runtime error"), "{said}");
}

/// A core with the volume, and a handler with a script in a thread of its own.
pub(crate) fn play<T: Send + 'static>(
    folder: &Folder,
    volume: &HandlerVolume,
    script: impl FnOnce(PathBuf) -> T + Send + 'static,
    work: impl AsyncFnOnce(&Reactor, &dyn Store),
) -> T {
    let reactor = lunar_suite::bench::reactor(Choice::Epoll).expect("a driver");
    let store = volume.open(&reactor).expect("it opens");
    let socket = folder.socket();
    let (sender, end) = mpsc::channel();
    let handler = std::thread::spawn(move || {
        let result = script(socket);
        _ = sender.send(());
        result
    });
    reactor.run(work(&reactor, &*store));
    // The store must not be dropped before the script is over; the core needs not turn any more.
    end.recv_timeout(LIMIT).expect("the script ends");
    handler.join().expect("the script does not panic")
}

/// Connects, and waits for the queue.
pub(crate) fn connected_by(open: impl Fn() -> Result<Connection, ServeError>) -> Connection {
    let begun = Instant::now();
    loop {
        assert!(begun.elapsed() < LIMIT, "no queue arrives");
        let Ok(mut connection) = open() else { continue };
        while connection.queues.is_empty() {
            match connection.receive() {
                Ok(Some(_)) => {}
                // Lunar has not noticed that the last connection is over, or pauses.
                Ok(None) | Err(ServeError::Refused(_)) => break,
                Err(why) => panic!("{why}"),
            }
        }
        if !connection.queues.is_empty() {
            return connection;
        }
    }
}

fn connected(socket: &Path) -> Connection {
    connected_by(|| Connection::open(socket, "script", SIZE, features::ALL))
}

pub(crate) fn next(connection: &mut Connection) -> Submission {
    let begun = Instant::now();
    loop {
        if let Some(command) = connection.queues[0].ring.take().expect("the rings are sound") {
            return command;
        }
        assert!(begun.elapsed() < LIMIT, "no command arrives");
        std::thread::yield_now();
    }
}

pub(crate) fn answer(connection: &mut Connection, command: &Submission, status: Status) {
    connection.queues[0].ring.complete(command, status);
    connection.queues[0].wake_lunar().expect("the eventfd is there");
}

fn write(arena: &Arena, offset: u64, byte: u8) -> Io {
    let mut memory = arena.take_sg(4096).expect("room");
    memory.fill_from(0, byte);
    Io { op: Op::Write { durable: false }, offset, data: Data::Out(memory.share()) }
}

pub(crate) fn start(store: &dyn Store, io: Io) -> Completion {
    let mut completion = Completion::new();
    let done = completion.token();
    store.submit(io, done);
    completion
}

async fn result(completion: &Completion) -> Result<u32, Fault> {
    let Outcome { result, .. } = completion.wait().await;
    result
}

fn data(connection: &Connection, command: &Submission) -> u8 {
    let mut bytes = vec![0; command.length.get() as usize];
    assert!(connection.queues[0].data.read(command.data.get() as usize, &mut bytes));
    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "one byte fills a command");
    bytes[0]
}

#[test]
fn commands_without_an_answer_go_to_the_next_handler_in_order() {
    let folder = Folder::new("replay");
    let volume = folder.volume(|_| {});
    let script = |socket: PathBuf| {
        let mut first = connected(&socket);
        let taken: Vec<Submission> = (0..4).map(|_| next(&mut first)).collect();
        answer(&mut first, &taken[1], Status::GOOD);
        drop(first);
        let mut second = connected(&socket);
        let mut seen = Vec::new();
        for _ in 0..3 {
            let command = next(&mut second);
            let byte = (Operation(command.operation) == Operation::WRITE).then(|| data(&second, &command));
            seen.push((Operation(command.operation), command.offset.get(), byte));
            answer(&mut second, &command, if seen.len() == 3 { Status::NO_SPACE } else { Status::GOOD });
        }
        seen
    };
    let seen = play(&folder, &volume, script, async |reactor, store| {
        let arena = reactor.arena();
        let ios = [
            write(arena, 0, 1),
            write(arena, 4096, 2),
            Io { op: Op::Zero { len: 512, unmap: true }, offset: 512, data: Data::None },
            write(arena, 8192, 4),
        ];
        let completions = ios.map(|io| start(store, io));
        let mut results = Vec::new();
        for completion in &completions {
            results.push(result(completion).await);
        }
        assert_eq!(results, [Ok(4096), Ok(4096), Ok(0), Err(Fault::NoSpace)]);
    });
    let wanted = [(Operation::WRITE, 0, Some(1)), (Operation::ZERO, 512, None), (Operation::WRITE, 8192, Some(4))];
    assert_eq!(seen, wanted);
    let view = view(&volume);
    assert_eq!((view.connections, view.replayed, view.faults), (2, 3, 0));
}

#[test]
fn a_read_that_failed_brings_no_data_of_other_commands() {
    let folder = Folder::new("failed-read");
    let volume = folder.volume(|_| {});
    let script = |socket: PathBuf| {
        let mut handler = connected(&socket);
        let written = next(&mut handler);
        answer(&mut handler, &written, Status::GOOD);
        let read = next(&mut handler);
        assert_eq!(data(&handler, &read), 9, "the place of the write");
        answer(&mut handler, &read, Status::MEDIUM_ERROR);
    };
    play(&folder, &volume, script, async |reactor, store| {
        assert_eq!(result(&start(store, write(reactor.arena(), 0, 9))).await, Ok(4096));
        let mut memory = reactor.arena().take_sg(4096).expect("room");
        memory.fill_from(0, 5);
        let read = start(store, Io { op: Op::Read, offset: 8192, data: Data::In(memory) });
        let outcome = read.wait().await;
        let Data::In(memory) = &outcome.data else { panic!("the memory comes back") };
        let mut bytes = [0; 4096];
        assert_eq!((outcome.result, memory.copy_to(0, &mut bytes)), (Err(Fault::Medium), 4096));
        assert_eq!(bytes, [5; 4096]);
    });
}

#[test]
fn a_fault_of_an_earlier_handler_does_not_hide_one_of_this_handler() {
    let shared = Shared::new(Folder::new("faults").unit()).expect("an eventfd");
    for (generation, why) in [(2, "new"), (1, "old"), (2, "newest")] {
        shared.fail(generation, why.into());
        assert_eq!(shared.state().fault.as_ref().map(|(generation, _)| *generation), Some(2));
    }
}

#[test]
fn a_handler_that_breaks_the_protocol_loses_its_connection_and_no_command() {
    /// A breach, and the words of the fault.
    type Breach = (fn(&mut Connection, &Submission), &'static str);
    let breaches: [Breach; 5] = [
        (
            |connection, command| {
                let wrong = Submission { slot: 999.into(), ..*command };
                answer(connection, &wrong, Status::GOOD);
            },
            "does not exist",
        ),
        (
            |connection, command| {
                let wrong = Submission { sequence: 77.into(), ..*command };
                answer(connection, &wrong, Status::GOOD);
            },
            "another command",
        ),
        (
            |connection, command| {
                let wrong = Submission { slot: (command.slot.get() + 1).into(), ..*command };
                answer(connection, &wrong, Status::GOOD);
            },
            "no command",
        ),
        (
            |connection, _| {
                assert!(connection.queues[0].ring_memory.store(at::COMPLETED, 0x8000_0000));
                // Lunar may sleep.
                connection.queues[0].wake_lunar().expect("the eventfd is there");
            },
            "beyond all commands",
        ),
        (|connection, _| while connection.send(&Message::Unknown(Code(99))).is_ok() {}, "without end"),
    ];
    for (at, (breach, words)) in breaches.into_iter().enumerate() {
        let folder = Folder::new(&format!("breach-{at}"));
        let volume = folder.volume(|_| {});
        let script = move |socket: PathBuf| {
            let mut hostile = connected(&socket);
            let command = next(&mut hostile);
            breach(&mut hostile, &command);
            let why = loop {
                match hostile.receive() {
                    Ok(Some(_)) => {}
                    other => break other,
                }
            };
            // It writes to its memory even now.
            assert!(hostile.queues[0].data.write(command.data.get() as usize, &[0xff; 4096]));
            let mut honest = connected(&socket);
            let again = next(&mut honest);
            let byte = data(&honest, &again);
            answer(&mut honest, &again, Status::GOOD);
            (why, again.offset.get(), byte)
        };
        let (why, offset, byte) = play(&folder, &volume, script, async |reactor, store| {
            assert_eq!(result(&start(store, write(reactor.arena(), 8192, 5))).await, Ok(4096));
        });
        // A process that floods may find its connection closed before it reads why.
        assert!(
            matches!(&why, Err(ServeError::Fault(why)) if why.contains(words))
                || words == "without end" && matches!(why, Ok(None) | Err(ServeError::Io(_))),
            "{words}: {why:?}"
        );
        assert_eq!((offset, byte, view(&volume).faults), (8192, 5, 1));
    }
}

#[test]
fn memory_of_a_late_command_is_not_used_again_before_its_answer() {
    let folder = Folder::new("late");
    let short = Duration::from_millis(300);
    let volume = folder.volume(|unit| (unit.command_timeout, unit.restart_time) = (Some(short), short));
    let (tell, told) = mpsc::channel();
    let script = move |socket: PathBuf| {
        let mut handler = connected(&socket);
        let late = next(&mut handler);
        told.recv_timeout(LIMIT).expect("the second command has failed");
        assert_eq!(handler.queues[0].ring.take().expect("sound"), None, "a late handler gets no command");
        answer(&mut handler, &late, Status::GOOD);
        let third = next(&mut handler);
        let byte = data(&handler, &third);
        answer(&mut handler, &third, Status::GOOD);
        told.recv_timeout(LIMIT).expect("its state was looked at");
        (late.offset.get(), third.offset.get(), byte)
    };
    let seen = play(&folder, &volume, script, async |reactor, store| {
        let arena = reactor.arena();
        assert_eq!(result(&start(store, write(arena, 0, 1))).await, Err(Fault::Timeout));
        let late = view(&volume);
        assert_eq!((late.state, late.late, late.timed_out), ("late", 1, 1));
        assert!(volume.life().examine(volume.unit())[0].words.contains("does not answer 1 commands"));
        assert_eq!(result(&start(store, write(arena, 4096, 2))).await, Err(Fault::NotReady));
        tell.send(()).expect("the script waits");
        assert_eq!(result(&start(store, write(arena, 8192, 3))).await, Ok(4096));
        let view = view(&volume);
        assert_eq!((view.state, view.serves), ("connected", Some("blocks")));
        tell.send(()).expect("the script waits");
    });
    assert_eq!(seen, (0, 8192, 3));
}

#[test]
fn late_memory_of_one_command_is_not_lent_to_another_connection() {
    let folder = Folder::new("gone-late");
    let volume = folder.volume(|unit| unit.command_timeout = Some(Duration::from_millis(200)));
    let (tell, told) = mpsc::channel();
    let script = move |socket: PathBuf| {
        let mut first = connected(&socket);
        let late = next(&mut first);
        told.recv_timeout(LIMIT).expect("the command has failed");
        let old = first.queues[0].data.clone();
        drop(first);
        let mut second = connected(&socket);
        let command = next(&mut second);
        assert!(old.write(late.data.get() as usize, &[0xff; 4096]), "it still has the memory");
        let byte = data(&second, &command);
        answer(&mut second, &command, Status::GOOD);
        byte
    };
    let byte = play(&folder, &volume, script, async |reactor, store| {
        assert_eq!(result(&start(store, write(reactor.arena(), 0, 1))).await, Err(Fault::Timeout));
        tell.send(()).expect("the script waits");
        assert_eq!(result(&start(store, write(reactor.arena(), 0, 2))).await, Ok(4096));
    });
    assert_eq!((byte, view(&volume).late), (2, 0));
}

#[test]
fn a_core_that_closes_the_volume_with_a_late_command_ends_the_connection() {
    let folder = Folder::new("orphan");
    let volume = folder.volume(|unit| unit.command_timeout = Some(Duration::from_millis(200)));
    let (tell, told) = mpsc::channel();
    let script = move |socket: PathBuf| {
        let mut first = connected(&socket);
        while first.queues.len() < 2 {
            assert!(matches!(first.receive(), Ok(Some(_))), "the queue of the other core");
        }
        let begun = Instant::now();
        while first.queues[1].ring.take().expect("sound").is_none() {
            assert!(begun.elapsed() < LIMIT, "no command arrives");
        }
        told.recv_timeout(LIMIT).expect("the other core has closed the volume");
        while let Ok(Some(_)) = first.receive() {}
        assert_eq!(first.queues[0].ring.take().expect("sound"), None, "it may still execute the late command");
        drop(first);
        let mut second = connected(&socket);
        let command = next(&mut second);
        answer(&mut second, &command, Status::GOOD);
        data(&second, &command)
    };
    let byte = play(&folder, &volume, script, async |reactor, store| {
        let other = volume.open(reactor).expect("it opens");
        assert_eq!(result(&start(&*other, write(reactor.arena(), 0, 1))).await, Err(Fault::Timeout));
        drop(other);
        tell.send(()).expect("the script waits");
        assert_eq!(result(&start(store, write(reactor.arena(), 0, 2))).await, Ok(4096));
    });
    assert_eq!((byte, view(&volume).late), (2, 0));
}

#[test]
fn commands_that_wait_for_room_at_a_handler_wait_as_long_as_it_works() {
    let folder = Folder::new("room");
    let restart_time = Duration::from_millis(200);
    let volume = folder.volume(|_| {});
    let count = crate::queue::DEPTH as usize + 2;
    let (tell, told) = mpsc::channel();
    let (heard, hears) = mpsc::channel();
    let script = move |socket: PathBuf| {
        let mut handler = connected(&socket);
        let first = next(&mut handler);
        heard.send(()).expect("the test waits");
        told.recv_timeout(LIMIT).expect("the others wait for long");
        answer(&mut handler, &first, Status::GOOD);
        for _ in 1..count {
            let command = next(&mut handler);
            answer(&mut handler, &command, Status::GOOD);
        }
    };
    play(&folder, &volume, script, async |reactor, store| {
        let writes: Vec<_> = (0..count).map(|_| start(store, write(reactor.arena(), 0, 1))).collect();
        while hears.try_recv().is_err() {
            reactor.sleep(Duration::from_millis(5)).await;
        }
        volume.life().set_unit(&Unit { restart_time, ..folder.unit() });
        reactor.sleep(4 * restart_time).await;
        tell.send(()).expect("the script waits");
        for write in &writes {
            assert_eq!(result(write).await, Ok(4096));
        }
    });
    assert_eq!((view(&volume).timed_out, view(&volume).connections), (0, 1));
}

#[test]
fn without_a_handler_commands_wait_and_then_fail() {
    let folder = Folder::new("missing");
    let wait = Duration::from_millis(300);
    let volume = folder.volume(|unit| unit.restart_time = wait);
    assert!(volume.life().examine(volume.unit())[0].words.contains("no handler is connected"));
    play(&folder, &volume, drop, async |reactor, store| {
        let begun = Instant::now();
        assert_eq!(result(&start(store, write(reactor.arena(), 0, 1))).await, Err(Fault::NotReady));
        assert!(begun.elapsed() >= wait);
    });
    let view = view(&volume);
    assert_eq!((view.state, view.process, view.connections), ("missing", None, 0));
}

#[test]
fn a_read_only_volume_is_flushed_without_a_handler() {
    let folder = Folder::new("fixed");
    let volume = folder.volume(|unit| unit.read_only = true);
    play(
        &folder,
        &volume,
        |_| (),
        async |_, store| {
            let flush = Io { op: Op::Flush, offset: 0, data: Data::None };
            assert_eq!(result(&start(store, flush)).await, Ok(0));
        },
    );
}

#[test]
fn a_volume_is_flushed_without_a_handler_once_that_has_nothing_to_do() {
    let folder = Folder::new("flush");
    let volume = folder.volume(|unit| unit.restart_time = Duration::from_millis(200));
    let flush = || Io { op: Op::Flush, offset: 0, data: Data::None };
    let (tell, told) = mpsc::channel();
    let script = move |socket: PathBuf| {
        told.recv_timeout(LIMIT).expect("a flush had no handler");
        let mut handler = connected(&socket);
        let mut seen = Vec::new();
        for status in [Status::GOOD, Status::GOOD, Status::FAILED, Status::GOOD] {
            let command = next(&mut handler);
            seen.push(Operation(command.operation));
            answer(&mut handler, &command, status);
        }
        told.recv_timeout(LIMIT).expect("the volume was flushed again");
        seen
    };
    let seen = play(&folder, &volume, script, async |reactor, store| {
        assert_eq!(
            result(&start(store, flush())).await,
            Err(Fault::NotReady),
            "an earlier process may have changed it"
        );
        tell.send(()).expect("the script waits");
        while view(&volume).connections == 0 {
            reactor.sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(result(&start(store, flush())).await, Ok(0));
        assert_eq!(result(&start(store, flush())).await, Ok(0), "the handler gets no other command");
        assert_eq!(result(&start(store, write(reactor.arena(), 0, 1))).await, Ok(4096));
        assert!(result(&start(store, flush())).await.is_err(), "a flush that failed is repeated");
        assert_eq!(result(&start(store, flush())).await, Ok(0));
        assert_eq!(result(&start(store, flush())).await, Ok(0), "the handler gets no other command");
        tell.send(()).expect("the script waits");
    });
    assert_eq!(seen, [Operation::FLUSH, Operation::WRITE, Operation::FLUSH, Operation::FLUSH]);
}

#[test]
fn handlers_that_do_not_fit_are_refused() {
    let folder = Folder::new("refused");
    let volume = folder.volume(|unit| unit.discard = true);
    let socket = folder.socket();
    let refusal = |connection: Result<Connection, ServeError>| match connection.expect("Lunar listens").receive() {
        Err(ServeError::Refused(why)) => why,
        other => panic!("{other:?}"),
    };
    assert!(refusal(Connection::open(&socket, "small", SIZE - 1, features::ALL)).contains("has 16777215 bytes"));
    assert!(refusal(Connection::open(&socket, "thick", SIZE, features::ZERO)).contains("no UNMAP"));
    let mut first = Connection::open(&socket, "first", SIZE + 1, features::ALL).expect("Lunar listens");
    let Ok(Some(Message::Welcome(welcome))) = first.receive() else { panic!("it fits") };
    assert_eq!((welcome.size.get(), welcome.features.get(), welcome.protocol.get()), (SIZE, features::ALL, PROTOCOL));
    assert!(refusal(Connection::open(&socket, "second", SIZE, features::ALL)).contains("still connected"));
    assert_eq!((view(&volume).state, view(&volume).name.as_deref()), ("connected", Some("first")));
    assert!(matches!(HandlerVolume::new(folder.unit(), false), Err(crate::error::Mistake::InUse)));
}

#[test]
fn a_handler_of_version_1_serves_blocks() {
    let folder = Folder::new("version-1");
    let _volume = folder.volume(|_| {});
    let mut bytes = vec![1, 0, 0, 0, 96, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0];
    bytes.extend(SIZE.to_le_bytes());
    bytes.extend(b"file 1.0");
    bytes.resize(96, 0);
    let mut connection = Connection::open_raw(&folder.socket(), &bytes).expect("Lunar listens");
    let Ok(Some(Message::Welcome(welcome))) = connection.receive() else { panic!("it fits") };
    assert_eq!((welcome.protocol.get(), welcome.features.get()), (1, features::UNMAP | features::ZERO));
}

#[test]
fn a_volume_that_is_changed_keeps_its_socket_and_its_handler_connects_again() {
    let folder = Folder::new("changed");
    let volume = folder.volume(|unit| unit.size = SIZE / 2);
    let mut connection = Connection::open(&folder.socket(), "grows", SIZE, 0).expect("Lunar listens");
    assert!(matches!(connection.receive(), Ok(Some(Message::Welcome(_)))));
    let larger = |size| HandlerVolume::reopen(volume.life(), Unit { size, ..folder.unit() }, false);
    assert!(matches!(larger(2 * SIZE), Err(crate::error::Mistake::Small(SIZE))));
    let grown = larger(SIZE).expect("the handler has as many bytes");
    assert_eq!(grown.traits().size, SIZE);
    grown.life().set_unit(grown.unit());
    drop(volume);
    assert!(matches!(connection.receive(), Ok(None)));
    let mut again = Connection::open(&folder.socket(), "grows", SIZE, 0).expect("Lunar listens");
    let Ok(Some(Message::Welcome(welcome))) = again.receive() else { panic!("it fits") };
    assert_eq!(welcome.size.get(), SIZE);
    drop(grown);
    until_all_ended();
    assert!(!folder.socket().exists());
}

/// A TCP socket whose last close waits until its peer reads, which it does not, and that peer.
fn lingering() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut near = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
    let far = listener.accept().expect("it connects").0;
    set_socket_linger(&near, Some(LIMIT * 2)).expect("a socket");
    near.set_nonblocking(true).expect("a socket");
    while near.write(&[0; 1 << 16]).is_ok() {}
    (near, far)
}

/// A process that has sent this file, and was refused.
fn refused_with(folder: &Folder, file: TcpStream) -> OwnedFd {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a socket");
    connect(&socket, &SocketAddrUnix::new(folder.socket()).expect("a path")).expect("Lunar listens");
    send_waiting(&socket, b"no HELLO", &[file.as_fd()], LIMIT).expect("there is room");
    drop(file);
    let mut answer = [PollFd::new(&socket, PollFlags::IN)];
    assert_eq!(poll(&mut answer, Timespec::try_from(LIMIT).ok().as_ref()), Ok(1), "there is no answer");
    let mut bytes = [0; 4096];
    let (_, count) = recv(&socket, &mut bytes[..], RecvFlags::empty()).expect("an answer");
    assert!(matches!(Message::parse(&bytes[..count]), Ok(Message::Refused(_))));
    socket
}

#[test]
fn a_file_whose_close_waits_delays_neither_an_answer_nor_the_end_nor_the_next_volume() {
    let folder = Folder::new("lingers");
    let volume = folder.volume(|_| {});
    let (near, far) = lingering();
    let socket = refused_with(&folder, near);
    let begun = Instant::now();
    drop(volume);
    drop(folder.volume(|_| {}));
    assert!(begun.elapsed() < LIMIT);
    drop((far, socket));
}

#[test]
fn no_handler_is_accepted_while_a_file_of_another_one_is_not_closed() {
    let folder = Folder::new("lingers-on");
    let _volume = folder.volume(|_| {});
    let (near, far) = lingering();
    drop(refused_with(&folder, near));
    // It says HELLO in the queue of the socket.
    let mut honest = Connection::open(&folder.socket(), "honest", SIZE, features::ALL).expect("it waits");
    std::thread::sleep(Duration::from_millis(500));
    assert!(matches!(honest.wait(false), Ok(false)));
    drop(far);
    assert!(matches!(honest.receive(), Ok(Some(Message::Welcome(_)))));
}
