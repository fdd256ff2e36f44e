//! What the command line asks for: a lock, or permits of a semaphore.

use std::fmt;
use std::os::unix::ffi::OsStrExt;

use memlock_core::lease::MIN_LEASE;
use memlock_core::semaphore::Holder;
use memlock_core::{Client, Guard, Mismatch, Mutex, Report, Request, Semaphore, Wait};

use crate::args::{OnMismatch, Run};
use crate::connect::{server_of, usual_lease};
use crate::duration::date;
use crate::exit::CliError;
use crate::show::{holder_of, process};
use crate::text::quoted;

/// How many holders of permits are named.
const NAMED: usize = 3;

/// A lock or permits, before they are acquired. It is written as its name and its server.
pub(super) struct Target {
    what: What,
    shown: String,
}

enum What {
    Lock(Mutex),
    Permits(Semaphore, Request),
}

/// What was acquired: a lock or permits.
pub(super) type Acquired = Box<dyn Guard>;

impl Target {
    pub(super) fn new(client: &Client, args: &Run) -> Result<Target, CliError> {
        let name = args.name.as_bytes();
        // A limit of the holding time limits the lease, too.
        let lease = args.lease.unwrap_or_else(|| usual_lease(client));
        let lease = args.max_hold.map_or(lease, |longest| longest.max(MIN_LEASE).min(lease));
        let (what, key) = if args.semaphore.is_none() && args.permits.is_none() {
            (What::Lock(client.mutex(name, lease)?), client.keys().lock(name))
        } else {
            let semaphore = match args.semaphore {
                Some(permits) => {
                    client.semaphore(name, permits, lease)?.with_mismatch(mismatch(args.mismatch))
                }
                None => client.open_semaphore(name, lease)?,
            };
            let (permits, priority) = (args.permits.unwrap_or(1), args.priority.unwrap_or(0));
            let request = Request { permits, priority, ..Request::default() };
            (What::Permits(semaphore, request), client.keys().semaphore(name))
        };
        let server = server_of(client, &key)
            .map_or_else(String::new, |server| format!(" on {}", server.name));
        Ok(Target { what, shown: format!("{}{server}", quoted(name)) })
    }

    /// Acquires it, or reports why not.
    ///
    /// # Errors
    /// As [`Mutex::lock_with`].
    pub(super) fn acquire(
        &self,
        wait: &Wait<'_>,
    ) -> memlock_core::Result<Result<Acquired, Report>> {
        fn boxed<G: Guard + 'static>(guard: G) -> Acquired {
            Box::new(guard)
        }
        Ok(match &self.what {
            What::Lock(mutex) => mutex.lock_or_report(wait)?.map(boxed),
            What::Permits(semaphore, request) => {
                semaphore.acquire_or_report(*request, wait)?.map(boxed)
            }
        })
    }

    /// Says which number of permits applies, if it is another one than the command line's.
    pub(super) fn mismatch(&self) -> Option<String> {
        match &self.what {
            What::Lock(_) => None,
            What::Permits(semaphore, _) => semaphore.report_mismatch(),
        }
    }

    /// Whether the server gives nothing new yet.
    pub(super) fn recovers(&self) -> bool {
        let recovery = match &self.what {
            What::Lock(mutex) => mutex.recovery(),
            What::Permits(semaphore, _) => semaphore.recovery(),
        };
        recovery.is_some()
    }

    /// The holder, as far as the item shows: what is read is already past. `None` if it shows no
    /// reason why nothing was acquired, such as when enough permits are available: the report of
    /// the attempt then says why.
    ///
    /// # Errors
    /// As for any read.
    pub(super) fn held_by(&self) -> memlock_core::Result<Option<String>> {
        Ok(match &self.what {
            What::Lock(mutex) => mutex.owner()?.map(|owner| {
                let since =
                    owner.record.as_ref().map(|record| format!(", since {}", date(record.since)));
                format!("held by {}{}", holder_of(&owner), since.unwrap_or_default())
            }),
            What::Permits(semaphore, request) => {
                let Some(status) = semaphore.status()? else { return Ok(None) };
                let says_nothing = self.recovers() && status.holders.is_empty();
                if says_nothing || status.available >= request.permits {
                    return Ok(None);
                }
                let free = format!("{} of {} permits are free", status.available, status.permits);
                let named =
                    status.holders.iter().take(NAMED).map(|Holder { host, pid, since, .. }| {
                        format!("{}, since {}", process(host, *pid), date(*since))
                    });
                let named: Vec<String> = named.collect();
                Some(match status.holders.len() {
                    0 => free,
                    all if all > NAMED => {
                        format!("{free}, held by {}; and {} more", named.join("; "), all - NAMED)
                    }
                    _ => format!("{free}, held by {}", named.join("; ")),
                })
            }
        })
    }
}

fn mismatch(action: OnMismatch) -> Mismatch {
    match action {
        OnMismatch::Follow => Mismatch::Follow,
        OnMismatch::Resize => Mismatch::Resize,
        OnMismatch::Refuse => Mismatch::Refuse,
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}
