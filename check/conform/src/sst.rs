//! SCSI over Scheduled Transfer: verified writes over UDP that loses datagrams, a target that is killed, reservations
//! and task management beside iSCSI, initiators that are not listed, and packets of a stranger.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use lunar_core::time;
use lunar_sst_initiator::{Command, Initiator, InitiatorConfig, InitiatorEvent};
use lunar_st::{Path as Route, Peer};

use crate::process::{bound, resident_bytes, run};
use crate::reservations::{REGISTER_AND_IGNORE, RESERVATION_CONFLICT, RESERVE, out, reserve, write};
use crate::session::{CHECK_CONDITION, GOOD, Login, Session, cdb, sense_of};
use crate::target::{Driver, Lab, Spec, Target, free_port};
use crate::test_data::Random;

/// The time for one case on a busy machine.
const LIMIT: Duration = Duration::from_secs(180);
/// The time for an answer to a command.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// Datagrams of a thousand that the lossy network loses, in each direction.
const LOST_PER_MILLE: u64 = 20;
/// The size of volumes.
const MIB: u64 = 64;
/// The reset of a logical unit, among the task management flags of FCP_CMND.
const LOGICAL_UNIT_RESET: u8 = 0x10;
/// The service action CLEAR of PERSISTENT RESERVE OUT.
const CLEAR: u8 = 3;
/// Memory that a target may take while a stranger sends packets.
const GROWTH_MAX: u64 = 64 << 20;

pub(crate) fn part(lab: &Lab, driver: Driver) -> Result<()> {
    let part = format!("sst/{}", driver.name());
    let check = |name: &str, case: &dyn Fn() -> Result<()>| lab.report.check(&part, name, case);
    check("verified writes and reads", &|| verified(lab, driver));
    check("verified writes over a network that loses datagrams", &|| over_loss(lab, driver));
    check("the target is killed and started again while writes are verified", &|| across_a_kill(lab, driver));
    check("reservations of one transport stop writes of the other", &|| reservations(lab, driver));
    check("a reset of a logical unit is a unit attention of the other transport", &|| reset(lab, driver));
    check("an initiator that no group lists is refused", &|| refused(lab, driver));
    check("packets of a stranger", &|| stranger(lab, driver));
    check("another server serves the volume over iSCSI, across kills of the target", &|| served_on(lab, driver));
    check("a volume that another server serves shows what its target has", &|| seen_through(lab, driver));
    Ok(())
}

/// A target that serves a volume over iSCSI and over UDP.
struct Served {
    spec: Spec,
    address: SocketAddr,
}

fn served(driver: Driver, volume: String, more: &[&str]) -> Result<Served> {
    let address = free_port()?;
    let spec = Spec::new(driver, [volume])?.flags(&["--st", &format!("udp:{address}")]).flags(more);
    Ok(Served { spec, address })
}

/// Runs the load generator with verification.
fn bench(program: &Path, address: SocketAddr, more: &[&str]) -> Result<()> {
    let mut command = bound(program);
    command.args(["bench", &format!("st:udp:{address}"), "--verify", "--warmup", "0", "--timeout", "60"]).args(more);
    run(&mut command, LIMIT)?.succeeded().map(drop)
}

fn verified(lab: &Lab, driver: Driver) -> Result<()> {
    let Served { spec, address } = served(driver, lab.image("st.img", MIB)?, &[])?;
    let target = Target::start(lab, &spec)?;
    let program = lab.built()?;
    for (pattern, size) in [("write", "128k"), ("randrw", "4k")] {
        bench(program, address, &["--rw", pattern, "--bs", size, "--size", "32M", "--time", "3"])?;
    }
    target.stop()
}

/// A network between an initiator and a target.
struct Network {
    address: SocketAddr,
    /// Datagrams that were lost.
    lost: AtomicU64,
    over: AtomicBool,
}

impl Network {
    /// Forwards datagrams until it is over.
    fn forward(&self, near: &UdpSocket, target: SocketAddr, seed: u64) -> Result<()> {
        let far = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        far.connect(target)?;
        let mut random = Random::new(seed);
        let (mut packet, mut initiator) = (vec![0; 65_536], None);
        near.set_nonblocking(true)?;
        far.set_nonblocking(true)?;
        while !self.over.load(Ordering::Relaxed) {
            let mut is_idle = true;
            while let Ok((len, from)) = near.recv_from(&mut packet) {
                (initiator, is_idle) = (Some(from), false);
                match random.below(1000) < LOST_PER_MILLE {
                    true => _ = self.lost.fetch_add(1, Ordering::Relaxed),
                    // One that does not fit is lost, too.
                    false => _ = far.send(&packet[..len]),
                }
            }
            while let (Ok(len), Some(to)) = (far.recv(&mut packet), initiator) {
                is_idle = false;
                match random.below(1000) < LOST_PER_MILLE {
                    true => _ = self.lost.fetch_add(1, Ordering::Relaxed),
                    false => _ = near.send_to(&packet[..len], to),
                }
            }
            if is_idle {
                std::thread::sleep(Duration::from_micros(100));
            }
        }
        Ok(())
    }
}

