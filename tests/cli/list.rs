//! `memlock list`: keys in, ids out.

use std::collections::BTreeSet;
use std::fs;
use std::thread;

use memlock_tests::server::Memcached;

use crate::pty::Pty;
use crate::run::Folder;
use crate::tool::{done, fed, memlock, path};

#[test]
fn keys_get_ids_and_keep_them() {
    let server = Memcached::start();
    let missing = fed(memlock(&server, &["list", "l", "insert"]), b"a\n");
    assert_eq!((missing.code, missing.err.lines().count()), (Some(66), 1), "{missing:?}");
    assert_eq!(done(memlock(&server, &["list", "l", "set-up", "--for", "1h"])).out, "created\n");
    assert_eq!(done(memlock(&server, &["list", "l", "set-up"])).out, "joined\n");
    let said = fed(memlock(&server, &["list", "l", "insert"]), b"a\nb c\n\n\xff\na\nlast");
    assert_eq!(
        (said.code, said.out.as_str()),
        (Some(0), "1\tnew\ta\n2\tnew\tb c\n3\tnew\t\u{fffd}\n1\told\ta\n4\tnew\tlast\n")
    );
    let said = fed(memlock(&server, &["list", "l", "insert", "--new"]), b"x\na\ny\nlast\n");
    assert_eq!(said.out, "x\ny\n");
    let said = fed(memlock(&server, &["list", "l", "insert", "-q", "-0"]), b"two\nlines\0");
    assert_eq!((said.code, said.out.as_str()), (Some(0), ""));
    assert_eq!(done(memlock(&server, &["list", "l"])).out, "7\n");
    let ids = memlock(&server, &["list", "l", "ids", "--null"]).output().unwrap().stdout;
    assert_eq!(ids, b"1\ta\x002\tb c\x003\t\xff\x004\tlast\x005\tx\x006\ty\x007\ttwo\nlines\0");
    assert_eq!(done(memlock(&server, &["list", "l", "tear-down"])).code, Some(0));
    for action in [&["list", "l", "tear-down"][..], &["list", "l", "ids"], &["list", "l"]] {
        assert_eq!(done(memlock(&server, action)).code, Some(66), "{action:?}");
    }
}

#[test]
fn long_input_goes_in_batches_and_each_key_is_new_for_one_process() {
    let server = Memcached::start();
    assert_eq!(done(memlock(&server, &["list", "l", "set-up"])).code, Some(0));
    let input: String = (0..25_000).map(|number| format!("key {number}\n")).collect();
    let insert = || fed(memlock(&server, &["list", "l", "insert", "--new"]), input.as_bytes()).out;
    let (one, two) = thread::scope(|scope| {
        let one = scope.spawn(insert);
        let two = scope.spawn(insert);
        (one.join().unwrap(), two.join().unwrap())
    });
    let keys: BTreeSet<&str> = one.lines().chain(two.lines()).collect();
    assert_eq!((keys.len(), one.lines().count() + two.lines().count()), (25_000, 25_000));
    let commands = server.commands();
    let again = fed(memlock(&server, &["list", "l", "insert", "--quiet"]), input.as_bytes());
    assert_eq!((again.code, again.err.as_str()), (Some(0), ""), "no bar but on a terminal");
    let each = (server.commands() - commands) as f64 / 25_000.0;
    assert!(each < 2.1, "{each} commands for each key");
    assert_eq!(done(memlock(&server, &["list", "l", "ids"])).out.lines().count(), 25_000);
}

#[test]
fn a_key_that_is_too_long_is_refused() {
    let server = Memcached::start();
    assert_eq!(done(memlock(&server, &["list", "l", "set-up"])).code, Some(0));
    let said = fed(memlock(&server, &["list", "l", "insert", "-q"]), &vec![b'x'; 64 * 1024]);
    assert_eq!(said.code, Some(0), "{said:?}");
    let said = fed(memlock(&server, &["list", "l", "insert", "-q"]), &vec![b'x'; 64 * 1024 + 1]);
    assert_eq!((said.code, said.err.lines().count()), (Some(64), 1), "{said:?}");
}

#[test]
fn a_long_insert_has_a_bar_on_a_terminal() {
    let server = Memcached::with_args(&["-m", "1024"]);
    assert_eq!(done(memlock(&server, &["list", "l", "set-up"])).code, Some(0));
    let folder = Folder::new("bar");
    let file = folder.0.join("keys");
    let input: String = (0..300_000).map(|number| format!("key {number}\n")).collect();
    fs::write(&file, input).unwrap();
    let mut command = std::process::Command::new("sh");
    let script = format!("exec {} list l insert --quiet < {}", path().display(), file.display());
    command.args(["-c", &script]).env("MEMLOCK_URL", server.url());
    let mut pty = Pty::start(command);
    let seen = pty.until("100 %");
    assert!(seen.contains("keys/s") && seen.contains("[##"), "{seen:?}");
    assert_eq!(pty.ends(), Some(0));
    // Typed keys are answered one by one, without a bar.
    let mut pty = Pty::start(memlock(&server, &["list", "l", "insert"]));
    pty.type_in("typed\n");
    pty.until("300001\tnew\ttyped");
    pty.type_in("key 7\n");
    pty.until("8\told\tkey 7");
    pty.type_in("\x04");
    assert_eq!(pty.ends(), Some(0));
}
