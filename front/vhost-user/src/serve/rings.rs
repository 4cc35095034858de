//! The rings of a device and their notifications, for all kinds of devices.

use crate::ring::{Broken, Chain};
use crate::session::{RingEvent, RingIndex};
use crate::virtio::VirtioDevice;
use lunar_core::mem::Arena;
use lunar_guest::faults::Faults;
use lunar_guest::memory::LossWatch;
use lunar_guest::poll::{Arming, Backoff, PollSchedule, Rings};
use lunar_reactor::Reactor;
use lunar_reactor::end::End;
use lunar_reactor::log;
use lunar_reactor::shared::{is_lost, losses};
use lunar_reactor::unix::{Kick, Signal, Stream};
use std::cell::{Cell, Ref, RefCell};
use std::rc::{Rc, Weak};
use std::time::Duration;

/// Looks in vain before the guest is asked to notify: some hundred microseconds, after which one more exit of the guest
/// does not show.
const MISSES_MAX: u32 = 1000;
/// Pauses between looks at rings whose front-end does not notify, while the core sleeps. A hundred looks a second, at
/// the longest pause, take a thousandth of a core.
const LOOK_SOONEST: Duration = Duration::from_micros(50);
const LOOK_LATEST: Duration = Duration::from_millis(10);
/// Delay before a notification is repeated whose eventfd was full.
const SIGNAL_AGAIN: Duration = Duration::from_millis(1);

/// The eventfds of a ring.
#[derive(Default)]
struct Events {
    kick: Option<Rc<Kick>>,
    call: Option<Signal>,
    error: Option<Signal>,
    /// The front-end does not notify: the ring is polled.
    is_polled: bool,
}

/// The rings of a device, while its front-end is connected.
pub(super) struct DeviceRings {
    me: Weak<Self>,
    pub(super) reactor: Reactor,
    name: String,
    state: RefCell<VirtioDevice>,
    events: RefCell<Vec<Events>>,
    /// The channel for messages to the front-end.
    pub(super) channel: RefCell<Option<Stream>>,
    /// Slots that carry out requests of the device.
    pub(super) admitted: Cell<usize>,
    pub(super) schedule: PollSchedule,
    /// Whether the guest was asked to notify.
    pub(super) is_armed: Cell<bool>,
    /// Whether a task looks at rings whose front-end does not notify.
    is_polled: Cell<bool>,
    /// Whether a task repeats notifications.
    is_repeating: Cell<bool>,
    losses: LossWatch,
    faults: Faults,
    /// The log tells nothing of this connection.
    pub(super) is_silent: Cell<bool>,
    /// The front-end has disconnected.
    pub(super) over: End,
    /// The device has failed by a panic: its front-end is disconnected.
    pub(super) failed: End,
}

impl DeviceRings {
    pub(super) fn new(reactor: &Reactor, name: &str, state: VirtioDevice) -> Rc<Self> {
        let rings = state.count();
        Rc::new_cyclic(|me| Self {
            me: me.clone(),
            reactor: reactor.clone(),
            name: name.to_owned(),
            state: RefCell::new(state),
            events: RefCell::new((0..rings).map(|_| Events::default()).collect()),
            channel: RefCell::default(),
            admitted: Cell::new(0),
            schedule: PollSchedule::new(MISSES_MAX),
            is_armed: Cell::new(true),
            is_polled: Cell::new(false),
            is_repeating: Cell::new(false),
            losses: LossWatch::new(losses()),
            faults: Faults::default(),
            is_silent: Cell::new(false),
            over: End::default(),
            failed: End::default(),
        })
    }

    pub(super) fn me(&self) -> &Weak<Self> {
        &self.me
    }

