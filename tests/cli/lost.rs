//! `memlock run` when the lock is lost.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use memlock_tests::assert_safe_eq;
use memlock_tests::server::Memcached;

use crate::tool::{
    MINUTE, Running, client, eventually, is_alive, memlock, send, until_gone, until_state,
};

const SECOND: Duration = Duration::from_secs(1);

/// Prints its process and that of a grandchild in a session of its own; both sleep.
const FAMILY: &str =
    "setsid sleep 2000 >/dev/null 2>&1 & echo $! $$; sleep 2001 >/dev/null 2>&1; true";

fn family(running: &mut Running) -> (i32, i32) {
    let line = running.line();
    let (grandchild, child) = line.split_once(' ').unwrap();
    (grandchild.parse().unwrap(), child.parse().unwrap())
}

#[test]
fn a_server_that_dies_takes_the_command_with_it() {
    let server = Memcached::start();
    let args = ["run", "m", "--lease", "10s", "--", "sh", "-c", FAMILY];
    let mut running = Running::start(memlock(&server, &args));
    let (grandchild, child) = family(&mut running);
    server.kill();
    let said = running.ends();
    assert_eq!(said.code, Some(79), "{said:?}");
    assert!(said.err.contains("could not be renewed"), "{said:?}");
    until_gone(child);
    until_gone(grandchild);
}

#[test]
fn a_lock_that_was_taken_away_ends_the_command_unless_that_is_to_continue() {
    let server = Memcached::start();
    for kill in [true, false] {
        let mut args = vec!["run", "m", "--lease", "10s"];
        args.extend((!kill).then_some("--on-lost=continue"));
        args.extend(["--", "sh", "-c", "echo $$; read line; echo survived"]);
        let (mut feed, input) = UnixStream::pair().unwrap();
        let mut command = memlock(&server, &args);
        command.stdin(OwnedFd::from(input));
        let mut running = Running::start(command);
        let child: i32 = running.line().parse().unwrap();
        server.plain().set("lock:m", "another's", 0);
        if !kill {
            running.until_it_complains();
            feed.write_all(b"go on\n").unwrap();
        }
        let said = running.ends();
        assert_eq!((said.code, said.out == "survived\n"), (Some(79), !kill), "{said:?}");
        let what_then = if kill { "is ended." } else { "goes on without it." };
        let says = ["was lost: ", &format!(". The command {what_then}")];
        assert!(says.iter().all(|words| said.err.contains(words)), "{said:?}");
        assert!(!is_alive(child));
        assert_safe_eq!(
            server.plain().get("lock:m").unwrap(),
            b"another's",
            "another holder's lock"
        );
        server.plain().flush_all();
    }
}

/// Long before a renewal is due, or the lease is over.
#[test]
fn what_the_server_has_lost_is_noticed_at_once() {
    let server = Memcached::start();
    for options in
        [&[][..], &["--no-renew"], &["--semaphore", "2"], &["--semaphore", "2", "--no-renew"]]
    {
        let args = [
            &["run", "m", "--lease", "1h"],
            options,
            &["--", "sh", "-c", "echo $$; exec sleep 1000"],
        ];
        let mut running = Running::start(memlock(&server, &args.concat()));
        let child: i32 = running.line().parse().unwrap();
        server.plain().flush_all();
        let said = running.ends();
        assert_eq!(said.code, Some(79), "{said:?}");
        assert!(said.err.contains("gone from the server"), "{said:?}");
        let where_it_was = format!("\"m\" on {} was lost: ", server.address());
        assert!(said.err.contains(&where_it_was), "{said:?}");
        until_gone(child);
    }
}

/// Its standard error has no reader, and nothing more fits into that.
fn fill_stderr(running: &Running) {
    let path = format!("/proc/{}/fd/2", running.pid());
    let mut pipe =
        OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(path).unwrap();
    for bytes in [&[b'x'; 4096][..], b"x"] {
        while pipe.write(bytes).is_ok() {}
    }
}

#[test]
fn a_command_is_ended_also_if_the_report_of_the_loss_is_not_read() {
    let server = Memcached::start();
    let mut running = Running::start(memlock(&server, &["run", "m", "--", "sh", "-c", FAMILY]));
    let (grandchild, child) = family(&mut running);
    fill_stderr(&running);
    server.plain().set("lock:m", "another's", 0);
    until_gone(child);
    until_gone(grandchild);
    assert_eq!(running.ends().code, Some(79));
}

