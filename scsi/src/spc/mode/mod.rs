//! Mode pages of SPC-4 7.5.

pub(crate) mod connection;
pub(crate) mod control;
pub(crate) mod exceptions;
pub(crate) mod power;
