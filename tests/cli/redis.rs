//! The command on a Redis.

use memlock_tests::process::Server;
use memlock_tests::url;
use serde_json::Value;

use crate::doctor::{examined, finding};
use crate::stores::redis::{Redis, reply};
use crate::tool::{Said, done, memlock_at};

fn run(server: &Redis, args: &[&str]) -> Said {
    done(memlock_at(&server.url(), args))
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
    run(&server, &["run", "-s", "2", "permits", "true"]).ended(0);
    run(&server, &["list", "keys", "set-up"]).ended(0);
    let listed =
        run(&server, &["run", "ours", crate::tool::path().to_str().unwrap(), "ls", "--json"]);
    let listed = listed.ended(0).json();
    let has = |name, kind| {
        let mut all = listed.as_array().unwrap().iter();
        all.any(|entry| {
            (&entry["name"], &entry["kind"]) == (&Value::from(name), &Value::from(kind))
        })
    };
    for (name, kind) in
        [("ours", "lock"), ("plain", "lock"), ("permits", "semaphore"), ("keys", "list")]
    {
        assert!(has(name, kind), "{name}: {listed}");
    }
    assert!(!listed.to_string().contains("cache"), "{listed}");
    let shown = run(&server, &["show", "plain"]);
    assert!(shown.out.contains("a plain client, which wrote theirs"), "{shown:?}");
    run(&server, &["release", "--force", "--yes", "plain"]).ended(0);
    assert_eq!(server.reply::<usize>(&["EXISTS", "lock:plain"]), 0);
    for name in ["list", "huge"] {
        let said = run(&server, &["run", "-n", name, "true"]);
        assert_ne!(said.code, Some(0), "{name}: {}", said.err);
        assert!(said.err.contains(name) && said.err.len() < 1000, "{name}: {}", said.err);
    }
}

#[test]
fn doctor_reports_replicas_evictions_and_persistence() {
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
    let address = server.process().address();
    let url = url::patient(&format!("redis://bob:s3cr3t@{address}?prefix=app:"));
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
        &["bench", "--time", "100ms", "--contenders", "2"],
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
