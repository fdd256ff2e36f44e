//! `guard=` in the URL of the command: what it holds survives the end of the server.

use std::time::{Duration, Instant};

use memlock_core::Client;
use memlock_tests::server::Memcached;

use crate::tool::{Running, done, eventually, memlock_at};

const GUARD: Duration = Duration::from_secs(3);

fn url(server: &Memcached) -> String {
    format!("{}?guard=3s", server.url())
}

/// A command that holds and runs until a line is in the file.
fn holds(server: &Memcached, options: &[&str], name: &str) -> Running {
    let args = [
        &["run", name, "--lease", "3s"],
        options,
        &["--", "sh", "-c", "echo held; exec sleep 1000"],
    ];
    let mut running = Running::start(memlock_at(&url(server), &args.concat()));
    assert_eq!(running.line(), "held");
    running
}

#[test]
fn a_command_holds_over_restarts_and_others_wait() {
    let server = Memcached::start();
    for (options, key) in [(&[][..], "lock:m"), (&["--semaphore", "1"], "semaphore:m")] {
        let mut running = holds(&server, options, "m");
        for _ in 0..2 {
            server.restart();
            eventually("it is put back", || {
                let value = server.plain().get(key)?;
                // A semaphore without holders is one line.
                (key == "lock:m" || value.split(|&byte| byte == b'\n').count() > 2).then_some(())
            });
        }
        let args = [&["run", "m", "--lease", "3s", "-w", "9s"], options, &["--", "true"]];
        let said = done(memlock_at(&url(&server), &args.concat()));
        assert_eq!(said.code, Some(75), "{said:?}");
        assert!(said.err.contains("9 s"), "{said:?}");
        assert!(running.is_running());
        running.signal(libc::SIGTERM);
        let said = running.ends();
        assert_eq!((said.code, said.err.as_str()), (Some(128 + libc::SIGTERM), ""), "{said:?}");
        // It was released, and the next has it.
        assert!(server.plain().get("lock:m").is_none());
        let args = [&["run", "m", "--lease", "3s"], options, &["--", "true"]];
        assert_eq!(done(memlock_at(&url(&server), &args.concat())).code, Some(0));
    }
}

#[test]
fn a_command_that_is_not_to_wait_ends_with_75_and_the_times_whatever_a_conflict_is_to_give() {
    let server = Memcached::start();
    for options in [&["-n"][..], &["-n", "-E", "5"], &["-n", "--semaphore", "2"]] {
        let args = [&["run", "m", "--lease", "3s"], options, &["--", "echo", "ran"]];
        let said = done(memlock_at(&url(&server), &args.concat()));
        assert_eq!((said.code, said.out.as_str()), (Some(75), ""), "{said:?}");
        assert!(said.err.contains("was started") && said.err.contains(" ago"), "{said:?}");
        assert!(said.err.contains(&server.address()), "{said:?}");
        server.restart();
    }
}

#[test]
fn a_command_waits_for_the_end_of_the_recovery_and_says_so() {
    let began = Instant::now();
    let server = Memcached::start();
    let args = ["-v", "run", "m", "--lease", "3s", "--", "echo", "ran"];
    let said = done(memlock_at(&url(&server), &args));
    assert_eq!((said.code, said.out.as_str()), (Some(0), "ran\n"), "{said:?}");
    assert!(began.elapsed() >= GUARD, "{:?}", began.elapsed());
    assert!(said.err.contains("Waiting for") && said.err.contains("was started"), "{said:?}");
}

#[test]
fn what_may_be_put_back_yet_is_not_said_to_be_free() {
    let server = Memcached::start();
    let status = || done(memlock_at(&url(&server), &["show", "m", "--exit-status"])).code.unwrap();
    let began = Instant::now();
    eventually("it is free", || (status() == 0).then_some(()));
    assert!(began.elapsed() >= GUARD / 2, "the server was young: {:?}", began.elapsed());
    let running = holds(&server, &[], "m");
    server.restart();
    assert_eq!(status(), 1);
    running.signal(libc::SIGTERM);
    running.ends();
}

#[test]
fn what_is_shown_during_the_recovery_is_what_was_put_back() {
    let server = Memcached::start();
    let client = Client::connect(&url(&server)).unwrap();
    let lock = client.mutex("m", GUARD).unwrap().lock().unwrap();
    let permit = client.semaphore("s", 2, GUARD).unwrap().acquire().unwrap();
    server.restart();
    let show = |name: &str| done(memlock_at(&url(&server), &["show", name]));
    for name in ["m", "s"] {
        let said = show(name);
        assert!(matches!(said.code, Some(0 | 1)) && said.err.is_empty(), "{said:?}");
    }
    assert!(lock.check().unwrap() && permit.check().unwrap());
    for name in ["m", "s"] {
        let said = show(name);
        assert_eq!(said.code, Some(0), "{said:?}");
        assert!(said.out.contains(&std::process::id().to_string()), "{said:?}");
    }
    let said = done(memlock_at(&url(&server), &["ls"]));
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.out.contains("lock") && !said.out.contains("config"), "{said:?}");
}

#[test]
fn leases_and_guards_that_do_not_fit_are_refused_in_words() {
    let server = Memcached::start();
    let refused = |url: &str, lease: &str, says: [&str; 2]| {
        let said = done(memlock_at(url, &["run", "m", "--lease", lease, "--", "true"]));
        assert!(!matches!(said.code, Some(0 | 75)), "{said:?}");
        assert!(says.iter().all(|says| said.err.contains(says)), "{said:?}");
    };
    refused(&url(&server), "4s", ["4 s", "guard of 3 s"]);
    let first = done(memlock_at(&url(&server), &["run", "-n", "m", "--lease", "3s", "--", "true"]));
    assert_eq!(first.code, Some(75), "{first:?}");
    refused(&server.url(), "3s", ["guard=3s", "no guard="]);
    refused(&format!("{}?guard=9s", server.url()), "3s", ["guard=3s", "guard=9s"]);
    refused("memcached://h?guard=500ms", "3s", ["guard", "500 ms"]);
}
