//! Passwords and the rights of users. No password appears in an error, a log record or `Debug`.

use log::LevelFilter;
use memlock_core::{Client, ErrorKind};
use memlock_tests::client::connect;
use memlock_tests::listener::Listener;
use memlock_tests::process::Server;

use crate::stores::redis::{Redis, reply};
use crate::{LEASE, refusal, refused, works};

/// With every character that has a meaning somewhere.
const PASSWORD: &str = "s3cr3t:/?#[]@!$&'()*+,;=%41 \"ü";
/// A part of it, in the URL and decoded.
const SECRET: &str = "s3cr3t";

fn listen() -> &'static Listener {
    Listener::at(LevelFilter::Trace)
}

fn is_quiet_about_it() {
    let heard = listen().heard();
    assert!(heard.iter().any(|record| record.contains("Connected to Redis")), "it listens");
    assert!(heard.iter().all(|record| !record.contains(SECRET)), "{heard:?}");
}

fn encoded(text: &str) -> String {
    let hex = |byte: u8| match byte {
        b'a'..=b'z' | b'0'..=b'9' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(hex).collect()
}

fn login(server: &Redis, login: &str) -> String {
    format!("redis://{login}@{}", server.process().address())
}

#[test]
fn passwords_with_any_character_are_accepted_and_never_shown() {
    listen();
    let server = Redis::start(&[]);
    let () = server.reply(&["CONFIG", "SET", "requirepass", PASSWORD]);
    let right = login(&server, &format!(":{}", encoded(PASSWORD)));
    let client = connect(&right);
    works(&client, "m");
    let lock = client.mutex("m", LEASE).unwrap().try_lock().unwrap().unwrap();
    for shown in
        [format!("{client:?}"), format!("{lock:?} {lock:#?}"), format!("{:?}", client.nodes())]
    {
        assert!(!shown.contains(SECRET), "{shown}");
    }
    drop(lock);
    refused(&server.url(), ErrorKind::Config, "asks for a password");
    let wrong = login(&server, &format!(":{SECRET}wrong"));
    refused(&wrong, ErrorKind::Config, "does not accept");
    refused(&login(&server, &format!("nobody:{SECRET}")), ErrorKind::Config, "does not accept");
    refused(&login(&server, "nobody"), ErrorKind::Config, "REDISCLI_AUTH");
    for login in [&wrong, &login(&server, &format!("u:{SECRET}"))] {
        for bad in [format!("{login}/x"), format!("{login}?nonsense=1")] {
            let error = refusal(&bad).to_string();
            assert!(!error.contains(SECRET), "{error}");
        }
        let error = refusal(login);
        assert!(!format!("{error} {error:?} {error:#?}").contains(SECRET), "{error:?}");
    }
    // The password is changed under a connected client: what is open stays open.
    let open = Redis::start(&[]);
    refused(&login(&open, &format!(":{SECRET}")), ErrorKind::Config, "has no password");
    works(&connect(&open.url()), "m");
    is_quiet_about_it();
}

const CLOSED: &str = "MEMLOCK_TEST_REDIS_CLOSED";
const OPEN: &str = "MEMLOCK_TEST_REDIS_OPEN";

/// Not a test of its own: what a process finds that has the variable of redis-cli.
#[test]
fn of_the_variable() {
    let (Ok(closed), Ok(open)) = (std::env::var(CLOSED), std::env::var(OPEN)) else { return };
    listen();
    let of = |login: &str| format!("redis://{login}@{closed}");
    let open = format!("redis://{open}");
    // As for redis-cli, an empty one is none.
    if std::env::var("REDISCLI_AUTH").unwrap().is_empty() {
        refused(&of("default"), ErrorKind::Config, "REDISCLI_AUTH");
        works(&connect(&open), "m");
    } else {
        refused(&of(&format!(":{SECRET}")), ErrorKind::Config, "does not accept");
        refused(&open, ErrorKind::Config, "REDISCLI_AUTH");
        works(&connect(&format!("redis://{closed}")), "m");
        works(&connect(&of("default")), "m");
    }
    works(&connect(&of(&format!("default:{}", encoded(PASSWORD)))), "n");
    is_quiet_about_it();
}

#[test]
fn the_password_of_redis_cli_is_used_unless_the_url_has_one() {
    let closed = Redis::start(&[]);
    let open = Redis::start(&[]);
    let () = closed.reply(&["CONFIG", "SET", "requirepass", PASSWORD]);
    for password in [PASSWORD, ""] {
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["access::of_the_variable", "--exact"])
            .env("REDISCLI_AUTH", password)
            .env(CLOSED, closed.process().address())
            .env(OPEN, open.process().address())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
    }
}

