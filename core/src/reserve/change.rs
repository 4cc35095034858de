//! What requests make of the reservations of a unit: a function from the state before to the state after.

use super::{Action, Denial, Kind, News, Order, REGISTRANTS_MAX, Request, Reservation, Reservations, Told};
use crate::port::NexusName;
use std::sync::Arc;

/// The type that SCOPE and TYPE name, for the whole unit.
///
/// # Errors
/// [`Denial::Scope`], [`Denial::Kind`].
pub(super) fn kind(scope_and_kind: u8) -> Result<Kind, Denial> {
    let kind = Kind(scope_and_kind & 0x0f);
    match (scope_and_kind >> 4, kind.name()) {
        (0, Some(_)) => Ok(kind),
        (0, None) => Err(Denial::Kind),
        _ => Err(Denial::Scope),
    }
}

impl Reservations {
    /// What a request of the nexus `by` makes of them, and what is to be told.
    ///
    /// # Errors
    /// How the command ends that may not change them.
    pub fn changed(&self, by: &NexusName, request: &Request) -> Result<(Self, News), Denial> {
        let mut next = self.clone();
        let news = match request {
            Request::Reserve | Request::Release => {
                next.change_spc2(by, *request == Request::Reserve)?;
                News::default()
            }
            Request::Persistent(order) => next.change_persistent(by, order)?,
            // As all that is persistent.
            Request::Outlive(_) if next.spc2.is_some() => return Err(Denial::Conflict),
            Request::Outlive(outlives) => {
                next.outlives = *outlives;
                News::default()
            }
        };
        Ok((next, news))
    }

    /// SPC-2 7.21, 7.25. Among persistent registrations they do nothing for those that have access anyway (CRH), and
    /// conflict for all others (SPC-4 5.13.3).
    fn change_spc2(&mut self, by: &NexusName, reserve: bool) -> Result<(), Denial> {
        if !self.registrants.is_empty() {
            return if self.is_in(by) { Ok(()) } else { Err(Denial::Conflict) };
        }
        match (&self.spc2, reserve) {
            (Some(holder), true) if holder != by => return Err(Denial::Conflict),
            (_, true) => self.spc2 = Some(by.clone()),
            (Some(holder), false) if holder == by => self.spc2 = None,
            (_, false) => {}
        }
        Ok(())
    }

    fn change_persistent(&mut self, by: &NexusName, order: &Order) -> Result<News, Denial> {
        // SPC-2 5.5.1: whoever holds it.
        if self.spc2.is_some() {
            return Err(Denial::Conflict);
        }
        let registered = self.registrants.get(by).copied();
        match &order.action {
            Action::Register { .. } => self.register(by, registered, order),
            _ if registered != Some(order.key) => Err(Denial::Conflict),
            Action::Reserve => self.reserve(by, kind(order.scope_and_kind)?),
            Action::Release => self.release(by, order.scope_and_kind),
            Action::Clear => Ok(self.clear(by)),
            Action::Preempt { abort } => self.preempt(by, order, *abort),
            Action::Move { to, unregister, outlives } => {
                self.hand_over(by, to, order.action_key, *unregister)?;
                self.outlives = *outlives;
                Ok(News::default())
            }
        }
    }

    /// SPC-4 5.13.7, 5.13.11.2.3
    fn register(&mut self, by: &NexusName, registered: Option<u64>, order: &Order) -> Result<News, Denial> {
        let mut news = News::default();
        let Action::Register { ignore, outlives, ports, initiators } = &order.action else { return Ok(news) };
        if !ignore && order.key != registered.unwrap_or(0) {
            return Err(Denial::Conflict);
        }
        if registered.is_some() && !initiators.is_empty() {
            return Err(Denial::Naming);
        }
        if registered.is_none() && order.action_key == 0 {
            return Ok(news);
        }
        let at = |initiator: &Arc<str>, port: &u16| NexusName { initiator: initiator.clone(), target_port: *port };
        for port in ports {
            let own = at(&by.initiator, port);
            match order.action_key {
                0 => self.unregister(&own, by, &mut news),
                key => self.enter(own, key)?,
            }
            for initiator in initiators.iter().filter(|initiator| **initiator != by.initiator) {
                let other = at(initiator, port);
                // Nobody takes another's registration over by naming it.
                if self.registrants.contains_key(&other) {
                    return Err(Denial::Named);
                }
                self.enter(other, order.action_key)?;
            }
        }
        self.outlives = *outlives;
        self.generation = self.generation.wrapping_add(1);
        Ok(news)
    }

