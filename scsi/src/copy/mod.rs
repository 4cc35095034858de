//! Third-party copies: data moves between disks of this target without a detour through the initiator (SPC-4 5.16).
//!
//! * [`list`]: what EXTENDED COPY asks for, from its parameter list
//! * [`tokens`]: what stands for data that is copied later
//! * [`transfer`]: what POPULATE TOKEN and WRITE USING TOKEN ask for, from their parameter lists
//! * [`operation`]: the copy itself, segment by segment
//! * [`results`]: what is known of copies that run or have ended
//!
//! A disk is copied from or to only if the nexus sees it and could read or write it now: the same gates decide
//! ([`crate::admit::pass`]), once before the first segment and again before each.

pub mod list;
pub mod operation;
pub mod results;
pub mod tokens;
pub mod transfer;