/// The rights that the message recommends.
fn recommended(text: &str) -> Vec<String> {
    let rights = text.split("grant ").nth(1).unwrap().trim_end_matches('.');
    let rights = rights.replace(", and for the command memlock also", "");
    rights.split(' ').map(|word| word.replace("PREFIX", "app:")).collect()
}

#[test]
fn a_user_with_the_recommended_rights_can_do_everything() {
    listen();
    let server = Redis::start(&[]);
    let mut admin = server.connection();
    let password = format!(">{SECRET}");
    let () = reply(&mut admin, &["ACL", "SETUSER", "bob", "on", &password, "~app:*"]);
    let url = format!("{}?prefix=app:", login(&server, &format!("bob:{SECRET}")));
    let error = refusal(&url);
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    let text = error.to_string();
    assert!(text.contains("has no right"), "{error}");
    let rights = recommended(&text);
    let mut words = vec!["ACL", "SETUSER", "bob"];
    words.extend(rights.iter().map(String::as_str));
    let () = reply(&mut admin, &words);
    let client = connect(&url);
    works(&client, "m");
    let url_of_database = url.replace('?', "/3?");
    works(&connect(&url_of_database), "m");
    let () = reply(&mut admin, &["SCRIPT", "FLUSH"]);
    is_handed_over(&client, &mut admin, "{app:lock:held}%wait");
    // A right that is missing is noticed before a lock is granted that cannot be given back.
    for missing in
        ["set", "get", "incr", "incrby", "del", "pttl", "time", "eval", "evalsha", "info"]
    {
        let () = reply(&mut admin, &["ACL", "SETUSER", "bob", &format!("-{missing}")]);
        let error = refusal(&url);
        assert_eq!(error.kind(), ErrorKind::Config, "{missing}: {error}");
        assert!(error.to_string().contains("has no right"), "{missing}: {error}");
        assert_eq!(reply::<usize>(&mut admin, &["EXISTS", "app:lock:m"]), 0, "{missing}");
        let () = reply(&mut admin, &["ACL", "SETUSER", "bob", &format!("+{missing}")]);
    }
    works(&connect(&url), "m");
    // Another prefix is out of bounds.
    let error = refusal(&url.replace("app:", "other:"));
    assert!(error.to_string().contains("has no right"), "{error}");
    assert!(!error.to_string().contains(SECRET), "{error}");
    is_quiet_about_it();
}

/// A right on the keys of queues, which begin with `{`, too: a lock would be granted, and nobody could
/// wait for it. Permissions to read or to write alone, and selectors, are of Redis 7.
#[test]
fn a_user_without_a_right_on_some_keys_is_refused_at_the_first_contact() {
    for start in [Redis::start, Redis::valkey] {
        let server = start(&[]);
        let mut admin = server.connection();
        let password = format!(">{SECRET}");
        let url = format!("{}?prefix=app:", login(&server, &format!("bob:{SECRET}")));
        let has = |admin: &mut redis::Connection, rights: &[&str]| {
            let words = [&["ACL", "SETUSER", "bob", "reset", "on", &password], rights].concat();
            let () = reply(admin, &words);
        };
        for rights in [
            &["+@all", "~app:*"][..],
            &["+@all", "~{app:*"],
            &["+@all", "~app:*", "%R~{app:*"],
            &["+@all", "~app:*", "%W~{app:*"],
            &["+@all", "~{app:*", "%R~app:*"],
            &["+@all", "~{app:*", "%W~app:*"],
            &["+@all", "%R~app:*", "%R~{app:*"],
            &["+@all", "%W~app:*", "%W~{app:*"],
            &["(+@all ~app:*)"],
            &["(+@all ~app:*)", "(+@all -set ~{app:*)"],
            &["+@all", "-evalsha", "~app:*", "~{app:*", "(+evalsha ~app:*)"],
            &["+@all", "-set", "~app:*", "~{app:*", "(+set ~app:*)"],
            &["+@all", "-get", "~app:*", "~{app:*", "(+get ~app:*)"],
            &["+@all", "-pttl", "~app:*", "~{app:*", "(+pttl ~app:*)"],
            &["+@all", "-pttl", "~app:*", "~{app:*", "(+pttl ~{app:*)"],
            &["+@all", "-del", "~app:*", "~{app:*", "(+del ~{app:*)"],
        ] {
            has(&mut admin, rights);
            let error = refusal(&url);
            assert_eq!(error.kind(), ErrorKind::Config, "{rights:?}: {error}");
            assert!(error.to_string().contains("~PREFIX* ~{PREFIX*"), "{rights:?}: {error}");
            assert_eq!(reply::<usize>(&mut admin, &["EXISTS", "app:lock:m"]), 0, "{rights:?}");
        }
        for rights in [
            &["+@all", "~app:*", "~{app:*"][..],
            &["(+@all ~app:* ~{app:*)"],
            &["+@all", "-del", "~app:*", "~{app:*", "(+del ~app:* ~{app:*)"],
            &["+@all", "%R~app:*", "%W~app:*", "~{app:*"],
        ] {
            has(&mut admin, rights);
            let client = connect(&url);
            works(&client, "m");
            is_handed_over(&client, &mut admin, "{app:lock:held}%wait");
        }
    }
}

