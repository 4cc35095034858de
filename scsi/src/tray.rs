//! Media that come and go: disks that can be taken out, and discs in a tray.
//!
//! An initiator ejects and loads by START STOP UNIT. What it ejects lies in the open tray, so it can load it again.
//! Whoever runs the target ejects and loads by [`Target::eject`] and [`Target::load`]: then the medium is out of
//! initiators' reach until it is loaded the same way, and may be another one ([`Target::add_unit`] puts it in the place
//! of the old one).

use crate::admit::Refusal;
use crate::fault;
use crate::lu::{Change, LogicalUnit, MediumState};
use crate::nexus::Nexus;
use crate::sense::{Asc, Sense, SenseKey};
use crate::target::Target;
use lunar_core::io::Fault;
use lunar_core::medium::MediumKind;
use lunar_core::range::Span;
use lunar_core::step::flush_now;
use std::fmt;

/// Where the medium of a unit is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Tray {
    /// In its place: always, for one that cannot be taken out.
    #[default]
    Loaded,
    /// In the open tray: an initiator ejected it, and may load it again.
    Open,
    /// Taken out of the tray, which is open.
    Taken,
    /// Taken out of the tray, which is closed.
    Closed,
}

impl Tray {
    /// What a command is told that needs the medium; `None` if it is there. What is no drive has no tray to close.
    #[must_use]
    pub(crate) fn sense(self, kind: MediumKind) -> Option<Sense> {
        let asc = match (self, kind) {
            (Self::Loaded, _) => return None,
            (Self::Open | Self::Taken, _) => Asc::MEDIUM_NOT_PRESENT_TRAY_OPEN,
            (Self::Closed, MediumKind::Optical) => Asc::MEDIUM_NOT_PRESENT_TRAY_CLOSED,
            (Self::Closed, _) => Asc::MEDIUM_NOT_PRESENT,
        };
        Some(Sense::new(SenseKey::NOT_READY, asc))
    }

    /// Whether it is open.
    #[must_use]
    pub fn is_open(self) -> bool {
        matches!(self, Self::Open | Self::Taken)
    }
}

/// Which way a medium goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Move {
    /// Out.
    Eject,
    /// In.
    Load,
}

/// MEDIA EVENT (MMC-6 6.6.3.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MediaEvent {
    /// Nothing happened.
    #[default]
    None = 0,
    /// Somebody wants the medium, whose removal is prevented.
    EjectRequest = 1,
    /// There is a medium, which there was not.
    NewMedia = 2,
    /// There is no medium any more.
    MediaRemoval = 3,
}

impl MediaEvent {
    /// What a change means of a unit whose medium was there before.
    pub(crate) fn of(change: &Change, before: Tray) -> Option<Self> {
        match (change, before) {
            (Change::EjectRequest, _) => Some(Self::EjectRequest),
            (Change::Tray(Tray::Loaded), Tray::Open | Tray::Taken | Tray::Closed) => Some(Self::NewMedia),
            (Change::Tray(Tray::Open | Tray::Taken | Tray::Closed), Tray::Loaded) => Some(Self::MediaRemoval),
            _ => None,
        }
    }
}

/// Why a medium stays where it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stuck {
    /// There is no logical unit of this number.
    NoUnit,
    /// Its medium cannot be taken out.
    Fixed,
    /// Initiators use it and prevent its removal. They were asked for it, and may eject it themselves.
    Prevented,
    /// It is being formatted, sanitized or loaded.
    Busy,
    /// What was written to it could not be brought to it.
    Store(Fault),
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoUnit => f.write_str("there is no logical unit of this number"),
            Self::Fixed => f.write_str("it is a fixed disk; what is served as cd:... or removable:... can be ejected"),
            Self::Prevented => f.write_str("an initiator uses it and has locked it; it was asked to let it go"),
            Self::Busy => f.write_str("it is being formatted or sanitized"),
            Self::Store(fault) => write!(f, "what was written to it cannot be brought to it: {fault:?}"),
        }
    }
}

impl std::error::Error for Stuck {}

impl Stuck {
    /// How a command ends that it stops.
    fn refusal(self, lu: &LogicalUnit) -> Refusal {
        match self {
            Self::Prevented => Sense::illegal(Asc::MEDIUM_REMOVAL_PREVENTED).into(),
            Self::Busy => match lu.medium() {
                // The other core has not told this one yet.
                MediumState::Ready => MediumState::Formatting.sense(lu).into(),
                state => state.sense(lu).into(),
            },
            Self::Store(fault) => fault::transfer(fault),
            Self::NoUnit | Self::Fixed => Sense::illegal(Asc::LOGICAL_UNIT_NOT_SUPPORTED).into(),
        }
    }
}

