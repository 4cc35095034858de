//! Logical units of iSCSI targets.

use crate::driven::{Driven, Ending, Request, Told, Work};
use crate::link::{Link, open_many};
use crate::options::Options;
use crate::report::{Agreed, Negotiated};
use crate::url::Url;
use crate::{Capacity, Found, Opened, timed};
use anyhow::{Context, Result, anyhow, bail};
use lunar_core::outgoing::{Moves, Outgoing};
use lunar_iscsi::text;
use lunar_iscsi::wire::{AsyncEvent, Response};
use lunar_iscsi_initiator::Error;
use lunar_iscsi_initiator::cdb::{self, CAPACITY_LEN, Key, Sense, Status};
use lunar_iscsi_initiator::config::Offer;
use lunar_iscsi_initiator::session::{Command, Event, Residual, Session};
use std::time::Duration;

/// Portals that a login may be sent on to.
const MOVES_MAX: u32 = 4;
/// The class of login status that says: elsewhere.
const CLASS_REDIRECTION: u16 = 1;
/// Tries of a command of the set-up: a new session may be told several unit attentions.
const SET_UP_TRIES: u32 = 16;
/// How long a busy target is left alone.
const BUSY_PAUSE: Duration = Duration::from_millis(10);

/// A session, and the unit that its commands are for.
#[derive(Debug)]
pub(crate) struct Unit {
    session: Session,
    lun: [u8; 8],
}