/// The queue of a lock with braces in its name, or in the prefix, has no hash tag of its own.
#[test]
fn a_prefix_with_braces_needs_no_other_right() {
    let server = Redis::start(&[]);
    let mut admin = server.connection();
    let password = format!(">{SECRET}");
    let words = ["ACL", "SETUSER", "bob", "on", &password, "+@all", "~{app}.*"];
    let () = reply(&mut admin, &words);
    let url = format!("{}?prefix={{app}}.", login(&server, &format!("bob:{SECRET}")));
    let client = connect(&url);
    works(&client, "m");
    is_handed_over(&client, &mut admin, "{app}.lock:held%wait");
}

/// A lock is handed over to a waiter by its queue.
#[track_caller]
fn is_handed_over(client: &Client, admin: &mut redis::Connection, queue: &str) {
    let mutex = client.mutex("held", LEASE).unwrap();
    let held = mutex.try_lock().unwrap().unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| mutex.lock().unwrap());
        while reply::<usize>(admin, &["EXISTS", queue]) == 0 {
            assert!(!waiter.is_finished(), "{:?}", waiter.join());
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        drop(held);
        drop(waiter.join().unwrap());
    });
}

/// Not only the reply to the login may quote it. The password is a word of the server's error.
#[test]
fn an_error_of_a_later_command_that_quotes_the_password_is_left_out() {
    let server = Redis::start(&[]);
    let rights = "on >permissions >wonderful ~%fence* ~memlock%config +@string +@scripting +del +pttl \
                  +time +info +select +ping";
    let rights: Vec<&str> = rights.split(' ').collect();
    let () = server.reply(&[&["ACL", "SETUSER", "bob"], &rights[..]].concat());
    for (password, is_quoted) in [("permissions", true), ("wonderful", false)] {
        let error = refusal(&login(&server, &format!("bob:{password}"))).to_string();
        assert!(error.contains("has no right to what locks need"), "{error}");
        assert_eq!(error.contains("permissions"), !is_quoted, "{error}");
    }
}

/// `rename-command` in the configuration. The error quotes no argument: for AUTH that is the password.
#[test]
fn a_command_that_is_renamed_is_named() {
    for command in
        ["AUTH", "SET", "GET", "INCR", "DEL", "PTTL", "EVAL", "EVALSHA", "SCRIPT", "TIME"]
    {
        let server = Redis::start(&["--rename-command", command, ""]);
        let url = login(&server, &format!("bob:{SECRET}"));
        let url = if command == "AUTH" { url } else { server.url() };
        let error = refusal(&url);
        assert_eq!(error.kind(), ErrorKind::Config, "{command}: {error}");
        let said = error.to_string();
        assert!(said.contains("rename-command") && !said.contains(SECRET), "{command}: {said}");
        assert_eq!(
            server.reply::<usize>(&["EXISTS", "lock:m"]),
            0,
            "{command}: nothing is granted"
        );
    }
}
