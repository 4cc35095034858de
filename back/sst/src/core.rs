//! The commands of one core for a volume of another Lunar. Their data is copied to the thread of the volume, as many
//! commands at a time as the target takes; the others keep their memory until then.

use crate::disk::{Answer, Request, Work};
use crate::life::Lifetime;
use crate::service::Message;
use lunar_core::io::{Data, Done, Extent, Fault, Io, Op, Outcome, Store, Traits};
use lunar_reactor::Reactor;
use lunar_reactor::channel::{Receiver, channel};
use lunar_sst_initiator::DEPTH_MAX;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::{Rc, Weak};
use std::sync::Arc;

/// Requests of one core that the thread has: as many as a target takes of all cores, so that it never runs out.
const SENT_MAX: usize = DEPTH_MAX as usize;
/// Bytes of one request, of which the thread has a copy: a step moves less.
const TRANSFER_MAX: usize = 4 << 20;

/// A store on one core.
pub(crate) struct RemoteStore {
    lane: Rc<Lane>,
    traits: Traits,
    /// Every write is durable.
    writes_through: bool,
}

/// The requests of a core.
struct Lane {
    life: Arc<Lifetime>,
    core: u32,
    waiting: RefCell<VecDeque<(Io, Done)>>,
    sent: RefCell<BTreeMap<u64, (Io, Done)>>,
    last: Cell<u64>,
}

impl RemoteStore {
    pub(crate) fn open(reactor: &Reactor, life: &Arc<Lifetime>, traits: Traits, writes_through: bool) -> Self {
        let (sender, answers) = channel(reactor);
        let core = life.new_core();
        let (waiting, sent) = (RefCell::default(), RefCell::default());
        let lane = Rc::new(Lane { life: life.clone(), core, waiting, sent, last: Cell::new(0) });
        life.send(Message::Open(core, sender));
        reactor.spawn(follow(Rc::downgrade(&lane), answers));
        Self { lane, traits, writes_through }
    }

    /// The request as the thread gets it; the fault if it gets none.
    fn check(&self, io: &mut Io) -> Result<(), Fault> {
        if !io.within(self.traits.size) {
            return Err(Fault::OUT_OF_RANGE);
        }
        if io.data.len() > TRANSFER_MAX {
            return Err(Fault::NoMemory);
        }
        match (&mut io.op, &io.data) {
            (Op::Read, Data::In(_)) | (Op::Flush | Op::Extent { .. }, _) => Ok(()),
            (Op::Write { .. } | Op::Zero { .. } | Op::Unmap { .. }, _) if self.traits.read_only => {
                // The command sets refuse them before.
                Err(Fault::Unsupported)
            }
            (Op::Write { durable }, Data::Out(_)) => {
                *durable |= self.writes_through;
                Ok(())
            }
            // Without FUA, and not followed by a flush: the fall-back writes zeroes.
            (Op::Zero { .. }, _) if !self.writes_through => Ok(()),
            (Op::Unmap { .. }, _) if self.traits.unmap_granularity > 0 => Ok(()),
            _ => Err(Fault::Unsupported),
        }
    }
}

impl Store for RemoteStore {
    fn traits(&self) -> &Traits {
        &self.traits
    }

    fn submit(&self, mut io: Io, done: Done) {
        if let Err(fault) = self.check(&mut io) {
            return done.complete(Outcome::with(Err(fault), io.data));
        }
        if let Op::Extent { len } = io.op {
            // All bytes count as mapped.
            let extent = Extent { len, mapped: true };
            return done.complete(Outcome { extent, ..Outcome::with(Ok(0), io.data) });
        }
        if io.op != Op::Flush && io.bytes() == 0 {
            return done.complete(Outcome::with(Ok(0), io.data));
        }
        self.lane.waiting.borrow_mut().push_back((io, done));
        self.lane.send();
    }
}

impl Drop for RemoteStore {
    fn drop(&mut self) {
        self.lane.life.send(Message::Close(self.lane.core));
        self.lane.fail();
    }
}

impl Lane {
    /// Sends requests to the thread, as many as there is room for.
    fn send(&self) {
        while self.sent.borrow().len() < SENT_MAX {
            let next = self.waiting.borrow_mut().pop_front();
            let Some((io, done)) = next else { return };
            let number = self.last.get() + 1;
            self.last.set(number);
            let work = work_of(&io);
            self.sent.borrow_mut().insert(number, (io, done));
            if !self.life.request(Request { core: self.core, number, work }) {
                return self.fail();
            }
        }
    }

    fn answered(&self, answer: Answer) {
        let found = self.sent.borrow_mut().remove(&answer.number);
        let Some((io, done)) = found else { return };
        // Steps move less than 4 GiB at a time.
        let (count, mut data) = (io.data.len() as u32, io.data);
        let result = answer.result.and_then(|bytes| match &mut data {
            Data::In(into) => {
                if into.copy_from(0, &bytes) == into.len() {
                    Ok(count)
                } else {
                    Err(Fault::Protocol)
                }
            }
            _ => Ok(count),
        });
        done.complete(Outcome::with(result, data));
        self.send();
    }

    /// The volume is closed, or its thread has ended.
    fn fail(&self) {
        let sent = std::mem::take(&mut *self.sent.borrow_mut()).into_values();
        let waiting = std::mem::take(&mut *self.waiting.borrow_mut());
        for (io, done) in sent.chain(waiting) {
            done.complete(Outcome::with(Err(Fault::Gone), io.data));
        }
    }
}

fn work_of(io: &Io) -> Work {
    let offset = io.offset;
    match (io.op, &io.data) {
        (Op::Read, data) => Work::Read { offset, len: data.len() },
        (Op::Write { durable }, Data::Out(data)) => {
            // A guest may change its memory meanwhile: it is copied, and not looked at.
            let mut bytes = vec![0; data.len()];
            data.copy_to(0, &mut bytes);
            Work::Write { offset, data: bytes, durable }
        }
        (Op::Unmap { len }, _) => Work::Unmap { offset, len },
        (Op::Zero { len, unmap }, _) => Work::Zero { offset, len, unmap },
        // Others do not get here.
        _ => Work::Flush,
    }
}

/// Follows the thread.
async fn follow(lane: Weak<Lane>, mut answers: Receiver<Answer>) {
    while let Some(answer) = answers.recv().await {
        let Some(lane) = lane.upgrade() else { return };
        lane.answered(answer);
    }
    // The thread has ended.
    lane.upgrade().into_iter().for_each(|lane| lane.fail());
}
