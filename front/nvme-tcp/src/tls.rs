//! A secure channel as a value: TLS 1.3 with a key that both ends have, bytes of the wire on one side, bytes of the
//! connection on the other (NVMe/TCP Transport 1.1 3.6.1).
//!
//! There are no certificates and no tickets: a host says an identity, and what belongs to it decides. OpenSSL does the
//! rest in memory; who has sockets is the [glue](crate::serve).
//!
//! A key goes with one hash function, and so with one cipher suite. OpenSSL would choose the suite first, the one that
//! the host likes best, and refuse a key of the other; so the identities of a greeting are looked at before.
//!
//! * [`external`]: keys, as OpenSSL takes them

pub mod external;

use lunar_nvme::auth::guard::{Bearer, Unagreed};
use lunar_nvme::auth::hash::Hash;
use lunar_nvme::auth::psk::{Claim, Offer};
use openssl::error::ErrorStack;
use openssl::ex_data::Index;
use openssl::ssl::{
    ClientHelloResponse, ErrorCode, Ssl, SslContext, SslContextBuilder, SslMethod, SslOptions, SslRef,
    SslSessionCacheMode, SslStream, SslVersion,
};
use std::fmt;
use std::io::{self, Read, Write};
use std::sync::Arc;

/// What a connection begins with that is a channel: the type of TLS records that shake hands. No PDU has it.
pub const FIRST_BYTE: u8 = 0x16;
/// The cipher suites: one for keys of each hash function.
const SUITES: &str = "TLS_AES_256_GCM_SHA384:TLS_AES_128_GCM_SHA256";
/// Identities of a greeting that are looked at. A host has one of each hash function and version, and each costs a few
/// digests for every key that is configured for its name.
const IDENTITIES_MAX: usize = 8;

/// Whose an identity is, and the key of its channel.
pub type Known = (Arc<Bearer>, Offer);

/// What came of a greeting.
struct Greeting {
    /// The host that it says it is.
    host: Option<Arc<str>>,
    /// Whose key it has, and the hash function of that.
    found: Result<(Arc<Bearer>, Hash), Unagreed>,
}

/// What all channels have in common.
#[derive(Clone)]
pub struct TlsContext {
    context: SslContext,
    greeting: Index<Ssl, Greeting>,
}

impl fmt::Debug for TlsContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsContext")
    }
}

impl TlsContext {
    /// Those of hosts whose identities `find` knows.
    ///
    /// # Errors
    /// What OpenSSL has against it.
    pub fn new(find: impl Fn(&str) -> Result<Known, Unagreed> + Send + Sync + 'static) -> Result<Self, ErrorStack> {
        let place = Ssl::new_ex_index()?;
        let mut context = SslContext::builder(SslMethod::tls_server())?;
        restrict(&mut context)?;
        external::found_by(&mut context);
        context.set_client_hello_callback(move |ssl, _| {
            let greeting = greet(ssl, &find)?;
            ssl.set_ex_data(place, greeting);
            // Who has no key is told so by OpenSSL: there is nothing else by which a channel could be agreed.
            Ok(ClientHelloResponse::SUCCESS)
        });
        Ok(Self { context: context.build(), greeting: place })
    }
}

