//! The kind `zvol`.

use super::identity;
use super::maker::{self, Order};
use super::schema::{DATASET, Dataset};
use super::volume::{ZvolVolume, fingerprint, mark};
use crate::BlockVolume;
use crate::error::{DeviceError, DeviceMistake};
use crate::open::Options;
use lunar_control::live::{Making, StoreNotMade};
use lunar_control::schema::StoreSchema;
use lunar_engine::backend::{
    Backend, Durability, Fingerprint, JailPaths, Location, Mark, Opened, OpenedStore, Refusal, StoreRequest, TextForm,
};
use lunar_engine::origin::Wording;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The kind `zvol`.
#[derive(Debug)]
pub struct ZvolBackend;

impl Backend for ZvolBackend {
    fn schema(&self) -> &'static StoreSchema {
        &super::schema::STORE
    }

    fn form(&self) -> TextForm {
        TextForm::NameAndKey(DATASET)
    }

    fn examples(&self) -> &'static [&'static str] {
        &["zvol:tank/disk1"]
    }

    fn location(&self) -> Location {
        Location::Path
    }

    fn durability(&self) -> Durability {
        Durability::Durable
    }

    fn jail_paths(&self, zvol: &Path, _: bool) -> JailPaths {
        JailPaths { write: Dataset::at(zvol).iter().map(Dataset::device).collect(), ..JailPaths::default() }
    }

    fn mark_at(&self, zvol: &Path, _: bool) -> Option<Mark> {
        let dataset = Dataset::at(zvol)?;
        dataset.device().exists().then(|| mark(&dataset, identity::of(&dataset)))
    }

    fn fingerprint(&self, zvol: &Path, _: bool) -> Option<Fingerprint> {
        let dataset = Dataset::at(zvol)?;
        fingerprint(&dataset, identity::of(&dataset))
    }

    fn inspection(&self, zvol: &Path) -> String {
        let pool = Dataset::at(zvol).map(|dataset| dataset.pool().to_owned()).unwrap_or_default();
        format!("`zpool status {pool}`, `zpool import`, `zfs list -t volume`")
    }

    fn is_there(&self, zvol: &Path) -> bool {
        Dataset::at(zvol).is_some_and(|dataset| dataset.device().exists())
    }

    fn make(&self, request: &StoreRequest<'_>, source: Option<&Opened>) -> Option<Making> {
        let order = order_of(request, source);
        Some(Box::new(move || {
            let (dataset, order) = order.map_err(StoreNotMade::new)?;
            maker::make(&dataset, &order)
        }))
    }

    fn open(&self, request: &StoreRequest<'_>, previous: Option<&Opened>) -> Result<Opened, Refusal> {
        let dataset = dataset_of(request)?;
        if dataset.is_snapshot() && !request.read_only {
            return Err(refused(request, Mistake::Snapshot));
        }
        let device = dataset.device();
        if !device.exists() {
            return Err(refused(request, Mistake::NoDevice(device)));
        }
        let unusable = |why| Refusal::store(DeviceError::new(&device, DeviceMistake::Unusable(why), request));
        if request.shared {
            return Err(Refusal::store(DeviceError::new(&device, DeviceMistake::NotShared, request)));
        }
        let options = Options {
            read_only: request.read_only,
            durable: request.write_through,
            // Through the page cache, ZFS reports a full pool after it has dropped the data.
            direct: true,
            block_size: request.block_size,
        };
        let zvol = previous.and_then(Opened::downcast::<ZvolVolume>);
        let held = zvol.map(ZvolVolume::device).or_else(|| previous.and_then(Opened::downcast::<BlockVolume>));
        let opened = match held {
            Some(held) => held.reopen(&device, &options),
            None => BlockVolume::new(&device, &options),
        };
        let opened = opened.map_err(unusable)?;
        // udev renews the link some time after a zvol was renamed.
        match opened.zvol_name() {
            Some(name) if name == dataset.name() => {}
            other => return Err(refused(request, Mistake::OtherDevice(device, other))),
        }
        let volume = ZvolVolume::new(dataset, opened, zvol);
        check_same(request.known, volume.fingerprint().as_ref()).map_err(|mistake| refused(request, mistake))?;
        Ok(Opened::Store(Arc::new(volume)))
    }
}

/// Checks whether the zvol that was found is the one that was served, if there was one: its name may have been given to
/// another one.
fn check_same(known: Option<&Fingerprint>, found: Option<&Fingerprint>) -> Result<(), Mistake> {
    match (known, found) {
        (None, _) => Ok(()),
        (Some(_), None) => Err(Mistake::Unidentified),
        (Some(known), Some(found)) if known == found => Ok(()),
        (Some(_), Some(_)) => Err(Mistake::OtherIdentity),
    }
}

fn refused(request: &StoreRequest<'_>, mistake: Mistake) -> Refusal {
    let dataset = request.path.map(Path::to_owned).unwrap_or_default();
    let wording = request.origin.wording();
    Refusal::store(ZvolError { dataset, mistake, wording })
}

fn dataset_of(request: &StoreRequest<'_>) -> Result<Dataset, Refusal> {
    Dataset::at(request.required_path()?).ok_or_else(|| refused(request, Mistake::Name))
}

