use super::*;
use crate::args::{self, Command};
use crate::registry::{PROGRAM, REGISTRY};
use lunar_core::outgoing::{Data, Moves};
use lunar_engine::front::PortalRef;
use lunar_engine::volume::text;
use lunar_nvme::auth::host::{Host, RANDOM};
use lunar_nvme::auth::key::Key;
use lunar_nvme::auth::psk::ConfiguredPsk;
use lunar_nvme::{Sqe, Status};
use lunar_nvme_host::bringup::{Answer, Bringup, Next};
use lunar_nvme_host::command::{self, ANY_CONTROLLER, Connect};
use lunar_nvme_host::queue::{ADMIN_IN_CAPSULE, Event, Offer, Queue};
use lunar_nvme_tcp::tls::external;
use openssl::ssl::{Ssl, SslContext, SslMethod, SslStream, SslVersion};
use std::io::{IoSlice, Read};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const NQN: &str = "nqn.2026-01.io.lunar:test";
const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:5a3c1e7e-6a2b-4f00-8b6e-0d4c7b1f2a90";
const OTHER: &str = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-000000000001";
const KEY: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
const LONG_KEY: &str = "NVMeTLSkey-1:02:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwP/w0S89ELi3W2LxIcLXVsDn8kXZQ==:";
const HOST_KEY: &str = "DHHC-1:01:J0qR2WNHWlQcsHLbbnAJ90qQOCgwxh9SLRo7BIMIUsGJ8cUH:";
const OWN_KEY: &str = "\
    DHHC-1:03:vKvj8txAGbr1zAhiWuCqWfhElTMBuJNmbSLYzq5peMFgkVsb8mFFZA+ph2YOyBiutoSkY3L1lG7sf2IFAmhJ7neiVrc=:";
/// I/O queues of a controller.
const QUEUES: u16 = 3;
/// The time after which a test fails: no step here takes as long.
const PATIENCE: Duration = Duration::from_secs(20);

/// A target on a port of its own.
struct Rig {
    engine: Option<Engine>,
    nvme: SocketAddr,
    folder: PathBuf,
}

impl Rig {
    /// A target to which the host connects over TLS, with this key.
    fn with_tls(key: &str) -> Self {
        Self::new("--tls-key", &[key])
    }

    /// A target with these keys for the host.
    fn new(option: &str, keys: &[&str]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("lunar-serve-{}-{count}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let write = |(at, key): (usize, &&str)| {
            let path = folder.join(format!("key{at}"));
            let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
            file.expect("a file").write_all(key.as_bytes()).expect("room");
            path.display().to_string()
        };
        let files: Vec<String> = keys.iter().enumerate().map(write).collect();
        let keys = format!("{HOST}={}", files.join(","));
        let line = ["lunar", "serve", "ram:16M", "--nvme", "127.0.0.1:0", "--nqn", NQN, option, &keys];
        let how = ["--cores", "2", "--memory", "8", "--driver", "epoll", "--drain", "0"];
        let command = args::parse(&PROGRAM, line.into_iter().chain(how)).expect("a command line");
        let Command::Serve(serve, how) = command else { panic!("it says serve") };
        let setup = Setup::new(&PROGRAM, serve.volumes, &Options::PLAIN, how, &folder).expect("it is right");
        let engine = setup.start(&folder).expect("cores start");
        let nvme = engine.portals().values().next().expect("a port").address;
        Self { nvme, engine: Some(engine), folder }
    }

