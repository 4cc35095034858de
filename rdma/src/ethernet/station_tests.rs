use super::*;
use crate::ethernet::icmp::echo_request;
use crate::testing::{Lossy, Random};
use lunar_core::mem::Arena;
use std::time::Duration;

const OWN: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
const PEER: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);

fn ip(text: &str) -> IpAddr {
    text.parse().expect(text)
}

fn at(milliseconds: u64) -> Instant {
    Instant(1) + Duration::from_millis(milliseconds)
}

/// Addresses of a station, of its peer, of a gateway, and of a peer behind that.
const V4: [&str; 4] = ["192.0.2.1", "192.0.2.2", "192.0.2.254", "198.51.100.7"];
const V6: [&str; 4] = ["2001:db8::1", "2001:db8::2", "2001:db8::fe", "2001:db8:7::7"];

fn station(mac: MacAddress, address: &str, gateway: Option<&str>) -> Station {
    let prefix = if ip(address).is_ipv4() { 24 } else { 64 };
    Station::new(mac, Network::new(ip(address), prefix, gateway.map(ip)).expect("right"), at(0))
}

/// A station whose address was announced long ago.
fn settled(address: &str, gateway: Option<&str>) -> Station {
    let mut station = station(OWN, address, gateway);
    (0..10).for_each(|second| station.expire(at(0) + Duration::from_secs(second)));
    frames(&mut station);
    station
}

/// The frames that are to be sent.
fn frames(station: &mut Station) -> Vec<Vec<u8>> {
    std::iter::from_fn(|| station.poll()).map(|frame| frame.to_vec()).collect()
}

/// A datagram that a station has received.
type Datagram = (SocketAddr, Vec<u8>);

/// Gives a frame to a station.
fn give(station: &mut Station, frame: &[u8], now: Instant) -> Option<Datagram> {
    let header = Header::parse(frame).expect("long enough");
    let received = station.receive(&header, &frame[HEADER_LEN..], now)?;
    Some((received.peer, received.payload.to_vec()))
}

fn frame(destination: MacAddress, source: MacAddress, ether_type: u16, bytes: &[u8]) -> Vec<u8> {
    [&Header { destination, source, ether_type }.bytes()[..], bytes].concat()
}

fn ether_type(address: &str) -> u16 {
    if ip(address).is_ipv4() { ip::IPV4 } else { ip::IPV6 }
}

/// The packet of a datagram to the port of RoCEv2.
fn datagram(from: &str, to: &str, payload: &[u8]) -> Vec<u8> {
    let header = ip::Header { from: ip(from), to: ip(to), protocol: ip::UDP, hop_limit: 64 };
    let udp = udp::header(0xc001, PORT, payload.len());
    [&header.bytes(udp.len() + payload.len())[..], &udp, payload].concat()
}

fn arp_request(sender: (MacAddress, &str), target: &str) -> Vec<u8> {
    let v4 = |text: &str| text.parse::<Ipv4Addr>().expect(text);
    let message =
        arp::Message { operation: Operation::REQUEST, sender: (sender.0, v4(sender.1)), target: (UNKNOWN, v4(target)) };
    frame(MacAddress::BROADCAST, sender.0, arp::ETHER_TYPE, &message.bytes())
}

fn payload(arena: &Arena, bytes: &[u8]) -> Wrapped {
    arena.copy(bytes).expect("there is room").into()
}

