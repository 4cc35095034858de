//! The faults of a client and of its guest, of which the log shows the first.

use std::cell::Cell;

/// Faults that are logged while a client is connected: enough to see what it does wrong, and no guest fills the log.
pub const LOGGED: u32 = 16;

/// The number of faults so far.
#[derive(Debug, Default)]
pub struct Faults(Cell<u32>);

impl Faults {
    /// The lines of the log about one more fault.
    pub fn lines<'a>(&self, what: &'a str) -> impl Iterator<Item = &'a str> + use<'a> {
        let count = self.0.get().saturating_add(1);
        self.0.set(count);
        let last = (count == LOGGED).then_some("further faults of this connection are not logged");
        (count <= LOGGED).then_some(what).into_iter().chain(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_shows_the_first_faults_and_says_that_it_shows_no_more() {
        let faults = Faults::default();
        for _ in 1..LOGGED {
            assert_eq!(faults.lines("a").collect::<Vec<_>>(), ["a"]);
        }
        let last: Vec<&str> = faults.lines("a").collect();
        assert!(last.len() == 2 && last[0] == "a" && last[1].contains("not logged"));
        (0..3).for_each(|_| assert_eq!(faults.lines("a").count(), 0));
    }
}
