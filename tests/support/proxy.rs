//! A TCP proxy that loses, delays, cuts or spoils what passes between a client and its server.
//!
//! It acts on *bursts*: what a client sends in one go, however many commands that is, and all that
//! the server answers to it. A rule matches when any command of a burst matches; the first rule
//! that matches is the one that acts. To know where an answer ends, the proxy asks the server for
//! its `version` after a burst whose answer a rule wants, which memcached does not count in its
//! statistics.

mod exchange;
mod rules;

use std::net::{SocketAddr, ToSocketAddrs};
use std::ops::Deref;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::wire::{Burst, Listener, lock};
use rules::{Decider, Rule};
pub use rules::{Fault, Match};

/// The proxy. Dropping it closes its connections and ends its threads.
#[derive(Debug)]
pub struct Proxy {
    listener: Listener,
    shared: Arc<Shared>,
}

impl Proxy {
    /// Starts a proxy on a free loopback port, before the server at `address` (`host:port`).
    pub fn start(address: impl AsRef<str>) -> Proxy {
        let state = State {
            target: resolve(address.as_ref()),
            refuse: false,
            black_hole: false,
            rules: Vec::new(),
            decider: None,
            hits: 0,
            round_trips: 0,
            connections: 0,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), hit: Condvar::new() });
        let serving = Arc::clone(&shared);
        let listener = Listener::start(move |client, open| exchange::serve(&serving, client, open));
        Proxy { listener, shared }
    }

    /// Lets `fault` happen to the next burst that matches, once.
    pub fn inject(&self, bursts: Match, fault: Fault) {
        lock(&self.shared.state).rules.push(Rule { bursts, fault, once: true });
    }

    /// Lets `fault` happen to every burst that matches, until [`Proxy::clear_rules`].
    pub fn inject_always(&self, bursts: Match, fault: Fault) {
        lock(&self.shared.state).rules.push(Rule { bursts, fault, once: false });
    }

    /// Lets `decide` choose for each burst, of which it is given the bytes, before any rule is
    /// looked at.
    pub fn decide(&self, decide: impl FnMut(&[u8]) -> Option<Fault> + Send + 'static) {
        lock(&self.shared.state).decider = Some(Decider(Box::new(decide)));
    }

    /// Forgets all rules, and the decider. What they did to connections stays.
    pub fn clear_rules(&self) {
        let mut state = lock(&self.shared.state);
        state.rules.clear();
        state.decider = None;
    }

    /// While true, no client gets through: existing connections are closed now, new ones at once.
    pub fn refuse(&self, refuse: bool) {
        lock(&self.shared.state).refuse = refuse;
        if refuse {
            self.listener.close_connections();
        }
    }

    /// While true, everything that arrives from either side is lost, and neither side notices. A
    /// connection that lost something, or was opened meanwhile, stays silent for good; one that was
    /// idle goes on afterwards.
    pub fn black_hole(&self, black_hole: bool) {
        lock(&self.shared.state).black_hole = black_hole;
    }

    /// How many exchanges all clients together have begun: bursts that came when the server had
    /// spoken last, or nothing had been said. The handshake of a connection counts like any other.
    pub fn round_trips(&self) -> usize {
        lock(&self.shared.state).round_trips
    }

    /// How many connections were accepted so far, refused ones included.
    pub fn connections(&self) -> usize {
        lock(&self.shared.state).connections
    }

    /// How many times a rule has acted, and how many connections a black hole has silenced. A fault
    /// of the reply counts when the server has done the burst, a delay when it begins, and all of
    /// them before the client can notice.
    pub fn hits(&self) -> usize {
        lock(&self.shared.state).hits
    }

    /// Waits until [`Proxy::hits`] is at least `hits`; false when the time is up first.
    #[must_use]
    pub fn wait_for_hits(&self, hits: usize, limit: Duration) -> bool {
        let state = lock(&self.shared.state);
        let waited = self.shared.hit.wait_timeout_while(state, limit, |state| state.hits < hits);
        waited.unwrap_or_else(PoisonError::into_inner).0.hits >= hits
    }
}