    pub(super) fn state(&self) -> Ref<'_, VirtioDevice> {
        self.state.borrow()
    }

    /// Changes the state.
    pub(super) fn with<T>(&self, what: impl FnOnce(&mut VirtioDevice) -> T) -> T {
        what(&mut self.state.borrow_mut())
    }

    pub(super) fn arena(&self) -> &Arena {
        self.reactor.arena()
    }

    pub(super) fn log(&self, what: &str) {
        if !self.is_silent.get() {
            log!("vhost {}: {what}", self.name);
        }
    }

    /// Logs a fault of the front-end or of its guest, unless there have been many.
    pub(super) fn log_fault(&self, what: &str) {
        self.faults.lines(what).for_each(|line| self.log(line));
    }

    /// Whether no request is in progress. After a failure, requests that are in no slot were lost with it.
    pub(super) fn is_quiet(&self) -> bool {
        self.state().is_idle() || self.failed.has_come() && self.admitted.get() == 0
    }

    /// No chain is taken any more, and the front-end is disconnected: a panic has ended the work at the rings.
    pub(super) fn fail(&self) {
        // A second panic would end the core.
        if let Ok(mut state) = self.state.try_borrow_mut() {
            state.pause_all();
        }
        self.failed.come();
    }

    /// The next turn looks at the rings.
    pub(super) fn wake(&self) {
        self.schedule.wake();
    }

    pub(super) fn set_channel(&self, channel: Stream) {
        self.channel.replace(Some(channel));
    }

    /// Sets or removes an eventfd of a ring that the device has.
    pub(super) fn set_signal(&self, event: RingEvent, ring: RingIndex, signal: Option<Signal>) {
        let mut events = self.events.borrow_mut();
        let Some(events) = events.get_mut(ring.at()) else { return };
        if event == RingEvent::Error {
            events.error = signal;
            return;
        }
        events.call = signal;
        // A notification of the previous descriptor may have been missed.
        self.with(|state| state.signal_again(ring));
        self.wake();
    }

    /// Sets the eventfd that the front-end signals; without one, the ring is polled.
    pub(super) fn set_kick(&self, ring: RingIndex, kick: Option<Kick>) {
        let kick = kick.map(Rc::new);
        self.end_kick(ring);
        if let Some(events) = self.events.borrow_mut().get_mut(ring.at()) {
            events.kick = kick.clone();
            events.is_polled = kick.is_none();
        }
        match (kick, self.me.upgrade()) {
            (Some(kick), Some(device)) => self.reactor.spawn(async move { device.listen(ring, kick).await }),
            (None, Some(device)) if !self.is_polled.replace(true) => {
                self.reactor.spawn(async move { device.poll().await });
            }
            _ => {}
        }
        self.wake();
    }

    /// Ends the wait for the front-end's signals of a ring.
    pub(super) fn end_kick(&self, ring: RingIndex) {
        let mut events = self.events.borrow_mut();
        let Some(events) = events.get_mut(ring.at()) else { return };
        events.is_polled = false;
        let kick = events.kick.take();
        kick.iter().for_each(|kick| kick.cancel());
    }

    async fn listen(&self, ring: RingIndex, kick: Rc<Kick>) {
        let is_current = || {
            let events = self.events.borrow();
            events.get(ring.at()).and_then(|events| events.kick.as_ref()).is_some_and(|own| Rc::ptr_eq(own, &kick))
        };
        while is_current() && kick.signalled().await.is_ok() {
            self.wake();
        }
    }

    /// Looks at rings whose front-end does not notify, as long as there are any.
    async fn poll(&self) {
        let mut backoff = Backoff::new(LOOK_SOONEST, LOOK_LATEST);
        let is_needed = || self.events.borrow().iter().any(|events| events.is_polled);
        while !self.over.has_come() && is_needed() {
            let pause = backoff.next(self.schedule.has_work(self));
            self.reactor.sleep(pause).await;
        }
        self.is_polled.set(false);
    }

    pub(super) fn report_broken(&self, ring: RingIndex, why: &Broken) {
        self.log_fault(&format!("ring {} is broken ({why:?}): the driver of the guest is defective", ring.at()));
        self.tell_error(ring);
    }

    fn tell_error(&self, ring: RingIndex) {
        if let Some(signal) = self.events.borrow().get(ring.at()).and_then(|events| events.error.as_ref()) {
            // A signal that is in progress tells the same.
            let _ = signal.ring();
        }
    }

    /// A chain is no request, or cannot be answered: its ring ends.
    pub(super) fn break_down(&self, ring: RingIndex, why: &str) {
        self.with(|state| state.break_down(ring));
        self.log_fault(&format!("ring {} is broken: {why}", ring.at()));
        self.tell_error(ring);
    }

    /// A request is not answered.
    pub(super) fn forget(&self, ring: RingIndex) {
        self.with(|state| state.forget(ring));
    }

    /// Returns a chain, of which `len` bytes were written.
    pub(super) fn put_back(&self, ring: RingIndex, chain: &Chain, len: u64) {
        // No chain is longer than its descriptors can say, which is more than 32 bits for a hostile guest only.
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        if self.losses.is_new(losses()) {
            self.look_for_losses();
        }
        let is_log_short = self.with(|state| {
            state.put_back(ring, (chain.id, chain.entries), len);
            state.memory.is_log_short()
        });
        if is_log_short {
            self.log_fault(
                "written guest memory is not in the log of its front-end, which is too short or read-only: the device \
                 has failed, because a migration would lose data; the front-end is defective",
            );
            self.stop_all();
        }
        self.wake();
    }

    /// Ends all rings if memory of the guest is lost.
    fn look_for_losses(&self) {
        if is_lost(self.state().memory.regions()) {
            self.log_fault("guest memory is truncated, out of space or broken: the device has failed");
            self.stop_all();
        }
    }

    fn stop_all(&self) {
        self.with(|state| {
            state.all().for_each(|ring| _ = state.stop(ring));
        });
    }

    /// Notifies the driver of what was returned.
    pub(super) fn signal(&self) {
        let events = self.events.borrow();
        let all = self.with(|state| {
            state.signal(|ring| {
                let call = events.get(ring.at()).and_then(|events| events.call.as_ref());
                call.is_none_or(Signal::ring)
            })
        });
        drop(events);
        if !all {
            self.signal_again_later();
        }
    }

    fn signal_again_later(&self) {
        let Some(device) = self.me.upgrade().filter(|_| !self.is_repeating.replace(true)) else { return };
        self.reactor.spawn(async move {
            device.reactor.sleep(SIGNAL_AGAIN).await;
            device.is_repeating.set(false);
            device.wake();
        });
    }

    /// Whether each active ring has a descriptor that the front-end signals.
    fn is_notified(&self) -> bool {
        let events = self.events.borrow();
        self.state().active().iter().all(|ring| events[ring.at()].kick.is_some())
    }

    /// Forgets everything of the front-end, which has disconnected.
    pub(super) fn clear(&self) {
        self.events.borrow_mut().clear();
        self.channel.take();
        self.state.replace(VirtioDevice::new(0, 0));
    }
}

