//! `memlock run` and signals: those sent to it, and those of a terminal.

use std::os::unix::process::CommandExt;
use std::process::Command;

use memlock_tests::server::Memcached;

use crate::pty::Pty;
use crate::tool::{
    Running, eventually, heeding_keys, held, is_alive, memlock, path, send, state, until_gone,
    until_state, until_waiting,
};

/// Says what comes; `read` returns early when a trap runs.
const TRAPS: &str = "for s in TERM INT HUP QUIT USR1 USR2 WINCH; do trap \"echo got $s\" $s; done
    trap 'exit 7' ALRM; echo ready $$; while :; do sleep 0.01; done";

#[test]
fn signals_are_passed_on() {
    let server = Memcached::start();
    let mut running = Running::start(memlock(&server, &["run", "m", "--", "sh", "-c", TRAPS]));
    let child: i32 = running.line().strip_prefix("ready ").unwrap().parse().unwrap();
    for (signal, name) in [
        (libc::SIGTERM, "TERM"),
        (libc::SIGINT, "INT"),
        (libc::SIGHUP, "HUP"),
        (libc::SIGQUIT, "QUIT"),
        (libc::SIGUSR1, "USR1"),
        (libc::SIGUSR2, "USR2"),
        (libc::SIGWINCH, "WINCH"),
    ] {
        running.signal(signal);
        assert_eq!(running.line(), format!("got {name}"));
        assert!(running.is_running());
    }
    send(child, libc::SIGALRM);
    assert_eq!(running.ends().code, Some(7));
}

/// A program that does so notifies no other; and a shell continues both.
#[test]
fn a_command_that_is_stopped_and_continued_alone_is_renewed_and_seen_to_end() {
    let server = Memcached::start();
    let mut command = memlock(&server, &["run", "m", "--", "sh", "-c", "echo $$; exec sleep 1000"]);
    // Not the group of an orphan, which job control does not stop.
    command.process_group(0);
    let mut running = Running::start(command);
    let child: i32 = running.line().parse().unwrap();
    for _ in 0..2 {
        send(child, libc::SIGTSTP);
        until_state(running.pid(), 'T');
        until_state(child, 'T');
        send(child, libc::SIGCONT);
        until_state(running.pid(), 'S');
        until_state(child, 'S');
    }
    send(child, libc::SIGTSTP);
    until_state(running.pid(), 'T');
    send(child, libc::SIGKILL);
    assert_eq!(running.ends().code, Some(128 + libc::SIGKILL));
}

#[test]
fn a_command_that_a_signal_ends_leaves_no_process_behind() {
    let server = Memcached::start();
    let script = "(trap '' TERM; exec setsid sleep 1000 >/dev/null 2>&1) & setsid sleep 1001 >/dev/null 2>&1 & echo $!; sleep 1002 >/dev/null 2>&1; true";
    let mut running = Running::start(memlock(
        &server,
        &["run", "m", "--grace", "300ms", "--", "sh", "-c", script],
    ));
    let grandchild: i32 = running.line().parse().unwrap();
    assert!(is_alive(grandchild));
    running.signal(libc::SIGTERM);
    assert_eq!(running.ends().code, Some(143));
    until_gone(grandchild);
    assert!(server.plain().get("lock:m").is_none());
}

#[test]
fn what_a_command_leaves_in_the_background_lives_on_when_it_ends_well() {
    let server = Memcached::start();
    let script = "sleep 1003 >/dev/null 2>&1 & echo $!";
    let said = crate::tool::done(memlock(&server, &["run", "m", "--", "sh", "-c", script]));
    let left: i32 = said.out.trim().parse().unwrap();
    assert!(said.code == Some(0) && is_alive(left));
    send(left, libc::SIGKILL);
}

#[test]
fn a_wait_ends_by_a_signal_and_leaves_no_trace() {
    let server = Memcached::start();
    let lock = held(&server, "m");
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let waiting = Running::start(memlock(&server, &["run", "m", "--", "echo", "never"]));
        until_waiting(&server);
        waiting.signal(signal);
        let said = waiting.ends();
        // It died of the signal, as anything else would have.
        assert_eq!((said.code, said.out.as_str(), said.err.as_str()), (None, "", ""));
        assert_eq!(server.plain().get("lock:m%wait").unwrap_or_default(), b"");
    }
    drop(lock);
}

/// A shell with job control, and memlock as its command.
fn shell(server: &Memcached) -> Pty {
    let mut command = Command::new("bash");
    command.args(["--norc", "--noprofile", "-i"]);
    command
        .env("MEMLOCK_URL", server.url())
        .env("PS1", "> ")
        .env("memlock", path())
        .env("TERM", "dumb");
    heeding_keys(&mut command);
    let mut shell = Pty::start(command);
    shell.until("> ");
    // What is typed is not to be mistaken for what is printed.
    shell.type_in("stty -echo; bind 'set enable-bracketed-paste off' 2>/dev/null; echo be''gun\n");
    shell.until("begun");
    shell.until("> ");
    shell
}

/// The last command ended with this status.
fn has_status(shell: &mut Pty, status: i32) {
    shell.type_in("echo status $?\n");
    shell.until(&format!("status {status}"));
}

/// The command was stopped, and the shell reads the next one.
fn is_stopped(shell: &mut Pty) {
    shell.until("Stopped");
    shell.until("> ");
}

