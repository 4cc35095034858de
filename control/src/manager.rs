//! All of it together: the file, what runs, and every way in which one changes the other.

use crate::apply::{Absent, Leniency, MAY_BE_AWAY, Refusal, Running, apply};
use crate::check::{Checked, Outside, check};
use crate::config::{Id, Kind};
use crate::document::{Edit, Refused, edit, name_volumes};
use crate::identities::Identities;
use crate::model::Volume;
use crate::names::Uuid;
use crate::plan::{ObjectId, Plan};
use crate::report::Problems;
use crate::still::{Still, Stills};
use crate::versions::{Trouble, Versions};
use std::collections::BTreeSet;
use std::fmt;
use std::io::ErrorKind;
use std::path::Path;
use std::time::SystemTime;

/// Who writes when volumes get their UUIDs.
const OURSELVES: &str = "lunar";

/// Why nothing was changed.
#[derive(Debug)]
pub enum Failure {
    /// The change makes no sense.
    Edit(Refused),
    /// The configuration would not be valid.
    Invalid(Problems),
    /// What runs cannot be made so.
    Refused(Refusal),
    /// The disk.
    Disk(Trouble),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Edit(why) => why.fmt(f),
            Self::Invalid(why) => why.fmt(f),
            Self::Refused(why) => why.fmt(f),
            Self::Disk(why) => why.fmt(f),
        }
    }
}

impl std::error::Error for Failure {}

impl From<Refused> for Failure {
    fn from(why: Refused) -> Self {
        Self::Edit(why)
    }
}

impl From<Problems> for Failure {
    fn from(why: Problems) -> Self {
        Self::Invalid(why)
    }
}

impl From<Refusal> for Failure {
    fn from(why: Refusal) -> Self {
        Self::Refused(why)
    }
}

impl From<Trouble> for Failure {
    fn from(why: Trouble) -> Self {
        Self::Disk(why)
    }
}

/// A configuration and what runs by it.
#[derive(Debug)]
pub struct Manager<R, O> {
    name: String,
    versions: Versions,
    identities: Identities,
    outside: O,
    current: Checked,
    /// What of it is away, and not served.
    absent: Absent,
    running: R,
    /// Why the file as somebody has written it is not in force.
    refused: Option<String>,
    /// Volumes that nobody may be able to write to now.
    stills: Stills,
}

impl<R: Running, O: Outside> Manager<R, O> {
    /// Reads the file and makes what runs from nothing to what it says. `state` is a folder, where history and
    /// identities are kept. Volumes without a UUID get one, which is written into the file, if that can be written.
    /// What was served before and is away is left out ([`Manager::absent`]), unless `again` says that it is tried once
    /// more: a disk that died while the machine was off keeps nobody from the others.
    ///
    /// # Errors
    /// When the file cannot be read, is not valid, or cannot be put in force.
    pub fn start(
        file: &Path,
        state: &Path,
        outside: O,
        running: R,
        now: SystemTime,
        again: &mut dyn FnMut(&ObjectId, &str) -> bool,
    ) -> Result<Self, Failure> {
        let versions = Versions::open(file, &state.join("history"), now)?;
        let identities = Identities::open(&state.join("identities.json"))?;
        let name = file.display().to_string();
        let mut manager = Self {
            name,
            versions,
            identities,
            outside,
            current: Checked::default(),
            absent: Absent::new(),
            running,
            refused: None,
            stills: Stills::default(),
        };
        let (text, wanted) = manager.complete(manager.versions.text())?;
        manager.running.expect(manager.identities.served_before(&wanted.config));
        let leniency = Leniency { forgiven: manager.known(&wanted), again };
        manager.carry_out(wanted, Absent::new(), leniency, |versions| adopt(versions, &text, now))?;
        Ok(manager)
    }

    /// The file of the configuration, as its user calls it.
    #[must_use]
    pub fn file(&self) -> &str {
        &self.name
    }

    /// What is in force, with what is away.
    #[must_use]
    pub fn current(&self) -> &Checked {
        &self.current
    }

    /// What of it is away, and why: it was there when the service ran before, and could not be opened when it began.
    /// Whoever uses something else is served. It is tried again when somebody puts a whole file in force, changed or
    /// not; not by itself, for what is back may be half of a copy that somebody still makes.
    #[must_use]
    pub fn absent(&self) -> &Absent {
        &self.absent
    }

    /// The same, a line for each, with what to do.
    pub fn away(&self) -> impl Iterator<Item = String> {
        let line = |(object, why): (&ObjectId, &String)| {
            format!("{} is not served: {why}. When it is back, `lunar apply` takes it in", object.id())
        };
        self.absent.iter().map(line)
    }

    /// The file and its history.
    #[must_use]
    pub fn versions(&self) -> &Versions {
        &self.versions
    }

