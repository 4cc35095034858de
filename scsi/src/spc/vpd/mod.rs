//! Vital product data pages of SPC-4 7.8.

pub(crate) mod copy;
pub(crate) mod extended;
pub(crate) mod identification;
pub(crate) mod policy;
pub(crate) mod supported;
