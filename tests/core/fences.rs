//! Fences rise, also on servers that give cas ids out of order: memcached from 1.6.24 on draws that
//! of a store before the item is locked, so that of two stores the later one may have the lower.

use std::thread;
use std::time::Duration;

use memlock_core::{Client, Lock, Release};
use memlock_tests::assert_safe;
use memlock_tests::client::connect;
use memlock_tests::cost::usual_cost;
use memlock_tests::launch::until;
use memlock_tests::proxy::{Fault, Match, Proxy};
use memlock_tests::server::Memcached;

const LEASE: Duration = Duration::from_secs(30);

/// The server behind a proxy that makes its version another one.
fn called(server: &Memcached, version: &str) -> Proxy {
    let (stats, settings) = (server.plain().stats(), server.plain().stats_of("settings"));
    let line = |name: &str, value: &str| format!("STAT {name} {value}\r\n");
    let who = ["pid", "uptime", "time"].map(|name| line(name, &stats[name])).concat();
    let cas = line("cas_enabled", &settings["cas_enabled"]);
    // The last reply is that to the read of what the clients of a server agree on.
    let said = format!("{who}{}END\r\n{cas}END\r\nEN O0\r\n", line("version", version));
    let proxy = Proxy::start(server.address());
    proxy.inject_always(Match::Stats, Fault::GarbleReply(said.into_bytes()));
    proxy
}

fn lock(client: &Client) -> Lock {
    client.mutex("x", LEASE).unwrap().lock().unwrap()
}

/// The last six digits of a fence are the cas id.
fn cas(fence: u64) -> u64 {
    fence % 1_000_000
}

fn items_cas(server: &Memcached) -> u64 {
    server.plain().command("mg lock:x c").strip_prefix("HD c").unwrap().parse().unwrap()
}

#[test]
fn where_versions_rise_by_themselves_a_fence_is_that_of_the_item_and_costs_nothing() {
    let server = Memcached::start();
    let proxy = called(&server, "1.6.23");
    let client = connect(&proxy.url());
    let cost = usual_cost(|| {
        let before = server.commands();
        let mut lock = lock(&client);
        let cost = server.commands() - before;
        assert_eq!(cas(lock.fence()), items_cas(&server));
        assert_eq!(lock.unlock().unwrap(), Release::Released);
        cost
    });
    assert_eq!(cost, 1);
}

#[test]
fn where_they_do_not_a_fence_is_drawn_after_the_item_was_stored() {
    let server = Memcached::start();
    let proxy = called(&server, "1.6.24");
    let client = connect(&proxy.url());
    let mutex = client.mutex("x", LEASE).unwrap();
    let trips = usual_cost(|| {
        let before = proxy.round_trips();
        let mut lock = lock(&connect(&proxy.url()));
        let trips = proxy.round_trips() - before;
        assert_eq!(lock.unlock().unwrap(), Release::Released);
        trips
    });
    assert!(trips <= 2, "the handshake, and one for the lock: not {trips}");
    for lost in [false, true] {
        if lost {
            // What is found when the reply is lost has to be stamped, too.
            proxy.inject(Match::Adding, Fault::CutAfterRequest);
        }
        let mut lock = lock(&client);
        let fence = lock.fence();
        assert!(cas(fence) > items_cas(&server), "{fence} {lost}");
        assert!(mutex.owner().unwrap().unwrap().newest_fence > fence);
        assert_eq!(lock.unlock().unwrap(), Release::Released);
    }
}

#[test]
fn a_lock_that_is_handed_over_within_the_process_is_stamped_as_well() {
    let server = Memcached::start();
    let proxy = called(&server, "1.6.24");
    let client = connect(&proxy.url());
    let mut holder = lock(&client);
    let fence = holder.fence();
    let waiter = thread::spawn({
        let client = client.clone();
        move || lock(&client)
    });
    until("it waits", || !client.mutex("x", LEASE).unwrap().waiters().unwrap().is_empty());
    assert_eq!(holder.unlock().unwrap(), Release::Released);
    let successor = waiter.join().unwrap();
    assert_safe!(successor.fence() > fence, "the fence did not rise");
    assert!(cas(successor.fence()) > items_cas(&server));
}

/// On a server that draws too early this is how a fence fell: the request had its number before
/// another client took the lock, and was stored after that one had released it.
#[test]
fn a_client_overtaken_on_the_way_to_the_lock_has_the_greater_fence() {
    let server = Memcached::start();
    let proxy = Proxy::start(server.address());
    // Its beginning is with the server, and its end is not.
    proxy.decide(move |bytes| {
        let end = bytes.iter().position(|&byte| byte == b'\n')?;
        bytes.starts_with(b"ms lock:x ").then_some(Fault::HoldRest(end + 1))
    });
    let (slow, quick) = (connect(&proxy.url()), connect(&server.url()));
    let waiting = thread::spawn(move || lock(&slow).fence());
    assert!(proxy.wait_for_hits(1, Duration::from_secs(60)));
    let fences: Vec<u64> = (0..5).map(|_| lock(&quick).fence()).collect();
    assert_safe!(fences.is_sorted(), "{fences:?}");
    proxy.clear_rules();
    let fence = waiting.join().unwrap();
    assert_safe!(fence > fences[4], "{fence} came after {fences:?}");
}
