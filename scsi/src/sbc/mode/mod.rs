//! Mode pages of SBC-3 6.5.

pub(crate) mod disk;
pub(crate) mod provisioning;
