//! What is known beside the histories.

use std::collections::HashMap;
use std::time::Duration;

use crate::history::{Call, Span};
use crate::stopwatch::Marks;

/// How much longer than a lease the server may keep what was asked for: to the next full second,
/// two more, and one of its clock.
pub const KEPT: Duration = Duration::from_secs(4);

/// A semaphore of the histories.
#[derive(Clone, Copy, Debug)]
pub struct Semaphore {
    /// Its name.
    pub name: &'static str,
    /// How many permits there are.
    pub permits: u32,
    /// How many a call asks for at most.
    pub most: u32,
}

/// What is known beside the histories.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// When the server lost what it had stored: at some moment of each span, or all the time.
    pub losses: Vec<Span>,
    /// When the server stood still, and until its clock may have been wrong.
    pub pauses: Vec<Span>,
    /// When processes stood still.
    pub stops: Vec<(usize, Span)>,
    /// When processes were killed.
    pub deaths: HashMap<usize, Duration>,
    /// Nothing is wrong with server and wire: no call may fail.
    pub sound: bool,
    /// Even then a grant may be slow: it is counted by the server's TTL, and if the server's clock
    /// had to catch up, nothing is left of the lease, and the wait fails.
    pub slow_grants: bool,
    /// The servers give no new grants for a while after they were started.
    pub recovers: bool,
    /// No request can come late, so that the possible holders of a mutex are known.
    pub punctual: bool,
    /// From when on all that matters was read: what happened before that moment proves nothing by
    /// being absent.
    pub since: Duration,
    /// Until when the histories were read.
    pub now: Duration,
    /// How much longer than its limit a call may take, and a wait that is cancelled.
    pub bound: Duration,
    /// The stopwatch by which that time is counted; without marks it is the elapsed time.
    pub marks: Marks,
    /// The semaphores of the histories.
    pub semaphores: &'static [Semaphore],
}

impl Facts {
    /// Whether the server may have lost something within that time.
    pub(super) fn lost_within(&self, span: Span) -> bool {
        self.losses.iter().any(|loss| loss.meets(span))
    }

    /// From when on the server may have lost what this call was granted, so that it is no fault of
    /// ours.
    pub(super) fn may_be_lost_from(
        &self,
        granted: &Call,
        extended: &[&Call],
        deadline: Duration,
    ) -> Option<Duration> {
        let life = Span { from: granted.began, to: deadline };
        let losses = self.losses.iter().filter(|loss| loss.meets(life)).map(|loss| loss.from);
        let mut stored = extended.iter().copied().chain([granted]);
        let paused = stored.any(|call| self.pauses.iter().any(|pause| pause.meets(call.span())));
        losses.chain(paused.then_some(granted.began)).min()
    }

    /// Whether what was asked for may have been handed over to this call, which was refused: a waiter
    /// whose process stands still may be the next, and gives back what it was given when it goes on.
    pub(super) fn may_have_been_next(&self, refused: &Call) -> bool {
        let stood = |(process, stop): &(usize, Span)| {
            *process == refused.who.process && stop.meets(refused.span())
        };
        refused.limit() != Some(Duration::ZERO) && self.stops.iter().any(stood)
    }

    /// Until when the server may keep what this call stored. The dead send nothing more.
    pub(super) fn kept_until(&self, call: &Call) -> Duration {
        let death = self.deaths.get(&call.who.process).copied().unwrap_or(Duration::MAX);
        call.ended().min(death).saturating_add(call.lease() + KEPT)
    }
}
