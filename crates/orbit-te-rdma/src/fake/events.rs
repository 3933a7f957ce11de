//! Async events. Rule: an event goes to each context that it concerns, and waits there until it is taken; what it is about can't be freed
//! between that and when it was given back.

use super::state::State;
use ibverbs_sys::*;

/// An event that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) kind: ibv_event_type,
    pub(super) about: Element,
}

/// What an event is about, by number among its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Element {
    /// A port; 0 for the device.
    Port(u8),
    Cq(u32),
    Qp(u32),
}

impl State {
    /// An event for one context.
    pub(super) fn event(&mut self, number: u32, event: Event) {
        let context = &mut self.contexts[number as usize];
        if context.alive {
            context.events.push_back(event);
            if let Some(fd) = &context.fd {
                fd.signal();
            }
            self.told |= self.host_bit(number);
        }
    }

    pub(super) fn qp_event(&mut self, qp: u32, kind: ibv_event_type) {
        self.event(self.qps[qp as usize].context, Event { kind, about: Element::Qp(qp) });
    }

    /// An event about a port, or about the device where the port is 0, for all who have the device open.
    pub(super) fn device_event(&mut self, device: u32, port: u8, kind: ibv_event_type) {
        for context in 0..self.contexts.len() as u32 {
            let at = &self.contexts[context as usize];
            if at.device == device && !at.dead {
                self.event(context, Event { kind, about: Element::Port(port) });
            }
        }
    }

    /// Events about an object that is freed are not seen any more.
    pub(super) fn forget_events(&mut self, context: u32, about: Element) {
        let context = &mut self.contexts[context as usize];
        let before = context.events.len();
        context.events.retain(|event| event.about != about);
        for _ in context.events.len()..before {
            if let Some(fd) = &context.fd {
                fd.take_back();
            }
        }
    }

    /// An event was taken, or given back, by so many.
    pub(super) fn count_unacked(&mut self, about: Element, taken: bool) {
        let unacked = match about {
            Element::Port(_) => return,
            Element::Cq(cq) => &mut self.cqs[cq as usize].unacked,
            Element::Qp(qp) => &mut self.qps[qp as usize].unacked,
        };
        match taken {
            true => *unacked += 1,
            false if *unacked == 0 => {
                self.violation("an async event was given back twice".to_string());
            }
            false => *unacked -= 1,
        }
    }
}
