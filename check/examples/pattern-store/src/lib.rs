//! Example of a back end: a store that returns a pattern. Each eight bytes are their offset, in network byte order.
//!
//! The store is this folder and one line in a registry.

use lunar_control::schema::{self, Serves, SizeRule, StoreSchema};
use lunar_core::io::{Data, Done, Extent, Fault, Io, Op, Outcome, Store, Traits};
use lunar_engine::backend::{
    Backend, Durability, JailPaths, Location, Mark, Opened, OpenedStore, ProtectionRequest, Refusal, StoreRequest,
    TextForm,
};
use lunar_reactor::Reactor;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Bytes of the largest volume: as many as fit the offsets of a disk with a byte of head room.
pub const SIZE_MAX: u64 = 1 << 60;

/// Bytes of the pattern that are made at once.
const PART_BYTES: usize = 4096;

/// Its declaration for the configuration.
static SCHEMA: StoreSchema = StoreSchema {
    word: "pattern",
    doc: "a pattern that is only read",
    noun: "pattern",
    location: schema::Location::Nowhere,
    size: SizeRule::Required,
    serves: Serves::Blocks,
    keys: None,
};

/// The kind `pattern`.
#[derive(Debug)]
pub struct PatternBackend;

impl Backend for PatternBackend {
    fn schema(&self) -> &'static StoreSchema {
        &SCHEMA
    }

    fn form(&self) -> TextForm {
        TextForm::NameAndSize
    }

    fn examples(&self) -> &'static [&'static str] {
        &["pattern:1G"]
    }

    fn location(&self) -> Location {
        Location::Process
    }

    fn durability(&self) -> Durability {
        Durability::Volatile
    }

    fn jail_paths(&self, _: &Path, _: bool) -> JailPaths {
        JailPaths::default()
    }

    fn mark_at(&self, _: &Path, _: bool) -> Option<Mark> {
        None
    }

    fn open(&self, request: &StoreRequest<'_>, _: Option<&Opened>) -> Result<Opened, Refusal> {
        let size = request.required_size()?;
        if size > SIZE_MAX {
            return Err(Refusal::store(TooLarge(request.name.to_owned())));
        }
        Ok(Opened::Store(Arc::new(Pattern::new(size))))
    }
}

/// The volume of this name would have more than [`SIZE_MAX`] bytes.
#[derive(Debug)]
struct TooLarge(String);

impl fmt::Display for TooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: a pattern has {SIZE_MAX} bytes at most", self.0)
    }
}

impl std::error::Error for TooLarge {}

/// A pattern of a size. The same on every core.
#[derive(Clone, Debug)]
struct Pattern {
    traits: Traits,
}

impl Pattern {
    fn new(size: u64) -> Self {
        let traits = Traits {
            size,
            read_only: true,
            write_cache: false,
            thin: false,
            unmap_granularity: 0,
            unmap_zeroes: false,
            physical_block: 4096,
            optimal_io: 0,
            rotational: false,
            atomic_write: 0,
        };
        Self { traits }
    }
}

impl OpenedStore for Pattern {
    fn traits(&self) -> &Traits {
        &self.traits
    }

    fn mark(&self) -> Option<Mark> {
        None
    }

    fn is_direct(&self) -> bool {
        false
    }

    fn open(&self, _: &Reactor) -> io::Result<Box<dyn Store>> {
        Ok(Box::new(self.clone()))
    }

    fn with_sharing(&self, _: bool) -> Result<Arc<dyn OpenedStore>, Refusal> {
        Ok(Arc::new(self.clone()))
    }

    fn finalize(&self) {}

    fn open_protection(&self, request: &ProtectionRequest<'_>) -> Result<Arc<dyn OpenedStore>, Refusal> {
        Err(request.no_place())
    }
}

impl Store for Pattern {
    fn traits(&self) -> &Traits {
        &self.traits
    }

    fn submit(&self, io: Io, done: Done) {
        if !io.within(self.traits.size) {
            return done.complete(Outcome::with(Err(Fault::OUT_OF_RANGE), io.data));
        }
        done.complete(match (io.op, io.data) {
            (Op::Read, Data::In(mut memory)) => {
                let len = memory.len();
                for at in (0..len).step_by(PART_BYTES) {
                    let part = pattern(io.offset + at as u64, PART_BYTES.min(len - at));
                    memory.copy_from(at, &part);
                }
                Outcome::with(Ok(len as u32), Data::In(memory))
            }
            (Op::Extent { len }, data) => {
                Outcome { extent: Extent { len, mapped: true }, ..Outcome::with(Ok(0), data) }
            }
            (Op::Flush, data) => Outcome::with(Ok(0), data),
            (_, data) => Outcome::with(Err(Fault::Unsupported), data),
        });
    }
}

/// The bytes of the pattern at this offset.
#[must_use]
pub fn pattern(offset: u64, len: usize) -> Vec<u8> {
    let byte = |at: u64| (at / 8 * 8).to_be_bytes()[(at % 8) as usize];
    (offset..offset + len as u64).map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_eight_bytes_are_their_offset() {
        assert_eq!(pattern(0, 16), [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8]);
        assert_eq!(pattern(0x1234_5678, 8), 0x1234_5678_u64.to_be_bytes());
        assert_eq!(pattern(6, 4), [0, 0, 0, 0]);
    }
}
