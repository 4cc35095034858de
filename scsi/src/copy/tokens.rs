//! ROD tokens: a token represents data of a disk, which an initiator copies by sending the token (SPC-4 5.16.6).
//!
//! Tokens of one ROD type are created: access upon reference (00010000h). Such a token represents blocks of a disk and
//! not their content at the time of its creation: data that is written meanwhile is copied. The other types would need
//! a snapshot, or a check of all tokens at every write. Windows requests no type, and does not write to the blocks of a
//! file between its two commands. The token of zeroes (FFFF0001h), which needs no POPULATE TOKEN, is accepted as well.
//!
//! A token gives no rights: a nexus that cannot read the disk cannot copy from it.

use lunar_core::time::Instant;
use lunar_core::unit::UnitId;
use lunar_core::wire::be;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// ROD TOKEN LENGTH: bytes of a token after that field.
const LENGTH: u16 = 0x01f8;
/// ROD type: access upon reference.
pub const ACCESS_UPON_REFERENCE: u32 = 0x0001_0000;
/// ROD type: block device zero.
pub const ZERO: u32 = 0xffff_0001;
/// Limit of tokens. Initiators use a token once, soon after its creation. A further token replaces the least recently
/// used one, whose initiator then copies by READ and WRITE.
pub const TOKENS_MAX: usize = 1024;
/// MAXIMUM RANGE DESCRIPTORS.
pub const RANGES_MAX: usize = 64;
/// DEFAULT INACTIVITY TIMEOUT in seconds, for a POPULATE TOKEN without a timeout.
pub const INACTIVITY_DEFAULT: u32 = 60;
/// MAXIMUM INACTIVITY TIMEOUT in seconds: tokens are made for immediate use.
pub const INACTIVITY_MAX: u32 = 600;
/// Random bytes of a token: twice the number that the standard requires.
const SECRET_BYTES: usize = 64;
/// Bytes of a management token: the start of a token, without its random bytes (SPC-4 6.31.2).
pub const MANAGEMENT_BYTES: usize = 96;

/// A ROD token (SPC-4 5.16.6.4).
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Token {
    kind: be::U32,
    reserved: [u8; 2],
    length: be::U16,
    /// COPY MANAGER ROD TOKEN IDENTIFIER.
    id: be::U64,
    /// CREATOR LOGICAL UNIT DESCRIPTOR: a CSCD descriptor.
    creator: [u8; 32],
    /// NUMBER OF BYTES REPRESENTED.
    represented: be::U128,
    specific: [u8; 64],
    /// TARGET DEVICE DESCRIPTOR and reserved bytes: zero, for the name of the device depends on the target port.
    extended: [u8; 320],
    secret: [u8; SECRET_BYTES],
}

impl fmt::Debug for Token {
    /// Leaves the random bytes out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({:#x} of {:#x})", self.id, self.kind)
    }
}

impl Token {
    /// Whether it is the token of zeroes.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        self.kind.get() == ZERO && self.length.get() == LENGTH
    }

    /// Compares in constant time, so that the time tells nothing about the random bytes.
    fn is(&self, other: &Self) -> bool {
        let pairs = self.as_bytes().iter().zip(other.as_bytes());
        pairs.fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
    }
}

/// The data that a token represents.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Data {
    /// The unit.
    pub unit: UnitId,
    /// Offsets and lengths in bytes, in the order of the data.
    pub ranges: Arc<[(u64, u64)]>,
}

impl Data {
    /// Total number of bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.ranges.iter().map(|(_, len)| len).sum()
    }
}

/// Why a token is refused (SPC-4, additional sense codes of INVALID TOKEN OPERATION).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// Its ROD type is not supported.
    Type,
    /// Its ROD TOKEN LENGTH is invalid.
    Length,
    /// Its identifier is unknown: the token expired, was deleted, or never existed.
    Unknown,
    /// It differs from the token with its identifier.
    Corrupt,
}

struct Kept {
    token: Token,
    data: Data,
    inactivity: Duration,
    used: Instant,
}

/// Fills memory with random bytes; returns whether it could.
pub type Random = Box<dyn Fn(&mut [u8]) -> bool + Send + Sync>;
/// The clock.
pub type Clock = Box<dyn Fn() -> Instant + Send + Sync>;

/// The tokens of a target device, shared by all cores. Only commands with tokens take the lock.
pub struct Tokens {
    random: Random,
    clock: Clock,
    kept: Mutex<Vec<Kept>>,
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tokens({})", self.lock().len())
    }
}

