//! What Lunar shares and with whom: one declarative file, its meaning, and how one configuration becomes another.
//!
//! * [`model`]: every section and key, declared once; [`section`], [`value`], [`names`], [`links`], [`secret`]: of what
//! * [`config`]: a file becomes a [`Config`]; [`report`]: all that is wrong with it, with places
//! * [`check`]: what no key can know alone, and the secrets; [`visibility`]: who sees what
//! * [`plan`]: from one configuration to another; [`apply`]: all of it or nothing; [`rehearsal`]: a model that does it
//! * [`document`]: changes in the text of the file, which keep comments; [`versions`]: the file and its history;
//!   [`identities`]: who volumes are, whatever becomes of the file
//! * [`still`]: volumes that nobody may write to for a while
//! * [`manager`]: all of it together; [`live`]: what runs beyond what the configuration says
//! * [`docs`]: the reference page, explanations and the JSON schema; [`api`]: what the API says
//!
//! Nothing here touches the data path; [`versions`], [`identities`] and [`check::Machine`] touch a disk.

pub mod api;
pub mod apply;
pub mod check;
pub mod config;
pub mod docs;
pub mod document;
pub mod identities;
pub mod links;
pub mod live;
pub mod manager;
pub mod model;
pub mod names;
pub mod plan;
mod pools;
pub mod rehearsal;
pub mod report;
pub mod secret;
pub mod section;
pub mod still;
pub mod value;
pub mod veil;
pub mod versions;
pub mod visibility;

pub use check::{Checked, check};
pub use config::{Config, Id, Kind};
pub use manager::Manager;
pub use plan::Plan;
pub use report::Problems;
pub use section::Effect;
