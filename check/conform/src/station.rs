//! Stations on a link that is a pair of Unix datagram sockets. Those of ATA over Ethernet have the frames of AoE r11,
//! and send a request again when its answer is late. They can break every rule.

use std::collections::{BTreeMap, VecDeque};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

/// A MAC address.
pub(crate) type Mac = [u8; 6];
pub(crate) const BROADCAST: Mac = [0xff; 6];
/// Bytes behind the Ethernet header at most, and sectors of one request for them.
pub(crate) const MTU: usize = 9000;
pub(crate) const SECTORS_MAX: u8 = ((MTU - 36) / 512) as u8;
/// Commands of AoE.
pub(crate) mod command {
    pub(crate) const ATA: u8 = 0;
    pub(crate) const CONFIG: u8 = 1;
    pub(crate) const MASK: u8 = 2;
    pub(crate) const RESERVE: u8 = 3;
}
/// Commands of ATA.
pub(crate) mod ata {
    pub(crate) const READ: u8 = 0x24;
    pub(crate) const WRITE: u8 = 0x34;
    pub(crate) const VERIFY: u8 = 0x42;
    pub(crate) const FLUSH: u8 = 0xea;
    pub(crate) const IDENTIFY: u8 = 0xec;
}
/// The slot of all targets of a shelf.
pub(crate) const ALL_SLOTS: u8 = 0xff;
/// Where the part of the command begins, and where the data of an ATA command does.
const HEADER: usize = 24;
const DATA: usize = 36;
/// The shortest frame.
pub(crate) const FRAME_MIN: usize = 60;
/// Flags of a response: response, error.
const RESPONSE: u8 = 0x08;
const ERROR: u8 = 0x04;
/// Bits of the ATA status of a command that has failed: BSY, DF, DRQ, ERR.
const FAILURE: u8 = 0xa9;
/// Frames that wait for a station; further ones are lost, as in a network card.
const FRAMES_MAX: usize = 256;
/// Frames that wait for a port: more than a read of 1 MiB has over Fibre Channel, which needs a link without losses.
const PORT_FRAMES_MAX: usize = 4096;
/// Requests of a station that are outstanding: as many as targets queue.
pub(crate) const WINDOW: usize = 64;
/// A request whose answer is late is sent again after this time, and after twice the time each further time.
const PATIENCE: Duration = Duration::from_millis(20);
/// A target that has not answered by then is taken for hung.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Time between two checks whether the link has ended.
const LOOK: Duration = Duration::from_millis(100);
/// A link that takes no frame of a station for this time loses it. Ports have a link without losses, and a target that
/// hangs must not stop them.
const SEND_LIMIT: Duration = Duration::from_millis(50);
const PORT_SEND_LIMIT: Duration = Duration::from_secs(3);
const SEND_PAUSE: Duration = Duration::from_micros(20);

/// A station as the network knows it.
struct Known {
    frames: SyncSender<Vec<u8>>,
    /// Whether it receives the frames of groups.
    hears_groups: bool,
}

type Stations = Mutex<BTreeMap<Mac, Known>>;

