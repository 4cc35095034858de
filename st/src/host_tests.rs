use super::*;
use crate::wire::FetchCode;
use std::os::unix::net::UnixDatagram;
use std::path::Path as FilePath;
use std::sync::Mutex;

fn udp() -> Host {
    Host::start(&["udp:127.0.0.1:0".parse().expect("an address")]).expect("a host")
}

fn pair(server: &Host, client: &Host, options: Options) -> (Connection, Connection) {
    let listener = server.listen(7, Ulp::SOCKET, options).expect("free");
    let peer = Peer::Ip(server.local(0).expect("UDP"));
    let near = client.connect(&[(0, peer)], (7, Ulp::SOCKET), options).expect("connected");
    (near, listener.accept().expect("one"))
}

fn data(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}

#[test]
fn transfers_of_all_lengths_are_written_and_read_whole() {
    let (server, client) = (udp(), udp());
    for options in [Options::default(), Options { stu: Some(10), checksums: true, ..Options::default() }] {
        let (near, far) = pair(&server, &client, options);
        for len in [0, 1, 1023, 1024, 1025, 65_536, 3_000_001] {
            std::thread::scope(|scope| {
                let writer = scope.spawn(|| near.write(data(len)));
                assert!(far.read(len.max(1)).expect("whole") == data(len), "{len}");
                assert!(writer.join().expect("no panic").expect("acknowledged") == data(len), "{len}");
            });
        }
    }
}

#[test]
fn a_transfer_that_does_not_fit_is_refused_to_both() {
    let (server, client) = (udp(), udp());
    let (near, far) = pair(&server, &client, Options::default());
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| far.read(99));
        assert_eq!(near.write(data(100)), Err(StError::Ended(Reason::TOO_LONG)));
        assert_eq!(reader.join().expect("no panic"), Err(StError::TooLong(100)));
        let writer = scope.spawn(|| near.write(data(100)));
        assert_eq!(far.read(100), Ok(data(100)), "the connection lives");
        assert_eq!(writer.join().expect("no panic"), Ok(data(100)));
    });
}

#[test]
fn a_transfer_is_placed_in_the_memory_of_the_reader() {
    let (server, client) = (udp(), udp());
    let (near, far) = pair(&server, &client, Options::default());
    let memory = vec![9; 100];
    let place = memory.as_ptr();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| near.write(data(60)));
        let read = far.read_into(memory).expect("it fits");
        assert_eq!((read.as_ptr(), &read), (place, &data(60)));
        assert_eq!(writer.join().expect("no panic"), Ok(data(60)));
        let reader = scope.spawn(|| far.read_into(read));
        assert_eq!(near.write(data(61)), Err(StError::Ended(Reason::TOO_LONG)));
        assert_eq!(reader.join().expect("no panic"), Err(StError::TooLong(61)));
    });
}

#[test]
fn a_region_is_written_read_and_counted_in() {
    let (server, client) = (udp(), udp());
    let (near, far) = pair(&server, &client, Options::default());
    std::thread::scope(|scope| {
        let granting = scope.spawn(|| far.grant_region(Access::ALL, 1 << 20).expect("granted"));
        let region = near.request_region(Access::ALL, 100_000).expect("granted");
        let local = granting.join().expect("no panic");
        assert_eq!(local.len(), 100_000);
        region.put(5, data(5000), 77).expect("it fits");
        let put = local.poll(Duration::from_secs(5)).expect("it came");
        assert_eq!(put, ArrivedPut { offset: 5, len: 5000, opaque: 77 });
        assert_eq!(local.read(5, 5000), Ok(data(5000)));
        local.write(10, b"changed".to_vec()).expect("inside");
        assert_eq!(region.get(10, 7), Ok(b"changed".to_vec()));
        let add = |operand| FetchRequest {
            region: 0,
            offset: 80_000,
            code: FetchCode::ADD,
            is_wide: true,
            operand,
            expected: 0,
        };
        assert_eq!((region.fetch(add(5)), region.fetch(add(6))), (Ok(0), Ok(5)));
        assert_eq!(local.read(80_000, 8), Ok(11_u64.to_be_bytes().to_vec()));
        local.arm(Wake::Interrupts).expect("granted");
        assert_eq!(local.poll(Duration::from_millis(20)), Err(StError::Timeout));
        assert_eq!(region.put(99_999, vec![0; 2], 0), Err(StError::Refused(Refused::Range)));
        assert!(region.put(0, vec![0; 8 << 20], 0).is_err());
    });
}

