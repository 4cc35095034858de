//! Memory in the form of the kernel: lists of addresses and lengths.

use libc::{c_void, iovec};
use lunar_core::io::Data;

/// Most pieces that one system call takes (UIO_MAXIOV).
pub(crate) const PIECES_MAX: usize = 1024;

/// A list of addresses and lengths that may be handed to another thread.
#[derive(Default)]
pub(crate) struct Vector(Vec<iovec>);

// SAFETY: only the kernel uses the addresses, on behalf of the owner of the memory; see the uses of vectors. The list
// itself is plain data.
unsafe impl Send for Vector {}

impl Vector {
    /// All bytes of `data` after `skip`, in any number of pieces: for [`crate::file`], which divides it.
    pub(crate) fn of(data: &mut Data, skip: usize) -> Self {
        let mut vector = Self::default();
        vector.collect_from(data, skip, usize::MAX);
        vector
    }

    /// Points at the bytes of `data` from `skip` on, as many pieces as one call takes; returns the number of bytes.
    /// The addresses are valid as long as the memory is held, even if `data` itself is moved: it lies behind handles.
    pub(crate) fn gather(&mut self, data: &mut Data, skip: usize) -> usize {
        self.0.clear();
        self.collect_from(data, skip, PIECES_MAX)
    }

    /// Points at all bytes of `data`, in any number of pieces; returns the number of bytes.
    pub(crate) fn gather_all(&mut self, data: &mut Data) -> usize {
        self.0.clear();
        self.collect_from(data, 0, usize::MAX)
    }

    fn collect_from(&mut self, data: &mut Data, skip: usize, most: usize) -> usize {
        match data {
            Data::None | Data::From(_) | Data::Space(_) | Data::Carried(_) => 0,
            Data::In(sg) => self.collect(sg.pieces_mut().iter_mut().map(|p| (p.as_mut_ptr(), p.len())), skip, most),
            // The kernel only reads memory that is sent or written.
            Data::Out(sg) => self.collect(sg.pieces().iter().map(|p| (p.as_ptr().cast_mut(), p.len())), skip, most),
        }
    }

    fn collect(&mut self, pieces: impl Iterator<Item = (*mut u8, usize)>, mut skip: usize, most: usize) -> usize {
        let mut total = 0;
        for (start, len) in pieces {
            if skip >= len {
                skip -= len;
                continue;
            }
            if self.0.len() == most {
                break;
            }
            // `skip` < `len`, so this stays within the piece.
            let start = start.wrapping_add(skip);
            self.0.push(iovec { iov_base: start.cast::<c_void>(), iov_len: len - skip });
            total += len - skip;
            skip = 0;
        }
        total
    }

    /// Drops the first `count` bytes.
    pub(crate) fn advance(&mut self, mut count: usize) {
        let mut whole = 0;
        for piece in &mut self.0 {
            if count < piece.iov_len {
                piece.iov_base = piece.iov_base.cast::<u8>().wrapping_add(count).cast();
                piece.iov_len -= count;
                break;
            }
            count -= piece.iov_len;
            whole += 1;
        }
        self.0.drain(..whole);
    }

    /// The address of the list and the number of pieces that one call takes of it, for the kernel.
    pub(crate) fn raw(&self) -> (*const iovec, usize) {
        (self.0.as_ptr(), self.0.len().min(PIECES_MAX))
    }

    /// The piece, if there is only one.
    pub(crate) fn single(&self) -> Option<(*mut u8, usize)> {
        match self.0[..] {
            [piece] => Some((piece.iov_base.cast(), piece.iov_len)),
            _ => None,
        }
    }

    /// All pieces.
    pub(crate) fn pieces(&self) -> &[iovec] {
        &self.0
    }

    /// Whether no bytes are left.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
