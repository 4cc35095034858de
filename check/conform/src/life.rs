//! Start, errors, options, restart and stop.

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
    ("the banner shows how to connect, and ends with `ready`", banner),
    ("SIGTERM: commands in progress finish, and all data is in the file", |lab, driver| {
        drains(lab, driver, Signal::TERM)
    }),
    ("SIGINT does the same", |lab, driver| drains(lab, driver, Signal::INT)),
    ("SIGTERM: idle sessions do not delay the stop", idle_sessions),
    ("a reservation ends with its session and does not delay the stop", reservations::stop),
    ("SIGHUP: the target continues without its terminal", closed_terminal),
    ("the target continues when its log is closed", closed_log::continues),
    ("restart: data, names and identity do not change", restart),
    ("restart on the same port right after kill -9", same_port_again),
    ("a second process on the same file is refused", same_file_twice),
    ("a port in use is named", port_taken),
    ("a missing file is named", missing_file),
    ("an invalid size is refused", invalid_size),
    ("a file that is not a multiple of the block size is refused", partial_block),
    ("a file without write permission is refused", not_writable),
    ("by default, iSCSI and NVMe/TCP are served at their standard ports", default_ports),
    ("a new file is sparse and has the requested size", sparse),
    ("volumes have LUNs in their order", several_volumes),
    ("two portals, one of them IPv6", two_portals),
    ("discovery lists the advertised address", advertised),
    ("a read-only volume refuses writes", read_only),
    ("--write-through has no write cache", |lab, driver| write_cache(lab, driver, &["--write-through"], false)),
    ("by default there is a write cache", |lab, driver| write_cache(lab, driver, &[], true)),
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
    // The port opens a moment before the banner is printed.
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

