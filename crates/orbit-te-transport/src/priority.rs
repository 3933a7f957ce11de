//! Priorities, and a queue that keeps them. Rule: who comes first is decided by counting turns, never by a clock, so the same
//! pushes and turns always give the same order.

use std::collections::VecDeque;

/// How urgent an op is beside others that wait for the same thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Priority {
    /// Before all others.
    High,
    /// What is not told otherwise.
    #[default]
    Normal,
    /// When nothing else wants to go, and now and then all the same.
    Low,
}

impl Priority {
    /// All of them, the most urgent first.
    pub const ALL: [Priority; 3] = [Priority::High, Priority::Normal, Priority::Low];

    /// After so many turns of more urgent entries in a row a waiting entry of this priority has aged enough to go first.
    pub const fn patience(self) -> u32 {
        match self {
            Priority::High => 0,
            Priority::Normal => 8,
            Priority::Low => 32,
        }
    }
}

const NORMAL: usize = Priority::Normal as usize;

/// Entries that wait for their turns. Entries of one priority go in the order in which they came. The most urgent goes first,
/// except that a priority which was passed over [`Priority::patience`] times gets one turn, the least urgent before others: so every
/// front entry has a turn within 34, whatever comes after it.
///
/// An entry can take several turns (a large op, chunk by chunk): it stays at the front of its priority until
/// [`PriorityQueue::take_turn`] is told that it was the last.
#[derive(Debug, Clone)]
pub struct PriorityQueue<T> {
    levels: [VecDeque<T>; 3],
    /// By level: turns that more urgent entries took while something waited here.
    passed: [u32; 3],
}

impl<T> Default for PriorityQueue<T> {
    fn default() -> PriorityQueue<T> {
        PriorityQueue::with_capacity(0)
    }
}

impl<T> PriorityQueue<T> {
    /// An empty queue with room for so many entries of normal priority; other priorities get theirs when they are first used.
    pub fn with_capacity(capacity: usize) -> PriorityQueue<T> {
        let levels = [VecDeque::new(), VecDeque::with_capacity(capacity), VecDeque::new()];
        PriorityQueue { levels, passed: [0; 3] }
    }

    /// Drops all entries.
    pub fn clear(&mut self) {
        self.levels.iter_mut().for_each(VecDeque::clear);
        self.passed = [0; 3];
    }

    /// Adds an entry behind those of its priority.
    #[inline]
    pub fn push(&mut self, priority: Priority, entry: T) {
        self.levels[priority as usize].push_back(entry);
    }

    /// Adds an entry before those of its priority: one that was taken out and goes on.
    pub fn push_first(&mut self, priority: Priority, entry: T) {
        self.levels[priority as usize].push_front(entry);
    }

    /// The entry whose turn it is.
    #[inline]
    pub fn peek(&self) -> Option<&T> {
        if self.is_normal() {
            return self.levels[NORMAL].front();
        }
        self.levels[self.turn()?].front()
    }

    /// The entry of [`PriorityQueue::peek`] takes its turn; with `last` it leaves, and is given back.
    #[inline]
    pub fn take_turn(&mut self, last: bool) -> Option<T> {
        if self.is_normal() {
            self.passed[NORMAL] = 0;
            return if last { self.levels[NORMAL].pop_front() } else { None };
        }
        self.take_turn_of_several(last)
    }

    fn take_turn_of_several(&mut self, last: bool) -> Option<T> {
        let level = self.turn()?;
        self.passed[level] = 0;
        for less_urgent in level + 1..self.levels.len() {
            if !self.levels[less_urgent].is_empty() {
                self.passed[less_urgent] += 1;
            }
        }
        if last { self.remove_front(level) } else { None }
    }

    /// The entries whose turns come one after the other, whatever each of them takes, from that of [`PriorityQueue::peek`] on; perhaps not all of
    /// those. None while several priorities wait: then each turn is to be asked for.
    #[inline]
    pub fn run(&self) -> Option<&[T]> {
        self.is_normal().then(|| self.levels[NORMAL].as_slices().0)
    }

    /// So many entries of [`PriorityQueue::run`] have had their turns and leave.
    #[inline]
    pub fn take_run(&mut self, count: usize) {
        self.passed[NORMAL] = 0;
        self.levels[NORMAL].drain(..count);
    }

    /// Takes the entry of [`PriorityQueue::peek`] out without a turn: it has nothing to do, or waits elsewhere.
    pub fn pop(&mut self) -> Option<T> {
        let level = self.turn()?;
        self.remove_front(level)
    }

    /// Keeps the entries that satisfy a condition, in their order.
    pub fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        for level in 0..self.levels.len() {
            self.levels[level].retain(&mut keep);
            self.forget_if_empty(level);
        }
    }

    /// All entries, the most urgent first.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.levels.iter().flatten()
    }

    /// Whether nothing waits but what is of normal priority, which is so nearly always: nobody is passed over then.
    #[inline]
    fn is_normal(&self) -> bool {
        self.levels[Priority::High as usize].is_empty() && self.levels[Priority::Low as usize].is_empty()
    }

    /// How many entries wait.
    pub fn len(&self) -> usize {
        self.levels.iter().map(VecDeque::len).sum()
    }

    /// Whether none waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.levels.iter().all(VecDeque::is_empty)
    }

    fn remove_front(&mut self, level: usize) -> Option<T> {
        let entry = self.levels[level].pop_front();
        self.forget_if_empty(level);
        entry
    }

    /// A priority ages while something of it waits: who comes to an empty one begins anew.
    fn forget_if_empty(&mut self, level: usize) {
        if self.levels[level].is_empty() {
            self.passed[level] = 0;
        }
    }

    fn turn(&self) -> Option<usize> {
        let aged = |level: &usize| {
            !self.levels[*level].is_empty() && self.passed[*level] >= Priority::ALL[*level].patience()
        };
        // High has no patience, so it is found here whenever something of it waits.
        let aged = (0..self.levels.len()).rev().find(aged);
        aged.or_else(|| self.levels.iter().position(|level| !level.is_empty()))
    }
}
