//! The commands of one core for the blocks of a volume.

use crate::lane::{Common, Lane};
use crate::life::Lifetime;
use crate::queue::{BLOCK_SIZES, Carried, Ended, Memory, Taken, result};
use crate::schema::PATIENCE;
use lunar_core::io::{Data, Done, Extent, Fault, Io, Op, Outcome, Store, Traits};
use lunar_core::time::Instant;
use lunar_handler::ring::{Answer, Command};
use lunar_handler::wire::{LEVEL_BLOCK, Operation, Status, features, flags};
use lunar_reactor::Reactor;
use lunar_reactor::watch::Watch;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A command, and the duty to answer it.
pub(crate) struct Request {
    io: Io,
    done: Done,
    /// Since when it waits for a handler.
    since: Instant,
    /// The changes that were answered before it was submitted: those that a flush covers.
    changes: u64,
    /// Whether a handler had it and did not answer it.
    is_kept: bool,
}

impl Carried for Request {
    const LEVEL: u32 = LEVEL_BLOCK;

    fn place_bytes(&self) -> usize {
        self.io.data.len()
    }

    fn begin(&self, memory: &mut Memory<'_>, timeout_milliseconds: u32) -> Command {
        if let Data::Out(data) = &self.io.data {
            memory.fill(0, data);
        }
        let (operation, flags) = match self.io.op {
            Op::Read => (Operation::READ, 0),
            Op::Write { durable } => (Operation::WRITE, if durable { flags::DURABLE } else { 0 }),
            Op::Unmap { .. } => (Operation::UNMAP, 0),
            Op::Zero { unmap, .. } => (Operation::ZERO, if unmap { flags::RELEASE } else { 0 }),
            Op::Extent { .. } => (Operation::EXTENT, 0),
            // Others do not get here.
            Op::Flush | Op::Space | Op::Copy { .. } => (Operation::FLUSH, 0),
        };
        let (offset, length, data) = (self.io.offset, self.io.bytes(), memory.at as u64);
        Command { operation, flags, offset, length, data, timeout_milliseconds }
    }

    fn end(&mut self, memory: &mut Memory<'_>, answer: &Answer) {
        // A read that failed has left data of other commands in its place.
        if let (Data::In(into), Status::GOOD) = (&mut self.io.data, answer.status) {
            let count = into.len();
            memory.empty(0, into, count);
        }
    }
}

/// A store on one core.
pub(crate) struct HandlerStore {
    core: Rc<Core>,
    traits: Traits,
    /// Every write is durable.
    writes_through: bool,
    port: u32,
    /// The thread ends with the last store.
    volume: Arc<Lifetime>,
}

impl HandlerStore {
    pub(crate) fn open(reactor: &Reactor, volume: &Arc<Lifetime>, traits: Traits, writes_through: bool) -> Self {
        let core = Rc::new(Core(Common::new(reactor, volume.shared())));
        let port = Lane::connect(&core);
        Self { core, traits, writes_through, port, volume: volume.clone() }
    }

    /// The request as a handler gets it; the fault if it gets none.
    fn prepared(&self, io: &mut Io) -> Result<(), Fault> {
        if !io.within(self.traits.size) {
            return Err(Fault::OUT_OF_RANGE);
        }
        if io.data.len() > BLOCK_SIZES.transfer {
            return Err(Fault::NoMemory);
        }
        match (&mut io.op, &io.data) {
            (Op::Read, Data::In(_)) | (Op::Flush | Op::Zero { .. } | Op::Extent { .. }, _) => Ok(()),
            (Op::Write { durable }, Data::Out(_)) => {
                *durable |= self.writes_through;
                Ok(())
            }
            (Op::Unmap { .. }, _) if self.traits.unmap_granularity > 0 => Ok(()),
            _ => Err(Fault::Unsupported),
        }
    }
}

impl Store for HandlerStore {
    fn traits(&self) -> &Traits {
        &self.traits
    }

    fn submit(&self, mut io: Io, done: Done) {
        if let Err(fault) = self.prepared(&mut io) {
            return done.complete(Outcome::with(Err(fault), io.data));
        }
        if let Op::Extent { len } = io.op
            && (len == 0 || !self.core.tells_extents())
        {
            return answer_extent(io, done, Extent::default());
        }
        let Common { shared, reactor, waiting, .. } = &self.core.0;
        let has_nothing_to_do = if io.op == Op::Flush { shared.is_flushed() } else { io.bytes() == 0 };
        if has_nothing_to_do {
            return done.complete(Outcome::with(Ok(0), io.data));
        }
        let (since, changes) = (reactor.now(), shared.changes());
        waiting.borrow_mut().push_back(Request { io, done, since, changes, is_kept: false });
        Lane::tick(&self.core);
        self.core.submit_waiting();
    }
}

impl Drop for HandlerStore {
    fn drop(&mut self) {
        self.core.close();
        self.volume.shared().remove_port(self.port);
    }
}

/// The commands of one core, and its queue if there is a handler.
struct Core(Common<Request>);

