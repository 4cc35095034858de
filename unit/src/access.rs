//! Asymmetric access: how well each target port group reaches a unit (SPC-4 5.15.2; NVMe Base 2.0 8.1).
//!
//! The tag of a portal group is the number of a target port group, for SCSI and for NVMe. Each command set translates
//! the states into its own codes.

use std::collections::BTreeMap;

/// An asymmetric access state (SPC-4 5.15.2.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AccessState {
    /// Active/optimized.
    #[default]
    ActiveOptimized,
    /// Active/non-optimized.
    ActiveNonOptimized,
    /// Standby.
    Standby,
    /// Unavailable.
    Unavailable,
    /// Offline.
    Offline,
    /// Transitioning between states.
    Transitioning,
}

impl AccessState {
    /// All states.
    pub const ALL: [Self; 6] = [
        Self::ActiveOptimized,
        Self::ActiveNonOptimized,
        Self::Standby,
        Self::Unavailable,
        Self::Offline,
        Self::Transitioning,
    ];

    /// Whether the unit can be read and written in this state.
    #[must_use]
    pub fn is_active(self) -> bool {
        matches!(self, Self::ActiveOptimized | Self::ActiveNonOptimized)
    }
}

/// The cause of a state (STATUS CODE, SPC-4 6.37).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AccessCause {
    /// The state is that after power on.
    #[default]
    None,
    /// A client asked for it: SET TARGET PORT GROUPS.
    Explicit,
    /// The target changed it, for example by configuration.
    Implicit,
}

/// The access of one target port group to a unit. The default is the access after power on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GroupAccess {
    /// The state.
    pub state: AccessState,
    /// Its cause.
    pub cause: AccessCause,
    /// Whether clients should prefer this group (PREF).
    pub preferred: bool,
}

/// A change of the access of one target port group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AccessChange {
    /// The number of the target port group.
    pub group: u16,
    /// The new state.
    pub state: AccessState,
    /// The cause.
    pub cause: AccessCause,
    /// The new PREF bit; `None`: no change.
    pub preferred: Option<bool>,
}

impl AccessChange {
    /// A change that a client asks for. The PREF bit does not change.
    #[must_use]
    pub fn explicit(group: u16, state: AccessState) -> Self {
        Self { group, state, cause: AccessCause::Explicit, preferred: None }
    }

    /// A change that the target makes (SPC-4 5.15.2.7).
    #[must_use]
    pub fn implicit(group: u16, state: AccessState, preferred: bool) -> Self {
        Self { group, state, cause: AccessCause::Implicit, preferred: Some(preferred) }
    }
}

/// The access of all target port groups to a unit.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AccessStates {
    groups: BTreeMap<u16, GroupAccess>,
    /// Whether the store of the unit is unavailable, and so the unit through every group.
    is_store_unavailable: bool,
}

impl AccessStates {
    /// The access of a target port group. No group reaches a unit whose store is unavailable.
    #[must_use]
    pub fn of(&self, group: u16) -> GroupAccess {
        let own = self.own(group);
        match self.is_store_unavailable {
            true => GroupAccess { state: AccessState::Unavailable, cause: AccessCause::Implicit, ..own },
            false => own,
        }
    }

    /// Whether the store of the unit is available.
    #[must_use]
    pub fn is_store_available(&self) -> bool {
        !self.is_store_unavailable
    }

    /// The access of a target port group while the store is available.
    fn own(&self, group: u16) -> GroupAccess {
        self.groups.get(&group).copied().unwrap_or_default()
    }

    pub(crate) fn set_store_available(&mut self, is_available: bool) {
        self.is_store_unavailable = !is_available;
    }

    pub(crate) fn set(&mut self, change: &AccessChange) {
        let before = self.own(change.group);
        // An explicit request for the current state changes nothing, and does not become its cause.
        if change.cause == AccessCause::Explicit && change.state == before.state {
            return;
        }
        let preferred = change.preferred.unwrap_or(before.preferred);
        self.groups.insert(change.group, GroupAccess { state: change.state, cause: change.cause, preferred });
    }

    /// Whether clients have to be told of a change of a group: its state or its PREF bit differs.
    pub(crate) fn differs(&self, before: &Self, group: u16) -> bool {
        let told = |states: &Self| (states.of(group).state, states.of(group).preferred);
        told(self) != told(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_has_the_access_after_power_on_until_it_is_changed() {
        let mut states = AccessStates::default();
        assert_eq!(states.of(7), GroupAccess::default());
        states.set(&AccessChange::explicit(7, AccessState::Standby));
        let standby = GroupAccess { state: AccessState::Standby, cause: AccessCause::Explicit, preferred: false };
        assert_eq!((states.of(7), states.of(8)), (standby, GroupAccess::default()));
    }

    #[test]
    fn no_group_reaches_a_unit_without_its_store_and_each_has_its_state_afterwards() {
        let mut states = AccessStates::default();
        states.set(&AccessChange::implicit(7, AccessState::ActiveNonOptimized, true));
        let before = states.clone();
        states.set_store_available(false);
        assert!([7, 8].iter().all(|group| states.of(*group).state == AccessState::Unavailable));
        assert!(states.differs(&before, 7) && states.differs(&before, 8) && states.of(7).preferred);
        // A client may change the state meanwhile; it is in force when the store is available.
        states.set(&AccessChange::explicit(8, AccessState::Standby));
        assert_eq!(states.of(8).state, AccessState::Unavailable);
        states.set_store_available(true);
        assert_eq!((states.of(7), states.of(8).state), (before.of(7), AccessState::Standby));
    }

    #[test]
    fn an_explicit_change_leaves_pref_and_is_no_cause_of_the_state_that_is_there() {
        let mut states = AccessStates::default();
        let mut changes = |change: AccessChange| {
            let before = states.clone();
            states.set(&change);
            (states.differs(&before, 1), states != before, states.of(1))
        };
        let (is_told, ..) = changes(AccessChange::implicit(1, AccessState::ActiveOptimized, true));
        assert!(is_told, "PREF differs");
        let (_, differs, _) = changes(AccessChange::explicit(1, AccessState::ActiveOptimized));
        assert!(!differs);
        let (is_told, _, access) = changes(AccessChange::explicit(1, AccessState::ActiveNonOptimized));
        assert!(is_told && access.preferred && access.cause == AccessCause::Explicit);
        let (is_told, _, access) = changes(AccessChange::implicit(1, AccessState::ActiveNonOptimized, true));
        assert!(!is_told && access.cause == AccessCause::Implicit, "only the cause differs");
    }
}