impl Rings for DeviceRings {
    #[inline]
    fn has_work(&self) -> bool {
        self.state().has_work()
    }

    fn arm(&self) -> Arming {
        self.is_armed.set(true);
        match self.state().arm() {
            false => Arming::Work,
            true if self.is_notified() => Arming::Armed,
            true => Arming::Unnotified,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::started;
    use crate::wire::feature;
    use lunar_core::mem::Region;
    use lunar_reactor::{Choice, Config};
    use rustix::event::{EventfdFlags, eventfd};

    fn reactor() -> Reactor {
        Reactor::new(Config { driver: Choice::Epoll, ..Config::default() }).expect("a driver")
    }

    #[test]
    fn a_device_fails_when_a_write_has_no_bit_in_the_log() {
        for (data, is_short) in [(0x4000, false), (0x9000, true)] {
            let (mut device, mut driver) = started(0, 8);
            let ring = RingIndex::from(0);
            // The bits of eight pages.
            device.set_log(&Region::zeroed(1));
            device.set_features(device.features() | feature::LOG_ALL).expect("the layout of the rings stays");
            driver.offer(&[(data, 16, true)], false).expect("there is room");
            let rings = DeviceRings::new(&reactor(), "test", device);
            let chain = rings.with(|state| state.take(ring)).expect("good").expect("one");
            assert!(rings.state().memory.write(data, b"data"));
            rings.put_back(ring, &chain, 4);
            assert_eq!(rings.state().is_started(ring), !is_short);
        }
    }

    #[test]
    fn rings_are_polled_only_while_their_front_end_does_not_notify() {
        let reactor = reactor();
        let (rings, ring) = (DeviceRings::new(&reactor, "test", started(0, 8).0), RingIndex::from(0));
        let pause = LOOK_LATEST * 3;
        reactor.run(async {
            for _ in 0..2 {
                rings.set_kick(ring, None);
                reactor.sleep(pause).await;
                assert!(rings.is_polled.get());
                let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd");
                rings.set_kick(ring, Some(Kick::new(&reactor, event).expect("an eventfd")));
                reactor.sleep(pause).await;
                assert!(!rings.is_polled.get(), "the task has ended");
            }
            rings.set_kick(ring, None);
            rings.end_kick(ring);
            reactor.sleep(pause).await;
            assert!(!rings.is_polled.get(), "the ring was stopped");
        });
    }
}
