//! The one binary of Lunar, as a library so that tests reach its parts.

pub mod access;
pub mod args;
pub mod assembly;
pub mod banner;
pub mod daemon;
pub mod file_helper;
pub mod isns;
pub mod jail;
pub mod notify;
pub mod operator;
pub mod program_helper;
pub mod registry;
pub mod schema;
pub mod serve;
pub mod stats;
pub mod ublk_server;

#[cfg(test)]
mod engine_tests;
#[cfg(test)]
mod namespace_manager_tests;
#[cfg(test)]
mod store_tests;
#[cfg(test)]
mod ublk_server_tests;