impl Core {
    /// Whether a handler is there that tells which bytes are mapped.
    fn tells_extents(&self) -> bool {
        let queue = self.0.queue.borrow();
        queue.as_ref().is_some_and(|queue| has(queue.features, Op::Extent { len: 0 })) && !self.0.shared.is_late()
    }
}

impl Lane for Core {
    type Request = Request;

    fn common(&self) -> &Common<Request> {
        &self.0
    }

    fn submit_waiting(&self) {
        let Common { shared, reactor, queue, waiting, .. } = &self.0;
        if shared.is_late() {
            return;
        }
        let timeout = shared.command_timeout().unwrap_or(PATIENCE);
        let milliseconds = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
        let now = reactor.now();
        let mut refused = Vec::new();
        {
            let (mut queue, mut waiting) = (queue.borrow_mut(), waiting.borrow_mut());
            let Some(queue) = queue.as_mut() else { return };
            while let Some(request) = waiting.pop_front() {
                if !has(queue.features, request.io.op) {
                    refused.push(request);
                    continue;
                }
                if let Some(request) = queue.submit(request, now, milliseconds) {
                    waiting.push_front(request);
                    break;
                }
            }
        }
        refused.into_iter().for_each(|request| end(request, Err(Fault::Unsupported)));
    }

    /// Keeps the commands for the next handler, before those that came later.
    fn end_unanswered(&self, requests: Vec<Request>) {
        let Common { shared, reactor, waiting, .. } = &self.0;
        // The next handler may not tell extents.
        let (extents, requests): (Vec<_>, Vec<_>) =
            requests.into_iter().partition(|request| matches!(request.io.op, Op::Extent { .. }));
        extents.into_iter().for_each(|request| end(request, Err(Fault::NotReady)));
        shared.counts.replayed.fetch_add(requests.len() as u64, Ordering::Relaxed);
        let now = reactor.now();
        let mut waiting = waiting.borrow_mut();
        for request in requests.into_iter().rev() {
            // A handler that ends again and again does not renew the time.
            let since = if request.is_kept { request.since } else { now };
            waiting.push_front(Request { since, is_kept: true, ..request });
        }
    }

    fn finish(&self, ended: Ended<Request>) {
        let shared = &self.0.shared;
        match ended.taken {
            Taken::Late(_) => {
                shared.add_change();
                shared.end_late(1);
            }
            Taken::InProgress { request, .. } => {
                match (request.io.op, ended.answer.status) {
                    (Op::Write { .. } | Op::Unmap { .. } | Op::Zero { .. }, _) => shared.add_change(),
                    (Op::Flush, Status::GOOD) => shared.end_flush(request.changes),
                    _ => {}
                }
                if let (Op::Extent { .. }, Status::GOOD) = (request.io.op, ended.answer.status) {
                    return answer_extent(request.io, request.done, ended.answer.extent);
                }
                // Steps move less than 4 GiB at a time.
                let moved = request.io.data.len() as u32;
                end(request, result(ended.answer.status).map(|()| moved));
            }
        }
    }

    fn give_up_late(&self) {
        let Common { shared, .. } = &self.0;
        let limit = self.0.before(shared.command_timeout().unwrap_or(PATIENCE));
        let late = self.0.take_late(|_, submitted| submitted < limit);
        late.into_iter().for_each(|request| end(request, Err(Fault::Timeout)));
        // A handler that ends again and again does not renew the time of a command that it had.
        let since = |request: &Request, begun| if request.is_kept { request.since } else { request.since.max(begun) };
        for request in self.0.take_unserved(since) {
            if request.is_kept {
                // A handler that has gone may have executed it.
                shared.add_change();
            }
            end(request, Err(Fault::NotReady));
        }
    }
}

/// Whether a handler with these features has the operation.
fn has(all: u64, op: Op) -> bool {
    match op {
        Op::Unmap { .. } => all & features::UNMAP != 0,
        Op::Zero { .. } => all & features::ZERO != 0,
        Op::Extent { .. } => all & features::EXTENT != 0,
        _ => true,
    }
}

/// Answers an [`Op::Extent`] with what a handler has found. All bytes count as mapped if it has found nothing, or says
/// what cannot be.
///
/// No order with writes is needed: bytes that a handler calls unmapped read as zeroes after every write that was
/// answered before the request, and a write in progress may be before or behind it as any two commands may. A request
/// is never sent to a second handler.
fn answer_extent(io: Io, done: Done, found: Extent) {
    let Extent { len, mapped } = found;
    let extent = match io.op {
        Op::Extent { len: asked } if len == 0 || len > asked => Extent { len: asked, mapped: true },
        _ => Extent { len, mapped },
    };
    done.complete(Outcome { extent, ..Outcome::with(Ok(0), io.data) });
}

fn end(request: Request, result: Result<u32, Fault>) {
    if let (Op::Extent { .. }, Err(_)) = (request.io.op, result) {
        return answer_extent(request.io, request.done, Extent::default());
    }
    request.done.complete(Outcome::with(result, request.io.data));
}

impl Watch for Core {
    fn wants_poll(&self) -> bool {
        self.has_answers()
    }

    fn look(&self) -> bool {
        self.look_once()
    }

    fn prepare_sleep(&self) -> bool {
        self.may_sleep()
    }
}
