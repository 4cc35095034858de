//! How a connection gets a controller, and the end of its queue.

use super::job::{InCapsule, parts};
use super::queue_pair::QueuePair;
use crate::limits::{CONNECT_TIMEOUT, IN_CAPSULE_MAX};
use crate::schema::WORD;
use crate::session::Arrived;
use crate::wire::connect_fields;
use lunar_core::time::Instant;
use lunar_nvme::auth::QueueAuthentication;
use lunar_nvme::command::Refusal;
use lunar_nvme::connect::ConnectData;
use lunar_nvme::directory::PortalRef;
use lunar_nvme::{Caller, Command, Kind, Path, Queue, Status};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

/// The type of Disconnect among Fabrics commands.
const DISCONNECT: u8 = 0x08;
/// The offsets of the queue identifier and of the queue size in Connect.
const QUEUE_OFFSET: u32 = 42;
const SIZE_OFFSET: u32 = 44;
/// The queues of a controller are checked on their own cores. The admin queue applies the keep-alive timeout this much
/// later, so that the activity of all queues counts.
const HEARSAY: Duration = Duration::from_secs(1);
/// The keep-alive time is looked at this often: a host may change it.
const LOOK: Duration = Duration::from_secs(1);

impl QueuePair {
    /// The connection ends if its queue is not connected, or its host has not authenticated, in time.
    pub(super) fn watch_connect(self: &Rc<Self>) {
        let pair = self.clone();
        self.reactor().spawn(async move {
            let late = pair.closed.unless(pair.reactor().sleep(CONNECT_TIMEOUT)).await.is_some();
            if late && !pair.session.borrow().is_live() {
                pair.log("the host did not connect a queue, or did not authenticate, in time");
                pair.end();
            }
        });
    }

    /// Executes Connect, after a delay if the source connects too often.
    pub(super) fn connect(self: &Rc<Self>, arrived: Arrived<InCapsule>) {
        let pair = self.clone();
        self.reactor().spawn(async move {
            let work = async {
                let command = arrived.command;
                let outcome = match pair.connect_data(&arrived).await {
                    Ok(data) => pair.connect_in_turn(&command, &data).await,
                    Err(status) => Err(status.into()),
                };
                pair.answer_connect(&command, outcome);
            };
            pair.closed.unless(work).await;
        });
    }

    /// The data of Connect.
    async fn connect_data(&self, arrived: &Arrived<InCapsule>) -> Result<Vec<u8>, Status> {
        if arrived.command.sent as usize != size_of::<ConnectData>() {
            return Err(Status::SGL_LENGTH);
        }
        if let Some((data, _)) = &arrived.in_capsule {
            return Ok(data.to_vec());
        }
        let (Some(memory), mut bytes) = (arrived.memory, Vec::new()) else { return Err(Status::SGL_TYPE) };
        while bytes.len() < size_of::<ConnectData>() {
            let left = size_of::<ConnectData>() - bytes.len();
            let (into, share) = self.reactor().arena().wait_for_peer(&self.memory.solicited, left).await;
            let parts = parts(memory, bytes.len(), into.len());
            let requested = self.transfers.request(parts, into, share).ok_or(Status::TRANSPORT_ERROR)?;
            let (data, _share) = requested.data().await.map_err(|_| Status::TRANSPORT_ERROR)?;
            bytes.extend(data.to_vec());
        }
        Ok(bytes)
    }

    async fn connect_in_turn(&self, command: &Command, data: &[u8]) -> Result<(Rc<Queue>, u32), Refusal> {
        let (queue, size) = connect_fields(&command.sqe);
        let invalid = |result| Refusal { result, ..Status::CONNECT_PARAMETERS.into() };
        // The queue is the one that the connection was requested for.
        if queue != self.request.queue.get() {
            return Err(invalid(QUEUE_OFFSET));
        }
        if size > self.request.commands.get() {
            return Err(invalid(SIZE_OFFSET));
        }
        let caller = Caller { transport: WORD, source: SocketAddr::new(self.peer, 0), tls_peer: None };
        let (subsystem, reactor) = (self.subsystem(), self.reactor());
        let wait = subsystem.arrive(command, data, &caller, reactor.now())?;
        if !wait.is_zero() {
            reactor.sleep(wait).await;
        }
        let endpoint = self.endpoint.upgrade().filter(|_| !self.core.draining.has_come());
        let (view, at) = endpoint.and_then(|endpoint| endpoint.place()).ok_or(Status::CONNECT_BUSY)?;
        let portal_ref = PortalRef { portal: view.number, group: view.group, is_secure: false };
        let path = Path { portal_ref, ..Path::rdma(at, IN_CAPSULE_MAX) };
        subsystem.connect(command, data, path, caller, reactor.now())
    }