/// Looks at a greeting: the connection goes by the first key in it that is known, and by the suite of that.
fn greet(ssl: &mut SslRef, find: &impl Fn(&str) -> Result<Known, Unagreed>) -> Result<Greeting, ErrorStack> {
    let suites = ssl.client_hello_ciphers().unwrap_or_default();
    let is_offered = |hash| suites.chunks_exact(2).any(|suite| suite == external::suite(hash).1);
    let mut greeting = Greeting { host: None, found: Err(Unagreed::NoIdentity) };
    let mut known = None;
    for identity in identities(external::named_keys(ssl).unwrap_or_default()).take(IDENTITIES_MAX) {
        let Ok(identity) = std::str::from_utf8(identity) else { continue };
        let host = Claim::parse(identity).map(|claim| claim.host.into());
        let found = find(identity).and_then(|(bearer, offer)| match is_offered(offer.hash) {
            true => Ok((bearer, offer)),
            false => Err(Unagreed::NoSuite(offer.hash)),
        });
        match found {
            Ok((bearer, offer)) => {
                greeting = Greeting { host, found: Ok((bearer, offer.hash)) };
                known = Some(offer);
                break;
            }
            // Of several keys that nobody knows the first is told of.
            Err(why) if matches!(greeting.found, Err(Unagreed::NoIdentity)) => {
                greeting = Greeting { host, found: Err(why) };
            }
            Err(_) => {}
        }
    }
    if let Some(offer) = known {
        if !external::restrict_to(ssl, offer.hash) {
            return Err(ErrorStack::get());
        }
        external::hold(ssl, offer)?;
    }
    Ok(greeting)
}

/// The identities of external keys in a greeting (RFC 8446 4.2.11), each behind its length and before an age, as far as
/// they are whole. OpenSSL refuses greetings that are not.
fn identities(extension: &[u8]) -> impl Iterator<Item = &[u8]> {
    fn sized(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
        let (len, rest) = bytes.split_first_chunk()?;
        rest.split_at_checked(u16::from_be_bytes(*len).into())
    }
    const AGE: usize = 4;
    let mut rest = sized(extension).map_or(&[][..], |(list, _)| list);
    std::iter::from_fn(move || {
        let (identity, behind) = sized(rest)?;
        rest = behind.get(AGE..)?;
        Some(identity)
    })
}

/// TLS 1.3 and nothing before it, the suites that there are keys for, nothing that outlives a connection.
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
pub struct TlsFailed;

/// One channel.
pub struct TlsConnection {
    stream: SslStream<Wire>,
    is_open: bool,
    greeting: Index<Ssl, Greeting>,
    /// What goes into the next record.
    record: Vec<u8>,
}

impl fmt::Debug for TlsConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TlsConnection({:?})", self.bearer())
    }
}

