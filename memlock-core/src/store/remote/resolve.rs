//! The addresses of a host name. `getaddrinfo` has no time limit, and a name server that is down
//! holds it up for half a minute: so it runs in a thread of its own, one for each name.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crate::clock::{Clock, Moment};
use crate::error::{Error, Result};
use crate::fork::ForkLocal;
use crate::sync::{Mutex, MutexGuard};
use crate::thread::{self, Signal};

/// After this time a lookup that has not ended is given up, and addresses that nobody has waited for
/// count no more.
const OLD: Duration = Duration::from_secs(60);

type Found = std::result::Result<Vec<SocketAddr>, String>;

/// The lookup of one name. Those that need the name at the same time share it.
struct Lookup {
    began: Moment,
    found: Mutex<Option<Found>>,
    has_ended: Signal,
}

impl Lookup {
    fn new(began: Moment) -> Lookup {
        Lookup { began, found: Mutex::new(None), has_ended: Signal::default() }
    }

    fn found(&self) -> MutexGuard<'_, Option<Found>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, host: &str, port: u16) {
        let found = ask(host, port);
        *self.found() = Some(found);
        self.has_ended.wake_all();
    }

    /// Whether another call may still make use of it. The name server may answer again.
    fn is_useful(&self, now: Moment) -> bool {
        now.since(self.began) < OLD && !matches!(*self.found(), Some(Err(_)))
    }

    fn wait(&self, limit: Duration, clock: &dyn Clock) -> Option<Found> {
        let end = clock.now() + limit;
        loop {
            let found = self.found();
            let left = end.since(clock.now());
            if found.is_some() || left.is_zero() {
                return found.clone();
            }
            self.has_ended.sleep(found, left);
        }
    }
}

/// Takes as long as it takes.
fn ask(host: &str, port: u16) -> Found {
    match (host, port).to_socket_addrs() {
        Ok(found) => Ok(found.collect()),
        Err(error) => Err(error.to_string()),
    }
}

type Lookups = HashMap<(String, u16), Arc<Lookup>>;

/// Those under way, and those that ended when nobody waited any more.
static LOOKUPS: ForkLocal<Mutex<Lookups>> = ForkLocal::new();

fn lookups() -> MutexGuard<'static, Lookups> {
    LOOKUPS.get().lock().unwrap_or_else(PoisonError::into_inner)
}

/// The addresses of a name: at most one of each family. A name with more addresses may lead to
/// several servers, and clients would then use different servers for the same lock.
pub(super) fn resolve(
    host: &str,
    port: u16,
    limit: Duration,
    clock: &dyn Clock,
) -> Result<Vec<SocketAddr>> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let found = look_up(host, port, limit, clock)?.map_err(|error| {
        Error::unreachable(format!("The host name {host:?} cannot be resolved: {error}."))
    })?;
    let mut addresses: Vec<SocketAddr> = Vec::new();
    for address in found {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    let old = addresses.iter().filter(|address| address.is_ipv4()).count();
    if old > 1 || addresses.len() - old > 1 {
        return Err(Error::config(format!(
            "The host name {host:?} has several addresses ({addresses:?}), so it may lead to \
             several servers: name one address, or list the servers with commas."
        )));
    }
    Ok(addresses)
}

/// The error of a lookup that took all the time.
pub(super) fn too_slow(host: &str, limit: Duration) -> Error {
    Error::unreachable(format!(
        "The host name {host:?} was not resolved within {} ms: the name server is slow or down. \
         Write the address instead of the name, or raise connect_timeout.",
        limit.as_millis()
    ))
}

fn look_up(host: &str, port: u16, limit: Duration, clock: &dyn Clock) -> Result<Found> {
    let name = (host.to_owned(), port);
    let now = clock.now();
    let mut all = lookups();
    all.retain(|_, lookup| lookup.is_useful(now));
    let lookup = match all.get(&name) {
        Some(lookup) => Arc::clone(lookup),
        None => {
            let lookup = Arc::new(Lookup::new(now));
            let (running, (host, port)) = (Arc::clone(&lookup), name.clone());
            if thread::start("memlock-resolve", move || running.run(&host, port)).is_err() {
                drop(all);
                // Who does not want to wait goes without.
                return if limit.is_zero() { Ok(Ok(Vec::new())) } else { Ok(ask(&name.0, name.1)) };
            }
            all.insert(name.clone(), Arc::clone(&lookup));
            lookup
        }
    };
    drop(all);
    let found = lookup.wait(limit, clock).ok_or_else(|| too_slow(host, limit))?;
    let mut all = lookups();
    if all.get(&name).is_some_and(|known| Arc::ptr_eq(known, &lookup)) {
        all.remove(&name);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;

    #[test]
    fn addresses_are_not_looked_up() {
        for (text, address) in [("127.0.0.1", "127.0.0.1:7"), ("::1", "[::1]:7")] {
            let found = resolve(text, 7, Duration::ZERO, &SystemClock).unwrap();
            assert_eq!(found, [address.parse().unwrap()]);
        }
    }

    #[test]
    fn a_lookup_that_ended_late_is_what_the_next_one_gets() {
        let name = ("localhost".to_owned(), 7);
        let look_up = || look_up("localhost", 7, Duration::ZERO, &SystemClock);
        let lookup = match look_up() {
            Ok(found) => return assert!(found.is_ok()),
            Err(_) => Arc::clone(&lookups()[&name]),
        };
        let late = lookup.wait(Duration::from_secs(30), &SystemClock).unwrap();
        assert_eq!(look_up().unwrap(), late);
        assert!(!lookups().contains_key(&name));
    }

    #[test]
    fn a_failure_that_came_late_is_not_kept_nor_is_a_lookup_that_takes_too_long() {
        let began = Moment::from_boot(Duration::from_secs(1));
        let lookup = Lookup::new(began);
        assert!(lookup.is_useful(began + OLD / 2) && !lookup.is_useful(began + OLD));
        *lookup.found() = Some(Ok(Vec::new()));
        assert!(lookup.is_useful(began + OLD / 2) && !lookup.is_useful(began + OLD));
        *lookup.found() = Some(Err("later".to_owned()));
        assert!(!lookup.is_useful(began));
    }
}
