//! The reference passes the whole suite, so the suite can be passed.

use orbit_te_transport::testing::reference::{ReferenceOptions, ReferencePair};

fn pair() -> ReferencePair {
    ReferencePair::new(ReferenceOptions::default())
}

orbit_te_transport::conformance_tests!(pair);

/// Hardly any room, small pieces, late beginnings: everything happens in the middle of something else.
mod cramped {
    use super::*;

    fn pair() -> ReferencePair {
        let options = ReferenceOptions {
            max_ops: 3,
            max_op_bytes: 5 << 20,
            max_pieces: 9,
            max_list_bytes: 90_000,
            step_bytes: 20_000,
            delay: 5,
            handshake: false,
        };
        ReferencePair::new(options)
    }

    orbit_te_transport::conformance_tests!(pair);
}

/// Its links are made by words over the control link, one from each side, so the harness carries both.
mod talking {
    use super::*;

    fn pair() -> ReferencePair {
        ReferencePair::new(ReferenceOptions { handshake: true, ..ReferenceOptions::default() })
    }

    orbit_te_transport::conformance_tests!(pair);
}

/// More room than the suite fills, and every op done at once.
mod lavish {
    use super::*;

    fn pair() -> ReferencePair {
        let options = ReferenceOptions {
            max_ops: 200_000,
            max_op_bytes: u64::MAX,
            max_pieces: u32::MAX,
            max_list_bytes: 3 << 20,
            step_bytes: u64::MAX,
            delay: 0,
            handshake: false,
        };
        ReferencePair::new(options)
    }

    orbit_te_transport::conformance_tests!(pair);

    #[test]
    fn what_does_not_apply_is_skipped_aloud() {
        use orbit_te_transport::testing::{Verdict, run};
        for row in ["full_takes_no_more_and_loses_nothing", "length_over_the_limit_is_refused"] {
            assert!(matches!(run(row, &mut pair()), Verdict::Skipped(_)), "{row}");
        }
    }
}
