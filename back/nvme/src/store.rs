//! The requests of one core as commands to the namespace.

use crate::open::Limits;
use crate::status::{self, Words};
use crate::volume::State;
use lunar_core::io::{Completion, Data, Done, Extent, Fault, Io, Op, Origin, Outcome, Store, Traits};
use lunar_core::mem::{Sg, SgMut};
use lunar_reactor::nvme_generic::{Failure, Namespace, Request};
use lunar_reactor::{Reactor, log};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Requests of one core in progress: a drive is busy with fewer, and each has a task. Others wait; there are no more
/// than the slots of the fronts.
const REQUESTS_MAX: usize = 256;
/// Source ranges of a Copy command at most: they fit into a page.
const SOURCES_MAX: u64 = 128;
/// Pieces of memory of a command at most: the kernel takes no more (UIO_MAXIOV).
const PIECES_MAX: usize = 1024;
/// The pauses before a command is repeated: the kernel repeats its own commands as often, and a controller is reset in
/// that time.
const PAUSES: [Duration; 5] = [
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(400),
    Duration::from_millis(800),
    Duration::from_millis(1600),
];

/// A namespace on one core. Its tasks end with it.
pub(crate) struct NvmeStore(Rc<Requests>);

/// A task that executes one request after the other.
#[derive(Default)]
struct Worker {
    waker: RefCell<Option<Waker>>,
    /// Whether it is in the list of those that wait for a request.
    is_idle: Cell<bool>,
}

/// The number of the disk of a namespace, and which of the disks that had it: the same for all volumes on it.
pub(crate) type Identity = (u64, u64);

/// The place of a volume in its namespace, as the source of copies.
pub(crate) struct Source {
    pub(crate) identity: Identity,
    pub(crate) first_block: u64,
}

struct Requests {
    reactor: Reactor,
    namespace: Namespace,
    identity: Identity,
    traits: Traits,
    limits: Limits,
    state: Arc<State>,
    /// Requests without a task.
    waiting: RefCell<VecDeque<(Io, Done)>>,
    /// Tasks without a request. The last one is taken first: a light load uses few.
    idle: RefCell<Vec<Rc<Worker>>>,
    /// All tasks.
    workers: Cell<usize>,
    /// Whether the store is gone, and its tasks end after the requests that wait.
    is_over: Cell<bool>,
}

impl NvmeStore {
    pub(crate) fn new(
        reactor: &Reactor,
        namespace: Namespace,
        identity: Identity,
        traits: Traits,
        limits: Limits,
        state: Arc<State>,
    ) -> Self {
        Self(Rc::new(Requests {
            reactor: reactor.clone(),
            namespace,
            identity,
            traits,
            limits,
            state,
            waiting: RefCell::default(),
            idle: RefCell::default(),
            workers: Cell::new(0),
            is_over: Cell::new(false),
        }))
    }
}

impl Drop for NvmeStore {
    fn drop(&mut self) {
        self.0.is_over.set(true);
        let idle = self.0.idle.take();
        idle.iter().for_each(|worker| worker.wake());
    }
}

