//! `memlock run` ends a command whose processes try to escape: none is left when it says that it
//! has ended them.

use std::fs;
use std::time::Duration;

use memlock_tests::server::Memcached;

use crate::tool::{Running, done, eventually, is_alive, memlock, send, until_gone};

/// Perl: processes that each start a successor and end themselves, again and again, and ignore
/// TERM. They end by themselves after a minute, should nothing else end them. The arguments are a
/// mark, how many run at a time, and the seconds that each lives.
const RUNAWAYS: &str = r#"
    my ($mark, $number, $life) = @ARGV;
    $SIG{TERM} = "IGNORE"; $SIG{CHLD} = "IGNORE"; $| = 1;
    my $end = time + 60;
    for (1 .. $number) {
        next if fork;
        open STDOUT, ">", "/dev/null"; open STDERR, ">", "/dev/null";
        while (time < $end) { select undef, undef, undef, $life if $life > 0; exit 0 if fork }
        exit 0;
    }
    print "started\n";
"#;

/// Ends with a wait that TERM does not end.
const STAYS: &str = "sleep 1 while 1;";
/// Ends by a signal.
const DIES: &str = "sleep 0.3; $SIG{TERM} = 'DEFAULT'; kill TERM => $$; sleep 1 while 1;";

/// The processes with this mark among their arguments.
fn marked(mark: &str) -> Vec<i32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let has_mark = |pid: &i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        // memlock's own command line has it, too.
        line.starts_with(b"perl\0")
            && line.split(|&byte| byte == 0).any(|word| word == mark.as_bytes())
    };
    pids.filter(has_mark).collect()
}

/// A walk through all processes may miss one that is replaced by a successor meanwhile.
fn until_none_is_left(mark: &str) {
    for _ in 0..20 {
        assert_eq!(marked(mark), Vec::<i32>::new(), "{mark}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn command(
    server: &Memcached,
    options: &[&str],
    then: &str,
    mark: &str,
    number: &str,
    life: &str,
) -> std::process::Command {
    let script = format!("{RUNAWAYS}{then}");
    let program = ["--", "perl", "-e", &script, mark, number, life];
    memlock(server, &[&["run", "m", "--grace", "200ms"], options, &program].concat())
}

#[test]
fn processes_that_fork_and_end_at_once_do_not_survive_the_loss_of_the_lock() {
    for (number, life) in [("1", "0.0005"), ("1", "0"), ("8", "0.0005"), ("4", "0")] {
        let server = Memcached::start();
        let mark = format!("runaway-{}-{number}-{life}-lost", std::process::id());
        let mut running = Running::start(command(&server, &[], STAYS, &mark, number, life));
        assert_eq!(running.line(), "started");
        eventually("they run", || (!marked(&mark).is_empty()).then_some(()));
        server.plain().flush_all();
        let said = running.ends();
        assert_eq!(said.code, Some(79), "{said:?}");
        assert!(!said.err.contains("could not be ended"), "{said:?}");
        until_none_is_left(&mark);
    }
}

#[test]
fn the_lock_is_held_until_processes_that_fork_and_end_at_once_are_gone() {
    let server = Memcached::start();
    let mark = format!("runaway-{}-signal", std::process::id());
    done(command(&server, &[], DIES, &mark, "2", "0.0005")).ended(143).quietly();
    until_none_is_left(&mark);
    assert!(server.plain().get("lock:m").is_none());
}

/// A shell that executes `memlock run` leaves it its own background jobs.
#[test]
fn children_that_memlock_was_started_with_are_not_ended() {
    let server = Memcached::start();
    let mark = format!("runaway-{}-others", std::process::id());
    let script = format!("{RUNAWAYS}{DIES}");
    let mut shell = std::process::Command::new("sh");
    shell
        .args(["-c", "sleep 1004 >/dev/null 2>&1 & echo $!; exec \"$@\"", "sh"])
        .arg(crate::tool::path());
    shell.args(["run", "m", "--grace", "200ms", "--", "perl", "-e", &script, &mark, "2", "0.0005"]);
    shell.env("MEMLOCK_URL", server.url()).stdin(std::process::Stdio::null());
    let said = done(shell);
    assert_eq!((said.code, said.err.as_str()), (Some(143), ""), "{said:?}");
    until_none_is_left(&mark);
    let other: i32 = said.out.lines().next().unwrap().parse().unwrap();
    assert!(is_alive(other));
    send(other, libc::SIGKILL);
}

/// What starts another process whenever one ends is stopped before any is killed.
#[test]
fn a_process_that_replaces_what_is_killed_does_not_survive() {
    let server = Memcached::start();
    let script =
        "trap '' TERM; echo $$; while :; do (trap '' TERM; exec sleep 1005) >/dev/null 2>&1; done";
    let mut running = Running::start(memlock(
        &server,
        &["run", "m", "--grace", "100ms", "--", "sh", "-c", script],
    ));
    let child: i32 = running.line().parse().unwrap();
    server.plain().flush_all();
    assert_eq!(running.ends().code, Some(79));
    until_gone(child);
}
