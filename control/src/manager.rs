//! The manager of a configuration: the file, the running target, and all changes of both.

pub use crate::failure::Failure;

use crate::apply::{MissingPolicy, Running, TargetError, Unavailable, apply};
use crate::check::{Checked, Outside, check};
use crate::common_sections::Volume;
use crate::config::parse;
use crate::document::{Edit, Keys, Refused, edit, fill_secrets, name_volumes};
use crate::identities::Identities;
use crate::in_use::{self, Author, Clients, Force, InUse, Taking};
use crate::kind::{Id, Kind};
use crate::live::{Later, Live, Making, StoreOrigin};
use crate::names::Uuid;
use crate::plan::{ObjectId, Plan};
use crate::redact::with_comments;
use crate::refused::Used;
use crate::refused_file::RefusedFile;
use crate::report::{Problems, Report};
use crate::schema::Schema;
use crate::scsi::{Begins, ScsiCall, ScsiError, ScsiOrder, ScsiOutcome};
use crate::secret::HIDDEN;
use crate::value::Textual;
use crate::versions::{Trouble, Versions};
use crate::write_freeze::{WriteFreeze, WriteFreezes};
use serde_json::{Map, Value as Json};
use std::collections::BTreeSet;
use std::fmt;
use std::io::ErrorKind;
use std::path::Path;
use std::time::SystemTime;

/// The author of versions in which volumes get their UUIDs.
const OURSELVES: &str = "lunar";

/// Deleted secrets are still in the history, because it cannot be written.
#[derive(Debug)]
pub struct LeftoverSecrets(Trouble);

impl fmt::Display for LeftoverSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "deleted secrets are still in the history: {}; correct that, then repeat `lunar apply`", self.0)
    }
}

impl std::error::Error for LeftoverSecrets {}

/// A configuration and the target that runs it.
#[derive(Debug)]
pub struct Manager<R, O> {
    schema: &'static Schema,
    name: String,
    versions: Versions,
    identities: Identities,
    outside: O,
    current: Checked,
    /// Its unavailable resources, which are not served.
    unavailable: Unavailable,
    running: R,
    /// Why the edited file is not in force.
    refused: Option<RefusedFile>,
    /// Why deleted secrets are still in the history.
    leftover: Option<LeftoverSecrets>,
    /// Volumes that no client may write to now.
    freezes: WriteFreezes,
}

impl<R: Running + Live, O: Outside> Manager<R, O> {
    /// Reads the file and applies it to a target that runs nothing. The folder `state` stores the history and the
    /// identities. Volumes without a UUID get one, which is written to the file if it is writable. A resource that was
    /// served before and is unavailable is left out ([`Manager::unavailable`]), unless `retry` returns that it is tried
    /// once more: after the failure of one disk, the other volumes are served.
    ///
    /// # Errors
    /// If the file cannot be read, is invalid, or cannot be put in force.
    pub fn start(
        schema: &'static Schema,
        file: &Path,
        state: &Path,
        outside: O,
        running: R,
        now: SystemTime,
        retry: &mut dyn FnMut(&ObjectId, &TargetError) -> bool,
    ) -> Result<Self, Failure> {
        let versions = Versions::open(file, &state.join("history"), now)?;
        let identities = Identities::open(&state.join("identities.json"))?;
        let name = file.display().to_string();
        let mut manager = Self {
            schema,
            name,
            versions,
            identities,
            outside,
            current: Checked::empty(schema),
            unavailable: Unavailable::new(),
            running,
            refused: None,
            leftover: None,
            freezes: WriteFreezes::default(),
        };
        let (text, wanted) = manager.complete(manager.versions.text())?;
        manager.running.expect(manager.identities.served_before(&wanted.config));
        let (may_be_missing, may_lack) = (manager.known(&wanted), manager.known_stores(&wanted));
        let policy = MissingPolicy { may_be_missing, may_lack, retry };
        manager.carry_out(wanted, Unavailable::new(), policy, Force::Yes, |versions| adopt(versions, &text, now))?;
        // The file may have been edited while nothing ran.
        manager.forget_secrets();
        Ok(manager)
    }

    /// Redacts secrets that are not in force any more from the history. The change that removed them is made: if the
    /// history is not writable, the status says so.
    fn forget_secrets(&mut self) {
        self.leftover = self.versions.forget_secrets(self.schema).err().map(LeftoverSecrets);
    }

