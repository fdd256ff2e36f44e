//! What `memlock run` says, and when it says nothing; and what may be written on its command line.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;

use memlock_core::{Request, Wait};
use memlock_tests::launch::poll_until;
use memlock_tests::server::Memcached;

use crate::tool::{
    MINUTE, PATIENCE, Running, Said, client, done, eventually, held, memlock, memlock_at,
    until_waiting,
};

fn run(server: &Memcached, args: &[&str]) -> Said {
    done(memlock(server, &[&["run"], args].concat()))
}

#[test]
fn a_busy_lock_is_named_with_its_server_and_its_holder() {
    let server = Memcached::start();
    let lock = held(&server, "m");
    let lock_and_server = format!("\"m\" on {}", server.address());
    let holder = format!("process {}, since 20", std::process::id());
    let said = run(&server, &["m", "-n", "true"]);
    assert!(
        said.err.starts_with(&format!("memlock: {lock_and_server} is busy: held by ")),
        "{said:?}"
    );
    assert!(said.err.contains(&holder), "{said:?}");
    let said = run(&server, &["m", "--timeout", "500ms", "true"]);
    assert!(
        said.err.starts_with(&format!(
            "memlock: Timed out after 500 ms waiting for {lock_and_server} (held by "
        )),
        "{said:?}"
    );
    assert!(said.err.contains(&holder), "{said:?}");
    let mut waiting =
        Running::start(memlock(&server, &["run", "m", "-v", "--", "sh", "-c", "echo in"]));
    until_waiting(&server);
    drop(lock);
    assert_eq!(waiting.line(), "in");
    let said = waiting.ends();
    assert!(said.err.contains(&format!("Waiting for {lock_and_server} (held by ")), "{said:?}");
    assert!(said.err.contains(&holder), "{said:?}");
}

#[test]
fn busy_permits_are_named_with_their_server_and_their_holders() {
    let server = Memcached::start();
    let semaphore = client(&server).semaphore("s", 2, MINUTE).unwrap();
    let both = Request { permits: 2, ..Request::default() };
    let _permits = semaphore.acquire_with(both, &Wait::NEVER).unwrap().done().unwrap();
    let said = run(&server, &["s", "-s", "2", "-n", "true"]);
    let start = format!(
        "memlock: \"s\" on {} is busy: 0 of 2 permits are free, held by ",
        server.address()
    );
    assert!(said.err.starts_with(&start), "{said:?}");
    assert!(said.err.contains(&format!("process {}, since 20", std::process::id())), "{said:?}");
}

#[test]
fn permits_that_are_reserved_for_another_waiter_are_reported_so() {
    let server = Memcached::start();
    let semaphore = client(&server).semaphore("s", 3, MINUTE).unwrap();
    let _permit = semaphore.acquire().unwrap();
    let waiter = client(&server);
    let waiting = {
        let semaphore = waiter.semaphore("s", 3, MINUTE).unwrap();
        let all = Request { permits: 3, ..Request::default() };
        std::thread::spawn(move || semaphore.acquire_with(all, &Wait::FOREVER).map(drop))
    };
    eventually("it reserves the two that are free", || {
        let record = server.plain().get("semaphore:s")?;
        String::from_utf8_lossy(&record).contains(" gathering=").then_some(())
    });
    let subject = format!("semaphore \"s\" on {}", semaphore.server());
    // A waiter that is held up loses its reservation, and makes another one.
    let says = |options: &[&str], start: &str| {
        let mut last = None;
        let said = poll_until(PATIENCE, || {
            let said = last.insert(run(&server, &[&["s", "-s", "3"], options, &["true"]].concat()));
            (said.code == Some(75) && said.err.starts_with(start)).then_some(())
        });
        assert!(said.is_some(), "{start:?}: {last:?}");
    };
    let reserved = "that are available are reserved for another waiter";
    says(&["-n"], &format!("memlock: The permits of the {subject} {reserved}"));
    let timed_out = "memlock: Timed out after 100 ms waiting for a permit of the";
    says(&["-w", "100ms"], &format!("{timed_out} {subject}"));
    waiter.cancel_waits();
    waiting.join().unwrap().unwrap();
}

