//! ATA over Ethernet: attackers that are stations on the link of the victim.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::transport::{
    Attacker, Held, LARGE_BLOCKS, RECEIVE_LIMIT, Request, Source, Stage, Transport, Victim, volume,
};
use crate::station::{ALL_SLOTS, Mac, Network, SECTORS_MAX, Station, WINDOW, ata, ata_part, command, config, query};
use crate::test_data::pattern;

/// The addresses of stations that belong to a group begin with these bytes, and those of others do not.
pub(super) const KNOWN: [u8; 2] = [0x02, 0x00];
const UNKNOWN: [u8; 2] = [0x06, 0x00];
/// The shelf.
pub(super) const SHELF: u16 = 1;
/// Requests of an attacker in progress: more than a target executes of one station, so that some are dropped.
const REQUESTS: usize = 300;
/// Stations of attackers at once.
const STATIONS_MAX: u16 = 64;
/// Requests that are not answered are taken for lost after this time.
const LOST: Duration = RECEIVE_LIMIT;

pub(super) struct Aoe {
    network: Network,
}

impl Aoe {
    /// The sockets of the target and of the stations.
    pub(super) fn sockets(folder: &Path) -> [PathBuf; 2] {
        [folder.join("aoe"), folder.join("aoe-stations")]
    }

    pub(super) fn start(folder: &Path) -> Result<Self> {
        let [target, stations] = Self::sockets(folder);
        Ok(Self { network: Network::start(&stations, &target)? })
    }

    fn station(&self, kind: u8, number: u16) -> Result<Station> {
        let [high, low] = number.to_be_bytes();
        let mut station = self.network.station([KNOWN[0], KNOWN[1], kind, 0, high, low], SHELF)?;
        station.find(volume::VICTIM as u8)?;
        Ok(station)
    }

    fn attacking(&self, number: u16, request: Request) -> Result<StationAttacker> {
        Ok(StationAttacker { station: self.station(2, number)?, number, request, sent: 0, in_progress: 0 })
    }
}

impl Transport for Aoe {
    fn name(&self) -> &'static str {
        "AoE"
    }

    fn has_request(&self, request: Request) -> bool {
        matches!(
            request,
            Request::LongRead
                | Request::Write
                | Request::Verify
                | Request::Describe
                | Request::Ping
                | Request::Register
                | Request::Flush
                | Request::Unknown
                | Request::Repeat
                | Request::Overlap
                | Request::Stranger
                | Request::Newcomer
                | Request::Rename
        )
    }

    fn has_stage(&self, _: Stage) -> bool {
        false
    }

    fn has_addresses(&self) -> bool {
        // The target takes all stations of a link for one host, because their addresses can be forged.
        false
    }

    fn attackers_max(&self) -> u16 {
        STATIONS_MAX
    }

    fn victim(&self) -> Result<Box<dyn Victim>> {
        let mut station = self.station(0, 1)?;
        station.write(volume::VICTIM as u8, 49_152, &pattern(0, 1, 4096))?;
        Ok(Box::new(station))
    }

    fn visit(&self) -> Result<()> {
        let mut station = self.station(1, 1)?;
        let (tag, frame) = station.ata(volume::VICTIM as u8, ata::IDENTIFY, 0, 1, &[]);
        let responses = station.exchange(vec![(tag, frame)])?;
        ensure!(responses.iter().all(|response| !response.has_failed()), "IDENTIFY DEVICE has failed");
        station.read(volume::VICTIM as u8, 0, 8).map(drop)
    }

    fn attacker(&self, _: Source, number: u16, request: Request) -> Result<Box<dyn Attacker>> {
        Ok(Box::new(self.attacking(number, request)?))
    }

    fn connection(&self, _: Source, _: u16, _: Stage) -> Result<Held> {
        anyhow::bail!("there are no connections")
    }
}

impl Victim for Station {
    fn read(&mut self) -> Result<()> {
        let data = Self::read(self, volume::VICTIM as u8, 49_152, 8)?;
        ensure!(data == pattern(0, 1, 4096), "other data than was written");
        Ok(())
    }

    fn write(&mut self) -> Result<()> {
        Self::write(self, volume::VICTIM as u8, 49_160, &pattern(8, 2, 4096))
    }

    fn write_long(&mut self) -> Result<()> {
        Self::write(self, volume::VICTIM as u8, 53_248, &pattern(2048, 3, 1 << 20))
    }
}

struct StationAttacker {
    station: Station,
    number: u16,
    request: Request,
    sent: u32,
    in_progress: usize,
}

/// The address of a new station.
fn stranger(prefix: [u8; 2], number: u16, count: u32) -> Mac {
    let [_, a, b, c] = count.to_be_bytes();
    [prefix[0], prefix[1], 0x10 + number as u8, a, b, c]
}

