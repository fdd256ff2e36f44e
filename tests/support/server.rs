//! A real memcached for one test: on a port of its own, gone with the test.

use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard};

use crate::launch::{ReservedPort, START_LIMIT, end, nobody, poll_until, spawn};
pub use crate::memcached_text::MemcachedText;
use crate::wire::lock;

/// A running memcached on a loopback port.
///
/// It is killed on drop, and by the kernel when the test process dies. All methods take `&self`, so
/// that the threads of a test can share it. A forked child may not start servers; when it drops one
/// of its parent's, nothing happens.
#[derive(Debug)]
pub struct Memcached {
    args: Vec<String>,
    port: ReservedPort,
    child: Mutex<Option<Child>>,
    owner: u32,
}

impl Memcached {
    /// Starts a server with its defaults.
    #[must_use]
    pub fn start() -> Memcached {
        Memcached::with_args(&[])
    }

    /// Starts a server with further arguments, such as `&["-C"]`. Returns once it answers.
    #[must_use]
    pub fn with_args(args: &[&str]) -> Memcached {
        let args: Vec<String> = args.iter().map(ToString::to_string).collect();
        let mut trouble = String::new();
        for _ in 0..5 {
            let port = ReservedPort::any();
            match launch(&args, port.number()) {
                Ok(child) => {
                    return Memcached {
                        args,
                        port,
                        child: Mutex::new(Some(child)),
                        owner: std::process::id(),
                    };
                }
                Err(why) => trouble = why,
            }
        }
        panic!("memcached with {args:?} did not come up on any of five ports: {trouble}");
    }

    /// `127.0.0.1:PORT`
    #[must_use]
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port())
    }

    /// The TCP port. It stays this server's own, also while it is killed.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// `memcached://127.0.0.1:PORT`
    #[must_use]
    pub fn url(&self) -> String {
        format!("memcached://{}", self.address())
    }

    /// The process id; panics after [`Memcached::kill`].
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child()
            .as_ref()
            .expect("this memcached was killed and not restarted: it has no pid")
            .id()
    }

    /// Kills the server at once (SIGKILL) and waits until it is gone.
    pub fn kill(&self) {
        if let Some(mut child) = self.child().take() {
            end(&mut child);
        }
    }

    /// Kills the server if it runs, and starts an empty one on the same port.
    pub fn restart(&self) {
        self.restart_with(&[]);
    }

    /// [`Memcached::restart`] with further arguments, this time.
    pub fn restart_with(&self, more: &[&str]) {
        self.kill();
        let args: Vec<String> =
            self.args.iter().cloned().chain(more.iter().map(ToString::to_string)).collect();
        let started = poll_until(START_LIMIT, || launch(&args, self.port()).ok());
        *self.child() = Some(
            started.unwrap_or_else(|| panic!("memcached did not restart on port {}", self.port())),
        );
    }

    /// Freezes the server (SIGSTOP): the kernel still accepts connections for it, without replies.
    /// Returns when it stands still.
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
        assert_eq!(stopped, 0, "memcached {pid} did not stop: {}", io::Error::last_os_error());
    }

    /// Lets a paused server go on.
    pub fn resume(&self) {
        self.signal(libc::SIGCONT);
    }

    /// A new plain connection to this server.
    #[must_use]
    pub fn plain(&self) -> MemcachedText {
        MemcachedText::connect(&self.address())
    }

    /// See [`MemcachedText::commands`].
    #[must_use]
    pub fn commands(&self) -> u64 {
        self.plain().commands()
    }

    /// How many commands more it takes to get a lock than on an old server: one from 1.6.24 on,
    /// which gives cas ids out of order.
    #[must_use]
    pub fn stamps(&self) -> u64 {
        let version = self.plain().stats()["version"].clone();
        let numbers: Vec<u64> =
            version.split(['.', '-', '_']).map_while(|part| part.parse().ok()).collect();
        u64::from(numbers >= vec![1, 6, 24])
    }

    fn signal(&self, signal: libc::c_int) {
        let pid = libc::pid_t::try_from(self.pid()).expect("a pid fits pid_t");
        // SAFETY: the pid is that of a child that was not waited for, so no other process can have
        // it.
        let sent = unsafe { libc::kill(pid, signal) };
        assert_eq!(
            sent,
            0,
            "signal {signal} to memcached {pid} failed: {}",
            io::Error::last_os_error()
        );
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        lock(&self.child)
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        if self.owner == std::process::id() {
            self.kill();
        }
    }
}

