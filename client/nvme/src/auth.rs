//! DH-HMAC-CHAP, the host's side: authenticates the host, and optionally the subsystem, before a queue is used (NVMe
//! Base 2.0 8.13.5).

use crate::Error;
use crate::command;
use lunar_core::outgoing::{Data, Moves};
use lunar_nvme::auth::group::Group;
use lunar_nvme::auth::hash::Hash;
use lunar_nvme::auth::host::Host;
use lunar_nvme::auth::wire::{Failure, Head, Kind, Why};
use lunar_nvme::{Sqe, Status};
use zerocopy::FromBytes;

/// The allocation length for messages of the subsystem, in bytes: longer than any of them, and what other hosts use.
const MESSAGE_MAX: u32 = 4096;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// AUTH_Negotiate was sent.
    Negotiate,
    /// DH-HMAC-CHAP_Challenge is expected.
    Challenge,
    /// DH-HMAC-CHAP_Reply was sent.
    Reply,
    /// DH-HMAC-CHAP_Success1 is expected.
    Success1,
    /// DH-HMAC-CHAP_Success2 was sent.
    Success2,
}

/// An authentication transaction.
#[derive(Debug)]
pub struct Authentication {
    host: Host,
    step: Step,
    challenge: Vec<u8>,
}

/// A command with its data.
pub type Next = (Sqe, Moves);

impl Authentication {
    /// A transaction with these keys.
    #[must_use]
    pub fn new(host: Host) -> Self {
        Self { host, step: Step::Negotiate, challenge: Vec::new() }
    }

    /// Whether the subsystem is authenticated as well.
    #[must_use]
    pub fn is_mutual(&self) -> bool {
        self.host.other.is_some()
    }

    /// The first command: offers all hashes and groups.
    #[must_use]
    pub fn first(&self) -> Next {
        send(self.host.negotiate(&Hash::ALL.map(|hash| hash.0), &Group::ALL.map(|group| group.0)))
    }

    /// The command after the last one, which ended with `status` and returned `message`. `None` when the transaction is
    /// complete.
    ///
    /// # Errors
    /// Why authentication failed.
    pub fn next(&mut self, status: Status, message: &[u8]) -> Result<Option<Next>, Error> {
        if status != Status::SUCCESS {
            return Err(Error::Refused("an authentication command", status));
        }
        let (step, next) = match self.step {
            Step::Negotiate => (Step::Challenge, receive()),
            Step::Reply => (Step::Success1, receive()),
            Step::Challenge => {
                expect(Kind::CHALLENGE, message)?;
                let reply = self.host.reply(message).ok_or(Error::InvalidData("the DH-HMAC-CHAP challenge"))?;
                self.challenge = message.to_vec();
                (Step::Reply, send(reply))
            }
            Step::Success1 => {
                expect(Kind::SUCCESS1, message)?;
                if !self.is_mutual() {
                    return Ok(None);
                }
                // No failure message is sent: the peer is not authenticated.
                if !self.host.believes(&self.challenge, message) {
                    return Err(Error::SubsystemNotAuthenticated);
                }
                (Step::Success2, send(self.host.success()))
            }
            Step::Success2 => return Ok(None),
        };
        self.step = step;
        Ok(Some(next))
    }
}

fn send(message: Vec<u8>) -> Next {
    (command::authentication_send(message.len() as u32), Moves::Out(Data::new(message.into())))
}

fn receive() -> Next {
    (command::authentication_receive(MESSAGE_MAX), Moves::In(MESSAGE_MAX))
}

/// Checks that `message` is of the expected kind.
fn expect(kind: Kind, message: &[u8]) -> Result<(), Error> {
    match Head::ref_from_prefix(message).map(|(head, _)| head.what()) {
        Ok(what) if what == kind => Ok(()),
        Ok(Kind::FAILURE1) => {
            let why = Failure::ref_from_prefix(message).map_or(Why::MESSAGE, |(failure, _)| Why(failure.why));
            Err(Error::AuthenticationFailed(why))
        }
        _ => Err(Error::InvalidData("an unexpected authentication message")),
    }
}
