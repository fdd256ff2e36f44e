//! The host name of a server that moves, has several addresses, or cannot be resolved.

use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::thread;
use std::time::Duration;

use memlock_core::{Client, Error, ErrorKind};
use memlock_tests::assert_safe_eq;
use memlock_tests::client::is_granted;
use memlock_tests::fork::in_a_child;
use memlock_tests::launch::{poll_until, until};
use memlock_tests::names::{Name, listeners, relays};
use memlock_tests::relay::{Fate, Relay};
use memlock_tests::server::Memcached;

const LEASE: Duration = Duration::from_secs(300);
const PATIENCE: Duration = Duration::from_secs(60);
/// A connection that was idle for so long is checked before it is used again.
const UNCHECKED: Duration = Duration::from_millis(150);

const OLD: &str = "127.0.0.2";
const NEW: &str = "127.0.0.3";
const THIRD: &str = "127.0.0.4";

fn client(name: &Name, port: u16, parameters: &str) -> Client {
    let address = name.with_port(port);
    Client::connect(&format!("memcached://{address}?io_timeout=20s&{parameters}")).unwrap()
}

fn refused(client: &Client, name: &str) -> Error {
    client.mutex(name, LEASE).unwrap().try_lock().map(drop).unwrap_err()
}

/// Whether a lock is held, by the server that the client uses.
fn is_held(client: &Client, name: &str) -> bool {
    client.mutex(name, LEASE).unwrap().owner().unwrap().is_some()
}

/// Two servers, each with a lock of its own name, behind the old and the new address.
struct Two {
    servers: [Memcached; 2],
    relays: [Relay; 2],
    port: u16,
}

impl Two {
    /// `second`: the other address.
    fn start(second: &str) -> Two {
        let servers = [(); 2].map(|()| Memcached::start());
        let [one, other] = servers.each_ref().map(|server| server.address());
        let (relays, port) = relays([(OLD, one), (second, other)]);
        for (server, name) in servers.iter().zip(["old", "new"]) {
            assert!(server.plain().add(&format!("lock:{name}"), "taken", 300));
        }
        Two { servers, relays, port }
    }
}

/// The old address may be that of the server, whose family the other one is not. Going to the other
/// one could grant a lock twice.
#[test]
fn a_client_stays_at_its_address_as_long_as_the_name_leads_there() {
    let other = if TcpListener::bind("[::1]:0").is_ok() { "::1" } else { NEW };
    let Two { servers, relays: [old, new], port } = Two::start(other);
    let name = Name::of(&[OLD]);
    let client = client(&name, port, "connect_timeout=20s");
    assert!(is_held(&client, "old"));
    name.lead_to(&[other, OLD]);
    thread::sleep(UNCHECKED);
    drop(old);
    for _ in 0..3 {
        assert_eq!(refused(&client, "new").kind(), ErrorKind::Unreachable);
    }
    assert_safe_eq!(new.bursts(), 0, "it went to the other server");
    name.lead_to(&[other]);
    assert!(is_held(&client, "new") && !is_held(&client, "old"));
    drop(servers);
}

/// As by a firewall on the way to the address of one family.
#[test]
fn an_address_that_drops_packets_leaves_time_for_that_of_the_other_family() {
    if TcpListener::bind("[::1]:0").is_err() {
        return println!("this machine has no IPv6");
    }
    let (mut listening, port) = listeners(&["::1", OLD]);
    let (answers, silent) = (listening.pop().unwrap(), listening.pop().unwrap());
    // SAFETY: it listens already. From now on, one connection waits for it at most.
    assert_eq!(unsafe { libc::listen(silent.as_raw_fd(), 0) }, 0);
    let place = silent.local_addr().unwrap();
    let connect = || TcpStream::connect_timeout(&place, Duration::from_millis(100)).ok();
    let _queued: Vec<TcpStream> = std::iter::from_fn(connect).collect();
    let (server, name) = (Memcached::start(), Name::of(&["::1", OLD]));
    let _relay = Relay::on(answers, server.address());
    assert!(!is_held(&client(&name, port, "connect_timeout=2s"), "m"));
}

