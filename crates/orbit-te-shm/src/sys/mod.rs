//! The system calls, mappings and raw copies of this crate. Rule: everything here is small enough to be proven by reading.

#![allow(unsafe_code)]

mod copy;
mod crew;
mod gates;
mod process;
mod socket;
mod window;

pub(crate) use copy::{Method, Piece, copy, copy_pieces, look_up};
pub(crate) use crew::Crew;
pub(crate) use gates::{Gate, Gates};
pub(crate) use process::{Direction, MOST_RANGES, Process, is_alive};
pub(crate) use socket::{Received, Socket, bind, connect};
pub(crate) use window::Window;
