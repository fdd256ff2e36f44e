//! The first attempt of every acquisition. The call enters the wait only if this attempt fails and
//! the caller has time.

use crate::error::{ErrorKind, Result};
use crate::target::Target;
use crate::wait::local::LocalWaiters;
use crate::wait::policy::Event;
use crate::wait::{self, Acquire, Interruption, SelfWait, Start, Wait, Waited};

/// Acquires the target immediately, or waits for it as specified by `wait`.
///
/// If the very first attempt cannot reach the server, the error is returned immediately, unless
/// [`Wait::may_begin`]. Later outages are tolerated up to [`Wait::outage`].
pub(super) fn acquire<G: Acquire>(
    acquire: &mut G,
    wait: &Wait<'_>,
    target: &Target,
    local: &LocalWaiters<G::HandoffRequest, G::Guard>,
) -> Result<Waited<G::Guard>> {
    let interruption = Interruption::new(wait, &target.context);
    if interruption.is_early() {
        return Ok(Waited::Interrupted);
    }
    if wait.is_once() {
        return Ok(match acquire.attempt(false, &|| interruption.is_set())? {
            Some(guard) => Waited::Done(guard),
            // An interrupted attempt has not found out whether the target is available.
            None if interruption.was_seen() => Waited::Interrupted,
            None if acquire.recovers() => Waited::Recovering,
            None => Waited::Busy,
        });
    }
    let began = target.now();
    let deadline = wait.limit().map(|limit| began + limit);
    let is_over =
        || interruption.is_set() || deadline.is_some_and(|deadline| target.now() >= deadline);
    let known = local.arrive(&target.key, began);
    let attempted = match known {
        Some(_) => None,
        None => Some(acquire.attempt(false, &is_over)),
    };
    let first = match attempted.transpose() {
        Ok(Some(Some(guard))) => return Ok(Waited::Done(guard)),
        Ok(attempted) => Ok(attempted.map(|_| Event::Missed)),
        Err(error) if !acquire.can_go_on_after(&error) => return Err(error),
        Err(error) => match error.kind() {
            ErrorKind::Unknown => Err(error),
            ErrorKind::Unreachable if wait.may_begin(&error, &target.context) => Err(error),
            _ => return Err(error),
        },
    };
    if first.is_err() && interruption.is_set() {
        return Ok(Waited::Interrupted);
    }
    let self_wait = SelfWait::new(wait.released_afterwards());
    if first.is_ok() {
        self_wait.ask(acquire, target)?;
    }
    let start = Start { began, deadline, known, first, self_wait };
    wait::run(acquire, wait, target, local, &interruption, start)
}
