//! Images of Ceph as a back end of the engine: the kind `rbd`.

use super::found;
use super::maker;
use super::process::{ImageAccess, Order};
use super::schema::{IMAGE, RbdKeys, is_snapshot};
use super::volume::{ImageVolume, mark};
use super::waiting;
use crate::life::{Lifetime, until_all_ended};
use crate::schema::{PATIENCE, SOCKET_MODE};
use crate::shared::Unit;
use lunar_control::live::{Making, StoreNotMade};
use lunar_control::schema::StoreSchema;
use lunar_control::value::FilePath;
use lunar_engine::backend::{
    Backend, Durability, Fingerprint, JailPaths, Location, Mark, Opened, Refusal, StoreRequest, TextForm,
};
use lunar_engine::origin::Wording;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the process of an image may take to connect before the image counts as unavailable: it takes the lock of a
/// process that was killed, and the cluster forgets the dead client.
const OPEN_TIME: Duration = Duration::from_secs(10);
/// That time while another image waits for its cluster, too: many images of an unavailable cluster delay a start as
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

    fn fingerprint(&self, image: &Path, _: bool) -> Option<Fingerprint> {
        found::at(image)
    }

    fn inspection(&self, image: &Path) -> String {
        format!("`ceph status`, `rbd info {}`", image.display())
    }

    fn is_there(&self, image: &Path) -> bool {
        // A process that stands by serves the image as soon as it can.
        !found::stands_by(image) && waiting::has_news(image)
    }

    fn make(&self, request: &StoreRequest<'_>, source: Option<&Opened>) -> Option<Making> {
        let made = access_of(request, source);
        Some(Box::new(move || maker::make(&made.map_err(StoreNotMade::new)?)))
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
        let unit = unit_of(image, request).map_err(refused)?;
        let previous = previous.and_then(Opened::downcast::<ImageVolume>);
        let Some(previous) = previous.filter(|previous| previous.unit().path == image) else {
            return first(unit, request.known.map(found::identity)).map_err(refused);
        };
        let life = previous.life();
        // A change of the volume names the store that it has; an operator who accepts any store does not.
        if life.stands_by() && request.known.is_none() {
            return Err(refused(Mistake::Taken));
        }
        if !life.has_stranger() {
            // A process that is being started again serves the same image.
            let (size, identity) = (life.size().unwrap_or_else(|| previous.size()), previous.identity().to_owned());
            return Ok(opened(life.clone(), unit, size, identity));
        }
        if request.known.is_some() {
            return Err(refused(Mistake::Other));
        }
        life.set_halted(true);
        accepted(unit).map_err(|why| {
            life.set_halted(false);
            refused(why)
        })
    }

    fn finish(&self) {
        until_all_ended();
    }
}

/// The process that makes the image or the snapshot of a request, of `source` if that is given.
fn access_of(request: &StoreRequest<'_>, source: Option<&Opened>) -> Result<ImageAccess, Refusal> {
    let image = request.required_path()?;
    let refused = |mistake| {
        let wording = request.origin.wording();
        Refusal::store(ImageError { image: image.to_owned(), mistake, wording })
    };
    let order = match source {
        None if is_snapshot(image) => return Err(refused(Mistake::EmptySnapshot)),
        None => Order::Image(request.required_size()?),
        Some(source) => {
            let source = source.downcast::<ImageVolume>().ok_or_else(|| refused(Mistake::NoImage))?;
            let (place, identity) = (&source.unit().path, source.identity().into());
            match is_snapshot(image) {
                false => Order::Clone(place.into(), identity),
                true if image_of(image) == place.as_os_str().as_encoded_bytes() => Order::Snapshot(identity),
                true => return Err(refused(Mistake::OtherImage(place.clone()))),
            }
        }
    };
    let unit = unit_of(image, request).map_err(refused)?;
    let access = unit.image.unwrap_or_default();
    Ok(ImageAccess { order: Some(order), stand_by: false, read_only: false, ..access })
}

/// The name of an image without that of its snapshot.
fn image_of(image: &Path) -> &[u8] {
    let name = image.as_os_str().as_encoded_bytes();
    name.split(|byte| *byte == b'@').next().unwrap_or(name)
}

fn opened(life: Arc<Lifetime>, unit: Unit, size: u64, identity: String) -> Opened {
    Opened::Store(Arc::new(ImageVolume::new(life, unit, size, identity)))
}

/// Starts the process of an image, which must have the identity `known`.
fn start(unit: &Unit, known: Option<&str>) -> Result<Arc<Lifetime>, Mistake> {
    let life = Lifetime::of_image(unit, known).map_err(Mistake::Thread)?;
    found::add(&unit.path, &life);
    Ok(life)
}

