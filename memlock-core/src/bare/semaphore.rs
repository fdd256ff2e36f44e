//! Semaphores by bare functions: permits are owned by the process, and any of its threads may
//! release them.

use std::time::Duration;

use super::default_client::{default_client, existing_client};
use super::holdings::{HeldPermit, MOST, holdings};
use crate::bound::Thread;
use crate::error::{Answer, ErrorKind, Result};
use crate::names;
use crate::report::Report;
use crate::semaphore::Semaphore;
use crate::wait::Wait;
use crate::wait::entries::Request;

/// The lease of handles that acquire nothing: any will do.
const NO_LEASE: Duration = Duration::from_secs(1);

/// Sets a semaphore up with this number of permits, to be stored for `duration` after its last use:
/// [`Answer::Ok`], or [`Answer::Exists`] if it existed already.
///
/// # Errors
/// As [`Semaphore::set_up`].
pub fn semaphore_set_up(name: &[u8], permits: u32, duration: Duration) -> Result<Report> {
    let semaphore = default_client()?.semaphore(name, permits, NO_LEASE)?;
    Ok(semaphore.report_set_up(semaphore.set_up(duration)?))
}

/// Acquires a permit for at most `duration`, waiting as long as necessary: [`Answer::Ok`],
/// [`Answer::Interrupted`], or [`Answer::NotFound`] if the semaphore was not set up.
///
/// # Errors
/// As [`Semaphore::acquire_with`].
pub fn semaphore_acquire(name: &[u8], duration: Duration) -> Result<Report> {
    acquire(name, duration, &Wait::FOREVER)
}

/// As [`semaphore_acquire`], but tries once: [`Answer::Ok`], [`Answer::Busy`],
/// [`Answer::Recovering`] or [`Answer::NotFound`].
///
/// # Errors
/// As [`Semaphore::acquire_with`].
pub fn semaphore_acquire_nonblock(name: &[u8], duration: Duration) -> Result<Report> {
    acquire(name, duration, &Wait::NEVER)
}

/// As [`semaphore_acquire`], with a wait of the caller's choice.
///
/// # Errors
/// As [`Semaphore::acquire_with`].
pub fn acquire(name: &[u8], duration: Duration, wait: &Wait<'_>) -> Result<Report> {
    let semaphore = known(name, duration)?;
    let acquired = match semaphore.acquire_or_report(Request::default(), wait) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(error.into()),
        acquired => acquired?,
    };
    Ok(match acquired {
        Ok(permit) => {
            let held = HeldPermit { permit, thread: Thread::current() };
            let mut holdings = holdings();
            holdings.permits.entry(name.to_vec()).or_default().push(held);
            if holdings.semaphores.len() >= MOST {
                holdings.semaphores.clear();
            }
            holdings.semaphores.insert(name.to_vec(), semaphore);
            Answer::Ok.into()
        }
        Err(report) => report,
    })
}

/// Releases a permit that this process acquired: this thread's latest, or, if it has none, the
/// process's oldest. [`Answer::Ok`], [`Answer::Lost`] or [`Answer::NotHeld`].
///
/// # Errors
/// [`ErrorKind::Unreachable`], [`ErrorKind::Unknown`] or [`ErrorKind::Protocol`]: the permit is
/// still held, and may be released again.
pub fn semaphore_release(name: &[u8]) -> Result<Report> {
    names::check(name)?;
    let mut holding = holdings();
    let Some(held) = holding.permits.get_mut(name) else {
        drop(holding);
        let text = "is held by this process: it acquired none, or has released them";
        return Ok(match existing_client().map(|client| client.open_semaphore(name, NO_LEASE)) {
            Some(Ok(semaphore)) => {
                Report::naming(semaphore.subject(), Answer::NotHeld, |subject| {
                    format!("No permit of the {subject} {text}.")
                })
            }
            _ => Answer::NotHeld.into(),
        });
    };
    let thread = Thread::current();
    let mut held = held.remove(held.iter().rposition(|held| held.thread == thread).unwrap_or(0));
    if holding.permits.get(name).is_some_and(Vec::is_empty) {
        holding.permits.remove(name);
    }
    drop(holding);
    match held.permit.release() {
        Ok(released) => Ok(held.permit.report(released)),
        Err(error) => {
            holdings().permits.entry(name.to_vec()).or_default().push(held);
            Err(error)
        }
    }
}

/// Removes a semaphore for all clients: [`Answer::Ok`], or [`Answer::NotFound`] if there was none.
/// Permits that this process holds are lost.
///
/// # Errors
/// As [`Semaphore::tear_down`].
pub fn semaphore_tear_down(name: &[u8]) -> Result<Report> {
    let semaphore = known(name, NO_LEASE)?;
    Ok(if semaphore.tear_down()? { Answer::Ok.into() } else { semaphore.report_not_found() })
}

/// The semaphore as this process knows it, which saves reads.
fn known(name: &[u8], lease: Duration) -> Result<Semaphore> {
    let known = holdings().semaphores.get(name).cloned();
    match known {
        Some(known) => known.with_lease(lease),
        None => default_client()?.open_semaphore(name, lease),
    }
}
