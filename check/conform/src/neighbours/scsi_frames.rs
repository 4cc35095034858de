//! SCSI on a link of frames: Fibre Channel over Ethernet without a switch, and Scheduled Transfer.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use lunar_core::time;
use lunar_fcoe::wire::names::Wwn;
use lunar_fcoe_initiator as fcoe;
use lunar_link::{Header, LinkAddress, MacAddress};
use lunar_sst_initiator as sst;
use lunar_st::{ETHER_TYPE, Path as Route, Peer};

use super::initiator::{Event, Initiator, Machine};
use super::scsi_commands::{self, CHECKED, Command, Payload};
use super::transport::{Attacker, Held, RECEIVE_LIMIT, Request, Source, Stage, Transport, Victim, volume};
use crate::session::{GOOD, cdb};
use crate::station::{FRAME_MIN, MTU, Mac, Network};
use crate::test_data::{Random, pattern};

/// The begin of the port names of the initiators, and the same as a number.
pub(super) const WWPN_PREFIX: &str = "20:01";
const WWPN: u64 = 0x2001 << 48;
const WWNN: u64 = 0x2002 << 48;
/// The most bytes of a command of Scheduled Transfer here.
const PIECE: u32 = 256 << 10;
/// Commands of an attacker in progress.
const COMMANDS: usize = 64;
/// Stations of attackers at once: each takes some tenths of a second to log in over FCoE.
const ATTACKERS_MAX: u16 = 8;
/// Frames of strangers before the flood looks whether it is over.
const STRANGERS: usize = 32;
/// The time that a new port of Fibre Channel is left alone: it probes, claims, and begins to send beacons.
const ALONE: Duration = Duration::from_secs(3);

/// A protocol of SCSI on frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Protocol {
    Fcoe,
    St,
}

impl Protocol {
    fn word(self) -> &'static str {
        match self {
            Self::Fcoe => "fcoe",
            Self::St => "st",
        }
    }

    /// The sockets of the target and of the stations.
    fn sockets(self, folder: &Path) -> [PathBuf; 2] {
        [folder.join(self.word()), folder.join(format!("{}-stations", self.word()))]
    }

    fn link(self, folder: &Path) -> String {
        let [target, stations] = self.sockets(folder);
        format!("unix:{},{}", target.display(), stations.display())
    }

    /// The section of the configuration.
    pub(super) fn section(self, folder: &Path, mtu: usize) -> String {
        let (word, link) = (self.word(), self.link(folder));
        format!("[{word}.frames]\nlink = \"{link}\"\ntarget = \"main\"\nmtu = {mtu}\n")
    }

    /// The command of a request, as long as the protocol allows.
    fn command(self, request: Request, count: u32) -> Option<Command> {
        let made = scsi_commands::command(request, count, &[])?;
        let blocks = PIECE / 512;
        Some(match (self, &made.payload) {
            (Self::St, Payload::In(len)) if *len > PIECE => {
                Command { cdb: cdb::read(0, blocks).to_vec(), payload: Payload::In(PIECE) }
            }
            (Self::St, Payload::Zeroes(len)) if *len > PIECE => {
                Command { cdb: cdb::write(64, blocks).to_vec(), payload: Payload::Zeroes(PIECE) }
            }
            _ => made,
        })
    }
}

/// A transport.
pub(super) struct ScsiFrames {
    network: Network,
    protocol: Protocol,
    target: MacAddress,
    /// The number of the next station.
    next: AtomicU32,
}

impl ScsiFrames {
    pub(super) fn start(folder: &Path, protocol: Protocol) -> Result<Self> {
        let [target, stations] = protocol.sockets(folder);
        let network = Network::start(&stations, &target)?;
        let address: LinkAddress = protocol.link(folder).parse().map_err(|why| anyhow!("{why}"))?;
        Ok(Self { network, protocol, target: address.derived_mac(), next: AtomicU32::new(1) })
    }

    fn number(&self) -> u32 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Another station, which begins to log in.
    fn beginning(&self, is_attacker: bool) -> Result<Initiator> {
        let number = self.number();
        let (mac, protocol, target) = (mac_of(number), self.protocol, self.target);
        let port = self.network.port(mac)?;
        Ok(Initiator::start(port, is_attacker, move || machine(protocol, number, target)))
    }

    /// Another station, which is logged in.
    fn initiator(&self, is_attacker: bool) -> Result<Initiator> {
        let mut initiator = self.beginning(is_attacker)?;
        initiator.ready().context("the login")?;
        Ok(initiator)
    }

