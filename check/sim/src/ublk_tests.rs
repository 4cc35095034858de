//! Disks of the machine on a simulated kernel: what becomes of a disk that a process before this one has left.

use crate::backends::SimulatedDisk;
use crate::configuration::uuid;
use crate::engine_host::{self, SimulatedHost};
use crate::setup::path;
use lunar_control::apply::{MissingPolicy, apply};
use lunar_control::check::{LocalHost, check};
use lunar_control::in_use::Taking;
use lunar_control::live::Live;
use lunar_control::{Checked, Plan, Schema};
use lunar_core::io::{Data, Fault};
use lunar_core::mem::Arena;
use lunar_engine::core_set::SteppedCores;
use lunar_engine::engine::{Engine, EngineOptions};
use lunar_engine::origin::Origin;
use lunar_engine::registry::{FrontEntry, Registry};
use lunar_reactor::Reactor;
use lunar_reactor::endpoint::Endpoint;
use lunar_reactor::endpoint::command::{Command, Request};
use lunar_reactor::sim::{Host, World};
use lunar_ublk::front::UblkFront;
use lunar_ublk::serve::{Opener, Queues};
use lunar_ublk::user::DiskUser;
use lunar_ublk::wire::{Control, DeviceInfo, Params, State};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use zerocopy::IntoBytes;

const MACHINE: Host = Host(1);
const BYTES: usize = 1 << 20;
const ANY_NUMBER: u32 = u32::MAX;

/// The kernel, which outlives processes.
#[derive(Default)]
struct Kernel {
    devices: BTreeMap<u32, (DeviceInfo, Params)>,
    /// The commands that change a device.
    calls: Vec<Control>,
    /// Devices whose recovery has begun: older kernels refuse another one.
    half: BTreeSet<u32>,
    /// Whether the sandbox does not include the control device.
    is_shut: bool,
    /// Links to disks.
    links: BTreeMap<PathBuf, u32>,
    /// Disks that are mounted.
    mounted: BTreeSet<u32>,
    /// Opens of a device that fail, and starts.
    failing_opens: u32,
    failing_starts: u32,
}

thread_local! {
    static KERNEL: RefCell<Kernel> = RefCell::default();
}

impl Kernel {
    fn control(&mut self, command: &mut Command) -> Result<u32, Fault> {
        let Request::UblkControl(control) = command.request else { panic!("{command:?}") };
        let (number, device) = (Control(control.number), control.device);
        let mut bytes = [0; 64];
        if let Data::In(memory) = &mut command.data {
            memory.copy_to(0, &mut bytes);
        }
        if ![Control::GET_FEATURES, Control::GET_DEV_INFO, Control::GET_PARAMS].contains(&number) {
            self.calls.push(number);
        }
        if number == Control::ADD_DEV {
            let mut info = DeviceInfo::default();
            info.as_mut_bytes().copy_from_slice(&bytes);
            let free = (0..).find(|number| !self.devices.contains_key(number)).expect("a free number");
            info.number = if info.number == ANY_NUMBER { free } else { info.number };
            if self.devices.contains_key(&info.number) {
                return Err(Fault::Os(17));
            }
            self.devices.insert(info.number, (info, Params::default()));
            bytes.copy_from_slice(info.as_bytes());
        } else if number == Control::GET_FEATURES {
            bytes[..8].copy_from_slice(&0x7fff_u64.to_ne_bytes());
        } else {
            let (info, params) = self.devices.get_mut(&device).ok_or(Fault::Gone)?;
            match number {
                Control::GET_DEV_INFO => bytes.copy_from_slice(info.as_bytes()),
                Control::GET_PARAMS => bytes.copy_from_slice(params.as_bytes()),
                Control::SET_PARAMS => params.as_mut_bytes().copy_from_slice(&bytes),
                Control::START_USER_RECOVERY if !self.half.insert(device) => return Err(Fault::Os(22)),
                Control::START_DEV | Control::END_USER_RECOVERY if self.failing_starts > 0 => {
                    self.failing_starts -= 1;
                    return Err(Fault::Os(4));
                }
                Control::START_DEV | Control::END_USER_RECOVERY => info.state = State::LIVE.0,
                Control::STOP_DEV => info.state = State::DEAD.0,
                Control::DEL_DEV_ASYNC => drop(self.devices.remove(&device)),
                _ => {}
            }
        }
        if let Data::In(memory) = &mut command.data {
            memory.copy_from(0, &bytes[..memory.len().min(64)]);
        }
        Ok(0)
    }
}

