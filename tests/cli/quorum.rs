//! `quorum=majority` in the URL of the command: what it holds survives any one server.

use std::time::Duration;

use memlock_core::{Client, Lock};
use memlock_tests::server::Memcached;
use serde_json::Value;

use crate::tool::{PATIENCE, Running, done, eventually, eventually_within, memlock_at};

const GUARD: Duration = Duration::from_secs(4);

/// Three servers as a quorum wants them: without evictions, and without `flush_all`.
struct Members {
    servers: Vec<Memcached>,
}

impl Members {
    /// Servers whose guard has ended, for every client.
    fn start() -> Members {
        let servers = (0..3).map(|_| Memcached::with_args(&["-M", "-F"])).collect();
        let members = Members { servers };
        members.settle();
        members
    }

    fn settle(&self) {
        for server in &self.servers {
            eventually_within(2 * PATIENCE, "the guard ends", || {
                let uptime: u64 = server.plain().stats()["uptime"].parse().unwrap();
                (uptime >= GUARD.as_secs() + 4).then_some(())
            });
        }
    }

    fn url(&self) -> String {
        let addresses: Vec<String> = self.servers.iter().map(|server| server.address()).collect();
        format!("memcached://{}?quorum=majority&guard=4s", addresses.join(","))
    }

    /// The lock `m`, with the votes of all: on a busy machine one of them may answer too late.
    fn hold(&self, client: &Client) -> Lock {
        eventually("all give their votes", || {
            let lock = client.mutex("m", GUARD).unwrap().lock_for(PATIENCE).unwrap().unwrap();
            let token = lock.token().to_string();
            let has = |server: &Memcached| {
                let vote = server.plain().get("lock:m").unwrap_or_default();
                String::from_utf8_lossy(&vote).contains(&token)
            };
            self.servers.iter().all(has).then_some(lock)
        })
    }

    fn run(&self, args: &[&str]) -> crate::tool::Said {
        done(memlock_at(&self.url(), args))
    }

    fn json(&self, args: &[&str]) -> Value {
        let said = self.run(args);
        serde_json::from_str(&said.out).unwrap_or_else(|why| panic!("{why}: {said:?}"))
    }
}

#[test]
fn a_command_holds_over_the_kill_and_the_restart_of_any_one_server() {
    let members = Members::start();
    let args = ["run", "m", "--lease", "4s", "--", "sh", "-c", "echo held; exec sleep 1000"];
    let mut running = Running::start(memlock_at(&members.url(), &args));
    assert_eq!(running.line(), "held");
    for server in &members.servers {
        server.kill();
        let said = members.run(&["run", "-n", "m", "--lease", "4s", "--", "true"]);
        assert_eq!(said.code, Some(75), "{said:?}");
        server.restart();
        // For longer than a lease.
        let said = members.run(&["run", "m", "-w", "5s", "--lease", "4s", "--", "true"]);
        assert_eq!(said.code, Some(75), "{said:?}");
        assert!(running.is_running());
    }
    running.signal(libc::SIGTERM);
    let said = running.ends();
    assert_eq!(said.code, Some(128 + libc::SIGTERM), "{said:?}");
    // On a busy machine the lock may have been at risk.
    assert!(said.err.lines().all(|line| line.contains("could not be renewed so far")), "{said:?}");
    let said = members.run(&["run", "m", "--lease", "4s", "--", "echo", "ran"]);
    assert_eq!((said.code, said.out.as_str()), (Some(0), "ran\n"), "{said:?}");
}

#[test]
fn a_command_runs_with_any_one_server_down() {
    let members = Members::start();
    for server in &members.servers {
        server.kill();
        let said = members.run(&["run", "-n", "m", "--lease", "4s", "--", "echo", "ran"]);
        assert_eq!((said.code, said.out.as_str()), (Some(0), "ran\n"), "{said:?}");
        server.restart();
        members.settle();
    }
}

#[test]
fn without_a_majority_it_names_the_servers_and_runs_nothing() {
    let members = Members::start();
    members.servers[..2].iter().for_each(|server| server.kill());
    let said = members.run(&["run", "-n", "m", "--lease", "4s", "--", "echo", "ran"]);
    assert!(!matches!(said.code, Some(0 | 75)) && said.out.is_empty(), "{said:?}");
    let named = |server: &Memcached| said.err.contains(&server.address());
    assert!(members.servers.iter().all(named), "{said:?}");
}