/// Starts one process and waits until it, and not some other server on that port, answers.
fn launch(args: &[String], port: u16) -> Result<Child, String> {
    let mut command = Command::new(program());
    command.args(["-U", "0", "-l", "127.0.0.1", "-p", &port.to_string()]).args(args);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    // SAFETY: geteuid cannot fail.
    if unsafe { libc::geteuid() } == 0 {
        // memcached refuses to run as root. Not `-u nobody`: a process that changes its own user
        // loses the signal that is to kill it with its parent.
        let (uid, gid) = nobody();
        command.uid(uid).gid(gid);
    }
    let mut child = spawn(command).map_err(|why| format!("memcached could not be run: {why}"))?;
    let own_pid = child.id().to_string();
    let address = format!("127.0.0.1:{port}");
    let mut ended = false;
    let answered = poll_until(START_LIMIT, || {
        ended = !matches!(child.try_wait(), Ok(None));
        let stats = MemcachedText::try_connect(&address).and_then(|mut plain| plain.try_stats());
        (ended || stats.is_ok_and(|stats| stats.get("pid") == Some(&own_pid))).then_some(())
    });
    // memcached ignores SIGPIPE, so it may lose its stderr once it is up.
    let stderr = child.stderr.take();
    if answered.is_some() && !ended {
        return Ok(child);
    }
    end(&mut child);
    let mut said = String::new();
    // What it said only explains the failure: without it there is less to explain.
    let _ = stderr.map(|mut stderr| stderr.read_to_string(&mut said));
    Err(format!("{} on port {port}: {said}", if ended { "it ended" } else { "it did not answer" }))
}

fn program() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain([PathBuf::from("/usr/bin")])
        .map(|folder| folder.join("memcached"))
        .find(|file| file.is_file())
        .expect("no memcached on PATH or in /usr/bin: install memcached")
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_started_server_stores_and_a_restarted_one_is_empty_on_the_same_port() {
        let server = Memcached::start();
        let (port, pid) = (server.port(), server.pid());
        assert_eq!(server.url(), format!("memcached://127.0.0.1:{port}"));
        assert!(server.plain().set("k", "v", 0));
        server.restart();
        assert_eq!(server.port(), port);
        assert_ne!(server.pid(), pid);
        assert_eq!(server.plain().get("k"), None);
    }

    #[test]
    fn a_killed_server_refuses_and_its_port_goes_to_nobody_else() {
        let server = Memcached::start();
        let mut before = server.plain();
        server.kill();
        assert!(MemcachedText::try_connect(&server.address()).is_err());
        assert!(before.try_command("version").is_err());
        let others: Vec<_> = (0..20).map(|_| ReservedPort::any()).collect();
        assert!(others.iter().all(|other| other.number() != server.port()));
        server.restart();
        assert!(server.plain().command("version").starts_with("VERSION "));
    }

    #[test]
    fn a_paused_server_keeps_silent_until_it_is_resumed() {
        let server = Memcached::start();
        let mut plain = server.plain();
        server.pause();
        plain.set_reply_limit(Duration::from_millis(50));
        assert!(plain.try_command("version").is_err());
        server.resume();
        plain.set_reply_limit(START_LIMIT);
        assert!(plain.command("mn").starts_with("VERSION "), "the late reply comes first");
        server.pause();
        server.kill();
    }

    #[test]
    fn further_arguments_reach_the_server() {
        let server = Memcached::with_args(&["-C", "-m", "17"]);
        let settings = server.plain().stats_of("settings");
        assert_eq!(settings["cas_enabled"], "no");
        assert_eq!(settings["maxbytes"], (17 << 20).to_string());
        server.restart_with(&["-m", "18"]);
        assert_eq!(server.plain().stats_of("settings")["maxbytes"], (18 << 20).to_string());
    }

    #[test]
    #[should_panic(expected = "did not come up")]
    fn a_server_that_cannot_start_says_why() {
        let _ = Memcached::with_args(&["--no-such-option"]);
    }

    #[test]
    fn a_server_outlives_the_thread_that_started_it() {
        let server = thread::spawn(Memcached::start).join().expect("the starting thread panicked");
        assert!(server.plain().command("version").starts_with("VERSION "));
    }

    #[test]
    fn the_server_dies_with_the_test_process() {
        const CHILD: &str = "MEMLOCK_SUPPORT_DIES_SUDDENLY";
        if std::env::var_os(CHILD).is_some() {
            let server = Memcached::start();
            println!("\naddress={}", server.address());
            // SAFETY: raise has no preconditions. No destructor runs: as if the test had crashed.
            unsafe { libc::raise(libc::SIGKILL) };
        }
        let itself = std::env::current_exe().expect("a test knows its own program");
        let name = "server::tests::the_server_dies_with_the_test_process";
        let died =
            Command::new(itself).args(["--exact", name, "--nocapture"]).env(CHILD, "1").output();
        let said =
            String::from_utf8_lossy(&died.expect("the test runs itself").stdout).into_owned();
        let address = said.lines().find_map(|line| line.strip_prefix("address="));
        let address = address.unwrap_or_else(|| panic!("the dying test gave no address: {said}"));
        let gone =
            poll_until(START_LIMIT, || MemcachedText::try_connect(address).is_err().then_some(()));
        assert!(gone.is_some(), "memcached on {address} outlived its test");
    }
}
