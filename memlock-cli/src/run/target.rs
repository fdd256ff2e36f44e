//! What the command line asks for: a lock, or permits of a semaphore.

use std::fmt;
use std::os::unix::ffi::OsStrExt;

use memlock_core::lease::MIN_LEASE;
use memlock_core::semaphore::Holder;
use memlock_core::{Client, Guard, Mutex, Request, Semaphore, Wait, Waited};

use crate::args::Run;
use crate::connect::server_of;
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
        let lease =
            args.max_hold.map_or(args.lease, |longest| longest.max(MIN_LEASE).min(args.lease));
        let (what, key) = if args.semaphore.is_none() && args.permits.is_none() {
            (What::Lock(client.mutex(name, lease)?), client.keys().lock(name))
        } else {
            let semaphore = match args.semaphore {
                Some(permits) => client.semaphore(name, permits, lease)?,
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

    pub(super) fn acquire(&self, wait: &Wait<'_>) -> Result<Waited<Acquired>, CliError> {
        fn boxed<G: Guard + 'static>(waited: Waited<G>) -> Waited<Acquired> {
            match waited {
                Waited::Done(guard) => Waited::Done(Box::new(guard)),
                Waited::Busy => Waited::Busy,
                Waited::TimedOut => Waited::TimedOut,
                Waited::Interrupted => Waited::Interrupted,
            }
        }
        Ok(match &self.what {
            What::Lock(mutex) => boxed(mutex.lock_with(wait)?),
            What::Permits(semaphore, request) => boxed(semaphore.acquire_with(*request, wait)?),
        })
    }

    /// The holder, as far as the item tells: what is read is already past.
    pub(super) fn held_by(&self) -> Option<String> {
        match &self.what {
            What::Lock(mutex) => mutex.owner().ok().flatten().map(|owner| {
                let since =
                    owner.record.as_ref().map(|record| format!(", since {}", date(record.since)));
                format!("held by {}{}", holder_of(&owner), since.unwrap_or_default())
            }),
            What::Permits(semaphore, _) => semaphore.status().ok().flatten().map(|status| {
                let free = format!("{} of {} permits are free", status.available, status.permits);
                let named =
                    status.holders.iter().take(NAMED).map(|Holder { host, pid, since, .. }| {
                        format!("{}, since {}", process(host, *pid), date(*since))
                    });
                let named: Vec<String> = named.collect();
                match status.holders.len() {
                    0 => free,
                    all if all > NAMED => {
                        format!("{free}, held by {}; and {} more", named.join("; "), all - NAMED)
                    }
                    _ => format!("{free}, held by {}", named.join("; ")),
                }
            }),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}