#[test]
fn what_is_held_is_shown_listed_and_released_with_a_server_down() {
    let members = Members::start();
    let client = Client::connect(&members.url()).unwrap();
    for server in &members.servers {
        let renewal = members.hold(&client).renew(Default::default()).unwrap();
        for is_down in [false, true] {
            if is_down {
                server.kill();
            }
            let shown = members.json(&["show", "m", "--json"]);
            assert_eq!(shown["lock"]["held"], true, "{shown}");
            let votes = shown["lock"]["votes"].as_array().unwrap();
            let names_it = |vote: &&serde_json::Value| vote["token"] == shown["lock"]["token"];
            let up = votes.iter().filter(|vote| vote["error"].is_null());
            assert_eq!((votes.len(), up.count()), (3, if is_down { 2 } else { 3 }), "{shown}");
            assert!(votes.iter().filter(names_it).count() >= 2, "{shown}");
            assert_eq!(shown["lock"]["pid"], std::process::id(), "{shown}");
            let said = members.run(&["ls"]);
            assert!(said.out.contains('m'), "{said:?}");
            let lines = said.out.lines().filter(|line| line.contains("held")).count();
            assert_eq!(lines, 1, "a lock is listed once: {said:?}");
            assert!(!said.out.contains("fence") && !said.out.contains("try="), "{said:?}");
        }
        let said = members.run(&["release", "m", "--force", "--yes"]);
        assert_eq!(said.code, Some(0), "{said:?}");
        let shown = members.json(&["show", "m", "--json"]);
        assert_eq!(shown["lock"]["held"], false, "{shown}");
        let _ = renewal.release();
        server.restart();
        members.settle();
    }
}

#[test]
fn doctor_examines_every_member_and_finds_those_that_are_down() {
    let members = Members::start();
    let said = members.run(&["doctor", "--json"]);
    let report: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!((said.code, report["servers"].as_array().unwrap().len()), (Some(0), 3), "{report}");
    members.servers[1].kill();
    let said = members.run(&["doctor"]);
    assert!(said.out.contains(&members.servers[1].address()), "{said:?}");
    assert!(!matches!(said.code, Some(0)), "{said:?}");
}

#[test]
fn a_server_that_was_started_anew_is_shown_to_abstain() {
    let members = Members::start();
    members.servers[1].restart();
    let shown = members.json(&["show", "m", "--json"]);
    let votes = shown["lock"]["votes"].as_array().unwrap();
    for (vote, server) in votes.iter().zip(&members.servers) {
        assert_eq!(vote["server"], server.address(), "{shown}");
        let abstains = vote["abstains"].as_str();
        assert_eq!(abstains.is_some(), server.address() == members.servers[1].address(), "{shown}");
        assert!(abstains.is_none_or(|why| why.contains("gives votes within")), "{shown}");
    }
    let said = members.run(&["show", "m"]);
    assert_eq!(said.out.matches("votes for nobody").count(), 2, "{said:?}");
    assert_eq!(said.out.matches("abstains. It was started").count(), 1, "{said:?}");
    let said = members.run(&["doctor"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_eq!(said.out.matches("is not counted now. It was started").count(), 1, "{said:?}");
}

#[test]
fn a_waiter_is_shown() {
    let members = Members::start();
    let client = Client::connect(&members.url()).unwrap();
    let lock = client.mutex("m", GUARD).unwrap().lock_for(PATIENCE).unwrap().unwrap();
    let renewal = lock.renew(Default::default()).unwrap();
    let args = ["run", "m", "--lease", "4s", "--", "echo", "ran"];
    let waiting = Running::start(memlock_at(&members.url(), &args));
    eventually("it is seen to wait", || {
        let shown = members.json(&["show", "m", "--json"]);
        let waiters = shown["lock"]["waiters"].as_array().cloned().unwrap_or_default();
        (waiters.len() == 1).then_some(())
    });
    assert_eq!(renewal.release().unwrap(), memlock_core::Release::Released);
    assert_eq!(waiting.ends().code, Some(0));
}

#[test]
fn what_a_quorum_has_not_is_refused_in_words() {
    let said = done(memlock_at(
        "memcached://a,b,c?quorum=majority&guard=60s",
        &["run", "m", "--semaphore", "2", "--", "true"],
    ));
    assert!(!matches!(said.code, Some(0 | 75)), "{said:?}");
    assert!(said.err.contains("postgresql://"), "{said:?}");
    let said = done(memlock_at("memcached://a,b?quorum=majority&guard=60s", &["show", "m"]));
    assert!(said.err.contains("odd"), "{said:?}");
}
