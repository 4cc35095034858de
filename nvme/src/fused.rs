//! Fused operations of a queue (NVMe Base 2.0 3.4.2): both commands are executed together, if the second follows the
//! first directly.

use crate::command::{FUSE, FUSE_FIRST, FUSE_SECOND};

/// The role of the last command of a queue in a fused operation. `C`: a command that has arrived.
#[derive(Debug, Default)]
pub enum Fused<C> {
    /// None.
    #[default]
    Nothing,
    /// The first command, which waits for the second.
    First(C),
    /// A first command that was refused: the second fails as well.
    Failed,
}

/// The use of a command that has arrived.
#[derive(PartialEq, Eq, Debug)]
pub enum Use<C> {
    /// It waits for the second command.
    Waits,
    /// It is executed alone.
    Alone(C),
    /// Both commands of a fused operation are executed together.
    Both([C; 2]),
    /// It fails, because the first command was refused.
    Fails(C),
}

impl<C> Fused<C> {
    /// Takes a command with these flags of its entry. Returns the command before it that is to be executed first, as a
    /// command of its own, and the use of this one.
    pub fn arrived(&mut self, flags: u8, command: C) -> (Option<C>, Use<C>) {
        let half = flags & FUSE;
        let before = match (std::mem::replace(self, Self::Nothing), half) {
            (Self::First(first), FUSE_SECOND) => return (None, Use::Both([first, command])),
            (Self::Failed, FUSE_SECOND) => return (None, Use::Fails(command)),
            // A second command that does not follow the first directly is a command of its own.
            (Self::First(first), _) => Some(first),
            (Self::Failed | Self::Nothing, _) => None,
        };
        if half == FUSE_FIRST {
            *self = Self::First(command);
            return (before, Use::Waits);
        }
        (before, Use::Alone(command))
    }

    /// A command with these flags was refused. Returns the command before it that is to be executed, as a command of
    /// its own.
    pub fn refused(&mut self, flags: u8) -> Option<C> {
        let now = if flags & FUSE == FUSE_FIRST { Self::Failed } else { Self::Nothing };
        match std::mem::replace(self, now) {
            Self::First(first) => Some(first),
            Self::Failed | Self::Nothing => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_second_command_directly_behind_the_first_is_executed_with_it() {
        let mut fused = Fused::default();
        assert_eq!(fused.arrived(FUSE_FIRST, 1), (None, Use::Waits));
        assert_eq!(fused.arrived(FUSE_SECOND, 2), (None, Use::Both([1, 2])));
        assert_eq!(fused.arrived(FUSE_SECOND, 3), (None, Use::Alone(3)));
        assert_eq!(fused.arrived(FUSE_FIRST, 4), (None, Use::Waits));
        assert_eq!(fused.arrived(FUSE_FIRST, 5), (Some(4), Use::Waits));
        assert_eq!(fused.arrived(0, 6), (Some(5), Use::Alone(6)));
    }

    #[test]
    fn a_second_command_behind_a_refused_first_one_fails() {
        let mut fused = Fused::default();
        assert_eq!(fused.refused(FUSE_FIRST), None);
        assert_eq!(fused.arrived(FUSE_SECOND, 1), (None, Use::Fails(1)));
        assert_eq!(fused.refused(FUSE_FIRST), None);
        assert_eq!(fused.arrived(0, 2), (None, Use::Alone(2)));
        assert_eq!(fused.arrived(FUSE_SECOND, 3), (None, Use::Alone(3)));
        assert_eq!(fused.arrived(FUSE_FIRST, 4), (None, Use::Waits));
        assert_eq!(fused.refused(FUSE_SECOND), Some(4));
        assert_eq!(fused.arrived(FUSE_SECOND, 5), (None, Use::Alone(5)));
    }
}
