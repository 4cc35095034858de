//! Conversations over real sockets, as QEMU has them: a front-end on a thread of its own, with the rings of a guest.

use super::*;
use crate::blk;
use crate::session::RingIndex;
use crate::testing::{DriverRing, MEMORY_LEN, USER};
use crate::wire::{
    Code, ConfigHead, HEADER_LEN, Header, Inflight, MemoryRegion, MemoryTable, NEED_REPLY, REPLY, SingleRegion,
    VERSION, VringState, feature, protocol,
};
use lunar_blk::testing::{BLOCK, BLOCKS, Rig, UNIT};
use lunar_core::mem::Region;
use lunar_core::time::Instant;
use lunar_engine::vm_sockets::on_core::{ACCEPT_REST, NEXT_REST};
use lunar_engine::vm_sockets::{Place, Role};
use lunar_reactor::unix::Permission;
use lunar_reactor::{Choice, Config, shared, unix};
use lunar_scsi::{Clock, PortConfig, TargetConfig, Tokens};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use zerocopy::{FromBytes, IntoBytes};

/// How long the test waits for anything.
const PATIENCE: Duration = Duration::from_secs(20);

/// A SCSI target without logical units.
pub(super) fn target(rig: &Rig) -> Rc<Target> {
    let port = PortConfig { relative: 1, group: 1, name: "p".into(), device: "d".into(), protocol: 5 };
    Target::new(TargetConfig {
        ports: vec![port],
        clock: Clock(Rc::new(|| 0)),
        stats: Arc::default(),
        units: rig.core_units.clone(),
        tokens: Tokens::new(Box::new(|_| true), Box::new(Instant::default)),
    })
}

/// Runs `front_end` against a device, on a thread of its own.
fn against(device: DeviceView, queues: usize, front_end: impl FnOnce(&Path) + Send + 'static) {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("lunar-vhost-test-{}-{number}.sock", std::process::id()));
    let reactor = Reactor::new(Config { driver: Choice::Epoll, ..Config::default() }).expect("a driver");
    let rig = Rig::default();
    let target = target(&rig);
    let sessions = Arc::<Sessions>::default();
    let sees_nothing = matches!(device, DeviceView::Blk(None) | DeviceView::Scsi(None));
    let front = sockets(&reactor, (&rig.set, &target), &sessions, Duration::from_secs(1));
    let permission = Permission { mode: 0o600, owner: None, group: None };
    let place = Place { path: path.clone(), role: Role::Server };
    front.open(place.clone(), permission).expect("a socket");
    let (group, host) = (Some("g".into()), "iqn.x".into());
    let tenant = Tenant { host, group, tag: 0, queues, device };
    front.serve(Endpoint { name: "test".into(), place, tenant }, Vec::new());
    let is_over = Arc::new(AtomicBool::new(false));
    let (over, place) = (is_over.clone(), path.clone());
    let thread = std::thread::spawn(move || {
        let _end = Ended(over);
        front_end(&place);
    });
    let begun = reactor.now();
    reactor.run(async {
        while !is_over.load(Ordering::SeqCst) {
            assert!(reactor.now().since(begun) < PATIENCE, "the conversation does not end");
            reactor.sleep(Duration::from_millis(1)).await;
        }
        front.drain();
        front.drained().await;
        assert!(sessions.all().is_empty());
        assert_eq!(reactor.stats().logins_refused.get() > 0, sees_nothing);
    });
    thread.join().expect("the front-end is content");
    assert!(!path.exists(), "the socket is removed");
}

/// Says that the thread has ended, even if it panics.
struct Ended(Arc<AtomicBool>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A front-end: that of QEMU 7.2, or of a newer one, which wants more messages acknowledged.
struct FrontEnd {
    stream: OwnedFd,
    is_newer: bool,
    file: OwnedFd,
    memory: Region,
    /// The eventfds of the rings: kick, call.
    events: Vec<[OwnedFd; 2]>,
}

fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd")
}

