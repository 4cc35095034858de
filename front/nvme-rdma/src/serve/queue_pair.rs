//! A connection, which is one queue: its commands and their completions.

use super::PortView;
use super::core::Core;
use super::job::{Half, InCapsule, Job, Request};
use crate::limits::SEND_QUEUE_MAX;
use crate::session::{Action, Arrived, Response, Session};
use crate::wire;
use lunar_core::io::Fault;
use lunar_core::mem::{Chunks, PeerMemory, Sg};
use lunar_core::shares::{Member, Share};
use lunar_nvme::command::FABRICS;
use lunar_nvme::{Queue, Reply, Status, Subsystem};
use lunar_rdma::engine::ConnectionId;
use lunar_rdma::port::Port;
use lunar_rdma::requester::Message;
use lunar_rdma::transfers::Transfers;
use lunar_reactor::end::End;
use lunar_reactor::slots::contain;
use lunar_reactor::{Reactor, log};
use std::cell::{Cell, RefCell};
use std::net::{IpAddr, SocketAddr};
use std::rc::{Rc, Weak};
use zerocopy::IntoBytes;

/// The endpoint of connections.
pub(super) trait Home {
    /// Ends a connection.
    fn disconnect(&self, id: ConnectionId);

    /// How many more connections of the host of this one there is room for.
    fn queues_left(&self, id: ConnectionId) -> usize;

    /// The port in the configuration, and its address.
    fn place(&self) -> Option<(Rc<PortView>, SocketAddr)>;
}

/// A connection.
pub(super) struct QueuePair {
    pub(super) id: ConnectionId,
    pub(super) peer: IpAddr,
    /// The request of the host.
    pub(super) request: wire::Request,
    pub(super) endpoint: Weak<dyn Home>,
    pub(super) core: Rc<Core>,
    pub(super) session: RefCell<Session<InCapsule>>,
    pub(super) queue: RefCell<Option<Rc<Queue>>>,
    /// Data that is read and written.
    pub(super) transfers: Transfers,
    /// Memory for responses.
    chunks: Chunks,
    /// Its shares of the memory of the core.
    pub(super) memory: PeerMemory,
    /// Its shares of the slots, as an I/O queue and as an admin queue, and of the commands that wait for one.
    io_share: Member,
    admin_share: Member,
    waiting_share: Member,
    /// Actions that are being performed.
    actions: Cell<Vec<Action<InCapsule>>>,
    pub(super) closed: End,
}

impl QueuePair {
    pub(super) fn new(
        (id, peer, request): (ConnectionId, IpAddr, wire::Request),
        endpoint: Weak<dyn Home>,
        core: &Rc<Core>,
        port: &Rc<Port>,
    ) -> Rc<Self> {
        let memory = core.reactor().arena().join(peer);
        Rc::new(Self {
            id,
            peer,
            request,
            endpoint,
            core: core.clone(),
            session: RefCell::default(),
            queue: RefCell::default(),
            transfers: Transfers::new(id, port, &memory.outgoing, SEND_QUEUE_MAX),
            chunks: Chunks::default(),
            memory,
            io_share: core.io_shares.join(peer),
            admin_share: core.admin_shares.join(peer),
            waiting_share: core.waiting_shares.join(peer),
            actions: Cell::default(),
            closed: End::default(),
        })
    }

    pub(super) fn reactor(&self) -> &Reactor {
        self.core.reactor()
    }

    pub(super) fn subsystem(&self) -> &Rc<Subsystem> {
        self.core.subsystem()
    }

    /// A message has arrived; returns whether it obeys the protocol.
    pub(super) fn message(self: &Rc<Self>, bytes: &[u8]) -> bool {
        if let Some(queue) = &*self.queue.borrow() {
            queue.controller.restart_keep_alive(self.reactor().now());
        }
        let mut actions = self.actions.take();
        let received = self.session.borrow_mut().receive(bytes, |data| self.keep(data), &mut actions);
        actions.drain(..).for_each(|action| self.perform(action));
        self.actions.set(actions);
        match received {
            Ok(()) => true,
            Err(why) => {
                self.reactor().stats().protocol_errors.add(1);
                self.log(&format!("the host violates the protocol ({why:?}), and is disconnected"));
                false
            }
        }
    }

