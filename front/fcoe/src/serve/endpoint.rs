//! A port on its link: takes frames, and sends others.

use super::FcoePorts;
use super::core::Core;
use super::exchange_port::ExchangePort;
use super::fcp::FcpTarget;
use super::outbox::Outbox;
use crate::directory::PortView;
use crate::limits::{LINK_QUEUE, REFUSALS_MAX};
use crate::port::discovery::Identity;
use crate::port::exchange::{ExchangeKey, Requested};
use crate::port::fabric::FabricNews;
use crate::port::login::{LoginEvent, Logins, Output};
use crate::port::{PortEvent, Route, VnPort};
use crate::schema::{Mode, WORD};
use crate::wire::fcp::ResponseBytes;
use crate::wire::fip::{self, Functions};
use crate::wire::frame::{Control, ETHER_TYPE, FRONT_LEN, Header, payload_of, wrap};
use crate::wire::names::{PortId, Wwn};
use lunar_core::access::refusal::RefusalCode;
use lunar_core::mem::{Sg, SgMut};
use lunar_core::shares::Share;
use lunar_engine::link_ports::PortEndpoint;
use lunar_link::{Filter, Frame, HEADER_LEN, Link, LinkConfig, MacAddress, OpenedLink, Rate};
use lunar_reactor::end::End;
use lunar_reactor::log;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;
use zerocopy::IntoBytes;

/// The period of the rate of reported refusals.
const MINUTE: Duration = Duration::from_secs(60);

/// A port on its link.
pub struct Endpoint {
    /// Itself, for its exchanges and tasks.
    me: Weak<Self>,
    core: Rc<Core>,
    config: LinkConfig,
    link: RefCell<Rc<Link>>,
    fcp: Rc<FcpTarget>,
    /// `None` until a configuration is published: frames are ignored.
    view: RefCell<Option<Rc<PortView>>>,
    port: RefCell<Option<VnPort>>,
    outbox: RefCell<Outbox>,
    /// The addresses that the link receives: that of the port, and that of a group.
    listening: Cell<Option<MacAddress>>,
    group: Cell<Option<MacAddress>>,
    refusals: RefCell<Rate>,
    /// Memory for the results of calls.
    output: Cell<Output>,
    /// The task that does what is due.
    timer: Cell<Option<Waker>>,
    closed: End,
}

impl Endpoint {
    fn link(&self) -> Rc<Link> {
        self.link.borrow().clone()
    }

    fn as_port(&self) -> Rc<dyn ExchangePort> {
        self.me.upgrade().expect("an endpoint is used through an Rc only")
    }

    /// Takes frames until the end. A link that fails, for instance because its interface was removed, is opened again.
    async fn receive(self: Rc<Self>) {
        let name = self.config.address.to_string();
        while !self.closed.has_come() {
            let link = self.link();
            let Err(why) = link.receive(|frame| self.take(&frame), || ()).await else { return };
            link.close();
            let trouble = format!("link {name} of an FCoE port has failed, and is opened again: {why:?}");
            log!(error, "{trouble}");
            self.report(Some(trouble));
            let (reactor, closed) = (self.core.reactor(), &self.closed);
            let attach = |opened| Link::attach(reactor, opened);
            let again = self.core.common.open_again(&self.config, (reactor, closed), attach).await;
            let Some(link) = again else { return };
            self.link.replace(link);
            self.report(None);
            log!("link {name} of an FCoE port is open again");
            // The interface may be another one, with another address.
            self.restart();
        }
    }

    fn report(&self, trouble: Option<String>) {
        if let Some(view) = &*self.view.borrow() {
            self.core.common.set_trouble(&view.name, trouble);
        }
    }

    /// Sends the frames of exchanges, as the link takes them.
    async fn send_queued(&self) {
        let next = || poll_fn(|cx| self.outbox.borrow_mut().next(cx.waker()).map_or(Poll::Pending, Poll::Ready));
        while let Some(frame) = self.closed.unless(next()).await {
            let link = self.link();
            if !link.is_below(LINK_QUEUE) {
                link.until_below(LINK_QUEUE).await;
            }
            link.send(frame);
        }
    }

