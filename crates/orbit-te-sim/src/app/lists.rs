//! Prepared lists of the application: of every form, at both sides, posted whole or by a subset, again and again. Rule: the model cuts a
//! list into pieces by itself, in the plainest way, and never asks the engine where a piece is.

use super::App;
use crate::check::Checker;
use crate::model::{Area, Listed, Request, Slot};
use fastrand::Rng;
use orbit_te::{Batch, Engine, Layout, OpKind};

/// Lists that a life keeps.
const MOST_LISTS: usize = 6;
/// Blocks of one size in a list, at most.
const MOST_BLOCKS: usize = 24;
/// Slots next to each other in which one side of a list lies, at most.
const MOST_SLOTS: usize = 3;

/// One side of a list, as [`Layout`] borrows it.
enum Form {
    Runs(Vec<(u64, u64)>),
    Strided { offset: usize, stride: usize, block: usize, count: usize },
    Pages { offset: usize, page: usize, pages: Vec<u32> },
}

impl Form {
    /// `count` blocks of `block` bytes together, somewhere in this window. `repeats`: a page may come twice.
    fn draw(rng: &mut Rng, window: (usize, usize), block: usize, count: usize, repeats: bool) -> Form {
        let (begin, bytes) = window;
        let spare = bytes - block * count;
        match rng.u32(0..3) {
            0 => {
                let mut runs = Vec::new();
                let (mut at, mut left, mut spare) = (begin, block * count, spare);
                while left > 0 {
                    let gap = rng.usize(0..=spare);
                    let length = if rng.bool() { left } else { rng.usize(1..=left) };
                    runs.push(((at + gap) as u64, length as u64));
                    (at, left, spare) = (at + gap + length, left - length, spare - gap);
                }
                if rng.bool() {
                    rng.shuffle(&mut runs);
                }
                Form::Runs(runs)
            }
            1 => {
                let stride = rng.usize(block..=bytes / count);
                let offset = begin + rng.usize(0..=bytes - stride * (count - 1) - block);
                Form::Strided { offset, stride, block, count }
            }
            _ => {
                let mut pages: Vec<u32> = (0..(bytes / block) as u32).collect();
                rng.shuffle(&mut pages);
                pages.truncate(count);
                if repeats && rng.bool() {
                    let from = pages.clone();
                    pages.iter_mut().for_each(|page| *page = from[rng.usize(..from.len())]);
                }
                Form::Pages { offset: begin, page: block, pages }
            }
        }
    }

    fn layout(&self) -> Layout<'_> {
        match self {
            Form::Runs(runs) => Layout::Runs(runs),
            &Form::Strided { offset, stride, block, count } => Layout::Strided {
                offset: offset as u64,
                stride_bytes: stride as u64,
                block_bytes: block as u64,
                count: count as u64,
            },
            Form::Pages { offset, page, pages } => {
                Layout::Pages { offset: *offset as u64, page_bytes: *page as u64, pages }
            }
        }
    }

    /// Offset and length of each run.
    fn runs(&self) -> Vec<(usize, usize)> {
        match self {
            Form::Runs(runs) => runs.iter().map(|(at, length)| (*at as usize, *length as usize)).collect(),
            &Form::Strided { offset, stride, block, count } => {
                (0..count).map(|k| (offset + k * stride, block)).collect()
            }
            Form::Pages { offset, page, pages } => {
                pages.iter().map(|k| (offset + *k as usize * page, *page)).collect()
            }
        }
    }
}

/// Where both sides go on without an edge: offsets and length.
fn cut(here: &[(usize, usize)], there: &[(usize, usize)]) -> Vec<(usize, usize, usize)> {
    let mut pieces = Vec::new();
    let (mut ours, mut theirs) = (here.iter().copied(), there.iter().copied());
    let (mut one, mut other) = (ours.next(), theirs.next());
    while let (Some((a, m)), Some((b, n))) = (one, other) {
        let length = m.min(n);
        pieces.push((a, b, length));
        one = if m > length { Some((a + length, m - length)) } else { ours.next() };
        other = if n > length { Some((b + length, n - length)) } else { theirs.next() };
    }
    pieces
}

