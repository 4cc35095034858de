use super::*;
use crate::args::{Cli, Command};
use crate::volume::Options;
use clap::Parser;
use lunar_core::outgoing::{Data, Moves};
use lunar_nvme::auth::host::{Host, RANDOM};
use lunar_nvme::auth::key::Key;
use lunar_nvme::auth::psk::ChannelKey;
use lunar_nvme::{Sqe, Status};
use lunar_nvme_host::bringup::{Answer, Bringup, Next};
use lunar_nvme_host::command::{self, ANY_CONTROLLER, Connect};
use lunar_nvme_host::queue::{ADMIN_IN_CAPSULE, Event, Offer, Queue};
use lunar_nvme_tcp::tls::external;
use openssl::ssl::{Ssl, SslContext, SslMethod, SslStream, SslVersion};
use std::io::{IoSlice, Read};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

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
/// Nothing here takes as long.
const PATIENCE: Duration = Duration::from_secs(20);

/// A target on a port of its own.
struct Rig {
    house: Option<House>,
    nvme: SocketAddr,
    folder: PathBuf,
}

impl Rig {
    /// One to which the host comes by a secure channel, with this key.
    fn with_channel(key: &str) -> Self {
        Self::new("--tls-key", &[key])
    }

    /// One that has these keys for the host.
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
        let Cli { command } = Cli::try_parse_from(line.into_iter().chain(how)).expect("a command line");
        let Command::Serve(serve) = command else { panic!("it says serve") };
        let volumes = Volume::open_all(&serve.volumes, &Options::PLAIN).expect("memory");
        let (setup, access) = Setup::new(volumes, serve.volumes, serve.how).expect("it is right");
        let house = House::start(setup.frame(), Directory::new(Duration::ZERO), Arc::new(|_: &Notice<'_>| {}));
        let house = house.expect("cores start");
        let (faces, _) = furnish(&house, &setup, access).expect("a port");
        Self { nvme: faces.nvme[0], house: Some(house), folder }
    }

    fn call(&self) -> TcpStream {
        let stream = TcpStream::connect(self.nvme).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).and_then(|()| stream.set_write_timeout(Some(PATIENCE))).expect("times");
        stream
    }