    /// Does what is due.
    async fn run_timer(self: Rc<Self>) {
        while !self.closed.has_come() {
            let deadline = self.port.borrow().as_ref().map(|port| port.logins().deadline());
            let changed = poll_fn(|cx| {
                // A deadline that has become earlier wakes the task.
                let is_new = self.port.borrow().as_ref().map(|port| port.logins().deadline()) != deadline;
                self.timer.set(Some(cx.waker().clone()));
                if is_new { Poll::Ready(()) } else { Poll::Pending }
            });
            let due = async {
                match deadline {
                    Some(deadline) => {
                        let mut changed = std::pin::pin!(changed);
                        let mut due = std::pin::pin!(self.core.reactor().sleep_until(deadline));
                        poll_fn(|cx| match changed.as_mut().poll(cx) {
                            Poll::Ready(()) => Poll::Ready(()),
                            Poll::Pending => due.as_mut().poll(cx),
                        })
                        .await;
                    }
                    None => changed.await,
                }
            };
            if self.closed.unless(due).await.is_none() {
                return;
            }
            let now = self.core.reactor().now();
            self.with(|port, admits, out| port.tick(now, admits, out));
        }
    }

    /// Begins with the names of the configuration: probes for an identifier, or looks for a switch.
    fn restart(&self) {
        let Some(view) = self.view.borrow().clone() else { return };
        let link = self.link();
        let own = Identity {
            station: link.mac(),
            node: view.names.1,
            name: view.names.0,
            functions: Functions { target: true, initiator: false },
            payload: payload_of(link.mtu()),
        };
        let mut seed = [0; 8];
        // Without a source of randomness the name is a seed that others do not have.
        self.core.common.shared.host.random(&mut seed);
        let (seed, now) = (u64::from_be_bytes(seed) ^ view.names.0.0, self.core.reactor().now());
        let logins = match view.mode {
            Mode::Vn2vn => Logins::new(own, seed, now),
            Mode::Fabric => Logins::in_fabric(own, self.config.vlan.is_some(), seed, now),
        };
        let group = logins.network().group();
        self.port.replace(Some(VnPort::new(logins)));
        self.listen(&self.listening, Filter::Unicast, None);
        self.listen(&self.group, Filter::Group, Some(group));
        for initiator in self.fcp.initiators() {
            self.fcp.logout(&self.as_port(), initiator.peer);
        }
        self.wake_timer();
    }

    /// Receives frames to this address from now on, instead of the one before.
    fn listen(
        &self,
        listening: &Cell<Option<MacAddress>>,
        filter: fn(MacAddress) -> Filter,
        address: Option<MacAddress>,
    ) {
        let link = self.link();
        let before = listening.replace(address).map(|address| (address, false));
        for (address, is_wanted) in before.into_iter().chain(address.map(|address| (address, true))) {
            if let Err(why) = link.set_filter(filter(address), is_wanted) {
                log!(error, "fcoe: {} does not take the address {address}: {why}", self.config.address);
            }
        }
    }

    fn wake_timer(&self) {
        self.timer.take().into_iter().for_each(Waker::wake);
    }

    /// Uses the port, then sends its frames and follows its events.
    fn with<T: Default>(&self, call: impl FnOnce(&mut VnPort, &dyn Fn(Wwn) -> bool, &mut Output) -> T) -> T {
        let Some(view) = self.view.borrow().clone() else { return T::default() };
        let mut out = self.output.take();
        let admits = |name: Wwn| !self.core.draining.has_come() && view.view_of(name).is_some();
        let (result, deadlines) = match &mut *self.port.borrow_mut() {
            Some(port) => {
                let before = port.logins().deadline();
                (call(port, &admits, &mut out), Some((before, port.logins().deadline())))
            }
            None => (T::default(), None),
        };
        let link = self.link();
        for frame in out.frames.drain(..) {
            // Without memory it is lost, as frames may be.
            if let Some(bytes) = self.core.reactor().arena().copy(&frame.bytes()) {
                link.send(bytes.into());
            }
        }
        if deadlines.is_some_and(|(before, after)| after < before) {
            self.wake_timer();
        }
        let events = std::mem::take(&mut out.events);
        self.output.set(out);
        events.into_iter().for_each(|event| self.follow(event, &view));
        result
    }

