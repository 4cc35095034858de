use super::*;
use lunar_core::mem::Arena;
use lunar_reactor::sim::{Faults, Host, Segment, World};
use std::sync::Arc;
use std::time::Duration;

const TYPE: u16 = 0x88a2;

fn mac(number: u8) -> MacAddress {
    MacAddress([2, 0, 0, 0, 0, number])
}

fn config(vlan: Option<u16>, mtu: Option<usize>) -> LinkConfig {
    let address = LinkAddress::Interface("eth0".into());
    LinkConfig { address, types: vec![TYPE], filters: Vec::new(), vlan, mac: None, mtu }
}

fn core(world: &World, number: u8) -> Reactor {
    Reactor::with_driver(world.core(Host(u32::from(number))), Arena::new(4 << 20), Arc::default())
}

fn attached(world: &World, cable: Segment, core: &Reactor, number: u8, vlan: Option<u16>) -> Rc<Link> {
    let endpoint = world.link(cable, mac(number), &[TYPE]).expect("free");
    Link::attach(core, OpenedLink::on(endpoint, &config(vlan, None))).expect("attached")
}

fn frame(core: &Reactor, destination: MacAddress, source: MacAddress, text: &str) -> Sg {
    let header = Header { destination, source, ether_type: TYPE };
    core.arena().copy(&[&header.bytes()[..], text.as_bytes()].concat()).expect("room").into()
}

/// Collects the texts of received frames.
fn listen(core: &Reactor, link: &Rc<Link>) -> Rc<RefCell<Vec<String>>> {
    let texts: Rc<RefCell<Vec<String>>> = Rc::default();
    let (link, into) = (link.clone(), texts.clone());
    core.spawn(async move {
        let each = |frame: Frame| into.borrow_mut().push(String::from_utf8_lossy(&frame.payload).into_owned());
        link.receive(each, || ()).await.expect("closed without a fault");
        into.borrow_mut().push("closed".into());
    });
    texts
}

#[test]
fn frames_of_the_own_vlan_arrive_in_order_and_a_closed_link_ends() {
    for vlan in [None, Some(7)] {
        let world = World::new(1);
        world.set_faults(Faults { stray_frame: 1_000_000, ..Faults::none() });
        let cable = world.segment(9216);
        let cores = [core(&world, 1), core(&world, 2), core(&world, 3)];
        let [one, two, other] = [
            attached(&world, cable, &cores[0], 1, vlan),
            attached(&world, cable, &cores[1], 2, vlan),
            attached(&world, cable, &cores[2], 3, Some(9)),
        ];
        assert_eq!((one.mtu(), one.mac()), (9216, mac(1)));
        let (texts, foreign) = (listen(&cores[1], &two), listen(&cores[2], &other));
        for number in 0..100 {
            assert!(one.send(frame(&cores[0], mac(2), mac(1), &number.to_string())));
        }
        one.send(frame(&cores[0], mac(9), mac(1), "to another station"));
        one.send(frame(&cores[0], MacAddress::BROADCAST, MacAddress::BROADCAST, "from a group"));
        one.send(frame(&cores[0], MacAddress::BROADCAST, mac(1), "to all"));
        let end = world.now() + Duration::from_secs(1);
        let all: Vec<&Reactor> = cores.iter().collect();
        let alarm = cores[0].clone();
        cores[0].spawn(async move { alarm.sleep_until(end).await });
        world.run(&all, || texts.borrow().len() >= 101);
        two.close();
        world.run(&all, || texts.borrow().len() >= 102);
        let wanted: Vec<String> =
            (0..100).map(|n: u32| n.to_string()).chain(["to all".into(), "closed".into()]).collect();
        assert_eq!(*texts.borrow(), wanted);
        assert_eq!(*foreign.borrow(), [""; 0]);
        assert_eq!(one.counters().sent, 103);
    }
}

#[test]
fn too_many_frames_are_dropped_and_counted() {
    let world = World::new(1);
    let (cable, core) = (world.segment(1500), core(&world, 1));
    let link = attached(&world, cable, &core, 1, None);
    let data = frame(&core, mac(2), mac(1), "x");
    let sent = (0..SEND_QUEUE_MAX + 10).filter(|_| link.send(data.clone())).count();
    assert_eq!((sent, link.queued(), link.counters().send_drops), (SEND_QUEUE_MAX, SEND_QUEUE_MAX, 10));
    let large = attached(&world, world.segment(9216), &core, 2, None);
    let data = frame(&core, mac(1), mac(2), &"x".repeat(MTU_MAX));
    let sent = (0..SEND_QUEUE_MAX).filter(|_| large.send(data.clone())).count();
    assert_eq!(sent, SEND_BYTES_MAX / data.len(), "their bytes are bounded, too");
    let end = world.now() + Duration::from_secs(1);
    let alarm = core.clone();
    core.spawn(async move { alarm.sleep_until(end).await });
    world.run(&[&core], || large.queued() == 0);
    assert!(large.send(data), "there is room again");
}

#[test]
fn a_configured_mtu_is_at_most_that_of_the_link() {
    let world = World::new(1);
    let core = core(&world, 1);
    for (number, own, wanted, is) in [(1, 9000, Some(4000), 4000), (2, 1500, Some(9000), 1500), (3, 12_000, None, 9216)]
    {
        let endpoint = world.link(world.segment(own), mac(number), &[TYPE]).expect("free");
        let link = Link::attach(&core, OpenedLink::on(endpoint, &config(None, wanted))).expect("attached");
        assert_eq!(link.mtu(), is);
    }
}

#[test]
fn a_missing_interface_is_named_with_the_command_that_lists_them() {
    let config = LinkConfig { address: LinkAddress::Interface("none0".into()), ..config(None, None) };
    let why = OpenedLink::open(&config).expect_err("there is none").to_string();
    assert!(why.contains("none0") && why.contains("ip link"), "{why}");
}
