//! The network as the TCP transport sees it. Rule: every range that a stream is asked to touch is shown to the checker first.

#![allow(unsafe_code)]

use super::{EndId, Shared};
use crate::check::touch::{Side, Touched};
use crate::net::control;
use crate::plant::Plant;
use crate::sys;
use orbit_te::simulation::{Accepted, ControlLink};
use orbit_te_tcp::TcpConfig;
use orbit_te_tcp::net::{IoRange, Net, Ready, Stream, StreamSigns};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::RawFd;

/// The network of one transport.
pub(crate) struct SimNet {
    pub(crate) net: Shared,
    pub(crate) life: usize,
    pub(crate) side: Side,
}

impl Net for SimNet {
    type Stream = SimStream;

    fn connect(&mut self, to: SocketAddr, _config: &TcpConfig) -> io::Result<SimStream> {
        let at = self.net.lock().connect(self.life, to);
        Ok(SimStream::new(self.net.clone(), at, self.life, self.side))
    }

    fn adopt(&mut self, _stream: &SimStream, _from: SocketAddr, _config: &TcpConfig) -> io::Result<()> {
        Ok(())
    }

    fn register(&mut self, stream: &mut SimStream, slot: usize) -> io::Result<()> {
        self.net.lock().register(stream.at(), self.side, slot);
        Ok(())
    }

    fn deregister(&mut self, stream: &mut SimStream) {
        self.net.lock().deregister(stream.at());
    }

    fn take_ready(&mut self, mut each: impl FnMut(usize, Ready)) {
        let ready = self.net.lock().take_ready(self.life, self.side);
        ready.into_iter().for_each(|(slot, ready)| each(slot, ready));
    }

    fn descriptor(&self) -> Option<RawFd> {
        None
    }

    fn lane_number(&mut self) -> io::Result<u32> {
        Ok(self.net.lock().rng.u32(..))
    }
}

/// Holds an end open.
pub(crate) struct Guard {
    pub(crate) net: Shared,
    pub(crate) at: EndId,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.net.lock().close(self.at);
    }
}

/// A connection's end, for the data plane.
pub(crate) struct SimStream {
    guard: Guard,
    life: usize,
    side: Side,
}

impl SimStream {
    pub(crate) fn new(net: Shared, at: EndId, life: usize, side: Side) -> SimStream {
        SimStream { guard: Guard { net, at }, life, side }
    }

    fn at(&self) -> EndId {
        self.guard.at
    }

    /// What the range is for.
    fn touch(&self, address: u64, length: usize, into: bool) -> Touched {
        let mut net = self.guard.net.lock();
        let net = &mut *net;
        let live = net.live.entry(self.life).or_default();
        let range = (address, length as u64);
        net.map.touched(range, into, (self.life, self.side), live, &mut net.report)
    }

    /// Does to a payload what happens to it on its way. What the answering side sends and receives for this op is changed here, at the
    /// side that asked, which knows that it is verified.
    fn damage(&self, what: Touched, address: u64, bytes: &mut [u8]) {
        let Touched::Verified { token, at } = what else { return };
        let mut net = self.guard.net.lock();
        let probability = net.faults.damage;
        if net.chance(probability) {
            let byte = net.rng.usize(..bytes.len());
            bytes[byte] ^= 1 << net.rng.u32(..8);
            net.damage.done((self.life, token), at + byte as u64, address + byte as u64);
        }
    }
}

impl Stream for SimStream {
    unsafe fn send(&mut self, ranges: &mut [IoRange]) -> io::Result<usize> {
        let wanted = ranges.iter().map(IoRange::len).sum();
        let mut left = self.guard.net.lock().room(self.at(), wanted, false)?;
        let (mut bytes, count) = (Vec::with_capacity(left), left);
        for range in ranges {
            let length = range.len().min(left);
            if length > 0 {
                let (what, from) = (self.touch(range.address(), length, false), bytes.len());
                // SAFETY: the caller vouches for the range.
                unsafe { sys::copy_out(range.address(), length, &mut bytes) };
                self.damage(what, range.address(), &mut bytes[from..]);
            }
            left -= length;
        }
        self.guard.net.lock().send(self.at(), bytes);
        Ok(count)
    }

    unsafe fn receive(&mut self, ranges: &mut [IoRange]) -> io::Result<usize> {
        let wanted = ranges.iter().map(IoRange::len).sum();
        let bytes = self.guard.net.lock().receive(self.at(), wanted)?;
        let mut left = bytes.as_slice();
        for range in ranges {
            let (now, later) = left.split_at(range.len().min(left.len()));
            left = later;
            if now.is_empty() {
                continue;
            }
            let what = self.touch(range.address(), now.len(), true);
            let mut now = now.to_vec();
            self.damage(what, range.address(), &mut now);
            // Verified ones are the business of another checker.
            if what == Touched::Payload && self.guard.net.lock().plant_now(Plant::WrongByte) {
                now[0] ^= 0x80;
            }
            // SAFETY: the caller vouches for the range.
            unsafe { sys::copy_in(range.address(), &now) };
        }
        Ok(bytes.len())
    }

    fn set_low_water(&mut self, _bytes: u32) -> io::Result<()> {
        Ok(())
    }

    fn connected(&mut self) -> io::Result<bool> {
        self.guard.net.lock().is_up(self.at())
    }

    fn signs(&self) -> Option<StreamSigns> {
        // Its packets have no acknowledgements of their own.
        None
    }

    fn shutdown(&mut self, _how: Shutdown) -> io::Result<()> {
        self.guard.net.lock().shut(self.at());
        Ok(())
    }
}

impl Read for SimStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let bytes = self.guard.net.lock().receive(self.at(), into.len())?;
        into[..bytes.len()].copy_from_slice(&bytes);
        Ok(bytes.len())
    }
}

impl Write for SimStream {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        let mut net = self.guard.net.lock();
        if !net.is_up(self.at())? {
            return Err(ErrorKind::NotConnected.into());
        }
        let count = net.room(self.at(), from.len(), true)?;
        net.send(self.at(), from.to_vec());
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Accepted for SimStream {
    fn into_control(self) -> io::Result<ControlLink> {
        Ok(control::link(self.guard))
    }
}