    /// Refuses all changes by which somebody could write to this volume, which is a file, until what is returned drops;
    /// `None` if somebody can already.
    pub fn hold_still(&mut self, volume: &str) -> Option<Still> {
        self.stills.hold(&self.current.config, volume).filter(|_| !self.absent.contains_key(&ObjectId::volume(volume)))
    }

    /// What runs.
    pub fn running(&mut self) -> &mut R {
        &mut self.running
    }

    /// What would have to be done for this text to be in force.
    ///
    /// # Errors
    /// When it is not valid, or cannot be now.
    pub fn plan(&self, text: &str) -> Result<Plan, Failure> {
        self.plan_without(text, |_| Absent::new())
    }

    fn plan_without(&self, text: &str, left: impl FnOnce(&Checked) -> Absent) -> Result<Plan, Failure> {
        let (_, wanted) = self.complete(text)?;
        self.stills.allow(&wanted.config)?;
        let left = left(&wanted);
        Ok(Plan::between(&self.served(), &wanted.without(&left)))
    }

    /// What these edits would do.
    ///
    /// # Errors
    /// When they make no sense, or lead to what is not valid.
    pub fn plan_edits(&self, edits: &[Edit]) -> Result<Plan, Failure> {
        self.plan_without(&edit(self.versions.text(), edits)?, |wanted| self.still_away(wanted))
    }

    /// Makes these edits, all or none: in what runs and in the file.
    ///
    /// # Errors
    /// Whatever is in the way; nothing was changed then.
    pub fn change(&mut self, edits: &[Edit], who: &str, now: SystemTime) -> Result<Plan, Failure> {
        let (text, wanted) = self.complete(&edit(self.versions.text(), edits)?)?;
        self.put_in_force(wanted, false, |versions| write(versions, &text, who, now))
    }

    /// Puts this text in force, and into the file.
    ///
    /// # Errors
    /// Whatever is in the way; nothing was changed then.
    pub fn replace(&mut self, text: &str, who: &str, now: SystemTime) -> Result<Plan, Failure> {
        let (text, wanted) = self.complete(text)?;
        self.put_in_force(wanted, true, |versions| write(versions, &text, who, now))
    }

    /// Puts a version of the history in force again.
    ///
    /// # Errors
    /// When it is not kept any more, and as [`Manager::replace`].
    pub fn restore(&mut self, number: u64, who: &str, now: SystemTime) -> Result<Plan, Failure> {
        let text = self.versions.text_of(number)?;
        self.replace(&text, who, now)
    }

    /// Puts in force what somebody has written into the file by hand.
    ///
    /// # Errors
    /// Whatever is in the way; what is in force was not changed then.
    pub fn reload(&mut self, now: SystemTime) -> Result<Plan, Failure> {
        let outcome = self.read_again(now);
        if let Err(why) = &outcome {
            let why = why.to_string();
            let first = why.lines().next().unwrap_or_default();
            self.refused = Some(format!(
                "{} was changed by hand, and that is not in force: {first}; mend it, then `lunar apply`",
                self.name
            ));
        }
        outcome
    }

    fn read_again(&mut self, now: SystemTime) -> Result<Plan, Failure> {
        let before = self.versions.reload()?;
        self.follow(now).inspect_err(|_| self.versions = before)
    }

    /// Why what somebody has written into the file by hand is not in force, and what to do; until something else is.
    #[must_use]
    pub fn refused(&self) -> Option<&str> {
        self.refused.as_deref()
    }

    /// What runs, without what it runs by: to end it.
    #[must_use]
    pub fn into_running(self) -> R {
        self.running
    }

    fn follow(&mut self, now: SystemTime) -> Result<Plan, Failure> {
        let (text, wanted) = self.complete(self.versions.text())?;
        self.put_in_force(wanted, true, |versions| adopt(versions, &text, now))
    }

    /// What is served: what is in force without what is away.
    fn served(&self) -> Checked {
        self.current.clone().without(&self.absent)
    }

    /// `tries`: whether what is away is tried again.
    fn put_in_force(
        &mut self,
        wanted: Checked,
        tries: bool,
        write: impl FnOnce(&mut Versions) -> Result<(), Trouble>,
    ) -> Result<Plan, Failure> {
        self.running.expect(self.expected(&wanted));
        let away = self.still_away(&wanted);
        let (left, forgiven) =
            if tries { (Absent::new(), away.into_keys().collect()) } else { (away, BTreeSet::new()) };
        self.carry_out(wanted, left, Leniency { forgiven, again: &mut |_, _| false }, write)
    }

