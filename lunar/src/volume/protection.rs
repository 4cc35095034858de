//! Where volumes keep protection information: beside their blocks, eight bytes for each, in a store of its own kind.
//!
//! A file `disk.img` has it in `disk.img.pi`, which is locked and synced with it. A block device has no place beside
//! it, and a store of zeroes keeps nothing.

use super::spec::{Named, Spec};
use super::{Kind, Options};
use anyhow::{Context as _, Result, anyhow, bail};
use lunar_core::io::Store;
use lunar_core::medium::MediumKind;
use lunar_core::metadata::MetadataStore;
use lunar_core::protection::{self, INFO_BYTES};
use lunar_file::FileVolume;
use lunar_ram::RamVolume;
use lunar_reactor::Reactor;
use lunar_reactor::log;
use lunar_unit::protection as stored;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

/// What the file beside a volume's file is called.
const SUFFIX: &str = ".pi";
/// The file beside is made in whole blocks of these.
const BLOCK: u64 = 4096;

/// Where a volume keeps protection information: opened, locked and checked once, for all cores.
#[derive(Clone, Debug)]
pub struct Protection {
    store: Beside,
    kind: protection::Kind,
}

#[derive(Clone, Debug)]
enum Beside {
    Ram(RamVolume),
    /// And where it lies.
    File(FileVolume, PathBuf),
}

impl Protection {
    /// Of a volume that has kept it, or shall.
    ///
    /// # Errors
    /// In words that say what to do.
    pub(super) fn of(
        text: &str,
        volume: &Kind,
        named: &Named,
        keep: &dyn MetadataStore,
        options: &Options,
    ) -> Result<Option<Self>> {
        let kept =
            stored::stored(keep).map_err(|why| anyhow!("{text}: {why}; share it with the program that knows"))?;
        let (Some(kind), is_new) = (kept.or(options.protection), kept.is_none()) else { return Ok(None) };
        if options.read_only {
            // Nothing is written, and what is read is not checked: its data is all there.
            return Ok(None);
        }
        if named.medium != MediumKind::Fixed {
            bail!("{text}: what protects blocks stays behind when it is ejected; leave out --protection");
        }
        let size = (size_of(volume) / u64::from(options.block_size) * INFO_BYTES as u64).next_multiple_of(BLOCK);
        let store = match (volume, &named.spec) {
            (Kind::Ram(_), _) => Beside::Ram(RamVolume::new(size, false).with_context(|| text.to_owned())?),
            (Kind::File(_), Spec::Path { path, .. }) => {
                let (volume, path) = file(path, size, is_new, options)?;
                Beside::File(volume, path)
            }
            _ => bail!("{text} has no place for protection information: files and ram: have, leave out --protection"),
        };
        if is_new {
            // Memory does so at once, and files in a thread of their own: nothing of it needs a core.
            block_on(stored::save(keep, kind)).map_err(|why| anyhow!("{text}: the type was not kept: {why:?}"))?;
        }
        Ok(Some(Self { store, kind }))
    }

    /// The same, which other processes that say so may serve, too, or none.
    ///
    /// # Errors
    /// When another process does.
    pub fn sharing(&self, is_shared: bool) -> Result<Self> {
        let store = match &self.store {
            Beside::Ram(volume) => Beside::Ram(volume.clone()),
            Beside::File(volume, path) => {
                let shared = volume.sharing(path, is_shared).map_err(|why| anyhow!("{}: {why}", path.display()));
                Beside::File(shared?, path.clone())
            }
        };
        Ok(Self { store, kind: self.kind })
    }

    /// See [`super::Volume::settle`].
    pub fn settle(&self) {
        if let Beside::File(volume, _) = &self.store {
            volume.settle();
        }
    }

