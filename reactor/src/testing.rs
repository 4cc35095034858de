//! What several tests of this crate need: a file whose disk does not answer, networks of their own.

pub(crate) mod hanging_file;
pub(crate) mod network;
