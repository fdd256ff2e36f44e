//! `guard=` in the URL of the command: what it holds survives the end of the server.

use std::time::{Duration, Instant};

use memlock_tests::server::Memcached;
use memlock_tests::url;

use crate::tool::{Running, done, eventually, memlock_at};

/// Of tests that never reach its end.
const LONG: &str = "guard=3600s";
/// For which a busy machine may not run a holder.
const BUSY: &str = "guard=30s";
const SHORT: &str = "guard=3s";

fn url(server: &Memcached, parameters: &str) -> String {
    url::with(&server.url(), parameters)
}

/// Its lease is as long as the guard, and is renewed.
#[test]
fn a_command_holds_over_a_restart() {
    let server = Memcached::start();
    let url = url(&server, BUSY);
    let args = ["run", "m", "--", "sh", "-c", "echo held; exec sleep 1000"];
    let mut running = Running::start(memlock_at(&url, &args));
    assert_eq!(running.line(), "held");
    for _ in 0..2 {
        server.restart();
        eventually("it is put back", || server.plain().get("lock:m"));
    }
    let said = done(memlock_at(&url, &["run", "-n", "-E", "5", "m", "--", "true"]));
    // On a busy machine the guard may be over.
    assert!(matches!(said.code, Some(5 | 75)), "{said:?}");
    assert!(running.is_running());
    running.signal(libc::SIGTERM);
    let said = running.ends();
    assert_eq!((said.code, said.err.as_str()), (Some(128 + libc::SIGTERM), ""), "{said:?}");
    assert!(server.plain().get("lock:m").is_none(), "it was not released");
}

#[test]
fn a_command_that_is_not_to_wait_ends_with_75_and_the_times_whatever_a_conflict_is_to_give() {
    let server = Memcached::start();
    for options in [&["-n"][..], &["-n", "-E", "5"], &["-n", "--semaphore", "2"]] {
        let args = [&["run", "m"], options, &["--", "echo", "ran"]];
        let said = done(memlock_at(&url(&server, LONG), &args.concat()));
        assert_eq!((said.code, said.out.as_str()), (Some(75), ""), "{said:?}");
        assert!(said.err.contains("was started") && said.err.contains(" ago"), "{said:?}");
        assert!(said.err.contains(&server.address()), "{said:?}");
    }
}

/// Nobody has it, as far as anyone knows.
#[test]
fn a_wait_that_ends_during_the_recovery_is_no_conflict() {
    let server = Memcached::start();
    for options in
        [&["--timeout", "1s", "-E", "5"][..], &["--timeout", "1s", "-E", "5", "--semaphore", "2"]]
    {
        let args = [&["run", "m"], options, &["--", "echo", "ran"]];
        let said = done(memlock_at(&url(&server, LONG), &args.concat()));
        assert_eq!((said.code, said.out.as_str()), (Some(75), ""), "{said:?}");
        assert!(said.err.contains("Timed out") && said.err.contains("started anew"), "{said:?}");
    }
}

#[test]
fn a_command_waits_for_the_end_of_the_recovery_and_says_so() {
    let began = Instant::now();
    let server = Memcached::start();
    let args = ["-v", "run", "m", "--", "echo", "ran"];
    let said = done(memlock_at(&url(&server, SHORT), &args));
    assert_eq!((said.code, said.out.as_str()), (Some(0), "ran\n"), "{said:?}");
    assert!(began.elapsed() >= Duration::from_secs(3), "{:?}", began.elapsed());
    assert!(said.err.contains("Waiting for") && said.err.contains("was started"), "{said:?}");
}

#[test]
fn what_may_be_put_back_yet_is_not_said_to_be_free() {
    let server = Memcached::start();
    let said = done(memlock_at(&url(&server, LONG), &["show", "m"]));
    assert!(said.out.contains("not known") && !said.out.contains("free"), "{said:?}");
    let shown = done(memlock_at(&url(&server, LONG), &["show", "m", "--json"])).json();
    assert_eq!(shown["lock"]["held"], false);
    assert_eq!(shown["lock"]["recovering"], true);
    let said = done(memlock_at(&url(&server, LONG), &["ls"]));
    assert!(said.code == Some(0) && !said.out.contains("config"), "{said:?}");
}

#[test]
fn the_doctor_recommends_a_guard_and_tries_no_locks_while_a_server_recovers() {
    let server = Memcached::start();
    let finding = |parameters: &str, what: &str| {
        let report = done(memlock_at(&url(&server, parameters), &["doctor", "--json"])).json();
        let findings = report["servers"][0]["findings"].as_array().unwrap().clone();
        findings.into_iter().find(|finding| finding["what"] == what).unwrap()
    };
    let restart = finding("notify=off", "restart");
    assert!(restart["mend"].as_str().unwrap().contains("?guard=60s"), "{restart}");
    let restart = finding(LONG, "restart");
    assert!(restart["mend"].is_null(), "{restart}");
    assert!(restart["said"].as_str().unwrap().contains("3600 s"), "{restart}");
    let wake_ups = finding(LONG, "wake-ups");
    assert!(wake_ups["said"].as_str().unwrap().contains("were not tried"), "{wake_ups}");
}

#[test]
fn leases_and_guards_that_do_not_fit_are_refused_in_words() {
    let server = Memcached::start();
    let refused = |url: &str, lease: &str, says: [&str; 2]| {
        let said = done(memlock_at(url, &["run", "m", "--lease", lease, "--", "true"]));
        assert!(!matches!(said.code, Some(0 | 75)), "{said:?}");
        assert!(says.iter().all(|says| said.err.contains(says)), "{said:?}");
    };
    refused(&url(&server, "guard=60s"), "61s", ["61 s", "guard of 60 s"]);
    let first = done(memlock_at(&url(&server, LONG), &["run", "-n", "m", "--", "true"]));
    assert_eq!(first.code, Some(75), "{first:?}");
    refused(&server.url(), "3s", ["guard=3600s", "no guard="]);
    refused(&url(&server, "guard=9s"), "3s", ["guard=3600s", "guard=9s"]);
    refused("memcached://h?guard=500ms", "3s", ["guard=\"500ms\"", "from 1s to 3600s"]);
}
