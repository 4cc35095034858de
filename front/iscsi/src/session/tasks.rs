//! The tasks of a session: entries with generations, and an index by initiator task tag.

use super::action::{Command, TaskKey};
use super::data_out::DataOutState;
use smallvec::SmallVec;

/// The state of a task.
#[derive(Debug, Default)]
pub(super) enum State {
    /// There is no task in this entry.
    #[default]
    Free,
    /// A command that waits for those with lower numbers; with its reply if it will not be executed.
    Held(Box<(Command, Option<Box<Answer>>)>),
    /// A command that is being executed.
    Running,
    /// A command that has ended. Its reply waits until the initiator has ended its data sequences (RFC 7143 11.4.2).
    Draining(Answer),
    /// A task management function.
    Function,
}

/// The reply to a command: its status, and what belongs to it.
#[derive(Clone, Debug, Default)]
pub(super) struct Answer {
    pub(super) status: u8,
    pub(super) sense: SmallVec<[u8; 32]>,
    /// Bytes that the command transfers without the limit of the initiator, for the residual count.
    pub(super) wanted: u64,
}

/// A command or a task management function, from its arrival to its response.
#[derive(Debug, Default)]
pub(super) struct Task {
    generation: u32,
    /// The index of the next task in the same bucket, or [`END`].
    next: u16,
    pub(super) itt: u32,
    pub(super) lun: [u8; 8],
    pub(super) cmd_sn: u32,
    /// Whether it took a CmdSN: then its end opens the command window by one.
    pub(super) numbered: bool,
    pub(super) state: State,
    /// Bytes that the initiator expects to receive.
    pub(super) expected_in: u32,
    /// Bytes that the initiator expects to send.
    pub(super) expected_out: u32,
    /// The next DataSN of Data-In.
    pub(super) data_sn: u32,
    pub(super) transfer: DataOutState,
}

/// The fields of a task that its response needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Summary {
    pub(super) itt: u32,
    pub(super) numbered: bool,
    pub(super) expected_in: u32,
    pub(super) expected_out: u32,
    pub(super) data_sn: u32,
    /// The number of R2Ts sent.
    pub(super) r2ts: u32,
    /// Bytes of memory for immediate and unsolicited data that was not pulled.
    pub(super) unsolicited: usize,
}

impl Task {
    #[inline(always)]
    pub(super) fn summary(&self) -> Summary {
        Summary {
            itt: self.itt,
            numbered: self.numbered,
            expected_in: self.expected_in,
            expected_out: self.expected_out,
            data_sn: self.data_sn,
            r2ts: self.transfer.r2ts(),
            unsolicited: self.transfer.unsolicited(),
        }
    }
}

/// A power of two, so that task tags that count up spread evenly. Tags that a hostile initiator chooses make one list
/// of all tasks, which is as long as the command window.
const BUCKETS: usize = 256;
/// The end of a list of tasks.
const END: u16 = u16::MAX;

/// All tasks of a session. The default is for the login: it has no memory and finds nothing.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    entries: Vec<Task>,
    free: Vec<u16>,
    /// The first task of each bucket, by the low byte of the initiator task tag.
    buckets: Box<[u16]>,
    immediate: usize,
}

fn bucket(itt: u32) -> usize {
    itt as usize % BUCKETS
}

impl Tasks {
    /// An empty set for the full-feature phase.
    pub(super) fn new() -> Self {
        Self { buckets: vec![END; BUCKETS].into(), ..Self::default() }
    }

