//! vfio-user: attackers that are a guest and its emulator in one.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::nvme_commands::{CHECKED, Command, Payload, commands};
use super::transport::{Attacker, Held, RECEIVE_LIMIT, Request, Source, Stage, Transport, Victim, volume};
use crate::test_data::pattern;
use crate::vfio::{self, DATA, ENTRIES, Entry, Guest, MEMORY, code, queue_addresses};

/// The virtual machines of attackers.
pub(super) const ATTACKERS: u16 = 4;
/// I/O queues of an attacker.
const QUEUES: u16 = 4;
/// Commands of an attacker in progress, which fill its queues.
const IO_COMMANDS: usize = QUEUES as usize * (ENTRIES as usize - 2);
const ADMIN_COMMANDS: usize = 30;
/// Bytes of a Compare: the most that one command may move.
const COMPARED: u32 = 1 << 20;
/// Data of commands, in guest memory; and the list of the pieces of a scattered read.
const PARAMETERS: u64 = DATA + (8 << 20);
const ZEROES: u64 = DATA + (4 << 20);
const PIECES: u64 = DATA + (12 << 20);
/// The most pieces of a list, and bytes of each.
const PIECES_MAX: u64 = 512;
const PIECE: u32 = 512;
/// Doorbell writes, and changes of the memory map, of one request.
const DOORBELLS_AT_ONCE: u64 = 64;
const MAPS_AT_ONCE: u64 = 16;

pub(super) struct VfioUser {
    /// The folder with the sockets of all virtual machines.
    pub(super) folder: PathBuf,
}

impl VfioUser {
    /// The names of the virtual machines.
    pub(super) fn names() -> impl Iterator<Item = String> {
        let attackers = (0..ATTACKERS).map(|number| format!("attacker{number}"));
        ["victim".to_owned(), "visitor".to_owned()].into_iter().chain(attackers)
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.folder.join(name).join("cntrl")
    }

    fn guest(&self, name: &str, queues: u16) -> Result<Guest> {
        Guest::boot(&self.socket(name), queues)
    }
}

impl Transport for VfioUser {
    fn name(&self) -> &'static str {
        "vfio-user"
    }

    fn has_request(&self, request: Request) -> bool {
        match request {
            Request::Doorbell | Request::Remap | Request::Reset => true,
            // Data of a guest is in its memory; a controller on PCI Express has no keep-alive time here.
            Request::ShortWrite | Request::LongWrite | Request::Ping => false,
            _ => !commands(request, 0, COMPARED).is_empty(),
        }
    }

    fn has_stage(&self, stage: Stage) -> bool {
        matches!(stage, Stage::Open | Stage::LoggedIn)
    }

    fn has_addresses(&self) -> bool {
        false
    }

    fn attackers_max(&self) -> u16 {
        ATTACKERS
    }

    fn victim(&self) -> Result<Box<dyn Victim>> {
        let guest = self.guest("victim", 1)?;
        let pages: Vec<u8> = (1..256_u64).flat_map(|page| (DATA + page * 4096).to_le_bytes()).collect();
        guest.memory.write_all_at(&pages, queue_addresses(1)[2])?;
        let mut victim = VmVictim(guest);
        victim.transfer(1, 32_768, &pattern(0, 1, 4096))?;
        Ok(Box::new(victim))
    }

    fn visit(&self) -> Result<()> {
        VmVictim(self.guest("visitor", 1)?).transfer(2, 0, &[0; 4096])
    }

    fn attacker(&self, _: Source, number: u16, request: Request) -> Result<Box<dyn Attacker>> {
        let guest = self.guest(&format!("attacker{number}"), QUEUES)?;
        Ok(Box::new(VmAttacker::new(guest, request)?))
    }

    fn connection(&self, _: Source, number: u16, stage: Stage) -> Result<Held> {
        let name = format!("attacker{}", number % ATTACKERS);
        Ok(match stage {
            Stage::LoggedIn => Box::new(self.guest(&name, 1)?),
            _ => Box::new(Guest::connect(&self.socket(&name))?),
        })
    }
}

struct VmVictim(Guest);

impl VmVictim {
    /// A Write or Read of the namespace of the victim.
    fn transfer(&mut self, opcode: u8, block: u32, data: &[u8]) -> Result<()> {
        let namespace = u32::from(volume::VICTIM) + 1;
        if opcode == 1 {
            self.0.memory.write_all_at(data, DATA)?;
        }
        let second = if data.len() > 4096 { queue_addresses(1)[2] } else { 0 };
        let entry = Entry::blocks(opcode, namespace, block, u32::try_from(data.len() / 512)?).pages(DATA, second);
        let status = self.0.run(1, entry)?;
        ensure!(status == 0, "status {status:03x}h");
        Ok(())
    }
}

impl Victim for VmVictim {
    fn read(&mut self) -> Result<()> {
        self.0.memory.write_all_at(&[0; 4096], DATA)?;
        self.transfer(2, 32_768, &[0; 4096])?;
        let mut data = vec![0; 4096];
        self.0.memory.read_exact_at(&mut data, DATA)?;
        ensure!(data == pattern(0, 1, 4096), "other data than was written");
        Ok(())
    }

    fn write(&mut self) -> Result<()> {
        self.transfer(1, 32_776, &pattern(8, 2, 4096))
    }

    fn write_long(&mut self) -> Result<()> {
        self.transfer(1, 36_864, &pattern(2048, 3, 1 << 20))
    }
}

struct VmAttacker {
    guest: Guest,
    request: Request,
    region: OwnedFd,
    sent: u32,
    in_progress: usize,
}

