//! Conversations of initiators over RDMA with a whole target.

use super::*;

/// A target, and a disk of an initiator.
struct Lan {
    watch: Watch,
    setup: Setup,
    kept: Kept,
    core: Reactor,
    target: Option<LanTarget>,
    disk: Rc<Disk>,
}

impl Lan {
    fn new() -> Self {
        Self::of(Kind::Srp, |_| ())
    }

    /// A target and an initiator of this kind, which is prepared before it connects.
    fn of(kind: Kind, prepare: impl FnOnce(&mut Station)) -> Self {
        let watch = Watch::new(1, false);
        let world = watch.world();
        let setup = Setup::plain(kind);
        let segment = world.segment(setup.mtu);
        SEGMENT.set(Some(segment));
        world.create(path(0), setup.sectors() * SECTOR);
        let core = Reactor::with_driver(world.core(STATIONS), Arena::new(4 << 20), Arc::default());
        let kept = Kept { volumes: vec![Arc::<VolatileMemory>::default()], ..Kept::default() };
        let target = Some(LanTarget::start(world, &setup, &kept, &core));
        let disk = Disk::attach(&core, world, segment, &setup, (0, 0));
        prepare(&mut disk.station.borrow_mut());
        let lan = Self { watch, setup, kept, core, target, disk };
        lan.run(Duration::from_secs(5), || lan.disk.station.borrow().is_ready());
        // It has the unit attention condition of a new nexus.
        lan.read(0);
        lan
    }

    /// Runs until it is so; panics after this time.
    fn run(&self, most: Duration, is_so: impl Fn() -> bool) {
        let end = self.watch.world().now() + most;
        wait(&self.watch, self.target.as_ref().expect("it runs"), &self.core, Some(end), &is_so);
        assert!(is_so() && !self.watch.is_wrong(), "it takes longer than {most:?}");
    }

    /// Starts a command.
    fn start(&self, cookie: u32, operation: Operation) {
        self.disk.station.borrow_mut().start(cookie, operation, self.core.now());
        self.disk.flush();
    }

    /// Waits for a command; returns its result, and its data.
    fn result(&self, cookie: u32) -> Ended {
        let is_over = || self.disk.ended.borrow().contains_key(&(cookie | DONE));
        self.run(Duration::from_secs(5), is_over);
        let mut ended = self.disk.ended.borrow_mut();
        ended.remove(&(cookie | DONE));
        ended.remove(&cookie).expect("it has ended")
    }

    /// Waits for a command, which is GOOD; returns its data.
    fn end(&self, cookie: u32) -> Vec<u8> {
        let (result, data) = self.result(cookie);
        assert_eq!(result, Ok(()));
        data
    }

    fn read(&self, cookie: u32) -> Vec<u8> {
        self.start(cookie, Operation::Read { lba: 0, count: 1 });
        self.end(cookie)
    }
}

impl Drop for Lan {
    fn drop(&mut self) {
        self.watch.world().crash(TARGET, false);
        self.target.take();
        SEGMENT.set(None);
    }
}

fn write(value: u8) -> Operation {
    Operation::Write { lba: 0, data: Rc::from([value; SECTOR]) }
}

#[test]
fn commands_begin_in_the_order_of_their_arrival_though_the_first_one_has_a_table() {
    let lan = Lan::new();
    // The descriptors of the first one are in memory of the initiator, and the second one has its descriptor with it.
    let (table, direct) = (15, 21);
    lan.watch
        .world()
        .set_faults(Faults { latency: (Duration::from_millis(1), Duration::from_millis(1)), ..Faults::none() });
    lan.start(table, write(1));
    lan.start(direct, write(2));
    lan.end(table);
    lan.end(direct);
    assert_eq!(lan.read(28), [2; SECTOR]);
}

#[test]
fn initiators_of_a_target_that_was_killed_are_disconnected_when_it_starts_again() {
    let mut lan = Lan::new();
    lan.start(1, write(7));
    lan.end(1);
    lan.watch.world().crash(TARGET, false);
    lan.target.take();
    // One that waits for its answer, and whose connection the target does not know any more.
    lan.start(2, write(8));
    lan.target = Some(LanTarget::start(lan.watch.world(), &lan.setup, &lan.kept, &lan.core));
    lan.end(2);
    assert_eq!(lan.read(28), [8; SECTOR]);
}

#[test]
fn a_command_with_wrong_descriptors_has_not_succeeded() {
    let lan = Lan::new();
    lan.start(1, write(7));
    lan.end(1);
    match &mut *lan.disk.station.borrow_mut() {
        Station::Srp(disk) => disk.spoil(),
        _ => panic!("SRP"),
    }
    lan.start(2, write(8));
    // CHECK CONDITION, ILLEGAL REQUEST.
    assert_eq!(lan.result(2).0, Err((2, 5)));
    assert_eq!(lan.read(28), [7; SECTOR]);
}

#[test]
fn event_requests_that_replace_each_other_leave_room_for_commands() {
    let lan = Lan::of(Kind::NvmeRdma, |_| ());
    // With each of them a request for an event is sent; the host checks that there is always room for one more.
    (1..300).for_each(|cookie| drop(lan.read(cookie)));
}

/// Messages that the initiator had to send again, because the target had no room for them.
fn refused(lan: &Lan) -> u32 {
    match &*lan.disk.station.borrow() {
        Station::Iser(disk) => disk.refused(),
        _ => panic!("iSER"),
    }
}

#[test]
fn an_initiator_sends_few_messages_at_once_before_it_has_logged_in() {
    let lan = Lan::of(Kind::Iser, |station| match station {
        Station::Iser(disk) => disk.flood(20),
        _ => panic!("iSER"),
    });
    let before = refused(&lan);
    assert!(before > 0, "all of them were in memory at the same time");
    (1..9).for_each(|cookie| lan.start(cookie, write(cookie as u8)));
    (1..9).for_each(|cookie| drop(lan.end(cookie)));
    assert_eq!(refused(&lan), before, "a whole window of commands is taken");
}
