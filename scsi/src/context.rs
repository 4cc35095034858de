//! A command and its addressee: [`Call`]. The view of a command while it plans: [`Context`].

use crate::command::Command;
use crate::lu::{Emulated, LogicalUnit};
use crate::nexus::{Addressee, ItlNexus, Nexus};
use crate::row::DeviceType;
use crate::sense::{Asc, Sense};
use crate::target::Target;
use lunar_core::wire::Writer;

/// A command and its addressee.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call<'a> {
    /// The nexus that sent the command.
    pub(crate) nexus: &'a Nexus,
    /// The addressed logical unit.
    pub(crate) addressee: &'a Addressee,
    /// The device type of the logical unit.
    pub(crate) device: &'static DeviceType,
    /// The command as the transport received it.
    pub(crate) command: &'a Command,
}

impl<'a> Call<'a> {
    /// The view of the command while it plans, with this destination of Data-In.
    pub(crate) fn context(self, target: &'a Target, out: Writer<'a>) -> Context<'a> {
        let Self { nexus, addressee, device, command } = self;
        Context { target, nexus, device, addressee, command, out }
    }
}

/// The view of a command while it plans.
#[derive(Debug)]
pub struct Context<'a> {
    /// The device server.
    pub target: &'a Target,
    /// The nexus that sent the command.
    pub nexus: &'a Nexus,
    /// The device type of the logical unit that is addressed.
    pub device: &'static DeviceType,
    /// The addressed logical unit.
    pub addressee: &'a Addressee,
    /// The command as the transport received it.
    pub command: &'a Command,
    /// Destination of Data-In, as long as the allocation length.
    pub out: Writer<'a>,
}

impl<'a> Context<'a> {
    /// The addressed logical unit.
    ///
    /// # Errors
    /// LOGICAL UNIT NOT SUPPORTED if the LUN has none.
    pub fn lu(&self) -> Result<&'a LogicalUnit, Sense> {
        self.itl().map(|itl| &*itl.lu)
    }

    /// The addressed logical unit, if Lunar emulates it.
    ///
    /// # Errors
    /// LOGICAL UNIT NOT SUPPORTED if the LUN has none; INVALID COMMAND OPERATION CODE if it is forwarded.
    pub fn emulated(&self) -> Result<&'a Emulated, Sense> {
        self.itl()?.emulated()
    }

    /// The I_T_L nexus of the command.
    ///
    /// # Errors
    /// LOGICAL UNIT NOT SUPPORTED if the LUN has no logical unit.
    pub fn itl(&self) -> Result<&'a ItlNexus, Sense> {
        match self.addressee {
            Addressee::Unit(itl) => Ok(itl),
            _ => Err(Sense::illegal(Asc::LOGICAL_UNIT_NOT_SUPPORTED)),
        }
    }
}