impl FrontEnd {
    fn new(path: &Path, is_newer: bool, rings: usize) -> Self {
        Self::of(UnixStream::connect(path).expect("it listens"), is_newer, rings)
    }

    /// The front-end at this end of a connection.
    fn of(stream: UnixStream, is_newer: bool, rings: usize) -> Self {
        stream.set_nonblocking(true).expect("a socket");
        let file = memfd_create("guest", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("a memfd");
        ftruncate(&file, MEMORY_LEN as u64).expect("room");
        let memory = shared::map(&file, 0, MEMORY_LEN, true).expect("a memfd");
        let events = (0..rings).map(|_| [event(), event()]).collect();
        Self { stream: stream.into(), is_newer, file, memory, events }
    }

    fn send(&self, code: Code, flags: u32, payload: &[u8], descriptors: &[BorrowedFd<'_>]) {
        let size = (payload.len() as u32).into();
        let header = Header { code: code.0.into(), flags: (VERSION | flags).into(), size };
        let message = [header.as_bytes(), payload].concat();
        unix::send_waiting(&self.stream, &message, descriptors, PATIENCE).expect("it is read");
    }

    /// The payload of the next reply, and its descriptors.
    fn reply(&self, code: Code) -> (Vec<u8>, Vec<OwnedFd>) {
        let (mut bytes, mut descriptors) = ([0; HEADER_LEN], Vec::new());
        unix::receive_waiting(&self.stream, &mut bytes, &mut descriptors, PATIENCE).expect("a reply");
        let header = Header::read_from_bytes(&bytes).expect("twelve bytes");
        assert_eq!((header.code.get(), header.flags.get()), (code.0, VERSION | REPLY), "{code:?}");
        let mut payload = vec![0; header.size.get() as usize];
        unix::receive_waiting(&self.stream, &mut payload, &mut descriptors, PATIENCE).expect("its payload");
        (payload, descriptors)
    }

    fn ask(&self, code: Code, payload: &[u8]) -> Vec<u8> {
        self.send(code, 0, payload, &[]);
        self.reply(code).0
    }

    fn number(&self, code: Code) -> u64 {
        u64::from_le_bytes(self.ask(code, &[]).try_into().expect("a number"))
    }

    /// Sends a message that is acknowledged, and returns the acknowledgement.
    fn acknowledged(&self, code: Code, payload: &[u8], descriptors: &[BorrowedFd<'_>]) -> u64 {
        self.send(code, NEED_REPLY, payload, descriptors);
        u64::from_le_bytes(self.reply(code).0.try_into().expect("a number"))
    }

    /// Sends a message that only newer front-ends want acknowledged.
    fn tell(&self, code: Code, payload: &[u8], descriptors: &[BorrowedFd<'_>]) {
        if self.is_newer {
            assert_eq!(self.acknowledged(code, payload, descriptors), 0, "{code:?}");
        } else {
            self.send(code, 0, payload, descriptors);
        }
    }

    fn state(&self, code: Code, index: u32, num: u32) {
        let state = VringState { index: index.into(), num: num.into() };
        match code {
            Code::SET_VRING_ENABLE => self.tell(code, state.as_bytes(), &[]),
            _ => self.send(code, 0, state.as_bytes(), &[]),
        }
    }

    fn event(&self, code: Code, ring: usize, which: usize) {
        self.tell(code, &(ring as u64).to_le_bytes(), &[self.events[ring][which].as_fd()]);
    }

    fn stop(&self, ring: u32) -> u32 {
        let state = VringState { index: ring.into(), num: 0.into() };
        let answer = self.ask(Code::GET_VRING_BASE, state.as_bytes());
        let answer = VringState::read_from_bytes(&answer).expect("a state");
        assert_eq!(answer.index.get(), ring);
        answer.num.get()
    }

    /// The messages with which a front-end begins.
    fn greet(&self, has_config: bool) -> u64 {
        let features = self.number(Code::GET_FEATURES);
        assert_ne!(features & feature::PROTOCOL_FEATURES, 0);
        let offered = self.number(Code::GET_PROTOCOL_FEATURES);
        let config = if has_config { protocol::CONFIG } else { 0 };
        let used = offered & !protocol::CONFIG | config;
        self.send(Code::SET_PROTOCOL_FEATURES, 0, &used.to_le_bytes(), &[]);
        assert_eq!(self.number(Code::GET_QUEUE_NUM), self.events.len() as u64);
        assert!(self.number(Code::GET_MAX_MEM_SLOTS) > 8);
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        drop(ours);
        assert_eq!(self.acknowledged(Code::SET_BACKEND_REQ_FD, &[], &[theirs.as_fd()]), 0);
        self.send(Code::SET_OWNER, 0, &[], &[]);
        for ring in 0..self.events.len() {
            self.event(Code::SET_VRING_CALL, ring, 1);
            self.event(Code::SET_VRING_ERR, ring, 1);
        }
        features
    }

    /// The messages of a driver that starts with these features, and these rings of the device.
    fn start(&self, features: u64, rings: &mut [Option<DriverRing>]) {
        self.send(Code::SET_FEATURES, 0, &features.to_le_bytes(), &[]);
        (0..rings.len()).for_each(|ring| self.event(Code::SET_VRING_CALL, ring, 1));
        self.send(Code::SET_FEATURES, 0, &features.to_le_bytes(), &[]);
        for (at, ring) in rings.iter().enumerate() {
            let Some(ring) = ring else { continue };
            self.state(Code::SET_VRING_NUM, at as u32, 16);
            self.state(Code::SET_VRING_BASE, at as u32, ring.base());
            self.send(Code::SET_VRING_ADDR, 0, ring.address(at as u32).as_bytes(), &[]);
            self.event(Code::SET_VRING_KICK, at, 0);
        }
        // All rings, with those that were not started.
        (0..rings.len()).for_each(|at| self.state(Code::SET_VRING_ENABLE, at as u32, 1));
    }

    fn region(&self) -> MemoryRegion {
        let (guest, offset) = (0.into(), 0.into());
        MemoryRegion { guest, size: (MEMORY_LEN as u64).into(), user: USER.into(), offset }
    }

    fn add_memory(&self) -> u64 {
        let region = SingleRegion { padding: 0.into(), region: self.region() };
        self.acknowledged(Code::ADD_MEM_REG, region.as_bytes(), &[self.file.as_fd()])
    }

    fn set_memory(&self) -> u64 {
        let table = MemoryTable { count: 1.into(), padding: 0.into() };
        let payload = [table.as_bytes(), self.region().as_bytes()].concat();
        self.acknowledged(Code::SET_MEM_TABLE, &payload, &[self.file.as_fd()])
    }

    /// Has a request carried out: notifies, and waits for the call and the answer.
    fn run(&self, at: usize, ring: &mut DriverRing, pieces: &[(u64, u32, bool)]) -> u32 {
        let id = ring.offer(pieces, false).expect("there is room");
        rustix::io::write(&self.events[at][0], &1_u64.to_ne_bytes()).expect("an eventfd");
        let end = std::time::Instant::now() + PATIENCE;
        loop {
            if let Some((returned, len)) = ring.returned() {
                assert_eq!(returned, id);
                return len;
            }
            assert!(std::time::Instant::now() < end, "no answer");
            let wait = Timespec { tv_sec: 1, tv_nsec: 0 };
            let _ = poll(&mut [PollFd::new(&self.events[at][1], PollFlags::IN)], Some(&wait));
            let _ = rustix::io::read(&self.events[at][1], &mut [0; 8]);
        }
    }
}

/// Writes a virtio-blk request at guest address 0x4000; its data is at 0x5000, its status at 0x6000.
fn request(ring: &DriverRing, kind: blk::Type, sector: u64) -> (u64, u32, bool) {
    let header = blk::Header { kind: kind.0.into(), priority: 0.into(), sector: sector.into() };
    ring.write(0x4000, header.as_bytes());
    ring.write(0x6000, &[0xff]);
    (0x4000, blk::HEADER_LEN as u32, false)
}

const STATUS: (u64, u32, bool) = (0x6000, 1, true);

/// Firmware with one ring, then a driver with both, unbound and bound again, as QEMU 7.2 and 11 were recorded with a
/// guest of Linux.
fn conversation(path: &Path, is_newer: bool) {
    let front_end = FrontEnd::new(path, is_newer, 2);
    let offered = front_end.greet(true);
    let head = ConfigHead { offset: 0.into(), size: 57.into(), flags: 0.into() };
    let config = [head.as_bytes(), &[0; 57]].concat();
    let space = front_end.ask(Code::GET_CONFIG, &config);
    assert_eq!(space.len(), 69);
    assert_eq!(space[12..20], BLOCKS.to_le_bytes());
    let old = feature::PROTOCOL_FEATURES | feature::VERSION_1;
    let ring = |features, at| DriverRing::new(&front_end.memory, features, 16, at);
    // Firmware.
    let features = old | blk::feature::SEG_MAX | blk::feature::BLK_SIZE;
    assert_eq!(front_end.add_memory(), 0);
    let mut rings = [Some(ring(features, 0x1000)), None];
    front_end.start(features, &mut rings);
    let first = rings[0].as_mut().expect("it is there");
    let header = request(first, blk::Type::IN, 0);
    assert_eq!(front_end.run(0, first, &[header, (0x5000, BLOCK, true), STATUS]), BLOCK + 1);
    assert_eq!(first.read(0x6000, 1), [0]);
    (0..2).for_each(|at| front_end.state(Code::SET_VRING_ENABLE, at, 0));
    assert_eq!(front_end.stop(0), 1);
    // The driver, twice: memory that was added once survives.
    let events = feature::EVENT_IDX | feature::INDIRECT_DESC;
    let features = offered & (features | events | blk::feature::FLUSH | blk::feature::CONFIG_WCE | blk::feature::MQ);
    for round in 0..2_u8 {
        let mut rings = [Some(ring(features, 0x1000)), Some(ring(features, 0x2000))];
        assert!(front_end.memory.write(0x1000, &[0; 0x2000]));
        front_end.start(features, &mut rings);
        for (at, ring) in rings.iter_mut().flatten().enumerate() {
            let sector = u64::from(round) * 2 + at as u64;
            let header = request(ring, blk::Type::OUT, sector);
            ring.write(0x5000, &[round + 7; BLOCK as usize]);
            ring.set_used_event(ring.seen());
            assert_eq!(front_end.run(at, ring, &[header, (0x5000, BLOCK, false), STATUS]), 1);
            assert_eq!(ring.read(0x6000, 1), [0]);
            ring.write(0x5000, &[0; BLOCK as usize]);
            let header = request(ring, blk::Type::IN, sector);
            ring.set_used_event(ring.seen());
            assert_eq!(front_end.run(at, ring, &[header, (0x5000, BLOCK, true), STATUS]), BLOCK + 1);
            assert_eq!(ring.read(0x5000, BLOCK as usize), [round + 7; BLOCK as usize]);
            let header = request(ring, blk::Type::IN, BLOCKS);
            ring.set_used_event(ring.seen());
            assert_eq!(front_end.run(at, ring, &[header, (0x5000, BLOCK, true), STATUS]), 1);
            assert_eq!(ring.read(0x6000, 1), [1], "beyond the end");
        }
        // The write cache: the only byte that changes.
        let head = ConfigHead { offset: 32.into(), size: 1.into(), flags: 0.into() };
        let off = [head.as_bytes(), &[0]].concat();
        assert_eq!(front_end.acknowledged(Code::SET_CONFIG, &off, &[]), 0);
        assert_eq!(front_end.ask(Code::GET_CONFIG, &config)[12 + 32], 0);
        (0..2).for_each(|at| front_end.state(Code::SET_VRING_ENABLE, at, 0));
        assert_eq!([front_end.stop(0), front_end.stop(1)], [3, 3]);
        // Several times in a row, and before the first features.
        (0..3).for_each(|_| front_end.send(Code::RESET_DEVICE, 0, &[], &[]));
    }
}

#[test]
fn qemu_7_talks_to_a_disk() {
    against(disk(), 2, |path| conversation(path, false));
}

#[test]
fn qemu_11_talks_to_a_disk() {
    against(disk(), 2, |path| conversation(path, true));
}

pub(super) fn disk() -> DeviceView {
    DeviceView::Blk(Some(Disk { unit: UNIT, read_only: false }))
}

#[test]
fn a_front_end_is_refused_what_cannot_be() {
    against(disk(), 2, |path| {
        let front_end = FrontEnd::new(path, true, 2);
        front_end.greet(true);
        assert_eq!(front_end.acknowledged(Code(77), &[], &[]), 1, "unknown");
        let state = VringState { index: 2.into(), num: 16.into() };
        assert_eq!(front_end.acknowledged(Code::SET_VRING_NUM, state.as_bytes(), &[]), 1, "no such ring");
        let kick = |number: u64, descriptors: &[BorrowedFd<'_>]| {
            front_end.acknowledged(Code::SET_VRING_KICK, &number.to_le_bytes(), descriptors)
        };
        assert_eq!(kick(0, &[]), 1, "no descriptor");
        assert_eq!(kick(0, &[front_end.file.as_fd()]), 1, "no eventfd");
        assert_eq!(kick(0, &[front_end.events[0][0].as_fd()]), 1, "a ring without addresses");
        let pipe = io::pipe().expect("a pipe").0;
        let region = SingleRegion { padding: 0.into(), region: front_end.region() };
        assert_eq!(front_end.acknowledged(Code::ADD_MEM_REG, region.as_bytes(), &[pipe.as_fd()]), 1, "no memory");
        assert_eq!((front_end.add_memory(), front_end.add_memory()), (0, 1), "twice");
        assert_eq!(front_end.set_memory(), 0);
        // A message of another length ends the connection.
        front_end.send(Code::SET_VRING_NUM, 0, &[0; 7], &[]);
        let mut byte = [0];
        let ended = unix::receive_waiting(&front_end.stream, &mut byte, &mut Vec::new(), PATIENCE);
        assert_eq!(ended.map_err(|why| why.kind()), Err(io::ErrorKind::UnexpectedEof));
        // The next front-end is served.
        FrontEnd::new(path, true, 2).greet(true);
    });
}

#[test]
fn a_host_adapter_answers_as_recorded() {
    against(DeviceView::Scsi(Some(ScsiPort { relative: 1 })), 2, |path| {
        let front_end = FrontEnd::new(path, true, 4);
        front_end.greet(false);
        // QEMU asks for the record before the features are known.
        let asked =
            Inflight { size: 0.into(), offset: 0.into(), queues: 4.into(), queue_size: 128.into(), padding: [0; 4] };
        front_end.send(Code::GET_INFLIGHT_FD, 0, asked.as_bytes(), &[]);
        let (made, descriptors) = front_end.reply(Code::GET_INFLIGHT_FD);
        let made = Inflight::read_from_bytes(&made).expect("as long as QEMU wants it");
        assert!(made.size.get() >= 4 * 2064 && descriptors.len() == 1);
        front_end.send(Code::SET_INFLIGHT_FD, 0, made.as_bytes(), &[descriptors[0].as_fd()]);
        front_end.send(Code::SET_STATUS, 0, &8_u64.to_le_bytes(), &[]);
        assert_eq!(front_end.number(Code::GET_STATUS), 8);
        assert_eq!(front_end.set_memory(), 0);
        // With features that QEMU adds itself.
        let features = feature::PROTOCOL_FEATURES | feature::VERSION_1 | 0b1110;
        let mut rings: Vec<_> =
            (0..4).map(|at| Some(DriverRing::new(&front_end.memory, features, 16, 0x1000 + at * 0x1000))).collect();
        front_end.start(features, &mut rings);
        // Call descriptors are replaced while the rings run.
        (0..4).for_each(|ring| front_end.event(Code::SET_VRING_CALL, ring, 1));
        let commands = rings[2].as_mut().expect("it is there");
        // REPORT LUNS to LUN 0, and INQUIRY to another target.
        let mut command = [0; crate::scsi::HEADER_LEN];
        command[..4].copy_from_slice(&[1, 0, 0x40, 0]);
        command[19] = 0xa0;
        command[28] = 64;
        commands.write(0x4_0000, &command);
        let pieces = [(0x4_0000, 51, false), (0x4_1000, 108, true), (0x4_2000, 64, true)];
        let len = front_end.run(2, commands, &pieces);
        let answer = commands.read(0x4_1000, 12);
        assert_eq!((answer[10], answer[11]), (0, 0), "good");
        assert!(len > 108);
        command[1] = 3;
        commands.write(0x4_0000, &command);
        front_end.run(2, commands, &pieces);
        assert_eq!(commands.read(0x4_1000, 12)[11], 3, "no such target");
        // A task management function of an empty task set.
        let control = rings[0].as_mut().expect("it is there");
        let mut function = [0; 24];
        function[4] = 1;
        function[8..12].copy_from_slice(&[1, 0, 0x40, 9]);
        control.write(0x5_0000, &function);
        control.write(0x5_1000, &[0xff]);
        assert_eq!(front_end.run(0, control, &[(0x5_0000, 24, false), (0x5_1000, 1, true)]), 1);
        assert_eq!(control.read(0x5_1000, 1), [12], "no such logical unit");
        (0..4).for_each(|at| front_end.state(Code::SET_VRING_ENABLE, at, 0));
        assert_eq!([0, 1, 2].map(|ring| front_end.stop(ring)), [1, 0, 2]);
    });
}

#[test]
fn a_broken_ring_harms_no_other() {
    against(disk(), 2, |path| {
        let front_end = FrontEnd::new(path, true, 2);
        front_end.greet(true);
        assert_eq!(front_end.set_memory(), 0);
        let features = feature::PROTOCOL_FEATURES | feature::VERSION_1;
        let ring = |at| Some(DriverRing::new(&front_end.memory, features, 16, at));
        let mut rings = [ring(0x1000), ring(0x2000)];
        front_end.start(features, &mut rings);
        let [Some(bad), Some(good)] = &mut rings else { panic!("both are there") };
        // A loop, and a request without room for its status.
        bad.raw_descriptor(0, (0x4000, 16, false), 1, 0);
        bad.raw_offer(0);
        rustix::io::write(&front_end.events[0][0], &1_u64.to_ne_bytes()).expect("an eventfd");
        let header = request(good, blk::Type::FLUSH, 0);
        assert_eq!(front_end.run(1, good, &[header, STATUS]), 1);
        assert_eq!(front_end.stop(0), 0);
        // Memory that is not there: the request fails, and the ring goes on.
        let header = request(good, blk::Type::IN, 0);
        assert_eq!(front_end.run(1, good, &[header, (1 << 40, BLOCK, true), STATUS]), 1);
        assert_eq!(good.read(0x6000, 1), [1]);
        let header = request(good, blk::Type::GET_ID, 0);
        assert_eq!(front_end.run(1, good, &[header, (0x5000, 20, true), STATUS]), 21);
        assert_eq!(good.read(0x5000, 10), b"0123456789");
        let header = request(good, blk::Type::GET_ID, 0);
        assert_eq!(front_end.run(1, good, &[header, (0x5000, 36, true), STATUS]), 37);
        assert_eq!(good.read(0x5000, 36)[20..], [7; 16]);
        assert_eq!(RingIndex::from(1).at(), 1);
    });
}

#[test]
fn a_host_adapter_whose_volume_is_another_one_is_disconnected() {
    let folder = std::env::temp_dir().join(format!("lunar-vhost-review-{}", std::process::id()));
    let reactor = Reactor::new(Config { driver: Choice::Epoll, ..Config::default() }).expect("a driver");
    let rig = Rig::default();
    let target = target(&rig);
    let front = sockets(&reactor, (&rig.set, &target), &Arc::default(), Duration::from_secs(1));
    let permission = Permission { mode: 0o600, owner: None, group: None };
    let devices = [("disk", disk()), ("scsi", DeviceView::Scsi(Some(ScsiPort { relative: 1 })))];
    for (name, device) in devices {
        let path = folder.join(name);
        let place = Place { path: path.clone(), role: Role::Server };
        front.open(place.clone(), permission).expect("a socket");
        let tenant = Tenant { host: "iqn.x".into(), group: Some("g".into()), tag: 0, queues: 1, device };
        front.serve(Endpoint { name: name.into(), place, tenant }, Vec::new());
    }
    let streams: Vec<UnixStream> =
        devices.iter().map(|(name, _)| UnixStream::connect(folder.join(name)).expect("it listens")).collect();
    reactor.run(async {
        while front.clients() < 2 {
            reactor.sleep(Duration::from_millis(1)).await;
        }
        front.review(&BTreeSet::from(["other".into()])).await;
        assert_eq!(front.clients(), 2);
        front.review(&BTreeSet::from(["g".into()])).await;
        assert_eq!(front.clients(), 1, "that of the disk is left");
        drop(streams);
        front.drain();
        front.drained().await;
    });
    std::fs::remove_dir_all(folder).expect("it is our own");
}

#[test]
fn the_write_cache_that_the_driver_switched_off_stays_off_after_a_restart() {
    let kept = Arc::new(std::sync::Mutex::new(None));
    let asked = Inflight { size: 0.into(), offset: 0.into(), queues: 1.into(), queue_size: 16.into(), padding: [0; 4] };
    let head = ConfigHead { offset: 32.into(), size: 1.into(), flags: 0.into() };
    let is_on =
        move |front_end: &FrontEnd| front_end.ask(Code::GET_CONFIG, &[head.as_bytes(), &[0]].concat()).last().copied();
    let keep = kept.clone();
    against(disk(), 1, move |path| {
        let front_end = FrontEnd::new(path, true, 1);
        front_end.greet(true);
        front_end.send(Code::GET_INFLIGHT_FD, 0, asked.as_bytes(), &[]);
        let (made, mut descriptors) = front_end.reply(Code::GET_INFLIGHT_FD);
        assert_eq!(is_on(&front_end), Some(1));
        let off = [head.as_bytes(), &[0]].concat();
        assert_eq!(front_end.acknowledged(Code::SET_CONFIG, &off, &[]), 0);
        assert_eq!(is_on(&front_end), Some(0));
        *keep.lock().expect("one thread") = Some((made, descriptors.remove(0)));
    });
    let (made, record) = kept.lock().expect("one thread").take().expect("it was made");
    against(disk(), 1, move |path| {
        let front_end = FrontEnd::new(path, true, 1);
        front_end.greet(true);
        assert_eq!(is_on(&front_end), Some(1));
        front_end.send(Code::SET_INFLIGHT_FD, 0, &made, &[record.as_fd()]);
        assert_eq!(is_on(&front_end), Some(0));
        let features = feature::PROTOCOL_FEATURES | blk::feature::FLUSH | blk::feature::CONFIG_WCE;
        front_end.send(Code::SET_FEATURES, 0, &features.to_le_bytes(), &[]);
        assert_eq!(is_on(&front_end), Some(0));
        front_end.send(Code::RESET_DEVICE, 0, &[], &[]);
        assert_eq!(is_on(&front_end), Some(0), "the front-end keeps it, and does not repeat it");
    });
}

#[test]
fn clients_that_are_refused_wait_before_the_next_one() {
    against(DeviceView::Blk(None), 1, |path| {
        let refused = || {
            let mut stream = UnixStream::connect(path).expect("it listens");
            assert_eq!(io::Read::read(&mut stream, &mut [0]).expect("it is closed"), 0);
        };
        refused();
        let begun = std::time::Instant::now();
        refused();
        assert!(begun.elapsed() > ACCEPT_REST / 2);
    });
}

#[test]
fn a_front_end_that_connects_in_a_loop_leaves_the_core_to_others() {
    const COUNT: u64 = 100;
    let path = std::env::temp_dir().join(format!("lunar-vhost-test-{}-storm.sock", std::process::id()));
    let reactor = Reactor::new(Config { driver: Choice::Epoll, ..Config::default() }).expect("a driver");
    let rig = Rig::default();
    let front = sockets(&reactor, (&rig.set, &target(&rig)), &Arc::default(), Duration::from_secs(1));
    let permission = Permission { mode: 0o600, owner: None, group: None };
    let place = Place { path: path.clone(), role: Role::Server };
    front.open(place.clone(), permission).expect("a socket");
    (0..COUNT).for_each(|_| drop(UnixStream::connect(&path).expect("it listens")));
    let tenant = Tenant { host: "iqn.x".into(), group: Some("g".into()), tag: 0, queues: 1, device: disk() };
    front.serve(Endpoint { name: "test".into(), place, tenant }, Vec::new());
    let (begun, accepted) = (reactor.now(), || reactor.stats().connections_accepted.get());
    reactor.run(async {
        while accepted() < COUNT {
            reactor.sleep(Duration::from_millis(1)).await;
            let since = reactor.now().since(begun);
            assert!(since < PATIENCE, "all are accepted at some time");
            let most = since.as_micros() / NEXT_REST.as_micros() + 1;
            assert!(u128::from(accepted()) <= most, "{} in {since:?}", accepted());
        }
        front.drain();
        front.drained().await;
    });
}

#[test]
fn a_client_that_listens_is_connected_to_whenever_it_does() {
    let path = std::env::temp_dir().join(format!("lunar-vhost-listens-{}.sock", std::process::id()));
    let reactor = Reactor::new(Config { driver: Choice::Epoll, ..Config::default() }).expect("a driver");
    let rig = Rig::default();
    let front = sockets(&reactor, (&rig.set, &target(&rig)), &Arc::default(), Duration::from_secs(1));
    let place = Place { path: path.clone(), role: Role::Client };
    front.open(place.clone(), Permission { mode: 0o600, owner: None, group: None }).expect("nothing is made");
    assert!(!path.exists());
    let tenant = Tenant { host: "iqn.x".into(), group: Some("g".into()), tag: 0, queues: 1, device: disk() };
    front.serve(Endpoint { name: "test".into(), place: place.clone(), tenant }, Vec::new());
    let is_over = Arc::new(AtomicBool::new(false));
    let (over, listens) = (is_over.clone(), path.clone());
    let thread = std::thread::spawn(move || {
        let _end = Ended(over);
        // Twice the client disconnects and still listens; then it is another process, which listens anew.
        for _ in 0..2 {
            let _ = std::fs::remove_file(&listens);
            let listener = std::os::unix::net::UnixListener::bind(&listens).expect("a socket");
            for _ in 0..2 {
                let front_end = FrontEnd::of(listener.accept().expect("it connects").0, true, 1);
                assert_eq!(front_end.number(Code::GET_QUEUE_NUM), 1);
            }
        }
    });
    let begun = reactor.now();
    reactor.run(async {
        while !is_over.load(Ordering::SeqCst) {
            assert!(reactor.now().since(begun) < PATIENCE, "it does not connect");
            reactor.sleep(Duration::from_millis(1)).await;
        }
        front.close(&place);
        front.drain();
        front.drained().await;
    });
    thread.join().expect("the client is content");
    assert!(path.exists(), "the socket is the client's");
    std::fs::remove_file(path).expect("it is ours");
}
