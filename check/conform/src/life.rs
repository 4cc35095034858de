//! Start, refusals, options, restart and end: what an operator meets.

use std::fs::{File, Permissions};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;

use crate::closed_log;
use crate::copies;
use crate::loop_device::LoopDevice;
use crate::process;
use crate::report::skip;
use crate::reservations;
use crate::session::{self, Data, Login, Session, cdb};
use crate::target::{self, Driver, Lab, Spec, Target};
use crate::test_data::pattern;
use crate::thin_space;
use crate::unit_attentions;
use crate::verifying_writer::{REGION, VerifyingWriter};

const LIMIT: Duration = Duration::from_secs(20);

type Case = (&'static str, fn(&Lab, Driver) -> Result<()>);

const CASES: [Case; 27] = [
    ("the banner says how to connect, and when it is ready", banner),
    ("SIGTERM: under way is finished, all is on the disk", |lab, driver| drains(lab, driver, Signal::TERM)),
    ("SIGINT does the same", |lab, driver| drains(lab, driver, Signal::INT)),
    ("SIGTERM: idle sessions do not hold it up", idle_sessions),
    ("a reservation ends with its session, and holds no stop up", reservations::stop),
    ("SIGHUP: a closed terminal is no reason to stop", hangup),
    ("a log that nobody reads any more is no reason to stop", closed_log::goes_on),
    ("restart: data, names and identity stay", restart),
    ("restart on the same port right after kill -9", same_port_again),
    ("a second process on the same file is refused", same_file_twice),
    ("a port that is taken is named", port_taken),
    ("a file that is not there is named", no_such_file),
    ("a size that is none is refused", bad_size),
    ("a file that is no whole number of blocks is refused", uneven),
    ("a file that may not be written is refused", not_writable),
    ("without options it is iSCSI and NVMe/TCP, at their ports", default_ports),
    ("a new file is sparse and has the size asked for", sparse),
    ("volumes are LUNs in their order", several_volumes),
    ("two portals, one of them IPv6", two_portals),
    ("the advertised address is told", advertised),
    ("a read-only volume takes no writes", read_only),
    ("--write-through has no write cache", |lab, driver| write_cache(lab, driver, &["--write-through"], false)),
    ("without it there is one", |lab, driver| write_cache(lab, driver, &[], true)),
    ("one core, four cores", cores),
    ("an idle target uses no processor time", idle),
    ("statistics over a socket", statistics),
    ("a block device", block_device),
];

pub(crate) fn part(lab: &Lab, driver: Driver) -> Result<()> {
    lab.built()?;
    let part = format!("life/{}", driver.name());
    for (name, case) in CASES {
        lab.report.check(&part, name, || case(lab, driver));
    }
    unit_attentions::part(lab, driver, &part)?;
    thin_space::part(lab, driver, &part);
    copies::part(lab, driver, &part);
    lab.report.check(&part, "the demo", || demo(lab, driver));
    Ok(())
}

fn session(target: &Target, volume: u16) -> Result<Session> {
    Session::ready(target.portal, &Login::to(&target.name, "life"), target.lun + volume)
}

fn banner(lab: &Lab, driver: Driver) -> Result<()> {
    let target = Target::start(lab, &Spec::new(driver, ["ram:1M"])?)?;
    let end = Instant::now() + LIMIT;
    // The port opens a moment before the banner comes.
    let said = loop {
        let said = std::fs::read_to_string(&target.log)?;
        if said.lines().any(|line| line == "ready") {
            break said;
        }
        ensure!(Instant::now() < end, "no line \"ready\" in:\n{said}");
        std::thread::sleep(Duration::from_millis(5));
    };
    for wanted in [target.name.clone(), target.portal.to_string(), target.url(0)] {
        ensure!(said.contains(&wanted), "no {wanted} in:\n{said}");
    }
    ensure!(target.name.starts_with("iqn."), "the target is called {}", target.name);
    target.stop()
}

/// A writer never stops; the target does, and what it acknowledged is in the file.
fn drains(lab: &Lab, driver: Driver, signal: Signal) -> Result<()> {
    /// Bytes of a write, and places that a writer goes through again and again.
    const WRITE: usize = 8192;
    const PLACES: u64 = 128;
    let first_block = |writer: u64, write: u64| writer * 16384 + write % PLACES * (WRITE as u64 / 512);
    let image = lab.image("drain.img", 32)?;
    let target = Target::start(lab, &Spec::new(driver, [image.clone()])?)?;
    let mut sessions = Vec::new();
    for qualifier in 0..2 {
        let login = Login::to(&target.name, "life").qualifier(qualifier);
        sessions.push(Session::ready(target.portal, &login, target.lun)?);
    }
    let writers: Vec<_> = (0..)
        .zip(sessions)
        .map(|(writer, mut session)| {
            std::thread::spawn(move || {
                let mut acknowledged = 0_u64;
                // Until the target does not want to any more.
                let data = |write| pattern(writer, write, WRITE);
                while session.write(first_block(writer, acknowledged), data(acknowledged), 512).is_ok() {
                    acknowledged += 1;
                }
                (writer, acknowledged)
            })
        })
        .collect();
    std::thread::sleep(Duration::from_millis(300));
    let log = target.log.clone();
    let before = Instant::now();
    let status = target.end(signal)?;
    ensure!(status.success(), "it ended with {status}:\n{}", target::tail(&log));
    ensure!(before.elapsed() < Duration::from_secs(12), "it took {:.1} s to stop", before.elapsed().as_secs_f64());
    let file = File::open(image)?;
    for writer in writers {
        let Ok((writer, acknowledged)) = writer.join() else { bail!("a writer panicked") };
        ensure!(acknowledged > 0, "a writer got nothing done");
        // Of each place the last that was acknowledged, and of one perhaps blocks of the write that was not.
        for write in acknowledged.saturating_sub(PLACES)..acknowledged {
            let mut found = vec![0; WRITE];
            file.read_exact_at(&mut found, first_block(writer, write) * 512)?;
            let wanted = pattern(writer, write, 512);
            let under_way = (write % PLACES == acknowledged % PLACES).then(|| pattern(writer, acknowledged, 512));
            let kept = found.chunks(512).all(|block| block == wanted || under_way.as_deref() == Some(block));
            ensure!(kept, "write {write} of writer {writer}, of {acknowledged}, is not in the file");
        }
    }
    Ok(())
}

fn idle_sessions(lab: &Lab, driver: Driver) -> Result<()> {
    let target = Target::start(lab, &Spec::new(driver, ["ram:1M"])?)?;
    let held = [session(&target, 0)?, Session::open(target.portal, &Login::to(&target.name, "other"))?];
    let before = Instant::now();
    target.stop()?;
    ensure!(before.elapsed() < Duration::from_secs(5), "it took {:.1} s to stop", before.elapsed().as_secs_f64());
    drop(held);
    Ok(())
}

fn hangup(lab: &Lab, driver: Driver) -> Result<()> {
    let mut target = Target::start(lab, &Spec::new(driver, ["ram:1M"])?)?;
    target.signal(Signal::HUP)?;
    std::thread::sleep(Duration::from_millis(300));
    target.healthy()?;
    session(&target, 0)?.logout()?;
    target.stop()
}

/// INQUIRY page 83h: who the logical unit says it is.
fn identity(session: &mut Session) -> Result<Vec<u8>> {
    let done = session.run(&[0x12, 1, 0x83, 0x04, 0, 0], Data::In(1024))?.good()?;
    let length = 4 + usize::from(u16::from_be_bytes([done.data[2], done.data[3]]));
    Ok(done.data[..length.min(1024)].to_vec())
}

fn restart(lab: &Lab, driver: Driver) -> Result<()> {
    let spec = Spec::new(driver, [lab.image("restart.img", 16)?])?;
    let mut seen = None;
    for round in 0..3_u64 {
        let target = Target::start(lab, &spec)?;
        let mut session = session(&target, 0)?;
        let now = (target.name.clone(), identity(&mut session)?);
        ensure!(*seen.get_or_insert_with(|| now.clone()) == now, "name or identity changed: {seen:02x?}, {now:02x?}");
        for earlier in 0..round {
            ensure!(
                session.read(earlier * 64, 64, 512)? == pattern(earlier, 7, 32768),
                "data of start {earlier} is gone"
            );
        }
        session.write(round * 64, pattern(round, 7, 32768), 512)?;
        session.logout()?;
        target.stop()?;
    }
    Ok(())
}

fn same_port_again(lab: &Lab, driver: Driver) -> Result<()> {
    let spec = Spec::new(driver, [lab.image("again.img", 64)?])?;
    for round in 0..5 {
        let target = Target::start_after_kill(lab, &spec).with_context(|| format!("start {round}"))?;
        let writer = VerifyingWriter::start(target.portal, &target.name, target.lun, lab.seed)?;
        writer.expect_progress()?;
        target.kill()?;
    }
    ensure!(REGION <= 64 << 20, "the writer needs a larger disk");
    Ok(())
}

/// Starts with arguments that cannot work: it must end with an error that has all these words.
fn expect_refused(lab: &Lab, spec: &Spec, words: &[&str]) -> Result<()> {
    let _ = std::fs::remove_file(target::log_path(lab, spec.portal()));
    let (mut child, log) = target::launch(lab, spec)?;
    let Some(status) = process::wait(&mut child, LIMIT)? else {
        child.kill()?;
        child.wait()?;
        bail!("it does not end; it said:\n{}", target::tail(&log));
    };
    let said = std::fs::read_to_string(&log)?;
    ensure!(!status.success(), "it ended well; it said:\n{said}");
    ensure!(!said.contains("panicked"), "{said}");
    for word in words {
        ensure!(said.contains(word), "no \"{word}\" in:\n{said}");
    }
    Ok(())
}

fn same_file_twice(lab: &Lab, driver: Driver) -> Result<()> {
    let image = lab.image("twice.img", 16)?;
    let target = Target::start(lab, &Spec::new(driver, [image.clone()])?)?;
    expect_refused(lab, &Spec::new(driver, [image])?, &["twice.img"])?;
    session(&target, 0)?.logout()?;
    target.stop()
}

fn port_taken(lab: &Lab, driver: Driver) -> Result<()> {
    let target = Target::start(lab, &Spec::new(driver, ["ram:1M"])?)?;
    let mut second = Spec::new(driver, ["ram:1M"])?;
    // The log is named by the first portal, which is free.
    second.listen.push(target.portal);
    expect_refused(lab, &second, &[&target.portal.port().to_string(), "in use"])?;
    session(&target, 0)?.logout()?;
    target.stop()
}

fn no_such_file(lab: &Lab, driver: Driver) -> Result<()> {
    let path = lab.fresh("nowhere.img")?;
    expect_refused(lab, &Spec::new(driver, [path.display().to_string()])?, &["nowhere.img"])?;
    ensure!(!path.exists(), "it made the file");
    Ok(())
}

fn bad_size(lab: &Lab, driver: Driver) -> Result<()> {
    let path = lab.fresh("size.img")?;
    for size in ["20X", "-1G", "0", "99999999999999999999G", "1.5.2G"] {
        expect_refused(lab, &Spec::new(driver, [format!("{}:{size}", path.display())])?, &[])?;
        ensure!(!path.exists(), "size {size} made a file");
    }
    expect_refused(lab, &Spec::new(driver, ["ram:1X"])?, &[])
}

fn uneven(lab: &Lab, driver: Driver) -> Result<()> {
    let path = lab.fresh("uneven.img")?;
    let name = path.display().to_string();
    for (bytes, flags) in [(1_000_u64, &[][..]), (512 * 7, &["--block-size", "4096"])] {
        File::create(&path)?.set_len(bytes)?;
        let spec = Spec::new(driver, [name.clone()])?.flags(flags);
        expect_refused(lab, &spec, &["uneven.img", &bytes.to_string(), "not a whole number of"])?;
        ensure!(std::fs::metadata(&path)?.len() == bytes, "its size was changed");
    }
    Ok(())
}

/// Root may write to any file, unless it lets go of that right.
fn not_writable(lab: &Lab, driver: Driver) -> Result<()> {
    const WITHOUT: [&str; 2] = ["--bounding-set=-dac_override", "--inh-caps=-dac_override"];
    let image = lab.image("locked.img", 16)?;
    std::fs::set_permissions(&image, Permissions::from_mode(0o444))?;
    let mut command = process::bound(lab.built()?);
    if rustix::process::geteuid().is_root() {
        if !process::run(process::bound("setpriv").args(WITHOUT).arg("true"), LIMIT)?.status.success() {
            return skip("root may not let go of its right to write to any file");
        }
        command = process::bound("setpriv");
        command.args(WITHOUT).arg(lab.built()?);
    }
    let portal = target::free_port()?.to_string();
    command.args(["serve", "--driver", driver.name(), "--listen", &portal, &image]);
    let ended = process::run(command.env("STATE_DIRECTORY", lab.scratch.join("state")), LIMIT)?;
    ensure!(!ended.status.success(), "it ended well; it said:\n{}", ended.text);
    for word in [&*image, "may not be written", "--read-only"] {
        ensure!(ended.text.contains(word), "no \"{word}\" in:\n{}", ended.text);
    }
    Ok(())
}

/// What runs in a network of its own: program, driver, volume, and where it says what it says.
const ALONE: &str = r#"
ip link set lo up || exit 77
setpriv --pdeathsig KILL -- "$1" serve --driver "$2" "$3" >"$4" 2>&1 &
target=$!
tries=0
until grep -qx ready "$4"; do
    tries=$((tries + 1))
    [ $tries -lt 100 ] && kill -0 $target || exit 1
    sleep 0.1
done
iqn=$(sed -n 's/^ *target *//p' "$4")
nqn=$(sed -n 's/^ *NQN *//p' "$4")
for url in "iscsi://127.0.0.1:3260/$iqn/0" "nvme-tcp://127.0.0.1:4420/$nqn/1"; do
    "$1" bench "$url" --rw randrw --time 0.3 --warmup 0 --verify || exit 1
done
grep -q "nvme connect -t tcp -a .* -s 4420 -n $nqn" "$4" || { echo "no line for nvme connect"; exit 1; }
kill $target
wait $target
"#;

/// As the first page has it. In a network of its own: elsewhere the ports are somebody's perhaps.
fn default_ports(lab: &Lab, driver: Driver) -> Result<()> {
    let mut own = process::bound("unshare");
    own.arg("--net").args((!rustix::process::geteuid().is_root()).then_some("--map-root-user"));
    let (image, log) = (lab.image("disk.img", 16)?, lab.fresh("alone.log")?);
    own.args(["sh", "-c", ALONE, "sh"]).arg(lab.built()?).args([driver.name(), &image]).arg(&log);
    let ended = process::run(own.env("STATE_DIRECTORY", lab.scratch.join("state")), LIMIT)?;
    if !log.exists() {
        return skip(format!("nobody gets a network of his own here: {}", ended.text.trim()));
    }
    let said = std::fs::read_to_string(&log)?;
    ended.succeeded().with_context(|| format!("it said:\n{said}"))?;
    for wanted in [":3260", ":4420", "over iSCSI and NVMe/TCP"] {
        ensure!(said.contains(wanted), "no {wanted} in:\n{said}");
    }
    Ok(())
}

fn sparse(lab: &Lab, driver: Driver) -> Result<()> {
    let path = lab.fresh("sparse.img")?;
    let target = Target::start(lab, &Spec::new(driver, [format!("{}:20G", path.display())])?)?;
    let (blocks, block) = session(&target, 0)?.capacity()?;
    ensure!((blocks, block) == (20 << 21, 512), "{blocks} blocks of {block} bytes");
    let file = std::fs::metadata(&path)?;
    ensure!(file.len() == 20 << 30, "the file has {} bytes", file.len());
    ensure!(file.blocks() * 512 < 16 << 20, "{} bytes of it are allocated", file.blocks() * 512);
    target.stop()?;
    std::fs::remove_file(path)?;
    Ok(())
}

fn several_volumes(lab: &Lab, driver: Driver) -> Result<()> {
    let volumes = [lab.image("first.img", 16)?, "ram:32M".to_owned(), "null:1T".to_owned()];
    let target = Target::start(lab, &Spec::new(driver, volumes)?)?;
    let mut identities = Vec::new();
    for (volume, bytes) in [(0, 16 << 20), (1, 32 << 20), (2, 1 << 40)] {
        let mut session = session(&target, volume)?;
        let (blocks, block) = session.capacity()?;
        ensure!(blocks * block as u64 == bytes, "LUN {volume} has {blocks} blocks of {block} bytes");
        identities.push(identity(&mut session)?);
        session.logout()?;
    }
    ensure!(identities[0] != identities[1] && identities[1] != identities[2], "two volumes have one identity");
    let mut session = Session::open(target.portal, &Login::to(&target.name, "life"))?;
    session.lun = 3;
    session.run(&[0; 6], Data::None)?.expect_sense(0x05, 0x25, 0)?;
    session.logout()?;
    target.stop()
}

fn two_portals(lab: &Lab, driver: Driver) -> Result<()> {
    let mut spec = Spec::new(driver, ["ram:1M"])?;
    let six = format!("[::1]:{}", spec.portal().port()).parse()?;
    if std::net::TcpListener::bind(six).is_err() {
        return skip("this machine has no ::1");
    }
    spec.listen.push(six);
    let target = Target::start(lab, &spec)?;
    for (portal, group) in spec.listen.iter().zip(1..) {
        let found = session::discover(*portal)?;
        ensure!(found.len() == 1 && found[0].name == target.name, "{portal} offers {found:?}");
        ensure!(found[0].addresses.contains(&format!("{portal},{group}")), "{portal} does not name itself: {found:?}");
        ensure!(found[0].addresses.len() == spec.listen.len(), "{portal} does not name the others: {found:?}");
        Session::open(*portal, &Login::to(&target.name, "life"))?.logout()?;
    }
    target.stop()
}

fn advertised(lab: &Lab, driver: Driver) -> Result<()> {
    let mut spec = Spec::new(driver, ["ram:1M"])?;
    spec.for_guest = true;
    let target = Target::start(lab, &spec)?;
    let found = session::discover(target.portal)?;
    let wanted = format!("{}:{},1", target::HOST_AS_GUEST_SEES_IT, target.portal.port());
    ensure!(found.len() == 1 && found[0].addresses == [wanted.clone()], "not {wanted}: {found:?}");
    target.stop()
}

fn read_only(lab: &Lab, driver: Driver) -> Result<()> {
    let image = lab.image("read-only.img", 16)?;
    File::options().write(true).open(&image)?.write_all_at(&pattern(3, 3, 4096), 0)?;
    let target = Target::start(lab, &Spec::new(driver, [image.clone()])?.flags(&["--read-only"]))?;
    let mut session = session(&target, 0)?;
    ensure!(session.read(0, 8, 512)? == pattern(3, 3, 4096), "wrong data");
    // DATA PROTECT, WRITE PROTECTED.
    session.run(&cdb::write(0, 8), Data::Out(vec![1; 4096]))?.expect_sense(0x07, 0x27, 0)?;
    ensure!(session.read(0, 8, 512)? == pattern(3, 3, 4096), "it was written");
    session.logout()?;
    target.stop()
}

/// The WCE bit of the caching mode page (SBC-5, 6.5.6).
fn write_cache(lab: &Lab, driver: Driver, flags: &[&str], wanted: bool) -> Result<()> {
    let target = Target::start(lab, &Spec::new(driver, [lab.image("cache.img", 16)?])?.flags(flags))?;
    let mut session = session(&target, 0)?;
    // MODE SENSE (6), no block descriptors, current values: a header of four bytes, then the page.
    let done = session.run(&[0x1a, 0x08, 0x08, 0, 64, 0], Data::In(64))?.good()?;
    ensure!(done.data[4] & 0x3f == 0x08, "no caching page: {:02x?}", &done.data[..8]);
    ensure!((done.data[6] & 0x04 != 0) == wanted, "WCE is {}", done.data[6] & 0x04 != 0);
    session.write(0, vec![9; 4096], 512)?;
    session.synchronize()?;
    session.logout()?;
    target.stop()
}

fn cores(lab: &Lab, driver: Driver) -> Result<()> {
    for count in ["1", "4"] {
        let target = Target::start(lab, &Spec::new(driver, ["ram:16M"])?.flags(&["--cores", count]))?;
        let mut sessions = Vec::new();
        for qualifier in 0..8 {
            let login = Login::to(&target.name, "life").qualifier(qualifier);
            sessions.push(Session::ready(target.portal, &login, target.lun)?);
        }
        // Sessions of all cores see one disk.
        for (place, session) in (0..).zip(&mut sessions) {
            session.write(place * 64, pattern(place, 1, 32768), 512)?;
        }
        for session in &mut sessions {
            for place in 0..8 {
                ensure!(session.read(place * 64, 64, 512)? == pattern(place, 1, 32768), "{count} cores: wrong data");
            }
        }
        drop(sessions);
        target.stop()?;
    }
    Ok(())
}

fn idle(lab: &Lab, driver: Driver) -> Result<()> {
    const WATCHED: Duration = Duration::from_secs(3);
    let target = Target::start(lab, &Spec::new(driver, ["ram:16M"])?)?;
    let mut session = session(&target, 0)?;
    session.write(0, vec![1; 4096], 512)?;
    // Polling after load has its own time to end.
    std::thread::sleep(Duration::from_millis(500));
    let pid = target.pid().context("a started target has a process")?;
    let before = process::processor_time(pid)?;
    std::thread::sleep(WATCHED);
    let used = process::processor_time(pid)? - before;
    ensure!(used <= WATCHED / 50, "{} ms in {} s", used.as_millis(), WATCHED.as_secs());
    session.logout()?;
    target.stop()
}

fn statistics(lab: &Lab, driver: Driver) -> Result<()> {
    let socket = lab.fresh("stats.socket")?;
    let path = socket.display().to_string();
    let target = Target::start(lab, &Spec::new(driver, ["ram:16M"])?.flags(&["--stats", &path]))?;
    let mut session = session(&target, 0)?;
    session.write(0, vec![1; 4096], 512)?;
    let text = process::run(process::bound(lab.built()?).args(["stats", &path]), LIMIT)?.succeeded()?;
    ensure!(text.trim_start().starts_with('{') && text.contains("\"sessions\"") || text.contains("sessions"), "{text}");
    session.logout()?;
    target.stop()
}

/// Needs root and a kernel that lends loop devices.
fn block_device(lab: &Lab, driver: Driver) -> Result<()> {
    let image = lab.image("loop.img", 64)?;
    let device = LoopDevice::attach(&image)?;
    on_device(lab, driver, &device.path)?;
    drop(device);
    let mut found = vec![0; 32768];
    File::open(image)?.read_exact(&mut found)?;
    ensure!(found == pattern(5, 5, 32768), "what was written to the device is not in its file");
    Ok(())
}

fn on_device(lab: &Lab, driver: Driver, device: &str) -> Result<()> {
    for flags in [&[][..], &["--direct"]] {
        let target = Target::start(lab, &Spec::new(driver, [device])?.flags(flags))?;
        let mut session = session(&target, 0)?;
        let (blocks, block) = session.capacity()?;
        ensure!(blocks * block as u64 == 64 << 20, "{blocks} blocks of {block} bytes");
        session.write(0, pattern(5, 5, 32768), block)?;
        session.synchronize()?;
        ensure!(session.read(0, 64, block)? == pattern(5, 5, 32768), "wrong data");
        expect_refused(lab, &Spec::new(driver, [device])?, &[device])?;
        session.logout()?;
        target.stop()?;
    }
    Ok(())
}

/// `lunar demo` keeps its disk under the user's home.
fn demo(lab: &Lab, driver: Driver) -> Result<()> {
    let home = lab.scratch.join("home");
    let _ = std::fs::remove_dir_all(&home);
    std::fs::create_dir_all(&home)?;
    let portal = target::free_port()?;
    let log = lab.scratch.join("demo.log");
    let out = File::create(&log)?;
    let mut child = process::bound(lab.built()?)
        .args(["demo", "--driver", driver.name(), "--listen", &portal.to_string()])
        .env("HOME", &home)
        .env_remove("XDG_STATE_HOME")
        .stdout(out.try_clone()?)
        .stderr(out)
        .spawn()?;
    let outcome = demo_serves(portal, &log);
    process::signal(&child, Signal::TERM)?;
    let status = process::wait(&mut child, LIMIT)?;
    if status.is_none() {
        child.kill()?;
        child.wait()?;
    }
    outcome?;
    ensure!(status.is_some_and(|status| status.success()), "it ended with {status:?}:\n{}", target::tail(&log));
    let disk = home.join(".local/state/lunar/demo.img");
    let file = std::fs::metadata(&disk).with_context(|| format!("{}", disk.display()))?;
    ensure!(file.len() == 1 << 30, "the disk has {} bytes", file.len());
    ensure!(file.blocks() * 512 < 16 << 20, "{} bytes of the disk are allocated", file.blocks() * 512);
    let said = std::fs::read_to_string(&log)?;
    // open-iscsi, libiscsi, QEMU, Windows.
    for wanted in ["iscsiadm -m node", "iscsi-ls", "qemu-system", "New-IscsiTargetPortal", "Connect-IscsiTarget"] {
        ensure!(said.contains(wanted), "no {wanted} in:\n{said}");
    }
    Ok(())
}

fn demo_serves(portal: std::net::SocketAddr, log: &std::path::Path) -> Result<()> {
    let end = Instant::now() + LIMIT;
    while !std::fs::read_to_string(log)?.lines().any(|line| line == "ready") {
        ensure!(Instant::now() < end, "not ready:\n{}", target::tail(log));
        std::thread::sleep(Duration::from_millis(10));
    }
    let found = session::discover(portal)?;
    ensure!(found.len() == 1, "{found:?}");
    let mut session = Session::ready(portal, &Login::to(&found[0].name, "life"), 0)?;
    session.write(0, pattern(1, 1, 4096), 512)?;
    ensure!(session.read(0, 8, 512)? == pattern(1, 1, 4096), "wrong data");
    session.logout()
}
