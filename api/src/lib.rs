//! The REST API: what an operator's tools, scripts and pages use, and the command line as well.
//!
//! * [`routes`]: every route, declared once: the right that it takes, what it takes and gives, and what does it
//!   ([`work`], [`copy`])
//! * [`openapi`], [`docs`]: the OpenAPI document and the reference page, made from them
//! * [`rights`]: who asks, and what he may
//! * [`desk`]: the way to the thread that changes what runs
//! * [`journal`]: what happened: the audit log, and events as they come; [`refusals`]: how many of them are noted
//! * [`server`]: from a request to an answer; [`listen`]: the thread that does it, beside the cores, with its sockets
//!   and TLS
//! * [`running`]: sockets and tokens change with the configuration
//! * [`client`]: the other side; [`place`]: where the socket is; [`rehearsal`]: a service that shares
//!   nothing; [`fuzzing`]: what a fuzzer calls

pub mod client;
pub mod copy;
pub mod desk;
pub mod docs;
pub mod fuzzing;
pub mod journal;
pub mod listen;
pub mod openapi;
pub mod place;
pub mod refusals;
pub mod rehearsal;
pub mod rights;
pub mod routes;
pub mod running;
pub mod server;
pub mod work;

pub use desk::{Control, Desk, Job};
pub use journal::{Journal, Topic};
pub use running::Api;
pub use work::Common;