fn over_loss(lab: &Lab, driver: Driver) -> Result<()> {
    let Served { spec, address } = served(driver, lab.image("st.img", MIB)?, &[])?;
    let target = Target::start(lab, &spec)?;
    let program = lab.built()?;
    let near = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    let network = Network { address: near.local_addr()?, lost: AtomicU64::new(0), over: AtomicBool::new(false) };
    std::thread::scope(|scope| {
        let forwarding = scope.spawn(|| network.forward(&near, address, lab.seed));
        let load = ["--rw", "randrw", "--bs", "16k", "--depth", "8", "--size", "16M", "--time", "4"];
        let loaded = bench(program, network.address, &load);
        network.over.store(true, Ordering::Relaxed);
        forwarding.join().map_err(|_| anyhow!("the network has panicked"))??;
        loaded
    })?;
    ensure!(network.lost.into_inner() > 10, "the network has lost nothing: the case tests nothing");
    target.stop()
}

fn across_a_kill(lab: &Lab, driver: Driver) -> Result<()> {
    let Served { spec, address } = served(driver, lab.image("st.img", MIB)?, &[])?;
    let target = Target::start(lab, &spec)?;
    let program = lab.built()?;
    let load = ["--rw", "randwrite", "--bs", "16k", "--depth", "8", "--size", "16M", "--time", "25"];
    let target = std::thread::scope(|scope| -> Result<Target> {
        let loading = scope.spawn(|| bench(program, address, &load));
        std::thread::sleep(Duration::from_secs(2));
        target.kill()?;
        let target = Target::start_after_kill(lab, &spec)?;
        loading.join().map_err(|_| anyhow!("the load has panicked"))?.context("the load")?;
        Ok(target)
    })?;
    target.stop()
}

/// An initiator in this program.
struct StSession {
    socket: UdpSocket,
    route: Route,
    initiator: Initiator,
    clock: Instant,
    last: u32,
}

/// The result of a command: status, sense data, data.
type Ended = (u8, Vec<u8>, Vec<u8>);