impl App {
    /// Some slots next to each other, by their first byte and how many bytes they have.
    fn window(&mut self, memory: usize) -> (usize, usize) {
        let (slots, slot_bytes) = (self.memories[memory].slots.len(), self.memories[memory].slot_bytes);
        let count = self.rng.usize(1..=MOST_SLOTS.min(slots));
        let first = self.rng.usize(0..=slots - count);
        (first * slot_bytes, count * slot_bytes)
    }

    fn prepare(&mut self, engine: &Engine, opened: usize, local: usize) {
        let remote = self.opened[opened].memory;
        let (here, there) = (self.window(local), self.window(remote));
        let room = here.1.min(there.1);
        let count = self.rng.usize(1..=MOST_BLOCKS.min(room));
        let block = self.rng.usize(1..=room / count);
        let write = self.rng.bool();
        let ours = Form::draw(&mut self.rng, here, block, count, write);
        let theirs = Form::draw(&mut self.rng, there, block, count, !write);
        let pieces = cut(&ours.runs(), &theirs.runs());
        let kind = if write { OpKind::Write } else { OpKind::Read };
        let opened = &self.opened[opened];
        let slice = self.memories[local].handle.whole();
        let prepared = engine.prepare(kind, &slice, ours.layout(), &opened.segment, theirs.layout());
        let (life, opening) = (opened.life, opened.number);
        match prepared {
            Ok(prepared) if prepared.pieces() == pieces.len() => {
                self.lists.push(Listed { life, prepared, write, local, remote, opening, pieces });
            }
            Ok(prepared) => self.wrong_list(format!(
                "a list has {} pieces, and should have {}",
                prepared.pieces(),
                pieces.len()
            )),
            Err(error) => self.wrong_list(format!("a good list is refused: {error}")),
        }
    }

    fn wrong_list(&mut self, why: String) {
        self.net.lock().report.violated(Checker::Bytes, why);
    }

    /// Adds all or some pieces of a list to a batch, a list of before or a new one.
    pub(super) fn post_list(
        &mut self,
        engine: &Engine,
        opened: usize,
        local: usize,
        batch: &mut Batch,
    ) -> Option<Request> {
        let life = self.opened[opened].life;
        let mine: Vec<usize> = (0..self.lists.len()).filter(|&l| self.lists[l].life == life).collect();
        let at = if mine.is_empty() || self.rng.u32(0..3) == 0 {
            if mine.len() >= MOST_LISTS {
                self.lists.remove(mine[0]);
            }
            self.prepare(engine, opened, local);
            self.lists.len().checked_sub(1)?
        } else {
            mine[self.rng.usize(..mine.len())]
        };
        let Listed { prepared, write, local, remote, opening, pieces, .. } = &self.lists[at];
        let (write, local, remote, opening) = (*write, *local, *remote, *opening);
        let mut numbers: Vec<u32> = (0..pieces.len() as u32).collect();
        let whole = self.rng.bool();
        if !whole {
            self.rng.shuffle(&mut numbers);
            numbers.truncate(self.rng.usize(1..=pieces.len()));
        }
        let chosen = || numbers.iter().map(|number| pieces[*number as usize]);
        let slot_bytes = |memory: usize| self.memories[memory].slot_bytes;
        let ours = Area::new(local, slot_bytes(local), chosen().map(|(at, _, n)| (at, n)).collect());
        let theirs = Area::new(remote, slot_bytes(remote), chosen().map(|(_, at, n)| (at, n)).collect());
        let taken = |area: &Area| {
            let slots = &self.memories[area.memory].slots;
            area.slots.iter().any(|slot| slots[*slot] != Slot::Free)
        };
        if taken(&ours) || taken(&theirs) {
            return None;
        }
        let from = batch.len();
        let added = match whole {
            true => Ok(batch.list(prepared)),
            false => batch.subset(prepared, &numbers),
        };
        if let Err(error) = added {
            self.wrong_list(format!("a good subset is refused: {error}"));
            return None;
        }
        self.counts.lists += 1;
        Some(self.asked(write, ours, theirs, opening, from..batch.len()))
    }
}
