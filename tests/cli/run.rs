//! `memlock run`: what the command is given, what it gives back, and that no other runs meanwhile.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use memlock_core::{Request, Wait};
use memlock_tests::assert_safe;
use memlock_tests::server::Memcached;

use crate::tool::{
    MINUTE, Running, Said, client, done, eventually, fed, held, memlock, memlock_at, path,
    until_waiting,
};

/// A folder of this test, gone with it.
pub(crate) struct Folder(pub(crate) std::path::PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("memlock-cli-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn the_exit_status_is_the_commands() {
    let server = Memcached::start();
    for (script, code) in [
        ("exit 0", 0),
        ("exit 3", 3),
        ("exit 255", 255),
        ("kill -TERM $$", 143),
        ("kill -KILL $$", 137),
    ] {
        done(memlock(&server, &["run", "m", "--", "sh", "-c", script])).ended(code).quietly();
        assert!(server.plain().get("lock:m").is_none(), "{script}: the lock is given back");
    }
}

#[test]
fn what_stands_in_the_way_has_a_status_of_its_own_and_one_sentence() {
    let server = Memcached::start();
    let folder = Folder::new("statuses");
    let file = folder.0.join("not-executable");
    fs::write(&file, "data").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let lock = held(&server, "held");
    let file = file.to_str().unwrap();
    for (args, code) in [
        (&["run", "held", "--no-wait", "--", "true"][..], 75),
        (&["run", "held", "--wait", "50ms", "--", "true"], 75),
        (&["run", "held", "-n", "-E", "9", "--", "true"], 9),
        (&["run", "m", "--", "/no/such/command"], 127),
        (&["run", "m", "--", "no-such-command-at-all"], 127),
        (&["run", "m", "--", file], 126),
        (&["run", "m", "--", "/"], 126),
        (&["run", "m", "--lease", "1ms", "--", "true"], 64),
        (&["run", "", "--", "true"], 64),
        (&["run", "none", "--permits", "2", "--", "true"], 66),
    ] {
        let said = done(memlock(&server, args));
        assert_eq!((said.code, said.out.as_str()), (Some(code), ""), "{args:?}: {said:?}");
        assert!(
            said.err.starts_with("memlock: ") && said.err.ends_with(".\n"),
            "{args:?}: {said:?}"
        );
        assert_eq!(said.err.lines().count(), 1, "{args:?}: {said:?}");
    }
    for args in [
        &["run", "m"][..],
        &["run", "m", "--timeout", "soon", "--", "true"],
        &["run", "m", "--max-hold", "0", "--", "true"],
        &["run", "m", "--max-hold", "5s", "--no-renew", "--", "true"],
        &["run", "m", "--on-lost", "hope", "--", "true"],
        &["run", "m", "--priority", "1", "--", "true"],
        &["frobnicate"],
        &["bench", "--contenders", "1"],
        &["bench", "--contenders", "1001"],
    ] {
        assert_eq!(done(memlock(&server, args)).code, Some(64), "{args:?}");
    }
    assert_eq!(done(memlock_at("nonsense://x", &["run", "m", "--", "true"])).code, Some(78));
    assert!(server.plain().get("lock:m").is_none(), "a command that was not found leaves no lock");
    drop(lock);
    server.kill();
    let said = done(memlock(&server, &["run", "m", "--", "true"]));
    assert_eq!((said.code, said.err.lines().count()), (Some(69), 1), "{said:?}");
    let old = Memcached::with_args(&["-C"]);
    assert_eq!(done(memlock(&old, &["run", "m", "--", "true"])).code, Some(76));
}

#[test]
fn the_command_knows_its_lock() {
    let server = Memcached::start();
    let show = "echo \"$MEMLOCK_NAME|$MEMLOCK_FENCE|$MEMLOCK_DEADLINE\"";
    let mut fences = Vec::new();
    for _ in 0..2 {
        let said = done(memlock(
            &server,
            &["run", "a b", "--lease", "60s", "--no-renew", "--", "sh", "-c", show],
        ));
        let fields: Vec<&str> = said.out.trim_end().split('|').collect();
        let [name, fence, deadline] = fields[..] else { panic!("{said:?}") };
        assert_eq!(name, "a b");
        fences.push(fence.parse::<u64>().unwrap());
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let deadline = deadline.parse::<u64>().unwrap();
        assert!((now + 40..=now + 60).contains(&deadline), "{deadline} at {now}");
    }
    assert_safe!(fences[0] < fences[1], "{fences:?}");
    let mut kept =
        memlock(&server, &["run", "m", "--", "sh", "-c", "echo ${MEMLOCK_DEADLINE-none}"]);
    kept.env("MEMLOCK_DEADLINE", "that of a lock around it");
    assert_eq!(done(kept).out, "none\n");
    let kept = memlock(
        &server,
        &["run", "m", "--max-hold", "1h", "--", "sh", "-c", "echo $MEMLOCK_DEADLINE"],
    );
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    assert!(done(kept).out.trim().parse::<u64>().unwrap() >= now + 3600);
    let mut permit = memlock(
        &server,
        &["run", "s", "--semaphore", "2", "--", "sh", "-c", "echo ${MEMLOCK_FENCE-none}"],
    );
    permit.env("MEMLOCK_FENCE", "5");
    assert_eq!(done(permit).out, "none\n");
}

/// A run inside of another one. `RUN` in `inner` runs a third one.
fn nested(server: &Memcached, outer: &str, inner: &str) -> Said {
    let run = format!("\"{}\" run", path().display());
    let script = format!("{run} {}", inner.replace("RUN", &run));
    let args = ["run"].into_iter().chain(outer.split(' ')).chain(["--", "sh", "-c", &script]);
    done(memlock(server, &args.collect::<Vec<_>>()))
}

/// A run that waits for a run around it would wait for ever, since that waits for its command.
#[test]
fn a_run_does_not_wait_for_one_around_it() {
    let server = Memcached::start();
    for (outer, inner) in [
        ("m", "m -- true"),
        ("m", "other -- RUN m -- true"),
        ("m", "--verbose m -- true"),
        ("--semaphore 1 s1", "s1 --permits 1 -- true"),
        ("--semaphore 2 s2", "s2 --permits 1 -- RUN s2 --permits 1 -- true"),
        ("--semaphore 3 --permits 2 s3", "s3 --permits 2 -- true"),
    ] {
        let said = nested(&server, outer, inner);
        assert_eq!(said.code, Some(64), "{outer}, {inner}: {said:?}");
        said.complains("would wait for itself");
    }
    for (outer, inner, code) in [
        ("m", "--no-wait m -- true", 75),
        ("m", "--timeout 100ms m -- true", 75),
        ("m", "other -- true", 0),
        ("--semaphore 2 s2", "s2 --permits 1 -- true", 0),
    ] {
        let said = nested(&server, outer, inner);
        assert_eq!(said.code, Some(code), "{outer}, {inner}: {said:?}");
    }
}

/// What a run has left in the background may wait for others, and for a later run of the same name.
#[test]
fn a_run_whose_outer_run_has_ended_waits() {
    let server = Memcached::start();
    let tokens = done(memlock(&server, &["run", "m", "--", "sh", "-c", "echo $MEMLOCK_TOKENS"]));
    let lock = held(&server, "m");
    let mut later = memlock(&server, &["run", "m", "--", "true"]);
    later.env("MEMLOCK_TOKENS", format!("not-a-token {}", tokens.out.trim()));
    let later = Running::start(later);
    until_waiting(&server);
    drop(lock);
    later.ends().ended(0).quietly();
}

#[test]
fn the_longest_times_that_can_be_written_are_no_trouble() {
    let server = Memcached::start();
    let longest = "18446744073709549568s";
    let args = ["run", "m", "--max-hold", longest, "--timeout", longest, "--grace", longest];
    let show = ["--", "sh", "-c", "echo $MEMLOCK_DEADLINE"];
    let said = done(memlock(&server, &[&args[..], &show].concat()));
    assert_eq!((said.code, said.out.trim()), (Some(0), "18446744073709551615"), "{said:?}");
}

#[test]
fn a_name_is_any_bytes() {
    let server = Memcached::start();
    let name = OsStr::from_bytes(b"\xff\x01 %\n");
    let mut command = memlock(&server, &["run"]);
    command.arg(name).args(["--", "sh", "-c", "printf %s \"$MEMLOCK_NAME\" | od -An -tx1"]);
    let said = done(command);
    assert_eq!((said.code, said.out.trim()), (Some(0), "ff 01 20 25 0a"));
    let _held = client(&server).mutex(name.as_bytes(), MINUTE).unwrap().lock().unwrap();
    let mut command = memlock(&server, &["run", "-n"]);
    command.arg(name).args(["--", "true"]);
    let said = done(command);
    assert_eq!(said.code, Some(75));
    assert!(said.err.contains(r"\xff\x01") && !said.err.contains('\x01'), "{said:?}");
}

#[test]
fn input_and_output_pass_through() {
    let server = Memcached::start();
    let input: Vec<u8> = (0..200_000_u32).flat_map(u32::to_le_bytes).collect();
    let said =
        fed(memlock(&server, &["run", "m", "--", "sh", "-c", "sha256sum; echo of it >&2"]), &input);
    let direct = fed(std::process::Command::new("sha256sum"), &input);
    assert_eq!((said.code, said.out, said.err.as_str()), (Some(0), direct.out, "of it\n"));
}

/// A shell calls it a bad interpreter.
#[test]
fn a_script_without_its_interpreter_is_no_missing_command() {
    let (server, folder) = (Memcached::start(), Folder::new("interpreter"));
    let script = |name: &str, text: &str| {
        let file = folder.0.join(name);
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        file
    };
    let here = script("here", "#! /no/such/interpreter -x\nexit 0\n");
    let of_windows = script("of_windows", "#!/bin/sh\r\nexit 0\r\n");
    let run = |program: &OsStr| {
        let mut command = memlock(&server, &["run", "m", "--"]);
        command.arg(program).env("PATH", &folder.0);
        done(command)
    };
    for program in [here.as_os_str(), OsStr::new("here")] {
        run(program).ended(126).complains("names, /no/such/interpreter, was not found");
    }
    run(of_windows.as_os_str()).ended(126).complains("names, \"/bin/sh\\r\", was not found");
    run(OsStr::new("there")).ended(127).complains("The command there was not found.");
    run(folder.0.join("there").as_os_str()).ended(127);
}

/// As systemd starts it, with its sockets and its watchdog.
#[test]
fn what_systemd_addresses_to_us_is_addressed_to_the_command() {
    let server = Memcached::start();
    let show =
        "test $LISTEN_PID = $$ && test $WATCHDOG_PID = $$ && echo \"$LISTEN_FDS $0 $1\"; cat <&3";
    let of_systemd = "export LISTEN_PID=$$ WATCHDOG_PID=$$ LISTEN_FDS=1; exec \"$@\" 3<$FILE";
    let folder = Folder::new("systemd");
    let file = folder.0.join("socket");
    fs::write(&file, "of the caller\n").unwrap();
    let with = |script: &str, args: &[&str]| {
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).arg(path()).args(args);
        command.env("MEMLOCK_URL", server.url()).env("FILE", &file);
        done(command)
    };
    let args = ["run", "m", "--", "sh", "-c", show, "a b", "-c"];
    with(of_systemd, &args).was(0, "1 a b -c\nof the caller\n", "");
    let of_another = "LISTEN_PID=1 WATCHDOG_PID=2 exec \"$@\"";
    let show = "echo $LISTEN_PID $WATCHDOG_PID";
    with(of_another, &["run", "m", "--", "sh", "-c", show]).was(0, "1 2\n", "");
    // Nothing else is changed: neither the environment, nor what is executed, nor the messages.
    let odd =
        "export LISTEN_PID=$$; exec env 'a.b=1' 'x-y=2 3' 'BASH_FUNC_f%%=() { echo f; }' \"$@\"";
    let show = ["run", "m", "--", "env"];
    let shown = with(odd, &show).ended(0).out;
    for entry in ["a.b=1", "x-y=2 3", "BASH_FUNC_f%%=() { echo f; }", "MEMLOCK_NAME=m"] {
        assert!(shown.lines().any(|line| line == entry), "{entry}: {shown}");
    }
    for program in ["/no/such/program", "no-such-program", ""] {
        with(of_systemd, &["run", "m", "--", program]).ended(127).complains("was not found.");
    }
    let script = folder.0.join("script");
    fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let script = script.to_str().unwrap();
    with(of_systemd, &["run", "m", "--", script]).ended(126).complains("/no/such/interpreter");
    fs::set_permissions(script, fs::Permissions::from_mode(0o644)).unwrap();
    with(of_systemd, &["run", "m", "--", script]).ended(126).complains("memlock: The command");
    assert!(client(&server).mutex("m", MINUTE).unwrap().try_lock().unwrap().is_some());
}