impl Worker {
    fn wake(&self) {
        self.is_idle.set(false);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// The life of a task.
async fn work(requests: Rc<Requests>) {
    let (worker, mut completion) = (Rc::new(Worker::default()), Completion::new());
    while let Some((io, done)) = poll_fn(|cx| requests.next(&worker, cx)).await {
        done.complete(requests.execute(io, &mut completion).await);
    }
}

impl Store for NvmeStore {
    fn traits(&self) -> &Traits {
        &self.0.traits
    }

    fn origin(&self) -> Option<Origin> {
        let Requests { identity, limits, .. } = &*self.0;
        Some(Origin::new(Rc::new(Source { identity: *identity, first_block: limits.first_block })))
    }

    fn submit(&self, io: Io, done: Done) {
        if !io.within(self.0.traits.size) {
            return done.complete(Outcome::with(Err(Fault::OUT_OF_RANGE), io.data));
        }
        if self.0.state.is_gone() {
            return done.complete(Outcome::with(Err(Fault::Gone), io.data));
        }
        self.0.waiting.borrow_mut().push_back((io, done));
        let idle = self.0.idle.borrow_mut().pop();
        match idle {
            Some(worker) => worker.wake(),
            None if self.0.workers.get() < REQUESTS_MAX => {
                self.0.workers.set(self.0.workers.get() + 1);
                self.0.reactor.spawn(work(self.0.clone()));
            }
            None => {}
        }
    }
}

/// A run of blocks.
#[derive(Clone, Copy)]
struct Blocks {
    first: u64,
    count: u64,
}

impl Requests {
    /// The next request for a task; `None`: it ends.
    fn next(&self, worker: &Rc<Worker>, cx: &Context<'_>) -> Poll<Option<(Io, Done)>> {
        if let Some(request) = self.waiting.borrow_mut().pop_front() {
            return Poll::Ready(Some(request));
        }
        if self.is_over.get() {
            return Poll::Ready(None);
        }
        *worker.waker.borrow_mut() = Some(cx.waker().clone());
        if !worker.is_idle.replace(true) {
            self.idle.borrow_mut().push(worker.clone());
        }
        Poll::Pending
    }

    async fn execute(&self, io: Io, completion: &mut Completion) -> Outcome {
        let offset = io.offset;
        match (io.op, io.data) {
            (Op::Read, Data::In(into)) => self.read(offset, into, completion).await,
            (Op::Write { durable }, Data::Out(data)) => self.write(offset, data, durable, completion).await,
            (Op::Flush, data) => Outcome::with(self.flush(completion).await, data),
            (Op::Unmap { len }, data) => Outcome::with(self.deallocate(offset, len, completion).await, data),
            (Op::Zero { len, unmap }, data) => Outcome::with(self.zero(offset, len, unmap, completion).await, data),
            // Get LBA Status is rarely supported: all blocks count as mapped.
            (Op::Extent { len }, data) => {
                Outcome { extent: Extent { len, mapped: true }, ..Outcome::with(Ok(0), data) }
            }
            (Op::Copy { from, len }, Data::From(origin)) => {
                Outcome::new(self.copy(&origin, from, offset, len, completion).await)
            }
            (Op::Copy { .. } | Op::Space, data) => Outcome::with(Err(Fault::Unsupported), data),
            (Op::Read | Op::Write { .. }, data) => Outcome::with(Ok(0), data),
        }
    }

    /// The block of the namespace at this offset.
    fn block_at(&self, offset: u64) -> Result<u64, Fault> {
        let block = u64::from(self.limits.block_bytes);
        let is_whole = offset.is_multiple_of(block);
        // The offset lies within the volume, so the sum lies within the namespace.
        if is_whole { Ok(self.limits.first_block + offset / block) } else { Err(Fault::OUT_OF_RANGE) }
    }

    /// Executes a command, repeats it if that may help, and logs its failure.
    async fn attempt(
        &self,
        request: Request,
        mut data: Data,
        completion: &mut Completion,
    ) -> (Result<(), Fault>, Data) {
        let mut pauses = PAUSES.iter();
        loop {
            let (result, memory) = self.namespace.execute(request, data, completion).await;
            let Err(failure) = result else { return (Ok(()), memory) };
            let may_repeat = status::is_transient(failure) && !self.state.is_gone();
            let Some(pause) = pauses.next().filter(|_| may_repeat) else {
                return (Err(self.failed(request, failure)), memory);
            };
            data = memory;
            self.reactor.sleep(*pause).await;
        }
    }

    fn failed(&self, request: Request, failure: Failure) -> Fault {
        let fault = status::fault(failure);
        let name = self.state.name();
        // The periodic check logs the loss of the namespace once; a failed command does not log it.
        if fault != Fault::Gone && self.state.is_new(status::number(failure)) {
            log!(error, "{name}: {request:?}: {}; further failures of this kind are not logged", Words(failure));
        }
        fault
    }

    async fn read(&self, offset: u64, mut into: SgMut, completion: &mut Completion) -> Outcome {
        let total = into.len();
        let block = match self.block_at(offset) {
            Ok(block) => block,
            Err(fault) => return Outcome::with(Err(fault), Data::In(into)),
        };
        if total <= self.limits.transfer_bytes_max && into.pieces().len() <= PIECES_MAX {
            if total == 0 {
                return Outcome::with(Ok(0), Data::In(into));
            }
            let (result, data) = self.attempt(Request::Read { block }, Data::In(into), completion).await;
            return Outcome::with(result.map(|()| total as u32), data);
        }
        let (mut filled, mut block, mut result) = (SgMut::default(), block, Ok(total as u32));
        while !into.is_empty() && result.is_ok() {
            let part = into.split_to(self.part(into.len()));
            let (len, read) = (part.len(), self.read_part(block, part, completion).await);
            let (ended, part) = read;
            part.into_pieces().for_each(|piece| filled.push(piece));
            result = ended.and(result);
            block += (len / self.limits.block_bytes as usize) as u64;
        }
        into.into_pieces().for_each(|piece| filled.push(piece));
        Outcome::with(result, Data::In(filled))
    }

    async fn read_part(&self, block: u64, part: SgMut, completion: &mut Completion) -> (Result<(), Fault>, SgMut) {
        if part.pieces().len() <= PIECES_MAX {
            let (result, data) = self.attempt(Request::Read { block }, Data::In(part), completion).await;
            return (result, data.into_in());
        }
        let mut part = part;
        let Some(whole) = self.reactor.arena().take_sg(part.len()) else { return (Err(Fault::NoMemory), part) };
        let (result, data) = self.attempt(Request::Read { block }, Data::In(whole), completion).await;
        // Memory that was not filled has old data of other requests.
        if result.is_ok() {
            let mut at = 0;
            for piece in data.into_in().pieces() {
                at += part.copy_from(at, piece);
            }
        }
        (result, part)
    }

    async fn write(&self, offset: u64, data: Sg, durable: bool, completion: &mut Completion) -> Outcome {
        let total = data.len();
        let durable = self.is_durable(durable);
        let block = match self.block_at(offset) {
            Ok(block) => block,
            Err(fault) => return Outcome::with(Err(fault), Data::Out(data)),
        };
        if total <= self.limits.transfer_bytes_max && data.pieces().len() <= PIECES_MAX {
            if total == 0 {
                return Outcome::with(Ok(0), Data::Out(data));
            }
            let (result, data) = self.attempt(Request::Write { block, durable }, Data::Out(data), completion).await;
            return Outcome::with(result.map(|()| total as u32), data);
        }
        let (mut rest, mut block, mut result) = (data.clone(), block, Ok(total as u32));
        while !rest.is_empty() && result.is_ok() {
            let part = rest.split_to(self.part(rest.len()));
            let len = part.len();
            result = match self.in_few_pieces(part) {
                Some(part) => {
                    let request = Request::Write { block, durable };
                    self.attempt(request, Data::Out(part), completion).await.0.and(result)
                }
                None => Err(Fault::NoMemory),
            };
            block += (len / self.limits.block_bytes as usize) as u64;
        }
        Outcome::with(result, Data::Out(data))
    }

    /// The same bytes in as many pieces as a command can have.
    fn in_few_pieces(&self, data: Sg) -> Option<Sg> {
        if data.pieces().len() <= PIECES_MAX {
            return Some(data);
        }
        let (mut whole, mut at) = (self.reactor.arena().take_sg(data.len())?, 0);
        for piece in whole.pieces_mut() {
            at += data.copy_to(at, piece);
        }
        Some(whole.share())
    }

    fn part(&self, left: usize) -> usize {
        left.min(self.limits.transfer_bytes_max)
    }

    /// Whether a change is on the medium before it is answered: without a cache, all are.
    fn is_durable(&self, durable: bool) -> bool {
        self.limits.has_cache && (durable || self.limits.writes_through)
    }

    async fn flush(&self, completion: &mut Completion) -> Result<u32, Fault> {
        if !self.limits.has_cache || self.traits.read_only {
            return Ok(0);
        }
        self.attempt(Request::Flush, Data::None, completion).await.0.map(|()| 0)
    }

    /// Deallocates whole blocks only.
    async fn deallocate(&self, offset: u64, len: u64, completion: &mut Completion) -> Result<u32, Fault> {
        if self.limits.deallocate_bytes_max == 0 {
            return Err(Fault::Unsupported);
        }
        let block = u64::from(self.limits.block_bytes);
        let first = offset.div_ceil(block);
        let count = ((offset + len) / block).saturating_sub(first);
        let all = Blocks { first: self.limits.first_block + first, count };
        for Blocks { first, count } in parts(all, self.limits.deallocate_bytes_max / block) {
            // A part has less than 2^32 blocks.
            let range = self.reactor.arena().copy(&Request::range(first, count as u32)).ok_or(Fault::NoMemory)?;
            self.attempt(Request::Deallocate, Data::Out(range.into()), completion).await.0?;
        }
        if count > 0 && self.limits.writes_through {
            self.flush(completion).await?;
        }
        Ok(0)
    }

    /// Copies within the namespace. The ranges lie within their volumes.
    async fn copy(
        &self,
        origin: &Origin,
        from: u64,
        offset: u64,
        len: u64,
        completion: &mut Completion,
    ) -> Result<u32, Fault> {
        let block = u64::from(self.limits.block_bytes);
        let source = origin.is::<Source>().filter(|source| source.identity == self.identity);
        let (Some(source), Some(limits)) = (source, self.limits.copy) else { return Err(Fault::Unsupported) };
        if !from.is_multiple_of(block) || !offset.is_multiple_of(block) || !len.is_multiple_of(block) {
            return Err(Fault::Unsupported);
        }
        let durable = self.is_durable(false);
        let (mut first, mut to, end) =
            (source.first_block + from / block, self.block_at(offset)?, self.block_at(offset)? + len / block);
        while to < end {
            let count = limits.blocks().min(u64::from(limits.range_blocks) * SOURCES_MAX).min(end - to);
            let sources = sources(Blocks { first, count }, limits.range_blocks);
            let sources = self.reactor.arena().copy(&sources).ok_or(Fault::NoMemory)?;
            let request = Request::Copy { block: to, durable };
            self.attempt(request, Data::Out(sources.into()), completion).await.0.map_err(|fault| match fault {
                // The status does not say whether a source or a target has failed: the caller reads and writes.
                Fault::Medium | Fault::Os(_) => Fault::Unsupported,
                other => other,
            })?;
            (first, to) = (first + count, to + count);
        }
        Ok(0)
    }

    async fn zero(&self, offset: u64, len: u64, unmap: bool, completion: &mut Completion) -> Result<u32, Fault> {
        let block = u64::from(self.limits.block_bytes);
        if self.limits.zero_bytes_max == 0 || !len.is_multiple_of(block) {
            return Err(Fault::Unsupported);
        }
        let all = Blocks { first: self.block_at(offset)?, count: len / block };
        let deallocate = unmap && self.limits.zero_deallocates;
        let durable = self.is_durable(false);
        for Blocks { first, count } in parts(all, self.limits.zero_bytes_max / block) {
            let request = Request::Zero { block: first, count: count as u32, deallocate, durable };
            self.attempt(request, Data::None, completion).await.0?;
        }
        Ok(0)
    }
}

/// The source ranges of a Copy command.
fn sources(all: Blocks, most: u16) -> Vec<u8> {
    let starts = (0..all.count).step_by(usize::from(most));
    let most = u64::from(most);
    starts.flat_map(|at| Request::source(all.first + at, (all.count - at).min(most) as u32)).collect()
}

/// Divides a run into parts of at most `most` blocks; all but the first begin at a multiple of it.
fn parts(all: Blocks, most: u64) -> impl Iterator<Item = Blocks> {
    let mut rest = all;
    std::iter::from_fn(move || {
        let first = rest.first;
        let count = rest.count.min(most - first % most);
        (rest.first, rest.count) = (first + count, rest.count - count);
        (count > 0).then_some(Blocks { first, count })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_divided_at_multiples() {
        let of = |first, count, most| -> Vec<(u64, u64)> {
            parts(Blocks { first, count }, most).map(|part| (part.first, part.count)).collect()
        };
        assert_eq!(of(10, 200, 64), [(10, 54), (64, 64), (128, 64), (192, 18)]);
        assert_eq!((of(0, 64, 64), of(5, 0, 64), of(63, 2, 64)), (vec![(0, 64)], vec![], vec![(63, 1), (64, 1)]));
    }
}
