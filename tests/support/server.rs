//! A real memcached for one test: on a port of its own, gone with the test.

use std::fs::File;
use std::io::{self, Read};
use std::net::TcpListener;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Sender};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use crate::cable;
pub use crate::memcached_text::MemcachedText;
use crate::wire::lock;

/// How long a server may take to answer after its start.
const START_LIMIT: Duration = Duration::from_secs(10);

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
            let port = ReservedPort::new();
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

/// A loopback port that no other program is given while this lives, although only a server listens
/// on it.
///
/// A socket bound with SO_REUSEADDR that does not listen: memcached, which sets the same option,
/// may bind beside it; the kernel gives the port to no program that asks for any free one, and to
/// no outgoing connection. So a killed server finds its port again.
#[derive(Debug)]
struct ReservedPort(TcpListener);

impl ReservedPort {
    fn new() -> ReservedPort {
        ReservedPort::bind().unwrap_or_else(|why| panic!("no free port on 127.0.0.1: {why}"))
    }

    fn bind() -> io::Result<ReservedPort> {
        let check = |result: libc::c_int| {
            if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
        };
        let length = |bytes: usize| libc::socklen_t::try_from(bytes).map_err(io::Error::other);
        // SAFETY: socket() returns a new descriptor that nothing else owns.
        let socket = unsafe {
            let fd = check(libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0))?;
            TcpListener::from(OwnedFd::from_raw_fd(fd))
        };
        let fd = socket.as_raw_fd();
        let yes: libc::c_int = 1;
        let yes_length = length(size_of_val(&yes))?;
        // SAFETY: the pointer and length describe `yes`, which outlives the call.
        check(unsafe {
            libc::setsockopt(
                fd,
                libc::SOL_SOCKET,
                libc::SO_REUSEADDR,
                (&raw const yes).cast(),
                yes_length,
            )
        })?;
        // SAFETY: an all-zero sockaddr_in is valid: port 0, any address.
        let mut any_port: libc::sockaddr_in = unsafe { std::mem::zeroed() };
        any_port.sin_family =
            libc::sa_family_t::try_from(libc::AF_INET).map_err(io::Error::other)?;
        any_port.sin_addr.s_addr = libc::INADDR_LOOPBACK.to_be();
        let address_length = length(size_of_val(&any_port))?;
        // SAFETY: the pointer and length describe `any_port`, which outlives the call.
        check(unsafe { libc::bind(fd, (&raw const any_port).cast(), address_length) })?;
        Ok(ReservedPort(socket))
    }

    fn number(&self) -> u16 {
        self.0.local_addr().expect("a bound socket has an address").port()
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

fn nobody() -> (u32, u32) {
    // SAFETY: the name is NUL-terminated; the entry is read before anything else here asks for
    // another, and this crate asks for no other.
    let entry = unsafe {
        libc::getpwnam(c"nobody".as_ptr()).as_ref().map(|user| (user.pw_uid, user.pw_gid))
    };
    entry.expect("this machine has no user `nobody` for memcached to run as")
}

/// Spawns a child that the kernel kills when this process dies, in the network namespace of the
/// calling thread.
///
/// That signal (PDEATHSIG) comes already when the *thread* that forked ends, and the test harness
/// runs each test on a thread that ends. So one thread that lasts as long as the process forks for
/// all.
fn spawn(mut command: Command) -> io::Result<Child> {
    type Order = (Command, File, Sender<io::Result<Child>>);
    static SPAWNER: OnceLock<Sender<Order>> = OnceLock::new();
    let parent = libc::pid_t::try_from(std::process::id()).map_err(io::Error::other)?;
    // SAFETY: between fork and exec only prctl and getppid run, both async-signal-safe; nothing is
    // allocated.
    unsafe {
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(io::Error::last_os_error());
            }
            // The parent may have died before the signal was asked for.
            if libc::getppid() == parent { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
        });
    }
    let spawner = SPAWNER.get_or_init(|| {
        let (orders, incoming) = mpsc::channel::<Order>();
        thread::spawn(move || {
            for (mut command, namespace, done) in incoming {
                let child = cable::move_to(&namespace).and_then(|()| command.spawn());
                // The caller waits for it; if it does not, the child has no parent to wait for it
                // and is ended.
                if let Err(mpsc::SendError(Ok(mut child))) = done.send(child) {
                    end(&mut child);
                }
            }
        });
        orders
    });
    let (done, spawned) = mpsc::channel();
    let namespace = cable::namespace_of_this_thread()?;
    spawner
        .send((command, namespace, done))
        .map_err(|_| io::Error::other("the spawning thread is gone"))?;
    spawned.recv().map_err(|_| io::Error::other("the spawning thread is gone"))?
}

/// Kills and buries. Both fail only when it is gone already.
fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// Asks every few milliseconds until there is an answer or the time is up.
fn poll_until<T>(limit: Duration, mut answer: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + limit;
    loop {
        let found = answer();
        if found.is_some() || Instant::now() >= end {
            return found;
        }
        thread::sleep(Duration::from_millis(2));
    }
}

#[cfg(test)]
mod tests {
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
        let others: Vec<_> = (0..20).map(|_| ReservedPort::new()).collect();
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