    /// What is in `left` is away, and not tried.
    fn carry_out(
        &mut self,
        wanted: Checked,
        left: Absent,
        leniency: Leniency<'_>,
        write: impl FnOnce(&mut Versions) -> Result<(), Trouble>,
    ) -> Result<Plan, Failure> {
        self.stills.allow(&wanted.config)?;
        let (before, tried) = (self.served(), wanted.clone().without(&left));
        let plan = Plan::between(&before, &tried);
        let (versions, identities) = (&mut self.versions, &mut self.identities);
        let both = || identities.remember(&wanted.config).and_then(|()| write(versions)).map_err(|why| why.to_string());
        let absent = apply(&mut self.running, &plan, &tried, leniency, both)?;
        let plan = if absent.is_empty() { plan } else { Plan::between(&before, &tried.without(&absent)) };
        (self.current, self.refused) = (wanted, None);
        self.absent = left.into_iter().chain(absent).collect();
        Ok(plan)
    }

    /// What may be away at a start: what was served when the service ran before. Not what hosts have made: they would
    /// go on making more of it.
    fn known(&self, wanted: &Checked) -> BTreeSet<ObjectId> {
        let served = self.identities.served_before(&wanted.config);
        let is_hosts = |name: &str| wanted.config.volumes.get(name).is_some_and(|volume| volume.pool.is_some());
        let is_known = |id: &Id<'_>| match id.kind {
            Kind::Volume => served.contains(id.name) && !is_hosts(id.name),
            // Which there were is not remembered; but who shared something had what it was shared by.
            kind => MAY_BE_AWAY.contains(&kind) && !served.is_empty(),
        };
        wanted.config.objects().into_keys().filter(is_known).map(ObjectId::from).collect()
    }

    /// What is away, and is in `wanted` as it was.
    fn still_away(&self, wanted: &Checked) -> Absent {
        if self.absent.is_empty() {
            return Absent::new();
        }
        let told = Plan::between(&self.current, wanted);
        let changed: BTreeSet<&ObjectId> = told.changes.iter().map(|change| &change.object).collect();
        let same = self.absent.iter().filter(|(object, _)| !changed.contains(object));
        same.map(|(object, why)| (object.clone(), why.clone())).collect()
    }

    /// The volumes whose bytes were there before and are away, whatever they are called now.
    fn expected(&self, wanted: &Checked) -> BTreeSet<String> {
        let away = self.absent.keys().filter(|object| object.kind == Kind::Volume);
        let away = away.filter_map(|object| self.current.config.volumes.get(&object.name)?.path.as_ref());
        let away: BTreeSet<&Path> = away.map(|path| path.path()).collect();
        let is_away = |volume: &Volume| volume.path.as_ref().is_some_and(|path| away.contains(path.path()));
        let volumes = wanted.config.volumes.iter().filter(|(_, volume)| is_away(volume));
        volumes.map(|(name, _)| name.clone()).collect()
    }

    /// Checks a text, and gives volumes without a UUID the one that is theirs, or a new one.
    fn complete(&self, text: &str) -> Result<(String, Checked), Failure> {
        let checked = check(&self.name, text, &self.outside)?;
        if checked.config.volumes.values().all(|volume| volume.uuid.is_some()) {
            return Ok((text.to_owned(), checked));
        }
        let mut taken: BTreeSet<Uuid> = checked.config.volumes.values().filter_map(|volume| volume.uuid).collect();
        let uuid = |name: &str| {
            let volume = checked.config.volumes.get(name);
            let known =
                volume.and_then(|volume| self.identities.find(name, volume).or_else(|| self.outside.mark(volume)));
            // What somebody else is already is no mark.
            let known = known.filter(|known| taken.insert(*known));
            known.map_or_else(|| self.outside.random().map(Uuid::from_random), Ok)
        };
        let (text, _) = name_volumes(text, uuid)?;
        let checked = check(&self.name, &text, &self.outside)?;
        Ok((text, checked))
    }
}

/// Writes what is in force now, if it is another text.
fn write(versions: &mut Versions, text: &str, who: &str, now: SystemTime) -> Result<(), Trouble> {
    match versions.text() == text {
        true => Ok(()),
        false => versions.write(text, who, now),
    }
}

/// Takes the text in force into the history, and `text`, which is the same with who volumes are, into the file.
fn adopt(versions: &mut Versions, text: &str, now: SystemTime) -> Result<(), Trouble> {
    versions.adopt(now)?;
    if versions.text() == text {
        return Ok(());
    }
    // What cannot be written into the file is remembered beside it. What somebody writes into it meanwhile is his, and
    // is there when the file is read again.
    versions.write(text, OURSELVES, now).or_else(|why| match &why {
        Trouble::Disk(_, disk) if is_closed(disk.kind()) => Ok(()),
        Trouble::Changed(_) => Ok(()),
        _ => Err(why),
    })
}

/// Whether a file is not ours to write.
fn is_closed(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem | ErrorKind::ResourceBusy)
}

#[cfg(test)]
#[path = "manager_tests.rs"]
mod tests;
