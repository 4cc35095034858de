//! Sessions to logical units of iSCSI targets.

use crate::connection::{Connection, open_many};
use crate::options::Options;
use crate::report::{Agreed, Negotiated};
use crate::scsi::{self, Answer};
use crate::session::{Outcome, Request, SessionEvent, StreamSession, Work};
use crate::target::{Capacity, DiscoveredTarget, OpenSessions, time_logins};
use crate::url::Url;
use anyhow::{Context, Result, anyhow, bail};
use lunar_core::outgoing::{Moves, Outgoing};
use lunar_iscsi::text;
use lunar_iscsi::wire::{AsyncEvent, Response};
use lunar_iscsi_initiator::Error;
use lunar_iscsi_initiator::cdb::{self, CAPACITY_LEN, Key, Sense, Status};
use lunar_iscsi_initiator::config::Offer;
use lunar_iscsi_initiator::session::{Command, Event, Residual, Session};
use std::time::Duration;

/// Redirections that are followed.
const MOVES_MAX: u32 = 4;
/// The login status class of redirections.
const CLASS_REDIRECTION: u16 = 1;

/// The peripheral device type of tapes (SPC-6 6.7.2).
const TAPE: u8 = 0x01;
/// The blocks of a tape, for the arithmetic of the load: more than a run writes.
const TAPE_BLOCKS: u64 = 1 << 32;

/// A session, and the logical unit of its commands.
#[derive(Debug)]
pub(crate) struct LogicalUnit {
    session: Session,
    lun: [u8; 8],
    /// Whether it is a tape, which has blocks of any length, one after the other.
    is_tape: bool,
}

impl StreamSession for LogicalUnit {
    fn output(&self) -> &Outgoing {
        self.session.output()
    }

    fn sent(&mut self, count: usize) {
        self.session.sent(count);
    }

    fn room(&self) -> u32 {
        self.session.room()
    }

    #[inline]
    fn start(&mut self, request: Request) {
        let Request { cookie, work, lba, blocks, bytes, fua } = request;
        let cdb = match work {
            _ if !self.is_tape => scsi::cdb_of(&work, (lba, blocks), fua),
            Work::Read => cdb::read_tape(bytes),
            Work::Write(_) => cdb::write_tape(bytes),
            Work::Flush => cdb::synchronize_tape(),
        };
        let moves = match work {
            Work::Read => Moves::In(bytes),
            Work::Write(data) => Moves::Out(data),
            Work::Flush => Moves::Nothing,
        };
        let command = Command { cookie, lun: self.lun, cdb: cdb::in_its_length(&cdb), moves };
        self.session.submit(command).expect("the caller checks for room");
    }

