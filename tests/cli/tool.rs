//! Runs the command, and looks at what became of it.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use memlock_core::{Client, Lock};
use memlock_tests::launch::poll_until;
use memlock_tests::server::Memcached;
use serde_json::Value;

/// For what must happen, however slow the machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) const MINUTE: Duration = Duration::from_secs(60);

/// The binary.
pub(crate) fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_memlock"))
}

/// The command on this server, however slowly that answers.
pub(crate) fn memlock(server: &Memcached, args: &[&str]) -> Command {
    memlock_at(&server.url(), args)
}

/// The command with this URL, and with nothing else of our environment that it heeds.
pub(crate) fn memlock_at(url: &str, args: &[&str]) -> Command {
    let mut command = Command::new(path());
    command
        .args(args)
        .env("MEMLOCK_URL", url)
        .env_remove("NO_COLOR")
        .env_remove("MEMLOCK_TOKENS")
        .stdin(Stdio::null());
    heeding_keys(&mut command);
    command
}

/// Starts it as from a terminal's foreground: in the background of a shell the signals of the keys
/// are ignored, under `nohup` SIGHUP is, and both are inherited.
pub(crate) fn heeding_keys(command: &mut Command) {
    // SAFETY: signal is async-signal-safe, and the disposition is no handler.
    unsafe {
        command.pre_exec(|| {
            libc::signal(libc::SIGINT, libc::SIG_DFL);
            libc::signal(libc::SIGQUIT, libc::SIG_DFL);
            libc::signal(libc::SIGHUP, libc::SIG_DFL);
            Ok(())
        });
    }
}

/// A client of the test's own.
pub(crate) fn client(server: &Memcached) -> Client {
    Client::connect(&server.url()).unwrap()
}

/// A lock of this name that is held for a minute.
pub(crate) fn held(server: &Memcached, name: &str) -> Lock {
    client(server).mutex(name, MINUTE).unwrap().lock().unwrap()
}

/// Until a command waits for the lock `m`.
pub(crate) fn until_waiting(server: &Memcached) {
    eventually("it waits", || server.plain().get("lock:m%wait").filter(|queue| !queue.is_empty()));
}

/// How it ended and what it said.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Said {
    /// It ended with this status.
    #[track_caller]
    pub(crate) fn ended(self, code: i32) -> Said {
        assert_eq!(self.code, Some(code), "{self:?}");
        self
    }

    /// It printed this and nothing else.
    #[track_caller]
    pub(crate) fn printed(self, out: &str) -> Said {
        assert_eq!(self.out, out, "{self:?}");
        self
    }

    /// These words are in what it said on its standard error.
    #[track_caller]
    pub(crate) fn complains(self, words: &str) -> Said {
        assert!(self.err.contains(words), "{words:?} is missing: {self:?}");
        self
    }

    /// Its standard error is empty.
    #[track_caller]
    pub(crate) fn quietly(self) -> Said {
        assert_eq!(self.err, "", "{self:?}");
        self
    }

    /// What it printed, as JSON.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|why| panic!("{why}: {self:?}"))
    }

    /// All of it.
    #[track_caller]
    pub(crate) fn was(self, code: i32, out: &str, err: &str) {
        let said = (self.code, self.out.as_str(), self.err.as_str());
        assert_eq!(said, (Some(code), out, err));
    }
}

pub(crate) fn said(output: &Output) -> Said {
    Said {
        code: output.status.code(),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Runs it to its end.
pub(crate) fn done(mut command: Command) -> Said {
    said(&command.output().unwrap())
}

/// Runs it to its end, with this on its standard input.
pub(crate) fn fed(mut command: Command, input: &[u8]) -> Said {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut stdin, input) = (child.stdin.take().unwrap(), input.to_vec());
    let feeding = thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().unwrap();
    feeding.join().unwrap();
    said(&output)
}

/// A running one. It is killed when it is dropped.
pub(crate) struct Running {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Running {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Running { child, out }
    }

    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    /// The next line that it, or its command, prints.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        if self.out.buffer().is_empty() {
            until_readable(self.out.get_ref());
        }
        self.out.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Waits until there is something on its standard error.
    pub(crate) fn until_it_complains(&self) {
        until_readable(self.child.stderr.as_ref().unwrap());
    }

    pub(crate) fn signal(&self, signal: i32) {
        send(self.pid(), signal);
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits for its end, and reads the rest of what it said.
    pub(crate) fn ends(mut self) -> Said {
        let code = eventually("it ends", || self.child.try_wait().unwrap()).code();
        let (mut out, mut err) = (String::new(), String::new());
        self.out.read_to_string(&mut out).unwrap();
        self.child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        Said { code, out, err }
    }
}

fn until_readable(pipe: &impl AsRawFd) {
    let mut there = libc::pollfd { fd: pipe.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let limit = i32::try_from(PATIENCE.as_millis()).unwrap();
    // SAFETY: one valid pollfd is given.
    assert_eq!(unsafe { libc::poll(&mut there, 1, limit) }, 1, "it says nothing");
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn send(pid: i32, signal: i32) {
    // SAFETY: the call has no preconditions; the pid is that of a process of this test.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0, "signal {signal} to {pid}");
}

/// Asks until there is an answer.
pub(crate) fn eventually<T>(what: &str, answer: impl FnMut() -> Option<T>) -> T {
    poll_until(PATIENCE, answer).unwrap_or_else(|| panic!("in vain waited until {what}"))
}

/// The letter of a process's state; `None` when it is gone.
pub(crate) fn state(pid: i32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(") ").next()?.chars().next()
}

pub(crate) fn is_alive(pid: i32) -> bool {
    state(pid).is_some_and(|state| state != 'Z' && state != 'X')
}

pub(crate) fn until_gone(pid: i32) {
    eventually(&format!("{pid} is gone"), || (!is_alive(pid)).then_some(()));
}

pub(crate) fn until_state(pid: i32, letter: char) {
    eventually(&format!("{pid} is in state {letter}"), || {
        (state(pid) == Some(letter)).then_some(())
    });
}
