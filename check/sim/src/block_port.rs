//! The ports of a simulated target at which block clients post requests: the transport of the block command set in the
//! simulator.

use lunar_blk::{Answer, Attachment, BlockSet, ByteRange, Code, Error, Reply, Request};
use lunar_core::io::Fault;
use lunar_core::mem::{Arena, Sg, SgMut};
use lunar_core::port::Transfer;
use lunar_core::stats::Stats;
use lunar_core::step::SlotContext;
use lunar_core::unit::Unit;
use lunar_guest::memory::Memory;
use lunar_guest::scatter::{Scatter, ScatterList};
use lunar_reactor::Reactor;
use lunar_unit::CoreUnits;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};

/// The state of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// The port accepts requests.
    Open,
    /// The target stops: requests in progress end.
    Draining,
    /// The target has ended, with all requests in progress.
    Closed,
}

/// A port at which block clients post requests: one for each core of the target.
pub struct Port {
    set: Rc<BlockSet>,
    units: RefCell<Vec<Rc<Unit>>>,
    state: Cell<State>,
    posted: RefCell<VecDeque<Posted>>,
    in_progress: Cell<usize>,
    wakers: RefCell<Vec<Waker>>,
    connections: RefCell<Vec<Rc<Connection>>>,
}

/// The connection of a block client to a port, until the port is closed.
pub struct Connection {
    /// The memory of the client.
    pub memory: Memory,
    /// One for each unit, by LUN.
    pub attachments: Vec<Rc<Attachment>>,
    /// Requests that have ended.
    pub ended: RefCell<VecDeque<Ended>>,
    /// Whether the target has ended.
    pub is_closed: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Connection {
    /// The connection of a client with this memory.
    #[must_use]
    pub fn new(memory: Memory, attachments: Vec<Rc<Attachment>>) -> Rc<Self> {
        let (ended, is_closed, waker) = (RefCell::default(), Cell::default(), RefCell::default());
        Rc::new(Self { memory, attachments, ended, is_closed, waker })
    }

    /// Wakes this task when a request has ended or the port is closed.
    pub fn set_waker(&self, waker: Waker) {
        self.waker.replace(Some(waker));
    }

    fn wake(&self) {
        self.waker.take().into_iter().for_each(Waker::wake);
    }
}

/// The number of a request, how it ended, and its answer.
pub type Ended = (u64, Result<(), Error>, Answer);

/// A request on its way to the command set.
pub struct Posted {
    /// The client that posted it.
    pub connection: Rc<Connection>,
    /// Its number.
    pub number: u64,
    /// Its unit.
    pub lun: usize,
    /// The operation.
    pub code: Code,
    /// The bytes of the unit.
    pub ranges: Vec<ByteRange>,
    /// Whether its data is durable when it ends.
    pub durable: bool,
    /// Whether Write Zeroes may deallocate.
    pub unmap: bool,
    /// The place of its data in guest memory.
    pub data: ScatterList,
    /// Whether stores may use guest memory without a copy.
    pub is_direct: bool,
}

impl Port {
    /// A port of a core without units.
    #[must_use]
    pub fn new(stats: &Arc<Stats>, core_units: &Rc<CoreUnits>) -> Rc<Self> {
        Rc::new(Self {
            set: BlockSet::new(stats.clone(), core_units.clone()),
            units: RefCell::default(),
            state: Cell::new(State::Open),
            posted: RefCell::default(),
            in_progress: Cell::default(),
            wakers: RefCell::default(),
            connections: RefCell::default(),
        })
    }

    /// Whether it accepts requests.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.state.get() == State::Open
    }

    /// The number of units.
    #[must_use]
    pub fn units(&self) -> usize {
        self.units.borrow().len()
    }

    /// Serves these units of the core: those that are new, or have another shape than before, are added to the command
    /// set.
    pub fn set_units(&self, units: Vec<Rc<Unit>>) {
        let before = self.units.replace(units.clone());
        let is_known = |unit: &Rc<Unit>| before.iter().any(|other| Rc::ptr_eq(other, unit));
        units.into_iter().filter(|unit| !is_known(unit)).for_each(|unit| self.set.add_unit(unit));
    }

    /// The command set, to attach clients to its units.
    #[must_use]
    pub fn set(&self) -> &Rc<BlockSet> {
        &self.set
    }

    /// Adds a client.
    pub fn connect(&self, connection: &Rc<Connection>) {
        self.connections.borrow_mut().push(connection.clone());
    }

    /// Removes a client.
    pub fn disconnect(&self, connection: &Rc<Connection>) {
        self.connections.borrow_mut().retain(|other| !Rc::ptr_eq(other, connection));
    }