impl StationAttacker {
    /// The next request: a slot, a command, and the bytes behind the header.
    fn next(&self) -> (u8, u8, Vec<u8>) {
        let [small, large, other] = [volume::SMALL, volume::LARGE, volume::REWRITTEN].map(|unit| unit as u8);
        let (turn, data) = (self.sent.is_multiple_of(2), vec![0x5a; usize::from(SECTORS_MAX) * 512]);
        let ata =
            |slot, code, lba: u32, count, data: &[u8]| (slot, command::ATA, ata_part(code, lba.into(), count, data));
        match self.request {
            Request::LongRead => ata(small, ata::READ, self.sent % 1024 * 64, SECTORS_MAX, &[]),
            Request::Write => ata(small, ata::WRITE, self.sent % 1024 * 64, SECTORS_MAX, &data),
            Request::Verify => ata(large, ata::VERIFY, self.sent % (LARGE_BLOCKS / 256) * 256, 255, &[]),
            Request::Flush => ata(large, ata::FLUSH, 0, 0, &[]),
            Request::Describe => ata(small, ata::IDENTIFY, 0, 1, &[]),
            Request::Repeat => ata(small, ata::WRITE, 8, SECTORS_MAX, &data),
            // Each has other data, so that none is a copy of another.
            Request::Overlap => ata(large, ata::WRITE, 0, 1, &[&self.sent.to_be_bytes()[..], &data[4..512]].concat()),
            Request::Stranger if turn => (small, command::CONFIG, query()),
            Request::Stranger | Request::Newcomer => ata(small, ata::READ, 0, 8, &[]),
            Request::Ping if turn => (small, command::CONFIG, query()),
            Request::Ping => (ALL_SLOTS, command::CONFIG, query()),
            // For one station, or for none. The reservation concerns a unit of which no other attack needs the blocks.
            Request::Register if turn => (other, command::RESERVE, [&[2, 1][..], &self.station.mac].concat()),
            Request::Register => (other, command::RESERVE, vec![2, 0]),
            Request::Rename if turn => (small, command::CONFIG, config(4, &self.sent.to_be_bytes())),
            Request::Rename => {
                let edit = if self.sent % 4 == 1 { 1 } else { 2 };
                (other, command::MASK, [&[0, 1, 0, 1, 0, edit][..], &self.station.mac].concat())
            }
            _ if turn => (small, 0x77, vec![0; 16]),
            _ => ata(small, 0xfe, 0, 0, &[]),
        }
    }
}

impl Attacker for StationAttacker {
    fn has_room(&self) -> bool {
        match self.request {
            // Nothing comes back to these.
            Request::Stranger | Request::Newcomer => self.in_progress < WINDOW,
            _ => self.in_progress < REQUESTS,
        }
    }

    fn send(&mut self) -> Result<()> {
        let (slot, command, body) = self.next();
        let tag = if self.request == Request::Repeat { 77 } else { self.station.tag() };
        let own = self.station.mac;
        match self.request {
            Request::Stranger => self.station.mac = stranger(UNKNOWN, self.number, self.sent),
            Request::Newcomer => self.station.mac = stranger(KNOWN, self.number, self.sent),
            _ => {}
        }
        let frame = self.station.frame(slot, command, tag, &body);
        self.station.mac = own;
        self.station.send(&frame);
        (self.sent, self.in_progress) = (self.sent.wrapping_add(1), self.in_progress + 1);
        Ok(())
    }

    fn receive(&mut self) -> Result<()> {
        if matches!(self.request, Request::Stranger | Request::Newcomer) {
            self.in_progress = 0;
            return Ok(());
        }
        match self.station.receive(LOST)? {
            Some(_) => self.in_progress = self.in_progress.saturating_sub(1),
            None => self.in_progress = 0,
        }
        Ok(())
    }
}

/// The requests of an attacker must not be refused for their form: each is sent alone, and succeeds.
pub(super) fn check_forms(aoe: &Aoe) -> Result<()> {
    let requests = [
        Request::LongRead,
        Request::Write,
        Request::Verify,
        Request::Flush,
        Request::Describe,
        Request::Repeat,
        Request::Overlap,
        Request::Ping,
        Request::Register,
        Request::Rename,
    ];
    for request in requests {
        let mut attacker = aoe.attacking(0, request)?;
        for _ in 0..4 {
            attacker.send()?;
            let limit = Duration::from_secs(20);
            let response = attacker.station.receive(limit)?.with_context(|| format!("{request:?} has no answer"))?;
            ensure!(!response.has_failed(), "{request:?} has failed: {:02x?}", &response.body()[..12]);
            attacker.sent += u32::from(request == Request::Repeat);
        }
    }
    Ok(())
}
