//! Initializes a controller over its connected admin queue and identifies a namespace: a state machine that takes
//! completions and gives the next command.

use crate::Error;
use crate::command;
use lunar_nvme::controller::property;
use lunar_nvme::{Sqe, Status};

/// The length of Identify data, in bytes.
const IDENTIFY_LEN: u32 = 4096;
/// CNS values of Identify: namespace, controller.
const NAMESPACE: u8 = 0x00;
const CONTROLLER: u8 = 0x01;
/// CC: enabled (EN), I/O entries of 64 and 16 bytes (IOSQES, IOCQES).
const CONFIGURATION: u32 = 0x46_0001;
/// CC: enabled, with a normal shutdown (SHN).
pub const SHUTDOWN: u32 = 0x46_4001;
/// CSTS: ready (RDY).
pub const READY: u64 = 0x01;
/// CSTS: fatal status (CFS).
const FATAL: u64 = 0x02;
/// The smallest memory page size (CAP.MPSMIN of Lunar and of known controllers), the unit of MDTS, in bytes.
const PAGE: u32 = 4096;
/// The unit of IOCCSZ, and the length of a submission queue entry, in bytes.
const UNIT: u32 = 16;
const ENTRY: u32 = 64;
/// The largest transfer of a controller that reports no limit, in bytes.
const TRANSFER_UNLIMITED: u32 = 1 << 30;

/// The properties of a controller and of one of its namespaces.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Info {
    /// The largest number of entries of a queue (MQES + 1).
    pub entries_max: u16,
    /// In-capsule data of a command on an I/O queue, in bytes.
    pub in_capsule: u32,
    /// The largest transfer of a command, in bytes.
    pub transfer_max: u32,
    /// The number of I/O queues that the controller allocated.
    pub queues: u16,
    /// The namespace's size, in logical blocks.
    pub blocks: u64,
    /// The logical block size, in bytes.
    pub block_size: u32,
}

/// The next step of the initialization.
#[derive(Clone, Debug)]
pub enum Next {
    /// Execute this command, with a buffer of so many bytes, and pass its completion to [`Bringup::next`].
    Command(Sqe, u32),
    /// Wait a moment, then execute this command as above.
    Later(Sqe),
    /// The initialization is complete.
    Ready(Info),
}

/// The completion of a command.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status.
    pub status: Status,
    /// Dwords 0 and 1 of the completion.
    pub result: u64,
    /// The data that was transferred to the host.
    pub data: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Capabilities,
    Enable,
    Status,
    Controller,
    Queues,
    Namespace,
    Over,
}

/// The initialization in progress. A discovery controller has neither I/O queues nor namespaces.
#[derive(Debug)]
pub struct Bringup {
    step: Step,
    has_capsules: bool,
    queues: u16,
    namespace: Option<u32>,
    info: Info,
}

impl Bringup {
    /// Starts an initialization with so many I/O queues and this namespace; without a namespace, of a discovery
    /// controller.
    #[must_use]
    pub fn new(queues: u16, namespace: Option<u32>) -> Self {
        Self { step: Step::Capabilities, has_capsules: true, queues, namespace, info: Info::default() }
    }

    /// The same for a controller with queues in memory: properties are registers, and there are no capsules.
    #[must_use]
    pub fn in_memory(queues: u16, namespace: u32) -> Self {
        Self { has_capsules: false, ..Self::new(queues, Some(namespace)) }
    }

    /// The first command.
    #[must_use]
    pub fn first(&self) -> Sqe {
        command::property_get(property::CAP, true)
    }