#[test]
fn datagrams_cross_a_link_that_loses_frames() {
    let arena = Arena::new(4 << 20);
    for (seed, [here, there, ..]) in (0..20).flat_map(|seed| [(seed, V4), (seed, V6)]) {
        let mut random = Random(seed);
        let mut stations = [station(OWN, here, None), station(PEER, there, None)];
        let mut ways = [Lossy::new([100, 50, 50]), Lossy::new([100, 50, 50])];
        let mut got = [0_u32; 2];
        let sent = 200_u32;
        for number in 0..sent {
            let now = at(u64::from(number) * 50);
            for (from, address) in [(0, there), (1, here)] {
                stations[from].send(ip(address), payload(&arena, &number.to_be_bytes()), now);
                stations[from].expire(now);
                frames(&mut stations[from]).into_iter().for_each(|frame| ways[from].send(frame, &mut random));
            }
            // Answers are sent at once.
            while let Some((to, frame)) = [1, 0].into_iter().find_map(|to| Some((to, ways[1 - to].receive()?))) {
                if let Some((peer, _)) = give(&mut stations[to], &frame, now) {
                    assert_eq!(peer, SocketAddr::new(ip([there, here][to]), PORT));
                    got[to] += 1;
                }
                frames(&mut stations[to]).into_iter().for_each(|frame| ways[to].send(frame, &mut random));
            }
        }
        // Datagrams that waited too long at the begin are lost, and others on the link.
        assert!(got.iter().all(|got| (sent * 7 / 10..=sent).contains(got)), "seed {seed}: {got:?}");
        for station in &mut stations {
            let counters = station.take_counters();
            assert_eq!((counters.damaged, counters.strange, station.conflict()), (0, 0, None));
            assert_eq!(station.counts(), (1, 0, 0));
        }
    }
}

#[test]
fn a_peer_behind_a_gateway_is_reached_through_it() {
    let arena = Arena::new(1 << 20);
    for [own, _, gateway, far] in [V4, V6] {
        let (mut with, mut without) = (settled(own, Some(gateway)), settled(own, None));
        without.send(ip(far), payload(&arena, b"x"), at(10_000));
        assert_eq!((frames(&mut without).len(), without.take_counters().unreachable), (0, 1));
        let from_far = frame(OWN, PEER, ether_type(own), &datagram(far, own, b"y"));
        assert_eq!((give(&mut without, &from_far, at(10_000)), without.take_counters().unreachable), (None, 1));
        assert!(give(&mut with, &from_far, at(10_000)).is_some());
        with.send(ip(far), payload(&arena, b"x"), at(10_000));
        let question = frames(&mut with).remove(0);
        // The gateway answers as a station does.
        let mut router = station(PEER, gateway, None);
        give(&mut router, &question, at(10_000));
        let answer = frames(&mut router).remove(0);
        give(&mut with, &answer, at(10_001));
        let sent = frames(&mut with).remove(0);
        assert_eq!(Header::parse(&sent).expect("a frame").destination, PEER);
        let packet = Packet::parse(ether_type(own), &sent[HEADER_LEN..]).expect("right");
        assert_eq!((packet.to, packet.hop_limit), (ip(far), 64));
    }
}

#[test]
fn questions_are_answered_and_cost_no_memory() {
    let mut station = settled(V4[0], None);
    let mut answered = 0;
    for number in 0..3000_u32 {
        let [a, b, c, d] = number.to_be_bytes();
        let sender = (MacAddress([2, 1, a, b, c, d]), format!("192.0.2.{}", 2 + number % 200));
        give(&mut station, &arp_request((sender.0, &sender.1), V4[0]), at(20_000));
        for answer in frames(&mut station) {
            let message = arp::Message::parse(&answer[HEADER_LEN..]).expect("right");
            assert_eq!((message.operation, message.target.0, answer.len()), (Operation::REPLY, sender.0, FRAME_MIN));
            assert_eq!(message.sender, (OWN, V4[0].parse().expect("right")));
            answered += 1;
        }
    }
    assert_eq!((answered, station.counts()), (ANSWERS_MAX.0, (0, 0, 0)));
    assert_eq!(station.take_counters().unanswered, 3000 - u64::from(ANSWERS_MAX.0));
    // One station has its share.
    let count = |now| {
        let mut station = settled(V4[0], None);
        (0..100).for_each(|_| _ = give(&mut station, &arp_request((PEER, V4[1]), V4[0]), now));
        frames(&mut station).len() as u32
    };
    assert_eq!(count(at(30_000)), ANSWERS_MAX.1);
    // Questions for other addresses are not answered.
    give(&mut station, &arp_request((PEER, V4[1]), V4[2]), at(30_000));
    assert!(frames(&mut station).is_empty());
}

