//! What several tests of this crate need: a file whose disk does not answer.

pub(crate) mod hanging_file;
