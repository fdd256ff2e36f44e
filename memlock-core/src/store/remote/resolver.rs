//! The addresses of a server's host name.
//!
//! A client stays with the address that answered first, its *pinned* address. Two servers may be
//! behind the two families of one name, as with `localhost`, and would grant a lock twice to a client
//! that goes from one to the other. The client follows the name only where the name itself has
//! moved. After a failure the name is resolved again:
//!
//! | the name | the next dial tries |
//! | --- | --- |
//! | leads to the pinned address, and maybe to others | the pinned address alone |
//! | leads to one other address, or to one of each family | those, one after the other |
//! | leads to several other addresses of one family | none: clients would use different servers |
//! | cannot be resolved now | the pinned address alone |
//!
//! `getaddrinfo` has no time limit. It therefore runs in a thread of its own, at most one for each
//! server. An answer that comes too late for one dial is used by the next one.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::{Clock, Moment};
use crate::error::{Error, ErrorKind, Result};
use crate::fork::ForkLocal;
use crate::thread::{self, Signal};

/// An answer that no dial has waited for is used if it was requested less than this ago.
const FRESH: Duration = Duration::from_secs(30);
/// The least time for the first answer, without which nothing can be tried: after 5 seconds, a
/// resolver whose first name server is dead asks the second one.
const FIRST: Duration = Duration::from_secs(7);

/// What is known of a server's host name. A child that was forked begins anew, and so does not wait
/// for a thread of its parent.
#[derive(Debug)]
pub(super) struct Resolver {
    state: ForkLocal<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    pinned: Option<SocketAddr>,
    /// Whether something has failed since the pinned address last answered.
    must_resolve: bool,
    /// The request that runs, or whose answer came too late.
    lookup: Option<Arc<Lookup>>,
}

/// The addresses that a dial tries.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Candidates {
    pub(super) addresses: Vec<SocketAddr>,
    /// Why the name could not be resolved, if that was tried.
    pub(super) unresolved: Option<String>,
}

/// The addresses of a name, or why there are none.
type Answer = std::result::Result<Vec<SocketAddr>, String>;

/// One request for the addresses of a name.
struct Lookup {
    began: Moment,
    answer: Mutex<Option<Answer>>,
    answered: Signal,
}

impl Resolver {
    pub(super) fn new() -> Resolver {
        Resolver { state: ForkLocal::new() }
    }

    /// The addresses to try. `limit` is that of the dial.
    pub(super) fn candidates(
        &self,
        host: &str,
        port: u16,
        limit: Duration,
        clock: &dyn Clock,
    ) -> Result<Candidates> {
        if let Ok(ip) = host.parse::<IpAddr>() {
            return Ok(only(SocketAddr::new(ip, port)));
        }
        let (pinned, must_resolve) = {
            let state = self.state();
            (state.pinned, state.must_resolve)
        };
        let limit = match pinned {
            Some(pinned) if !must_resolve => return Ok(only(pinned)),
            // The rest of the time is for the pinned address, if the name cannot be resolved.
            Some(_) => limit / 2,
            None => limit.max(FIRST),
        };
        choose(host, pinned, self.look_up(host, port, limit, clock))
    }

    /// The address that the client stays with.
    pub(super) fn pinned(&self) -> Option<SocketAddr> {
        self.state().pinned
    }

    /// The server answered at this address. `before`: the pinned address when the dial began. False
    /// if another dial has pinned another address meanwhile: two connections at the same time could
    /// otherwise lead to two servers.
    pub(super) fn pin(&self, before: Option<SocketAddr>, address: SocketAddr) -> bool {
        let mut state = self.state();
        let is_current = state.pinned == before || state.pinned == Some(address);
        if is_current {
            (state.pinned, state.must_resolve) = (Some(address), false);
        }
        is_current
    }

    /// Something has failed: the name is resolved before the next dial, because it may have moved.
    pub(super) fn distrust(&self) {
        self.state().must_resolve = true;
    }

