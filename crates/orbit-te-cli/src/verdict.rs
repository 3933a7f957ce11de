//! What a plan says of the routes, in words and as values. Rule: every route that is not taken has its reason; the words are short, and the
//! codes and names are the catalogue's.

use orbit_te::route::{Plan, Reason, RouteId, Why};
use serde::Serialize;
use std::time::Duration;

/// A route that is not taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct NotTaken {
    pub(crate) route: &'static str,
    pub(crate) code: u16,
    pub(crate) name: &'static str,
    pub(crate) reason: String,
    pub(crate) remedy: &'static str,
}

impl NotTaken {
    pub(crate) fn new(route: RouteId, reason: Reason) -> NotTaken {
        NotTaken {
            route: route.name(),
            code: reason.code(),
            name: reason.name(),
            reason: reason.to_string(),
            remedy: reason.remedy(),
        }
    }

    /// All routes that the plan does not take.
    pub(crate) fn all(plan: &Plan) -> Vec<NotTaken> {
        plan.others.iter().map(|(route, reason)| NotTaken::new(route, reason)).collect()
    }
}

/// Why the route was taken, to stand behind its name.
pub(crate) fn why(why: Why) -> String {
    match why {
        Why::Fastest => "the fastest of those that can".to_string(),
        Why::Preferred => "preferred, and no other is faster by enough".to_string(),
        Why::OnlyOne => "the only one that can".to_string(),
        Why::Demanded => "as demanded".to_string(),
        Why::Policy { rule } => format!("by rule {rule} of the policy"),
        Why::Probe => "to measure it again".to_string(),
        Why::Retry => "after another one failed".to_string(),
        Why::Spilled => "since so much is under way on the usual one".to_string(),
        Why::LastResort => "since nothing better is left".to_string(),
        other => other.to_string(),
    }
}

/// Why a route was not taken, shorter than the reason's own words where those repeat what stands beside them.
pub(crate) fn short(reason: Reason) -> String {
    let us = |us: u32| time(Duration::from_micros(u64::from(us)));
    match reason {
        Reason::Slower { expected_us, chosen_us } => {
            format!("slower (expected {} instead of {})", us(expected_us), us(chosen_us))
        }
        Reason::TooLittleGain { expected_us, chosen_us } => {
            format!("faster by too little (expected {} instead of {})", us(expected_us), us(chosen_us))
        }
        other => other.to_string(),
    }
}

/// A plan in one line: the route, why it is taken, and why each other one is not.
pub(crate) fn line(plan: &Plan) -> String {
    let mut words = match &plan.route {
        Ok(route) => format!("{route}, {}", why(plan.why)),
        Err(refusal) => return refusal.to_string(),
    };
    for (route, reason) in plan.others.iter() {
        words.push_str(&format!("; not {route}: {}", short(reason)));
    }
    words
}

/// A time for people.
pub(crate) fn time(time: Duration) -> String {
    match time.as_nanos() as f64 {
        ns if ns < 10e3 => format!("{:.1} µs", ns / 1e3),
        ns if ns < 10e6 => format!("{:.0} µs", ns / 1e3),
        ns if ns < 10e9 => format!("{:.0} ms", ns / 1e6),
        ns => format!("{:.0} s", ns / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_their_unit() {
        for (ns, text) in [
            (0, "0.0 µs"),
            (1_234, "1.2 µs"),
            (72_400, "72 µs"),
            (8_400_000, "8400 µs"),
            (12_000_000, "12 ms"),
        ] {
            assert_eq!(time(Duration::from_nanos(ns)), text);
        }
    }

    #[test]
    fn words_are_short() {
        let slower = Reason::Slower { expected_us: 380, chosen_us: 72 };
        assert_eq!(short(slower), "slower (expected 380 µs instead of 72 µs)");
        assert_eq!(short(Reason::LinkDown), "its link is down");
        assert_eq!(why(Why::Policy { rule: 2 }), "by rule 2 of the policy");
    }
}