/// The making of a request, of `source` if that is given.
fn order_of(request: &StoreRequest<'_>, source: Option<&Opened>) -> Result<(Dataset, Order), Refusal> {
    let dataset = dataset_of(request)?;
    let order = match source {
        None if dataset.is_snapshot() => return Err(refused(request, Mistake::EmptySnapshot)),
        None => Order::Zvol(request.required_size()?),
        Some(source) => {
            let source = source.downcast::<ZvolVolume>().ok_or_else(|| refused(request, Mistake::NoZvol))?.dataset();
            match dataset.is_snapshot() {
                false if dataset.pool() != source.pool() => {
                    return Err(refused(request, Mistake::OtherPool(source.clone())));
                }
                false => Order::Clone(source.clone()),
                true if dataset.zvol() == *source => Order::Snapshot,
                true => return Err(refused(request, Mistake::OtherZvol(source.clone()))),
            }
        }
    };
    Ok((dataset, order))
}

/// A zvol cannot be opened or made as requested.
#[derive(Debug)]
struct ZvolError {
    dataset: PathBuf,
    mistake: Mistake,
    wording: Wording,
}

/// The reason.
#[derive(Debug)]
enum Mistake {
    /// It is no name of a zvol.
    Name,
    /// A snapshot is read-only.
    Snapshot,
    /// It has no device here.
    NoDevice(PathBuf),
    /// Its link leads to the device of another zvol, or to no zvol.
    OtherDevice(PathBuf, Option<String>),
    /// It is not the zvol that was served.
    OtherIdentity,
    /// It may be another zvol than the one that was served.
    Unidentified,
    /// A snapshot has the size of its zvol.
    EmptySnapshot,
    /// The source of a copy is no zvol.
    NoZvol,
    /// It is no snapshot of the zvol that it is to be made of.
    OtherZvol(Dataset),
    /// A clone is in the pool of its source.
    OtherPool(Dataset),
}

impl fmt::Display for ZvolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.dataset.display();
        match &self.mistake {
            Mistake::Name => write!(f, "{name} is no zvol: name it POOL/VOLUME, perhaps with @SNAPSHOT"),
            Mistake::Snapshot => {
                write!(f, "{name} is a snapshot, which is read-only: add {}", self.wording.option("read-only"))
            }
            Mistake::NoDevice(device) if name.to_string().contains('@') => write!(
                f,
                "there is no {}: look for the snapshot (`zfs list -t snapshot`), and let its device appear: zfs set \
                 snapdev=visible {}",
                device.display(),
                name.to_string().split('@').next().unwrap_or_default()
            ),
            Mistake::NoDevice(device) => write!(
                f,
                "there is no {}: import the pool (`zpool import`), or look for the zvol (`zfs list -t volume`, `zfs \
                 get volmode {name}`)",
                device.display()
            ),
            Mistake::OtherDevice(device, Some(other)) => write!(
                f,
                "{} is the device of {other}: have udev renew the links (`udevadm trigger --subsystem-match=block`)",
                device.display()
            ),
            Mistake::OtherDevice(device, None) => write!(f, "{} is no device of a zvol", device.display()),
            Mistake::OtherIdentity => write!(
                f,
                "the zvol that has the name {name} now is another one than the one that was served: give the right \
                 one this name (`zfs rename`)"
            ),
            Mistake::Unidentified => write!(
                f,
                "ZFS does not tell whether {name} is the zvol that was served: `zfs get guid {name}` must show its \
                 number"
            ),
            Mistake::EmptySnapshot => {
                write!(f, "{name} is a snapshot: make it of its volume (`lunar volume snapshot`), or give no size")
            }
            Mistake::NoZvol => write!(f, "{name} cannot be made: the volume is not served, or is no zvol"),
            Mistake::OtherZvol(source) => {
                write!(f, "{name} is no snapshot of {0}: give it a name as {0}@SNAPSHOT", source.name())
            }
            Mistake::OtherPool(source) => {
                write!(f, "{name} cannot be a clone of {}: a clone is in the pool of its source", source.name())
            }
        }
    }
}

impl std::error::Error for ZvolError {}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_control::value::Textual;

    #[test]
    fn another_zvol_under_the_same_name_is_refused() {
        let dataset = Dataset::parse("tank/disk1").expect("a name");
        let [one, other] = ["1", "2"].map(|number| fingerprint(&dataset, Some(number.into())));
        let check = |known: &Option<Fingerprint>, found: &Option<Fingerprint>| {
            check_same(known.as_ref(), found.as_ref()).map_err(|mistake| {
                ZvolError { dataset: dataset.name().into(), mistake, wording: Wording::Keys }.to_string()
            })
        };
        assert!(check(&one, &one).is_ok() && check(&None, &one).is_ok() && check(&None, &None).is_ok());
        let why = check(&one, &other).expect_err("another number");
        assert!(why.contains("tank/disk1 now is another one") && why.contains("zfs rename"), "{why}");
        let why = check(&one, &None).expect_err("no number");
        assert!(why.contains("zfs get guid tank/disk1"), "{why}");
    }
}