/// Writers continue until the target stops; all acknowledged data is in the file.
fn drains(lab: &Lab, driver: Driver, signal: Signal) -> Result<()> {
    /// Bytes of a write, and the number of places that a writer cycles through.
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
                // Until the target closes the session.
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
        ensure!(acknowledged > 0, "a writer has no acknowledged write");
        // Each place has the last acknowledged write; one place may have blocks of the unacknowledged one.
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

fn closed_terminal(lab: &Lab, driver: Driver) -> Result<()> {
    let mut target = Target::start(lab, &Spec::new(driver, ["ram:1M"])?)?;
    target.signal(Signal::HUP)?;
    std::thread::sleep(Duration::from_millis(300));
    target.healthy()?;
    session(&target, 0)?.logout()?;
    target.stop()
}

/// VPD page 83h: the identity of the logical unit.
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
                "data of start {earlier} is lost"
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

/// Starts the target with invalid arguments: it must end with an error that contains all these words.
fn expect_refused(lab: &Lab, spec: &Spec, words: &[&str]) -> Result<()> {
    let _ = std::fs::remove_file(target::log_path(lab, spec.portal()));
    let (mut child, log) = target::launch(lab, spec)?;
    let Some(status) = process::wait(&mut child, LIMIT)? else {
        child.kill()?;
        child.wait()?;
        bail!("the target does not end; its log ends with:\n{}", target::tail(&log));
    };
    let said = std::fs::read_to_string(&log)?;
    ensure!(!status.success(), "the target ended with success; its log:\n{said}");
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
    // The name of the log has the port of the first portal, which is free.
    second.listen.push(target.portal);
    expect_refused(lab, &second, &[&target.portal.port().to_string(), "in use"])?;
    session(&target, 0)?.logout()?;
    target.stop()
}

fn missing_file(lab: &Lab, driver: Driver) -> Result<()> {
    let path = lab.fresh("nowhere.img")?;
    expect_refused(lab, &Spec::new(driver, [path.display().to_string()])?, &["nowhere.img"])?;
    ensure!(!path.exists(), "the file was created");
    Ok(())
}

fn invalid_size(lab: &Lab, driver: Driver) -> Result<()> {
    let path = lab.fresh("size.img")?;
    for size in ["20X", "-1G", "0", "99999999999999999999G", "1.5.2G"] {
        expect_refused(lab, &Spec::new(driver, [format!("{}:{size}", path.display())])?, &[])?;
        ensure!(!path.exists(), "a file of size {size} was created");
    }
    expect_refused(lab, &Spec::new(driver, ["ram:1X"])?, &[])
}

fn partial_block(lab: &Lab, driver: Driver) -> Result<()> {
    let path = lab.fresh("uneven.img")?;
    let name = path.display().to_string();
    for (bytes, flags) in [(1_000_u64, &[][..]), (512 * 7, &["--block-size", "4096"])] {
        File::create(&path)?.set_len(bytes)?;
        let spec = Spec::new(driver, [name.clone()])?.flags(flags);
        expect_refused(lab, &spec, &["uneven.img", &bytes.to_string(), "not a whole number of"])?;
        ensure!(std::fs::metadata(&path)?.len() == bytes, "the size of the file was changed");
    }
    Ok(())
}

/// Root may write to any file, unless it drops that capability.
fn not_writable(lab: &Lab, driver: Driver) -> Result<()> {
    const WITHOUT: [&str; 2] = ["--bounding-set=-dac_override", "--inh-caps=-dac_override"];
    let image = lab.image("locked.img", 16)?;
    std::fs::set_permissions(&image, Permissions::from_mode(0o444))?;
    let mut command = process::bound(lab.built()?);
    if rustix::process::geteuid().is_root() {
        if !process::run(process::bound("setpriv").args(WITHOUT).arg("true"), LIMIT)?.status.success() {
            return skip("root cannot drop the capability DAC_OVERRIDE here");
        }
        command = process::bound("setpriv");
        command.args(WITHOUT).arg(lab.built()?);
    }
    let portal = target::free_port()?.to_string();
    command.args(["serve", "--driver", driver.name(), "--listen", &portal, &image]);
    let ended = process::run(command.env("STATE_DIRECTORY", lab.scratch.join("state")), LIMIT)?;
    ensure!(!ended.status.success(), "the target ended with success; its log:\n{}", ended.text);
    for word in [&*image, "may not write", "--read-only"] {
        ensure!(ended.text.contains(word), "no \"{word}\" in:\n{}", ended.text);
    }
    Ok(())
}

/// The script that runs in a network namespace of its own, with program, driver, volume and log.
const SCRIPT: &str = r#"
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

/// The example of the README. In a network namespace, because the standard ports may be in use.
fn default_ports(lab: &Lab, driver: Driver) -> Result<()> {
    let mut own = process::bound("unshare");
    own.arg("--net").args((!rustix::process::geteuid().is_root()).then_some("--map-root-user"));
    let (image, log) = (lab.image("disk.img", 16)?, lab.fresh("alone.log")?);
    own.args(["sh", "-c", SCRIPT, "sh"]).arg(lab.built()?).args([driver.name(), &image]).arg(&log);
    let ended = process::run(own.env("STATE_DIRECTORY", lab.scratch.join("state")), LIMIT)?;
    if !log.exists() {
        return skip(format!("no network namespace can be created here: {}", ended.text.trim()));
    }
    let said = std::fs::read_to_string(&log)?;
    ended.succeeded().with_context(|| format!("the log:\n{said}"))?;
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
    ensure!(identities[0] != identities[1] && identities[1] != identities[2], "two volumes have the same identity");
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
        ensure!(
            found[0].addresses.contains(&format!("{portal},{group}")),
            "{portal} is not listed by itself: {found:?}"
        );
        ensure!(found[0].addresses.len() == spec.listen.len(), "{portal} does not list the other portal: {found:?}");
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
    ensure!(session.read(0, 8, 512)? == pattern(3, 3, 4096), "a read-only volume was written");
    session.logout()?;
    target.stop()
}

/// The WCE bit of the caching mode page (SBC-5 6.5.6).
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
        // Sessions on all cores see the same data.
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
    let target = Target::start(lab, &Spec::new(driver, ["ram:16M"])?)?;
    let mut session = session(&target, 0)?;
    session.write(0, vec![1; 4096], 512)?;
    crate::idle::rests(target.pid().context("a started target has a process")?)?;
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

/// Needs root and a kernel with loop devices.
fn block_device(lab: &Lab, driver: Driver) -> Result<()> {
    let image = lab.image("loop.img", 64)?;
    let device = LoopDevice::attach(&image)?;
    on_device(lab, driver, &device.path)?;
    // The file and the device would be two disks with the same blocks.
    expect_refused(lab, &Spec::new(driver, [image.clone()])?, &["backs the loop device", &device.path])?;
    drop(device);
    let mut found = vec![0; 32768];
    File::open(image)?.read_exact(&mut found)?;
    ensure!(found == pattern(5, 5, 32768), "data written to the device is not in its file");
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

/// `lunar demo` stores its disk in the user's home.
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