#[test]
fn the_command_has_no_descriptor_of_ours() {
    let server = Memcached::start();
    // With a holder before it, so that it waited in the queue and has a listener; renewed, so that
    // it has a renewer.
    let mut first =
        Running::start(memlock(&server, &["run", "m", "--", "sh", "-c", "echo in; sleep 0.4"]));
    assert_eq!(first.line(), "in");
    let list = "ls -l /proc/self/fd";
    let said = done(memlock(&server, &["run", "m", "--", "sh", "-c", list]));
    let open: Vec<&str> = said.out.lines().filter(|line| line.contains("->")).collect();
    assert!(said.code == Some(0) && !open.is_empty(), "{said:?}");
    for line in open {
        assert!(!line.contains("socket:") && !line.contains("anon_inode"), "{said:?}");
    }
    assert_eq!(first.ends().code, Some(0));
}

#[test]
fn signals_and_their_mask_are_as_they_were() {
    let server = Memcached::start();
    let status = "grep -E '^Sig(Blk|Ign)' /proc/self/status";
    let memlock = path().display().to_string();
    for before in ["", "trap '' HUP INT;"] {
        let under = |command: &str| {
            let mut shell = std::process::Command::new("sh");
            shell.args(["-c", &format!("{before} {command}")]).env("MEMLOCK_URL", server.url());
            let said = done(shell);
            assert_eq!(said.code, Some(0), "{said:?}");
            // The C library has a use for those above 31.
            let low = |line: &str| {
                u64::from_str_radix(line.split_whitespace().nth(1).unwrap(), 16).unwrap()
                    & 0x7fff_ffff
            };
            said.out.lines().map(low).collect::<Vec<_>>()
        };
        assert_eq!(
            under(&format!("{memlock} run m -- sh -c \"{status}\"")),
            under(status),
            "{before}"
        );
    }
}

