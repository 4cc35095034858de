//! A secure channel as a value: TLS 1.3 with a key that both ends have, bytes of the wire on one side, bytes of the
//! connection on the other (NVMe/TCP Transport 1.1 3.6.1).
//!
//! There are no certificates and no tickets: a host says an identity, and what belongs to it decides. OpenSSL does the
//! rest in memory; who has sockets is the [glue](crate::serve).

use lunar_nvme::auth::guard::Bearer;
use openssl::error::ErrorStack;
use openssl::ex_data::Index;
use openssl::ssl::{
    ErrorCode, Ssl, SslContext, SslContextBuilder, SslMethod, SslOptions, SslSessionCacheMode, SslStream, SslVersion,
};
use std::fmt;
use std::io::{self, Read, Write};
use std::sync::Arc;
use zeroize::Zeroizing;

/// What a connection begins with that is a channel: the type of TLS records that shake hands. No PDU has it.
pub const FIRST_BYTE: u8 = 0x16;
/// The one cipher suite: external keys are those of SHA-256.
const SUITES: &str = "TLS_AES_128_GCM_SHA256";

/// Whose an identity is, and the key of its channel.
pub type Known = (Arc<Bearer>, Zeroizing<Vec<u8>>);

/// What all channels have in common.
#[derive(Clone)]
pub struct Channels {
    context: SslContext,
    bearer: Index<Ssl, Arc<Bearer>>,
}

impl fmt::Debug for Channels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Channels")
    }
}

impl Channels {
    /// Those of hosts whose identities `find` knows.
    ///
    /// # Errors
    /// What OpenSSL has against it.
    pub fn new(find: impl Fn(&str) -> Option<Known> + Send + Sync + 'static) -> Result<Self, ErrorStack> {
        let bearer = Ssl::new_ex_index()?;
        let mut context = SslContext::builder(SslMethod::tls_server())?;
        restrict(&mut context)?;
        context.set_psk_server_callback(move |ssl, identity, key| {
            let found = identity.and_then(|identity| std::str::from_utf8(identity).ok()).and_then(&find);
            let Some((known, secret)) = found.filter(|(_, secret)| secret.len() <= key.len()) else { return Ok(0) };
            key[..secret.len()].copy_from_slice(&secret);
            ssl.set_ex_data(bearer, known);
            Ok(secret.len())
        });
        Ok(Self { context: context.build(), bearer })
    }
}

/// TLS 1.3 and nothing before it, one suite, nothing that outlives a connection.
fn restrict(context: &mut SslContextBuilder) -> Result<(), ErrorStack> {
    context.set_min_proto_version(Some(SslVersion::TLS1_3))?;
    context.set_max_proto_version(Some(SslVersion::TLS1_3))?;
    context.set_ciphersuites(SUITES)?;
    context.set_num_tickets(0)?;
    context.set_options(SslOptions::NO_TICKET | SslOptions::NO_RENEGOTIATION);
    context.set_session_cache_mode(SslSessionCacheMode::OFF);
    Ok(())
}

/// Bytes that a record carries at most (RFC 8446 5.1).
const RECORD: usize = 16 << 10;
/// What a queue keeps of its memory when it is empty: a record, and what is around it.
const KEPT: usize = RECORD + 512;

/// Bytes that come at one end and go at the other.
#[derive(Debug, Default)]
struct Queue {
    bytes: Vec<u8>,
    gone: usize,
}

impl Queue {
    fn rest(&self) -> &[u8] {
        &self.bytes[self.gone..]
    }

    /// Takes as many of them as there is room for.
    fn take(&mut self, into: &mut [u8]) -> usize {
        let count = self.rest().len().min(into.len());
        into[..count].copy_from_slice(&self.rest()[..count]);
        self.gone += count;
        if self.gone == self.bytes.len() {
            self.bytes.clear();
            self.bytes.shrink_to(KEPT);
            self.gone = 0;
        }
        count
    }
}

/// The wire, as OpenSSL sees it.
#[derive(Debug, Default)]
struct Wire {
    came: Queue,
    goes: Queue,
}