#[test]
fn nothing_is_said_of_another_holder_when_that_is_no_failure_or_not_wanted() {
    let server = Memcached::start();
    let _lock = held(&server, "m");
    for (args, code) in [
        (&["m", "-n", "-E", "0", "true"][..], 0),
        (&["m", "-w", "50ms", "-E", "0", "true"], 0),
        (&["m", "-n", "--quiet", "true"], 75),
        (&["m", "-w", "50ms", "-q", "-E", "9", "true"], 9),
    ] {
        run(&server, args).was(code, "", "");
    }
}

#[test]
fn a_failure_is_said_also_with_quiet() {
    let server = Memcached::start();
    server.kill();
    let said = run(&server, &["m", "-n", "-q", "-E", "0", "true"]);
    assert_eq!((said.code, said.err.lines().count()), (Some(69), 1), "{said:?}");
}

#[test]
fn the_command_follows_its_name_with_or_without_dashes() {
    let server = Memcached::start();
    for (args, out) in [
        (&["m", "echo", "--wait", "3"][..], "--wait 3\n"),
        (&["m", "--", "echo", "-n", "x"], "x"),
        (
            &["m", "--lease", "5s", "sh", "-c", "echo $0 $*", "-v", "--", "--url", "x"],
            "-v -- --url x\n",
        ),
        (&["--", "-x", "echo", "-q"], "-q\n"),
        (&["-q", "--", "-x", "--", "echo", "hi"], "hi\n"),
    ] {
        run(&server, args).was(0, out, "");
    }
    let _lock = held(&server, "-x");
    let said = done(memlock(&server, &["show", "--", "-x"]));
    assert!(said.code == Some(0) && said.out.contains("held"), "{said:?}");
    assert_eq!(run(&server, &["-n", "--", "-x", "true"]).code, Some(75));
}

#[test]
fn an_option_that_is_the_default_now_is_refused_with_a_sentence() {
    let server = Memcached::start();
    for option in ["--renew", "-r", "--kill-on-lost", "-k"] {
        for args in [[option, "m", "true"], ["m", option, "true"]] {
            let said = run(&server, &args);
            assert_eq!((said.code, said.err.lines().count()), (Some(64), 1), "{said:?}");
            assert!(
                said.err.contains(option) && said.err.contains("--on-lost=continue"),
                "{said:?}"
            );
        }
    }
    let said = run(&server, &["m", "--no-renw", "true"]);
    assert!(said.code == Some(64) && said.err.contains("--no-renew"), "{said:?}");
    assert!(!said.err.contains("-- --no-renw"), "a tip that would make it the command: {said:?}");
}

fn without_url(args: &[&str]) -> Command {
    let mut command = memlock_at("", args);
    command.env_remove("MEMLOCK_URL");
    command
}

#[test]
fn the_default_server_is_said_to_lock_this_host_only() {
    let count = |said: &Said| said.err.matches("on this host only").count();
    assert_eq!(count(&done(without_url(&["run", "m", "-n", "true"]))), 1);
    assert_eq!(count(&done(without_url(&["run", "m", "-n", "-q", "true"]))), 0);
    let server = Memcached::start();
    run(&server, &["m", "true"]).ended(0).quietly();
    done(without_url(&["run", "--url", &server.url(), "m", "true"])).ended(0).quietly();
}

/// All commands.
pub(crate) const ALL: [&[&str]; 9] = [
    &["run", "m", "true"],
    &["show", "m"],
    &["ls"],
    &["release", "-fy", "m"],
    &["release", "m"],
    &["resize", "m", "3"],
    &["list", "l", "set-up"],
    &["bench"],
    &["doctor"],
];

/// Another command would not see them.
#[test]
fn locks_in_the_memory_of_one_process_are_refused() {
    for args in ALL {
        let said = done(memlock_at("memory://x", args));
        if args == ["release", "m"] {
            assert_eq!(said.code, Some(64), "without --force nothing is done anywhere");
            continue;
        }
        assert_eq!(
            (said.code, said.out.as_str(), said.err.lines().count()),
            (Some(78), "", 1),
            "{args:?}: {said:?}"
        );
        assert!(
            said.err.contains("memory://x") && said.err.contains("memcached://host"),
            "{said:?}"
        );
    }
}

