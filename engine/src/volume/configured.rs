//! Volumes as the configuration describes them: opened for the first time, or opened again in another way while they
//! are served.

use super::{DISC_BLOCK, Volume, VolumeError, identity, metadata_store, protection, protection_store};
use crate::backend::{self, Backend, Fingerprint, Location, Opened, StoreRequest};
use crate::host::StateStore;
use crate::origin::Origin;
use lunar_control::common_sections;
use lunar_core::medium::MediumKind;
use lunar_core::protection::Kind;
use std::fmt;
use std::sync::Arc;

/// The context in which a volume is opened, besides its section of the configuration.
#[derive(Clone, Copy)]
pub struct VolumeContext<'a> {
    /// The back ends of the program.
    pub backends: &'a [&'static dyn Backend],
    /// Where metadata is.
    pub state: &'a dyn StateStore,
    /// Where the configuration comes from. A volume of a command line does not grow, and the mark of its store decides
    /// its identity.
    pub origin: &'a Origin,
    /// The volume that is served from the same place, or as the same volume, in another way. Both may be used at the
    /// same time.
    pub previous: Option<&'a Volume>,
    /// A file that is missing is created. Without it, the volume was served before: its file must be there.
    pub creates: bool,
    /// See [`StoreRequest::known`].
    pub known: Option<&'a Fingerprint>,
    /// The store of `previous` is unavailable: its open device or file and its metadata are taken over, and not its
    /// protection store.
    pub is_return: bool,
}

impl fmt::Debug for VolumeContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VolumeContext({:?}, previous {:?})", self.origin, self.previous)
    }
}

impl Volume {
    /// Opens the volume of this name.
    ///
    /// # Errors
    /// In words that say what to do.
    pub fn configured(
        name: &str,
        wanted: &common_sections::Volume,
        context: &VolumeContext<'_>,
    ) -> Result<Self, VolumeError> {
        let medium = medium_of(wanted);
        let identity = wanted.identity(&identity::own_revision()).ok_or(VolumeError::NoUuid)?;
        let kind = wanted.kind.word();
        let backend = backend::find(context.backends, kind).ok_or(VolumeError::UnknownKind(kind))?;
        let request = request(name, wanted, context, identity.uuid);
        match (backend.location(), request.path) {
            (Location::Path, None) => return Err(VolumeError::NeedsPath(kind)),
            (Location::Process, Some(_)) => return Err(VolumeError::HasPath(kind)),
            (Location::Path, Some(_)) | (Location::Process, None) => {}
        }
        let opened = backend.open(&request, context.previous.map(Self::opened))?;
        let identity = match opened.mark().filter(|_| context.origin.is_command_line()) {
            Some(mark) => identity::of_mark(&mark),
            None => identity,
        };
        let before = context.previous.filter(|_| !context.is_return);
        // Two metadata stores of one folder would overwrite each other's records.
        let same = context.previous.filter(|previous| previous.identity.uuid == identity.uuid);
        let metadata = match same {
            Some(same) => same.metadata.clone(),
            None => metadata_store(backend.durability(), context.state, identity.uuid, !request.read_only)
                .map_err(|why| VolumeError::Metadata(None, why))?,
        };
        let kind = match wanted.protection {
            common_sections::Protection::None => None,
            common_sections::Protection::Type0 => Some(Kind::None),
            common_sections::Protection::Type1 => Some(Kind::One),
            common_sections::Protection::Type2 => Some(Kind::Two),
            common_sections::Protection::Type3 => Some(Kind::Three),
        };
        let protection = match before.and_then(|previous| Some((previous, previous.protection.as_ref()?))) {
            Some((previous, protection)) => {
                check_protected(previous, &opened, &request)?;
                Some(protection.with_sharing(request.shared)?)
            }
            None => protection_store(&opened, &request, protection::Wanted { medium, kind }, &*metadata)?,
        };
        Ok(Self {
            opened,
            medium,
            block_size: request.block_size,
            read_only: request.read_only,
            identity: Arc::new(identity),
            metadata,
            protection,
        })
    }
}

pub(super) fn medium_of(wanted: &common_sections::Volume) -> MediumKind {
    match wanted.medium {
        common_sections::Medium::Disk => MediumKind::Fixed,
        common_sections::Medium::Removable => MediumKind::Removable,
        common_sections::Medium::Cd => MediumKind::Optical,
    }
}

pub(crate) fn request<'a>(
    name: &'a str,
    wanted: &'a common_sections::Volume,
    context: &VolumeContext<'a>,
    mark: [u8; 16],
) -> StoreRequest<'a> {
    let is_disc = medium_of(wanted) == MediumKind::Optical;
    StoreRequest {
        name,
        origin: context.origin,
        path: wanted.place(),
        size: wanted.size.map(|size| size.0),
        creates: context.creates,
        grows: !context.origin.is_command_line(),
        mark: Some(mark),
        known: context.known,
        read_only: wanted.read_only || is_disc,
        shared: wanted.shared,
        write_through: wanted.write_through,
        direct: wanted.direct && !is_disc,
        block_size: if is_disc { DISC_BLOCK } else { wanted.block_size.bytes() },
        is_disc,
        own: Some(&wanted.own),
    }
}

/// A protection store that is in use is locked, and has its size.
fn check_protected(previous: &Volume, opened: &Opened, request: &StoreRequest<'_>) -> Result<(), VolumeError> {
    let size = opened.store().map(|store| store.traits().size);
    if previous.size() != size || previous.block_size != request.block_size || request.read_only {
        return Err(VolumeError::Protected);
    }
    Ok(())
}
