//! A port on its device: events of the connection manager, and completions.
//!
//! While the core is awake, it takes completions in each turn, without a system call. Before it sleeps, the device is
//! asked to report the next completion.

use super::connections::{Connections, Item};
use crate::limits::DEVICE_TICK;
use crate::provider::Upper;
use crate::work::Work;
use lunar_core::io::Completion;
use lunar_core::step::yield_once;
use lunar_reactor::end::End;
use lunar_reactor::op::{Handle, Op};
use lunar_reactor::watch::Watch;
use lunar_reactor::{Reactor, log};
use lunar_verbs::error::DeviceError;
use lunar_verbs::library::device::{CompletionChannel, Device};
use lunar_verbs::library::manager::{Event as ManagerEvent, EventChannel, Identifier};
use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::rc::{Rc, Weak};
use std::sync::Arc;

/// Opens a listener at an address of a device, on any thread; `device` is the name of the device, if it has to be a
/// certain one. Requests that come before the listener is attached wait.
pub(crate) fn open(at: SocketAddr, device: Option<&str>) -> Result<Identifier, DeviceError> {
    let listener = Identifier::bind(&EventChannel::open()?, at)?;
    let name = listener.device_name();
    if let Some(wanted) = device.filter(|wanted| *wanted != name) {
        return Err(DeviceError::OtherDevice(at.ip(), name, wanted.to_owned()));
    }
    listener.listen(at)?;
    Ok(listener)
}

/// A port on its device.
pub(crate) struct DevicePort {
    reactor: Reactor,
    upper: Weak<dyn Upper>,
    pub(crate) connections: RefCell<Connections>,
    listener: Rc<Identifier>,
    channel: Arc<EventChannel>,
    completions: Rc<CompletionChannel>,
    /// The descriptors of both channels.
    events: Handle,
    reports: Handle,
    /// Items are being passed on.
    is_reporting: Cell<bool>,
    work: Work,
    closed: End,
}

impl DevicePort {
    /// Attaches a listener to a core. `seed` are random bits.
    pub(crate) fn attach(
        reactor: &Reactor,
        listener: Identifier,
        seed: u64,
        upper: Weak<dyn Upper>,
    ) -> io::Result<Rc<Self>> {
        let listener = Rc::new(listener);
        let device = Device::open(&listener, reactor.arena())?;
        let completions = CompletionChannel::open(&device)?;
        let channel = listener.channel().clone();
        // The library keeps the descriptors: the driver has copies.
        let copy = |fd: BorrowedFd<'_>| reactor.driver().adopt(fd.try_clone_to_owned()?);
        let (events, reports) = (copy(channel.fd())?, copy(completions.fd())?);
        let port = Rc::new(Self {
            reactor: reactor.clone(),
            upper,
            connections: RefCell::new(Connections::new(&device, &completions, seed)),
            listener,
            channel,
            completions,
            events,
            reports,
            is_reporting: Cell::default(),
            work: Work::default(),
            closed: End::default(),
        });
        let watch: Rc<dyn Watch> = port.clone();
        reactor.watch(&watch);
        let (manager, completer, driven) = (port.clone(), port.clone(), port.clone());
        reactor.spawn(async move { manager.manage().await });
        reactor.spawn(async move { completer.complete().await });
        reactor.spawn(async move { driven.drive().await });
        Ok(port)
    }

    fn fail(&self) {
        if !self.closed.has_come()
            && let Some(upper) = self.upper.upgrade()
        {
            upper.failed();
        }
    }

    /// There may be work to post.
    pub(crate) fn wake(&self) {
        self.work.wake();
    }

    /// Waits until a channel has something; returns whether it is still there.
    async fn until_ready(&self, handle: &Handle, completion: &mut Completion) -> bool {
        self.reactor.submit(Op::Ready { file: handle.clone(), to_write: false }, completion.token());
        let outcome = self.closed.unless(completion.wait()).await;
        outcome.is_some_and(|outcome| outcome.result.is_ok())
    }

