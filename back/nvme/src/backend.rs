//! NVMe namespaces as a back end of the engine: the kind `nvme`.

use crate::error::{Mistake, NamespaceError};
use crate::open::{Options, Unusable, claim, mark, open};
use crate::resolve::locate;
use crate::volume::NvmeVolume;
use lunar_control::schema::StoreSchema;
use lunar_core::io::{Store, Traits};
use lunar_engine::backend::{
    Backend, Durability, Fingerprint, JailPaths, Location, Mark, Opened, OpenedStore, ProtectionRequest, Refusal,
    StoreRequest, StoreTrouble, TextForm,
};
use lunar_reactor::Reactor;
use lunar_reactor::nvme_generic::is_node;
use std::fmt;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The kind `nvme`.
#[derive(Debug)]
pub struct NvmeBackend;

impl Backend for NvmeBackend {
    fn schema(&self) -> &'static StoreSchema {
        &crate::schema::STORE
    }

    fn form(&self) -> TextForm {
        TextForm::NameAndPathOrPathIf(|path| {
            let found = std::fs::metadata(path);
            found.is_ok_and(|found| found.file_type().is_char_device() && is_node(found.rdev()))
        })
    }

    fn examples(&self) -> &'static [&'static str] {
        &["nvme:/dev/nvme0n1p2"]
    }

    fn location(&self) -> Location {
        Location::Path
    }

    fn durability(&self) -> Durability {
        Durability::Durable
    }

    // A namespace that comes back has new nodes, which the file helper opens.
    fn jail_paths(&self, path: &Path, _: bool) -> JailPaths {
        let nodes = locate(path).ok().map(|nodes| [nodes.generic, nodes.block]);
        let write: Vec<PathBuf> = std::iter::once(path.to_owned()).chain(nodes.into_iter().flatten()).collect();
        JailPaths { write, ..JailPaths::default() }
    }

    fn mark_at(&self, path: &Path, _: bool) -> Option<Mark> {
        locate(path).ok().map(|nodes| mark(path, &nodes))
    }

    fn fingerprint(&self, path: &Path, _: bool) -> Option<Fingerprint> {
        fingerprint(&self.mark_at(path, false)?)
    }

    fn inspection(&self, _: &Path) -> String {
        "`nvme list`, `lsblk`".to_owned()
    }

    fn is_there(&self, path: &Path) -> bool {
        locate(path).is_ok()
    }

    fn open(&self, request: &StoreRequest<'_>, previous: Option<&Opened>) -> Result<Opened, Refusal> {
        let path = request.required_path()?;
        let refused = |mistake| Refusal::store(NamespaceError::new(path, mistake, request));
        if request.size.is_some() {
            return Err(refused(Mistake::HasSize));
        }
        let options = Options {
            read_only: request.read_only,
            writes_through: request.write_through,
            shared: request.shared,
            block_size: request.block_size,
        };
        let volume = open(path, &options, previous.and_then(Opened::downcast::<NvmeVolume>));
        Ok(Opened::Store(Arc::new(volume.map_err(|why| refused(Mistake::Unusable(why)))?)))
    }
}

/// The fingerprint of a namespace with this mark: at a place there may be any namespace.
fn fingerprint(mark: &Mark) -> Option<Fingerprint> {
    matches!(mark, Mark::Global { .. }).then(|| Fingerprint::of_mark(mark))
}

impl OpenedStore for NvmeVolume {
    fn traits(&self) -> &Traits {
        &self.traits
    }

    fn mark(&self) -> Option<Mark> {
        Some(self.mark.clone())
    }

    fn fingerprint(&self) -> Option<Fingerprint> {
        fingerprint(&self.mark)
    }

    // Commands do not use memory that is registered with the kernel.
    fn is_direct(&self) -> bool {
        false
    }

    fn open(&self, reactor: &Reactor) -> io::Result<Box<dyn Store>> {
        Self::open(self, reactor)
    }

    fn with_sharing(&self, is_shared: bool) -> Result<Arc<dyn OpenedStore>, Refusal> {
        let claim = match is_shared {
            true => None,
            false => Some(claim(&self.shared.nodes, Some(self)).map_err(|why| Refusal::store(NotAlone(why)))?),
        };
        Ok(Arc::new(Self { claim, ..self.clone() }))
    }

    // Each way of being open has its own claim.
    fn finalize(&self) {}

    fn examine(&self) -> Vec<StoreTrouble> {
        Self::examine(self)
    }

    fn open_protection(&self, request: &ProtectionRequest<'_>) -> Result<Arc<dyn OpenedStore>, Refusal> {
        Err(request.no_place())
    }
}

/// Other programs cannot be kept away.
#[derive(Debug)]
struct NotAlone(Unusable);

impl fmt::Display for NotAlone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Unusable::NotClaimed(block, why) => write!(f, "{}: {why}", block.display()),
            _ => f.write_str("another program uses the disk or partition"),
        }
    }
}

impl std::error::Error for NotAlone {}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_engine::origin::{Arguments, Origin};

    static COMMAND_LINE: Origin = Origin::CommandLine(Arguments::none());

    #[test]
    fn other_paths_are_refused_with_advice() {
        let refused = |path: &str, size| {
            let request = StoreRequest::of_command_line("disk", &COMMAND_LINE, Some(Path::new(path)));
            NvmeBackend.open(&StoreRequest { size, ..request }, None).expect_err("refused").to_string()
        };
        assert_eq!(
            refused("/dev/ng99n1", Some(1 << 30)),
            "/dev/ng99n1 is a namespace and has its size: leave the size out"
        );
        let missing = refused("/dev/ng99n1", None);
        assert_eq!(missing, "/dev/ng99n1 does not exist: `nvme list` shows the namespaces of this machine");
        assert!(refused("/dev/null", None).contains("is no NVMe namespace: name its generic node (/dev/ng0n1)"));
    }

    #[test]
    fn no_other_device_is_taken() {
        let TextForm::NameAndPathOrPathIf(takes) = NvmeBackend.form() else { panic!("both forms") };
        assert!(["/dev/null", "/dev/ng99n1", "/"].into_iter().all(|path| !takes(Path::new(path))));
        assert!(!NvmeBackend.is_there(Path::new("/dev/null")));
        assert_eq!(NvmeBackend.jail_paths(Path::new("/dev/ng99n1"), false).write, [Path::new("/dev/ng99n1")]);
    }

    #[test]
    fn a_place_has_no_fingerprint() {
        let name = Mark::Global { space: "device", name: "wwid uuid.1".into() };
        assert!(fingerprint(&name).is_some());
        assert!(fingerprint(&Mark::Local { space: "place", parts: vec!["/dev/ng0n1".into()] }).is_none());
    }
}
