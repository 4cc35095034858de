//! A queue of a controller, on the core that serves it.

use crate::auth::authentication::QueueAuthentication;
use crate::command::{Refusal, Sqe, Status};
use crate::controller::{Controller, Controllers};
use crate::namespace::{AnaState, Attached, NAMESPACES_MAX, Namespace};
use crate::namespace_map::Mapping;
use crate::namespace_table::NamespaceTable;
use lunar_core::counters::Counters;
use lunar_core::hosts::HostSession;
use lunar_core::port::NexusName;
use lunar_core::task;
use lunar_core::unit::UnitId;
use std::cell::{Cell, OnceCell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

/// The commands of a queue, by their identifiers and namespaces.
pub type TaskSet = task::TaskSet<TaskKey>;

/// The key of a command of a queue: its identifier and its namespace.
pub type TaskKey = (u16, u32);

/// A command of a queue.
pub type Task = task::Task<TaskKey>;

/// A submission queue with its completion queue. Dropping it ends the queue; dropping the admin queue ends the
/// controller.
pub struct Queue {
    /// The controller of the queue.
    pub controller: Arc<Controller>,
    /// The queue identifier; zero: the admin queue.
    pub id: u16,
    /// The number of entries.
    pub entries: u16,
    /// Whether completions have the submission queue head pointer.
    pub flow_control: bool,
    /// Its commands.
    pub tasks: TaskSet,
    /// The counters of its host, once that is admitted.
    pub(crate) host: OnceCell<HostSession>,
    /// The number of Abort commands in progress.
    pub(crate) aborts: Cell<u8>,
    /// The host of the queue, after Connect.
    authentication: OnceCell<QueueAuthentication>,
    name: NexusName,
    space: Rc<NamespaceTable>,
    controllers: Arc<Controllers>,
    /// The attachments of the namespaces that the host has addressed, by identifier, which starts with one.
    attached: RefCell<Vec<Option<Rc<Attached>>>>,
    /// Commands that wait for changes of namespaces.
    aside: RefCell<Vec<u16>>,
}

/// While this exists, the command does not count as a user of namespaces.
pub(crate) struct Aside<'a> {
    queue: &'a Queue,
    command: u16,
}

impl Drop for Aside<'_> {
    fn drop(&mut self) {
        let mut aside = self.queue.aside.borrow_mut();
        if let Some(at) = aside.iter().position(|command| *command == self.command) {
            aside.swap_remove(at);
        }
    }
}

impl Queue {
    /// Counts TCP segments that were sent to the host again.
    pub fn retransmitted(&self, segments: u32) {
        self.host.get().into_iter().for_each(|host| host.retransmitted(segments));
    }

    pub(crate) fn new(
        controller: Arc<Controller>,
        id: u16,
        entries: u16,
        flow_control: bool,
        space: Rc<NamespaceTable>,
        controllers: Arc<Controllers>,
    ) -> Self {
        Self {
            name: controller.host.nexus(),
            controller,
            id,
            entries,
            flow_control,
            tasks: TaskSet::default(),
            host: OnceCell::new(),
            aborts: Cell::default(),
            authentication: OnceCell::new(),
            space,
            controllers,
            attached: RefCell::default(),
            aside: RefCell::default(),
        }
    }

    /// Adds a failed command to the Error Information log. Returns the status of its completion.
    #[cold]
    pub fn failed(&self, sqe: &Sqe, refusal: impl Into<Refusal>) -> Status {
        self.controller.note_error(self.id, sqe, &refusal.into())
    }

    /// The counters of a command at a namespace.
    #[inline]
    pub(crate) fn counters<'a>(&'a self, attached: Option<&'a Attached>) -> Counters<'a> {
        Counters { unit: attached.map(|attached| &attached.namespace.unit.tally), host: self.host.get() }
    }

    /// The namespace that a command counts for: that of an I/O command.
    #[inline]
    pub(crate) fn counted(&self, sqe: &Sqe) -> Option<Rc<Attached>> {
        if self.id == 0 { None } else { self.attached(sqe.nsid.get()) }
    }

    /// The name of its host among registrants.
    #[must_use]
    pub fn name(&self) -> &NexusName {
        &self.name
    }

    /// The host of the queue and the state of its authentication; `None` without Connect.
    #[must_use]
    pub fn authentication(&self) -> Option<&QueueAuthentication> {
        self.authentication.get()
    }

    /// Sets the authentication of its host.
    pub(crate) fn set_authentication(&self, authentication: QueueAuthentication) {
        // A queue is connected once.
        let _ = self.authentication.set(authentication);
    }

    /// Whether its host may do more than authenticate.
    #[must_use]
    pub fn passes(&self) -> bool {
        self.authentication.get().is_none_or(QueueAuthentication::passes)
    }