/// The end of a link at which all stations are.
pub(crate) struct Network {
    /// The target's socket.
    target: PathBuf,
    stations: Arc<Stations>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Network {
    /// Receives frames at `own` from now on. The target is at the other path.
    pub(crate) fn start(own: &Path, target: &Path) -> Result<Self> {
        let _ = std::fs::remove_file(own);
        let socket = UnixDatagram::bind(own).with_context(|| format!("{}", own.display()))?;
        socket.set_read_timeout(Some(LOOK))?;
        let (stations, ended) = (Arc::<Stations>::default(), Arc::<AtomicBool>::default());
        let (known, is_over) = (stations.clone(), ended.clone());
        let thread = std::thread::spawn(move || deliver(&socket, &known, &is_over));
        Ok(Self { target: target.to_owned(), stations, ended, thread: Some(thread) })
    }

    /// A socket that sends to the target.
    fn sender(&self) -> Result<UnixDatagram> {
        let socket = UnixDatagram::unbound()?;
        socket.connect(&self.target).with_context(|| format!("{}", self.target.display()))?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    }

    /// A port with this address, which receives the frames of groups too.
    pub(crate) fn port(&self, mac: Mac) -> Result<Port> {
        let (sender, frames) = sync_channel(PORT_FRAMES_MAX);
        let mut port =
            Port { socket: self.sender()?, frames, sender, stations: self.stations.clone(), addresses: Vec::new() };
        port.add_address(mac);
        Ok(port)
    }

    /// A station of ATA over Ethernet with this address, for a shelf.
    pub(crate) fn station(&self, mac: Mac, shelf: u16) -> Result<Station> {
        let (sender, frames) = sync_channel(FRAMES_MAX);
        let known = Known { frames: sender, hears_groups: false };
        self.stations.lock().unwrap_or_else(PoisonError::into_inner).insert(mac, known);
        Ok(Station { mac, shelf, target: BROADCAST, socket: self.sender()?, frames, tag: 0 })
    }
}

/// The end of the network for one station.
pub(crate) struct Port {
    socket: UnixDatagram,
    frames: Receiver<Vec<u8>>,
    sender: SyncSender<Vec<u8>>,
    stations: Arc<Stations>,
    addresses: Vec<Mac>,
}

impl Port {
    /// Receives the frames for this address as well.
    pub(crate) fn add_address(&mut self, mac: Mac) {
        if self.addresses.contains(&mac) {
            return;
        }
        let known = Known { frames: self.sender.clone(), hears_groups: self.addresses.is_empty() };
        self.stations.lock().unwrap_or_else(PoisonError::into_inner).insert(mac, known);
        self.addresses.push(mac);
    }

    /// A sender of frames to this port.
    pub(crate) fn own_sender(&self) -> SyncSender<Vec<u8>> {
        self.sender.clone()
    }

    /// Sends a frame.
    pub(crate) fn send(&self, frame: &[u8]) {
        send(&self.socket, frame, PORT_SEND_LIMIT);
    }

