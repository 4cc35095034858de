use super::*;
use lunar_reactor::end::End;
use lunar_reactor::{Choice, Config};
use std::os::unix::net::UnixStream;

/// A service whose clients have requests that end when the test says so.
#[derive(Default)]
struct Slow {
    requests: Rc<End>,
}

struct SlowClient(Stream, Rc<End>);

impl SocketClient for SlowClient {
    async fn serve(&self) -> bool {
        let _ = self.0.receive(&mut [0], &mut Vec::new()).await;
        true
    }

    async fn finish(&self) {
        self.1.unless(std::future::pending::<()>()).await;
    }

    fn has_unmapped(&self) -> bool {
        true
    }

    fn end(&self) {
        self.0.cancel();
    }

    fn is_quiet(&self) -> bool {
        self.1.has_come()
    }

    fn silence(&self) {}
}

impl SocketService for Slow {
    type Tenant = &'static str;
    type Client = SlowClient;

    const SECTION: &'static str = "slow";

    fn connect(&self, stream: Stream, _endpoint: &Endpoint<&'static str>) -> Result<Rc<SlowClient>, &'static str> {
        Ok(Rc::new(SlowClient(stream, self.requests.clone())))
    }

    fn drain(&self) {}

    fn is_draining(&self) -> bool {
        false
    }

    fn is_ended(tenant: &&'static str, groups: &BTreeSet<Arc<str>>) -> bool {
        groups.contains(*tenant)
    }
}

async fn until(reactor: &Reactor, is_so: impl Fn() -> bool) {
    let begun = reactor.now();
    while !is_so() {
        assert!(reactor.now().since(begun) < Duration::from_secs(60), "it does not come");
        reactor.sleep(Duration::from_millis(1)).await;
    }
}

/// A service with a defect: the first client ends by a panic while it is served, the second one when it has
/// disconnected.
#[derive(Default)]
struct Defective {
    served: Cell<u32>,
    /// Whether a request of the second client is in progress, or memory of the third one is mapped.
    is_busy: Rc<Cell<bool>>,
}

struct DefectiveClient {
    stream: Stream,
    number: u32,
    is_busy: Rc<Cell<bool>>,
}

impl SocketClient for DefectiveClient {
    async fn serve(&self) -> bool {
        let _ = self.stream.receive(&mut [0], &mut Vec::new()).await;
        assert!(self.number != 0, "as the test wants");
        true
    }

    async fn finish(&self) {
        assert!(self.number != 1, "as the test wants");
    }

    fn has_unmapped(&self) -> bool {
        !self.is_busy.get()
    }

    fn end(&self) {
        self.stream.cancel();
    }

    fn is_quiet(&self) -> bool {
        !self.is_busy.get()
    }

    fn silence(&self) {}
}

impl SocketService for Defective {
    type Tenant = ();
    type Client = DefectiveClient;

    const SECTION: &'static str = "defective";

    fn connect(&self, stream: Stream, _endpoint: &Endpoint<()>) -> Result<Rc<DefectiveClient>, &'static str> {
        let number = self.served.replace(self.served.get() + 1);
        Ok(Rc::new(DefectiveClient { stream, number, is_busy: self.is_busy.clone() }))
    }

    fn drain(&self) {}

    fn is_draining(&self) -> bool {
        false
    }

    fn is_ended(_tenant: &(), _groups: &BTreeSet<Arc<str>>) -> bool {
        false
    }
}

#[test]
fn a_panic_ends_its_client_and_the_socket_accepts_the_next_one() {
    let reactor = Reactor::new(Config { driver: Choice::Epoll, ..Config::default() }).expect("a driver");
    let path = std::env::temp_dir().join(format!("lunar-defective-{}.sock", std::process::id()));
    let place = Place { path: path.clone(), role: Role::Server };
    let permission = Permission { mode: 0o600, owner: None, group: None };
    let is_busy = Rc::new(Cell::new(false));
    let service = Defective { served: Cell::new(0), is_busy: is_busy.clone() };
    let core = CoreSockets::new(&reactor, service, Duration::from_secs(1));
    let stats = reactor.stats().clone();
    let counted = || (core.clients(), stats.connections.get(), stats.sessions.get());
    reactor.run(async {
        core.open(place.clone(), permission).expect("a socket");
        core.serve(Endpoint { name: "vm".into(), place: place.clone(), tenant: () }, Vec::new());
        for number in 0..3 {
            let client = UnixStream::connect(&path).expect("it listens");
            until(&reactor, || core.service.served.get() == number + 1 && counted() == (1, 1, 1)).await;
            is_busy.set(number > 0);
            drop(client);
            if number > 0 {
                reactor.sleep(DRAIN_LOOK * 3).await;
                assert_eq!(counted(), (1, 1, 1), "the next client might repeat its request, or has no quota");
                is_busy.set(false);
            }
            until(&reactor, || counted() == (0, 0, 0)).await;
        }
        assert_eq!(stats.connections_accepted.get(), 3);
        drop(core.close(&place));
    });
}

#[test]
fn a_socket_that_is_made_again_waits_for_the_requests_of_the_one_before() {
    let reactor = Reactor::new(Config { driver: Choice::Epoll, ..Config::default() }).expect("a driver");
    let path = std::env::temp_dir().join(format!("lunar-slow-{}.sock", std::process::id()));
    let place = Place { path: path.clone(), role: Role::Server };
    let permission = Permission { mode: 0o600, owner: None, group: None };
    let endpoint = || Endpoint { name: "vm".into(), place: place.clone(), tenant: "group" };
    let requests = Rc::new(End::default());
    // Sockets of the same path may be on two cores.
    let cores = [requests.clone(), Rc::default()]
        .map(|requests| CoreSockets::new(&reactor, Slow { requests }, Duration::from_secs(1)));
    let clients = || cores.each_ref().map(|core| core.clients());
    reactor.run(async {
        cores[0].open(place.clone(), permission).expect("a socket");
        cores[0].serve(endpoint(), Vec::new());
        let _first = UnixStream::connect(&path).expect("it listens");
        until(&reactor, || clients() == [1, 0]).await;
        let leaving = cores[0].close(&place).expect("it was open");
        cores[1].open(place.clone(), permission).expect("the path is free");
        cores[1].serve(endpoint(), vec![leaving.clone()]);
        let _second = UnixStream::connect(&path).expect("it listens");
        let reviewed = Rc::new(Cell::new(false));
        let (done, core) = (reviewed.clone(), cores[0].clone());
        reactor.spawn(async move {
            core.review(&BTreeSet::from(["group".into()])).await;
            done.set(true);
        });
        reactor.sleep(DRAIN_LOOK * 5).await;
        assert_eq!((clients(), leaving.is_gone(), reviewed.get()), ([1, 0], false, false));
        requests.come();
        until(&reactor, || clients() == [0, 1] && leaving.is_gone() && reviewed.get()).await;
        drop(cores[1].close(&place));
    });
}
