//! The one binary of Lunar, as a library so that tests reach its parts.

pub mod access;
pub mod args;
pub mod banner;
pub mod cores;
pub mod daemon;
pub mod house;
pub mod isns;
pub mod jail;
pub mod live;
pub mod notify;
pub mod operator;
pub mod proofs;
pub mod serve;
pub mod stats;
pub mod steward;
pub mod volume;
