//! The back end of simulated disks: the kind `file`, on files of the simulator. It has the store of the shipped back
//! end; locks, marks and the creation of files are those of the operating system, which the simulator does not have.

use crate::stamp::SECTOR;
use lunar_control::schema::StoreSchema;
use lunar_core::io::{Store, Traits};
use lunar_engine::backend::{
    Backend, Durability, JailPaths, Location, Mark, Opened, OpenedStore, ProtectionRequest, Refusal, StoreRequest,
    TextForm,
};
use lunar_reactor::Reactor;
use lunar_reactor::disk::{Alignment, Health, Policy};
use lunar_reactor::op::How;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes of the blocks in which the simulator allocates space.
const SPACE_BLOCK: u32 = 4096;

/// The kind `file` in the simulator.
#[derive(Debug)]
pub struct SimulatedDisk;

impl Backend for SimulatedDisk {
    fn schema(&self) -> &'static StoreSchema {
        &lunar_file::schema::STORE
    }

    fn form(&self) -> TextForm {
        TextForm::OtherPath
    }

    fn examples(&self) -> &'static [&'static str] {
        &["/volume0"]
    }

    fn location(&self) -> Location {
        Location::Path
    }

    fn durability(&self) -> Durability {
        Durability::Durable
    }

    fn jail_paths(&self, _: &Path, _: bool) -> JailPaths {
        JailPaths::default()
    }

    fn mark_at(&self, _: &Path, _: bool) -> Option<Mark> {
        None
    }

    fn open(&self, request: &StoreRequest<'_>, previous: Option<&Opened>) -> Result<Opened, Refusal> {
        let path = request.required_path()?.to_owned();
        let previous = previous.and_then(Opened::downcast::<DiskVolume>).filter(|previous| previous.path == path);
        let health = match previous {
            Some(previous) => previous.health.clone(),
            None => Health::new(path.display().to_string()),
        };
        let alignment = Alignment { memory: SECTOR, length: SECTOR };
        let policy = Policy { durable: request.write_through, direct: request.direct.then_some(alignment) };
        let traits = Traits {
            size: request.required_size()?,
            read_only: request.read_only,
            write_cache: !policy.durable,
            thin: true,
            unmap_granularity: SPACE_BLOCK,
            unmap_zeroes: true,
            physical_block: SPACE_BLOCK,
            optimal_io: 0,
            rotational: false,
            atomic_write: 0,
        };
        Ok(Opened::Store(Arc::new(DiskVolume { path, policy, health, traits })))
    }
}

/// A file of the simulator, as all cores share it.
#[derive(Clone, Debug)]
struct DiskVolume {
    path: PathBuf,
    policy: Policy,
    health: Arc<Health>,
    traits: Traits,
}

impl OpenedStore for DiskVolume {
    fn traits(&self) -> &Traits {
        &self.traits
    }

    fn mark(&self) -> Option<Mark> {
        None
    }

    fn is_direct(&self) -> bool {
        self.policy.direct.is_some()
    }

    fn open(&self, reactor: &Reactor) -> io::Result<Box<dyn Store>> {
        let Policy { durable, direct } = self.policy;
        let how = How { direct: direct.is_some(), durable, read_only: self.traits.read_only };
        let open = || reactor.driver().open(&self.path, how);
        Ok(lunar_file::over(reactor, [open()?, open()?, open()?], self.policy, &self.health, self.traits.clone()))
    }

    fn with_sharing(&self, _: bool) -> Result<Arc<dyn OpenedStore>, Refusal> {
        Ok(Arc::new(self.clone()))
    }

    fn finalize(&self) {}

    fn open_protection(&self, request: &ProtectionRequest<'_>) -> Result<Arc<dyn OpenedStore>, Refusal> {
        Err(request.no_place())
    }
}
