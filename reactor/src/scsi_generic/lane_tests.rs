use super::*;
use crate::scsi_generic::fake::{self, Answer, Received};
use crate::{Choice, Config};
use lunar_core::mem::{Sg, SgMut};
use std::sync::mpsc;

/// The ends of commands, in their order.
type Ends = Rc<RefCell<Vec<(u32, Outcome)>>>;

struct Owner(u32, Ends);

impl Token for Owner {
    fn complete(self, outcome: Outcome) {
        self.1.borrow_mut().push((self.0, outcome));
    }
}

fn on_both_drivers(test: impl Fn(&Reactor)) {
    for driver in [Choice::Epoll, Choice::Auto] {
        test(&Reactor::new(Config { driver, ..Config::default() }).expect("a driver"));
    }
}

fn request(cdb: &[u8], data: Data) -> Request {
    let mut own = [0; CDB_BYTES_MAX];
    own[..cdb.len()].copy_from_slice(cdb);
    // INQUIRY
    let may_be_short = cdb[0] == 0x12;
    Request { cdb: own, cdb_len: cdb.len(), data, may_be_short, timeout: Duration::from_secs(30) }
}

/// A lane to a fake device.
fn lane(
    reactor: &Reactor,
    run: impl FnMut(&Received) -> Option<Answer> + Send + 'static,
) -> (Rc<Lane<Owner>>, Ends, mpsc::Receiver<Received>) {
    let (fd, received) = fake::device(run);
    let lane = Lane::new(reactor, Node::adopt(fd).expect("a descriptor"), false).expect("room");
    (lane, Ends::default(), received)
}

/// Runs the core until so many commands have ended.
fn until(reactor: &Reactor, ends: &Ends, count: usize) {
    reactor.run(async {
        while ends.borrow().len() < count {
            reactor.sleep(Duration::from_millis(1)).await;
        }
    });
}

fn reply(outcome: &Outcome) -> Reply {
    *outcome.reply.as_ref().expect("the device has answered")
}

fn input(outcome: Outcome) -> Vec<u8> {
    outcome.data.into_in().share().to_vec()
}

#[test]
fn data_moves_both_ways_and_residuals_count() {
    on_both_drivers(|reactor| {
        let (lane, ends, received) = lane(reactor, |command| {
            Some(match command.cdb[0] {
                0x12 => Answer::good(b"sixteen bytes in"),
                _ => Answer { left: 100, ..Answer::default() },
            })
        });
        let memory = || reactor.arena().take_sg(96).expect("room");
        lane.start(request(&[0x12, 0, 0, 0, 96, 0], Data::In(memory())), Owner(1, ends.clone()));
        let mut out = Sg::default();
        [vec![1; 512], vec![2; 300]].iter().for_each(|part| out.push(reactor.arena().copy(part).expect("room")));
        lane.start(request(&[0x0a; 6], Data::Out(out)), Owner(2, ends.clone()));
        until(reactor, &ends, 2);
        let mut ended = ends.take().into_iter();
        let (number, outcome) = ended.next().expect("two");
        assert_eq!((number, reply(&outcome).moved(96), reply(&outcome).status), (1, 16, 0));
        assert_eq!(input(outcome)[..16], *b"sixteen bytes in");
        assert_eq!(reply(&ended.next().expect("two").1).moved(812), 712);
        let inquiry = received.recv().expect("it was sent");
        assert_eq!((inquiry.cdb, inquiry.data_in, inquiry.timeout_ms), (vec![0x12, 0, 0, 0, 96, 0], 4608, 30_000));
        assert_eq!(received.recv().expect("it was sent").data_out, [vec![1; 512], vec![2; 300]].concat());
        assert_eq!(lane.in_progress(), 0);
    });
}

#[test]
fn sense_data_and_statuses_come_as_the_device_gave_them() {
    on_both_drivers(|reactor| {
        let (lane, ends, _received) = lane(reactor, |command| {
            Some(match command.cdb[0] {
                0 => Answer::check(6, 0x2900),
                _ => Answer { host_status: 3, ..Answer::default() },
            })
        });
        for (number, code) in [(1, 0), (2, 1)] {
            lane.start(request(&[code; 6], Data::None), Owner(number, ends.clone()));
        }
        until(reactor, &ends, 2);
        let ended = ends.take();
        let (check, timeout) = (reply(&ended[0].1), reply(&ended[1].1));
        assert_eq!((check.status, check.sense()[2], &check.sense()[12..14]), (2, 6, &[0x29, 0][..]));
        assert_eq!((timeout.status, timeout.host_status, timeout.sense()), (0, 3, &[][..]));
    });
}

