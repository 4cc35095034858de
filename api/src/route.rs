//! The declaration of a route: method, path, required right, contents of request and response, handler.

use crate::control::Control;
use crate::explain;
use crate::health::Checks;
use crate::history;
use crate::request::{ApiRequest, Outcome, Problem};
use crate::rights::Right;
use lunar_control::Kind;
use lunar_control::live::Later;

/// An HTTP method (RFC 9110 9.3).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[allow(missing_docs, reason = "each variant is the method of its name")]
pub enum Method {
    Get,
    Post,
    Put,
    Patch,
    Delete,
}

impl Method {
    /// The method as it is sent.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
        }
    }
}

/// The content of a request body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestContent {
    /// No body.
    Nothing,
    /// The keys of a new resource, as JSON.
    Keys(Kind),
    /// The keys to change, as JSON; `null` removes a key.
    Changes(Kind),
    /// The volume of a LUN, as JSON.
    Mapping,
    /// The parameters of a copy, as JSON.
    Copy,
    /// The parameters of an ejection, as JSON.
    Ejection,
    /// A SCSI command, as JSON.
    Scsi,
    /// A configuration, as TOML.
    Text,
    /// The credentials of a login, as JSON.
    Login,
}

/// The content of a response body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResponseContent {
    /// A resource of the configuration.
    Resource(Kind),
    /// All resources of a kind.
    Resources(Kind),
    /// The steps that were done; with `dry-run`, those that would be done.
    Plan,
    /// The status of the service.
    Status,
    /// The configuration as JSON, without secrets.
    Config,
    /// Text: a configuration without secrets, or a diff.
    Text,
    /// The stored versions of the configuration.
    Versions,
    /// The sessions.
    Sessions,
    /// One session.
    Session,
    /// The handlers of volumes.
    Handlers,
    /// The disks of the machine.
    LocalDisks,
    /// The progress of a copy.
    Copy,
    /// The copies.
    Copies,
    /// The state of a medium.
    Medium,
    /// The end of a SCSI command.
    Scsi,
    /// The statistics.
    Statistics,
    /// The counters of cores, volumes and hosts.
    Counters,
    /// The records of the audit log.
    AuditRecords,
    /// The rates of the last minutes.
    History,
    /// The findings of an examination.
    Examination,
    /// The slow log.
    SlowLog,
    /// The stages of commands.
    Stages,
    /// The refused logins.
    Refusals,
    /// An explanation.
    Explanation,
    /// The reservations of a volume.
    Reservation,
    /// Audit records as they are made (server-sent events).
    Events,
    /// A JSON schema, or an OpenAPI document.
    Schema,
    /// Metrics.
    Metrics,
    /// Failed checks, one on each line.
    Health,
    /// The caller.
    Caller,
    /// A one-time link.
    Link,
    /// Numbers as they change (server-sent events).
    Live,
}

/// A route.
#[derive(Clone, Debug)]
pub struct Route {
    /// The HTTP method.
    pub method: Method,
    /// The path, with parameters in braces.
    pub path: String,
    /// The operation ID in the OpenAPI document, from which client generators derive names.
    pub name: String,
    /// The required right. Every row states it; there is no default.
    pub right: Right,
    /// A one-line summary.
    pub summary: String,
    /// The request body.
    pub request: RequestContent,
    /// The response body.
    pub response: ResponseContent,
    /// The kind of resource, if the route concerns one.
    pub kind: Option<Kind>,
    /// The handler.
    pub handler: Handler,
}

impl Route {
    /// The names of the path parameters.
    pub fn parameters(&self) -> impl Iterator<Item = &str> {
        self.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
    }

    /// Whether the route changes the configuration, so that it takes `dry-run`.
    #[must_use]
    pub fn takes_dry_run(&self) -> bool {
        self.response == ResponseContent::Plan && self.name != "plan"
    }

    /// Whether the route may take something from clients, so that it takes `force`.
    #[must_use]
    pub fn takes_force(&self) -> bool {
        self.takes_dry_run() || self.name == KICK_SESSION
    }

    /// The query parameters that are texts, with their descriptions.
    #[must_use]
    pub fn texts(&self) -> &'static [(&'static str, &'static str)] {
        match self.name.as_str() {
            "explain-login" => explain::LOGIN_QUERY,
            "explain-lun" | "explain-path" => explain::LUN_QUERY,
            "history" => history::QUERY,
            _ => &[],
        }
    }

    /// Whether the route takes `with-data`.
    #[must_use]
    pub fn takes_with_data(&self) -> bool {
        self.name == DELETE_VOLUME
    }
}

/// The name of the route that ends a session.
pub const KICK_SESSION: &str = "kick-session";

/// The name of the route that deletes a volume.
pub const DELETE_VOLUME: &str = "delete-volume";

/// The steps of a login.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LoginStep {
    /// Begins a session.
    LogIn,
    /// Shows the caller.
    Show,
    /// Ends the session.
    LogOut,
    /// Makes a one-time link.
    Link,
}

/// The handler of a route, and the thread that runs it.
#[derive(Clone, Copy, Debug)]
pub enum Handler {
    /// Runs on the control thread.
    Control(fn(&mut dyn Control, &ApiRequest) -> Outcome),
    /// Starts on the control thread; the returned function may take long and runs on a thread of its own.
    Long(fn(&mut dyn Control, &ApiRequest) -> Result<Later<Outcome>, Problem>),
    /// Runs on the API's thread.
    Local(fn(&ApiRequest) -> Outcome),
    /// The event stream, which the server implements.
    EventStream,
    /// The stream of numbers, which the server implements.
    Live,
    /// The page of metrics, which the server implements.
    Metrics,
    /// The counters, which the server implements.
    Counters,
    /// A step of a login, which the server implements.
    Login(LoginStep),
    /// The checks of the health of the process; the server runs them.
    Health(Checks),
}
