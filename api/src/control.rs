//! The handle of the control thread, the one thread that changes the running configuration. It owns a [`Manager`] and
//! executes one job after the other, so no caller sees half of a change, and the API never waits for a core.

use lunar_control::api::{IsnsView, MachineView, MediumView, SessionView};
use lunar_control::apply::Running;
use lunar_control::check::{Checked, Outside};
use lunar_control::document::Edit;
use lunar_control::live::{Later, Live, Motion};
use lunar_control::manager::Failure;
use lunar_control::still::Still;
use lunar_control::versions::Versions;
use lunar_control::{Manager, Plan};
use serde_json::Value as Json;
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

/// A configuration and the daemon that runs it: [`Manager`] and [`Live`] without their type parameters.
pub trait Control {
    /// [`Manager::file`].
    fn file(&self) -> &str;
    /// [`Manager::current`].
    fn current(&self) -> &Checked;
    /// [`Manager::versions`].
    fn versions(&self) -> &Versions;
    /// [`Manager::plan`].
    ///
    /// # Errors
    /// See [`Manager::plan`].
    fn plan(&self, text: &str) -> Result<Plan, Failure>;
    /// [`Manager::plan_edits`].
    ///
    /// # Errors
    /// See [`Manager::plan_edits`].
    fn plan_edits(&self, edits: &[Edit]) -> Result<Plan, Failure>;
    /// [`Manager::change`] at the present time.
    ///
    /// # Errors
    /// See [`Manager::change`].
    fn change(&mut self, edits: &[Edit], caller: &str) -> Result<Plan, Failure>;
    /// [`Manager::replace`] at the present time.
    ///
    /// # Errors
    /// See [`Manager::replace`].
    fn replace(&mut self, text: &str, caller: &str) -> Result<Plan, Failure>;
    /// [`Manager::restore`] at the present time.
    ///
    /// # Errors
    /// See [`Manager::restore`].
    fn restore(&mut self, number: u64, caller: &str) -> Result<Plan, Failure>;
    /// [`Manager::reload`] at the present time.
    ///
    /// # Errors
    /// See [`Manager::reload`].
    fn reload(&mut self) -> Result<Plan, Failure>;
    /// [`Manager::hold_still`].
    fn hold_still(&mut self, volume: &str) -> Option<Still>;
    /// [`Live::sessions`].
    fn sessions(&mut self) -> Vec<SessionView>;
    /// [`Live::kick`].
    fn kick(&mut self, id: &str) -> Option<Later<bool>>;
    /// [`Live::statistics`].
    fn statistics(&mut self) -> Json;
    /// [`Live::machines`].
    fn machines(&mut self) -> Vec<MachineView>;
    /// [`Live::isns`].
    fn isns(&mut self) -> Option<IsnsView>;
    /// [`Manager::refused`], [`Manager::away`] and [`Live::troubles`].
    fn troubles(&mut self) -> Vec<String>;
    /// [`Live::medium`].
    fn medium(&mut self, volume: &str) -> Option<MediumView>;
    /// [`Live::move_medium`].
    fn move_medium(&mut self, volume: &str, motion: Motion) -> Option<Later<Result<(), String>>>;
    /// [`Live::settling`].
    fn settling(&mut self) -> Option<Later<()>>;
}

impl<R: Running + Live, O: Outside> Control for Manager<R, O> {
    fn file(&self) -> &str {
        Self::file(self)
    }

    fn current(&self) -> &Checked {
        Self::current(self)
    }

    fn versions(&self) -> &Versions {
        Self::versions(self)
    }

    fn plan(&self, text: &str) -> Result<Plan, Failure> {
        Self::plan(self, text)
    }

    fn plan_edits(&self, edits: &[Edit]) -> Result<Plan, Failure> {
        Self::plan_edits(self, edits)
    }

    fn change(&mut self, edits: &[Edit], caller: &str) -> Result<Plan, Failure> {
        Self::change(self, edits, caller, SystemTime::now())
    }

    fn replace(&mut self, text: &str, caller: &str) -> Result<Plan, Failure> {
        Self::replace(self, text, caller, SystemTime::now())
    }

    fn restore(&mut self, number: u64, caller: &str) -> Result<Plan, Failure> {
        Self::restore(self, number, caller, SystemTime::now())
    }

    fn reload(&mut self) -> Result<Plan, Failure> {
        Self::reload(self, SystemTime::now())
    }

    fn hold_still(&mut self, volume: &str) -> Option<Still> {
        Self::hold_still(self, volume)
    }

    fn sessions(&mut self) -> Vec<SessionView> {
        self.running().sessions()
    }

    fn kick(&mut self, id: &str) -> Option<Later<bool>> {
        self.running().kick(id)
    }

    fn statistics(&mut self) -> Json {
        self.running().statistics()
    }

    fn machines(&mut self) -> Vec<MachineView> {
        self.running().machines()
    }

    fn isns(&mut self) -> Option<IsnsView> {
        self.running().isns()
    }

    fn troubles(&mut self) -> Vec<String> {
        let refused = self.refused().map(str::to_owned);
        let away: Vec<String> = self.away().collect();
        refused.into_iter().chain(away).chain(self.running().troubles()).collect()
    }

    fn medium(&mut self, volume: &str) -> Option<MediumView> {
        self.running().medium(volume)
    }

    fn move_medium(&mut self, volume: &str, motion: Motion) -> Option<Later<Result<(), String>>> {
        self.running().move_medium(volume, motion)
    }

    fn settling(&mut self) -> Option<Later<()>> {
        self.running().settling()
    }
}

/// A job for the control thread.
pub type Job = Box<dyn FnOnce(&mut dyn Control) + Send>;

/// The handle of the control thread; may be used from any thread.
#[derive(Clone)]
pub struct ControlHandle(Arc<dyn Fn(Job) -> bool + Send + Sync>);

impl fmt::Debug for ControlHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Desk")
    }
}

impl ControlHandle {
    /// Creates a handle. `post` queues a job without waiting, and returns `false` if the control thread has ended.
    #[must_use]
    pub fn new(post: impl Fn(Job) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(post))
    }

    /// Queues a job. Returns `false` if the control thread has ended.
    #[must_use]
    pub fn post(&self, job: impl FnOnce(&mut dyn Control) + Send + 'static) -> bool {
        (self.0)(Box::new(job))
    }
}
