//! Servers that are there only later, or are away when the lock is released.

use std::time::{Duration, Instant};

use memlock_tests::proxy::Proxy;
use memlock_tests::server::Memcached;
use memlock_tests::url;

use crate::tool::{
    MINUTE, PATIENCE, Running, client, eventually, held, memlock, memlock_at, until_waiting,
};

const WAITING: &str = "Waiting for the server of \"m\"";

/// `memlock run m` with these options, on a server that is not there.
fn on_a_dead_server(server: &Memcached, parameters: &str, options: &[&str]) -> Running {
    server.kill();
    let url = url::with(&server.url(), parameters);
    let mut args = vec!["run", "m"];
    args.extend(options);
    args.extend(["--", "echo", "ran"]);
    Running::start(memlock_at(&url, &args))
}

#[test]
fn a_server_that_starts_late_is_waited_for_within_the_timeout() {
    for (parameters, options) in [
        ("", &["--timeout", "1h"][..]),
        ("", &["--timeout", "1h", "--semaphore", "2"]),
        ("", &["--timeout", "1h", "-v"]),
        ("outage=3600s", &["--timeout", "1h"]),
        ("outage=3600s", &[]),
    ] {
        let server = Memcached::start();
        let running = on_a_dead_server(&server, parameters, options);
        running.until_it_complains();
        server.restart();
        let said = running.ends().ended(0).printed("ran\n").complains(WAITING);
        assert_eq!(said.err.matches(WAITING).count(), 1, "it is said once: {said:?}");
    }
}

#[test]
fn a_server_that_never_comes_is_no_busy_lock() {
    let server = Memcached::start();
    let began = Instant::now();
    // Longer than any other limit of an outage.
    let options = ["--timeout", "6s", "--conflict-exit-code", "0", "--quiet"];
    let said = on_a_dead_server(&server, "", &options).ends().ended(69).printed("");
    assert!(began.elapsed() >= Duration::from_secs(6), "{said:?}");
    assert!(said.complains("Is memcached running there?").err.contains(WAITING));
}

#[test]
fn nobody_waits_longer_than_the_outage_of_the_url() {
    let server = Memcached::start();
    for options in [&["--timeout", "1h"][..], &[]] {
        let began = Instant::now();
        on_a_dead_server(&server, "outage=500ms", options).ends().ended(69).complains(WAITING);
        assert!(began.elapsed() >= Duration::from_millis(500));
        server.restart();
    }
}

#[test]
fn without_a_timeout_or_an_outage_of_the_url_a_server_that_is_down_is_reported_at_once() {
    let server = Memcached::start();
    for (parameters, options) in
        [("", &[][..]), ("", &["-v"]), ("", &["--no-wait"]), ("outage=3600s", &["--no-wait"])]
    {
        let said = on_a_dead_server(&server, parameters, options).ends().ended(69);
        assert!(!said.err.contains(WAITING), "{said:?}");
        server.restart();
    }
}

#[test]
fn an_outage_in_which_the_timeout_passes_is_no_busy_lock() {
    let server = Memcached::start();
    let _held = held(&server, "m");
    let args = ["run", "m", "--timeout", "3s", "--conflict-exit-code", "0", "--", "echo", "ran"];
    let waiting = Running::start(memlock(&server, &args));
    until_waiting(&server);
    server.kill();
    waiting.ends().ended(69).printed("").complains("Timed out after 3 s waiting for \"m\"");
}

#[test]
fn a_wait_for_a_server_is_ended_by_a_signal() {
    let server = Memcached::start();
    let running = on_a_dead_server(&server, "", &["--timeout", "1h"]);
    running.until_it_complains();
    running.signal(libc::SIGTERM);
    assert_eq!(running.ends().code, None);
}

/// What is gone by then may have been released by the first attempt, or lost before.
#[test]
fn a_release_that_succeeds_after_one_without_an_answer_says_what_is_not_known() {
    let server = Memcached::start();
    let proxy = Proxy::start(server.address());
    let url = format!("memcached://{}?io_timeout=1500ms", proxy.address());
    let args = ["run", "m", "--lease", "5m", "--", "sh", "-c", "echo in; exec sleep 1000"];
    let mut running = Running::start(memlock_at(&url, &args));
    assert_eq!(running.line(), "in");
    proxy.black_hole(true);
    let before = proxy.hits();
    running.signal(libc::SIGTERM);
    // One release asks three times; a further question may be whether the lock is there.
    assert!(proxy.wait_for_hits(before + 4, PATIENCE));
    proxy.black_hole(false);
    running.ends().ended(143).complains("was released, but not at once");
    assert!(client(&server).mutex("m", MINUTE).unwrap().try_lock().unwrap().is_some());
}

#[test]
fn a_release_is_repeated_while_a_server_is_away_for_a_moment() {
    for option in [&[][..], &["--no-renew"], &["--semaphore", "1"]] {
        let server = Memcached::start();
        let proxy = Proxy::start(server.address());
        let mut args = vec!["run", "m", "--lease", "5m"];
        args.extend(option);
        args.extend(["--", "sh", "-c", "echo in; exec sleep 1000"]);
        let mut running =
            Running::start(memlock_at(&format!("memcached://{}", proxy.address()), &args));
        assert_eq!(running.line(), "in");
        proxy.refuse(true);
        let before = proxy.connections();
        running.signal(libc::SIGTERM);
        eventually("it tries again", || (proxy.connections() >= before + 6).then_some(()));
        proxy.refuse(false);
        let said = running.ends().ended(143);
        assert!(!said.err.contains("could not be released"), "{said:?}");
        let free = match option {
            ["--semaphore", _] => {
                let semaphore = client(&server).semaphore("m", 1, MINUTE).unwrap();
                semaphore.try_acquire().unwrap().is_some()
            }
            _ => client(&server).mutex("m", MINUTE).unwrap().try_lock().unwrap().is_some(),
        };
        assert!(free, "it was not released: {option:?}");
    }
}
