//! Tests of links through XDP.

use super::*;
use crate::endpoint::packet::XdpConfig;

real! {
    frames_of_any_length_travel_both_ways;
    frames_of_other_vlans_and_stations_stay_with_the_kernel;
    several_queues_are_one_link;
    frames_that_find_no_room_are_dropped_and_the_link_goes_on;
    a_link_that_goes_down_reports_it_and_works_again;
    an_interface_that_is_removed_is_reported;
    an_interface_has_one_link_which_ends_with_it;
    a_link_that_cannot_be_opened_says_what_is_missing;
}

fn config(interface: &str, types: &[u16], vlan: Option<u16>) -> XdpConfig {
    XdpConfig { interface: interface.to_owned(), types: types.to_vec(), vlan, filters: Vec::new() }
}

fn open(config: &XdpConfig) -> Result<Endpoint, String> {
    PacketLink::xdp(config).map(Endpoint::Packet).map_err(|why| why.to_string())
}

/// A pair of interfaces with this MTU, whose tags stay in their frames.
fn wire(one: &str, other: &str, mtu: usize, queues: usize) -> Result<(), String> {
    let queues = format!("numrxqueues {queues} numtxqueues {queues}");
    network::ip(&format!("link add {one} {queues} type veth peer name {other} {queues}"))?;
    for name in [one, other] {
        network::ip(&format!("link set {name} mtu {mtu} addrgenmode none"))?;
        network::ethtool(&format!("-K {name} rxvlan off txvlan off"))?;
        network::ip(&format!("link set {name} up"))?;
    }
    Ok(())
}

/// A cable between two interfaces, both ends through XDP, in the network namespace of this thread.
pub(super) fn cable(ground: &Ground, types: &[u16]) -> Result<Cable, String> {
    wire("vx", "vy", 1500, 1)?;
    let (near, far) = (open(&config("vx", types, None))?, open(&config("vy", types, None))?);
    Ok(Cable::new(ground, "xdp", near, far, None))
}

/// A cable whose near end is a packet socket, in a namespace of its own; `None`, with the reason printed, where this
/// process may not make one.
fn made(ground: &Ground, mtu: usize, queues: usize, far: &XdpConfig) -> Option<Cable> {
    let near =
        PacketConfig { interface: "vx".into(), types: vec![TYPE], filters: Vec::new(), format: RingFormat::Frames };
    let near = || PacketLink::interface(&near).map(Endpoint::Packet).map_err(|why| why.to_string());
    let ends = network::enter().and_then(|()| wire("vx", "vy", mtu, queues)).and_then(|()| Ok((near()?, open(far)?)));
    match ends {
        Ok((near, far)) => Some(Cable::new(ground, "xdp", near, far, None)),
        Err(why) => {
            eprintln!("skipped: no frames through XDP here: {why}");
            None
        }
    }
}

/// The result of a receive that was started, when it has one.
fn pending(ground: &Ground, end: &Handle) -> Rc<Cell<Option<Result<usize, Fault>>>> {
    let (other, end, result) = (ground.clone(), end.clone(), Rc::new(Cell::new(None)));
    let theirs = result.clone();
    ground.reactor.spawn(async move {
        let batch = ReceiveBatch::new(2048, 4);
        let (got, _) = other.reactor.receive_batch(&end, batch, &mut Completion::new()).await;
        theirs.set(Some(got));
    });
    result
}

