//! A Fibre Channel switch (FCF) between two Unix datagram sockets, each of which is one of its links.

use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant as Clock};

use anyhow::Result;
use lunar_core::time::Instant;
use lunar_fcoe_initiator::switch::{Switch, SwitchConfig};
use lunar_link::MacAddress;

use crate::relay::{FRAME_MAX, RelayEnd, socket};

/// The settings of the switch. Keep-alives are frequent, so that the end of a login is noticed soon.
const CONFIG: SwitchConfig = SwitchConfig {
    mac: MacAddress([0x02, 0xfc, 0, 0, 0, 1]),
    priority: 128,
    period: Duration::from_secs(2),
    vlan: None,
    links: 2,
};

/// Something that the switch does when it is told to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    /// Forgets all logins.
    Restart,
    /// Ends all logins by Clear Virtual Links.
    Clear,
}

/// The switch, its clock, and its links: the own socket and that of the station.
struct State {
    switch: Mutex<Switch>,
    begin: Clock,
    links: [(UnixDatagram, PathBuf); 2],
    ended: AtomicBool,
}

/// A switch, until it is dropped.
pub(crate) struct FcoeSwitch {
    state: Arc<State>,
    threads: Vec<JoinHandle<()>>,
}

impl FcoeSwitch {
    /// Starts a switch with two links.
    pub(crate) fn start(ends: [RelayEnd; 2]) -> Result<Self> {
        let [one, other] = ends.map(|end| socket(&end.own).map(|socket| (socket, end.station)));
        let (switch, ended) = (Mutex::new(Switch::new(CONFIG)), AtomicBool::default());
        let state = Arc::new(State { switch, begin: Clock::now(), links: [one?, other?], ended });
        let serve = |link| {
            let state = state.clone();
            std::thread::spawn(move || state.serve(link))
        };
        let threads = [0, 1].map(serve).into();
        Ok(Self { state, threads })
    }

    /// Makes something happen.
    pub(crate) fn make(&self, event: Event) {
        let mut switch = self.state.switch();
        match event {
            Event::Restart => switch.restart(),
            Event::Clear => switch.clear_all(),
        }
        self.state.send(&mut switch);
    }

    /// The number of frames between ports.
    pub(crate) fn forwarded(&self) -> u64 {
        self.state.switch().counts.forwarded
    }
}

impl Drop for FcoeSwitch {
    fn drop(&mut self) {
        self.state.ended.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A thread that panicked has printed why.
            let _ = thread.join();
        }
    }
}

impl State {
    fn switch(&self) -> MutexGuard<'_, Switch> {
        // A panic of the other thread ends the test.
        self.switch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Instant {
        Instant::default() + self.begin.elapsed()
    }

    /// Sends what the switch has to send. A station may not be there yet, or its queue may be full: then frames are
    /// lost.
    fn send(&self, switch: &mut Switch) {
        while let Some((link, frame)) = switch.next_frame() {
            let (socket, station) = &self.links[link];
            drop(socket.send_to(&frame, station));
        }
    }

    /// Serves a link.
    fn serve(&self, link: usize) {
        let mut frame = vec![0; FRAME_MAX];
        while !self.ended.load(Ordering::Relaxed) {
            let received = self.links[link].0.recv(&mut frame);
            let (mut switch, now) = (self.switch(), self.now());
            if let Ok(len) = received {
                switch.receive(link, &frame[..len], now);
            }
            switch.tick(now);
            self.send(&mut switch);
        }
    }
}
