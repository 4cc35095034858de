//! The reservations after a request, as a pure function of the state before.

use super::request::{Action, Denial, PersistentRequest, Request};
use super::{LIST_KEY, Notice, REGISTRANTS_MAX, Reservation, ReservationNotices, ReservationType, Reservations};
use lunar_core::port::NexusName;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The type that SCOPE and TYPE ask for; the scope must be the whole unit.
///
/// # Errors
/// [`Denial::Scope`], [`Denial::Type`].
fn reservation_type(scope_and_type: u8) -> Result<ReservationType, Denial> {
    let kind = ReservationType(scope_and_type & 0x0f);
    match (scope_and_type >> 4, kind.name()) {
        (0, Some(_)) => Ok(kind),
        (0, None) => Err(Denial::Type),
        _ => Err(Denial::Scope),
    }
}

impl Reservations {
    /// The reservations after a request of the nexus `by`, and the effects on other registrants.
    ///
    /// # Errors
    /// Why the request is refused.
    pub fn after(&self, by: &NexusName, request: &Request) -> Result<(Self, ReservationNotices), Denial> {
        let mut next = self.clone();
        let notices = match request {
            Request::Reserve | Request::Release => {
                next.change_spc2(by, *request == Request::Reserve)?;
                ReservationNotices::default()
            }
            Request::Persistent(request) => next.change_persistent(by, request)?,
            // An SPC-2 reservation conflicts with every persistent request (SPC-2 5.5.1).
            Request::SetPtpl(_) if next.spc2.is_some() => return Err(Denial::Conflict),
            Request::SetPtpl(ptpl) => {
                next.ptpl = *ptpl;
                ReservationNotices::default()
            }
            Request::SetList { names, force, ptpl } => {
                next.set_list(by, names, *force)?;
                next.ptpl = if names.is_empty() { next.ptpl } else { *ptpl };
                ReservationNotices::default()
            }
        };
        Ok((next, notices))
    }

    /// SPC-2 7.21, 7.25. While there are persistent registrations, RESERVE and RELEASE change nothing: they succeed for
    /// nexuses that have access anyway (CRH), and conflict for all others (SPC-4 5.13.3).
    fn change_spc2(&mut self, by: &NexusName, reserve: bool) -> Result<(), Denial> {
        if !self.registrants.is_empty() {
            return if self.has_access(by) { Ok(()) } else { Err(Denial::Conflict) };
        }
        match (&self.spc2, reserve) {
            (Some(holder), true) if holder != by => return Err(Denial::Conflict),
            (_, true) => self.spc2 = Some(by.clone()),
            (Some(holder), false) if holder == by => self.spc2 = None,
            (_, false) => {}
        }
        Ok(())
    }

    /// Replaces the list of clients of the block command set. They get no notices: their transports have none.
    fn set_list(&mut self, by: &NexusName, names: &[NexusName], force: bool) -> Result<(), Denial> {
        let list = self.list();
        if self.excludes_lists() || !force && !list.is_empty() && !list.contains(&by) {
            return Err(Denial::Conflict);
        }
        let registrants: BTreeMap<NexusName, u64> = names.iter().map(|name| (name.clone(), LIST_KEY)).collect();
        if registrants.len() > REGISTRANTS_MAX {
            return Err(Denial::NoRoom);
        }
        let kind = ReservationType::EXCLUSIVE_ACCESS_ALL_REGISTRANTS;
        self.persistent = (!registrants.is_empty()).then(|| reserved(by, kind));
        if self.registrants != registrants {
            self.registrants = registrants;
            self.generation = self.generation.wrapping_add(1);
        }
        Ok(())
    }

    fn change_persistent(&mut self, by: &NexusName, request: &PersistentRequest) -> Result<ReservationNotices, Denial> {
        // SPC-2 5.5.1: also for the holder itself.
        if self.spc2.is_some() {
            return Err(Denial::Conflict);
        }
        let registered = self.key_of(by);
        match &request.action {
            Action::Register { .. } => self.register(by, registered, request),
            _ if registered != Some(request.key) => Err(Denial::Conflict),
            Action::Reserve => self.reserve(by, reservation_type(request.scope_and_type)?),
            Action::Release => self.release(by, request.scope_and_type),
            Action::Clear => Ok(self.clear(by)),
            Action::Preempt { abort } => self.preempt(by, request, *abort),
            Action::Move { to, unregister, ptpl } => {
                self.move_to(by, to, request.action_key, *unregister)?;
                self.ptpl = *ptpl;
                Ok(ReservationNotices::default())
            }
        }
    }

    /// SPC-4 5.13.7, 5.13.11.2.3
    fn register(
        &mut self,
        by: &NexusName,
        registered: Option<u64>,
        request: &PersistentRequest,
    ) -> Result<ReservationNotices, Denial> {
        let mut notices = ReservationNotices::default();
        let Action::Register { ignore_key, ptpl, ports, initiators } = &request.action else { return Ok(notices) };
        if !ignore_key && request.key != registered.unwrap_or(0) {
            return Err(Denial::Conflict);
        }
        if registered.is_some() && !initiators.is_empty() {
            return Err(Denial::SpecifiesInitiators);
        }
        if registered.is_none() && request.action_key == 0 {
            return Ok(notices);
        }
        let at = |initiator: &Arc<str>, port: &u16| NexusName { initiator: initiator.clone(), target_port: *port };
        for port in ports {
            let own = at(&by.initiator, port);
            match request.action_key {
                0 => self.unregister(&own, by, &mut notices),
                key => self.enter(own, key)?,
            }
            for initiator in initiators.iter().filter(|initiator| **initiator != by.initiator) {
                let other = at(initiator, port);
                // A registration cannot be taken over by specifying its initiator port.
                if self.registrants.contains_key(&other) {
                    return Err(Denial::InitiatorRegistered);
                }
                self.enter(other, request.action_key)?;
            }
        }
        self.ptpl = ptpl.unwrap_or(self.ptpl);
        self.generation = self.generation.wrapping_add(1);
        Ok(notices)
    }