async fn frames_of_any_length_travel_both_ways(ground: Ground) {
    const ROOM: usize = 16 << 10;
    for mtu in [1500, 2500, 9000] {
        let Some(cable) = made(&ground, mtu, 1, &config("vy", &[TYPE], None)) else { return };
        for (number, len) in
            [46, 47, 1024, 1500, 1774, 1775, 2048, 2500, 4078, 4082, 4096, 8192, 9000].into_iter().enumerate()
        {
            if len > mtu {
                continue;
            }
            assert_eq!(ground.send(&cable.near, vec![cable.frame(number, len)]).await, Ok(1), "{mtu} {len}");
            let got = ground.receive(&cable.far, ROOM, 4).await;
            let wanted = frame(cable.far_mac, cable.near_mac, TYPE, number, len);
            assert!(got.len() == 1 && got[0].data.to_vec() == wanted, "{mtu} {len}");
            let answer = frame(cable.near_mac, cable.far_mac, TYPE, number + 1, len);
            let mut data = Sg::default();
            answer.chunks(999).for_each(|part| data.push(ground.reactor.arena().copy(part).expect("room")));
            let sent = ground.send(&cable.far, vec![Datagram { data, ..Datagram::default() }]).await;
            assert_eq!(sent, Ok(1), "{mtu} {len}");
            let got = ground.receive(&cable.near, ROOM, 4).await;
            assert!(got.len() == 1 && got[0].data.to_vec() == answer, "{mtu} {len}");
        }
        // A frame that is longer is dropped, and so is one without a header.
        let long = vec![cable.frame_to(cable.near_mac, TYPE, 1, mtu + 1)];
        assert_eq!(ground.send(&cable.far, long).await, Ok(0));
        let short =
            Datagram { data: ground.reactor.arena().copy(&[0; 13]).expect("room").into(), ..Datagram::default() };
        assert_eq!(ground.send(&cable.far, vec![short]).await, Ok(0));
        assert_eq!(ground.status(&cable.far).counters.send_drops, 2);
        // A short one is padded.
        let tiny = frame(cable.near_mac, cable.far_mac, TYPE, 1, 3);
        let tiny = Datagram { data: ground.reactor.arena().copy(&tiny).expect("room").into(), ..Datagram::default() };
        assert_eq!(ground.send(&cable.far, vec![tiny]).await, Ok(1));
        let got = ground.receive_one(&cable.near).await.data.to_vec();
        assert_eq!((got.len(), &got[17..]), (60, &[0; 43][..]));
    }
}

async fn frames_of_other_vlans_and_stations_stay_with_the_kernel(ground: Ground) {
    let second = MacAddress([0x0e, 0xfd, 0, 1, 2, 3]);
    let filters = vec![Filter::Unicast(second)];
    for vlan in [None, Some(5)] {
        let config = XdpConfig { filters: filters.clone(), ..config("vy", &[TYPE, 0x8914], vlan) };
        let Some(cable) = made(&ground, 1500, 1, &config) else { return };
        // The kernel shows the frames that it has to this socket.
        let kernel = PacketConfig {
            interface: "vy".into(),
            types: Vec::new(),
            filters: vec![Filter::Promiscuous],
            format: RingFormat::Frames,
        };
        let kernel = Endpoint::Packet(PacketLink::interface(&kernel).expect("as the near end"));
        let kernel = ground.reactor.attach(kernel).expect("attached");
        let tags = [None, Some(VlanTag::new(0)), Some(VlanTag::new(5)), Some(VlanTag::new(6))];
        let stations = [cable.far_mac, second, MacAddress::BROADCAST, MacAddress([2, 9, 9, 9, 9, 9])];
        let (mut ours, mut others) = (Vec::new(), Vec::new());
        for (number, tag) in tags.into_iter().enumerate() {
            for station in stations {
                for ether_type in [TYPE, 0x8914, OTHER_TYPE] {
                    let frame = Datagram { vlan: tag, ..cable.frame_to(station, ether_type, number, 60) };
                    let is_own_vlan = tag.map_or(0, VlanTag::id) == vlan.unwrap_or(0);
                    let is_ours = is_own_vlan && station != stations[3] && ether_type != OTHER_TYPE;
                    let to = if is_ours { &mut ours } else { &mut others };
                    to.push((frame.data.to_vec(), tag));
                    assert_eq!(ground.send(&cable.near, vec![frame]).await, Ok(1));
                }
            }
        }
        for (end, wanted) in [(&cable.far, ours), (&kernel, others)] {
            let mut got = Vec::new();
            while got.len() < wanted.len() {
                got.extend(ground.receive(end, 2048, BATCH_MAX).await);
            }
            let got: Vec<_> = got.into_iter().map(|one| (one.data.to_vec(), one.vlan)).collect();
            assert_eq!(got, wanted, "{vlan:?}");
        }
        // Filters change while frames travel.
        let driver = ground.reactor.driver();
        driver.set_filter(&cable.far, Filter::Promiscuous, true).expect("set");
        driver.set_filter(&cable.far, Filter::Unicast(second), false).expect("removed");
        let tag = vlan.map(VlanTag::new);
        let frame = Datagram { vlan: tag, ..cable.frame_to(stations[3], TYPE, 1, 60) };
        assert_eq!(ground.send(&cable.near, vec![frame.clone()]).await, Ok(1));
        assert_eq!(ground.receive_one(&cable.far).await.data.to_vec(), frame.data.to_vec());
        driver.set_filter(&cable.far, Filter::Promiscuous, false).expect("removed");
        driver.set_filter(&cable.far, Filter::AllGroups, true).expect("set");
        for (station, is_ours) in [(second, false), (stations[3], false), (MacAddress([0x03, 0, 0, 0, 0, 9]), true)] {
            let frame = Datagram { vlan: tag, ..cable.frame_to(station, TYPE, 1, 60) };
            assert_eq!(ground.send(&cable.near, vec![frame.clone()]).await, Ok(1));
            let end = if is_ours { &cable.far } else { &kernel };
            assert_eq!(ground.receive_one(end).await.data.to_vec(), frame.data.to_vec(), "{station}");
        }
    }
}

