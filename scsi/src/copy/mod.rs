//! Third-party copies: data is copied between disks of this target without passing through the initiator (SPC-4 5.16).
//!
//! * [`list`]: parameter lists of EXTENDED COPY
//! * [`tokens`]: ROD tokens, which represent data of a disk
//! * [`transfer`]: parameter lists of POPULATE TOKEN and WRITE USING TOKEN
//! * [`operation`]: the copy itself, segment by segment
//! * [`results`]: copies in progress and results of finished copies
//!
//! A disk is source or destination only if the nexus has a LUN of it and could read or write it now.
//! [`crate::admit::pass`] decides that for all segments before the first is copied, and again for each segment.

pub mod list;
pub mod operation;
pub mod results;
pub mod tokens;
pub mod transfer;