#[test]
fn a_name_that_has_moved_to_several_addresses_is_followed_once_it_has_one() {
    let Two { servers, relays: [old, new], port } = Two::start(NEW);
    let name = Name::of(&[OLD]);
    let client = client(&name, port, "connect_timeout=20s");
    assert!(is_held(&client, "old"));
    // It may be used as long as the client is there.
    name.lead_to(&[NEW, OLD]);
    thread::sleep(UNCHECKED);
    old.cut();
    assert!(is_held(&client, "old"));
    thread::sleep(UNCHECKED);
    drop(old);
    name.lead_to(&[NEW, THIRD]);
    for _ in 0..2 {
        let error = refused(&client, "new");
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        assert!(error.to_string().contains("several addresses"), "{error}");
    }
    assert_safe_eq!(new.bursts(), 0, "it went to one of them");
    name.lead_to(&[NEW]);
    assert!(is_held(&client, "new"));
    drop(servers);
}

#[test]
fn a_name_that_cannot_be_resolved_keeps_its_address() {
    let server = Memcached::start();
    let ([relay], port) = relays([(OLD, server.address())]);
    let name = Name::of(&[OLD]);
    let client = client(&name, port, "connect_timeout=4s");
    let lock = client.mutex("m", LEASE).unwrap().try_lock().unwrap().unwrap();
    let ways: [fn(&Name); 2] = [|name| name.lead_to(&[]), Name::be_silent];
    for (number, way) in ways.into_iter().enumerate() {
        way(&name);
        thread::sleep(UNCHECKED);
        relay.cut();
        assert!(lock.check().unwrap());
        assert_eq!(name.asked(), 2 + number);
    }
    thread::sleep(UNCHECKED);
    drop(relay);
    let error = refused(&client, "n");
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.to_string().contains("cannot be resolved now"), "{error}");
}

/// Longer than connecting may take: there is nothing else to try.
#[test]
fn the_first_answer_of_a_resolver_may_be_slow() {
    let server = Memcached::start();
    let ([_relay], port) = relays([(OLD, server.address())]);
    let name = Name::of(&[OLD]);
    name.be_silent();
    let client = client(&name, port, "connect_timeout=200ms");
    let mutex = client.mutex("m", LEASE).unwrap();
    thread::scope(|scope| {
        let call = scope.spawn(|| mutex.try_lock());
        until("the name is asked for", || name.asked() == 1);
        thread::sleep(Duration::from_millis(400));
        name.lead_to(&[OLD]);
        assert!(call.join().unwrap().unwrap().is_some());
    });
}

#[test]
fn no_call_waits_for_a_resolver_without_a_limit_and_a_late_answer_is_used() {
    let server = Memcached::start();
    let ([_relay], port) = relays([(OLD, server.address())]);
    let name = Name::of(&[OLD]);
    name.be_silent();
    let client = client(&name, port, "connect_timeout=1s");
    thread::scope(|scope| {
        let calls = [(); 3].map(|()| scope.spawn(|| refused(&client, "m")));
        for error in calls.map(|call| call.join().unwrap()) {
            assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
            assert!(error.to_string().contains("cannot be resolved"), "{error}");
        }
    });
    assert_eq!(name.asked(), 1, "one request at a time");
    // The child neither waits for its parent's request nor uses the answer.
    assert!(in_a_child(|| {
        name.lead_to(&[OLD]);
        is_granted(client.mutex("m", LEASE).unwrap().lock_for(PATIENCE))
    }));
    name.lead_to(&[OLD]);
    let mutex = client.mutex("m", LEASE).unwrap();
    until("the server is found", || mutex.try_lock().is_ok_and(|lock| lock.is_some()));
    assert_eq!(name.asked(), 1, "the late answer was used");
}

/// A call is in progress at the old address while the client moves.
#[test]
fn no_connection_to_the_old_address_is_used_again() {
    let Two { servers: [old, _new], relays: [relay, _other], port } = Two::start(NEW);
    let name = Name::of(&[OLD]);
    let client = client(&name, port, "connect_timeout=20s");
    assert!(is_held(&client, "old"));
    old.pause();
    let bursts = relay.bursts();
    thread::scope(|scope| {
        let slow = scope.spawn(|| is_held(&client, "old"));
        let sent = poll_until(PATIENCE, || (relay.bursts() > bursts).then_some(()));
        relay.decide(|_| Fate::CutBefore);
        let failed = client.mutex("new", LEASE).unwrap().owner();
        relay.decide(|_| Fate::Pass);
        name.lead_to(&[NEW]);
        let moved = is_held(&client, "new");
        old.resume();
        assert!(slow.join().unwrap(), "the old server answers");
        assert!(sent.is_some() && failed.is_err() && moved);
    });
    let seen = ["old", "new"].map(|name| is_held(&client, name));
    assert_safe_eq!(seen, [false, true], "it went to the old server");
}
