//! The process of a ublk disk, without the kernel's part, and an engine with the disk that it uses.

use crate::engine_tests::Place;
use lunar_blk::{Code, Error};
use lunar_control::check::Checked;
use lunar_core::io::Data;
use lunar_engine::engine::Engine;
use lunar_reactor::{Choice, Config, Reactor};
use lunar_ublk_server::link::{Link, connected};
use lunar_ublk_server::session::Session;
use lunar_ublk_server::size::Size;
use lunar_ublk_server::traffic::Traffic;
use lunar_vhost_client::blk::DiskRequest;
use lunar_vhost_client::lane::Answer;
use lunar_vhost_client::layout::Layout;
use std::cell::Cell;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

const BUFFER: usize = 512 << 10;
const UUID: &str = "f81d4fae-7dec-41d0-a765-00a0c91e6b00";
/// The UUID of another volume.
const OTHER_UUID: &str = "f81d4fae-7dec-41d0-a765-00a0c91e6b01";

struct Bench {
    place: Place,
    socket: PathBuf,
    reactor: Reactor,
}

impl Bench {
    fn new() -> Self {
        let place = Place::new();
        let socket = place.0.join("data.sock");
        let reactor = Reactor::new(Config { driver: Choice::Epoll, ..Config::default() }).expect("a driver");
        Self { place, socket, reactor }
    }

    fn configuration(&self, size: &str) -> Checked {
        self.configuration_of(size, UUID)
    }

    /// The same with the volume of this UUID.
    fn configuration_of(&self, size: &str, uuid: &str) -> Checked {
        let (image, socket) = (self.place.0.join(uuid), self.socket.display());
        self.place.checked(&format!(
            "[volume.disk]\nkind = 'file'\npath = '{}'\nsize = '{size}'\nuuid = '{uuid}'\n[portal-group.p]\ntag = 1\n\
             [target.main]\niqn = 'iqn.2026-01.org.example:t'\nportal-groups = ['p']\n\
             [group.all]\ntargets = ['main']\ninitiators = ['*']\nluns = {{ 0 = 'disk' }}\n\
             [vhost.data]\ntarget = 'main'\nsocket = '{socket}'\n",
            image.display()
        ))
    }

    fn engine(&self) -> Engine {
        self.engine_of(UUID)
    }

    fn engine_of(&self, uuid: &str) -> Engine {
        let mut engine = crate::assembly::start(&self.place.checked("").config, &self.place.0).expect("cores start");
        let applied = self.place.apply(&mut engine, &self.place.checked(""), &self.configuration_of("8M", uuid));
        applied.expect("the volume is served");
        engine
    }

    fn traffic(&self) -> Rc<Traffic> {
        let layout = Layout::new(2, 4, BUFFER).expect("a small one");
        Traffic::new(&self.reactor, "test", (layout, 256 << 10), None).expect("memory")
    }

    /// A connection that is kept, and the UUID of its volume.
    async fn link(&self, traffic: &Rc<Traffic>, size: &Rc<Size>) -> (Rc<Link>, [u8; 16]) {
        let (reactor, socket) = (&self.reactor, &self.socket);
        let session = connected(reactor, "test", socket).await;
        session.accept(true).await.expect("it is Lunar");
        let shape = session.shape().await.expect("a disk");
        assert_eq!((shape.limits.capacity, shape.limits.has_write_cache), (8 << 20, true));
        let volume = traffic.begin(&session).await.expect("its rings start");
        let link = Link::new((reactor, "test", socket), (traffic, size), (shape, volume, true));
        let own = link.clone();
        reactor.spawn(async move { own.keep(session).await });
        (link, volume)
    }

    /// Runs a task; a test that hangs ends.
    fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.reactor.run(async {
            let end = lunar_reactor::end::End::default();
            let (late, reactor) = (Rc::new(end), self.reactor.clone());
            let over = late.clone();
            reactor.clone().spawn(async move {
                reactor.sleep(Duration::from_secs(60)).await;
                over.come();
            });
            late.unless(future).await.expect("it ends")
        })
    }
}

