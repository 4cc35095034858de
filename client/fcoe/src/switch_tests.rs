use super::*;
use crate::initiator::{Command, Initiator, InitiatorConfig, InitiatorEvent};
use lunar_fcoe::port::discovery::Identity;
use lunar_fcoe::port::exchange::ExchangeKey;
use lunar_fcoe::port::fabric::FabricNews;
use lunar_fcoe::port::login::{LoginEvent, Logins, Output};
use lunar_fcoe::port::{PortEvent, VnPort};
use lunar_fcoe::wire::els::Adisc;
use lunar_fcoe::wire::fcp::Response;
use lunar_fcoe::wire::fip::Functions;
use lunar_fcoe::wire::frame::payload_of;
use lunar_fcoe::wire::services::{FEATURE_INITIATOR, FEATURE_TARGET};
use proptest::prelude::*;

const STEP: Duration = Duration::from_millis(10);
const MTU: usize = 2500;
const TARGET: Wwn = Wwn(0x5000_0000_0000_0001);
const INITIATOR: Wwn = Wwn(0x2000_0200_0000_0002);
const PERIOD: Duration = Duration::from_secs(8);
/// The data of each read.
const DATA: [u8; 512] = [7; 512];

fn station(number: u8) -> MacAddress {
    MacAddress([2, 0, 0, 0, 0, number])
}

fn switch_of(mac: u8, priority: u8) -> Switch {
    let mac = MacAddress([2, 0xfc, 0, 0, 0, mac]);
    Switch::new(SwitchConfig { mac, priority, period: PERIOD, vlan: None, links: 2 })
}

fn target(seed: u64, now: Instant) -> VnPort {
    let own = Identity {
        station: station(1),
        node: Wwn(0x5000_0000_0000_0000),
        name: TARGET,
        functions: Functions { target: true, initiator: false },
        payload: payload_of(MTU),
    };
    VnPort::new(Logins::in_fabric(own, false, seed, now))
}

fn initiator(seed: u64, now: Instant) -> Initiator {
    let names = (INITIATOR, Wwn(0x1000_0200_0000_0002));
    let timeout = Duration::from_secs(3600);
    let config = InitiatorConfig { station: station(2), names, target: Some(TARGET), mtu: 1500, timeout, seed };
    Initiator::in_fabric(config, now)
}

/// A target and an initiator at switches, all of which are on both links.
struct Rig {
    switches: Vec<Switch>,
    target: VnPort,
    initiator: Initiator,
    now: Instant,
    /// Of a thousand frames, those that are lost.
    loss: u64,
    random: u64,
    events: Vec<LoginEvent>,
    /// Reads that have ended, and their data.
    done: u32,
    read: usize,
    executed: u32,
    /// Whether the switches are dead.
    is_dark: bool,
    admits: fn(Wwn) -> bool,
}

impl Rig {
    fn new(switches: Vec<Switch>, seed: u64) -> Self {
        let now = Instant(1);
        Self {
            switches,
            target: target(seed, now),
            initiator: initiator(!seed, now),
            now,
            loss: 0,
            random: seed | 1,
            events: Vec::new(),
            done: 0,
            read: 0,
            executed: 0,
            is_dark: false,
            admits: |_| true,
        }
    }

    fn is_lost(&mut self) -> bool {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % 1000 < self.loss
    }

    /// Gives the frames of a station to the switches.
    fn up(&mut self, link: usize, frames: Vec<Vec<u8>>) {
        for frame in frames {
            if self.is_dark || self.is_lost() {
                continue;
            }
            self.switches.iter_mut().for_each(|switch| switch.receive(link, &frame, self.now));
        }
    }

    fn sent(&mut self, out: &mut Output) -> Vec<Vec<u8>> {
        self.events.append(&mut out.events);
        out.frames.drain(..).map(|frame| frame.bytes()).collect()
    }

