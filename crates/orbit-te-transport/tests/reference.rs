//! The reference passes the whole suite, so the suite can be passed.

use orbit_te_transport::testing::reference::{ReferenceOptions, ReferencePair};

fn pair() -> ReferencePair {
    ReferencePair::new(ReferenceOptions::default())
}

orbit_te_transport::conformance_tests!(pair);