#[test]
fn long_transfers_go_through_the_helper_and_keep_their_order() {
    on_both_drivers(|reactor| {
        let pattern = |len: usize| (0..len).map(|at| (at / 7) as u8).collect::<Vec<u8>>();
        let (lane, ends, received) = lane(reactor, move |command| Some(Answer::good(&pattern(command.data_in))));
        let len = LONG_BYTES + 4096;
        let memory: SgMut = reactor.arena().take_sg(len).expect("room");
        lane.start(request(&[0x08; 6], Data::In(memory)), Owner(1, ends.clone()));
        let out = reactor.arena().take_sg(len).map(|mut out| {
            out.copy_from(0, &pattern(len));
            out.share()
        });
        lane.start(request(&[0x0a; 6], Data::Out(out.expect("room"))), Owner(2, ends.clone()));
        lane.start(request(&[0x01; 6], Data::None), Owner(3, ends.clone()));
        until(reactor, &ends, 3);
        let mut ended = ends.take().into_iter();
        let (number, outcome) = ended.next().expect("three");
        assert_eq!((number, reply(&outcome).moved(len)), (1, len));
        assert!(input(outcome) == pattern(len));
        let codes: Vec<u8> = received.try_iter().map(|command| command.cdb[0]).collect();
        assert_eq!(codes, [0x08, 0x0a, 0x01]);
        assert_eq!(ended.map(|(number, _)| number).collect::<Vec<_>>(), [2, 3]);
    });
}

#[test]
fn a_lane_is_bounded() {
    on_both_drivers(|reactor| {
        let (hold, held) = mpsc::channel::<()>();
        let (lane, ends, _received) = lane(reactor, move |_| {
            let _ = held.recv();
            Some(Answer::default())
        });
        for number in 0..LANE_COMMANDS as u32 {
            lane.start(request(&[0; 6], Data::None), Owner(number, ends.clone()));
        }
        lane.start(request(&[0; 6], Data::None), Owner(99, ends.clone()));
        let (number, refused) = ends.borrow_mut().pop().expect("it has ended");
        let kind = refused.reply.expect_err("the lane is full").kind();
        assert_eq!((number, kind, lane.in_progress()), (99, io::ErrorKind::ResourceBusy, LANE_COMMANDS));
        drop(hold);
        until(reactor, &ends, LANE_COMMANDS);
        lane.start(request(&[0; 6], Data::None), Owner(100, ends.clone()));
        until(reactor, &ends, LANE_COMMANDS + 1);
    });
}

#[test]
fn a_vanished_device_is_noticed() {
    on_both_drivers(|reactor| {
        let (lane, ends, _received) = lane(reactor, |command| (command.cdb[0] == 0).then(Answer::default));
        lane.start(request(&[0; 6], Data::None), Owner(1, ends.clone()));
        until(reactor, &ends, 1);
        assert!(!lane.is_gone());
        lane.start(request(&[1; 6], Data::None), Owner(2, ends.clone()));
        reactor.run(async {
            while !lane.is_gone() {
                reactor.sleep(Duration::from_millis(1)).await;
            }
        });
        lane.start(request(&[0; 6], Data::None), Owner(3, ends.clone()));
        assert!(ends.borrow().last().expect("it has ended").1.reply.is_err());
    });
}

#[test]
fn a_node_executes_commands_while_it_waits() {
    let (fd, received) = fake::device(|command| Some(Answer::good(&[command.cdb[0]; 8])));
    let mut node = Node::adopt(fd).expect("a descriptor");
    assert!(node.is_present());
    let mut memory = [0xa5; 16];
    let reply = node.execute(&[0x12, 0, 0, 0, 16, 0], &mut memory, Duration::from_secs(5)).expect("an answer");
    assert_eq!(
        (reply.moved(16), memory),
        (8, [0x12, 0x12, 0x12, 0x12, 0x12, 0x12, 0x12, 0x12, 0, 0, 0, 0, 0, 0, 0, 0])
    );
    assert_eq!(received.recv().expect("it was sent").timeout_ms, 5000);
    assert!(node.execute(&[0; 33], &mut [], Duration::from_secs(5)).is_err());
}
