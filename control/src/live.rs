//! What runs, beyond what the configuration says: who is logged in, and what was counted.

use crate::api::SessionView;
use serde_json::Value as Json;

/// What somebody who looks at what runs is told, and may step in with.
pub trait Live {
    /// Everybody who is logged in, over every transport.
    fn sessions(&mut self) -> Vec<SessionView>;

    /// Ends a session; its initiator may come back by itself. Whether there was one that is called so.
    fn kick(&mut self, id: &str) -> bool;

    /// What was counted since the start: an object, a number for each row of the table of statistics, and more where
    /// there is more to say.
    fn statistics(&mut self) -> Json;

    /// What went wrong and still is: a line for each, with what to do. Nothing if all is well.
    fn troubles(&mut self) -> Vec<String>;
}