/// So that no password is on a command line or in the environment.
#[test]
fn the_url_may_be_in_a_file() {
    let server = Memcached::start();
    let file = std::env::temp_dir().join(format!("memlock-url-{}", std::process::id()));
    std::fs::write(&file, format!("{}\n", server.url())).unwrap();
    let with_file = |args: &[&str]| {
        let mut command = without_url(args);
        command.env("MEMLOCK_URL_FILE", &file);
        done(command)
    };
    with_file(&["run", "m", "true"]).ended(0).quietly();
    std::fs::remove_file(&file).unwrap();
    with_file(&["run", "m", "true"]).ended(78).complains("MEMLOCK_URL_FILE");
    with_file(&["run", "--url", &server.url(), "m", "true"]).ended(0).quietly();
}

#[test]
fn no_message_contains_what_may_be_a_password() {
    let file = std::env::temp_dir().join(format!("memlock-secret-{}", std::process::id()));
    for text in [
        "s3cret",
        "user:s3cret",
        "user:s3cret@tcp(host:3306)/db",
        "host=host user=user password=s3cret",
        "\"redis://user:s3cret@host\"",
        "\u{feff}redis://user:s3cret@host",
        "redis//user:s3cret@host",
        "redis://s3cret@host",
        "redis://user:s3cret",
        "redis://user:s3cret@host/x",
        "jdbc:postgresql://host/db?user=user&password=s3cret",
        "postgresql://host/db?password=a%40b&sslmode=s3cret",
        "rediss://host?tls_ca=s3cret&pool=1",
        "-----BEGIN PRIVATE KEY-----s3cret",
        "{\"password\": \"s3cret\"}",
    ] {
        std::fs::write(&file, format!("{text}\n{text}\n")).unwrap();
        let mut of_file = without_url(&["run", "m", "true"]);
        of_file.env("MEMLOCK_URL_FILE", &file);
        let mut no_file = without_url(&["run", "m", "true"]);
        no_file.env("MEMLOCK_URL_FILE", text);
        let url = format!("--url={text}");
        let mut no_utf8 = without_url(&["-vv", "show", "m"]);
        no_utf8.env("MEMLOCK_URL", OsStr::from_bytes(&[text.as_bytes(), b"\xff"].concat()));
        let commands = [
            of_file,
            no_file,
            no_utf8,
            memlock_at(text, &["-vv", "doctor"]),
            memlock_at("memory://x", &["show", "m", &url]),
        ];
        for command in commands {
            let said = done(command);
            assert_eq!(said.code, Some(78), "{text}: {said:?}");
            assert!(!said.err.contains("s3cret") && said.out.is_empty(), "{text}: {said:?}");
        }
        let said = done(memlock_at("memory://x", &["doctor", &format!("--print-schema={text}")]));
        assert!(!format!("{said:?}").contains("s3cret"), "{said:?}");
    }
    std::fs::remove_file(&file).unwrap();
    for args in [
        &["redis://user:s3cret@host"][..],
        &["show", "m", "redis://user:s3cret@host"],
        &["show", "m", "--redis://user:s3cret@host"],
        &["doctor", "password=s3cret"],
        &["run", "--lease", "user:s3cret@host", "m", "true"],
        &["ls", "user:s3cret"],
        &["ls", "-----BEGIN PRIVATE KEY-----\ns3cret"],
    ] {
        let said = done(without_url(args));
        assert_eq!(said.code, Some(64), "{said:?}");
        assert!(said.err.contains("***") && !said.err.contains("s3cret"), "{said:?}");
    }
    let server = Memcached::start();
    let said = done(memlock_at(&server.url(), &["run", "m", "redis://u:s3cret@h", "true"]));
    assert!(said.code == Some(127) && !said.err.contains("s3cret"), "{said:?}");
}

#[test]
fn an_url_that_is_empty_or_no_text_is_refused_with_a_sentence() {
    for args in ALL {
        let said = done(memlock_at("", args));
        assert_eq!((said.code, said.err.lines().count()), (Some(78), 1), "{args:?}: {said:?}");
        assert!(said.err.contains("MEMLOCK_URL") && said.err.contains("is empty"), "{said:?}");
        let mut command = memlock_at("", args);
        command.env("MEMLOCK_URL", OsStr::from_bytes(b"memcached://\xff"));
        let said = done(command);
        assert_eq!((said.code, said.err.lines().count()), (Some(78), 1), "{args:?}: {said:?}");
        assert!(said.err.contains("not UTF-8") && said.err.contains(r"\xff"), "{said:?}");
    }
    assert_eq!(
        done(memlock_at("memcached://127.0.0.1:1", &["show", "m", "--url", ""])).code,
        Some(78)
    );
}
