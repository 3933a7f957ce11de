//! Nothing: the plants are the examples.
