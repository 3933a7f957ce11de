//! Notifications: each is delivered at most once, to the life it was sent to; one whose answer came is delivered; and one that was
//! sent after another's answer had come is delivered after it. Does not check that a notification without an answer is lost.

use super::{Checker, Report};
use std::collections::BTreeMap;

#[derive(Debug)]
struct Note {
    from: usize,
    to: usize,
    /// In the order of all events of the run.
    sent: u64,
    answered: Option<u64>,
    delivered: Option<u64>,
}

/// All notifications of a run, by number.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    notes: BTreeMap<u64, Note>,
    events: u64,
}

impl Notes {
    fn event(&mut self) -> u64 {
        self.events += 1;
        self.events
    }

    /// One is sent; its number.
    pub(crate) fn sent(&mut self, from: usize, to: usize) -> u64 {
        let sent = self.event();
        self.notes.insert(sent, Note { from, to, sent, answered: None, delivered: None });
        sent
    }

    /// Its answer came.
    pub(crate) fn answered(&mut self, number: u64) {
        let now = self.event();
        if let Some(note) = self.notes.get_mut(&number) {
            note.answered = Some(now);
        }
    }

    /// The application of a life got it.
    pub(crate) fn delivered(&mut self, number: u64, to: usize, report: &mut Report) {
        let now = self.event();
        let mut wrong = |why: String| {
            report.violated(Checker::Notifications, format!("notification {number} at life {to}: {why}"));
        };
        let Some(note) = self.notes.get_mut(&number) else { return wrong("nobody sent it".to_string()) };
        if note.delivered.replace(now).is_some() {
            wrong("it came a second time".to_string());
        }
        if note.to != to {
            wrong(format!("it was sent to life {}", note.to));
        }
        let (from, answered) = (note.from, note.answered);
        let overtook = self.notes.iter().find(|(_, other)| {
            let same = other.from == from && other.to == to;
            same && other.delivered.is_some_and(|at| at < now) && answered.is_some_and(|at| at < other.sent)
        });
        if let Some((other, _)) = overtook {
            wrong(format!("it came after {other}, which was sent when its answer had come"));
        }
    }

    /// At the end, for a life that has taken all that was in its queue.
    pub(crate) fn check(&self, to: usize, report: &mut Report) {
        for (number, note) in self.notes.iter().filter(|(_, note)| note.to == to) {
            if note.answered.is_some() && note.delivered.is_none() {
                let from = note.from;
                report.violated(
                    Checker::Notifications,
                    format!(
                        "notification {number} from life {from} was answered and never came to life {to}"
                    ),
                );
            }
        }
    }
}
