use super::*;
use lunar_aoe::wire::{
    AtaCommand, AtaPart, Command, ConfigCommand, ConfigPart, Directive, Header, MaskCommand, MaskDirective, MaskPart,
    ReserveCommand, ReservePart,
};
use lunar_core::metadata::Saving;
use zerocopy::IntoBytes;

const ADDRESS: Address = Address { shelf: SHELF, slot: FIRST_SLOT };
/// The bit of the tags of tools.
const TOOL: u32 = 1 << 31;

/// The payloads of the frames that a station has received.
type Received = Rc<RefCell<Vec<Vec<u8>>>>;

/// A target and two stations that ask it.
struct Lan {
    watch: Watch,
    setup: Setup,
    kept: Kept,
    core: Reactor,
    stations: Vec<(Rc<Link>, Received)>,
    target: Option<LanTarget>,
}

impl Lan {
    fn new() -> Self {
        Self::with(Arc::new(lunar_core::metadata::DurableMemory::default()))
    }

    /// With this metadata of the volume.
    fn with(metadata: Arc<dyn MetadataStore>) -> Self {
        let watch = Watch::new(1, false);
        let world = watch.world();
        let setup = Setup { cores: 2, ..Setup::plain(Kind::Aoe { fresh_tags: false }) };
        let segment = world.segment(setup.mtu);
        SEGMENT.set(Some(segment));
        world.create(path(0), setup.sectors() * SECTOR);
        let core = Reactor::with_driver(world.core(STATIONS), Arena::new(4 << 20), Arc::default());
        let stations = [1, 2].map(|number| {
            let config = LinkConfig {
                address: LinkAddress::Interface("sim".into()),
                types: vec![ETHER_TYPE],
                filters: Vec::new(),
                vlan: None,
                mac: None,
                mtu: None,
            };
            let endpoint = world.link(segment, mac(number), &config.types).expect("free");
            let link = Link::attach(&core, OpenedLink::on(endpoint, &config)).expect("attached");
            let (received, into) = (Received::default(), link.clone());
            let kept = received.clone();
            core.spawn(async move {
                let _ = into.receive(|frame| kept.borrow_mut().push(frame.payload.to_vec()), || ()).await;
            });
            (link, received)
        });
        let kept = Kept { volumes: vec![metadata], ..Kept::default() };
        let mut lan = Self { watch, setup, kept, core, stations: stations.into(), target: None };
        lan.start();
        lan
    }

    fn start(&mut self) {
        self.target = Some(LanTarget::start(self.watch.world(), &self.setup, &self.kept, &self.core));
        self.settle();
    }

    /// Kills the target and starts it again.
    fn restart(&mut self) {
        self.watch.world().crash(TARGET, true);
        self.target.take();
        self.start();
    }

    /// Lets frames arrive.
    fn settle(&self) {
        let end = self.watch.world().now() + Duration::from_secs(1);
        let target = self.target.as_ref().expect("it runs");
        wait(&self.watch, target, &self.core, Some(end), || false);
    }

    /// Sends a request of the station of this number; returns the only answer.
    fn ask(&self, station: usize, command: Command, tag: u32, rest: &[&[u8]]) -> Option<Vec<u8>> {
        let (link, received) = &self.stations[station];
        received.borrow_mut().clear();
        self.send(link.mac(), command, tag, rest);
        self.settle();
        let answers = received.borrow();
        assert!(answers.len() <= 1, "{answers:x?}");
        answers.first().cloned()
    }

    /// Sends a request with this source address through the link of the first station.
    fn send(&self, source: MacAddress, command: Command, tag: u32, rest: &[&[u8]]) {
        let ethernet = lunar_link::Header { destination: mac(0), source, ether_type: ETHER_TYPE }.bytes();
        let header = Header::request(ADDRESS, command, tag);
        let frame = [&[&ethernet[..], header.as_bytes()][..], rest].concat().concat();
        let (link, _) = &self.stations[0];
        link.send(self.core.arena().copy(&frame).expect("room").into());
    }

    /// Sends a write of one sector with this value.
    fn send_write(&self, source: MacAddress, tag: u32, lba: u64, value: u8) {
        let part = AtaPart::request(WRITE, lba, 1);
        self.send(source, Command::ATA, tag, &[part.as_bytes(), &[value; SECTOR]]);
    }

    /// The first byte of a sector, as this station reads it.
    fn read(&self, station: usize, tag: u32, lba: u64) -> Option<u8> {
        let answer = self.ask(station, Command::ATA, tag, &[AtaPart::request(READ, lba, 1).as_bytes()])?;
        answer.get(size_of::<Header>() + size_of::<AtaPart>()).copied()
    }

    fn in_progress(&self) -> usize {
        self.target.as_ref().expect("it runs").in_progress()
    }

    /// Lets frames arrive, but no slow store answer.
    fn arrive(&self) {
        let end = self.watch.world().now() + Duration::from_millis(20);
        wait(&self.watch, self.target.as_ref().expect("it runs"), &self.core, Some(end), || false);
    }

