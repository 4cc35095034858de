//! TLS 1.3 with pre-shared keys as a value without I/O: bytes of the socket on one side, bytes of the connection on the
//! other (NVMe/TCP Transport 1.1 3.6.1).
//!
//! There are no certificates and no session tickets: a host names a PSK identity, and the key of that identity
//! authenticates both sides. OpenSSL works in memory; the sockets are in [`serve`](crate::serve).
//!
//! A key belongs to one hash function and therefore to one cipher suite. OpenSSL would first choose the suite that the
//! host prefers, and then refuse a key of the other one; so the identities of the ClientHello are looked up before.
//!
//! * [`external`]: pre-shared keys in the form that OpenSSL takes

pub mod external;

use lunar_nvme::auth::authenticator::{TlsPeer, TlsRefusal};
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

/// The first byte of a TLS connection: the record type "handshake". No PDU type has this value.
pub const FIRST_BYTE: u8 = 0x16;
/// The cipher suites: one for each hash function.
const SUITES: &str = "TLS_AES_256_GCM_SHA384:TLS_AES_128_GCM_SHA256";
/// Most PSK identities of a ClientHello that are looked up. A host sends one for each hash function and version, and
/// each costs a few digests for every key that is configured for its name.
const IDENTITIES_MAX: usize = 8;

/// The owner of an identity, and its key.
pub type Known = (Arc<TlsPeer>, Offer);

/// The result of a ClientHello.
struct ClientHello {
    /// The NQN of the host, as the identity names it.
    host: Option<Arc<str>>,
    /// The owner of the key and the hash function of the key.
    found: Result<(Arc<TlsPeer>, Hash), TlsRefusal>,
}

/// The OpenSSL context of all TLS connections.
#[derive(Clone)]
pub struct TlsContext {
    context: SslContext,
    client_hello: Index<Ssl, ClientHello>,
}

impl fmt::Debug for TlsContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsContext")
    }
}

impl TlsContext {
    /// A context whose PSK identities are looked up by `find`.
    ///
    /// # Errors
    /// The errors of OpenSSL.
    pub fn new(find: impl Fn(&str) -> Result<Known, TlsRefusal> + Send + Sync + 'static) -> Result<Self, ErrorStack> {
        let place = Ssl::new_ex_index()?;
        let mut context = SslContext::builder(SslMethod::tls_server())?;
        restrict(&mut context)?;
        external::found_by(&mut context);
        context.set_client_hello_callback(move |ssl, _| {
            let client_hello = handle_client_hello(ssl, &find)?;
            ssl.set_ex_data(place, client_hello);
            // Without a key, OpenSSL fails the handshake and sends an alert.
            Ok(ClientHelloResponse::SUCCESS)
        });
        Ok(Self { context: context.build(), client_hello: place })
    }
}

