//! What the clients leave behind when all of them have ended: nothing that does not come back by
//! itself, and in time.

use std::thread;
use std::time::Duration;

use memlock_core::lease::MIN_LEASE;
use memlock_core::{Client, Request, Wait, Waited};
use memlock_tests::check::{KEPT, Semaphore};

use crate::world::{NAMES, SEMAPHORES};
use crate::{Failure, now};

/// The dead hold permits for the rest of their lease, two seconds at most, and for as long as the
/// server may keep them longer: its clock shows whole seconds, may be two of them behind when it is
/// read, and ends are rounded up.
pub(crate) const COME_BACK: Duration = Duration::from_secs(2).saturating_add(KEPT);
/// For a lock the same, and a look.
pub(crate) const COME_FREE: Duration = Duration::from_secs(8);
const STEP: Duration = Duration::from_millis(20);

/// Permits that do not come back within that time, and such as have become more or fewer.
pub(crate) fn permits(client: &Client, within: Duration) -> Result<Vec<String>, Failure> {
    let end = now() + within;
    let mut found = Vec::new();
    for Semaphore { name, permits: size, .. } in SEMAPHORES {
        let semaphore = client.open_semaphore(name, MIN_LEASE)?;
        let status = loop {
            match semaphore.status()? {
                Some(status) if status.available < size && now() < end => thread::sleep(STEP),
                status => break status,
            }
        };
        // Where it was lost with the server's memory, and not used since, it has no holders.
        let Some(status) = status else { continue };
        if (status.permits, status.available) != (size, size) {
            found.push(format!(
                "{name} had {size} permits, and when all clients had ended: {status:?}"
            ));
            continue;
        }
        // All of them at once, and not one more. One of the dead may still be said to gather
        // several, and others may stand in the queue.
        let limit = within + COME_FREE;
        let all = Request { permits: size, ..Request::default() };
        match semaphore.acquire_with(all, &Wait::at_most(limit))? {
            Waited::Done(mut permits) => {
                if semaphore.try_acquire()?.is_some() {
                    found.push(format!("{name} gives more than its {size} permits"));
                }
                let _ = permits.release()?;
            }
            _ => found.push(format!("{name} did not give its {size} permits within {limit:?}")),
        }
    }
    Ok(found)
}

/// Locks that do not come free within that time.
pub(crate) fn locks(client: &Client, within: Duration) -> Result<Vec<String>, Failure> {
    let mut found = Vec::new();
    for name in NAMES {
        match client.mutex(name, MIN_LEASE)?.lock_for(within)? {
            Some(mut lock) => drop(lock.unlock()?),
            None => found.push(format!("{name} did not come free within {within:?} of the end")),
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(100);
    const LONG: Duration = Duration::from_secs(60);

    fn one_finding(found: Vec<String>, what: &str) {
        assert!(matches!(&found[..], [only] if only.starts_with(what)), "{found:#?}");
    }

    #[test]
    fn permits_that_somebody_keeps_are_found() {
        let client = Client::connect("memory://left-permits").unwrap();
        assert!(permits(&client, SOON).unwrap().is_empty(), "nobody has used any");
        let [Semaphore { permits: two, .. }, Semaphore { name, permits: four, .. }] = SEMAPHORES;
        let semaphore = client.semaphore(name, four, LONG).unwrap();
        let kept = semaphore.acquire().unwrap();
        one_finding(permits(&client, SOON).unwrap(), "p1 had 4 permits");
        drop(kept);
        assert!(permits(&client, SOON).unwrap().is_empty());
        let forgotten = semaphore.with_lease(MIN_LEASE).unwrap().acquire().unwrap();
        assert!(permits(&client, COME_BACK).unwrap().is_empty(), "a lease ends in time");
        drop(forgotten);
        semaphore.resize(two).unwrap();
        one_finding(permits(&client, SOON).unwrap(), "p1 had 4 permits");
        semaphore.resize(four + 1).unwrap();
        one_finding(permits(&client, SOON).unwrap(), "p1 had 4 permits");
    }

    #[test]
    fn a_lock_that_somebody_keeps_is_found() {
        let client = Client::connect("memory://left-locks").unwrap();
        assert!(locks(&client, SOON).unwrap().is_empty());
        let kept = client.mutex("m1", LONG).unwrap().lock().unwrap();
        one_finding(locks(&client, SOON).unwrap(), "m1 did not come free");
        drop(kept);
        assert!(locks(&client, SOON).unwrap().is_empty());
    }
}
