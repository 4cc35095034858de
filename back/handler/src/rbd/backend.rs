//! Images of Ceph as a back end of the engine: the kind `rbd`.

use super::process::ImageAccess;
use super::schema::{IMAGE, RbdKeys, is_snapshot};
use super::volume::{ImageVolume, mark};
use super::waiting;
use crate::life::Lifetime;
use crate::schema::{PATIENCE, SOCKET_MODE};
use crate::shared::Unit;
use lunar_control::schema::StoreSchema;
use lunar_control::value::FilePath;
use lunar_engine::backend::{Backend, Durability, JailPaths, Location, Mark, Opened, Refusal, StoreRequest, TextForm};
use lunar_engine::origin::Wording;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the process of an image may take to connect before the image counts as unavailable: it takes the lock of a
/// process that was killed, and the cluster forgets the dead client.
const OPEN_TIME: Duration = Duration::from_secs(10);
/// That time while another image waits for its cluster, too: many images of a cluster that is away delay a start as
/// much as one.
const OPEN_TIME_SHORT: Duration = Duration::from_millis(500);
/// Time between two looks whether it has connected.
const LOOK: Duration = Duration::from_millis(10);

/// The kind `rbd`.
#[derive(Debug)]
pub struct RbdBackend;

impl Backend for RbdBackend {
    fn schema(&self) -> &'static StoreSchema {
        &super::schema::STORE
    }

    fn form(&self) -> TextForm {
        TextForm::NameAndKey(IMAGE)
    }

    fn examples(&self) -> &'static [&'static str] {
        &["rbd:pool/image"]
    }

    fn location(&self) -> Location {
        Location::Path
    }

    fn durability(&self) -> Durability {
        Durability::Durable
    }

    // The process has its own files and sockets.
    fn jail_paths(&self, _: &Path, _: bool) -> JailPaths {
        JailPaths::default()
    }

    fn mark_at(&self, image: &Path, _: bool) -> Option<Mark> {
        Some(mark(image))
    }

    fn is_there(&self, image: &Path) -> bool {
        waiting::has_news(image)
    }

    fn open(&self, request: &StoreRequest<'_>, previous: Option<&Opened>) -> Result<Opened, Refusal> {
        let image = request.required_path()?;
        let refused = |mistake| {
            let wording = request.origin.wording();
            Refusal::store(ImageError { image: image.to_owned(), mistake, wording })
        };
        if is_snapshot(image) && !request.read_only {
            return Err(refused(Mistake::Snapshot));
        }
        if request.direct {
            return Err(refused(Mistake::Direct));
        }
        let unit = unit_of(image, request);
        let previous = previous.and_then(Opened::downcast::<ImageVolume>);
        if let Some(previous) = previous.filter(|previous| previous.unit().path == image) {
            // A process that is being started again serves the same image.
            let size = previous.life().size().unwrap_or_else(|| previous.size());
            return Ok(Opened::Store(Arc::new(ImageVolume::new(previous.life().clone(), unit, size))));
        }
        let (life, patience) = match waiting::take(&unit) {
            Some(life) => (life, Duration::ZERO),
            None => {
                let patience = if waiting::is_silent() { OPEN_TIME_SHORT } else { OPEN_TIME };
                (Lifetime::of_image(&unit).map_err(|why| refused(Mistake::Thread(why)))?, patience)
            }
        };
        match connected(&life, patience) {
            Some(size) => Ok(Opened::Store(Arc::new(ImageVolume::new(life, unit, size)))),
            None => {
                let why = life.why_not();
                waiting::keep(life, unit, why.clone());
                Err(refused(Mistake::Unserved(why)))
            }
        }
    }
}

/// The image as its process serves it.
fn unit_of(image: &Path, request: &StoreRequest<'_>) -> Unit {
    let keys = request.own.and_then(|own| own.get::<RbdKeys>());
    let file = |file: &Option<FilePath>| file.as_ref().map(|file| file.path().to_owned());
    let access = ImageAccess {
        image: image.as_os_str().to_owned(),
        user: keys.and_then(|keys| keys.user.as_ref()).map(|user| user.as_str().into()),
        config: keys.and_then(|keys| file(&keys.ceph_config)),
        keyring: keys.and_then(|keys| file(&keys.keyring)),
        read_only: request.read_only,
    };
    let patience = keys.map_or(PATIENCE, |keys| keys.cluster_timeout.0);
    Unit {
        name: request.name.to_owned(),
        path: image.to_owned(),
        size: 0,
        block_size: request.block_size,
        read_only: request.read_only,
        discard: !request.read_only,
        device: None,
        mode: SOCKET_MODE,
        command_timeout: Some(patience),
        restart_time: patience,
        image: Some(access),
    }
}

/// The bytes of the image once its process has connected; `None`: it has failed, or takes longer.
fn connected(life: &Lifetime, patience: Duration) -> Option<u64> {
    let end = Instant::now() + patience;
    loop {
        let size = life.size();
        if size.is_some() || life.failed() > 0 || Instant::now() >= end {
            return size;
        }
        std::thread::sleep(LOOK);
    }
}

/// An image cannot be opened as requested.
#[derive(Debug)]
struct ImageError {
    image: PathBuf,
    mistake: Mistake,
    wording: Wording,
}

/// The reason.
#[derive(Debug)]
enum Mistake {
    /// A snapshot is read-only.
    Snapshot,
    /// There is no page cache.
    Direct,
    /// There is no thread for it.
    Thread(io::Error),
    /// No process serves it, for this reason.
    Unserved(String),
}

impl fmt::Display for ImageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let image = self.image.display();
        match &self.mistake {
            Mistake::Snapshot => {
                write!(f, "{image} is a snapshot, which is read-only: add {}", self.wording.option("read-only"))
            }
            Mistake::Direct => {
                write!(f, "{image}: an image has no page cache to bypass: leave out {}", self.wording.option("direct"))
            }
            Mistake::Thread(why) => write!(f, "{image} cannot be served: {why}"),
            Mistake::Unserved(why) => write!(f, "no process serves {image}: {why}"),
        }
    }
}

impl std::error::Error for ImageError {}
