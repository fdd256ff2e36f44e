//! The judge of keeping: what a renewer may write, what its holder may believe by it, and what that
//! holder is told.
//!
//! | what happens | must be |
//! | --- | --- |
//! | a renewer writes a lock, or a line of a semaphore | a renewal: of its own, which was there, and which nobody has let go of |
//! | a renewal leaves | before the old lease is over by its holder's clock, and before `max_hold` is |
//! | its holder believes in it for longer | after a renewal on the server, and for no longer than the lease, counted from when that left |
//! | its holder is told of the danger | once for each time, with the time that is left, and before it is told of the loss |
//! | its holder is told of the loss | once, soon, for a reason that is true, and not if all went well |
//! | after that, and after a release | nothing is renewed, believed or told |
//!
//! That whoever believes to hold something has it on the server is checked as for any holder: see
//! `holds`.

use std::collections::BTreeMap;

use memlock_core::{Loss, Notice};

use super::semaphores::text::Line;
use super::{Doer, Oracle, token_of};
use crate::server::{Change, Server};
use crate::time::{MICRO, MILLI, Nanos, SECOND};

/// If all goes well for so long, what is kept is renewed: a renewer tries again after a second, and
/// in a few packets.
const TIME_ENOUGH: Nanos = 2500 * MILLI;
/// What is kept when less than that is left of its lease may be too late.
const TO_BEGIN: Nanos = 100 * MILLI;
/// A lease that is shorter may end before a renewer that waits for one slow answer after another
/// gets to tell of the danger.
const TIME_TO_WARN: Nanos = 12 * SECOND;
/// Until then its holder is told of a loss, however long the renewer waits for the server; and where
/// nothing goes wrong.
const TOLD_WITHIN: Nanos = 20 * SECOND;
const TOLD_AT_ONCE: Nanos = 30 * MILLI;
/// How much longer than the lease a server keeps it, from when the renewal was carried out.
const AFTER_THE_LEASE: Nanos = 3 * SECOND + 50 * MILLI;
/// What is lost by reckoning between two clocks.
const ROUNDING: Nanos = 10 * MICRO;

/// All that was ever kept, by its token.
#[derive(Debug, Default)]
pub(crate) struct Keeping {
    all: BTreeMap<String, Kept>,
}

#[derive(Debug)]
struct Kept {
    process: usize,
    hold: u64,
    lease: Nanos,
    /// From then on it is not renewed.
    longest: Option<Nanos>,
    /// Since when its holder believed in it, and until when.
    beliefs: Vec<(Nanos, Nanos)>,
    /// When the last renewal left that was carried out.
    renewed: Option<Nanos>,
    /// When its holder was last told of the danger, and what was said to be its end.
    warned: Option<(Nanos, Nanos)>,
    /// Until when it was said to be held, as its holder was warned: to be compared with what it
    /// believes by then.
    claimed: Option<Nanos>,
    told: Option<Loss>,
    /// Since when its holder knows that it is lost; and that it has let go, or is about to.
    known_lost: Option<Nanos>,
    releasing: bool,
    ended: Option<Nanos>,
}

impl Kept {
    /// Until when its holder believes in it, or did so last.
    fn until(&self) -> Nanos {
        self.beliefs.iter().rev().map(|&(_, until)| until).find(|&until| until > 0).unwrap_or(0)
    }

    fn began(&self) -> Nanos {
        self.beliefs.first().map_or(0, |&(began, _)| began)
    }

    /// Whether a renewer that waits for the server gets to tell of the danger before the end.
    fn has_time_to_warn(&self) -> bool {
        self.lease >= TIME_TO_WARN && self.began() + self.lease < self.until() + SECOND
    }

    /// Whether its holder believed in it at that time, or just before something happened then.
    fn is_believed(&self, at: Nanos) -> bool {
        let before = self.beliefs.iter().rev().find(|&&(since, _)| since < at);
        let then = self.beliefs.iter().filter(|&&(since, _)| since == at);
        before.into_iter().chain(then).any(|&(_, until)| until + ROUNDING > at)
    }
}