impl TlsConnection {
    /// A channel of which nothing came.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn new(all: &TlsContext) -> Result<Self, ErrorStack> {
        let stream = SslStream::new(Ssl::new(&all.context)?, Wire::default())?;
        Ok(Self { stream, is_open: false, greeting: all.greeting, record: Vec::new() })
    }

    /// Whether hands are shaken.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// Takes what came by the wire. What it says is read with [`TlsConnection::open`], until that gives nothing more.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.stream.get_mut().came.bytes.extend_from_slice(bytes);
    }

    /// What the other side says, as much as there is room for; 0: nothing yet.
    ///
    /// # Errors
    /// [`TlsFailed`]; what is in [`TlsConnection::take`] then tells the other side why.
    pub fn open(&mut self, into: &mut [u8]) -> Result<usize, TlsFailed> {
        if !self.is_open {
            match self.stream.accept() {
                Ok(()) => self.is_open = true,
                Err(why) if why.code() == ErrorCode::WANT_READ => return Ok(0),
                Err(_) => return Err(TlsFailed),
            }
        }
        match self.stream.ssl_read(into) {
            Ok(count) => Ok(count),
            Err(why) if why.code() == ErrorCode::WANT_READ => Ok(0),
            Err(_) => Err(TlsFailed),
        }
    }

    /// Says something to the other side, with whom hands are shaken: these pieces, in as few records as they take.
    ///
    /// # Errors
    /// [`TlsFailed`]
    pub fn seal<'a>(&mut self, pieces: impl Iterator<Item = &'a [u8]>) -> Result<(), TlsFailed> {
        for mut piece in pieces {
            while !piece.is_empty() {
                let (part, rest) = piece.split_at(piece.len().min(RECORD - self.record.len()));
                piece = rest;
                if part.len() == RECORD {
                    self.stream.write_all(part).map_err(|_| TlsFailed)?;
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

    fn seal_record(&mut self) -> Result<(), TlsFailed> {
        if self.record.is_empty() {
            return Ok(());
        }
        let result = self.stream.write_all(&self.record).map_err(|_| TlsFailed);
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
        let greeting = self.stream.ssl().ex_data(self.greeting).filter(|_| self.is_open)?;
        greeting.found.as_ref().ok().map(|(bearer, _)| bearer.clone())
    }

    /// Of a channel that broke before hands were shaken: the host that it was, as far as that was said, and why.
    #[must_use]
    pub fn failure(&self) -> (Option<Arc<str>>, Unagreed) {
        let Some(greeting) = self.stream.ssl().ex_data(self.greeting) else { return (None, Unagreed::NoIdentity) };
        let why = match &greeting.found {
            Ok((_, hash)) => Unagreed::Broken(*hash),
            Err(why) => *why,
        };
        (greeting.host.clone(), why)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use lunar_core::access::Secret;

    pub(crate) const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:rig";
    pub(crate) const IDENTITY: &str = "NVMe1R01 nqn.2014-08.org.nvmexpress:uuid:rig nqn.x digest";
    /// The same host has a key of the other hash function.
    const LONG: &str = "NVMe1R02 nqn.2014-08.org.nvmexpress:uuid:rig nqn.x digest";

    fn offer(identity: &str, key: u8) -> Offer {
        let hash = Claim::parse(identity).map_or(Hash::SHA256, |claim| claim.hash);
        Offer { identity: identity.into(), hash, key: vec![key; hash.len()].into() }
    }

    pub(crate) fn channels() -> TlsContext {
        let bearer =
            || Bearer { host: HOST.into(), subsystem: "nqn.x".into(), key: Secret::of_any_length(vec![7; 32]) };
        let find = move |identity: &str| match identity {
            IDENTITY | LONG => Ok((Arc::new(bearer()), offer(identity, 7))),
            _ => Err(Claim::parse(identity).map_or(Unagreed::NoIdentity, |_| Unagreed::NoKey)),
        };
        TlsContext::new(find).expect("OpenSSL is there")
    }

    /// The other end.
    pub(crate) struct Other(SslStream<Wire>);

    impl Other {
        /// A host that says this, with this key.
        pub(crate) fn new(identity: &str, key: u8) -> Self {
            Self::offering(SUITES, offer(identity, key))
        }

        /// A host that knows these suites, the best first.
        fn offering(suites: &str, offer: Offer) -> Self {
            let mut context = SslContext::builder(SslMethod::tls_client()).expect("OpenSSL is there");
            restrict(&mut context).expect("it knows all that");
            context.set_ciphersuites(suites).expect("it knows them");
            external::presented_by(&mut context);
            let mut ssl = Ssl::new(&context.build()).expect("room");
            external::hold(&mut ssl, offer).expect("room");
            Self(SslStream::new(ssl, Wire::default()).expect("room"))
        }

        /// The suite that was agreed.
        fn suite(&self) -> Option<&'static str> {
            self.0.ssl().current_cipher().map(|suite| suite.name())
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
    fn shake(host: &mut Other, channel: &mut TlsConnection, piece: usize) -> Result<(), TlsFailed> {
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
            let (mut host, mut channel) = (Other::new(IDENTITY, 7), TlsConnection::new(&channels()).expect("room"));
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
    fn a_key_goes_with_the_suite_of_its_hash_whatever_the_host_likes_best() {
        const SHORT_SUITE: &str = "TLS_AES_128_GCM_SHA256";
        const LONG_SUITE: &str = "TLS_AES_256_GCM_SHA384";
        for (identity, own, other) in [(IDENTITY, SHORT_SUITE, LONG_SUITE), (LONG, LONG_SUITE, SHORT_SUITE)] {
            let both = [format!("{own}:{other}"), format!("{other}:{own}")];
            for suites in [own, &both[0], &both[1], &format!("TLS_CHACHA20_POLY1305_SHA256:{}", both[1])] {
                let mut host = Other::offering(suites, offer(identity, 7));
                let mut channel = TlsConnection::new(&channels()).expect("room");
                shake(&mut host, &mut channel, 100).expect("hands are shaken");
                assert_eq!(host.suite(), Some(own), "{suites}");
                assert!(channel.bearer().is_some_and(|bearer| &*bearer.host == HOST));
                channel.feed(&host.say(b"from the host"));
                let mut heard = [0; 13];
                assert_eq!((channel.open(&mut heard), &heard), (Ok(13), b"from the host"));
            }
            let hash = Claim::parse(identity).expect("one of ours").hash;
            let mut host = Other::offering(other, offer(identity, 7));
            let mut channel = TlsConnection::new(&channels()).expect("room");
            assert!(shake(&mut host, &mut channel, 100).is_err(), "no suite for its key");
            assert_eq!(channel.failure(), (Some(HOST.into()), Unagreed::NoSuite(hash)));
        }
    }

    #[test]
    fn who_has_no_key_gets_nowhere_and_it_is_known_why() {
        for (identity, key, host_is, why) in [
            (IDENTITY, 8, Some(HOST), Unagreed::Broken(Hash::SHA256)),
            (LONG, 8, Some(HOST), Unagreed::Broken(Hash::SHA384)),
            ("NVMe1R01 nqn.other nqn.x digest", 7, Some("nqn.other"), Unagreed::NoKey),
            ("NVMe1R02 nqn.other nqn.x digest", 7, Some("nqn.other"), Unagreed::NoKey),
            ("Client_identity", 7, None, Unagreed::NoIdentity),
        ] {
            let (mut host, mut channel) = (Other::new(identity, key), TlsConnection::new(&channels()).expect("room"));
            assert_eq!(shake(&mut host, &mut channel, 1000), Err(TlsFailed), "{identity} {key}");
            assert_eq!(channel.bearer(), None);
            assert_eq!(channel.failure(), (host_is.map(Into::into), why), "{identity} {key}");
        }
        // As hosts do whose TLS takes SHA-256 for every key.
        let short = Offer { hash: Hash::SHA256, ..offer(LONG, 7) };
        let (mut host, mut channel) = (Other::offering(SUITES, short), TlsConnection::new(&channels()).expect("room"));
        assert_eq!(shake(&mut host, &mut channel, 1000), Err(TlsFailed));
        assert_eq!(channel.failure(), (Some(HOST.into()), Unagreed::Broken(Hash::SHA384)));
    }

    #[test]
    fn identities_are_read_as_far_as_they_are_whole() {
        let all = |bytes: &[u8]| identities(bytes).map(<[u8]>::to_vec).collect::<Vec<_>>();
        let whole = [0, 15, 0, 2, b'a', b'b', 0, 0, 0, 0, 0, 1, b'c', 0, 0, 0, 9, 0xff, 0xff];
        assert_eq!(all(&whole), [b"ab".to_vec(), b"c".to_vec()]);
        for len in 0..17 {
            assert_eq!(all(&whole[..len]), [[]; 0], "the list is cut");
        }
        assert_eq!(all(&[0, 12, 0, 2, b'a', b'b', 0, 0, 0, 0, 0, 9, 0, 0]), [b"ab".to_vec()], "longer than the list");
        assert_eq!(all(&[0, 0]), [[]; 0]);
    }

    #[test]
    fn what_is_no_channel_is_broken() {
        for bytes in [&[0; 200][..], &[0x16; 200], b"GET / HTTP/1.1\r\n\r\n", &[0x16, 3, 1, 0, 4, 1, 0, 0, 0]] {
            let mut channel = TlsConnection::new(&channels()).expect("room");
            channel.feed(bytes);
            assert_eq!(channel.open(&mut [0; 64]), Err(TlsFailed), "{bytes:?}");
            assert_eq!(channel.failure(), (None, Unagreed::NoIdentity));
        }
    }
}
