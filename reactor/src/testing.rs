//! Helpers of several tests of this crate: a file whose disk does not answer, network namespaces.

pub(crate) mod hanging_file;
pub(crate) mod network;
