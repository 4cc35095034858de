//! Makes an image, a snapshot or a clone for Lunar, and removes it again unless Lunar keeps it: a volume that could not
//! be created leaves nothing in the cluster.

use crate::args::{Args, ImageName};
use crate::library::Failure;
use crate::library::cluster::{Cluster, ClusterError, Pool};
use crate::library::image::Image;
use lunar_handler::making::{KEEP, MADE};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::ffi::{CStr, CString};
use std::fmt;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long the process of an image that is to be removed again may have it open: Lunar keeps one that cannot serve
/// its image for up to 35 seconds.
const CLOSING_TIME: Duration = Duration::from_secs(40);
/// Time between two attempts to remove it.
const PAUSE: Duration = Duration::from_millis(500);

/// The image or snapshot that is made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Order {
    /// The image, of so many bytes.
    Image(u64),
    /// The snapshot, of the image that has this identity.
    Snapshot {
        /// See [`Image::identity`].
        identity: String,
    },
    /// The image, as a clone.
    Clone {
        /// An image or a snapshot.
        source: ImageName,
        /// Its identity.
        identity: String,
    },
}

/// Why nothing is made.
#[derive(Debug)]
pub enum MakeError {
    /// There is an image of this name.
    ImageExists,
    /// The image has a snapshot of this name.
    SnapshotExists,
    /// There is no such image or snapshot.
    Missing(ImageName),
    /// The image has the name of the one that was served, and is another one.
    Other(ImageName),
    /// The image does not have the feature layering.
    NoLayering(ImageName),
    /// The cluster makes no clones in other namespaces.
    Namespace,
    /// This user of the cluster may not do it, in this pool.
    Forbidden(CString, CString),
    /// There is no space, or there are as many snapshots as the image may have.
    Full,
    /// The name of a snapshot is missing.
    NoSnapshot,
    /// The pool of the source.
    Pool(ClusterError),
    /// Another failure of this step.
    Failed(&'static str, Failure),
}

impl fmt::Display for MakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ImageExists => f.write_str(
                "there is an image of this name: create the volume without a size to serve it, or choose another name",
            ),
            Self::SnapshotExists => f.write_str(
                "there is a snapshot of this name: choose another one, or serve it (`lunar volume create`, with \
                 `--image` and `--read-only`)",
            ),
            Self::Missing(name) => write!(f, "there is no {name}: see `rbd ls` and `rbd snap ls`"),
            Self::Other(name) => write!(
                f,
                "the image that has the name {name} now is another one than the one that was served: give the right \
                 one this name (`rbd trash ls`, `rbd rename`)"
            ),
            Self::NoLayering(name) => write!(
                f,
                "{name} does not have the feature layering, without which there are no clones of it: copy it (`rbd \
                 deep cp`)"
            ),
            Self::Namespace => f.write_str(
                "clones in another namespace need a cluster that admits no clients before Ceph 13: `ceph osd \
                 set-require-min-compat-client mimic`, or choose a name in the namespace of the source",
            ),
            Self::Forbidden(user, pool) => {
                let (user, pool) = (user.to_string_lossy(), pool.to_string_lossy());
                write!(
                    f,
                    "the user {user} may not do this: `ceph auth caps client.{user} mon 'profile rbd' osd 'profile \
                     rbd pool={pool}'`"
                )
            }
            Self::Full => f.write_str(
                "the pool is full (`ceph df`), or the image has as many snapshots as `rbd snap limit` allows",
            ),
            Self::NoSnapshot => f.write_str("the name of a snapshot is POOL/IMAGE@SNAPSHOT"),
            Self::Pool(why) => why.fmt(f),
            Self::Failed(step, why) => write!(f, "{step}: {why}"),
        }
    }
}

impl std::error::Error for MakeError {}

/// Removes what was made.
type Undo<'a> = Box<dyn FnOnce() -> Result<(), Failure> + 'a>;