impl Keeping {
    /// For which lease something is renewed.
    pub(crate) fn lease_of(&self, token: &str) -> Option<Nanos> {
        self.all.get(token).map(|kept| kept.lease)
    }
}

impl Oracle {
    /// A hold is kept from now on.
    pub(crate) fn begins_to_keep(
        &mut self,
        hold: u64,
        lease: Nanos,
        longest: Option<Nanos>,
        now: Nanos,
    ) {
        self.tally.kept += 1;
        let Some(held) = self.holds.get(&hold) else { return };
        let kept = Kept {
            process: held.process,
            hold,
            lease,
            longest,
            beliefs: vec![(now, held.until)],
            renewed: None,
            warned: None,
            claimed: None,
            told: None,
            known_lost: None,
            releasing: false,
            ended: None,
        };
        self.keeping.all.insert(held.token.clone(), kept);
    }

    // --- what is on the server
    // ---------------------------------------------------------------------

    /// A renewer has written a lock: it is renewed.
    pub(crate) fn keeper_wrote_lock(
        &mut self,
        change: &Change,
        now: Nanos,
        by: Doer,
        server: &Server,
    ) {
        let (before, after) =
            (token_of(change.before.as_deref()), token_of(change.after.as_deref()));
        self.keeper_wrote(before.as_deref(), after.as_deref(), by);
        let lease = after.and_then(|token| self.keeping.lease_of(&token)).unwrap_or(0);
        let latest = now + lease + AFTER_THE_LEASE + lease / 5000;
        if change.expires.is_none_or(|expires| server.shows_at(expires) > latest) {
            self.object(format!("{} was renewed for longer than its lease", change.key));
        }
    }

    /// One token, which a renewer has written in place of another.
    fn keeper_wrote(&mut self, before: Option<&str>, after: Option<&str>, by: Doer) {
        let (Some(token), true) = (after, before == after) else {
            return self.object(format!("a keeper made {after:?} of {before:?}"));
        };
        let sent = self.renewers.begun(by);
        let Some(kept) = self.keeping.all.get_mut(token) else {
            return self.object(format!("{token} was renewed, which nobody keeps"));
        };
        let objection = if kept.process != by.process {
            Some("by another process")
        } else if kept.ended.is_some_and(|ended| ended < sent) {
            Some("after it was let go of")
        } else if kept.longest.is_some_and(|longest| longest + ROUNDING < sent) {
            Some("after the longest time that it may be held")
        } else if !kept.is_believed(sent) {
            Some("after its lease was over")
        } else {
            None
        };
        kept.renewed = kept.renewed.max(Some(sent));
        self.tally.renewals += 1;
        if let Some(objection) = objection {
            self.object(format!("{token} was renewed {objection}"));
        }
    }

    /// A process has written a semaphore: the lines of what it keeps whose ends it has moved are
    /// renewed, be it by its renewer or by another thread, which writes for it.
    pub(crate) fn renewed_lines(&mut self, before: &[Line], after: &[Line], by: Doer) {
        let of =
            |lines: &[Line], token: &str| lines.iter().find(|line| line.token == token).cloned();
        for line in after {
            let is_kept = |kept: &&mut Kept| kept.process == by.process;
            let Some(kept) = self.keeping.all.get_mut(&line.token).filter(is_kept) else {
                continue;
            };
            match of(before, &line.token) {
                // Or it may have been renewed within the same second.
                Some(was) if was == *line => kept.renewed = kept.renewed.max(Some(by.sent)),
                was => {
                    let was = was.map(|line| line.token);
                    self.keeper_wrote(was.as_deref(), Some(&line.token), by);
                }
            }
        }
    }

    // --- what its holder believes
    // ------------------------------------------------------------------

