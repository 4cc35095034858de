//! Asymmetric access: the state of each target port group at each disk (SPC-4 5.15.2).

use crate::lu::Change;
use crate::target::Target;
use lunar_core::codes;

codes! {
    /// Asymmetric access states (SPC-4 5.15.2.4).
    pub struct AluaState(u8) {
        ACTIVE_OPTIMIZED = 0x0, ACTIVE_NON_OPTIMIZED = 0x1, STANDBY = 0x2, UNAVAILABLE = 0x3, OFFLINE = 0xe,
        TRANSITIONING = 0xf,
    }
}

codes! {
    /// STATUS CODE: what brought a target port group into its state (SPC-4 6.37).
    pub struct Cause(u8) { NOTHING = 0, SET_TARGET_PORT_GROUPS = 1, IMPLICIT = 2 }
}

/// A target port group as one disk has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// TARGET PORT GROUP.
    pub group: u16,
    /// Its state.
    pub state: AluaState,
    /// What brought it there.
    pub cause: Cause,
    /// Whether initiators should prefer it (PREF).
    pub preferred: bool,
}

impl Access {
    /// A group as it is after power on.
    #[must_use]
    pub fn initial(group: u16) -> Self {
        Self { group, state: AluaState::ACTIVE_OPTIMIZED, cause: Cause::NOTHING, preferred: false }
    }
}

impl Target {
    /// The state of a target port group at a disk, if there is such a disk.
    #[must_use]
    pub fn state(&self, lun: u16, group: u16) -> Option<AluaState> {
        self.unit(lun).map(|lu| lu.access(group).state)
    }

    /// The target port groups of all devices, in ascending order.
    pub(crate) fn port_groups(&self) -> Vec<u16> {
        let mut groups: Vec<u16> = self.ports().iter().map(|port| port.group).collect();
        groups.sort_unstable();
        groups.dedup();
        groups
    }

    /// Brings a target port group into a state at one disk, on all cores, and tells all nexuses: an implicit transition
    /// (SPC-4 5.15.2.7). For those who know that a path is better or worse than it was, or that it should be
    /// `preferred` to others. A group or a disk that is not there has no state.
    pub async fn transition(&self, lun: u16, group: u16, state: AluaState, preferred: bool) {
        let Some(lu) = self.unit(lun) else { return };
        let mut accesses = lu.accesses(&self.port_groups());
        let Some(access) = accesses.iter_mut().find(|access| access.group == group) else { return };
        *access = Access { group, state, cause: Cause::IMPLICIT, preferred };
        self.change(None, lun, Change::Access(accesses.into())).await;
    }
}
