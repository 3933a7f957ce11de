//! The table of a list against a model that compares every piece with every other: both accept the same tables, and name the
//! same first fault in those that they do not.

use orbit_te_wire::*;
use proptest::collection::vec;
use proptest::prelude::*;

/// What `check_pieces` should say, with no regard to time.
fn model(table: &[Piece], region_bytes: u64, length: u64, ascending: bool) -> Result<(), BadPiece> {
    let wide = |piece: &Piece| {
        let from = u128::from(piece.offset());
        (from, from + u128::from(piece.length()))
    };
    for (at, piece) in table.iter().enumerate() {
        let (from, to) = wide(piece);
        let before = &table[..at];
        let sum: u128 = table[..=at].iter().map(|piece| u128::from(piece.length())).sum();
        let status = if piece.length() == 0 {
            Status::BadLength
        } else if to > u128::from(region_bytes) {
            Status::OutOfRange
        } else if ascending && before.iter().map(wide).any(|(_, end)| from < end) {
            Status::Overlap
        } else if sum > u128::from(length) {
            Status::BadLength
        } else {
            continue;
        };
        return Err(BadPiece { index: at as u32, status });
    }
    let sum: u128 = table.iter().map(|piece| u128::from(piece.length())).sum();
    if sum == u128::from(length) {
        return Ok(());
    }
    Err(BadPiece { index: table.len() as u32, status: Status::BadLength })
}

/// Small numbers, so that pieces meet, and a few of the largest.
fn number(small: u64) -> impl Strategy<Value = u64> {
    prop_oneof![12 => 0..small, 1 => u64::MAX - small.., 1 => any::<u64>()]
}

fn any_table() -> impl Strategy<Value = Vec<Piece>> {
    vec((number(300), number(20)), 0..12)
        .prop_map(|values| values.into_iter().map(|(offset, length)| Piece::new(offset, length)).collect())
}

/// A table without a fault, the least region for it, and its length.
fn good_table(most: usize) -> impl Strategy<Value = (Vec<Piece>, u64, u64)> {
    vec((0..50u64, 1..5000u64), 1..most).prop_map(|values| {
        let (mut end, mut sum, mut table) = (0, 0, Vec::new());
        for (gap, length) in values {
            table.push(Piece::new(end + gap, length));
            end += gap + length;
            sum += length;
        }
        (table, end, sum)
    })
}

fn sum(table: &[Piece]) -> u64 {
    table.iter().fold(0, |sum: u64, piece| sum.wrapping_add(piece.length()))
}

proptest! {
    #[test]
    fn an_entry_round_trips(offset: u64, length: u64, bytes: [u8; PIECE_BYTES]) {
        let piece = Piece::new(offset, length);
        prop_assert_eq!((piece.offset(), piece.length()), (offset, length));
        prop_assert_eq!(Piece::from_bytes(piece.to_bytes()), piece);
        let piece = Piece::from_bytes(bytes);
        prop_assert_eq!(piece.to_bytes(), bytes);
        prop_assert_eq!(Piece::new(piece.offset(), piece.length()), piece);
    }

    #[test]
    fn any_table_is_judged_as_the_model_does(
        table in any_table(),
        region in number(400),
        other in number(300),
        near in 0..6u64,
        ascending: bool,
    ) {
        // Mostly the true sum, or one beside it, so that the sum is not all that is ever found.
        let length = match near {
            0..=2 => sum(&table),
            3 => sum(&table).wrapping_add(1),
            4 => sum(&table).wrapping_sub(1),
            _ => other,
        };
        let found = check_pieces(&table, region, length, ascending);
        prop_assert_eq!(found, model(&table, region, length, ascending));
    }

    #[test]
    fn a_good_table_is_taken_and_one_fault_is_found_where_it_is(
        (table, region, length) in good_table(40),
        at: prop::sample::Index,
        fault in 0..4u8,
    ) {
        prop_assert_eq!(check_pieces(&table, region, length, true), Ok(()));
        let mut read = table.clone();
        read.reverse();
        prop_assert_eq!(check_pieces(&read, region, length, false), Ok(()));
        prop_assert!(check_pieces(&read, region, length, true).is_err() || read.len() == 1);
        let index = at.index(table.len());
        let mut bad = table.clone();
        let (offset, bytes) = (table[index].offset(), table[index].length());
        let status = match fault {
            0 => {
                bad[index] = Piece::new(offset, 0);
                Status::BadLength
            }
            1 => {
                bad[index] = Piece::new(region - bytes + 1, bytes);
                Status::OutOfRange
            }
            2 => {
                bad[index] = Piece::new(u64::MAX - bytes + 1, bytes);
                Status::OutOfRange
            }
            _ if index == 0 => return Ok(()),
            _ => {
                let before = &table[index - 1];
                bad[index] = Piece::new(before.offset() + before.length() - 1, bytes);
                Status::Overlap
            }
        };
        prop_assert_eq!(check_pieces(&bad, region, length, true), Err(BadPiece { index: index as u32, status }));
    }

    #[test]
    fn a_sum_that_lies_is_no_single_piece_unless_one_goes_over(
        (table, region, length) in good_table(40),
        lie in 1..5000u64,
    ) {
        let all = table.len() as u32;
        let status = Status::BadLength;
        prop_assert_eq!(check_pieces(&table, region, length + lie, true), Err(BadPiece { index: all, status }));
        let claimed = length.saturating_sub(lie);
        let found = check_pieces(&table, region, claimed, true);
        prop_assert_eq!(found, model(&table, region, claimed, true));
        prop_assert!(found.is_err_and(|bad| bad.index < all));
    }
}
