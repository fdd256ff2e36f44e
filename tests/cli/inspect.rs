//! `memlock show`, `ls` and `release`.

use memlock_core::name::Key;
use memlock_core::store::Route;
use memlock_core::{Client, Release, Request, Wait};
use memlock_tests::server::Memcached;
use memlock_tests::url;
use serde_json::Value;

use crate::pty::Pty;
use crate::tool::{MINUTE, Running, client, done, eventually, held, memlock, memlock_at};

fn json(server: &Memcached, args: &[&str]) -> Value {
    let said = done(memlock(server, args));
    assert_eq!((said.code, said.err.as_str()), (Some(0), ""), "{said:?}");
    said.json()
}

#[test]
fn a_lock_that_is_reserved_for_a_waiter_is_shown_so() {
    let server = Memcached::start();
    let token = "0123456789abcdef0123456789abcdef";
    let record = format!("memlock/1 {token} web3 812 1795170000 rings for=00000000000000aa");
    server.plain().add("lock:m", &record, 0);
    let shown = json(&server, &["show", "m", "--json"]);
    assert_eq!(shown["lock"]["reserved_for"], "00000000000000aa", "{shown}");
    for command in [&["show", "m"][..], &["ls"]] {
        let said = done(memlock(&server, command));
        assert!(said.out.contains("reserved") && !said.out.contains("held"), "{said:?}");
    }
}

#[test]
fn a_lock_is_shown_free_and_held_with_its_holder_and_who_waits() {
    let server = Memcached::start();
    let free = json(&server, &["show", "m", "--json"]);
    assert_eq!(
        (&free["lock"]["held"], &free["semaphore"], &free["list"]),
        (&Value::Bool(false), &Value::Null, &Value::Null)
    );
    assert!(done(memlock(&server, &["show", "m"])).out.contains("free"));
    let lock = held(&server, "m");
    let held = json(&server, &["show", "m", "--json"]);
    assert_eq!(held["lock"]["held"], true);
    assert_eq!(held["lock"]["pid"], std::process::id());
    assert_eq!(held["lock"]["token"], lock.token().to_string());
    let fence = held["lock"]["fence_at_most"].as_u64().unwrap();
    assert!(fence >= lock.fence() && fence - lock.fence() < 100, "{held}");
    assert!((50..=62).contains(&held["lock"]["remaining"].as_u64().unwrap()), "{held}");
    assert!(held["lock"]["since"].as_str().unwrap().ends_with('Z'));
    let waiting = Running::start(memlock(&server, &["run", "m", "--", "true"]));
    let waiter = eventually("it is seen to wait", || {
        json(&server, &["show", "m", "--json"])["lock"]["waiters"]
            .as_array()
            .unwrap()
            .first()
            .cloned()
    });
    assert!(waiter["address"].as_str().unwrap().starts_with("127.0.0.1:"), "{waiter}");
    let said = done(memlock(&server, &["show", "m"]));
    for text in
        ["held", &format!("process {}", std::process::id()), "fence", "waiting", "127.0.0.1:"]
    {
        assert!(said.out.contains(text), "{text}: {said:?}");
    }
    drop(lock);
    assert_eq!(waiting.ends().code, Some(0));
    server.plain().add("lock:php", "1", 0);
    let said = done(memlock(&server, &["show", "php"]));
    assert!(
        said.out.contains("a plain client, which wrote 1") && said.out.contains("for ever"),
        "{said:?}"
    );
}

#[test]
fn semaphores_and_lists_are_shown() {
    let server = Memcached::start();
    let semaphore = client(&server).semaphore("s", 5, MINUTE).unwrap();
    let two = Request { permits: 2, ..Request::default() };
    let permit = semaphore.acquire_with(two, &Wait::NEVER).unwrap().done().unwrap();
    let shown = json(&server, &["show", "s", "--json"]);
    assert_eq!(
        (&shown["semaphore"]["permits"], &shown["semaphore"]["available"]),
        (&5.into(), &3.into())
    );
    assert_eq!(shown["semaphore"]["holders"][0]["permits"], 2);
    let said = done(memlock(&server, &["show", "s"]));
    assert!(said.out.contains("3 of 5") && !said.out.contains("lock "), "{said:?}");
    drop(permit);
    let mut list = client(&server).distinct_list("l").unwrap();
    let _ = list.set_up(MINUTE).unwrap();
    list.insert_many(&["a", "b", "a"]).unwrap();
    assert_eq!(json(&server, &["show", "l", "--json"])["list"]["ids"], 2);
}

