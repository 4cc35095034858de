//! Short pieces of memory that share a page: headers, trailers and short answers.

use super::{Arena, Buf, PAGE, Slice};
use std::cell::RefCell;
use std::fmt;

/// Bytes of memory that pieces begin at: a cache line.
const LINE: usize = 64;

/// A page that is given away in short pieces, and the next one when it is used up. A page is free again when none of
/// its pieces is in use.
#[derive(Default)]
pub struct Chunks {
    page: RefCell<Option<Buf>>,
}

impl Chunks {
    /// Whether there is a page with room for copies of together `len` bytes, in as many as two pieces. Takes another
    /// page if there is none.
    #[must_use]
    pub fn has_room(&self, arena: &Arena, len: usize) -> bool {
        let mut page = self.page.borrow_mut();
        if page.as_ref().is_none_or(|page| page.len() < 2 * LINE + len) {
            *page = arena.take_reserved(PAGE);
        }
        page.is_some()
    }

    /// A copy of short parts, one after the other; `None` when memory is short.
    #[must_use]
    pub fn copy(&self, arena: &Arena, parts: &[&[u8]]) -> Option<Slice> {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let room = len.next_multiple_of(LINE);
        let mut kept = self.page.borrow_mut();
        let mut page = match kept.take().filter(|page| page.len() >= room) {
            Some(page) => page,
            None => arena.take_reserved(PAGE.max(room))?,
        };
        let mut piece = page.split_to(room);
        *kept = (!page.is_empty()).then_some(page);
        drop(kept);
        let mut at = 0;
        for part in parts {
            piece.write(at, part);
            at += part.len();
        }
        piece.truncate(len);
        Some(piece.share())
    }
}

impl fmt::Debug for Chunks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chunks({} bytes left)", self.page.borrow().as_ref().map_or(0, |page| page.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_share_a_page_and_a_page_is_used_again() {
        let arena = Arena::new(1 << 20);
        let (chunks, before) = (Chunks::default(), arena.used());
        let pieces: Vec<Slice> =
            (0..PAGE / LINE).map(|at| chunks.copy(&arena, &[b"a", &[at as u8; 20]]).expect("room")).collect();
        assert_eq!(arena.used(), before + PAGE);
        for (at, piece) in pieces.iter().enumerate() {
            assert_eq!((piece[0], &piece[1..]), (b'a', &[at as u8; 20][..]));
        }
        let next = chunks.copy(&arena, &[&[1; 65]]).expect("room");
        assert_eq!((next.len(), arena.used()), (65, before + 2 * PAGE));
        drop(pieces);
        assert_eq!(arena.used(), before + PAGE);
        assert!(chunks.has_room(&arena, PAGE - 5 * LINE) && arena.used() == before + PAGE);
        drop(next);
        drop(chunks);
        assert_eq!(arena.used(), before);
    }
}
