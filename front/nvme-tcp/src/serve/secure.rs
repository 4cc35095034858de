//! What lies between a queue and the wire: nothing, or a secure channel. The first byte of a connection says which.

use crate::tls::{FIRST_BYTE, TlsConnection, TlsContext, TlsFailed};
use lunar_core::mem::{Arena, PAGE, Sg, Slice};
use lunar_nvme::auth::guard::{Bearer, Unagreed};
use lunar_stream::record_layer::RecordLayer;
use std::cell::{Cell, RefCell};
use std::sync::Arc;

/// What is opened, and what is sent, at once: as much as a connection receives at once when much comes.
const PIECE: usize = 256 << 10;

/// What the bytes of a connection are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sort {
    /// Those of the session.
    Plain,
    /// None came.
    Unknown,
    /// Those of a secure channel.
    Sealed,
}

/// What lies between. A connection without a channel pays for one comparison when it receives and when it sends.
pub(super) struct Security {
    sort: Cell<Sort>,
    /// What all channels have in common, if there may be one.
    channels: Option<TlsContext>,
    /// Whether nobody comes without one.
    is_demanded: bool,
    tls: RefCell<Option<Box<TlsConnection>>>,
    /// Whether hands were not shaken, and never will be.
    has_failed: Cell<bool>,
}

impl Security {
    /// Of a connection of which nothing came; whether it has to be a channel.
    pub(super) fn new(channels: Option<&TlsContext>, is_demanded: bool) -> Self {
        let sort = if channels.is_some() || is_demanded { Sort::Unknown } else { Sort::Plain };
        Self {
            sort: Cell::new(sort),
            channels: channels.cloned(),
            is_demanded,
            tls: RefCell::default(),
            has_failed: Cell::new(false),
        }
    }

    /// Whose channel it is.
    pub(super) fn bearer(&self) -> Option<Arc<Bearer>> {
        self.tls.borrow().as_ref().and_then(|tls| tls.bearer())
    }

    /// Whose channel came to nothing before it began, as far as that was said, and why.
    pub(super) fn failure(&self) -> Option<(Option<Arc<str>>, Unagreed)> {
        let tls = self.tls.borrow();
        self.has_failed.get().then(|| tls.as_ref().map_or((None, Unagreed::Clear), |tls| tls.failure()))
    }

    /// Looks at the first bytes. `None`: there is no room for a channel, or it has to be one and is none.
    #[cold]
    fn begin(&self, bytes: &[u8]) -> Option<()> {
        if bytes.first() == Some(&FIRST_BYTE) {
            *self.tls.borrow_mut() = Some(Box::new(TlsConnection::new(self.channels.as_ref()?).ok()?));
            self.sort.set(Sort::Sealed);
        } else if self.is_demanded {
            self.has_failed.set(true);
            return None;
        } else {
            self.sort.set(Sort::Plain);
        }
        Some(())
    }

    /// Hands on what sealed bytes mean. `None`: the channel is broken, or there is no memory.
    fn unseal(&self, bytes: &[u8], arena: &Arena, mut hand_on: impl FnMut(Slice)) -> Option<()> {
        self.tls.borrow_mut().as_mut()?.feed(bytes);
        loop {
            // What is opened is seldom more than what came.
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
    use crate::tls::tests::{HOST, IDENTITY, TlsHost, channels};
    use lunar_nvme::auth::hash::Hash;

    /// A connection, as far as its bytes go.
    struct Rig {
        security: Security,
        arena: Arena,
    }

    impl Rig {
        fn new(channels: Option<&TlsContext>) -> Self {
            Self { security: Security::new(channels, false), arena: Arena::new(4 << 20) }
        }

        /// What comes of bytes from the wire, and whether the connection may go on.
        fn open(&self, bytes: &[u8]) -> (Vec<u8>, bool) {
            let mut all = Vec::new();
            let goes_on = bytes.chunks(100_000).all(|part| {
                let part = self.arena.copy(part).expect("room");
                self.security.open(part, &self.arena, |part| all.extend_from_slice(&part))
            });
            (all, goes_on)
        }

        /// All that goes to the wire for this.
        fn seal(&self, data: &[u8]) -> Vec<u8> {
            let mut pieces = Sg::default();
            data.chunks(50_000).for_each(|part| pieces.push(self.arena.copy(part).expect("room")));
            let mut all = Vec::new();
            while !pieces.is_empty() || self.security.queued_bytes() > 0 {
                let part = self.security.seal(std::mem::take(&mut pieces), &self.arena).expect("it lives");
                assert!(!part.is_empty(), "something goes each time");
                all.extend(part.to_vec());
            }
            all
        }
    }

    #[test]
    fn the_first_byte_says_whether_there_is_a_channel() {
        let all = channels();
        for (channels, bytes) in [(None, &[FIRST_BYTE, 1][..]), (Some(&all), &[0, 1])] {
            let rig = Rig::new(channels);
            assert_eq!(rig.open(bytes), (bytes.to_vec(), true));
            // Later it says nothing any more.
            assert_eq!(rig.open(&[FIRST_BYTE]), (vec![FIRST_BYTE], true));
            assert!(rig.security.is_plain() && rig.security.bearer().is_none());
            assert_eq!(rig.seal(&[7; 60_000]), [7; 60_000]);
        }
    }

    #[test]
    fn where_a_channel_is_demanded_nothing_else_is_heard() {
        let all = channels();
        for channels in [None, Some(&all)] {
            let rig = Rig { security: Security::new(channels, true), arena: Arena::new(4 << 20) };
            assert_eq!(rig.open(&[0, 1]), (Vec::new(), false));
            assert_eq!(rig.security.failure(), Some((None, Unagreed::Clear)));
            assert_eq!(rig.open(&[0, 1]), (Vec::new(), false), "nor later");
        }
        let rig = Rig { security: Security::new(Some(&all), true), arena: Arena::new(4 << 20) };
        assert_eq!(rig.open(&TlsHost::new(IDENTITY, 7).handshake()), (Vec::new(), true));
    }

    #[test]
    fn large_data_goes_through_both_ways() {
        let rig = Rig::new(Some(&channels()));
        let mut host = TlsHost::new(IDENTITY, 7);
        for _ in 0..3 {
            assert_eq!(rig.open(&host.handshake()), (Vec::new(), true));
            host.feed(&rig.seal(&[]));
        }
        assert!(rig.security.bearer().is_some_and(|bearer| &*bearer.host == HOST));
        assert!(!rig.security.is_plain());
        let long: Vec<u8> = (0..900_000_u32).map(|n| (n / 7) as u8).collect();
        let (came, goes_on) = rig.open(&host.encrypt(&long));
        assert!(goes_on && came == long);
        host.feed(&rig.seal(&long));
        assert!(host.decrypt(long.len()) == long);
        let used = rig.arena.used();
        assert_eq!(used, 0, "nothing of it stays");
    }

    #[test]
    fn a_broken_channel_says_why_and_is_over() {
        let rig = Rig::new(Some(&channels()));
        assert_eq!(rig.security.failure(), None);
        assert_eq!(rig.open(&TlsHost::new(IDENTITY, 8).handshake()), (Vec::new(), false));
        assert_eq!(rig.security.failure(), Some((Some(HOST.into()), Unagreed::Broken(Hash::SHA256))));
        const ALERT: u8 = 0x15;
        assert_eq!(rig.seal(&[]).first(), Some(&ALERT));
        assert!(rig.security.bearer().is_none());
        // What came before it broke is heard.
        let rig = Rig::new(Some(&channels()));
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
        assert_eq!(rig.security.failure(), None, "it was a channel once");
    }
}
