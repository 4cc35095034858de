//! Protection information of commands (NVM Command Set 1.0 5.2) on namespaces that show it as metadata: PRINFO and the
//! tags.

use crate::command::{Sqe, Status};
use crate::namespace::Attached;
use lunar_core::protection::{Checks, INFO_BYTES, Kind, Rules, Terms};

/// PRINFO: the action on protection information (PRACT), and its checks (PRCHK).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Prinfo(u8);

impl Prinfo {
    /// PRINFO of a command; PRINFOW of Copy.
    pub(crate) fn of(sqe: &Sqe) -> Self {
        Self((sqe.cdw(12) >> 26 & 0x0f) as u8)
    }

    /// PRINFOR of Copy.
    pub(crate) fn of_source(sqe: &Sqe) -> Self {
        Self((sqe.cdw(12) >> 12 & 0x0f) as u8)
    }

    /// Whether any bit is set.
    pub(crate) fn is_set(self) -> bool {
        self.0 != 0
    }

    /// PRACT: the protection information is not transferred: it is stripped on reads and inserted on writes.
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
    /// The tags of a command: dwords 14 and 15.
    pub(crate) fn of(sqe: &Sqe) -> Self {
        let tags = sqe.cdw(15);
        Self { first: sqe.cdw(14), application: tags as u16, mask: (tags >> 16) as u16 }
    }

    /// The tags of a later block. Type 3 has one reference tag for all.
    pub(crate) fn behind(self, kind: Kind, blocks: u64) -> Self {
        let step = if kind == Kind::Three { 0 } else { blocks as u32 };
        Self { first: self.first.wrapping_add(step), ..self }
    }
}

/// The operation of a command on blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum About {
    /// The host sends the blocks.
    Read,
    /// The host receives the blocks.
    Write,
    /// The host sends blocks that are compared with those on the medium.
    Compare,
    /// The blocks are read and not transferred.
    Verify,
    /// The controller generates the blocks.
    Zeroes,
}

/// The protection checks of PRINFO and the tags for blocks from `lba` on, with this protection type.
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
    // 5.2.3: with type 1 the reference tag must match the block. It is not generated from another value either: that
    // block would be unreadable.
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
        // 3.2.1: the data is compared, and the protection information is not.
        compared: Checks::NONE,
        first: Some(tags.first),
        application: tags.application,
        mask: tags.mask,
    })
}

/// Bytes that a command transfers for this number of blocks.
pub(crate) fn moved(attached: &Attached, sqe: &Sqe, blocks: u64) -> u64 {
    let travels = attached.shown().is_some() && !Prinfo::of(sqe).acts();
    blocks * (u64::from(attached.namespace.block_size()) + if travels { INFO_BYTES as u64 } else { 0 })
}

#[cfg(test)]
#[path = "protect_tests.rs"]
mod tests;
