use super::*;
use lunar_aoe::target::{BUFFERS, Registers, Request, Target, Verdict, ata_answer, decide};
use lunar_aoe::{slot::SlotState, target::Ata};
use lunar_link::HEADER_LEN;
use proptest::prelude::*;

const HOST: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
const DISK: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);
const ADDRESS: Address = Address { shelf: 1, slot: 2 };
const SECTORS: u64 = 64;

/// A target in memory, with the verdicts of the real one.
struct Disk {
    bytes: Vec<u8>,
    state: SlotState,
    /// The status of all commands but IDENTIFY DEVICE.
    registers: Registers,
}

impl Disk {
    fn new() -> Self {
        Self { bytes: vec![0; SECTORS as usize * SECTOR], state: SlotState::default(), registers: Registers::GOOD }
    }

    /// The payload of the answer to a frame.
    fn answer(&mut self, frame: &[u8]) -> Option<Vec<u8>> {
        let request = Request::parse(HOST, &frame[HEADER_LEN..])?;
        let target = Target { address: ADDRESS, state: &self.state, sectors: 2 };
        let ata = match decide(&request, &target) {
            Verdict::Answer(answer) => return Some(answer),
            Verdict::Ata(ata) => ata,
            _ => return None,
        };
        let (part, data) = AtaPart::ref_from_prefix(request.body).ok()?;
        let is_good = self.registers == Registers::GOOD;
        let (registers, data) = match ata {
            Ata::Identify => {
                let mut words = vec![0; SECTOR];
                words[2 * 60..2 * 60 + 4].copy_from_slice(&(SECTORS as u32).to_le_bytes());
                (Registers::GOOD, words)
            }
            Ata::Read(at) if is_good => (self.registers, self.bytes[at.offset() as usize..][..at.len()].to_vec()),
            Ata::Write(at) if is_good => {
                self.bytes[at.offset() as usize..][..at.len()].copy_from_slice(&data[..at.len()]);
                (self.registers, Vec::new())
            }
            _ => (self.registers, Vec::new()),
        };
        Some([&ata_answer(request.header, ADDRESS, part, registers)[..], &data].concat())
    }
}

fn config(fresh_tags: bool) -> InitiatorConfig {
    InitiatorConfig { mac: HOST, target: ADDRESS, mtu: 1500, timeout: Duration::from_secs(180), fresh_tags }
}

/// How a command ended.
type Ended = (u32, Result<(), (u8, u8)>);

/// The results of commands, by cookie, with the data of reads.
#[derive(Default)]
struct Results {
    is_ready: bool,
    is_lost: bool,
    done: Vec<Ended>,
    data: std::collections::BTreeMap<u32, Vec<u8>>,
}

impl Results {
    fn take(&mut self, event: InitiatorEvent<'_>) {
        match event {
            InitiatorEvent::Ready => self.is_ready = true,
            InitiatorEvent::Lost => self.is_lost = true,
            InitiatorEvent::Done(cookie, result) => self.done.push((cookie, result)),
            InitiatorEvent::Data(cookie, offset, bytes) => {
                let data = self.data.entry(cookie).or_default();
                data.resize(data.len().max(offset + bytes.len()), 0);
                data[offset..offset + bytes.len()].copy_from_slice(bytes);
            }
        }
    }
}

/// Exchanges frames until nothing is outstanding; `fate` says how often each frame arrives.
fn exchange(
    initiator: &mut Initiator,
    disk: &mut Disk,
    now: &mut Instant,
    results: &mut Results,
    mut fate: impl FnMut() -> usize,
) {
    for _ in 0..100_000 {
        let mut is_idle = true;
        while let Some(frame) = initiator.next_frame() {
            is_idle = false;
            for _ in 0..fate() {
                let Some(answer) = disk.answer(&frame) else { continue };
                for _ in 0..fate() {
                    initiator.receive(DISK, &answer, *now, &mut |event| results.take(event));
                }
            }
        }
        if is_idle {
            let Some(deadline) = initiator.deadline() else { return };
            *now = deadline;
            initiator.tick(*now, &mut |event| results.take(event));
        }
    }
    panic!("it never ends");
}

fn ready(disk: &mut Disk, fresh_tags: bool) -> (Initiator, Instant) {
    let (mut now, mut results) = (Instant(1), Results::default());
    let mut initiator = Initiator::new(config(fresh_tags), now);
    exchange(&mut initiator, disk, &mut now, &mut results, || 1);
    assert!(results.is_ready && initiator.is_ready());
    (initiator, now)
}