    /// A core's own view.
    ///
    /// # Errors
    /// When there is no room for open files or memory.
    pub fn open(&self, reactor: &Reactor) -> io::Result<protection::Protection> {
        let store: Box<dyn Store> = match &self.store {
            Beside::Ram(volume) => volume.open(reactor)?,
            Beside::File(volume, _) => volume.open(reactor)?,
        };
        Ok(protection::Protection::new(store, self.kind))
    }
}

pub(super) fn size_of(volume: &Kind) -> u64 {
    match volume {
        Kind::Null(volume) => volume.traits().size,
        Kind::Ram(volume) => volume.traits().size,
        Kind::File(volume) => volume.traits().size,
        Kind::Block(volume) => volume.traits().size,
    }
}

/// The file beside the volume's own: made for a volume that is new to this.
fn file(path: &Path, size: u64, is_new: bool, options: &Options) -> Result<(FileVolume, PathBuf)> {
    // A volume may have several names, and one place.
    let mut beside = path.canonicalize().with_context(|| path.display().to_string())?.into_os_string();
    beside.push(SUFFIX);
    let beside = PathBuf::from(beside);
    let name = beside.display();
    match (is_new, beside.exists()) {
        (true, true) => bail!("{name} is there, and {} never had any: move it away, or remove it", path.display()),
        (false, false) => log!("{name} is gone: blocks that were written before are not checked"),
        _ => {}
    }
    let how = lunar_file::Options {
        size: Some(size),
        makes: true,
        grows: false,
        mark: None,
        read_only: false,
        shared: options.shared,
        durable: options.write_through,
        // Few bytes for each block: past the page cache they would be read before they are written.
        direct: false,
        block_size: 512,
    };
    let volume = FileVolume::new(&beside, &how).map_err(|why| match why {
        lunar_file::Refusal::OtherSize { .. } => {
            anyhow!("{name} is not of this volume's size: was it shared with another --block-size, or grown?")
        }
        why => anyhow!("{name}: {why}"),
    })?;
    Ok((volume, beside))
}

/// Wakes the thread that waits.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits here: before there are cores, nobody else does.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        std::thread::park();
    }
}

#[cfg(test)]
mod tests {
    use super::super::Volume;
    use super::*;

    fn asking(kind: protection::Kind) -> Options {
        Options { protection: Some(kind), ..Options::PLAIN }
    }

    #[test]
    fn memory_has_it_beside_and_zeroes_have_no_place() {
        let kind = |volume: Volume| volume.protection().map(|protection| protection.kind);
        let open = |text: &str, options: &Options| Volume::open_spec(text, options);
        assert_eq!(open("ram:1M", &Options::PLAIN).ok().map(kind), Some(None));
        for asked in protection::Kind::ALL {
            assert_eq!(open("ram:1M", &asking(asked)).ok().map(kind), Some(Some(asked)));
        }
        let why = open("null:1G", &asking(protection::Kind::One)).expect_err("no place").to_string();
        assert!(why.contains("leave out --protection"), "{why}");
    }

    #[test]
    fn a_file_beside_is_made_once_and_never_taken() {
        let folder = std::env::temp_dir().join(format!("lunar-protection-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let path = folder.join("disk.img");
        std::fs::write(&path, [0; 1 << 20]).expect("a file");
        let beside = folder.join("disk.img.pi");
        let made = file(&path, 16384, true, &Options::PLAIN).expect("made");
        assert_eq!((made.0.traits().size, std::fs::metadata(&beside).expect("there").len()), (16384, 16384));
        assert!(file(&path, 16384, false, &Options::PLAIN).expect_err("locked").to_string().contains("already served"));
        drop(made);
        assert!(file(&path, 16384, true, &Options::PLAIN).expect_err("whose?").to_string().contains("move it away"));
        assert!(file(&path, 20480, false, &Options::PLAIN).expect_err("other").to_string().contains("--block-size"));
        assert!(file(&path, 16384, false, &Options::PLAIN).is_ok());
        std::fs::remove_dir_all(&folder).expect("removed");
    }
}