    fn step(&mut self) {
        self.now = self.now + STEP;
        let (now, admits) = (self.now, self.admits);
        let mut out = Output::default();
        self.target.tick(now, &admits, &mut out);
        let frames = self.sent(&mut out);
        self.up(0, frames);
        let (mut done, mut read) = (0, 0);
        self.initiator.tick(now, &mut |event| count(&event, &mut done, &mut read));
        let frames: Vec<Vec<u8>> = std::iter::from_fn(|| self.initiator.next_frame()).collect();
        self.up(1, frames);
        self.switches.iter_mut().for_each(|switch| switch.tick(now));
        let down: Vec<(usize, Vec<u8>)> =
            self.switches.iter_mut().flat_map(|switch| std::iter::from_fn(|| switch.next_frame())).collect();
        for (link, frame) in down {
            if self.is_dark || self.is_lost() {
                continue;
            }
            let header = EthernetHeader::parse(&frame).expect("the switch has built it");
            match link {
                0 => self.at_target(&header, &frame[HEADER_LEN..]),
                _ => {
                    let on = &mut |event: InitiatorEvent<'_>| count(&event, &mut done, &mut read);
                    self.initiator.receive(&header, &frame[HEADER_LEN..], now, on);
                }
            }
        }
        self.done += done;
        self.read += read;
    }

    /// The endpoint of the target: it answers each command with the same data.
    fn at_target(&mut self, header: &EthernetHeader, body: &[u8]) {
        let (now, admits, mut out) = (self.now, self.admits, Output::default());
        let own = self.target.logins().network().address();
        let message = (header.source, body);
        if header.ether_type == fip::ETHER_TYPE {
            let to = header.destination;
            if to == station(1) || to == ALL_STATIONS {
                self.target.receive_fip(message, now, &admits, &mut out);
            }
        } else if Some(header.destination) == own {
            let event = self.target.receive(message, now, &admits, &mut out);
            let key = match event {
                Some(PortEvent::Command(command)) => command.key,
                Some(PortEvent::Abort(key)) => {
                    out.frames.extend(self.target.aborted(key));
                    None
                }
                _ => None,
            };
            key.into_iter().for_each(|key| self.execute(key, &mut out));
        }
        let frames = self.sent(&mut out);
        self.up(0, frames);
    }

    fn execute(&mut self, key: ExchangeKey, out: &mut Output) {
        self.executed += 1;
        let (route, mut header) = self.target.data_header(key, 0, DATA.len()).expect("it runs");
        header.set_control(header.control().and(Control::END));
        out.frames.push(Outgoing::fc(route, header, &DATA));
        let response = Response::default().bytes();
        let (route, header) = self.target.respond(key, &response, self.now).expect("it runs");
        out.frames.push(Outgoing::fc(route, header, &response));
    }

    fn start(&mut self, cookie: u32) {
        let command = Command { lun: [0; 8], cdb: [0x88; 16], data_in: DATA.len() as u32, data_out: None };
        self.initiator.start(cookie, command, self.now);
    }

    /// Steps until this holds; returns the time that it took.
    fn until(&mut self, seconds: u64, is_it: impl Fn(&Self) -> bool) -> Option<Duration> {
        let begin = self.now;
        while !is_it(self) {
            if self.now.since(begin) >= Duration::from_secs(seconds) {
                return None;
            }
            self.step();
        }
        Some(self.now.since(begin))
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.step();
        }
    }

    fn logins(&self) -> (usize, usize) {
        let count = |wanted: fn(&LoginEvent) -> bool| self.events.iter().filter(|event| wanted(event)).count();
        (count(|event| matches!(event, LoginEvent::Ready(_))), count(|event| matches!(event, LoginEvent::Ended(_))))
    }

    fn has_news(&self, news: FabricNews) -> bool {
        self.events.contains(&LoginEvent::Fabric(news))
    }
}