    fn enter(&mut self, name: NexusName, key: u64) -> Result<(), Denial> {
        if self.registrants.len() >= REGISTRANTS_MAX && !self.registrants.contains_key(&name) {
            return Err(Denial::NoRoom);
        }
        self.registrants.insert(name, key);
        Ok(())
    }

    fn unregister(&mut self, name: &NexusName, by: &NexusName, notices: &mut ReservationNotices) {
        self.registrants.remove(name);
        let ends = match &self.persistent {
            Some(Reservation { holder: Some(holder), .. }) => holder == name,
            Some(Reservation { holder: None, .. }) => self.registrants.is_empty(),
            None => false,
        };
        if ends {
            self.end(by, notices);
        }
    }

    /// Ends the reservation, and notifies the registrants that it admitted.
    fn end(&mut self, by: &NexusName, notices: &mut ReservationNotices) {
        if self.persistent.take().is_some_and(|reservation| reservation.kind.admits_registrants()) {
            self.tell_others(by, Notice::ReservationReleased, notices);
        }
    }

    /// Notifies all registrants except `by`.
    fn tell_others(&self, by: &NexusName, notice: Notice, notices: &mut ReservationNotices) {
        notices.told.extend(self.registrants.keys().filter(|name| *name != by).map(|name| (name.clone(), notice)));
    }

    /// SPC-4 5.13.9
    fn reserve(&mut self, by: &NexusName, kind: ReservationType) -> Result<ReservationNotices, Denial> {
        match &self.persistent {
            None => self.persistent = Some(reserved(by, kind)),
            Some(before) if before.kind == kind && self.is_holder(by) => {}
            Some(_) => return Err(Denial::Conflict),
        }
        Ok(ReservationNotices::default())
    }

    /// SPC-4 5.13.11.2.2
    fn release(&mut self, by: &NexusName, scope_and_type: u8) -> Result<ReservationNotices, Denial> {
        let mut notices = ReservationNotices::default();
        if !self.is_holder(by) {
            return Ok(notices);
        }
        if self.persistent.as_ref().is_some_and(|reservation| reservation.kind.0 != scope_and_type) {
            return Err(Denial::Release);
        }
        self.end(by, &mut notices);
        Ok(notices)
    }

    /// SPC-4 5.13.11.2.7
    fn clear(&mut self, by: &NexusName) -> ReservationNotices {
        let mut notices = ReservationNotices::default();
        self.tell_others(by, Notice::ReservationPreempted, &mut notices);
        self.persistent = None;
        self.registrants.clear();
        self.generation = self.generation.wrapping_add(1);
        notices
    }

    /// SPC-4 5.13.11.2.4 to 5.13.11.2.6
    fn preempt(
        &mut self,
        by: &NexusName,
        request: &PersistentRequest,
        abort: bool,
    ) -> Result<ReservationNotices, Denial> {
        let key = request.action_key;
        // The key of a reservation that all registrants hold is zero.
        let before = self.reservation().filter(|(_, holder)| *holder == key).map(|(reservation, _)| reservation.kind);
        let after = before.map(|_| reservation_type(request.scope_and_type)).transpose()?;
        if before.is_none() && key == 0 {
            return Err(Denial::ActionKey);
        }
        let is_preempted = |name: &NexusName, registered: u64| match after {
            // The nexus that takes the reservation stays registered. If all registrants held it, all others go.
            Some(_) => name != by && (registered == key || key == 0),
            None => registered == key,
        };
        let preempted: Vec<NexusName> =
            self.registrants().filter(|(name, key)| is_preempted(name, *key)).map(|(name, _)| name.clone()).collect();
        if preempted.is_empty() && after.is_none() {
            return Err(Denial::Conflict);
        }
        let mut notices = ReservationNotices::default();
        self.registrants.retain(|name, registered| !is_preempted(name, *registered));
        if let Some(kind) = after {
            self.persistent = Some(reserved(by, kind));
            if before != after {
                self.tell_others(by, Notice::ReservationReleased, &mut notices);
            }
        } else if self.registrants.is_empty() {
            self.persistent = None;
        }
        let others = || preempted.iter().filter(|name| *name != by).cloned();
        notices.told.extend(others().map(|name| (name, Notice::RegistrationPreempted)));
        if abort {
            notices.aborted = others().collect();
        }
        self.generation = self.generation.wrapping_add(1);
        Ok(notices)
    }

    /// REGISTER AND MOVE (SPC-4 5.13.8).
    fn move_to(&mut self, by: &NexusName, to: &NexusName, key: u64, unregister: bool) -> Result<(), Denial> {
        let Some(Reservation { kind, holder: Some(holder) }) = &self.persistent else { return Err(Denial::Conflict) };
        if holder != by {
            return Err(Denial::Conflict);
        }
        if key == 0 {
            return Err(Denial::ActionKey);
        }
        if to == by {
            return Err(Denial::MoveTo);
        }
        self.persistent = Some(Reservation { kind: *kind, holder: Some(to.clone()) });
        if unregister {
            self.registrants.remove(by);
        }
        self.enter(to.clone(), key)?;
        self.generation = self.generation.wrapping_add(1);
        Ok(())
    }
}

/// The reservation that `by` makes.
fn reserved(by: &NexusName, kind: ReservationType) -> Reservation {
    Reservation { kind, holder: (!kind.is_held_by_all()).then(|| by.clone()) }
}
