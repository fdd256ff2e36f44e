//! Names, hosts and server text that would spoil a terminal, or look like something else.

use std::io::{self, Write};
use std::net::TcpListener;
use std::thread;

use memlock_tests::server::Memcached;
use memlock_tests::url;
use serde_json::Value;

use crate::pty::Pty;
use crate::sentences::ALL;
use crate::tool::{Said, done, fed, memlock, memlock_at};

/// Turns text around, hides, ends a line, moves the cursor.
const SPOILING: [char; 12] = [
    '\u{202e}',
    '\u{2066}',
    '\u{200b}',
    '\u{2028}',
    '\u{2029}',
    '\u{ad}',
    '\u{feff}',
    '\u{e0041}',
    '\u{9b}',
    '\u{1b}',
    '\u{7f}',
    '\u{34f}',
];

fn name() -> String {
    format!("a{}b", SPOILING.iter().collect::<String>())
}

fn is_clean(said: &Said) -> bool {
    !SPOILING.iter().any(|&c| said.out.contains(c) || said.err.contains(c))
}

/// As a record has it.
fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

#[test]
fn no_name_and_no_host_is_printed_raw() {
    let server = Memcached::start();
    let name = name();
    let key = format!("lock:a{}b", encoded(&name[1..name.len() - 1]));
    let record = format!("memlock/1 {:032x} {} 812 1795170000", 7, encoded(&name));
    let hold = || server.plain().set(&key, &record, 0);
    hold();
    for (args, code, contains) in [
        (&["ls"][..], 0, r"\u{202e}"),
        (&["show", &name], 0, r"\u{2066}"),
        (&["run", "-n", &name, "true"], 75, r"\u{200b}"),
        (&["run", "-w", "50ms", "-v", &name, "true"], 75, r"\u{e0041}"),
        (&["release", "-f", &name], 64, r"\u{feff}"),
        (&["release", "-fs", &name], 66, r"\u{ad}"),
        (&["resize", &name, "3"], 66, r"\u{34f}"),
        (&["list", &name], 66, r"\u{2028}"),
        (&["run", "other", &name], 127, r"\x1b"),
    ] {
        let said = done(memlock(&server, args));
        assert_eq!(said.code, Some(code), "{args:?}: {said:?}");
        assert!(is_clean(&said), "{args:?}: {said:?}");
        assert!(said.out.contains(contains) || said.err.contains(contains), "{args:?}: {said:?}");
    }
    for args in [&["ls", "--json"][..], &["show", &name, "--json"]] {
        let said = done(memlock(&server, args));
        assert!(
            said.code == Some(0) && is_clean(&said) && said.out.contains(r"\u202e"),
            "{said:?}"
        );
        let value: Value = serde_json::from_str(&said.out).unwrap();
        let (found, host) = match &value[0] {
            Value::Null => (&value["name"], &value["lock"]["host"]),
            entry => (&entry["name"], &entry["host"]),
        };
        assert_eq!((found, host), (&Value::from(name.clone()), &Value::from(name.clone())));
    }
    // What another program wrote.
    server.plain().set("lock:php", &name, 0);
    for args in [&["show", "php"][..], &["show", "php", "--json"], &["release", "-f", "php"]] {
        assert!(is_clean(&done(memlock(&server, args))), "{args:?}");
    }
}

#[test]
fn no_text_of_a_server_is_printed_raw() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = url::patient(&format!("memcached://{}", listener.local_addr().unwrap()));
    thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.unwrap();
            thread::spawn(move || {
                let _ = client.write_all(format!("ERROR {}\r\n", name()).as_bytes());
                // Until the other end closes the connection.
                let _ = io::copy(&mut client, &mut io::sink());
            });
        }
    });
    for args in ALL.into_iter().chain([&["doctor", "--json"][..], &["run", "-v", "m", "true"]]) {
        let said = done(memlock_at(&url, args));
        assert!(is_clean(&said) && said.code != Some(0), "{args:?}: {said:?}");
    }
    let said = done(memlock_at(&format!("memcached://{}", name()), &["ls"]));
    assert!(is_clean(&said) && said.code != Some(0), "{said:?}");
}

#[test]
fn keys_of_a_list_are_raw_in_a_pipe_and_escaped_on_a_terminal() {
    let server = Memcached::start();
    let key = format!("k{}", '\u{202e}');
    assert_eq!(done(memlock(&server, &["list", "l", "set-up"])).code, Some(0));
    let said = fed(memlock(&server, &["list", "l", "insert"]), format!("{key}\n").as_bytes());
    assert_eq!(said.out, format!("1\tnew\t{key}\n"));
    assert_eq!(done(memlock(&server, &["list", "l", "ids"])).out, format!("1\t{key}\n"));
    let mut terminal = Pty::start(memlock(&server, &["list", "l", "ids"]));
    let screen = terminal.until("\n");
    assert!(screen.contains(r#""k\u{202e}""#), "{screen:?}");
}