fn count(event: &InitiatorEvent<'_>, done: &mut u32, read: &mut usize) {
    match event {
        InitiatorEvent::Done(_, status, _) => {
            assert_eq!(*status, 0);
            *done += 1;
        }
        InitiatorEvent::Data(_, offset, bytes) => {
            assert_eq!(*bytes, &DATA[*offset as usize..][..bytes.len()]);
            *read += bytes.len();
        }
        InitiatorEvent::Ready => {}
        InitiatorEvent::Lost => panic!("a command has not ended"),
    }
}

#[test]
fn an_initiator_finds_the_target_and_reads_through_the_switch() {
    let mut rig = Rig::new(vec![switch_of(1, 128)], 1);
    let time = rig.until(20, |rig| rig.initiator.is_ready()).expect("they log in");
    assert!(time < Duration::from_secs(12), "{time:?}");
    assert_eq!(rig.switches[0].registered(FEATURE_TARGET), 1);
    assert_eq!(rig.switches[0].registered(FEATURE_INITIATOR), 1);
    assert!(rig.target.logins().id().is_some_and(PortId::is_fabric_port), "an identifier of 24 bits");
    rig.start(1);
    assert!(rig.until(2, |rig| rig.done == 1).is_some());
    assert_eq!((rig.read, rig.executed, rig.logins()), (512, 1, (1, 0)));
    let peer = rig.initiator.address().expect("it is up");
    assert_eq!(rig.target.payload(PortId::from_bytes([peer.0[3], peer.0[4], peer.0[5]])), 1452);
    // Keep-alives hold the logins: of the station each period, of the port each ninety seconds.
    rig.pass(Duration::from_secs(200));
    let counts = rig.switches[0].counts;
    assert_eq!((counts.silent, counts.logins, counts.strange), (0, 2, 0), "{counts:?}");
    assert!((48..=52).contains(&counts.keep_alives.0) && counts.keep_alives.1 == 4, "{counts:?}");
    assert_eq!(rig.logins(), (1, 0));
}

#[test]
fn the_switch_with_the_best_priority_is_chosen() {
    let mut rig = Rig::new(vec![switch_of(1, 128), switch_of(2, 1), switch_of(3, 128)], 2);
    assert!(rig.until(20, |rig| rig.initiator.is_ready()).is_some());
    assert_eq!(rig.switches.iter().map(|switch| switch.counts.logins).collect::<Vec<_>>(), [0, 2, 0]);
    // It dies: the port logs in at another one, two and a half periods later.
    let better = rig.switches.remove(1);
    let time = rig.until(60, |rig| rig.switches[0].counts.logins == 2).expect("they change the switch");
    assert!((Duration::from_secs(12)..Duration::from_secs(24)).contains(&time), "{time:?}");
    assert!(rig.has_news(FabricNews::Lost(better.name())));
    assert!(rig.until(20, |rig| rig.initiator.is_ready()).is_some());
}

#[test]
fn cleared_links_are_logged_in_again() {
    let mut rig = Rig::new(vec![switch_of(1, 128)], 3);
    assert!(rig.until(20, |rig| rig.initiator.is_ready()).is_some());
    let id = rig.switches[0].id_of(TARGET).expect("it has logged in");
    // A Clear Virtual Links of another switch, and of another station, is ignored.
    let (mac, name) = (rig.switches[0].config.mac, rig.switches[0].name());
    for (from, mac, name) in [(station(9), mac, name), (mac, station(9), name), (mac, mac, Wwn(1))] {
        let header = EthernetHeader { destination: station(1), source: from, ether_type: fip::ETHER_TYPE };
        rig.at_target(&header, &fabric::clear((mac, name), &[]));
        assert!(rig.target.logins().id().is_some());
    }
    rig.switches[0].clear(id);
    rig.step();
    assert_eq!((rig.target.logins().id(), rig.logins()), (None, (1, 1)));
    rig.start(1);
    assert!(rig.until(40, |rig| rig.done == 1).is_some());
    assert_eq!(rig.logins().0, 2);
    rig.switches[0].clear_all();
    rig.start(2);
    assert!(rig.until(40, |rig| rig.done == 2).is_some());
    // The switch starts again: the next keep-alive is answered by Clear Virtual Links.
    rig.switches[0].restart();
    rig.start(3);
    assert!(rig.until(60, |rig| rig.done == 3).is_some());
}

