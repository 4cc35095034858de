//! The record layer of a connection: none, or TLS. The first byte of the connection selects it.

use crate::tls::{FIRST_BYTE, TlsConnection, TlsContext, TlsFailed};
use lunar_core::mem::{Arena, PAGE, Sg, Slice};
use lunar_nvme::auth::authenticator::{TlsPeer, TlsRefusal};
use lunar_stream::record_layer::RecordLayer;
use std::cell::{Cell, RefCell};
use std::sync::Arc;

/// Most bytes that are decrypted or sent at once: the size of the largest receive buffer.
const PIECE: usize = 256 << 10;

/// The kind of the bytes of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sort {
    /// Bytes of the session, without TLS.
    Plain,
    /// No byte was received yet.
    Unknown,
    /// TLS records.
    Sealed,
}

/// The record layer. Without TLS it costs one comparison for each receive and each send.
pub(super) struct Security {
    sort: Cell<Sort>,
    /// The TLS context, if TLS is available.
    context: Option<TlsContext>,
    /// Whether the portal requires TLS.
    is_demanded: bool,
    tls: RefCell<Option<Box<TlsConnection>>>,
    /// Whether the handshake has failed.
    has_failed: Cell<bool>,
}

impl Security {
    /// The record layer of a new connection; `is_demanded`: TLS is required.
    pub(super) fn new(context: Option<&TlsContext>, is_demanded: bool) -> Self {
        let sort = if context.is_some() || is_demanded { Sort::Unknown } else { Sort::Plain };
        Self {
            sort: Cell::new(sort),
            context: context.cloned(),
            is_demanded,
            tls: RefCell::default(),
            has_failed: Cell::new(false),
        }
    }

    /// The TLS peer, after the handshake.
    pub(super) fn tls_peer(&self) -> Option<Arc<TlsPeer>> {
        self.tls.borrow().as_ref().and_then(|tls| tls.tls_peer())
    }

    /// After a failed handshake: the host NQN, if it was received, and the reason.
    pub(super) fn failure(&self) -> Option<(Option<Arc<str>>, TlsRefusal)> {
        let tls = self.tls.borrow();
        self.has_failed.get().then(|| tls.as_ref().map_or((None, TlsRefusal::Clear), |tls| tls.failure()))
    }

    /// Checks the first bytes. `None`: there is no memory for TLS, or TLS is required and missing.
    #[cold]
    fn begin(&self, bytes: &[u8]) -> Option<()> {
        if bytes.first() == Some(&FIRST_BYTE) {
            *self.tls.borrow_mut() = Some(Box::new(TlsConnection::new(self.context.as_ref()?).ok()?));
            self.sort.set(Sort::Sealed);
        } else if self.is_demanded {
            self.has_failed.set(true);
            return None;
        } else {
            self.sort.set(Sort::Plain);
        }
        Some(())
    }

    /// Decrypts TLS records and passes on the plaintext. `None`: the TLS connection has failed, or there is no memory.
    fn unseal(&self, bytes: &[u8], arena: &Arena, mut hand_on: impl FnMut(Slice)) -> Option<()> {
        self.tls.borrow_mut().as_mut()?.feed(bytes);
        loop {
            // The plaintext is seldom longer than its records.
            let wanted = bytes.len().next_multiple_of(PAGE).min(PIECE);
            let mut memory = arena.take(wanted).or_else(|| arena.take_reserved(PAGE))?;
            let (mut filled, mut is_broken) = (0, false);
            while filled < memory.len() {
                let opened = self.tls.borrow_mut().as_mut()?.open(&mut memory[filled..]);
                match opened {
                    Ok(0) => break,
                    Ok(count) => filled += count,
                    Err(TlsFailed) => {
                        is_broken = true;
                        break;
                    }
                }
            }
            let is_all = filled < memory.len();
            if filled > 0 {
                hand_on(memory.split_to(filled).share());
            }
            if is_broken {
                self.has_failed.set(!self.tls.borrow().as_ref()?.is_open());
                return None;
            }
            if is_all {
                return Some(());
            }
        }
    }
}

impl RecordLayer for Security {
    #[inline]
    fn is_plain(&self) -> bool {
        self.sort.get() != Sort::Sealed
    }

    #[inline]
    fn open(&self, bytes: Slice, arena: &Arena, mut hand_on: impl FnMut(Slice)) -> bool {
        if self.sort.get() == Sort::Unknown && self.begin(&bytes).is_none() {
            return false;
        }
        if self.is_plain() {
            hand_on(bytes);
            return true;
        }
        self.unseal(&bytes, arena, hand_on).is_some()
    }

    #[inline]
    fn seal(&self, data: Sg, arena: &Arena) -> Option<Sg> {
        if self.is_plain() {
            return Some(data);
        }
        let mut tls = self.tls.borrow_mut();
        let tls = tls.as_mut()?;
        tls.seal(data.pieces().iter().map(|piece| &**piece)).ok()?;
        let queued = tls.queued_bytes();
        if queued == 0 {
            return Some(Sg::default());
        }
        let mut memory = arena.take(queued.min(PIECE)).or_else(|| arena.take_reserved(PAGE))?;
        let taken = tls.take(&mut memory);
        Some(memory.split_to(taken).share().into())
    }

