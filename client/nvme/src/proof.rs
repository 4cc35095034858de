//! How a host proves its name before it uses a queue, and has the subsystem prove its own (NVMe Base 2.0 8.13.5).

use crate::Error;
use crate::command;
use lunar_core::outgoing::{Data, Moves};
use lunar_nvme::auth::group::Group;
use lunar_nvme::auth::hash::Hash;
use lunar_nvme::auth::host::Host;
use lunar_nvme::auth::wire::{Failure, Head, Kind, Why};
use lunar_nvme::{Sqe, Status};
use zerocopy::FromBytes;

/// Room for a message of the subsystem: what hosts have, and more than there are bytes in the longest.
const ROOM: u32 = 4096;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// The offer is under way.
    Offer,
    /// What the subsystem wants to know.
    Challenge,
    /// The answer to that is under way.
    Answer,
    /// What it makes of that.
    Verdict,
    /// It was told that it is believed.
    Belief,
}

/// An exchange: which commands come, and what their answers say.
#[derive(Debug)]
pub(crate) struct Proving {
    host: Host,
    step: Step,
    challenge: Vec<u8>,
}

/// A command and its data.
pub(crate) type Next = (Sqe, Moves);

impl Proving {
    pub(crate) fn new(host: Host) -> Self {
        Self { host, step: Step::Offer, challenge: Vec::new() }
    }

    /// Whether the subsystem has to prove its name as well.
    pub(crate) fn is_mutual(&self) -> bool {
        self.host.other.is_some()
    }

    /// The first command: an offer of all that there is.
    pub(crate) fn first(&self) -> Next {
        send(self.host.negotiate(&Hash::ALL.map(|hash| hash.0), &Group::ALL.map(|group| group.0)))
    }

    /// What follows the end of the last command, which brought this message; `None`: all is proven.
    ///
    /// # Errors
    /// Why it is not.
    pub(crate) fn next(&mut self, status: Status, message: &[u8]) -> Result<Option<Next>, Error> {
        if status != Status::SUCCESS {
            return Err(Error::Refused("a proof of the host's name", status));
        }
        let (step, next) = match self.step {
            Step::Offer => (Step::Challenge, receive()),
            Step::Answer => (Step::Verdict, receive()),
            Step::Challenge => {
                expect(Kind::CHALLENGE, message)?;
                let reply = self.host.reply(message).ok_or(Error::Nonsense("its challenge is none"))?;
                self.challenge = message.to_vec();
                (Step::Answer, send(reply))
            }
            Step::Verdict => {
                expect(Kind::SUCCESS1, message)?;
                if !self.is_mutual() {
                    return Ok(None);
                }
                // It is not told: it may be anybody.
                if !self.host.believes(&self.challenge, message) {
                    return Err(Error::Doubts);
                }
                (Step::Belief, send(self.host.success()))
            }
            Step::Belief => return Ok(None),
        };
        self.step = step;
        Ok(Some(next))
    }
}

fn send(message: Vec<u8>) -> Next {
    (command::authentication_send(message.len() as u32), Moves::Out(Data::new(message.into())))
}

fn receive() -> Next {
    (command::authentication_receive(ROOM), Moves::In(ROOM))
}

/// Whether this is the message that is due.
fn expect(kind: Kind, message: &[u8]) -> Result<(), Error> {
    match Head::ref_from_prefix(message).map(|(head, _)| head.what()) {
        Ok(what) if what == kind => Ok(()),
        Ok(Kind::FAILURE1) => {
            let why = Failure::ref_from_prefix(message).map_or(Why::MESSAGE, |(failure, _)| Why(failure.why));
            Err(Error::Disbelieved(why))
        }
        _ => Err(Error::Nonsense("it sends another message than the one that is due")),
    }
}
