//! `memlock doctor`: what it finds on servers that are fit, and on those that are not.

use std::net::UdpSocket;

use memlock_tests::launch::until;
use memlock_tests::server::Memcached;
use memlock_tests::url;
use serde_json::Value;

use crate::tool::{done, memlock, memlock_at};

/// The finding about this on the only server.
pub(crate) fn finding<'a>(report: &'a Value, what: &str) -> &'a Value {
    let findings = report["servers"][0]["findings"].as_array().unwrap();
    findings
        .iter()
        .find(|finding| finding["what"] == what)
        .unwrap_or_else(|| panic!("no {what} in {report}"))
}

pub(crate) fn examined(url: &str, more: &[&str]) -> (Option<i32>, Value) {
    let said = done(memlock_at(url, &[&["doctor", "--json"], more].concat()));
    (said.code, said.json())
}

/// The doctor ends with this status, and this is its verdict about `what`. Returns the finding.
#[track_caller]
fn judged(url: &str, more: &[&str], what: &str, (code, verdict): (i32, &str)) -> Value {
    let (status, report) = examined(url, more);
    let finding = finding(&report, what);
    assert_eq!((status, finding["verdict"].as_str()), (Some(code), Some(verdict)), "{report}");
    finding.clone()
}

#[test]
fn a_stock_server_is_not_fit_and_one_started_as_it_says_is() {
    let server = Memcached::start();
    let (code, report) = examined(&server.url(), &[]);
    assert_eq!((code, report["verdict"].as_str()), (Some(2), Some("bad")));
    let evictions = finding(&report, "evictions");
    assert_eq!(evictions["verdict"], "bad");
    assert!(evictions["mend"].as_str().unwrap().contains("-M"), "{evictions}");
    // In words too, with the flags in the last line.
    let said = done(memlock(&server, &["doctor"]));
    assert!(said.out.contains("evictions") && said.out.trim_end().ends_with("-M -F"), "{said:?}");
    assert!(
        !said.out.contains('\x1b') && said.err.is_empty(),
        "no colours but on a terminal: {said:?}"
    );
    let findings = report["servers"][0]["findings"].as_array().unwrap();
    let flags: Vec<&str> = findings
        .iter()
        .flat_map(|finding| finding["flags"].as_array().unwrap())
        .flat_map(|flag| flag.as_str().unwrap().split(' '))
        .collect();
    server.restart_with(&flags);
    let (code, report) = examined(&server.url(), &[]);
    assert_eq!(code, Some(0), "{report}");
    let version = if server.release() < vec![1, 6, 42] { "note" } else { "ok" };
    assert_eq!(finding(&report, "version")["verdict"], version, "{report}");
    for what in [
        "cas",
        "evictions",
        "evicted",
        "flush_all",
        "connections",
        "clock",
        "round trip",
        "wake-ups",
    ] {
        assert_eq!(finding(&report, what)["verdict"], "ok", "{report}");
    }
    assert!(done(memlock(&server, &["doctor"])).out.contains("It is fit for locks."));
    assert_eq!(done(memlock(&server, &["ls"])).out, "", "it leaves nothing behind");
}

#[test]
fn leases_are_held_against_the_temporary_ttl() {
    let flags = |ttl| format!("temporary_ttl={ttl},no_slab_reassign");
    let server = Memcached::with_args(&["-F", "-o", "temporary_ttl=62"]);
    let evictions = judged(&server.url(), &["--lease", "60s"], "evictions", (2, "bad"));
    assert!(evictions["mend"].as_str().unwrap().contains(&flags(62)), "{evictions}");
    server.restart_with(&["-F", "-o", &flags(62)]);
    judged(&server.url(), &["--lease", "60s"], "evictions", (0, "note"));
    let evictions = judged(&server.url(), &["--lease", "61s"], "evictions", (2, "bad"));
    assert!(evictions["mend"].as_str().unwrap().contains(&flags(63)), "{evictions}");
    server.restart_with(&["-F", "-o", &flags(63)]);
    assert_eq!(examined(&server.url(), &["--lease", "61s"]).0, Some(0));
}

#[test]
fn what_refuses_evictions_is_recommended_and_says_what_it_refuses() {
    let server = Memcached::start();
    server.restart_with(&["-M", "-F"]);
    let mend = |url: &str| judged(url, &[], "evictions", (0, "ok"))["mend"].clone();
    assert!(mend(&server.url()).as_str().unwrap().contains("evictions=refuse"));
    let refusing = url::with(&server.url(), "evictions=refuse");
    assert_eq!(mend(&refusing), Value::Null);
    server.restart_with(&["-F"]);
    let (code, report) = examined(&refusing, &[]);
    assert_eq!((code, finding(&report, "evictions")["verdict"].as_str()), (Some(2), Some("bad")));
    let said = done(memlock_at(&refusing, &["run", "m", "true"]));
    assert_eq!(said.code, Some(78), "{said:?}");
    assert!(said.err.contains("-M") && said.err.contains("evictions=refuse"), "{said:?}");
}

