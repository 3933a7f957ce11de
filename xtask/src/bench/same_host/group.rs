//! What is measured next to each other in a round. Rule: everything that a demand compares is in one group.

use super::super::lists::{CONTIGUOUS, LIST};
use super::super::plan::{Case, Form, KIB, MIB, Op, Point};
use super::way::Way;

/// Other engines that move bytes between processes of one host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Neighbour {
    /// UCX by POSIX shared memory.
    UcxPosix,
    /// UCX by the kernel's call.
    UcxCma,
    /// Mooncake's TENT by shared memory.
    TentShm,
}

pub(super) const NEIGHBOURS: [Neighbour; 3] = [Neighbour::UcxPosix, Neighbour::UcxCma, Neighbour::TentShm];

impl Neighbour {
    pub(super) fn name(self) -> &'static str {
        match self {
            Neighbour::UcxPosix => "ucx posix",
            Neighbour::UcxCma => "ucx cma",
            Neighbour::TentShm => "tent shm",
        }
    }
}

/// Whose turn it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Who {
    Ours(Way),
    Other(Neighbour),
}

pub(super) const LARGE: [usize; 3] = [MIB, 16 * MIB, 64 * MIB];
pub(super) const PLAIN: [usize; 3] = [64 * KIB, MIB, 16 * MIB];
/// Those that are held against other engines; of UCX with one hot buffer, which is what its tool moves.
pub(super) const HOT: [usize; 2] = [MIB, 16 * MIB];
pub(super) const SMALL: usize = 4 * KIB;
pub(super) const BATCH: usize = 64;

pub(super) const OPS: [Op; 2] = [Op::Write, Op::Read];

pub(super) fn cold(op: Op, block: usize) -> Case {
    Case::plain(op, Point { block, batch: 1 })
}

pub(super) fn hot(op: Op, block: usize) -> Case {
    Case { hot: true, ..cold(op, block) }
}

pub(super) fn batch(op: Op) -> Case {
    Case::plain(op, Point { block: SMALL, batch: BATCH })
}

pub(super) fn list(op: Op) -> Case {
    Case { form: Form::List, ..Case::plain(op, LIST) }
}

pub(super) fn whole(op: Op) -> Case {
    Case::plain(op, CONTIGUOUS)
}

/// All groups.
pub(super) fn groups() -> Vec<Vec<(Who, Case)>> {
    let ours = |ways: &[Way], case: Case| ways.iter().map(|way| (Who::Ours(*way), case)).collect::<Vec<_>>();
    let tent = |case: Case| (Who::Other(Neighbour::TentShm), case);
    let ucx = |case: Case| [Neighbour::UcxPosix, Neighbour::UcxCma].map(|other| (Who::Other(other), case));
    let mut groups = Vec::new();
    for op in OPS {
        let small = cold(op, SMALL);
        let ways = [Way::Memcpy, Way::Shm, Way::Chosen, Way::Tcp];
        groups.push([ours(&ways, small), vec![tent(small)]].concat());
        let small = hot(op, SMALL);
        groups.push([ours(&[Way::Memcpy, Way::Shm, Way::Chosen], small), ucx(small).into()].concat());
        groups.push(ours(&[Way::Shm, Way::Tcp], batch(op)));
        for block in LARGE {
            let (case, ways) = (cold(op, block), [Way::Memcpy, Way::Shm, Way::Tcp]);
            let theirs = HOT.contains(&block).then(|| tent(case));
            groups.push(ours(&ways, case).into_iter().chain(theirs).collect());
        }
        for block in HOT {
            let case = hot(op, block);
            groups.push([ours(&[Way::Memcpy, Way::Shm], case), ucx(case).into()].concat());
        }
        for block in PLAIN {
            groups.push(ours(&[Way::Call, Way::ProcessVm, Way::Tcp], cold(op, block)));
        }
        groups.push([ours(&[Way::Shm], whole(op)), ours(&[Way::Shm], list(op))].concat());
    }
    groups
}
