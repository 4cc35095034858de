//! A failing disk, for tests.

use std::cell::Cell;
use std::io;

thread_local! {
    static FAILS: Cell<bool> = const { Cell::new(false) };
}

/// The next synchronization of a folder by this thread fails.
pub fn let_folder_fail() {
    FAILS.set(true);
}

pub(crate) fn fail_once() -> io::Result<()> {
    if FAILS.take() { Err(io::Error::other("the disk fails")) } else { Ok(()) }
}
