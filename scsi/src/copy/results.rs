//! What is known of the third-party copies of a nexus: those that run, and how the last ones ended (SPC-4 5.16.4).

use super::tokens::Token;
use crate::admit::Refusal;
use crate::command::Status;
use crate::sense::{Asc, Sense, SenseData};
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// TOTAL CONCURRENT COPIES, MAXIMUM CONCURRENT COPIES: those of a nexus that run and those whose end is kept. Hosts
/// have some dozens under way; what is kept of each is small.
pub const COPIES_MAX: usize = 128;

/// How far a copy is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// It runs.
    Running,
    /// It ended well.
    Good,
    /// It ended with this status.
    Failed(Status),
}

/// Who asks for a copy, and whether he means to ask how it ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ask {
    /// The service action that asked.
    pub action: u8,
    /// Its list identifier; `None` if it has none.
    pub id: Option<u32>,
    /// Whether the initiator means to ask how it ended.
    pub keeps: bool,
}

/// A copy of one nexus.
#[derive(Debug)]
pub struct Record {
    lun: u16,
    /// Who asked for it.
    pub ask: Ask,
    /// What POPULATE TOKEN made.
    pub token: Option<Box<Token>>,
    state: Cell<State>,
    segments: Cell<u16>,
    bytes: Cell<u64>,
    sense: RefCell<SenseData>,
    is_stopped: Cell<bool>,
    /// The unit that it writes to now: another than the one that it was asked for at, perhaps.
    writes_to: Cell<Option<u16>>,
}

impl Record {
    /// How far it is.
    #[must_use]
    pub fn state(&self) -> State {
        self.state.get()
    }

    /// Segments that are done.
    #[must_use]
    pub fn segments(&self) -> u16 {
        self.segments.get()
    }

    /// Bytes that these have moved.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.get()
    }

    /// The sense data that it ended with; empty if none.
    #[must_use]
    pub fn sense(&self) -> SenseData {
        self.sense.borrow().clone()
    }

    fn is(&self, lun: u16, id: u32) -> bool {
        self.lun == lun && self.ask.id == Some(id)
    }

    fn runs(&self) -> bool {
        self.state.get() == State::Running
    }

    fn writes_to(&self, units: &[u16]) -> bool {
        self.writes_to.get().is_some_and(|unit| units.contains(&unit))
    }
}

/// The copies of a nexus.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    records: RefCell<Vec<Rc<Record>>>,
    waiters: RefCell<Vec<Waker>>,
}