async fn several_queues_are_one_link(ground: Ground) {
    const COUNT: usize = 500;
    let Some(cable) = made(&ground, 1500, 3, &config("vy", &[TYPE], None)) else { return };
    let (other, near) = (ground.clone(), cable.near.clone());
    let frames: Vec<_> = (0..COUNT).map(|number| cable.frame(number, 60 + number)).collect();
    ground.reactor.spawn(async move {
        for part in frames.chunks(50) {
            assert_eq!(other.send(&near, part.to_vec()).await, Ok(part.len()));
            other.reactor.sleep(Duration::from_millis(1)).await;
        }
    });
    let mut got = Vec::new();
    while got.len() < COUNT {
        got.extend(ground.receive(&cable.far, 2048, BATCH_MAX).await.into_iter().map(|one| one.data.to_vec()));
    }
    got.sort_by_key(Vec::len);
    let wanted = |number| frame(cable.far_mac, cable.near_mac, TYPE, number, 60 + number);
    assert!(got.iter().enumerate().all(|(number, one)| *one == wanted(number)));
    // Waiting costs nothing, and a removed interface is reported.
    let result = pending(&ground, &cable.far);
    let before = thread_time();
    ground.reactor.sleep(Duration::from_millis(500)).await;
    let used = thread_time() - before;
    assert!(used < Duration::from_millis(20), "{used:?}");
    network::ip("link del vx").expect("removed");
    ground.until(|| result.get().is_some()).await;
    assert!(matches!(result.get(), Some(Err(_))), "{:?}", result.get());
}

async fn frames_that_find_no_room_are_dropped_and_the_link_goes_on(ground: Ground) {
    const COUNT: usize = 20_000;
    let Some(cable) = made(&ground, 1500, 1, &config("vy", &[TYPE], None)) else { return };
    let mut sent = 0;
    while sent < COUNT {
        let frames = (0..50).map(|_| cable.frame(0, 1400)).collect();
        sent += ground.send(&cable.near, frames).await.expect("sent");
        // The driver of these interfaces has a queue of its own, which drops before the link does.
        ground.reactor.sleep(Duration::from_micros(50)).await;
    }
    ground.reactor.sleep(Duration::from_millis(10)).await;
    let counters = ground.status(&cable.far).counters;
    assert!(counters.receive_drops > 0, "{counters:?}");
    let mut received = 0;
    while received < 1000 {
        received += ground.receive(&cable.far, 2048, BATCH_MAX).await.len();
    }
    // All chunks have come back: much more than their number is sent and received.
    for number in 0..5000 {
        let answer = frame(cable.near_mac, cable.far_mac, OTHER_TYPE, number, 60);
        let data = ground.reactor.arena().copy(&answer).expect("room").into();
        assert_eq!(ground.send(&cable.far, vec![Datagram { data, ..Datagram::default() }]).await, Ok(1));
    }
    let mut rest = 1;
    while rest > 0 {
        // The last frame has a type of its own.
        assert_eq!(ground.send(&cable.near, vec![cable.frame(9, 77)]).await, Ok(1));
        let got = ground.receive(&cable.far, 2048, BATCH_MAX).await;
        rest = usize::from(!got.iter().any(|one| one.data.len() == 14 + 77));
    }
    for number in 0..5000 {
        assert_eq!(ground.send(&cable.near, vec![cable.frame(number, 60)]).await, Ok(1));
        let mut got = ground.receive(&cable.far, 2048, BATCH_MAX).await;
        got.retain(|one| one.data.len() == 74);
        assert!(got.len() <= 1);
    }
}