    /// The frames with which a station that nobody answers begins.
    fn first_frames(&self) -> Vec<Vec<u8>> {
        let mut machine = machine(self.protocol, self.number(), self.target);
        let mut frames = Vec::new();
        for step in 0..30 {
            machine.tick(time::Instant(0) + ALONE / 30 * step, &mut |_| {});
            frames.extend(std::iter::from_fn(|| machine.next_frame()));
            if self.protocol == Protocol::St && !frames.is_empty() {
                break;
            }
        }
        frames
    }
}

fn mac_of(number: u32) -> Mac {
    let [a, b, c, d] = number.to_be_bytes();
    [0x02, 0x0c, a, b, c, d]
}

fn machine(protocol: Protocol, number: u32, target: MacAddress) -> Box<dyn Machine> {
    let (station, seed) = (MacAddress(mac_of(number)), u64::from(number));
    match protocol {
        Protocol::Fcoe => {
            let names = (Wwn(WWPN | seed), Wwn(WWNN | seed));
            let timeout = Duration::from_secs(30);
            let config = fcoe::InitiatorConfig { station, names, target: None, mtu: MTU, timeout, seed };
            let initiator = fcoe::Initiator::new(config, time::Instant(0));
            Box::new(FcoeMachine { initiator, is_ready: false, reads: BTreeMap::new() })
        }
        Protocol::St => {
            let path = Route { link: 0, peer: Peer::Station(target) };
            let config = sst::InitiatorConfig {
                name: format!("iqn.2026-01.io.lunar.conform:station{number}"),
                target: String::new(),
                paths: vec![path],
                mtu: MTU,
                depth: COMMANDS as u16,
                timeout: Duration::from_secs(30),
                command_timeout: None,
                secret: [seed, !seed],
            };
            let header = Header { destination: target, source: station, ether_type: ETHER_TYPE };
            Box::new(StMachine { initiator: sst::Initiator::new(config, time::Instant(0)), path, header })
        }
    }
}

fn lun_of(lun: u16) -> [u8; 8] {
    let [high, low] = lun.to_be_bytes();
    [high, low, 0, 0, 0, 0, 0, 0]
}

fn whole_cdb(command: &Command) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[..command.cdb.len()].copy_from_slice(&command.cdb);
    cdb
}

/// The bytes to receive, and those to send.
fn data_of(command: &Command) -> (u32, Option<Rc<[u8]>>) {
    match &command.payload {
        Payload::None => (0, None),
        Payload::In(len) => (*len, None),
        Payload::Out(data) => (0, Some(Rc::from(data.as_slice()))),
        Payload::Zeroes(len) => (0, Some(Rc::from(vec![0; *len as usize]))),
    }
}

struct FcoeMachine {
    initiator: fcoe::Initiator,
    is_ready: bool,
    /// The data of reads in progress.
    reads: BTreeMap<u32, Vec<u8>>,
}

