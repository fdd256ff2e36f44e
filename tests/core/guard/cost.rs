//! With a guard, nothing costs more.

use std::time::Duration;

use memlock_core::{Client, Extension, Release};
use memlock_tests::cost::usual_cost;
use memlock_tests::proxy::Proxy;
use memlock_tests::server::Memcached;
use memlock_tests::url;

use super::{Bench, GUARD, hold};

/// Commands and round trips.
type Cost = (u64, usize);

fn costs(parameters: &str) -> [Cost; 4] {
    let bench = Bench::start();
    let Bench { server, proxy, .. } = &bench;
    let client = Client::connect(&format!("{}?io_timeout=20s{parameters}", proxy.url())).unwrap();
    drop(hold(&client, "m"));
    let semaphore = client.semaphore("s", 2, GUARD).unwrap();
    drop(semaphore.acquire_for(Duration::from_secs(30)).unwrap().unwrap());
    let cost = |step: &dyn Fn()| {
        usual_cost(|| {
            let (commands, trips) = (server.commands(), proxy.round_trips());
            step();
            // Each counts as one kind; the least of both is that of an undisturbed step.
            (server.commands() - commands, proxy.round_trips() - trips)
        })
    };
    let mutex = client.mutex("m", GUARD).unwrap();
    [
        cost(&|| {
            let mut lock = mutex.try_lock().unwrap().unwrap();
            assert_eq!(lock.unlock().unwrap(), Release::Released);
        }),
        cost(&|| {
            let mut lock = mutex.lock().unwrap();
            assert_eq!(lock.extend(GUARD).unwrap(), Extension::Extended);
            assert!(lock.check().unwrap());
            assert_eq!(lock.unlock().unwrap(), Release::Released);
        }),
        cost(&|| {
            let mut permit = semaphore.acquire().unwrap();
            assert_eq!(permit.release().unwrap(), Release::Released);
        }),
        cost(&|| {
            let mut permit = semaphore.acquire().unwrap();
            assert_eq!(permit.extend(GUARD).unwrap(), Extension::Extended);
            assert!(permit.check().unwrap());
            assert_eq!(permit.release().unwrap(), Release::Released);
        }),
    ]
}

#[test]
fn what_is_granted_and_given_back_costs_the_same_with_a_guard() {
    let without = costs("");
    assert_eq!(costs("&guard=60s"), without);
    assert_eq!(without[0].1, 2, "a lock and its release are two round trips");
}

/// What all agree on is read with the server's description, in the same packet.
#[test]
fn a_connection_takes_no_round_trip_more() {
    let trips = |parameters: &str, first: bool| {
        let server = Memcached::start();
        let proxy = Proxy::start(server.address());
        let url = url::patient(&format!("{}{parameters}", proxy.url()));
        let look = || drop(Client::connect(&url).unwrap().mutex("m", GUARD).unwrap().owner());
        if !first {
            look();
        }
        let before = proxy.round_trips();
        look();
        proxy.round_trips() - before
    };
    assert_eq!(trips("?guard=60s", false), trips("", false));
    // Only the very first client of a server writes it down.
    assert_eq!(trips("?guard=60s", true), trips("", true) + 1);
}