/// Waiters whose queue is refused poll for as long as they may, and do not report why.
#[test]
fn a_server_without_room_for_a_lock_or_for_its_queue_is_not_one_without_wake_ups() {
    // Items of few sizes, so that a lock and its queue compete for the same room.
    let server =
        Memcached::with_args(&["-M", "-F", "-m", "2", "-f", "4", "-o", "no_slab_reassign"]);
    let mut plain = server.plain();
    let value = "x".repeat(150);
    let mut store =
        |key: &u32| plain.command(&format!("set filler{key} 0 0 150\r\n{value}")) == "STORED";
    assert!((0..).take_while(&mut store).count() > 1000);
    for (filler, message) in
        ["Locking the lock", "Storing the queue of waiters for the lock"].iter().enumerate()
    {
        let locks = judged(&server.url(), &[], "locks", (2, "bad"));
        let said = locks["said"].as_str().unwrap();
        for words in [*message, &server.address(), "out of memory"] {
            assert!(said.contains(words), "{words}: {said}");
        }
        let wake_ups = judged(&server.url(), &[], "wake-ups", (2, "note"));
        assert!(wake_ups["said"].as_str().unwrap().contains("were not tried"), "{wake_ups}");
        // Room for one more.
        assert!(server.plain().delete(&format!("filler{filler}")));
    }
    assert!((2..20).all(|filler| server.plain().delete(&format!("filler{filler}"))));
    judged(&server.url(), &[], "wake-ups", (0, "ok"));
}

#[test]
fn locks_that_were_pushed_out_are_noticed() {
    let server = Memcached::with_args(&["-m", "2", "-F"]);
    let mut plain = server.plain();
    let value = "x".repeat(100_000);
    for number in 0..100 {
        plain.set(&format!("filler{number}"), &value, 0);
    }
    assert_ne!(plain.stats()["evictions"], "0");
    judged(&server.url(), &[], "evicted", (2, "bad"));
}

#[test]
fn a_server_without_cas_is_bad_and_nothing_is_tried_on_it() {
    let server = Memcached::with_args(&["-C", "-M", "-F"]);
    let cas = judged(&server.url(), &[], "cas", (2, "bad"));
    assert!(cas["mend"].as_str().unwrap().contains("-C"));
    judged(&server.url(), &[], "wake-ups", (2, "note"));
}

#[test]
fn connections_that_run_out_are_noticed() {
    let server = Memcached::with_args(&["-M", "-F", "-c", "100"]);
    let mut idle: Vec<_> = (0..60).map(|_| server.plain()).collect();
    // The server counts a connection once it has accepted it, and one that it answers was accepted.
    idle.iter_mut().for_each(|idle| _ = idle.stats());
    let mut taken = || idle[0].stats()["curr_connections"].clone();
    let before = taken();
    let connections = judged(&server.url(), &[], "connections", (1, "warning"));
    assert_eq!(connections["flags"][0], "-c 1024");
    until("the command's connections are closed", || taken() == before);
    let more: Vec<_> = (0..100)
        .map_while(|_| memlock_tests::server::MemcachedText::try_connect(&server.address()).ok())
        .collect();
    let said = done(memlock(&server, &["doctor"]));
    assert_eq!(said.code, Some(69), "{said:?}");
    assert!(said.out.contains("takes no more connections"), "{said:?}");
    drop((idle, more));
}

#[test]
fn wake_ups_are_tried_and_those_that_do_not_arrive_are_noticed() {
    let server = Memcached::with_args(&["-M", "-F"]);
    let (_, report) = examined(&server.url(), &[]);
    assert!(
        finding(&report, "wake-ups")["said"].as_str().unwrap().contains("127.0.0.1:"),
        "{report}"
    );
    // A firewall may leave one port only.
    let port = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("127.0.0.1:{port}");
    let (_, report) = examined(&url::with(&server.url(), &format!("notify={address}")), &[]);
    assert!(finding(&report, "wake-ups")["said"].as_str().unwrap().contains(&address), "{report}");
    // An address without an owner.
    judged(&url::with(&server.url(), "notify=192.0.2.1"), &[], "wake-ups", (1, "warning"));
    judged(&url::with(&server.url(), "notify=off"), &[], "wake-ups", (0, "note"));
}

#[test]
fn each_server_is_examined_and_one_that_is_down_is_reported() {
    let (one, two) = (Memcached::with_args(&["-M", "-F"]), Memcached::with_args(&["-M", "-F"]));
    let url = url::patient(&format!("memcached://{},{}", one.address(), two.address()));
    let said = done(memlock_at(&url, &["doctor"]));
    assert_eq!((said.code, said.out.matches("arrive at").count()), (Some(0), 2), "{said:?}");
    two.kill();
    let said = done(memlock_at(&url, &["doctor"]));
    assert_eq!(said.code, Some(69));
    assert!(
        said.out.contains(&two.address()) && said.out.contains("cannot be connected to"),
        "{said:?}"
    );
    assert_eq!(said.out.matches("arrive at").count(), 1);
}