fn request(code: Code, offset: u64, len: u64) -> DiskRequest {
    DiskRequest { code, offset, len, unmap: true }
}

/// Fills the memory of a slot.
fn fill(traffic: &Traffic, slot: u16, byte: u8) {
    let Data::In(mut memory) = traffic.data(1, slot) else { panic!("it has memory") };
    memory.copy_from(0, &vec![byte; BUFFER]);
}

fn bytes(traffic: &Traffic, slot: u16) -> Vec<u8> {
    let Data::In(memory) = traffic.data(1, slot) else { panic!("it has memory") };
    let mut bytes = vec![0; BUFFER];
    memory.copy_to(0, &mut bytes);
    bytes
}

#[test]
fn requests_reach_the_volume_and_outlast_the_engine() {
    let bench = Bench::new();
    let engine = bench.engine();
    let reactor = &bench.reactor;
    let (traffic, size) = (bench.traffic(), Rc::new(Size::new(0, 0)));
    let (link, volume) = bench.run(bench.link(&traffic, &size));
    assert_eq!(format!("{:032x}", u128::from_be_bytes(volume)), UUID.replace('-', ""));
    let carry = async |slot, wanted| traffic.carry(1, slot, &wanted, reactor.now()).await;
    bench.run(async {
        fill(&traffic, 0, 7);
        assert_eq!(carry(0, request(Code::Write, 4096, BUFFER as u64)).await, Answer::Ended(Ok(())));
        assert_eq!(carry(0, request(Code::Flush, 0, 0)).await, Answer::Ended(Ok(())));
        assert_eq!(carry(1, request(Code::Read, 4096, BUFFER as u64)).await, Answer::Ended(Ok(())));
        assert!(bytes(&traffic, 1).iter().all(|byte| *byte == 7));
        assert_eq!(carry(1, request(Code::Discard, 0, 8192)).await, Answer::Ended(Ok(())));
        assert_eq!(carry(1, request(Code::WriteZeroes, 8192, 4096)).await, Answer::Ended(Ok(())));
        assert_eq!(carry(1, request(Code::Read, 4096, 16384)).await, Answer::Ended(Ok(())));
        let found = bytes(&traffic, 1);
        assert!(found[..8192].iter().all(|byte| *byte == 0) && found[8192..16384].iter().all(|byte| *byte == 7));
        let beyond = request(Code::Write, 8 << 20, 4096);
        assert_eq!(carry(1, beyond).await, Answer::Ended(Err(Error::IoError)));
    });
    engine.end().expect("it ends");
    // Both wait for the next engine.
    fill(&traffic, 2, 9);
    let (first, second) = (Rc::new(Cell::new(None)), Rc::new(Cell::new(None)));
    for (slot, wanted, done) in
        [(2, request(Code::Write, 1 << 20, 4096), &first), (3, request(Code::Read, 1 << 20, 4096), &second)]
    {
        let (traffic, done, now) = (traffic.clone(), done.clone(), reactor.now());
        reactor.spawn(async move { done.set(Some(traffic.carry(1, slot, &wanted, now).await)) });
    }
    bench.run(reactor.sleep(Duration::from_millis(300)));
    assert_eq!((first.get(), traffic.unanswered()), (None, 2));
    let mut engine = bench.engine();
    bench.run(async {
        while first.get().is_none() || second.get().is_none() {
            reactor.sleep(Duration::from_millis(5)).await;
        }
    });
    assert_eq!((first.get(), second.get()), (Some(Answer::Ended(Ok(()))), Some(Answer::Ended(Ok(())))));
    // The volume grows while the disk is served.
    let (small, large) = (bench.configuration("8M"), bench.configuration("16M"));
    bench.place.apply(&mut engine, &small, &large).expect("it grows");
    bench.run(async {
        while size.wanted() != (16 << 20) / 512 {
            reactor.sleep(Duration::from_millis(5)).await;
        }
    });
    link.end();
    traffic.end();
    bench.run(reactor.sleep(Duration::from_millis(20)));
    engine.end().expect("it ends");
}

