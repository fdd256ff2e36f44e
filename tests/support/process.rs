//! A server process of a test's own: on a port that stays its own, to kill, restart and freeze.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::FromRawFd;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard};

use crate::launch::{ReservedPort, START_LIMIT, end, poll_until, spawn};
use crate::url;
use crate::wire::lock;

/// A server of a test's own, with the store on it.
pub trait Server: Send + Sync {
    /// The process.
    fn process(&self) -> &ServerProcess;

    /// The URL of the store at this address, `host:port`, which may be that of a relay.
    fn url_at(&self, address: &str) -> String;

    /// The URL of the store, for clients that wait for a busy machine. What has timeouts of its own
    /// takes that at its [address](ServerProcess::address).
    fn url(&self) -> String {
        url::patient(&self.url_at(&self.process().address()))
    }

    /// Kills the server at once (SIGKILL).
    fn kill(&self) {
        self.process().kill();
    }

    /// Kills the server if it runs, and starts it again.
    fn restart(&self) {
        self.process().restart();
    }

    /// Freezes the server: see [`ServerProcess::pause`].
    fn pause(&self) {
        self.process().pause();
    }

    /// Lets a paused server go on.
    fn resume(&self) {
        self.process().resume();
    }
}

/// How a server is started.
pub trait Program: Send + Sync + fmt::Debug {
    /// The command that runs it in the foreground on this port of 127.0.0.1. What it prints is shown
    /// if it does not come up.
    fn command(&self, port: u16) -> Command;

    /// Whether this process, and not some other on that port, answers requests.
    fn answers(&self, port: u16, pid: u32) -> bool;
}

/// A running server.
///
/// It is killed on drop, and by the kernel when the test process dies. All methods take `&self`, so
/// that the threads of a test can share it. A forked child may not start servers; when it drops one
/// of its parent's, nothing happens.
#[derive(Debug)]
pub struct ServerProcess {
    program: Box<dyn Program>,
    port: ReservedPort,
    child: Mutex<Option<Child>>,
    owner: u32,
}

impl ServerProcess {
    /// Starts the server on a free port. Returns once it answers.
    pub fn start(program: impl Program + 'static) -> ServerProcess {
        let mut trouble = String::new();
        for _ in 0..5 {
            let port = ReservedPort::any();
            match launch(&program, port.number()) {
                Ok(child) => {
                    return ServerProcess {
                        program: Box::new(program),
                        port,
                        child: Mutex::new(Some(child)),
                        owner: std::process::id(),
                    };
                }
                Err(why) => trouble = why,
            }
        }
        panic!("{program:?} did not come up on any of five ports: {trouble}");
    }

    /// `127.0.0.1:PORT`
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port())
    }

    /// The TCP port. It stays this server's own, also while it is killed.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The process id; panics after [`ServerProcess::kill`].
    pub fn pid(&self) -> u32 {
        self.child().as_ref().expect("this server was killed and not restarted: it has no pid").id()
    }

    /// Kills the server at once (SIGKILL) and waits until it is gone.
    pub fn kill(&self) {
        if let Some(mut child) = self.child().take() {
            end(&mut child);
        }
    }

    /// Kills the server if it runs, and starts it again on the same port.
    pub fn restart(&self) {
        self.kill();
        let started = poll_until(START_LIMIT, || launch(self.program.as_ref(), self.port()).ok());
        *self.child() = Some(started.unwrap_or_else(|| {
            panic!("{:?} did not restart on port {}", self.program, self.port())
        }));
    }

    /// Freezes the server (SIGSTOP): the kernel still accepts connections for it, without replies.
    /// Returns when it stands still. What it has forked goes on.
    pub fn pause(&self) {
        let pid = self.pid();
        self.signal(libc::SIGSTOP);
        // SAFETY: `info` is plain data that the kernel fills in; WNOWAIT leaves the child to
        // `Child::wait`.
        let stopped = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            libc::waitid(
                libc::P_PID,
                pid,
                &raw mut info,
                libc::WSTOPPED | libc::WEXITED | libc::WNOWAIT,
            )
        };
        assert_eq!(stopped, 0, "server {pid} did not stop: {}", io::Error::last_os_error());
    }

    /// Lets a paused server go on.
    pub fn resume(&self) {
        self.signal(libc::SIGCONT);
    }

    /// Sends a signal.
    pub fn signal(&self, signal: libc::c_int) {
        let pid = libc::pid_t::try_from(self.pid()).expect("a pid fits pid_t");
        // SAFETY: the pid is that of a child that was not waited for, so no other process can have
        // it.
        let sent = unsafe { libc::kill(pid, signal) };
        assert_eq!(sent, 0, "signal {signal} to {pid} failed: {}", io::Error::last_os_error());
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        lock(&self.child)
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        if self.owner == std::process::id() {
            self.kill();
        }
    }
}

/// Starts one process and waits until it answers.
fn launch(program: &dyn Program, port: u16) -> Result<Child, String> {
    let mut said = memory_file().map_err(|why| why.to_string())?;
    let mut command = program.command(port);
    command.stdin(Stdio::null());
    for output in [Command::stdout, Command::stderr] {
        output(&mut command, Stdio::from(said.try_clone().map_err(|why| why.to_string())?));
    }
    let mut child = spawn(command).map_err(|why| format!("it could not be run: {why}"))?;
    let pid = child.id();
    let mut ended = false;
    let answered = poll_until(START_LIMIT, || {
        ended = !matches!(child.try_wait(), Ok(None));
        (ended || program.answers(port, pid)).then_some(())
    });
    if answered.is_some() && !ended {
        return Ok(child);
    }
    end(&mut child);
    let mut text = String::new();
    // What it said only explains the failure: without it there is less to explain.
    let _ = said.rewind().and_then(|()| said.read_to_string(&mut text));
    Err(format!("port {port}: {}: {text}", if ended { "it ended" } else { "it did not answer" }))
}

/// A file that is nowhere, and goes with its last user.
fn memory_file() -> io::Result<File> {
    // SAFETY: the name is NUL-terminated; memfd_create returns a new descriptor that nothing else
    // owns.
    unsafe {
        match libc::memfd_create(c"output".as_ptr(), libc::MFD_CLOEXEC) {
            fd @ 0.. => Ok(File::from_raw_fd(fd)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