impl Target {
    /// Where the medium of a logical unit is, and whether initiators prevent its removal.
    #[must_use]
    pub fn medium(&self, lun: u16) -> Option<(Tray, bool)> {
        self.unit(lun).map(|lu| (lu.tray(), lu.shared.is_prevented()))
    }

    /// Takes the medium of a logical unit out: what was written is on it, and no command reaches it, when this returns.
    /// What initiators prevent happens only if it is forced.
    ///
    /// # Errors
    /// Why it stays.
    pub async fn eject(&self, lun: u16, forced: bool) -> Result<(), Stuck> {
        let lu = self.unit(lun).ok_or(Stuck::NoUnit)?;
        if lu.kind == MediumKind::Fixed {
            return Err(Stuck::Fixed);
        }
        let _turn = lu.shared.turn().await;
        if !forced && lu.shared.is_prevented() {
            self.change(None, lun, Change::EjectRequest).await;
            return Err(Stuck::Prevented);
        }
        self.take_out(&lu, None, Tray::Taken).await
    }

    /// Puts the medium of a logical unit in; initiators are told that it may be another one. Nothing, if it is in.
    ///
    /// # Errors
    /// Why it stays outside.
    pub async fn load(&self, lun: u16) -> Result<(), Stuck> {
        let lu = self.unit(lun).ok_or(Stuck::NoUnit)?;
        if lu.kind == MediumKind::Fixed {
            return Err(Stuck::Fixed);
        }
        let _turn = lu.shared.turn().await;
        if lu.tray() != Tray::Loaded {
            // What tokens stand for may have been on another medium.
            self.config.tokens.forget(lu.unit.id);
            self.place(&lu, Tray::Loaded, None).await;
        }
        Ok(())
    }

    /// Does what a nexus asks for by START STOP UNIT. While anybody prevents removal, and be it this nexus, no medium
    /// moves, in either direction.
    ///
    /// # Errors
    /// How the command ends.
    pub(crate) async fn move_medium(&self, nexus: &Nexus, lu: &LogicalUnit, to: Move) -> Result<(), Refusal> {
        let _turn = lu.shared.turn().await;
        let goes = match to {
            Move::Eject => true,
            Move::Load => lu.tray() != Tray::Loaded,
        };
        if goes && lu.shared.is_prevented() {
            return Err(Stuck::Prevented.refusal(lu));
        }
        match (to, lu.tray()) {
            (Move::Eject, Tray::Loaded) => {
                self.take_out(lu, Some(nexus), Tray::Open).await.map_err(|stuck| stuck.refusal(lu))?;
            }
            (Move::Eject, Tray::Closed) => {
                self.place(lu, Tray::Taken, Some(nexus)).await;
            }
            (Move::Load, Tray::Open) => {
                self.place(lu, Tray::Loaded, Some(nexus)).await;
            }
            (Move::Load, Tray::Taken | Tray::Closed) => {
                self.place(lu, Tray::Closed, Some(nexus)).await;
                return lu.tray().sense(lu.kind).map_or(Ok(()), |sense| Err(sense.into()));
            }
            (Move::Eject, Tray::Open | Tray::Taken) | (Move::Load, Tray::Loaded) => {}
        }
        Ok(())
    }

    /// Has all cores know where the medium is; its stores know before.
    async fn place(&self, lu: &LogicalUnit, tray: Tray, by: Option<&Nexus>) {
        lu.unit.medium.set_out(tray != Tray::Loaded);
        self.change(by, lu.lun, Change::Tray(tray)).await;
    }

    /// Admits no command to the medium any more, waits for those under way, and brings to it what was written.
    async fn take_out(&self, lu: &LogicalUnit, by: Option<&Nexus>, tray: Tray) -> Result<(), Stuck> {
        if lu.tray() != Tray::Loaded {
            self.place(lu, tray, by).await;
            return Ok(());
        }
        let _work = lu.unit.medium.begin().ok_or(Stuck::Busy)?;
        self.place(lu, tray, by).await;
        let whole = Span { start: 0, end: lu.unit.geometry.bytes() };
        drop(lu.unit.exclusive.hold(lu.unit.id, whole).await);
        if lu.unit.read_only {
            return Ok(());
        }
        if let Err(fault) = flush_now(&lu.unit).await {
            self.place(lu, Tray::Loaded, by).await;
            return Err(Stuck::Store(fault));
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "tray_tests.rs"]
mod tests;