    /// The store takes this long for each operation.
    fn slow_down(&self, time: Duration) {
        self.watch.world().set_faults(Faults { file_time: (time, time), ..Faults::none() });
    }

    fn apply(&mut self, text: &str) {
        self.target.as_mut().expect("it runs").apply(text, &self.core);
    }

    /// Sends an ATA command for one sector; returns status and error, or the error of the protocol.
    fn ata(&self, station: usize, command: AtaCommand, tag: u32) -> Option<(u8, u8)> {
        let data = [7; SECTOR];
        let data = if command == AtaCommand::WRITE_SECTORS_EXT { &data[..] } else { &[] };
        let answer = self.ask(station, Command::ATA, tag, &[AtaPart::request(command, 0, 1).as_bytes(), data])?;
        Some(if answer[0] & 4 == 0 { (answer[13], answer[11]) } else { (0, answer[1]) })
    }

    fn config(&self, station: usize, command: ConfigCommand, string: &[u8]) -> Option<Vec<u8>> {
        let len = (string.len() as u16).into();
        let version_and_command = 0x10 | command.0;
        let part = ConfigPart { buffers: 0.into(), firmware: 0.into(), sectors: 0, version_and_command, len };
        let answer = self.ask(station, Command::CONFIG, 1, &[part.as_bytes(), string])?;
        let len = usize::from(u16::from_be_bytes([answer[16], answer[17]]));
        Some(answer[18..18 + len].to_vec())
    }

    fn mask(&self, station: usize, command: MaskDirective, number: u8) -> Option<u8> {
        let part = MaskPart { reserved: 0, command: MaskCommand::EDIT.0, error: 0, count: 1 };
        let directive = Directive { reserved: 0, command: command.0, mac: mac(number).0 };
        self.ask(station, Command::MASK, 2, &[part.as_bytes(), directive.as_bytes()]).map(|answer| answer[13])
    }

    /// Requests a reservation for stations; returns the error of the protocol and the number of stations.
    fn reserve(&self, station: usize, command: ReserveCommand, numbers: &[u8]) -> Option<(u8, u8)> {
        let part = ReservePart { command: command.0, count: numbers.len() as u8 };
        let macs: Vec<u8> = numbers.iter().flat_map(|number| mac(*number).0).collect();
        self.ask(station, Command::RESERVE, 3, &[part.as_bytes(), &macs]).map(|answer| (answer[1], answer[11]))
    }
}

impl Drop for Lan {
    fn drop(&mut self) {
        self.watch.world().crash(TARGET, false);
        self.target.take();
        SEGMENT.set(None);
    }
}

const READ: AtaCommand = AtaCommand::READ_SECTORS_EXT;
const WRITE: AtaCommand = AtaCommand::WRITE_SECTORS_EXT;
const GOOD: Option<(u8, u8)> = Some((0x40, 0));

#[test]
fn strings_masks_and_reservations_survive_a_restart() {
    let mut lan = Lan::new();
    assert_eq!(lan.config(0, ConfigCommand::SET, b"name"), Some(b"name".to_vec()));
    assert_eq!(lan.mask(0, MaskDirective::ADD, 1), Some(1));
    assert_eq!(lan.reserve(0, ReserveCommand::SET, &[1]), Some((0, 1)));
    assert_eq!((lan.ata(0, WRITE, 5), lan.ata(1, WRITE, 5)), (GOOD, None), "the mask list hides the target");
    lan.restart();
    assert_eq!(lan.config(0, ConfigCommand::READ, b""), Some(b"name".to_vec()));
    assert_eq!(
        (lan.reserve(0, ReserveCommand::READ, &[]), lan.config(1, ConfigCommand::READ, b"")),
        (Some((0, 1)), None)
    );
    assert_eq!(lan.mask(0, MaskDirective::DELETE, 1), Some(0));
    // Hosts get an ATA error, tools an error of the protocol.
    assert_eq!((lan.ata(1, WRITE, 6), lan.ata(1, READ, 7)), (Some((0x41, 4)), Some((0x41, 4))));
    assert_eq!((lan.ata(1, READ, TOOL | 8), lan.ata(0, WRITE, 9)), (Some((0, 6)), GOOD));
    assert_eq!(lan.ata(1, AtaCommand::IDENTIFY_DEVICE, 10), GOOD);
    assert_eq!(lan.reserve(1, ReserveCommand::SET, &[2]), Some((6, 1)));
    assert_eq!(lan.reserve(1, ReserveCommand::FORCE_SET, &[1, 2]), Some((0, 2)));
    assert_eq!((lan.ata(0, WRITE, 11), lan.ata(1, WRITE, 12)), (GOOD, GOOD));
    assert_eq!(lan.reserve(0, ReserveCommand::SET, &[]), Some((0, 0)));
    assert!(!lan.watch.is_wrong());
}