    fn enter(&mut self, name: NexusName, key: u64) -> Result<(), Denial> {
        if self.registrants.len() >= REGISTRANTS_MAX && !self.registrants.contains_key(&name) {
            return Err(Denial::NoRoom);
        }
        self.registrants.insert(name, key);
        Ok(())
    }

    fn unregister(&mut self, name: &NexusName, by: &NexusName, news: &mut News) {
        self.registrants.remove(name);
        let ends = match &self.persistent {
            Some(Reservation { holder: Some(holder), .. }) => holder == name,
            Some(Reservation { holder: None, .. }) => self.registrants.is_empty(),
            None => false,
        };
        if ends {
            self.end(by, news);
        }
    }

    /// Ends the reservation; those that had access by being registered are told.
    fn end(&mut self, by: &NexusName, news: &mut News) {
        if self.persistent.take().is_some_and(|reservation| reservation.kind.admits_registrants()) {
            self.tell(by, Told::Released, news);
        }
    }

    /// Tells all who are registered, but `by`.
    fn tell(&self, by: &NexusName, what: Told, news: &mut News) {
        news.told.extend(self.registrants.keys().filter(|name| *name != by).map(|name| (name.clone(), what)));
    }

    /// SPC-4 5.13.9
    fn reserve(&mut self, by: &NexusName, kind: Kind) -> Result<News, Denial> {
        match &self.persistent {
            None => self.persistent = Some(held(by, kind)),
            Some(before) if before.kind == kind && self.is_holder(by) => {}
            Some(_) => return Err(Denial::Conflict),
        }
        Ok(News::default())
    }

    /// SPC-4 5.13.11.2.2
    fn release(&mut self, by: &NexusName, scope_and_kind: u8) -> Result<News, Denial> {
        let mut news = News::default();
        if !self.is_holder(by) {
            return Ok(news);
        }
        if self.persistent.as_ref().is_some_and(|reservation| reservation.kind.0 != scope_and_kind) {
            return Err(Denial::Release);
        }
        self.end(by, &mut news);
        Ok(news)
    }

    /// SPC-4 5.13.11.2.7
    fn clear(&mut self, by: &NexusName) -> News {
        let mut news = News::default();
        self.tell(by, Told::Cleared, &mut news);
        self.persistent = None;
        self.registrants.clear();
        self.generation = self.generation.wrapping_add(1);
        news
    }

    /// SPC-4 5.13.11.2.4 to 5.13.11.2.6
    fn preempt(&mut self, by: &NexusName, order: &Order, abort: bool) -> Result<News, Denial> {
        let key = order.action_key;
        // The key of those who hold it together is zero.
        let before = self.reservation().filter(|(_, holder)| *holder == key).map(|(reservation, _)| reservation.kind);
        let after = before.map(|_| kind(order.scope_and_kind)).transpose()?;
        if before.is_none() && key == 0 {
            return Err(Denial::ActionKey);
        }
        let goes = |name: &NexusName, registered: u64| match after {
            // Whoever takes the reservation stays registered; if it was everybody's, all others go.
            Some(_) => name != by && (registered == key || key == 0),
            None => registered == key,
        };
        let gone: Vec<NexusName> =
            self.registrants().filter(|(name, key)| goes(name, *key)).map(|(name, _)| name.clone()).collect();
        if gone.is_empty() && after.is_none() {
            return Err(Denial::Conflict);
        }
        let mut news = News { aborts: abort, ..News::default() };
        self.registrants.retain(|name, registered| !goes(name, *registered));
        if let Some(kind) = after {
            self.persistent = Some(held(by, kind));
            if before != after {
                self.tell(by, Told::Released, &mut news);
            }
        } else if self.registrants.is_empty() {
            self.persistent = None;
        }
        news.told.extend(gone.into_iter().filter(|name| name != by).map(|name| (name, Told::Preempted)));
        self.generation = self.generation.wrapping_add(1);
        Ok(news)
    }

    /// REGISTER AND MOVE (SPC-4 5.13.8).
    fn hand_over(&mut self, by: &NexusName, to: &NexusName, key: u64, unregister: bool) -> Result<(), Denial> {
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

/// A reservation that `by` made.
fn held(by: &NexusName, kind: Kind) -> Reservation {
    Reservation { kind, holder: (!kind.is_held_by_all()).then(|| by.clone()) }
}
