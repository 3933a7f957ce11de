//! Tests of the planner as a whole.
