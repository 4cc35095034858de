//! The holder of a reservation with APTPL, which registers one key after the other until the power is cut.

use anyhow::{Context, Result, ensure};

use super::client::Address;
use super::writer::Progress;
use crate::reservations::{REGISTER_AND_IGNORE, RESERVATION_CONFLICT, RESERVE, keys, out, reserve, write};
use crate::session::{Data, GOOD, Login, Session};

/// The LUN of the volume with the reservation: the second volume.
const LUN: u16 = 1;

/// The holder, and its last acknowledged key.
pub(super) struct Registrant {
    acknowledged: u64,
    /// The key of the request without a response.
    in_flight: Option<u64>,
}

fn session(address: &Address, initiator: &str) -> Result<Session> {
    Session::ready(address.iscsi, &Login::to(&address.target, initiator), LUN)
}

impl Registrant {
    pub(super) fn new() -> Self {
        Self { acknowledged: 0, in_flight: None }
    }

    /// Reserves the unit, and then changes the key of its registration until the power is cut.
    pub(super) fn register_until_cut(&mut self, address: &Address, progress: &Progress) -> Result<()> {
        match self.register(address, progress) {
            Err(_) if progress.is_cut() => Ok(()),
            outcome => outcome.context("the holder of the reservation"),
        }
    }

    fn register(&mut self, address: &Address, progress: &Progress) -> Result<()> {
        let mut holder = session(address, "holder")?;
        loop {
            let next = self.acknowledged + 1;
            self.in_flight = Some(next);
            let (cdb, list) = out(REGISTER_AND_IGNORE, 0, next);
            holder.run(&cdb, Data::Out(list))?.good()?;
            if self.acknowledged == 0 {
                reserve(&mut holder, RESERVE, next, 0)?;
            }
            (self.acknowledged, self.in_flight) = (next, None);
            progress.changed();
        }
    }

    /// After a power cut: the last acknowledged key is registered, and the reservation is in effect.
    pub(super) fn check(&mut self, address: &Address) -> Result<()> {
        if self.acknowledged == 0 {
            return Ok(());
        }
        let (mut holder, mut other) = (session(address, "holder")?, session(address, "other")?);
        let found = keys(&mut other)?;
        let is_known = |key: u64| key == self.acknowledged || Some(key) == self.in_flight;
        ensure!(
            matches!(found[..], [key] if is_known(key)),
            "keys {found:?} after {} was acknowledged with APTPL",
            self.acknowledged
        );
        ensure!(write(&mut other)? == RESERVATION_CONFLICT, "the reservation with APTPL is lost");
        ensure!(write(&mut holder)? == GOOD, "the holder gets a reservation conflict");
        (self.acknowledged, self.in_flight) = (found[0], None);
        Ok(())
    }
}