/// Handles a ClientHello: selects the first known key in it, and the cipher suite of that key.
fn handle_client_hello(
    ssl: &mut SslRef,
    find: &impl Fn(&str) -> Result<Known, TlsRefusal>,
) -> Result<ClientHello, ErrorStack> {
    let suites = ssl.client_hello_ciphers().unwrap_or_default();
    let is_offered = |hash| suites.chunks_exact(2).any(|suite| suite == external::suite(hash).1);
    let mut client_hello = ClientHello { host: None, found: Err(TlsRefusal::NoIdentity) };
    let mut known = None;
    for identity in identities(external::named_keys(ssl).unwrap_or_default()).take(IDENTITIES_MAX) {
        let Ok(identity) = std::str::from_utf8(identity) else { continue };
        let host = Claim::parse(identity).map(|claim| claim.host.into());
        let found = find(identity).and_then(|(tls_peer, offer)| match is_offered(offer.hash) {
            true => Ok((tls_peer, offer)),
            false => Err(TlsRefusal::NoSuite(offer.hash)),
        });
        match found {
            Ok((tls_peer, offer)) => {
                client_hello = ClientHello { host, found: Ok((tls_peer, offer.hash)) };
                known = Some(offer);
                break;
            }
            // Of several unknown keys, the first is reported.
            Err(why) if matches!(client_hello.found, Err(TlsRefusal::NoIdentity)) => {
                client_hello = ClientHello { host, found: Err(why) };
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
    Ok(client_hello)
}

/// The PSK identities of a `pre_shared_key` extension (RFC 8446 4.2.11), each preceded by its length and followed by
/// its age. Stops at the first incomplete one; OpenSSL rejects such a ClientHello.
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

/// Restricts a context to TLS 1.3 and the suites of the keys, without session resumption.
fn restrict(context: &mut SslContextBuilder) -> Result<(), ErrorStack> {
    context.set_min_proto_version(Some(SslVersion::TLS1_3))?;
    context.set_max_proto_version(Some(SslVersion::TLS1_3))?;
    context.set_ciphersuites(SUITES)?;
    context.set_num_tickets(0)?;
    context.set_options(SslOptions::NO_TICKET | SslOptions::NO_RENEGOTIATION);
    context.set_session_cache_mode(SslSessionCacheMode::OFF);
    Ok(())
}

/// Most bytes of plaintext in a record (RFC 8446 5.1).
const RECORD_MAX: usize = 16 << 10;
/// Bytes of memory that an empty queue keeps: a record with its overhead.
const KEPT_MAX: usize = RECORD_MAX + 512;

/// A first-in, first-out queue of bytes.
#[derive(Debug, Default)]
struct Queue {
    bytes: Vec<u8>,
    taken: usize,
}

impl Queue {
    fn rest(&self) -> &[u8] {
        &self.bytes[self.taken..]
    }

    /// Moves bytes out of the queue, as many as fit; returns their number.
    fn take(&mut self, into: &mut [u8]) -> usize {
        let count = self.rest().len().min(into.len());
        into[..count].copy_from_slice(&self.rest()[..count]);
        self.taken += count;
        if self.taken == self.bytes.len() {
            self.bytes.clear();
            self.bytes.shrink_to(KEPT_MAX);
            self.taken = 0;
        }
        count
    }
}

/// The socket, as OpenSSL sees it.
#[derive(Debug, Default)]
struct Wire {
    incoming: Queue,
    outgoing: Queue,
}

impl Read for Wire {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self.incoming.take(into) {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            count => Ok(count),
        }
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.outgoing.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The TLS connection has failed or was closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TlsFailed;

/// One TLS connection.
pub struct TlsConnection {
    stream: SslStream<Wire>,
    is_open: bool,
    client_hello: Index<Ssl, ClientHello>,
    /// The plaintext of the next record.
    record: Vec<u8>,
}

impl fmt::Debug for TlsConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TlsConnection({:?})", self.tls_peer())
    }
}

impl TlsConnection {
    /// A TLS connection before its handshake.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn new(all: &TlsContext) -> Result<Self, ErrorStack> {
        let stream = SslStream::new(Ssl::new(&all.context)?, Wire::default())?;
        Ok(Self { stream, is_open: false, client_hello: all.client_hello, record: Vec::new() })
    }

    /// Whether the handshake is complete.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// Takes bytes of the socket. Their plaintext is read with [`TlsConnection::open`] until that returns 0.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.stream.get_mut().incoming.bytes.extend_from_slice(bytes);
    }

    /// Reads plaintext of the host, as much as fits; 0: none yet.
    ///
    /// # Errors
    /// [`TlsFailed`]. [`TlsConnection::take`] then returns the alert for the host.
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

    /// Encrypts pieces for the host in as few records as possible, after the handshake.
    ///
    /// # Errors
    /// [`TlsFailed`]
    pub fn seal<'a>(&mut self, pieces: impl Iterator<Item = &'a [u8]>) -> Result<(), TlsFailed> {
        for mut piece in pieces {
            while !piece.is_empty() {
                let (part, rest) = piece.split_at(piece.len().min(RECORD_MAX - self.record.len()));
                piece = rest;
                if part.len() == RECORD_MAX {
                    self.stream.write_all(part).map_err(|_| TlsFailed)?;
                    continue;
                }
                self.record.extend_from_slice(part);
                if self.record.len() == RECORD_MAX {
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

    /// Bytes that wait to be sent to the socket.
    #[must_use]
    pub fn queued_bytes(&self) -> usize {
        self.stream.get_ref().outgoing.rest().len()
    }

    /// Moves bytes for the socket into `into`, as many as fit; returns their number.
    pub fn take(&mut self, into: &mut [u8]) -> usize {
        self.stream.get_mut().outgoing.take(into)
    }

    /// The owner of the host's key, after the handshake.
    #[must_use]
    pub fn tls_peer(&self) -> Option<Arc<TlsPeer>> {
        let client_hello = self.stream.ssl().ex_data(self.client_hello).filter(|_| self.is_open)?;
        client_hello.found.as_ref().ok().map(|(tls_peer, _)| tls_peer.clone())
    }

    /// After a failed handshake: the NQN of the host, if it was sent, and the reason.
    #[must_use]
    pub fn failure(&self) -> (Option<Arc<str>>, TlsRefusal) {
        let Some(client_hello) = self.stream.ssl().ex_data(self.client_hello) else {
            return (None, TlsRefusal::NoIdentity);
        };
        let why = match &client_hello.found {
            Ok((_, hash)) => TlsRefusal::Broken(*hash),
            Err(why) => *why,
        };
        (client_hello.host.clone(), why)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use lunar_core::access::Secret;

    pub(crate) const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:rig";
    pub(crate) const IDENTITY: &str = "NVMe1R01 nqn.2014-08.org.nvmexpress:uuid:rig nqn.x digest";
    /// An identity of the same host for the other hash function.
    const LONG: &str = "NVMe1R02 nqn.2014-08.org.nvmexpress:uuid:rig nqn.x digest";

    fn offer(identity: &str, key: u8) -> Offer {
        let hash = Claim::parse(identity).map_or(Hash::SHA256, |claim| claim.hash);
        Offer { identity: identity.into(), hash, key: vec![key; hash.len()].into() }
    }

    pub(crate) fn tls_context() -> TlsContext {
        let tls_peer =
            || TlsPeer { host: HOST.into(), subsystem: "nqn.x".into(), key: Secret::of_any_length(vec![7; 32]) };
        let find = move |identity: &str| match identity {
            IDENTITY | LONG => Ok((Arc::new(tls_peer()), offer(identity, 7))),
            _ => Err(Claim::parse(identity).map_or(TlsRefusal::NoIdentity, |_| TlsRefusal::NoKey)),
        };
        TlsContext::new(find).expect("OpenSSL is there")
    }

    /// The host side of a TLS connection.
    pub(crate) struct TlsHost(SslStream<Wire>);

    impl TlsHost {
        /// A host with this identity and this key.
        pub(crate) fn new(identity: &str, key: u8) -> Self {
            Self::offering(SUITES, offer(identity, key))
        }

        /// A host with these cipher suites, in order of preference.
        fn offering(suites: &str, offer: Offer) -> Self {
            let mut context = SslContext::builder(SslMethod::tls_client()).expect("OpenSSL is there");
            restrict(&mut context).expect("it knows all that");
            context.set_ciphersuites(suites).expect("it knows them");
            external::presented_by(&mut context);
            let mut ssl = Ssl::new(&context.build()).expect("room");
            external::hold(&mut ssl, offer).expect("room");
            Self(SslStream::new(ssl, Wire::default()).expect("room"))
        }

        /// The negotiated suite.
        fn suite(&self) -> Option<&'static str> {
            self.0.ssl().current_cipher().map(|suite| suite.name())
        }

        /// Continues the handshake; returns the bytes to send.
        pub(crate) fn handshake(&mut self) -> Vec<u8> {
            let _ = self.0.connect();
            all(&mut self.0.get_mut().outgoing)
        }

        /// The bytes to send for this plaintext.
        pub(crate) fn encrypt(&mut self, bytes: &[u8]) -> Vec<u8> {
            self.0.write_all(bytes).expect("it is open");
            all(&mut self.0.get_mut().outgoing)
        }

        /// Takes bytes of the socket.
        pub(crate) fn feed(&mut self, bytes: &[u8]) {
            self.0.get_mut().incoming.bytes.extend_from_slice(bytes);
        }

        /// Reads this many bytes of plaintext.
        pub(crate) fn decrypt(&mut self, count: usize) -> Vec<u8> {
            let mut decrypted = vec![0; count];
            self.0.read_exact(&mut decrypted).expect("all of it");
            decrypted
        }
    }

    fn all(queue: &mut Queue) -> Vec<u8> {
        let mut bytes = vec![0; queue.rest().len()];
        queue.take(&mut bytes);
        bytes
    }

    /// Performs the handshake, in pieces of `piece` bytes.
    fn handshake(host: &mut TlsHost, tls: &mut TlsConnection, piece: usize) -> Result<(), TlsFailed> {
        for _ in 0..4 {
            for part in host.handshake().chunks(piece) {
                tls.feed(part);
                assert_eq!(tls.open(&mut [0; 64])?, 0);
            }
            host.feed(&all(&mut tls.stream.get_mut().outgoing));
        }
        Ok(())
    }

    #[test]
    fn both_sides_exchange_data() {
        for piece in [1, 7, 100_000] {
            let (mut host, mut tls) = (TlsHost::new(IDENTITY, 7), TlsConnection::new(&tls_context()).expect("room"));
            assert_eq!(tls.tls_peer(), None);
            handshake(&mut host, &mut tls, piece).expect("the handshake succeeds");
            assert_eq!(tls.tls_peer().map(|tls_peer| tls_peer.host.to_string()).as_deref(), Some(HOST));
            tls.feed(&host.encrypt(b"from the host"));
            let mut decrypted = [0; 64];
            assert_eq!((tls.open(&mut decrypted[..4]), tls.open(&mut decrypted[4..])), (Ok(4), Ok(9)));
            assert_eq!((&decrypted[..13], tls.open(&mut [0; 64])), (&b"from the host"[..], Ok(0)));
            let pieces = [&[0x5a; 24][..], &[0x5a; 40_000], &[], &[0x5a; 9_976]];
            tls.seal(pieces.into_iter()).expect("it is open");
            // Four records, each with header, content type and tag.
            let total = 50_000 + 4 * (5 + 1 + 16);
            assert_eq!(tls.queued_bytes(), total);
            let mut first = [0; 1000];
            assert_eq!((tls.take(&mut first), tls.queued_bytes()), (1000, total - 1000));
            host.feed(&first);
            host.feed(&all(&mut tls.stream.get_mut().outgoing));
            assert_eq!((tls.queued_bytes(), tls.take(&mut first)), (0, 0));
            assert!(host.decrypt(50_000) == [0x5a; 50_000]);
        }
    }

    #[test]
    fn a_key_determines_the_cipher_suite_whatever_the_host_prefers() {
        const SHORT_SUITE: &str = "TLS_AES_128_GCM_SHA256";
        const LONG_SUITE: &str = "TLS_AES_256_GCM_SHA384";
        for (identity, own, other) in [(IDENTITY, SHORT_SUITE, LONG_SUITE), (LONG, LONG_SUITE, SHORT_SUITE)] {
            let both = [format!("{own}:{other}"), format!("{other}:{own}")];
            for suites in [own, &both[0], &both[1], &format!("TLS_CHACHA20_POLY1305_SHA256:{}", both[1])] {
                let mut host = TlsHost::offering(suites, offer(identity, 7));
                let mut tls = TlsConnection::new(&tls_context()).expect("room");
                handshake(&mut host, &mut tls, 100).expect("the handshake succeeds");
                assert_eq!(host.suite(), Some(own), "{suites}");
                assert!(tls.tls_peer().is_some_and(|tls_peer| &*tls_peer.host == HOST));
                tls.feed(&host.encrypt(b"from the host"));
                let mut decrypted = [0; 13];
                assert_eq!((tls.open(&mut decrypted), &decrypted), (Ok(13), b"from the host"));
            }
            let hash = Claim::parse(identity).expect("one of ours").hash;
            let mut host = TlsHost::offering(other, offer(identity, 7));
            let mut tls = TlsConnection::new(&tls_context()).expect("room");
            assert!(handshake(&mut host, &mut tls, 100).is_err(), "the host has no suite for its key");
            assert_eq!(tls.failure(), (Some(HOST.into()), TlsRefusal::NoSuite(hash)));
        }
    }

    #[test]
    fn a_handshake_without_a_valid_key_fails_with_a_reason() {
        for (identity, key, host_is, why) in [
            (IDENTITY, 8, Some(HOST), TlsRefusal::Broken(Hash::SHA256)),
            (LONG, 8, Some(HOST), TlsRefusal::Broken(Hash::SHA384)),
            ("NVMe1R01 nqn.other nqn.x digest", 7, Some("nqn.other"), TlsRefusal::NoKey),
            ("NVMe1R02 nqn.other nqn.x digest", 7, Some("nqn.other"), TlsRefusal::NoKey),
            ("Client_identity", 7, None, TlsRefusal::NoIdentity),
        ] {
            let (mut host, mut tls) = (TlsHost::new(identity, key), TlsConnection::new(&tls_context()).expect("room"));
            assert_eq!(handshake(&mut host, &mut tls, 1000), Err(TlsFailed), "{identity} {key}");
            assert_eq!(tls.tls_peer(), None);
            assert_eq!(tls.failure(), (host_is.map(Into::into), why), "{identity} {key}");
        }
        // Some TLS libraries of hosts use SHA-256 for every key.
        let short = Offer { hash: Hash::SHA256, ..offer(LONG, 7) };
        let (mut host, mut tls) = (TlsHost::offering(SUITES, short), TlsConnection::new(&tls_context()).expect("room"));
        assert_eq!(handshake(&mut host, &mut tls, 1000), Err(TlsFailed));
        assert_eq!(tls.failure(), (Some(HOST.into()), TlsRefusal::Broken(Hash::SHA384)));
    }

    #[test]
    fn complete_identities_are_read() {
        let all = |bytes: &[u8]| identities(bytes).map(<[u8]>::to_vec).collect::<Vec<_>>();
        let whole = [0, 15, 0, 2, b'a', b'b', 0, 0, 0, 0, 0, 1, b'c', 0, 0, 0, 9, 0xff, 0xff];
        assert_eq!(all(&whole), [b"ab".to_vec(), b"c".to_vec()]);
        for len in 0..17 {
            assert_eq!(all(&whole[..len]), Vec::<Vec<u8>>::new(), "the list is incomplete");
        }
        assert_eq!(
            all(&[0, 12, 0, 2, b'a', b'b', 0, 0, 0, 0, 0, 9, 0, 0]),
            [b"ab".to_vec()],
            "an identity exceeds the list"
        );
        assert_eq!(all(&[0, 0]), Vec::<Vec<u8>>::new());
    }

    #[test]
    fn bytes_that_are_not_tls_are_an_error() {
        for bytes in [&[0; 200][..], &[0x16; 200], b"GET / HTTP/1.1\r\n\r\n", &[0x16, 3, 1, 0, 4, 1, 0, 0, 0]] {
            let mut tls = TlsConnection::new(&tls_context()).expect("room");
            tls.feed(bytes);
            assert_eq!(tls.open(&mut [0; 64]), Err(TlsFailed), "{bytes:?}");
            assert_eq!(tls.failure(), (None, TlsRefusal::NoIdentity));
        }
    }
}