    /// Its holder would say now that it is held until then; or, if that is over, that it is not.
    pub(crate) fn believes(&mut self, token: &str, until: Nanos, now: Nanos, server: &Server) {
        let Some(kept) = self.keeping.all.get_mut(token) else { return };
        let until = if until > now { until } else { 0 };
        let last = kept.beliefs.last().map_or(0, |&(_, last)| last);
        let claimed = kept
            .claimed
            .take()
            .filter(|claimed| claimed.abs_diff(until) > MILLI + kept.lease / 1000);
        let mut objection = claimed.map(|_| "for another time than was told of the danger");
        let mut ends = None;
        if let Some(hold) = self.holds.get_mut(&kept.hold) {
            hold.until = until;
            ends = match hold.permits {
                _ if hold.lost => None,
                None => server.ends(&hold.key),
                Some(_) => {
                    self.semaphores.line(&hold.key, token).map(|line| server.shows_at(line.until))
                }
            };
        }
        // Who lets go does not rely on it; that its lease is over is another thing.
        if last.abs_diff(until) < ROUNDING || until == 0 && (last <= now || kept.releasing) {
            return objection
                .into_iter()
                .for_each(|what| self.object(format!("{token} is held {what}")));
        }
        let longer = until > kept.until() + ROUNDING;
        if longer {
            let slack = kept.lease / 5000;
            if kept.renewed.is_none_or(|sent| sent + kept.lease + slack < until) {
                objection = Some("for longer than a renewal on the server explains");
            } else if ends.is_some_and(|ends| ends + slack < until) {
                objection = Some("for longer than the server keeps it");
            }
            // As long as no more than half of a lease is left, it is in danger all the time.
            let is_safe = until > now + kept.lease / 2 + MILLI;
            kept.warned = kept.warned.filter(|&(when, _)| when == now || !is_safe);
        }
        if until > 0 && kept.known_lost.is_some() {
            objection = Some("again, after its holder knew that it was lost");
        }
        if until > 0 && kept.ended.is_some() {
            objection = Some("again, after it was let go of");
        }
        kept.beliefs.push((now, until));
        if let Some(objection) = objection {
            self.object(format!("{token} is held {objection}"));
        }
    }

    // --- what its holder is told
    // -------------------------------------------------------------------

    /// The renewer tells something. `until`: when it ends, if it is that which is told.
    pub(crate) fn told(
        &mut self,
        token: &str,
        notice: Notice,
        until: Nanos,
        now: Nanos,
        stopped: Nanos,
        server: &Server,
    ) {
        let Some(kept) = self.keeping.all.get_mut(token) else { return };
        let mut objection = None;
        if kept.releasing || kept.ended.is_some() {
            objection = Some("though it was let go of");
        } else if kept.told.is_some() {
            objection = Some("after it was told of the loss");
        }
        match notice {
            Notice::AtRisk(_) => {
                let at_its_longest = kept.longest.is_some_and(|longest| longest <= now);
                // A later end means that it was renewed since the last warning. What the holder
                // believes at the end of this step is compared with that end.
                if kept.warned.is_some_and(|(_, end)| until <= end + MILLI) {
                    objection = objection.or(Some("once more"));
                } else if !at_its_longest
                    && (self.calm || until.saturating_sub(now) > kept.lease / 2 + MILLI)
                {
                    objection = objection.or(Some("though there is no danger"));
                }
                (kept.warned, kept.claimed) = (Some((now, until)), Some(until));
            }
            Notice::Lost(loss) => {
                let late = now.saturating_sub(kept.until());
                // A process that was stopped finds both at once.
                let was_stopped = stopped + kept.lease / 2 + MILLI > kept.until();
                let has_time = self.calm || kept.has_time_to_warn();
                if loss != Loss::Gone && kept.warned.is_none() && has_time && !was_stopped {
                    objection = objection.or(Some("and not of the danger before"));
                } else if loss != Loss::Gone && self.calm && late > TOLD_AT_ONCE {
                    objection = objection.or(Some("too late"));
                }
                kept.told = Some(loss);
            }
        }
        if let Some(objection) = objection {
            self.object(format!("the holder of {token} was told {notice:?}, {objection}"));
        }
        if let Notice::Lost(loss) = notice {
            self.learns(token, loss, now, server);
        }
    }

