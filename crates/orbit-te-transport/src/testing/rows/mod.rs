//! The rows, by what they are about. Rule: a row is a plain function on a pair; it says what a promise means, by example.
//!
//! Each file's header says what its rows do not check.

pub mod bytes;
pub mod cancel;
pub mod checksums;
pub mod links;
pub mod lists;
pub mod notices;
pub mod queue;
pub mod random;
pub mod refusals;
pub mod regions;
pub mod sleep;

use crate::testing::suite::Row;

/// All rows, file by file.
pub(crate) const ALL: &[&[Row]] = &[
    bytes::ROWS,
    queue::ROWS,
    refusals::ROWS,
    regions::ROWS,
    links::ROWS,
    cancel::ROWS,
    sleep::ROWS,
    random::ROWS,
    lists::ROWS,
    checksums::ROWS,
    notices::ROWS,
];