#[test]
fn solicitations_are_answered() {
    let mut own = settled(V6[0], None);
    let (address, peer): (Ipv6Addr, Ipv6Addr) = (V6[0].parse().expect("right"), "fe80::2".parse().expect("right"));
    let group = solicited_node(address);
    let ask = |from: Ipv6Addr, sender| {
        let message = ndp::Message::Solicitation { target: address, sender };
        frame(group_mac(group), PEER, ip::IPV6, &message.packet(from, group))
    };
    let answer = |own: &mut Station| {
        let sent = frames(own).remove(0);
        let packet = Packet::parse(ip::IPV6, &sent[HEADER_LEN..]).expect("right");
        let message = icmp::Message::parse(&packet).expect("right");
        let parsed = ndp::Message::parse(&packet, &message).expect("right");
        (Header::parse(&sent).expect("right").destination, packet.to, parsed)
    };
    let (target, mac, overrides) = (address, Some(OWN), true);
    give(&mut own, &ask(peer, Some(PEER)), at(20_000));
    let wanted = ndp::Message::Advertisement { target, mac, is_solicited: true, overrides };
    assert_eq!(answer(&mut own), (PEER, peer.into(), wanted));
    // Another station wants the address.
    give(&mut own, &ask(Ipv6Addr::UNSPECIFIED, None), at(20_000));
    let wanted = ndp::Message::Advertisement { target, mac, is_solicited: false, overrides };
    assert_eq!(answer(&mut own), (group_mac(ALL_NODES), ALL_NODES.into(), wanted));
    assert_eq!(own.counts(), (0, 0, 0));
}

#[test]
fn echo_requests_are_answered_but_not_all_of_a_flood() {
    for ([own, peer, _, far], prober) in [(V4, V4[1]), (V6, "fe80::2")] {
        let mut station = settled(own, None);
        let request = |from: &str, to: MacAddress| {
            frame(to, PEER, ether_type(own), &echo_request(ip(from), ip(own), b"0001 some data"))
        };
        give(&mut station, &request(prober, OWN), at(20_000));
        let answer = frames(&mut station).remove(0);
        let packet = Packet::parse(ether_type(own), &answer[HEADER_LEN..]).expect("right");
        assert_eq!((packet.from, packet.to), (ip(own), ip(prober)));
        assert_eq!(icmp::Message::parse(&packet).expect("right").body, b"0001 some data");
        assert!(answer.len() <= request(prober, OWN).len().max(FRAME_MIN));
        // To a group, or from where no answer goes.
        give(&mut station, &request(prober, MacAddress::BROADCAST), at(20_000));
        give(&mut station, &request(far, OWN), at(20_000));
        assert!(frames(&mut station).is_empty());
        (0..1000).for_each(|_| _ = give(&mut station, &request(peer, OWN), at(30_000)));
        assert_eq!((frames(&mut station).len() as u32, station.counts()), (ECHOES_MAX.1, (0, 0, 0)));
    }
}

#[test]
fn what_is_damaged_or_not_for_this_station_is_dropped_and_counted() {
    let good = datagram(V4[1], V4[0], b"data");
    let good_frame = |bytes: &[u8]| frame(OWN, PEER, ip::IPV4, bytes);
    let mut own = settled(V4[0], None);
    let taken = give(&mut own, &good_frame(&good), at(20_000));
    assert_eq!(taken, Some((SocketAddr::new(ip(V4[1]), 0xc001), b"data".to_vec())));
    let changed = |at: usize, to: u8| {
        let mut bytes = good.clone();
        bytes[at] = to;
        bytes[10..12].fill(0);
        let checksum = super::super::checksum::Sum::default().with(&bytes[..20]).checksum().to_be_bytes();
        bytes[10..12].copy_from_slice(&checksum);
        bytes
    };
    let mut damaged = good.clone();
    damaged[17] ^= 1;
    let strange = Counters { strange: 1, ..Counters::default() };
    for (what, bytes, counters) in [
        ("a wrong checksum", damaged, Counters { damaged: 1, ..Counters::default() }),
        ("a fragment", changed(6, 0x20), Counters { fragments: 1, ..Counters::default() }),
        ("the last fragment", changed(7, 9), Counters { fragments: 1, ..Counters::default() }),
        ("a wrong checksum of UDP", changed(27, 1), Counters { damaged: 1, ..Counters::default() }),
        ("another port", changed(23, 1), strange),
        ("a length of UDP", changed(25, 11), strange),
        ("a short header", changed(0, 0x44), strange),
        ("TCP", changed(9, 6), strange),
        ("from all stations", changed(15, 255), Counters { unreachable: 1, ..Counters::default() }),
        ("from itself", changed(15, 1), Counters { unreachable: 1, ..Counters::default() }),
        ("for another address", changed(19, 9), Counters::default()),
    ] {
        assert_eq!(give(&mut own, &good_frame(&bytes), at(20_000)), None, "{what}");
        assert_eq!((own.take_counters(), frames(&mut own).len()), (counters, 0), "{what}");
    }
    for (destination, source) in [(MacAddress::BROADCAST, PEER), (OWN, OWN), (OWN, MacAddress::BROADCAST)] {
        assert_eq!(give(&mut own, &frame(destination, source, ip::IPV4, &good), at(20_000)), None);
    }
    // Congestion bits do not matter.
    assert!(give(&mut own, &good_frame(&changed(1, 3)), at(20_000)).is_some());
}