impl Tokens {
    /// An empty set of tokens.
    #[must_use]
    pub fn new(random: Random, clock: Clock) -> Arc<Self> {
        Arc::new(Self { random, clock, kept: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The tokens, after expired ones were removed, and the current time.
    fn alive(&self) -> (MutexGuard<'_, Vec<Kept>>, Instant) {
        let now = (self.clock)();
        let mut kept = self.lock();
        kept.retain(|one| now.since(one.used) < one.inactivity);
        (kept, now)
    }

    /// Creates a token that expires after `inactivity` without use; `None` if there are no random bytes.
    #[must_use]
    pub fn make(&self, creator: [u8; 32], data: Data, inactivity: Duration) -> Option<Token> {
        let mut token = Token::new_zeroed();
        let mut id = [0; 8];
        if !(self.random)(&mut token.secret) || !(self.random)(&mut id) {
            return None;
        }
        token.kind = ACCESS_UPON_REFERENCE.into();
        token.length = LENGTH.into();
        token.id = u64::from_be_bytes(id).into();
        token.creator = creator;
        token.represented = u128::from(data.bytes()).into();
        let (mut kept, now) = self.alive();
        if kept.len() >= TOKENS_MAX
            && let Some((oldest, _)) = kept.iter().enumerate().min_by_key(|(_, one)| one.used)
        {
            kept.swap_remove(oldest);
        }
        kept.push(Kept { token, data, inactivity, used: now });
        Some(token)
    }

    /// The data that a token represents.
    ///
    /// # Errors
    /// Why the token is refused.
    pub fn find(&self, token: &Token) -> Result<Data, Refused> {
        if token.length.get() != LENGTH {
            return Err(Refused::Length);
        }
        if token.kind.get() != ACCESS_UPON_REFERENCE {
            return Err(Refused::Type);
        }
        let (mut kept, now) = self.alive();
        let one = kept.iter_mut().find(|one| one.token.id == token.id).ok_or(Refused::Unknown)?;
        if !one.token.is(token) {
            return Err(Refused::Corrupt);
        }
        one.used = now;
        Ok(one.data.clone())
    }

    /// Deletes a token.
    pub fn delete(&self, token: &Token) {
        self.lock().retain(|one| !one.token.is(token));
    }

    /// Deletes all tokens for data of a unit.
    pub fn forget(&self, unit: UnitId) {
        self.lock().retain(|one| one.data.unit != unit);
    }

    /// The management tokens of all tokens for data of a unit.
    #[must_use]
    pub fn of_unit(&self, unit: UnitId) -> Vec<[u8; MANAGEMENT_BYTES]> {
        let (kept, _) = self.alive();
        let heads = kept.iter().filter(|one| one.data.unit == unit).map(|one| {
            let mut head = [0; MANAGEMENT_BYTES];
            head.copy_from_slice(&one.token.as_bytes()[..MANAGEMENT_BYTES]);
            head
        });
        heads.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Tokens, and their clock in seconds.
    fn tokens() -> (Arc<Tokens>, Arc<AtomicU64>) {
        let seconds = Arc::new(AtomicU64::new(0));
        let (count, clock) = (AtomicU64::new(1), seconds.clone());
        let random = move |into: &mut [u8]| {
            let number = count.fetch_add(1, Ordering::Relaxed).to_be_bytes();
            into.iter_mut().zip(number.into_iter().cycle()).for_each(|(to, from)| *to = from);
            true
        };
        let now = move || Instant(clock.load(Ordering::Relaxed) * 1_000_000_000);
        (Tokens::new(Box::new(random), Box::new(now)), seconds)
    }

    fn data(unit: u32) -> Data {
        Data { unit: UnitId(unit), ranges: [(0, 512), (4096, 1024)].into() }
    }

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn a_token_has_the_layout_of_the_standard() {
        let (tokens, _) = tokens();
        let token = tokens.make([7; 32], data(1), MINUTE).expect("random");
        let bytes = token.as_bytes();
        assert_eq!(bytes.len(), 512);
        assert_eq!(bytes[..8], [0, 1, 0, 0, 0, 0, 1, 0xf8]);
        assert_eq!(bytes[16..48], [7; 32]);
        assert_eq!(bytes[48..64], 1536_u128.to_be_bytes());
        assert_eq!(bytes[448..456], [0, 0, 0, 0, 0, 0, 0, 1]);
        assert!(!format!("{token:?}").contains("secret") && !token.is_zero());
    }

    #[test]
    fn a_token_with_any_changed_byte_is_refused() {
        let (tokens, _) = tokens();
        let token = tokens.make([0; 32], data(1), MINUTE).expect("random");
        assert_eq!(tokens.find(&token), Ok(data(1)));
        for at in 0..512 {
            let mut other = token;
            other.as_mut_bytes()[at] ^= 1;
            let why = match at {
                0..4 => Refused::Type,
                6..8 => Refused::Length,
                8..16 => Refused::Unknown,
                _ => Refused::Corrupt,
            };
            assert_eq!(tokens.find(&other), Err(why), "byte {at}");
        }
        tokens.delete(&token);
        assert_eq!(tokens.find(&token), Err(Refused::Unknown));
    }

    #[test]
    fn a_token_expires_without_use() {
        let (tokens, seconds) = tokens();
        let make = |unit| tokens.make([0; 32], data(unit), MINUTE).expect("random");
        let (token, idle) = (make(1), make(2));
        for at in [59, 118] {
            seconds.store(at, Ordering::Relaxed);
            assert_eq!(tokens.find(&token), Ok(data(1)));
        }
        assert_eq!(tokens.find(&idle), Err(Refused::Unknown));
        assert_eq!((tokens.of_unit(UnitId(1)).len(), tokens.of_unit(UnitId(2)).len()), (1, 0));
        seconds.store(178, Ordering::Relaxed);
        assert_eq!(tokens.find(&token), Err(Refused::Unknown));
    }

    #[test]
    fn no_token_is_created_without_random_bytes() {
        let tokens = Tokens::new(Box::new(|_: &mut [u8]| false), Box::new(Instant::default));
        assert_eq!(tokens.make([0; 32], data(1), MINUTE), None);
    }

    #[test]
    fn a_token_beyond_the_limit_replaces_the_least_recently_used_one() {
        let (tokens, seconds) = tokens();
        let make = || tokens.make([0; 32], data(1), MINUTE).expect("random");
        let first = make();
        seconds.store(1, Ordering::Relaxed);
        let second = make();
        seconds.store(2, Ordering::Relaxed);
        assert!(tokens.find(&first).is_ok());
        (2..=TOKENS_MAX).for_each(|_| assert_ne!(make(), first));
        assert_eq!(tokens.find(&second), Err(Refused::Unknown), "the least recently used token");
        assert!(tokens.find(&first).is_ok());
    }
}
