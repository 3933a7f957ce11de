//! The list of rows, and how one is run. Rule: a row that does not apply says so aloud, with the reason; it never passes in
//! silence.
//!
//! It does not check that what a transport declares is true beyond what the rows do with it.

use crate::op::OpKind;
use crate::testing::pair::Pair;
use crate::testing::rows;
use std::io::Write;
use std::path::Path;

/// What a row needs of a transport or its pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// That it reads.
    Read,
    /// That it writes.
    Write,
    /// That the target's registry is asked, so that regions and generations are told apart.
    Admits,
    /// A second target in the pair.
    SecondTarget,
    /// An unreachable address in the pair.
    Unreachable,
    /// No more than so many ops at once.
    MaxOps(u32),
    /// A limit on an op's bytes that is under this.
    MaxOpBytes(u64),
    /// That it takes ops of many pieces.
    Lists,
    /// That it verifies the bytes of ops end to end.
    Checksums,
    /// Somebody on the way who does damage, in the pair.
    Damage,
    /// That it carries notifications, and a mailbox for them in the pair.
    Notifications,
}

impl Need {
    /// Why a pair does not have it, or none.
    pub fn lacking(self, pair: &mut dyn Pair) -> Option<String> {
        let can = pair.initiator().capabilities();
        let (has, reason) = match self {
            Need::Read => (can.supports(OpKind::Read), "it does not read".to_string()),
            Need::Write => (can.supports(OpKind::Write), "it does not write".to_string()),
            Need::Admits => (can.admits, "the target's registry is not asked".to_string()),
            Need::SecondTarget => (pair.second_target().is_some(), "the pair has one target".to_string()),
            Need::Unreachable => {
                (pair.connect_unreachable().is_some(), "the pair has no unreachable address".to_string())
            }
            Need::MaxOps(most) => {
                (can.max_ops <= most, format!("it holds {} ops, more than {most}", can.max_ops))
            }
            Need::MaxOpBytes(under) => {
                let most = can.max_op_bytes;
                (most < under, format!("an op may have {most} bytes, too many to try more"))
            }
            Need::Checksums => (can.checksums, "it does not verify bytes".to_string()),
            Need::Damage => (pair.can_damage(), "the pair damages no bytes".to_string()),
            Need::Notifications if !can.notifications => (false, "it carries no notifications".to_string()),
            Need::Notifications => (pair.letters().is_some(), "the pair has no mailbox".to_string()),
            Need::Lists => (can.max_pieces > 0, "it takes contiguous ops only".to_string()),
        };
        (!has).then_some(reason)
    }
}

/// One row of the suite.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// Its name, which is also the test's.
    pub name: &'static str,
    /// What it needs in order to apply.
    pub needs: &'static [Need],
    /// The row: panics with a report where the transport breaks the contract.
    pub check: fn(&mut dyn Pair),
}

/// What became of a row that did not fail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It passed.
    Passed,
    /// It does not apply, for this reason.
    Skipped(String),
}

/// All rows.
pub fn suite() -> Vec<Row> {
    rows::ALL.concat()
}

/// Runs the row of this name on a pair. Panics where the transport breaks the contract.
///
/// A skip is printed, and appended to the file that `ORBIT_TE_SKIP_FILE` names, if it names one.
pub fn run(name: &str, pair: &mut dyn Pair) -> Verdict {
    let Some(row) = suite().into_iter().find(|row| row.name == name) else {
        panic!("the suite has no row `{name}`");
    };
    if let Some(reason) = row.needs.iter().find_map(|need| need.lacking(pair)) {
        let transport = pair.initiator().capabilities().name;
        skip_aloud(&format!("skipped: {transport}: {name}: {reason}"));
        return Verdict::Skipped(reason);
    }
    (row.check)(pair);
    Verdict::Passed
}

fn skip_aloud(line: &str) {
    println!("{line}");
    let Some(path) = std::env::var_os("ORBIT_TE_SKIP_FILE") else { return };
    let file = std::fs::OpenOptions::new().append(true).create(true).open(&path);
    if let Err(why) = file.and_then(|mut file| writeln!(file, "{line}")) {
        panic!("ORBIT_TE_SKIP_FILE ({}) can't be written: {why}", Path::new(&path).display());
    }
}

/// One `#[test]` for each row of the conformance suite. The argument is a path to a function that makes a fresh
/// [`Pair`](crate::testing::Pair).
#[macro_export]
macro_rules! conformance_tests {
    ($make:path) => {
        $crate::conformance_tests! {
            @tests $make;
            small_sizes_round_trip,
            large_sizes_round_trip,
            many_small_ops,
            reads_and_writes_mixed,
            seen_over_another_link,
            memory_is_let_go_after_reads,
            memory_is_let_go_after_writes,
            full_takes_no_more_and_loses_nothing,
            budget_is_kept,
            poll_adds_to_what_is_there,
            tokens_may_be_used_again,
            nothing_comes_of_nothing,
            drained_is_told,
            unknown_region_is_refused,
            stale_generation_is_refused,
            wrong_key_is_refused,
            out_of_range_is_refused,
            length_zero_is_refused,
            length_over_the_limit_is_refused,
            missing_right_is_refused,
            refusals_beside_good_ops,
            retired_region_is_refused,
            nothing_lands_after_retire,
            at_once_is_whole_or_leaves_nothing,
            nothing_lands_after_revoke,
            ops_wait_for_their_link,
            unknown_link_fails_its_ops,
            link_numbers_are_not_used_again,
            disconnect_in_the_middle,
            broken_link_fails_alone,
            broken_link_in_reads,
            broken_link_comes_back,
            lanes_are_counted,
            close_in_the_middle,
            closed_stays_closed,
            unreachable_peer,
            cancel_completes_once_and_lets_go,
            cancel_right_away,
            cancel_of_strangers_is_ignored,
            cancel_one_among_many,
            cancel_while_the_target_is_silent,
            idle_sleeps,
            no_wake_up_is_lost,
            random_ops_against_a_model,
            lists_round_trip,
            bad_piece_refuses_the_list,
            list_over_a_limit_is_refused,
            list_without_a_right_is_refused,
            good_lists_beside_refused_ones,
            list_is_found_by_a_following_read,
            lists_are_let_go,
            cancel_in_the_middle_of_lists,
            broken_link_in_lists,
            verified_sizes_round_trip,
            verified_beside_plain,
            verified_lists_round_trip,
            verified_are_refused,
            verified_are_cancelled,
            damage_is_found,
            damage_in_lists_is_found,
            notices_are_taken,
            notices_wait_for_their_link,
            refused_notices_are_told,
            many_notices_on_many_links,
            notices_on_a_broken_link,
            cancel_of_notices,
            disconnect_with_notices,
            close_with_notices,
            notices_of_unknown_links,
        }
    };
    (@tests $make:path; $($row:ident,)*) => {
        $(
            #[test]
            fn $row() {
                let mut pair = $make();
                $crate::testing::run(stringify!($row), &mut pair);
            }
        )*

        #[test]
        fn every_row_of_the_suite_is_a_test() {
            let rows: Vec<_> = $crate::testing::suite().iter().map(|row| row.name).collect();
            assert_eq!(rows, [$(stringify!($row)),*], "`conformance_tests!` and `suite` list different rows");
        }
    };
}
