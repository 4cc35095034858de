//! The handle of the control thread, the one thread that changes the running configuration. It owns a [`Manager`] and
//! executes one job after the other, so no caller sees half of a change, and the API never waits for a core.

use lunar_control::api::{HandlerView, IsnsView, LocalDisksView, MediumView, SessionView, TroubleView, VmView};
use lunar_control::apply::Running;
use lunar_control::check::{Checked, Outside};
use lunar_control::counters::StoreSpace;
use lunar_control::document::Edit;
use lunar_control::explain::{LoginQuestion, LoginVerdict, RefusalView, ReservationView};
use lunar_control::in_use::{Author, Force};
use lunar_control::live::{
    CopySource, Later, Live, Making, MediumError, Motion, StoreNotAccepted, StoreOrigin, TcpViews,
};
use lunar_control::manager::Failure;
use lunar_control::names::Uuid;
use lunar_control::plan::{Action, Change};
use lunar_control::scsi::{Begins, ScsiError, ScsiOrder, ScsiOutcome};
use lunar_control::slow::{AllStagesView, SlowLogView};
use lunar_control::trouble::TroubleCode;
use lunar_control::versions::Versions;
use lunar_control::write_freeze::WriteFreeze;
use lunar_control::{Kind, Manager, Plan, Schema};
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, mpsc};
use std::time::SystemTime;