    fn follow(&self, event: LoginEvent, view: &PortView) {
        match event {
            LoginEvent::Up(id) => {
                let address = self.port.borrow().as_ref().and_then(|port| port.logins().network().address());
                self.listen(&self.listening, Filter::Unicast, address);
                log!(
                    "fcoe: port {} ({}) has the identifier {id:?} on {}",
                    view.name,
                    view.names.0,
                    self.config.address
                );
            }
            LoginEvent::Ready(id) => {
                let name = self.port.borrow().as_ref().and_then(|port| Some(port.logins().remote(id)?.port.name));
                if let Some(name) = name {
                    let link = self.config.address.to_string();
                    self.fcp.login(&self.as_port(), (id, name), view, &link);
                }
            }
            LoginEvent::Ended(id) => self.fcp.logout(&self.as_port(), id),
            LoginEvent::Refused(name) => self.refuse(name, view),
            LoginEvent::Fabric(news) => self.tell(news, view),
        }
    }

    /// Tells operators of the login at the fabric.
    fn tell(&self, news: FabricNews, view: &PortView) {
        let (port, link) = (&view.name, &self.config.address);
        let trouble = match news {
            FabricNews::Attached(switch) => {
                log!("fcoe: port {port} ({}) has logged in at the switch {switch} on {link}", view.names.0);
                return self.report(None);
            }
            FabricNews::NoSwitch => {
                let vlan =
                    if self.config.vlan.is_some() { "the key vlan" } else { "the cable, and FCoE in the switch" };
                format!("FCoE port {port}: no switch (FCF) answers on {link}: check {vlan}")
            }
            FabricNews::OtherVlan(vlan) => {
                format!("FCoE port {port}: the switch on {link} serves VLAN {vlan}: set vlan = {vlan} in [fcoe.{port}]")
            }
            FabricNews::Refused(switch, reason, explanation) => format!(
                "FCoE port {port}: the switch {switch} refuses the login (reason {reason:02x}h, explanation \
                 {explanation:02x}h): check that it expects {} on this interface",
                view.names.0
            ),
            FabricNews::Silent(switch) => {
                format!("FCoE port {port}: the switch {switch} does not answer logins, or its name server does not")
            }
            FabricNews::Lost(switch) => {
                format!("FCoE port {port}: the switch {switch} on {link} is gone, or has ended the login: trying again")
            }
        };
        log!(error, "{trouble}");
        self.report(Some(trouble));
    }

    /// An initiator belongs to no group.
    fn refuse(&self, name: Wwn, view: &PortView) {
        if self.core.draining.has_come() {
            return;
        }
        let stats = self.core.reactor().stats();
        stats.logins_refused.add(1);
        let code = RefusalCode::NotShown;
        stats.hosts.refused(WORD, code.word(), &view.target, &name.to_string());
        if self.refusals.borrow_mut().admit(self.link.borrow().mac(), self.core.reactor().now()) {
            let words = format!("initiator {name} belongs to no group of target {}: it cannot log in", view.target);
            self.core.common.notify(&name, Some((code, &view.target)), &words);
        }
    }

    /// Takes a frame.
    fn take(&self, frame: &Frame) {
        let (to, source, now) = (frame.header.destination, frame.header.source, self.core.reactor().now());
        let message = (source, &frame.payload[..]);
        if frame.header.ether_type == fip::ETHER_TYPE {
            let is_fabric = self.view.borrow().as_ref().is_some_and(|view| view.mode == Mode::Fabric);
            // A switch may use the address of the port, too.
            let own = self.listening.get().filter(|_| is_fabric);
            if [Some(self.link.borrow().mac()), self.group.get(), own].contains(&Some(to)) {
                self.with(|port, admits, out| port.receive_fip(message, now, admits, out));
            }
            return;
        }
        let is_ours = |port: &VnPort| port.logins().network().address() == Some(to);
        if !self.port.borrow().as_ref().is_some_and(is_ours) {
            return;
        }
        let event = self.with(|port, admits, out| port.receive(message, now, admits, out));
        let port = || self.as_port();
        match event {
            Some(PortEvent::Command(command)) => self.fcp.command(&port(), &command),
            Some(PortEvent::Data(key)) => self.fcp.data(key),
            Some(PortEvent::Abort(key)) => self.fcp.abort(&port(), key, true),
            Some(PortEvent::Replaced(key)) => self.fcp.abort(&port(), key, false),
            None => {}
        }
    }