#[test]
fn all_that_lives_is_listed_and_nothing_else() {
    let (one, two) = (Memcached::start(), Memcached::start());
    let url = url::patient(&format!("memcached://{},{}?prefix=app.", one.address(), two.address()));
    let client = Client::connect(&url).unwrap();
    let long = "x".repeat(300);
    let names = ["a", "b c", "ü", &long];
    let locks: Vec<_> =
        names.iter().map(|name| client.mutex(name, MINUTE).unwrap().lock().unwrap()).collect();
    let permit = client.semaphore("s", 3, MINUTE).unwrap().acquire().unwrap();
    let mut list = client.distinct_list("l").unwrap();
    let _ = list.set_up(MINUTE).unwrap();
    list.insert_many(&["k1", "k2"]).unwrap();
    // Another prefix's, and no lock at all.
    assert_eq!(
        client.mutex("freed", MINUTE).unwrap().lock().unwrap().unlock().unwrap(),
        memlock_core::Release::Released
    );
    one.plain().add("lock:other", "1", 60);
    two.plain().add("app.page", "html", 60);
    let listed = || -> Vec<Value> {
        let said = done(memlock_at(&url, &["ls", "--json"]));
        assert_eq!(said.code, Some(0), "{said:?}");
        serde_json::from_value(said.json()).unwrap()
    };
    let kinds: Vec<(Value, Value)> =
        listed().iter().map(|entry| (entry["kind"].clone(), entry["name"].clone())).collect();
    let expected = [
        ("lock", Value::Null),
        ("lock", "a".into()),
        ("lock", "b c".into()),
        ("lock", "ü".into()),
        ("semaphore", "s".into()),
        ("list", "l".into()),
    ];
    assert_eq!(kinds, expected.map(|(kind, name)| (Value::from(kind), name)));
    assert_eq!(
        (&listed()[1]["pid"], &listed()[4]["available"], &listed()[5]["ids"]),
        (&std::process::id().into(), &2.into(), &2.into())
    );
    let said = done(memlock_at(&url, &["ls"]));
    assert_eq!(said.out.lines().count(), 7, "{said:?}");
    assert!(said.out.contains("2 of 3 free") && said.out.contains("2 ids"), "{said:?}");
    let waiting = Running::start(memlock_at(&url, &["run", "a", "--", "true"]));
    eventually("one waits", || (listed()[1]["waiting"] == 1).then_some(()));
    drop((locks, permit));
    list.tear_down().unwrap();
    assert_eq!(waiting.ends().code, Some(0));
    // The semaphore is there, free, for a day.
    assert_eq!(listed().len(), 1);
    assert_eq!(done(memlock(&Memcached::start(), &["ls"])).out, "");
}

#[test]
fn a_semaphore_is_given_another_number_of_permits() {
    let server = Memcached::start();
    let run = |permits| done(memlock(&server, &["run", "s", "--semaphore", permits, "--", "true"]));
    let resize = |name, permits| done(memlock(&server, &["resize", name, permits]));
    assert_eq!(run("3").code, Some(0));
    resize("s", "5").was(0, "", "");
    assert_eq!(json(&server, &["show", "s", "--json"])["semaphore"]["permits"], 5);
    run("5").was(0, "", "");
    assert_eq!((resize("s", "0").code, resize("s", "many").code), (Some(64), Some(64)));
    assert_eq!(run("3").code, Some(0));
    let said = resize("none", "5");
    assert_eq!(
        (said.code, said.err.as_str()),
        (Some(66), "memlock: There is no semaphore none.\n")
    );
}

