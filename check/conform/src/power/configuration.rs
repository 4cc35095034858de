//! The configuration of the daemon and its history across power cuts: a change that was acknowledged is there, and
//! every file is whole.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};

use super::client::{Address, Client, Protocol};
use super::file_system::Machine;
use super::ledger::Content;
use super::medium::Loss;
use super::writer::{Progress, VolumeKind, Writer};
use crate::process;
use crate::target::{Driver, Lab, Spec, Target};
use crate::test_data::Random;

/// The file systems with a configuration.
pub(super) const FILE_SYSTEMS: [&str; 2] = ["ext4", "xfs"];
const LIMIT: Duration = Duration::from_secs(30);
const TARGET: &str = "iqn.2026-01.io.lunar:power-configuration";
/// Bytes of a volume.
const SIZE: u64 = 1 << 20;
/// Most volumes. The changes after these are applied texts only.
const VOLUMES_MAX: usize = 60;
/// Bytes of the volume with data, and writes between two promises.
const DATA_SIZE: u64 = 8 << 20;
const WRITES: usize = 8;
/// Most snapshots of it.
const SNAPSHOTS_MAX: usize = 12;
/// The comment in the first line of the configuration, with the number of the applied text.
const NUMBER: &str = "# text ";

/// Changes the configuration until the power is cut, this many times.
pub(super) fn part(lab: &Lab, driver: Driver, kind: &'static str, cuts: u32, random: &mut Random) -> Result<()> {
    let name = format!("configuration-{kind}");
    let mut machine = Machine::new(lab, &name, kind, &[])?;
    let mut spec = Spec::new(driver, Vec::<String>::new())?;
    spec.daemon = Some(machine.folder().join("lunar.toml"));
    let mut operator = Operator {
        program: lab.built()?.to_owned(),
        // Outside of the machine: the commands that wait for it run on.
        socket: lab.scratch.join(format!("{name}.sock")),
        wanted: lab.scratch.join(format!("{name}.toml")),
        folder: machine.folder().to_owned(),
        volumes: Vec::new(),
        new_volume: None,
        asked: 0,
        applied: 0,
        applying: None,
        uuids: HashMap::new(),
        count: 0,
        portal: spec.portal(),
        writer: Writer::new(Protocol::Iscsi, 0, VolumeKind::default(), random.next()),
        has_shared_blocks: kind == "xfs",
        snapshots: Vec::new(),
    };
    std::fs::write(operator.file(), operator.first_text(&spec, driver)?)?;
    machine.sync()?;
    let mut target = operator.start(lab, &spec)?;
    for cut in 1..=cuts {
        let loss = Loss::EACH[usize::try_from(random.below(Loss::EACH.len() as u64))?];
        let context = || format!("power cut {cut}, {loss:?}");
        change_and_cut(&mut machine, target, &mut operator, loss, random).with_context(context)?;
        machine.power_on().with_context(context)?;
        operator.check_file().context("before the start").with_context(context)?;
        target = operator.start(lab, &spec).with_context(context)?;
        operator.check().with_context(context)?;
    }
    ensure!(operator.count > 0, "no change was acknowledged before a power cut");
    lab.report.note(&format!(
        "power/{}: configuration on {kind}: {} acknowledged changes, {cuts} power cuts",
        driver.name(),
        operator.count
    ));
    target.stop()
}

fn change_and_cut(
    machine: &mut Machine,
    target: Target,
    operator: &mut Operator,
    loss: Loss,
    random: &mut Random,
) -> Result<()> {
    let progress = &Progress::default();
    let delay = Duration::from_millis(random.below(500));
    std::thread::scope(|scope| {
        let changes = scope.spawn(|| operator.change_until_cut(progress));
        let end = Instant::now() + LIMIT;
        while !progress.has_changes() && !changes.is_finished() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(2));
        }
        std::thread::sleep(delay);
        progress.cut();
        machine.cut(target, loss, random)?;
        changes.join().map_err(|_| anyhow!("the operator's thread panicked"))?
    })
}

/// The operator, and what the daemon acknowledged.
struct Operator {
    program: PathBuf,
    socket: PathBuf,
    /// The text that is applied.
    wanted: PathBuf,
    /// The folder of the configuration, the state and the volumes.
    folder: PathBuf,
    /// The volumes that were created, and the one without an acknowledgement.
    volumes: Vec<String>,
    new_volume: Option<String>,
    /// The number of volumes that were asked for.
    asked: u64,
    /// The number of the applied text, and that of the one without an acknowledgement.
    applied: u64,
    applying: Option<u64>,
    /// The UUIDs of volumes that were seen after a power cut.
    uuids: HashMap<String, String>,
    /// Acknowledged changes.
    count: u64,
    /// The portal, and the writer of the volume with data.
    portal: SocketAddr,
    writer: Writer,
    /// Whether the file system can make snapshots; their files, and the contents when they were made.
    has_shared_blocks: bool,
    snapshots: Vec<(PathBuf, Vec<Vec<Content>>)>,
}