    /// A frame with a payload that is in these pieces.
    fn frame(&self, (route, header): (Route, Header), payload: Sg) -> Option<Sg> {
        let wrapping = wrap(header, payload.pieces().iter().map(|piece| &piece[..]));
        let ethernet = route.header(ETHER_TYPE);
        let mut front = self.core.chunk(&[&ethernet, &wrapping.front, wrapping.back()])?;
        let mut frame: Sg = front.split_to(HEADER_LEN + FRONT_LEN).into();
        frame.reserve(payload.pieces().len() + 1);
        frame.append(payload);
        frame.push(front);
        Some(frame)
    }

    /// A frame with a short payload.
    fn short_frame(&self, (route, header): (Route, Header), payload: &[u8]) -> Option<Sg> {
        let wrapping = wrap(header, std::iter::once(payload));
        let ethernet = route.header(ETHER_TYPE);
        self.core.chunk(&[&ethernet, &wrapping.front, payload, wrapping.back()]).map(Sg::from)
    }

    /// Queues a frame of an exchange. Without memory it is lost, as frames may be.
    fn queue(&self, peer: PortId, frame: Option<Sg>) {
        let Some(frame) = frame else { return };
        let rest = self.outbox.borrow_mut().push(peer, frame);
        if let Some(frame) = rest {
            self.link.borrow().send(frame);
        }
    }

    fn port_mut<T>(&self, call: impl FnOnce(&mut VnPort) -> Option<T>) -> Option<T> {
        call(self.port.borrow_mut().as_mut()?)
    }
}

impl PortEndpoint<FcoePorts> for Endpoint {
    fn start(core: &Rc<Core>, config: LinkConfig, opened: OpenedLink) -> std::io::Result<Rc<Self>> {
        let link = Link::attach(core.reactor(), opened)?;
        let endpoint = Rc::new_cyclic(|me: &Weak<Self>| Self {
            me: me.clone(),
            core: core.clone(),
            config,
            link: RefCell::new(link),
            fcp: FcpTarget::new(core),
            view: RefCell::default(),
            port: RefCell::default(),
            outbox: RefCell::default(),
            listening: Cell::default(),
            group: Cell::default(),
            refusals: RefCell::new(Rate::new(MINUTE, REFUSALS_MAX, REFUSALS_MAX)),
            output: Cell::default(),
            timer: Cell::default(),
            closed: End::default(),
        });
        let (receiver, sender, timer) = (endpoint.clone(), endpoint.clone(), endpoint.clone());
        core.reactor().spawn(async move { receiver.receive().await });
        core.reactor().spawn(async move { sender.send_queued().await });
        core.reactor().spawn(async move { timer.run_timer().await });
        Ok(endpoint)
    }

    fn publish(&self, view: PortView) {
        let before = self.view.replace(Some(Rc::new(view.clone())));
        if before.is_none_or(|before| before.names != view.names || before.mode != view.mode) {
            self.log_all_out();
            self.report(None);
            return self.restart();
        }
        // Logins of initiators that are in another group, or whose port has another number, begin again.
        for initiator in self.fcp.initiators() {
            let is_same = view.view_of(initiator.name).as_ref() == Some(&initiator.view)
                && initiator.nexus.name.target_port == view.relative;
            if !is_same {
                ExchangePort::log_out(self, initiator.peer);
            }
        }
        let now = self.core.reactor().now();
        self.with(|port, admits, out| port.review(now, admits, out));
    }

    fn initiators(&self) -> usize {
        self.fcp.initiators().len()
    }

    fn in_progress(&self) -> usize {
        let running = self.port.borrow().as_ref().map_or(0, VnPort::running);
        running.max(self.fcp.in_progress())
    }

    async fn review(&self, ended: &BTreeSet<Arc<str>>) {
        for initiator in self.fcp.initiators() {
            if ended.contains(&initiator.view.group) {
                ExchangePort::log_out(self, initiator.peer);
            }
        }
        self.fcp.turns.until_all_ended().await;
    }