#[test]
fn what_lives_on_a_server_that_is_up_is_shown_though_another_one_is_down() {
    let (one, two) = (Memcached::start(), Memcached::start());
    let url = url::patient(&format!("memcached://{},{}", one.address(), two.address()));
    let client = Client::connect(&url).unwrap();
    let place = |key: Key| client.server_of(Route::of(&key));
    // The lock on the first server, the semaphore and the list on the second one.
    let parts = |name: &String| {
        let keys = client.keys();
        let (lock, semaphore, list) = (
            keys.lock(name.as_bytes()),
            keys.semaphore(name.as_bytes()),
            keys.session(name.as_bytes()),
        );
        [place(lock), place(semaphore), place(list)] == [0, 1, 1]
    };
    let name = (0..).map(|number| format!("m{number}")).find(parts).unwrap();
    let _lock = client.mutex(&name, MINUTE).unwrap().lock().unwrap();
    let _ = client.semaphore(&name, 3, MINUTE).unwrap().set_up(MINUTE).unwrap();
    let all = done(memlock_at(&url, &["show", &name, "--json"])).json();
    assert_eq!((&all["semaphore"]["permits"], &all["unread"]), (&3.into(), &serde_json::json!([])));
    let says = |args: &[&str]| {
        let said = done(memlock_at(&url, args));
        assert_eq!(said.code, Some(69), "{said:?}");
        assert!(
            said.err
                .lines()
                .all(|line| line.starts_with("memlock: ") && line.contains(" cannot be "))
        );
        said
    };
    two.kill();
    let said = says(&["show", &name]);
    assert!(said.out.contains("held") && !said.out.contains("semaphore"), "{said:?}");
    assert_eq!(said.err.lines().count(), 2, "{said:?}");
    for what in ["Looking at the semaphore", "Reading the distinct list"] {
        assert!(
            said.err.contains(&format!("memlock: {what} {name:?} on memcached at ")),
            "{said:?}"
        );
    }
    let shown = says(&["show", &name, "--json"]).json();
    assert_eq!((&shown["lock"]["held"], &shown["semaphore"]), (&true.into(), &Value::Null));
    assert_eq!(shown["unread"], serde_json::json!(["semaphore", "list"]));
    let said = says(&["ls"]);
    assert_eq!((said.out.lines().count(), said.err.lines().count()), (2, 1), "{said:?}");
    let listed = says(&["ls", "--json"]).json();
    assert_eq!((listed.as_array().unwrap().len(), &listed[0]["name"]), (1, &name.clone().into()));
    // What is not known is not called free.
    two.restart();
    one.kill();
    let shown = says(&["show", &name, "--json"]).json();
    assert_eq!((&shown["lock"], &shown["unread"]), (&Value::Null, &serde_json::json!(["lock"])));
    assert_eq!(says(&["show", &name]).out, "");
    assert_eq!(says(&["ls"]).out, "");
    two.kill();
    for args in [&["show", &name][..], &["show", &name, "--json"], &["ls"], &["ls", "--json"]] {
        let said = says(args);
        assert_eq!((said.out.as_str(), said.err.lines().count()), ("", 1), "{said:?}");
    }
}

#[test]
fn a_server_that_does_not_list_its_keys_is_said_to() {
    for flags in [&["-X"][..], &["-o", "no_lru_crawler"]] {
        let server = Memcached::with_args(flags);
        let said = done(memlock(&server, &["ls"]));
        assert_eq!((said.code, said.err.lines().count()), (Some(76), 1), "{said:?}");
        assert!(said.err.contains(&flags.join(" ")), "{said:?}");
    }
}

#[test]
fn a_lock_is_taken_away_only_by_force_and_after_being_asked() {
    let server = Memcached::start();
    let said = done(memlock(&server, &["release", "m", "--force", "--yes"]));
    assert_eq!((said.code, said.err.as_str()), (Some(1), "memlock: Nobody holds m.\n"));
    let mut lock = held(&server, "m");
    for args in [&["release", "m"][..], &["release", "m", "--force"]] {
        done(memlock(&server, args)).ended(64);
        assert!(server.plain().get("lock:m").is_some());
    }
    for (answer, code) in [("n\n", 1), ("\n", 1), ("y\n", 0)] {
        let mut pty = Pty::start(memlock(&server, &["release", "--force", "m"]));
        let asked = pty.until("[y/N]");
        assert!(asked.contains(&format!("process {}", std::process::id())), "{asked:?}");
        pty.type_in(answer);
        assert_eq!(pty.ends(), Some(code), "{answer:?}");
        assert_eq!(server.plain().get("lock:m").is_none(), code == 0);
    }
    assert_eq!(lock.unlock().unwrap(), Release::Lost);
    let _lock = held(&server, "m");
    done(memlock(&server, &["release", "--force", "m", "--yes"])).ended(0);
    assert!(server.plain().get("lock:m").is_none());
}