#[test]
fn requests_wait_while_a_volume_is_served_whose_uuid_differs_at_its_end() {
    let bench = Bench::new();
    let engine = bench.engine();
    let (reactor, traffic) = (&bench.reactor, bench.traffic());
    let (link, _) = bench.run(bench.link(&traffic, &Rc::new(Size::new(0, 0))));
    engine.end().expect("it ends");
    fill(&traffic, 0, 5);
    let written = Rc::new(Cell::new(None));
    let (own, done, now) = (traffic.clone(), written.clone(), reactor.now());
    reactor.spawn(async move { done.set(Some(own.carry(1, 0, &request(Code::Write, 0, 4096), now).await)) });
    let engine = bench.engine_of(OTHER_UUID);
    bench.run(reactor.sleep(Duration::from_secs(1)));
    assert_eq!((written.get(), traffic.unanswered()), (None, 1));
    engine.end().expect("it ends");
    let engine = bench.engine();
    bench.run(async {
        while written.get().is_none() {
            reactor.sleep(Duration::from_millis(5)).await;
        }
    });
    assert_eq!(written.get(), Some(Answer::Ended(Ok(()))));
    link.end();
    traffic.end();
    bench.run(reactor.sleep(Duration::from_millis(20)));
    engine.end().expect("it ends");
}

#[test]
fn a_connection_that_is_given_up_makes_room_for_the_next_one() {
    let bench = Bench::new();
    let engine = bench.engine();
    let traffic = bench.traffic();
    bench.run(async {
        for _ in 0..2 {
            let session = Session::open(&bench.reactor, &bench.socket).await.expect("it listens");
            session.accept(true).await.expect("it is Lunar");
            traffic.begin(&session).await.expect("its rings start");
        }
    });
    traffic.end();
    engine.end().expect("it ends");
}

#[test]
fn requests_that_are_given_up_fail_and_so_do_later_ones() {
    let bench = Bench::new();
    let (reactor, traffic) = (&bench.reactor, bench.traffic());
    let ended = Rc::new(Cell::new(None));
    let (own, done, now) = (traffic.clone(), ended.clone(), reactor.now());
    reactor.spawn(async move { done.set(Some(own.carry(1, 0, &request(Code::Read, 0, 4096), now).await)) });
    bench.run(reactor.sleep(Duration::from_millis(20)));
    assert_eq!(ended.get(), None, "Lunar is not there");
    traffic.give_up();
    bench.run(reactor.sleep(Duration::from_millis(20)));
    assert_eq!(ended.get(), Some(Answer::Expired));
    let later = bench.run(traffic.carry(1, 1, &request(Code::Read, 0, 4096), reactor.now()));
    assert_eq!(later, Answer::Ended(Err(Error::IoError)));
    let Data::In(spare) = traffic.spare() else { panic!("it has memory") };
    assert_eq!(spare.len(), BUFFER);
    traffic.end();
}

#[test]
fn a_disk_has_the_queues_of_its_section() {
    let bench = Bench::new();
    let engine = bench.engine();
    bench.run(async {
        let session = Session::open(&bench.reactor, &bench.socket).await.expect("it listens");
        session.accept(true).await.expect("it is Lunar");
        let layout = Layout::new(65, 1, 4096).expect("a small one");
        let traffic = Traffic::new(&bench.reactor, "test", (layout, 4096), None).expect("memory");
        let why = traffic.begin(&session).await.expect_err("it has 64 queues");
        assert!(why.to_string().contains("fewer than 65 queues"), "{why}");
        traffic.end();
    });
    engine.end().expect("it ends");
}
