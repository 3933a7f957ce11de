//! What happens to a fabric from outside. Rule: each does what its like does to a real device, as the program sees it.

use super::fabric::FakeFabric;
use super::plan::{CqeFault, When, Where};
use super::spec::{DeviceId, GidSpec};
use super::state::{Health, PortAt, State};
use crate::error::Errno;
use crate::handle::{About, AsyncEvent, AsyncKind};
use crate::verb::Verb;
use ibverbs_sys::*;

/// What a port's loss of carrier does to WRs in flight; real devices differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carrier {
    /// They wait as long as their QP has it, and then fail.
    Retried,
    /// They are flushed at once, without a first cause.
    Flushed,
    /// They wait for ever: no CQE comes.
    Stuck,
}

impl FakeFabric {
    /// Makes calls of a verb fail. Such a call has no effect.
    pub fn fail(&self, verb: Verb, when: When, errno: Errno) {
        self.state().plan.fail(Some(verb), when, errno);
    }

    /// Makes calls of any verb fail, counted together.
    pub fn fail_any(&self, when: When, errno: Errno) {
        self.state().plan.fail(None, when, errno);
    }

    /// Makes posts of sends stop after so many WRs of their chain, with an errno.
    pub fn short_posts(&self, when: When, taken: u32, errno: Errno) {
        self.state().plan.short_posts(when, taken, errno);
    }

    /// Makes CQEs late, or lost.
    pub fn fault_cqes(&self, place: Where, fault: CqeFault) {
        self.state().plan.cqes.push((place, fault));
    }

    /// Ends all that was planned: calls, posts and CQEs are as they should be. CQEs on their way stay so.
    pub fn heal(&self) {
        self.state().plan.heal();
    }

    fn at_port(&self, device: DeviceId, port: u8, change: impl FnOnce(&mut State, PortAt)) {
        let mut state = self.state();
        let at = PortAt { device: device.0, port };
        if state.port(at).is_none() {
            state.violation(format!("the test names port {port} of device {}, which is not there", device.0));
            return;
        }
        change(&mut state, at);
        state.changed();
    }

    /// Loses all that goes through a port, without a sign: WRs fail when their retries are used up.
    pub fn black_hole(&self, device: DeviceId, port: u8, on: bool) {
        self.at_port(device, port, |state, at| {
            if let Some(port) = state.port_mut(at) {
                port.black_hole = on;
            }
        });
    }

    /// Cuts two ports off from each other, and from nobody else.
    pub fn cut(&self, a: (DeviceId, u8), b: (DeviceId, u8), on: bool) {
        self.at_port(a.0, a.1, |state, a| {
            let b = PortAt { device: b.0.0, port: b.1 };
            let pair = (a.min(b), a.max(b));
            if on {
                state.cuts.insert(pair)
            } else {
                state.cuts.remove(&pair)
            };
        });
    }

    /// Takes the carrier of a port: `PORT_ERR`.
    pub fn carrier_down(&self, device: DeviceId, port: u8, how: Carrier) {
        self.at_port(device, port, |state, at| {
            if let Some(port) = state.port_mut(at) {
                port.up = false;
                port.stuck = how == Carrier::Stuck;
            }
            state.device_event(at.device, at.port, IBV_EVENT_PORT_ERR);
            if how == Carrier::Flushed {
                state.flush_port(at);
            }
        });
    }

    /// Gives it back: `PORT_ACTIVE`. WRs that wait go on.
    pub fn carrier_up(&self, device: DeviceId, port: u8) {
        self.at_port(device, port, |state, at| {
            if let Some(port) = state.port_mut(at) {
                (port.up, port.stuck) = (true, false);
            }
            state.device_event(at.device, at.port, IBV_EVENT_PORT_ACTIVE);
        });
    }

    /// Changes a place of a port's GID table: `GID_CHANGE`. QPs that send from it fail.
    pub fn set_gid(&self, device: DeviceId, port: u8, index: u8, gid: Option<GidSpec>) {
        self.at_port(device, port, |state, at| {
            if let Some(place) =
                state.port_mut(at).and_then(|port| port.spec.gids.get_mut(usize::from(index)))
            {
                *place = gid;
            }
            state.device_event(at.device, at.port, IBV_EVENT_GID_CHANGE);
        });
    }