    fn answer_connect(self: &Rc<Self>, command: &Command, outcome: Result<(Rc<Queue>, u32), Refusal>) {
        let cid = command.sqe.cid.get();
        let (queue, result) = match outcome {
            Ok(connected) => connected,
            Err(refusal) => {
                self.reactor().stats().logins_refused.add(1);
                let response = self.session.borrow_mut().connected(cid, Err(refusal.status), refusal.result);
                response.iter().for_each(|response| self.send(response));
                return;
            }
        };
        let passes = queue.passes();
        let response = {
            let mut session = self.session.borrow_mut();
            let response = session.connected(cid, Ok((queue.id, queue.entries, queue.flow_control)), result);
            if !passes {
                session.require_authentication();
            }
            response
        };
        // Before the response: the host sends commands when it has it.
        self.begin(&queue);
        response.iter().for_each(|response| self.send(response));
        if passes {
            self.has_connected(&queue);
        }
    }

    /// Starts the tasks of a queue: it ends with its controller, and the admin queue reports events and applies the
    /// keep-alive time.
    fn begin(self: &Rc<Self>, queue: &Rc<Queue>) {
        *self.queue.borrow_mut() = Some(queue.clone());
        let (pair, controller, id) = (self.clone(), queue.controller.clone(), queue.id);
        self.reactor().spawn(async move {
            if pair.closed.unless(controller.until_over(id)).await.is_some() {
                pair.end();
            }
        });
        if queue.id > 0 {
            return;
        }
        let (pair, controller) = (self.clone(), queue.controller.clone());
        self.reactor().spawn(async move {
            while let Some((cid, status, result)) = pair.closed.unless(controller.event()).await {
                pair.complete(cid, status, result.into());
            }
        });
        let pair = self.clone();
        self.reactor().spawn(async move {
            while pair.closed.unless(pair.reactor().sleep(LOOK)).await.is_some() {
                pair.apply_keep_alive(pair.reactor().now());
            }
        });
        self.reactor().stats().sessions.add(1);
    }

    fn apply_keep_alive(&self, now: Instant) {
        let queue = self.queue.borrow().clone();
        let Some(queue) = queue else { return };
        if queue.controller.deadline().is_some_and(|at| at + HEARSAY <= now) {
            self.reactor().stats().keepalive_timeouts.add(1);
            self.log("keep-alive timeout");
            queue.controller.end();
        }
    }

    /// A Fabrics command has completed: the queue may end with it, or its host be authenticated.
    pub(super) fn after_fabrics(self: &Rc<Self>, queue: &Queue, kind: u8, status: Status) {
        let disconnects = kind == DISCONNECT && queue.id > 0 && status == Status::SUCCESS;
        if disconnects || queue.authentication().is_some_and(QueueAuthentication::has_failed) {
            self.end_after_answers();
        } else if queue.passes() && self.session.borrow_mut().authenticated() {
            self.has_connected(queue);
        }
    }

    /// Ends the connection when the host has acknowledged the responses.
    fn end_after_answers(self: &Rc<Self>) {
        let pair = self.clone();
        self.reactor().spawn(async move {
            pair.closed.unless(pair.transfers.settled()).await;
            pair.end();
        });
    }

    /// The queue is connected, and its host authenticated if necessary.
    fn has_connected(&self, queue: &Queue) {
        if queue.id > 0 {
            return;
        }
        self.reactor().stats().logins.add(1);
        if queue.controller.kind == Kind::Io {
            self.log("connected");
        }
    }

    /// The connection has ended; done when its commands have.
    pub(super) async fn close(self: Rc<Self>) {
        self.closed.come();
        self.transfers.close();
        let Some(queue) = self.queue.take() else { return };
        if queue.id == 0 {
            // Its I/O queues end as well, on all cores.
            queue.controller.end();
            self.reactor().stats().sessions.sub(1);
        }
        self.reactor().stats().tasks_aborted.add(queue.tasks.abort(|_| true));
        queue.tasks.until_gone(|_| true).await;
    }
}
