//! Lists of scattered pieces: where they lie. Rule: both processes of a pair work it out alike, and no two pieces can be joined.

use super::engine::Role;
use super::plan::{KIB, Point, pattern_word};

/// What the demands on lists are about.
pub(super) const LIST: Point = Point { block: 4 * KIB, batch: 100_000 };

/// The same bytes in one piece.
pub(super) const CONTIGUOUS: Point = Point { block: LIST.block * LIST.batch, batch: 1 };

/// The buffer that lists need: a pool of twice as many pages as there are pieces.
pub(super) const POOL_BYTES: usize = 2 * LIST.block * LIST.batch;

/// The pages of one side's pool where the pieces lie, in the order of the pieces: the first of twice as many, shuffled.
pub(super) fn pages(side: Role, pieces: usize) -> Vec<u32> {
    let seed = match side {
        Role::Initiator => 1,
        Role::Target => 2,
    };
    let mut pages: Vec<u32> = (0..2 * pieces as u32).collect();
    for i in (1..pages.len()).rev() {
        let random = pattern_word((i as u64) << 8 | seed, 0);
        pages.swap(i, (random % (i as u64 + 1)) as usize);
    }
    pages.truncate(pieces);
    pages
}

/// For each page of one side's pool, the page of the other side's whose bytes it gets; none for those between.
pub(super) fn partners(side: Role, pieces: usize) -> Vec<Option<u32>> {
    let other = match side {
        Role::Initiator => Role::Target,
        Role::Target => Role::Initiator,
    };
    let mut partners = vec![None; 2 * pieces];
    for (mine, theirs) in pages(side, pieces).into_iter().zip(pages(other, pieces)) {
        partners[mine as usize] = Some(theirs);
    }
    partners
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_can_be_joined() {
        let partners = partners(Role::Target, LIST.batch);
        assert_eq!(partners.iter().flatten().count(), LIST.batch);
        let joined = |pair: &[Option<u32>]| pair[0].zip(pair[1]).is_some_and(|(a, b)| a + 1 == b);
        assert_eq!(partners.windows(2).filter(|pair| joined(pair)).count(), 0);
        let neighbours = partners.windows(2).filter(|pair| pair[0].and(pair[1]).is_some()).count();
        assert!((LIST.batch / 3..LIST.batch).contains(&neighbours), "{neighbours}: not shuffled");
    }

    #[test]
    fn both_sides_agree() {
        let (here, there) = (partners(Role::Initiator, 1000), partners(Role::Target, 1000));
        for (page, partner) in here.iter().enumerate() {
            if let Some(partner) = partner {
                assert_eq!(there[*partner as usize], Some(page as u32));
            }
        }
        let mut pages = pages(Role::Initiator, 1000);
        pages.sort_unstable();
        pages.dedup();
        assert_eq!(pages.len(), 1000);
        assert!(pages.iter().all(|page| *page < 2000));
    }
}
