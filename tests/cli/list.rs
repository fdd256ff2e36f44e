//! `memlock list`: keys in, ids out.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use memlock_tests::server::Memcached;

use crate::pty::Pty;
use crate::run::Folder;
use crate::tool::{Running, done, fed, memlock, path};

#[test]
fn keys_get_ids_and_keep_them() {
    let server = Memcached::start();
    let missing = fed(memlock(&server, &["list", "l", "insert"]), b"a\n");
    assert_eq!((missing.code, missing.err.lines().count()), (Some(66), 1), "{missing:?}");
    let missing = fed(memlock(&server, &["list", "l", "insert"]), b"");
    assert_eq!(
        (missing.code, missing.err.lines().count()),
        (Some(66), 1),
        "without keys: {missing:?}"
    );
    assert_eq!(done(memlock(&server, &["list", "l", "set-up", "--for", "1h"])).out, "created\n");
    assert_eq!(done(memlock(&server, &["list", "l", "set-up"])).out, "joined\n");
    fed(memlock(&server, &["list", "l", "insert"]), b"a\nb c\n\n\xff\na\nlast")
        .ended(0)
        .printed("1\tnew\ta\n2\tnew\tb c\n3\tnew\t\u{fffd}\n1\told\ta\n4\tnew\tlast\n");
    let said = fed(memlock(&server, &["list", "l", "insert", "--new"]), b"x\na\ny\nlast\n");
    assert_eq!(said.out, "x\ny\n");
    fed(memlock(&server, &["list", "l", "insert", "-q", "-0"]), b"two\nlines\0")
        .ended(0)
        .printed("");
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
    let input: String = (0..6_000).map(|number| format!("key {number}\n")).collect();
    let insert = || fed(memlock(&server, &["list", "l", "insert", "--new"]), input.as_bytes()).out;
    let (one, two) = thread::scope(|scope| {
        let one = scope.spawn(insert);
        let two = scope.spawn(insert);
        (one.join().unwrap(), two.join().unwrap())
    });
    let keys: BTreeSet<&str> = one.lines().chain(two.lines()).collect();
    assert_eq!((keys.len(), one.lines().count() + two.lines().count()), (6_000, 6_000));
    let commands = server.commands();
    let again = fed(memlock(&server, &["list", "l", "insert", "--quiet"]), input.as_bytes());
    assert_eq!((again.code, again.err.as_str()), (Some(0), ""), "no bar but on a terminal");
    let each = (server.commands() - commands) as f64 / 6_000.0;
    assert!(each < 2.1, "{each} commands for each key");
    assert_eq!(done(memlock(&server, &["list", "l", "ids"])).out.lines().count(), 6_000);
}

#[test]
fn keys_are_answered_as_they_come() {
    let server = Memcached::start();
    assert_eq!(done(memlock(&server, &["list", "l", "set-up"])).code, Some(0));
    let (mut feed, input) = UnixStream::pair().unwrap();
    let mut insert = memlock(&server, &["list", "l", "insert", "--new"]);
    insert.stdin(OwnedFd::from(input));
    let mut inserting = Running::start(insert);
    feed.write_all(b"a\nb\na\nhalf").unwrap();
    assert_eq!((inserting.line(), inserting.line()), ("a".to_owned(), "b".to_owned()));
    feed.write_all(b" a key\n").unwrap();
    assert_eq!(inserting.line(), "half a key");
    // As much as is read at once, and half a line behind it.
    let many: String = (0..1024).map(|number| format!("{number:07}\n")).collect();
    feed.write_all((many + "half").as_bytes()).unwrap();
    for number in 0..1024 {
        assert_eq!(inserting.line(), format!("{number:07}"));
    }
    feed.write_all(b"\n").unwrap();
    assert_eq!(inserting.line(), "half");
    drop(feed);
    assert_eq!(inserting.ends().code, Some(0));
}

#[test]
fn what_came_before_input_that_cannot_be_used_is_inserted() {
    let server = Memcached::start();
    assert_eq!(done(memlock(&server, &["list", "l", "set-up"])).code, Some(0));
    let long = "x".repeat(64 * 1024 + 1);
    let said =
        fed(memlock(&server, &["list", "l", "insert"]), format!("a\n\nb\n{long}\nc\n").as_bytes());
    assert_eq!((said.code, said.out.as_str()), (Some(64), "1\tnew\ta\n2\tnew\tb\n"), "{said:?}");
    assert!(
        said.err.contains("Line 4: ") && said.err.contains("before it were inserted."),
        "{said:?}"
    );
    let said =
        fed(memlock(&server, &["list", "l", "insert", "-0"]), format!("b\0{long}").as_bytes());
    assert_eq!((said.code, said.out.as_str()), (Some(64), "2\told\tb\0"), "{said:?}");
    assert!(said.err.contains("Key 2: "), "{said:?}");
    let mut insert = memlock(&server, &["list", "l", "insert"]);
    insert.stdin(OwnedFd::from(one_that_breaks_behind(b"c\nd\n")));
    let said = done(insert);
    assert_eq!((said.code, said.out.as_str()), (Some(74), "3\tnew\tc\n4\tnew\td\n"), "{said:?}");
    assert!(said.err.contains("Line 3: ") && said.err.lines().count() == 1, "{said:?}");
}

/// A connection from which this can be read, and then an error.
fn one_that_breaks_behind(bytes: &[u8]) -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut reader = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    reader.write_all(b"unread").unwrap();
    let mut writer = listener.accept().unwrap().0;
    writer.write_all(bytes).unwrap();
    // A connection that is closed with unread data is reset.
    writer.peek(&mut [0]).unwrap();
    reader
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
    let input: String = (0..50_000).map(|number| format!("key {number}\n")).collect();
    fs::write(&file, input).unwrap();
    let mut command = std::process::Command::new("sh");
    let script = format!("exec {} list l insert --quiet < {}", path().display(), file.display());
    command.args(["-c", &script]).env("MEMLOCK_URL", server.url());
    // On a fast machine it would end before a bar is worth drawing.
    server.pause();
    let mut pty = Pty::start(command);
    thread::sleep(Duration::from_secs(1));
    server.resume();
    let seen = pty.until("100 %");
    assert!(seen.contains("keys/s") && seen.contains("[##"), "{seen:?}");
    assert_eq!(pty.ends(), Some(0));
    // Typed keys are answered one by one, without a bar.
    let mut pty = Pty::start(memlock(&server, &["list", "l", "insert"]));
    pty.type_in("typed\n");
    pty.until("50001\tnew\ttyped");
    pty.type_in("key 7\n");
    pty.until("8\told\tkey 7");
    pty.type_in("\x04");
    assert_eq!(pty.ends(), Some(0));
}

#[test]
fn an_error_has_a_line_of_its_own_behind_the_bar() {
    let server = Memcached::start();
    assert_eq!(done(memlock(&server, &["list", "l", "set-up"])).code, Some(0));
    let mut command = std::process::Command::new("sh");
    let script =
        format!("while echo key; do sleep 0.1; done | {} list l insert --quiet", path().display());
    command.args(["-c", &script]).env("MEMLOCK_URL", server.url());
    let mut pty = Pty::start(command);
    pty.until("keys/s");
    server.kill();
    let seen = pty.until("memlock: ");
    assert!(seen.ends_with("\nmemlock: "), "{seen:?}");
}