#[test]
fn a_lock_is_renewed_also_if_the_report_of_the_risk_is_not_read() {
    const LEASE: Duration = Duration::from_secs(20);
    let server = Memcached::start();
    let args = ["run", "m", "--lease", "20s", "--", "sh", "-c", "echo $$; exec sleep 1000"];
    let mut running = Running::start(memlock(&server, &args));
    let child: i32 = running.line().parse().unwrap();
    fill_stderr(&running);
    // Longer than until it is reported, at half of the lease.
    server.pause();
    thread::sleep(LEASE * 11 / 20);
    server.resume();
    let mutex = client(&server).mutex("m", LEASE).unwrap();
    eventually("it is renewed", || {
        let owner = mutex.owner().ok()??;
        owner.remaining.is_some_and(|left| left > LEASE * 3 / 4).then_some(())
    });
    assert!(is_alive(child));
    running.signal(libc::SIGTERM);
    assert_eq!(running.ends().code, Some(128 + libc::SIGTERM));
}

/// As long as the grace lasts it may tidy up.
#[test]
fn a_command_that_does_not_heed_term_is_killed_after_the_grace() {
    let server = Memcached::start();
    let script = "trap 'echo heard; read line; echo $line; exit' TERM; echo $$
        while :; do sleep 0.05; done";
    for (grace, heeds) in [("5s", false), ("1h", true)] {
        let args =
            ["run", "m", "--lease", "6s", "--no-renew", "--grace", grace, "sh", "-c", script];
        let (mut feed, input) = UnixStream::pair().unwrap();
        let mut command = memlock(&server, &args);
        command.stdin(OwnedFd::from(input));
        let mut running = Running::start(command);
        let child: i32 = running.line().parse().unwrap();
        assert_eq!(running.line(), "heard");
        if heeds {
            // It would be killed by now.
            thread::sleep(5 * SECOND);
            feed.write_all(b"tidied up\n").unwrap();
        }
        let said = running.ends();
        assert_eq!((said.code, said.out == "tidied up\n"), (Some(79), heeds), "{said:?}");
        assert!(!is_alive(child));
    }
}

#[test]
fn a_command_that_is_stopped_is_ended_too() {
    let server = Memcached::start();
    let script = "echo $$; kill -STOP $$; echo never";
    let args = ["run", "m", "--lease", "6s", "--no-renew", "--", "sh", "-c", script];
    let mut running = Running::start(memlock(&server, &args));
    let child: i32 = running.line().parse().unwrap();
    until_state(child, 'T');
    running.ends().ended(79).printed("");
    until_gone(child);
}

#[test]
fn a_wrapper_that_stood_still_finds_the_lock_lost() {
    let server = Memcached::start();
    let args = ["run", "m", "--lease", "6s", "--", "sh", "-c", FAMILY];
    let mut running = Running::start(memlock(&server, &args));
    let (grandchild, child) = family(&mut running);
    running.signal(libc::SIGSTOP);
    until_state(running.pid(), 'T');
    let next = client(&server).mutex("m", MINUTE).unwrap();
    let lock = next.lock_for(30 * SECOND).unwrap().unwrap();
    assert!(is_alive(child));
    running.signal(libc::SIGCONT);
    running.ends().ended(79);
    until_gone(child);
    until_gone(grandchild);
    assert!(!lock.remaining().is_zero());
    assert_safe_eq!(
        next.owner().unwrap().unwrap().token(),
        lock.token().to_string(),
        "it is still the next one's"
    );
}

#[test]
fn what_is_held_for_too_long_is_lost() {
    let server = Memcached::start();
    let args = ["run", "m", "--max-hold", "5s", "--", "sh", "-c", "echo $$; sleep 1000; true"];
    let began = Instant::now();
    let mut running = Running::start(memlock(&server, &args));
    let child: i32 = running.line().parse().unwrap();
    running.ends().ended(79).complains("for as long as was allowed");
    assert!(began.elapsed() >= 5 * SECOND);
    until_gone(child);
    eventually("the lock is free", || server.plain().get("lock:m").is_none().then_some(()));
}

#[test]
fn a_wrapper_that_is_killed_takes_the_command_with_it() {
    let server = Memcached::start();
    let mut running = Running::start(memlock(
        &server,
        &["run", "m", "--", "sh", "-c", "echo $$; sleep 1; sleep 1000"],
    ));
    let child: i32 = running.line().parse().unwrap();
    running.signal(libc::SIGKILL);
    until_gone(child);
}

/// As is said: it is on its own then.
#[test]
fn a_wrapper_that_is_killed_leaves_the_command_alone_if_that_is_to_continue() {
    let server = Memcached::start();
    let script = "echo $$; exec sleep 1000";
    let args = ["run", "m", "--lease", "4s", "--on-lost=continue", "--", "sh", "-c", script];
    let mut running = Running::start(memlock(&server, &args));
    let child: i32 = running.line().parse().unwrap();
    running.signal(libc::SIGKILL);
    // The lock is not renewed any more.
    let next = client(&server).mutex("m", MINUTE).unwrap();
    assert!(next.lock_for(30 * SECOND).unwrap().is_some());
    assert!(is_alive(child));
    send(child, libc::SIGKILL);
    until_gone(child);
}