#[test]
fn a_target_announces_itself() {
    let lan = Lan::new();
    for (_, received) in &lan.stations {
        let frames = received.borrow();
        assert_eq!(
            frames.iter().map(|frame| frame[..10].to_vec()).collect::<Vec<_>>(),
            [[0x18, 0, 0, SHELF as u8, FIRST_SLOT, 1, 0, 0, 0, 0]]
        );
    }
}

/// Durable metadata whose records are saved in the second turn after the request.
#[derive(Default)]
struct SlowMemory(VolatileMemory);

impl MetadataStore for SlowMemory {
    fn load(&self, name: &str) -> Option<Vec<u8>> {
        self.0.load(name)
    }

    fn save(&self, name: &'static str, bytes: Vec<u8>) -> Saving {
        let (mut saving, mut turns) = (self.0.save(name, bytes), 0);
        Box::pin(poll_fn(move |cx| {
            turns += 1;
            if turns > 2 {
                return saving.as_mut().poll(cx);
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        }))
    }

    fn is_durable(&self) -> bool {
        true
    }
}

#[test]
fn changes_at_the_same_time_are_all_kept() {
    let lan = Lan::with(Arc::<SlowMemory>::default());
    let string = |string: &[u8]| {
        let (len, version_and_command) = ((string.len() as u16).into(), 0x10 | ConfigCommand::SET.0);
        ConfigPart { buffers: 0.into(), firmware: 0.into(), sectors: 0, version_and_command, len }
    };
    let add = |number| {
        let part = MaskPart { reserved: 0, command: MaskCommand::EDIT.0, error: 0, count: 1 };
        [part.as_bytes(), Directive { reserved: 0, command: MaskDirective::ADD.0, mac: mac(number).0 }.as_bytes()]
            .concat()
    };
    let (one, other) = (mac(1), mac(2));
    lan.send(one, Command::CONFIG, 1, &[string(b"one").as_bytes(), b"one"]);
    lan.send(other, Command::CONFIG, 2, &[string(b"two").as_bytes(), b"two"]);
    lan.send(one, Command::MASK, 3, &[&add(1)]);
    lan.send(one, Command::MASK, 4, &[&add(2)]);
    lan.send(one, Command::MASK, 5, &[&add(3)]);
    lan.settle();
    assert_eq!(lan.config(0, ConfigCommand::READ, b""), Some(b"one".to_vec()), "the second one finds a string");
    assert_eq!(lan.mask(0, MaskDirective::NONE, 0), Some(3));
}

#[test]
fn writes_that_wait_are_not_executed_for_a_station_that_has_lost_its_volume() {
    let mut lan = Lan::new();
    assert_eq!((lan.ata(0, WRITE, 1), lan.ata(1, WRITE, 2)), (GOOD, GOOD));
    lan.slow_down(Duration::from_millis(300));
    lan.send_write(mac(1), 3, 4, 0xaa);
    lan.send_write(mac(1), 4, 4, 0xbb);
    lan.arrive();
    assert_eq!(lan.in_progress(), 2);
    let text = lan.setup.text().replace("'02:*'", "'02:00:00:00:00:02'");
    lan.apply(&text);
    lan.slow_down(Duration::ZERO);
    lan.settle();
    assert_eq!((lan.in_progress(), lan.read(1, 5, 4)), (0, Some(0xaa)), "the second write was not executed");
    assert_eq!(lan.read(0, 6, 4), None);
}

#[test]
fn commands_are_bounded_by_their_bytes() {
    let lan = Lan::new();
    assert_eq!(lan.ata(0, WRITE, 1), GOOD);
    lan.slow_down(Duration::from_millis(300));
    (0..120).for_each(|lba| lan.send_write(mac(1), 10 + lba as u32, lba, 1));
    lan.arrive();
    // The arena has 4 MiB, of which peers have a quarter for data that they send unasked.
    let part = (4 << 20) / 4;
    let frames = lan.in_progress();
    assert!(frames > 0 && frames * lunar_core::mem::PAGE <= part / 8, "{frames} frames");
    lan.slow_down(Duration::ZERO);
    lan.settle();
    assert_eq!((lan.in_progress(), lan.ata(0, WRITE, 2)), (0, GOOD));
}

#[test]
fn forged_addresses_do_not_exclude_a_station() {
    let lan = Lan::new();
    assert_eq!(lan.ata(1, WRITE, 1), GOOD);
    for number in 0..1100_u16 {
        let [high, low] = number.to_be_bytes();
        let identify = AtaPart::request(AtaCommand::IDENTIFY_DEVICE, 0, 1);
        lan.send(MacAddress([2, 9, 9, 9, high, low]), Command::ATA, 1, &[identify.as_bytes()]);
        if number % 50 == 0 {
            lan.arrive();
        }
    }
    lan.settle();
    assert_eq!(lan.ata(0, AtaCommand::IDENTIFY_DEVICE, 2), GOOD);
    assert_eq!(lan.ata(0, WRITE, 3), GOOD);
}