#[test]
fn the_interrupt_key_ends_command_and_wrapper() {
    let server = Memcached::start();
    let mut shell = shell(&server);
    // Not a shell that waits: that may miss the key while it forks.
    shell.type_in("$memlock run m -- sh -c 'echo pid $$; exec sleep 1000'\n");
    let pid = shell.pid_after("pid ");
    shell.type_in("\x03");
    shell.until("> ");
    has_status(&mut shell, 130);
    until_gone(pid);
    assert!(server.plain().get("lock:m").is_none());
    // A script goes no further, because it sees that the key has ended what it ran.
    shell.type_in(
        "bash -c '\"$memlock\" run m -- sh -c \"echo on; exec sleep 1000\"; echo went'' on'\n",
    );
    shell.until("on\r\n");
    shell.type_in("\x03");
    let screen = shell.until("> ");
    assert!(!screen.contains("went on"), "{screen:?}");
    // A command that goes on with it does not get it twice, and decides on the status. Perl counts
    // the signals that come within a second of the first.
    let count = "$| = 1; $SIG{INT} = sub { print qq(caught\\n); $t ||= time }; print qq(pid $$\\n); \
        select(undef, undef, undef, 0.1) until $t && time > $t + 1; exit 4";
    shell.type_in(&format!("$memlock run m -- perl -e '{count}'; echo status $?\n"));
    shell.pid_after("pid ");
    shell.type_in("\x03");
    let screen = shell.until("status 4");
    assert_eq!(screen.matches("caught").count(), 1, "{screen:?}");
}

#[test]
fn the_stop_key_stops_both_and_fg_continues_both() {
    let server = Memcached::start();
    let mut shell = shell(&server);
    shell.type_in("$memlock run m -- sh -c 'echo pid $$; read line; echo heard $line; exit 3'\n");
    let pid = shell.pid_after("pid ");
    for _ in 0..3 {
        shell.type_in("\x1a");
        is_stopped(&mut shell);
        until_state(pid, 'T');
        shell.type_in("fg\n");
        shell.until("memlock run");
        eventually("it goes on", || state(pid).filter(|&state| state != 'T'));
    }
    shell.type_in("hello\n");
    shell.until("heard hello");
    has_status(&mut shell, 3);
}

#[test]
fn the_stop_key_stops_a_waiter_too() {
    let server = Memcached::start();
    let lock = held(&server, "m");
    let mut shell = shell(&server);
    shell.type_in("$memlock run m -- echo at'' last\n");
    until_waiting(&server);
    shell.type_in("\x1a");
    is_stopped(&mut shell);
    shell.type_in("fg\n");
    shell.until("memlock run");
    drop(lock);
    shell.until("at last");
}

#[test]
fn a_command_that_stops_itself_stops_the_wrapper_too() {
    let server = Memcached::start();
    let mut shell = shell(&server);
    for signal in ["TSTP", "STOP"] {
        shell.type_in(&format!(
            "$memlock run m -- sh -c 'echo pid $$; kill -{signal} $$; echo back; exit 5'\n"
        ));
        let pid = shell.pid_after("pid ");
        if signal == "STOP" {
            // That may as well have been done by another program, which will continue the command
            // alone: so it is ours to stop when the key is pressed.
            until_state(pid, 'T');
            shell.type_in("\x1a");
        }
        is_stopped(&mut shell);
        shell.type_in("fg\n");
        shell.until("back");
        has_status(&mut shell, 5);
    }
}

#[test]
fn a_command_that_another_program_stops_and_continues_is_guarded_meanwhile() {
    let server = Memcached::start();
    let mut shell = shell(&server);
    shell.type_in("$memlock run m -- sh -c 'echo pid $$; read line; exit 5'\n");
    let pid = shell.pid_after("pid ");
    send(pid, libc::SIGSTOP);
    until_state(pid, 'T');
    send(pid, libc::SIGCONT);
    shell.type_in("\n");
    shell.until("> ");
    has_status(&mut shell, 5);
}

/// The kernel notifies only the leader of the session of a terminal that goes away.
#[test]
fn a_terminal_that_goes_away_ends_a_command_that_was_its_first() {
    let server = Memcached::start();
    let mut terminal = Pty::start(memlock(
        &server,
        &["run", "m", "--", "sh", "-c", "echo pid $$; exec sleep 1000"],
    ));
    let pid = terminal.pid_after("pid ");
    terminal.hang_up();
    until_gone(pid);
    assert_eq!(terminal.ends(), Some(128 + libc::SIGHUP));
    assert!(server.plain().get("lock:m").is_none());
}

#[test]
fn signals_to_a_waiter_do_not_end_the_command_when_it_begins() {
    let server = Memcached::start();
    let lock = held(&server, "m");
    let waiting = Running::start(memlock(&server, &["run", "m", "--", "echo", "began"]));
    until_waiting(&server);
    for signal in [libc::SIGUSR1, libc::SIGUSR2, libc::SIGWINCH] {
        waiting.signal(signal);
    }
    drop(lock);
    waiting.ends().was(0, "began\n", "");
}

#[test]
fn the_end_of_a_pipeline_is_not_disturbed() {
    let server = Memcached::start();
    let mut shell = shell(&server);
    // The reader of the pipe asks the terminal while the wrapped command runs.
    shell.type_in(
        "$memlock run m -- sh -c 'echo one; sleep 0.3' | { read a; read b </dev/tty; echo $a and $b; }\n",
    );
    shell.type_in("two\n");
    shell.until("one and two");
}
