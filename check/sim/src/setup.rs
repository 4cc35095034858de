//! The set-up of the target that a seed determines: cores, volumes, the limits of sessions, and faults.

use crate::stamp::SECTOR;
use lunar_iscsi::config;
use lunar_reactor::disk::{Alignment, Policy};
use lunar_reactor::sim::{Chance, Faults, World};
use std::path::PathBuf;
use std::time::Duration;

/// The most sockets of virtual machines.
const VM_SOCKETS_MAX: usize = 2;
/// The limit of one growth of a volume, in blocks of 4096 bytes.
const GROWTH_MAX: usize = 4;
/// The most changes of the configuration that extend volumes.
pub const GROWTHS_MAX: usize = 16;
/// The blocks of a contended volume that commands use.
const CONTENDED_BLOCKS: usize = 6;
/// Contended set-ups of a million.
const CONTENDED: u32 = 250_000;
/// The times of the network and of the file of a contended set-up.
const CONTENDED_LATENCY: (Duration, Duration) = (Duration::from_micros(5), Duration::from_micros(200));
const CONTENDED_FILE_TIME: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(20));

/// The kind of a volume's store.
#[derive(Clone, Debug)]
pub enum Kept {
    /// Memory: lost with the process.
    Ram,
    /// A file.
    File(Policy),
}

/// A volume.
#[derive(Clone, Debug)]
pub struct Volume {
    /// The kind of its store.
    pub kept: Kept,
    /// Sectors of 512 bytes.
    pub sectors: usize,
    /// The sectors by which each growth extends it. No client uses them.
    pub growth: usize,
    /// Bytes of a logical block.
    pub block_size: u32,
    /// Whether commands use only its first blocks, so that most of them meet.
    pub is_contended: bool,
}

impl Volume {
    /// Any volume.
    #[must_use]
    pub fn any(chance: &mut Chance) -> Self {
        let policy = Policy {
            durable: chance.odds(200_000),
            direct: chance.odds(300_000).then_some(Alignment { memory: SECTOR, length: SECTOR }),
        };
        Self {
            kept: if chance.odds(750_000) { Kept::File(policy) } else { Kept::Ram },
            sectors: 64 << chance.within(0..=5),
            growth: 8 * chance.within(1..=GROWTH_MAX as u64) as usize,
            block_size: *chance.pick(&[512, 512, 4096]),
            is_contended: false,
        }
    }

    /// Whether each write is on the medium when it is answered.
    #[must_use]
    pub fn is_durable(&self) -> bool {
        matches!(self.kept, Kept::File(Policy { durable: true, .. }))
    }

    /// Whether its data is kept when the process ends.
    #[must_use]
    pub fn is_file(&self) -> bool {
        matches!(self.kept, Kept::File(_))
    }

    /// The sectors after so many growths.
    #[must_use]
    pub fn sectors_after(&self, growths: usize) -> usize {
        self.sectors + growths * self.growth
    }

    /// The sectors after the last growth: commands past them are out of range at any time.
    #[must_use]
    pub fn sectors_max(&self) -> usize {
        self.sectors_after(GROWTHS_MAX)
    }

    /// The blocks that commands use.
    #[must_use]
    pub fn used_blocks(&self) -> usize {
        let all = self.sectors / self.block_sectors();
        if self.is_contended { all.min(CONTENDED_BLOCKS) } else { all }
    }

    /// Sectors of a logical block.
    #[must_use]
    pub fn block_sectors(&self) -> usize {
        self.block_size as usize / SECTOR
    }
}

/// The changes that were made to the configuration of a target.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Changes {
    /// There is one more volume, and the group has a LUN for it.
    pub has_extra_lun: bool,
    /// There is one more portal of iSCSI.
    pub has_extra_portal: bool,
    /// How often the volumes have grown.
    pub growths: usize,
}

impl Changes {
    /// The same with another change.
    #[must_use]
    pub fn with_any(mut self, chance: &mut Chance) -> Self {
        match chance.index(3) {
            0 => self.has_extra_lun = !self.has_extra_lun,
            1 => self.has_extra_portal = !self.has_extra_portal,
            _ => self = self.with_growth(),
        }
        self
    }

    /// The same with larger volumes. Volumes do not shrink.
    #[must_use]
    pub fn with_growth(self) -> Self {
        Self { growths: GROWTHS_MAX.min(self.growths + 1), ..self }
    }
}

/// The set-up of the target.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Virtual cores.
    pub cores: usize,
    /// Bytes of each core's arena.
    pub arena_bytes: usize,
    /// Its volumes, by LUN.
    pub volumes: Vec<Volume>,
    /// The parameters that iSCSI sessions are offered.
    pub session: config::Config,
    /// Sockets of virtual machines.
    pub vm_sockets: usize,
    /// The changes that were made to the configuration.
    pub changes: Changes,
    /// The faults.
    pub faults: Faults,
}

impl Setup {
    /// Any set-up.
    #[must_use]
    pub fn any(chance: &mut Chance) -> Self {
        let first_burst = 512 << chance.within(0..=8);
        let session = config::Config {
            max_recv_segment: 512 << chance.within(0..=9),
            max_burst: first_burst << chance.within(0..=3),
            first_burst,
            initial_r2t: chance.odds(300_000),
            immediate_data: chance.odds(700_000),
            max_outstanding_r2t: 1 + chance.within(0..=7) as u32,
            digests: chance.odds(700_000),
            window: 1 << chance.within(0..=7),
            unsolicited_max: 1 << chance.within(14..=22),
            ..config::Config::default()
        };
        Self {
            cores: chance.within(1..=3) as usize,
            arena_bytes: (1 << 20) << chance.within(0..=4),
            volumes: (0..chance.within(1..=3)).map(|_| Volume::any(chance)).collect(),
            session,
            vm_sockets: chance.index(VM_SOCKETS_MAX + 1),
            changes: Changes::default(),
            faults: Faults::any(chance),
        }
        .contended(chance.odds(CONTENDED))
    }

    /// The same, but if it is contended, with commands that meet on few blocks of one file. The network is fast and the
    /// file is slow, so that most commands are in progress at the file.
    fn contended(mut self, is_contended: bool) -> Self {
        if is_contended {
            self.volumes.truncate(1);
            let volume = &mut self.volumes[0];
            volume.is_contended = true;
            if !volume.is_file() {
                volume.kept = Kept::File(Policy::default());
            }
            self.faults.latency = CONTENDED_LATENCY;
            self.faults.file_time = CONTENDED_FILE_TIME;
        }
        self
    }

    /// Whether most commands meet.
    #[must_use]
    pub fn is_contended(&self) -> bool {
        self.volumes.iter().any(|volume| volume.is_contended)
    }

    /// The paths of the sockets of virtual machines.
    #[must_use]
    pub fn vm_sockets(&self) -> Vec<PathBuf> {
        (0..self.vm_sockets).map(|number| format!("/vm{number}").into()).collect()
    }

    /// Creates the files of the volumes.
    pub fn create_files(&self, world: &World) {
        for (lun, volume) in self.volumes.iter().enumerate() {
            if volume.is_file() {
                world.create(path(lun), volume.sectors * SECTOR);
            }
        }
    }
}

/// The path of a volume's file.
#[must_use]
pub fn path(lun: usize) -> PathBuf {
    format!("/volume{lun}").into()
}