#[test]
fn an_initiator_that_is_gone_loses_its_login() {
    let mut rig = Rig::new(vec![switch_of(1, 128)], 4);
    assert!(rig.until(20, |rig| rig.initiator.is_ready()).is_some());
    let gone = rig.switches[0].id_of(INITIATOR).expect("it has logged in");
    // It has changed but is still there: it answers ADISC.
    rig.switches[0].report(gone);
    rig.pass(Duration::from_secs(10));
    assert_eq!(rig.logins(), (1, 0));
    // The link of the initiator is cut.
    rig.initiator = initiator(5, rig.now + Duration::from_secs(1000));
    rig.switches[0].detach(gone);
    let time = rig.until(30, |rig| rig.logins().1 == 1).expect("its login ends");
    assert!(time < Duration::from_secs(8), "{time:?}");
}

#[test]
fn another_port_with_the_identifier_of_an_initiator_is_not_taken_for_it() {
    let mut rig = Rig::new(vec![switch_of(1, 128)], 5);
    assert!(rig.until(20, |rig| rig.initiator.is_ready()).is_some());
    let (id, own) = (rig.switches[0].id_of(INITIATOR).expect("known"), rig.target.logins().id().expect("up"));
    rig.initiator = initiator(5, rig.now + Duration::from_secs(1000));
    rig.switches[0].report(id);
    rig.pass(Duration::from_millis(50));
    // Another port answers ADISC: all exchange identifiers are tried.
    for ox_id in 0..64 {
        let address = Address { source: id, destination: own, ox_id, rx_id: UNASSIGNED };
        let header = Header::new(Routing::ELS_REPLY, Protocol::ELS, Control::REPLY, address);
        let body = Adisc::new(Els::LS_ACC, (Wwn(0x2100_0000_0000_0009), Wwn(9)), id);
        let route = Route { to: own.mac_in(DEFAULT_MAP), from: rig.switches[0].config.mac };
        let frame = Outgoing::fc(route, header, body.as_bytes()).bytes();
        let header = EthernetHeader::parse(&frame).expect("built here");
        rig.at_target(&header, &frame[HEADER_LEN..]);
    }
    assert_eq!(rig.logins(), (1, 1));
}

#[test]
fn only_frames_of_the_switch_are_taken() {
    let mut rig = Rig::new(vec![switch_of(1, 128)], 6);
    assert!(rig.until(20, |rig| rig.initiator.is_ready()).is_some());
    let (peer, own) = (rig.switches[0].id_of(INITIATOR).expect("known"), rig.target.logins().id().expect("up"));
    let address = Address { source: peer, destination: own, ox_id: 9, rx_id: UNASSIGNED };
    let header = Header::new(Routing::ELS_REQUEST, Protocol::ELS, Control::REQUEST, address);
    let body = frame::encapsulated(header, Bare::new(Els::LOGO).as_bytes());
    let ethernet =
        |source| EthernetHeader { destination: own.mac_in(DEFAULT_MAP), source, ether_type: frame::ETHER_TYPE };
    for source in [peer.mac_in(DEFAULT_MAP), peer.mac(), station(2)] {
        rig.at_target(&ethernet(source), &body);
    }
    assert_eq!(rig.logins(), (1, 0));
    rig.at_target(&ethernet(rig.switches[0].config.mac), &body);
    assert_eq!(rig.logins(), (1, 1));
}

#[test]
fn initiators_of_no_group_are_refused() {
    let mut rig = Rig::new(vec![switch_of(1, 128)], 7);
    rig.admits = |name| name != INITIATOR;
    assert!(rig.until(20, |rig| rig.events.contains(&LoginEvent::Refused(INITIATOR))).is_some());
    assert!(!rig.initiator.is_ready());
    rig.admits = |_| true;
    assert!(rig.until(20, |rig| rig.initiator.is_ready()).is_some());
}