impl Deref for Proxy {
    type Target = Listener;

    fn deref(&self) -> &Listener {
        &self.listener
    }
}

fn resolve(address: &str) -> SocketAddr {
    let found = address.to_socket_addrs().ok().and_then(|mut addresses| addresses.next());
    found
        .unwrap_or_else(|| panic!("a proxy needs an address like 127.0.0.1:11211, not {address:?}"))
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    hit: Condvar,
}

#[derive(Debug)]
struct State {
    target: SocketAddr,
    refuse: bool,
    black_hole: bool,
    rules: Vec<Rule>,
    decider: Option<Decider>,
    hits: usize,
    round_trips: usize,
    connections: usize,
}

impl State {
    fn has_rules(&self) -> bool {
        self.decider.is_some() || !self.rules.is_empty()
    }
}

impl Shared {
    /// The fault for this burst; a rule that acts once is used up.
    fn fault_for(&self, burst: &Burst) -> Option<Fault> {
        let state = &mut *lock(&self.state);
        if let Some(fault) = state.decider.as_mut().and_then(|decider| (decider.0)(&burst.bytes)) {
            return Some(fault);
        }
        let rules = &mut state.rules;
        let place = rules.iter().position(|rule| rule.bursts.any_of(burst))?;
        Some(if rules[place].once { rules.remove(place).fault } else { rules[place].fault.clone() })
    }