    fn look_up(&self, host: &str, port: u16, limit: Duration, clock: &dyn Clock) -> Answer {
        let deadline = clock.now() + limit;
        let lookup = self.lookup(host, port, clock.now());
        loop {
            let answer = lookup.answer();
            if let Some(answer) = answer.clone() {
                self.take(&lookup);
                return answer;
            }
            let left = deadline.since(clock.now());
            if left.is_zero() || !lookup.answered.sleep(answer, left) {
                return Err(format!("no answer within {limit:?}"));
            }
        }
    }

    /// The request that runs, an answer that came late, or a new request.
    fn lookup(&self, host: &str, port: u16, now: Moment) -> Arc<Lookup> {
        let mut state = self.state();
        if let Some(lookup) = &state.lookup
            && lookup.is_useful(now)
        {
            return Arc::clone(lookup);
        }
        let lookup = Arc::new(Lookup::new(now));
        state.lookup = Some(Arc::clone(&lookup));
        drop(state);
        let (its, name) = (Arc::clone(&lookup), host.to_owned());
        if thread::start("memlock-resolve", move || its.run(&name, port)).is_err() {
            lookup.run(host, port);
        }
        lookup
    }

    /// The answer was used, and is not used by a later dial.
    fn take(&self, lookup: &Arc<Lookup>) {
        let mut state = self.state();
        state.lookup.take_if(|current| Arc::ptr_eq(current, lookup));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.get().lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lookup {
    fn new(began: Moment) -> Lookup {
        Lookup { began, answer: Mutex::default(), answered: Signal::default() }
    }

    fn run(&self, host: &str, port: u16) {
        let found = (host, port).to_socket_addrs().map_err(|error| error.to_string());
        *self.answer() = Some(found.map(Iterator::collect));
        self.answered.wake_all();
    }

    fn is_useful(&self, now: Moment) -> bool {
        match &*self.answer() {
            None => true,
            Some(Ok(_)) => now.since(self.began) < FRESH,
            Some(Err(_)) => false,
        }
    }

    fn answer(&self) -> MutexGuard<'_, Option<Answer>> {
        self.answer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Lookup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lookup").field("began", &self.began).finish_non_exhaustive()
    }
}

fn only(address: SocketAddr) -> Candidates {
    Candidates { addresses: vec![address], unresolved: None }
}

/// What is tried, by the table at the head of this file.
fn choose(host: &str, pinned: Option<SocketAddr>, answer: Answer) -> Result<Candidates> {
    let unreachable = |text: String| Error::new(ErrorKind::Unreachable, text);
    let found = match (answer, pinned) {
        (Ok(found), _) => found,
        (Err(why), Some(pinned)) => {
            return Ok(Candidates { addresses: vec![pinned], unresolved: Some(why) });
        }
        (Err(why), None) => {
            return Err(unreachable(format!("The host name {host:?} cannot be resolved: {why}.")));
        }
    };
    if let Some(pinned) = pinned.filter(|pinned| found.contains(pinned)) {
        return Ok(only(pinned));
    }
    let mut addresses: Vec<SocketAddr> = Vec::new();
    for address in found {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    let old = addresses.iter().filter(|address| address.is_ipv4()).count();
    if old <= 1 && addresses.len() - old <= 1 {
        return Ok(Candidates { addresses, unresolved: None });
    }
    let text = format!(
        "The host name {host:?} has several addresses ({addresses:?}), so it may lead to several \
         servers: name one address, or list the servers with commas."
    );
    // A name that is being moved may have several for a while.
    Err(if pinned.is_some() { unreachable(text) } else { Error::config(text) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;

    fn at(text: &str) -> SocketAddr {
        SocketAddr::new(text.parse().unwrap(), 7)
    }

    fn tries(pinned: Option<&str>, found: &[&str]) -> std::result::Result<Vec<String>, ErrorKind> {
        let answer = Ok(found.iter().map(|text| at(text)).collect());
        let chosen = choose("h", pinned.map(at), answer).map_err(|error| error.kind())?;
        assert_eq!(chosen.unresolved, None);
        Ok(chosen.addresses.iter().map(|address| address.ip().to_string()).collect())
    }

    #[test]
    fn a_name_is_followed_only_where_it_has_moved() {
        let (config, unreachable) = (Err(ErrorKind::Config), Err(ErrorKind::Unreachable));
        let these = |addresses: &[&str]| Ok(addresses.iter().map(|&it| it.to_owned()).collect());
        for (pinned, found, expected) in [
            (None, &["::1", "127.0.0.1"][..], these(&["::1", "127.0.0.1"])),
            (None, &["127.0.0.1", "127.0.0.1"], these(&["127.0.0.1"])),
            (None, &["127.0.0.1", "127.0.0.2"], config.clone()),
            (None, &["::1", "::2"], config),
            (Some("127.0.0.1"), &["::1", "127.0.0.1"], these(&["127.0.0.1"])),
            (Some("127.0.0.1"), &["127.0.0.2", "127.0.0.1"], these(&["127.0.0.1"])),
            (Some("127.0.0.1"), &["127.0.0.2"], these(&["127.0.0.2"])),
            (Some("127.0.0.1"), &["::2", "127.0.0.2"], these(&["::2", "127.0.0.2"])),
            (Some("127.0.0.1"), &["127.0.0.2", "127.0.0.3"], unreachable),
        ] {
            assert_eq!(tries(pinned, found), expected, "{pinned:?} {found:?}");
        }
    }

    #[test]
    fn without_an_answer_the_pinned_address_is_tried() {
        let no = || Err("no".to_owned());
        let chosen = choose("h", Some(at("::1")), no()).unwrap();
        assert_eq!(chosen, Candidates { addresses: vec![at("::1")], unresolved: no().err() });
        let error = choose("h", None, no()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        assert!(error.to_string().contains("\"h\" cannot be resolved: no"), "{error}");
    }

    #[test]
    fn an_ip_address_is_not_looked_up() {
        let resolver = Resolver::new();
        for host in ["127.0.0.1", "::1"] {
            let found = resolver.candidates(host, 7, Duration::ZERO, &SystemClock).unwrap();
            assert_eq!(found, only(at(host)));
        }
        assert!(resolver.state().lookup.is_none());
    }

    #[test]
    fn dials_at_the_same_time_pin_one_address() {
        let resolver = Resolver::new();
        assert!(resolver.pin(None, at("::1")) && resolver.pin(None, at("::1")));
        assert!(!resolver.pin(None, at("127.0.0.1")));
        assert!(resolver.pin(Some(at("::1")), at("::2")));
        assert!(!resolver.pin(Some(at("::1")), at("::1")));
        assert_eq!(resolver.pinned(), Some(at("::2")));
    }

    #[test]
    fn a_late_answer_is_used_once_if_it_is_fresh() {
        let (resolver, now) = (Resolver::new(), Moment::from_boot(Duration::from_secs(100)));
        let answered = |answer: Answer| {
            let lookup = Arc::new(Lookup::new(now));
            *lookup.answer() = Some(answer);
            resolver.state().lookup = Some(Arc::clone(&lookup));
            lookup
        };
        let is_used = |lookup: &Arc<Lookup>, later| {
            Arc::ptr_eq(lookup, &resolver.lookup("localhost", 7, now + later))
        };
        let late = answered(Ok(vec![at("::1")]));
        assert!(is_used(&late, FRESH / 2));
        resolver.take(&late);
        assert!(!is_used(&late, Duration::ZERO));
        assert!(!is_used(&answered(Ok(vec![at("::1")])), FRESH));
        assert!(!is_used(&answered(Err("no".to_owned())), Duration::ZERO));
    }
}
