//! One core's view of a SCSI target device: its ports, its logical units, the I_T nexuses that this core serves.

use crate::command::{Command, Reply, Status};
use crate::lun::Lun;
use crate::sense::{Asc, Sense};
use crate::task::{TaskFunction, TaskResponse, TaskSet};
use lunar_core::port::{NexusName, Transfer};
use lunar_core::stats::Stats;
use lunar_core::step::Tools;
use lunar_core::unit::Unit;
use std::cell::RefCell;
use std::fmt;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;

/// A target port, as the device server describes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortConfig {
    /// Relative target port identifier (SPC-6 7.7.6.5); starts with 1.
    pub relative: u16,
    /// Target port group (SPC-6 7.7.6.8).
    pub group: u16,
    /// SCSI name string of the port: for iSCSI `name,t,0x<portal group tag>`.
    pub name: String,
    /// Protocol identifier (SPC-6 7.6.1): 5 for iSCSI.
    pub protocol: u8,
}

/// What a target device is made from.
#[derive(Clone, Debug)]
pub struct TargetConfig {
    /// SCSI name string of the target device: for iSCSI its name.
    pub name: String,
    /// Its ports.
    pub ports: Vec<PortConfig>,
    /// Which core this is: settles which of two changes made at once is the later one.
    pub core: u16,
    /// Where this core counts.
    pub stats: Arc<Stats>,
}

/// What the other cores must know before a command or function may be answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Mail {
    /// Tasks of the logical unit end; every nexus gets a unit attention.
    LogicalUnitReset {
        /// Which.
        lun: u16,
    },
    /// As [`Mail::LogicalUnitReset`], for all logical units.
    TargetReset,
    /// A unit attention for every nexus.
    UnitAttention {
        /// Which logical unit.
        lun: u16,
        /// What happened.
        asc: Asc,
    },
}

/// The same target device on all other cores.
pub trait Everywhere {
    /// Has [`Target::deliver`] run with `mail` on every other core; done when all are.
    fn broadcast(&self, mail: Mail) -> Pin<Box<dyn Future<Output = ()>>>;
}

/// [`Everywhere`] of a program with one core.
#[derive(Clone, Copy, Debug)]
pub struct Nowhere;

impl Everywhere for Nowhere {
    fn broadcast(&self, _mail: Mail) -> Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(std::future::ready(()))
    }
}

/// One core's view of a SCSI target device.
pub struct Target {
    config: TargetConfig,
    everywhere: Rc<dyn Everywhere>,
    nexuses: RefCell<Vec<Weak<Nexus>>>,
}

/// An I_T nexus: one initiator port joined to one target port. Dropping it ends it.
#[derive(Debug)]
pub struct Nexus {
    /// Its names.
    pub name: NexusName,
    /// Its tasks.
    pub tasks: TaskSet,
}

impl Target {
    /// A target device without logical units.
    #[must_use]
    pub fn new(config: TargetConfig, everywhere: Rc<dyn Everywhere>) -> Rc<Self> {
        Rc::new(Self { config, everywhere, nexuses: RefCell::default() })
    }

    /// Adds a logical unit, or puts another in its place.
    pub fn add_unit(&self, lun: u16, unit: Rc<Unit>) {
        let _ = (lun, unit);
    }

    /// Removes a logical unit. Commands for it that run end as they would.
    pub fn remove_unit(&self, lun: u16) {
        let _ = lun;
    }

    /// A new nexus; each logical unit has a POWER ON unit attention for it.
    #[must_use]
    pub fn nexus(&self, name: NexusName) -> Rc<Nexus> {
        let nexus = Rc::new(Nexus { name, tasks: TaskSet::default() });
        self.nexuses.borrow_mut().push(Rc::downgrade(&nexus));
        nexus
    }

    /// Carries a command out. Called in the order in which the commands of a nexus arrived.
    pub async fn execute<T: Transfer>(
        &self,
        nexus: &Rc<Nexus>,
        command: &Command,
        transfer: &T,
        tools: &mut Tools,
    ) -> Reply {
        let _ = (nexus, command, transfer, tools);
        let mut reply = Reply::bare(Status::CHECK_CONDITION);
        reply.sense = Sense::illegal(Asc::INVALID_COMMAND_OPERATION_CODE).data(false);
        self.config.stats.commands.add(1);
        reply
    }

    /// Carries a task management function out; returns when the tasks that it ends are gone.
    pub async fn task_management(&self, nexus: &Rc<Nexus>, function: TaskFunction, lun: Lun, tag: u64) -> TaskResponse {
        let _ = (nexus, function, lun, tag);
        self.everywhere.broadcast(Mail::TargetReset).await;
        TaskResponse::Rejected
    }

    /// Does on this core what another core asks for.
    pub async fn deliver(&self, mail: Mail) {
        let _ = mail;
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({})", self.config.name)
    }
}