/// Starts it with exactly these signals ignored and blocked, among those below 32.
fn with_signals(command: &mut Command, ignored: &'static [i32], blocked: &'static [i32]) {
    // SAFETY: an emptied set is valid; all calls are async-signal-safe, and no disposition is a
    // handler. Those of KILL and STOP cannot be changed.
    unsafe {
        command.pre_exec(move || {
            for signal in 1..32 {
                let is_ignored = ignored.contains(&signal);
                libc::signal(signal, if is_ignored { libc::SIG_IGN } else { libc::SIG_DFL });
            }
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            for &signal in blocked {
                libc::sigaddset(&mut set, signal);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &set, std::ptr::null_mut());
            Ok(())
        });
    }
}

/// As with Python's `restore_signals=False`, under `nohup`, behind `&` in a script, and of daemons.
#[test]
fn the_command_ignores_and_blocks_what_memlock_was_started_with() {
    let server = Memcached::start();
    let status = ["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"];
    for (ignored, blocked) in [
        (&[][..], &[][..]),
        (&[libc::SIGPIPE], &[]),
        (&[libc::SIGCHLD], &[]),
        (&[libc::SIGHUP, libc::SIGPIPE], &[libc::SIGCHLD]),
        (&[libc::SIGINT, libc::SIGQUIT], &[libc::SIGPIPE]),
        (&[libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU], &[libc::SIGTERM, libc::SIGUSR2]),
        (&[libc::SIGTERM, libc::SIGCONT, libc::SIGUSR1, libc::SIGWINCH, libc::SIGALRM], &[]),
    ] {
        let mut bare = Command::new(status[0]);
        bare.args(&status[1..]);
        let mut through = memlock(&server, &[&["run", "m", "--"], &status[..]].concat());
        for command in [&mut bare, &mut through] {
            with_signals(command, ignored, blocked);
        }
        // The C library has a use for those above 31.
        let low = |said: Said| -> Vec<u64> {
            let sets = said.out.split_whitespace().skip(1).step_by(2);
            sets.map(|set| u64::from_str_radix(set, 16).unwrap() & 0x7fff_ffff).collect()
        };
        let bits =
            |signals: &[i32]| signals.iter().fold(0, |bits, signal| bits | 1 << (signal - 1));
        let asked = [bits(blocked), bits(ignored)];
        assert_eq!(low(done(bare).ended(0)), asked);
        assert_eq!(low(done(through).ended(0).quietly()), asked);
    }
}