fn control() -> io::Result<Endpoint> {
    if KERNEL.with_borrow(|kernel| kernel.is_shut) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let answer = |command: &mut Command| KERNEL.with_borrow_mut(|kernel| kernel.control(command));
    Ok(engine_host::world().device(answer))
}

fn queues(number: u32) -> io::Result<Queues> {
    KERNEL.with_borrow_mut(|kernel| {
        if kernel.failing_opens > 0 {
            kernel.failing_opens -= 1;
            return Err(io::ErrorKind::NotFound.into());
        }
        let (info, _) = kernel.devices.get(&number).ok_or(io::ErrorKind::NotFound)?;
        // No program uses the disk.
        let queue = |_| engine_host::world().device(|_: &mut Command| Err(Fault::Gone));
        let endpoints = (0..info.queues).map(queue).collect();
        Ok(Queues { depth: info.depth, buffer_bytes: info.buffer_bytes as usize, endpoints })
    })
}

fn has_disks() -> bool {
    KERNEL.with_borrow(|kernel| !kernel.devices.is_empty())
}

fn user(number: u32) -> Option<DiskUser> {
    let is_mounted = KERNEL.with_borrow(|kernel| kernel.mounted.contains(&number));
    is_mounted.then(|| DiskUser::Mounted(format!("ublkb{number}p1"), "/mnt".to_owned()))
}

fn link(path: &Path, number: u32) -> io::Result<()> {
    KERNEL.with_borrow_mut(|kernel| kernel.links.insert(path.to_owned(), number));
    Ok(())
}

fn unlink(path: &Path, number: u32) {
    KERNEL.with_borrow_mut(|kernel| kernel.links.retain(|link, disk| link != path || *disk != number));
}

fn links(folder: &Path) -> Vec<(String, u32)> {
    let name = |link: &Path| Some(link.strip_prefix(folder).ok()?.to_str()?.to_owned());
    KERNEL.with_borrow(|kernel| kernel.links.iter().filter_map(|(link, disk)| Some((name(link)?, *disk))).collect())
}

const OPEN: Opener = Opener { control, queues, flusher: || Ok(()), has_disks, user, link, unlink, links };

static REGISTRY: Registry = Registry {
    fronts: &[FrontEntry { front: &UblkFront { open: OPEN }, schema: &lunar_ublk::schema::FRONT, options: None }],
    backends: &[&SimulatedDisk],
};

static SCHEMA: LazyLock<Schema> = LazyLock::new(|| REGISTRY.schema());

const SERVER: &str = "[server]\ncores = 2\ndriver = 'epoll'\ndrain = '1s'\n";

fn checked(text: &str) -> Checked {
    let outside = LocalHost { config: PathBuf::new() };
    check(&SCHEMA, "simulated", text, &outside).unwrap_or_else(|why| panic!("{why}\n{text}"))
}

/// A configuration with a volume, of this UUID, and with sections of disks.
fn text(volume: usize, disks: &[(&str, u32)]) -> String {
    let digits = format!("{:032x}", u128::from_be_bytes(uuid(volume)));
    let uuid = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-");
    let file = path(0);
    let mut text = format!(
        "{SERVER}[portal-group.p]\ntag = 1\n[target.t]\niqn = 'iqn.2026-01.io.lunar:u'\nportal-groups = ['p']\n\
         [volume.v]\nuuid = '{uuid}'\nsize = {BYTES}\nkind = 'file'\npath = '{}'\n\
         [group.g]\ntargets = ['t']\ninitiators = ['*']\nluns = {{ 0 = 'v' }}\n",
        file.display()
    );
    for (name, number) in disks {
        text += &format!("[ublk.{name}]\ntarget = 't'\nnumber = {number}\n");
    }
    text
}