    /// A secure channel, with what the key makes of these names.
    fn secure(&self, key: &str, host: &str) -> Result<SslStream<TcpStream>, openssl::ssl::Error> {
        let key = ChannelKey::parse(key.as_bytes()).expect("a key");
        let offer = key.offers(host, NQN).into_iter().next().expect("one");
        let mut context = SslContext::builder(SslMethod::tls_client()).expect("OpenSSL is there");
        context.set_min_proto_version(Some(SslVersion::TLS1_3)).expect("it knows that");
        external::presented_by(&mut context);
        let mut ssl = Ssl::new(&context.build()).expect("room");
        external::hold(&mut ssl, offer).expect("room");
        let mut stream = SslStream::new(ssl, self.call()).expect("room");
        stream.connect()?;
        // What keeps a host out is told behind the handshake of TLS 1.3: it is heard with the first read.
        Ok(stream)
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.house.take().into_iter().for_each(|house| house.end().expect("nothing is left"));
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A queue and its connection, whatever lies between.
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
        (host, proof): (&str, Option<Host>),
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
        let queue = if let Some(proof) = proof { queue.with_authentication(proof) } else { queue };
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

    /// Sends what is queued, and takes what comes.
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

/// What does all that a host does before its first read.
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
fn a_host_reads_and_writes_by_secure_channels() {
    for (key, suite) in [(KEY, "TLS_AES_128_GCM_SHA256"), (LONG_KEY, "TLS_AES_256_GCM_SHA384")] {
        let rig = Rig::with_channel(key);
        let stream = rig.secure(key, HOST).expect("a channel");
        assert_eq!(stream.ssl().current_cipher().map(|agreed| agreed.name()), Some(suite));
        let (mut admin, id) = Wire::open(stream, 0, ANY_CONTROLLER, HOST, ADMIN_IN_CAPSULE).expect("an admin queue");
        let info = bring_up(&mut admin);
        assert_eq!((info.blocks, info.block_size), (32768, 512));
        // On the other core.
        let stream = rig.secure(key, HOST).expect("a channel");
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
        // What was written over one connection is read over the other, and nobody reads it on the wire.
        let again = io.call(command::read(1, 1024, 2048, false), Moves::In(1 << 20));
        assert!(again.data == last);
        assert_eq!(io.call(command::flush(1), Moves::Nothing).status, Status::SUCCESS);
    }
}

#[test]
fn queues_of_a_controller_and_sessions_are_spread_over_the_cores() {
    let rig = Rig::with_channel(KEY);
    let house = rig.house.as_ref().expect("it runs");
    let there = |count: u64| {
        let end = std::time::Instant::now() + PATIENCE;
        loop {
            let each: Vec<u64> = house.common().stats.iter().map(|stats| stats.connections.get()).collect();
            if each.iter().sum::<u64>() == count {
                return each;
            }
            assert!(std::time::Instant::now() < end, "{count} connections are not there: {each:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let call = || rig.secure(KEY, HOST).expect("a channel");
    let (mut admin, id) = Wire::open(call(), 0, ANY_CONTROLLER, HOST, ADMIN_IN_CAPSULE).expect("an admin queue");
    let info = bring_up(&mut admin);
    let open = |number| Wire::open(call(), number, id, HOST, info.in_capsule).expect("a queue").0;
    let mut queues: Vec<_> = (1..=QUEUES).map(open).collect();
    assert_eq!(there(4), [2, 2], "the queues of one controller");
    let before: Vec<u64> = house.common().stats.iter().map(|stats| stats.commands.get()).collect();
    for io in &mut queues {
        assert_eq!(io.call(command::read(1, 0, 8, false), Moves::In(4096)).status, Status::SUCCESS);
    }
    let ran = house.common().stats.iter().zip(before).map(|(stats, before)| stats.commands.get() - before);
    assert!(ran.min() > Some(0), "each core carries out commands of the one controller");

    let address = house.listen(7, (Ipv4Addr::LOCALHOST, 0).into()).expect("a port");
    house.accept(7, Face::Iscsi(PortalRef { portal: 7, group: 1 }));
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
fn who_has_to_come_by_a_secure_channel_comes_by_no_other_way() {
    let rig = Rig::with_channel(KEY);
    let refused = |result: Result<(Wire<SslStream<TcpStream>>, u16), String>| result.err().expect("it is refused");
    let plain = Wire::open(rig.call(), 0, ANY_CONTROLLER, HOST, ADMIN_IN_CAPSULE).err();
    assert!(plain.is_some_and(|why| why.contains("CONNECT_HOST")), "without one");
    let stream = rig.secure(KEY, HOST).expect("a channel");
    let other = refused(Wire::open(stream, 0, ANY_CONTROLLER, OTHER, ADMIN_IN_CAPSULE));
    assert!(other.contains("CONNECT_HOST"), "by that of another host: {other}");
    let wrong = "NVMeTLSkey-1:01:EBESExQVFhcYGRobHB0eHyAhIiMkJSYnKCkqKywtLi9A/ow7:";
    for (key, host) in [(KEY, OTHER), (wrong, HOST), (LONG_KEY, HOST)] {
        assert!(rig.secure(key, host).is_err(), "{host}");
    }
}

/// What the host knows, and what it wants the subsystem to know.
fn proof(key: &str, other: Option<&str>) -> Host {
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
fn our_own_host_proves_its_name_and_has_the_subsystem_prove_its() {
    let rig = Rig::new("--host-key", &[HOST_KEY, OWN_KEY]);
    let open = |queue, controller, proof: Option<Host>| {
        Wire::open_with(rig.call(), queue, controller, (HOST, proof), ADMIN_IN_CAPSULE)
    };
    let refused = |proof| open(0, ANY_CONTROLLER, proof).err().expect("it is refused");
    assert!(refused(None).contains("give the host's key"));
    assert!(refused(Some(proof(OWN_KEY, None))).contains("FAILED"));
    assert!(refused(Some(proof(HOST_KEY, Some(HOST_KEY)))).contains("authentication of the subsystem failed"));
    for other in [None, Some(OWN_KEY)] {
        let (mut admin, id) = open(0, ANY_CONTROLLER, Some(proof(HOST_KEY, other))).expect("an admin queue");
        let info = bring_up(&mut admin);
        assert_eq!(info.blocks, 32768);
        // Each queue proves for itself.
        assert!(open(1, id, None).err().is_some_and(|why| why.contains("give the host's key")));
        // The one that was refused may still be there: until its end is seen the queue is taken.
        let end = std::time::Instant::now() + PATIENCE;
        let (mut io, _) = loop {
            match open(1, id, Some(proof(HOST_KEY, other))) {
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
