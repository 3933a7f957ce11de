//! Every planted breach is found, by the row that is about it and for the right reason.

#![allow(unsafe_code)]

use orbit_te_transport::testing::faulty::{Faulty, Plant};
use orbit_te_transport::testing::reference::{ReferenceOptions, ReferencePair};
use orbit_te_transport::testing::{Verdict, run};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

fn planted(plant: Plant) -> ReferencePair {
    let mut pair = ReferencePair::wrapped(ReferenceOptions::default(), |reference, target| {
        // SAFETY: the rows run under the suite's harness, which keeps all memory of a row that fails; that the row fails is
        // what these tests assert.
        Box::new(unsafe { Faulty::new(reference, plant, target) })
    });
    pair.limit = Duration::from_secs(2);
    pair
}

fn check(plant: Plant, row: &str, reason: &str) {
    let mut pair = planted(plant);
    let failure = match catch_unwind(AssertUnwindSafe(|| run(row, &mut pair))) {
        Ok(Verdict::Passed) => panic!("`{row}` passes with {plant:?} in the transport"),
        Ok(Verdict::Skipped(why)) => panic!("`{row}` does not apply: {why}"),
        Err(failure) => failure,
    };
    let text = failure.downcast_ref::<String>().map_or("(no text)", String::as_str);
    assert!(text.contains(reason), "`{row}` finds {plant:?}, and not because of `{reason}`:\n{text}");
}

macro_rules! plants {
    ($($test:ident: $plant:ident, $row:literal, $reason:literal;)*) => {
        $(
            #[test]
            fn $test() {
                check(Plant::$plant, $row, $reason);
            }
        )*
    };
}

plants! {
    completes_twice: CompletesTwice, "many_small_ops", "completed twice";
    loses_completion: LosesCompletion, "many_small_ops", "it is drained, and ops that it accepted";
    completes_early: CompletesEarly, "large_sizes_round_trip", "are not in place";
    claims_at_once: ClaimsAtOnce, "at_once_is_whole_or_leaves_nothing", "are not in place";
    touches_after_read: TouchesAfterRead, "memory_is_let_go_after_reads", "is 0xff and should be";
    sends_again: SendsAgain, "memory_is_let_go_after_writes", "the target's region";
    overruns_target: OverrunsTarget, "small_sizes_round_trip", "the target's region";
    misses_last_byte: MissesLastByte, "small_sizes_round_trip", "1 bytes from";
    counts_too_few: CountsTooFew, "small_sizes_round_trip", "success with 0 of 1 bytes";
    ignores_rights: IgnoresRights, "missing_right_is_refused", "does not permit succeeded";
    writes_then_refuses: WritesThenRefuses, "missing_right_is_refused", "the target's region";
    lands_after_retire: LandsAfterRetire, "nothing_lands_after_retire", "the target's region";
    succeeds_after_retire: SucceedsAfterRetire, "nothing_lands_after_retire", "after the region had been withdrawn";
    lands_in_a_retired_region: LandsAfterRetire, "retired_region_is_refused", "the target's region";
    refusal_breaks_link: RefusalBreaksLink, "refusals_beside_good_ops", "failed with LinkBroken";
    fails_other_link: FailsOtherLink, "broken_link_fails_alone", "should have succeeded, and failed with LinkBroken";
    lands_after_break: LandsAfterBreak, "broken_link_fails_alone", "the target's region";
    loses_ops_of_broken_link: LosesOpsOfBrokenLink, "broken_link_fails_alone", "it is drained, and ops that it accepted";
    loses_ops_at_close: LosesOpsAtClose, "close_in_the_middle", "everything ends after closing: not within";
    drops_when_full: DropsWhenFull, "full_takes_no_more_and_loses_nothing", "it declares room for 64 ops";
    exceeds_budget: ExceedsBudget, "budget_is_kept", "a budget of";
    clears_the_buffer: ClearsTheBuffer, "poll_adds_to_what_is_there", "stood in the buffer before";
    lands_after_cancel: LandsAfterCancel, "cancel_right_away", "should be";
    lands_after_late_cancel: LandsAfterCancel, "cancel_completes_once_and_lets_go", "should be";
    lands_after_silence: LandsAfterCancel, "cancel_while_the_target_is_silent", "should be";
    says_untouched: SaysUntouched, "broken_link_fails_alone", "should be";
    ignores_cancel: IgnoresCancel, "cancel_while_the_target_is_silent", "without the target: not within";
    cancels_strangers: CancelsStrangers, "cancel_of_strangers_is_ignored", "which was never submitted";
    sleeps_through_replies: SleepsThroughReplies, "no_wake_up_is_lost", "a lost wake-up";
    never_sleeps: NeverSleeps, "idle_sleeps", "says `Sleep`: not within";
    counts_lanes_of_the_gone: CountsLanesOfTheGone, "lanes_are_counted", "which is no link";
    says_drained: SaysDrained, "drained_is_told", "drained is true";
    never_drained: NeverDrained, "nothing_comes_of_nothing", "it is not drained";
    swaps_pieces: SwapsPieces, "lists_round_trip", "are not in place";
    overruns_piece: OverrunsPiece, "lists_round_trip", "the target's region";
    checks_as_it_goes: ChecksAsItGoes, "bad_piece_refuses_the_list", "the target's region";
    forgets_the_piece: ForgetsThePiece, "bad_piece_refuses_the_list", "names piece None";
    allows_overlap: AllowsOverlap, "bad_piece_refuses_the_list", "are not in place";
    believes_length: BelievesLength, "list_over_a_limit_is_refused", "succeeded instead of failing";
    ignores_rights_of_lists: IgnoresRights, "list_without_a_right_is_refused", "does not permit succeeded";
    refused_list_breaks_link: RefusalBreaksLink, "good_lists_beside_refused_ones", "failed with LinkBroken";
    completes_lists_early: CompletesEarly, "list_is_found_by_a_following_read", "are not in place";
    keeps_the_list: KeepsTheList, "lists_are_let_go", "the target's region";
    list_lands_after_cancel: LandsAfterCancel, "cancel_in_the_middle_of_lists", "should be";
    list_lands_after_break: LandsAfterBreak, "broken_link_in_lists", "the target's region";
    verified_misses_last_byte: MissesLastByte, "verified_sizes_round_trip", "1 bytes from";
    refuses_to_verify: RefusesToVerify, "verified_beside_plain", "failed with Unsupported";
    swaps_verified_pieces: SwapsPieces, "verified_lists_round_trip", "are not in place";
    verified_is_written_and_refused: WritesThenRefuses, "verified_are_refused", "the target's region";
    verified_lands_after_cancel: LandsAfterCancel, "verified_are_cancelled", "should be";
    damage_passes: DamagePasses, "damage_is_found", "are not in place";
    sums_are_alike: SumsAreAlike, "damage_is_found", "the sums are";
    blames_other_bytes: BlamesOtherBytes, "damage_is_found", "the error blames others";
    damage_breaks_link: DamageBreaksLink, "damage_is_found", "failed with LinkBroken";
    damage_in_lists_passes: DamagePasses, "damage_in_lists_is_found", "are not in place";
    sums_of_lists_are_alike: SumsAreAlike, "damage_in_lists_is_found", "the sums are";
    random_finds_early: MissesLastByte, "random_ops_against_a_model", "ORBIT_TE_SEED=";
}