#[test]
fn permits_are_taken_away_from_the_holder_that_is_named() {
    let server = Memcached::start();
    let semaphore = client(&server).semaphore("s", 2, MINUTE).unwrap();
    let (mut one, mut two) = (semaphore.acquire().unwrap(), semaphore.acquire().unwrap());
    done(memlock(&server, &["release", "--force", "--yes", "--semaphore", "s"])).ended(64);
    let said = done(memlock(&server, &["release", "--force", "--yes", "s"]));
    assert_eq!((said.code, said.err.lines().count()), (Some(1), 1), "{said:?}");
    assert!(
        said.err.contains("Nobody holds the lock s;") && said.err.contains("--semaphore"),
        "{said:?}"
    );
    let token = json(&server, &["show", "s", "--json"])["semaphore"]["holders"][0]["token"].clone();
    done(memlock(&server, &["release", "-fys", "s", "--token", token.as_str().unwrap()])).ended(0);
    assert_eq!(semaphore.status().unwrap().unwrap().available, 1);
    done(memlock(&server, &["release", "-fys", "s"])).ended(0);
    assert_eq!(semaphore.status().unwrap().unwrap().available, 2);
    assert_eq!((one.release().unwrap(), two.release().unwrap()), (Release::Lost, Release::Lost));
    assert_eq!(done(memlock(&server, &["release", "-fys", "none"])).code, Some(66));
}

/// Any client that can store a key can write anything into it: here as long a name as a hash, with
/// a command in it.
#[test]
fn a_key_with_a_command_in_it_is_not_carried_out_by_those_who_list_it() {
    let server = Memcached::start();
    let _lock = held(&server, "m");
    let key = "bG9jazolc2hhMjU2OjAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMA0KZmx1c2hfYWxsDQo=";
    assert_eq!(server.plain().command(&format!("ms {key} 1 b\r\nx")), "HD");
    let said = done(memlock(&server, &["ls"]));
    assert_eq!((said.code, said.out.lines().count()), (Some(0), 2), "{said:?}");
    assert!(said.out.contains(" m ") && server.plain().get("lock:m").is_some(), "{said:?}");
}

#[test]
fn a_command_with_another_number_of_permits_runs_and_says_so_once() {
    let server = Memcached::start();
    let run = |options: &[&str]| {
        let command = ["--", "echo", "ran"];
        done(memlock(&server, &[&["run", "jobs", "--semaphore"], options, &command].concat()))
    };
    let number =
        || json(&server, &["show", "jobs", "--json"])["semaphore"]["permits"].as_u64().unwrap();
    run(&["5"]).quietly().was(0, "ran\n", "");
    for options in [&["8"][..], &["8", "-v"], &["8", "--mismatch", "follow"]] {
        let said = run(options).ended(0).printed("ran\n");
        let words = format!(
            "The semaphore \"jobs\" on memcached at {} has 5 permits, and was opened with 8",
            server.address()
        );
        assert_eq!(said.err.matches(&words).count(), 1, "{said:?}");
        said.complains("`memlock resize`");
    }
    run(&["8", "--quiet"]).was(0, "ran\n", "");
    run(&["8", "--permits", "6"]).ended(64).printed("").complains("it has 5");
    run(&["8", "--mismatch", "refuse"]).ended(64).printed("").complains("has 5 permits");
    assert_eq!(number(), 5);
    run(&["8", "--mismatch", "resize", "--permits", "8"]).was(0, "ran\n", "");
    assert_eq!(number(), 8);
    assert!(done(memlock(&server, &["ls"])).out.contains("8 of 8 free"));
    done(memlock(&server, &["run", "m", "--mismatch", "resize", "--", "true"])).ended(64);
}