impl StSession {
    /// Connects to a target, which may refuse the login.
    fn open(address: SocketAddr, name: &str) -> Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.connect(address)?;
        socket.set_read_timeout(Some(Duration::from_millis(5)))?;
        let route = Route { link: 0, peer: Peer::Ip(address) };
        let name = format!("iqn.2026-01.io.lunar.conform:{name}");
        let secret = [std::process::id().into(), socket.local_addr()?.port().into()];
        let (target, timeout) = (String::new(), ANSWER_LIMIT);
        let (paths, command_timeout) = (vec![route], None);
        let config = InitiatorConfig { name, target, paths, mtu: 1400, depth: 4, timeout, command_timeout, secret };
        let initiator = Initiator::new(config, time::Instant(0));
        let mut session = Self { socket, route, initiator, clock: Instant::now(), last: 0 };
        match session.next()? {
            InitiatorEvent::Ready => Ok(session),
            event => bail!("the login ends with {event:?}"),
        }
    }

    /// Connects, and takes the unit attention conditions.
    fn ready(address: SocketAddr, name: &str) -> Result<Self> {
        let mut session = Self::open(address, name)?;
        for _ in 0..4 {
            if session.run(&[0; 6], 0, None)?.0 == GOOD {
                return Ok(session);
            }
        }
        bail!("the logical unit is not ready")
    }

    fn next(&mut self) -> Result<InitiatorEvent> {
        let (end, mut packet) = (Instant::now() + ANSWER_LIMIT, vec![0; 65_536]);
        loop {
            match self.initiator.next_event() {
                // The command is sent again.
                Some(InitiatorEvent::Down) => continue,
                Some(event) => return Ok(event),
                None => {}
            }
            ensure!(Instant::now() < end, "the target does not answer");
            self.initiator.tick(self.now());
            while let Some((_, packet)) = self.initiator.next_packet() {
                // One that does not fit is lost.
                let _ = self.socket.send(&packet);
            }
            if let Ok(len) = self.socket.recv(&mut packet) {
                let now = self.now();
                self.initiator.receive(self.route, &packet[..len], now);
            }
        }
    }

    fn now(&self) -> time::Instant {
        time::Instant(u64::try_from(self.clock.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn start(&mut self, (cdb, task): (&[u8], u8), data_in: u32, data_out: Option<Vec<u8>>) -> Result<Ended> {
        let mut whole = [0; 16];
        whole[..cdb.len()].copy_from_slice(cdb);
        let command = Command { lun: [0; 8], cdb: whole, task, data_in, data_out: data_out.map(Rc::from) };
        self.last += 1;
        let (last, now) = (self.last, self.now());
        self.initiator.start(last, command, now);
        match self.next()? {
            InitiatorEvent::Done(cookie, status, sense, data) if cookie == last => Ok((status, sense, data)),
            event => bail!("instead of the end of the command: {event:?}"),
        }
    }

    fn run(&mut self, cdb: &[u8], data_in: u32, data_out: Option<Vec<u8>>) -> Result<Ended> {
        self.start((cdb, 0), data_in, data_out)
    }

    fn write(&mut self) -> Result<u8> {
        Ok(self.run(&cdb::write(0, 1), 0, Some(vec![7; 512]))?.0)
    }

    fn reserve(&mut self, action: u8, key: u64, new: u64) -> Result<()> {
        let (cdb, list) = out(action, key, new);
        let (status, ..) = self.run(&cdb, 0, Some(list))?;
        ensure!(status == GOOD, "PERSISTENT RESERVE OUT ends with status {status:02x}h");
        Ok(())
    }
}

fn reservations(lab: &Lab, driver: Driver) -> Result<()> {
    let Served { spec, address } = served(driver, lab.image("st.img", MIB)?, &[])?;
    let target = Target::start(lab, &spec)?;
    let mut near = Session::ready(target.portal, &Login::to(&target.name, "near"), target.lun)?;
    let mut far = StSession::ready(address, "far")?;
    ensure!((write(&mut near)?, far.write()?) == (GOOD, GOOD), "a write without any reservation");
    reserve(&mut near, REGISTER_AND_IGNORE, 0, 1)?;
    reserve(&mut near, RESERVE, 1, 0)?;
    ensure!(far.write()? == RESERVATION_CONFLICT, "a reservation over iSCSI does not stop a write over ST");
    ensure!(write(&mut near)? == GOOD, "the holder cannot write");
    reserve(&mut near, CLEAR, 1, 0)?;
    far.reserve(REGISTER_AND_IGNORE, 0, 2)?;
    far.reserve(RESERVE, 2, 0)?;
    ensure!(write(&mut near)? == RESERVATION_CONFLICT, "a reservation over ST does not stop a write over iSCSI");
    ensure!(far.write()? == GOOD, "the holder cannot write");
    // READ FULL STATUS names the registrant by its TransportID: that of an iSCSI initiator port.
    let (status, _, data) = far.run(&[0x5e, 3, 0, 0, 0, 0, 0, 1, 0, 0], 256, None)?;
    let text = String::from_utf8_lossy(&data).into_owned();
    let name = "iqn.2026-01.io.lunar.conform:far,i,0x";
    ensure!(status == GOOD && text.contains(name), "status {status:02x}h, full status {text:?}");
    target.kill()?;
    let target = Target::start_after_kill(lab, &spec)?;
    let mut near = Session::ready(target.portal, &Login::to(&target.name, "near"), target.lun)?;
    ensure!(write(&mut near)? == RESERVATION_CONFLICT, "the reservation is lost with the process");
    ensure!(StSession::ready(address, "far")?.write()? == GOOD, "the holder is unknown after the start");
    target.stop()
}

fn reset(lab: &Lab, driver: Driver) -> Result<()> {
    let Served { spec, address } = served(driver, lab.image("st.img", MIB)?, &[])?;
    let target = Target::start(lab, &spec)?;
    let mut near = Session::ready(target.portal, &Login::to(&target.name, "near"), target.lun)?;
    let mut far = StSession::ready(address, "far")?;
    let (_, response, _) = far.start((&[], LOGICAL_UNIT_RESET), 0, None)?;
    ensure!(response.first() == Some(&0), "the reset ends with {response:02x?}");
    let ended = near.run(&cdb::write(0, 1), crate::session::Data::Out(vec![7; 512]))?;
    let (key, code, _) = sense_of(&ended.sense);
    ensure!((ended.status, key, code) == (CHECK_CONDITION, 6, 0x29), "iSCSI is told {key:x}h {code:02x}h");
    ensure!(write(&mut near)? == GOOD, "a write after the unit attention");
    target.stop()
}

fn refused(lab: &Lab, driver: Driver) -> Result<()> {
    let listed = "iqn.2026-01.io.lunar.conform:listed";
    let Served { spec, address } = served(driver, lab.image("st.img", MIB)?, &["--initiator", listed])?;
    let target = Target::start_named(lab, &spec, "")?;
    let why = StSession::open(address, "other").err().context("an initiator that is not listed has logged in")?;
    ensure!(why.to_string().contains("NOT_SHOWN"), "{why:#}");
    StSession::ready(address, "listed")?;
    target.stop()
}

fn stranger(lab: &Lab, driver: Driver) -> Result<()> {
    let Served { spec, address } = served(driver, lab.image("st.img", MIB)?, &[])?;
    let target = Target::start(lab, &spec)?;
    let program = lab.built()?;
    let pid = target.pid().context("a process")?;
    let before = resident_bytes(pid)?;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| -> Result<()> {
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
            let mut random = Random::new(lab.seed);
            while !over.load(Ordering::Relaxed) {
                for operation in 0..=255 {
                    let mut packet: Vec<u8> = (0..8).flat_map(|_| random.next().to_be_bytes()).collect();
                    packet[0] = operation;
                    // The payload is there, and the checksum is not.
                    packet[12..16].copy_from_slice(&[0, 0, 0, 24]);
                    socket.send_to(&packet, address)?;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(())
        });
        let loaded = bench(program, address, &["--rw", "randrw", "--bs", "16k", "--size", "16M", "--time", "3"]);
        over.store(true, Ordering::Relaxed);
        sending.join().map_err(|_| anyhow!("the stranger has panicked"))??;
        loaded
    })?;
    let grown = resident_bytes(pid)?.saturating_sub(before);
    ensure!(grown < GROWTH_MAX, "the target has grown by {grown} bytes");
    target.stop()
}

/// Starts a server whose volume is that of another one, with this LUN.
fn start_on(lab: &Lab, driver: Driver, (address, lun): (SocketAddr, u8), more: &[&str]) -> Result<Target> {
    Target::start(lab, &Spec::new(driver, [format!("st:udp:{address}#{lun}")])?.flags(more))
}

fn served_on(lab: &Lab, driver: Driver) -> Result<()> {
    let Served { spec, address } = served(driver, lab.image("st.img", MIB)?, &[])?;
    let mut far = Target::start(lab, &spec)?;
    let near = start_on(lab, driver, (address, 0), &[])?;
    let program = lab.built()?;
    let load = |seconds: &str| {
        let mut command = bound(program);
        command.args(["bench", &format!("iscsi://{}", near.portal), "--verify", "--warmup", "0", "--timeout", "90"]);
        command.args(["--rw", "randrw", "--bs", "16k", "--depth", "8", "--size", "16M", "--time", seconds]);
        run(&mut command, LIMIT)?.succeeded().map(drop)
    };
    load("3")?;
    for _ in 0..2 {
        far = std::thread::scope(|scope| -> Result<Target> {
            let loading = scope.spawn(|| load("20"));
            std::thread::sleep(Duration::from_secs(2));
            far.kill()?;
            let far = Target::start_after_kill(lab, &spec)?;
            loading.join().map_err(|_| anyhow!("the load has panicked"))?.context("the load")?;
            Ok(far)
        })?;
    }
    near.stop()?;
    far.stop()
}

fn seen_through(lab: &Lab, driver: Driver) -> Result<()> {
    let Served { mut spec, address } = served(driver, lab.image("st.img", MIB)?, &[])?;
    spec.volumes.push("null:24M".to_owned());
    let far = Target::start(lab, &spec)?;
    let near = start_on(lab, driver, (address, 1), &[])?;
    let mut session = Session::ready(near.portal, &Login::to(&near.name, "near"), near.lun)?;
    let (blocks, block) = session.capacity()?;
    ensure!((blocks, block) == ((24 << 20) / 512, 512), "{blocks} blocks of {block} bytes");
    near.stop()?;
    // A reservation at the target is a reservation conflict here.
    let near = start_on(lab, driver, (address, 0), &[])?;
    let mut session = Session::ready(near.portal, &Login::to(&near.name, "near"), near.lun)?;
    ensure!(write(&mut session)? == GOOD, "a write through the other server");
    let mut other = Session::ready(far.portal, &Login::to(&far.name, "far"), far.lun)?;
    reserve(&mut other, REGISTER_AND_IGNORE, 0, 1)?;
    reserve(&mut other, RESERVE, 1, 0)?;
    let status = write(&mut session)?;
    ensure!(status == RESERVATION_CONFLICT, "with a reservation at the target a write ends with status {status:02x}h");
    reserve(&mut other, CLEAR, 1, 0)?;
    ensure!(write(&mut session)? == GOOD, "a write after the reservation");
    near.stop()?;
    let refusal = start_on(lab, driver, (address, 7), &[]).err().context("a LUN without a volume is served")?;
    ensure!(format!("{refusal:#}").contains("shows no volume at LUN 7"), "{refusal:#}");
    far.stop()
}
