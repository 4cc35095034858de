//! The command line.

use crate::library::cluster::Access;
use crate::library::image::Encryption;
use crate::make::Order;
use clap::Parser;
use std::ffi::{CStr, CString};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The arguments.
#[derive(Parser, Debug)]
#[command(name = "lunar-rbd", version, about = "Serves an image of Ceph (RBD) as a volume of Lunar")]
pub struct Args {
    /// The socket of the volume: the key `path` of its section, or the path of `lunar serve handler:PATH:SIZE`. Lunar
    /// starts the program with `-` for `kind = "rbd"`: the standard input is the connection.
    pub socket: PathBuf,
    /// The image: POOL[/NAMESPACE]/IMAGE[@SNAPSHOT]. A snapshot is read-only.
    pub image: ImageName,
    /// The configuration file of Ceph [default: the places where Ceph looks, such as /etc/ceph/ceph.conf].
    #[arg(long, value_name = "FILE")]
    conf: Option<CString>,
    /// The user of the cluster, without `client.`.
    #[arg(long, value_name = "NAME", default_value = "admin")]
    user: CString,
    /// The file with the key of the user [default: as the configuration of Ceph says].
    #[arg(long, value_name = "FILE")]
    keyring: Option<CString>,
    /// Writes nothing. The image is not locked, and its size is not followed.
    #[arg(long)]
    pub read_only: bool,
    /// Waits while another client has the lock of the image, instead of ending with an error.
    #[arg(long)]
    pub stand_by: bool,
    /// The format of an encrypted image.
    #[arg(long, value_enum, requires = "passphrase_file")]
    pub encryption: Option<Encryption>,
    /// The file with its passphrase; a line end at its end is not part of it.
    #[arg(long, value_name = "FILE", requires = "encryption")]
    pub passphrase_file: Option<PathBuf>,
    /// Makes the image, of so many bytes, for Lunar, instead of serving it.
    #[arg(long, value_name = "BYTES", hide = true, conflicts_with = "identity")]
    create: Option<u64>,
    /// Makes the image for Lunar, as a clone of this one, instead of serving it.
    #[arg(long, value_name = "IMAGE", hide = true, requires = "identity")]
    clone_of: Option<ImageName>,
    /// Makes a snapshot or a clone for Lunar, of the image that has this identity.
    #[arg(long, hide = true)]
    identity: Option<String>,
    /// An option of librados or librbd, for example rados_osd_op_timeout=60.
    #[arg(long = "option", value_name = "NAME=VALUE", value_parser = option)]
    options: Vec<(CString, CString)>,
}

impl Args {
    /// Whether Lunar has started the program: its standard input is the connection.
    #[must_use]
    pub fn is_of_lunar(&self) -> bool {
        self.socket.as_os_str() == "-"
    }

    /// The image or snapshot that the program makes, if it does not serve an image.
    #[must_use]
    pub fn order(&self) -> Option<Order> {
        match (self.create, &self.clone_of, &self.identity) {
            (Some(size), ..) => Some(Order::Image(size)),
            (None, Some(source), Some(identity)) => {
                Some(Order::Clone { source: source.clone(), identity: identity.clone() })
            }
            (None, None, Some(identity)) => Some(Order::Snapshot { identity: identity.clone() }),
            (None, _, None) => None,
        }
    }

    /// The user of the cluster, without `client.`.
    #[must_use]
    pub fn user(&self) -> &CStr {
        &self.user
    }

    /// The way to the cluster.
    #[must_use]
    pub fn access(&self) -> Access {
        let keyring = self.keyring.clone().map(|file| (c"keyring".to_owned(), file));
        let options = keyring.into_iter().chain(self.options.iter().cloned()).collect();
        Access { user: self.user.clone(), file: self.conf.clone(), options }
    }
}

/// An argument that is not understood.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Misread {
    /// It is no name of an image.
    Image,
    /// It is no option with a value.
    Option,
}

impl fmt::Display for Misread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Image => "an image is POOL/IMAGE, POOL/NAMESPACE/IMAGE, or one of these with @SNAPSHOT",
            Self::Option => "an option is NAME=VALUE",
        })
    }
}

impl std::error::Error for Misread {}

fn option(text: &str) -> Result<(CString, CString), Misread> {
    let (name, value) = text.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or(Misread::Option)?;
    let string = |text: &str| CString::new(text.trim()).map_err(|_| Misread::Option);
    Ok((string(name)?, string(value)?))
}

