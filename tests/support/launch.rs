//! Servers of tests: their ports, and processes that end with the test.

use std::fs::{self, File};
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use crate::cable;
use crate::wire::lock;

/// How long a server may take to answer after its start.
pub const START_LIMIT: Duration = Duration::from_secs(60);

/// A loopback port that no other program is given while this lives, although only a server listens
/// on it.
///
/// A socket bound with SO_REUSEADDR that does not listen: memcached, which sets the same option,
/// may bind beside it; the kernel gives the port to no program that asks for any free one, and to
/// no outgoing connection. So a killed server finds its port again.
#[derive(Debug)]
pub struct ReservedPort(TcpListener);

impl ReservedPort {
    /// Some free port.
    pub fn any() -> ReservedPort {
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

    /// Its number.
    pub fn number(&self) -> u16 {
        self.0.local_addr().expect("a bound socket has an address").port()
    }
}

/// A number that this process has not given before, for the name of something.
pub fn number() -> u32 {
    static LAST: AtomicU32 = AtomicU32::new(0);
    LAST.fetch_add(1, Ordering::Relaxed)
}

/// The user and the group that servers run as which refuse to run as root.
fn nobody() -> (u32, u32) {
    // SAFETY: the name is NUL-terminated; the entry is read before anything else here asks for
    // another, and this crate asks for no other.
    let entry = unsafe {
        libc::getpwnam(c"nobody".as_ptr()).as_ref().map(|user| (user.pw_uid, user.pw_gid))
    };
    entry.expect("this machine has no user `nobody` for servers to run as")
}

/// Runs the command as `nobody`, if this is root.
pub fn as_nobody(command: &mut Command) {
    // SAFETY: geteuid always succeeds.
    if unsafe { libc::geteuid() } == 0 {
        let (user, group) = nobody();
        command.uid(user).gid(group);
    }
}

/// Gives a directory to the user that servers run as.
pub fn give(directory: &Path) {
    let mode = fs::Permissions::from_mode(0o755);
    fs::set_permissions(directory, mode).expect("a directory of ours");
    // SAFETY: geteuid always succeeds.
    if unsafe { libc::geteuid() } == 0 {
        let (user, group) = nobody();
        chown(directory, Some(user), Some(group)).expect("a directory of ours");
    }
}

/// Spawns a child that the kernel kills when this process dies, in the network namespace of the
/// calling thread.
///
/// That signal (PDEATHSIG) comes already when the *thread* that forked ends, and the test harness
/// runs each test on a thread that ends. So one thread that lasts as long as the process forks for
/// all.
pub fn spawn(mut command: Command) -> io::Result<Child> {
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

/// Has this done when the process ends, and not when one ends that it has forked. What is in a static
/// is not dropped.
pub fn at_exit(work: impl FnOnce() + Send + 'static) {
    type Work = Box<dyn FnOnce() + Send>;
    static ALL: Mutex<Vec<(u32, Work)>> = Mutex::new(Vec::new());
    extern "C" fn run_all() {
        let own = std::process::id();
        let all = std::mem::take(&mut *lock(&ALL));
        all.into_iter().filter(|(owner, _)| *owner == own).for_each(|(_, work)| work());
    }
    let mut all = lock(&ALL);
    if all.is_empty() {
        // SAFETY: the function may run at the end of the process: it uses nothing that ended.
        assert_eq!(unsafe { libc::atexit(run_all) }, 0);
    }
    all.push((std::process::id(), Box::new(work)));
}

/// Kills and buries. Both fail only when it is gone already.
pub fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// Asks until there is an answer or the time is up: every few milliseconds at first, later less often,
/// for the sake of the tests that run at the same time.
pub fn poll_until<T>(limit: Duration, mut answer: impl FnMut() -> Option<T>) -> Option<T> {
    let began = Instant::now();
    loop {
        let found = answer();
        let waited = began.elapsed();
        if found.is_some() || waited >= limit {
            return found;
        }
        thread::sleep((waited / 50).clamp(Duration::from_millis(2), Duration::from_millis(40)));
    }
}

/// Runs a command to its end.
pub fn run(mut command: Command) {
    let ran = command.output().unwrap_or_else(|why| panic!("{command:?}: {why}"));
    assert!(ran.status.success(), "{command:?}: {}", String::from_utf8_lossy(&ran.stderr));
}

/// Waits until the condition holds, which must happen, however slow the machine. `what` names it.
#[track_caller]
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    const LIMIT: Duration = Duration::from_secs(60);
    let held = poll_until(LIMIT, || condition().then_some(()));
    assert!(held.is_some(), "Waited for {LIMIT:?} in vain until {what}.");
}