    /// Posts a request.
    pub fn post(&self, request: Posted) {
        self.posted.borrow_mut().push_back(request);
        self.wakers.take().into_iter().for_each(Waker::wake);
    }

    fn change(&self, state: State) {
        self.state.set(state);
        self.wakers.take().into_iter().for_each(Waker::wake);
    }

    /// Accepts no more requests.
    pub fn drain(&self) {
        if self.state.get() == State::Open {
            self.change(State::Draining);
        }
    }

    /// Waits for [`Port::drain`], and until all requests have ended.
    pub async fn drained(&self) {
        poll_fn(|cx| {
            let is_over = self.in_progress.get() == 0 && self.posted.borrow().is_empty();
            if self.state.get() != State::Open && is_over {
                return Poll::Ready(());
            }
            self.wakers.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Ends the port with its target: no request in progress is answered.
    pub fn close(&self) {
        self.change(State::Closed);
        self.posted.take();
        for connection in self.connections.take() {
            connection.is_closed.set(true);
            connection.wake();
        }
    }

    /// The number of connected clients.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.set.attachments().len()
    }

    /// Executes posted requests, on a core.
    pub async fn serve(self: Rc<Self>, core: Reactor) {
        loop {
            let posted = poll_fn(|cx| {
                if self.state.get() == State::Closed {
                    return Poll::Ready(None);
                }
                if let Some(posted) = self.posted.borrow_mut().pop_front() {
                    return Poll::Ready(Some(posted));
                }
                self.wakers.borrow_mut().push(cx.waker().clone());
                Poll::Pending
            })
            .await;
            let Some(posted) = posted else { return };
            self.in_progress.set(self.in_progress.get() + 1);
            let (port, arena) = (self.clone(), core.arena().clone());
            core.spawn(async move {
                port.carry_out(posted, arena).await;
                port.in_progress.set(port.in_progress.get() - 1);
                port.wakers.take().into_iter().for_each(Waker::wake);
            });
        }
    }

    async fn carry_out(&self, posted: Posted, arena: Arena) {
        let Posted { connection, number, lun, code, ranges, durable, unmap, data, is_direct } = posted;
        let attachment = &connection.attachments[lun];
        let request = Request { code, ranges: &ranges, durable, unmap };
        let task = attachment.tasks.enter(number);
        let path = Path { scatter: Scatter::new(&connection.memory, &data), arena: &arena, task: &task, is_direct };
        let mut reply = Reply::default();
        if !self.set.execute_now(attachment, &request, &path, &arena, &mut reply) {
            let mut slot = SlotContext::new(arena.clone());
            self.set.execute(attachment, &request, &path, &mut slot, &mut reply).await;
        }
        let mut result = reply.result;
        if result.is_ok() && path.push(reply.final_data.offset, reply.final_data.data).is_err() {
            result = Err(Error::IoError);
        }
        connection.ended.borrow_mut().push_back((number, result, reply.answer));
        connection.wake();
    }
}

/// The path of one request's data.
struct Path<'a> {
    scatter: Scatter<'a>,
    arena: &'a Arena,
    task: &'a lunar_core::task::Task<u64>,
    is_direct: bool,
}

impl Path<'_> {
    fn fill(&self, offset: usize, mut memory: SgMut) -> Result<Sg, Fault> {
        if self.scatter.read(offset, &mut memory) { Ok(memory.share()) } else { Err(Fault::Protocol) }
    }
}

impl Transfer for Path<'_> {
    async fn room(&self) -> Result<(), Fault> {
        Ok(())
    }

    fn has_room(&self) -> bool {
        true
    }

    async fn pull(&self, offset: usize, len: usize) -> Result<Sg, Fault> {
        let memory = self.task.unless_aborted(self.arena.wait_sg(len)).await?;
        self.fill(offset, memory)
    }

    async fn pull_more(&self, offset: usize, len: usize) -> Result<Sg, Fault> {
        self.fill(offset, self.arena.take_sg(len).ok_or(Fault::NoMemory)?)
    }

    fn push(&self, offset: usize, data: Sg) -> Result<(), Fault> {
        if self.scatter.write(offset, &data) { Ok(()) } else { Err(Fault::Protocol) }
    }

    fn place(&self, offset: usize, len: usize) -> Option<SgMut> {
        self.scatter.to_fill(offset, len).filter(|_| self.is_direct)
    }

    fn lend(&self, offset: usize, len: usize) -> Option<Sg> {
        self.scatter.to_read(offset, len).filter(|_| self.is_direct)
    }

    fn aborted(&self) -> bool {
        self.task.aborted()
    }
}
