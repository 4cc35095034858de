//! What the API asks of the one thread that changes what runs. It owns a [`Manager`] and carries out one job after the
//! other, so nobody sees half of a change, and the API never waits for a core.

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

/// A configuration and what runs by it, whatever runs: [`Manager`] and [`Live`] in one, without their types.
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
    /// As that.
    fn plan(&self, text: &str) -> Result<Plan, Failure>;
    /// [`Manager::plan_edits`].
    ///
    /// # Errors
    /// As that.
    fn plan_edits(&self, edits: &[Edit]) -> Result<Plan, Failure>;
    /// [`Manager::change`], now.
    ///
    /// # Errors
    /// As that.
    fn change(&mut self, edits: &[Edit], who: &str) -> Result<Plan, Failure>;
    /// [`Manager::replace`], now.
    ///
    /// # Errors
    /// As that.
    fn replace(&mut self, text: &str, who: &str) -> Result<Plan, Failure>;
    /// [`Manager::restore`], now.
    ///
    /// # Errors
    /// As that.
    fn restore(&mut self, number: u64, who: &str) -> Result<Plan, Failure>;
    /// [`Manager::reload`], now.
    ///
    /// # Errors
    /// As that.
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
    /// [`Live::troubles`], [`Manager::refused`], and [`Manager::away`].
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

    fn change(&mut self, edits: &[Edit], who: &str) -> Result<Plan, Failure> {
        Self::change(self, edits, who, SystemTime::now())
    }

    fn replace(&mut self, text: &str, who: &str) -> Result<Plan, Failure> {
        Self::replace(self, text, who, SystemTime::now())
    }

    fn restore(&mut self, number: u64, who: &str) -> Result<Plan, Failure> {
        Self::restore(self, number, who, SystemTime::now())
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

/// What the thread that owns a [`Control`] does for somebody.
pub type Job = Box<dyn FnOnce(&mut dyn Control) + Send>;

/// The way to that thread, from any other.
#[derive(Clone)]
pub struct Desk(Arc<dyn Fn(Job) -> bool + Send + Sync>);

impl fmt::Debug for Desk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Desk")
    }
}

impl Desk {
    /// A way to it. `post` hands a job over without waiting; whether there is still somebody who does it.
    #[must_use]
    pub fn new(post: impl Fn(Job) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(post))
    }

    /// Hands a job over; whether there is still somebody who does it.
    #[must_use]
    pub fn post(&self, job: impl FnOnce(&mut dyn Control) + Send + 'static) -> bool {
        (self.0)(Box::new(job))
    }
}