    #[inline]
    fn receive(&mut self, bytes: &[u8], on: &mut impl FnMut(SessionEvent<'_>)) -> Result<()> {
        let (mut outcome, is_tape) = (Ok(()), self.is_tape);
        self.session.receive(bytes, &mut |event| match event {
            Event::Data { cookie, bytes, .. } => on(SessionEvent::Data(cookie, bytes)),
            Event::Done { cookie, response, status, residual, sense } => {
                let good = response == Response::COMPLETED && status == 0 && residual == Residual::None;
                // The write of a tape beyond early warning: it was executed (SSC-5 4.2.9).
                let is_early_warning = || is_tape && residual == Residual::None && has_no_sense_key(sense);
                let is_executed = good || is_early_warning();
                let ending =
                    if is_executed { Outcome::Good } else { failure(response, Status(status), residual, sense) };
                on(SessionEvent::Done(cookie, ending));
            }
            Event::Rejected { reason, .. } => outcome = Err(anyhow!("the target rejected a PDU: {reason:?}")),
            Event::Async(event) if event != AsyncEvent::SCSI && event != AsyncEvent::VENDOR => {
                outcome = Err(anyhow!("the target sent the asynchronous message {event:?}"));
            }
            _ => {}
        })?;
        outcome
    }
}

/// Whether these are sense data with the key NO SENSE.
#[cold]
fn has_no_sense_key(sense: &[u8]) -> bool {
    Sense::parse(sense).is_some_and(|sense| sense.key == Key::NO_SENSE)
}

#[cold]
fn failure(response: Response, status: Status, residual: Residual, sense: &[u8]) -> Outcome {
    scsi::failure(status, sense, || match response {
        Response::COMPLETED => format!("{status:?}, residual {residual:?}"),
        _ => format!("{response:?}"),
    })
}

impl Connection<LogicalUnit> {
    /// Sends and receives until `done` returns `true`.
    fn until(&mut self, timeout: Duration, mut is_done: impl FnMut(Event<'_>) -> bool) -> Result<()> {
        let mut done = false;
        self.exchange(timeout, |unit, bytes| {
            unit.session.receive(bytes, &mut |event| done |= is_done(event))?;
            Ok(done)
        })
    }

    /// Executes one command and waits for its completion.
    fn call(&mut self, cdb: &[u8], data_in: u32, timeout: Duration) -> Result<Answer> {
        let moves = if data_in == 0 { Moves::Nothing } else { Moves::In(data_in) };
        let command = Command { cookie: 0, lun: self.session.lun, cdb, moves };
        let shut = |_| anyhow!("the command window is closed after the login");
        self.session.session.submit(command).map_err(shut)?;
        let mut answer = Answer::default();
        self.until(timeout, |event| match event {
            Event::Data { bytes, .. } => {
                answer.data.extend_from_slice(bytes);
                false
            }
            Event::Done { status, sense, .. } => {
                answer.status = status;
                answer.sense = sense.to_vec();
                true
            }
            _ => false,
        })?;
        Ok(answer)
    }

    /// Executes one command before the load starts.
    fn set_up(&mut self, cdb: &[u8], data_in: u32, timeout: Duration) -> Result<Vec<u8>> {
        scsi::set_up(|| self.call(cdb, data_in, timeout))
    }
}

/// Logs out if possible. The socket is closed with the connection.
pub(crate) fn close(mut connection: Connection<LogicalUnit>, timeout: Duration) {
    if connection.session.session.log_out().is_ok() {
        // A missing answer to a logout is no error of the run.
        let _ = connection.until(timeout, |event| event == Event::LoggedOut);
    }
}

fn unit(url: &Url, offer: Offer) -> LogicalUnit {
    // LUNs in URLs have 14 bits.
    LogicalUnit { session: Session::new(offer), lun: cdb::lun(url.unit as u16), is_tape: false }
}

/// Connects and logs in. Follows redirections; `url` is then the URL at the new portal.
fn open_one(url: &mut Url, offer: &Offer, timeout: Duration) -> Result<Connection<LogicalUnit>> {
    for _ in 0..MOVES_MAX {
        let mut connection = Connection::connect(url, unit(url, offer.clone()), timeout)?;
        let error = match connection.until(timeout, |event| event == Event::LoggedIn) {
            Ok(()) => return Ok(connection),
            Err(error) => error,
        };
        match error.downcast_ref() {
            Some(Error::Login(status, Some(address))) if status.0 >> 8 == CLASS_REDIRECTION => {
                *url = url.at_portal(address).map_err(anyhow::Error::msg)?;
            }
            _ => return Err(error.context(format!("logging in at {url}"))),
        }
    }
    bail!("{url}: too many redirections")
}

fn many(url: &Url, offers: impl Iterator<Item = Offer>, timeout: Duration) -> Result<Vec<Connection<LogicalUnit>>> {
    open_many(url, offers.map(|offer| unit(url, offer)), timeout, |unit, bytes| {
        let mut done = false;
        unit.session.receive(bytes, &mut |event| done |= event == Event::LoggedIn)?;
        Ok(done)
    })
}

/// Opens all sessions of a run and queries the capacity of the logical unit.
pub(crate) fn open(options: &Options) -> Result<OpenSessions<Connection<LogicalUnit>>> {
    options.check_for_iscsi().map_err(anyhow::Error::msg)?;
    let (mut url, timeout) = (options.url.clone(), options.timeout);
    if url.target.is_none() {
        let found = discover(&url, options.offer(None, 0), timeout)?;
        let target = found.into_iter().next().with_context(|| format!("discovery at {url} returned no target"))?;
        url.target = Some(target.name);
    }
    let offer = |session| options.offer(url.target.clone(), session);
    let mut at = url.clone();
    let mut active = vec![open_one(&mut at, &offer(0), timeout)?];
    active.extend(many(&at, (1..options.sessions).map(offer), timeout)?);
    for connection in &mut active {
        connection.set_up(&cdb::TEST_UNIT_READY[..6], 0, timeout).context("the unit is not ready")?;
    }
    let capacity = capacity_of(&mut active, options)?;
    let session = &active[0].session.session;
    let negotiated = Negotiated::Iscsi(Agreed::new(session.agreed(), session.room()));
    let first = options.sessions;
    let (idle, logins) = time_logins(options.idle_sessions, || {
        many(&at, (0..options.idle_sessions).map(|session| offer(first + session)), timeout)
    })?;
    Ok(OpenSessions { url: at, active, idle, capacity, transfer_max: u32::MAX, negotiated, logins })
}

/// The capacity of the unit. A tape is rewound, and has blocks of the length of a command.
fn capacity_of(active: &mut [Connection<LogicalUnit>], options: &Options) -> Result<Capacity> {
    let timeout = options.timeout;
    let first = active.first_mut().context("a session")?;
    let inquiry = first.set_up(cdb::in_its_length(&cdb::inquiry()), cdb::INQUIRY_LEN, timeout);
    let inquiry = inquiry.context("INQUIRY failed")?;
    if inquiry.first().is_some_and(|byte| byte & 0x1f == TAPE) {
        options.check_for_tape().map_err(anyhow::Error::msg)?;
        first.set_up(cdb::in_its_length(&cdb::rewind()), 0, timeout).context("REWIND failed")?;
        first.session.is_tape = true;
        return Ok(Capacity { blocks: TAPE_BLOCKS, block_size: options.bs });
    }
    let data = first.set_up(&cdb::read_capacity(), CAPACITY_LEN, timeout);
    scsi::capacity(&data.context("READ CAPACITY (16) failed")?)
}

/// The targets that discovery at the portal of `url` returns.
///
/// # Errors
/// If the portal cannot be reached or refuses discovery.
pub(crate) fn discover(url: &Url, offer: Offer, timeout: Duration) -> Result<Vec<DiscoveredTarget>> {
    let mut url = url.clone();
    let mut connection = open_one(&mut url, &Offer { target: None, ..offer }, timeout)?;
    let shut = |_| anyhow!("the command window is closed after the login");
    connection.session.session.discover().map_err(shut)?;
    let mut text = Vec::new();
    connection.until(timeout, |event| match event {
        Event::Targets(targets) => {
            text = targets.to_vec();
            true
        }
        _ => false,
    })?;
    close(connection, timeout);
    parse_targets(&text)
}

fn parse_targets(text: &[u8]) -> Result<Vec<DiscoveredTarget>> {
    let mut found: Vec<DiscoveredTarget> = Vec::new();
    for pair in text::pairs(text) {
        match pair.map_err(|error| anyhow!("the response to SendTargets is malformed: {error}"))? {
            ("TargetName", name) => found.push(DiscoveredTarget { name: name.to_owned(), addresses: Vec::new() }),
            ("TargetAddress", address) => {
                let last = found.last_mut().context("the response to SendTargets begins with an address")?;
                last.addresses.push(address.to_owned());
            }
            _ => {}
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_parsed_with_their_portals() {
        let text = b"TargetName=iqn.a\0TargetAddress=10.0.0.1:3260,1\0TargetAddress=[::1]:3260,2\0TargetName=iqn.b\0";
        let found = parse_targets(text).expect("good");
        assert_eq!((found.len(), &*found[0].name, found[0].addresses.len(), &*found[1].name), (2, "iqn.a", 2, "iqn.b"));
        assert!(parse_targets(b"TargetAddress=x\0").is_err());
    }
}