/// A configuration and the daemon that runs it: [`Manager`] and [`Live`] without their type parameters.
pub trait Control {
    /// [`Manager::schema`].
    fn schema(&self) -> &'static Schema;
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
    fn plan(&mut self, text: &str) -> Result<Plan, Failure>;
    /// [`Manager::plan_edits`].
    ///
    /// # Errors
    /// See [`Manager::plan_edits`].
    fn plan_edits(&mut self, edits: &[Edit]) -> Result<Plan, Failure>;
    /// [`Manager::change`] at the present time.
    ///
    /// # Errors
    /// See [`Manager::change`].
    fn change(&mut self, edits: &[Edit], author: Author<'_>) -> Result<Plan, Failure>;
    /// [`Manager::replace`] at the present time.
    ///
    /// # Errors
    /// See [`Manager::replace`].
    fn replace(&mut self, text: &str, author: Author<'_>) -> Result<Plan, Failure>;
    /// [`Manager::restore`] at the present time.
    ///
    /// # Errors
    /// See [`Manager::restore`].
    fn restore(&mut self, number: u64, author: Author<'_>) -> Result<Plan, Failure>;
    /// [`Manager::plan_restore`].
    ///
    /// # Errors
    /// See [`Manager::plan_restore`].
    fn plan_restore(&mut self, number: u64) -> Result<Plan, Failure>;
    /// [`Manager::reload`] at the present time.
    ///
    /// # Errors
    /// See [`Manager::reload`].
    fn reload(&mut self, force: Force) -> Result<Plan, Failure>;
    /// [`Manager::freeze_writes`].
    fn freeze_writes(&mut self, volume: &str) -> Option<WriteFreeze>;
    /// [`Live::sessions`].
    fn sessions(&mut self) -> Vec<SessionView>;
    /// [`Live::tcp`].
    fn tcp(&mut self, only: Option<&str>) -> Later<TcpViews>;
    /// [`Manager::kick`].
    ///
    /// # Errors
    /// See [`Manager::kick`].
    fn kick(&mut self, id: &str, force: Force) -> Result<Option<Later<bool>>, Failure>;
    /// [`Live::statistics`].
    fn statistics(&mut self) -> Json;
    /// [`Live::handlers`].
    fn handlers(&mut self) -> Vec<HandlerView> {
        Vec::new()
    }
    /// [`Live::slow`].
    fn slow(&mut self) -> SlowLogView;
    /// [`Live::stages`].
    fn stages(&mut self) -> AllStagesView;
    /// [`Live::dry_run`].
    fn dry_run(&mut self, protocol: &str, question: &LoginQuestion) -> Option<LoginVerdict>;
    /// [`Live::refusals`].
    fn refusals(&mut self) -> Vec<RefusalView>;
    /// [`Live::mapped`].
    fn mapped(&mut self, group: &str) -> Option<BTreeMap<u16, (String, bool)>>;
    /// [`Live::reservation`].
    fn reservation(&mut self, volume: &str) -> Option<ReservationView>;
    /// [`Live::unread_size`].
    fn unread_size(&mut self, volume: &str) -> Vec<String>;
    /// [`Live::clear_reservation`].
    fn clear_reservation(&mut self, volume: &str) -> Option<Later<bool>>;
    /// [`Manager::scsi`].
    fn scsi(&mut self, volume: &str, order: ScsiOrder, begins: Begins)
    -> Option<Later<Result<ScsiOutcome, ScsiError>>>;
    /// [`Live::local_disks`].
    fn local_disks(&mut self) -> Later<LocalDisksView>;
    /// [`Live::vms`].
    fn vms(&mut self) -> Vec<VmView>;
    /// [`Live::stores`].
    fn stores(&mut self) -> Vec<StoreSpace>;
    /// [`Live::isns`].
    fn isns(&mut self) -> Option<IsnsView>;
    /// [`Manager::refused`], [`Manager::unavailable_lines`] and [`Live::troubles`].
    fn troubles(&mut self) -> Vec<TroubleView>;
    /// [`Live::medium`].
    fn medium(&mut self, volume: &str) -> Option<MediumView>;
    /// [`Live::move_medium`].
    fn move_medium(&mut self, volume: &str, motion: Motion) -> Option<Later<Result<(), MediumError>>>;
    /// [`Live::store_answers`].
    fn store_answers(&mut self, volume: &str) -> Later<Result<(), StoreNotAccepted>>;
    /// [`Live::accept_store`].
    ///
    /// # Errors
    /// See [`Live::accept_store`].
    fn accept_store(&mut self, volume: &str) -> Result<(), StoreNotAccepted>;
    /// [`Manager::make_store`].
    ///
    /// # Errors
    /// See [`Manager::make_store`].
    fn make_store(&mut self, create: &Edit, origin: StoreOrigin<'_>) -> Result<Option<Making>, Failure>;
    /// [`Live::copy_source`].
    fn copy_source(&mut self, volume: &str) -> Option<CopySource>;
    /// [`Live::set_records`].
    ///
    /// # Errors
    /// Why they cannot be written.
    fn set_records(&mut self, uuid: Uuid, records: &[(&'static str, Vec<u8>)]) -> std::io::Result<()>;
    /// [`Live::finalizing`].
    fn finalizing(&mut self) -> Option<Later<()>>;
}

impl<R: Running + Live, O: Outside> Control for Manager<R, O> {
    fn schema(&self) -> &'static Schema {
        Self::schema(self)
    }

    fn file(&self) -> &str {
        Self::file(self)
    }

    fn current(&self) -> &Checked {
        Self::current(self)
    }

    fn versions(&self) -> &Versions {
        Self::versions(self)
    }

    fn plan(&mut self, text: &str) -> Result<Plan, Failure> {
        Self::plan(self, text)
    }

    fn plan_edits(&mut self, edits: &[Edit]) -> Result<Plan, Failure> {
        Self::plan_edits(self, edits)
    }

    fn change(&mut self, edits: &[Edit], author: Author<'_>) -> Result<Plan, Failure> {
        let plan = Self::change(self, edits, author, SystemTime::now())?;
        Ok(with_space_warnings(self, plan))
    }

    fn replace(&mut self, text: &str, author: Author<'_>) -> Result<Plan, Failure> {
        let plan = Self::replace(self, text, author, SystemTime::now())?;
        Ok(with_space_warnings(self, plan))
    }

    fn restore(&mut self, number: u64, author: Author<'_>) -> Result<Plan, Failure> {
        let plan = Self::restore(self, number, author, SystemTime::now())?;
        Ok(with_space_warnings(self, plan))
    }

    fn plan_restore(&mut self, number: u64) -> Result<Plan, Failure> {
        Self::plan_restore(self, number)
    }

    fn reload(&mut self, force: Force) -> Result<Plan, Failure> {
        let plan = Self::reload(self, SystemTime::now(), force)?;
        Ok(with_space_warnings(self, plan))
    }

    fn freeze_writes(&mut self, volume: &str) -> Option<WriteFreeze> {
        Self::freeze_writes(self, volume)
    }

    fn tcp(&mut self, only: Option<&str>) -> Later<TcpViews> {
        self.running().tcp(only)
    }

    fn sessions(&mut self) -> Vec<SessionView> {
        self.running().sessions()
    }

    fn kick(&mut self, id: &str, force: Force) -> Result<Option<Later<bool>>, Failure> {
        Self::kick(self, id, force)
    }

    fn statistics(&mut self) -> Json {
        self.running().statistics()
    }

    fn handlers(&mut self) -> Vec<HandlerView> {
        self.running().handlers()
    }

    fn slow(&mut self) -> SlowLogView {
        self.running().slow()
    }

    fn stages(&mut self) -> AllStagesView {
        self.running().stages()
    }

    fn dry_run(&mut self, protocol: &str, question: &LoginQuestion) -> Option<LoginVerdict> {
        self.running().dry_run(protocol, question)
    }

    fn refusals(&mut self) -> Vec<RefusalView> {
        self.running().refusals()
    }

    fn mapped(&mut self, group: &str) -> Option<BTreeMap<u16, (String, bool)>> {
        self.running().mapped(group)
    }

    fn reservation(&mut self, volume: &str) -> Option<ReservationView> {
        self.running().reservation(volume)
    }

    fn unread_size(&mut self, volume: &str) -> Vec<String> {
        self.running().unread_size(volume)
    }

    fn clear_reservation(&mut self, volume: &str) -> Option<Later<bool>> {
        self.running().clear_reservation(volume)
    }

    fn scsi(
        &mut self,
        volume: &str,
        order: ScsiOrder,
        begins: Begins,
    ) -> Option<Later<Result<ScsiOutcome, ScsiError>>> {
        Self::scsi(self, volume, order, begins)
    }

    fn local_disks(&mut self) -> Later<LocalDisksView> {
        self.running().local_disks()
    }

    fn vms(&mut self) -> Vec<VmView> {
        self.running().vms()
    }

    fn stores(&mut self) -> Vec<StoreSpace> {
        self.running().stores()
    }

    fn isns(&mut self) -> Option<IsnsView> {
        self.running().isns()
    }

    fn troubles(&mut self) -> Vec<TroubleView> {
        let mut troubles = of_configuration(self);
        troubles.extend(self.running().troubles());
        troubles
    }

    fn medium(&mut self, volume: &str) -> Option<MediumView> {
        self.running().medium(volume)
    }

    fn move_medium(&mut self, volume: &str, motion: Motion) -> Option<Later<Result<(), MediumError>>> {
        self.running().move_medium(volume, motion)
    }

    fn store_answers(&mut self, volume: &str) -> Later<Result<(), StoreNotAccepted>> {
        let wanted = self.served();
        self.running().store_answers(volume, &wanted)
    }

    fn accept_store(&mut self, volume: &str) -> Result<(), StoreNotAccepted> {
        let wanted = self.served();
        self.running().accept_store(volume, &wanted)
    }

    fn make_store(&mut self, create: &Edit, origin: StoreOrigin<'_>) -> Result<Option<Making>, Failure> {
        Self::make_store(self, create, origin)
    }

    fn copy_source(&mut self, volume: &str) -> Option<CopySource> {
        self.running().copy_source(volume)
    }

    fn set_records(&mut self, uuid: Uuid, records: &[(&'static str, Vec<u8>)]) -> std::io::Result<()> {
        self.running().set_records(uuid, records)
    }

    fn finalizing(&mut self) -> Option<Later<()>> {
        self.running().finalizing()
    }
}

/// Adds the warnings about space to a plan that gave space to a volume.
fn with_space_warnings<R: Running + Live, O: Outside>(manager: &mut Manager<R, O>, mut plan: Plan) -> Plan {
    let gives_space = |change: &Change| {
        let is_given = match &change.action {
            Action::Create => true,
            Action::Change(keys) => keys.contains(&"size"),
            _ => false,
        };
        change.object.kind == Kind::Volume && is_given
    };
    if plan.changes.iter().any(gives_space) {
        plan.notes.extend(manager.running().space_warnings());
    }
    plan
}

/// The troubles of the configuration: unavailable resources, and a file that is not the configuration in force.
fn of_configuration<R: Running + Live, O: Outside>(manager: &Manager<R, O>) -> Vec<TroubleView> {
    let file = manager.file();
    let is_edited = || manager.versions().on_disk().map(|text| text != manager.versions().text());
    let edited = match (manager.refused(), is_edited()) {
        (Some(why), _) => Some(TroubleView {
            remedy: why.remedy().to_owned(),
            ..TroubleView::told(TroubleCode::RefusedEdit, file, why.to_string())
        }),
        (None, Ok(true)) => Some(TroubleView {
            remedy: "`lunar plan` shows what it would change, and `lunar apply` puts it in force".to_owned(),
            ..TroubleView::told(TroubleCode::PendingEdit, file, format!("{file} was edited and is not in force"))
        }),
        (None, Ok(false)) => None,
        (None, Err(why)) => Some(TroubleView {
            remedy: "make it readable to the user that runs Lunar".to_owned(),
            ..TroubleView::told(TroubleCode::UnreadableFile, file, why.to_string())
        }),
    };
    let unavailable = manager.unavailable().keys().map(|object| object.id().to_string());
    let unavailable = unavailable.zip(manager.unavailable_lines());
    let unavailable = unavailable.map(|(subject, words)| TroubleView::told(TroubleCode::Unavailable, &subject, words));
    let leftover =
        manager.leftover().map(|words| TroubleView::told(TroubleCode::SecretsInHistory, file, words.to_string()));
    edited.into_iter().chain(leftover).chain(unavailable).collect()
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

    /// Has the control thread make a change, after the change before it is finalized, and waits for the result; `None`
    /// if the control thread has ended.
    pub(crate) fn change<T: Send + 'static>(
        &self,
        work: impl Fn(&mut dyn Control) -> T + Clone + Send + 'static,
    ) -> Option<T> {
        loop {
            let (tell, told) = mpsc::channel();
            let work = work.clone();
            let posted = self.post(move |control| {
                let wait = control.finalizing();
                let result = if wait.is_none() { Some(work(control)) } else { None };
                // The receiver waits or has ended with its thread.
                let _ = tell.send((result, wait));
            });
            match posted.then(|| told.recv().ok()).flatten()? {
                (Some(result), _) => return Some(result),
                (None, wait) => wait.into_iter().for_each(|wait| wait()),
            }
        }
    }
}