#[test]
fn a_disk_is_found_and_commands_are_cut_into_frames() {
    let mut disk = Disk::new();
    let (mut initiator, mut now) = ready(&mut disk, false);
    assert_eq!((initiator.capacity(), initiator.sectors_per_frame()), (SECTORS, 2));
    assert_eq!(initiator.buffers(), usize::from(BUFFERS));
    let data: Rc<[u8]> = (0..7 * SECTOR).map(|at| (at / 3) as u8).collect();
    let mut results = Results::default();
    initiator.start(5, Operation::Write { lba: 3, data: data.clone() }, now);
    exchange(&mut initiator, &mut disk, &mut now, &mut results, || 1);
    assert_eq!(disk.bytes[3 * SECTOR..10 * SECTOR], data[..]);
    initiator.start(6, Operation::Read { lba: 3, count: 7 }, now);
    initiator.start(7, Operation::Flush, now);
    assert_eq!(initiator.in_progress(), 2);
    exchange(&mut initiator, &mut disk, &mut now, &mut results, || 1);
    results.done.sort_unstable();
    assert_eq!(results.done, [(5, Ok(())), (6, Ok(())), (7, Ok(()))]);
    assert_eq!((results.data[&6][..] == data[..], initiator.resends, initiator.in_progress()), (true, 0, 0));
}

#[test]
fn failures_are_reported_with_their_registers() {
    let mut disk = Disk::new();
    let (mut initiator, mut now) = ready(&mut disk, false);
    disk.registers = Registers::failed(0x20, 0x40);
    let mut results = Results::default();
    initiator.start(1, Operation::Read { lba: 0, count: 4 }, now);
    exchange(&mut initiator, &mut disk, &mut now, &mut results, || 1);
    assert_eq!((results.done, results.data.len()), (vec![(1, Err((0x61, 0x40)))], 0));
}

#[test]
fn a_silent_target_is_lost() {
    let mut disk = Disk::new();
    let (mut initiator, mut now) = ready(&mut disk, false);
    let mut results = Results::default();
    initiator.start(1, Operation::Read { lba: 0, count: 1 }, now);
    exchange(&mut initiator, &mut disk, &mut now, &mut results, || 0);
    assert!(results.is_lost && now.since(Instant(1)) > Duration::from_secs(180));
    let mut initiator = Initiator::new(config(false), now);
    exchange(&mut initiator, &mut disk, &mut now, &mut results, || 0);
    assert!(!initiator.is_ready());
}

proptest! {
    #[test]
    fn lost_and_duplicated_frames_change_nothing(
        fates in prop::collection::vec(0_usize..4, 1..200),
        fresh_tags in any::<bool>(),
    ) {
        let mut disk = Disk::new();
        let (mut initiator, mut now) = ready(&mut disk, fresh_tags);
        let data: Rc<[u8]> = (0..SECTORS as usize * SECTOR).map(|at| (at / 7) as u8).collect();
        let mut results = Results::default();
        // At the end, everything arrives.
        let mut fates = fates.into_iter().map(|fate| if fate == 3 { 2 } else { fate });
        let mut fate = || fates.next().unwrap_or(1);
        initiator.start(1, Operation::Write { lba: 0, data: data.clone() }, now);
        exchange(&mut initiator, &mut disk, &mut now, &mut results, &mut fate);
        initiator.start(2, Operation::Read { lba: 0, count: SECTORS as u32 }, now);
        exchange(&mut initiator, &mut disk, &mut now, &mut results, &mut fate);
        prop_assert_eq!(&results.done, &[(1, Ok(())), (2, Ok(()))]);
        prop_assert!(results.data[&2][..] == data[..]);
    }

    #[test]
    fn any_frames_are_taken(frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..100), 0..20)) {
        let mut disk = Disk::new();
        let (mut initiator, now) = ready(&mut disk, false);
        initiator.start(1, Operation::Read { lba: 0, count: 8 }, now);
        for mut frame in frames {
            if frame.len() > 10 {
                // A response of this target to one of the outstanding frames.
                frame[0] = 0x18;
                frame[2..6].copy_from_slice(&[0, 1, 2, 0]);
                frame[6..9].copy_from_slice(&[0, 0, 4]);
            }
            initiator.receive(DISK, &frame, now, &mut |_| ());
        }
        prop_assert!(initiator.in_progress() <= 1);
    }
}
