//! What a command sees while it plans.

use crate::command::Command;
use crate::lu::LogicalUnit;
use crate::nexus::{Addressee, ItlNexus, Nexus};
use crate::sense::{Asc, Sense};
use crate::target::Target;
use lunar_core::wire::Writer;

/// What a command sees while it plans: who asks whom, and where the answer goes.
#[derive(Debug)]
pub struct Context<'a> {
    /// The device.
    pub target: &'a Target,
    /// Who asks.
    pub nexus: &'a Nexus,
    /// Who is asked.
    pub addressee: &'a Addressee,
    /// The command as it came.
    pub command: &'a Command,
    /// Where the answer goes; as long as the allocation length.
    pub out: Writer<'a>,
}

impl<'a> Context<'a> {
    /// The disk that is asked.
    ///
    /// # Errors
    /// LOGICAL UNIT NOT SUPPORTED if it is none.
    pub fn disk(&self) -> Result<&'a LogicalUnit, Sense> {
        self.itl().map(|itl| &*itl.lu)
    }

    /// The disk that is asked, as this nexus sees it.
    ///
    /// # Errors
    /// LOGICAL UNIT NOT SUPPORTED if it is none.
    pub fn itl(&self) -> Result<&'a ItlNexus, Sense> {
        match self.addressee {
            Addressee::Disk(itl) => Ok(itl),
            _ => Err(Sense::illegal(Asc::LOGICAL_UNIT_NOT_SUPPORTED)),
        }
    }
}
