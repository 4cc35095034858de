use super::*;
use crate::engine::{Settings, Ulp};
use crate::wire::Reason;
use lunar_link::MacAddress;
use lunar_reactor::sim::{Faults, Host, World};
use std::sync::Arc;

const PORT: u16 = 3;
const TRANSFERS: usize = 12;

fn mac(number: u8) -> MacAddress {
    MacAddress([2, 0, 0, 0, 0, number])
}

fn content(number: usize) -> Vec<u8> {
    (0..number * number * 1500 + number).map(|at| (at * 13 + number + at / 255) as u8).collect()
}

/// The links of an end: two of frames, one of datagrams.
fn links(world: &World, cables: [lunar_reactor::sim::Segment; 2], number: u8) -> Vec<OpenedPort> {
    let mut links: Vec<OpenedPort> = Vec::new();
    for (at, cable) in (0..).zip(cables) {
        let config = LinkConfig {
            address: lunar_link::LinkAddress::Interface("eth0".into()),
            types: vec![ETHER_TYPE],
            filters: Vec::new(),
            vlan: None,
            mac: None,
            mtu: None,
        };
        let endpoint = world.link(cable, mac(number * 10 + at), &[ETHER_TYPE]).expect("free");
        links.push(OpenedPort::Frames(OpenedLink::on(endpoint, &config)));
    }
    links.push(OpenedPort::Datagrams(world.udp(udp(number)).expect("free")));
    links
}

fn udp(number: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, number], 18181))
}

/// Takes Transfers, and notes their bytes.
fn receiver(received: Rc<RefCell<Vec<Vec<u8>>>>) -> OnEvent {
    Box::new(move |port, event| match event {
        Event::SendAsked { vc, id, len, .. } => {
            port.give(vc, id, vec![0; len as usize]);
            assert_eq!(port.with(|engine, now| engine.grant(vc, id, now)), Ok(len));
        }
        Event::Received { vc, id, .. } => received.borrow_mut().push(port.take_bytes(vc, id)),
        Event::Accepted { .. } | Event::Closed { .. } => {}
        event => panic!("{event:?}"),
    })
}

/// Sends Transfers, one after the other, and closes the connection.
fn sender(sent: Rc<Cell<usize>>) -> OnEvent {
    Box::new(move |port, event| {
        let vc = match event {
            Event::Connected { vc } => vc,
            Event::Done { vc, id } => {
                drop(port.take_bytes(vc, id));
                sent.set(sent.get() + 1);
                vc
            }
            event => panic!("{event:?}"),
        };
        match sent.get() {
            TRANSFERS => port.with(|engine, now| engine.close(vc, Reason::NONE, now)),
            number => {
                let bytes = content(number);
                let len = bytes.len() as u64;
                port.start_with(vc, bytes, |engine, now| engine.send(vc, len, now)).expect("room");
            }
        }
    })
}

#[test]
fn transfers_cross_frames_and_datagrams_that_are_lost_repeated_and_reordered() {
    for seed in 0..8 {
        let world = World::new(seed);
        world.set_faults(Faults {
            datagram_loss: 10_000 * (seed as u32 % 3),
            datagram_duplicate: 20_000 * (seed as u32 % 2),
            datagram_reorder: 20_000 * (seed as u32 % 2),
            stray_frame: 10_000,
            ..Faults::none()
        });
        let core = |number: u32| Reactor::with_driver(world.core(Host(number)), Arena::new(32 << 20), Arc::default());
        let (near_core, far_core) = (core(1), core(2));
        let cables = [world.segment(1500), world.segment(9216)];
        let (received, sent) = (Rc::default(), Rc::new(Cell::new(0)));
        let near = Port::attach(&near_core, links(&world, cables, 1), [seed, 1], sender(sent.clone()));
        let far = Port::attach(&far_core, links(&world, cables, 2), [seed, 2], receiver(Rc::clone(&received)));
        let (near, far) = (near.expect("attached"), far.expect("attached"));
        assert_eq!((near.mtu(0), near.mtu(1), near.local(2)), (1500, 9216, Some(udp(1))));
        let settings = Settings::default().for_mtu(1400);
        far.with(|engine, _| engine.listen(PORT, Ulp::RAW, settings)).expect("good settings");
        let paths: Vec<Path> = (0..3)
            .map(|link| Path { link, peer: if link == 2 { Peer::Ip(udp(2)) } else { Peer::Station(mac(20 + link)) } })
            .collect();
        near.with(|engine, now| engine.connect(&paths, (PORT, Ulp::RAW), settings, now)).expect("good settings");
        let cores = [&near_core, &far_core];
        world.run(&cores, || sent.get() == TRANSFERS && near.engine.borrow().connections() == 0);
        let received: Vec<Vec<u8>> = received.take();
        assert_eq!(received.len(), TRANSFERS, "seed {seed}");
        assert!(received.iter().enumerate().all(|(number, bytes)| *bytes == content(number)), "seed {seed}");
        near.close();
        far.close();
    }
}

#[test]
fn names_of_links_are_read() {
    assert_eq!("udp:127.0.0.1:5".parse(), Ok(LinkSpec::Udp(SocketAddr::from(([127, 0, 0, 1], 5)))));
    assert!(matches!("eth0".parse(), Ok(LinkSpec::Frames(config)) if config.types == [ETHER_TYPE]));
    for wrong in ["udp:", "udp:127.0.0.1", "unix:/a", ""] {
        assert!(wrong.parse::<LinkSpec>().is_err(), "{wrong}");
    }
}