impl FcoeMachine {
    /// Gives the events of the port that `act` causes to `on`, with the data of reads in one piece.
    fn follow(
        &mut self,
        on: &mut dyn FnMut(Event),
        act: impl FnOnce(&mut fcoe::Initiator, &mut dyn FnMut(fcoe::InitiatorEvent<'_>)),
    ) {
        let Self { initiator, is_ready, reads } = self;
        act(initiator, &mut |event| match event {
            // The target logs in again after it has started again.
            fcoe::InitiatorEvent::Ready if std::mem::replace(is_ready, true) => {}
            fcoe::InitiatorEvent::Ready => on(Event::Ready),
            fcoe::InitiatorEvent::Data(number, offset, piece) => {
                let range = offset as usize..offset as usize + piece.len();
                let place = reads.get_mut(&number).and_then(|data| data.get_mut(range));
                place.into_iter().for_each(|place| place.copy_from_slice(piece));
            }
            fcoe::InitiatorEvent::Done(number, status, _) => {
                on(Event::Done(number, status, reads.remove(&number).unwrap_or_default()));
            }
            fcoe::InitiatorEvent::Lost => on(Event::Lost),
        });
    }
}

impl Machine for FcoeMachine {
    fn next_frame(&mut self) -> Option<Vec<u8>> {
        self.initiator.next_frame()
    }

    fn start(&mut self, number: u32, lun: u16, command: &Command, now: time::Instant) {
        let (data_in, data_out) = data_of(command);
        self.reads.insert(number, vec![0; data_in as usize]);
        let command = fcoe::Command { lun: lun_of(lun), cdb: whole_cdb(command), data_in, data_out };
        self.initiator.start(number, command, now);
    }

    fn receive(&mut self, frame: &[u8], now: time::Instant, on: &mut dyn FnMut(Event)) {
        let Some(header) = Header::parse(frame) else { return };
        let behind = &frame[lunar_link::HEADER_LEN..];
        self.follow(on, |initiator, on| initiator.receive(&header, behind, now, on));
    }

    fn tick(&mut self, now: time::Instant, on: &mut dyn FnMut(Event)) {
        self.follow(on, |initiator, on| initiator.tick(now, on));
    }

    fn address(&self) -> Option<Mac> {
        self.initiator.address().map(|mac| mac.0)
    }

    fn close(&mut self, _: time::Instant) {}
}

struct StMachine {
    initiator: sst::Initiator,
    path: Route,
    header: Header,
}

impl StMachine {
    fn follow(&mut self, on: &mut dyn FnMut(Event)) {
        while let Some(event) = self.initiator.next_event() {
            on(match event {
                sst::InitiatorEvent::Ready => Event::Ready,
                sst::InitiatorEvent::Done(number, status, _, data) => Event::Done(number, status, data),
                // The connection is opened again, and its commands are sent again.
                sst::InitiatorEvent::Down => continue,
                _ => Event::Lost,
            });
        }
    }
}

impl Machine for StMachine {
    fn next_frame(&mut self) -> Option<Vec<u8>> {
        let (_, packet) = self.initiator.next_packet()?;
        let mut frame = [&self.header.bytes()[..], &packet].concat();
        frame.resize(frame.len().max(FRAME_MIN), 0);
        Some(frame)
    }

    fn start(&mut self, number: u32, lun: u16, command: &Command, now: time::Instant) {
        let (data_in, data_out) = data_of(command);
        let command = sst::Command { lun: lun_of(lun), cdb: whole_cdb(command), task: 0, data_in, data_out };
        self.initiator.start(number, command, now);
    }

    fn receive(&mut self, frame: &[u8], now: time::Instant, on: &mut dyn FnMut(Event)) {
        let header = Header::parse(frame).filter(|header| header.source == self.header.destination);
        if header.is_some_and(|header| header.ether_type == ETHER_TYPE) {
            self.initiator.receive(self.path, &frame[lunar_link::HEADER_LEN..], now);
            self.follow(on);
        }
    }

    fn tick(&mut self, now: time::Instant, on: &mut dyn FnMut(Event)) {
        self.initiator.tick(now);
        self.follow(on);
    }

    fn address(&self) -> Option<Mac> {
        None
    }

    fn close(&mut self, now: time::Instant) {
        self.initiator.close(now);
    }
}

impl Transport for ScsiFrames {
    fn name(&self) -> &'static str {
        match self.protocol {
            Protocol::Fcoe => "FCoE",
            Protocol::St => "ST",
        }
    }

    fn has_request(&self, request: Request) -> bool {
        match request {
            Request::Stranger | Request::Newcomer => true,
            // A copy needs the descriptor of the unit, and is the same over iSCSI.
            Request::Copy | Request::ScatteredRead => false,
            request => self.protocol.command(request, 0).is_some(),
        }
    }

    fn has_stage(&self, stage: Stage) -> bool {
        match stage {
            Stage::Open => self.protocol == Protocol::St,
            Stage::LoggedIn => true,
            // Over FCoE each takes a second; its ports are claims, of which the flood of new stations has more.
            Stage::Vanished => self.protocol == Protocol::St,
            Stage::HalfRequest | Stage::Discovery => false,
        }
    }

    fn has_addresses(&self) -> bool {
        // Addresses of stations can be forged.
        false
    }

    fn shares_command_set(&self) -> bool {
        true
    }

    fn attackers_max(&self) -> u16 {
        ATTACKERS_MAX
    }

    fn victim(&self) -> Result<Box<dyn Victim>> {
        let mut initiator = self.initiator(false)?;
        initiator.succeed(volume::VICTIM, &cdb::write(32_768, 8), Payload::Out(pattern(0, 1, 4096)))?;
        Ok(Box::new(initiator))
    }

    fn visit(&self) -> Result<()> {
        self.initiator(false)?.succeed(volume::VICTIM, &cdb::read(0, 8), Payload::In(4096)).map(drop)
    }

    fn attacker(&self, _: Source, _: u16, request: Request) -> Result<Box<dyn Attacker>> {
        match request {
            Request::Stranger | Request::Newcomer => {
                let (port, random) = (self.network.port(mac_of(self.number()))?, Random::new(self.number().into()));
                let frames = (0..STRANGERS).flat_map(|_| self.first_frames()).collect();
                Ok(Box::new(Stranger {
                    port,
                    frames,
                    next: 0,
                    in_turn: 0,
                    random,
                    is_random: request == Request::Stranger,
                }))
            }
            request => {
                let (initiator, protocol) = (self.beginning(true)?, self.protocol);
                Ok(Box::new(Attacking { initiator, protocol, request, sent: 0, in_progress: 0 }))
            }
        }
    }

    fn connection(&self, _: Source, _: u16, stage: Stage) -> Result<Held> {
        match stage {
            Stage::LoggedIn => return Ok(Box::new(self.initiator(true)?)),
            Stage::Vanished => return self.initiator(true).map(|_| Box::new(()) as Held),
            _ => {}
        }
        let port = self.network.port(mac_of(self.number()))?;
        self.first_frames().iter().for_each(|frame| port.send(frame));
        Ok(Box::new(()))
    }
}

impl Victim for Initiator {
    fn read(&mut self) -> Result<()> {
        let data = self.succeed(volume::VICTIM, &cdb::read(32_768, 8), Payload::In(4096))?;
        ensure!(data == pattern(0, 1, 4096), "other data than was written");
        Ok(())
    }