    /// The attachment of the namespace of this identifier.
    #[must_use]
    pub fn attached(&self, namespace: u32) -> Option<Rc<Attached>> {
        let at = (namespace as usize).checked_sub(1)?;
        let known = self.attached.borrow().get(at).cloned().flatten();
        known.or_else(|| self.first(namespace, at))
    }

    #[cold]
    fn first(&self, namespace: u32, at: usize) -> Option<Rc<Attached>> {
        let attached = Rc::new(self.attach(namespace, self.space.find_for(&self.controller, namespace)?));
        let mut all = self.attached.borrow_mut();
        if all.len() <= at {
            all.resize(at + 1, None);
        }
        all[at] = Some(attached.clone());
        Some(attached)
    }

    fn attach(&self, id: u32, (found, mapping): (Rc<Namespace>, Mapping)) -> Attached {
        let (access, held) =
            (found.access(self.controller.path.portal_ref.group), found.shared.reservations().held(&self.name));
        Attached::new(id, found, mapping, access, held)
    }

    /// The attachment of the namespace of this identifier, whether its controller has it or not.
    pub(crate) fn allocated(&self, namespace: u32) -> Option<Attached> {
        Some(self.attach(namespace, self.space.find(self.map(), namespace)?))
    }

    /// All namespaces that its controller has, or may be attached to.
    pub(crate) fn all_allocated(&self) -> Vec<Attached> {
        self.space.map(self.map()).namespaces().filter_map(|(id, _)| self.allocated(id)).collect()
    }

    /// Marks a command that waits for a change of namespaces and does not use them: until the guard is dropped, the
    /// change does not wait for the command.
    pub(crate) fn stand_aside(&self, command: u16) -> Aside<'_> {
        self.aside.borrow_mut().push(command);
        Aside { queue: self, command }
    }

    /// Whether a command of the queue may be using one of these namespaces.
    pub(crate) fn is_at(&self, (command, namespace): (u16, u32), namespaces: &[u32]) -> bool {
        namespaces.contains(&namespace) && !(self.id == 0 && self.aside.borrow().contains(&command))
    }

    /// The map of its host.
    pub(crate) fn map(&self) -> Option<&str> {
        self.controller.access_grant.map.as_deref()
    }

    /// All namespaces that its host sees, in the order of their identifiers.
    #[must_use]
    pub fn namespaces(&self) -> Vec<Rc<Attached>> {
        self.space.map(self.map()).namespaces().filter_map(|(id, _)| self.attached(id)).collect()
    }

    /// The largest identifier that a namespace may have (NN), which does not change when namespaces are added or
    /// removed.
    #[must_use]
    pub fn last_namespace(&self) -> u32 {
        /// The reserve allows for a few more namespaces without a change of NN.
        const ROOM: u32 = 32;
        if self.map().is_some() {
            return NAMESPACES_MAX;
        }
        let last = self.space.map(None).namespaces().last().map_or(0, |(id, _)| id);
        last.next_multiple_of(ROOM).clamp(ROOM, NAMESPACES_MAX)
    }

    /// The identifiers that a unit has here.
    pub(crate) fn ids_of(&self, unit: UnitId) -> Vec<u32> {
        self.space.ids_of(&self.controller, unit)
    }

    /// Drops the attachments of a unit.
    pub(crate) fn forget_unit(&self, unit: UnitId) {
        for known in self.attached.borrow_mut().iter_mut() {
            known.take_if(|attached| attached.namespace.unit.id == unit);
        }
    }

    /// Sets the access state of a unit for its host.
    pub(crate) fn set_access(&self, unit: UnitId, access: AnaState) {
        // A host that has not addressed the namespace yet reads its state when it does.
        let all = self.attached.borrow();
        all.iter().flatten().filter(|one| one.namespace.unit.id == unit).for_each(|one| one.set_access(access));
    }

    /// Drops the attachment of a namespace.
    pub(crate) fn forget(&self, namespace: u32) {
        if let Some(attached) = self.attached.borrow_mut().get_mut((namespace as usize).wrapping_sub(1)) {
            *attached = None;
        }
    }

    /// Brings its host up to date with the reservations of a unit.
    pub(crate) fn update_reservations(&self, unit: UnitId) {
        let all = self.attached.borrow();
        for attached in all.iter().flatten().filter(|one| one.namespace.unit.id == unit) {
            attached.set_held(attached.namespace.shared.reservations().held(&self.name));
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.controller.close_queue(self.id);
        if self.id == 0 {
            self.controllers.forget(self.controller.id);
        }
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Queue({} of controller {})", self.id, self.controller.id)
    }
}