#[test]
fn an_address_of_another_station_is_not_used() {
    for [own, peer, ..] in [V4, V6] {
        let (mut new, mut old) = (station(PEER, own, None), settled(own, None));
        new.expire(at(10_000));
        let probe = frames(&mut new).remove(0);
        give(&mut old, &probe, at(10_000));
        let answer = frames(&mut old).remove(0);
        give(&mut new, &answer, at(10_001));
        assert_eq!((new.conflict(), old.conflict()), (Some(OWN), None));
        let arena = Arena::new(1 << 20);
        new.send(ip(peer), payload(&arena, b"x"), at(10_002));
        let stranger = MacAddress([2, 0, 0, 0, 0, 3]);
        let request = frame(PEER, stranger, ether_type(own), &datagram(peer, own, b"x"));
        assert_eq!(give(&mut new, &request, at(10_003)), None);
        assert!(frames(&mut new).is_empty());
        // The one that has it is told of by a station that takes it without asking.
        let mut rude = station(PEER, own, None);
        rude.tell(Step::Announce);
        let announcement = frames(&mut rude).remove(0);
        give(&mut old, &announcement, at(11_000));
        assert_eq!((old.conflict(), frames(&mut old).len()), (Some(PEER), 1), "it defends its address");
        give(&mut old, &announcement, at(12_000));
        assert!(frames(&mut old).is_empty(), "but not all the time");
        assert!(
            give(&mut old, &frame(OWN, stranger, ether_type(own), &datagram(peer, own, b"x")), at(12_000)).is_some()
        );
    }
}

#[test]
fn forged_peers_are_not_asked_for_without_end() {
    let arena = Arena::new(1 << 20);
    let mut own = Station::new(OWN, Network::new(ip("10.0.0.1"), 8, None).expect("right"), at(0));
    let mut asked = 0;
    for number in 0..2000_u32 {
        let peer: IpAddr = Ipv4Addr::from_bits(0x0a01_0000 + number).into();
        own.send(peer, payload(&arena, b"reject"), at(5000));
        asked += frames(&mut own).len() as u32;
    }
    assert!((QUESTIONS_MAX..=QUESTIONS_MAX + 1).contains(&asked), "{asked}");
    let (known, unresolved, waiting) = own.counts();
    assert!(known == 0 && unresolved <= 64 && waiting <= 64, "{:?}", own.counts());
}

#[test]
fn a_station_names_what_it_receives() {
    assert_eq!((ether_types(ip(V4[0])), groups(ip(V4[0]))), (vec![0x0800, 0x0806], Vec::new()));
    let group = |last: [u8; 4]| Filter::Group(MacAddress([0x33, 0x33, last[0], last[1], last[2], last[3]]));
    assert_eq!(ether_types(ip(V6[0])), [0x86dd]);
    assert_eq!(groups(ip(V6[0])), [group([0, 0, 0, 1]), group([0xff, 0, 0, 1])]);
    assert_eq!((overhead(ip(V4[0])), overhead(ip(V6[0]))), (28, 48));
}
