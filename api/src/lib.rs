//! The REST API: what an operator's tools, scripts and pages use, and the command line as well.
//!
//! * [`routes`]: every route, declared once: the right that it takes, what it takes and gives, and what it does
//! * [`openapi`], [`docs`]: the OpenAPI document and the reference page, made from them
//! * [`rights`]: who asks, and what he may
//! * [`desk`]: the way to the thread that changes what runs
//! * [`journal`]: what happened: the audit log, and events as they come
//! * [`server`]: sockets, limits and TLS; it runs on a thread of its own, beside the cores
//! * [`client`]: the other side
//! * [`place`]: where the socket is

pub mod desk;
pub mod journal;