/// The name of an image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImageName {
    /// The pool.
    pub pool: CString,
    /// The namespace of the pool; empty: the default one.
    pub namespace: CString,
    /// The image.
    pub image: CString,
    /// The snapshot.
    pub snapshot: Option<CString>,
}

impl FromStr for ImageName {
    type Err = Misread;

    fn from_str(text: &str) -> Result<Self, Misread> {
        let text = text.strip_prefix("rbd:").unwrap_or(text);
        let (path, snapshot) = match text.split_once('@') {
            Some((path, snapshot)) => (path, Some(snapshot)),
            None => (text, None),
        };
        let parts: Vec<&str> = path.split('/').collect();
        let (pool, namespace, image) = match parts[..] {
            [pool, image] => (pool, "", image),
            [pool, namespace, image] if !namespace.is_empty() => (pool, namespace, image),
            _ => return Err(Misread::Image),
        };
        if pool.is_empty() || image.is_empty() || snapshot.is_some_and(|name| name.is_empty() || name.contains('@')) {
            return Err(Misread::Image);
        }
        let string = |text: &str| CString::new(text).map_err(|_| Misread::Image);
        Ok(Self {
            pool: string(pool)?,
            namespace: string(namespace)?,
            image: string(image)?,
            snapshot: snapshot.map(string).transpose()?,
        })
    }
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/", self.pool.to_string_lossy())?;
        if !self.namespace.is_empty() {
            write!(f, "{}/", self.namespace.to_string_lossy())?;
        }
        f.write_str(&self.image.to_string_lossy())?;
        self.snapshot.as_ref().map_or(Ok(()), |name| write!(f, "@{}", name.to_string_lossy()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_images_are_read_and_written() {
        for text in ["pool/image", "pool/space/image", "pool/image@before", "pool/space/image@before"] {
            assert_eq!(text.parse::<ImageName>().expect(text).to_string(), text);
        }
        let name: ImageName = "rbd:p/n/i@s".parse().expect("it has a scheme");
        let parts = (&*name.pool, &*name.namespace, &*name.image, name.snapshot.as_deref());
        assert_eq!(parts, (c"p", c"n", c"i", Some(c"s")));
        for text in ["", "image", "/image", "pool/", "pool//image", "a/b/c/d", "pool/image@", "pool/image@a@b", "p\0/i"]
        {
            assert_eq!(text.parse::<ImageName>(), Err(Misread::Image), "{text:?}");
        }
    }

    #[test]
    fn the_keyring_is_an_option_of_the_library() {
        let args = ["lunar-rbd", "/s", "p/i", "--keyring", "/k", "--option", "a=b=c", "--user", "lunar"];
        let access = Args::try_parse_from(args).expect("they are right").access();
        let string = |text: &str| CString::new(text).expect("no zero");
        assert_eq!(access.options, [(string("keyring"), string("/k")), (string("a"), string("b=c"))]);
        assert_eq!((&*access.user, access.file), (c"lunar", None));
        assert!(Args::try_parse_from(["lunar-rbd", "/s", "p/i", "--encryption", "luks"]).is_err(), "no passphrase");
        assert!(Args::try_parse_from(["lunar-rbd", "/s", "p/i", "--option", "=b"]).is_err());
    }

    #[test]
    fn images_and_snapshots_are_made_as_ordered() {
        let order = |more: &[&str]| {
            let args = [&["lunar-rbd"], more, &["--", "-", "p/i@s"]].concat();
            Args::try_parse_from(args).map(|args| args.order()).map_err(|why| why.kind())
        };
        let source: ImageName = "p/n/o@b".parse().expect("a name");
        let identity = || "7/2/a".to_owned();
        assert_eq!(order(&[]), Ok(None));
        assert_eq!(order(&["--create=1024"]), Ok(Some(Order::Image(1024))));
        assert_eq!(order(&["--identity=7/2/a"]), Ok(Some(Order::Snapshot { identity: identity() })));
        let cloned = Order::Clone { source, identity: identity() };
        assert_eq!(order(&["--clone-of=p/n/o@b", "--identity=7/2/a"]), Ok(Some(cloned)));
        assert!(order(&["--clone-of=p/n/o@b"]).is_err(), "any image may have the name");
        assert!(order(&["--create=1", "--identity=7/2/a"]).is_err());
    }
}