    /// Takes events of the connection manager.
    async fn manage(self: Rc<Self>) {
        let mut completion = Completion::new();
        while self.until_ready(&self.events, &mut completion).await {
            loop {
                let event = match self.channel.next() {
                    Ok(Some(event)) => event,
                    Ok(None) => break,
                    Err(_) => return self.fail(),
                };
                if matches!(event, ManagerEvent::AddressChanged(key) if key == self.listener.key()) {
                    log!(error, "an address has left the RDMA device {}", self.listener.device_name());
                    return self.fail();
                }
                let is_there = self.connections.borrow_mut().manage(event, self.reactor.now());
                if !is_there {
                    log!(error, "the RDMA device {} is removed", self.listener.device_name());
                    return self.fail();
                }
                self.report();
                // The time for an answer to a request begins.
                self.wake();
                // A peer that connects again and again must not keep the core from its other tasks.
                yield_once().await;
            }
        }
        self.fail();
    }

    /// Takes reports of completions.
    async fn complete(self: Rc<Self>) {
        let mut completion = Completion::new();
        while self.until_ready(&self.reports, &mut completion).await {
            loop {
                match self.completions.next() {
                    Ok(Some(number)) => self.connections.borrow_mut().disarm(number),
                    Ok(None) => break,
                    Err(_) => return self.fail(),
                }
            }
            self.take();
        }
        self.fail();
    }

    /// Takes completions, which wait for [`DevicePort::report`]; returns whether any wait.
    fn find(&self) -> bool {
        let mut connections = self.connections.borrow_mut();
        if !connections.poll(self.reactor.now()) {
            return connections.has_items();
        }
        let (traffic, stats) = (connections.take_traffic(), self.reactor.stats());
        stats.receives.add(traffic.receives);
        stats.received_bytes.add(traffic.received_bytes);
        stats.sends.add(traffic.sends);
        stats.sent_bytes.add(traffic.sent_bytes);
        true
    }

    /// Takes completions and passes them on; returns whether there were any.
    fn take(&self) -> bool {
        let has_some = self.find();
        if has_some {
            self.report();
            self.wake();
        }
        has_some
    }

    /// Passes messages and events on, in their order.
    fn report(&self) {
        if self.is_reporting.replace(true) {
            return;
        }
        loop {
            let item = self.connections.borrow_mut().poll_item();
            let (Some(item), Some(upper)) = (item, self.upper.upgrade()) else { break };
            match item {
                Item::Message(id, received) => {
                    upper.message(id, &received);
                    self.connections.borrow_mut().recycle(id, received);
                }
                Item::Event(event) => upper.event(event),
            }
        }
        self.is_reporting.set(false);
    }

    /// Posts work and looks at timers, until the port is closed.
    async fn drive(self: Rc<Self>) {
        let mut next_tick = None;
        while !self.closed.has_come() {
            self.work.begin();
            let now = self.reactor.now();
            self.connections.borrow_mut().pump(now);
            self.report();
            let is_empty = self.connections.borrow().is_empty();
            let at = if is_empty { None } else { Some(next_tick.unwrap_or(now + DEVICE_TICK)) };
            next_tick = at;
            self.work.until(&self.reactor, at, &self.closed).await;
            let now = self.reactor.now();
            if next_tick.is_some_and(|at| at <= now) {
                next_tick = None;
                self.connections.borrow_mut().tick(now);
                self.report();
            }
        }
    }

    /// Ends all connections, and closes the channels.
    pub(crate) fn close(&self) {
        self.closed.come();
        self.connections.borrow_mut().end_all(self.reactor.now());
        self.reactor.driver().cancel(&self.events);
        self.reactor.driver().cancel(&self.reports);
        self.wake();
    }
}

impl Watch for DevicePort {
    fn wants_poll(&self) -> bool {
        // Completions that are found wait for the look.
        !self.closed.has_come() && self.find()
    }

    fn look(&self) -> bool {
        !self.closed.has_come() && self.take()
    }

    fn prepare_sleep(&self) -> bool {
        if self.closed.has_come() {
            return true;
        }
        self.connections.borrow_mut().arm(self.reactor.now());
        // A completion that has come before is not reported by the device.
        !self.take()
    }
}