    fn count_hit(&self) {
        lock(&self.state).hits += 1;
        self.hit.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::{Memcached, MemcachedText};
    use std::io::ErrorKind;
    use std::time::Instant;

    const LONG: Duration = Duration::from_secs(10);
    const ADD: &str = "ms k 1 ME\r\na";

    /// A server, a proxy with one rule before it, and a client of the proxy.
    fn with_rule(bursts: Match, fault: Fault) -> (Memcached, Proxy, MemcachedText) {
        let server = Memcached::start();
        let proxy = Proxy::start(server.address());
        proxy.inject(bursts, fault);
        let client = MemcachedText::connect(&proxy.address());
        (server, proxy, client)
    }

    fn is_silent(client: &mut MemcachedText, line: &str) -> bool {
        client.set_reply_limit(Duration::from_millis(50));
        let kind = client.try_command(line).map_err(|error| error.kind());
        client.set_reply_limit(LONG);
        matches!(kind, Err(ErrorKind::WouldBlock | ErrorKind::TimedOut))
    }

    fn is_cut(client: &mut MemcachedText, line: &str) -> bool {
        let kind = client.try_command(line).map_err(|error| error.kind());
        matches!(
            kind,
            Err(ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
        )
    }

    #[test]
    fn without_rules_everything_passes_and_exchanges_are_counted() {
        let server = Memcached::start();
        let proxy = Proxy::start(server.address());
        let mut client = MemcachedText::connect(&proxy.address());
        assert!(client.set("k", vec![b'x'; 500_000], 0));
        assert_eq!(client.get("k").map(|value| value.len()), Some(500_000));
        assert_eq!(client.stats()["version"], server.plain().stats()["version"]);
        assert_eq!((proxy.round_trips(), proxy.connections(), proxy.hits()), (3, 1, 0));
    }

    #[test]
    fn a_swallowed_reply_leaves_the_work_done_and_the_client_in_silence() {
        let (server, proxy, mut client) = with_rule(Match::Adding, Fault::SwallowReply);
        assert_eq!(client.command("mg k"), "EN");
        assert!(is_silent(&mut client, ADD));
        assert!(proxy.wait_for_hits(1, LONG));
        assert!(server.plain().get("k").is_some());
        assert!(is_silent(&mut client, "mn"));
        server.kill();
        assert!(is_silent(&mut client, "mn"), "the server's end is kept from it too");
        assert!(!proxy.wait_for_hits(2, Duration::from_millis(1)));
    }

    #[test]
    fn a_cut_after_the_request_comes_when_all_of_it_is_done() {
        let (server, proxy, mut client) = with_rule(Match::Any, Fault::CutAfterRequest);
        let burst = (0..500).map(|number| format!("ms k{number} 1\r\na\r\n")).collect::<String>();
        assert!(is_cut(&mut client, burst.trim_end()));
        assert_eq!(proxy.hits(), 1);
        assert_eq!(server.plain().stats()["cmd_set"], "500");
    }

    #[test]
    fn a_reply_is_cut_after_so_many_bytes() {
        let (server, _proxy, mut client) = with_rule(Match::Any, Fault::CutReplyAfter(2));
        let error = client.try_command(ADD).expect_err("the reply is not whole");
        assert!(error.to_string().contains("[72, 68]"), "HD and no more, not: {error}");
        assert!(server.plain().get("k").is_some());
    }

    #[test]
    fn a_dropped_request_does_nothing_on_the_server() {
        let (server, proxy, mut client) = with_rule(Match::Adding, Fault::DropRequest);
        assert!(is_silent(&mut client, ADD));
        assert!(proxy.wait_for_hits(1, LONG));
        assert!(is_silent(&mut client, "mn"));
        assert_eq!(server.plain().get("k"), None);
    }

    #[test]
    fn a_request_is_cut_after_so_many_bytes() {
        let (server, proxy, mut client) =
            with_rule(Match::Adding, Fault::CutRequestAfter(ADD.len() - 1));
        assert!(is_cut(&mut client, ADD));
        assert_eq!(server.plain().get("k"), None);
        let mut client = MemcachedText::connect(&proxy.address());
        proxy.decide(|bytes| {
            bytes.starts_with(b"ms").then_some(Fault::CutRequestAfter(bytes.len()))
        });
        assert!(is_cut(&mut client, ADD));
        let end = Instant::now() + LONG;
        while server.plain().get("k").is_none() {
            assert!(Instant::now() < end, "a whole request was not carried out");
        }
    }

    #[test]
    fn the_end_of_a_reply_is_repeated_and_a_trickle_is_whole() {
        let (_server, proxy, mut client) = with_rule(Match::Adding, Fault::RepeatReply(4));
        assert_eq!(client.command(ADD), "HD");
        assert_eq!(client.command("mn"), "HD");
        proxy.inject(Match::Any, Fault::Trickle(Duration::ZERO));
        assert_eq!(MemcachedText::connect(&proxy.address()).command("mg k s v"), "VA 1 s1");
    }

    #[test]
    fn a_late_request_arrives_even_when_its_client_has_gone() {
        let server = Memcached::start();
        let proxy = Proxy::start(server.address());
        proxy.inject_always(Match::Adding, Fault::HoldRest(0));
        let mut client = MemcachedText::connect(&proxy.address());
        assert!(is_silent(&mut client, ADD));
        drop(client);
        assert!(proxy.wait_for_hits(1, LONG));
        assert_eq!(server.plain().get("k"), None);
        proxy.clear_rules();
        let end = Instant::now() + LONG;
        while server.plain().get("k").is_none() {
            assert!(Instant::now() < end, "the late request never arrived");
        }
    }

    #[test]
    fn a_rest_that_is_held_comes_behind_what_others_did_meanwhile() {
        let server = Memcached::start();
        let proxy = Proxy::start(server.address());
        proxy.inject_always(Match::Adding, Fault::HoldRest(ADD.find('\n').unwrap() + 1));
        let mut client = MemcachedText::connect(&proxy.address());
        let asked = std::thread::spawn(move || client.command(ADD));
        assert!(proxy.wait_for_hits(1, LONG));
        assert_eq!(server.plain().command("ms k 1 ME\r\nb"), "HD");
        proxy.clear_rules();
        assert_eq!(asked.join().unwrap(), "NS");
    }

    #[test]
    fn a_delayed_reply_is_late_and_whole() {
        let delay = Duration::from_millis(100);
        let (_server, _proxy, mut client) = with_rule(Match::Deleting, Fault::DelayReply(delay));
        assert!(client.set("k", "v", 0));
        let before = Instant::now();
        assert_eq!(client.command("md k"), "HD");
        assert!(before.elapsed() >= delay);
    }

    #[test]
    fn a_garbled_reply_is_replaced_whole_and_the_connection_goes_on() {
        let (_server, _proxy, mut client) =
            with_rule(Match::Deleting, Fault::GarbleReply(b"rubbish\r\n".to_vec()));
        assert!(client.set("k", "v", 0));
        assert_eq!(client.command("md k"), "rubbish");
        assert_eq!(client.command("mg k s"), "EN");
    }

    #[test]
    fn a_rule_acts_on_its_own_commands_once_or_always() {
        let (_server, proxy, mut client) =
            with_rule(Match::Swapping, Fault::GarbleReply(b"S\r\n".to_vec()));
        proxy.inject_always(Match::Deleting, Fault::GarbleReply(b"D\r\n".to_vec()));
        proxy.inject_always(Match::Counting, Fault::GarbleReply(b"C\r\n".to_vec()));
        assert!(client.command("ms k 1 c MS\r\na").starts_with("HD c"));
        assert_eq!(client.command("ms k 1 C9\r\na"), "S");
        assert_eq!(client.command("ms k 1 C9\r\na"), "EX");
        assert_eq!((client.command("md k").as_str(), client.command("md k").as_str()), ("D", "D"));
        assert_eq!(client.command("mn\r\nma k"), "C");
        proxy.clear_rules();
        assert_eq!(client.command("ma k"), "NF");
        assert_eq!(proxy.hits(), 4);
    }

    #[test]
    fn a_refusing_proxy_closes_old_and_new_connections_until_it_relents() {
        let server = Memcached::start();
        let proxy = Proxy::start(server.address());
        let mut old = MemcachedText::connect(&proxy.address());
        old.command("mn");
        proxy.refuse(true);
        assert!(is_cut(&mut old, "mn"));
        assert!(is_cut(&mut MemcachedText::connect(&proxy.address()), "mn"));
        proxy.refuse(false);
        assert_eq!(MemcachedText::connect(&proxy.address()).command("mn"), "MN");
        assert_eq!(proxy.connections(), 3);
    }

    #[test]
    fn a_black_hole_loses_what_enters_it_and_spares_the_idle() {
        let server = Memcached::start();
        let proxy = Proxy::start(server.address());
        let (mut idle, mut busy) =
            (MemcachedText::connect(&proxy.address()), MemcachedText::connect(&proxy.address()));
        assert_eq!((idle.command("mn"), busy.command("mn")), ("MN".into(), "MN".into()));
        proxy.black_hole(true);
        assert!(is_silent(&mut busy, ADD));
        let mut fresh = MemcachedText::connect(&proxy.address());
        assert!(is_silent(&mut fresh, ADD));
        assert!(proxy.wait_for_hits(2, LONG));
        proxy.black_hole(false);
        assert!(is_silent(&mut busy, "mn") && is_silent(&mut fresh, "mn"));
        assert_eq!(idle.command("mg k"), "EN");
    }

    #[test]
    fn dropping_a_proxy_does_not_wait_for_its_delays() {
        let (_server, proxy, mut client) =
            with_rule(Match::Any, Fault::DelayReply(Duration::from_secs(60)));
        assert!(is_silent(&mut client, "mn"));
        assert!(proxy.wait_for_hits(1, LONG));
        let before = Instant::now();
        drop(proxy);
        assert!(before.elapsed() < LONG);
        assert!(is_cut(&mut client, "mn"));
    }
}
