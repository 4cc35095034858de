//! Volumes as the configuration describes them: opened for the first time, or once more in another way while they are
//! served.

use super::keep::Folder;
use super::spec::{Named, Spec};
use super::{DISC_BLOCK, Kind, Options, Protection, Volume, advice, identity};
use anyhow::{Context, Result, bail};
use lunar_block::BlockVolume;
use lunar_control::model::{self, StoreKind};
use lunar_core::medium::MediumKind;
use lunar_core::metadata::{MetadataStore, VolatileMemory};
use lunar_core::protection;
use lunar_file::FileVolume;
use lunar_null::NullVolume;
use lunar_ram::RamVolume;
use lunar_reactor::log;
use std::path::Path;
use std::sync::Arc;

impl Volume {
    /// The volume of this name. `before` is what is served from the same place already, in another way: both may be
    /// used at the same time. What it keeps besides its data is in the folder `state`. A file that is not there is made
    /// only if `makes`: that of a volume that was served before has to be there.
    ///
    /// # Errors
    /// In words that say what to do.
    pub fn configured(
        name: &str,
        wanted: &model::Volume,
        state: &Path,
        before: Option<&Self>,
        makes: bool,
    ) -> Result<Self> {
        let medium = medium_of(wanted);
        let options = Options {
            read_only: wanted.read_only || medium == MediumKind::Optical,
            shared: wanted.shared,
            block_size: if medium == MediumKind::Optical { DISC_BLOCK } else { wanted.block_size.bytes() },
            write_through: wanted.write_through,
            direct: wanted.direct,
            makes,
            protection: match wanted.protection {
                model::Protection::None => None,
                model::Protection::Type1 => Some(protection::Kind::One),
                model::Protection::Type2 => Some(protection::Kind::Two),
                model::Protection::Type3 => Some(protection::Kind::Three),
            },
        };
        let identity = wanted.identity(&identity::own_revision()).context("it has no UUID")?;
        let same = before.filter(|before| before.identity.uuid == identity.uuid);
        let kind = store(name, wanted, &options, identity.uuid, before)?;
        let keep: Arc<dyn MetadataStore> = match (&kind, same) {
            (_, Some(same)) => same.keep.clone(),
            // Their data is forgotten as well.
            (Kind::Null(_) | Kind::Ram(_), None) => Arc::new(VolatileMemory::default()),
            (Kind::File(_) | Kind::Block(_), None) => {
                Arc::new(Folder::within(state, identity.uuid, !options.read_only)?)
            }
        };
        let protection = protect(name, wanted, &kind, &*keep, &options, before)?;
        let Options { block_size, .. } = options;
        Ok(Self { kind, medium, block_size, identity: Arc::new(identity), keep, protection })
    }
}

fn medium_of(wanted: &model::Volume) -> MediumKind {
    match wanted.medium {
        model::Medium::Disk => MediumKind::Fixed,
        model::Medium::Removable => MediumKind::Removable,
        model::Medium::Cd => MediumKind::Optical,
    }
}

fn store(
    name: &str,
    wanted: &model::Volume,
    options: &Options,
    mark: [u8; 16],
    before: Option<&Volume>,
) -> Result<Kind> {
    let Options { read_only, shared, block_size, write_through: durable, direct, makes, .. } = *options;
    let size = wanted.size.map(|size| size.0);
    let path = wanted.path.as_ref().map(|path| path.path());
    let before = before.map(|before| &before.kind);
    Ok(match wanted.kind {
        StoreKind::Null => Kind::Null(NullVolume::new(size.context("it has no size")?, read_only)),
        StoreKind::Ram => {
            let size = size.context("it has no size")?;
            let volume = match before {
                Some(Kind::Ram(before)) => before.again(size, read_only),
                _ => RamVolume::new(size, read_only),
            };
            Kind::Ram(volume.with_context(|| format!("{} bytes of memory at most", lunar_ram::SIZE_MAX))?)
        }
        StoreKind::File => {
            let path = path.context("it has no path")?;
            if advice::in_dev(path) && !path.exists() {
                bail!(advice::on_file(path, &lunar_file::Refusal::Missing, size, options));
            }
            let (grows, mark) = (true, Some(mark));
            let how = lunar_file::Options { size, makes, grows, mark, read_only, shared, durable, direct, block_size };
            let volume = match before {
                Some(Kind::File(before)) => before.again(path, &how),
                _ => FileVolume::new(path, &how),
            };
            let volume = volume.map_err(|why| advice::on_configured(path, &why, size, options))?;
            if let Some(size) = size
                && let Ok(found) = std::fs::metadata(path)
                && found.len() > size
            {
                log!("volume {name}: {} is larger than its size here; the rest is not used", path.display());
            }
            Kind::File(volume)
        }
        StoreKind::Block => {
            let path = path.context("it has no path")?;
            if shared {
                bail!("{}: a device is served by one process, and cannot be shared", path.display());
            }
            let how = lunar_block::Options { read_only, durable, direct, block_size };
            let volume = match before {
                Some(Kind::Block(before)) => before.again(path, &how),
                _ => BlockVolume::new(path, &how),
            };
            Kind::Block(volume.map_err(|why| advice::on_block(path, &why, options))?)
        }
    })
}

/// What keeps its protection information. That of a volume that is served is locked, and of its size.
fn protect(
    name: &str,
    wanted: &model::Volume,
    kind: &Kind,
    keep: &dyn MetadataStore,
    options: &Options,
    before: Option<&Volume>,
) -> Result<Option<Protection>> {
    if let Some((before, protection)) = before.and_then(|before| Some((before, before.protection.as_ref()?))) {
        let size = |kind: &Kind| super::protection::size_of(kind);
        if size(&before.kind) != size(kind) || before.block_size != options.block_size || options.read_only {
            bail!("it keeps protection information, and changes so only while nobody uses it: remove it first");
        }
        return Ok(Some(protection.sharing(options.shared)?));
    }
    let spec = match (&wanted.path, wanted.size) {
        (Some(path), size) => Spec::Path { path: path.path().to_owned(), size: size.map(|size| size.0) },
        (None, size) => Spec::Ram { size: size.map_or(0, |size| size.0) },
    };
    Protection::of(name, kind, &Named { medium: medium_of(wanted), spec }, keep, options)
}
