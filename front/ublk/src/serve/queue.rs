//! A queue of a device: one task for each tag, which takes a request from the kernel, executes it and answers it.

use super::Core;
use super::path::Path;
use crate::tag::{IoRequest, Next, Tag};
use crate::wire::{Descriptor, TagCommand};
use lunar_blk::{Attachment, Error, Reply};
use lunar_core::io::{Completion, Data, Fault};
use lunar_core::mem::{Region, SgMut};
use lunar_core::step::SlotContext;
use lunar_reactor::end::End;
use lunar_reactor::endpoint::Endpoint;
use lunar_reactor::endpoint::command::{Command, Request, UblkQueue};
use lunar_reactor::log;
use lunar_reactor::op::Handle;
use lunar_reactor::shared;
use lunar_reactor::slots::contain;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

/// A queue.
pub(super) struct Queue {
    core: Rc<Core>,
    /// The name of the device, for logs.
    name: String,
    number: u16,
    /// The endpoint of the kernel, until all tags have ended: while it is open, the device cannot be removed.
    handle: RefCell<Option<Handle>>,
    attachment: Rc<Attachment>,
    /// The memory of all tags.
    memory: Region,
    /// Bytes of each.
    buffer: usize,
    /// Tags that have not ended.
    tags: Cell<usize>,
    has_complained: Cell<bool>,
    ended: End,
}

/// Counts something while it exists.
struct Counted<'a>(&'a Cell<usize>);

impl<'a> Counted<'a> {
    fn new(count: &'a Cell<usize>) -> Self {
        count.set(count.get() + 1);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Runs a request to its end; returns whether it came to one: a panic ends only this request.
async fn contained(work: impl Future<Output = ()>) -> bool {
    let mut work = pin!(work);
    poll_fn(|cx| match contain(|| work.as_mut().poll(cx)) {
        Some(poll) => poll.map(|()| true),
        None => Poll::Ready(false),
    })
    .await
}

impl Queue {
    /// Starts the tags of a queue on this core.
    ///
    /// # Errors
    /// Those of the operating system.
    pub(super) fn start(
        core: &Rc<Core>,
        name: &str,
        attachment: &Rc<Attachment>,
        number: u16,
        (endpoint, depth, buffer): (Endpoint, u16, usize),
    ) -> io::Result<Rc<Self>> {
        let handle = core.reactor.attach(endpoint)?;
        let (_, memory) = shared::share("ublk", usize::from(depth) * buffer)?;
        let queue = Rc::new(Self {
            core: core.clone(),
            name: name.to_owned(),
            number,
            handle: RefCell::new(Some(handle)),
            attachment: attachment.clone(),
            memory,
            buffer,
            // Until their tasks have run once, all tags count as served.
            tags: Cell::new(usize::from(depth)),
            has_complained: Cell::new(false),
            ended: End::default(),
        });
        for tag in 0..depth {
            let queue = queue.clone();
            core.reactor.spawn(async move { queue.serve(tag).await });
        }
        Ok(queue)
    }

    pub(super) fn attachment(&self) -> &Rc<Attachment> {
        &self.attachment
    }

    /// Whether a tag has a command at the kernel, or a request.
    pub(super) fn is_served(&self) -> bool {
        self.tags.get() > 0
    }

    /// The end of the service of this queue.
    pub(super) fn ended(&self) -> &End {
        &self.ended
    }

    /// Serves a tag until the device stops.
    async fn serve(&self, number: u16) {
        let _ended = TagEnd(self);
        let Some(handle) = self.handle.borrow().clone() else { return };
        let at = usize::from(number) * self.buffer;
        let Some(memory) = self.memory.buf(at, self.buffer) else { return };
        let mut data = SgMut::default();
        data.push(memory);
        let mut command = Command::new(Request::UblkQueue(UblkQueue::default()), Data::In(data));
        let mut tag = Tag::new(self.number, number, self.buffer);
        let reactor = &self.core.reactor;
        let mut slot = SlotContext { arena: reactor.arena().clone(), completion: Completion::new() };
        let mut completion = Completion::new();
        while let Some(next) = tag.command() {
            let TagCommand { number, queue, tag: of, result } = next;
            command.request = Request::UblkQueue(UblkQueue { number, queue, tag: of, result });
            let (result, back) = reactor.command(&handle, command, &mut completion).await;
            let Some(back) = back else { return };
            command = back;
            match tag.answered(result.map(|_| Descriptor::of(command.result))) {
                // The next process gets the request.
                Next::Execute(_) if self.core.leaves() => return,
                Next::Execute(request) => tag.finish(self.execute(&request, at, &mut slot).await),
                Next::Refuse | Next::Stopped => {}
                Next::Broken(why) => self.complain(why),
            }
        }
    }

    async fn execute(&self, request: &IoRequest, at: usize, slot: &mut SlotContext) -> Result<(), Error> {
        let _busy = Counted::new(&self.core.busy);
        let (block, place) = (&self.core.block, (at, self.buffer));
        let (request, mut reply) = (request.request(), Reply::default());
        let path = Path::new(&self.memory, place, None);
        let arena = &slot.arena.clone();
        match contain(|| block.execute_now(&self.attachment, &request, &path, arena, &mut reply)) {
            Some(true) => {}
            Some(false) => {
                let task = self.attachment.tasks.enter(at as u64);
                let path = Path::new(&self.memory, place, Some(&task));
                if !contained(block.execute(&self.attachment, &request, &path, slot, &mut reply)).await {
                    slot.completion = Completion::new();
                    return Err(Error::IoError);
                }
            }
            None => return Err(Error::IoError),
        }
        let last = &reply.final_data;
        if reply.result.is_ok() && !path.put(last.offset, &last.data) {
            return Err(Error::IoError);
        }
        reply.result
    }

    fn complain(&self, why: Fault) {
        if !self.has_complained.replace(true) {
            let (name, number) = (&self.name, self.number);
            log!(error, "ublk {name}: queue {number} is not served any more: the kernel refuses its commands: {why:?}");
        }
    }
}

/// Counts a tag that ends, also by the end of its task.
struct TagEnd<'a>(&'a Queue);

impl Drop for TagEnd<'_> {
    fn drop(&mut self) {
        let left = self.0.tags.get() - 1;
        self.0.tags.set(left);
        if left == 0 {
            self.0.handle.take();
        }
    }
}
