//! The tasks of a session: a slab whose keys carry a generation, and an index by initiator task tag.

use super::action::{Command, TaskKey};
use super::inflow::Inflow;
use smallvec::SmallVec;

/// What a task waits for.
#[derive(Debug, Default)]
pub(super) enum State {
    /// Its place in the order of numbers; with the answer if it will not run.
    Held(Box<(Command, Option<Box<Answer>>)>),
    /// The glue: the command runs.
    #[default]
    Running,
    /// The rest of the data that the initiator still owes: the answer is ready (11.4.2).
    Draining(Answer),
    /// The glue: a task management function.
    Function,
}

/// A status that is ready to be sent.
#[derive(Clone, Debug, Default)]
pub(super) struct Answer {
    pub(super) status: u8,
    pub(super) sense: SmallVec<[u8; 32]>,
    /// Bytes that the command would have moved.
    pub(super) wanted: u64,
}

/// A command, or a task management function, from its arrival to its response.
#[derive(Debug, Default)]
pub(super) struct Task {
    generation: u32,
    live: bool,
    /// The next of the same bucket, as in `Tasks::buckets`.
    chain: u16,
    pub(super) itt: u32,
    pub(super) lun: [u8; 8],
    pub(super) cmd_sn: u32,
    /// It took a number, and its end opens the window.
    pub(super) numbered: bool,
    pub(super) state: State,
    /// Bytes that the initiator expects.
    pub(super) data_in: u32,
    /// Bytes that the initiator expects to send.
    pub(super) data_out: u32,
    /// The next number of Data-In.
    pub(super) data_sn: u32,
    pub(super) inflow: Inflow,
}

/// What a response needs of its task.
#[derive(Clone, Copy, Debug)]
pub(super) struct Summary {
    pub(super) itt: u32,
    pub(super) numbered: bool,
    pub(super) data_in: u32,
    pub(super) data_out: u32,
    pub(super) data_sn: u32,
    /// R2Ts that were sent.
    pub(super) r2ts: u32,
    /// Bytes that came unasked and that nobody has pulled.
    pub(super) unasked: usize,
}

impl Task {
    #[inline(always)]
    pub(super) fn summary(&self) -> Summary {
        Summary {
            itt: self.itt,
            numbered: self.numbered,
            data_in: self.data_in,
            data_out: self.data_out,
            data_sn: self.data_sn,
            r2ts: self.inflow.r2ts(),
            unasked: self.inflow.unasked(),
        }
    }
}

/// Power of two, so that tags that count up spread evenly. A hostile choice of tags makes one chain of all tasks,
/// which is as long as the window.
const BUCKETS: usize = 256;
const END: u16 = u16::MAX;

/// All tasks. The default is for before the login: it has no memory, and nothing is looked up in it.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    slab: Vec<Task>,
    free: Vec<u16>,
    buckets: Box<[u16]>,
    immediate: usize,
}

fn bucket(itt: u32) -> usize {
    itt as usize % BUCKETS
}

impl Tasks {
    /// For the full-feature phase.
    pub(super) fn new() -> Self {
        Self { buckets: vec![END; BUCKETS].into(), ..Self::default() }
    }

    /// Starts a task.
    pub(super) fn insert(&mut self, itt: u32, numbered: bool) -> TaskKey {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slab.push(Task::default());
            u16::try_from(self.slab.len() - 1).expect("WINDOW_MAX and IMMEDIATE_MAX are far below")
        });
        let head = std::mem::replace(&mut self.buckets[bucket(itt)], index);
        let task = &mut self.slab[usize::from(index)];
        (task.live, task.chain, task.itt, task.numbered, task.data_sn) = (true, head, itt, numbered, 0);
        task.state = State::Running;
        self.immediate += usize::from(!numbered);
        TaskKey { index, generation: task.generation }
    }

    /// Ends a task: its key is stale from now on.
    #[inline(always)]
    pub(super) fn remove(&mut self, key: TaskKey) -> Option<Summary> {
        let task = self.get_mut(key)?;
        let summary = task.summary();
        (task.live, task.generation) = (false, task.generation.wrapping_add(1));
        task.state = State::Running;
        task.inflow.reset();
        let chain = task.chain;
        self.immediate -= usize::from(!summary.numbered);
        self.unchain(summary.itt, key.index, chain);
        self.free.push(key.index);
        Some(summary)
    }

    fn unchain(&mut self, itt: u32, index: u16, next: u16) {
        let head = &mut self.buckets[bucket(itt)];
        if *head == index {
            *head = next;
            return;
        }
        let mut at = usize::from(*head);
        while self.slab[at].chain != index {
            at = usize::from(self.slab[at].chain);
        }
        self.slab[at].chain = next;
    }

    /// The task with this tag.
    pub(super) fn find(&self, itt: u32) -> Option<TaskKey> {
        let mut index = *self.buckets.get(bucket(itt))?;
        while index != END {
            let task = &self.slab[usize::from(index)];
            if task.itt == itt {
                return Some(TaskKey { index, generation: task.generation });
            }
            index = task.chain;
        }
        None
    }

    /// The task of a key.
    pub(super) fn get_mut(&mut self, key: TaskKey) -> Option<&mut Task> {
        self.slab.get_mut(usize::from(key.index)).filter(|task| task.live && task.generation == key.generation)
    }

    /// The task of a key.
    pub(super) fn get(&self, key: TaskKey) -> Option<&Task> {
        self.slab.get(usize::from(key.index)).filter(|task| task.live && task.generation == key.generation)
    }

    /// Tasks that took no number.
    pub(super) fn immediate(&self) -> usize {
        self.immediate
    }

    /// All tasks.
    pub(super) fn len(&self) -> usize {
        self.slab.len() - self.free.len()
    }

    /// The keys of all tasks for which `which` holds.
    pub(super) fn keys_of(&self, which: impl Fn(&Task) -> bool) -> Vec<TaskKey> {
        let live = self.slab.iter().zip(0..).filter(|(task, _)| task.live && which(task));
        live.map(|(task, index)| TaskKey { index, generation: task.generation }).collect()
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
    fn tags_of_one_bucket_are_told_apart() {
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