/// A process that serves.
struct Process {
    engine: Engine,
    cores: SteppedCores,
    applied: Checked,
}

impl Process {
    fn start(world: &World) -> Self {
        engine_host::enter(world);
        let empty = checked(SERVER);
        let host = Arc::new(SimulatedHost::default());
        let options = EngineOptions { registry: &REGISTRY, host, lock: None, origin: Origin::Configuration };
        let (engine, cores) = Engine::on_reactors(&empty.config, options, |shared| {
            let core = |stats| Reactor::with_driver(world.core(MACHINE), Arena::new(4 << 20), stats);
            shared.stats.iter().cloned().map(core).collect()
        })
        .expect("the cores start");
        let engine = Self { engine, cores, applied: empty };
        engine.engine.audit_to(Box::new(|_| ()));
        engine
    }

    fn controlling<T>(&mut self, work: impl FnOnce(&mut Engine) -> T) -> T {
        let all = self.cores.reactors().into_iter().cloned().collect();
        engine_host::controlling(all, || work(&mut self.engine))
    }

    /// Puts a configuration in force; returns why it cannot be.
    fn apply(&mut self, text: &str) -> Result<(), String> {
        let wanted = checked(text);
        let plan = Plan::between(&self.applied, &wanted);
        let applied = self.controlling(|engine| {
            let strict =
                MissingPolicy { may_be_missing: BTreeSet::new(), may_lack: BTreeSet::new(), retry: &mut |_, _| false };
            let applied = apply(engine, &plan, &wanted, strict, || Ok(())).map(drop).map_err(|why| why.to_string());
            engine.wait_until_final();
            applied
        });
        if applied.is_ok() {
            self.applied = wanted;
        }
        applied
    }

    /// Its troubles, and the disks that it serves.
    fn state(&mut self) -> (Vec<String>, Vec<String>) {
        self.controlling(|engine| {
            let troubles = engine.troubles().into_iter().map(|trouble| trouble.words).collect();
            (troubles, engine.sessions().into_iter().map(|session| session.source).collect())
        })
    }

    fn kill(self, world: &World) {
        world.crash(MACHINE, false);
        drop(self);
        engine_host::leave();
        KERNEL.with_borrow_mut(|kernel| {
            kernel.half.clear();
            for (info, _) in kernel.devices.values_mut() {
                info.state = if info.state == State::LIVE.0 { State::QUIESCED.0 } else { info.state };
                info.pid = -1;
            }
        });
    }
}

/// The marks that a device of this name has.
fn named(name: &str) -> DeviceInfo {
    KERNEL.set(Kernel::default());
    let world = World::new(1);
    world.create(path(0), BYTES);
    let mut process = Process::start(&world);
    process.apply(&text(0, &[(name, 3)])).expect("it serves");
    let (info, _) = KERNEL.with_borrow_mut(|kernel| kernel.devices.remove(&3).expect("its device"));
    process.kill(&world);
    info
}

/// A machine on which a process was killed that served the disk `data` as number 7.
fn left() -> World {
    KERNEL.set(Kernel::default());
    let world = World::new(1);
    world.create(path(0), BYTES);
    let mut first = Process::start(&world);
    first.apply(&text(0, &[("data", 7)])).expect("it serves");
    assert_eq!(first.state(), (vec![], vec!["/dev/ublkb7".to_owned()]));
    first.kill(&world);
    assert!(calls().ends_with(&[Control::START_DEV]));
    world
}

fn calls() -> Vec<Control> {
    KERNEL.with_borrow_mut(|kernel| std::mem::take(&mut kernel.calls))
}

fn state_of(number: u32) -> Option<State> {
    KERNEL.with_borrow(|kernel| kernel.devices.get(&number).map(|(info, _)| State(info.state)))
}