impl Operator {
    fn file(&self) -> PathBuf {
        self.folder.join("lunar.toml")
    }

    fn image(&self, volume: &str) -> PathBuf {
        self.folder.join(format!("{volume}.img"))
    }

    fn first_text(&self, spec: &Spec, driver: Driver) -> Result<String> {
        let mut text = format!("{NUMBER}0\n");
        write!(
            text,
            "[server]\ncores = 2\nmemory = \"32M\"\ndriver = \"{}\"\nstate = \"{}/state\"\n\
             [portal-group.p]\ntag = 1\n[portal.one]\naddress = \"{}\"\ngroup = \"p\"\n\
             [target.main]\niqn = \"{TARGET}\"\nportal-groups = [\"p\"]\n\
             [group.all]\ntargets = [\"main\"]\ninitiators = [\"*\"]\nluns = {{ 0 = \"data\" }}\n\
             [volume.data]\nkind = \"file\"\npath = \"{}\"\nsize = \"{DATA_SIZE}\"\n[api]\nsocket = \"{}\"\n",
            driver.name().replace('_', "-"),
            self.folder.display(),
            spec.portal(),
            self.image("data").display(),
            self.socket.display(),
        )?;
        Ok(text)
    }

    /// Starts the daemon and waits for its API.
    fn start(&self, lab: &Lab, spec: &Spec) -> Result<Target> {
        let target = Target::start_named(lab, spec, TARGET)?;
        let end = Instant::now() + LIMIT;
        while let Err(why) = self.lunar(&["volume", "list"]) {
            ensure!(Instant::now() < end, "the daemon does not answer: {why:#}");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(target)
    }

    /// Runs a command of the operator.
    fn lunar(&self, words: &[&str]) -> Result<String> {
        let mut command = process::bound(&self.program);
        process::run(command.args(words).arg("--socket").arg(&self.socket), LIMIT)?.succeeded()
    }

    /// Changes the configuration until the power is cut.
    fn change_until_cut(&mut self, progress: &Progress) -> Result<()> {
        let mut client = None;
        loop {
            let changed = match self.count % 5 {
                0 => self.apply(),
                1 => self.switch(&mut client),
                2 if self.has_shared_blocks && self.snapshots.len() < SNAPSHOTS_MAX => self.snapshot(&mut client),
                _ if self.volumes.len() < VOLUMES_MAX => self.create(),
                _ => self.apply(),
            };
            match changed {
                Ok(()) => {
                    self.count += 1;
                    progress.changed();
                }
                Err(_) if progress.is_cut() => return Ok(()),
                Err(why) => return Err(why),
            }
        }
    }

    fn create(&mut self) -> Result<()> {
        self.asked += 1;
        let name = format!("disk{}", self.asked);
        let path = self.image(&name);
        self.new_volume = Some(name.clone());
        let path = path.to_str().context("the name of the scratch folder is not UTF-8")?;
        let size = SIZE.to_string();
        self.lunar(&["volume", "create", &name, "--kind", "file", "--path", path, "--size", &size])?;
        self.volumes.extend(self.new_volume.take());
        Ok(())
    }

    fn address(&self) -> Address {
        Address { iscsi: self.portal, nvme: self.portal, target: TARGET.to_owned() }
    }

    fn write(&mut self, client: &mut Option<Client>) -> Result<()> {
        if client.is_none() {
            *client = Some(Client::open(Protocol::Iscsi, &self.address(), 0)?);
        }
        self.writer.write_plain(client.as_mut().context("it was just opened")?, WRITES)
    }

    /// Writes, and then switches `write-through` on: everything is durable when that is acknowledged.
    fn switch(&mut self, client: &mut Option<Client>) -> Result<()> {
        self.write(client)?;
        self.lunar(&["volume", "set", "data", "--write-through=true"])?;
        self.writer.flushed();
        self.lunar(&["volume", "set", "data", "--write-through=false"])?;
        // Until an initiator enables it, there is no write cache after that.
        client.as_mut().context("it has written")?.set_cache(true)
    }

    /// Makes a snapshot: its file has the data of every acknowledged write.
    fn snapshot(&mut self, client: &mut Option<Client>) -> Result<()> {
        self.write(client)?;
        self.asked += 1;
        let name = format!("snapshot{}", self.asked);
        self.new_volume = Some(name.clone());
        self.lunar(&["volume", "snapshot", "data", &name])?;
        self.volumes.extend(self.new_volume.take());
        self.snapshots.push((self.image(&name), self.writer.current()));
        Ok(())
    }

    fn apply(&mut self) -> Result<()> {
        let text = std::fs::read_to_string(self.file())?;
        let (_, rest) = text.split_once('\n').context("the configuration has one line")?;
        let next = self.applied + 1;
        std::fs::write(&self.wanted, format!("{NUMBER}{next}\n{rest}"))?;
        self.applying = Some(next);
        let wanted = self.wanted.to_str().context("the name of the scratch folder is not UTF-8")?;
        self.lunar(&["apply", wanted])?;
        (self.applied, self.applying) = (next, None);
        Ok(())
    }

    /// The file is whole and has every acknowledged change.
    fn check_file(&self) -> Result<String> {
        let text = std::fs::read_to_string(self.file())?;
        let (number, volumes) = parse(&text).with_context(|| format!("the configuration is torn:\n{text}"))?;
        ensure!(
            number == self.applied || Some(number) == self.applying,
            "text {number} is in the file, text {} was acknowledged",
            self.applied
        );
        for name in &self.volumes {
            ensure!(volumes.contains_key(name), "volume {name} was acknowledged and is not in the file:\n{text}");
            let len = std::fs::metadata(self.image(name)).with_context(|| format!("the file of volume {name}"))?.len();
            let wanted = if name.starts_with("disk") { SIZE } else { DATA_SIZE };
            ensure!(len == wanted, "the file of volume {name} has {len} bytes");
        }
        for name in volumes.keys().filter(|name| *name != "data") {
            ensure!(
                self.volumes.contains(name) || self.new_volume.as_ref() == Some(name),
                "volume {name} is in the file and was not created"
            );
        }
        Ok(text)
    }

    /// After the start: the file, its history, the identities and the volumes.
    fn check(&mut self) -> Result<()> {
        let text = self.check_file()?;
        let (number, volumes) = parse(&text)?;
        for (name, uuid) in volumes {
            let uuid = uuid.with_context(|| format!("volume {name} has no UUID in the file"))?;
            let known = self.uuids.entry(name.clone()).or_insert_with(|| uuid.clone());
            ensure!(*known == uuid, "the UUID of volume {name} changed");
            if self.new_volume.as_ref() == Some(&name) {
                self.volumes.push(name);
            }
        }
        (self.applied, self.applying, self.new_volume) = (number, None, None);
        whole_history(&self.folder.join("state/history"), &text)?;
        let listed = self.lunar(&["volume", "list"])?;
        for name in &self.volumes {
            ensure!(listed.contains(name.as_str()), "volume {name} is not listed:\n{listed}");
        }
        let status = self.lunar(&["status"])?;
        ensure!(!status.contains("not served"), "a volume is not served:\n{status}");
        for (file, contents) in &self.snapshots {
            self.writer.check_copy(file, contents).context("a snapshot")?;
        }
        let address = self.address();
        self.writer.check(&address)
    }
}

/// The number of the text, and the volumes in it with their UUIDs.
fn parse(text: &str) -> Result<(u64, HashMap<String, Option<String>>)> {
    let number = text.lines().next().and_then(|line| line.strip_prefix(NUMBER)).context("no number of the text")?;
    let table: toml::Table = text.parse()?;
    ensure!(table.contains_key("api"), "the last section of the first text is missing");
    let volumes = table.get("volume").and_then(toml::Value::as_table).cloned().unwrap_or_default();
    let uuid = |volume: &toml::Value| Some(volume.get("uuid")?.as_str()?.to_owned());
    let volumes = volumes.iter().map(|(name, volume)| (name.clone(), uuid(volume))).collect();
    Ok((number.parse()?, volumes))
}

/// Every version of the history is whole, and the last one is the text in force.
fn whole_history(folder: &Path, current: &str) -> Result<()> {
    let mut files = std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    files.sort();
    let mut last = String::new();
    for path in &files {
        last = std::fs::read_to_string(path)?;
        parse(&last).with_context(|| format!("{} is torn:\n{last}", path.display()))?;
    }
    ensure!(last == current, "the last version of the history is not the text in force");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_text_is_noticed() {
        let text = "# text 7\n[server]\ncores = 2\n[api]\n[volume.a]\nuuid = \"x\"\n[volume.b]\n";
        let (number, volumes) = parse(text).unwrap();
        assert_eq!((number, &volumes["a"], &volumes["b"]), (7, &Some("x".to_owned()), &None));
        assert!(parse(&text[..30]).is_err());
        assert!(parse(&text.replace("uuid = \"x\"", "uuid = \0\0\0")).is_err());
        assert!(parse("").is_err());
    }
}
