//! Reservations in the terms of NVMe. Their state is the unit's: [`lunar_unit::reserve`].

use crate::command::{Refusal, Status};
use crate::controller::Controller;
use crate::fault;
use crate::features;
use crate::namespace::Namespace;
use crate::queue::{Queue, Task};
use crate::subsystem::Subsystem;
use lunar_unit::reserve::{self, Notice, Request};
use lunar_unit::{Denial, Refused, UnitChange};

/// The type of a reservation notification (NVMe Base 2.0 5.16.1.24).
fn notification_type(notice: Notice) -> u8 {
    match notice {
        Notice::RegistrationPreempted => 1,
        Notice::ReservationReleased => 2,
        Notice::ReservationPreempted => 3,
    }
}

/// Adds a notification to the log of a controller, unless its host has masked notifications of this type (feature 82h).
pub(crate) fn notify(controller: &Controller, namespace: u32, notice: Notice) {
    let kind = notification_type(notice);
    let mask = controller.values(|values| values.get(features::RESERVATION_MASK, namespace));
    if mask & 1 << kind == 0 {
        controller.notice(kind, namespace);
    }
}

/// The status of a command whose request is refused.
fn status(refused: Refused) -> Status {
    match refused {
        Refused::Denied(Denial::Reservation(reserve::Denial::Conflict)) => Status::RESERVATION_CONFLICT,
        Refused::Denied(Denial::Reservation(reserve::Denial::NoRoom)) => Status::CAPACITY,
        Refused::Denied(_) => Status::INVALID_FIELD,
        Refused::Metadata(fault) => fault::transfer(fault),
    }
}

impl Subsystem {
    /// Makes a reservation request for a host. Returns when all cores go by it, and the commands that it aborts have
    /// ended.
    ///
    /// # Errors
    /// How the command ends: nothing has changed.
    pub(crate) async fn reserve(
        &self,
        queue: &Queue,
        task: &Task,
        namespace: &Namespace,
        request: Request,
    ) -> Result<(), Refusal> {
        let change = UnitChange::Reservations { nexus: queue.name().clone(), request };
        let units = &self.config().units;
        let changed = units.change(&namespace.unit, Some(queue.name()), change, task.until_aborted()).await;
        changed.map(drop).map_err(|refused| status(refused).into())
    }
}
