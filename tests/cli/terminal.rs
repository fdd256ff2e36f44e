//! What everything has in common: colours, help, `--verbose`, pages and completions; and `memlock
//! bench`.

use std::fs;
use std::process::{Command, Stdio};

use memlock_tests::server::Memcached;

use crate::pty::Pty;
use crate::run::Folder;
use crate::tool::{done, memlock, memlock_at, path, said};

#[test]
fn colours_are_for_terminals_and_for_those_who_want_them() {
    let server = Memcached::start();
    let show = || {
        let mut command = memlock(&server, &["show", "m"]);
        command.env("TERM", "xterm");
        command
    };
    assert!(Pty::start(show()).until("free").contains("\x1b[32m"));
    let mut plain = show();
    plain.env("NO_COLOR", "1");
    assert!(!Pty::start(plain).until("free").contains('\x1b'));
    assert!(!done(show()).out.contains('\x1b'));
}

#[test]
fn the_url_comes_from_the_option_or_the_environment_or_is_the_default() {
    let server = Memcached::start();
    server.plain().add("lock:m", "1", 0);
    let held = |command: Command| done(command).out.contains("held");
    assert!(held(memlock_at(&server.url(), &["show", "m"])));
    assert!(held(memlock_at("memcached://127.0.0.1:1", &["--url", &server.url(), "show", "m"])));
    assert!(held(memlock_at("memcached://127.0.0.1:1", &["show", "m", "--url", &server.url()])));
    let mut none = memlock_at("", &["show", "m"]);
    none.env_remove("MEMLOCK_URL");
    let said = done(none);
    assert!(said.code == Some(0) || said.err.contains("127.0.0.1:11211"), "{said:?}");
}

#[test]
fn what_the_library_logs_is_told_to_who_asks() {
    let server = Memcached::start();
    let run = |args: &[&str]| {
        done(memlock_at(
            &server.url(),
            &[
                args,
                &[
                    "run",
                    "m",
                    "--lease",
                    "5s",
                    "--max-hold",
                    "2s",
                    "-E",
                    "9",
                    "--",
                    "sleep",
                    "1000",
                ],
            ]
            .concat(),
        ))
    };
    let (quiet, verbose) = (run(&[]), run(&["--verbose"]));
    assert!(
        !quiet.err.contains("warn:") && verbose.err.contains("memlock: warn:"),
        "{quiet:?} {verbose:?}"
    );
}

#[test]
fn a_reader_who_leaves_is_no_trouble() {
    let server = Memcached::start();
    assert_eq!(done(memlock(&server, &["list", "l", "set-up"])).code, Some(0));
    let keys: String = (0..10_000).map(|number| format!("{number}\n")).collect();
    assert_eq!(
        crate::tool::fed(memlock(&server, &["list", "l", "insert", "-q"]), keys.as_bytes()).code,
        Some(0)
    );
    let mut shell = Command::new("sh");
    let script = format!("{} list l ids | head -n 1; echo done", path().display());
    shell.args(["-c", &script]).env("MEMLOCK_URL", server.url());
    let said = done(shell);
    assert_eq!((said.out.as_str(), said.err.as_str()), ("1\t0\ndone\n", ""));
}

#[test]
fn help_that_cannot_be_written_is_an_error_and_says_why() {
    for args in [&["help"][..], &["--help"], &["run", "--help"], &["--version"]] {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let mut command = Command::new(path());
        command.args(args).stdout(full).stderr(Stdio::piped());
        let output = command.spawn().unwrap().wait_with_output().unwrap();
        said(&output).ended(74).complains("No space left on device");
    }
}

#[test]
fn pages_and_completions_name_every_command() {
    let server = Memcached::start();
    let folder = Folder::new("pages");
    done(memlock(&server, &["pages", folder.0.to_str().unwrap()])).ended(0).quietly();
    let bash = done(memlock(&server, &["completions", "bash"])).out;
    let page = fs::read_to_string(folder.0.join("memlock.1")).unwrap();
    for command in ["run", "show", "ls", "release", "list", "doctor", "bench"] {
        assert!(page.contains(&format!("memlock\\-{command}(1)")), "{command}");
        assert!(
            bash.contains(&format!("memlock__subcmd__{command}"))
                || bash.contains(&format!("memlock__{command}")),
            "{command}"
        );
        let own = fs::read_to_string(folder.0.join(format!("memlock-{command}.1"))).unwrap();
        assert!(own.contains(".SH DESCRIPTION") && own.contains("\\-\\-url"), "{command}");
    }
    let run = fs::read_to_string(folder.0.join("memlock-run.1")).unwrap();
    assert!(run.contains(".SH \"EXIT STATUS\""), "{run}");
    let said = run.replace(['\n', '\\'], " ");
    assert!(said.contains("Every host must use the same server"), "{run}");
    for status in
        ["71  the system refused", "74  standard input or output broke", "79  the lock was lost"]
    {
        assert!(run.contains(status), "{status}: {run}");
    }
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = done(memlock(&server, &["completions", shell])).out;
        assert!(
            script.contains("doctor") && !script.contains("pages"),
            "{shell} is offered what is hidden: {script}"
        );
    }
    let mut read = Command::new("bash");
    read.args(["-n", "/dev/stdin"]);
    assert_eq!(crate::tool::fed(read, bash.as_bytes()).code, Some(0));
}

#[test]
fn a_bench_measures_all_its_lines_and_leaves_no_lock() {
    let server = Memcached::start();
    let args = ["bench", "--time", "500ms", "--contenders", "4", "--json"];
    let report = done(memlock(&server, &args)).ended(0).quietly().json();
    let rows = report[0]["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 4);
    // Within the time there may be no hand-over.
    assert!(rows[..2].iter().all(|row| row["count"].as_u64() > Some(0)), "{report}");
    assert!(rows.iter().all(|row| row["p50_us"].as_f64() <= row["p99_us"].as_f64()), "{report}");
    let said = done(memlock(&server, &["bench", "--time", "50ms"]));
    for text in
        ["p50", "p99", "round trip", "lock + unlock", "hand-over among 2", "hand-over among 8"]
    {
        assert!(said.out.contains(text), "{text}: {said:?}");
    }
    assert_eq!(done(memlock(&server, &["ls"])).out, "");
}

#[test]
#[ignore = "real time: make prove"]
fn a_bench_measures_times_that_are_possible() {
    let server = Memcached::start();
    let args = ["bench", "--time", "500ms", "--contenders", "4", "--json"];
    let report = done(memlock(&server, &args)).ended(0).quietly().json();
    let rows = report[0]["rows"].as_array().unwrap();
    assert!(rows.iter().all(|row| row["count"].as_u64() > Some(0)), "{report}");
    let number = |row: usize, field: &str| rows[row][field].as_f64().unwrap();
    // Two round trips at least; and a hand-over is no shorter than the wake-up that it needs.
    assert!(number(1, "round_trips") > 1.2 && number(2, "p50_us") > 10.0, "{report}");
}