    /// Memory with the data of a capsule.
    fn keep(&self, data: &[u8]) -> Option<InCapsule> {
        let (mut memory, share) = self.reactor().arena().take_for_peer(&self.memory.unsolicited, data.len(), 0)?;
        memory.copy_from(0, data);
        Some((memory.share(), share))
    }

    fn perform(self: &Rc<Self>, action: Action<InCapsule>) {
        match action {
            Action::Connect(arrived) => self.connect(*arrived),
            Action::Command(arrived) => self.command(arrived),
            Action::Fused(halves) => {
                let Some(queue) = self.queue.borrow().clone() else { return };
                let [first, second] = halves.map(|arrived| Self::half(&queue, arrived));
                self.run(Request { queue, first, second: Some(Box::new(second)) });
            }
            Action::Refused(sqe, status, response) => {
                self.queue.borrow().iter().for_each(|queue| _ = queue.failed(&sqe, status));
                self.send(&response);
            }
            Action::EventReplaced(cid) => {
                self.queue.borrow().iter().for_each(|queue| queue.controller.withdraw_event(cid));
                // It gets no response, with which its receive would be posted again.
                self.transfers.post(1);
            }
        }
    }

    fn half(queue: &Queue, arrived: Arrived<InCapsule>) -> Half {
        let sqe = &arrived.command.sqe;
        Half { task: queue.tasks.enter((sqe.cid.get(), sqe.nsid.get())), arrived }
    }

    fn command(self: &Rc<Self>, arrived: Arrived<InCapsule>) {
        let Some(queue) = self.queue.borrow().clone() else { return };
        if queue.id == 0 {
            self.limit_queues(&queue);
        }
        let half = Self::half(&queue, arrived);
        let mut reply = Reply::default();
        let now = || {
            let arena = self.reactor().arena();
            self.subsystem().execute_now(&queue, half.command(), &half.data_path(self), arena, &mut reply)
        };
        match contain(now) {
            Some(false) => {}
            Some(true) => return self.reply(&queue, &half, &mut reply),
            None => {
                let status = queue.failed(&half.command().sqe, Status::INTERNAL_ERROR);
                return self.reply(&queue, &half, &mut Reply::of(status));
            }
        }
        self.run(Request { queue, first: half, second: None });
    }

    /// Lets the controller grant the I/O queues that there is room for: the command may ask for them.
    fn limit_queues(&self, queue: &Queue) {
        let left = self.endpoint.upgrade().map_or(0, |endpoint| endpoint.queues_left(self.id));
        queue.controller.limit_queues(u16::try_from(left).unwrap_or(u16::MAX));
    }

    /// Writes data into memory of the host; returns whether there is a connection.
    pub(super) fn write(&self, half: &Half, offset: usize, data: Sg) -> Result<bool, Fault> {
        let fits = data.len() <= (half.command().room as usize).saturating_sub(offset);
        let Some(memory) = half.arrived.memory.filter(|_| fits) else { return Err(Fault::Protocol) };
        Ok(self.transfers.write(memory.plus(offset), data))
    }

    /// Answers a command, with the rest of its data.
    pub(super) fn reply(self: &Rc<Self>, queue: &Queue, half: &Half, reply: &mut Reply) {
        if reply.parked {
            return self.session.borrow_mut().park(half.cid());
        }
        let last = std::mem::take(&mut reply.final_data);
        let mut status = reply.status;
        if status == Status::SUCCESS && !last.data.is_empty() && self.write(half, last.offset, last.data).is_err() {
            status = queue.failed(&half.command().sqe, Status::INTERNAL_ERROR);
        }
        self.complete(half.cid(), status, reply.result);
        let sqe = &half.command().sqe;
        if sqe.opcode == FABRICS {
            self.after_fabrics(queue, sqe.fabrics_type(), status);
        }
    }

