//! What runs, beyond what the configuration says: who is logged in, what was counted, and where media are.

use crate::api::{IsnsView, MachineView, MediumView, SessionView};
use serde_json::Value as Json;

/// Work that may take long, or the wait for it: for a thread that may stand still meanwhile.
pub type Later<T> = Box<dyn FnOnce() -> T + Send>;

/// Which way a medium goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Motion {
    /// Out; what initiators prevent happens only if it is forced.
    Eject {
        /// Whatever they prevent.
        forced: bool,
    },
    /// In.
    Load,
}

/// What somebody who looks at what runs is told, and may step in with.
pub trait Live {
    /// Everybody who is logged in, over every transport.
    fn sessions(&mut self) -> Vec<SessionView>;

    /// Ends a session; its initiator may come back by itself. `None`: there is none that is called so. The work tells
    /// whether it has ended by it.
    fn kick(&mut self, id: &str) -> Option<Later<bool>>;

    /// What was counted since the start: an object, a number for each row of the table of statistics, and more where
    /// there is more to say.
    fn statistics(&mut self) -> Json;

    /// Where virtual machines find their controllers.
    fn machines(&mut self) -> Vec<MachineView>;

    /// How it stands with the iSNS server; `None` if there is none to register with.
    fn isns(&mut self) -> Option<IsnsView>;

    /// What went wrong and still is: a line for each, with what to do. Nothing if all is well.
    fn troubles(&mut self) -> Vec<String>;

    /// Where the medium of a volume is; `None` if there is no such volume.
    fn medium(&mut self, volume: &str) -> Option<MediumView>;

    /// Takes the medium of a volume out, or puts it in; `None` if there is no such volume. The work says in words why
    /// it stays where it is.
    fn move_medium(&mut self, volume: &str, motion: Motion) -> Option<Later<Result<(), String>>>;

    /// Waits until nothing of the last change goes on any more, such as sessions that end; `None` if nothing does. What
    /// is changed before that has to wait, too.
    fn settling(&mut self) -> Option<Later<()>>;
}