#[test]
fn a_peer_that_does_not_listen_or_goes_away_is_reported() {
    let (server, client) = (udp(), udp());
    let peer = Peer::Ip(server.local(0).expect("UDP"));
    let refused = client.connect(&[(0, peer)], (9, Ulp::SOCKET), Options::default());
    assert_eq!(refused.expect_err("nobody listens"), StError::Ended(Reason::NO_PORT));
    let (near, far) = pair(&server, &client, Options::default());
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| near.read(10));
        drop(far);
        assert!(matches!(reader.join().expect("no panic"), Err(StError::Ended(_))));
    });
    assert!(near.write(data(1)).is_err());
}

/// The links of both ends in a folder, and the addresses of the first end's links.
fn frame_links(folder: &FilePath, wires: [[&str; 4]; 2]) -> ([Vec<LinkSpec>; 2], Vec<(u8, Peer)>) {
    let spec = |own: &str, peer: &str| -> LinkSpec {
        format!("unix:{0}/{own},{0}/{peer}", folder.display()).parse().expect("a link")
    };
    let near: Vec<LinkSpec> = wires.iter().map(|[own, peer, ..]| spec(own, peer)).collect();
    let far = wires.iter().map(|[.., own, peer]| spec(own, peer)).collect();
    let mac = |spec: &LinkSpec| match spec {
        LinkSpec::Frames(config) => config.address.derived_mac(),
        LinkSpec::Udp(_) => panic!("frames"),
    };
    let peers = (0..).zip(&near).map(|(at, spec)| (at, Peer::Station(mac(spec)))).collect();
    ([near, far], peers)
}

/// Sends 24 megabytes over the links, in four threads, and returns the state of the paths.
fn over_links(name: &str, wires: [[&str; 4]; 2], beside: impl FnOnce(&FilePath) + Send) -> Vec<bool> {
    let folder = std::env::temp_dir().join(format!("st-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let (specs, peers) = frame_links(&folder, wires);
    let [server, client] = specs.map(|specs| Host::start(&specs).expect("a host"));
    let listener = server.listen(7, Ulp::SOCKET, Options::default()).expect("free");
    let paths = std::thread::scope(|outer| {
        outer.spawn(|| beside(&folder));
        let near = client.connect(&peers, (7, Ulp::SOCKET), Options::default()).expect("connected");
        let far = listener.accept().expect("one");
        // The data may be shorter than the time until the second path is added.
        while near.paths().expect("up").len() < wires.len() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let write = || (0..3).try_for_each(|_| near.write(data(2_000_000)).map(drop));
        std::thread::scope(|scope| {
            let writers = [(); 4].map(|()| scope.spawn(write));
            for _ in 0..12 {
                assert!(far.read(2_000_000).expect("whole") == data(2_000_000));
            }
            writers.into_iter().for_each(|writer| assert_eq!(writer.join().expect("no panic"), Ok(())));
        });
        near.paths().expect("up").into_iter().map(|(_, is_up)| is_up).collect()
    });
    // Errors would only leave files behind.
    let _ = std::fs::remove_dir_all(&folder);
    paths
}

#[test]
fn frames_and_several_links_carry_transfers() {
    let wires = [["a0", "b0", "b0", "a0"], ["a1", "b1", "b1", "a1"]];
    assert_eq!(over_links("two", wires, |_| {}), [true, true]);
}

#[test]
fn a_link_that_stops_taking_frames_does_not_hold_up_the_others() {
    let sockets = Mutex::new(Vec::new());
    let relay = |folder: &FilePath| {
        let ends = ["x", "y"].map(|name| UnixDatagram::bind(folder.join(name)).expect("free"));
        ends.iter().for_each(|end| end.set_nonblocking(true).expect("a socket"));
        let (mut frame, mut count) = ([0; 10_000], 0);
        while count < 100 {
            for (end, target) in ends.iter().zip(["b1", "a1"]) {
                while let Ok(len) = end.recv(&mut frame) {
                    // A frame that does not fit is lost.
                    count += usize::from(end.send_to(&frame[..len], folder.join(target)).is_ok());
                }
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        // From here on nobody reads, and the sockets stay open.
        sockets.lock().expect("no panic").extend(ends);
    };
    assert_eq!(over_links("stall", [["a0", "b0", "b0", "a0"], ["a1", "x", "b1", "y"]], relay), [true, false]);
}