    /// Adds a task, which is [`State::Running`].
    pub(super) fn insert(&mut self, itt: u32, numbered: bool) -> TaskKey {
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Task::default());
            u16::try_from(self.entries.len() - 1).expect("WINDOW_MAX and IMMEDIATE_MAX are far below")
        });
        let head = std::mem::replace(&mut self.buckets[bucket(itt)], index);
        let task = &mut self.entries[usize::from(index)];
        (task.next, task.itt, task.numbered, task.data_sn) = (head, itt, numbered, 0);
        task.state = State::Running;
        self.immediate += usize::from(!numbered);
        TaskKey { index, generation: task.generation }
    }

    /// Removes a task: its key finds nothing from now on.
    #[inline(always)]
    pub(super) fn remove(&mut self, key: TaskKey) -> Option<Summary> {
        let task = self.get_mut(key)?;
        let summary = task.summary();
        task.generation = task.generation.wrapping_add(1);
        task.state = State::Free;
        task.transfer.reset();
        let next = task.next;
        self.immediate -= usize::from(!summary.numbered);
        self.unlink(summary.itt, key.index, next);
        self.free.push(key.index);
        Some(summary)
    }

    fn unlink(&mut self, itt: u32, index: u16, next: u16) {
        let head = &mut self.buckets[bucket(itt)];
        if *head == index {
            *head = next;
            return;
        }
        let mut at = usize::from(*head);
        while self.entries[at].next != index {
            at = usize::from(self.entries[at].next);
        }
        self.entries[at].next = next;
    }

    /// The task with this initiator task tag.
    pub(super) fn find(&self, itt: u32) -> Option<TaskKey> {
        let mut index = *self.buckets.get(bucket(itt))?;
        while index != END {
            let task = &self.entries[usize::from(index)];
            if task.itt == itt {
                return Some(TaskKey { index, generation: task.generation });
            }
            index = task.next;
        }
        None
    }

    /// The task of a key; `None` if it has ended.
    pub(super) fn get_mut(&mut self, key: TaskKey) -> Option<&mut Task> {
        self.entries.get_mut(usize::from(key.index)).filter(|task| task.is(key))
    }

    /// The task of a key; `None` if it has ended.
    pub(super) fn get(&self, key: TaskKey) -> Option<&Task> {
        self.entries.get(usize::from(key.index)).filter(|task| task.is(key))
    }

    /// The number of immediate tasks, which took no CmdSN.
    pub(super) fn immediate(&self) -> usize {
        self.immediate
    }

    /// The number of tasks.
    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// The keys of all tasks for which `which` holds.
    pub(super) fn keys_of(&self, which: impl Fn(&Task) -> bool) -> Vec<TaskKey> {
        let live = self.entries.iter().zip(0..).filter(|(task, _)| !task.is_free() && which(task));
        live.map(|(task, index)| TaskKey { index, generation: task.generation }).collect()
    }
}

impl Task {
    fn is_free(&self) -> bool {
        matches!(self.state, State::Free)
    }

    /// Whether this is the task of a key of the same entry.
    #[inline(always)]
    fn is(&self, key: TaskKey) -> bool {
        self.generation == key.generation && !self.is_free()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_keys_find_nothing() {
        let mut tasks = Tasks::new();
        let first = tasks.insert(1, true);
        assert!(tasks.remove(first).is_some());
        let second = tasks.insert(1, true);
        assert_ne!(first, second);
        assert!(tasks.get_mut(first).is_none());
        assert!(tasks.remove(first).is_none());
        assert_eq!((tasks.find(1), tasks.len()), (Some(second), 1));
    }

    #[test]
    fn tags_in_one_bucket_are_distinguished() {
        let mut tasks = Tasks::new();
        let itts = [5, 5 + 256, 5 + 512, 5 + 1024];
        let keys = itts.map(|itt| tasks.insert(itt, false));
        assert_eq!((tasks.immediate(), tasks.find(5 + 2048)), (4, None));
        for gone in [2, 0, 3, 1] {
            assert_eq!(tasks.find(itts[gone]), Some(keys[gone]));
            tasks.remove(keys[gone]);
            assert_eq!(tasks.find(itts[gone]), None);
        }
        assert_eq!((tasks.immediate(), tasks.len()), (0, 0));
    }

    #[test]
    fn an_empty_index_finds_nothing() {
        assert_eq!(Tasks::default().find(3), None);
    }
}