    /// The command after the last one, which completed with `answer`.
    ///
    /// # Errors
    /// Why the initialization failed.
    pub fn next(&mut self, answer: &Answer) -> Result<Next, Error> {
        if answer.status != Status::SUCCESS {
            return Err(match (self.step, self.namespace) {
                (Step::Namespace, Some(id)) if answer.status == Status::INVALID_NAMESPACE => Error::NoNamespace(id),
                _ => Error::Refused(self.name(), answer.status),
            });
        }
        let info = &mut self.info;
        let (step, next) = match self.step {
            Step::Capabilities => {
                info.entries_max = (answer.result as u16).saturating_add(1);
                (Step::Enable, Next::Command(command::property_set(property::CC, CONFIGURATION), 0))
            }
            Step::Enable => (Step::Status, Next::Command(command::property_get(property::CSTS, false), 0)),
            Step::Status if answer.result & FATAL != 0 => {
                return Err(Error::InvalidData("CSTS reports a fatal status"));
            }
            Step::Status if answer.result & READY == 0 => {
                (Step::Status, Next::Later(command::property_get(property::CSTS, false)))
            }
            Step::Status if self.namespace.is_none() => (Step::Over, Next::Ready(*info)),
            Step::Status => (Step::Controller, Next::Command(command::identify(CONTROLLER, 0), IDENTIFY_LEN)),
            Step::Controller => {
                info.controller(&answer.data, self.has_capsules)?;
                (Step::Queues, Next::Command(command::set_queues(self.queues), 0))
            }
            Step::Queues => {
                let granted = (answer.result as u16).min((answer.result >> 16) as u16);
                info.queues = granted.saturating_add(1).min(self.queues);
                let id = self.namespace.unwrap_or(0);
                (Step::Namespace, Next::Command(command::identify(NAMESPACE, id), IDENTIFY_LEN))
            }
            Step::Namespace => {
                info.namespace(&answer.data, self.namespace.unwrap_or(0))?;
                (Step::Over, Next::Ready(*info))
            }
            Step::Over => (Step::Over, Next::Ready(*info)),
        };
        self.step = step;
        Ok(next)
    }

    fn name(&self) -> &'static str {
        match self.step {
            Step::Capabilities | Step::Status => "Property Get",
            Step::Enable => "Property Set",
            Step::Controller => "Identify of the controller",
            Step::Queues => "Set Features",
            Step::Namespace | Step::Over => "Identify of the namespace",
        }
    }
}

/// Property Set that notifies the controller of a normal shutdown.
#[must_use]
pub fn shutdown() -> Sqe {
    command::property_set(property::CC, SHUTDOWN)
}

fn field<const N: usize>(data: &[u8], at: usize) -> Result<[u8; N], Error> {
    let bytes = data.get(at..at + N).and_then(|bytes| bytes.try_into().ok());
    bytes.ok_or(Error::InvalidData("Identify data that is too short"))
}

impl Info {
    fn controller(&mut self, data: &[u8], has_capsules: bool) -> Result<(), Error> {
        let [exponent] = field(data, 77)?;
        self.transfer_max = match exponent {
            1..=17 => PAGE << exponent,
            _ => TRANSFER_UNLIMITED,
        };
        if !has_capsules {
            return Ok(());
        }
        let units = u32::from_le_bytes(field(data, 1792)?);
        let in_capsule = units.checked_mul(UNIT).and_then(|bytes| bytes.checked_sub(ENTRY));
        self.in_capsule = in_capsule.ok_or(Error::InvalidData("a capsule size (IOCCSZ) below 64 bytes"))?;
        // ICDOFF: in-capsule data would not follow the entry. No known controller uses it over TCP.
        if u16::from_le_bytes(field(data, 1800)?) != 0 {
            self.in_capsule = 0;
        }
        Ok(())
    }

