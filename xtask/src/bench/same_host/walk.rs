//! Where the submissions of a case lie. Rule: cold ones go through all of both buffers in random orders of their own, so that no cache
//! has what comes next; both orders are the same in every run.

use super::super::engine::Role;
use super::super::lists::{POOL_BYTES, pages};
use super::super::plan::{Case, Form, pattern_word};

/// Of each buffer: room for lists, and more than any cache.
pub(super) const BYTES: usize = POOL_BYTES;

/// Places in one walk at most: enough that small blocks are out of the caches when their turn comes again.
const PLACES_MAX: usize = 16 * 1024;

/// One contiguous part of a submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    /// In the initiator's buffer.
    pub(super) here: usize,
    /// In the target's.
    pub(super) there: usize,
    pub(super) length: usize,
}

/// The distinct submissions of a case, one after the other.
pub(super) fn submissions(case: &Case) -> Vec<Vec<Piece>> {
    let piece = |here: usize, there: usize| Piece { here, there, length: case.block };
    if case.form == Form::List {
        let (here, there) = (pages(Role::Initiator, case.batch), pages(Role::Target, case.batch));
        let at = |page: u32| page as usize * case.block;
        return vec![here.into_iter().zip(there).map(|(a, b)| piece(at(a), at(b))).collect()];
    }
    let all = BYTES / case.block;
    let wanted = if case.hot { case.batch } else { all.min(PLACES_MAX) / case.batch * case.batch };
    let (here, there) = (shuffled(all, 3), shuffled(all, 4));
    let places = here.into_iter().zip(there).take(wanted.max(1));
    let pieces: Vec<Piece> = places.map(|(a, b)| piece(a * case.block, b * case.block)).collect();
    pieces.chunks(case.batch).map(<[Piece]>::to_vec).collect()
}

/// The numbers below `count` in random order.
fn shuffled(count: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    for i in (1..count).rev() {
        order.swap(i, (pattern_word((i as u64) << 8 | seed, 0) % (i as u64 + 1)) as usize);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::super::super::lists::LIST;
    use super::super::super::plan::{KIB, MIB, Op, Point};
    use super::*;

    fn case(block: usize, batch: usize) -> Case {
        Case::plain(Op::Write, Point { block, batch })
    }

    #[test]
    fn cold_walks_are_larger_than_caches_and_stay_inside() {
        for case in [case(4 * KIB, 1), case(4 * KIB, 64), case(MIB, 1), case(64 * MIB, 1)] {
            let all = submissions(&case);
            assert!(all.iter().all(|pieces| pieces.len() == case.batch), "{case}");
            let mut here: Vec<usize> = all.iter().flatten().map(|piece| piece.here).collect();
            assert!(here.len() * case.block >= 64 * MIB, "{case}");
            assert!(here.windows(2).any(|pair| pair[0] > pair[1]), "{case}: not shuffled");
            assert!(all.iter().flatten().all(|p| p.here.max(p.there) + p.length <= BYTES), "{case}");
            here.sort_unstable();
            assert!(here.windows(2).all(|pair| pair[0] + case.block <= pair[1]), "{case}: places overlap");
        }
    }

    #[test]
    fn hot_ones_stay_where_they_are() {
        let all = submissions(&Case { hot: true, ..case(MIB, 1) });
        assert_eq!((all.len(), all[0].len()), (1, 1));
    }

    #[test]
    fn a_list_is_one_submission() {
        let all = submissions(&Case { form: Form::List, ..Case::plain(Op::Read, LIST) });
        assert_eq!((all.len(), all[0].len()), (1, LIST.batch));
        assert!(all[0].iter().all(|p| p.here.max(p.there) + p.length <= BYTES));
    }
}