#[test]
fn a_start_that_fails_is_repeated_at_the_step_that_failed() {
    let (world, data) = (left(), text(0, &[("data", 7)]));
    let mut next = Process::start(&world);
    KERNEL.with_borrow_mut(|kernel| (kernel.failing_opens, kernel.failing_starts) = (2, 1));
    for _ in 0..2 {
        next.apply(&data).expect("a disk that does not start is a trouble");
        let (troubles, disks) = next.state();
        assert!(troubles[0].contains("/dev has to be a devtmpfs") && disks.is_empty(), "{troubles:?}");
        assert_eq!(calls(), [Control::START_USER_RECOVERY]);
    }
    next.apply(&data).expect("the last step fails");
    assert!(next.state().0[0].contains("starting /dev/ublkb7"));
    assert_eq!(calls(), [Control::START_USER_RECOVERY, Control::END_USER_RECOVERY]);
    assert_eq!(state_of(7), Some(State::QUIESCED), "its requests wait");
    next.apply(&data).expect("it starts");
    assert_eq!(next.state(), (vec![], vec!["/dev/ublkb7".to_owned()]));
    assert_eq!(calls(), [Control::END_USER_RECOVERY], "its queues are served already");
    next.kill(&world);
}

#[test]
fn a_disk_of_a_volume_needs_no_target_and_no_group() {
    KERNEL.set(Kernel::default());
    let world = World::new(1);
    world.create(path(0), BYTES);
    let mut first = Process::start(&world);
    let disk = |name: &str, number: u32| format!("[ublk.{name}]\nvolume = 'v'\nnumber = {number}\nread-only = true\n");
    let both = format!("{}{}{}", text(0, &[]), disk("work", 4), disk("look", 5));
    first.apply(&both).expect("it serves");
    assert_eq!(first.state(), (vec![], vec!["/dev/ublkb5".to_owned(), "/dev/ublkb4".to_owned()]));
    let seen = first.controlling(|engine| engine.local_disks()());
    assert!(seen.trouble.is_none() && seen.used.iter().all(|name| seen.offered.contains(name)), "{seen:?}");
    let disks: Vec<_> = seen.disks.iter().map(|disk| (&*disk.name, &*disk.volume, &*disk.device)).collect();
    assert_eq!(disks, [("look", "v", "/dev/ublkb5"), ("work", "v", "/dev/ublkb4")]);
    assert!(seen.disks[0].read_only && seen.disks[0].host.ends_with(":local:look"));
    first.apply(&format!("{}{}", text(0, &[]), disk("look", 5))).expect("one is removed");
    assert_eq!(first.state().1, ["/dev/ublkb5"]);
    first.kill(&world);
}

/// The disks in use from which a change takes something, each with its losses.
fn lost(process: &mut Process, text: &str) -> Vec<(String, String)> {
    let wanted = checked(text);
    let plan = Plan::between(&process.applied, &wanted);
    let Some(taking) = Taking::of(&plan, &process.applied.config, &wanted.config) else { return Vec::new() };
    let lost = process.engine.lost_disks(&taking);
    assert!(lost.iter().all(|disk| plan.changes.iter().any(|change| disk.causes.contains(&change.object))), "{plan}");
    lost.into_iter().map(|disk| (disk.host.source, disk.host.loses.join("; "))).collect()
}

