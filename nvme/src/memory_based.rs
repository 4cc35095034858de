//! Controllers of the memory-based transport model (NVMe Base 2.0 2.1): their queues are in host memory, and the
//! transport that maps that memory opens them, without Connect.

use crate::command::{Command, Direction, FUSE, Sqe, Status};
use crate::controller::{AccessGrant, Controller};
use crate::host::Host;
use crate::limits::{ADMIN_ENTRIES_MAX, QUEUE_ENTRIES_MAX};
use crate::path::{Kind, Path, PortalRef};
use crate::plan::{Plan, QueueChange};
use crate::protect;
use crate::queue::Queue;
use crate::row::Data;
use crate::subsystem::Subsystem;
use crate::table::find_entry;
use lunar_core::port::NexusName;
use lunar_core::time::Instant;
use std::rc::Rc;
use std::sync::Arc;

/// The client that gets a controller, and the namespaces that it sees.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tenant {
    /// NQN of the host. The host identifier is derived from the NQN, so it does not change.
    pub host: Arc<str>,
    /// NQN of the subsystem.
    pub subsystem: Arc<str>,
    /// The name of the map that says which namespaces it sees; none: all.
    pub map: Option<Arc<str>>,
    /// Tag of its portal group; zero: none, and all namespaces are optimized.
    pub group: u16,
    /// The location of the controller, for the list of sessions.
    pub address: String,
}

impl Subsystem {
    /// Makes a controller with its admin queue. `None` when there are too many, or there is no such subsystem.
    #[must_use]
    pub fn open_controller(&self, tenant: &Tenant, now: Instant) -> Option<Rc<Queue>> {
        let id = Host::id_of(&NexusName { initiator: tenant.host.clone(), target_port: 0 });
        let portal_ref = PortalRef { group: tenant.group, ..PortalRef::default() };
        let path = Path { address: tenant.address.clone(), memory: true, portal_ref, ..Path::default() };
        let subsystem = self.config().subsystems.directory().subsystem(&tenant.subsystem)?.clone();
        let access_grant = AccessGrant { subsystem, group: None, map: tenant.map.clone(), source: None };
        let host = Host { nqn: tenant.host.clone(), id };
        let made = self.config().controllers.make(Kind::Io, host, path, (access_grant, false), now)?;
        made.open_queue(0, ADMIN_ENTRIES_MAX).ok()?;
        let admin = self.enter_queue(made, 0, ADMIN_ENTRIES_MAX, true);
        self.count_host(&admin);
        Some(admin)
    }

    /// Makes an I/O queue of a controller.
    ///
    /// # Errors
    /// [`Status::INVALID_QUEUE`], [`Status::QUEUE_SIZE`].
    pub fn open_queue(&self, controller: &Arc<Controller>, id: u16, entries: u16) -> Result<Rc<Queue>, Status> {
        if !(2..=QUEUE_ENTRIES_MAX).contains(&entries) {
            return Err(Status::QUEUE_SIZE);
        }
        if id == 0 {
            return Err(Status::INVALID_QUEUE);
        }
        controller.open_queue(id, entries).map_err(|_| Status::INVALID_QUEUE)?;
        let queue = self.enter_queue(controller.clone(), id, entries, true);
        self.count_host(&queue);
        Ok(queue)
    }

    /// Plans a command about queues in the host's memory, admitted as every command is; `None` for all others. The
    /// transport, which has these queues, carries out the change and completes the command.
    ///
    /// # Errors
    /// The status of a completion: the failure is in the Error Information log already.
    pub fn plan_queue_change(&self, admin: &Rc<Queue>, sqe: &Sqe) -> Option<Result<QueueChange, Status>> {
        find_entry(sqe, admin.id).filter(|row| matches!(row.data, Data::Queues))?;
        self.config().stats.commands.add(1);
        let command = Command { sqe: *sqe, sent: 0, room: 0 };
        let planned = match sqe.flags & FUSE {
            0 => self.admitted(admin, &command).and_then(|(row, _)| self.plan(row, admin, None, &command, &[])),
            _ => Err(Status::FUSED_MISSING.into()),
        };
        Some(match planned {
            Ok(Plan::Queues(change)) => Ok(change),
            Ok(_) => Err(Status::INTERNAL_ERROR),
            Err(refusal) => Err(self.refuse(admin, &command, refusal).status),
        })
    }
}

impl Queue {
    /// Bytes that a command transfers between host memory and the controller: the length that its PRP list describes.
    #[must_use]
    pub fn transfer_bytes(&self, sqe: &Sqe) -> u64 {
        let Some(row) = find_entry(sqe, self.id) else { return 0 };
        match row.data {
            Data::None | Data::Queues => 0,
            Data::Answer(length) => length(sqe),
            Data::List(length) => length(sqe).into(),
            Data::Step if sqe.direction() == Direction::None => 0,
            Data::Step => {
                let blocks = u64::from(sqe.cdw(12) & 0xffff) + 1;
                self.attached(sqe.nsid.get()).map_or(0, |attached| protect::moved(&attached, sqe, blocks))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::command::{Sqe, Status};
    use crate::controller::property;
    use crate::fuzzing::Rig;
    use lunar_core::time::Instant;
    use zerocopy::FromZeros;

    #[test]
    fn a_controller_in_memory_has_its_own_commands() {
        let rig = Rig::default();
        let admin = rig.subsystem.open_controller(&crate::fuzzing::tenant(), Instant(0)).expect("room");
        let controller = admin.controller.clone();
        assert_eq!(rig.subsystem.open_queue(&controller, 1, 1).err(), Some(Status::QUEUE_SIZE));
        assert_eq!(rig.subsystem.open_queue(&controller, 0, 2).err(), Some(Status::INVALID_QUEUE));
        controller.set_property(property::CC, false, 0x46_0001).expect("enabled");
        let io = rig.subsystem.open_queue(&controller, 1, 2).expect("a queue");
        assert_eq!(rig.subsystem.open_queue(&controller, 1, 2).err(), Some(Status::INVALID_QUEUE));
        let mut sqe = Sqe::new_zeroed();
        (sqe.opcode, sqe.nsid) = (2, 1.into());
        sqe.cdw10[2] = 7.into();
        assert_eq!(io.transfer_bytes(&sqe), 8 * u64::from(crate::fuzzing::BLOCK));
        (sqe.opcode, sqe.nsid) = (6, 0.into());
        assert_eq!(admin.transfer_bytes(&sqe), 4096);
        // Fabrics commands do not exist there.
        (sqe.opcode, sqe.nsid) = (0x7f, 4.into());
        assert_eq!(rig.run(&admin, &sqe, &[]).status, Status::INVALID_OPCODE);
        drop(io);
        assert!(rig.subsystem.open_queue(&controller, 1, 2).is_ok());
        drop(admin);
        assert!(controller.is_over());
    }
}