    #[inline]
    fn queued_bytes(&self) -> usize {
        if self.is_plain() {
            return 0;
        }
        self.tls.borrow().as_ref().map_or(0, |tls| tls.queued_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::tests::{HOST, IDENTITY, TlsHost, tls_context};
    use lunar_nvme::auth::hash::Hash;

    /// The bytes of a connection.
    struct Rig {
        security: Security,
        arena: Arena,
    }

    impl Rig {
        fn new(context: Option<&TlsContext>) -> Self {
            Self { security: Security::new(context, false), arena: Arena::new(4 << 20) }
        }

        /// The session bytes in bytes of the socket, and whether the connection may go on.
        fn open(&self, bytes: &[u8]) -> (Vec<u8>, bool) {
            let mut all = Vec::new();
            let goes_on = bytes.chunks(100_000).all(|part| {
                let part = self.arena.copy(part).expect("room");
                self.security.open(part, &self.arena, |part| all.extend_from_slice(&part))
            });
            (all, goes_on)
        }

        /// The bytes for the socket.
        fn seal(&self, data: &[u8]) -> Vec<u8> {
            let mut pieces = Sg::default();
            data.chunks(50_000).for_each(|part| pieces.push(self.arena.copy(part).expect("room")));
            let mut all = Vec::new();
            while !pieces.is_empty() || self.security.queued_bytes() > 0 {
                let part =
                    self.security.seal(std::mem::take(&mut pieces), &self.arena).expect("the connection is open");
                assert!(!part.is_empty(), "each call returns bytes");
                all.extend(part.to_vec());
            }
            all
        }
    }

    #[test]
    fn the_first_byte_selects_tls() {
        let all = tls_context();
        for (context, bytes) in [(None, &[FIRST_BYTE, 1][..]), (Some(&all), &[0, 1])] {
            let rig = Rig::new(context);
            assert_eq!(rig.open(bytes), (bytes.to_vec(), true));
            // Later bytes do not change the record layer.
            assert_eq!(rig.open(&[FIRST_BYTE]), (vec![FIRST_BYTE], true));
            assert!(rig.security.is_plain() && rig.security.tls_peer().is_none());
            assert_eq!(rig.seal(&[7; 60_000]), [7; 60_000]);
        }
    }

    #[test]
    fn a_portal_that_requires_tls_accepts_no_other_bytes() {
        let all = tls_context();
        for context in [None, Some(&all)] {
            let rig = Rig { security: Security::new(context, true), arena: Arena::new(4 << 20) };
            assert_eq!(rig.open(&[0, 1]), (Vec::new(), false));
            assert_eq!(rig.security.failure(), Some((None, TlsRefusal::Clear)));
            assert_eq!(rig.open(&[0, 1]), (Vec::new(), false), "later bytes neither");
        }
        let rig = Rig { security: Security::new(Some(&all), true), arena: Arena::new(4 << 20) };
        assert_eq!(rig.open(&TlsHost::new(IDENTITY, 7).handshake()), (Vec::new(), true));
    }

    #[test]
    fn tls_carries_large_data_in_both_directions() {
        let rig = Rig::new(Some(&tls_context()));
        let mut host = TlsHost::new(IDENTITY, 7);
        for _ in 0..3 {
            assert_eq!(rig.open(&host.handshake()), (Vec::new(), true));
            host.feed(&rig.seal(&[]));
        }
        assert!(rig.security.tls_peer().is_some_and(|tls_peer| &*tls_peer.host == HOST));
        assert!(!rig.security.is_plain());
        let long: Vec<u8> = (0..900_000_u32).map(|n| (n / 7) as u8).collect();
        let (came, goes_on) = rig.open(&host.encrypt(&long));
        assert!(goes_on && came == long);
        host.feed(&rig.seal(&long));
        assert!(host.decrypt(long.len()) == long);
        let used = rig.arena.used();
        assert_eq!(used, 0, "all memory is released");
    }

    #[test]
    fn a_failed_tls_connection_reports_its_reason_and_ends() {
        let rig = Rig::new(Some(&tls_context()));
        assert_eq!(rig.security.failure(), None);
        assert_eq!(rig.open(&TlsHost::new(IDENTITY, 8).handshake()), (Vec::new(), false));
        assert_eq!(rig.security.failure(), Some((Some(HOST.into()), TlsRefusal::Broken(Hash::SHA256))));
        const ALERT: u8 = 0x15;
        assert_eq!(rig.seal(&[]).first(), Some(&ALERT));
        assert!(rig.security.tls_peer().is_none());
        // Bytes before the damaged record are passed on.
        let rig = Rig::new(Some(&tls_context()));
        let mut host = TlsHost::new(IDENTITY, 7);
        for _ in 0..3 {
            rig.open(&host.handshake());
            host.feed(&rig.seal(&[]));
        }
        let mut bytes = host.encrypt(b"this");
        let whole = bytes.len();
        bytes.extend(host.encrypt(b"that"));
        bytes[whole + 8] ^= 1;
        assert_eq!(rig.open(&bytes), (b"this".to_vec(), false));
        assert_eq!(rig.security.failure(), None, "the handshake had succeeded");
    }
}
