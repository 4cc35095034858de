//! Log pages of SPC-4 7.3.

pub(crate) mod client;
pub(crate) mod counters;
pub(crate) mod health;
pub(crate) mod supported;
