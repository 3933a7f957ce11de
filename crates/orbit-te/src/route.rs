//! Which way an op goes: the planner that a worker's router asks for each op, and all it decides by. Rule: pure values; no I/O, no
//! clock, no lock. Whoever asks gives the time, and learns of every route that was not taken why it was not.
//!
//! - [`plan`] chooses for one op, among the [`RouteState`]s that the router gives it, and names a [`Reason`] for every other one.
//! - [`Rates`] are what a route was measured to need; [`Health`] how long it rests after failures.
//! - [`Policy`] is what the user wrote; [`Ruleset`] the part of it that holds for one segment of one peer.
//! - [`Description`] is all that the planner was told of a segment, to be written down and asked again elsewhere.
//! - [`Choices`] remember what was chosen last, so that a change is told once. [`ReasonCounts`] count the reasons.
//!
//! `docs/routes.md` says it for users: the order of the decisions, all reasons, and the keys of a policy.

mod choice;
mod decide;
mod description;
mod health;
mod id;
mod plan;
mod policy;
mod rates;
mod reason;
mod rule;
#[cfg(test)]
mod tests;

pub use choice::{Change, Choices};
pub use decide::plan;
pub use description::{Description, DescriptionError, RouteFacts};
pub use health::Health;
pub use id::{MAX_ROUTES, RouteId, RouteSet, RouteSetIter};
pub use plan::{Caps, Causes, Plan, Question, Refusal, RouteState, Why};
pub use policy::{Floor, FloorAction, Policy, PolicyError, Ruleset, Settings};
pub use rates::{CLASSES, Prior, Rates, SizeClass, Verdict};
pub use reason::{Reason, ReasonCounts};
pub use rule::{Memory, Rule, SegmentPattern};