impl Driven for Unit {
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
        let (cdb, moves) = match work {
            Work::Read => (cdb::read(lba, blocks, false), Moves::In(bytes)),
            Work::Write(data) => (cdb::write(lba, blocks, fua), Moves::Out(data)),
            Work::Flush => (cdb::synchronize_cache(), Moves::Nothing),
        };
        let len = if cdb[0] < 0x80 { 10 } else { 16 };
        let command = Command { cookie, lun: self.lun, cdb: &cdb[..len], moves };
        self.session.submit(command).expect("no more are started than there is room for");
    }

    #[inline]
    fn receive(&mut self, bytes: &[u8], on: &mut impl FnMut(Told<'_>)) -> Result<()> {
        let mut outcome = Ok(());
        self.session.receive(bytes, &mut |event| match event {
            Event::Data { cookie, bytes, .. } => on(Told::Data(cookie, bytes)),
            Event::Done { cookie, response, status, residual, sense } => {
                let good = response == Response::COMPLETED && status == 0 && residual == Residual::None;
                let ending = if good { Ending::Good } else { not_good(response, Status(status), residual, sense) };
                on(Told::Done(cookie, ending));
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

#[cold]
fn not_good(response: Response, status: Status, residual: Residual, sense: &[u8]) -> Ending {
    let sense = Sense::parse(sense);
    let attention = sense.is_some_and(|sense| sense.key == Key::UNIT_ATTENTION);
    if status == Status::BUSY || status == Status::TASK_SET_FULL || attention {
        return Ending::Again;
    }
    Ending::Failed(match sense {
        Some(sense) => format!("{status:?}, {sense}"),
        None if response != Response::COMPLETED => format!("{response:?}"),
        None => format!("{status:?}, residual {residual:?}"),
    })
}

/// A command's end, for those that wait for it.
#[derive(Debug, Default)]
struct Answer {
    status: u8,
    sense: Vec<u8>,
    data: Vec<u8>,
}

impl Link<Unit> {
    /// Sends and receives until `done` has seen enough.
    fn until(&mut self, patience: Duration, mut done: impl FnMut(Event<'_>) -> bool) -> Result<()> {
        let mut over = false;
        self.talk(patience, |unit, bytes| {
            unit.session.receive(bytes, &mut |event| over |= done(event))?;
            Ok(over)
        })
    }

    /// Carries out one command and waits for its end.
    fn call(&mut self, cdb: &[u8], data_in: u32, patience: Duration) -> Result<Answer> {
        let moves = if data_in == 0 { Moves::Nothing } else { Moves::In(data_in) };
        let command = Command { cookie: 0, lun: self.session.lun, cdb, moves };
        let shut = |_| anyhow!("the target's command window is shut after the login");
        self.session.session.submit(command).map_err(shut)?;
        let mut answer = Answer::default();
        self.until(patience, |event| match event {
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

    /// Carries out a command of the set-up: again while the target is busy or has unit attentions to tell.
    fn set_up(&mut self, cdb: &[u8], data_in: u32, patience: Duration) -> Result<Vec<u8>> {
        let mut trouble = String::new();
        for _ in 0..SET_UP_TRIES {
            let answer = self.call(cdb, data_in, patience)?;
            let (status, sense) = (Status(answer.status), Sense::parse(&answer.sense));
            let attention = sense.is_some_and(|sense| sense.key == Key::UNIT_ATTENTION);
            trouble = sense.map_or_else(|| format!("{status:?}"), |sense| sense.to_string());
            match status {
                Status::GOOD => return Ok(answer.data),
                Status::BUSY | Status::TASK_SET_FULL => std::thread::sleep(BUSY_PAUSE),
                Status::CHECK_CONDITION if attention => {}
                _ => break,
            }
        }
        bail!(trouble)
    }
}

/// Logs out as far as that is possible; the socket closes with the link.
pub(crate) fn close(mut link: Link<Unit>, patience: Duration) {
    if link.session.session.log_out().is_ok() {
        // A target that does not answer a logout loses nothing by it.
        let _ = link.until(patience, |event| event == Event::LoggedOut);
    }
}

fn unit(url: &Url, offer: Offer) -> Unit {
    // The numbers of a URL have 14 bits.
    Unit { session: Session::new(offer), lun: cdb::lun(url.unit as u16) }
}

/// Connects and logs in. A target that moved is followed; `url` then names the new portal.
fn open_one(url: &mut Url, offer: &Offer, patience: Duration) -> Result<Link<Unit>> {
    for _ in 0..MOVES_MAX {
        let mut link = Link::connect(url, unit(url, offer.clone()), patience)?;
        let error = match link.until(patience, |event| event == Event::LoggedIn) {
            Ok(()) => return Ok(link),
            Err(error) => error,
        };
        match error.downcast_ref() {
            Some(Error::Login(status, Some(address))) if status.0 >> 8 == CLASS_REDIRECTION => {
                *url = url.at_portal(address).map_err(anyhow::Error::msg)?;
            }
            _ => return Err(error.context(format!("logging in at {url}"))),
        }
    }
    bail!("{url}: the target moved too often")
}

fn many(url: &Url, offers: impl Iterator<Item = Offer>, patience: Duration) -> Result<Vec<Link<Unit>>> {
    open_many(url, offers.map(|offer| unit(url, offer)), patience, |unit, bytes| {
        let mut over = false;
        unit.session.receive(bytes, &mut |event| over |= event == Event::LoggedIn)?;
        Ok(over)
    })
}

/// All sessions of a run, and the unit they are for.
pub(crate) fn open(options: &Options) -> Result<Opened<Link<Unit>>> {
    options.check_for_iscsi().map_err(anyhow::Error::msg)?;
    let (mut url, patience) = (options.url.clone(), options.timeout);
    if url.target.is_none() {
        let found = discover(&url, options.offer(None, 0), patience)?;
        let target = found.into_iter().next().with_context(|| format!("{url} shows no target"))?;
        url.target = Some(target.name);
    }
    let offer = |session| options.offer(url.target.clone(), session);
    let mut at = url.clone();
    let mut active = vec![open_one(&mut at, &offer(0), patience)?];
    active.extend(many(&at, (1..options.sessions).map(offer), patience)?);
    for link in &mut active {
        link.set_up(&cdb::TEST_UNIT_READY[..6], 0, patience).context("the unit is not ready")?;
    }
    let data = active[0].set_up(&cdb::read_capacity(), CAPACITY_LEN, patience);
    let capacity = cdb::Capacity::parse(&data.context("READ CAPACITY (16) failed")?);
    let capacity = capacity.context("READ CAPACITY (16) answered nonsense")?;
    let session = &active[0].session.session;
    let negotiated = Negotiated::Iscsi(Agreed::new(session.agreed(), session.room()));
    let first = options.sessions;
    let (idle, logins) = timed(options.idle_sessions, || {
        many(&at, (0..options.idle_sessions).map(|session| offer(first + session)), patience)
    })?;
    let capacity = Capacity { blocks: capacity.blocks, block_size: capacity.block_size };
    Ok(Opened { url: at, active, idle, capacity, transfer_max: u32::MAX, negotiated, logins })
}

/// The targets that the portal of `url` shows.
///
/// # Errors
/// When the portal is not there, or refuses discovery.
pub(crate) fn discover(url: &Url, offer: Offer, patience: Duration) -> Result<Vec<Found>> {
    let mut url = url.clone();
    let mut link = open_one(&mut url, &Offer { target: None, ..offer }, patience)?;
    let shut = |_| anyhow!("the target's command window is shut after the login");
    link.session.session.discover().map_err(shut)?;
    let mut text = Vec::new();
    link.until(patience, |event| match event {
        Event::Targets(targets) => {
            text = targets.to_vec();
            true
        }
        _ => false,
    })?;
    close(link, patience);
    parse_targets(&text)
}

fn parse_targets(text: &[u8]) -> Result<Vec<Found>> {
    let mut found: Vec<Found> = Vec::new();
    for pair in text::pairs(text) {
        match pair.map_err(|error| anyhow!("the answer to SendTargets cannot be read: {error}"))? {
            ("TargetName", name) => found.push(Found { name: name.to_owned(), addresses: Vec::new() }),
            ("TargetAddress", address) => {
                let last = found.last_mut().context("the answer to SendTargets begins with an address")?;
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
    fn targets_with_their_portals() {
        let text = b"TargetName=iqn.a\0TargetAddress=10.0.0.1:3260,1\0TargetAddress=[::1]:3260,2\0TargetName=iqn.b\0";
        let found = parse_targets(text).expect("good");
        assert_eq!((found.len(), &*found[0].name, found[0].addresses.len(), &*found[1].name), (2, "iqn.a", 2, "iqn.b"));
        assert!(parse_targets(b"TargetAddress=x\0").is_err());
    }
}