    /// Completes a command.
    pub(super) fn complete(&self, cid: u16, status: Status, result: u64) {
        let response = self.session.borrow_mut().complete(cid, status, result);
        response.iter().for_each(|response| self.send(response));
    }

    /// Sends a response. The host may send another command when it has acknowledged it.
    pub(super) fn send(&self, response: &Response) {
        let Response { completion, invalidates } = *response;
        match self.chunks.copy(self.reactor().arena(), &[completion.as_bytes()]) {
            Some(data) => {
                self.transfers.send(Message { data: data.into(), posts: 1, share: None, invalidates });
            }
            // A response must not be lost: the host connects again, and repeats what was not answered.
            None => self.transfers.fail(),
        }
    }

    /// Executes a request in a slot, or queues it for one.
    fn run(self: &Rc<Self>, request: Request) {
        let can_run = !request.first.reads() || !self.transfers.is_full();
        let share = if can_run { self.slot_share(&request).take(1) } else { None };
        match share {
            Some(share) => self.start(request.with(self, None, share)),
            None => self.start_later(request),
        }
    }

    fn slot_share(&self, request: &Request) -> &Member {
        if request.queue.id == 0 { &self.admin_share } else { &self.io_share }
    }

    fn start(&self, job: Job) {
        // There are as many slots as shares.
        if let Err(job) = self.core.slots.start(job) {
            self.end_unstarted(&job.request, Status::NOT_READY);
        }
    }

    /// Starts a request when it can run: when its connection has room for what the host reads, and its queue has a
    /// slot. A host that does not read therefore takes no slots.
    fn start_later(self: &Rc<Self>, request: Request) {
        let Some(place) = self.waiting_share.take(1) else {
            self.subsystem().task_set_full(&request.queue, request.first.command());
            return self.end_unstarted(&request, Status::NOT_READY);
        };
        self.reactor().stats().slot_waits.add(1);
        let (pair, arrived) = (self.clone(), Some(self.reactor().now()));
        self.reactor().spawn(async move {
            let share = pair.slot(&request).await;
            drop(place);
            match share {
                Ok(share) => pair.start(request.with(&pair, arrived, share)),
                Err(_) => pair.end_unstarted(&request, Status::ABORTED),
            }
        });
    }

    async fn slot(&self, request: &Request) -> Result<Share, Fault> {
        let task = &request.first.task;
        if request.first.reads() {
            task.unless_aborted(self.transfers.room()).await?;
        }
        let share = task.unless_aborted(self.slot_share(request).wait(1));
        match &request.second {
            Some(second) => second.task.unless_aborted(share).await?,
            None => share.await,
        }
    }

    /// Completes a request that was not started. NVMe has no status for a busy device; hosts retry after this one.
    fn end_unstarted(&self, request: &Request, status: Status) {
        for half in request.halves() {
            let status = request.queue.failed(&half.command().sqe, status);
            self.complete(half.cid(), status, 0);
        }
    }

    /// Whether no command is in progress. Commands that wait for an event are not.
    pub(super) fn is_idle(&self) -> bool {
        self.queue.borrow().as_ref().is_none_or(|queue| queue.tasks.is_empty())
    }

    /// Ends the connection.
    pub(super) fn end(&self) {
        if let Some(endpoint) = self.endpoint.upgrade() {
            endpoint.disconnect(self.id);
        }
    }

    pub(super) fn log(&self, what: &str) {
        match &*self.queue.borrow() {
            Some(queue) => {
                let (controller, peer) = (&queue.controller, self.peer);
                let (host, id) = (controller.host.nqn.escape_debug(), controller.id);
                log!("nvme-rdma: {host} ({peer}, controller {id}, queue {}): {what}", queue.id);
            }
            None => log!("nvme-rdma: {}: {what}", self.peer),
        }
    }
}
