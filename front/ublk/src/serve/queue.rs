//! A queue of a device: one task for each tag, which takes a request from the kernel, executes it and answers it.

use super::path::Path;
use super::{Core, LOOK};
use crate::disk::Disk;
use crate::error::QueueBroken;
use crate::life::Claim;
use crate::tag::{IoRequest, Next, Tag};
use crate::wire::{Descriptor, TagCommand};
use lunar_blk::{Attachment, Error, Reply};
use lunar_core::io::{Completion, Data, Fault};
use lunar_core::mem::{Region, SgMut};
use lunar_core::step::SlotContext;
use lunar_reactor::end::End;
use lunar_reactor::endpoint::Endpoint;
use lunar_reactor::endpoint::command::{Command, Request, UblkQueue};
use lunar_reactor::op::Handle;
use lunar_reactor::slots::{contain, contained};
use lunar_reactor::{anonymous, log};
use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;

/// A queue.
pub(super) struct Queue {
    core: Rc<Core>,
    /// The name of the disk, for logs.
    name: String,
    number: u16,
    disk: Arc<Disk>,
    /// Whether the kernel can be told to keep further requests.
    quiesces: bool,
    /// The endpoint of the kernel, until all tags have ended: while it is open, the device cannot be removed.
    handle: RefCell<Option<Handle>>,
    attachment: Rc<Attachment>,
    /// The memory of each tag, until its task has it.
    memory: RefCell<Vec<Region>>,
    /// Tags that have not ended.
    tags: Cell<usize>,
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

/// A request that did not come to its end: its execution panicked.
struct Panicked;

/// All memory of a tag, for the kernel.
fn whole(memory: &Region) -> Data {
    let mut data = SgMut::default();
    memory.buf(0, memory.len()).into_iter().for_each(|buf| data.push(buf));
    Data::In(data)
}

impl Queue {
    /// Takes the memory of a queue. Its device is not touched.
    ///
    /// # Errors
    /// When there is not so much memory.
    pub(super) fn reserve(
        core: &Rc<Core>,
        (name, number, disk): (&str, u16, &Arc<Disk>),
        attachment: &Rc<Attachment>,
        claim: &Claim,
    ) -> io::Result<Rc<Self>> {
        let memory = anonymous::regions(claim.depth.into(), claim.buffer_bytes as usize)?;
        Ok(Rc::new(Self {
            core: core.clone(),
            name: name.to_owned(),
            number,
            disk: disk.clone(),
            quiesces: claim.quiesces(),
            handle: RefCell::default(),
            attachment: attachment.clone(),
            memory: RefCell::new(memory),
            tags: Cell::default(),
            ended: End::default(),
        }))
    }

    pub(super) fn number(&self) -> u16 {
        self.number
    }

    /// Takes the endpoint of the kernel. No command is given.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub(super) fn attach(&self, endpoint: Endpoint) -> io::Result<()> {
        *self.handle.borrow_mut() = Some(self.core.reactor.attach(endpoint)?);
        Ok(())
    }

    /// Starts the tags.
    pub(super) fn go(self: &Rc<Self>) {
        let memory = self.memory.take();
        // Until their tasks have run once, all tags count as served.
        self.tags.set(memory.len());
        self.disk.begin(memory.len());
        for (tag, memory) in (0..).zip(memory) {
            let queue = self.clone();
            self.core.reactor.spawn(async move { queue.serve(tag, memory).await });
        }
    }

    pub(super) fn attachment(&self) -> &Rc<Attachment> {
        &self.attachment
    }

    /// Whether a tag has a command at the kernel, or a request.
    pub(super) fn is_served(&self) -> bool {
        self.tags.get() > 0
    }

    /// Whether its tags end when the kernel is told to keep further requests.
    pub(super) fn quiesces(&self) -> bool {
        self.quiesces
    }

    /// The end of the service of this queue.
    pub(super) fn ended(&self) -> &End {
        &self.ended
    }

    /// Whether a further request is left to the next process: the kernel issues it again when this process has ended.
    /// Where the kernel keeps requests itself, those that it has given before are executed.
    fn leaves(&self) -> bool {
        self.core.leaves(self.quiesces)
    }

    /// Serves a tag until the device stops.
    async fn serve(&self, number: u16, memory: Region) {
        let _ended = TagEnd(self);
        let Some(handle) = self.handle.borrow().clone() else { return };
        let mut command = Command::new(Request::UblkQueue(UblkQueue::default()), whole(&memory));
        let mut tag = Tag::new(self.number, number, memory.len());
        let reactor = &self.core.reactor;
        let mut slot = SlotContext::timed(reactor.arena().clone(), reactor.stats());
        let mut completion = Completion::new();
        while let Some(next) = tag.command() {
            let TagCommand { number, queue, tag: of, result } = next;
            command.request = Request::UblkQueue(UblkQueue { number, queue, tag: of, result });
            let (result, back) = reactor.command(&handle, command, &mut completion).await;
            let Some(back) = back else { return };
            command = back;
            match tag.answered(result.map(|_| Descriptor::of(command.result))) {
                Next::Execute(_) if self.leaves() => return,
                Next::Execute(request) => {
                    let _busy = Counted::new(&self.core.busy);
                    let executed = self.execute(&request, (&memory, of), &mut slot).await;
                    if executed.is_err() {
                        command.data = Data::None;
                        self.wait_for_store(&memory).await;
                        command.data = whole(&memory);
                    }
                    tag.finish(executed.unwrap_or(Err(Error::IoError)));
                }
                Next::Refuse | Next::Stopped => {}
                Next::Broken(why) => self.break_off(why),
            }
        }
    }

    /// Waits after a panic until no store uses the memory of the tag any more: the next request would change it, and a
    /// write that is repeated would be overtaken by the first one.
    async fn wait_for_store(&self, memory: &Region) {
        while memory.is_in_use() {
            self.core.reactor.sleep(LOOK).await;
        }
    }

    async fn execute(
        &self,
        request: &IoRequest,
        (memory, tag): (&Region, u16),
        slot: &mut SlotContext,
    ) -> Result<Result<(), Error>, Panicked> {
        let block = &self.core.block;
        let (request, mut reply) = (request.request(), Reply::default());
        let path = Path::new(memory, None);
        let arena = &slot.arena.clone();
        match contain(|| block.execute_now(&self.attachment, &request, &path, arena, &mut reply)) {
            Some(true) => {}
            Some(false) => {
                let task = self.attachment.tasks.enter(u64::from(self.number) << 16 | u64::from(tag));
                let path = Path::new(memory, Some(&task));
                let executed = contained(block.execute(&self.attachment, &request, &path, slot, &mut reply)).await;
                if executed.is_none() {
                    slot.completion = Completion::new();
                }
                executed.ok_or(Panicked)?;
            }
            None => return Err(Panicked),
        }
        let last = &reply.final_data;
        if reply.result.is_ok() && !path.put(last.offset, &last.data) {
            return Ok(Err(Error::IoError));
        }
        Ok(reply.result)
    }

    fn break_off(&self, why: Fault) {
        let broken = QueueBroken { name: self.name.clone(), queue: self.number, why };
        if self.disk.break_off(broken.clone()) {
            log!(error, "{broken}");
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
            self.0.ended.come();
        }
        self.0.disk.end();
    }
}