impl Read for Wire {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self.came.take(into) {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            count => Ok(count),
        }
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.goes.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The channel is broken, or was closed: nothing more comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Broken;

/// One channel.
pub struct Channel {
    stream: SslStream<Wire>,
    is_open: bool,
    bearer: Index<Ssl, Arc<Bearer>>,
    /// What goes into the next record.
    record: Vec<u8>,
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Channel({:?})", self.bearer())
    }
}

impl Channel {
    /// A channel of which nothing came.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn new(all: &Channels) -> Result<Self, ErrorStack> {
        let stream = SslStream::new(Ssl::new(&all.context)?, Wire::default())?;
        Ok(Self { stream, is_open: false, bearer: all.bearer, record: Vec::new() })
    }

    /// Whether hands are shaken.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// Takes what came by the wire. What it says is read with [`Channel::open`], until that gives nothing more.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.stream.get_mut().came.bytes.extend_from_slice(bytes);
    }

    /// What the other side says, as much as there is room for; 0: nothing yet.
    ///
    /// # Errors
    /// [`Broken`]; what is in [`Channel::take`] then tells the other side why.
    pub fn open(&mut self, into: &mut [u8]) -> Result<usize, Broken> {
        if !self.is_open {
            match self.stream.accept() {
                Ok(()) => self.is_open = true,
                Err(why) if why.code() == ErrorCode::WANT_READ => return Ok(0),
                Err(_) => return Err(Broken),
            }
        }
        match self.stream.ssl_read(into) {
            Ok(count) => Ok(count),
            Err(why) if why.code() == ErrorCode::WANT_READ => Ok(0),
            Err(_) => Err(Broken),
        }
    }

    /// Says something to the other side, with whom hands are shaken: these pieces, in as few records as they take.
    ///
    /// # Errors
    /// [`Broken`]
    pub fn seal<'a>(&mut self, pieces: impl Iterator<Item = &'a [u8]>) -> Result<(), Broken> {
        for mut piece in pieces {
            while !piece.is_empty() {
                let (part, rest) = piece.split_at(piece.len().min(RECORD - self.record.len()));
                piece = rest;
                if part.len() == RECORD {
                    self.stream.write_all(part).map_err(|_| Broken)?;
                    continue;
                }
                self.record.extend_from_slice(part);
                if self.record.len() == RECORD {
                    self.seal_record()?;
                }
            }
        }
        self.seal_record()
    }

    fn seal_record(&mut self) -> Result<(), Broken> {
        if self.record.is_empty() {
            return Ok(());
        }
        let result = self.stream.write_all(&self.record).map_err(|_| Broken);
        self.record.clear();
        result
    }

    /// Bytes that are to go by the wire.
    #[must_use]
    pub fn queued_bytes(&self) -> usize {
        self.stream.get_ref().goes.rest().len()
    }

    /// Takes as many of them as there is room for.
    pub fn take(&mut self, into: &mut [u8]) -> usize {
        self.stream.get_mut().goes.take(into)
    }

    /// Whose key the other side has, once hands are shaken.
    #[must_use]
    pub fn bearer(&self) -> Option<Arc<Bearer>> {
        self.stream.ssl().ex_data(self.bearer).filter(|_| self.is_open).cloned()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use lunar_core::access::Secret;

    pub(crate) const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:rig";
    pub(crate) const IDENTITY: &str = "NVMe1R01 nqn.2014-08.org.nvmexpress:uuid:rig nqn.x digest";

    pub(crate) fn channels() -> Channels {
        let bearer =
            || Bearer { host: HOST.into(), subsystem: "nqn.x".into(), key: Secret::of_any_length(vec![7; 32]) };
        let known = move || (Arc::new(bearer()), Zeroizing::new(vec![7; 32]));
        let find = move |identity: &str| (identity == IDENTITY).then(known);
        Channels::new(find).expect("OpenSSL is there")
    }

    /// The other end.
    pub(crate) struct Other(SslStream<Wire>);

    impl Other {
        /// A host that says this, with this key.
        pub(crate) fn new(identity: &'static str, key: u8) -> Self {
            let mut context = SslContext::builder(SslMethod::tls_client()).expect("OpenSSL is there");
            restrict(&mut context).expect("it knows all that");
            context.set_psk_client_callback(move |_, _, name, into| {
                name[..identity.len()].copy_from_slice(identity.as_bytes());
                name[identity.len()] = 0;
                into[..32].fill(key);
                Ok(32)
            });
            let ssl = Ssl::new(&context.build()).expect("room");
            Self(SslStream::new(ssl, Wire::default()).expect("room"))
        }

        /// Goes on shaking hands; what it says by that.
        pub(crate) fn shake(&mut self) -> Vec<u8> {
            let _ = self.0.connect();
            all(&mut self.0.get_mut().goes)
        }

        /// What goes to the wire for this.
        pub(crate) fn say(&mut self, bytes: &[u8]) -> Vec<u8> {
            self.0.write_all(bytes).expect("it is open");
            all(&mut self.0.get_mut().goes)
        }

        /// This came by the wire.
        pub(crate) fn feed(&mut self, bytes: &[u8]) {
            self.0.get_mut().came.bytes.extend_from_slice(bytes);
        }

        /// So many bytes that were said to it.
        pub(crate) fn hear(&mut self, count: usize) -> Vec<u8> {
            let mut heard = vec![0; count];
            self.0.read_exact(&mut heard).expect("all of it");
            heard
        }
    }

    fn all(queue: &mut Queue) -> Vec<u8> {
        let mut bytes = vec![0; queue.rest().len()];
        queue.take(&mut bytes);
        bytes
    }

    /// Shakes hands, in pieces of so many bytes.
    fn shake(host: &mut Other, channel: &mut Channel, piece: usize) -> Result<(), Broken> {
        for _ in 0..4 {
            for part in host.shake().chunks(piece) {
                channel.feed(part);
                assert_eq!(channel.open(&mut [0; 64])?, 0);
            }
            host.feed(&all(&mut channel.stream.get_mut().goes));
        }
        Ok(())
    }

    #[test]
    fn what_one_side_says_the_other_hears() {
        for piece in [1, 7, 100_000] {
            let (mut host, mut channel) = (Other::new(IDENTITY, 7), Channel::new(&channels()).expect("room"));
            assert_eq!(channel.bearer(), None);
            shake(&mut host, &mut channel, piece).expect("hands are shaken");
            assert_eq!(channel.bearer().map(|bearer| bearer.host.to_string()).as_deref(), Some(HOST));
            channel.feed(&host.say(b"from the host"));
            let mut heard = [0; 64];
            assert_eq!((channel.open(&mut heard[..4]), channel.open(&mut heard[4..])), (Ok(4), Ok(9)));
            assert_eq!((&heard[..13], channel.open(&mut [0; 64])), (&b"from the host"[..], Ok(0)));
            let said = [&[0x5a; 24][..], &[0x5a; 40_000], &[], &[0x5a; 9_976]];
            channel.seal(said.into_iter()).expect("it is open");
            // Four records, each with its header, its type and its tag.
            let total = 50_000 + 4 * (5 + 1 + 16);
            assert_eq!(channel.queued_bytes(), total);
            let mut first = [0; 1000];
            assert_eq!((channel.take(&mut first), channel.queued_bytes()), (1000, total - 1000));
            host.feed(&first);
            host.feed(&all(&mut channel.stream.get_mut().goes));
            assert_eq!((channel.queued_bytes(), channel.take(&mut first)), (0, 0));
            assert!(host.hear(50_000) == [0x5a; 50_000]);
        }
    }

    #[test]
    fn who_has_no_key_gets_nowhere() {
        for (identity, key) in [(IDENTITY, 8), ("NVMe1R01 nqn.other nqn.x digest", 7), ("Client_identity", 7)] {
            let (mut host, mut channel) = (Other::new(identity, key), Channel::new(&channels()).expect("room"));
            assert_eq!(shake(&mut host, &mut channel, 1000), Err(Broken), "{identity} {key}");
            assert_eq!(channel.bearer(), None);
        }
    }

    #[test]
    fn what_is_no_channel_is_broken() {
        for bytes in [&[0; 200][..], &[0x16; 200], b"GET / HTTP/1.1\r\n\r\n", &[0x16, 3, 1, 0, 4, 1, 0, 0, 0]] {
            let mut channel = Channel::new(&channels()).expect("room");
            channel.feed(bytes);
            assert_eq!(channel.open(&mut [0; 64]), Err(Broken), "{bytes:?}");
        }
    }
}