#[test]
fn a_change_that_takes_a_disk_away_tells_of_its_mount() {
    KERNEL.set(Kernel::default());
    let world = World::new(1);
    world.create(path(0), BYTES);
    let mut first = Process::start(&world);
    let disk = "[ublk.work]\nvolume = 'v'\nnumber = 4\n";
    let both = format!("{}{disk}", text(0, &[("data", 5)]));
    first.apply(&both).expect("it serves");
    let only_work = format!("{}{disk}", text(0, &[]));
    let ended =
        |process: &mut Process, id: &str| process.engine.lost_with(id).map(|host| (host.source, host.loses.join("; ")));
    assert_eq!(lost(&mut first, &only_work), [], "nothing uses the disks");
    assert_eq!(ended(&mut first, "ublk-4"), None, "nothing uses the disk");
    KERNEL.with_borrow_mut(|kernel| kernel.mounted = [4, 5].into());
    let told = |source: &str, loss: &str| {
        let words =
            format!("{loss}, and /dev/ublkb{source}p1 is mounted at /mnt on the service's machine: umount /mnt");
        (format!("/dev/ublkb{source}"), words)
    };
    let (data, work) = ("ublk disk data", "ublk disk work");
    assert_eq!(ended(&mut first, "ublk-4"), Some(told("4", &format!("{work} is removed"))));
    assert_eq!(ended(&mut first, "ublk-6"), None, "there is no such session");
    for (wanted, losses) in [
        (both.clone(), vec![]),
        (format!("{both}[group.h]\ntargets = ['t']\ninitiators = ['iqn.x']\nluns = {{ 1 = 'v' }}\n"), vec![]),
        (both.replace("drain = '1s'", "drain = '2s'"), vec![]),
        (only_work, vec![told("5", &format!("{data} is removed"))]),
        (text(0, &[("data", 5)]), vec![told("4", &format!("{work} is removed"))]),
        (
            both.replace("volume = 'v'", "target = 't'"),
            vec![told("4", &format!("{work} is removed and made with other settings"))],
        ),
        (
            both.replace("number = 4", "number = 4\ndepth = 8"),
            vec![told("4", &format!("{work} is removed and made with other settings"))],
        ),
        (both.replace("luns = { 0 = 'v' }", "luns = { }"), vec![told("5", &format!("{data} loses its volume v"))]),
        (
            both.replace("initiators = ['*']", "initiators = ['iqn.2026-01.com.example:*']"),
            vec![told("5", &format!("{data} loses its volume v"))],
        ),
        (
            both.replace("00000001-", "00000002-"),
            vec![told("5", &format!("{data} loses its volume v")), told("4", &format!("{work} loses its volume v"))],
        ),
        (
            both.replace(&format!("size = {BYTES}"), &format!("size = {}", BYTES / 2)),
            vec![
                told("5", &format!("volume v of {data} becomes smaller")),
                told("4", &format!("volume v of {work} becomes smaller")),
            ],
        ),
    ] {
        assert_eq!(lost(&mut first, &wanted), losses, "{wanted}");
    }
    first.kill(&world);
}

#[test]
fn the_first_disk_of_a_process_that_began_without_one_may_need_a_restart() {
    KERNEL.set(Kernel { is_shut: true, ..Kernel::default() });
    let world = World::new(1);
    world.create(path(0), BYTES);
    let mut first = Process::start(&world);
    first.apply(&text(0, &[])).expect("no disk is wanted");
    let disk = format!("{}[ublk.work]\nvolume = 'v'\n", text(0, &[]));
    for (wanted, section) in
        [(&disk, "([ublk.work], volume = \"v\")"), (&text(0, &[("d", 1)]), "([ublk.d], target = \"t\")")]
    {
        let why = first.apply(wanted).expect_err("the sandbox does not include it");
        assert!(why.contains(section) && why.contains("restart Lunar"), "{why}");
    }
    let features = first.controlling(|engine| engine.local_disks()()).trouble.expect("it says why there are none");
    assert!(features.contains("[ublk.NAME]") && features.contains("restart Lunar"), "{features}");
    first.kill(&world);
    // The next process has the section at its start: its rights are too few.
    let mut next = Process::start(&world);
    let why = next.apply(&disk).expect_err("it may not be opened");
    assert!(why.contains("run Lunar as root") && !why.contains("restart"), "{why}");
    KERNEL.with_borrow_mut(|kernel| kernel.is_shut = false);
    next.apply(&disk).expect("it serves");
    next.kill(&world);
}

/// The names of the links, and the numbers of their disks.
fn linked() -> Vec<(String, u32)> {
    let name = |link: &Path| link.file_name().expect("a name").display().to_string();
    KERNEL.with_borrow(|kernel| kernel.links.iter().map(|(link, disk)| (name(link), *disk)).collect())
}

