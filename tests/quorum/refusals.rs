//! What is refused in words: quorums that are none, and what a quorum has not.

use memlock_core::{Client, Error, ErrorKind};
use memlock_tests::launch::poll_until;

use crate::{Bench, GUARD, PATIENCE, SECOND, gets, hold};

#[track_caller]
fn is_refused<T>(outcome: Result<T, Error>, words: &[&str]) {
    let error = outcome.err().expect("it must be refused");
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    let text = error.to_string();
    assert!(words.iter().all(|word| text.contains(word)) && text.ends_with('.'), "{text}");
}

#[test]
fn urls_that_make_no_quorum_are_refused() {
    let open = |rest: &str| Client::connect(&format!("memcached://{rest}"));
    is_refused(open("a?quorum=majority&guard=60s"), &["odd"]);
    is_refused(open("a,b?quorum=majority&guard=60s"), &["2 servers", "odd"]);
    is_refused(open("a,b,c,d?quorum=majority&guard=60s"), &["4 servers", "odd"]);
    let many: Vec<String> = (0..33).map(|number| format!("h{number}")).collect();
    is_refused(open(&format!("{}?quorum=majority&guard=60s", many.join(","))), &["33", "31"]);
    is_refused(open("a,b,c?quorum=majority"), &["guard=60s"]);
    is_refused(open("a,b,c?quorum=majority&guard=3s"), &["4 s"]);
    is_refused(open("a,b,a?quorum=majority&guard=60s"), &["twice"]);
    is_refused(open("a,b,a:11211?quorum=majority&guard=60s"), &["twice"]);
    for other in ["all", "2", "", "MAJORITY"] {
        is_refused(open(&format!("a,b,c?quorum={other}&guard=60s")), &["quorum", "majority"]);
    }
    for scheme in ["redis://a,b,c", "memory://x", "sqlite:///tmp/x"] {
        let opened = Client::connect(&format!("{scheme}?quorum=majority&guard=60s"));
        is_refused(opened, &["quorum"]);
    }
    assert!(open("a,b,c?quorum=majority&guard=60s").is_ok());
}

#[test]
fn other_primitives_are_refused_with_the_stores_that_have_them() {
    let bench = Bench::of(3);
    let client = bench.client();
    let words = ["redis://", "postgresql://"];
    is_refused(client.semaphore("s", 1, GUARD), &words);
    is_refused(client.open_semaphore("s", GUARD), &words);
    is_refused(client.counter("c"), &words);
    is_refused(client.distinct_list("l"), &words);
}

#[test]
fn a_lease_that_is_longer_than_the_guard_is_refused() {
    let bench = Bench::of(3);
    let client = bench.client();
    let error = client.mutex("m", GUARD + SECOND).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let mut lock = hold(&client, "m");
    assert_eq!(lock.extend(GUARD + SECOND).unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn the_first_client_writes_down_the_members_and_the_guard_on_each() {
    let bench = Bench::of(3);
    drop(hold(&bench.client(), "m"));
    let mut names = bench.addresses();
    names.sort();
    let text = format!("memlock-config/1 guard=4s quorum={}", names.join(","));
    for member in &bench.members {
        assert_eq!(member.get("memlock%config").unwrap(), text.as_bytes());
    }
}

/// Every call of a client whose idea of the quorum is another one.
#[track_caller]
fn disagrees(client: &Client, words: &[&str]) {
    let mutex = client.mutex("m", SECOND).unwrap();
    is_refused(mutex.try_lock(), words);
    is_refused(mutex.lock(), words);
    is_refused(mutex.lock_for(SECOND), words);
    is_refused(mutex.owner(), words);
}

#[test]
fn a_client_with_other_members_or_another_guard_is_refused_with_both() {
    let bench = Bench::of(5);
    let all = bench.addresses();
    let url = |members: &[&String], guard: u64| {
        let members: Vec<&str> = members.iter().map(|member| member.as_str()).collect();
        format!("memcached://{}?quorum=majority&guard={guard}s", members.join(","))
    };
    let [a, b, c, d, e] = &all[..] else { panic!("five") };
    let first = Client::connect(&url(&[a, b, c], 4)).unwrap();
    drop(hold(&first, "m"));
    let quorum = |members: &[&String]| {
        let mut members: Vec<&str> = members.iter().map(|member| member.as_str()).collect();
        members.sort_unstable();
        format!("quorum={}", members.join(","))
    };
    let first_text = quorum(&[a, b, c]);
    for members in [[a, b, d].as_slice(), &[a, d, e], &[a, b, c, d, e]] {
        let client = Client::connect(&url(members, 4)).unwrap();
        disagrees(&client, &[&first_text, &quorum(members)]);
    }
    let client = Client::connect(&url(&[a, b, c], 9)).unwrap();
    disagrees(&client, &["guard=4s", "guard=9s"]);
    // Without a quorum, on one of them or on all.
    for members in [[a].as_slice(), &[a, b, c]] {
        let names: Vec<&str> = members.iter().map(|member| member.as_str()).collect();
        let plain = format!("memcached://{}?guard=4s", names.join(","));
        disagrees(&Client::connect(&plain).unwrap(), &[&first_text]);
    }
    // The order does not matter, nor how the guard is written.
    let same = format!("memcached://{c},{a},{b}?quorum=majority&guard=4000ms");
    let same = Client::connect(&same).unwrap();
    let held = hold(&first, "m");
    assert!(!gets(&same, "m"));
    drop(held);
    assert!(gets(&same, "m"));
}

/// It would write down its members on a server that was started anew, which would then refuse all the
/// others.
#[test]
fn a_client_that_one_member_refuses_writes_nothing_on_the_others() {
    let bench = Bench::of(4);
    let all = bench.addresses();
    let url = |members: &[usize]| {
        let members: Vec<&str> = members.iter().map(|&member| &all[member][..]).collect();
        format!("memcached://{}?quorum=majority&guard=4s", members.join(","))
    };
    let right = Client::connect(&url(&[0, 1, 2])).unwrap();
    drop(hold(&right, "m"));
    for members in [[0, 1, 3], [1, 3, 0]] {
        let wrong = Client::connect(&url(&members)).unwrap();
        disagrees(&wrong, &["quorum="]);
        bench.members[1].server.restart();
        disagrees(&wrong, &["quorum="]);
        assert_eq!(bench.members[1].get("memlock%config"), None);
        // Also one that has heard of no other member yet.
        for members in [[1, 0, 3], [1, 3, 0], [3, 1, 0]] {
            disagrees(&Client::connect(&url(&members)).unwrap(), &["quorum="]);
        }
        assert_eq!(bench.members[1].get("memlock%config"), None);
        assert_eq!(bench.members[3].get("memlock%config"), None);
        let writes = || {
            drop(hold(&right, "m"));
            bench.members[1].get("memlock%config").map(drop)
        };
        assert!(poll_until(PATIENCE, writes).is_some());
    }
}
