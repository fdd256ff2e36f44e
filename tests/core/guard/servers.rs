//! Several servers in one URL: each has a life of its own.

use memlock_core::store::Route;
use memlock_core::{Client, Extension, Release, Wait, Waited};
use memlock_tests::launch::poll_until;
use memlock_tests::names::{Name, relays};

use super::{Bench, GUARD, PATIENCE, hold};

/// Names that begin with this, whose locks are on the first and on the second server.
fn names(client: &Client, beginning: &str) -> [String; 2] {
    [0, 1].map(|server| {
        let is_there = |name: &String| {
            client.server_of(Route::of(&client.keys().lock(name.as_bytes()))) == server
        };
        (0..).map(|number| format!("{beginning}{number}")).find(is_there).unwrap()
    })
}

#[test]
fn a_restart_of_one_server_changes_nothing_on_another() {
    let (bench, other) = (Bench::start(), Bench::start());
    let url = format!("{},{}?guard=60s&io_timeout=20s", bench.proxy.url(), other.proxy.address());
    let [client, witness] = [(); 2].map(|()| Client::connect(&url).unwrap());
    let ([hit, spared], [free_on_hit, free_on_spared]) = (names(&client, "m"), names(&client, "n"));
    let (mut on_hit, mut on_spared) = (hold(&client, &hit), hold(&client, &spared));
    assert_eq!(on_hit.extend(GUARD).unwrap(), Extension::Extended);
    assert_eq!(on_spared.extend(GUARD).unwrap(), Extension::Extended);
    let value = other.server.plain().get(&format!("lock:{spared}"));
    bench.restart();
    let tried = |name: &str| witness.mutex(name, GUARD).unwrap().lock_with(&Wait::NEVER).unwrap();
    assert!(matches!(tried(&hit), Waited::Recovering));
    assert!(matches!(tried(&free_on_hit), Waited::Recovering));
    assert!(matches!(tried(&spared), Waited::Busy));
    assert!(matches!(tried(&free_on_spared), Waited::Done(_)));
    assert_eq!(other.server.plain().get(&format!("lock:{spared}")), value, "it was not touched");
    assert!(on_hit.check().unwrap() && on_spared.check().unwrap());
    assert!(bench.server.plain().get(&format!("lock:{hit}")).is_some());
    assert_eq!(on_spared.unlock().unwrap(), Release::Released);
    assert!(matches!(tried(&spared), Waited::Done(_)), "the other server gives at once");
    assert_eq!(on_hit.unlock().unwrap(), Release::Released);
    assert!(matches!(tried(&hit), Waited::Recovering));
    bench.ages();
    drop(hold(&witness, &hit));
}

#[test]
fn every_server_is_told_the_guard() {
    let (bench, other) = (Bench::start(), Bench::start());
    let url = format!("{},{}?guard=60s&io_timeout=20s", bench.proxy.url(), other.proxy.address());
    let client = Client::connect(&url).unwrap();
    for name in names(&client, "m") {
        let mutex = client.mutex(name, GUARD).unwrap();
        assert!(mutex.owner().unwrap().is_none());
    }
    for server in [&bench.server, &other.server] {
        let told = poll_until(PATIENCE, || server.plain().get("memlock%config"));
        assert_eq!(told.unwrap(), b"memlock-config/1 guard=60s");
    }
}

#[test]
fn what_is_held_is_put_back_on_the_young_server_that_the_name_has_moved_to() {
    let (bench, other) = (Bench::start(), Bench::start());
    let places = [("127.0.0.2", bench.proxy.address()), ("127.0.0.3", other.proxy.address())];
    let ([old, _new], port) = relays(places);
    let name = Name::of(&["127.0.0.2"]);
    let url = format!("memcached://{}?guard=60s&io_timeout=20s", name.with_port(port));
    let [client, witness] = [(); 2].map(|()| Client::connect(&url).unwrap());
    let mut lock = hold(&client, "m");
    assert_eq!(lock.extend(GUARD).unwrap(), Extension::Extended);
    other.restart();
    // A connection that was just used is not checked before it is used again.
    std::thread::sleep(std::time::Duration::from_millis(150));
    drop(old);
    name.lead_to(&["127.0.0.3"]);
    assert!(lock.check().unwrap());
    assert!(other.server.plain().get("lock:m").is_some());
    let tried = |name: &str| witness.mutex(name, GUARD).unwrap().lock_with(&Wait::NEVER).unwrap();
    assert!(matches!(tried("m"), Waited::Recovering | Waited::Busy));
    assert!(matches!(tried("n"), Waited::Recovering));
    assert_eq!(lock.unlock().unwrap(), Release::Released);
}