impl Copies {
    /// Begins one.
    ///
    /// # Errors
    /// OPERATION IN PROGRESS while another of the same list identifier runs; BUSY while too many run.
    pub(crate) fn begin(&self, lun: u16, ask: Ask) -> Result<Running<'_>, Refusal> {
        self.room(lun, ask)?;
        Ok(Running { copies: self, record: self.add(lun, ask, State::Running, 0, None) })
    }

    /// Keeps a token that was made of so many bytes.
    pub(crate) fn populated(&self, lun: u16, ask: Ask, bytes: u64, token: Token) {
        self.add(lun, ask, State::Good, bytes, Some(Box::new(token)));
    }

    /// Makes room for one.
    ///
    /// # Errors
    /// As [`Copies::begin`].
    pub(crate) fn room(&self, lun: u16, ask: Ask) -> Result<(), Refusal> {
        let mut records = self.records.borrow_mut();
        let same = |record: &Record| ask.id.is_some() && record.ask.id == ask.id && record.lun == lun;
        // Those who will not ask how a copy ended give many the same number, and it does no harm.
        if records.iter().any(|record| same(record) && record.runs() && (record.ask.keeps || ask.keeps)) {
            return Err(Sense::illegal(Asc::OPERATION_IN_PROGRESS).into());
        }
        records.retain(|record| !same(record) || record.runs());
        if records.len() >= COPIES_MAX {
            // The one that ended longest ago is forgotten.
            let Some(oldest) = records.iter().position(|record| !record.runs()) else {
                return Err(Refusal::bare(Status::BUSY));
            };
            records.remove(oldest);
        }
        Ok(())
    }

    fn add(&self, lun: u16, ask: Ask, state: State, bytes: u64, token: Option<Box<Token>>) -> Rc<Record> {
        let record = Rc::new(Record {
            lun,
            ask,
            token,
            state: Cell::new(state),
            segments: Cell::new(0),
            bytes: Cell::new(bytes),
            sense: RefCell::default(),
            is_stopped: Cell::new(false),
            writes_to: Cell::default(),
        });
        self.records.borrow_mut().push(record.clone());
        record
    }

    /// The last one of this list identifier.
    pub(crate) fn find(&self, lun: u16, id: u32) -> Option<Rc<Record>> {
        self.records.borrow().iter().rfind(|record| record.is(lun, id)).cloned()
    }

    /// Whether one of this list identifier runs.
    pub(crate) fn runs(&self, lun: u16, id: u32) -> bool {
        self.records.borrow().iter().any(|record| record.is(lun, id) && record.runs())
    }

    /// Ends those of this list identifier; done when they have ended.
    pub(crate) async fn stop(&self, lun: u16, id: u32) {
        for record in self.records.borrow().iter().filter(|record| record.is(lun, id)) {
            record.is_stopped.set(true);
        }
        poll_fn(|cx| {
            if !self.runs(lun, id) {
                return Poll::Ready(());
            }
            self.waiters.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Ends those that write to one of these units now.
    pub(crate) fn stop_writing(&self, units: &[u16]) {
        self.records.borrow().iter().filter(|record| record.writes_to(units)).for_each(|record| {
            record.is_stopped.set(true);
        });
    }

    /// Waits until none writes to one of these units that was told to stop.
    pub(crate) async fn until_stopped(&self, units: &[u16]) {
        poll_fn(|cx| {
            if !self.records.borrow().iter().any(|record| record.is_stopped.get() && record.writes_to(units)) {
                return Poll::Ready(());
            }
            self.waiters.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Forgets how those of a logical unit ended.
    pub(crate) fn forget(&self, lun: u16) {
        self.records.borrow_mut().retain(|record| record.lun != lun || record.runs());
    }
}

/// A copy that runs. Dropped before it has ended, it leaves nothing behind.
#[derive(Debug)]
pub(crate) struct Running<'a> {
    copies: &'a Copies,
    record: Rc<Record>,
}

impl Running<'_> {
    /// A segment is done, and has moved so many bytes.
    pub(crate) fn did(&self, bytes: u64) {
        self.record.segments.set(self.record.segments.get().saturating_add(1));
        self.record.bytes.set(self.record.bytes.get() + bytes);
    }

    /// Says which unit it writes to, from now on; `None`: it does not.
    pub(crate) fn writes_to(&self, unit: Option<u16>) {
        self.record.writes_to.set(unit);
        if unit.is_none() {
            self.copies.waiters.take().into_iter().for_each(Waker::wake);
        }
    }

    /// Bytes that it has moved.
    pub(crate) fn bytes(&self) -> u64 {
        self.record.bytes()
    }

    /// Whether COPY OPERATION ABORT ends it.
    pub(crate) fn is_stopped(&self) -> bool {
        self.record.is_stopped.get()
    }

    /// It has ended.
    pub(crate) fn end(self, result: &Result<(), Refusal>, descriptor: bool) {
        let state = match result {
            Ok(()) => State::Good,
            Err(refusal) => {
                let sense = refusal.sense.map(|sense| sense.data(descriptor));
                *self.record.sense.borrow_mut() = sense.unwrap_or_default();
                State::Failed(refusal.status)
            }
        };
        // LIST ID USAGE 10b: of a copy that ended well nobody will ask.
        if self.record.ask.id.is_some() && (self.record.ask.keeps || state != State::Good) {
            self.record.state.set(state);
        }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.record.writes_to.set(None);
        if self.record.runs() {
            self.copies.records.borrow_mut().retain(|record| !Rc::ptr_eq(record, &self.record));
        }
        self.copies.waiters.take().into_iter().for_each(Waker::wake);
    }
}
