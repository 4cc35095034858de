//! The REST API for operators' tools, scripts and pages; the command line uses it too.
//!
//! * [`routes`]: the table of routes; [`route`]: what a row declares: right, request, response, handler
//! * [`handlers`], [`copy`], [`made`]: what the routes do; [`request`]: requests, replies and problems; [`copies`]:
//!   running copies
//! * [`openapi`], [`docs`]: the OpenAPI document and the reference page, generated from the routes
//! * [`rights`]: authentication of callers, and their rights
//! * [`control`]: the handle of the thread that changes the running configuration
//! * [`audit`]: the audit log and its event stream; [`refusals`]: limits the records of refused requests
//! * [`metrics`], [`health`]: what monitoring reads; [`history`]: the rates of the last minutes
//! * [`explain`]: explanations; [`examine`]: the findings of the service itself
//! * [`browser`], [`logins`]: requests of browsers, and the sessions that their cookies name; `page`: the files of the
//!   page; [`forward`]: forwards browsers to the Unix socket
//! * [`server`]: authorizes and executes requests; [`listen`]: the API's thread with its sockets and TLS
//! * `write_deadline`: ends connections whose peers do not read; [`troubles`]: the troubles with their times
//! * [`service`]: applies the configuration of the API: sockets and tokens
//! * [`scsi`]: SCSI commands of the operator, on both sides
//! * [`client`]: a client; [`client_error`]: why its requests fail
//! * [`system`]: the default socket paths, users and groups
//! * [`test_service`]: a daemon without volumes for tests; [`fuzzing`]: entry point of the fuzz target

pub mod audit;
pub mod browser;
mod certificate;
pub mod client;
pub mod client_error;
#[cfg(test)]
mod codes_tests;
pub mod control;
pub mod copies;
pub mod copy;
pub mod docs;
pub mod examine;
pub mod explain;
pub mod forward;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
pub mod handlers;
pub mod health;
pub mod history;
pub mod listen;
pub mod logins;
pub mod made;
pub mod metrics;
mod monitoring;
pub mod openapi;
mod page;
pub mod refusals;
pub mod request;
pub mod rights;
pub mod route;
pub mod routes;
pub mod scsi;
pub mod server;
pub mod service;
pub mod system;
#[cfg(any(test, feature = "testing"))]
pub mod test_service;
pub mod troubles;
mod write_deadline;

pub use audit::{AuditLog, Topic};
pub use control::{Control, ControlHandle, Job};
pub use request::Shared;
pub use service::Api;