/// Makes what is ordered, and says so. Ends when Lunar keeps it, or when it is removed again.
///
/// # Errors
/// When it cannot be made, or not be removed.
pub fn run(
    connection: BorrowedFd<'_>,
    cluster: &Rc<Cluster>,
    pool: &Rc<Pool>,
    args: &Args,
    order: &Order,
) -> Result<(), MakeError> {
    let maker = Maker { cluster, pool, args };
    let undo = match order {
        Order::Image(size) => maker.image(*size)?,
        Order::Snapshot { identity } => maker.snapshot(identity)?,
        Order::Clone { source, identity } => maker.cloned(source, identity)?,
    };
    if is_kept(connection) {
        return Ok(());
    }
    undo().map_err(|why| MakeError::Failed("it was made for a volume that is not created, and cannot be removed", why))
}

/// Says that it is made; returns whether Lunar keeps it.
fn is_kept(connection: BorrowedFd<'_>) -> bool {
    // Lunar receives as long as the connection is open.
    if send(connection, MADE, SendFlags::NOSIGNAL).is_err() {
        return false;
    }
    let mut answer = [0; KEEP.len() + 1];
    loop {
        match recv(connection, &mut answer, RecvFlags::empty()) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let mut source = [rustix::event::PollFd::new(&connection, rustix::event::PollFlags::IN)];
                // An interrupted wait is repeated.
                let _ = rustix::event::poll(&mut source, None);
            }
            Ok((count, _)) => return &answer[..count] == KEEP,
            Err(_) => return false,
        }
    }
}

/// Removes an image that its process may still have open.
fn remove(pool: &Pool, name: &CStr) -> Result<(), Failure> {
    let end = Instant::now() + CLOSING_TIME;
    loop {
        match pool.remove_image(name) {
            Err(Failure(Errno::BUSY)) if Instant::now() < end => std::thread::sleep(PAUSE),
            other => return other,
        }
    }
}

/// The name of a snapshot that is made for a clone.
fn name_for(clone: &ImageName) -> Result<CString, MakeError> {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let name = format!("lunar-clone-{}-{time}", clone.image.to_string_lossy());
    CString::new(name).map_err(|_| MakeError::NoSnapshot)
}

struct Maker<'a> {
    cluster: &'a Rc<Cluster>,
    pool: &'a Rc<Pool>,
    args: &'a Args,
}

impl<'a> Maker<'a> {
    /// The error of a step.
    fn failed(&self, step: &'static str, why: Failure) -> MakeError {
        match why.0 {
            Errno::PERM | Errno::ACCESS => {
                MakeError::Forbidden(self.args.user().to_owned(), self.args.image.pool.clone())
            }
            Errno::NOSPC | Errno::DQUOT => MakeError::Full,
            _ => MakeError::Failed(step, why),
        }
    }