#[test]
fn links_to_disks_that_are_not_served_any_more_are_removed() {
    let other = DeviceInfo { number: 9, state: State::LIVE.0, ..named("other") };
    let world = left();
    assert_eq!(linked(), [("data".to_owned(), 7)]);
    let mut next = Process::start(&world);
    // Number 9 is served by another process, and 8 is gone.
    KERNEL.with_borrow_mut(|kernel| {
        let folder = kernel.links.keys().next().and_then(|link| link.parent()).expect("a folder").to_owned();
        kernel.devices.insert(9, (other, Params::default()));
        kernel.links.extend([("other", 9), ("stray", 9), ("gone", 8)].map(|(name, disk)| (folder.join(name), disk)));
    });
    next.apply(&text(0, &[("data", 7)])).expect("it serves");
    assert_eq!(linked(), [("data".to_owned(), 7), ("other".to_owned(), 9)]);
    next.kill(&world);
    KERNEL.with_borrow_mut(|kernel| kernel.devices.insert(9, (other, Params::default())));
    let mut last = Process::start(&world);
    last.apply(&text(0, &[])).expect("no disk is wanted");
    assert_eq!(linked(), [("other".to_owned(), 9)], "the disk was left, and is not served");
    last.kill(&world);
}

#[test]
fn another_process_repeats_a_start_that_failed() {
    let (world, data) = (left(), text(0, &[("data", 7)]));
    KERNEL.with_borrow_mut(|kernel| kernel.failing_starts = 1);
    let mut next = Process::start(&world);
    next.apply(&data).expect("the last step fails");
    next.kill(&world);
    let mut last = Process::start(&world);
    last.apply(&data).expect("it serves");
    assert_eq!((last.state().1, state_of(7)), (vec!["/dev/ublkb7".to_owned()], Some(State::LIVE)));
    last.kill(&world);
}

#[test]
fn a_section_that_is_removed_during_a_takeover_removes_its_device() {
    let (world, data) = (left(), text(0, &[("data", 7)]));
    KERNEL.with_borrow_mut(|kernel| kernel.failing_starts = 1);
    let mut next = Process::start(&world);
    next.apply(&data).expect("the last step fails");
    let deeper = data.replace("number = 7", "number = 7\ndepth = 8");
    next.apply(&deeper).expect("it is told");
    assert!(next.state().0[0].contains("with other settings") && state_of(7).is_some());
    next.apply(&text(0, &[])).expect("it ends");
    assert_eq!((next.state(), state_of(7)), ((vec![], vec![]), None));
    next.kill(&world);
}

#[test]
fn a_disk_is_not_taken_over_for_another_volume_at_the_same_path() {
    let world = left();
    let mut next = Process::start(&world);
    let why = next.apply(&text(1, &[("data", 7)])).expect_err("its requests are for another volume");
    assert!(why.contains("its requests wait for another volume (00000001-"), "{why}");
    assert_eq!((calls(), state_of(7)), (vec![], Some(State::QUIESCED)));
    next.kill(&world);
}

#[test]
fn a_disk_without_a_section_is_told_and_removed_when_it_is_asked_for() {
    let world = left();
    let mut next = Process::start(&world);
    next.apply(&text(0, &[])).expect("no disk is wanted");
    let (troubles, disks) = next.state();
    assert!(troubles[0].contains("lunar session kick ublk-7"), "{troubles:?}");
    assert_eq!(disks, ["/dev/ublkb7"], "it can be found to be ended");
    assert_eq!((calls(), state_of(7)), (vec![], Some(State::QUIESCED)), "it is never removed without being asked for");
    assert!(next.controlling(|engine| engine.kick("ublk-7").expect("it is known")()));
    assert_eq!(calls(), [Control::STOP_DEV, Control::DEL_DEV_ASYNC]);
    assert_eq!((next.state(), state_of(7)), ((vec![], vec![]), None));
    next.kill(&world);
}

#[test]
fn a_number_passes_from_one_section_to_another_in_one_change() {
    let world = left();
    let mut next = Process::start(&world);
    next.apply(&text(0, &[("data", 7)])).expect("it serves");
    next.apply(&text(0, &[("other", 7)])).expect("the first one ends before the second one begins");
    assert_eq!(next.state(), (vec![], vec!["/dev/ublkb7".to_owned()]));
    // The disk ends before its volume does.
    next.apply(SERVER).expect("both go");
    assert_eq!((next.state(), state_of(7)), ((vec![], vec![]), None));
    next.kill(&world);
}