    /// Changes a port's LID: `LID_CHANGE`. QPs that are addressed by the old one are not reached any more.
    pub fn set_lid(&self, device: DeviceId, port: u8, lid: u16) {
        self.at_port(device, port, |state, at| {
            if let Some(port) = state.port_mut(at) {
                port.spec.lid = lid;
            }
            state.device_event(at.device, at.port, IBV_EVENT_LID_CHANGE);
        });
    }

    /// Changes a port's P_Key table: `PKEY_CHANGE`. QPs of different partitions don't reach each other.
    pub fn set_pkey(&self, device: DeviceId, port: u8, index: u16, pkey: u16) {
        self.at_port(device, port, |state, at| {
            if let Some(place) =
                state.port_mut(at).and_then(|port| port.spec.pkeys.get_mut(usize::from(index)))
            {
                *place = pkey;
            }
            state.device_event(at.device, at.port, IBV_EVENT_PKEY_CHANGE);
        });
    }

    /// Flushes all QPs of a device at once, without a first cause.
    pub fn flush_storm(&self, device: DeviceId) {
        let mut state = self.state();
        for qp in 0..state.qps.len() as u32 {
            if state.qps[qp as usize].alive && state.qps[qp as usize].device == device.0 {
                state.fail_qp(qp);
            }
        }
    }

    /// Breaks a QP: `QP_FATAL`, and its WRs are flushed.
    pub fn qp_fatal(&self, device: DeviceId, number: u32) {
        self.tell(device, AsyncEvent { kind: AsyncKind::QpFatal, about: About::Qp(number) });
        let mut state = self.state();
        if let Some(qp) = state.qp_by_number(device.0, number) {
            state.fail_qp(qp);
        }
    }

    /// Has a device tell an event, without anything that goes with it.
    pub fn tell(&self, device: DeviceId, event: AsyncEvent) {
        let mut state = self.state();
        let kind = event.kind.number();
        match event.about {
            About::Device => return state.device_event(device.0, 0, kind),
            About::Port(port) => return state.device_event(device.0, port, kind),
            About::Qp(number) => {
                let live = state.qp_by_number(device.0, number).filter(|qp| state.qps[*qp as usize].alive);
                if let Some(qp) = live {
                    return state.qp_event(qp, kind);
                }
            }
            About::Cq(_) | About::Srq(_) | About::Other => {}
        }
        state.violation(format!("the test has an event told of what is not there: {event}"));
    }

    /// Breaks a CQ, by [`crate::handle::Cq::cookie`]: `CQ_ERR`; no CQE comes any more, and its QPs fail.
    pub fn cq_fatal(&self, cookie: u64) {
        let mut state = self.state();
        match (0..).zip(&state.cqs).find(|(_, cq)| cq.alive && cq.cookie == cookie).map(|(at, _)| at) {
            Some(cq) => state.break_cq(cq),
            None => {
                state.violation(format!("the test names CQ {cookie}, which is not there"));
            }
        }
    }

    /// Breaks a device: `DEVICE_FATAL`. Every call on what was made from it is `EIO`, but those that free; nothing completes any more. It
    /// can be opened again after [`FakeFabric::device_back`].
    pub fn device_fatal(&self, device: DeviceId) {
        self.state().lose_device(device.0, Health::Broken);
    }

    /// Removes a device: as [`FakeFabric::device_fatal`], and it is in no list any more.
    pub fn remove_device(&self, device: DeviceId) {
        self.state().lose_device(device.0, Health::Removed);
    }

    /// The device works again, for those who open it again.
    pub fn device_back(&self, device: DeviceId) {
        let mut state = self.state();
        state.devices[device.0 as usize].health = Health::Good;
        state.changed();
    }
}

impl State {
    fn flush_port(&mut self, at: PortAt) {
        for qp in 0..self.qps.len() as u32 {
            let of = &self.qps[qp as usize];
            if of.alive && of.device == at.device && of.attr.port_num == at.port {
                self.fail_qp(qp);
            }
        }
    }
}