#[test]
fn a_port_that_leaves_is_reported_and_one_that_starts_again_is_found() {
    let mut rig = Rig::new(vec![switch_of(1, 128)], 8);
    assert!(rig.until(20, |rig| rig.initiator.is_ready()).is_some());
    let mut out = Output::default();
    rig.target.leave(rig.now, &|_| true, &mut out);
    let frames = rig.sent(&mut out);
    rig.up(0, frames);
    assert_eq!((rig.switches[0].id_of(TARGET), rig.logins()), (None, (1, 1)));
    rig.pass(Duration::from_secs(30));
    assert!(!rig.initiator.is_ready() && rig.switches[0].id_of(TARGET).is_none());
    rig.target = target(9, rig.now);
    assert!(rig.until(40, |rig| rig.initiator.is_ready()).is_some());
    // It is killed and starts again at once, while commands arrive.
    for cookie in 1..4 {
        rig.target = target(10 + u64::from(cookie), rig.now);
        rig.start(cookie);
        assert!(rig.until(60, |rig| rig.done == cookie).is_some(), "{cookie}");
    }
}

#[test]
fn a_missing_switch_and_its_vlan_are_told_once() {
    let mut rig = Rig::new(Vec::new(), 9);
    rig.pass(Duration::from_secs(100));
    assert_eq!(rig.events, [LoginEvent::Fabric(FabricNews::NoSwitch)]);
    let mut rig = Rig::new(vec![switch_of(1, 128)], 9);
    rig.switches[0].config.vlan = Some(1002);
    rig.pass(Duration::from_secs(5));
    assert!(rig.events.iter().all(|event| !matches!(event, LoginEvent::Fabric(FabricNews::OtherVlan(_)))));
    // The switch is in the VLAN only, from where it answers requests.
    let mut rig = Rig::new(Vec::new(), 9);
    let header = EthernetHeader { destination: station(1), source: station(9), ether_type: fip::ETHER_TYPE };
    for _ in 0..3 {
        rig.pass(Duration::from_secs(5));
        rig.at_target(&header, &fabric::vlan_notification(station(9), 1002));
    }
    assert_eq!(rig.events, [LoginEvent::Fabric(FabricNews::OtherVlan(1002))]);
}

#[test]
fn switches_that_are_full_of_forged_advertisements_are_still_found() {
    let mut rig = Rig::new(vec![switch_of(1, 128)], 10);
    for number in 0..2000_u16 {
        let [high, low] = number.to_be_bytes();
        let mac = MacAddress([2, 0xfd, 0, 0, high, low]);
        let forged = Switch::new(SwitchConfig { mac, ..rig.switches[0].config });
        let header = EthernetHeader { destination: ALL_STATIONS, source: mac, ether_type: fip::ETHER_TYPE };
        rig.at_target(&header, &forged.advertisement(false));
        rig.step();
    }
    assert!(rig.until(60, |rig| rig.initiator.is_ready()).is_some());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn commands_end_over_a_lossy_fabric(seed in any::<u64>(), loss in 0u64..100, event in 0u8..4) {
        // Ports at two switches that are not connected with each other would not find each other.
        let mut rig = Rig::new(vec![switch_of(1, 128)], seed);
        rig.loss = loss;
        (0..4).for_each(|cookie| rig.start(cookie));
        prop_assert!(rig.until(900, |rig| rig.done == 4).is_some());
        match event {
            0 => rig.switches.iter_mut().for_each(Switch::restart),
            1 => rig.switches.iter_mut().for_each(Switch::clear_all),
            2 => rig.target = target(!seed, rig.now),
            _ => {
                rig.is_dark = true;
                rig.pass(Duration::from_secs(25));
                rig.is_dark = false;
            }
        }
        (4..8).for_each(|cookie| rig.start(cookie));
        prop_assert!(rig.until(900, |rig| rig.done == 8).is_some());
        // A command that is repeated returns its data again.
        prop_assert!(rig.read >= 8 * DATA.len());
    }
}