    fn image(&self, size: u64) -> Result<Undo<'a>, MakeError> {
        let (pool, name) = (self.pool, &self.args.image.image);
        pool.create_image(name, size).map_err(|why| match why.0 {
            Errno::EXIST => MakeError::ImageExists,
            _ => self.failed("the image cannot be created", why),
        })?;
        Ok(Box::new(|| remove(pool, name)))
    }

    /// Opens an image, which must have this identity, to make a snapshot of it.
    fn source(&self, pool: &Rc<Pool>, name: &ImageName, identity: &str) -> Result<Image, MakeError> {
        let missing = |step, why: Failure| match why.0 {
            Errno::NOENT => MakeError::Missing(name.clone()),
            _ => self.failed(step, why),
        };
        let image = Image::open(pool, &name.image, None, false);
        let image = image.map_err(|why| missing("the image cannot be opened", why))?;
        let found = image.identity(name.snapshot.as_deref());
        let found = found.map_err(|why| missing("the identity of the image cannot be read", why))?;
        if found != identity {
            return Err(MakeError::Other(name.clone()));
        }
        Ok(image)
    }

    fn snapshot(&self, identity: &str) -> Result<Undo<'a>, MakeError> {
        let snapshot = self.args.image.snapshot.as_deref().ok_or(MakeError::NoSnapshot)?;
        let name = ImageName { snapshot: None, ..self.args.image.clone() };
        let image = self.source(self.pool, &name, identity)?;
        image.create_snapshot(snapshot).map_err(|why| match why.0 {
            Errno::EXIST => MakeError::SnapshotExists,
            _ => self.failed("the snapshot cannot be created", why),
        })?;
        Ok(Box::new(move || image.remove_snapshot(snapshot)))
    }

    fn cloned(&self, source: &ImageName, identity: &str) -> Result<Undo<'a>, MakeError> {
        let pool = Rc::new(self.cluster.pool(&source.pool, &source.namespace).map_err(MakeError::Pool)?);
        let image = self.source(&pool, source, identity)?;
        let data_pool = image.data_pool().map_err(|why| self.failed("the pool of its data cannot be read", why))?;
        // A clone is always one of a snapshot.
        let (snapshot, is_own) = match &source.snapshot {
            Some(snapshot) => (snapshot.clone(), false),
            None => (name_for(&self.args.image)?, true),
        };
        if is_own {
            let made = image.create_snapshot(&snapshot);
            made.map_err(|why| self.failed("the snapshot for the clone cannot be created", why))?;
        }
        let (new, name) = (self.pool, &self.args.image.image);
        let parent = (&*pool, &*source.image, &*snapshot);
        let mut is_protected = false;
        let mut cloned = new.clone_image(name, parent, data_pool.as_deref());
        if cloned == Err(Failure(Errno::INVAL)) && image.protect_snapshot(&snapshot).is_ok() {
            // A cluster that admits old clients clones protected snapshots only.
            is_protected = true;
            cloned = new.clone_image(name, parent, data_pool.as_deref());
        }
        let (is_kept, snapshot) = (!is_own, snapshot);
        let clean_up = move || {
            if is_protected {
                image.unprotect_snapshot(&snapshot)?;
            }
            if is_kept { Ok(()) } else { image.remove_snapshot(&snapshot) }
        };
        if let Err(why) = cloned {
            // The reason is that of the clone.
            let _ = clean_up();
            return Err(match why.0 {
                Errno::EXIST => MakeError::ImageExists,
                Errno::NOSYS => MakeError::NoLayering(source.clone()),
                Errno::XDEV => MakeError::Namespace,
                _ => self.failed("the clone cannot be created", why),
            });
        }
        if !is_protected {
            // The cluster keeps the data of a snapshot that is not protected for its clones.
            let cleaned = clean_up();
            return match cleaned {
                Ok(()) => Ok(Box::new(|| remove(new, name))),
                Err(why) => {
                    let _ = remove(new, name);
                    Err(self.failed("the snapshot of the clone cannot be removed", why))
                }
            };
        }
        Ok(Box::new(move || {
            remove(new, name)?;
            clean_up()
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::os::fd::AsFd;

    #[test]
    fn it_is_kept_only_when_lunar_says_so() {
        let pair = || socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("two");
        let (own, its) = pair();
        send(&own, KEEP, SendFlags::empty()).expect("it is open");
        assert!(is_kept(its.as_fd()));
        let mut said = [0; 16];
        let (count, _) = recv(&own, &mut said, RecvFlags::empty()).expect("it has said something");
        assert_eq!(&said[..count], MADE);
        for other in [&b"kee"[..], b"keeper", b"keep\0"] {
            let (own, its) = pair();
            send(&own, other, SendFlags::empty()).expect("it is open");
            assert!(!is_kept(its.as_fd()), "{other:?}");
        }
        let (own, its) = pair();
        drop(own);
        assert!(!is_kept(its.as_fd()), "Lunar has ended");
    }

    #[test]
    fn a_snapshot_for_a_clone_has_a_name_of_its_own() {
        let clone: ImageName = "pool/new".parse().expect("a name");
        assert!(name_for(&clone).expect("a name").to_string_lossy().starts_with("lunar-clone-new-1"));
    }
}