async fn a_link_that_goes_down_reports_it_and_works_again(ground: Ground) {
    let Some(cable) = made(&ground, 1500, 1, &config("vy", &[TYPE], None)) else { return };
    let answer = |number| {
        let bytes = frame(cable.near_mac, cable.far_mac, TYPE, number, 46);
        let data = ground.reactor.arena().copy(&bytes).expect("room").into();
        vec![Datagram { data, ..Datagram::default() }]
    };
    let result = pending(&ground, &cable.far);
    ground.reactor.sleep(Duration::from_millis(10)).await;
    network::ip("link set vy down").expect("down");
    ground.until(|| result.get().is_some()).await;
    assert_eq!(result.get(), Some(Err(Fault::Os(libc::ENETDOWN))));
    // The first is found out to be lost while it is sent.
    ground.send(&cable.far, answer(1)).await.expect("no fault");
    assert_eq!(ground.send(&cable.far, answer(2)).await, Ok(0));
    assert!(ground.status(&cable.far).counters.send_drops >= 1);
    network::ip("link set vy up").expect("up");
    let (other, far, has_come) = (ground.clone(), cable.far.clone(), Rc::new(Cell::new(false)));
    let flag = has_come.clone();
    ground.reactor.spawn(async move {
        assert_eq!(other.receive_one(&far).await.data.len(), 74);
        flag.set(true);
    });
    while !has_come.get() {
        ground.send(&cable.near, vec![cable.frame(5, 60)]).await.expect("no fault");
        ground.reactor.sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(ground.send(&cable.far, answer(3)).await, Ok(1));
}

async fn an_interface_that_is_removed_is_reported(ground: Ground) {
    let Some(cable) = made(&ground, 1500, 1, &config("vy", &[TYPE], None)) else { return };
    let result = pending(&ground, &cable.far);
    ground.reactor.sleep(Duration::from_millis(10)).await;
    network::ip("link del vx").expect("removed");
    ground.until(|| result.get().is_some()).await;
    assert!(matches!(result.get(), Some(Err(_))), "{:?}", result.get());
    assert!(ground.reactor.driver().status(&cable.far).is_err());
    let data: Sg = ground.reactor.arena().copy(&[0; 60]).expect("room").into();
    assert!(matches!(ground.send(&cable.far, vec![Datagram { data, ..Datagram::default() }]).await, Ok(0) | Err(_)));
}

async fn an_interface_has_one_link_which_ends_with_it(ground: Ground) {
    let Some(cable) = made(&ground, 1500, 1, &config("vy", &[TYPE], None)) else { return };
    let second = PacketLink::xdp(&config("vy", &[OTHER_TYPE], None)).expect_err("there is one");
    assert_eq!(second.kind(), io::ErrorKind::ResourceBusy);
    assert!(second.to_string().contains("bpftool net list dev vy"), "{second}");
    drop(cable.far);
    let opened = PacketLink::xdp(&config("vy", &[OTHER_TYPE], None));
    opened.expect("the first has ended");
}

async fn a_link_that_cannot_be_opened_says_what_is_missing(_: Ground) {
    let missing = PacketLink::xdp(&config("none0", &[TYPE], None)).expect_err("there is none");
    assert!(missing.kind() == io::ErrorKind::NotFound && missing.to_string().contains("ip link"), "{missing}");
    for types in [vec![], (0..100).collect::<Vec<_>>()] {
        let why = PacketLink::xdp(&config("lo", &types, None)).expect_err("none, or too many");
        assert!(why.kind() == io::ErrorKind::InvalidInput && why.to_string().contains("EtherTypes"), "{why}");
    }
    let refused = std::thread::spawn(move || {
        give_up_capabilities();
        PacketLink::xdp(&config("lo", &[TYPE], None)).expect_err("it is not allowed")
    });
    let refused = refused.join().expect("no panic");
    assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
    let words = refused.to_string();
    assert!(words.starts_with("lo: ") && words.contains("setcap cap_net_raw,cap_net_admin,cap_bpf+ep"), "{words}");
    if let Err(why) = network::enter().and_then(|()| network::veth("vx", "vy")) {
        return eprintln!("skipped: no interfaces here: {why}");
    }
    match PacketLink::xdp(&config("vy", &[TYPE], None)) {
        Err(why) => assert!(why.to_string().contains("ethtool -K vy rxvlan off"), "{why}"),
        Ok(_) => panic!("the driver takes tags off frames"),
    }
}