    async fn log_out(&self, name: &Wwn) -> bool {
        let initiator = self.fcp.initiators().into_iter().find(|initiator| initiator.name == *name);
        let Some(initiator) = initiator else { return false };
        ExchangePort::log_out(self, initiator.peer);
        self.fcp.turns.until_ended(name).await;
        true
    }

    fn log_all_out(&self) {
        self.fcp.initiators().iter().for_each(|initiator| ExchangePort::log_out(self, initiator.peer));
        // The switch tells initiators that the port is gone.
        let now = self.core.reactor().now();
        self.with(|port, admits, out| port.leave(now, admits, out));
    }

    async fn close(&self) {
        self.fcp.turns.close();
        self.log_all_out();
        self.fcp.turns.until_all_ended().await;
        // The last frames leave with the end of this turn.
        self.core.reactor().sleep(Duration::from_millis(1)).await;
        self.abandon();
    }

    fn abandon(&self) {
        self.closed.come();
        self.fcp.turns.close();
        for initiator in self.fcp.initiators() {
            self.fcp.logout(&self.as_port(), initiator.peer);
        }
        self.port.take();
        self.outbox.borrow_mut().clear();
        self.report(None);
        self.link.borrow().close();
    }
}

impl ExchangePort for Endpoint {
    fn request(&self, key: ExchangeKey, offset: u32, memory: SgMut) -> bool {
        let Some((route, header, ready)) = self.port_mut(|port| port.request(key, offset, memory)) else {
            return false;
        };
        let frame = self.short_frame((route, header), ready.as_bytes());
        if let Some(frame) = frame {
            self.link.borrow().send(frame);
        }
        true
    }

    fn take(&self, key: ExchangeKey) -> Requested {
        self.port_mut(|port| Some(port.take(key))).unwrap_or(Requested::Gone)
    }

    fn send(&self, key: ExchangeKey, offset: u32, mut data: Sg) -> bool {
        let begun = self.port_mut(|port| {
            let (route, header) = port.data_header(key, offset, data.len())?;
            Some((route, header, port.payload(key.peer)))
        });
        let Some((route, mut header, most)) = begun else { return false };
        let mut at = offset;
        while !data.is_empty() {
            let payload = data.split_to(data.len().min(most));
            let len = payload.len();
            header.parameter = at.into();
            if data.is_empty() {
                header.set_control(header.control().and(Control::END));
            }
            self.queue(key.peer, self.frame((route, header), payload));
            header.count = header.count.get().wrapping_add(1).into();
            // Within FCP_DL, which has 32 bits.
            at = at.wrapping_add(len as u32);
        }
        true
    }

    fn respond(&self, key: ExchangeKey, response: &ResponseBytes) {
        let now = self.core.reactor().now();
        if let Some(begun) = self.port_mut(|port| port.respond(key, response, now)) {
            self.queue(key.peer, self.short_frame(begun, response));
        }
    }

    fn refuse(&self, peer: PortId, ox_id: u16, response: &ResponseBytes) {
        if let Some(begun) = self.port_mut(|port| port.refuse(peer, ox_id)) {
            self.queue(peer, self.short_frame(begun, response));
        }
    }

    fn release(&self, key: ExchangeKey) {
        self.port_mut(|port| {
            port.remove(key);
            Some(())
        });
    }

    fn aborted(&self, key: ExchangeKey) {
        if let Some(frame) = self.port_mut(|port| port.aborted(key))
            && let Some(bytes) = self.core.reactor().arena().copy(&frame.bytes())
        {
            self.link.borrow().send(bytes.into());
        }
    }

    fn open(&self, peer: PortId, share: Share) {
        self.outbox.borrow_mut().open(peer, share);
    }

    fn shut(&self, peer: PortId) {
        self.outbox.borrow_mut().shut(peer);
    }

    fn view(&self) -> Option<Rc<PortView>> {
        self.view.borrow().clone().filter(|_| !self.closed.has_come())
    }

    fn log_out(&self, peer: PortId) {
        let now = self.core.reactor().now();
        self.with(|port, _, out| port.log_out(peer, now, out));
    }

    fn queued(&self, peer: PortId) -> usize {
        self.outbox.borrow().queued(peer)
    }

    fn room(&self, peer: PortId) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        Box::pin(poll_fn(move |cx| match self.outbox.borrow_mut().has_room(peer, cx.waker()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }))
    }
}