/// Opens an image that is not served yet, and must have the identity `known`.
fn first(unit: Unit, known: Option<&str>) -> Result<Opened, Mistake> {
    let (life, patience) = match waiting::take(&unit, known) {
        Some(life) => (life, Duration::ZERO),
        None => (start(&unit, known)?, if waiting::is_silent() { OPEN_TIME_SHORT } else { OPEN_TIME }),
    };
    match connected(&life, patience, |life| life.failed() > 0 || life.has_stranger()) {
        Some((size, identity)) => Ok(opened(life, unit, size, identity)),
        None => {
            let (why, is_other) = (life.why_not(), life.has_stranger());
            waiting::keep(life, unit, known, why.clone());
            Err(if is_other { Mistake::Other } else { Mistake::Unserved(why) })
        }
    }
}

/// Opens the image that an operator has accepted in the place of one that is served. Commands of the one before do not
/// reach it: it has queues of its own.
fn accepted(unit: Unit) -> Result<Opened, Mistake> {
    let life = start(&unit, None)?;
    // A process for the image before may be looking at this one, and have its lock: then the next start succeeds.
    match connected(&life, OPEN_TIME, |_| false) {
        Some((size, identity)) => Ok(opened(life, unit, size, identity)),
        None => Err(Mistake::Unserved(life.why_not())),
    }
}

/// The image as its process serves it.
fn unit_of(image: &Path, request: &StoreRequest<'_>) -> Result<Unit, Mistake> {
    let keys = request.own.and_then(|own| own.get::<RbdKeys>());
    let file = |file: &Option<FilePath>| file.as_ref().map(|file| file.path().to_owned());
    let encryption = match keys.map(|keys| (keys.encryption, file(&keys.passphrase_file))) {
        Some((Some(format), Some(passphrase))) => Some((format, passphrase)),
        None | Some((None, None)) => None,
        Some((format, _)) => return Err(Mistake::HalfEncrypted(format.is_some())),
    };
    let access = ImageAccess {
        image: image.as_os_str().to_owned(),
        user: keys.and_then(|keys| keys.user.as_ref()).map(|user| user.as_str().into()),
        config: keys.and_then(|keys| file(&keys.ceph_config)),
        keyring: keys.and_then(|keys| file(&keys.keyring)),
        encryption,
        stand_by: keys.is_some_and(|keys| keys.stand_by),
        read_only: request.read_only,
        order: None,
    };
    let patience = keys.map_or(PATIENCE, |keys| keys.cluster_timeout.0);
    Ok(Unit {
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
    })
}

/// The bytes and the identity of the image once its process has connected; `None`: that is in vain, or takes longer.
fn connected(life: &Lifetime, patience: Duration, is_in_vain: impl Fn(&Lifetime) -> bool) -> Option<(u64, String)> {
    let end = Instant::now() + patience;
    loop {
        let image = life.size().zip(life.identity());
        if image.is_some() || is_in_vain(life) || Instant::now() >= end {
            return image;
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
    /// Of format and passphrase of its encryption, only one is given; whether it is the format.
    HalfEncrypted(bool),
    /// There is no thread for it.
    Thread(io::Error),
    /// Another server has it.
    Taken,
    /// It is another image than before.
    Other,
    /// A snapshot has the size of its image.
    EmptySnapshot,
    /// The source of a copy is no image.
    NoImage,
    /// It is no snapshot of the image that it is to be made of.
    OtherImage(PathBuf),
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
            Mistake::HalfEncrypted(true) => {
                write!(f, "{image}: `encryption` needs `passphrase-file`, the file with the passphrase")
            }
            Mistake::HalfEncrypted(false) => {
                write!(f, "{image}: `passphrase-file` is for an encrypted image: set `encryption`, or leave it out")
            }
            Mistake::Taken => write!(f, "another server serves {image}, and this one stands by: end it there first"),
            Mistake::Other => write!(
                f,
                "the image that has the name {image} now is another one than the one that was served: give the right \
                 one this name (`rbd trash ls`, `rbd rename`)"
            ),
            Mistake::EmptySnapshot => {
                write!(f, "{image} is a snapshot: make it of its volume (`lunar volume snapshot`), or give no size")
            }
            Mistake::NoImage => write!(f, "{image} cannot be made: the volume is not served, or is no image of Ceph"),
            Mistake::OtherImage(source) => {
                let source = source.display();
                write!(f, "{image} is no snapshot of {source}: give it a name as {source}@SNAPSHOT")
            }
            Mistake::Thread(why) => write!(f, "{image} cannot be served: {why}"),
            Mistake::Unserved(why) => write!(f, "no process serves {image}: {why}"),
        }
    }
}

impl std::error::Error for ImageError {}
