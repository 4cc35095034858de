//! Lines of the log, which is standard error.
//!
//! Where nobody reads it any more (the terminal has gone, the program behind the pipe has ended) its lines are lost,
//! and nothing else: `eprintln!` would panic there, and with it end the thread that has something to say.

use std::fmt;
use std::io::{self, Write};

/// Writes a line of the log: what is formatted as by [`format!`], and the end of the line. It never fails.
#[macro_export]
macro_rules! log {
    ($($words:tt)+) => { $crate::log::line(::std::format_args!($($words)+)) };
}

/// Writes these words and the end of the line, in one call, so that lines of several threads do not mix.
pub fn line(words: fmt::Arguments<'_>) {
    write_to(&mut io::stderr(), words);
}

fn write_to(log: &mut impl Write, words: fmt::Arguments<'_>) {
    // There is nobody left who could be told.
    let _ = log.write_all(format!("{words}\n").as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a terminal that has gone, or a pipe that nobody reads, has to say.
    struct Gone(usize);

    impl Write for Gone {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            self.0 += 1;
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
    }

    #[test]
    fn a_line_is_written_at_once_or_lost() {
        let mut all = Vec::new();
        write_to(&mut all, format_args!("{} and {}", 1, "two"));
        assert_eq!(all, b"1 and two\n");
        let mut gone = Gone(0);
        write_to(&mut gone, format_args!("{} and {}", 1, "two"));
        assert_eq!(gone.0, 1);
    }
}