    /// Its holder learns that it is lost, from the renewer or because it has asked.
    pub(crate) fn learns(&mut self, token: &str, loss: Loss, now: Nanos, server: &Server) {
        let Some(kept) = self.keeping.all.get(token) else { return };
        let is_over = kept.until() <= now + ROUNDING;
        let held_longest = kept.longest.is_some_and(|longest| longest <= now + ROUNDING);
        let objection = match loss {
            Loss::Gone => {
                let there =
                    self.holds.get(&kept.hold).is_some_and(|hold| self.is_there(hold, server));
                let written = self.tokens.get(token);
                let again = written.is_some_and(|written| written.again);
                let gone = written.is_some_and(|written| written.gone.is_some());
                ((there || !gone) && !again).then_some("and nothing has taken it away")
            }
            _ if !is_over => Some("and its lease is not over"),
            Loss::MaxHold => (!held_longest).then_some("and it might have been held for longer"),
            Loss::Expired => self.should_be_renewed(kept, now).then_some("and all went well"),
        };
        if let Some(kept) = self.keeping.all.get_mut(token) {
            kept.known_lost.get_or_insert(now);
        }
        if let Some(objection) = objection {
            self.object(format!("{token} was called lost ({loss:?}), {objection}"));
        }
    }

    /// Whether all went well for long enough that what ended then should have been renewed.
    fn should_be_renewed(&self, kept: &Kept, now: Nanos) -> bool {
        let since = kept.until().saturating_sub(TIME_ENOUGH.min(kept.lease));
        kept.began() + TO_BEGIN < kept.until()
            && self.renewers.all_was_well(kept.process, since, now)
    }

    /// To be called now and then: those who lost something are told of it. `stopped`: until when
    /// each process was.
    pub(crate) fn check_kept(&mut self, now: Nanos, stopped: impl Fn(usize) -> Nanos) {
        let silent = self.keeping.all.iter().find(|(_, kept)| {
            let runs_since = kept.until().max(stopped(kept.process));
            let is_held = self.holds.contains_key(&kept.hold);
            is_held && !kept.releasing && kept.told.is_none() && runs_since + TOLD_WITHIN < now
        });
        if let Some(token) = silent.map(|(token, _)| token.clone()) {
            self.object(format!("the holder of {token} is not told that it is lost"));
        }
    }

    // --- letting go
    // --------------------------------------------------------------------------------

    /// Its holder begins to let go, or goes on keeping it, as that had failed.
    pub(crate) fn lets_go(&mut self, token: &str, releasing: bool) {
        if let Some(kept) = self.keeping.all.get_mut(token) {
            kept.releasing = releasing;
        }
    }

    /// Its holder has let go.
    pub(crate) fn has_let_go(&mut self, token: &str, now: Nanos) {
        if let Some(kept) = self.keeping.all.get_mut(token) {
            kept.ended.get_or_insert(now);
        }
    }

    /// Its holder was told, when it let go, that it had been lost before.
    pub(crate) fn was_lost_before(&mut self, token: &str, now: Nanos, server: &Server) {
        let Some(kept) = self.keeping.all.get(token) else { return };
        let (hold, over) = (kept.hold, kept.known_lost.is_some() || kept.until() <= now + ROUNDING);
        if over {
            self.tally.lost += 1;
            self.forgets(hold);
        } else {
            self.told_lost(hold, now, server);
        }
    }

    /// A check said that it is there.
    pub(crate) fn was_there(&mut self, token: &str, begun: Nanos) {
        let gone = self.tokens.get(token).filter(|token| !token.again).and_then(|token| token.gone);
        if let Some((when, cause)) = gone.filter(|&(when, _)| when < begun) {
            self.object(format!(
                "{token} was said to be there, and it was gone at {:.6} ({cause:?})",
                when as f64 / 1e9
            ));
        }
    }
}