    fn write(&mut self) -> Result<()> {
        self.succeed(volume::VICTIM, &cdb::write(32_776, 8), Payload::Out(pattern(8, 2, 4096))).map(drop)
    }

    fn write_long(&mut self) -> Result<()> {
        let data = pattern(2048, 3, 1 << 20);
        for (at, piece) in (0..).zip(data.chunks(PIECE as usize)) {
            let lba = 36_864 + at * (PIECE / 512);
            self.succeed(volume::VICTIM, &cdb::write(lba.into(), PIECE / 512), Payload::Out(piece.to_vec()))?;
        }
        Ok(())
    }
}

/// A station that is logged in.
struct Attacking {
    initiator: Initiator,
    protocol: Protocol,
    request: Request,
    sent: u32,
    in_progress: usize,
}

impl Attacker for Attacking {
    fn prepare(&mut self) -> Result<()> {
        self.initiator.ready()
    }

    fn has_room(&self) -> bool {
        self.in_progress < COMMANDS
    }

    fn send(&mut self) -> Result<()> {
        let command = self.protocol.command(self.request, self.sent).context("no other request is sent")?;
        (self.sent, self.in_progress) = (self.sent.wrapping_add(1), self.in_progress + 1);
        self.initiator.send(scsi_commands::unit(self.request), command)
    }

    fn receive(&mut self) -> Result<()> {
        if let Some(Event::Done(..)) = self.initiator.event(RECEIVE_LIMIT)? {
            self.in_progress -= 1;
        }
        Ok(())
    }
}

/// Stations without end, of which each begins, or of which each sends anything.
struct Stranger {
    port: crate::station::Port,
    /// The first frames of new stations.
    frames: Vec<Vec<u8>>,
    next: usize,
    in_turn: usize,
    random: Random,
    is_random: bool,
}

impl Attacker for Stranger {
    fn has_room(&self) -> bool {
        self.in_turn < STRANGERS
    }

    fn send(&mut self) -> Result<()> {
        let at = self.next % self.frames.len();
        let mut frame = self.frames[at].clone();
        // Another address; the name inside stays.
        let number = self.random.below(1 << 24).to_be_bytes();
        frame[9..12].copy_from_slice(&number[5..]);
        if self.is_random {
            for _ in 0..4 {
                let place = 14 + self.random.below(frame.len() as u64 - 14) as usize;
                frame[place] = self.random.below(256) as u8;
            }
        }
        self.port.send(&frame);
        (self.next, self.in_turn) = (self.next + 1, self.in_turn + 1);
        Ok(())
    }

    fn receive(&mut self) -> Result<()> {
        // Answers to forged addresses go nowhere.
        self.in_turn = 0;
        Ok(())
    }
}

/// The commands of an attacker must not be refused for their form: each is sent alone, and ends with GOOD.
pub(super) fn check_forms(transport: &ScsiFrames) -> Result<()> {
    let mut initiator = transport.initiator(false)?;
    for request in CHECKED.into_iter().filter(|request| transport.has_request(*request)) {
        let command = transport.protocol.command(request, 0).context("it has this request")?;
        let outcome = initiator.execute(scsi_commands::unit(request), &command);
        let (status, _) = outcome.with_context(|| format!("{request:?}"))?;
        ensure!(status == GOOD, "{request:?}: status {status:02x}h");
    }
    Ok(())
}
