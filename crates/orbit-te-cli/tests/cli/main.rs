//! The command line, tested as its users meet it: real processes, real files, exit codes and words.

mod bench;
mod common;
mod demo;
mod doctor;
mod explain;
mod files;
mod refusals;
mod routes;
mod without_verbs;