#[test]
fn a_mask_that_we_were_started_with_is_passed_on() {
    let server = Memcached::start();
    let mut command = memlock(&server, &["run", "m", "--", "grep", "^SigBlk", "/proc/self/status"]);
    // SAFETY: an emptied set is valid; all calls are async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, libc::SIGUSR2);
            libc::pthread_sigmask(libc::SIG_SETMASK, &set, std::ptr::null_mut());
            Ok(())
        });
    }
    let said = done(command);
    let blocked = u64::from_str_radix(said.out.split_whitespace().last().unwrap(), 16).unwrap();
    assert_eq!(blocked, 1 << (libc::SIGUSR2 - 1), "{said:?}");
}

#[test]
fn a_lease_is_renewed_by_default() {
    let server = Memcached::start();
    let script = "echo in; exec sleep 1000";
    let args = ["run", "kept", "--lease", "30s", "--", "sh", "-c", script];
    let mut kept = Running::start(memlock(&server, &args));
    assert_eq!(kept.line(), "in");
    let other = client(&server).mutex("kept", MINUTE).unwrap();
    let mut least = MINUTE;
    eventually("it is renewed", || {
        let remaining = other.owner().unwrap().unwrap().remaining.unwrap();
        least = least.min(remaining);
        (remaining > least + Duration::from_secs(3)).then_some(())
    });
    kept.signal(libc::SIGTERM);
    kept.ends().ended(143).quietly();
    assert!(other.try_lock().unwrap().is_some());
}