    /// The next frame, within this time.
    pub(crate) fn receive(&self, limit: Duration) -> Option<Vec<u8>> {
        self.frames.recv_timeout(limit).ok()
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        let mut stations = self.stations.lock().unwrap_or_else(PoisonError::into_inner);
        self.addresses.iter().for_each(|mac| drop(stations.remove(mac)));
    }
}

/// Sends a frame, which is lost after this time. A station does not wait in the queue of the kernel, in which it would
/// stand behind attackers that do not run, because they have the lowest priority.
fn send(socket: &UnixDatagram, frame: &[u8], limit: Duration) {
    let end = Instant::now() + limit;
    while let Err(why) = socket.send(frame)
        && why.kind() == std::io::ErrorKind::WouldBlock
        && Instant::now() < end
    {
        std::thread::sleep(SEND_PAUSE);
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        // A thread that panicked has printed why.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Gives each frame to its station.
fn deliver(socket: &UnixDatagram, stations: &Stations, is_over: &AtomicBool) {
    let mut frame = vec![0; 16 << 10];
    while !is_over.load(Ordering::Relaxed) {
        let Ok(len) = socket.recv(&mut frame) else { continue };
        let Some(destination) = frame.first_chunk::<6>() else { continue };
        let mut stations = stations.lock().unwrap_or_else(PoisonError::into_inner);
        if destination[0] & 1 != 0 {
            // A frame that does not fit is lost.
            let all = stations.values().filter(|known| known.hears_groups);
            all.for_each(|known| drop(known.frames.try_send(frame[..len].to_vec())));
            continue;
        }
        let Some(station) = stations.get(destination) else { continue };
        if let Err(std::sync::mpsc::TrySendError::Disconnected(_)) = station.frames.try_send(frame[..len].to_vec()) {
            stations.remove(destination);
        }
    }
}

/// A station.
pub(crate) struct Station {
    pub(crate) mac: Mac,
    shelf: u16,
    /// The address of the target, as soon as it has answered.
    target: Mac,
    socket: UnixDatagram,
    frames: Receiver<Vec<u8>>,
    tag: u32,
}

/// A response.
pub(crate) struct Response(Vec<u8>);

impl Response {
    /// The tag of the request.
    pub(crate) fn tag(&self) -> u32 {
        u32::from_be_bytes([self.0[20], self.0[21], self.0[22], self.0[23]])
    }

    /// Whether it reports an error of AoE, or of an ATA command.
    pub(crate) fn has_failed(&self) -> bool {
        self.0[14] & ERROR != 0 || self.0[19] == command::ATA && self.0[27] & FAILURE != 0
    }

    /// The bytes behind the header.
    pub(crate) fn body(&self) -> &[u8] {
        &self.0[HEADER..]
    }
}

impl Station {
    /// The next tag.
    pub(crate) fn tag(&mut self) -> u32 {
        // Tools set the highest bit.
        self.tag = (self.tag + 1) & 0x7fff_ffff;
        self.tag
    }

    /// A request as a frame.
    pub(crate) fn frame(&self, slot: u8, command: u8, tag: u32, body: &[u8]) -> Vec<u8> {
        let [high, low] = self.shelf.to_be_bytes();
        let mut frame = [&self.target[..], &self.mac, &[0x88, 0xa2, 0x10, 0, high, low, slot, command]].concat();
        frame.extend(tag.to_be_bytes());
        frame.extend(body);
        frame.resize(frame.len().max(FRAME_MIN), 0);
        frame
    }

    /// Sends a frame; it may be lost.
    pub(crate) fn send(&self, frame: &[u8]) {
        send(&self.socket, frame, SEND_LIMIT);
    }

    /// Waits for a response.
    pub(crate) fn receive(&self, limit: Duration) -> Result<Option<Response>> {
        let end = Instant::now() + limit;
        loop {
            let frame = match self.frames.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(frame) => frame,
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                Err(RecvTimeoutError::Disconnected) => bail!("another station has this address"),
            };
            if frame.len() >= DATA && frame[12..14] == [0x88, 0xa2] && frame[14] & RESPONSE != 0 {
                return Ok(Some(Response(frame)));
            }
        }
    }

    /// Finds the target by Query Config Information.
    pub(crate) fn find(&mut self, slot: u8) -> Result<()> {
        self.target = BROADCAST;
        let tag = self.tag();
        let frame = self.frame(slot, command::CONFIG, tag, &query());
        let found = self.exchange(vec![(tag, frame)])?;
        let response = found.first().context("no response")?;
        ensure!(!response.has_failed() && response.body().len() >= 8, "the target refuses a query");
        self.target.copy_from_slice(&response.0[6..12]);
        Ok(())
    }

    /// Sends requests, [`WINDOW`] at a time, each again until it is answered; returns the responses in the order of the
    /// requests.
    pub(crate) fn exchange(&mut self, requests: Vec<(u32, Vec<u8>)>) -> Result<Vec<Response>> {
        let count = requests.len();
        let mut waiting: VecDeque<(usize, u32, Vec<u8>)> =
            requests.into_iter().enumerate().map(|(at, (tag, frame))| (at, tag, frame)).collect();
        let mut answered: BTreeMap<usize, Response> = BTreeMap::new();
        let mut outstanding: BTreeMap<u32, (usize, Vec<u8>, Instant, Duration)> = BTreeMap::new();
        let end = Instant::now() + ANSWER_LIMIT;
        while answered.len() < count {
            while outstanding.len() < WINDOW
                && let Some((at, tag, frame)) = waiting.pop_front()
            {
                self.send(&frame);
                outstanding.insert(tag, (at, frame, Instant::now(), PATIENCE));
            }
            if let Some(response) = self.receive(Duration::from_millis(5))?
                && let Some((at, ..)) = outstanding.remove(&response.tag())
            {
                answered.insert(at, response);
            }
            for (_, frame, sent, patience) in outstanding.values_mut() {
                if sent.elapsed() > *patience {
                    self.send(frame);
                    (*sent, *patience) = (Instant::now(), *patience * 2);
                }
            }
            ensure!(Instant::now() < end, "the target has not answered after {} s", ANSWER_LIMIT.as_secs());
        }
        Ok(answered.into_values().collect())
    }

    /// A request for an ATA command.
    pub(crate) fn ata(&mut self, slot: u8, code: u8, lba: u64, count: u8, data: &[u8]) -> (u32, Vec<u8>) {
        let tag = self.tag();
        (tag, self.frame(slot, command::ATA, tag, &ata_part(code, lba, count, data)))
    }

    /// Writes whole sectors.
    pub(crate) fn write(&mut self, slot: u8, lba: u64, data: &[u8]) -> Result<()> {
        let piece = usize::from(SECTORS_MAX) * 512;
        let mut requests = Vec::new();
        for (number, data) in (0..).zip(data.chunks(piece)) {
            let lba = lba + number * u64::from(SECTORS_MAX);
            requests.push(self.ata(slot, ata::WRITE, lba, (data.len() / 512) as u8, data));
        }
        let responses = self.exchange(requests)?;
        ensure!(!responses.iter().any(Response::has_failed), "a write has failed");
        Ok(())
    }

    /// Reads sectors, at most those of one frame.
    pub(crate) fn read(&mut self, slot: u8, lba: u64, count: u8) -> Result<Vec<u8>> {
        let request = self.ata(slot, ata::READ, lba, count, &[]);
        let responses = self.exchange(vec![request])?;
        let response = responses.first().context("no response")?;
        ensure!(!response.has_failed(), "a read has failed");
        let data = response.body().get(12..12 + usize::from(count) * 512);
        Ok(data.context("a read returns too few bytes")?.to_vec())
    }
}

/// The part of an ATA command with an LBA of 48 bits, and its data.
pub(crate) fn ata_part(code: u8, lba: u64, count: u8, data: &[u8]) -> Vec<u8> {
    let flags = 0x40 | u8::from(code == ata::WRITE);
    let mut part = vec![flags, 0, count, code];
    part.extend(&lba.to_le_bytes()[..6]);
    part.extend([0; 2]);
    part.extend(data);
    part
}

/// The part of Query Config Information that reads the configuration string.
pub(crate) fn query() -> Vec<u8> {
    config(0, &[])
}

/// The part of Query Config Information with this subcommand and string.
pub(crate) fn config(subcommand: u8, string: &[u8]) -> Vec<u8> {
    let mut part = vec![0, 0, 0, 0, 0, 0x10 | subcommand];
    part.extend((string.len() as u16).to_be_bytes());
    part.extend(string);
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_station_sends_again_and_gets_the_responses_in_order() {
        let folder = std::env::temp_dir().join(format!("lunar-station-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let (own, target) = (folder.join("stations"), folder.join("target"));
        let shelf = UnixDatagram::bind(&target).expect("a socket");
        let network = Network::start(&own, &target).expect("it starts");
        let mut station = network.station([2, 0, 0, 0, 0, 1], 7).expect("a socket");
        let answering = std::thread::spawn(move || {
            let mut frame = [0; 2048];
            let mut seen = Vec::new();
            // Of three requests the first one is lost once, and all are answered in reverse order.
            while seen.len() < 4 {
                let len = shelf.recv(&mut frame).expect("a frame");
                seen.push(frame[..len].to_vec());
            }
            assert_eq!(seen[0][16..20], [0, 7, 3, command::ATA]);
            assert_eq!(seen[0][24..36], [0x40, 0, 8, ata::READ, 5, 0, 0, 0, 0, 0, 0, 0]);
            assert_eq!(seen[0], seen[3], "it is sent again with the same tag");
            for request in seen[1..].iter().rev() {
                let mut response = request.clone();
                response.copy_within(6..12, 0);
                response[14] |= RESPONSE;
                response[27] = 0x40;
                shelf.send_to(&response, &own).expect("sent");
            }
        });
        let requests: Vec<_> = (0..3).map(|_| station.ata(3, ata::READ, 5, 8, &[])).collect();
        let tags: Vec<u32> = requests.iter().map(|(tag, _)| *tag).collect();
        let responses = station.exchange(requests).expect("answers");
        assert_eq!(responses.iter().map(Response::tag).collect::<Vec<_>>(), tags);
        assert!(responses.iter().all(|response| !response.has_failed()));
        answering.join().expect("no panic");
        drop(network);
        std::fs::remove_dir_all(&folder).expect("removed");
    }
}