    fn call(&self) -> TcpStream {
        let stream = TcpStream::connect(self.nvme).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).and_then(|()| stream.set_write_timeout(Some(PATIENCE))).expect("times");
        stream
    }

    /// A TLS connection, with the identity and PSK that are derived from the key and the names.
    fn connect_tls(&self, key: &str, host: &str) -> Result<SslStream<TcpStream>, openssl::ssl::Error> {
        let key = ConfiguredPsk::parse(key.as_bytes()).expect("a key");
        let offer = key.offers(host, NQN).into_iter().next().expect("one");
        let mut context = SslContext::builder(SslMethod::tls_client()).expect("OpenSSL is there");
        context.set_min_proto_version(Some(SslVersion::TLS1_3)).expect("it knows that");
        external::presented_by(&mut context);
        let mut ssl = Ssl::new(&context.build()).expect("room");
        external::hold(&mut ssl, offer).expect("room");
        let mut stream = SslStream::new(ssl, self.call()).expect("room");
        stream.connect()?;
        // In TLS 1.3 the server rejects a client after the handshake: the first read returns the alert.
        Ok(stream)
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.engine.take().into_iter().for_each(|engine| engine.end().expect("nothing is left"));
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A queue and its connection, with or without TLS.
struct Wire<S> {
    stream: S,
    queue: Queue,
}

impl<S: Read + Write> Wire<S> {
    fn open(stream: S, queue: u16, controller: u16, host: &str, in_capsule: u32) -> Result<(Self, u16), String> {
        Self::open_with(stream, queue, controller, (host, None), in_capsule)
    }

    fn open_with(
        stream: S,
        queue: u16,
        controller: u16,
        (host, credentials): (&str, Option<Host>),
        in_capsule: u32,
    ) -> Result<(Self, u16), String> {
        let connect = Connect {
            queue,
            entries: 32,
            controller,
            keep_alive: 0,
            flow_control: false,
            subsystem: NQN.to_owned(),
            host: host.to_owned(),
            host_id: [7; 16],
        };
        let offer = Offer { header_digest: true, data_digest: true, in_capsule };
        let queue = Queue::new(offer, connect);
        let queue = if let Some(credentials) = credentials { queue.with_authentication(credentials) } else { queue };
        let mut wire = Self { stream, queue };
        let mut found = None;
        while found.is_none() {
            wire.turn(&mut |event| {
                if let Event::Connected { controller } = event {
                    found = Some(controller);
                }
            })?;
        }
        Ok((wire, found.expect("that was awaited")))
    }

    /// Sends the queued bytes, and receives once.
    fn turn(&mut self, on: &mut impl FnMut(Event<'_>)) -> Result<(), String> {
        while !self.queue.output().is_empty() {
            let mut slices = [IoSlice::new(&[])];
            self.queue.output().slices(&mut slices);
            let count = self.stream.write(&slices[0]).map_err(|why| why.to_string())?;
            self.queue.sent(count);
        }
        let mut bytes = vec![0; 64 << 10];
        let count = self.stream.read(&mut bytes).map_err(|why| why.to_string())?;
        if count == 0 {
            return Err("it has closed".to_owned());
        }
        self.queue.receive(&bytes[..count], on).map_err(|why| why.to_string())
    }

    fn call(&mut self, sqe: Sqe, moves: Moves) -> Answer {
        self.queue.submit(lunar_nvme_host::queue::Command { cookie: 0, sqe, moves }).expect("room");
        let mut answer = Answer { status: Status::SUCCESS, result: 0, data: Vec::new() };
        let mut over = false;
        while !over {
            let told = self.turn(&mut |event| match event {
                Event::Data { bytes, .. } => answer.data.extend_from_slice(bytes),
                Event::Done { status, result, .. } => (answer.status, answer.result, over) = (status, result, true),
                Event::Connected { .. } => {}
            });
            told.expect("an answer");
        }
        answer
    }
}

/// Does the steps of a host before its first Read command.
fn bring_up<S: Read + Write>(admin: &mut Wire<S>) -> lunar_nvme_host::bringup::Info {
    let mut way = Bringup::new(QUEUES, Some(1));
    let mut answer = admin.call(way.first(), Moves::Nothing);
    loop {
        answer = match way.next(&answer).expect("a controller") {
            Next::Command(sqe, 0) | Next::Later(sqe) => admin.call(sqe, Moves::Nothing),
            Next::Command(sqe, room) => admin.call(sqe, Moves::In(room)),
            Next::Ready(info) => return info,
        };
    }
}

#[test]
fn a_host_reads_and_writes_over_tls() {
    for (key, suite) in [(KEY, "TLS_AES_128_GCM_SHA256"), (LONG_KEY, "TLS_AES_256_GCM_SHA384")] {
        let rig = Rig::with_tls(key);
        let stream = rig.connect_tls(key, HOST).expect("a TLS connection");
        assert_eq!(stream.ssl().current_cipher().map(|agreed| agreed.name()), Some(suite));
        let (mut admin, id) = Wire::open(stream, 0, ANY_CONTROLLER, HOST, ADMIN_IN_CAPSULE).expect("an admin queue");
        let info = bring_up(&mut admin);
        assert_eq!((info.blocks, info.block_size), (32768, 512));
        // On the other core.
        let stream = rig.connect_tls(key, HOST).expect("a TLS connection");
        let (mut io, _) = Wire::open(stream, 1, id, HOST, info.in_capsule).expect("a queue");
        let mut last = Vec::new();
        for (lba, count) in [(0, 1), (8, 8), (100, 17), (1024, 2048)] {
            let bytes: Vec<u8> = (0..count * 512).map(|n: u32| (n / 3 + lba) as u8).collect();
            let data = Moves::Out(Data::new(bytes.clone().into()));
            assert_eq!(io.call(command::write(1, lba.into(), count, false), data).status, Status::SUCCESS);
            let read = io.call(command::read(1, lba.into(), count, false), Moves::In(count * 512));
            assert_eq!(read.status, Status::SUCCESS);
            assert!(read.data == bytes, "{count} blocks at {lba}");
            last = bytes;
        }
        // Large data is read again in one command.
        let again = io.call(command::read(1, 1024, 2048, false), Moves::In(1 << 20));
        assert!(again.data == last);
        assert_eq!(io.call(command::flush(1), Moves::Nothing).status, Status::SUCCESS);
    }
}

#[test]
fn queues_of_a_controller_and_sessions_are_spread_over_the_cores() {
    let rig = Rig::with_tls(KEY);
    let core_set = rig.engine.as_ref().expect("it runs").core_set();
    let there = |count: u64| {
        let end = std::time::Instant::now() + PATIENCE;
        loop {
            let each: Vec<u64> = core_set.shared().stats.iter().map(|stats| stats.connections.get()).collect();
            if each.iter().sum::<u64>() == count {
                return each;
            }
            assert!(std::time::Instant::now() < end, "{count} connections are not there: {each:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let call = || rig.connect_tls(KEY, HOST).expect("a TLS connection");
    let (mut admin, id) = Wire::open(call(), 0, ANY_CONTROLLER, HOST, ADMIN_IN_CAPSULE).expect("an admin queue");
    let info = bring_up(&mut admin);
    let open = |number| Wire::open(call(), number, id, HOST, info.in_capsule).expect("a queue").0;
    let mut queues: Vec<_> = (1..=QUEUES).map(open).collect();
    assert_eq!(there(4), [2, 2], "the queues of one controller");
    let before: Vec<u64> = core_set.shared().stats.iter().map(|stats| stats.commands.get()).collect();
    for io in &mut queues {
        assert_eq!(io.call(command::read(1, 0, 8, false), Moves::In(4096)).status, Status::SUCCESS);
    }
    let ran = core_set.shared().stats.iter().zip(before).map(|(stats, before)| stats.commands.get() - before);
    assert!(ran.min() > Some(0), "each core carries out commands of the one controller");

    let address = core_set.listen(99, (Ipv4Addr::LOCALHOST, 0).into()).expect("a port");
    let iscsi = REGISTRY.front_index("iscsi").expect("it is registered");
    core_set.accept(99, (iscsi, PortalRef { portal: 99, group: 1 }));
    let connect = |more: u64| {
        let stream = TcpStream::connect(address).expect("it listens");
        there(4 + more);
        stream
    };
    let sessions: Vec<TcpStream> = (1..=4).map(connect).collect();
    assert_eq!(there(8), [4, 4], "connections of iSCSI");
    drop((sessions, queues, admin));
    there(0);
}

#[test]
fn a_host_with_a_tls_key_can_connect_over_tls_only() {
    let rig = Rig::with_tls(KEY);
    let refused = |result: Result<(Wire<SslStream<TcpStream>>, u16), String>| result.err().expect("it is refused");
    let plain = Wire::open(rig.call(), 0, ANY_CONTROLLER, HOST, ADMIN_IN_CAPSULE).err();
    assert!(plain.is_some_and(|why| why.contains("CONNECT_HOST")), "without one");
    let stream = rig.connect_tls(KEY, HOST).expect("a TLS connection");
    let other = refused(Wire::open(stream, 0, ANY_CONTROLLER, OTHER, ADMIN_IN_CAPSULE));
    assert!(other.contains("CONNECT_HOST"), "by that of another host: {other}");
    let wrong = "NVMeTLSkey-1:01:EBESExQVFhcYGRobHB0eHyAhIiMkJSYnKCkqKywtLi9A/ow7:";
    for (key, host) in [(KEY, OTHER), (wrong, HOST), (LONG_KEY, HOST)] {
        assert!(rig.connect_tls(key, host).is_err(), "{host}");
    }
}

/// The credentials of the host, and the key that it expects of the subsystem.
fn credentials(key: &str, other: Option<&str>) -> Host {
    let parse = |text: &str| Key::parse(text.as_bytes()).expect("a key");
    Host {
        name: HOST.to_owned(),
        subsystem: NQN.to_owned(),
        key: parse(key),
        other: other.map(parse),
        transaction: 7,
        random: [0x5a; RANDOM],
    }
}

#[test]
fn host_and_subsystem_authenticate_each_other() {
    let rig = Rig::new("--host-key", &[HOST_KEY, OWN_KEY]);
    let open = |queue, controller, credentials: Option<Host>| {
        Wire::open_with(rig.call(), queue, controller, (HOST, credentials), ADMIN_IN_CAPSULE)
    };
    let refused = |credentials| open(0, ANY_CONTROLLER, credentials).err().expect("it is refused");
    assert!(refused(None).contains("give the host's key"));
    assert!(refused(Some(credentials(OWN_KEY, None))).contains("FAILED"));
    assert!(refused(Some(credentials(HOST_KEY, Some(HOST_KEY)))).contains("authentication of the subsystem failed"));
    for other in [None, Some(OWN_KEY)] {
        let (mut admin, id) = open(0, ANY_CONTROLLER, Some(credentials(HOST_KEY, other))).expect("an admin queue");
        let info = bring_up(&mut admin);
        assert_eq!(info.blocks, 32768);
        // Each queue authenticates on its own.
        assert!(open(1, id, None).err().is_some_and(|why| why.contains("give the host's key")));
        // The refused connection may not have ended yet; until then the queue ID is in use.
        let end = std::time::Instant::now() + PATIENCE;
        let (mut io, _) = loop {
            match open(1, id, Some(credentials(HOST_KEY, other))) {
                Err(why) if why.contains("SEQUENCE_ERROR") && std::time::Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                queue => break queue.expect("a queue"),
            }
        };
        let read = io.call(command::read(1, 0, 8, false), Moves::In(4096));
        assert_eq!((read.status, read.data.len()), (Status::SUCCESS, 4096));
    }
}

/// The configuration of the options `line` of `lunar serve`.
fn setup(line: &str, state: &Path) -> Result<Setup, String> {
    let how = ["--cores", "2", "--memory", "8", "--driver", "epoll", "--drain", "0"];
    let words = ["lunar", "serve"].into_iter().chain(line.split_whitespace()).chain(how);
    let command = args::parse(&PROGRAM, words).map_err(|why| why.to_string())?;
    let Command::Serve(serve, how) = command else { panic!("it says serve") };
    let options = Options {
        read_only: serve.read_only,
        protection: serve.protection.and_then(lunar_core::protection::Kind::of),
        ..Options::PLAIN
    };
    Setup::new(&PROGRAM, serve.volumes, &options, how, state).map_err(|why| why.to_string())
}

/// A folder that is removed at the end of the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("lunar-serve-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The serial numbers of the units that a command line serves, by LUN, and that of the subsystem.
fn serials(line: &str, state: &Path) -> (Vec<String>, String) {
    let setup = setup(line, state).expect("it is right");
    let engine = setup.start(state).expect("it starts");
    let units: Vec<UnitId> = setup.volumes.names.iter().filter_map(|name| engine.unit_of(name)).collect();
    let units = engine.core_set().cores().ask(0, move |core| {
        let serial = |unit: &UnitId| core.mesh.unit(*unit).map(|unit| unit.identity.serial.to_string());
        ready(units.iter().filter_map(serial).collect::<Vec<_>>())
    });
    let units = units.wait().expect("it runs");
    let directory = engine.core_set().shared().subsystems.directory();
    let subsystem = directory.subsystems().next().expect("one").serial.clone();
    engine.end().expect("it ends");
    (units, subsystem)
}

#[test]
fn volumes_have_the_identity_of_their_stores_each_time_they_are_served() {
    let folder = Folder::new("identity");
    let disk = folder.0.join("disk.img");
    let line = format!("ram:1M {}:1M ram:1M --listen 127.0.0.1:0", disk.display());
    let (first, subsystem) = serials(&line, &folder.0);
    let spelled = |uuid: [u8; 16]| format!("{:032x}", u128::from_be_bytes(uuid));
    let identity = |(text, position): (&str, usize)| {
        let keys = text::parse(REGISTRY.backends, text).expect("a volume");
        spelled(keys.uuid(text, position, false).expect("it has a mark now").0)
    };
    let file = disk.display().to_string();
    let wanted = [("ram:1M", 0), (&*file, 1), ("ram:1M", 2)].map(identity);
    assert_eq!(first, wanted);
    assert_eq!(subsystem, first[0][..20]);
    // The UUIDs in the configuration of a command line, whose volumes are not opened.
    let uuids = |line: &str| {
        let config = setup(line, &folder.0).expect("it is right").checked.config;
        config.volumes.values().filter_map(|volume| Some(spelled(volume.uuid?.0))).collect::<Vec<_>>()
    };
    assert_eq!(uuids(&line), first);
    // A read-only file without a mark is identified by its path.
    let plain = folder.0.join("plain.img");
    std::fs::write(&plain, [0; 4096]).expect("room");
    let line = format!("{} --read-only --listen 127.0.0.1:0", plain.display());
    let (first, subsystem) = serials(&line, &folder.0);
    assert_eq!(subsystem, first[0][..20]);
    assert_eq!(uuids(&line), first);
}

#[test]
fn two_command_lines_serve_from_one_state_folder() {
    let folder = Folder::new("state");
    let start = || setup("ram:1M --listen 127.0.0.1:0", &folder.0).expect("right").start(&folder.0).expect("it starts");
    let both = [start(), start()];
    assert!(!folder.0.join("ports.json").exists(), "ports are numbered by their portal groups");
    both.into_iter().for_each(|engine| engine.end().expect("it ends"));
}

#[test]
fn mistakes_are_reported_before_the_start_and_name_the_option() {
    let folder = Folder::new("mistakes");
    let sockets = folder.0.display();
    let once = std::time::Instant::now();
    for (line, words) in [
        ("ram:1M --listen 127.0.0.1:3999 --listen 127.0.0.1:3999".to_owned(), "127.0.0.1:3999 is given twice"),
        ("ram:1M --listen 127.0.0.1:3999 --nvme 127.0.0.1:3999".to_owned(), "are one address"),
        (format!("ram:1M --vm web --vm web --vm-folder {sockets}"), "--vm web is given twice"),
        ("ram:1M --initiator notaniqn".to_owned(), "no client has a name like \"notaniqn\""),
        ("ram:1M --initiator=".to_owned(), "--initiator"),
        ("ram:1M --advertise 192.0.2.1 --advertise 192.0.2.2".to_owned(), "once for each --listen"),
        ("nul:1T".to_owned(), "did you mean null:1T?"),
        ("ram:20GB".to_owned(), "'20GB' is not a size: write 20G"),
        ("ram:1000".to_owned(), "ram:1000: 1000 bytes are not a whole number of 512-byte blocks"),
        ("ram:1M --map iqn.x=0:1".to_owned(), "LUN 0 names volume 1, but volumes are numbered 0 to 0"),
        ("ram:1M --metadata".to_owned(), "no volume keeps any: give --protection"),
        ("removable:ram:1M --protection 1".to_owned(), "leave out --protection"),
    ] {
        let why = setup(&line, &folder.0).err().unwrap_or_else(|| panic!("{line} is accepted"));
        assert!(why.contains(words), "{line}: {why}");
    }
    assert!(once.elapsed() < lunar_engine::engine::PORT_PATIENCE, "nothing is waited for");
}

#[test]
fn stores_and_ports_that_cannot_be_opened_are_named_as_on_the_command_line() {
    let folder = Folder::new("refused");
    let (disk, other, sockets) =
        (folder.0.join("disk.img"), folder.0.join("other.img"), folder.0.display().to_string());
    [&disk, &other].into_iter().for_each(|path| std::fs::write(path, [0; 4096]).expect("room"));
    let first = setup(&format!("{} --listen 127.0.0.1:0 --vm web --vm-folder {sockets}", disk.display()), &folder.0);
    let first = first.expect("right").start(&folder.0).expect("it starts");
    let taken = first.portals().values().next().expect("a portal").address;
    for (line, words) in [
        (disk.display().to_string(), "already served by process"),
        (format!("{}:1M", other.display()), "exists with 4K, not 1M; leave the size out"),
        (format!("{}/none.img", folder.0.display()), "to create it, give its size"),
        (format!("ram:1M --listen {taken}"), "choose another port with --listen"),
        (format!("ram:1M --listen 127.0.0.1:0 --vm web --vm-folder {sockets}"), "choose another --vm or --vm-folder"),
        ("null:1M --listen 127.0.0.1:0 --protection 1".to_owned(), "null:1M has no place for protection information"),
    ] {
        let why = setup(&line, &folder.0).expect(&line).start(&folder.0).expect_err(&line).to_string();
        assert!(why.contains(words), "{line}: {why}");
    }
    first.end().expect("it ends");
}

#[test]
fn stored_protection_information_is_served_without_its_option() {
    let folder = Folder::new("protection");
    let disk = folder.0.join("disk.img");
    let protected = |line: &str| {
        let setup = setup(line, &folder.0)?;
        let engine = setup.start(&folder.0).map_err(|why| why.to_string())?;
        let lines = setup.lines(&engine).map_err(|why| why.to_string());
        engine.end().expect("it ends");
        lines.map(|lines| lines[0].traits.contains("protection type 2"))
    };
    assert_eq!(protected(&format!("{}:1M --listen 127.0.0.1:0 --protection 2", disk.display())), Ok(true));
    let line = format!("{} --listen 127.0.0.1:0 --metadata", disk.display());
    let config = setup(&line, &folder.0).expect("right").checked.config;
    assert!(config.groups["everybody"].luns.0[&0].metadata);
    assert_eq!(config.volumes["lun-00000"].protection.word(), "type-2");
}

#[test]
fn ipv4_or_ipv6_may_be_missing_on_the_machine() {
    let folder = Folder::new("families");
    let setup = setup("ram:1M", &folder.0).expect("it is right");
    let optional: Vec<&str> = setup.draft.optional().iter().map(|portal| portal.name.as_str()).collect();
    let address = |name: &&str| setup.checked.config.portals[*name].address().to_string();
    assert_eq!(optional.iter().map(address).collect::<Vec<_>>(), ["[::]:3260", "[::]:4420"]);
    assert_eq!(setup.checked.config.portals.len(), 4);
}

#[test]
fn a_front_that_alone_has_an_address_is_served_alone() {
    let folder = Folder::new("transports");
    for (line, iscsi, nvme) in [
        ("", 2, 2),
        ("--listen 127.0.0.1", 1, 0),
        ("--nvme 127.0.0.1", 0, 1),
        ("--nvme ::1 --listen 127.0.0.1:1", 1, 1),
        // Options that restrict initiators do not restrict NVMe hosts.
        ("--initiator iqn.x:*", 2, 0),
        ("--map iqn.x=0:0", 2, 0),
        ("--initiator nqn.x:* --nvme ::1", 0, 1),
        ("--dhchap-hash sha384,sha256 --dhchap-group null", 2, 2),
    ] {
        let setup = setup(&format!("ram:1M {line}"), &folder.0).expect(line);
        let portals: Vec<&str> = setup.checked.config.portals.values().map(|portal| portal.protocol.word()).collect();
        let count = |protocol: &str| portals.iter().filter(|word| **word == protocol).count();
        assert_eq!((count("iscsi"), count("nvme-tcp")), (iscsi, nvme), "{line}");
        assert_eq!(!setup.remarks.is_empty(), iscsi == 2 && nvme == 0, "{line}: {:?}", setup.remarks);
    }
}
