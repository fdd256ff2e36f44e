//! The command on a Redis.

use std::process::Command;

use memlock_tests::process::Server;
use memlock_tests::url;

use crate::doctor::{examined, finding};
use crate::stores::redis::{Redis, reply};
use crate::tool::{Said, done, fed, memlock_at};

fn at(server: &Redis, args: &[&str]) -> Command {
    memlock_at(&url::patient(&server.url()), args)
}

fn run(server: &Redis, args: &[&str]) -> Said {
    done(at(server, args))
}

#[test]
fn all_commands_work_on_a_redis() {
    let server = Redis::start(&[]);
    let memlock = crate::tool::path();
    let memlock = memlock.to_str().unwrap();
    let inside = |args: &[&str]| run(&server, &[&["run", "a", memlock], args].concat());
    assert_eq!(run(&server, &["run", "a", "sh", "-c", "exit 7"]).code, Some(7));
    let busy = inside(&["run", "-n", "a", "true"]);
    assert!(busy.code == Some(75) && busy.err.contains("is busy"), "{busy:?}");
    let shown = inside(&["show", "a", "--json"]).json();
    assert_eq!((&shown["lock"]["held"], &shown["key"]), (&true.into(), &"lock:a".into()));
    let listed = inside(&["ls", "--json"]).json();
    assert_eq!((&listed[0]["name"], &listed[0]["kind"]), (&"a".into(), &"lock".into()));
    assert_eq!(run(&server, &["ls", "--json"]).out, "[]\n");
    // A lock of another program.
    let () = server.reply(&["SET", "lock:f", "theirs", "PX", "60000"]);
    let shown = run(&server, &["show", "f"]);
    assert!(shown.out.contains("a plain client, which wrote theirs"), "{shown:?}");
    assert_eq!(run(&server, &["release", "--force", "--yes", "f"]).code, Some(0));
    assert_eq!(server.reply::<usize>(&["EXISTS", "lock:f"]), 0);
    // A semaphore, and a list.
    assert_eq!(
        run(&server, &["run", "-s", "2", "s", memlock, "run", "-s", "2", "s", "true"]).code,
        Some(0)
    );
    assert_eq!(run(&server, &["resize", "s", "3"]).code, Some(0));
    assert_eq!(run(&server, &["list", "l", "set-up"]).code, Some(0));
    let inserted = fed(at(&server, &["list", "l", "insert"]), b"x\ny\nx\n");
    assert_eq!(inserted.out, "1\tnew\tx\n2\tnew\ty\n1\told\tx\n", "{inserted:?}");
    assert_eq!(run(&server, &["list", "l", "ids"]).out, "1\tx\n2\ty\n");
    let listed = run(&server, &["ls", "--json"]).json();
    assert_eq!(listed.as_array().unwrap().len(), 2, "{listed}");
    assert_eq!(run(&server, &["list", "l", "tear-down"]).code, Some(0));
    let bench = run(&server, &["bench", "--time", "100ms", "--contenders", "2"]);
    assert!(bench.code == Some(0) && bench.out.contains("lock + unlock"), "{bench:?}");
}

/// Items of other programs and types beside those of memlock.
#[test]
fn what_is_no_lock_does_not_disturb_the_list() {
    let server = Redis::start(&[]);
    let huge = "h".repeat(2 * 1024 * 1024);
    let _: redis::Value = server.reply(&["RPUSH", "lock:list", "a"]);
    let _: redis::Value = server.reply(&["HSET", "semaphore:hash", "a", "b"]);
    let () = server.reply(&["SET", "lock:huge", &huge]);
    let () = server.reply(&["SET", "cache:1", "x"]);
    let () = server.reply(&["SET", "lock:plain", "theirs", "PX", "60000"]);
    let said = run(&server, &["ls", "--json"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.out.contains("\"plain\"") && !said.out.contains("cache"), "{}", said.out);
    for name in ["list", "huge"] {
        let said = run(&server, &["run", "-n", name, "true"]);
        assert_ne!(said.code, Some(0), "{name}: {}", said.err);
        assert!(said.err.contains(name) && said.err.len() < 1000, "{name}: {}", said.err);
    }
}

#[test]
fn doctor_tells_replicas_evictions_and_persistence() {
    let server = Redis::start(&["--appendonly", "yes"]);
    let (code, report) = examined(&server.url(), &[]);
    assert_eq!(code, Some(0), "{report}");
    let said = finding(&report, "persistence")["said"].to_string();
    assert!(said.contains("appendonly is on"), "{said}");
    let () = server.reply(&["CONFIG", "SET", "maxmemory", "100mb"]);
    let () = server.reply(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let (code, report) = examined(&server.url(), &[]);
    assert_eq!(code, Some(2), "{report}");
    let evictions = finding(&report, "evictions");
    assert_eq!(evictions["verdict"], "bad");
    assert!(evictions["mend"].to_string().contains("noeviction"), "{evictions}");
    let () = server.reply(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    // A replica takes no locks, and a primary with one may lose some.
    let replica = Redis::start(&["--replicaof", &format!("127.0.0.1 {}", server.process().port())]);
    let mut admin = server.connection();
    let attached = || {
        let info: String = reply(&mut admin, &["INFO", "replication"]);
        info.contains("connected_slaves:1").then_some(())
    };
    memlock_tests::launch::poll_until(crate::tool::PATIENCE, attached).expect("it never attached");
    let (code, report) = examined(&server.url(), &[]);
    assert_eq!(finding(&report, "replicas")["verdict"], "warning", "{report}");
    assert_ne!(code, Some(2), "{report}");
    let said = done(memlock_at(&replica.url(), &["doctor"]));
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(said.out.contains("replica"), "{said:?}");
    let valkey = Redis::valkey(&[]);
    let (_, report) = examined(&valkey.url(), &[]);
    assert!(finding(&report, "version")["said"].to_string().contains("Valkey"), "{report}");
}

/// The rights are those that the message recommends.
#[test]
fn a_user_with_the_recommended_rights_may_use_all_commands() {
    let server = Redis::start(&[]);
    let mut admin = server.connection();
    let () = reply(&mut admin, &["ACL", "SETUSER", "bob", "on", ">s3cr3t", "~app:*"]);
    let url = format!("redis://bob:s3cr3t@{}?prefix=app:", server.process().address());
    let said = done(memlock_at(&url, &["run", "a", "true"]));
    assert!(said.code != Some(0) && !said.err.contains("s3cr3t"), "{said:?}");
    let rights = said.err.split("grant ").nth(1).unwrap_or_else(|| panic!("{said:?}"));
    let rights: Vec<String> = rights
        .split([' ', ',', '\n'])
        .filter(|word| word.starts_with(['~', '+']))
        .map(|word| word.trim_end_matches('.').replace("PREFIX", "app:"))
        .collect();
    let mut words = vec!["ACL", "SETUSER", "bob"];
    words.extend(rights.iter().map(String::as_str));
    let () = reply(&mut admin, &words);
    for args in [
        &["run", "a", "true"][..],
        &["show", "a"],
        &["ls"],
        &["-vv", "doctor"],
        &["list", "l", "set-up"],
        &["list", "l", "tear-down"],
        &["run", "-s", "2", "s", "true"],
        &["resize", "s", "3"],
    ] {
        let said = done(memlock_at(&url, args));
        assert_eq!(said.code, Some(0), "{args:?}: {said:?}");
        assert!(!said.err.contains("s3cr3t") && !said.out.contains("s3cr3t"), "{args:?}: {said:?}");
    }
}
