//! Protection information as commands ask for it (NVM Command Set 1.0 5.2), of namespaces that are shown with it: what
//! PRINFO and the tags mean.

use crate::command::{Sqe, Status};
use crate::namespace::Attached;
use lunar_core::protection::{Checks, INFO_BYTES, Kind, Rules, Terms};

/// PRINFO: what becomes of protection information (PRACT), and what of it is checked (PRCHK).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Prinfo(u8);

impl Prinfo {
    /// Of a command; of Copy what it writes (PRINFOW).
    pub(crate) fn of(sqe: &Sqe) -> Self {
        Self((sqe.cdw(12) >> 26 & 0x0f) as u8)
    }

    /// Of Copy what it reads (PRINFOR).
    pub(crate) fn of_source(sqe: &Sqe) -> Self {
        Self((sqe.cdw(12) >> 12 & 0x0f) as u8)
    }

    /// Whether it says anything.
    pub(crate) fn is_set(self) -> bool {
        self.0 != 0
    }

    /// PRACT: none travels; what is read loses it, and what is written gets it.
    pub(crate) fn acts(self) -> bool {
        self.0 & 0x08 != 0
    }

    /// PRCHK.
    fn checks(self) -> Checks {
        Checks { guard: self.0 & 0x04 != 0, application: self.0 & 0x02 != 0, reference: self.0 & 0x01 != 0 }
    }
}

/// The tags of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tags {
    /// Initial Logical Block Reference Tag.
    pub(crate) first: u32,
    /// Logical Block Application Tag.
    pub(crate) application: u16,
    /// Logical Block Application Tag Mask.
    pub(crate) mask: u16,
}

impl Tags {
    /// Of a command: dwords 14 and 15.
    pub(crate) fn of(sqe: &Sqe) -> Self {
        let tags = sqe.cdw(15);
        Self { first: sqe.cdw(14), application: tags as u16, mask: (tags >> 16) as u16 }
    }

    /// Those of the block so many blocks behind. Type 3 has one reference tag for all.
    pub(crate) fn behind(self, kind: Kind, blocks: u64) -> Self {
        let step = if kind == Kind::Three { 0 } else { blocks as u32 };
        Self { first: self.first.wrapping_add(step), ..self }
    }
}

/// What a command does with blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum About {
    /// They are sent.
    Read,
    /// They come.
    Write,
    /// They come, and are read.
    Compare,
    /// They are read, and go nowhere.
    Verify,
    /// They are made.
    Zeroes,
}

/// The terms that PRINFO and the tags mean for blocks from `lba` on, which are protected in this way.
///
/// # Errors
/// [`Status::INVALID_PROTECTION`], [`Status::INVALID_FIELD`].
pub(crate) fn terms(kind: Kind, about: About, asked: (Prinfo, Tags), lba: u64) -> Result<Terms, Status> {
    let (info, tags) = asked;
    let (acts, checks) = (info.acts(), info.checks());
    let makes = acts && matches!(about, About::Write | About::Zeroes);
    match about {
        About::Verify if acts => return Err(Status::INVALID_FIELD),
        About::Compare if acts => return Err(Status::INVALID_PROTECTION),
        About::Zeroes if checks != Checks::NONE => return Err(Status::INVALID_PROTECTION),
        _ => {}
    }
    // 5.2.3: with type 1 the host says what is known anyway. It is not made of anything else either: nobody could read
    // that block.
    if kind == Kind::One && (makes || checks.reference) && tags.first != lba as u32 {
        return Err(Status::INVALID_PROTECTION);
    }
    let sent = matches!(about, About::Write | About::Compare) && !acts;
    let kept = matches!(about, About::Read | About::Compare | About::Verify);
    Ok(Terms {
        rules: Rules::Nvme,
        carried: !acts && !matches!(about, About::Verify | About::Zeroes),
        sent: if sent { checks } else { Checks::NONE },
        kept: if kept { checks } else { Checks::NONE },
        // 3.2.1: data is compared, and no protection information.
        compared: Checks::NONE,
        first: Some(tags.first),
        application: tags.application,
        mask: tags.mask,
    })
}

/// Bytes of so many blocks as a command moves them.
pub(crate) fn moved(attached: &Attached, sqe: &Sqe, blocks: u64) -> u64 {
    let travels = attached.shown().is_some() && !Prinfo::of(sqe).acts();
    blocks * (u64::from(attached.namespace.block_size()) + if travels { INFO_BYTES as u64 } else { 0 })
}

#[cfg(test)]
#[path = "protect_tests.rs"]
mod tests;
