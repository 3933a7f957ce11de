//! The table of a list and its check: no bytes make it panic, an entry has one spelling, and what is accepted lies in the region,
//! adds up, and in a write does not overlap; the piece that is blamed is the first without which the rest would be well.

#![no_main]

use libfuzzer_sys::fuzz_target;
use orbit_te_wire::{PIECE_BYTES, Piece, check_pieces};

fuzz_target!(|bytes: &[u8]| {
    let Some((region, rest)) = bytes.split_first_chunk() else { return };
    let Some((length, rest)) = rest.split_first_chunk() else { return };
    let Some((&write, rest)) = rest.split_first() else { return };
    let (region, length) = (u64::from_le_bytes(*region), u64::from_le_bytes(*length));
    let write = write & 1 == 1;
    let table: Vec<Piece> = rest
        .chunks_exact(PIECE_BYTES)
        .map(|entry| {
            let mut bytes = [0; PIECE_BYTES];
            bytes.copy_from_slice(entry);
            let piece = Piece::from_bytes(bytes);
            assert_eq!(Piece::new(piece.offset(), piece.length()).to_bytes(), bytes);
            piece
        })
        .collect();
    match check_pieces(&table, region, length, write) {
        Ok(()) => is_good(&table, region, length, write),
        Err(bad) => {
            let before = &table[..bad.index as usize];
            let sum = before.iter().map(Piece::length).sum();
            assert!(sum <= length, "a sum that is over was not told at once");
            is_good(before, region, sum, write);
            if let Some(blamed) = table.get(bad.index as usize) {
                let with = &table[..=bad.index as usize];
                let sum = sum.checked_add(blamed.length()).filter(|sum| *sum <= length);
                let fine = sum.is_some_and(|sum| check_pieces(with, region, sum, write).is_ok());
                assert!(!fine, "nothing is wrong with the piece that is blamed");
            }
        }
    }
});

fn is_good(table: &[Piece], region: u64, length: u64, write: bool) {
    let end = |piece: &Piece| piece.offset().checked_add(piece.length()).expect("no end without a number");
    assert!(table.iter().all(|piece| piece.length() > 0 && end(piece) <= region));
    assert_eq!(table.iter().map(|piece| u128::from(piece.length())).sum::<u128>(), u128::from(length));
    assert!(!write || table.windows(2).all(|pair| end(&pair[0]) <= pair[1].offset()));
}
