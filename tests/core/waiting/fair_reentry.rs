//! The order of waiters, the queue, and the addresses of listeners.

use std::net::UdpSocket;
use std::thread;
use std::time::Duration;

use memlock_core::wait::entries;
use memlock_core::{Client, Wait, Waited};
use memlock_tests::assert_safe;
use memlock_tests::server::Memcached;

use memlock_tests::frozen::Frozen;
use memlock_tests::url;

use super::bench::{Bench, LEASE, gets, in_line, lock, unlock, until, waiter};

#[test]
fn a_process_that_met_waiters_stands_behind_them() {
    let bench = Bench::new();
    // No time passes for this client, so that it does not overtake the waiter that it woke.
    let courteous = bench.frozen();
    let held = lock(&courteous);
    let waiter = waiter(&bench.client());
    bench.until_seen(1);
    unlock(held);
    let again = in_line(&courteous);
    let first = gets(&waiter);
    let fence = first.fence();
    unlock(first);
    let again = again.gets();
    assert_safe!(again.fence() > fence, "the fence did not rise");
    unlock(again);
    until(|| bench.waiters().is_empty());
}

#[test]
fn a_queue_that_is_full_takes_no_more_until_there_is_room() {
    let bench = Bench::new();
    let held = lock(&bench.client());
    bench.add_dead("127.0.0.1:9", 0..512);
    let waiter = waiter(&bench.client());
    bench.until_marked();
    // The waiter joined, saw that there was no room, and left again.
    until(|| bench.waiters().len() == 512 && bench.waiters().iter().all(|id| id.0 < 512));
    bench.delete(&bench.queue);
    bench.until_waiting(1);
    unlock(held);
    unlock(gets(&waiter));
    until(|| bench.waiters().is_empty());
}

/// Text in front of the first entry would be another program's.
#[test]
fn garbage_in_a_queue_is_cleaned_by_the_next_write() {
    let bench = Bench::new();
    let garbage =
        [&b"17"[..], b"\n\n#\n-#\n", &[b'x'; 70_000], b"\n127.0.0.1:9#zz#0\n\xff\xfe#0#0\n"]
            .concat();
    for garbage in [&garbage[..], b"42", b""] {
        let held = lock(&bench.client());
        assert!(bench.server.plain().set(bench.queue.as_str(), "", 60));
        let waiter = waiter(&bench.client());
        bench.until_marked();
        bench.append(garbage);
        unlock(held);
        unlock(gets(&waiter));
        until(|| bench.entries().is_empty());
    }
}

#[test]
fn a_plain_clients_lock_is_left_as_it_is() {
    let bench = Bench::new();
    assert!(bench.server.plain().add("lock:m", "1", 60));
    let waiter = waiter(&bench.client());
    bench.until_waiting(1);
    thread::sleep(Duration::from_millis(300));
    assert_eq!(bench.server.plain().get("lock:m").unwrap(), b"1");
    bench.delete(&bench.lock);
    // Such a holder wakes no waiter, so the waiter polls.
    unlock(gets(&waiter));
}

#[test]
fn a_wait_that_ends_takes_its_entry_along() {
    let bench = Bench::new();
    let held = lock(&bench.client());
    let client = bench.client();
    let mutex = client.mutex("m", LEASE).unwrap();
    for limit in [30, 130] {
        assert!(mutex.lock_for(Duration::from_millis(limit)).unwrap().is_none());
        assert!(bench.entries().is_empty());
    }
    // No time passes for this waiter: only being cancelled can end its wait.
    let waiting = in_line(&bench.frozen());
    assert_eq!(bench.waiters().len(), 1);
    waiting.cancel.cancel();
    waiting.is_interrupted();
    assert!(bench.entries().is_empty());
    // Once and for all.
    let cancel = client.cancel_handle();
    cancel.cancel();
    let wait = Wait::at_most(LEASE).unless_cancelled(&cancel);
    assert!(matches!(mutex.lock_with(&wait).unwrap(), Waited::Interrupted));
    assert!(bench.entries().is_empty());
    unlock(held);
    assert!(
        matches!(mutex.lock_with(&wait).unwrap(), Waited::Interrupted),
        "though the lock is free"
    );
}

#[test]
fn the_urls_notify_address_is_what_others_read() {
    let bench = Bench::new();
    let held = lock(&bench.client());
    let listener_of = |parameter: &str| {
        let client =
            Client::connect(&url::with(&bench.server.url(), &format!("notify={parameter}")))
                .unwrap();
        let waiting = in_line(&client);
        let queue = bench.entries();
        let listener = entries::waiters(&queue).next().unwrap().address;
        waiting.cancel.cancel();
        waiting.is_interrupted();
        listener
    };
    assert_eq!(listener_of("off"), None);
    assert_eq!(listener_of("127.0.0.2").unwrap().socket().ip().to_string(), "127.0.0.2");
    // A foreign address is accepted: it may be translated on the way.
    assert_eq!(listener_of("192.0.2.1").unwrap().socket().ip().to_string(), "192.0.2.1");
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    assert_eq!(listener_of(&format!("127.0.0.1:{port}")), None, "the only port is in use");
    let last = port.saturating_add(50);
    let listener = listener_of(&format!("127.0.0.1:{port}-{last}")).unwrap();
    assert!(listener.socket().port() > port && listener.socket().port() <= last);
    drop(taken);
    unlock(held);
}

#[test]
fn waiters_are_woken_over_ipv6() {
    if UdpSocket::bind("[::1]:0").is_err() {
        println!("There is no IPv6 on this machine, so there is nothing to be tested.");
        return;
    }
    let server = Memcached::with_args(&["-l", "::1"]);
    let url = url::patient(&format!("memcached://[::1]:{}", server.port()));
    let held = lock(&Client::connect(&url).unwrap());
    let waiter = waiter(&Client::with_clock(&url, Frozen::clock()).unwrap());
    until(|| server.plain().get("lock:m%wait").is_some_and(|queue| queue.starts_with(b"[::1]:")));
    until(|| server.plain().get("lock:m").is_some_and(|record| record.ends_with(b" rings")));
    unlock(held);
    unlock(gets(&waiter));
}
