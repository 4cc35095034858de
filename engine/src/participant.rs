//! The contract of other configured parts of the program, which take part in a transaction.

use lunar_control::Checked;

/// An error whose type only the participant knows.
pub type ParticipantError = Box<dyn std::error::Error + Send + Sync>;

/// A part of the program that is configured, such as the API and the log. It is asked whenever something of these
/// sections changes: `api`, `api-listener`, `api-token`, `logging`, `server`.
pub trait Participant: Send {
    /// Does everything that can fail, without any client noticing.
    ///
    /// # Errors
    /// An error of the participant, with a message that says what to do.
    fn prepare(&mut self, wanted: &Checked) -> Result<(), ParticipantError>;

    /// Applies the prepared change. Cannot fail.
    fn commit(&mut self, wanted: &Checked);

    /// Undoes what was prepared.
    fn roll_back(&mut self);
}
