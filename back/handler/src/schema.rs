//! The declaration of handlers for the configuration.

use lunar_control::schema::{KeySet, Location, SizeRule, StoreSchema};
use lunar_control::section::or;
use lunar_control::sections;
use lunar_control::value::{Mode, Period};
use std::time::Duration;

/// The time for a command, and for a restart: a client waits for about a minute before it resets.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// Only processes of the user of Lunar.
pub(crate) const SOCKET_MODE: u32 = 0o600;

sections! {
    /// The keys of a volume with a handler.
    HandlerKeys (made: Live, removed: Live) {
        /// Time after which a command that the handler does not answer fails, for `kind = "handler"`. The handler gets
        /// no new commands until it has answered, or has ended.
        command_timeout: Period = or(Period(PATIENCE)) => Live;
        /// How long commands wait for a handler that has ended, for `kind = "handler"`; afterwards they fail with NOT
        /// READY.
        restart_time: Period = or(Period(PATIENCE)) => Live;
        /// Whether the volume is thinly provisioned, so that the handler gets UNMAP, for `kind = "handler"`.
        discard: bool = or(false) => EndsSessions;
        /// The permissions of the socket, for `kind = "handler"`. A process that may open it may become the handler
        /// when there is none.
        socket_mode: Mode = or(Mode(SOCKET_MODE)) => EndsSessions;
    }
}

impl HandlerKeys {
    fn brief(&self) -> String {
        if self.discard { "thin".into() } else { String::new() }
    }
}

/// The declaration.
pub static STORE: StoreSchema = StoreSchema {
    word: "handler",
    doc: "a process of this machine that connects to the socket at the path, and serves the data",
    noun: "handler",
    location: Location::Socket,
    size: SizeRule::Required,
    keys: Some(KeySet::of::<HandlerKeys>()),
};
