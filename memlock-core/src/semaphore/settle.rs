//! Releasing and extending: steps that only the holder may take, and finding out what came of them.

use std::time::Duration;

use super::Wrote;
use super::permit::Permit;
use super::seen::Seen;
use crate::client::ATTEMPTS;
use crate::clock::Moment;
use crate::contention::{ROUNDS, give_way};
use crate::error::{Error, ErrorKind, Result};
use crate::flaw::{self, Flaw};
use crate::lease::Lease;
use crate::store::{Item, Op, Reply};

/// How long a request may be under way, for the purpose of looking for what it left.
pub(super) const LATEST_ARRIVAL: Duration = Duration::from_secs(10);

/// A step that only the holder may take.
#[derive(Clone, Copy)]
pub(super) enum Step {
    Release,
    Extend(Lease),
}

/// What came of a step.
pub(super) enum Settled {
    /// It was taken. After a release: how many are available, and the queue, if there is one.
    Taken { room: u32, queue: Option<Item> },
    /// The permits were not ours any more.
    Lost,
}

impl Permit {
    /// Takes a step that only the holder may take.
    pub(super) fn settle(&mut self, step: Step) -> Result<Settled> {
        let semaphore = self.semaphore.clone();
        let clock = semaphore.client.clock();
        let queue_key = semaphore.key.waiters();
        let now = clock.now();
        let mut known = self.seen.take().filter(|seen| seen.is_usable(now));
        let (mut error, mut failures) = (None, 0);
        for round in 0..ROUNDS {
            let looked = match known.take() {
                Some(seen) => Ok(Some(seen)),
                None => semaphore.look(),
            };
            let mut seen = match looked {
                Ok(Some(seen)) => seen,
                Ok(None) => return Ok(self.gone(step, None)),
                Err(failed) if error.is_none() => {
                    let in_doubt = self.release_in_doubt && failed.is_outage();
                    return Err(if in_doubt { Error::unsettled(Some(failed), "semaphore") } else { failed });
                }
                Err(failed) => return Err(Error::unsettled(Some(failed), "semaphore")),
            };
            if seen.record.held_by(self.token).is_none() {
                if !flaw::has(Flaw::ReleaseAnyPermit) {
                    return Ok(self.gone(step, Some(&seen)));
                }
                if let Some(other) = seen.record.holdings.first().map(|holding| holding.token) {
                    seen.record.give_back(other);
                }
            }
            let now = clock.now();
            let slow = seen.is_slow();
            let deadline = match step {
                Step::Release => {
                    seen.record.give_back(self.token);
                    self.deadline
                }
                Step::Extend(lease) => {
                    let (until, counted_from) = seen.lease(lease, now);
                    seen.record.extend(self.token, until);
                    // It may reach the server at any time until its reply is given up.
                    self.server_until = self.server_until.max(lease.gone(now) + LATEST_ARRIVAL);
                    lease.deadline(counted_from)
                }
            };
            let queue = [Op::Get { key: &queue_key }];
            let more = if matches!(step, Step::Release) { &queue[..] } else { &[] };
            match semaphore.write(seen, more) {
                Ok(Wrote { done: false, after, .. }) => {
                    known = if give_way(&semaphore.client, round)? { None } else { after };
                }
                Ok(Wrote { room, replies, after, .. }) => {
                    let queue = match replies.into_iter().next() {
                        Some(Reply::Value(item)) => Some(item),
                        _ => None,
                    };
                    match step {
                        Step::Release => semaphore.memory().seen = after,
                        Step::Extend(lease) => {
                            (self.seen, self.last_lease) = (after, lease);
                            let late = flaw::has(Flaw::ExtensionFromReply);
                            let deadline =
                                deadline + if late { clock.now().since(now) } else { Duration::ZERO };
                            let before = std::mem::replace(&mut self.deadline, deadline);
                            if slow {
                                self.believe_if_it_lasts(before)?;
                            }
                        }
                    }
                    return Ok(Settled::Taken { room, queue });
                }
                Err(failure) if !failure.sent && error.is_none() => {
                    // This one changed nothing; an earlier one may have.
                    let in_doubt = self.release_in_doubt;
                    return Err(if in_doubt {
                        Error::unsettled(Some(failure.error), "semaphore")
                    } else {
                        failure.error
                    });
                }
                Err(failure) => {
                    if failure.sent {
                        // It may be the shorter lease that counts from now on.
                        self.deadline = self.deadline.min(deadline);
                        self.release_in_doubt |= matches!(step, Step::Release);
                    }
                    failures += 1;
                    error = Some(failure.error);
                    if failures == ATTEMPTS {
                        break;
                    }
                }
            }
        }
        Err(Error::unsettled(error, "semaphore"))
    }

    /// After an extension that may have been reckoned from a clock that stood still: counts on no more than the server's clock
    /// leaves, or, if that cannot be told, on what it was before.
    fn believe_if_it_lasts(&mut self, before: Moment) -> Result<()> {
        self.believe_the_server().map_err(|error| {
            self.deadline = self.deadline.min(before);
            let text = "They were extended, but for how long cannot be told";
            Error::new(ErrorKind::Unknown, format!("{text}: {error}"))
        })
    }

    /// Our permits are not there. If an earlier release of ours got no reply, it was most likely that which gave them back: but not
    /// if it is another semaphore, nor if our lease was over before.
    fn gone(&self, step: Step, seen: Option<&Seen>) -> Settled {
        let same = seen.filter(|seen| seen.record.token == self.of);
        let in_time = self.semaphore.client.clock().now() < self.deadline;
        match (step, same) {
            (Step::Release, Some(seen)) if self.release_in_doubt && in_time => {
                Settled::Taken { room: seen.record.available(seen.now), queue: None }
            }
            _ => Settled::Lost,
        }
    }
}
