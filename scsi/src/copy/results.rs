//! The third-party copies of a nexus: copies in progress and the results of finished ones (SPC-4 5.16.4).

use super::tokens::Token;
use crate::command::Status;
use crate::refusal::Refusal;
use crate::sense::{Asc, Sense, SenseData};
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// TOTAL CONCURRENT COPIES, MAXIMUM CONCURRENT COPIES: limit of a nexus for copies in progress and kept results
/// together. Initiators have some dozens of copies in progress; a record is small.
pub const COPIES_MAX: usize = 128;

/// State of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// In progress.
    Running,
    /// Ended with GOOD.
    Good,
    /// Ended with this status.
    Failed(Status),
}

/// The command that started a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopyRequest {
    /// Its service action.
    pub action: u8,
    /// Its list identifier; `None` if it has none.
    pub id: Option<u32>,
    /// Whether the result is kept for the initiator (LIST ID USAGE 00b).
    pub keeps: bool,
}

/// A copy of one nexus.
#[derive(Debug)]
pub struct Record {
    lun: u16,
    /// The command that started it.
    pub request: CopyRequest,
    /// The token of POPULATE TOKEN.
    pub token: Option<Box<Token>>,
    state: Cell<State>,
    segments: Cell<u16>,
    bytes: Cell<u64>,
    sense: RefCell<SenseData>,
    is_stopped: Cell<bool>,
    /// Whether the result is not kept: the logical unit was reset while the copy was in progress.
    is_forgotten: Cell<bool>,
    /// The unit that the copy writes to now. It may differ from the one that received the command.
    writes_to: Cell<Option<u16>>,
}

impl Record {
    /// Its state.
    #[must_use]
    pub fn state(&self) -> State {
        self.state.get()
    }

    /// Segments that were copied.
    #[must_use]
    pub fn segments(&self) -> u16 {
        self.segments.get()
    }

    /// Bytes that were copied.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.get()
    }

    /// The sense data at its end; empty if none.
    #[must_use]
    pub fn sense(&self) -> SenseData {
        self.sense.borrow().clone()
    }

    fn is(&self, lun: u16, id: u32) -> bool {
        self.lun == lun && self.request.id == Some(id)
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
    /// Starts a copy.
    ///
    /// # Errors
    /// OPERATION IN PROGRESS while another copy has the list identifier; BUSY while the limit of copies is in progress.
    pub(crate) fn begin(&self, lun: u16, request: CopyRequest) -> Result<Running<'_>, Refusal> {
        self.room(lun, request)?;
        Ok(Running { copies: self, record: self.add(lun, request, State::Running, 0, None) })
    }

    /// Keeps the result of POPULATE TOKEN: a token that represents this many bytes.
    pub(crate) fn populated(&self, lun: u16, request: CopyRequest, bytes: u64, token: Token) {
        self.add(lun, request, State::Good, bytes, Some(Box::new(token)));
    }

    /// Makes room for a record.
    ///
    /// # Errors
    /// As [`Copies::begin`].
    pub(crate) fn room(&self, lun: u16, request: CopyRequest) -> Result<(), Refusal> {
        let mut records = self.records.borrow_mut();
        let same = |record: &Record| request.id.is_some() && record.request.id == request.id && record.lun == lun;
        // Initiators that do not keep results use one list identifier for several copies, which is harmless.
        if records.iter().any(|record| same(record) && record.runs() && (record.request.keeps || request.keeps)) {
            return Err(Sense::illegal(Asc::OPERATION_IN_PROGRESS).into());
        }
        records.retain(|record| !same(record) || record.runs());
        if records.len() >= COPIES_MAX {
            // The oldest result is dropped.
            let Some(oldest) = records.iter().position(|record| !record.runs()) else {
                return Err(Refusal::bare(Status::BUSY));
            };
            records.remove(oldest);
        }
        Ok(())
    }

    fn add(&self, lun: u16, request: CopyRequest, state: State, bytes: u64, token: Option<Box<Token>>) -> Rc<Record> {
        let record = Rc::new(Record {
            lun,
            request,
            token,
            state: Cell::new(state),
            segments: Cell::new(0),
            bytes: Cell::new(bytes),
            sense: RefCell::default(),
            is_stopped: Cell::new(false),
            is_forgotten: Cell::new(false),
            writes_to: Cell::default(),
        });
        self.records.borrow_mut().push(record.clone());
        record
    }

    /// The latest copy with this list identifier.
    pub(crate) fn find(&self, lun: u16, id: u32) -> Option<Rc<Record>> {
        self.records.borrow().iter().rfind(|record| record.is(lun, id)).cloned()
    }

    /// Whether a copy with this list identifier is in progress.
    pub(crate) fn runs(&self, lun: u16, id: u32) -> bool {
        self.records.borrow().iter().any(|record| record.is(lun, id) && record.runs())
    }

    /// Stops the copies with this list identifier and waits until they have ended.
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

    /// Stops the copies that write to one of these units now.
    pub(crate) fn stop_writing(&self, units: &[u16]) {
        self.records.borrow().iter().filter(|record| record.writes_to(units)).for_each(|record| {
            record.is_stopped.set(true);
        });
    }

    /// Waits until no stopped copy writes to one of these units.
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

    /// Drops the results of a logical unit, also those of copies in progress.
    pub(crate) fn forget(&self, lun: u16) {
        let mut records = self.records.borrow_mut();
        records.retain(|record| record.lun != lun || record.runs());
        records.iter().filter(|record| record.lun == lun).for_each(|record| record.is_forgotten.set(true));
    }
}

/// A copy in progress. If it is dropped before its end, its record is removed.
#[derive(Debug)]
pub(crate) struct Running<'a> {
    copies: &'a Copies,
    record: Rc<Record>,
}

impl Running<'_> {
    /// Counts a copied segment and its bytes.
    pub(crate) fn did(&self, bytes: u64) {
        self.record.segments.set(self.record.segments.get().saturating_add(1));
        self.record.bytes.set(self.record.bytes.get() + bytes);
    }

    /// Sets the unit that the copy writes to from now on; `None` for none.
    pub(crate) fn writes_to(&self, unit: Option<u16>) {
        self.record.writes_to.set(unit);
        if unit.is_none() {
            self.copies.waiters.take().into_iter().for_each(Waker::wake);
        }
    }

    /// Bytes that were copied.
    pub(crate) fn bytes(&self) -> u64 {
        self.record.bytes()
    }

    /// Whether the copy was told to stop.
    pub(crate) fn is_stopped(&self) -> bool {
        self.record.is_stopped.get()
    }

    /// Ends the copy and keeps its result.
    pub(crate) fn end(self, result: &Result<(), Refusal>, descriptor: bool) {
        let state = match result {
            Ok(()) => State::Good,
            Err(refusal) => {
                let sense = refusal.sense.map(|sense| sense.data(descriptor));
                *self.record.sense.borrow_mut() = sense.unwrap_or_default();
                State::Failed(refusal.status)
            }
        };
        // LIST ID USAGE 10b: the result of a successful copy is not kept.
        let is_kept = self.record.request.keeps || state != State::Good;
        if self.record.request.id.is_some() && is_kept && !self.record.is_forgotten.get() {
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