/// Whether the commands of a request go to the admin queue.
fn is_admin(request: Request) -> bool {
    commands(request, 0, COMPARED).iter().any(|command| command.is_admin)
}

impl VmAttacker {
    fn new(guest: Guest, request: Request) -> Result<Self> {
        let list = |at: u64| -> Vec<u8> { (1..256_u64).flat_map(|page| (at + page * 4096).to_le_bytes()).collect() };
        guest.memory.write_all_at(&list(DATA), queue_addresses(1)[2])?;
        guest.memory.write_all_at(&list(ZEROES), queue_addresses(2)[2])?;
        // Data block descriptors whose pieces lie in all pages.
        let pieces = (0..PIECES_MAX).flat_map(|piece| {
            let address = DATA + piece % 256 * 4096 + piece / 256 * 1024;
            [&address.to_le_bytes()[..], &PIECE.to_le_bytes(), &[0; 4]].concat()
        });
        guest.memory.write_all_at(&pieces.collect::<Vec<u8>>(), PIECES)?;
        Ok(Self { guest, request, region: vfio::memory(1 << 20)?, sent: 0, in_progress: 0 })
    }

    /// Puts a command into a queue and rings its doorbell.
    fn put(&mut self, command: &Command, queue: u16) -> Result<()> {
        let entry = Entry(command.entry(0));
        let entry = match &command.payload {
            Payload::None => entry,
            Payload::In(_) if self.request == Request::ScatteredRead => {
                let mut entry = entry.pages(PIECES, (PIECES_MAX * 16) | (3 << 60));
                entry.0[1] |= 0x40;
                entry
            }
            Payload::In(_) => entry.pages(DATA, queue_addresses(1)[2]),
            Payload::Zeroes(_) => entry.pages(ZEROES, queue_addresses(2)[2]),
            Payload::Out(data) => {
                self.guest.memory.write_all_at(data, PARAMETERS)?;
                entry.pages(PARAMETERS, 0)
            }
        };
        self.guest.put(queue, entry)?;
        self.in_progress += 1;
        Ok(())
    }

    /// Attacks with registers and messages instead of commands.
    fn disturb(&mut self) -> Result<()> {
        match self.request {
            Request::Doorbell => (0..DOORBELLS_AT_ONCE).try_for_each(|write| {
                // Completion queue heads, which may be written as often as the guest wants.
                let queue = 1 + write % u64::from(QUEUES);
                self.guest.set(0x1000 + (2 * queue + 1) * 4, &[0; 4])
            }),
            Request::Remap => (0..MAPS_AT_ONCE).try_for_each(|map| {
                let address = MEMORY + map * (1 << 20);
                self.guest.call_ok(code::MAP, &vfio::map(address, 0, 1 << 20), &[self.region.as_fd()])?;
                self.guest.call_ok(code::UNMAP, &vfio::unmap(address, 1 << 20, 0), &[]).map(drop)
            }),
            _ => {
                self.guest.call_ok(code::RESET, &[], &[])?;
                self.guest.enable()?;
                self.guest.create(1)
            }
        }
    }

    /// The status of a command that has ended, if one has.
    fn status(&mut self) -> Result<Option<u16>> {
        let queues = if is_admin(self.request) { 0..=0 } else { 1..=QUEUES };
        for queue in queues {
            if let Some((_, status, _)) = self.guest.poll_completion(queue)? {
                self.in_progress = self.in_progress.saturating_sub(1);
                return Ok(Some(status));
            }
        }
        Ok(None)
    }
}

impl Attacker for VmAttacker {
    fn has_room(&self) -> bool {
        match self.request {
            Request::Doorbell | Request::Remap | Request::Reset => self.in_progress == 0,
            request if is_admin(request) => self.in_progress < ADMIN_COMMANDS,
            _ => self.in_progress < IO_COMMANDS,
        }
    }

    fn send(&mut self) -> Result<()> {
        let all = commands(self.request, self.sent, COMPARED);
        if all.is_empty() {
            self.in_progress = 1;
            return self.disturb();
        }
        let queue = if all[0].is_admin { 0 } else { 1 + (self.sent % u32::from(QUEUES)) as u16 };
        self.sent = self.sent.wrapping_add(1);
        for command in all {
            self.put(&command, queue)?;
        }
        self.guest.ring(queue)
    }

    fn receive(&mut self) -> Result<()> {
        if commands(self.request, 0, COMPARED).is_empty() {
            self.in_progress = 0;
            return Ok(());
        }
        let end = Instant::now() + RECEIVE_LIMIT;
        while self.status()?.is_none() && Instant::now() < end {
            std::thread::sleep(std::time::Duration::from_micros(50));
        }
        Ok(())
    }
}

/// The commands of an attacker must not be refused for their form.
pub(super) fn check_forms(vfio: &VfioUser) -> Result<()> {
    let requests = CHECKED.into_iter().chain([Request::ScatteredRead, Request::Write]);
    for request in requests.filter(|request| vfio.has_request(*request)) {
        check_form(vfio, request).with_context(|| format!("{request:?}"))?;
    }
    Ok(())
}

fn check_form(vfio: &VfioUser, request: Request) -> Result<()> {
    let mut attacker = VmAttacker::new(vfio.guest("attacker0", QUEUES)?, request)?;
    attacker.send()?;
    let end = Instant::now() + std::time::Duration::from_secs(20);
    while attacker.in_progress > 0 {
        match attacker.status()? {
            Some(status) => ensure!(status == 0, "status {status:03x}h"),
            None => std::thread::sleep(std::time::Duration::from_micros(50)),
        }
        ensure!(Instant::now() < end, "no answer");
    }
    Ok(())
}
