//! Small parts of a request in guest memory: its header, its status.

use lunar_guest::Range;
use lunar_guest::memory::Memory;

/// Calls `visit` for each piece of `len` bytes from `offset` on in these ranges: guest address, offset in the bytes,
/// length. Returns whether there are as many bytes and `visit` always returned `true`.
fn each(ranges: &[Range], offset: u64, len: usize, mut visit: impl FnMut(u64, usize, usize) -> bool) -> bool {
    let (mut skip, mut done) = (offset, 0);
    for range in ranges {
        if skip >= range.len {
            skip -= range.len;
            continue;
        }
        // No more than `len`, which is a usize.
        let count = ((len - done) as u64).min(range.len - skip) as usize;
        if count > 0 && !visit(range.address.wrapping_add(skip), done, count) {
            return false;
        }
        (skip, done) = (0, done + count);
    }
    done == len
}

/// Copies the bytes from `offset` on in these ranges; `false` when they are not all there.
#[must_use]
pub fn read(memory: &Memory, ranges: &[Range], offset: u64, into: &mut [u8]) -> bool {
    each(ranges, offset, into.len(), |address, at, count| memory.read(address, &mut into[at..at + count]))
}

/// Copies `from` to the bytes from `offset` on in these ranges; `false` when they are not all there and writable.
#[must_use]
pub fn write(memory: &Memory, ranges: &[Range], offset: u64, from: &[u8]) -> bool {
    each(ranges, offset, from.len(), |address, at, count| memory.write(address, &from[at..at + count]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_core::mem::Region;

    #[test]
    fn bytes_are_copied_across_ranges() {
        let mut memory = Memory::default();
        memory.map(0x1000, 64, Some(Region::zeroed(64))).expect("free");
        let ranges = [Range { address: 0x1004, len: 3 }, Range { address: 0x1020, len: 4 }];
        assert!(write(&memory, &ranges, 1, b"abcde"));
        let mut found = [0; 5];
        assert!(read(&memory, &ranges, 1, &mut found) && &found == b"abcde");
        let mut front = [0; 2];
        assert!(memory.read(0x1005, &mut front) && &front == b"ab");
        assert!(!read(&memory, &ranges, 3, &mut found) && !write(&memory, &ranges, 7, b"x"));
        assert!(!read(&memory, &[Range { address: 0x103e, len: 8 }], 0, &mut found), "beyond the memory");
        assert!(write(&memory, &ranges, 7, b""));
    }
}