    fn namespace(&mut self, data: &[u8], id: u32) -> Result<(), Error> {
        self.blocks = u64::from_le_bytes(field(data, 0)?);
        if self.blocks == 0 {
            return Err(Error::NoNamespace(id));
        }
        let [format] = field(data, 26)?;
        let at = usize::from(format & 0x0f | format >> 1 & 0x30);
        let [metadata_low, metadata_high, exponent, _] = field(data, 128 + 4 * at)?;
        if !(9..=16).contains(&exponent) || metadata_low | metadata_high != 0 {
            return Err(Error::InvalidData("an LBA format other than 512 bytes to 64 KiB without metadata"));
        }
        self.block_size = 1 << exponent;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good(result: u64, data: &[u8]) -> Answer {
        Answer { status: Status::SUCCESS, result, data: data.to_vec() }
    }

    fn command(next: Result<Next, Error>) -> (u8, u32, u32) {
        match next {
            Ok(Next::Command(sqe, room)) => (sqe.opcode, sqe.cdw(11), room),
            Ok(Next::Later(sqe)) => (sqe.opcode, sqe.cdw(11), u32::MAX),
            other => panic!("{other:?}"),
        }
    }

    fn pages() -> (Vec<u8>, Vec<u8>) {
        let (mut controller, mut namespace) = (vec![0; 4096], vec![0; 4096]);
        controller[77] = 8;
        controller[1792..1796].copy_from_slice(&(4u32 + 1024).to_le_bytes());
        namespace[..8].copy_from_slice(&1000u64.to_le_bytes());
        namespace[26] = 1;
        namespace[134] = 12;
        (controller, namespace)
    }

    #[test]
    fn a_controller_is_initialized_and_its_namespace_identified() {
        let (controller, namespace) = pages();
        let mut bringup = Bringup::new(4, Some(7));
        assert_eq!(bringup.first().cdw(11), 0);
        assert_eq!(command(bringup.next(&good(0x3_ff00_03ff, &[]))), (0x7f, 0x14, 0));
        assert_eq!(command(bringup.next(&good(0, &[]))), (0x7f, 0x1c, 0));
        assert_eq!(command(bringup.next(&good(0, &[]))), (0x7f, 0x1c, u32::MAX), "not ready");
        assert_eq!(command(bringup.next(&good(1, &[]))), (6, 0, 4096));
        assert_eq!(command(bringup.next(&good(0, &controller))), (9, 0x3_0003, 0));
        assert_eq!(command(bringup.next(&good(0x1_0001, &[]))), (6, 0, 4096));
        let Ok(Next::Ready(info)) = bringup.next(&good(0, &namespace)) else { panic!("ready") };
        let want = Info {
            entries_max: 1024,
            in_capsule: 16384,
            transfer_max: 1 << 20,
            queues: 2,
            blocks: 1000,
            block_size: 4096,
        };
        assert_eq!(info, want);
    }

    #[test]
    fn refused_commands_and_invalid_data_end_the_initialization() {
        let mut bringup = Bringup { step: Step::Namespace, ..Bringup::new(1, Some(7)) };
        let refused = Answer { status: Status::INVALID_NAMESPACE, ..good(0, &[]) };
        assert_eq!(bringup.next(&refused).err(), Some(Error::NoNamespace(7)));
        assert_eq!(bringup.next(&good(0, &[0; 4096])).err(), Some(Error::NoNamespace(7)));
        assert!(matches!(bringup.next(&good(0, &[0; 9])), Err(Error::NoNamespace(_) | Error::InvalidData(_))));
        let mut metadata = pages().1;
        metadata[132] = 8;
        assert!(matches!(bringup.next(&good(0, &metadata)), Err(Error::InvalidData(_))));
        let mut status = Bringup { step: Step::Status, ..Bringup::new(1, None) };
        assert!(matches!(status.next(&good(3, &[])), Err(Error::InvalidData(_))));
        assert!(matches!(status.next(&good(1, &[])), Ok(Next::Ready(_))));
        let mut memory = Bringup { step: Step::Controller, ..Bringup::in_memory(1, 1) };
        assert!(matches!(memory.next(&good(0, &[0; 4096])), Ok(Next::Command(..))), "no capsules");
        let mut short = Bringup { step: Step::Controller, ..Bringup::new(1, Some(1)) };
        assert!(short.next(&good(0, &[0; 4096])).is_err() && short.next(&good(0, &[])).is_err());
    }
}