#[test]
fn permits_are_those_of_the_semaphore() {
    let server = Memcached::start();
    let hold = |args: &[&str]| {
        let mut command =
            memlock(&server, &[args, &["--", "sh", "-c", "echo in; cat >/dev/null"]].concat());
        command.stdin(std::process::Stdio::piped());
        let mut running = Running::start(command);
        assert_eq!(running.line(), "in");
        running
    };
    let two = hold(&["run", "s", "--semaphore", "3", "--permits", "2"]);
    let semaphore = client(&server).open_semaphore("s", MINUTE).unwrap();
    assert_eq!(semaphore.status().unwrap().unwrap().available, 1);
    let one = hold(&["run", "s", "--permits", "1"]);
    done(memlock(&server, &["run", "s", "--semaphore", "3", "-n", "--", "true"])).ended(75);
    let four = |options: &[&str]| {
        done(memlock(&server, &[&["run", "s", "--semaphore", "4", "-n"], options].concat()))
    };
    four(&["--", "true"]).ended(75).complains("0 of 3 permits are free");
    four(&["--mismatch", "refuse", "--", "true"]).ended(64).complains("opened with 4");
    two.signal(libc::SIGTERM);
    one.signal(libc::SIGTERM);
    assert_eq!((two.ends().code, one.ends().code), (Some(143), Some(143)));
    assert_eq!(semaphore.status().unwrap().unwrap().available, 3);
    let all = Request { permits: 3, ..Request::default() };
    assert!(semaphore.acquire_with(all, &Wait::NEVER).unwrap().done().is_some());
}
