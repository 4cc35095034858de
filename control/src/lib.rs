//! The configuration: one declarative file, its meaning, and the steps from one configuration to another.
//!
//! * [`schema`]: the words, keys and sections that fronts and stores declare; [`section`]: how keys and sections are
//!   declared; [`kind`]: the kinds of resources
//! * [`common_sections`]: the sections that every target has; [`value`], [`names`], [`links`], [`luns`], [`secret`],
//!   [`stations`]: the types of their keys
//! * [`config`]: reads a file into a [`Config`]; [`report`]: its mistakes, with places
//! * [`check`]: the checks across keys and resources, and the secrets; [`visibility`]: the group of a client
//! * [`plan`]: the steps from one configuration to another; [`apply`]: all of them or none; [`fake_target`]: a model
//!   of a running target
//! * [`document`]: edits of the text of the file that keep its comments; [`versions`]: the file and its history;
//!   [`identities`]: the identities of volumes, stored apart from the file; [`in_use`]: the clients that a change
//!   takes something from, with [`affected`], [`failure`] and
//!   [`refused_file`]: why a change is refused
//! * [`write_freeze`]: volumes that no client may write to during a copy
//! * [`manager`]: all of it together; [`live`]: the state of a running target beyond its configuration;
//!   [`negotiated`]: the parameters of a session; [`scsi`]: SCSI commands of the operator; [`slow`]: its slow
//!   commands; [`explain`]: why a login is refused, and other explanations; [`trouble`]: the codes of troubles
//! * [`metrics`], [`counters`]: what a running target counts, for monitoring
//! * [`docs`]: the reference page, explanations and the JSON schema; [`redact`]: texts without secrets; [`api`]: the
//!   types of the API
//! * [`files`]: opens the files that the configuration names, from inside of a sandbox, too
//!
//! Nothing here touches the data path; [`versions`], [`identities`], [`files`] and [`check::LocalHost`] access files.

pub mod affected;
pub mod api;
pub mod apply;
pub mod check;
pub mod common_sections;
pub mod config;
pub mod counters;
mod declared;
pub mod docs;
pub mod doctor;
pub mod document;
pub mod explain;
pub mod failure;
pub mod fake_target;
pub mod file_system;
pub mod files;
pub mod identities;
pub mod in_use;
pub mod kind;
pub mod links;
pub mod live;
pub mod luns;
pub mod manager;
pub mod metrics;
pub mod names;
pub mod negotiated;
pub mod plan;
mod pools;
pub mod rates;
pub mod redact;
pub mod refused;
pub mod refused_file;
pub mod report;
pub mod schema;
pub mod scsi;
pub mod secret;
pub mod section;
pub mod slow;
pub mod stations;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod trouble;
pub mod value;
mod value_error;
pub mod versions;
pub mod visibility;
pub mod write_freeze;

pub use check::{Checked, check};
pub use config::Config;
pub use kind::{Id, Kind};
pub use manager::Manager;
pub use plan::Plan;
pub use report::Problems;
pub use schema::Schema;
pub use section::Effect;