    /// Why deleted secrets are still in the history, and what to do.
    #[must_use]
    pub fn leftover(&self) -> Option<&LeftoverSecrets> {
        self.leftover.as_ref()
    }

    /// The schema of the configuration.
    #[must_use]
    pub fn schema(&self) -> &'static Schema {
        self.schema
    }

    /// The name of the configuration file, as the user gave it.
    #[must_use]
    pub fn file(&self) -> &str {
        &self.name
    }

    /// The configuration in force, with the unavailable resources.
    #[must_use]
    pub fn current(&self) -> &Checked {
        &self.current
    }

    /// The resources that were served before the last start and could not be opened at it, with the reasons. All other
    /// resources are served. They are tried again when a whole file is put in force, changed or not. They are not tried
    /// automatically, because a file that is there again may be a copy in progress.
    #[must_use]
    pub fn unavailable(&self) -> &Unavailable {
        &self.unavailable
    }

    /// A line for each unavailable resource, with what to do.
    pub fn unavailable_lines(&self) -> impl Iterator<Item = String> {
        let line = |(object, why): (&ObjectId, &TargetError)| {
            format!("{} is not served: {why}. When it is available, run `lunar apply`", object.id())
        };
        self.unavailable.iter().map(line)
    }

    /// The file and its history.
    #[must_use]
    pub fn versions(&self) -> &Versions {
        &self.versions
    }

    /// Refuses all changes that would allow writes to this volume, which is in a file, until the returned value is
    /// dropped; `None` if clients can write to it already.
    pub fn freeze_writes(&mut self, volume: &str) -> Option<WriteFreeze> {
        self.freezes
            .hold(&self.current.config, volume)
            .filter(|_| !self.unavailable.contains_key(&ObjectId::volume(volume)))
    }

    /// Executes a SCSI command at a volume, which may change only volumes that are not frozen; see [`Live::scsi`].
    pub fn scsi(
        &mut self,
        volume: &str,
        order: ScsiOrder,
        begins: Begins,
    ) -> Option<Later<Result<ScsiOutcome, ScsiError>>> {
        let offer = self.freezes.offer(&self.current.config, volume);
        self.running.scsi(volume, ScsiCall { order, offer, begins })
    }

    /// The running target.
    pub fn running(&mut self) -> &mut R {
        &mut self.running
    }

    /// The steps that would put this text in force.
    ///
    /// # Errors
    /// If the text is invalid, or a write freeze excludes it.
    pub fn plan(&mut self, text: &str) -> Result<Plan, Failure> {
        let (_, wanted) = self.complete(&self.with_secrets(text))?;
        self.plan_to(wanted, &Unavailable::new())
    }

    /// The text with the present secrets of the same resources, and with the present comments, where it has them as
    /// they are shown. The checks refuse secrets that are not known, with their lines.
    fn with_secrets(&self, text: &str) -> String {
        if !text.contains(HIDDEN) {
            return text.to_owned();
        }
        let present = self.versions.text();
        let text = with_comments(self.schema, text, present);
        fill_secrets(&text, present).unwrap_or(text)
    }

    fn plan_to(&mut self, wanted: Checked, left: &Unavailable) -> Result<Plan, Failure> {
        self.freezes.allow(&wanted.config)?;
        let (before, tried) = (self.served(), wanted.without(left));
        let mut plan = Plan::between(&before, &tried);
        self.in_use(&mut plan, &before, &tried);
        Ok(plan)
    }

    /// The sessions that use resources that the plan removes; marks the steps of the plan.
    fn in_use(&mut self, plan: &mut Plan, before: &Checked, after: &Checked) -> InUse {
        let (sessions, vms) = (self.running.sessions(), self.running.vms());
        let taking = Taking::of(plan, &before.config, &after.config);
        let disks = taking.map(|taking| self.running.lost_disks(&taking)).unwrap_or_default();
        in_use::find(plan, (&before.config, &after.config), Clients { sessions, vms, disks })
    }

    /// Ends a session: see [`Live::kick`].
    ///
    /// # Errors
    /// [`Failure::InUse`]: it is a disk of this machine that programs use, and the end is not forced.
    pub fn kick(&mut self, id: &str, force: Force) -> Result<Option<Later<bool>>, Failure> {
        in_use::allow(InUse::of(self.running.lost_with(id)), force)?;
        Ok(self.running.kick(id))
    }

    /// The steps of these edits.
    ///
    /// # Errors
    /// If an edit is wrong, or the result is invalid.
    pub fn plan_edits(&mut self, edits: &[Edit]) -> Result<Plan, Failure> {
        let (_, wanted) = self.edited(edits)?;
        let left = self.still_unavailable(&wanted);
        self.plan_to(wanted, &left)
    }

    /// Makes the store of the volume that this edit creates: see [`Live::make_store`]. Nothing else is changed.
    ///
    /// # Errors
    /// If the edit is wrong, or the result is invalid.
    pub fn make_store(&mut self, create: &Edit, origin: StoreOrigin<'_>) -> Result<Option<Making>, Failure> {
        let (_, wanted) = self.edited(std::slice::from_ref(create))?;
        let Edit::Create { kind: Kind::Volume, name, .. } = create else { return Ok(None) };
        Ok(self.running.make_store(name, &wanted, origin))
    }

    /// Applies these edits, all or none, to the running target and to the file.
    ///
    /// # Errors
    /// The reason; nothing has changed then.
    pub fn change<'a>(
        &mut self,
        edits: &[Edit],
        author: impl Into<Author<'a>>,
        now: SystemTime,
    ) -> Result<Plan, Failure> {
        let Author { name, force } = author.into();
        let (text, wanted) = self.edited(edits)?;
        self.put_in_force(wanted, false, force, |versions| write(versions, &text, name, now))
    }

    /// Puts this text in force and writes it to the file.
    ///
    /// # Errors
    /// The reason; nothing has changed then.
    pub fn replace<'a>(&mut self, text: &str, author: impl Into<Author<'a>>, now: SystemTime) -> Result<Plan, Failure> {
        let Author { name, force } = author.into();
        let (text, wanted) = self.complete(&self.with_secrets(text))?;
        self.put_in_force(wanted, true, force, |versions| write(versions, &text, name, now))
    }

    /// Puts a version of the history in force, except for the sizes of volumes that have grown since: a volume does not
    /// shrink. The notes of the plan name them.
    ///
    /// # Errors
    /// If the version is not stored, and as [`Manager::replace`].
    pub fn restore<'a>(
        &mut self,
        number: u64,
        author: impl Into<Author<'a>>,
        now: SystemTime,
    ) -> Result<Plan, Failure> {
        let (text, notes) = self.version_to_restore(number)?;
        let plan = self.replace(&text, author, now)?;
        Ok(Plan { notes, ..plan })
    }

    /// The steps of [`Manager::restore`].
    ///
    /// # Errors
    /// As [`Manager::restore`].
    pub fn plan_restore(&mut self, number: u64) -> Result<Plan, Failure> {
        let (text, notes) = self.version_to_restore(number)?;
        let plan = self.plan(&text)?;
        Ok(Plan { notes, ..plan })
    }

    /// The text of a version with the present sizes of volumes that have grown since, and a note for each of them.
    fn version_to_restore(&self, number: u64) -> Result<(String, Vec<String>), Failure> {
        let text = fill_secrets(&self.versions.text_of(number)?, self.versions.text())?;
        let version = parse(&text, &mut Report::new(self.schema)).0;
        let (mut edits, mut notes) = (Vec::new(), Vec::new());
        for (name, then) in &version.volumes {
            let now = self.current.config.volumes.get(name);
            let now = now.filter(|now| (now.kind, &now.path) == (then.kind, &then.path));
            let Some((now, then)) = now.and_then(|now| now.size).zip(then.size).filter(|(now, then)| now > then) else {
                continue;
            };
            let keys = Keys(Map::from_iter([("size".to_owned(), Json::from(now.text()))]));
            edits.push(Edit::Set { kind: Kind::Volume, name: name.clone(), keys });
            let (now, then) = (now.text(), then.text());
            notes.push(format!("volume {name} keeps its size {now}: it had {then} in version {number}"));
        }
        let text = if edits.is_empty() { text } else { edit(self.schema, &text, &edits)? };
        Ok((text, notes))
    }

    /// Puts the edited file in force.
    ///
    /// # Errors
    /// The reason; the configuration in force has not changed then.
    pub fn reload(&mut self, now: SystemTime, force: Force) -> Result<Plan, Failure> {
        let outcome = self.reread(now, force);
        if let Err(why) = &outcome {
            self.refused = Some(RefusedFile::of(why, &self.name));
        }
        outcome
    }

    fn reread(&mut self, now: SystemTime, force: Force) -> Result<Plan, Failure> {
        let before = self.versions.reload()?;
        self.follow(now, force).inspect_err(|_| self.versions = before)
    }

    /// Why the edited file is not in force; until a change succeeds.
    #[must_use]
    pub fn refused(&self) -> Option<&RefusedFile> {
        self.refused.as_ref()
    }

    /// The running target alone, to stop it.
    #[must_use]
    pub fn into_running(self) -> R {
        self.running
    }

    fn follow(&mut self, now: SystemTime, force: Force) -> Result<Plan, Failure> {
        let (text, wanted) = self.complete(self.versions.text())?;
        self.put_in_force(wanted, true, force, |versions| adopt(versions, &text, now))
    }

    /// The configuration in force without the unavailable resources.
    #[must_use]
    pub fn served(&self) -> Checked {
        self.current.clone().without(&self.unavailable)
    }

    /// `tries`: whether unavailable resources are tried again.
    fn put_in_force(
        &mut self,
        wanted: Checked,
        tries: bool,
        force: Force,
        write: impl FnOnce(&mut Versions) -> Result<(), Trouble>,
    ) -> Result<Plan, Failure> {
        self.running.expect(self.expected(&wanted));
        let missing = self.still_unavailable(&wanted);
        let (left, forgiven) =
            if tries { (Unavailable::new(), missing.into_keys().collect()) } else { (missing, BTreeSet::new()) };
        let policy = MissingPolicy { may_be_missing: forgiven, may_lack: BTreeSet::new(), retry: &mut |_, _| false };
        self.carry_out(wanted, left, policy, force, write)
    }

    /// The resources in `left` are unavailable and not tried.
    fn carry_out(
        &mut self,
        wanted: Checked,
        left: Unavailable,
        policy: MissingPolicy<'_>,
        force: Force,
        write: impl FnOnce(&mut Versions) -> Result<(), Trouble>,
    ) -> Result<Plan, Failure> {
        self.freezes.allow(&wanted.config)?;
        let (before, tried) = (self.served(), wanted.clone().without(&left));
        let mut plan = Plan::between(&before, &tried);
        let in_use = self.in_use(&mut plan, &before, &tried);
        in_use::allow(in_use, force)?;
        let (versions, identities) = (&mut self.versions, &mut self.identities);
        let both = || identities.remember(&wanted.config).and_then(|()| write(versions));
        let unavailable = apply(&mut self.running, &plan, &tried, policy, both)?;
        let plan = if unavailable.is_empty() { plan } else { Plan::between(&before, &tried.without(&unavailable)) };
        let loses_secrets = self.current.loses_secrets(&wanted);
        (self.current, self.refused) = (wanted, None);
        if loses_secrets {
            self.forget_secrets();
        }
        self.unavailable = left.into_iter().chain(unavailable).collect();
        Ok(plan)
    }

    /// The resources that may be missing at a start: those that were served before. Volumes that hosts created may not:
    /// their space would be available to hosts again.
    fn known(&self, wanted: &Checked) -> BTreeSet<ObjectId> {
        let served = self.identities.served_before(&wanted.config);
        let is_hosts = |name: &str| wanted.config.volumes.get(name).is_some_and(|volume| volume.pool.is_some());
        let is_known = |id: &Id<'_>| match id.kind {
            Kind::Volume => served.contains(id.name) && !is_hosts(id.name),
            // Only volumes are recorded; a target that served volumes had portals, too.
            kind => kind.may_be_missing() && !served.is_empty(),
        };
        wanted.config.objects().into_keys().filter(is_known).map(ObjectId::from).collect()
    }

    /// The resources that may be in force at a start without what they stand for: the volumes that were served before,
    /// and pools, in whose folders hosts create volumes.
    fn known_stores(&self, wanted: &Checked) -> BTreeSet<ObjectId> {
        let served = self.identities.served_before(&wanted.config);
        let is_known = |id: &Id<'_>| match id.kind {
            Kind::Volume => served.contains(id.name),
            kind => kind == Kind::Pool && !served.is_empty(),
        };
        wanted.config.objects().into_keys().filter(is_known).map(ObjectId::from).collect()
    }

    /// The unavailable resources that are unchanged in `wanted`.
    fn still_unavailable(&self, wanted: &Checked) -> Unavailable {
        if self.unavailable.is_empty() {
            return Unavailable::new();
        }
        let told = Plan::between(&self.current, wanted);
        let changed: BTreeSet<&ObjectId> = told.changes.iter().map(|change| &change.object).collect();
        let same = self.unavailable.iter().filter(|(object, _)| !changed.contains(object));
        same.map(|(object, why)| (object.clone(), why.clone())).collect()
    }

    /// The volumes at the paths of unavailable volumes, under their present names.
    fn expected(&self, wanted: &Checked) -> BTreeSet<String> {
        let missing = self.unavailable.keys().filter(|object| object.kind == Kind::Volume);
        let missing = missing.filter_map(|object| self.current.config.volumes.get(&object.name)?.path.as_ref());
        let missing: BTreeSet<&Path> = missing.map(|path| path.path()).collect();
        let is_missing = |volume: &Volume| volume.path.as_ref().is_some_and(|path| missing.contains(path.path()));
        let volumes = wanted.config.volumes.iter().filter(|(_, volume)| is_missing(volume));
        volumes.map(|(name, _)| name.clone()).collect()
    }

    /// The text after these edits. Mistakes have no places, because the text is in no file.
    fn edited(&self, edits: &[Edit]) -> Result<(String, Checked), Failure> {
        let text = edit(self.schema, self.versions.text(), edits)?;
        self.complete(&text).map_err(|why| match why {
            Failure::Invalid(problems) => {
                let used = edits.iter().find_map(|edit| match edit {
                    Edit::Delete { kind, name } => self.user_of(*kind, name),
                    _ => None,
                });
                used.map_or_else(|| Failure::Invalid(Problems { file: String::new(), ..problems }), Failure::Edit)
            }
            why => why,
        })
    }

    /// Why a resource cannot be deleted: another one refers to it.
    fn user_of(&self, kind: Kind, name: &str) -> Option<Refused> {
        for (id, object) in self.current.config.objects() {
            for (key, field) in object.keys().into_iter().zip(object.fields()) {
                let mut is_named = false;
                field.mentions(&mut |named, other, _| is_named |= (named, other) == (kind, name));
                if is_named {
                    let (name, by) = (name.to_owned(), ObjectId::from(id));
                    return Some(Refused::Used(Box::new(Used { kind, name, by, key: key.name() })));
                }
            }
        }
        None
    }

    /// Checks a text, and adds the known UUID or a new one to volumes without a UUID.
    fn complete(&self, text: &str) -> Result<(String, Checked), Failure> {
        let checked = check(self.schema, &self.name, text, &self.outside)?;
        if checked.config.volumes.values().all(|volume| volume.uuid.is_some()) {
            return Ok((text.to_owned(), checked));
        }
        let mut taken: BTreeSet<Uuid> = checked.config.volumes.values().filter_map(|volume| volume.uuid).collect();
        let uuid = |name: &str| {
            let volume = checked.config.volumes.get(name);
            let known =
                volume.and_then(|volume| self.identities.find(name, volume).or_else(|| self.outside.mark(volume)));
            // The UUID of another volume is not used twice.
            let known = known.filter(|known| taken.insert(*known));
            known.map_or_else(|| Ok(Uuid::from_random(self.outside.random()?)), Ok::<_, Failure>)
        };
        let (text, _) = name_volumes(text, uuid)?;
        let checked = check(self.schema, &self.name, &text, &self.outside)?;
        Ok((text, checked))
    }
}

/// Writes the text in force, if it differs from the file.
fn write(versions: &mut Versions, text: &str, who: &str, now: SystemTime) -> Result<(), Trouble> {
    match versions.text() == text {
        true => Ok(()),
        false => versions.write(text, who, now),
    }
}

/// Adds the text in force to the history, and writes `text`, the same with the UUIDs of all volumes, to the file.
fn adopt(versions: &mut Versions, text: &str, now: SystemTime) -> Result<(), Trouble> {
    versions.adopt(now)?;
    if versions.text() == text {
        return Ok(());
    }
    // If the file is not writable, the UUIDs are stored in the state folder. An edit at the same time takes precedence,
    // and is read at the next reload.
    versions.write(text, OURSELVES, now).or_else(|why| match &why {
        Trouble::Disk(_, disk) if is_closed(disk.kind()) => Ok(()),
        Trouble::Changed(_) => Ok(()),
        _ => Err(why),
    })
}

/// Whether the file is not writable for this process.
fn is_closed(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem | ErrorKind::ResourceBusy)
}

#[cfg(test)]
#[path = "manager_tests.rs"]
mod tests;
